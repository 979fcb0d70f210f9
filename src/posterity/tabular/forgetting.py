"""Ledgers of tables without some records of a site, and notes on what is left without sites."""

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from posterity.errors import StructureError, UsageError
from posterity.families.names import some
from posterity.federation import Run
from posterity.federation.certificate import Certificate
from posterity.federation.remaining import reports_of
from posterity.ledger import Ledger
from posterity.status import ProgressCallback
from posterity.tabular.fitting import fit, records_of
from posterity.tabular.reading import PLAIN, Reading
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.sites import as_provenance, sites_in
from posterity.tabular.tables.reader import as_level


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
    values: Mapping[str, str],
    *,
    reading: Reading = PLAIN,
    progress: ProgressCallback | None = None,
) -> Withdrawn:
    """Return a ledger in which a site's factor is that of its table without some records.

    Args:
        ledger: ledger of independent factors, as of fits and their fusion.
        provenance: its provenance, which has the recipe.
        site: name of the site.
        table: its table, with the records or already without them.
        values: by column, the value of the records that leave; they have all of these.
        reading: how the table differs from the recipe.
        progress: as in :func:`~posterity.tabular.fitting.fit`.

    Raises:
        UsageError: for a site that is not in the ledger, a column that is not in the table, and if
            all records would leave.
        StructureError: for a ledger without a recipe, or whose factors depend on each other.
    """
    recipe = recipe_in(provenance)
    known = recipe is not None and not recipe.own and site in ledger.sites
    if recipe is None or not (known and ledger.independent):
        raise StructureError(
            found=f"a ledger of {some(list(ledger.sites))}, "
            f"{'with' if known else 'without'} a recipe of coefficients that sites share, "
            f"{'fitted apart' if ledger.independent else 'whose factors were fitted together'}",
            expected=f"one of {site!r} and others whose factors were fitted apart (posterity fit)",
            fix="If factors were fitted together, federate again with the table without the "
            "records.",
        )
    cells, _ = records_of(table, reading, recipe)
    absent = [name for name in values if name not in cells.header]
    if absent:
        raise UsageError(
            found=f"--record {absent[0]}, and columns {some(cells.header)}",
            expected="a column of the table",
            fix="Name the column that identifies the records.",
        )
    places = {cells.header.index(name): as_level(value) for name, value in values.items()}
    leave = [all(as_level(row[k]) == own for k, own in places.items()) for row in cells.rows]
    stay = [not one for one in leave]
    made = fit(
        table, recipe, site, prior=ledger.prior, reading=reading, progress=progress, rows=stay
    )
    facts = sites_in(provenance) | sites_in(made.provenance)
    factor = made.ledger.factor(site)
    changed = ledger.update(site, factor, independent=True)
    notes = [] if any(leave) else [f"no record has {dict(values)}: the table is fitted as it is"]
    return Withdrawn(changed, as_provenance(recipe, facts), sum(leave), (*notes, *made.notes))


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
