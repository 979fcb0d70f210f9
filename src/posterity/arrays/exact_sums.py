"""Exact sums of float64 numbers of any size, which are rounded once when they are read.

A sum is stored as an expansion (shewchuk1997), an unevaluated sum of *layers*: the first layer is
the sum rounded to nearest, the second is the remainder rounded to nearest, and so on until the
remainder is zero. Equal sums therefore have equal layers, to the last bit, in whatever order their
terms were added. Most sums need two layers.
"""

import itertools
from fractions import Fraction

import numpy as np

from posterity.arrays.leaves import frozen
from posterity.arrays.typing import Float
from posterity.errors import ParameterError

LARGE = 2.0**960
"""The largest term for which no intermediate result overflows, with up to 2^50 terms."""


def exact_sum(terms: Float[np.ndarray, "terms size"]) -> Float[np.ndarray, "layers size"]:
    """Return the layers of the sums over the rows of ``terms``, which are finite float64.

    Raises:
        ParameterError: if a term is not finite, or a sum is beyond the range of float64.

    Source: shewchuk1997.

    >>> exact_sum(np.array([[1.0], [1e100], [2.0**-60], [-1e100]])).tolist() == [[1.0], [2.0**-60]]
    True
    """
    terms = np.asarray(terms, np.float64)
    if not terms.size:
        return frozen(np.zeros((1, terms.shape[1])))
    odd = ~(np.abs(terms).max(0, initial=0.0) <= LARGE)
    layers = condensed(np.where(odd, 0.0, terms) if odd.any() else terms)
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


def condensed(terms: np.ndarray, few: int = 8) -> np.ndarray:
    """Return few rows with the same sums as many; all rows, if a term is above ``LARGE``, or if
    they are no more than ``few``, which are added one by one in less time.

    Each row is the exact sum of those parts of the terms that are multiples of a power of two; the
    remainders go to the next row.

    Source: rump2008, section 3.
    """
    if len(terms) <= few or not np.abs(terms).max(initial=0.0) <= LARGE:
        return terms
    rest = np.array(terms)
    result = []
    while (largest := np.abs(rest).max(0)).any():
        exponents = np.frexp(largest)[1] + len(terms).bit_length() + 1
        unit = np.ldexp(1.0, exponents)
        high = unit + rest
        high -= unit
        rest -= high
        result.append(high.sum(0))
    return np.array(result) if result else rest[:1]


def _swept(layers: np.ndarray) -> np.ndarray:
    """Return rows with the same sums, after one sweep of error-free sums from last to first."""
    swept = np.empty_like(layers)
    total = layers[-1]
    for k in range(len(layers) - 1, 0, -1):
        total, swept[k] = _two_sum(layers[k - 1], total)
    swept[0] = total
    return swept


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``a + b`` rounded and its rounding error; their sum is exact (shewchuk1997)."""
    total = a + b
    others = total - a
    return total, (a - (total - others)) + (b - others)


def _unsettled(layers: np.ndarray) -> np.ndarray:
    """Return the columns in which a layer is not yet the rounded sum of itself and the rest."""
    top = layers[:-1]
    low = layers[1:]
    wrong = (top + low != top).any(0)
    if len(layers) > 2 and layers[2].any():
        # Halfway between two numbers, it is what lies below that decides.
        twice = 2 * low[:-1]
        halfway = (top[:-1] + twice) - top[:-1] == twice
        wrong |= (halfway & (np.sign(low[:-1]) * np.sign(low[1:]) > 0)).any(0)
    return wrong


def _trimmed(layers: np.ndarray) -> np.ndarray:
    """Remove rows of zeros at the end; the first row stays."""
    while len(layers) > 1 and not layers[-1].any():
        layers = layers[:-1]
    return layers


# --- what is rare: ranges beyond LARGE, and ties of three layers ---------------------------------


def _by_fractions(terms: np.ndarray) -> np.ndarray:
    """Return the layers of each column by rational arithmetic, which is slow."""
    if not np.isfinite(terms).all():
        raise _beyond("NaN or infinity among numbers to be added")
    columns = map(_layers, terms.T.tolist())
    return np.array(list(itertools.zip_longest(*columns, fillvalue=0.0)))


def _layers(numbers: list[float]) -> list[float]:
    total = sum(map(Fraction, numbers), Fraction())
    layers = []
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
        found=found, expected="finite natural parameters, and sums up to 1.8e308 in size"
    )
