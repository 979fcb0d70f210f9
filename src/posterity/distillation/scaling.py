"""Units: inputs and outputs of a student as its network takes and gives them, of order one.

A network of weights of order one, trained by steps of a fixed size, learns nothing of a column of
years, whose mean is a thousand times what differs in it, nor of one in metres where all is
nanometres. Such columns are rescaled before the network; the student carries how, so that whoever
uses it never sees it.
"""

import dataclasses
from typing import Any, Self

import numpy as np

from posterity.arrays.namespace import is_jax
from posterity.arrays.typing import Float, Real
from posterity.distillation.pytrees import leaves, rebuilt
from posterity.errors import ParameterError, StructureError
from posterity.models.data import real_numbers

FAR = 3.0
"""Standard deviations between zero and the mean of a column from which on it is off."""
LARGE = 10.0
"""Standard deviation of a column above which it is off; also how far, in scales, one reaches."""
SMALL = 0.1
"""Largest distance from its mean below which a column is off, where it is not a rare event's."""


@leaves("x_shift", "x_scale", "y_shift", "y_scale")
@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """``(x - x_shift) / x_scale`` goes into the network, ``y_shift + y_scale out`` comes from it.

    Inputs are those of one record, flattened: arrays are of shapes (d,) and (k,), or None where
    nothing is to be done. Kept, and applied to NumPy arrays, in float64, because a float32 has no
    digits left of seconds since 1970.

    >>> Scaling(x_shift=np.array([2000.0]), x_scale=np.array([10.0])).inputs(np.array([[2020.0]]))
    array([[2.]], dtype=float32)

    Raises:
        StructureError: if a shift is not shaped as its scale, or there is one of them alone.
        ParameterError: for what is not finite, and scales that are not positive.
    """

    x_shift: np.ndarray | None = None
    x_scale: np.ndarray | None = None
    y_shift: np.ndarray | None = None
    y_scale: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("x", "y"):
            parts = {n: getattr(self, n) for n in (f"{name}_shift", f"{name}_scale")}
            if all(part is None for part in parts.values()):
                continue
            for n, part in parts.items():
                object.__setattr__(self, n, np.array(part, np.float64))
            shift, scale = (getattr(self, n) for n in parts)
            if shift.shape != scale.shape or shift.ndim != 1:
                raise StructureError(
                    found=f"{name}_shift of shape {shift.shape}, {name}_scale of {scale.shape}",
                    expected="both, with one number a column of each",
                    fix="Flatten what is known of one record.",
                )
            if not (np.isfinite(shift).all() and np.isfinite(scale).all() and (scale > 0).all()):
                raise ParameterError(
                    found=f"{name}_shift {shift} and {name}_scale {scale}",
                    expected="finite numbers, positive scales",
                    fix="Leave columns alone whose scale is not known: scale 1.",
                )

    @classmethod
    def of_inputs(cls, x: Any) -> Self:
        """The scaling that brings those columns of ``x`` (n, …) to order one that are not already.

        A column is off if its mean is more than three standard deviations from zero, if its
        standard deviation is above ten, or if it never leaves its mean by a tenth. From one that
        is off its mean is taken, and it is divided by the greater of its standard deviation and a
        tenth of the furthest it leaves its mean, so that rare large values stay below ten. A
        constant column, of which nothing is known but its value, becomes zero, and keeps its units
        unless a tenth of that value is above one. All others are left exactly as they are: pixels
        in [0, 1], standardised columns, indicators, small counts.

        Of a column that has one and the same value in more than half of the rows (pixels,
        indicators, counts of what is rare) a small reach says only that little of it was seen:
        a dim pixel at the border of an image may be bright next time. Such a one is only made
        smaller, never larger. Images, which have more axes, are in the same units everywhere:
        all their pixels of a channel are one column.

        >>> years = np.linspace(1990, 2020, 50)
        >>> scaling = Scaling.of_inputs(np.stack([years, years * 0 + 1, years / 2000 - 1], 1))
        >>> scaling.x_shift.round().tolist(), scaling.x_scale.round(3).tolist()
        ([2005.0, 1.0, 0.0], [8.835, 1.0, 0.004])

        Raises:
            StructureError: if there are no rows or no axis of columns.
            ParameterError: for NaN or infinity.
        """
        x = np.asarray(real_numbers(x, "the inputs"), np.float64)
        shift, scale = _columns(x.reshape(-1, x.shape[-1] if x.ndim > 2 else x[0].size))
        if not shift.any() and (scale == 1).all():
            return cls()
        image = x.shape[1:]
        shift, scale = (np.broadcast_to(part, image).reshape(-1) for part in (shift, scale))
        return cls(shift, scale)

    @staticmethod
    def precision(shift: np.ndarray | None, scale: np.ndarray | None) -> type[np.floating]:
        """float32 where it holds such columns to 2e-5 of their scale, else float64."""
        if shift is None or scale is None:
            return np.float32
        away = np.abs(shift) <= scale * 2.0**8
        return np.float32 if (away & (np.abs(np.log10(scale)) < 12)).all() else np.float64

    def with_outputs(self, y_shift: Any, y_scale: Any) -> Self:
        """The same of inputs; of outputs these, which may be traced and are not checked."""
        return rebuilt(type(self), {**vars(self), "y_shift": y_shift, "y_scale": y_scale})

    def inputs(self, x: Float[Real, "n ..."] | Any) -> Float[Real, "n ..."]:
        """The inputs of the network, in single precision, shaped as ``x``.

        An array of JAX is computed on in the precision that it has.
        """
        if not is_jax(x):
            x = np.asarray(x)
            if self.x_shift is not None:
                x = self._rescaled(np.asarray(x, np.float64))
            return x.astype(np.float32)
        return x if self.x_shift is None else self._rescaled(x)

    def _rescaled(self, x: Any) -> Any:
        assert self.x_shift is not None and self.x_scale is not None
        shift, scale = (part.reshape(x.shape[1:]) for part in (self.x_shift, self.x_scale))
        if is_jax(x):
            shift, scale = shift.astype(x.dtype), scale.astype(x.dtype)
        return (x - shift) / scale


def _columns(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The shift and the scale of each column of a table."""
    # About the first row: the mean of large numbers that hardly differ then keeps its digits.
    away = x - x[0]
    mean = x[0] + away.mean(0)
    centred = away - away.mean(0)
    reach, constant = np.abs(centred).max(0), (away == 0).all(0)
    safe = np.where(constant, 1, reach)  # by which squares neither overflow nor vanish
    spread = reach * (centred / safe).std(0)
    rare = (x == np.median(x, 0)).mean(0) > 0.5
    far = np.abs(mean) > FAR * np.maximum(spread, np.finfo(np.float64).tiny)
    large = (spread > LARGE) | (reach > LARGE * LARGE)
    small = (reach < SMALL) & ~rare
    off = far | large | small
    scale = np.maximum(spread, reach / LARGE)
    scale = np.where(rare, np.maximum(scale, 1), scale)
    mean = np.where(constant, x[0], mean)
    scale = np.where(constant, np.maximum(1, np.abs(mean) / LARGE), scale)
    return np.where(off | constant, mean, 0), np.where(off | constant, scale, 1)
