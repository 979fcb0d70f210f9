"""Tables of pages, made of results files: ``python -m experiments.pages`` writes them anew.

In a page a table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; it is what the
function of that name returns, in the module ``tables`` beside the page, or, of ``FOLDER.NAME``, in
that of a folder of experiments. :mod:`experiments.rerun` writes them after every run. The pages
that are made when the site is built use the same words for numbers.
"""

import importlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.data import REPOSITORY

BLOCK = re.compile(r"<!-- table (?:(\w+)\.)?(\w+) -->\n.*?<!-- end -->", re.DOTALL)
At = Sequence[Any]
"""A place in a results file: the keys that lead there."""


def results(name: str) -> Any:
    """Return what the results file of a name such as ``klfusion/mocap`` holds."""
    folder, _, stem = name.partition("/")
    file = REPOSITORY / "experiments" / folder / "results" / f"{stem}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def at(tree: Any, place: At) -> Any:
    """Return what stands at a place, ``None`` where nothing does."""
    for key in place:
        if tree is None or (isinstance(tree, Mapping) and key not in tree):
            return None
        tree = tree[key]
    return tree


# --- words for numbers ---------------------------------------------------------------------------


def is_figure(value: Any) -> bool:
    """Whether it is a number, or a mean that may have a spread."""
    if isinstance(value, Mapping):
        return "mean" in value and not isinstance(value["mean"], Mapping | list)
    return isinstance(value, int | float) and not isinstance(value, bool)


def spread_of(value: Mapping[str, Any]) -> float | None:
    """Return the standard error of a mean, or the standard deviation where a file has that one."""
    spreads = (value[key] for key in ("standard error", "sd") if value.get(key) is not None)
    return next(spreads, None)


def figure(value: Any, decimals: int | None = None) -> str:
    """Write what a results file holds: a number, a mean with its spread, a list of these, a text.

    Args:
        value: What it holds. What is not known is a dash.
        decimals: As many, of a number that is not whole; otherwise two digits of the spread, or
            four of a number without one.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, Mapping):
        return _mean(value, decimals)
    if isinstance(value, list | tuple):
        joint = " to " if len(value) == 2 else ", "
        return joint.join(figure(each, decimals) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if isinstance(value, float):
        return _real(value, decimals).replace("-", "−")
    return escaped(str(value))


def _mean(value: Mapping[str, Any], decimals: int | None) -> str:
    mean, spread = value.get("mean"), spread_of(value)
    if spread and decimals is None:
        decimals = max(0, 1 - math.floor(math.log10(spread)))
    if not spread or mean is None:
        return figure(mean, decimals)
    return f"{figure(float(mean), decimals)} ± {figure(float(spread), decimals)}"


def _real(value: float, decimals: int | None) -> str:
    if abs(value) >= 1e300:
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}" if decimals is None else f"{value:z,.{decimals}f}"


def escaped(text: str) -> str:
    """Return a text as a cell of a table has it."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("[", "\\[")


# --- tables --------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def figures(
    tree: Any,
    heading: str,
    rows: Mapping[str, At],
    columns: Mapping[str, At],
    decimals: int | None = None,
) -> str:
    """Return a table of figures of a results file, empty where it has none.

    Args:
        tree: What the file holds.
        heading: Of the first column, in which rows are named.
        rows: Where in the file each row's part stands, by the row's name.
        columns: Where in such a part the figure of a column stands, by the column's heading.
        decimals: As :func:`figure` has them.
    """

    def cell(row: At, column: At) -> str:
        value = at(tree, (*row, *column))
        return "" if value is None else figure(value, decimals)

    body = [
        [name, *(cell(row, column) for column in columns.values())] for name, row in rows.items()
    ]
    return table([heading, *columns], body)


# --- pages ---------------------------------------------------------------------------------------


def pages() -> list[Path]:
    """Return the pages that have tables which are made."""
    patterns = ("experiments/*/README.md", "benchmarks/README.md", "docs/*.md")
    found = [page for pattern in patterns for page in REPOSITORY.glob(pattern)]
    return sorted(page for page in found if BLOCK.search(page.read_text(encoding="utf-8")))


def written(page: Path) -> str:
    """Return the text of a page with its tables made anew."""
    beside = ".".join(page.parent.relative_to(REPOSITORY).parts)

    def made(block: re.Match[str]) -> str:
        folder, name = block.groups()
        package = beside if folder is None else f"experiments.{folder}"
        tables = importlib.import_module(f"{package}.tables")
        opening, _, _ = block[0].partition("\n")
        return f"{opening}\n{getattr(tables, name)()}<!-- end -->"

    return BLOCK.sub(made, page.read_text(encoding="utf-8"))


def run() -> None:
    """Write the tables of every page anew."""
    for page in pages():
        page.write_text(written(page), encoding="utf-8")


if __name__ == "__main__":
    run()
