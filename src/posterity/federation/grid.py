"""A power-of-two grid on which float64 addition is exact, so that subtraction leaves nothing.

A token carries only a sum. If every contribution is a multiple of one power of two and their
sizes add up to at most ``2^53`` of these, all sums of any of them, in any order, are exact: a sum
from which a site was taken out equals, to the last bit, one that it never entered.
"""

import dataclasses
import math
from typing import Any, TypeVar

import jax
import numpy as np

from posterity.arguments import Constraint
from posterity.errors import ParameterError
from posterity.families import ExponentialFamily

Family = TypeVar("Family", bound=ExponentialFamily)

DIGITS = 53
"""Bits of a float64's significand."""
REACH = 2.0**30
"""How much larger than the prior's parameters sums may grow, unless the caller says more."""
ABOVE_ONE = Constraint("a number above 1, 2**30, say", lambda x: 1 < x < math.inf)


@dataclasses.dataclass(frozen=True)
class Grid:
    """One exponent a leaf: its values are multiples of ``2**exponent``.

    >>> from posterity.families import Gamma
    >>> prior = Gamma.from_standard(shape=2.0, rate=1.0)
    >>> grid = Grid.of(prior)
    >>> a, b = grid.round(Gamma(0.1, 0.2)), grid.round(Gamma(0.3, 0.7))
    >>> float(((prior + a) + b - a).rate) == float((prior + b).rate)
    True
    """

    exponents: tuple[int, ...]

    @classmethod
    def of(cls, prior: ExponentialFamily, reach: float = REACH) -> "Grid":
        """The finest grid that holds sums up to ``reach`` times the prior's largest parameter.

        A leaf of the prior that is zero everywhere counts as one.

        Raises:
            UsageError: if ``reach`` is not a number above one.
        """
        ABOVE_ONE.check(reach=reach)
        largest = (float(np.abs(leaf).max(initial=0.0)) or 1.0 for leaf in jax.tree.leaves(prior))
        return cls(tuple(_ceil_log2(m * reach) - DIGITS for m in largest))

    def round(self, factor: Family) -> Family:
        """The nearest point of the grid, as NumPy float64."""
        leaves, tree = jax.tree.flatten(factor)
        pairs = zip(leaves, self.exponents, strict=True)
        return jax.tree.unflatten(tree, [_rounded(leaf, exponent) for leaf, exponent in pairs])

    def check(self, load: ExponentialFamily, place: str) -> None:
        """Raise a ParameterError if sizes add up to more than the range of exact additions.

        ``load`` is the sum of the :func:`magnitudes` of the prior and all factors: these may
        cancel, and still pass through numbers that are rounded.
        """
        for leaf, exponent in zip(jax.tree.leaves(load), self.exponents, strict=True):
            limit = math.ldexp(1.0, exponent + DIGITS)
            largest = float(np.abs(leaf).max(initial=0.0))
            if not largest <= limit:
                raise ParameterError(
                    found=f"natural parameters whose sizes add up to {largest:.3g} in {place}",
                    expected=f"at most {limit:.3g}, within which sums on the grid are exact",
                    fix="Scale the data, or pass a larger `reach` to `federate`.",
                )


def magnitudes(factor: Family) -> Family:
    """The absolute values of all natural parameters."""
    return jax.tree.map(lambda leaf: np.asarray(np.abs(leaf)), factor)


def _ceil_log2(number: float) -> int:
    fraction, exponent = math.frexp(number)  # exact, as the logarithm is not
    return exponent - (fraction == 0.5)


def _rounded(leaf: Any, exponent: int) -> np.ndarray:
    with np.errstate(over="ignore"):  # infinity is what `check_finite` and `check` look for
        steps = np.rint(np.ldexp(np.asarray(leaf, np.float64), -exponent))
    return np.asarray(np.ldexp(steps, exponent) + 0.0)  # no zero has a sign
