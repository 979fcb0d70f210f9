"""``posterity fit``: a site's file from a table of records."""

import dataclasses
import json
from typing import Any

from posterity import tabular as fitting
from posterity.cli import files
from posterity.cli.options import Settings, conflict, incomplete
from posterity.cli.recipes import in_form, requested
from posterity.cli.report import Group, group, parameters, short
from posterity.cli.streams import Data, bar, verb
from posterity.errors import UsageError
from posterity.runtime.text import count
from posterity.tabular.reconcile import prior_digest
from posterity.tabular.sites import in_words, sites_in
from posterity.tabular.units import suspicious


def _report(data: Data) -> Group:
    of = "" if data["target"] is None else f" of {data['target']}"
    article = "an" if data["model"] == "ordinal" else "a"
    lines = [f"Fitted {article} {data['model']} model{of} to {count(data['records'], 'record')}."]
    lines += [
        f"{name.replace('_', ' ').capitalize()} {short(data[name])}."
        for name in ("noise_variance", "dispersion")
        if data[name] is not None
    ]
    rows = parameters(data["parameters"])
    end = f"Wrote Ledger of site {data['site']} to {data['output']}"
    return group(*lines, "", rows, "", end)


@verb(_report)
def fit(settings: Settings) -> Data:
    """Fit a regression to a site's records, and write its ledger."""
    several = len(settings.files) > 1
    paths = settings.files if several else (settings.single("data.file"),)
    prior = settings.path("prior.file")
    unnamed = several and settings["site"] is None
    found = f"{len(paths)} tables without --site"
    expected = "imputed tables of one site, and its name"
    fix = "Pass --site NAME; but fit tables of different records one by one, or federate them."
    repeated = f"a file twice among {in_words(map(str, paths))}"
    UsageError.check(
        (unnamed, found, expected, fix),
        (len({*paths}) < len(paths), repeated, "each imputed table once"),
    )
    recipe, reading = requested(settings)
    before = None
    if prior is not None:
        before, _ = files.read_prior(prior)
        digest = prior_digest(before)
        if recipe.prior not in (None, digest):
            raise conflict(f"--prior {prior}", "--like, whose prior is another file")
        recipe = dataclasses.replace(recipe, prior=digest)
    elif recipe.prior is not None:
        raise incomplete("--like of a fit with a --prior", "that prior's file (--prior)")
    site = in_form(settings["site"])
    with bar(f"Fitting {', '.join(map(str, paths))}") as moved:
        options: Any = {"prior": before, "reading": reading, "progress": moved}
        fits = [fitting.fit(path, recipe, site, **options) for path in paths]
        fitted = fitting.imputed(fits) if several else fits[0]
    hidden = {} if settings["one_shot"] else {"third": None}
    fitted = dataclasses.replace(fitted, rounded=settings["rounded"], **hidden)
    ledger = fitted.ledger
    recipe = fitted.recipe
    notes = list(fitted.notes)
    like = settings.path("data.like")
    if like is not None:
        other, theirs = files.read_any(like)
        known = sites_in(theirs.provenance) | sites_in(fitted.provenance)
        if ledger.sites[0] not in getattr(other, "sites", ()):  # otherwise it would be fitted again
            notes += suspicious({"like": other, "own": ledger}, recipe, known=known)
    written = files.write(ledger, settings.output, "fit", fitted.provenance)
    return {
        **written,
        "site": ledger.sites[0],
        "model": recipe.model,
        "target": recipe.target,
        "records": fitted.records,
        "dropped": fitted.dropped,
        "steps": fitted.steps,
        "noise_variance": fitted.noise_variance,
        "dispersion": None if recipe.model == "linear" else fitted.spread,
        "parameters": _parameters(ledger.posterior),
        "columns": recipe.columns or (),
        "recipe": json.loads(recipe.canonical()),
        "notes": notes,
    }


def _parameters(posterior: Any) -> list[Data]:
    moments = zip(posterior.names, posterior.mean, posterior.marginal_variance, strict=True)
    return [{"name": name, "mean": m, "sd": v**0.5} for name, m, v in moments]
