"""How objectives are maximised: by L-BFGS where they do not change, by Adam where they do."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

RATE = 0.05
"""Of Adam, in standard deviations and log scales a step; it falls to nothing by the end."""
CHUNK = 100
"""Steps that are compiled together."""
FLAT = 1e-7
"""A slope below which there is no more to gain, a unit of a search."""
ENOUGH = 1e-10
"""What a step must gain, of the objective, or the search ends."""
ARMIJO = 1e-4
"""The share of what the slope promises that a step must keep."""
SHORTEST = 1e-12
MEMORY = 10


class Climbed(NamedTuple):
    """Where a search ended."""

    v: Any
    value: Any
    evaluations: Any
    """Of the objective and its gradient."""


class _Memory(NamedTuple):
    """The last steps and how slopes changed along them (m, p); empty rows are zero."""

    steps: Any
    changes: Any

    def push(self, step: Any, change: Any) -> "_Memory":
        """With these instead of the oldest, if the curvature along them is positive."""
        curved = step @ change > 1e-12 * (change @ change)
        row = lambda old, new: jnp.where(curved, jnp.concatenate([old[1:], new[None]]), old)
        return _Memory(row(self.steps, step), row(self.changes, change))

    def direction(self, slope: Any) -> Any:
        """Downhill, by the inverse curvature that the rows tell: the two-loop recursion."""
        inner = (self.steps * self.changes).sum(1)
        weight = jnp.where(inner > 0, 1 / jnp.where(inner > 0, inner, 1.0), 0.0)
        rows = (self.steps, self.changes, weight)

        def back(slope: Any, row: Any) -> tuple[Any, Any]:
            step, change, weight = row
            share = weight * (step @ slope)
            return slope - share * change, share

        def forth(slope: Any, row: Any) -> tuple[Any, None]:
            (step, change, weight), share = row
            return slope + step * (share - weight * (change @ slope)), None

        left, shares = jax.lax.scan(back, slope, rows, reverse=True)
        last = (self.changes[-1] ** 2).sum()
        plain = 1 / jnp.maximum(1.0, jnp.sqrt((slope**2).sum()))
        scale = jnp.where(last > 0, inner[-1] / jnp.where(last > 0, last, 1.0), plain)
        return -jax.lax.scan(forth, scale * left, (rows, shares))[0]


class _At(NamedTuple):
    """The best point so far, and the next look."""

    v: Any
    value: Any
    slope: Any
    direction: Any
    rate: Any
    memory: _Memory
    looks: Any
    done: Any


@functools.partial(jax.jit, static_argnums=(0, 1))
def lbfgs(objective: Any, shape: Any, v: Any, arguments: Any, looks: Any = 300) -> Climbed:
    """Where ``objective(shape, v, *arguments)`` is most, by L-BFGS from ``v``.

    Where it is not finite nobody goes. Each turn looks once, whatever for: objectives take long to
    compile. ``objective`` must be a function of a module, as it is what is compiled; the rest is
    traced, so that searches can be vectorised.

    Source: nocedal2006, chapters 3 and 7.
    """
    form = v.shape

    def look(v: Any) -> tuple[Any, Any]:
        of = lambda v: -objective(shape, v.reshape(form), *arguments)
        value, slope = jax.value_and_grad(of)(v)
        fine = jnp.isfinite(value) & jnp.isfinite(slope).all()
        return jnp.where(fine, value, jnp.inf), jnp.where(fine, slope, 0.0)

    def turn(at: _At) -> _At:
        tried = at.v + at.rate * at.direction
        value, slope = look(tried)
        along = at.rate * (at.slope @ at.direction)
        first = at.looks == 0
        taken = first | (value <= at.value + ARMIJO * along)
        memory = at.memory.push(tried - at.v, jnp.where(first, 0.0, slope - at.slope))
        memory = jax.tree.map(lambda new, old: jnp.where(taken, new, old), memory, at.memory)
        slope = jnp.where(taken, slope, at.slope)
        ahead = memory.direction(slope)
        ahead = jnp.where(ahead @ slope < 0, ahead, -slope)
        # Where a parabola through both values has its least, within bounds.
        bent = -along / (2 * jnp.maximum(value - at.value - along, 1e-300))
        shorter = at.rate * jnp.clip(jnp.where(jnp.isfinite(value), bent, 0.1), 0.1, 0.5)
        level = ~(at.value - value > ENOUGH * (1 + jnp.abs(at.value)))
        flat = jnp.abs(slope).max() < FLAT
        return _At(
            v=jnp.where(taken, tried, at.v),
            value=jnp.where(taken, value, at.value),
            slope=slope,
            direction=jnp.where(taken, ahead, at.direction),
            rate=jnp.where(taken, 1.0, shorter),
            memory=memory,
            looks=at.looks + 1,
            done=(taken & ~first & level) | (taken & flat) | (shorter < SHORTEST),
        )

    flat = jnp.ravel(v)
    nothing, rows = jnp.zeros_like(flat), jnp.zeros((MEMORY, flat.size), flat.dtype)
    infinite = jnp.asarray(jnp.inf, flat.dtype)
    one, zero = jnp.ones((), flat.dtype), jnp.asarray(0)
    start = _At(
        flat, infinite, nothing, nothing, one, _Memory(rows, rows), zero, jnp.asarray(False)
    )
    end = jax.lax.while_loop(lambda at: (at.looks < looks) & ~at.done, turn, start)
    return Climbed(end.v.reshape(form), -end.value, end.looks)


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
        moved = state.v + rate * jnp.asarray(update)  # pyright: ignore[reportArgumentType]
        v = jnp.where(number < total, moved, state.v)
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
