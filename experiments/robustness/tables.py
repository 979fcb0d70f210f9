"""Tables of this folder's README."""

import collections
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments import goals
from experiments.pages import figure, results, table

Counts = Mapping[str, int]
FALSE = 0.01
"""Of all federations: how many may be right and called not converged."""


def _total(counts: Counts, names: Iterable[str]) -> int:
    """Return how many have one of these verdicts."""
    return sum(counts.get(name, 0) for name in names)


def _sorted_out(counts: Counts) -> list[int]:
    """Return numbers of federations in the order of :data:`FEDERATIONS`."""
    found: collections.Counter[str] = collections.Counter()
    for verdict, number in counts.items():
        status, _, how = verdict.rpartition(", ")
        said = status.startswith("converged")
        if how == "right":
            found["right, converged" if said else "right, not converged"] += number
        elif how == "wrong":
            found["wrong, converged" if said else "wrong, not converged"] += number
        elif how == "no posterior":
            found[how] += number
        elif how == "reference failed":
            found["reference is higher"] += number
        if status == "converged to one of several" and how == "right":
            found["one of several optima"] += number
    return [found[name] for name in FEDERATIONS]


FEDERATIONS = {
    "right, converged": "right, called converged",
    "one of several optima": "of these: at one of several optima",
    "right, not converged": "right, not called converged",
    "wrong, not converged": "wrong, not called converged",
    "wrong, converged": "wrong, called converged",
    "no posterior": "no posterior",
    "reference is higher": "reference ended higher",
}
"""Headings of what becomes of federations."""


def _row(name: str, counts: Counts) -> list[str]:
    return [name, figure(counts["problems"]), *map(figure, _sorted_out(counts))]


def _outcome(counts: Counts) -> str:
    """Say whether the goal is met: none silent, and at most one in a hundred false."""
    silent = counts.get("converged, wrong", 0)
    false = counts.get("not converged, right", 0)
    met = silent == 0 and false <= FALSE * counts["problems"]
    return goals.MET if met else goals.MISSED


def federations() -> str:
    """Return what became of all federations of each file, and what it calls wrong."""
    body = []
    for name in ("users", "expected"):
        file = results(f"robustness/{name}")
        counts = file["counts"]["all"]
        body.append([*_row(f"`{name}.json`", counts), _outcome(counts), file["wrong"]])
    return table(["file", "problems", *FEDERATIONS.values(), "goal", "wrong is"], body)


def likelihoods() -> str:
    """Return the same of users' problems by likelihood, full and diagonal posteriors together."""
    kinds: dict[str, collections.Counter[str]] = {}
    for kind, counts in results("robustness/users")["counts"].items():
        likelihood = kind.removesuffix(", diagonal").removesuffix(", full")
        if likelihood != "all":
            kinds.setdefault(likelihood, collections.Counter()).update(counts)
    body = [_row(kind, counts) for kind, counts in _all_first(kinds)]
    return table(["likelihood", "problems", *FEDERATIONS.values()], body)


def unfinished() -> str:
    """Return how far off is what unfinished runs say is left."""
    columns = {
        "within a factor of three": "within",
        "too little": "too little",
        "too much": "too much",
        "said not to be known": "not known",
        "converged": "converged",
        "called converged, and not": "silent",
    }
    counts = results("robustness/unfinished")["counts"]
    body = [
        [kind, *(figure(own.get(verdict, 0)) for verdict in columns.values())]
        for kind, own in _all_first(counts)
    ]
    return table(["runs", *columns], body)


def _all_first(counts: Mapping[str, Counts]) -> list[tuple[str, Counts]]:
    """Return kinds and their counts, the sum of all before the others."""
    return sorted(counts.items(), key=_order)


def _order(named: tuple[str, Counts]) -> tuple[bool, str]:
    kind = named[0]
    return kind != "all", kind.lower()


FUSIONS: Mapping[str, Sequence[str]] = {
    "right": ["right"],
    "right, warned of with a cause": [
        "right, warned of sites that differ",
        "right, warned of few records",
    ],
    "right, but who differs is not told": ["right, not told of"],
    "right, warned of without a cause (false)": ["right, warned"],
    "wrong, with a warning": ["wrong, warned"],
    "wrong, without (silent)": ["wrong, silent"],
}
"""Verdicts on fusions, by the heading of their column."""


def _fusions(file: Mapping[str, Any], names: Mapping[str, str]) -> str:
    body = []
    named = {names.get(kind, kind): counts for kind, counts in file["counts"].items()}
    for kind, counts in _all_first(named):
        numbers = [_total(counts, verdicts) for verdicts in FUSIONS.values()]
        body.append([kind, figure(sum(numbers)), *map(figure, numbers)])
    return table([f"numbers {file['seeds']}", "in all", *FUSIONS], body)


def situations() -> str:
    """Return what became of random situations."""
    return _fusions(results("robustness/situations"), {})


def mixtures() -> str:
    """Return what became of mixtures without a location, and of sites in other units."""
    names = {
        "units": "normal, one site in other units",
        "centred": "normal, one site in other units, columns centred",
        "shifted": "normal, one site shifted",
    }
    return _fusions(results("robustness/mixtures"), names)


def dimensions() -> str:
    """Return the least distance from which on three clusters are found."""
    least = results("robustness/dimensions")["least"]
    cells = dict.fromkeys(cell for row in least.values() for cell in row)
    body = [[layout, *(figure(row.get(cell)) for cell in cells)] for layout, row in least.items()]
    return table(["least distance in deviations", *cells], body)


def processors() -> str:
    """Return how many results hang on the processor."""
    body = []
    for verb, own in results("robustness/processors")["verbs"].items():
        differing = own["differ"].values()
        beyond = [case["nats"] for case in differing if not case["within tolerance"]]
        what = dict.fromkeys(part for case in differing for part in case["what"])
        body.append(
            [
                f"`{verb}`",
                figure(own["problems"]),
                figure(len(differing)),
                figure(len(beyond)),
                ", ".join(what) or "–",
                figure(max(beyond, default=None)),
                figure(own["largest, nats"]),
            ]
        )
    head = [
        "verb",
        "problems",
        "differ",
        "beyond the tolerance",
        "in what",
        "nats of these, at most",
        "nats of those that do not differ, at most",
    ]
    return table(head, body)


missed = functools.partial(goals.missed, "robustness")
