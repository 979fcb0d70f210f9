"""Tables of this folder's README."""

import functools
from collections.abc import Mapping
from typing import Any

from experiments import goals
from experiments.pages import At, at, figure, figures, results, table

GAUSSIAN = "main: Gaussian, KL x 0.1, Dirichlet(0.8)"
HORSESHOE = "horseshoe, KL x 0.1, Dirichlet(0.8)"
OURS = "**posterity**"


def mixtures() -> str:
    """Return distances and errors in the number of components, over all points of both figures."""
    methods = {
        OURS: ["posterity"],
        "SPAHM": ["SPAHM"],
        "KL-fusion, as released": ["KL-fusion as released"],
        "KL-fusion, the paper's setting": ["KL-fusion, paper's setting"],
        "DP clustering": ["DP clustering"],
        "one fit of all data, told the number": ["oracle VI on pooled data"],
    }
    columns: Mapping[str, At] = {
        "Hausdorff distance of means": ["hausdorff"],
        "error in their number": ["size error"],
    }
    tree = results("klfusion/expected")["average over points"]
    return figures(tree, "method", methods, columns, decimals=3)


def motion() -> str:
    """Return table 1: how well a method's states agree with a human's labels."""
    file = results("klfusion/mocap")
    methods = {name: [name] for name in file["methods"]}
    methods = {OURS if name == "posterity" else name: where for name, where in methods.items()}
    columns: Mapping[str, At] = {key: [key] for key in ("adjusted Rand", "AMI", "Rand", "states")}
    return figures(file["methods"], "method", methods, columns, decimals=3)


def _topics(study: Mapping[str, Any]) -> str:
    methods = study["methods"]
    order = sorted(methods, key=lambda name: -methods[name]["mean"]["mean"])
    gains = study["gains"]
    body = []
    for name in order:
        row = methods[name]
        fitted = row["cpu_seconds"]["mean"] == 0
        body.append(
            [
                f"**{name}**" if name == "non-parametric, product" else name,
                figure(row["topics"]["mean"], 0),
                figure(row["mean"], 3),
                figure(row["geometric"], 3),
                figure(gains[name], 3) if name in gains else "",
                "" if fitted else figure(row["cpu_seconds"]["mean"], 1),
            ]
        )
    head = ["method", "topics", "`E[φ]`", "`exp E[log φ]`", "ours less it", "CPU s"]
    return table(head, body)


def topics_shared() -> str:
    """Return scores where all sites have all subjects."""
    return _topics(results("klfusion/topics")["all shared"])


def topics_half_shared() -> str:
    """Return scores where sites share half of the subjects."""
    return _topics(results("klfusion/topics")["half shared"])


def _score(part: Any) -> str:
    if part is None:
        return ""
    return f"{figure(part['accuracy'], 2)} / {figure(part['log_likelihood'], 3)}"


def networks() -> str:
    """Return fused networks beside other ways to make one of five."""
    file = results("klfusion/networks")
    paper = file["paper"]
    published = f"{paper['accuracy']} / {figure(paper['log likelihood'])}"
    body = [["the paper: fused", str(paper["fused width"]), "", published, ""]]
    for name, row in file["studies"][GAUSSIAN].items():
        if name != "partitions":
            area = at(row, ["AUROC", "area"])
            body.append(
                [
                    f"**{name}**" if name == "fused, rule product" else name,
                    figure(row["units"]["mean"], 0),
                    _score(row.get("at means")),
                    _score(row.get("with draws")),
                    "" if area is None else figure(area, 3),
                ]
            )
    head = ["method", "units", "accuracy % / log likelihood at means", "with draws", "AUROC"]
    return table(head, body)


def horseshoe() -> str:
    """Return the same under the paper's own prior."""
    study = results("klfusion/networks")["studies"][HORSESHOE]
    body = [
        [
            name,
            figure(row["units"]["mean"], 0),
            _score(row.get("at means")),
            _score(row.get("with draws")),
        ]
        for name, row in study.items()
        if name != "partitions"
    ]
    head = ["method", "units", "accuracy % / log likelihood at means", "with draws"]
    return table(head, body)


def deep() -> str:
    """Return networks of several layers, of which one seed was run."""
    compared = {
        "fused": "fused",
        "concatenation, class weights": "concatenation, class weights",
        "ensemble of probabilities": "ensemble of probabilities",
        "matched average (FedMA, one shot)": "matched average after FedMA",
        "plain average": "plain average",
    }
    body = [
        [
            name,
            figure(network["fused"]["widths"]),
            *(_score(network[method]) for method in compared),
        ]
        for name, network in results("klfusion/deep")["networks"].items()
    ]
    return table(["network", "widths", *compared.values()], body)


def margins() -> str:
    """Return the share of wrong matches by their margins, where sites differ more and more."""
    file = results("klfusion/margins")
    shifts = {
        "sites alike": file["matches"]["shift 0"],
        "shifted by 0.3": file["matches"]["shift 0.3"],
        "shifted by 1": file["matches"]["shift 1"],
        "all, where the number was right": file["matches, number right"],
    }
    names = {"-inf to 1": "below 1", "30 to inf": "above 30"}
    body = [
        [names.get(margin, margin), *(_share(found[margin]) for found in shifts.values())]
        for margin in shifts["sites alike"]
    ]
    return table(["margin in nats", *shifts], body)


def _share(found: Mapping[str, Any]) -> str:
    if not found["of"]:
        return ""
    return f"{100 * found['wrong']:.2g} % of {found['of']:,}"


missed = functools.partial(goals.missed, "klfusion")
