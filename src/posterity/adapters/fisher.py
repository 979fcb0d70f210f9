"""Laplace approximations of trained networks, by the Fisher information of their likelihood.

The approximation's precision is the prior's precision plus the Fisher information of the data
(mackay1992). The default information is the model's, ``Σ Jᵀ H J``, with ``J`` the Jacobian of the
outputs and ``H`` the curvature of the likelihood in the outputs, in closed form over all classes.
It equals the generalised Gauss-Newton matrix. The empirical one uses observed labels instead; it
differs unless the model is correct and the data are many (kunstner2019).

A diagonal law is a :class:`Product` with one :class:`DiagonalGaussian` per tensor, whose entries
are named ``[0,3]``. A full law is a :class:`Gaussian` with names ``layer.weight[0,3]``. Above 5,000
weights entries have no names. The factor of a ledger is the likelihood alone, to second order about
the weights θ: precision F and slope ``Fθ + g`` with ``g`` the gradient of the log likelihood.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Required, TypedDict

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax, softmax

from posterity.adapters.laplace import check_mode
from posterity.adapters.shared import Laws, numbers
from posterity.arguments import POSITIVE, Constraint, one_of
from posterity.arrays.typing import KeyArray, Shape
from posterity.errors import ConvergenceWarning, StructureError, UsageError
from posterity.families import DiagonalGaussian, Distribution, Gaussian, Product
from posterity.families.names import some
from posterity.models.data import check_column, labels

Array = np.ndarray
CLASSIFICATION = "classification"
REGRESSION = "regression"
DIAGONAL = "diagonal"
FULL = "full"
MODEL = "model"
EMPIRICAL = "empirical"
MEAN = "mean"
VARIANCE = "variance"
NOISELESS = Constraint("None for a classification, as labels have no noise", lambda it: it is None)
UNTRAINED = (
    "Pass the data and the prior_precision that it was trained with (with a weight decay of w "
    "beside the mean cross entropy of n records n w, beside the mean squared error "
    "n w / (2 noise_variance)), or train on, without dropout and to a small gradient."
)


class Slopes(NamedTuple):
    """The Jacobian (n, K, p) of n records' outputs (n, K) by a tensor of p weights.

    It is ``outputs`` (n, K, p), or, of a linear layer that a record passes once, their product:
    the Jacobian ``outputs`` (n, K, w) by what the layer gives, and ``inputs`` (n, d), what it is
    given, with p = w d. Squares of a product are products of squares. The tensor has the shape
    (w, d), or (d, w) with ``inputs_first``.
    """

    outputs: Array
    inputs: Array | None = None
    inputs_first: bool = False

    def whole(self) -> Array:
        """Return the Jacobian (n, K, p)."""
        if self.inputs is None:
            return self.outputs
        return self._flat(self.outputs[..., None] * self.inputs[:, None, None])

    def total(self, slopes: Array) -> Array:
        """Return the gradient (p,) of a sum over records, by slopes (n, K) in the outputs."""
        return self._over_records(np.einsum("nk,nkw->nw", slopes, self.outputs), self.inputs)

    def squares(self, rows: Array) -> Array:
        """Return the sum (p,) of the squares of ``rows @ J`` for rows (n, r, K) in the outputs."""
        inputs = None if self.inputs is None else np.square(self.inputs)
        return self._over_records(np.square(rows @ self.outputs).sum(1), inputs)

    def _over_records(self, left: Array, inputs: Array | None) -> Array:
        return left.sum(0) if inputs is None else self._flat(left.T @ inputs)

    def _flat(self, product: Array) -> Array:
        """Return entries (..., w, d) in the order of the tensor's."""
        product = product.swapaxes(-1, -2) if self.inputs_first else product
        return product.reshape(*product.shape[:-2], -1)


Jacobians = Callable[[slice], tuple[Array, Mapping[str, Slopes]]]
"""Function of a slice of records to outputs (n, K), and their Jacobian by each tensor."""


class Options(TypedDict, total=False):
    """Keyword arguments of ``from_module`` and ``to_ledger``; see :class:`Task`."""

    likelihood: Required[str]
    prior_precision: Required[float | int]
    noise_variance: float | int | None
    curvature: str
    fisher: str
    only: str | Iterable[str] | None


@dataclasses.dataclass(frozen=True)
class Task:
    """Settings of the curvature: keyword arguments of ``from_module`` and ``to_ledger``.

    Attributes:
        likelihood: ``"classification"`` or ``"regression"``.
        prior_precision: precision of each weight's prior, whose mean is zero. An optimiser of the
            *mean* cross entropy of n records with weight decay w corresponds to ``n w``, and of the
            mean squared error to ``n w / (2 noise_variance)``.
        noise_variance: noise variance of a regression; by default the mean squared residual.
        curvature: ``"diagonal"``, or ``"full"`` for at most a few thousand weights.
        fisher: ``"model"``, the default, is exact over all classes and equals the generalised
            Gauss-Newton matrix; ``"empirical"`` uses squares of observed gradients.
        only: names of tensors, or of modules that hold them; the others are taken as known.

    Other values, and a noise variance for a classification, raise a UsageError.
    """

    likelihood: str
    prior_precision: float | int
    noise_variance: float | int | None = None
    curvature: str = DIAGONAL
    fisher: str = MODEL
    only: str | Iterable[str] | None = None

    def __post_init__(self) -> None:
        one_of(CLASSIFICATION, REGRESSION).check(likelihood=self.likelihood)
        one_of(DIAGONAL, FULL).check(curvature=self.curvature)
        one_of(MODEL, EMPIRICAL).check(fisher=self.fisher)
        POSITIVE.check(prior_precision=self.prior_precision)
        noise = POSITIVE.or_none() if self.likelihood == REGRESSION else NOISELESS
        noise.check(noise_variance=self.noise_variance)

    def tensors(self, names: Iterable[str]) -> list[str]:
        """Return the names of all tensors, or of those that ``only`` selects."""
        names = list(names)
        if self.only is None:
            return names
        only = [self.only] if isinstance(self.only, str) else list(self.only)

        def fits(name, wanted):
            return name == wanted or name.startswith(f"{wanted}.")

        if not only or not all(any(fits(name, wanted) for name in names) for wanted in only):
            raise UsageError(
                found=f"only={some(list(map(str, only)))}",
                expected=f"tensors, or what their names begin with, of {some(names)}",
            )
        return [name for name in names if any(fits(name, wanted) for wanted in only)]


def laws(
    task: Task,
    tensors: Mapping[str, Array],
    outputs: Array,
    jacobians: Jacobians,
    y: ArrayLike,
    *,
    most_full: int = 3000,
    most_named: int = 5000,
    at_once: int = 2**22,
    entries: int | None = None,
) -> Laws:
    """Return posterior, prior and factor over the weights; the factor may be improper.

    ``most_full`` is the largest number of weights whose covariance fits into memory; of more than
    ``most_named`` weights entries have no names; ``at_once`` bounds the entries of the Jacobian
    that are in memory together; ``entries`` are those of one output of one record, as many as
    weights unless some are products.

    Raises:
        StructureError: for outputs and labels of other shapes, outputs that are probabilities
            instead of logits, and a full covariance of too many weights.
        ParameterError: for NaN and infinity, labels that are no classes, and weights more than one
            posterior standard deviation (root mean square over weights) from the mode of these data
            and the prior. Beyond a tenth, and for a network that predicts these data no better than
            a constant, there is a ``ConvergenceWarning``.
    """
    size = sum(tensor.size for tensor in tensors.values())
    full = task.curvature == FULL
    if full and size > most_full:
        raise StructureError(
            found=f"{size} weights with curvature='full'",
            expected=f"at most {most_full}: only=[...] of the last layer, or curvature='diagonal'",
        )
    flat = [numbers(tensor, f"the weights {n!r}").reshape(-1) for n, tensor in tensors.items()]
    outputs = np.asarray(outputs, np.float64)
    target, noise = _target(task, outputs, np.asarray(y))
    each = size if full or entries is None else entries
    step = max(1, at_once // max(1, outputs.shape[1] * each))
    information = np.zeros((size, size) if full else size)
    gradient = np.zeros(size)
    for start in range(0, len(outputs), step):
        part = slice(start, min(start + step, len(outputs)))
        made, slopes = jacobians(part)
        steep, rows = _likelihood(task, np.asarray(made, np.float64), target[part], noise)
        own = [slopes[name] for name in tensors]
        gradient += np.concatenate([tensor.total(steep) for tensor in own])
        if full:
            curved = rows @ np.concatenate([tensor.whole() for tensor in own], axis=2)
            curved = curved.reshape(-1, size)
            information += curved.T @ curved
        else:
            information += np.concatenate([tensor.squares(rows) for tensor in own])
    mean = np.concatenate(flat)
    prior = float(task.prior_precision)
    zeros = np.zeros(size)
    left = gradient - prior * mean
    information = (information + information.T) / 2 if full else information
    base = prior * np.eye(size) if full else zeros + prior
    total = information + base
    squared = left @ np.linalg.solve(total, left) if full else np.square(left) @ (1 / total)
    check_mode(squared, "weights", "these data under prior_precision", UNTRAINED, size)
    apply = np.matmul if full else np.multiply
    ends = np.cumsum([tensor.size for tensor in tensors.values()])[:-1]

    named = size <= most_named
    shapes = {n: np.shape(tensor) for n, tensor in tensors.items()}

    def law(slope: Array, precision: Array) -> Gaussian | Product:
        if full:
            q = Gaussian(slope, precision)
            return q.named(entries_of(shapes)) if named else q
        parts = zip(tensors, np.split(slope, ends), np.split(precision, ends), strict=True)
        q = Product({n: DiagonalGaussian(s, p) for n, s, p in parts})
        return q.named({n: entries_of({"": shape}) for n, shape in shapes.items()}) if named else q

    factor = law(apply(information, mean) + gradient, information)
    return Laws(law(apply(total, mean), total), law(zeros, base), factor)


def tensors_of(
    law: Distribution, shapes: Mapping[str, Shape], at: str, key: KeyArray | None
) -> dict[str, Array]:
    """Return the mean, the variances, or a draw, as arrays by name; a StructureError if the law has
    other tensors or shapes.
    """
    one_of(MEAN, VARIANCE).check(at=at)
    blocks = dict(law.blocks) if isinstance(law, Product) else {}
    names = list(blocks)
    wrong = list[str]()
    if isinstance(law, Gaussian):
        names = list(dict.fromkeys(name.rpartition("[")[0] for name in law.names))
        entries = entries_of({n: shapes[n] for n in names if n in shapes})
        wrong = [] if entries == list(law.names) else names
    for name, block in blocks.items():
        fits = isinstance(block, DiagonalGaussian) and name in shapes
        if not fits or block.event_shape != (math.prod(shapes[name]),):
            wrong.append(name)
    wrong = [name for name in names if name not in shapes] or wrong
    if wrong or not names or law.batch_shape:
        raise StructureError(
            found=f"{law!r} of tensors {some(names)}, of which {some(wrong)} do not fit",
            expected=f"one law, of tensors {some([f'{n} {shape}' for n, shape in shapes.items()])}",
        )
    values: Any
    part = "mean" if at == MEAN else "marginal_variance"
    if key is not None:
        import jax

        with jax.enable_x64(True):
            values = law.sample(key)
    elif blocks:
        values = {n: getattr(block, part) for n, block in blocks.items()}
    else:
        values = getattr(law, part)
    if not blocks:
        ends = np.cumsum([math.prod(shapes[name]) for name in names])[:-1]
        values = dict(zip(names, np.split(np.asarray(values), ends), strict=True))
    return {name: np.asarray(values[name]).reshape(shapes[name]) for name in names}


def entries_of(shapes: Mapping[str, Shape]) -> list[str]:
    """Return names of the tensors' entries: ``layer.weight[0,3]``, or ``scale[]`` of a scalar."""

    def at(index):
        return ",".join(map(str, index))

    return [f"{name}[{at(i)}]" for name, shape in shapes.items() for i in np.ndindex(shape)]


def _likelihood(task: Task, outputs: Array, y: Array, noise: float) -> tuple[Array, Array]:
    """Return slopes (n, K) of each record's log likelihood in its outputs, and rows (n, r, K) whose
    squares are its curvature.
    """
    size = outputs.shape[1]
    if task.likelihood == CLASSIFICATION:
        # Log odds: the other class has the logit zero.
        logits = np.insert(outputs, 0, 0.0, axis=1) if size == 1 else outputs
        chances = softmax(logits, axis=1)
        identity = np.eye(chances.shape[1])
        slopes = (identity[y] - chances)[:, -size:]
        rows = np.sqrt(chances)[..., None] * (identity - chances[:, None])[..., -size:]
    else:
        slopes = (y - outputs) / noise
        rows = np.broadcast_to(np.eye(size) / np.sqrt(noise), (len(y), size, size))
    return slopes, slopes[:, None] if task.fisher == EMPIRICAL else rows


def _target(task: Task, outputs: Array, target: Array) -> tuple[Array, float]:
    classes = task.likelihood == CLASSIFICATION
    rows = outputs.ndim == 2 and 0 < len(outputs) == len(target)
    if not rows or (not classes and target.size != outputs.size):
        raise StructureError(
            found=f"outputs of shape {outputs.shape} for y of shape {target.shape}",
            expected="outputs (n, K) and targets of the same n records",
        )
    numbers(outputs, "the outputs")
    if classes:
        target, trained = _labels(outputs, target)
        noise = 1.0
        what = "labels no better than how often they come"
    else:
        target = numbers(target, "the values y").reshape(outputs.shape)
        left = np.square(target - outputs).mean()
        trained = left <= np.square(target - target.mean(0)).mean()
        noise = task.noise_variance or float(left)
        what = "values no better than their mean"
        POSITIVE.check(noise_variance=float(noise))
    if not trained:
        text = f"The network predicts {what}, on these data: it is not trained, or on other data."
        warnings.warn(text, ConvergenceWarning, stacklevel=4)
    return target, float(noise)


def _labels(outputs: Array, target: Array) -> tuple[Array, bool]:
    """Return class numbers (n,), and whether logits predict them better than frequencies do."""
    classes = max(outputs.shape[1], 2)
    single = outputs.shape[1] == 1
    target = target[:, 0] if target.shape == (len(target), 1) else target
    check_column(target, labels(classes, "y of shape (n,)"))
    codes = target.astype(int)
    several = len(set(codes.tolist())) > 1
    sums = outputs.min() >= 0 and np.allclose(outputs.sum(1), 1, atol=1e-4) and len(outputs) > 1
    if sums or (single and several and outputs.min() >= 0 and outputs.max() <= 1):
        raise StructureError(
            found=f"outputs from {outputs.min():.3g} to {outputs.max():.3g}, like probabilities",
            expected=f"{'log odds of class 1' if single else 'logits'}, as losses of logits take",
        )
    logits = np.insert(outputs, 0, 0.0, axis=1) if single else outputs
    likely = log_softmax(logits, axis=1)[np.arange(len(codes)), codes].mean()
    plain = np.log((np.bincount(codes, minlength=classes) / len(codes))[codes]).mean()
    return codes, bool(not several or likely >= plain)
