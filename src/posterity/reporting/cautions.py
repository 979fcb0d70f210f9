"""Notes on the result of a federation of tables."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from posterity.fusion.blocks import Block
from posterity.fusion.doubts import LEVEL
from posterity.fusion.groups import Groups, different
from posterity.ledger import Ledger
from posterity.tabular.cautions import (
    FINITE,
    cautions,
    notes_of_clusters,
    notes_of_few_clusters,
    notes_of_levels,
    notes_of_prior,
)
from posterity.tabular.one_shot import expected_distance, third_of
from posterity.tabular.recipe import Recipe
from posterity.tabular.rows import Design
from posterity.tabular.units import suspicious

ONE_SIDED = "this alone may be why coefficients differ from those of other sites"
"""End of a note on a level, a label or an event that only other sites have."""


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
    if not posterior.diagonal:
        yield from contradiction(ledger)


def doubts_of(ledger: Ledger, facts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what :func:`posterity.fuse` doubts about sites that differ: of a ledger of Gaussian
    factors that are independent, with ``facts`` about the sites' records.
    """
    if len(ledger.sites) > 1 and ledger.posterior.gaussian and ledger.independent:
        silent = expected_distance(ledger, facts).silent
        heard = {site: own for site, own in ledger.entries.items() if site not in silent}
        yield from contradiction(ledger.holding(heard), LEVEL, "fuse")


def cautions_of_federation(
    data: Mapping[str, Any],
    model: Any,
    ledger: Ledger,
    recipe: Recipe,
    designs: Mapping[str, Design],
) -> dict[str, list[str]]:
    """Return notes by site that the file of a federation keeps: on coefficients that the records of
    all sites leave to the prior, and on clusters of records at a site.

    The ``ledger`` is that of records that are independent, without sandwich covariances.
    """
    posterior: Any = ledger.posterior
    known = {site: own for site, own in data.items() if own is not None and len(own[0])}
    if not posterior.gaussian or not known:
        return {}
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


def contradiction(ledger: Ledger, level: float = 1e-9, verb: str = "federate") -> Iterator[str]:
    """Yield a note on the site whose Gaussian factor is furthest from all others', or on
    coefficients that differ between sites, as :func:`posterity.fuse` would doubt them.

    The default ``level`` is that of six standard deviations, since factors of a federation are
    refined together and need not be normal: what is likelier may be no difference. The advice names
    the ``verb``.
    """
    prior: Any = ledger.prior
    names = prior.names
    laws = {site: prior + ledger.factor(site) for site in ledger.sites}
    proper = {site: law for site, law in laws.items() if np.all(law.is_proper())}
    if len(proper) > 1:
        block = Block.of_sites("", [*proper], [*proper.values()], [prior] * len(proper))
        with np.errstate(all="ignore"):
            yield from map(str, different(Groups(block, None), names, level, verb))
