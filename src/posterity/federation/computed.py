"""What a site computes of its records: functions that NumPy runs, or JAX compiles."""

from typing import Any

from posterity.inference.descent import dtype_of
from posterity.inference.joint import event_of, joint_mean
from posterity.inference.update import LocalUpdate
from posterity.models import PredictorModel
from posterity.runtime.jax_loaded import is_jax
from posterity.runtime.lazy import jax, jnp
from posterity.runtime.programs import jitted, program


def improve(
    update: LocalUpdate, model: Any, q: Any, records: Any, factor: Any, count: Any, key: Any
) -> Any:
    """Return the site's new factor and diagnostics, as the update does."""
    return update(model, q, factor, records, count, key=key)


def gradient(
    update: LocalUpdate, model: Any, q: Any, records: Any, factor: Any, samples: int, key: Any
) -> tuple[Any, ...]:
    """Return the mean gradient, and its squared length from noise."""
    records = records.widened()
    if not update.noisy:
        return update.direction(model, q, factor, records, key=key), 0.0

    # Draws are sequential, because those of a network together do not fit into memory.
    def add(carry: Any, key: Any) -> tuple[Any, None]:
        total, squares = carry
        drawn = update.direction(model, q, factor, records, key=key)
        return (total + drawn, squares + q.squared_length(drawn)), None

    start = (jax.tree.map(jnp.asarray, q.zero()), jnp.zeros((), dtype_of(q)))
    (total, squares), _ = jax.lax.scan(add, start, jax.random.split(key, samples))
    mean = total / samples
    spread = squares / samples - q.squared_length(mean)
    return mean, jnp.maximum(spread, 0.0) / max(samples - 1, 1)


def curvature(update: Any, model: Any, q: Any, records: Any) -> tuple[Any, ...]:
    """Return value, slope, curvature and factor, and the quadrature error in nats."""
    records = records.widened()
    estimator = update.estimator
    curved = estimator.curved(model, q, records)
    temperature = update.temperature
    value = curved.expected.value / temperature
    factor = curved.expected.gradient / temperature
    other = estimator.evaluate(model, q, records, otherwise=True).gradient / temperature
    error = q.squared_length(other - factor) / 4
    return value, curved.slope / temperature, curved.curvature / temperature, factor, error


def at_mean(update: Any, model: Any, q: Any, records: Any) -> tuple[Any, Any]:
    """Return the log likelihood / α at the mean of Gaussians, and its slope; None in NumPy if the
    model has no predictor.
    """
    records = records.widened()
    mean = joint_mean(q)

    def total(z):
        return model.total(event_of(q, z), records) / update.temperature

    if is_jax(mean):
        return jax.value_and_grad(total)(mean)
    if not isinstance(model, PredictorModel):
        return total(mean), None
    x, y = records.data
    slopes = model.predictor_value_and_slope(x @ mean, y)[1]
    return total(mean), (records.weights * slopes) @ x / update.temperature


PROGRAMS = {each: (jitted(each), program(each)) for each in (improve, gradient, curvature, at_mean)}
"""Compiled programs by function: for trees of arrays only, and for any trees."""
