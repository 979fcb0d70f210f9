"""The contents of a file as data: its facts, recipe, families and sites."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posterity.artifact import Inspection, artifact, open_artifact
from posterity.errors import ParameterError
from posterity.families import Distribution
from posterity.families.checks import check_proper
from posterity.families.layers import Layers
from posterity.families.unconstrained import Supports
from posterity.ledger import Ledger
from posterity.runtime.text import count
from posterity.tabular.recipe import RECIPE, recipe_in
from posterity.tabular.records import columns_of_student
from posterity.tabular.sites import said, sites_in, together


def without_posterior(file: Path) -> dict[str, Any] | None:
    """Return the contents of a file of a student, of an architecture or of plain values; None if it
    is of another kind. Errors are those of :func:`posterity.load`.
    """
    tree = artifact.outline(file)
    if tree["type"] == "Student":
        student, about = open_artifact(file)
        return _facts(about) | _student(student, about)
    if tree["type"] in ("Architecture", "dict"):
        return _facts(artifact.inspect(file)) | {"content": _described(tree)}
    return None


def of_posterior(posterior: Any, about: Inspection) -> dict[str, Any]:
    """Return the contents of the file of a posterior or ledger, which may be improper."""
    data = _facts(about) | about_recipe(about.provenance, posterior)
    if isinstance(posterior, Ledger):
        sites = {
            site: {
                "epoch": entry.epoch,
                "sequence": entry.sequence,
                "forgotten": entry.factor is None,
            }
            for site, entry in posterior.entries.items()
        }
        data |= {"prior_digest": artifact.digest(posterior.prior), "sites": sites}
        posterior = posterior.total
    proper = True
    try:
        check_proper(posterior, "")
    except ParameterError:
        proper = False
    return data | {"proper": proper, "family": _outline(posterior)}


def _student(student: Any, about: Inspection) -> dict[str, Any]:
    """Return the predictions of a student, its network, and its input columns."""
    head = student.head
    layers = student.network
    facts = {
        **{n: getattr(head, n) for n in ("likelihood", "targets", "split", "noise_variance")},
        "degrees": head.degrees if np.isfinite(head.degrees) else None,
        "weights": student.size,
        "network": layers.summary if isinstance(layers, Layers) else layers.name,
        "rescaled": {
            "inputs": student.scaling.x_shift is not None,
            "outputs": student.scaling.y_shift is not None,
        },
    }
    names = columns_of_student(student, about.provenance, about.path)
    return {"student": facts, "family": _outline(layers), "inputs": list(names)}


def _facts(about: Inspection) -> dict[str, Any]:
    facts = ("path", "kind", "format", "bytes", "digest", "provenance")
    return {name: getattr(about, name) for name in facts} | about_recipe(about.provenance, None)


def about_recipe(provenance: Mapping[str, str], posterior: Any, priors: int = 6) -> dict[str, Any]:
    """Return the recipe of a file, if any, its description, and its number of records; with the
    prior of its first coefficients, of as many as fit into a line or two.
    """
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
        more = ["..."] if len(parts) > priors else []
        lines.append(f"Prior: {', '.join([*parts[:priors], *more])}.")
    if "records" in total:
        left = total.get("dropped", 0)
        dropped = f", {left:,} dropped, {total['records']:,} used" if left else ""
        noise = total.get("noise_variance")
        noise = "" if noise is None else f"; noise variance {noise:.4g}"
        lines.append(f"Of {count(total['records'] + left, 'record')}{dropped}{noise}.")
    lines += (f"Note: {line}." for line in said(sites))
    known = json.loads(provenance[RECIPE])
    return {"recipe": known, "about": lines, "records": total.get("records")}


def _described(node: Any, levels: int = 21) -> Any:
    """Return a manifest's tree without building its values: shapes, and plain values as text; of
    at most this many levels, as deep as a screen is wide.
    """
    if not levels:
        return "..."
    if isinstance(node, list) and any(isinstance(child, dict) for child in node):
        node = {"type": "list", "fields": {str(n): child for n, child in enumerate(node)}}
    if not isinstance(node, dict):
        return json.dumps(node)
    if node["type"] == "array":
        return node["shape"]
    fields = {name: _described(child, levels - 1) for name, child in node["fields"].items()}
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
    facts: dict[str, Any] = {}
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
