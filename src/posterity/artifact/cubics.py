"""Derivatives of a site's log likelihood, as numbers beside its factor.

Those of the third order show how far the likelihood is from a Gaussian, and those of its gradient
and curvature by the log dispersion what another dispersion than the site's own would change.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Dispersed(NamedTuple):
    """The change of a log likelihood, and of its maximum, with the log of the dispersion.

    ``bend`` is minus the second derivative of the adjusted profile likelihood at its maximum;
    ``slope`` (d,) and ``precision`` (d, d) are the derivatives of the expected gradient and of
    minus the expected Hessian.
    """

    bend: float
    slope: np.ndarray
    precision: np.ndarray

    def listed(self, names: Sequence[str]) -> list[float]:
        """The numbers that :meth:`of` takes apart again."""
        return [self.bend, *listed(self.slope, names), *listed(self.precision, names)]

    @classmethod
    def of(cls, numbers: Sequence[float], size: int) -> "Dispersed | None":
        """Return what :meth:`listed` wrote of ``size`` coefficients; None of another number."""
        bend, slope, rest = numbers[:1], numbers[1 : size + 1], numbers[size + 1 :]
        precision = tensor(rest, size, 2)
        return None if precision is None else cls(bend[0], np.array(slope), precision)


def turned(derivatives: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Derivatives of any order in ``u``, where ``z = matrix @ u``."""
    for axis in range(derivatives.ndim):
        derivatives = np.moveaxis(np.tensordot(derivatives, matrix, (axis, 0)), -1, axis)
    return derivatives


def listed(derivatives: np.ndarray, names: Sequence[str]) -> list[float]:
    """The distinct entries, of coefficients in the order of their sorted names, to twelve digits.

    Those of raw columns all but cancel: of one that lies ``r`` deviations from 0 up to ``r³`` fold.
    """
    order = [np.argsort(names)] * derivatives.ndim
    places = _places(len(names), derivatives.ndim)
    return [float(f"{own:.12g}") for own in derivatives[np.ix_(*order)][places]]


def tensor(numbers: Sequence[float], size: int, order: int = 3) -> np.ndarray | None:
    """The derivatives that :func:`listed` made these numbers of; None of another size."""
    places = _places(size, order)
    if len(numbers) != len(places[0]):
        return None
    derivatives = np.zeros((size,) * order)
    for own in itertools.permutations(places):
        derivatives[own] = numbers
    return derivatives


def moved(numbers: Sequence[float], matrix: np.ndarray, mine: Any, names: Any) -> list[float]:
    """Third derivatives of a site's coefficients ``mine``, in others: ``z_site = b + matrix z``."""
    third = tensor(numbers, len(mine))
    if third is None:
        return []
    return listed(turned(third, matrix[np.argsort(mine)]), names)


def moved_dispersed(
    numbers: Sequence[float], matrix: np.ndarray, mine: Any, names: Any
) -> list[float]:
    """The same of :class:`Dispersed`."""
    own = Dispersed.of(numbers, len(mine))
    if own is None:
        return []
    slope, precision = (turned(each, matrix[np.argsort(mine)]) for each in own[1:])
    return Dispersed(own.bend, slope, precision).listed(names)


def _places(size: int, order: int) -> tuple[Any, ...]:
    places = list(itertools.combinations_with_replacement(range(size), order))
    return tuple(np.array(places, int).reshape(-1, order).T)
