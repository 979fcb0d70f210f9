"""``posterity fit``: a table of records, made a site's file without a line of Python."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.report.numbers import number
from posterity.cli.streams import Json, bar, present
from posterity.errors import ArtifactError, UsageError

MODELS = ("linear", "logistic", "poisson", "mixture")


@app.command(
    epilog=example(
        "posterity fit north.csv --target ill --model logistic -o north.safetensors",
        "posterity fit north.csv --target bp --model linear --center age=60 --scale age=10 "
        "-o north.safetensors",
        "posterity fit north.csv --model mixture --components 3 -o north.safetensors",
    )
)
def fit(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="The site's records: a .csv with a header.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the ledger.")
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="[linear|logistic|poisson|mixture]",
            help="A regression of --target on all other columns, or a mixture of Gaussians.",
            autocompletion=lambda: list(MODELS),
        ),
    ],
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column to predict.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="The columns to use; all others if left out."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Columns not to use.")
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A,B",
            help="A column of texts by its levels, the first of which is the reference; of a "
            "logistic target the level that is 0, and the one that is 1.",
        ),
    ] = None,
    center: Annotated[
        list[str] | None, typer.Option(metavar="NAME=V", help="What to take off a column.")
    ] = None,
    scale: Annotated[
        list[str] | None, typer.Option(metavar="NAME=V", help="What to divide it by after that.")
    ] = None,
    units: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The same from a .toml or .json that sites share."),
    ] = None,
    intercept: Annotated[bool, typer.Option(help="Whether there is a column of ones.")] = True,
    exposure: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column of how long, or how much, was counted."),
    ] = None,
    prior_sd: Annotated[
        list[str] | None,
        typer.Option(
            metavar="S or NAME=S",
            help="Of the coefficients' prior about 0; if left out 10 (of an intercept 1000), or "
            "1e6 if linear.",
        ),
    ] = None,
    prior: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Gaussian with names, in place of that.")
    ] = None,
    noise_variance: Annotated[
        str | None,
        typer.Option(metavar="V", help="Of a linear model; the site's own estimate if left out."),
    ] = None,
    family: Annotated[
        str,
        typer.Option(
            metavar="[gaussian|diagonal]",
            help="Of a regression's posterior.",
            autocompletion=lambda: ["gaussian", "diagonal"],
        ),
    ] = "gaussian",
    components: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Of a mixture.")
    ] = None,
    component_sd: Annotated[
        float | None,
        typer.Option(metavar="S", help="About how wide a mixture's components are; 1."),
    ] = None,
    site: Annotated[
        str | None, typer.Option(metavar="NAME", help="The site; the file's name if left out.")
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave records out of which a value is missing.")
    ] = False,
    decimal: Annotated[
        str | None,
        typer.Option(metavar="[.|,]", help="The decimal mark, if numbers do not say it."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of a mixture's starts.")] = 0,
    as_json: Json = False,
) -> None:
    """Fit a regression or a mixture to a site's records, and write its ledger.

    Give the same flags at every site: they are kept in the file, and fuse refuses files whose
    flags differ. Nothing is standardised by a site's own data: --center and --scale, or --units,
    say in which units coefficients and priors are.
    """
    inputs = [path for path in (table, units, prior) if path is not None]
    files.check_outputs([output], inputs)
    if decimal not in (None, ".", ","):
        raise UsageError(
            found=f"--decimal {decimal}", expected="--decimal . or --decimal ,", fix="Give one."
        )
    if site == "":
        raise UsageError(found="--site ''", expected="a name", fix="Name the site.")
    told = {
        "center": _pairs(center, "--center"),
        "scale": _pairs(scale, "--scale"),
    }
    _add_units(told, units)
    options = {
        "model": model,
        "target": _clean(target),
        "columns": _names(columns) if columns else None,
        "without": _names(without),
        "categories": _levels(category),
        **told,
        "intercept": intercept,
        "exposure": _clean(exposure),
        "prior_sd": _pairs(prior_sd, "--prior-sd", bare=True),
        "noise_variance": noise_variance
        if noise_variance in (None, "estimate")
        else _number(noise_variance, "--noise-variance"),
        "family": family,
        "components": components,
        "component_sd": component_sd,
    }
    how = {"drop_missing": drop_missing, "decimal": decimal, "seed": seed}
    present(lambda: _fit(table, output, options, prior, _clean(site), how), "fit", as_json)


def _fit(
    table: Path, output: Path, options: dict[str, Any], prior: Path | None, site: str | None,
    how: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip

    from posterity.fitting import Recipe, fit

    before = None
    if prior is not None:
        before, inspection = files.read_prior(prior)
        options = options | {"prior": inspection.digest}
    with bar(f"Fitting {table}"):
        found = fit(table, Recipe(**options), site, prior=before, **how)
    record = found.provenance | {"records": str(found.records)}
    if found.dropped:
        record |= {"dropped": str(found.dropped)}
    if found.noise_variance is not None:
        record |= {"noise variance": repr(found.noise_variance)}
    written = files.write(found.ledger, output, "fit", record)
    posterior: Any = found.ledger.posterior
    rows, weights = [], []
    if posterior.gaussian:
        rows = [
            {"name": name, "mean": float(mean), "sd": float(v) ** 0.5}
            for name, mean, v in zip(
                posterior.names, posterior.mean, posterior.marginal_variance, strict=True
            )
        ]
    else:
        weights = [
            {"weight": number(weight), "mean": [number(value) for value in mean]}
            for weight, mean in zip(
                posterior.weights.mean_weights(), posterior.members.mean, strict=True
            )
        ]
    return {
        "output": written.path,
        "digest": written.digest,
        "site": found.ledger.sites[0],
        "model": found.recipe.model,
        "target": found.recipe.target,
        "records": found.records,
        "dropped": found.dropped,
        "steps": found.steps,
        "noise_variance": found.noise_variance,
        "parameters": rows,
        "columns": list(found.recipe.columns or ()),
        "components": weights,
        "recipe": json.loads(found.recipe.canonical()),
        "notes": list(found.notes),
    }


# --- flags ---------------------------------------------------------------------------------------


def _clean(name: str | None) -> str | None:
    from posterity.adapters.tables.reader import clean

    return None if name is None else clean(name)


def _names(given: Sequence[str] | None) -> tuple[str, ...]:
    """Names parted by commas; in quotes one may hold a comma."""
    return tuple(str(_clean(name)) for row in csv.reader(given or []) for name in row)


def _pairs(given: Sequence[str] | None, flag: str, bare: bool = False) -> dict[str, float]:
    """Numbers by name; a bare one, where it is allowed, goes by an empty name."""
    found: dict[str, float] = {}
    for text in given or []:
        name, equals, value = text.rpartition("=")
        if not (equals and name.strip()) and not (bare and not equals):
            raise UsageError(
                found=f"{flag} {text}", expected=f"{flag} NAME=VALUE", fix="Name a column."
            )
        key = str(_clean(name))
        if key in found:
            raise UsageError(
                found=f"{flag} twice for {key!r}", expected="it once", fix="Leave one out."
            )
        found[key] = _number(value, f"{flag} {text}")
    return found


def _number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(
            found=f"{flag}: {text!r}", expected="a number with a decimal point", fix="Mend it."
        ) from error


def _levels(given: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for text in given or []:
        name, _, rest = text.partition("=")
        levels, key = _names([rest]) if rest else (), str(_clean(name))
        if not key or key in found or len(levels) < 2 or len(set(levels)) < len(levels):
            raise UsageError(
                found=f"--category {text}",
                expected="--category NAME=A,B of two different levels at least, once a column",
                fix="Name the reference first.",
            )
        found[key] = levels
    return found


def _add_units(told: Mapping[str, dict[str, float]], path: Path | None) -> None:
    """Center and scale by column, from a file of ``{"age": {"center": 60, "scale": 10}}``."""
    for name, unit in _unit_file(path).items():
        for key, value in unit.items():
            if name in told[key]:
                raise UsageError(
                    found=f"--{key} {name} beside {str(path)!r}, which has one too",
                    expected="one of them",
                    fix="Leave one out.",
                )
            told[key][name] = float(value)


def _unit_file(path: Path | None) -> dict[str, dict[str, float | int]]:
    if path is None:
        return {}
    import tomllib

    from posterity.adapters.tables.reader import read_text

    text = read_text(path)
    try:
        read = json.loads if path.suffix.lower() == ".json" else tomllib.loads
        found = {str(_clean(name)): unit for name, unit in read(text).items()}
        for name, unit in found.items():
            plain = [type(value) in (int, float) for value in unit.values()]
            if not (unit.keys() <= {"center", "scale"} and all(plain)):
                raise ValueError(f"{name!r}: {unit!r}")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            found=f"units {str(path)!r} that cannot be read ({error})",
            expected='a .toml or .json of columns, as {"age": {"center": 60, "scale": 10}}',
            fix="Mend the file.",
        ) from error
    return found
