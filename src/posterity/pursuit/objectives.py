"""Objectives and searches: a component's entropy and tempered ratio, the ELBO of the mixture.

All are means over draws that are smooth functions of noise. With noise that does not change they
are functions that can be searched along and maximised to the last digit (giordano2024); with fresh
noise, and minibatches, their gradients are unbiased.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int, PyTree

from posterity.arrays.search import lbfgs
from posterity.families.free_forms import FreeForm
from posterity.pursuit.target import Target

compiled = functools.partial(jax.jit, static_argnums=0)
"""For functions of a free form first."""
TOGETHER = 256
"""Draws at which a log density is asked at a time, where there may be many."""
RATE = 0.05
"""Adam's rate, in standard deviations and log scales a step; it falls to nothing by the end."""
CHUNK = 100
"""Steps of Adam that are one program."""
DRAWS = 8
"""Draws of fresh noise at each step of Adam."""
DIRECTION = optax.chain(optax.clip_by_global_norm(100.0), optax.scale_by_adam())

Objective = Callable[..., Float[jax.Array, ""]]
"""A function of a module, as it is what is compiled."""


class Components(NamedTuple):
    """``q_t``: slots for ``K`` components, of which some may be empty.

    So that one program serves however many there are.
    """

    parameters: Any
    """The parameters of each slot, stacked along a first axis (K,)."""
    log_weights: Float[Any, " k"]
    """Normalised; minus infinity where a slot is empty."""


def log_mixture(form: FreeForm, q: Components, z: PyTree) -> Float[jax.Array, ""]:
    """``log q(z)``."""
    logs = jax.vmap(lambda own: form.log_prob(own, z))(q.parameters)
    return jax.nn.logsumexp(logs + q.log_weights)


class Ratio(NamedTuple):
    """``log L/q_t`` where the mixture has mass, and far from it no more than ``log L - floor``.

    Without a floor the ratio grows without bound far from the mixture, and a component that follows
    it there shrinks to a point or runs away.
    """

    q: Components
    floor: Float[Any, ""]
    """Nats; the least that ``log q_t`` counts for."""
    started: Float[Any, ""]
    """1, or 0 while there is no mixture yet: the ratio is ``log L``."""

    def __call__(self, form: FreeForm, log_l: Float[jax.Array, ""], z: Any) -> Float[jax.Array, ""]:
        """At one event, whose ``log L`` is known."""
        mixed = jnp.logaddexp(log_mixture(form, self.q, z), self.floor)
        return log_l - self.started * mixed


def component(
    form: FreeForm,
    v: Float[jax.Array, " p"],
    noise: PyTree,
    key: jax.Array | None,
    target: Target,
    start: PyTree,
    ratio: Ratio,
    lam: Float[Any, ""],
) -> Float[jax.Array, ""]:
    """``H[h] + λ E_h[log L/q_t]``, in nats: egorov2019's component step.

    At λ = 1 that is the evidence lower bound of ``h`` less ``E_h[log q_t]``, its similarity to what
    is there. ``h`` has the parameters ``start`` moved by ``v``; with a key, ``log L`` is estimated.
    """
    own = form.move(start, v)

    def one(noise: PyTree) -> Any:
        z = form.draw(own, noise)
        return ratio(form, target.estimate(z, key), z)

    return form.entropy(own) + lam * jax.vmap(one)(noise).mean()


def joint(
    form: FreeForm,
    moves: Float[jax.Array, "k p1"],
    noise: PyTree,
    key: jax.Array | None,
    target: Target,
    start: Components,
) -> Float[jax.Array, ""]:
    """The ELBO as a function of all components (K, p) and all log weights, the last column.

    Stratified: as many draws from each. With fresh noise (a key), densities of the mixture are not
    differentiated in its own parameters: that term is zero on average, and all noise at the end.
    """
    used = jnp.isfinite(start.log_weights)
    logits = jnp.where(used, jnp.where(used, start.log_weights, 0.0) + moves[:, -1], -jnp.inf)
    log_weights = jax.nn.log_softmax(logits)
    own = jax.vmap(form.move)(start.parameters, moves[:, :-1])
    # Slots without a component stand for another one: where the base has no gradient, a mask
    # after the fact would leave NaN in theirs.
    place = jnp.where(used, jnp.arange(len(used)), jnp.argmax(used))
    own = jax.tree.map(lambda leaf: leaf[place], own)
    q = Components(own, log_weights)
    if key is not None:
        q = jax.lax.stop_gradient(q)

    def one(own: PyTree, noise: PyTree) -> Any:
        z = form.draw(own, noise)
        return target.estimate(z, key) - log_mixture(form, q, z)

    along = 0 if key is not None else None
    values = jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, along))(own, noise)
    values = jnp.where(used[:, None], values, 0.0).mean(1)
    return (jnp.where(used, jnp.exp(log_weights), 0.0) * values).sum()


def height(
    form: FreeForm, v: Float[jax.Array, " d"], target: Target, at: PyTree, unit: Any, ratio: Ratio
) -> Float[jax.Array, ""]:
    """The ratio at an event ``at + unit * v``, where ``at`` and ``unit`` are shaped as events."""
    z = event_of(at, unit, v)
    return ratio(form, target.log_density(z), z)


@jax.jit
def curvature(
    v: Float[jax.Array, " d"], target: Target, at: PyTree, unit: Any
) -> Float[jax.Array, "d d"]:
    """Minus the Hessian of ``log L`` in ``v``, at the event ``at + unit * v``."""
    return -jax.hessian(lambda v: target.log_density(event_of(at, unit, v)))(v)


def event_of(at: PyTree, unit: PyTree, v: Any) -> Any:
    """``at + unit * v``: trees shaped as events, and ``v`` (d,) in the order of their leaves."""
    leaves, structure = jax.tree.flatten(at)
    ends, made = 0, []
    for leaf, scale in zip(leaves, jax.tree.leaves(unit), strict=True):
        own = v[ends : ends + leaf.size].reshape(leaf.shape)
        made.append(leaf + scale * own)
        ends += leaf.size
    return jax.tree.unflatten(structure, made)


# --- programs --------------------------------------------------------------------------------


@compiled
def draws(form: FreeForm, target: Target, own: PyTree, noise: PyTree) -> tuple[Any, Any]:
    """Events (n, ...) of one component, and ``log L`` there (n,), some at a time."""
    z = jax.vmap(lambda noise: form.draw(own, noise))(noise)
    return z, jax.lax.map(target.log_density, z, batch_size=TOGETHER)


@compiled
def densities(form: FreeForm, parameters: PyTree, z: PyTree) -> Float[jax.Array, "k n"]:
    """``log h_k`` of all components at events (n, ...)."""
    at = lambda own: jax.vmap(lambda z: form.log_prob(own, z))(z)
    return jax.vmap(at)(parameters)


@compiled
def scouted(
    form: FreeForm,
    target: Target,
    parameters: PyTree,
    labels: Int[Any, " n"],
    noise: PyTree,
    ratio: Ratio,
) -> tuple[Any, Float[jax.Array, " n"]]:
    """Events (n, ...) of the components (K,) that labels name, and ``log L/q_t`` there."""

    def one(drawn: tuple[Any, Any]) -> tuple[Any, Any]:
        label, noise = drawn
        z = form.draw(jax.tree.map(lambda leaf: leaf[label], parameters), noise)
        return z, ratio(form, target.log_density(z), z)

    return jax.lax.map(one, (labels, noise), batch_size=TOGETHER)


@compiled
def moved(form: FreeForm, parameters: PyTree, v: Float[Any, " p"]) -> Any:
    """The parameters of one component moved."""
    return form.move(parameters, v)


@compiled
def middle(form: FreeForm, parameters: PyTree) -> Any:
    """The event that no noise becomes."""
    return form.draw(parameters, jnp.zeros(form.noise_size))


# --- searches: L-BFGS where objectives do not change, Adam where they do --------------------------


class Optimum(NamedTuple):
    """The end of a search, the value there, and how often the gradient was computed."""

    v: Float[np.ndarray, "..."]
    value: float
    evaluations: int


@functools.partial(jax.jit, static_argnums=(0, 1))
def _value_and_slope(objective: Any, form: Hashable, v: Any, arguments: Any) -> tuple[Any, Any]:
    return jax.value_and_grad(objective, argnums=1)(form, v, *arguments)


def maximised(
    objective: Objective,
    form: Hashable,
    v: Float[np.ndarray, "..."],
    arguments: tuple[Any, ...],
    *,
    most: int = 300,
    only: Any = slice(None),
) -> Optimum:
    """Maximise ``objective(form, v, *arguments)`` by L-BFGS from ``v``.

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
    """The mean of the positions since the last third began, less noisy than the last position."""


@functools.partial(jax.jit, static_argnums=(0, 1))
def _chunk(
    objective: Any, form: Any, arguments: Any, state: _Adam, begin: Any, total: Any, key: jax.Array
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
    """Maximise ``objective(form, v, noise, key, *arguments)`` by so many steps of Adam.

    ``start`` moves one component (p,), or several (K, p), each of which has noise of its own.
    """
    v = jnp.asarray(start)
    state = _Adam(v, DIRECTION.init(v), v)
    for begin in range(0, iterations, CHUNK):
        state = _chunk(objective, form, arguments, state, begin, iterations, key)
    count = iterations * DRAWS * (len(start) if start.ndim > 1 else 1)
    return Optimum(np.asarray(state.average), float("nan"), count)
