"""Predictions of regressions given their coefficients, for averages over draws.

Functions accept arrays of NumPy and of JAX: draws ``z`` (m, d) of the coefficients, columns ``x``
(n, k) of the records, and offsets ``shift`` (n,).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import static
from posterity.errors import UsageError
from posterity.families.names import order
from posterity.models import Model
from posterity.status import Progress, ProgressCallback
from posterity.tabular.design import covariates
from posterity.tabular.hazards import baseline_at, hazard_nodes
from posterity.tabular.options import COUNTS, ODDS
from posterity.tabular.recipe import Recipe
from posterity.tabular.regressions import model_of
from posterity.tabular.rows import Design

Parts = dict[str, np.ndarray]
PARTS = ("mean", "entropy", "mutual_information", "variance", "noise_variance", "extrapolates")
"""Parts of a network's or student's prediction, if known."""
PLACES = ("mean", "low", "high", "target_low", "target_high")
VARIANCES = ("variance", "noise_variance")
"""Parts in the unit of the target, and in its square."""
TINY = float(np.finfo(np.float32).tiny)
"""Added to probabilities before taking logarithms, in single precision."""


def bounded(f: Any, most: float = 300.0) -> Any:
    """Return log hazards, or log ratios, bounded so that products of two are finite.

    With ``most`` (70 in float32) survival is zero. Prior draws for intervals without records may
    overflow, and an infinite hazard times a time of zero would be NaN.
    """
    np_ = namespace(f).np
    return np_.minimum(f, min(most, 0.8 * math.log(np_.finfo(f.dtype).max)))


def cumulative(recipe: Recipe, z: Any, entry: np.ndarray, time: np.ndarray) -> Any:
    """Return cumulative baseline hazards (m, n) from entry to time, for draws ``z`` (m, d)."""
    at, spent = hazard_nodes(recipe, entry, time)
    nodes = [(slice(None), *place) for place in np.ndindex(at.shape[1:])]
    exp = namespace(z).np.exp
    return sum(exp(log_hazard(recipe, z, at[here])) * spent[here] for here in nodes)


def log_hazard(recipe: Recipe, z: Any, time: np.ndarray) -> Any:
    """Return log baseline hazards (m, n)."""
    time = np.maximum(time, np.finfo(float).tiny)  # for records of length zero
    return bounded(z[:, : len(recipe.baseline)] @ baseline_at(recipe, time).T)


def log_ratio(recipe: Recipe, z: Any, x: Any) -> Any:
    """Return log hazard ratios (m, n) of records to the baseline."""
    return z[:, len(recipe.baseline) :] @ x.T


def surviving(recipe: Recipe, z: Any, x: Any, shift: Any, time: float) -> Any:
    """Return probabilities (m, n) that the event comes later, for draws of the coefficients."""
    exp = namespace(z).np.exp
    hazard = cumulative(recipe, z, np.zeros(1), np.array([float(time)]))
    return exp(-hazard * exp(bounded(log_ratio(recipe, z, x) + shift)))


def _climbing(recipe: Recipe, z: Any, x: Any, shift: Any) -> Any:
    """Return probabilities (m, n, K) of ordinal levels, for draws of the coefficients."""
    xp = namespace(z, x)
    count = len(recipe.baseline)
    f = (z[:, count:] @ x.T + shift)[..., None] + z[:, None, :count]
    on = xp.special.expit(f)
    off = xp.special.expit(-f)
    one = xp.np.ones_like(on[..., :1])
    come = xp.np.cumprod(xp.np.concatenate([one, on], -1), -1)
    return come * xp.np.concatenate([off, one], -1)


def _exceeding(recipe: Recipe, z: Any, x: Any, shift: Any) -> Any:
    """Return probabilities (m, n, K) of levels of proportional odds, for draws of the coefficients.

    Thresholds of a draw that are not in order are those of a level without probability.
    """
    xp = namespace(z, x)
    count = len(recipe.baseline)
    f = (z[:, count:] @ x.T + shift)[..., None] + z[:, None, :count]
    above = [xp.special.expit(f[..., 0])]
    for place in range(1, count):
        above.append(xp.np.minimum(above[-1], xp.special.expit(f[..., place])))
    one = xp.np.ones_like(above[0])
    return xp.np.stack([a - b for a, b in itertools.pairwise([one, *above, 0 * one])], -1)


def _choosing(recipe: Recipe, z: Any, x: Any, shift: Any) -> Any:
    del shift
    xp = namespace(z, x)
    f = (z.reshape(len(z), len(recipe.levels) - 1, -1) @ x.T).swapaxes(1, 2)
    logits = xp.np.concatenate([0 * f[..., :1], f], -1)
    return xp.np.exp(logits - xp.logsumexp(logits)[..., None])


CHANCES = {"ordinal": _climbing, ODDS: _exceeding, "multinomial": _choosing}
"""Functions that return probabilities of levels, by model."""


class RecipeModel(Model):
    """A recipe's regression as a model whose averaged outputs a student imitates.

    Outputs are log odds for a label; log probabilities for several levels; and for counts and
    positive numbers the expected value and the variance around it.

    ``names`` are those of the coefficients, in the order of ``z``; ``spread`` is the noise variance
    or dispersion. Inputs are the columns that :func:`inputs_of` names.

    Raises:
        UsageError: for survival, and an unknown spread.
        StructureError: for coefficients other than the recipe's.
    """

    recipe: Recipe = static()
    names: tuple[str, ...] = static()
    spread: float | None = static(default=None)

    def __post_init__(self) -> None:
        order(self.names, self.recipe.coefficients(), "the posterior", "its recipe")
        if self.recipe.model == "survival":
            raise UsageError(
                found="a student of survival",
                expected="a posterior whose predictions are labels, levels, counts or numbers",
                fix="Predict from the file directly: posterity predict FILE TABLE --times T,T,...",
            )
        if self.recipe.spread and self.spread is None:
            raise UsageError(
                found=f"a {self.recipe.model} model of unknown {self.recipe.spread}",
                expected="its value, which students predict too",
                fix="Distill the file that fit, fuse or federate wrote, or pass --noise-variance.",
            )

    @property
    def likelihood(self) -> str:
        """Kind of a student's outputs."""
        if self.recipe.model == "logistic":
            return "bernoulli"
        return "categorical" if self.recipe.model in CHANCES else "gaussian"

    @property
    def noise_variance(self) -> float | None:
        """Noise variance of a linear model; None for others, where it depends on the inputs."""
        return self.spread if self.recipe.model == "linear" else None

    def outputs(self, z: Any, x: Any) -> Any:
        """Return outputs (n,) or (n, K) for one draw of the coefficients; moments of counts."""
        recipe = self.recipe
        shift = 0.0
        z = z[np.array([self.names.index(name) for name in recipe.coefficients()])]
        if offset_of(recipe):
            shift = x[:, -1]
            x = x[:, :-1]
        np_ = namespace(z, x).np
        chances = CHANCES.get(recipe.model)
        if chances:
            return np_.log(chances(recipe, z[None], x, shift)[0] + TINY)
        f = x @ z + shift
        if recipe.model in ("linear", "logistic"):
            return f
        mean = np_.exp(f)
        own = mean if recipe.model in COUNTS else 0.0
        return mean, own + (self.spread or 0.0) * mean**2

    def log_likelihood(self, z: Any, data: Any) -> Any:
        """Return the log likelihood of a table's records."""
        return model_of(self.recipe, self.spread).log_likelihood(z, data)


def offset_of(recipe: Recipe) -> str:
    """Return the name of the last input, which is added to the linear predictor; "" if none."""
    exposure = f"log({recipe.exposure})" if recipe.exposure else ""
    return "+".join(filter(None, (recipe.offset, exposure)))


def inputs_of(recipe: Recipe, data: Design | None = None) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of a student's inputs, and those inputs of a table's records (n, k)."""
    names = (*recipe.inputs()[len(recipe.baseline) :], *filter(None, [offset_of(recipe)]))
    if data is None:
        return names, np.empty((0, len(names)))
    x = covariates(recipe, data)
    if offset_of(recipe):
        exposure = np.ones(len(x)) if data.exposure is None else data.exposure
        x = np.column_stack([x, data.shift + np.log(exposure)])
    return names, x


def in_own_unit(recipe: Recipe, parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return places and variances of a linear model's target in its own unit; others unchanged."""
    if recipe.model != "linear":
        return dict(parts)
    target = recipe.target or ""
    scale = recipe.scale.get(target, 1.0)
    center = recipe.center.get(target, 0.0)
    moved = {k: center + scale * parts[k] for k in PLACES if k in parts}
    return {**parts, **moved, **{k: scale**2 * parts[k] for k in VARIANCES if k in parts}}


def called(
    predict: Callable[[Any], Any],
    x: np.ndarray,
    progress: ProgressCallback | None = None,
    *,
    inputs: int = 2**22,
) -> Parts:
    """Return the known parts of predictions of a network or student, made in batches of rows.

    A batch has about this many ``inputs``, 32 MB.
    """
    if not len(x):  # a network needs a row
        one = called(predict, np.zeros((1, *x.shape[1:])))
        return {name: own[:0] for name, own in one.items()}
    parts: dict[str, list[Any]] = {}
    rows = max(inputs // max(math.prod(x.shape[1:]), 1), 1)
    for start in range(0, len(x), rows):
        prediction = predict(x[start : start + rows])
        for name in PARTS:
            value = getattr(prediction, name)
            if value is not None:
                parts.setdefault(name, []).append(np.asarray(value))
        if np.isfinite(prediction.degrees):
            each = np.full_like(prediction.mean, prediction.degrees)
            parts.setdefault("degrees", []).append(each)
        if progress is not None:
            progress(Progress(min(start + rows, len(x)), len(x)))
    return {name: np.concatenate(own) for name, own in parts.items()}


def by_student(
    predict: Callable[[Any], Any],
    recipe: Recipe,
    data: Design,
    names: Sequence[str],
    progress: ProgressCallback | None = None,
) -> Parts:
    """Return a student's predictions of a table's records, in the target's own unit.

    ``names`` are those of its inputs, empty if its file has none.
    """
    own, x = inputs_of(recipe, data)
    x = x[:, order(own, names or own, "the recipe", "the student")]
    return in_own_unit(recipe, called(predict, x, progress))


def columns_of(parts: Mapping[str, np.ndarray]) -> Parts:
    """Return columns with one number per record: p0, p1 of classes, mean_0, mean_1 of values."""
    table = {}
    for name, value in parts.items():
        label, joint = ("p", "") if name == "mean" and "entropy" in parts else (name, "_")
        flat = value.reshape(len(value), -1)
        for place, column in enumerate(flat.T):
            table[f"{label}{joint}{place}" if flat.shape[1] > 1 else label] = column
    return table
