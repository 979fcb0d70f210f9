"""``posterity import`` and ``export``: tables of means and standard deviations."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from posterity.cli import files
from posterity.cli.options import Settings, conflict, incomplete, unwanted
from posterity.cli.report import Group, group, parameters
from posterity.cli.streams import Data, verb
from posterity.errors import StructureError
from posterity.families import names
from posterity.runtime.text import typed
from posterity.tabular.reading import names_in_r
from posterity.tabular.recipe import recipe_in
from posterity.tabular.sites import as_provenance
from posterity.tabular.tables import to_ledger, to_table, write
from posterity.tabular.tables.files import law_of, of_sites, read_moments
from posterity.tabular.units import suspicious

GRAPH = ".onnx"
SUFFIXES = (".csv", ".json", GRAPH)


def _import_report(data: Data) -> Group:
    headline = f"Read {len(data['parameters'])} parameters ({data['family']})."
    of = "" if data["site"] is None else f" of site {data['site']}"
    end = f"Wrote {data['kind']}{of} to {data['output']}"
    return group(headline, "", parameters(data["parameters"]), "", end)


@verb(_import_report)
def import_(settings: Settings) -> Data:
    """Make the file of a posterior from a table of means and deviations, or a covariance."""
    table = settings.single("table")
    output = settings.output
    covariance = settings.path("covariance")
    prior = settings.path("prior.file")
    site = settings["site"]
    flat_prior = bool(settings["flat_prior"])
    moments = read_moments(table, covariance=covariance, decimal=settings["decimal"])
    several = bool(moments.sites)
    if several and not flat_prior:
        raise incomplete("a column of studies", "--flat-prior")
    if several and site is not None:
        raise conflict("--site", "a column of studies, which names the sites")
    if not several and site is None and (prior is not None or flat_prior):
        raise incomplete("--prior" if prior else "--flat-prior", "--site NAME")
    record = {"table": table.name, **({"flat prior": "true"} if flat_prior else {})}
    before = about = None
    if prior is not None:
        before, about = files.read_prior(prior)
        record["prior"] = about.digest
    notes = [*moments.notes]
    if several:
        result: Any = of_sites(moments, table, prior=before)
        if len(result.sites) > 1:
            notes.append(
                f"{len(result.sites)} studies, each a site of the ledger: if they differ, run "
                f"{typed('posterity fuse', output)} --personal true -o FILE"
            )
        called = [f"{own}: {name}" for own, name in zip(moments.sites, moments.names, strict=True)]
    else:
        result = law_of(moments, table)
        recipe = recipe_in(about.provenance) if about else None
        if recipe is not None:
            known = names_in_r(recipe)
            result = result.named([known.get(name, name) for name in result.names])
            record |= as_provenance(recipe)
            notes.append(f"taken for the model in '{prior}': {recipe.describe()[0]}")
        called = result.names
        if before is not None:
            own = names.names_of(result)
            lacks = [one for one in names.names_of(before).get("", ()) if one not in called]
            found = f"no {names.some(lacks)} in '{table}', which the prior '{prior}' has"
            fix = "Add them; or pass --flat-prior in place of --prior, and fuse --personal."
            StructureError.check((lacks, found, "a row for each coefficient", fix))
            before = names.in_order(before, own, f"the prior '{prior}'", str(site))
            alone = covariance is None and before.gaussian and not before.diagonal
            found = (
                f"standard deviations in '{table}' for the prior '{prior}', which has a covariance"
            )
            fix = "Pass --covariance FILE; in R: write.csv(vcov(fit), FILE)."
            StructureError.check((alone, found, "the covariance of the estimates", fix))
        if site is not None:
            result = to_ledger(result, site, prior=before, flat_prior=flat_prior)
        if recipe is not None and prior is not None:
            notes += suspicious({str(prior): files.read_any(prior)[0], str(site): result}, recipe)
    sd = moments.sd if covariance is None else np.diagonal(moments.covariance) ** 0.5
    each = zip(called, moments.mean, sd, strict=True)
    return {
        **files.write(result, output, "import", record),
        "family": "diagonal" if covariance is None else "gaussian",
        "site": site,
        "parameters": [{"name": name, "mean": mean, "sd": sd} for name, mean, sd in each],
        "notes": notes,
    }


def _graph(path: Path, output: Path) -> Data:
    """Write a student as an ONNX graph, with its file's columns and recipe."""
    from posterity.adapters.onnx import to_onnx

    student, about = files.read_any(path)
    if about.kind != "Student":
        raise StructureError(
            found=f"a {about.kind} in '{path}', for a graph",
            expected="a student, which is one network",
            fix="Make one: posterity distill FILE -o student.safetensors.",
        )
    to_onnx(student, output, provenance=about.provenance)
    return {
        "output": output,
        "covariance": None,
        "family": about.kind,
        "parameters": student.size,
        "notes": [],
    }


def _export_report(data: Data) -> str:
    line = f"Wrote {data['parameters']} parameters to {data['output']}"
    return line + f"\nWrote their covariance to {data['covariance']}" * bool(data["covariance"])


@verb(_export_report)
def export(settings: Settings) -> Data:
    """Write a posterior's means and standard deviations as a table, which `import` reads again."""
    path = settings.single("posterior")
    output = settings.output
    covariance = settings.path("covariance")
    files.check_ending(output, SUFFIXES)
    if output.suffix.lower() == GRAPH:
        if covariance is not None:
            raise unwanted(f"--covariance {covariance}", "beside a graph", "a .csv of a Gaussian")
        return _graph(path, output)
    law, about = files.read(path)
    table = to_table(law)
    recipe = recipe_in(about.provenance)
    known = None if recipe is None else json.loads(recipe.canonical())
    write(law, output, covariance=covariance, recipe=known)
    dropped = "covariance" in table and covariance is None and output.suffix.lower() == ".csv"
    return {
        "output": output,
        "covariance": covariance,
        "family": table["family"],
        "parameters": len(table["names"]),
        "notes": ["correlations are not in the table: give --covariance FILE, or write a .json"]
        if dropped and len(table["names"]) > 1
        else [],
    }
