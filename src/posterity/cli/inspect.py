"""``posterity inspect``: what is in a file."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.failures import printable
from posterity.cli.report import MOST_ROWS, Data, first, group, number, short, table
from posterity.cli.streams import Json, present
from posterity.errors import ArtifactError, ParameterError, StructureError

NO_POSTERIORS = ("Architecture", "Student", "dict")
"""Kinds of files of which it is told what is in them, and no more."""
MOST_LEVELS = 20
"""Of a tree that nobody built."""
MASS = 0.95
"""Posterior probability of an interval, half of the rest on either side."""
MOST_UNNAMED = 1000
"""Coordinates without names that are worth a look: those of a network are not."""


@app.command(epilog=example("posterity inspect both.safetensors"))
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by posterity.")],
    as_json: Json = False,
) -> None:
    """Check a file and say what is in it; of Gaussian coefficients, mean, sd and 95 % interval."""
    present(lambda: inspected(file), report, as_json)


def inspected(file: Path) -> Data:
    """What a file holds, as data; errors as of :func:`posterity.load`."""
    from posterity.artifact import artifact
    from posterity.ledger import Ledger

    files.check_regular(file)
    try:
        posterior, found = files.read(file)
    except (ArtifactError, StructureError):
        tree = artifact.outline(file)
        if tree["type"] not in NO_POSTERIORS:
            raise
        facts = _facts(artifact.inspect(file))
        if tree["type"] == "Student":
            return facts | _student(*files.read_any(file))
        return facts | {"content": _described(tree)}
    data = _facts(found)
    if isinstance(posterior, Ledger):
        data |= {"prior_digest": artifact.digest(posterior.prior), "sites": _sites(posterior)}
        posterior = posterior.total  # be it proper or not
    proper = _is_proper(posterior)
    told = _coefficients(posterior) if proper else []
    return data | {"proper": proper, "family": _outline(posterior), "coefficients": told}


def _student(student: Any, found: Any) -> Data:
    """What it predicts, by what, and which columns it takes."""
    from posterity.families.layers import Layers

    head, layers = student.head, student.network
    known = isinstance(layers, Layers)
    told = {
        "likelihood": head.likelihood,
        "targets": head.targets,
        "split": head.split,
        "noise_variance": head.noise_variance,
        "weights": student.size,
        "network": layers.summary if known else layers.name,
        "rescaled": {
            "inputs": student.scaling.x_shift is not None,
            "outputs": student.scaling.y_shift is not None,
        },
    }
    names = files.inputs_of(student, found)
    return {"student": told, "family": _outline(layers), "inputs": list(names)}


def _facts(found: Any) -> Data:
    facts = ("path", "kind", "format", "bytes", "digest", "provenance")
    return {name: getattr(found, name) for name in facts}


def _coefficients(posterior: Any) -> list[Data]:
    """Mean, standard deviation and interval of each coordinate of the posterior's Gaussians."""
    from posterity.families.names import joined, parts_of

    def rows(law: Any, path: str) -> Any:
        told = law.gaussian and not law.batch_shape and law.network_layers is None
        if told and (law.names or law.own_size <= MOST_UNNAMED):
            yield from _marginals(law, path, law.names or [None] * law.own_size)
        for name, part in parts_of(law).items():
            yield from rows(part, joined(path, name))

    return list(rows(posterior, ""))


def _marginals(q: Any, block: str, names: Sequence[str | None]) -> list[Data]:
    (law,) = q.marginals()
    columns = (law.mean.tolist(), law.sd.tolist(), *(end.tolist() for end in law.interval(MASS)))
    return [
        {
            "block": block,
            "name": name,
            "mean": number(m),
            "sd": number(s),
            "interval": [number(low), number(high)],
        }
        for name, m, s, low, high in zip(names, *columns, strict=True)
    ]


def _described(node: Any, depth: int = 0) -> Any:
    """What a manifest says of values, none of which is built: shapes, and plain values as text."""
    if depth > MOST_LEVELS:
        return "..."
    if isinstance(node, list) and any(isinstance(child, dict) for child in node):
        node = {"type": "list", "fields": {str(n): child for n, child in enumerate(node)}}
    if not isinstance(node, dict):
        return json.dumps(node)
    if node["type"] == "array":
        return node["shape"]
    fields = {name: _described(child, depth + 1) for name, child in node["fields"].items()}
    return {"type": node["type"], "parameters": fields}


def _sites(ledger: Any) -> Data:
    return {
        site: {"epoch": entry.epoch, "sequence": entry.sequence, "forgotten": entry.factor is None}
        for site, entry in ledger.entries.items()
    }


def _is_proper(family: Any) -> bool:
    from posterity.checks import check_proper

    try:
        check_proper(family, "")
    except ParameterError:
        return False
    return True


def _outline(value: Any) -> Any:
    """A family as a tree: its type, the shapes of its parameters, what is in its blocks."""
    import numpy as np

    from posterity.families.layers import Layers
    from posterity.families.unconstrained import Supports

    if value is None or isinstance(value, Mapping):
        return value and {name: _outline(child) for name, child in value.items()}
    if isinstance(value, Supports):
        return _lies(value.tree)
    if not dataclasses.is_dataclass(value):
        return list(np.shape(value))
    if isinstance(value, Layers):
        told = {
            str(i): {"type": str(layer), "parameters": {}} for i, layer in enumerate(value.layers)
        }
        return {"type": "Layers", "parameters": told}
    fields = {f.name: _outline(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"type": type(value).__name__, **_summary(value), "parameters": fields}


def _lies(tree: Any) -> Any:
    """Where events lie: supports by what they are called, with their shapes."""
    if isinstance(tree, Mapping):
        return {name: _lies(child) for name, child in tree.items()}
    if isinstance(tree, tuple):
        return {str(number): _lies(child) for number, child in enumerate(tree)}
    return tree and {"type": type(tree).__name__, "parameters": {"shape": list(tree.shape)}}


def _summary(value: Any) -> Data:
    from posterity.families import Distribution

    if getattr(value, "is_plate", False) and not value.batch_shape:
        size, weights = value.size, None if value.weights is None else value.mean_weights()
    elif getattr(value, "is_mixture", False):
        size, weights = value.size, value.weights
    elif isinstance(value, Distribution):
        return {"batch": list(value.batch_shape)} if value.batch_shape else {}
    else:
        return {}
    told = {} if weights is None else {"expected_weights": list(map(number, weights))}
    return {"components": size, **told}


# --- what people are told ------------------------------------------------------------------------

MOST_NUMBERS = 8
"""Weights that a person is shown."""
MOST_CHARACTERS = 60
"""Of a plain value."""


def report(data: Data) -> Any:
    """Facts first."""
    from rich.table import Table

    facts = Table.grid("", "", padding=(0, 2))
    facts.columns[1].overflow = "fold"
    for name in ("path", "kind", "format", "bytes", "digest", "prior_digest", "proper"):
        if name in data:
            facts.add_row(name, printable(data[name]))
    for name, value in data["provenance"].items():
        if name != "columns":  # which are told with their coefficients
            facts.add_row("provenance", printable(f"{name}: {value}"))
    for name, value in data.get("student", {}).items():
        if isinstance(value, dict):
            value = ", ".join(part for part, is_so in value.items() if is_so) or None
        if value is not None:
            facts.add_row(name.replace("_", " "), printable(value))
    if data.get("inputs"):
        facts.add_row("columns", printable(_few(data["inputs"])))
    parts = [_tree(data["content"] if "content" in data else data["family"])]
    parts += [_sites_table(data["sites"])] if "sites" in data else []
    parts += [_coefficients_table(data["coefficients"])] if data.get("coefficients") else []
    return group(facts, *(part for one in parts for part in ("", one)))


def _few(names: list[str]) -> str:
    more = len(names) - MOST_ROWS
    return ", ".join(names[:MOST_ROWS]) + (f" and {more} more" if more > 0 else "")


def _coefficients_table(rows: list[Data]) -> Any:
    def cells(place: int) -> tuple[str, ...]:
        row = rows[place]
        name = str(place) if row["name"] is None else row["name"]
        block = f"{row['block']}: " if row["block"] else ""
        interval = " to ".join(map(short, row["interval"]))
        return printable(block + name), short(row["mean"]), short(row["sd"]), interval

    return first(range(len(rows)), table("coefficient", "mean", "sd", "95 % interval"), cells)


def _sites_table(sites: Data) -> Any:
    rows = table("site", "epoch", "sequence", "contributes")
    for site, entry in sites.items():
        contributes = "no (forgotten)" if entry["forgotten"] else "yes"
        rows.add_row(printable(site), str(entry["epoch"]), str(entry["sequence"]), contributes)
    return rows


def _tree(node: Data, name: str = "") -> Any:
    from rich.tree import Tree

    tree = Tree(f"{printable(name)}: {_label(node)}" if name else _label(node))
    for key, child in _children(node).items():
        if isinstance(child, dict):
            tree.add(_tree(child, key))
        elif isinstance(child, str):
            tree.add(printable(f"{key}: {child[:MOST_CHARACTERS]}"))
        elif child is not None:
            tree.add(f"{printable(key)} {tuple(child)}")
    return tree


def _children(node: Data) -> Data:
    children = dict(node["parameters"])
    blocks = children.get("blocks")
    if not isinstance(blocks, dict) or isinstance(blocks.get("type"), str):
        return children
    return {**children.pop("blocks"), **children}  # of a product, whatever its name


def _label(node: Data) -> str:
    label = printable(node["type"])
    if "components" in node:
        label += f" of {node['components']} components"
    if "batch" in node:
        label += f", batch {tuple(node['batch'])}"
    if "expected_weights" in node:
        weights = node["expected_weights"]
        more = " ..." if len(weights) > MOST_NUMBERS else ""
        label += f", expected weights {' '.join(map(short, weights[:MOST_NUMBERS]))}{more}"
    return label
