"""Tables of this folder's README."""

import functools
import math
from collections.abc import Mapping
from typing import Any

from experiments import goals
from experiments.pages import figure, results, spread_of, table

DIGITS = 4
"""Of means in the file; a spread that is less than the last of them is left out."""
DIVERGED = "diverged"
ONE_COVER = "KL over floor after one cover"
TWO_COVERS = "KL over floor after two covers"


def _mean(value: Mapping[str, Any] | None) -> str:
    """Write a mean, with its spread where four digits of the mean show it."""
    if value is None:
        return ""
    mean = value["mean"]
    spread = spread_of(value)
    if not mean or not spread or spread < 10.0 ** (1 - DIGITS) * abs(mean):
        return figure(mean)
    of_spread = 1 - math.floor(math.log10(spread))
    of_mean = DIGITS - 1 - math.floor(math.log10(abs(mean)))
    return figure(value, max(0, min(of_spread, of_mean)))


def _over_time(curves: Mapping[str, Any], unit: str) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of means after numbers of slots or iterations."""
    after = dict.fromkeys(key for row in curves.values() for key in row if key.isdecimal())
    head = [f"nats after {unit}", *(f"{int(key):,}" for key in after)]
    body = [[name, *(_mean(row.get(key)) for key in after)] for name, row in curves.items()]
    return head, body


def _percent(share: float) -> str:
    return f"{figure(100.0 * share, 0)} %"


def _part(number: int) -> Mapping[str, Any]:
    """Return what the file holds of a figure."""
    return results("gfvl/expected")[f"figure {number}"]


def graphs() -> str:
    """Return figure 3: divergences on three graphs."""
    head, body = _over_time(_part(3)["KL after slots"], "slots")
    return table(head, body)


def times() -> str:
    """Return hops of walks, beside theory."""
    body = []
    for graph, kinds in _part(3)["times"].items():
        for kind, own in kinds.items():
            theory = figure(own["hops, theory"], 2)
            measured = figure(own["hops, measured"], 2)
            body.append([graph, kind, theory, measured, figure(own["repetitions"])])
    return table(["graph", "hops", "in theory", "measured", "walks"], body)


def local_iterations() -> str:
    """Return figure 4: the paper's estimator by iterations a visit, under both losses."""
    curves: dict[str, Any] = {}
    ends: list[list[str]] = []
    for loss, own in _part(4)["KL after local iterations"].items():
        for name, row in own.items():
            if name != "floor":
                curves[f"{loss}, {name}"] = row
                ends.append([figure(own["floor"]), _percent(row[DIVERGED])])
    head, body = _over_time(curves, "iterations")
    rows = [[*row, *end] for row, end in zip(body, ends, strict=True)]
    return table([*head, "floor", "runs that diverge"], rows)


def estimators() -> str:
    """Return figure 4's setting, one iteration a visit, by estimators of the gradient."""
    part = _part(4)["KL after local iterations, sum loss, L = 1"]
    curves = {name: row for name, row in part.items() if name != "floor"}
    head, body = _over_time(curves, "iterations")
    shares = [_percent(row[DIVERGED]) for row in curves.values()]
    rows = [[*row, share] for row, share in zip(body, shares, strict=True)]
    return table([*head, "runs that diverge"], rows)


def hops() -> str:
    """Return hops until a walk's posterior is at 1.2 times the floor."""
    part = _part(4)
    over = part["hops to 1.2 times the floor, default, over data sets"]
    least_and_most = figure([over["least"], over["most"]])
    body = [[f"default, over data sets ({least_and_most})", _mean(over), "", ""]]
    for name, own in part["hops to 1.2 times the floor"].items():
        never = own["share of runs that did not get there"]
        together = own["hops until the mean KL over runs is"]
        body.append([name, _mean(own), _percent(never), figure(together)])
    head = [
        "on the complete graph",
        "hops, mean over walks",
        "walks that did not get there",
        "hops until the mean KL over walks is there",
    ]
    return table(head, body)


def forgotten() -> str:
    """Return figure 5: divergences over the floor, once a leaver is gone."""
    columns: dict[str, None] = {}
    rows: dict[str, dict[str, str]] = {}
    for case, own in _part(5)["KL after visits, Beta-exponential"].items():
        row = rows.setdefault(case, {})
        for how, found in own["one cover"].items():
            if ONE_COVER in found:
                row[f"{how}, one cover"] = _mean(found[ONE_COVER])
                row[f"{how}, two covers"] = _mean(found[TWO_COVERS])
            else:
                name = how.replace("forget", "`forget`").replace(" 1 sweeps", " 1 sweep")
                row[name] = figure(found["KL over floor"])
        columns.update(dict.fromkeys(row))
    body = [[case, *(row.get(name, "") for name in columns)] for case, row in rows.items()]
    return table(["KL over floor", *columns], body)


missed = functools.partial(goals.missed, "gfvl")
