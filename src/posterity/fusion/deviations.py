"""Deviations between two laws of the same numbers, with the chance of as large ones.

Each law is what some records say of a number. If both have records of one truth, the difference of
their means, over the root of the summed variances, is about standard normal. Of laws that are not
normal, the tail probability of each beyond the other's mean takes its place (presanis2013). Full
Gaussians are also compared jointly.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.families import Distribution, ExponentialFamily
from posterity.families.marginals import Marginal

Array = np.ndarray
MOST = 2**27  # Largest number of multiplications for a joint comparison


class Deviations(NamedTuple):
    """Squared deviations (n, c) of n pairs of laws in c numbers, about chi-squared with ``freedom``
    (c,) degrees. The last one is joint if laws are full Gaussians.

    ``shares`` (n, c) are the shares of the other law in the summed variance, inverted: if each law
    is compared with all others of a group, squares times shares add up to Cochran's statistic,
    whose degrees of freedom are the summed shares.
    """

    squares: Float[Array, "n c"]
    shares: Float[Array, "n c"]
    freedom: Float[Array, " c"]

    @property
    def nats(self) -> Float[Array, "n c"]:
        """The negative logarithm of the chance of deviations as large as each."""
        return nats(self.squares, self.freedom)

    @property
    def worst(self) -> Float[Array, " n"]:
        """The nats of each pair's largest deviation, less the log of the number of numbers."""
        return self.nats.max(1, initial=0.0) - np.log(max(len(self.freedom), 1))

    def beyond(self, chance: float) -> Int[Array, " some"]:
        """Return the pairs of which some deviation has less than a chance, over all numbers."""
        limit = scipy.special.chdtri(self.freedom, chance / max(len(self.freedom), 1))
        return np.flatnonzero((self.squares > limit).any(1))

    def take(self, rows: Int[Array, " some"]) -> "Deviations":
        """Return the deviations of some of the pairs."""
        return Deviations(self.squares[rows], self.shares[rows], self.freedom)

    def summed(self) -> tuple[Float[Array, " c"], Float[Array, " c"]]:
        """Return Cochran's statistic of each number, and its degrees of freedom."""
        return (self.squares * self.shares).sum(0), self.shares.sum(0) * self.freedom


def nats(squares: Any, freedom: Any) -> Any:
    """Return the negative logarithm of the chance that chi-squared variables exceed ``squares``."""
    half = np.asarray(freedom) / 2
    with np.errstate(all="ignore"):
        found = -np.log(scipy.special.gammaincc(half, squares / 2))
        far = squares / 2 - (half - 1) * np.log(squares / 2) + scipy.special.gammaln(half)
    return np.where(np.isfinite(found), found, np.where(half > 0, far, 0.0))


def deviate(nats: Any) -> Any:
    """Return the standard normal deviate of which both tails have a chance of ``exp(-nats)``."""
    return -scipy.special.ndtri_exp(-np.log(2.0) - np.asarray(nats, float))


def compared(
    members: Any, others: Any, alike: tuple[Any, Any] | None = None, among: int = 0
) -> Deviations:
    """Return the deviations of laws (n,) from others.

    ``alike`` are the laws that each would be if its records were like those of the other. The joint
    comparison is left out if it takes too long for all ``among`` laws.
    """
    number = members.batch_shape[0]
    squares = [np.zeros((number, 0))]
    shares = [np.zeros((number, 0))]
    mine = laws_of(members)
    theirs = laws_of(others)
    here, there = map(laws_of, alike) if alike else (theirs, mine)
    for one, other, at, back in zip(mine, theirs, here, there, strict=True):
        own = (one.sd**2).reshape(number, -1)
        rest = (other.sd**2).reshape(number, -1)
        share = own / (own + rest)
        shares.append(np.where(np.isfinite(share), share, 0.0))
        squares.append(apart(one, other, at.mean, back.mean).reshape(number, -1) ** 2)
    freedom = np.ones(sum(own.shape[1] for own in squares))
    full = members.gaussian and not members.diagonal
    if full and max(among, number) * members.own_size**3 <= MOST:
        squares.append(jointly(members, others)[:, None])
        shares.append(shares[-1].mean(1, keepdims=True))
        freedom = np.append(freedom, members.own_size)
    return Deviations(np.hstack(squares), np.hstack(shares), freedom)


def in_closed_form(law: ExponentialFamily) -> bool:
    """Return whether marginals need neither draws nor quadrature."""
    parts = law.independent_blocks()
    if parts:
        return all(map(in_closed_form, parts.values()))
    return type(law).marginals is not Distribution.marginals


def laws_of(law: Any) -> list[Marginal]:
    """Return the marginals of laws (n,) and their blocks; NaN where a law is not proper."""
    try:  # checking that all are proper takes longer than their marginals
        return [*_marginals(law)]
    except np.linalg.LinAlgError:
        return [table.law for table in law.tables()]


def _marginals(law: Any) -> Iterator[Marginal]:
    parts = law.independent_blocks()
    if not parts:
        yield from law.marginals()
    for part in parts.values():
        yield from _marginals(part)


def apart(
    one: Marginal, other: Marginal, here: Any = None, there: Any = None, *, roughly: float = 1.5
) -> Array:
    """Return the deviations between the numbers of two laws.

    ``here`` and ``there`` are the means that are expected of them, by default each other's.
    Deviations are zero where nothing is known. Up to ``roughly`` so many deviations of the means
    tails are taken to be those of normal laws.
    """
    sides = [
        (one, other.mean if here is None else here),
        (other, one.mean if there is None else there),
    ]
    with np.errstate(all="ignore"):
        first, second = (np.abs(law.mean - x) / law.sd for law, x in sides)
        found = 1 / np.hypot(1 / first, 1 / second)
        found = np.where(np.isfinite(found), found, 0.0)
        look = np.nonzero(found > roughly)
        if len(look[0]):
            tails = [_deviate(law.picked(look), x[look]) for law, x in sides]
            found[look] = 1 / np.hypot(1 / tails[0], 1 / tails[1])
    return np.where(np.isfinite(found), found, 0.0)


def _deviate(law: Marginal, x: Array) -> Array:
    """Return the normal deviates of laws' probabilities up to ``x``, or, where these are zero or
    one in floating point, the distances from the means in standard deviations.
    """
    deviate = np.abs(scipy.special.ndtri(law.cdf(x)))
    return np.where(np.isfinite(deviate), deviate, np.abs(law.mean - x) / law.sd)


def jointly(members: Any, others: Any) -> Float[Array, " n"]:
    """Return the squared distance of the means of full Gaussians (n,), in their summed
    covariances; zero where that is not known.
    """
    one = np.asarray(members.precision)
    other = np.asarray(others.precision)
    gap = np.asarray(members.mean - others.mean)[..., None]
    scale = np.sqrt(np.diagonal(one + other, axis1=-2, axis2=-1))[..., None]
    both = (one + other) / scale / np.swapaxes(scale, -1, -2)
    proper = np.isfinite(both).all((-2, -1))
    both[~proper] = np.eye(members.own_size)
    solved = np.linalg.solve(both, other @ gap / scale)
    squares = ((one @ gap / scale) * solved).sum((-2, -1))
    return np.where(proper & np.isfinite(squares), np.maximum(squares, 0.0), 0.0)
