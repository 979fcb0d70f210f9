"""Notes on the result of a federation of tables."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from posterity.errors import CHOOSE
from posterity.families import stack
from posterity.families.names import names_of
from posterity.fusion.conflict import CONTRADICTION, jointly
from posterity.ledger import Ledger
from posterity.reporting.summary.rows import cavity
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


def contradiction(ledger: Ledger, most: int = 2**30) -> Iterator[str]:
    """Yield a note on the site whose full Gaussian factor is furthest from all others', if far.

    None where comparing all takes more than ``most`` multiplications, some seconds.
    """
    prior: Any = ledger.prior
    names = names_of(prior)[""]
    if ledger.posterior.diagonal or len(ledger.sites) * len(names) ** 3 > most:
        return
    far = CONTRADICTION
    about = ""
    for site in ledger.sites:
        one = prior + ledger.factor(site)
        other = cavity(ledger, site)
        if not (np.all(one.is_proper()) and np.all(other.is_proper())):
            continue
        spread = np.sqrt(one.marginal_variance + other.marginal_variance)
        away = abs(one.mean - other.mean) / spread
        what = names[int(away.argmax())]
        own = float(away.max())
        if own <= CONTRADICTION:
            what = "all coefficients together"
            own = float(jointly(stack([one]), stack([other]))[0])
        if own > far:
            far = own
            about = f"site {site!r} contradicts the others in {what}"
    if about:
        yield (
            f"{about}, by {far:.0f} of both their deviations. One posterior of all is surer than "
            "it should be: let coefficients differ (--personal), or look at that site's units, "
            f"labels and records{CHOOSE}"
        )
