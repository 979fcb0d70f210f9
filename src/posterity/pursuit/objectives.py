"""Objectives and searches: a component's entropy and tempered ratio, the ELBO of the mixture.

All are means over draws that are smooth functions of noise: with noise that does not change they
can be maximised to the last digit (giordano2024), with fresh noise, and minibatches, their
gradients are unbiased. Two programs alone contain the target: its values and its gradients at a
batch of events. The objectives see it as a :class:`Linear` function about the events of the moment,
so that their programs are compiled once for a family and a size, whatever the target is.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from posterity.arrays.search import lbfgs
from posterity.families.free_forms import FreeForm
from posterity.pursuit.target import Target

compiled = functools.partial(jax.jit, static_argnums=0)
"""For functions of a free form first."""
BATCH = 128
"""Events at which programs are run at a time, so that each is compiled for one size alone."""
RATE = 0.05
"""Adam's rate, in standard deviations and log scales a step; it falls to nothing by the end."""
CHUNK, DRAWS = 100, 8
"""Steps of Adam that are one program, and draws of fresh noise at each of them."""

Look = Callable[[np.ndarray], tuple[Any, np.ndarray]]
"""The value of an objective and its gradient, at a point (..., d)."""


class Linear(NamedTuple):
    """A target's values and gradients at events (n, ...), and its tangents about them."""

    z: Any
    log_l: Float[Any, " n"]
    slopes: Any

    def estimates(self, z: PyTree, key: jax.Array | None) -> Float[jax.Array, " n"]:
        """The tangent of each event, at the event that took its place."""
        del key
        along = lambda new, old, slope: ((new - old) * slope).reshape(len(self.log_l), -1).sum(1)
        parts = jax.tree.leaves(jax.tree.map(along, z, self.z, self.slopes))
        return self.log_l + sum(parts)


class Components(NamedTuple):
    """``q_t``: slots for ``K`` components, stacked, so that one program serves however many. Log
    weights are normalised, and minus infinity where a slot is empty.
    """

    parameters: Any
    log_weights: Float[Any, " k"]


def slot_of(parameters: PyTree, slot: int) -> Any:
    """The parameters of one slot among stacked ones."""
    return jax.tree.map(lambda leaf: leaf[slot], parameters)


def log_mixture(form: FreeForm, q: Components, z: PyTree) -> Float[jax.Array, ""]:
    """``log q(z)``."""
    logs = jax.vmap(lambda own: form.log_prob(own, z))(q.parameters)
    return jax.nn.logsumexp(logs + q.log_weights)


class Ratio(NamedTuple):
    """``log L/q_t`` where the mixture has mass, and far from it no more than ``log L - floor``.
    Without a floor (in nats) the ratio grows without bound far from the mixture, and a component
    that follows it there shrinks to a point or runs away. ``started`` is 0 while there is no
    mixture yet and the ratio is ``log L``, else 1.
    """

    q: Components
    floor: Float[Any, ""]
    started: Float[Any, ""]

    def mixed(self, form: FreeForm, z: PyTree) -> Float[jax.Array, ""]:
        """The value that is subtracted from ``log L`` at one event."""
        return self.started * jnp.logaddexp(log_mixture(form, self.q, z), self.floor)


def component(
    form: FreeForm,
    v: Float[jax.Array, " p"],
    noise: PyTree,
    key: jax.Array | None,
    target: Target | Linear,
    start: PyTree,
    ratio: Ratio,
    lam: Float[Any, ""],
) -> Float[jax.Array, ""]:
    """``H[h] + λ E_h[log L/q_t]``, in nats: egorov2019's component step. ``h`` has the parameters
    ``start`` moved by ``v``; with a key, ``log L`` is estimated.
    """
    own = form.move(start, v)
    z = jax.vmap(lambda noise: form.draw(own, noise))(noise)
    ratios = target.estimates(z, key) - jax.vmap(lambda z: ratio.mixed(form, z))(z)
    return form.entropy(own) + lam * ratios.mean()


def joint(
    form: FreeForm,
    moves: Float[jax.Array, "k p1"],
    density: Float[jax.Array, "k p1"],
    noise: PyTree,
    key: jax.Array | None,
    target: Target | Linear,
    start: Components,
) -> Float[jax.Array, ""]:
    """The ELBO as a function of all components (K, p) and all log weights, the last column. There
    are as many draws from each. ``moves`` are those of the mixture that is drawn from, ``density``,
    the same, those of the mixture whose log density is subtracted: the gradient in it alone is zero
    on average, and all noise at the end (roeder2017).
    """
    used = jnp.isfinite(start.log_weights)
    # Empty slots stand for another one: a mask after the fact may leave NaN in their gradient.
    place = jnp.where(used, jnp.arange(len(used)), jnp.argmax(used))

    def mixture(moves: Float[jax.Array, "k p1"]) -> Components:
        logits = jnp.where(used, jnp.where(used, start.log_weights, 0.0) + moves[:, -1], -jnp.inf)
        own = jax.vmap(form.move)(start.parameters, moves[:, :-1])
        return Components(jax.tree.map(lambda leaf: leaf[place], own), jax.nn.log_softmax(logits))

    drawn_from, q = mixture(moves), mixture(density)
    along = None if key is None else 0
    draw = jax.vmap(jax.vmap(form.draw, in_axes=(None, 0)), in_axes=(0, along))
    z = draw(drawn_from.parameters, noise)
    z = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), z)
    gaps = target.estimates(z, key) - jax.vmap(lambda z: log_mixture(form, q, z))(z)
    means = jnp.where(used[:, None], gaps.reshape(len(used), -1), 0.0).mean(1)
    return (jnp.where(used, jnp.exp(drawn_from.log_weights), 0.0) * means).sum()


def joint_path(form: FreeForm, moves: Float[jax.Array, "k p1"], *arguments: Any) -> Any:
    """The ELBO with a gradient without the term that is zero on average."""
    return joint(form, moves, jax.lax.stop_gradient(moves), *arguments)


@jax.jit
def values(target: Target, z: PyTree) -> Float[jax.Array, " n"]:
    """``log L`` at events (n, ...)."""
    return jax.vmap(target.log_density)(z)


@jax.jit
def values_and_slopes(target: Target, z: PyTree) -> tuple[Float[jax.Array, " n"], Any]:
    """``log L`` at events (n, ...), and its gradients."""
    return jax.vmap(jax.value_and_grad(target.log_density))(z)


@compiled
def _drawn(form: FreeForm, own: PyTree, noise: PyTree) -> Any:
    return jax.vmap(lambda noise: form.draw(own, noise))(noise)


@compiled
def _moved_and_drawn(form: FreeForm, own: PyTree, v: Float[Any, "k p"], noise: PyTree) -> Any:
    return jax.vmap(lambda own, v: _drawn(form, form.move(own, v), noise))(own, v)


@compiled
def densities(form: FreeForm, parameters: PyTree, z: PyTree) -> Float[jax.Array, "n k"]:
    """``log h_k`` of all components at events (n, ...)."""
    return jax.vmap(lambda z: jax.vmap(lambda own: form.log_prob(own, z))(parameters))(z)


@compiled
def mixed(form: FreeForm, ratio: Ratio, z: PyTree) -> tuple[Float[jax.Array, " n"], Any]:
    """The values that a ratio subtracts at events (n, ...), and their gradients."""
    return jax.vmap(jax.value_and_grad(lambda z: ratio.mixed(form, z)))(z)


@compiled
def moved(form: FreeForm, parameters: PyTree, v: Float[Any, " p"]) -> Any:
    """The parameters of one component moved."""
    return form.move(parameters, v)


@compiled
def _component(form: FreeForm, v: Any, *arguments: Any) -> Any:
    return jax.value_and_grad(component, argnums=1)(form, v, *arguments)


@compiled
def _joint(form: FreeForm, v: Any, *arguments: Any) -> Any:
    return jax.value_and_grad(joint, argnums=(1, 2))(form, v, v, *arguments)


def batched(program: Callable[..., Any], arguments: tuple[Any, ...], z: PyTree) -> Any:
    """``program(*arguments, z)`` of events (n, ...), as NumPy's arrays, a batch at a time."""
    count, parts = len(jax.tree.leaves(z)[0]), []
    for begin in range(0, count, BATCH):
        places = np.minimum(np.arange(begin, begin + BATCH), count - 1)
        parts.append(program(*arguments, jax.tree.map(lambda leaf, at=places: leaf[at], z)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *parts)


def drawn(form: FreeForm, own: PyTree, noise: PyTree) -> Any:
    """Events (n, ...) of one component."""
    return batched(_drawn, (form, own), noise)


def middle(form: FreeForm, parameters: PyTree) -> Any:
    """The event that no noise becomes."""
    return slot_of(drawn(form, parameters, np.zeros((1, form.noise_size))), 0)


class Optimum(NamedTuple):
    """The end of a search, the value there, and how often the gradient was computed."""

    v: Float[np.ndarray, "..."]
    value: float
    evaluations: int


def look_at_component(
    form: FreeForm, nodes: Float[np.ndarray, "n noise"], target: Target, start: PyTree, *others: Any
) -> Look:
    """:func:`component` over fixed nodes, as a function of the moves alone."""
    alone = jax.tree.map(lambda leaf: np.asarray(leaf)[None], start)

    def look(v: np.ndarray) -> tuple[Any, np.ndarray]:
        z = slot_of(jax.tree.map(np.asarray, _moved_and_drawn(form, alone, v[None], nodes)), 0)
        tangents = Linear(z, *batched(values_and_slopes, (target,), z))
        value, slope = _component(form, v, nodes, None, tangents, start, *others)
        return float(value), np.asarray(slope)

    return look


def look_at_joint(
    form: FreeForm, parts: Sequence[Float[np.ndarray, "n noise"]], target: Target, start: Components
) -> Look:
    """:func:`joint` over fixed nodes, less the first order at the start of its term of mean zero.
    Nodes are few, and over them that mean is not zero: the target itself would not be the best.
    They come in ``parts`` of one size, for which the program is compiled.
    """
    used = np.isfinite(start.log_weights)
    place = np.where(used, np.cumsum(used) - 1, 0)  # empty slots stand for another one
    noise: list[np.ndarray] = []

    def one(nodes: np.ndarray, v: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
        drawn = _moved_and_drawn(form, start.parameters, v[:, :-1], nodes)
        z = jax.tree.map(lambda leaf: _flat(np.asarray(leaf)[used]), drawn)
        found = z, *batched(values_and_slopes, (target,), z)
        rows = lambda leaf: _flat(leaf.reshape(used.sum(), len(nodes), *leaf.shape[1:])[place])
        tangents = Linear(*(jax.tree.map(rows, own) for own in found))
        value, (path, density) = _joint(form, v, nodes, None, tangents, start)
        return float(value), np.asarray(path), np.asarray(density)

    def look(v: np.ndarray) -> tuple[Any, np.ndarray]:
        looks = [one(nodes, v) for nodes in parts]
        value, path, density = (np.mean(own, axis=0) for own in zip(*looks, strict=True))
        if not noise:
            noise.append(density)
        return value - (noise[0] * v).sum(), path + density - noise[0]

    return look


def _flat(rows: np.ndarray) -> np.ndarray:
    """Rows (k n, ...) of an array (k, n, ...)."""
    return rows.reshape(-1, *rows.shape[2:])


def maximised(look: Look, v: Float[np.ndarray, "..."], *, most: int = 300) -> Optimum:
    """Maximise an objective by L-BFGS from ``v``."""

    def least(flat: np.ndarray) -> tuple[Any, np.ndarray]:
        value, slope = look(flat.reshape(v.shape))
        return -value, -slope.ravel()

    top, value, evaluations = lbfgs(least, v.ravel(), most=most)
    return Optimum(top.reshape(v.shape), -float(value), evaluations)


class _Adam(NamedTuple):
    """The state of a stochastic search; ``average`` is that of positions in the last third."""

    v: Float[jax.Array, "..."]
    moments: Any
    average: Float[jax.Array, "..."]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _chunk(
    objective: Any, form: Any, arguments: Any, state: _Adam, begin: Any, total: Any, key: jax.Array
) -> _Adam:
    """Some steps uphill in ``objective(form, v, noise, key, *arguments)``."""

    def step(state: _Adam, number: Any) -> tuple[_Adam, None]:
        first, second = jax.random.split(jax.random.fold_in(key, number))
        noises = lambda key: fresh_noise(form, key, DRAWS)
        one = state.v.ndim == 1
        noise = noises(first) if one else jax.vmap(noises)(jax.random.split(first, len(state.v)))
        gradient = jax.grad(objective, argnums=1)(form, state.v, noise, second, *arguments)
        gradient = jnp.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        update, moments = _direction().update(gradient, state.moments)
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


def _direction() -> Any:
    import optax  # takes a while to import

    return optax.chain(optax.clip_by_global_norm(100.0), optax.scale_by_adam())


def maximised_by_adam(
    objective: Callable[..., Any],
    form: FreeForm,
    start: Float[np.ndarray, "..."],
    arguments: tuple[Any, ...],
    *,
    iterations: int,
    key: jax.Array,
) -> Optimum:
    """Maximise ``objective(form, v, noise, key, *arguments)`` by so many steps of Adam. ``start``
    moves one component (p,), or several (K, p), each of which has noise of its own.
    """
    v = jnp.asarray(start)
    state = _Adam(v, _direction().init(v), v)
    for begin in range(0, iterations, CHUNK):
        state = _chunk(objective, form, arguments, state, begin, iterations, key)
    count = iterations * DRAWS * (len(start) if start.ndim > 1 else 1)
    return Optimum(np.asarray(state.average), float("nan"), count)
