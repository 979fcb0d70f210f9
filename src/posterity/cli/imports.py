"""``posterity import``: a table of means and standard deviations, as a file of a posterior."""

from pathlib import Path
from typing import Any

from posterity.cli import files
from posterity.cli.failures import printable
from posterity.cli.options import FILE, FLAG, TEXT, Option, Settings, verb, words
from posterity.cli.report import Data, group, parameters
from posterity.cli.schema import OUTPUT
from posterity.errors import UsageError


def _report(data: Data) -> Any:
    headline = f"Read {len(data['parameters'])} parameters ({data['family']})."
    of = "" if data["site"] is None else f" of site {printable(data['site'])}"
    wrote = f"Wrote {data['kind']}{of} to {printable(data['output'])}"
    return group(headline, "", parameters(data["parameters"]), "", wrote)


@verb(
    Option("table", FILE, "The table, in place of the argument."),
    Option("covariance", FILE, "A .csv with the names on its rows and its columns."),
    Option(
        "family",
        words("diagonal", "gaussian", "gamma", "beta"),
        "Of the posterior; diagonal, or gaussian with a covariance, if left out.",
    ),
    Option("decimal", words(".", ","), "The decimal mark, where the numbers do not say it."),
    Option("site", TEXT, "Write a ledger, in which this site contributed."),
    Option("prior.file", FILE, "What the site started from.", "--prior"),
    Option(
        "flat_prior",
        FLAG,
        "The table owes nothing to a prior, as a maximum likelihood estimate: it is what the "
        "site contributes.",
    ),
    OUTPUT,
    files="A .csv with a row a parameter (name, mean, sd, as regression tables have them), or a "
    ".json.",
    report=_report,
    examples=[
        "posterity import coefficients.csv -o north.safetensors",
        "posterity import coefficients.csv --covariance vcov.csv -o north.safetensors",
        "posterity import coefficients.csv -o north.safetensors --site north --flat-prior",
    ],
    name="import",
)
def import_(settings: Settings) -> Data:
    """Make a posterior's file of a table of means and standard deviations, or of a covariance.

    Without --site the file holds the posterior alone. With it, it holds a ledger, which `fuse
    --rule product` adds to others: say --prior, or --flat-prior.
    """
    from posterity.adapters.tables import to_ledger, to_table
    from posterity.adapters.tables.files import law_of, read_moments
    from posterity.families import names

    table, output = settings.single("table"), Path(settings.need("output.file"))
    covariance, prior = settings.path("covariance"), settings.path("prior.file")
    site, flat_prior = settings["site"], bool(settings["flat_prior"])
    files.check_outputs([output], [path for path in (table, covariance, prior) if path])
    if site is None and (prior is not None or flat_prior):
        raise UsageError(
            found=f"{'--prior' if prior else '--flat-prior'} without --site",
            expected="the name of the site whose contribution is told from the prior",
            fix="Add --site NAME, or leave it out.",
        )
    if site == "":
        raise UsageError(found="--site ''", expected="a name", fix="Name the site.")
    moments = read_moments(table, covariance=covariance, decimal=settings["decimal"])
    law = law_of(moments, table, settings["family"])
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
