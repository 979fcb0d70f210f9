"""Notes on the result of a federation of tables."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from posterity.families.names import names_of
from posterity.fusion.blocks import Block
from posterity.fusion.groups import Groups, different
from posterity.ledger import Ledger
from posterity.tabular.fitting import notes_of_labels, notes_of_prior
from posterity.tabular.recipe import Recipe
from posterity.tabular.units import suspicious


def notes_of_federation(
    data: Mapping[str, Any],
    ledger: Ledger,
    recipe: Recipe,
    facts: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    """Yield notes on units, on coefficients that records do not determine, and on contradictions.

    Args:
        data: records by site, as the model takes them.
        ledger: the result of their federation.
        recipe: recipe of the sites' tables.
        facts: facts about the sites' records, by site.
    """
    yield from suspicious({"": ledger}, recipe, known=facts)
    posterior: Any = ledger.posterior
    if not posterior.gaussian:
        return
    sd = np.sqrt(posterior.marginal_variance)
    yield from notes_of_prior(names_of(posterior)[""], posterior.mean, sd, ledger.prior)
    if recipe.model == "logistic":
        x, y = map(np.concatenate, zip(*data.values(), strict=True))
        y = y.reshape(len(y), -1)  # the label, and where records are adjusted their offset
        yield from notes_of_labels(y[:, 0], x @ posterior.mean + y[:, 1:2].sum(1))
    yield from contradiction(ledger)


def contradiction(ledger: Ledger, level: float = 1e-9) -> Iterator[str]:
    """Yield a note on the site whose full Gaussian factor is furthest from all others', or on
    coefficients that differ between sites, as :func:`posterity.fuse` would doubt them.

    The ``level`` is that of six standard deviations, since factors of a federation are refined
    together and need not be normal: what is likelier may be no difference.
    """
    if ledger.posterior.diagonal:
        return
    prior: Any = ledger.prior
    names = names_of(prior).get("", ())
    laws = {site: prior + ledger.factor(site) for site in ledger.sites}
    proper = {site: law for site, law in laws.items() if np.all(law.is_proper())}
    if len(proper) > 1:
        block = Block.of_sites("", [*proper], [*proper.values()], [prior] * len(proper))
        with np.errstate(all="ignore"):
            yield from map(str, different(Groups(block, None), names, level))
