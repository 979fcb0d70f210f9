"""What experiments share: parts kept where a run was stopped, statistics, results, figures.

A run has a :class:`Place`, whose ``kept`` measures each part once and keeps it as JSON and whose
``write`` replaces a results file. :func:`figure` draws a picture beside it, and :func:`command` is
the command line of a run.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import posterity
from experiments import provenance
from experiments.data import REPOSITORY
from posterity import errors

CACHES = REPOSITORY / ".cache"  # where experiments keep what they have measured, a folder each


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a run writes its results, and where it keeps what it has measured, if it keeps it."""

    results: Path
    cache: Path | None = None
    only_kept: bool = False  # whether parts that are not kept are left out

    @classmethod
    def of(cls, file: str, cache: str | None = None) -> "Place":
        """That of the study whose module is ``file``; ``cache`` is the name of a folder."""
        return cls(Path(file).parent / "results", None if cache is None else CACHES / cache)

    def kept(self, name: str, make: Callable[[], Any] | None, *settings: Any) -> Any:
        """What :func:`kept` returns; None if nothing is kept and only what is kept is asked for."""
        assert self.cache is not None, "a study that keeps nothing"
        return kept(self.cache, name, None if self.only_kept else make, *settings)

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        write(self.results, name, document)


def kept(cache: Path, name: str, make: Callable[[], Any] | None, *settings: Any) -> Any:
    """What ``make`` returns, JSON data; read from the cache where an earlier run has kept it.

    ``settings`` tell by how they print what it depends on; their digest is part of the file's name.
    Code is not among them, so that hours of work survive a comment that is reworded: ``--cache``
    names an empty folder to begin anew. None if nothing is kept and ``make`` is None.
    """
    path = cache / (f"{name}-{digest(*settings)}.json" if settings else f"{name}.json")
    if not path.exists():
        if make is None:
            return None
        replace(path, json.dumps(make()))
    return json.loads(path.read_text())


def digest(*settings: Any) -> str:
    """Twelve hexadecimal digits of how settings print."""
    return hashlib.sha256("\n".join(map(repr, settings)).encode()).hexdigest()[:12]


def kept_object(path: Path, make: Callable[[], Any]) -> Any:
    """The same of an object that the library saves, in the file ``path``."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.stem}.{os.getpid()}.partial{path.suffix}")
        posterity.save(make(), partial)
        partial.replace(path)
    return posterity.load(path)


def kept_arrays(path: Path, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        with partial.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **make())
        partial.replace(path)
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def rows(
    path: Path,
    names: Sequence[str],
    keys: Iterable[tuple[Any, ...]],
    measure: Callable[..., Mapping[str, Any]],
    minutes: float = math.inf,
) -> list[dict[str, Any]]:
    """Rows of a file, a line each, one for each key; those that it lacks are measured and added.

    The values of a key go by ``names`` in its row. None is begun after so many ``minutes``:
    programs that were compiled fill the memory, so that thousands had best be run in parts.
    """
    end, keys = time.monotonic() + 60 * minutes, list(keys)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    found = {tuple(row[name] for name in names): row for row in lines}
    with path.open("a") as file:
        for key in keys:
            if key not in found and time.monotonic() < end:
                found[key] = {**dict(zip(names, key, strict=True)), **measure(*key)}
                file.write(json.dumps(found[key]) + "\n")
                file.flush()
    return [found[key] for key in keys if key in found]


def replace(path: Path, text: str) -> None:
    """Write a text file as a whole: whoever is killed meanwhile leaves the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(text)
    os.replace(partial, path)


class Clock:
    """Wall and CPU seconds since it was made, as results files have them."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> dict[str, float]:
        return {
            "wall seconds": round(time.perf_counter() - self.wall, 3),
            "CPU seconds": round(time.process_time() - self.cpu, 3),
        }


def rounded(value: Any, digits: int = 4) -> float:
    """To significant digits; what JSON has no number for becomes a huge one."""
    return float(f"{np.nan_to_num(float(value), nan=1e300, posinf=1e300):.{digits}g}")


def standard_error(values: Any) -> Any:
    """Of the mean over the first axis; NaN where there is one value."""
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)[()]
    return values.std(0, ddof=1) / np.sqrt(len(values))


def statistics(values: Any) -> dict[str, Any]:
    """Mean, standard error of the mean (None for one value), least, largest and count."""
    values = np.asarray(values, np.float64)
    error = standard_error(values)
    return {
        "mean": rounded(values.mean()),
        "standard error": None if np.isnan(error) else rounded(error),
        "least": rounded(values.min()),
        "largest": rounded(values.max()),
        "count": len(values),
    }


def over_seeds(trees: Sequence[Any]) -> Any:
    """Statistics of each number in trees of the same names, of those names that all trees have."""
    if not isinstance(trees[0], Mapping):
        return statistics(trees)
    names = [name for name in trees[0] if all(name in tree for tree in trees)]
    return {name: over_seeds([tree[name] for tree in trees]) for name in names}


def places(numbers: Mapping[str, float], digits: int = 4) -> dict[str, float]:
    return {name: round(float(value), digits) for name, value in numbers.items()}


def at_most(goal: str, measured: Mapping[str, Any], bound: float) -> dict[str, Any]:
    """The verdict on a mean over seeds that is to be small."""
    return {"goal": goal, "measured": measured, "met": bool(measured["mean"] <= bound)}


def at_least(goal: str, measured: Mapping[str, Any], bound: float) -> dict[str, Any]:
    """The verdict on a mean over seeds that is to be large."""
    return {"goal": goal, "measured": measured, "met": bool(measured["mean"] >= bound)}


def write(folder: Path, name: str, document: Mapping[str, Any]) -> None:
    """Replace ``<folder>/<name>.json``, with a record of what it was made with; short lists stand
    on one line.
    """
    record = provenance.made_with() | document.get(provenance.KEY, {})
    document = {**document, provenance.KEY: record}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    one_line = lambda m: "[" + re.sub(r"\s*\n\s*", " ", m[1]) + "]"
    replace(
        folder / f"{name}.json", re.sub(r"\[\s+([^\[\]{}]{1,400}?)\s+\]", one_line, text) + "\n"
    )


@contextlib.contextmanager
def figure(
    path: Path, rows: int = 1, columns: int = 1, *, legend: int = 0, **options: Any
) -> Iterator[Any]:
    """Axes (rows, columns) of a picture, which is written to ``path`` at the end.

    ``legend`` is the number of columns of one below all axes, of what the last of them that has
    labels shows; zero for none. ``options`` are those of :func:`matplotlib.pyplot.subplots`.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    canvas, axes = plt.subplots(
        rows, columns, **{"layout": "constrained", "squeeze": False, **options}
    )
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
    yield axes
    shown = [axis.get_legend_handles_labels() for axis in axes.ravel()]
    if legend and (labelled := [both for both in shown if both[1]]):
        columns = min(legend, len(labelled[-1][1]))
        canvas.legend(*labelled[-1], loc="outside lower center", ncols=columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=150)
    plt.close(canvas)


def errorbar(axis: Any, x: Any, rows: Sequence[Mapping[str, Any]], **style: Any) -> None:
    """Draw means that :func:`statistics` made, with bars of their standard errors."""
    mean, error = ([row[kind] or 0.0 for row in rows] for kind in ("mean", "standard error"))
    axis.errorbar(x, mean, error, **{"capsize": 2, **style})


def command(
    run: Callable[..., Any], arguments: Sequence[str] | None = None, **choices: Iterable[str]
) -> Any:
    """Call ``run`` with its keywords as the command line sets them, and print verdicts on goals.

    ``--only-kept`` sets ``only_kept=False`` to True, ``--seeds 0 1`` sets ``seeds=(0, 1)``; what is
    None by default is a path or a whole number, as its annotation has it; a keyword that begins
    with ``_`` is of tests alone. What stands before a ``/`` is set by position; a :class:`Place`
    there by ``--results``, ``--cache`` and ``--only-kept``. ``choices`` are what words of a keyword
    may be. Warnings that a posterior has not converged, or is determined by little, are left out:
    results say so.
    """
    parser = argparse.ArgumentParser(description=sys.modules[run.__module__].__doc__)
    parameters = dict(inspect.signature(run).parameters)
    place = next((own.default for own in parameters.values() if type(own.default) is Place), None)
    taken = {name: (own.default, str(own.annotation)) for name, own in parameters.items()}
    if place is not None:
        taken = {name: own for name, own in taken.items() if own[0] is not place}
        fields = vars(place) if place.cache else {"results": place.results}
        taken |= {name: (default, "Path") for name, default in fields.items()}
    by_position = [n for n, own in parameters.items() if own.kind is own.POSITIONAL_ONLY]
    for name, (default, annotation) in taken.items():
        if name[0] == "_":
            continue
        sample = default[0] if isinstance(default, tuple) and default else default
        kind = (Path if "Path" in annotation else int) if sample is None else type(sample)
        options: dict[str, Any] = {"type": kind, "choices": choices.get(name)}
        if default is False:
            options = {"action": "store_true"}
        elif isinstance(default, tuple):
            options |= {"nargs": "*", "type": str if sample == () else kind}
        if name in by_position and options["choices"]:  # argparse looks for a default among them
            options["type"] = functools.partial(_one_of, tuple(options.pop("choices")))
        flag = name if name in by_position else f"--{name.replace('_', '-')}"
        parser.add_argument(flag, default=default, help=f"(default: {default})", **options)
    given = vars(parser.parse_args(arguments))
    given = {name: tuple(own) if isinstance(own, list) else own for name, own in given.items()}
    if place is not None:
        own = dataclasses.replace(place, **{name: given.pop(name) for name in fields})
        given |= {name: own for name, each in parameters.items() if each.default is place}
    with warnings.catch_warnings():
        for kind in (errors.ConvergenceWarning, errors.IdentificationWarning, errors.FusionWarning):
            warnings.simplefilter("ignore", kind)
        found = run(*[given.pop(name) for name in by_position], **given)
    goals = found.get("goals") if isinstance(found, Mapping) else None
    for goal in goals if isinstance(goals, list) else []:
        rest = {name: value for name, value in goal.items() if name not in ("goal", "met")}
        state = {True: "met     ", False: "not met "}.get(goal["met"], goal["met"])
        print(state, goal["goal"], rest)
    return found


def _one_of(words: Sequence[str], word: str) -> str:
    if word not in words:
        raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(map(repr, words))}")
    return word
