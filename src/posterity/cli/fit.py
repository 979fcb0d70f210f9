"""``posterity fit``: a table of records, made a site's file without a line of Python."""

import csv
import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

from posterity.cli import files
from posterity.cli.failures import printable
from posterity.cli.options import (
    COUNT,
    FILE,
    FLAG,
    NAME,
    NAMES,
    NATURAL,
    NUMBER,
    POSITIVE,
    TEXT,
    Option,
    Settings,
    by_name,
    conflict,
    either,
    verb,
    words,
)
from posterity.cli.report import Data, first, group, parameters, plain, short, table
from posterity.cli.schema import INTERCEPT, OUTPUT, TARGET
from posterity.cli.streams import bar
from posterity.errors import ArtifactError, UsageError

MODELS = ("linear", "logistic", "poisson", "mixture")
LONG = tuple(f"{name}-regression" for name in MODELS[:3])
"""Models by their short names, and by those that other verbs have."""


def _report(data: Data) -> Any:
    of = "" if data["target"] is None else f" of {printable(data['target'])}"
    lines = [f"Fitted a {data['model']} model{of} to {data['records']} records."]
    if data["noise_variance"] is not None:
        lines.append(f"Noise variance {short(data['noise_variance'])}.")
    if data["parameters"]:
        rows = parameters(data["parameters"])
    else:  # the heaviest first
        rows = table("weight", *(printable(name) for name in data["columns"]))
        ranked = sorted(data["components"], key=lambda part: -(part["weight"] or 0))
        first(ranked, rows, lambda part: (short(part["weight"]), *map(short, part["mean"])))
    end = f"Wrote Ledger of site {printable(data['site'])} to {printable(data['output'])}"
    return group(*lines, "", rows, "", end)


@verb(
    Option("data.file", FILE, "The table, in place of the argument.", "--data"),
    Option(
        "model.kind",
        dataclasses.replace(words(*MODELS, *LONG), metavar=f"[{'|'.join(MODELS)}]", choices=MODELS),
        "A regression of --target on all other columns, or a mixture of Gaussians.",
        "--model",
    ),
    TARGET,
    Option("data.columns", NAMES, "The columns to use; all others if left out."),
    Option("data.without", NAMES, "Columns not to use."),
    Option(
        "data.category",
        by_name(either(TEXT, NAMES)),
        "A column of texts by its levels A,B,..., the first of which is the reference; of a "
        "logistic target the level that is 0, and the one that is 1.",
    ),
    Option("data.center", by_name(NUMBER), "What to take off a column."),
    Option("data.scale", by_name(POSITIVE), "What to divide it by after that."),
    Option("data.units", FILE, "The same from a .toml or .json that sites share."),
    dataclasses.replace(INTERCEPT, default=True),
    Option("model.exposure", TEXT, "The column of how long, or how much, was counted."),
    Option(
        "prior.sd",
        dataclasses.replace(by_name(POSITIVE), nameless=True),
        "Of the coefficients' prior about 0, or of one, as NAME=S; if left out 10 (of an "
        "intercept 1000), or 1e6 if linear.",
        "--prior-sd",
    ),
    Option("prior.file", FILE, "A Gaussian with names, in place of that.", "--prior"),
    Option(
        "model.noise_variance",
        either(POSITIVE, words("estimate")),
        "Of a linear model; the site's own estimate if left out.",
    ),
    Option(
        "model.family",
        words("gaussian", "diagonal"),
        "Of a regression's posterior.",
        default="gaussian",
    ),
    Option("model.components", COUNT, "Of a mixture."),
    Option("model.component_sd", POSITIVE, "About how wide a mixture's components are; 1."),
    Option("site", NAME, "The site; the file's name if left out."),
    Option("data.drop_missing", FLAG, "Leave records out of which a value is missing."),
    Option("data.decimal", words(".", ","), "The decimal mark, if numbers do not say it."),
    Option("seed", NATURAL, "Of a mixture's starts.", default=0),
    OUTPUT,
    files="The site's records: a .csv with a header; a TOML file that says what flags do not.",
    report=_report,
    examples=[
        "posterity fit north.csv --target ill --model logistic -o north.safetensors",
        "posterity fit north.csv --target bp --model linear --center age=60 --scale age=10 "
        "-o north.safetensors",
        "posterity fit north.csv --model mixture --components 3 -o north.safetensors",
    ],
)
def fit(settings: Settings) -> Data:
    """Fit a regression or a mixture to a site's records, and write its ledger.

    Give the same flags at every site: they are kept in the file, and fuse refuses files whose
    flags differ. Nothing is standardised by a site's own data: --center and --scale, or --units,
    say in which units coefficients and priors are.
    """
    from posterity.fitting import Recipe
    from posterity.fitting import fit as fit_table

    path, output = settings.single("data.file"), settings.output
    units, prior = settings.path("data.units"), settings.path("prior.file")
    files.check_outputs([output], [path, units, prior])
    options, before = _recipe(settings, units), None
    if prior is not None:
        before, about = files.read_prior(prior)
        options["prior"] = about.digest
    how = {
        "drop_missing": bool(settings["data.drop_missing"]),
        "decimal": settings["data.decimal"],
        "seed": settings["seed"],
    }
    with bar(f"Fitting {path}"):
        fitted = fit_table(path, Recipe(**options), _clean(settings["site"]), prior=before, **how)
    ledger, recipe, noise = fitted.ledger, fitted.recipe, fitted.noise_variance
    record = {
        **fitted.provenance,
        "records": str(fitted.records),
        **({"dropped": str(fitted.dropped)} if fitted.dropped else {}),
        **({} if noise is None else {"noise variance": repr(noise)}),
    }
    written = files.write(ledger, output, "fit", record)
    return {
        "output": written.path,
        "digest": written.digest,
        "site": ledger.sites[0],
        "model": recipe.model,
        "target": recipe.target,
        "records": fitted.records,
        "dropped": fitted.dropped,
        "steps": fitted.steps,
        "noise_variance": noise,
        **_posterior(ledger.posterior),
        "columns": list(recipe.columns or ()),
        "recipe": json.loads(recipe.canonical()),
        "notes": list(fitted.notes),
    }


def _posterior(posterior: Any) -> Data:
    """Coefficients of a regression, or components of a mixture."""
    if posterior.gaussian:
        moments = zip(posterior.names, posterior.mean, posterior.marginal_variance, strict=True)
        rows = [{"name": name, "mean": float(m), "sd": float(v) ** 0.5} for name, m, v in moments]
        return {"parameters": rows, "components": []}
    parts = zip(posterior.weights.mean_weights(), posterior.members.mean, strict=True)
    rows = [{"weight": plain(weight), "mean": plain(mean)} for weight, mean in parts]
    return {"parameters": [], "components": rows}


# --- the recipe ----------------------------------------------------------------------------------


def _recipe(settings: Settings, units: Path | None) -> dict[str, Any]:
    """The options that the files of all sites are to agree on."""
    own = {key: dict(settings[f"data.{key}"] or {}) for key in ("center", "scale")}
    for name, unit in _unit_file(units).items():
        for key, value in unit.items():
            if name in own[key]:
                raise conflict(f"--{key} {name}", f"that of {str(units)!r}")
            own[key][name] = float(value)
    columns, without = settings["data.columns"], settings["data.without"]
    return {
        "model": settings.need("model.kind").removesuffix("-regression"),
        "target": _clean(settings["model.target"]),
        "columns": None if columns is None else tuple(map(_clean, columns)),
        "without": tuple(map(_clean, without or ())),
        "categories": _levels(settings["data.category"] or {}),
        **own,
        "intercept": settings["model.intercept"],
        "exposure": _clean(settings["model.exposure"]),
        "prior_sd": settings["prior.sd"] or {},
        "noise_variance": settings["model.noise_variance"],
        "family": settings["model.family"],
        "components": settings["model.components"],
        "component_sd": settings["model.component_sd"],
    }


def _clean(name: str | None) -> str | None:
    from posterity.adapters.tables.reader import clean

    return None if name is None else clean(name)


def _levels(categories: dict[str, str | list[str]]) -> dict[str, tuple[str | None, ...]]:
    """The levels of each column, as a list or between commas; in quotes one may hold a comma."""
    by_column = {}
    for name, value in categories.items():
        rows = [value] if isinstance(value, list) else list(csv.reader([value]))
        levels = tuple(_clean(level) for row in rows for level in row)
        if len(levels) < 2 or len(set(levels)) < len(levels):
            raise UsageError(
                found=f"--category {name}={value}",
                expected="--category NAME=A,B of two different levels at least, once a column",
                fix="Name the reference first.",
            )
        by_column[_clean(name)] = levels
    return by_column


def _unit_file(path: Path | None) -> dict[str, dict[str, float | int]]:
    """Centers and scales by column, of a file like ``{"age": {"center": 60, "scale": 10}}``."""
    if path is None:
        return {}
    from posterity.adapters.tables.reader import read_text

    text = read_text(path)
    try:
        parse = json.loads if path.suffix.lower() == ".json" else tomllib.loads
        units = {str(_clean(name)): unit for name, unit in parse(text).items()}
        for name, unit in units.items():
            numbers = all(type(value) in (int, float) for value in unit.values())
            if not (unit.keys() <= {"center", "scale"} and numbers):
                raise ValueError(f"{name!r}: {unit!r}")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            found=f"units {str(path)!r} that cannot be read ({error})",
            expected='a .toml or .json of columns, as {"age": {"center": 60, "scale": 10}}',
            fix="Compare with docs/fit.md.",
        ) from error
    return units
