"""The goals of experiments in their results files, and how each ended."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from experiments.data import REPOSITORY
from experiments.pages import escaped, figure, is_figure, results, table

MISSED, MET = '<span class="missed">missed</span>', "met"
HIDDEN = {
    "runs",
    "differ",
    "each trial",
    "by partition",
    "settings",
    "effort",
    "made with",
    "versions",
}
"""Parts of results files that are records of each run, or settings."""
NO_VERDICTS = {
    *("quick", "brief", "complete", "power", "other noise less retrained"),
    "by stage, less all retrainings, all hospitals",
    "better, by more than one standard error of the difference",
}
"""Truth values that are no verdicts on a goal: settings, and what was observed beside it."""


class Verdict(NamedTuple):
    """A goal of an experiment, what was measured, the paper's figure, and how it ended."""

    goal: str
    measured: str
    paper: str
    met: Any

    @property
    def outcome(self) -> str:
        """In words; a missed goal is marked."""
        if isinstance(self.met, bool):
            return MET if self.met else MISSED
        return escaped(str(self.met))


def verdicts(node: Any, path: tuple[str, ...] = (), beside: Any = None) -> Iterator[Verdict]:
    """Every goal in a results file: parts that say whether they were ``met``, and truth values,
    of which ``beside`` is the part that they stand in.
    """
    if isinstance(node, Mapping):
        if "met" in node:
            named = next((node[k] for k in ("goal", "text") if k in node), ": ".join(path))
            apart = ("met", "goal", "text", "paper", "judged as")
            rest = {k: v for k, v in node.items() if k not in apart}
            found = rest.get("measured", rest or None)
            yield Verdict(
                escaped(named), _measured(found), figure(node.get("paper", "")), node["met"]
            )
            return
        for key, value in node.items():
            if key not in HIDDEN | NO_VERDICTS:
                below = path if key in ("goal", "goals", "results") else (*path, str(key))
                yield from verdicts(value, below, node)
    elif isinstance(node, list):
        for value in node:
            if isinstance(value, Mapping):
                yield from verdicts(value, path)
    elif isinstance(node, bool):
        yield Verdict(escaped(": ".join(path)), _measured(beside), "", node)


def _measured(found: Any) -> str:
    if isinstance(found, Mapping) and not is_figure(found):
        parts = [f"{escaped(k)} {figure(v)}" for k, v in flat(found).items() if is_figure(v)]
        return "; ".join(parts[:6])
    if isinstance(found, Mapping) and is_figure(found) and found.get("least") is not None:
        return f"{figure(found)} ({figure(found['least'])} to {figure(found.get('largest'))})"
    return "" if found is None else figure(found)


def flat(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping) and not is_figure(value):
            found |= flat(value, (*path, str(key)))
        elif not isinstance(value, list) or all(isinstance(v, int | float) for v in value[:9]):
            found[" ".join((*path, str(key))).replace("_", " ")] = value
    return found


def missed(folder: str) -> str:
    """Return a table of the goals of a folder of experiments that were not met."""
    rows = []
    for file in sorted((REPOSITORY / "experiments" / folder / "results").glob("*.json")):
        found = dict.fromkeys(verdicts(results(f"{folder}/{file.stem}")))
        rows += [[file.stem, each.goal, each.measured] for each in found if each.met is False]
    return table(["file", "goal that is missed", "measured"], rows) if rows else "None.\n"
