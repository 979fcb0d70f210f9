"""``posterity import``: a table of means and standard deviations, as a file of a posterior."""

from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.streams import Json, present
from posterity.errors import UsageError


@app.command(
    name="import",
    epilog=example(
        "posterity import coefficients.csv -o north.safetensors",
        "posterity import coefficients.csv --covariance vcov.csv -o north.safetensors",
        "posterity import coefficients.csv -o north.safetensors --site north --flat-prior",
    ),
)
def import_(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE",
            help="A .csv with a row a parameter (name, mean, sd, as regression tables have them), "
            "or a .json.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the posterior.")
    ],
    covariance: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A .csv with the names on its rows and its columns."),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            metavar="[diagonal|gaussian|gamma|beta]",
            help="Of the posterior; diagonal, or gaussian with a covariance, if left out.",
        ),
    ] = None,
    decimal: Annotated[
        str | None,
        typer.Option(metavar="[.|,]", help="The decimal mark, where the numbers do not say it."),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Write a ledger, in which this site contributed."),
    ] = None,
    prior: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What the site started from.")
    ] = None,
    flat_prior: Annotated[
        bool,
        typer.Option(
            "--flat-prior",
            help="The table owes nothing to a prior, as a maximum likelihood estimate: it is what "
            "the site contributes.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a posterior's file of a table of means and standard deviations, or of a covariance.

    Without --site the file holds the posterior alone. With it, it holds a ledger, which `fuse
    --rule product` adds to others: say --prior, or --flat-prior.
    """
    inputs = [path for path in (table, covariance, prior) if path is not None]
    files.check_outputs([output], inputs)
    if site is None and (prior is not None or flat_prior):
        raise UsageError(
            found=f"{'--prior' if prior else '--flat-prior'} without --site",
            expected="the name of the site whose contribution is told from the prior",
            fix="Add --site NAME, or leave it out.",
        )
    if site == "":
        raise UsageError(found="--site ''", expected="a name", fix="Name the site.")
    about = {"covariance": covariance, "decimal": decimal}
    make = lambda: _import(table, output, about, family, site, prior, flat_prior)
    present(make, "imports", as_json)


def _import(
    table: Path, output: Path, about: dict[str, Any], family: str | None, site: str | None,
    prior: Path | None, flat_prior: bool,
) -> dict[str, Any]:  # fmt: skip
    from posterity.adapters.tables import to_ledger, to_table
    from posterity.adapters.tables.files import law_of, read_moments
    from posterity.families import names

    moments = read_moments(table, **about)
    law = law_of(moments, table, family)
    told = to_table(law)
    record = {"table": table.name}
    result: Any = law
    if site is not None:
        before = None
        if prior is not None:
            before, found = files.read_prior(prior)
            before = names.in_order(before, names.names_of(law), f"the prior {str(prior)!r}", site)
            record["prior"] = found.digest
        result = to_ledger(law, site, prior=before, flat_prior=flat_prior)
        record |= {"flat prior": "true"} if flat_prior else {}
    written = files.write(result, output, "import", record)
    matrix = told.get("covariance", [])
    sd = told.get("sd") or [row[place] ** 0.5 for place, row in enumerate(matrix)]
    unused = [name for name in moments.unused if name]
    return {
        "output": written.path,
        "kind": written.kind,
        "digest": written.digest,
        "family": told["family"],
        "site": site,
        "parameters": [
            {"name": n, "mean": m, "sd": s}
            for n, m, s in zip(told["names"], told["mean"], sd, strict=True)
        ],
        "notes": [f"columns that were not used: {', '.join(unused)}"] if unused else [],
    }
