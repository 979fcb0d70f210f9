"""Rows of numbers by name, and the influence of each site of a ledger on them."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from posterity.families.distribution import Distribution
from posterity.families.marginals import WEIGHT, Names, Table
from posterity.families.names import names_of
from posterity.ledger import Ledger
from posterity.runtime.text import natural

EXACT = 100
"""Number of sites up to which a cavity is summed exactly; above it, the factor is subtracted."""

ANEW = 1_000_000
"""Squared sites times cubed parameters up to which a population is estimated without each site."""


def label_of(block: str, member: str, quantity: str, name: str) -> str:
    """Return the one-line label that identifies a number."""
    inner = f"{quantity} of {name}" if quantity else name
    return ": ".join(part for part in (block, member, inner) if part) or "value"


class Row(NamedTuple):
    """Mean, standard deviation and interval of one number of a posterior.

    ``block`` is the path of its block in a product, ``member`` the name or number of its member of
    a plate, and ``name`` that of the coordinate. ``quantity`` is ``mean``, ``variance``,
    ``precision``, ``probability`` or ``weight``; ``""`` means the coordinate itself. All are ``""``
    if they do not apply. ``mean``, ``sd`` and the ends ``low`` and ``high`` of the equal-tailed
    interval are NaN if they do not exist; ``sd`` may be infinite.
    """

    block: str
    member: str
    quantity: str
    name: str
    mean: float
    sd: float
    low: float
    high: float

    @property
    def label(self) -> str:
        """The one-line label that identifies this row."""
        return label_of(*self[:4])


class Influence(NamedTuple):
    """The posterior mean of one number, as in :class:`Row`, with one site and without it.

    ``mean`` is the mean given all sites, ``without`` the mean without this one, and ``by`` their
    difference in standard deviations of the posterior given all sites (belsley1980).
    """

    block: str
    member: str
    quantity: str
    name: str
    mean: float
    without: float
    by: float

    label = Row.label


def rows_of(table: Table, level: float, count: int) -> Iterator[Row]:
    """Yield the first ``count`` rows of a table; quantiles are computed for these alone."""
    with np.errstate(all="ignore"):
        some = table.law.reshaped((table.size,)).picked(slice(count))
        columns = [some.mean, some.sd, *some.interval(level)]
    for index, values in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        member, name = table.labels(index)
        yield Row(table.block, member, table.quantity, name, *values)


@dataclasses.dataclass(frozen=True)
class SiteSummary:
    """The influence of one site on a ledger's posterior.

    ``nats`` is ``KL(posterior ‖ posterior without the site)``: the information that the site adds
    to the prior and all others (lindley1956). It is None if the site was forgotten or the posterior
    with or without it is improper; ``why`` then gives the reason. ``most`` is the number whose mean
    it moves most, in standard deviations of the posterior given all sites.
    """

    name: str
    nats: float | None
    most: Influence | None
    why: str = ""
    independent: bool = False


def takes_long(ledger: Ledger) -> bool:
    """Return whether it takes long to estimate a ledger's population without each site."""
    work = len(ledger.sites) ** 2 * ledger.prior.dimension**3
    return not ledger.prior.additive and work > ANEW


def sites_of(ledger: Ledger) -> Iterator[SiteSummary]:
    """Yield the summary of every site, forgotten ones included, by name: 2 before 10."""
    whole = ledger.total
    proper = bool(np.all(whole.is_proper()))
    names = names_of(whole)
    why = "the posterior of all is no distribution, so nothing is known of its parts"
    if takes_long(ledger):
        proper = False
        why = (
            "not estimated without it, which takes long for so many sites and coefficients; "
            "posterity show FILE --site NAME does that for one"
        )
    for name in sorted(ledger.entries, key=natural):
        entry = ledger.entries[name]
        if entry.factor is None:
            yield SiteSummary(name, None, None, "forgotten")
        elif proper:
            yield _site(ledger, whole, name, names)
        else:
            yield SiteSummary(name, None, None, why, entry.independent)


def cavity(ledger: Ledger, site: str) -> Any:
    """Return the posterior without one site's factor."""
    if len(ledger.sites) <= EXACT or not ledger.prior.additive:
        return ledger.cavity(site)
    return ledger.total - ledger.factor(site)


def _site(ledger: Ledger, whole: Any, name: str, names: Names) -> SiteSummary:
    left = cavity(ledger, name)
    alone = ledger.entries[name].independent
    if not np.all(left.is_proper()):
        why = "without it what is left is no distribution: the others do not carry it"
        return SiteSummary(name, None, None, why, alone)
    with np.errstate(all="ignore"):
        nats = float(np.sum(whole.kl(left)))
    most = max(influences_of(whole, left, names, 1), key=lambda one: abs(one.by), default=None)
    return SiteSummary(name, max(nats, 0.0) if np.isfinite(nats) else nats, most, "", alone)


def influences_of(
    whole: Distribution, left: Distribution, names: Names, most: int | None
) -> Iterator[Influence]:
    """Yield every number with a site and without it, or of each table the one that moved most.
    Single weights of networks have no meaning, and no rows.
    """
    for mine, theirs in zip(whole.tables(names), left.tables(names), strict=True):
        if mine.quantity == WEIGHT and most is not None:
            continue  # counts of components depend on numbers of records, not on influence
        with np.errstate(all="ignore"):
            mean = mine.law.mean.ravel()
            without = theirs.law.mean.ravel()
            by = (mean - without) / mine.law.width.ravel()
        order = range(mine.size)
        if most is not None:
            size = np.nan_to_num(np.abs(by), nan=-1.0, posinf=-1.0)
            rounding = 1e-9  # of deviations
            order = [int(size.argmax())] if size.max(initial=0.0) > rounding else []
        for index in order:
            member, name = mine.labels(index)
            values = (float(mean[index]), float(without[index]), float(by[index]))
            yield Influence(mine.block, member, mine.quantity, name, *values)
