"""Notes on what is left of a ledger of tables when sites are forgotten."""

import math
from collections.abc import Collection, Iterator

from posterity.federation import Run
from posterity.federation.certificate import Certificate
from posterity.federation.remaining import reports_of
from posterity.tabular.recipe import Recipe


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
