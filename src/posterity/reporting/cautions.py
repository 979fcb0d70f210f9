"""Notes on the result of a federation of tables."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from posterity.fusion.blocks import Block
from posterity.fusion.doubts import LEVEL
from posterity.fusion.groups import Groups, different
from posterity.inference.random_effects import RandomEffects
from posterity.ledger import Ledger
from posterity.tabular.cautions import (
    FINITE,
    cautions,
    notes_of_clusters,
    notes_of_few_clusters,
    notes_of_levels,
    notes_of_prior,
)
from posterity.tabular.one_shot import expected_distance, silent_in, third_of, without_estimates
from posterity.tabular.recipe import Recipe
from posterity.tabular.rows import Design
from posterity.tabular.units import suspicious

ONE_SIDED = "this alone may be why coefficients differ from those of other sites"
"""End of a note on a level, a label or an event that only other sites have."""
ONE_SIDED_OF_MANY = (
    "what this site tells of the population and of spreads is far from Gaussian, and their "
    "intervals may be much too narrow"
)
"""End of the same note where sites differ."""


def notes_of_federation(
    ledger: Ledger,
    recipe: Recipe,
    facts: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    """Yield notes on units, on coefficients that records do not determine, and on contradictions.

    Args:
        ledger: the result of their federation.
        recipe: recipe of the sites' tables.
        facts: facts about the sites' records, by site.
    """
    yield from suspicious({"": ledger}, recipe, known=facts)
    posterior: Any = ledger.posterior
    if not posterior.gaussian:
        return
    sd = np.sqrt(posterior.marginal_variance)
    yield from notes_of_prior(posterior.names, posterior.mean, sd, ledger.prior)
    yield from doubts_of(ledger, facts, "federate", recipe=recipe)


def doubts_of(
    ledger: Ledger,
    facts: Mapping[str, Mapping[str, Any]],
    verb: str = "",
    *,
    recipe: Recipe | None = None,
    dependent: float = 1e-9,
) -> Iterator[str]:
    """Yield what :func:`posterity.fuse` doubts about sites that differ: the site whose Gaussian
    factor is furthest from all others', or coefficients that differ between sites. Of a population
    that sites vary about, yield which of them have no estimates of their own.

    Args:
        ledger: ledger of the sites; nothing is said of other families.
        facts: facts about the sites' records, which say whose factors are not informative.
        verb: verb that the advice names; by default ``fuse``, for dependent factors ``federate``.
        recipe: recipe of the sites' tables; factors of a linear model are always normal.
        dependent: level for factors that were refined together and need not be normal, that of six
            standard deviations: what is likelier may be no difference. Of diagonal ones nothing is
            said.
    """
    if isinstance(ledger.prior, RandomEffects):
        yield from without_estimates(silent_in(ledger, facts))
        return
    posterior: Any = ledger.posterior
    independent = ledger.independent
    if not posterior.gaussian or posterior.batch_shape:
        return
    if posterior.diagonal and not independent:
        return
    prior: Any = ledger.prior
    silent = expected_distance(ledger, facts).silent
    laws = {site: prior + ledger.factor(site) for site in ledger.sites if site not in silent}
    proper = {site: law for site, law in laws.items() if np.all(law.is_proper())}
    if len(proper) > 1:
        block = Block.of_sites("", [*proper], [*proper.values()], [prior] * len(proper))
        normal = recipe is not None and recipe.model == "linear" and not recipe.robust
        level = LEVEL if independent or normal else dependent
        verb = verb or ("fuse" if independent else "federate")
        with np.errstate(all="ignore"):
            yield from map(str, different(Groups(block, None), prior.names, level, verb))


def cautions_of_federation(
    data: Mapping[str, Any],
    model: Any,
    ledger: Ledger,
    recipe: Recipe,
    designs: Mapping[str, Design],
) -> dict[str, list[str]]:
    """Return notes by site that the file of a federation keeps: on coefficients that the records of
    all sites leave to the prior, and on clusters of records at a site; where sites differ, on sites
    whose targets are all alike.

    The ``ledger`` is that of records that are independent, without sandwich covariances.
    """
    posterior: Any = ledger.posterior
    known = {site: own for site, own in data.items() if own is not None and len(own[0])}
    if not (posterior.gaussian and known):  # of a population and its spreads, or of nothing
        alike = ONE_SIDED_OF_MANY
        return {
            site: [*notes_of_levels(recipe, x, _first(y), alike)] for site, (x, y) in known.items()
        }
    names = posterior.names
    x, y = map(np.concatenate, zip(*known.values(), strict=True))
    third = third_of(model, (x, y), posterior)
    shared = [*cautions(recipe, names, (x, y), posterior, third, alike=FINITE)]
    shared += notes_of_few_clusters(recipe, [designs[site] for site in known])
    told = {site: [*shared] for site in known}
    lacks = [*notes_of_levels(recipe, x, _first(y), FINITE)]
    for site, own in known.items():
        told[site] += [] if lacks else notes_of_levels(recipe, own[0], _first(own[1]), ONE_SIDED)
        told[site] += notes_of_clusters(recipe, names, model, own, posterior, designs[site])
    return told


def _first(targets: np.ndarray) -> np.ndarray:
    """Return targets (n,), without the offsets in further columns."""
    return targets.reshape(len(targets), -1)[:, 0]
