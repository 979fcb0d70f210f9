"""How objectives are maximised: by L-BFGS where they do not change, by Adam where they do."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from posterity.arrays.search import lbfgs
from posterity.families.free_forms import FreeForm

RATE = 0.05
"""Of Adam, in standard deviations and log scales a step; it falls to nothing by the end."""
CHUNK = 100
"""Steps of Adam that are one program."""
DRAWS = 8
"""Of fresh noise, at each step of Adam."""
DIRECTION = optax.chain(optax.clip_by_global_norm(100.0), optax.scale_by_adam())

Objective = Callable[..., Float[jax.Array, ""]]
"""A function of a module, as it is what is compiled."""


class Optimum(NamedTuple):
    """Where a search ended, the value there, and how often the gradient was computed."""

    v: Float[np.ndarray, "..."]
    value: float
    evaluations: int


@functools.partial(jax.jit, static_argnums=(0, 1))
def _value_and_slope(objective: Any, form: FreeForm, v: Any, arguments: Any) -> tuple[Any, Any]:
    return jax.value_and_grad(objective, argnums=1)(form, v, *arguments)


def maximised(
    objective: Objective,
    form: FreeForm,
    v: Float[np.ndarray, "..."],
    arguments: tuple[Any, ...],
    *,
    most: int = 300,
    only: Any = slice(None),
) -> Optimum:
    """Where ``objective(form, v, *arguments)`` is largest, by L-BFGS from ``v``.

    ``form`` is hashable. Of ``v`` only the entries ``v[only]`` move.
    """

    def least(free: np.ndarray) -> tuple[float, np.ndarray]:
        at = v.copy()
        at[only] = free.reshape(v[only].shape)
        value, slope = _value_and_slope(objective, form, at, arguments)
        return -float(value), -np.asarray(slope)[only].ravel()

    top, value, evaluations = lbfgs(least, v[only].ravel(), most=most)
    end = v.copy()
    end[only] = top.reshape(v[only].shape)
    return Optimum(end, -value, evaluations)


class _Adam(NamedTuple):
    """The state of a stochastic search."""

    v: Float[jax.Array, "..."]
    moments: Any
    average: Float[jax.Array, "..."]
    """Of the positions since the last third began, which is less noisy than the last one."""


@functools.partial(jax.jit, static_argnums=(0, 1))
def _chunk(
    objective: Any,
    form: FreeForm,
    arguments: Any,
    state: _Adam,
    begin: Any,
    total: Any,
    key: jax.Array,
) -> _Adam:
    """Some steps uphill in ``objective(form, v, noise, key, *arguments)``."""

    def step(state: _Adam, number: Any) -> tuple[_Adam, None]:
        first, second = jax.random.split(jax.random.fold_in(key, number))
        if state.v.ndim == 1:
            noise = fresh_noise(form, first, DRAWS)
        else:
            keys = jax.random.split(first, len(state.v))
            noise = jax.vmap(lambda key: fresh_noise(form, key, DRAWS))(keys)
        gradient = jax.grad(objective, argnums=1)(form, state.v, noise, second, *arguments)
        gradient = jnp.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        update, moments = DIRECTION.update(gradient, state.moments)
        rate = RATE * (1 + jnp.cos(jnp.pi * number / total)) / 2
        v = jnp.where(number < total, state.v + rate * jnp.asarray(update), state.v)  # type: ignore
        late = jnp.maximum(number - 2 * total // 3, 0)
        average = state.average + jnp.where(number < total, (v - state.average) / (late + 1), 0.0)
        return _Adam(v, moments, average), None

    return jax.lax.scan(step, state, begin + jnp.arange(CHUNK))[0]


def fresh_noise(form: FreeForm, key: jax.Array, number: int) -> jax.Array:
    """Noise for so many draws: normal (number, noise_size), or a key each; traceable."""
    if form.smooth:
        return jax.random.normal(key, (number, form.noise_size))
    return jax.random.split(key, number)


def maximised_by_adam(
    objective: Objective,
    form: FreeForm,
    start: Float[np.ndarray, "..."],
    arguments: tuple[Any, ...],
    *,
    iterations: int,
    key: jax.Array,
) -> Optimum:
    """Where Adam ends after so many steps on ``objective(form, v, noise, key, *arguments)``.

    ``start`` moves one component (p,), or several (K, p), each of which has noise of its own.
    """
    v = jnp.asarray(start)
    state = _Adam(v, DIRECTION.init(v), v)
    for begin in range(0, iterations, CHUNK):
        state = _chunk(objective, form, arguments, state, begin, iterations, key)
    count = iterations * DRAWS * (len(start) if start.ndim > 1 else 1)
    return Optimum(np.asarray(state.average), float("nan"), count)
