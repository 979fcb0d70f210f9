"""Summaries of posteriors as data: rows by name, components, layers, and influences of sites.

This module does not need JAX unless the posterior holds JAX arrays.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from posterity.arguments import BETWEEN
from posterity.errors import UsageError
from posterity.families.distribution import Distribution
from posterity.families.marginals import Table
from posterity.families.names import names_of
from posterity.inference.federated_effects import with_random_effects
from posterity.ledger import Ledger
from posterity.reporting.population import tables_of
from posterity.reporting.summary.components import Component, Layer, components_of, layers_of
from posterity.reporting.summary.rows import (
    Influence,
    Row,
    SiteSummary,
    cavity,
    influences_of,
    rows_of,
    sites_of,
    takes_long,
)

__all__ = [
    "Component",
    "Influence",
    "Layer",
    "Row",
    "SiteSummary",
    "Summary",
    "Table",
    "influences",
    "summarise",
]


@dataclasses.dataclass(frozen=True)
class Summary:
    """A posterior's numbers by name, with the influence of each site if it is a ledger's.

    ``family`` is the class of the posterior. ``level`` is the probability of each row's
    equal-tailed interval. Rows are NaN if the posterior is not ``proper``. Each of ``tables`` holds
    numbers of one kind and block; quantiles are computed only when rows are read. Weights of
    networks have no rows and are summarised in ``layers``. ``components`` are those of plates,
    mixtures and HMMs.
    """

    family: str
    level: float
    proper: bool
    tables: tuple[Table, ...]
    components: tuple[Component, ...]
    layers: tuple[Layer, ...]
    sites: tuple[SiteSummary, ...]

    @property
    def size(self) -> int:
        """Number of rows."""
        return sum(table.size for table in self.tables)

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows."""
        return tuple(self.first(self.size))

    def first(self, count: int) -> Iterator[Row]:
        """Yield the first ``count`` rows; quantiles are computed for these alone."""
        for table in self.tables:
            if count <= 0:
                return
            yield from rows_of(table, self.level, count)
            count -= table.size


def summarise(posterior: object, level: Any = 0.9) -> Summary:
    """Summarise a posterior, or a ledger's posterior and its sites, by the name of each number.

    Means, standard deviations and equal-tailed intervals are those of exact marginal laws: normal,
    Student's t (means of a Normal-gamma or Normal-Wishart), inverse gamma (their variances), gamma,
    beta (a Dirichlet's entries), mixtures of these by their distribution functions, and monotone
    maps of them. Entries of matrices and probabilities within a :class:`Transformed` are sampled.
    Each law defines its own: see :meth:`~posterity.families.Distribution.marginals`. Of a ledger
    whose sites differ they are of the population's coefficients, spreads integrated out.

    Args:
        posterior: any family, or a :class:`Ledger`, whose posterior may be improper.
        level: probability of the intervals, between 0 and 1.

    Raises:
        UsageError: for a level that is not between 0 and 1, and for objects of other types.

    Source: bishop2006, appendix B; lindley1956 for the information that a site adds.

    >>> from posterity.families import Gaussian
    >>> q = Gaussian.from_standard([1.0, 2.0], [[1.0, 0.5], [0.5, 4.0]]).named(["age", "dose"])
    >>> for row in summarise(q).rows:
    ...     print(row.name, *(round(x, 2) for x in (row.mean, row.sd, row.low, row.high)))
    age 1.0 1.0 -0.64 2.64
    dose 2.0 2.0 -1.29 5.29
    """
    BETWEEN.check(level=level)
    given: Any = posterior
    posterior = with_random_effects(given)
    ledger = posterior if isinstance(posterior, Ledger) else None
    law = posterior if ledger is None else ledger.total
    if not isinstance(law, Distribution):
        raise UsageError(
            found=f"a {type(posterior).__name__}",
            expected="a posterior or a ledger",
            fix="Pass .posterior of a run or a fusion, or .ledger.",
        )
    known = names_of(law)
    with np.errstate(all="ignore"):
        return Summary(
            family=type(law).__name__,
            level=float(level),
            proper=bool(np.all(law.is_proper())),
            tables=tables_of(posterior, law.tables(known)),
            components=tuple(components_of(law, known)),
            layers=tuple(layers_of(law, known, level)),
            sites=()
            if ledger is None
            else tuple(sites_of(given if takes_long(ledger) else ledger)),
        )


def influences(ledger: Ledger, site: str) -> list[Influence]:
    """Return every number of a ledger's posterior with one site and without it.

    Raises:
        LedgerError: if the ledger holds no factor of the site.

    >>> from posterity.families import Gaussian
    >>> ledger = Ledger(Gaussian.from_standard([0.0], [[1.0]]).named(["age"]))
    >>> ledger = ledger.update("north", Gaussian(np.array([3.0]), np.array([[3.0]])))
    >>> one = influences(ledger, "north")[0]
    >>> one.name, one.mean, one.without, one.by
    ('age', 0.75, 0.0, 1.5)
    """
    ledger.factor(site)
    ledger = with_random_effects(ledger)
    whole = ledger.total
    return list(influences_of(whole, cavity(ledger, site), names_of(whole), None))
