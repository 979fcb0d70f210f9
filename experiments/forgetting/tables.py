"""Tables of this folder's README."""

from collections.abc import Mapping
from typing import Any

from experiments.pages import figure, results, table

RATIOS = {
    "distance": "reported over true",
    "bound": "bound over true",
    "certificate": "certificate over true",
}
"""Parts of the file, by what is compared with the true distance."""
LABELS = {"1 sweeps": "1 sweep", "default": "as many sweeps as it takes"}
QUANTILES = ("least", "10 %", "median", "90 %", "largest")


def _label(sweeps: str) -> str:
    return LABELS.get(sweeps, sweeps)


def _row(name: str, own: Mapping[str, Any]) -> list[str]:
    """Write quantiles, of which there are none where all true distances are rounding."""
    quantiles = [figure(own[key]) if key in own else "" for key in QUANTILES]
    return [name, *quantiles, figure(own["distances"]), figure(own["unknown"])]


def ratios() -> str:
    """Return what is said over what is true, by the number of sweeps."""
    file = results("forgetting/expected")
    body = []
    for what, part in RATIOS.items():
        for sweeps, own in file.get(part, {}).items():
            body.append([what, *_row(_label(sweeps), own)])
    noisy = file["by draws, reported over true"]
    body.append(["distance", *_row("any number of sweeps, by draws", noisy)])
    return table(["said over true", "after", *QUANTILES, "distances", "unknown"], body)


def _where_true_is_small(parts: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Return the most that is said where the true distance is rounding."""
    found = []
    for own in parts.values():
        for key, small in own.items():
            if key.startswith("true below") and small["at most"] is not None:
                found.append(small["at most"])
    return max(found, default=None)


def most() -> str:
    """Return the largest numbers of nats, over all leavers."""
    file = results("forgetting/expected")
    rows = {
        "left to change where the others were trained anew": file[
            "trained anew, nats left, at most"
        ],
        "free energy of these above the least of BFGS": file[
            "trained anew, nats above the least of BFGS, at most"
        ],
        "true distance after as many sweeps as it takes": file["nats left by default, at most"],
    }
    for what, part in RATIOS.items():
        if part in file:
            rows[f"{what} said where the true one is below 1e-8"] = _where_true_is_small(file[part])
    body = [[what, figure(value)] for what, value in rows.items()]
    return table([f"{file['leavers']} leavers, exact gradients", "nats, at most"], body)
