"""``posterity inspect``: the contents of a file."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.tree import Tree

from posterity.artifact import Inspection, artifact
from posterity.cli import files
from posterity.cli.options import Settings
from posterity.cli.report import Group, first, group, listed, short, table
from posterity.cli.streams import Data, plain, printable, verb
from posterity.errors import ArtifactError, ParameterError, StructureError
from posterity.families import Distribution
from posterity.families.checks import check_proper
from posterity.families.layers import Layers
from posterity.families.names import parts_of
from posterity.families.unconstrained import Supports
from posterity.ledger import Ledger
from posterity.tabular.predictions import columns_of_student
from posterity.tabular.recipe import RECIPE, recipe_in
from posterity.tabular.sites import sites_in, together

NO_POSTERIORS = ("Architecture", "Student", "dict")
"""Kinds of files of which only the contents are listed."""
MOST_LEVELS = 20
"""Number of levels of a manifest's tree that are printed."""
MASS = 0.95
"""Posterior probability of the equal-tailed intervals."""
MOST_UNNAMED = 1000
"""Number of coordinates without names that are listed; a network has more."""


def inspected(file: Path) -> Data:
    """Return the contents of a file as data; errors as of :func:`posterity.load`."""
    files.check_regular(file)
    try:
        posterior, about = files.read(file)
    except (ArtifactError, StructureError):
        tree = artifact.outline(file)
        if tree["type"] not in NO_POSTERIORS:
            raise
        if tree["type"] == "Student":
            student, about = files.read_any(file)
            return _facts(about) | _student(student, about)
        return _facts(artifact.inspect(file)) | {"content": _described(tree)}
    data = _facts(about) | about_recipe(about.provenance, posterior)
    if isinstance(posterior, Ledger):
        versions = (
            {"epoch": entry.epoch, "sequence": entry.sequence, "forgotten": entry.factor is None}
            for entry in posterior.entries.values()
        )
        sites = dict(zip(posterior.entries, versions, strict=True))
        data |= {"prior_digest": artifact.digest(posterior.prior), "sites": sites}
        posterior = posterior.total  # whether or not it is proper
    try:
        check_proper(posterior, "")
        proper = True
    except ParameterError:
        proper = False
    rows = list(_coefficients(posterior)) if proper else []
    return data | {"proper": proper, "family": _outline(posterior), "coefficients": rows}


def _student(student: Any, about: Inspection) -> Data:
    """Return the predictions of a student, its network, and its input columns."""
    head = student.head
    layers = student.network
    facts = {
        **{n: getattr(head, n) for n in ("likelihood", "targets", "split", "noise_variance")},
        "weights": student.size,
        "network": layers.summary if isinstance(layers, Layers) else layers.name,
        "rescaled": {
            "inputs": student.scaling.x_shift is not None,
            "outputs": student.scaling.y_shift is not None,
        },
    }
    names = columns_of_student(student, about)
    return {"student": facts, "family": _outline(layers), "inputs": list(names)}


def _facts(about: Inspection) -> Data:
    facts = ("path", "kind", "format", "bytes", "digest", "provenance")
    return {name: getattr(about, name) for name in facts} | about_recipe(about.provenance, None)


def about_recipe(provenance: Mapping[str, str], posterior: Any) -> Data:
    """Return the recipe of a file, if any, its description, and its number of records."""
    recipe = recipe_in(provenance)
    sites = sites_in(provenance)
    if recipe is None:
        return {}
    total = together(sites.values())
    lines = recipe.describe()
    if isinstance(posterior, Ledger) and posterior.prior.gaussian:
        prior: Any = posterior.prior
        moments = zip(prior.names, prior.mean, prior.marginal_variance, strict=True)
        parts = [f"{name} {mean:g} ± {variance**0.5:g}" for name, mean, variance in moments]
        shown = ", ".join(parts[:MOST_PRIORS]) + ", ..." * (len(parts) > MOST_PRIORS)
        lines.append(f"Prior: {shown}.")
    if "records" in total:
        dropped = f", {total['dropped']:,} dropped" if "dropped" in total else ""
        noise = total.get("noise_variance")
        noise = "" if noise is None else f"; noise variance {short(noise)}"
        lines.append(f"Of {total['records']:,} records{dropped}{noise}.")
    known = json.loads(provenance[RECIPE])
    return {"recipe": known, "about": lines, "records": total.get("records")}


def _coefficients(law: Any) -> Iterator[Data]:
    """Yield mean, standard deviation and interval of each coordinate of a posterior's Gaussians."""
    for path, part in parts_of(law):
        single = part.gaussian and not part.batch_shape and part.network_layers is None
        if not single or not (part.names or part.own_size <= MOST_UNNAMED):
            continue
        (marginal,) = part.marginals()
        columns = (marginal.mean, marginal.sd, np.stack(marginal.interval(MASS), -1))
        names = part.names or [None] * part.own_size
        for name, mean, sd, interval in zip(names, *map(plain, columns), strict=True):
            yield {"block": path, "name": name, "mean": mean, "sd": sd, "interval": interval}


def _described(node: Any, depth: int = 0) -> Any:
    """Return a manifest's tree without building its values: shapes, and plain values as text."""
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


def _outline(value: Any) -> Any:
    """Return a family as a tree: its type, its parameters' shapes, and its blocks."""
    if value is None or isinstance(value, Mapping):
        return value and {name: _outline(child) for name, child in value.items()}
    if isinstance(value, Supports):
        return _support(value.tree)
    if not hasattr(value, "__dataclass_fields__"):
        return list(np.shape(value))
    if isinstance(value, Layers):
        layers = enumerate(map(str, value.layers))
        parameters = {str(place): {"type": layer, "parameters": {}} for place, layer in layers}
        return {"type": "Layers", "parameters": parameters}
    law: Any = value
    facts: Data = {}
    if getattr(law, "is_plate", False) and not law.batch_shape:
        weights = None if law.weights is None else law.mean_weights()
        facts = {"components": law.size, "expected_weights": weights}
    elif getattr(law, "is_mixture", False):
        facts = {"components": law.size, "expected_weights": law.weights}
    elif isinstance(law, Distribution) and law.batch_shape:
        facts = {"batch": law.batch_shape}
    facts = {name: fact for name, fact in facts.items() if fact is not None}
    fields = {f.name: _outline(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"type": type(value).__name__, **facts, "parameters": fields}


def _support(tree: Any) -> Any:
    if isinstance(tree, tuple):
        tree = {str(place): child for place, child in enumerate(tree)}
    if isinstance(tree, Mapping):
        return {name: _support(child) for name, child in tree.items()}
    return tree and {"type": type(tree).__name__, "parameters": {"shape": list(tree.shape)}}


MOST_NUMBERS = 8
"""Number of weights that are printed."""
MOST_PRIORS = 6
"""Number of coefficients whose prior is printed."""
MOST_CHARACTERS = 60
"""Number of characters of a plain value that are printed."""


def report(data: Data) -> Group:
    """Return facts, then the tree of the file, its sites and its coefficients."""
    facts = Table.grid("", "", padding=(0, 2))
    facts.columns[1].overflow = "fold"
    for name in ("path", "kind", "format", "bytes", "digest", "prior_digest", "proper"):
        if name in data:
            facts.add_row(name, printable(data[name]))
    for line in data.get("about", ()):
        facts.add_row("about", printable(line))
    for name, value in data["provenance"].items():
        if name not in ("columns", "recipe", "sites"):  # printed in words
            facts.add_row("provenance", printable(f"{name}: {value}"))
    for name, value in data.get("student", {}).items():
        if isinstance(value, dict):
            value = ", ".join(part for part, is_so in value.items() if is_so) or None
        if value is not None:
            facts.add_row(name.replace("_", " "), printable(value))
    if data.get("inputs"):
        facts.add_row("columns", listed(data["inputs"]))
    parts: list[Any] = [facts, "", _tree(data["content"] if "content" in data else data["family"])]
    if "sites" in data:
        rows = table("site", "epoch", "sequence", "contributes")
        for site, entry in data["sites"].items():
            contributes = "no (forgotten)" if entry["forgotten"] else "yes"
            rows.add_row(printable(site), str(entry["epoch"]), str(entry["sequence"]), contributes)
        parts += ["", rows]
    if data.get("coefficients"):
        headers = table("coefficient", "mean", "sd", "95 % interval")
        parts += ["", first(list(enumerate(data["coefficients"])), headers, _coefficient_cells)]
    return group(*parts)


def _coefficient_cells(numbered: tuple[int, Data]) -> tuple[str, ...]:
    place, row = numbered
    name = str(place) if row["name"] is None else row["name"]
    block = f"{row['block']}: " if row["block"] else ""
    interval = " to ".join(map(short, row["interval"]))
    return printable(block + name), short(row["mean"]), short(row["sd"]), interval


def _tree(node: Data, name: str = "") -> Tree:
    tree = Tree(f"{printable(name)}: {_label(node)}" if name else _label(node))
    children = dict(node["parameters"])
    blocks = children.get("blocks")
    if isinstance(blocks, dict) and not isinstance(blocks.get("type"), str):
        children = {**children.pop("blocks"), **children}  # those of a product, of any name
    for key, child in children.items():
        if isinstance(child, dict):
            tree.add(_tree(child, key))
        elif isinstance(child, str):
            tree.add(printable(f"{key}: {child[:MOST_CHARACTERS]}"))
        elif child is not None:
            tree.add(f"{printable(key)} {tuple(child)}")
    return tree


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


@verb(report)
def inspect(settings: Settings) -> Data:
    """Check a file and print its contents; of Gaussian coefficients mean, sd and 95 % interval."""
    return inspected(*settings.arguments("a file"))
