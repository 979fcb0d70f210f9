"""How objectives are maximised: by L-BFGS where they do not change, by Adam where they are noisy."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize

ROUNDS = 3
"""Times that a search begins anew in the units of where it got to."""
RATE = 0.05
"""Of Adam, in standard deviations and log scales a step; it falls to nothing by the end."""
CHUNK = 100
"""Steps that are compiled together."""
WORST = 1e300
"""What stands for an objective that is not finite, in a search for the least."""


class Climbed(NamedTuple):
    """Where a search ended."""

    v: Any
    value: float
    evaluations: int
    """Of the objective and its gradient."""


def lbfgs(
    slope: Callable[[Any], tuple[Any, Any]], start: Any, *, steps: int = 200, bound: float = 8.0
) -> Climbed:
    """The most of a function from ``start``; it is never below the value there.

    ``bound`` is how far each number may move in one search, in units of its own.
    """
    shape, count = np.shape(start), [0]

    def least(v: np.ndarray) -> tuple[float, np.ndarray]:
        count[0] += 1
        value, gradient = slope(jnp.asarray(v.reshape(shape)))
        value, gradient = float(value), np.asarray(gradient, np.float64).ravel()
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return WORST, np.zeros_like(gradient)
        return -value, -gradient

    begin = np.asarray(start, np.float64).ravel()
    box = scipy.optimize.Bounds(begin - bound, begin + bound)
    # Units of a step are about one: nothing is to be gained by differences below these.
    options = {"maxiter": steps, "ftol": 1e-10, "gtol": 1e-6}
    found = scipy.optimize.minimize(
        least, begin, jac=True, method="L-BFGS-B", bounds=box, options=options
    )
    value = -found.fun if found.fun < WORST else -np.inf
    return Climbed(found.x.reshape(shape), float(value), count[0])


class Adam(NamedTuple):
    """The state of a stochastic search."""

    v: Any
    moments: Any
    average: Any
    """Of the positions since the last third began, which is less noisy than the last one."""


DIRECTION = optax.chain(optax.clip_by_global_norm(100.0), optax.scale_by_adam())


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _chunk(
    objective: Any, shape: Any, count: int, arguments: Any, state: Adam, begin: Any, total: Any,
    key: jax.Array,
) -> Adam:  # fmt: skip
    """Some steps: ``objective(shape, v, noise, key, *arguments)`` is to grow."""

    def step(state: Adam, number: Any) -> tuple[Adam, None]:
        first, second = jax.random.split(jax.random.fold_in(key, number))
        noise = noise_of(shape, state.v, first, count)
        gradient = jax.grad(objective, argnums=1)(shape, state.v, noise, second, *arguments)
        gradient = jnp.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        update, moments = DIRECTION.update(gradient, state.moments)
        rate = RATE * (1 + jnp.cos(jnp.pi * number / total)) / 2
        v = jnp.where(number < total, state.v + rate * update, state.v)
        late = jnp.maximum(number - 2 * total // 3, 0)
        average = state.average + jnp.where(number < total, (v - state.average) / (late + 1), 0.0)
        return Adam(v, moments, average), None

    return jax.lax.scan(step, state, begin + jnp.arange(CHUNK))[0]


def noise_of(shape: Any, v: Any, key: jax.Array, count: int) -> Any:
    """Noise for one component, or for each of those that ``v`` (K, p) moves."""
    if v.ndim == 1:
        return shape.noise(key, count)
    return jax.vmap(lambda key: shape.noise(key, count))(jax.random.split(key, len(v)))


def adam(
    objective: Any, shape: Any, start: Any, arguments: Any, *, draws: int, steps: int, key: Any,
    between: Callable[[], Any] = lambda: None,
) -> Climbed:  # fmt: skip
    """Where Adam ends after so many steps; ``between`` is called now and then.

    ``objective`` must be a function of a module, as it is what is compiled.
    """
    start = jnp.asarray(start)
    state = Adam(start, DIRECTION.init(start), start)
    for begin in range(0, steps, CHUNK):
        state = _chunk(objective, shape, draws, arguments, state, begin, steps, key)
        between()
    return Climbed(
        np.asarray(state.average),
        float("nan"),
        steps * draws * (len(start) if start.ndim > 1 else 1),
    )
