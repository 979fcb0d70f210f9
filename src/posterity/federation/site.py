"""A site: its own records, what all share, and its answers to the questions of a federation.

Whatever the process, a site needs nothing but itself and the question. It keeps no state: the
questions hold its factor and how many steps it has taken.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from posterity.arrays.linear_algebra import symmetric
from posterity.arrays.tree import Node, field_names, identical
from posterity.checks import check_finite, check_same_structure
from posterity.errors import ParameterError
from posterity.families import ExponentialFamily, at_rest
from posterity.federation.messages import (
    Curvature,
    DescribeOwn,
    Gradient,
    Improve,
    Improvement,
    MeasureCurvature,
    MeasureGradient,
    Message,
    OwnParameters,
)
from posterity.federation.personal import own_laws
from posterity.inference.cubature import Cubature
from posterity.inference.pooling import PartialPooling
from posterity.inference.step import dtype_of
from posterity.inference.update import LocalUpdate, TrainedApart, exact_factor
from posterity.models import Model, Records

ERROR = 5e-5
"""Nats by which too few nodes may misplace a posterior before more are taken."""
NEAR = 0.1
"""Nats up to which a misplaced posterior is still where more nodes had best begin."""


@dataclasses.dataclass(frozen=True)
class Site:
    """One site of a federation: its records, and the model and the local rule that all share."""

    name: str
    model: Model
    update: LocalUpdate
    records: Records
    padding: bool = False
    """Whether to pad the records, so that sites of other sizes use the same program."""
    share: float = 1.0
    """Of all records, where sites train apart and what they find is averaged."""

    def answer(self, question: Message) -> Message:
        """The answer to a question. Pure; errors are those of the model and of the data."""
        match question:
            case Improve(_, view, factor, count, key):
                return self.improve(view, factor, count, key=key)
            case MeasureGradient(_, posterior, factor, samples, key):
                return self.gradient(posterior, factor, samples, key=key)
            case MeasureCurvature(_, posterior, curvature):
                return self.curvature(posterior, curvature)
            case DescribeOwn(_, posterior):
                laws = own_laws(self.model, posterior, self.records)
                return OwnParameters(self.name, np.asarray(laws.mean), np.asarray(laws.scale))
        raise TypeError(f"no question: {question!r}")

    def improve(
        self, view: ExponentialFamily, factor: ExponentialFamily, count: int = 0, *, key: jax.Array
    ) -> Improvement:
        """A better factor than ``factor``, as part of the posterior ``view``.

        ``count`` is the number of local steps that the site has taken.

        Raises:
            StructureError, ParameterError: if what the model gives is no factor, or not finite.
        """
        if self.update.conjugate:
            exact = exact_factor(self.update, self.model, self.records)
            if identical(exact, factor):  # as at every visit but the first, when checks were made
                return Improvement(self.name, factor)
            check_same_structure(factor, exact, "what the model found")
            check_finite(exact, "what the model found")
            return Improvement(self.name, _canonical(exact))
        if isinstance(self.update, TrainedApart):
            trained = self.update.trained(self.model, view, self.records, key=key)
            return Improvement(self.name, _canonical(factor + (trained - view) * self.share))
        if isinstance(self.update, PartialPooling):
            pooled, info = self.update.improved(
                self.model, view, factor, self.records, count
            )
            return Improvement(self.name, _canonical(pooled), 0, *info)
        records = self.records.padded() if self.padding else self.records
        taken = np.asarray(count)  # an array: compiled once
        update = self.update
        while True:
            with jax.enable_x64(True):
                new, info = _improved(update, self.model, view, factor, records, taken, key)
            if not info.finite:
                raise not_finite()
            finer = update.finer()
            if finer is None or float(info.quadrature_error) <= ERROR:
                break
            update = finer
            if float(info.quadrature_error) <= NEAR:  # from where the fewer nodes led
                new = at_rest(new)
                view, factor = view + (new - factor), new
        residual, error = float(info.residual), float(info.quadrature_error)
        return Improvement(self.name, _canonical(new), int(info.halvings), residual, error)

    def gradient(
        self,
        posterior: ExponentialFamily,
        factor: ExponentialFamily,
        samples: int,
        *,
        key: jax.Array,
    ) -> Gradient:
        """``∇_μ E_q[log likelihood]/α - η``: what the site would still change at a posterior."""
        if self.update.conjugate:
            return self._gradient(exact_factor(self.update, self.model, self.records) - factor, 0.0)
        if isinstance(self.update, PartialPooling):
            target = self.update.target(self.model, posterior, factor, self.records)
            return self._gradient(target - factor, 0.0)
        if self.update.trains:  # which takes too long to do it several times
            return self._gradient(self.improve(posterior, factor, key=key).factor - factor, 0.0)
        with jax.enable_x64(True):
            keys = jax.random.split(key, samples if self.update.noisy else 1)
            update, records = self.update.traced(), self.records.padded()
            return self._gradient(*_gradient(update, self.model, posterior, factor, records, keys))

    def _gradient(self, direction: Any, variance: Any) -> Gradient:
        direction = at_rest(direction)
        finite = np.isfinite(direction.natural_parameters).all() and np.isfinite(variance)
        return Gradient(self.name, direction if finite else None, float(variance))

    def curvature(self, posterior: ExponentialFamily, curvature: bool) -> Curvature:
        """How the expected log likelihood bends in the mean, by as many nodes as it takes."""
        update = self.update
        while True:
            with jax.enable_x64(True):
                records = self.records.padded()
                found, error = _curvature(
                    update.traced(), self.model, posterior, records, curvature
                )
            finer = update.finer()
            if finer is None or float(error) <= ERROR:
                break
            update = finer
        (value, slope, bend), factor = map(np.asarray, found[:3]), at_rest(found[3])
        parts = [value, factor.natural_parameters, slope, bend]
        if not all(np.isfinite(part).all() for part in parts):
            return Curvature(self.name)
        return Curvature(self.name, float(value), factor, slope, bend if curvature else None)


def not_finite() -> ParameterError:
    """The error of a log likelihood or a gradient that is not finite, or of no use."""
    return ParameterError(
        found="NaN or infinity in the log likelihood or its gradient (or jumps, which have none)",
        expected="a log likelihood that is finite near the posterior, and differentiable there",
        fix="Check the model's function and the site's data; where it jumps, pass "
        "LocalUpdate('reinforce'). The factor was not changed.",
    )


def _canonical(factor: Any) -> Any:
    """At rest, and matrices symmetric to the last bit: as it will come back from a file."""
    return _symmetric(at_rest(factor))


def _symmetric(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _symmetric(own) for name, own in part.items()}
    if not isinstance(part, Node):
        return part
    kinds, names = getattr(part, "coordinates", {}), field_names(type(part))
    children = zip(names, part.children(), strict=True)
    matrix = lambda name: name in kinds and kinds[name].axes == 2
    parts = [symmetric(c) if matrix(n) else _symmetric(c) for n, c in children]
    return part.of_children(parts, part.kept())


# --- programs ------------------------------------------------------------------------------------


def _improved(update: LocalUpdate, model: Any, *others: Any) -> Any:
    # Equinox sorts out what is no array, a visit's tenth: seldom is there any.
    if all(eqx.is_array(leaf) for leaf in jax.tree.leaves(model)):
        return _of_arrays(update, model, *others)
    return _of_any(update.traced(), model, *others)


def _improve(
    update: LocalUpdate, model: Any, q: Any, factor: Any, records: Any, count: Any, key: Any
) -> Any:
    return update(model, q, factor, records, count, key=key)


_of_arrays, _of_any = jax.jit(_improve), eqx.filter_jit(_improve)


@eqx.filter_jit
def _gradient(
    update: LocalUpdate, model: Any, q: Any, factor: Any, records: Any, keys: Any
) -> tuple[Any, Any]:
    """The mean over keys, and the squared length that noise gives to it."""
    # One draw after another: side by side, those of a network do not fit into memory.
    records, count = records.widened(), keys.shape[0]

    def add(carry: Any, key: Any) -> tuple[Any, None]:
        total, squares = carry
        drawn = update.direction(model, q, factor, records, key=key)
        return (total + drawn, squares + q.squared_length(drawn)), None

    start = (jax.tree.map(jnp.asarray, q.zero()), jnp.zeros((), dtype_of(q)))
    (total, squares), _ = jax.lax.scan(add, start, keys)
    mean = total / count
    spread = squares / count - q.squared_length(mean)
    return mean, jnp.maximum(spread, 0.0) / max(count - 1, 1)


@eqx.filter_jit
def _curvature(update: Any, model: Any, q: Any, records: Any, curvature: bool) -> tuple[Any, Any]:
    """Value, slope, curvature and factor, and the error of too few nodes in nats."""
    records = records.widened()

    def at(mean: Any, otherwise: Any = False) -> tuple[Any, Any]:
        here = type(q)._of(precision_mean=q.precision * mean, precision=q.precision)
        expected = update.estimator.evaluate(model, here, records, otherwise=otherwise)
        factor = expected.gradient / update.temperature
        slope = factor.precision_mean - factor.precision * mean
        return slope, (expected.value / update.temperature, factor)

    mean = jnp.asarray(q.mean)
    slope, (value, factor) = at(mean)
    error = q.squared_length(at(mean, True)[1][1] - factor) / 4
    unit = jnp.eye(len(mean) if curvature else 0, len(mean), dtype=mean.dtype)

    def along(one: Any) -> Any:
        if not isinstance(update.estimator, Cubature):
            return jax.jvp(lambda mean: at(mean)[0], (mean,), (one,))[1]
        # A likelihood with kinks bends between the nodes, where its derivatives do not see it.
        step = one / jnp.sqrt(q.precision) / 2
        return (at(mean + step)[0] - at(mean - step)[0]) / (2 * step.sum())

    return (value, slope, -jax.lax.map(along, unit), factor), error
