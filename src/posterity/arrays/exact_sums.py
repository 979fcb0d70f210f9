"""Sums of float64 numbers that are exact, whatever their sizes, and rounded once when read.

A sum is held as an expansion (shewchuk1997), an unevaluated sum of *layers*: the first is the sum
rounded to nearest, the next what that leaves, rounded to nearest, and so on until nothing is left.
So equal sums have equal layers, to the last bit, in whatever order they came about. Two layers
are the rule; there are as many as the numbers need.
"""

import itertools
from fractions import Fraction

import numpy as np

from posterity.arrays.leaves import frozen
from posterity.arrays.typing import Float
from posterity.errors import ParameterError

FEW = 8
"""Terms that are added up one by one; more are condensed first."""
LARGE = 2.0**960
"""Below this no step on the way overflows, were there 2^50 terms."""


def exact_sum(terms: Float[np.ndarray, "terms size"]) -> Float[np.ndarray, "layers size"]:
    """The layers of the sums over the rows of ``terms``, finite float64; a ParameterError if a term
    is not finite, or the sum is beyond the range of float64.

    Source: shewchuk1997.

    >>> exact_sum(np.array([[1.0], [1e100], [2.0**-60], [-1e100]])).tolist() == [[1.0], [2.0**-60]]
    True
    """
    terms = np.asarray(terms, np.float64)
    if not terms.size:
        return frozen(np.zeros((1, terms.shape[1])))
    odd = ~(np.abs(terms).max(0, initial=0.0) <= LARGE)
    layers = np.where(odd, 0.0, terms) if odd.any() else terms
    if len(layers) > FEW:
        layers = condensed(layers)
    unsettled = ~odd
    for _ in range(0, len(layers), 2):
        if not unsettled.any():  # as after two sweeps, nearly always
            break
        layers = _trimmed(_swept(_swept(layers)))
        unsettled = _unsettled(layers)
    odd |= unsettled
    if odd.any():
        layers = _trimmed(_replaced(layers, odd, _by_fractions(terms[:, odd])))
    return frozen(layers + 0.0)  # no zero has a sign


def condensed(terms: np.ndarray) -> np.ndarray:
    """Few rows with the sums of many; as many, if one is above ``LARGE``.

    Each row adds up what the terms hold above some power of two, which is exact; what they hold
    below it remains.

    Source: rump2008, section 3.
    """
    if not np.abs(terms).max(initial=0.0) <= LARGE:
        return terms
    rest, result = np.array(terms), []
    while (largest := np.abs(rest).max(0)).any():
        exponents = np.frexp(largest)[1] + len(terms).bit_length() + 1
        unit = np.ldexp(1.0, exponents)
        high = unit + rest
        high -= unit
        rest -= high
        result.append(high.sum(0))
    return np.array(result) if result else rest[:1]


def _swept(layers: np.ndarray) -> np.ndarray:
    """The same sums: from the last row to the first, each takes from the next what it can hold."""
    swept, total = np.empty_like(layers), layers[-1]
    for k in range(len(layers) - 1, 0, -1):
        total, swept[k] = _two_sum(layers[k - 1], total)
    swept[0] = total
    return swept


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``a + b`` rounded, and the error of that: together exactly ``a + b`` (shewchuk1997)."""
    total = a + b
    others = total - a
    return total, (a - (total - others)) + (b - others)


def _unsettled(layers: np.ndarray) -> np.ndarray:
    """The columns in which a layer is not the sum of itself and all below, rounded."""
    top, low = layers[:-1], layers[1:]
    wrong = (top + low != top).any(0)
    if len(layers) > 2 and layers[2].any():
        # Halfway between two numbers, it is what lies below that decides.
        twice = 2 * low[:-1]
        halfway = (top[:-1] + twice) - top[:-1] == twice
        wrong |= (halfway & (np.sign(low[:-1]) * np.sign(low[1:]) > 0)).any(0)
    return wrong


def _trimmed(layers: np.ndarray) -> np.ndarray:
    """Without the rows of zeros at the end, but for the first row."""
    while len(layers) > 1 and not layers[-1].any():
        layers = layers[:-1]
    return layers


# --- what is rare: ranges beyond LARGE, and ties of three layers ---------------------------------


def _by_fractions(terms: np.ndarray) -> np.ndarray:
    """The layers of each column, slowly and in any range."""
    if not np.isfinite(terms).all():
        raise _beyond("NaN or infinity among numbers to be added")
    columns = map(_layers, terms.T.tolist())
    return np.array(list(itertools.zip_longest(*columns, fillvalue=0.0)))


def _layers(numbers: list[float]) -> list[float]:
    total, layers = sum(map(Fraction, numbers), Fraction()), []
    try:
        while total:
            layers.append(float(total))  # which rounds to nearest
            total -= Fraction(layers[-1])
    except OverflowError:
        raise _beyond("a sum beyond the range of float64") from None
    return layers or [0.0]


def _replaced(layers: np.ndarray, where: np.ndarray, others: np.ndarray) -> np.ndarray:
    out = np.zeros((max(len(layers), len(others)), layers.shape[1]))
    out[: len(layers)] = layers
    out[:, where] = 0.0
    out[: len(others), where] = others
    return out


def _beyond(found: str) -> ParameterError:
    return ParameterError(
        found=found,
        expected="finite natural parameters, and sums up to 1.8e308 in size",
        fix="Scale the data, or check that the fits which made them converged.",
    )
