"""The contents of a file as data: its facts, recipe, families and sites."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posterity.artifact import Inspection, artifact, open_artifact
from posterity.families.layers import Layers
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
        network = _described(tree["fields"]["network"])
        return _facts(about) | _student(student, about) | {"family": network}
    if tree["type"] in ("Architecture", "dict"):
        return _facts(artifact.inspect(file)) | {"content": _described(tree)}
    return None


def of_posterior(posterior: Any, about: Inspection) -> dict[str, Any]:
    """Return the contents of the file of a posterior or ledger, which may be improper."""
    data = _facts(about) | about_recipe(about.provenance, posterior)
    tree = artifact.outline(about.path)
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
        tree = tree["fields"]["prior"]
    with np.errstate(all="ignore"):
        proper = bool(np.all(posterior.is_proper()))
    return data | {"proper": proper, "family": _described(tree)}


def _student(student: Any, about: Inspection) -> dict[str, Any]:
    """Return the predictions of a student, and its input columns."""
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
    return {"student": facts, "inputs": names}


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
        spreads = [key for key in ("noise_variance", "dispersion") if total.get(key) is not None]
        spread = "".join(f"; {key.replace('_', ' ')} {total[key]:.4g}" for key in spreads)
        lines.append(f"Of {count(total['records'] + left, 'record')}{dropped}{spread}.")
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
    plain = node["type"] in ("dict", "list")
    children = node["fields"].items()
    fields = {n: _described(c, levels - 1) for n, c in children if plain or c is not None}
    return {"type": node["type"], "parameters": fields}
