"""Tables of this folder's README."""

from typing import Any

from experiments.pages import figure, results, table

FILE = "bfi/expected"


def _short(value: float | None) -> str:
    """Write two digits."""
    return "not known" if value is None else figure(float(f"{value:.2g}"))


def _off(part: dict[str, Any]) -> str:
    """Write nats, and in brackets the farthest mean."""
    return f"{_short(part['nats'])} ({_short(part['mean, sd'])})"


def distances() -> str:
    """Return how far each method is from the fit of all records together, by table."""
    body = []
    for name, own in results(FILE).items():
        if "records" not in own:
            continue
        shot = own["posterity, one shot"]
        body.append(
            [
                name,
                " / ".join(f"{count}" for count in own["records"].values()),
                _off(own["BFI, one shot"]),
                _off(own["BFI, one shot, from BFI's own pooled fit"]),
                _off(shot),
                _short(shot["nats as fuse expects them"]),
                _off(own["posterity, federated"]),
                _short(own["one rule: largest relative difference"]),
            ]
        )
    head = ["table", "records a centre", "BFI, one shot", "from its own pooled fit"]
    head += ["posterity, one shot", "expected"]
    return table([*head, "posterity, federated", "one rule"], body)


def seconds() -> str:
    """Return seconds of wall time of each method, by table."""
    body = []
    for name, own in results(FILE).items():
        if "seconds" in own:
            spent = own["seconds"]
            methods = ("BFI, one shot", "one shot", "federated")
            body.append([name, *(_short(spent[method]) for method in methods)])
    return table(["seconds", "BFI, one shot", "posterity, one shot", "posterity, federated"], body)


def intercepts() -> str:
    """Return fits with an intercept of each hospital's own, beside the pooled fit of that model."""
    own = results(FILE)["heart, intercepts of their own"]
    personal = own["posterity, federated, personal intercepts"]
    slopes = zip(personal["slopes"], own["slopes of the pooled fit"], personal["sd"], strict=True)
    farthest = max(abs(ours - pooled) / sd for ours, pooled, sd in slopes)
    columns = own["posterity, federated, a column of ones a centre"]
    body = []
    fits = {
        "BFI, `stratified`": own["BFI, stratified"],
        "posterity, a column of ones a centre": columns,
    }
    for name, part in fits.items():
        body.append([name, _short(part["nats"]), _short(part["mean, sd"]), ""])
    spread = figure(personal["spread of intercepts"], 2)
    body.append(["posterity, `personal=[0]`", "", _short(farthest), spread])
    head = ["four hospitals", "nats from pooled", "farthest mean, deviations"]
    return table([*head, "intercepts' spread"], body)
