"""Third derivatives of a site's log likelihood, as numbers beside its factor."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np


def turned(third: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Third derivatives in ``u``, where ``z = matrix @ u``."""
    return np.einsum("ijk,ia,jb,kc->abc", third, matrix, matrix, matrix, optimize=True)


def listed(third: np.ndarray, names: Sequence[str]) -> list[float]:
    """The distinct entries, of coefficients in the order of their sorted names, to twelve digits.

    Those of raw columns all but cancel: of one that lies ``r`` deviations from 0 up to ``r³`` fold.
    """
    order = np.argsort(names)
    places = _places(len(order))
    return [float(f"{own:.12g}") for own in third[np.ix_(order, order, order)][places]]


def tensor(numbers: Sequence[float], size: int) -> np.ndarray | None:
    """The third derivatives that :func:`listed` made these numbers of; None of another size."""
    places = _places(size)
    if len(numbers) != len(places[0]):
        return None
    third = np.zeros((size, size, size))
    for own in itertools.permutations(places):
        third[own] = numbers
    return third


def moved(numbers: Sequence[float], matrix: np.ndarray, mine: Any, names: Any) -> list[float]:
    """Third derivatives of a site's coefficients ``mine``, in others: ``z_site = b + matrix z``."""
    third = tensor(numbers, len(mine))
    if third is None:
        return []
    return listed(turned(third, matrix[np.argsort(mine)]), names)


def _places(size: int) -> tuple[Any, ...]:
    triples = list(itertools.combinations_with_replacement(range(size), 3))
    return tuple(np.array(triples).T)
