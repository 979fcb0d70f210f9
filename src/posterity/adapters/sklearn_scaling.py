"""Scalings of columns before a linear model of scikit-learn, taken back exactly.

A scaler that moves and stretches each column by itself is a linear change of the coefficients; what
mixes columns, bends them or fills them in is not, and is refused by name.
"""

import dataclasses
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

from posterity.errors import StructureError, UsageError


@dataclasses.dataclass(frozen=True)
class Affine:
    """``u = (x - shift) / scale``, column by column, both (d,)."""

    shift: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, steps: list[Any], size: int) -> "Affine":
        """Of fitted scalers, one after the other.

        Raises:
            StructureError: for a step that is none.
        """
        shift, scale = np.zeros(size), np.ones(size)
        for step in steps:
            own_shift, own_scale = _one(step, size)
            shift, scale = shift + scale * own_shift, scale * own_scale
        return cls(shift, scale)

    @property
    def shifts(self) -> bool:
        """Whether any column is moved."""
        return bool(np.any(self.shift != 0))

    @property
    def trivial(self) -> bool:
        """Whether nothing changes."""
        return not self.shifts and bool(np.all(self.scale == 1))

    def applied(self, x: np.ndarray) -> np.ndarray:
        """Scaled columns (n, d)."""
        return (x - self.shift) / self.scale

    def to_scaled(self, intercept: bool) -> np.ndarray:
        """The matrix that makes scaled coefficients of raw ones, the intercept first.

        >>> Affine(np.array([10.0]), np.array([2.0])).to_scaled(True)
        array([[ 1., 10.],
               [ 0.,  2.]])
        """
        if not intercept:
            return np.diag(self.scale)
        made = np.diag(np.r_[1.0, self.scale])
        made[0, 1:] = self.shift
        return made


def steps_of(estimator: Any) -> tuple[Any, list[Any]]:
    """The last step of a pipeline and those before it; of anything else itself and none."""
    if not isinstance(estimator, Pipeline):
        return estimator, []
    steps = [step for _, step in estimator.steps if step is not None and step != "passthrough"]
    if not steps:
        raise UsageError(
            found="a pipeline without steps",
            expected="scalers and a linear model",
            fix="Pass the fitted pipeline.",
        )
    model, before = steps[-1], []
    for step in steps[:-1]:
        inner, own = steps_of(step)
        before += [*own, inner]
    return model, before


def _one(step: Any, size: int) -> tuple[Any, Any]:
    """Shift and scale of one scaler."""
    zero, one = np.zeros(size), np.ones(size)
    known = (StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler)
    if not isinstance(step, known) or getattr(step, "clip", False):
        clips = " that clips" * bool(getattr(step, "clip", False))
        raise StructureError(
            found=f"a step {type(step).__name__}{clips} before the linear model",
            expected="steps that scale each column by itself: StandardScaler, MinMaxScaler, "
            "MaxAbsScaler, RobustScaler",
            fix="Apply the other steps first, and pass the model with the columns that they made: "
            "pipeline[-1], pipeline[:-1].transform(x).",
        )
    if getattr(step, "scale_", None) is None and getattr(step, "n_features_in_", None) is None:
        raise UsageError(
            found=f"a {type(step).__name__} that is not fitted",
            expected="a fitted pipeline",
            fix="Call fit first.",
        )
    if isinstance(step, MinMaxScaler):  # u = x scale + min
        return -step.min_ / step.scale_, 1 / step.scale_
    centre = getattr(step, "mean_" if isinstance(step, StandardScaler) else "center_", None)
    centred = getattr(step, "with_mean", getattr(step, "with_centering", True))
    scale = step.scale_
    return zero if centre is None or not centred else centre, one if scale is None else scale
