"""Ledgers of tables without some records of a site, and notes on what is left without sites."""

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from posterity.errors import StructureError, UsageError
from posterity.families.names import names_of, some
from posterity.federation import Run
from posterity.federation.certificate import Certificate
from posterity.federation.remaining import reports_of
from posterity.ledger import Ledger
from posterity.status import ProgressCallback
from posterity.tabular.fitting import Fit, fit, records_of
from posterity.tabular.reading import PLAIN, Reading
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.sites import as_provenance, sites_in
from posterity.tabular.tables.reader import Cells, as_level


class Withdrawn(NamedTuple):
    """A ledger without some records of a site, its provenance, how many left, and notes."""

    ledger: Ledger
    provenance: dict[str, str]
    withdrawn: int
    notes: tuple[str, ...]


def without_records(
    ledger: Ledger,
    provenance: Mapping[str, str],
    site: str,
    table: Path,
    values: Mapping[str, Collection[str]],
    *,
    reading: Reading = PLAIN,
    progress: ProgressCallback | None = None,
    rounding: float = 1e-6,
) -> Withdrawn:
    """Return a ledger in which a site's factor is that of its table without some records.

    Args:
        ledger: ledger of independent factors, as of fits and their fusion.
        provenance: its provenance, which has the recipe.
        site: name of the site.
        table: its table, of the records that its factor in the ledger is of.
        values: by column, values of the records that leave; these have one of each column's.
        reading: how the table differs from the recipe. Records with a missing value are dropped
            also if the site's fit dropped some.
        progress: as in :func:`~posterity.tabular.fitting.fit`.
        rounding: relative difference between the factor of the table and that in the ledger up to
            which they are the same: well above rounding, well below one record of many.

    Raises:
        UsageError: for a value that no record has, and a table that is not that of the factor.
        StructureError: for a column that is not in the table, if all records would leave, and for a
            ledger without the site or a recipe, or whose factors depend on each other.
    """
    recipe = _recipe_of(ledger, provenance, site)
    known = sites_in(provenance)
    dropped = bool(known.get(site, {}).get("dropped"))
    reading = dataclasses.replace(reading, drop_missing=reading.drop_missing or dropped)
    cells, _ = records_of(table, reading, recipe)
    stay = [not one for one in _leaving(cells, values)]

    def fitted(rows: list[bool] | None) -> Fit:
        options = {"prior": ledger.prior, "reading": reading, "progress": progress}
        return fit(table, recipe, site, rows=rows, **options)

    whole = ledger.update(site, fitted(None).ledger.factor(site), independent=True)
    if not _same(whole.factor(site), ledger.factor(site), rounding):
        raise UsageError(
            found=f"table '{table}', which is not what the factor of site {site!r} was fitted to",
            expected="the table of the records that it is of, without those that left before",
            fix="Check --site, the table, and how it is read (--missing, --convert, --category); "
            "delete from a copy of it the records that left before, or take several out of the "
            "first ledger at once (--record NAME=A,B).",
        )
    made = fitted(stay)
    before = known.get(site, {})
    hidden = {} if "third" in before else {"third": None}  # what the site's file kept back
    made = dataclasses.replace(made, rounded=before.get("rounded", 1), **hidden)
    facts = known | sites_in(made.provenance)
    changed = ledger.update(site, made.ledger.factor(site), independent=True)
    return Withdrawn(changed, as_provenance(recipe, facts), stay.count(False), made.notes)


def _recipe_of(ledger: Ledger, provenance: Mapping[str, str], site: str) -> Recipe:
    """Return the recipe by which a site's factor can be fitted again; a StructureError if none."""
    recipe = recipe_in(provenance)
    there = f"a ledger of {some(ledger.sites)}"
    differ = recipe is None or recipe.own or "" not in names_of(ledger.prior)
    again = "Fit the site again without the records (posterity fit), and fuse or federate all again"
    apart = "factors that were fitted apart (posterity fit)"
    anew = "Destroy it, and federate again with the table without the records."
    StructureError.check(
        (site not in ledger.sites, f"{there}, without site {site!r}", "one of its sites"),
        (recipe is None, f"{there} without a recipe", "one that posterity fit wrote", f"{again}."),
        (
            differ,
            f"{there}, whose coefficients differ by site",
            "coefficients that sites share",
            f"{again}, with --personal or --own.",
        ),
        (not ledger.independent, f"{there}, whose factors were fitted together", apart, anew),
    )
    assert recipe is not None, "checked above"
    return recipe


def _leaving(cells: Cells, values: Mapping[str, Collection[str]]) -> list[bool]:
    """Return for each record of a table whether it has one of each column's values.

    Raises a StructureError for a column that is not there, a UsageError for a value that no such
    record has.
    """
    leave = [True] * len(cells.rows)
    own = {}
    for name, wanted in values.items():
        own[name] = [*map(as_level, cells.column(name))]
        leave = [one and text in wanted for one, text in zip(leave, own[name], strict=True)]
    for name, wanted in values.items():
        there = {text for text, one in zip(own[name], leave, strict=True) if one}
        absent = [text for text in wanted if text not in there]
        if absent:
            raise UsageError(
                found=f"--record {name}={absent[0]}, which no record in '{cells.path}' has"
                + (" beside the others" if len(values) > 1 else ""),
                expected="values of records in the table",
                fix="Correct the value; quote one with a comma; if the record left before, "
                "nothing is to be done.",
            )
    return leave


def _same(one: Any, other: Any, rounding: float) -> bool:
    """Return whether two Gaussian factors are the same, relative to the largest of their precision
    and precision times mean.
    """
    names = ("precision", "precision_mean")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(abs(a - b).max() <= rounding * abs(b).max() for a, b in pairs)


def changed_records(run: Run, sites: Collection[str], factor: float = 100) -> Iterator[str]:
    """Yield a note on the site whose records fit its factor in the ledger least, if they would
    change the posterior by more than ``factor`` times the run's tolerance: less than that is what
    a run that has just converged may leave. None where gradients are noisy.
    """
    if run.agreement.update.noisy or run.agreement.update.trains:
        return
    reports = reports_of(run, ("gradient",), sites=sites)
    lengths = Certificate.of(run.posterior, reports).residuals
    nats = {site: length**2 / 2 for site, length in lengths.items() if math.isfinite(length)}
    site = max(nats, key=lambda site: nats[site], default="")
    if nats.get(site, 0.0) > factor * run.tolerance:
        yield (
            f"the records of site {site!r} are not those that the ledger was made from, or the "
            "ledger had not converged: at the ledger's posterior they change the site's factor by "
            f"{nats[site]:.2g} nats. Refinement takes the records as they are now"
        )


def spread_that_stays(recipe: Recipe | None) -> list[str]:
    """Return a note on the noise variance or dispersion of factors that are not independent."""
    if recipe is None or recipe.spread is None:
        return []
    return [
        f"the {recipe.spread.replace('_', ' ')} of the file stays: if federate estimated it, "
        "deviations and predictions still contain what was forgotten. Forget by --config, which "
        "estimates it again from the sites that stay"
    ]
