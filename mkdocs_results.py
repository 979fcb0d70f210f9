"""Two pages of the documentation that are made of results files, when the site is built.

``results.md`` has the verdict on every goal in the files under ``experiments/*/results``, and the
figures that papers print beside ours; ``benchmarks.md`` has the tables under
``benchmarks/results``. Nothing on them is written by hand but :data:`BESIDE`, which says where in
the files a paper's figure and ours stand.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # MkDocs loads this file alone

from experiments import provenance  # noqa: E402
from experiments.goals import HIDDEN, MISSED, Verdict, flat, verdicts  # noqa: E402
from experiments.pages import at, escaped, figure, is_figure, spread_of, table  # noqa: E402

_MNIST, _TOY = "dark_knowledge/results/mnist-paper.json", "dark_knowledge/results/toy2d.json"
_BOSTON, _MOCAP = "dark_knowledge/results/regression.json", "klfusion/results/mocap.json"
_NETS = "klfusion/results/networks.json"
_MAIN, _HORSE = "main: Gaussian, KL x 0.1, Dirichlet(0.8)", "horseshoe, KL x 0.1, Dirichlet(0.8)"
_LL = "test log likelihood, table 5, Boston"


class Beside(NamedTuple):
    """A figure that a paper prints: whose, what, where both stand in a file, and the better end."""

    paper: str
    what: str
    file: str
    theirs: tuple[Any, ...]
    ours: tuple[Any, ...]
    larger: bool


def _motion(measure: str, key: str, method: str) -> Beside:
    what = f"motion capture, {measure}, {method}"
    ours = ("methods", {"KL-fusion": "posterity"}.get(method, method), measure)
    return Beside("claici2020, table 1", what, _MOCAP, ("paper", method, key), ours, True)


def _digits(method: str) -> Beside:
    theirs = ("paper", "test error in %", method, 0)
    what = f"MNIST, test error in %, {method}"
    return Beside("korattikara2015", what, _MNIST, theirs, ("test", method, "error"), False)


def _toy(theirs: str, ours: str) -> Beside:
    at = ("KL to the true predictive, grid", ours)
    what = f"toy classification, KL in nats, {theirs}"
    return Beside(
        "korattikara2015, table 2", what, _TOY, ("paper", "KL, table 2", theirs), at, False
    )


def _boston(method: str) -> Beside:
    at = ("tables", "boston, constant noise", method, "log likelihood")
    what = f"Boston housing, log likelihood, {method}"
    return Beside("korattikara2015, table 5", what, _BOSTON, ("paper", _LL, method), at, True)


BESIDE = (
    *(_motion("adjusted Rand", "Rand", method) for method in ("KL-fusion", "SPAHM")),
    *(_motion("AMI", "AMI", method) for method in ("KL-fusion", "SPAHM")),
    *(
        Beside("claici2020", f"MNIST, {what}, {prior}", _NETS, ("paper", theirs), at, larger)
        for prior, study in (("Gaussian prior", _MAIN), ("horseshoe prior", _HORSE))
        for what, theirs, at, larger in (
            (
                "accuracy in %",
                "accuracy",
                ("studies", study, "fused", "at means", "accuracy"),
                True,
            ),
            (
                "log likelihood",
                "log likelihood",
                ("studies", study, "fused", "at means", "log_likelihood"),
                True,
            ),
            ("hidden units", "fused width", ("studies", study, "fused", "units"), False),
        )
    ),
    *map(_digits, ("plug-in", "SGLD", "distilled")),
    _toy("SGLD", "SGLD, ours"),
    *(_toy(name, f"{name}, ours") for name in ("2-10-2", "2-100-2", "2-10-10-2")),
    *map(_boston, ("chains", "distilled")),
)


def tables(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Titles and tables of the parts of a file that are of one shape: a row each, named columns."""
    if not isinstance(node, Mapping):
        return
    parts = {k: v for k, v in node.items() if isinstance(v, Mapping) and not is_figure(v)}
    cells = {k: {n: v for n, v in part.items() if is_figure(v)} for k, part in parts.items()}
    cells = {k: part for k, part in cells.items() if part}
    columns = [n for part in cells.values() for n in part]
    shared = [n for n in dict.fromkeys(columns) if columns.count(n) >= 2]
    if len(cells) >= 2 and shared:
        rows = [
            [escaped(str(k)), *(figure(part.get(n)) for n in shared)]
            for k, part in cells.items()
            if part.keys() & set(shared)
        ]
        yield escaped(": ".join(path)) or "in all", table(["", *map(escaped, shared)], rows)
    for key, value in node.items():
        if key not in HIDDEN | {"goal", "goals", "paper"}:
            yield from tables(value, (*path, str(key)))


# --- pages ---------------------------------------------------------------------------------------


def results_page() -> tuple[str, dict[str, Path]]:
    """The page of experiments, and the pictures that it shows by their place in the site."""
    files = {
        str(path.relative_to(ROOT / "experiments")): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.glob("experiments/*/results/*.json"))
    }
    judged = {name: list(dict.fromkeys(verdicts(tree))) for name, tree in files.items()}
    every = [v for each in judged.values() for v in each]
    met, missed = (sum(v.met is truth for v in every) for truth in (True, False))
    parts = [
        "# Results\n",
        "Each experiment of the repository writes what it measured to a file, with the goals that "
        "were set beforehand. This page is made of these files when the site is built: "
        f"**{met} goals were met, {missed} were {MISSED}**, and "
        f"{len(every) - met - missed} were not run or not judged. Experiments are not run again at "
        "each change of the code: below each heading stands the commit whose code was measured, "
        "and how many of the files that it depends on have changed since. Figures are means ± "
        "their standard error (their standard deviation, where the file says so), with the least "
        "and the largest in brackets.\n",
        "## Beside the papers' figures\n",
        "Data, splits and settings are as near to the papers' as these say, and some do not say: "
        "each experiment's README has what is not known. Ours is called behind where it is worse "
        "by more than two of its own standard errors, or standard deviations where the file has "
        "these alone.\n",
        table(
            ["what", "paper", "paper's figure", "ours", "runs", ""],
            [_beside(row, files[row.file]) for row in BESIDE],
        ),
    ]
    pictures: dict[str, Path] = {}
    for folder in sorted({name.split("/")[0] for name in files}):
        heading = (ROOT / "experiments" / folder / "README.md").read_text(encoding="utf-8")
        title = heading.splitlines()[0].removeprefix("# ")
        parts.append(f"## {escaped(title)}\n")
        parts.append(f"`experiments/{folder}`; its README says how it is run and read.\n")
        for name, verdicts_of in judged.items():
            if name.startswith(f"{folder}/"):
                parts += _of_file(name, files[name], verdicts_of)
        for picture in sorted((ROOT / "experiments" / folder / "results").glob("*.png")):
            place = f"images/results/{folder}-{picture.name}"
            pictures[place] = picture
            parts.append(f"![{escaped(title)}: {picture.stem.replace('-', ', ')}]({place})\n")
    return "\n".join(parts), pictures


def _beside(row: Beside, tree: Any) -> list[str]:
    author, _, place = row.paper.partition(",")
    source = f"[{author}]{place and ','}{place}"
    theirs = at(tree, row.theirs)
    ours = at(tree, row.ours)
    if theirs is None or ours is None:
        return [escaped(row.what), source, "–", "–", "–", "not in the file of the last run"]
    ahead = (ours["mean"] - theirs) * (1 if row.larger else -1)
    behind = ahead < -2 * (spread_of(ours) or 0.0)
    outcome = '<span class="missed">behind</span>' if behind else "not behind"
    return [
        escaped(row.what),
        source,
        figure(theirs),
        figure(ours),
        figure(ours.get("count")),
        outcome,
    ]


def _of_file(name: str, tree: Any, found: list[Verdict]) -> list[str]:
    parts = [f"### {Path(name).stem} {{#{name.replace('/results/', '-').removesuffix('.json')}}}\n"]
    parts.append(f"Results {provenance.age(ROOT / 'experiments' / name)}.\n")
    if isinstance(paper := tree.get("paper"), str):
        parts.append(f"The paper: {escaped(paper)}.\n")
    if found:
        found = sorted(found, key=lambda v: v.met is not False)  # missed ones first
        papers = any(v.paper for v in found)
        head = ["goal", *(["paper"] if papers else []), "measured", ""]
        rows = [[v.goal, *([v.paper] if papers else []), v.measured, v.outcome] for v in found]
        parts.append(table(head, rows))
    listed = [f"**{title}**\n\n{made}" for title, made in tables(tree)]
    if listed:
        parts.append(_folded(name.rpartition("/")[2], "\n".join(listed)))
    return parts


def _folded(name: str, body: str) -> str:
    """All tables of a file, which a click opens."""
    return f'<details markdown="1"><summary>All figures of {name}</summary>\n\n{body}\n</details>\n'


def benchmarks_page() -> str:
    """The page of benchmarks: every list of points as a table, with what all points share above."""
    parts = [
        "# Benchmarks\n",
        "Time and memory, made of the files in `benchmarks/results` when the site is built; "
        "`benchmarks/README.md` says how each is measured, and which goals are missed. They were "
        "measured on two cores, many of them beside other work: the load at the start is given, "
        "and ratios within a row are worth more than seconds.\n",
    ]
    for path in sorted(ROOT.glob("benchmarks/results/*.json")):
        tree = json.loads(path.read_text(encoding="utf-8"))
        parts.append(f"## {path.stem.replace('_', ' ')}\n")
        parts.append(f"Results {provenance.age(path)}.\n")
        body = "\n".join(f"**{title}**\n\n{made}" for title, made in _measured_tables(tree))
        parts.append(_folded(path.name, body))
    return "\n".join(parts)


def _measured_tables(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    if not isinstance(node, Mapping):
        return
    title = escaped(": ".join(path).replace("_", " ")) or "in all"
    plain = {k: v for k, v in node.items() if not isinstance(v, Mapping | list) or is_figure(v)}
    if plain:
        yield (
            title,
            table(
                ["", ""], [[escaped(str(k)).replace("_", " "), figure(v)] for k, v in plain.items()]
            ),
        )
    for key, value in node.items():
        below = (*path, str(key))
        if key in ("settings", "environment"):
            load = value.get("load_per_core_at_start", value.get("load_at_start"))
            if load is not None:
                yield escaped(": ".join(below)), f"Load a core at the start: {figure(load)}.\n"
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            yield from _series(
                escaped(": ".join(below).replace("_", " ")), [flat(v) for v in value]
            )
        elif isinstance(value, Mapping) and not is_figure(value):
            yield from _measured_tables(value, below)


def _series(title: str, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """A table a list of points: columns that differ between them, what they share above it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    shared = [
        n for n in names if len(rows) > 1 and all(row.get(n) == rows[0].get(n) for row in rows)
    ]
    apart = [n for n in names if n not in shared]
    about = "; ".join(f"{escaped(n)} {figure(rows[0].get(n))}" for n in shared)
    body = [[figure(row.get(n)) for n in apart] for row in rows]
    yield title, (f"{about}.\n\n" if about else "") + table([escaped(n) for n in apart], body)


def on_files(files: Any, config: Any) -> Any:
    """Add both pages and the pictures of experiments."""
    from mkdocs.structure.files import File  # here: tests read the pages without it

    page, pictures = results_page()
    files.append(File.generated(config, "results.md", content=page))
    files.append(File.generated(config, "benchmarks.md", content=benchmarks_page()))
    for place, picture in pictures.items():
        files.append(File.generated(config, place, abs_src_path=str(picture)))
    return files
