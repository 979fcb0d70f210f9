"""What is maximised: a component's entropy and tempered ratio, and the ELBO of the mixture.

All are means over draws that are smooth functions of noise. With noise that does not change they
are functions that can be searched along and maximised to the last digit (giordano2024); with fresh
noise, and minibatches, their gradients are unbiased.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, PyTree

from posterity.families.free_forms import FreeForm
from posterity.pursuit.target import Target

compiled = functools.partial(jax.jit, static_argnums=0)
"""For functions of a free form first."""
TOGETHER = 256
"""Draws at which a log density is asked at a time, where there may be many."""


class Components(NamedTuple):
    """``q_t``: slots for ``K`` components, of which some may be empty.

    So that one program serves however many there are.
    """

    parameters: Any
    """Of each slot, stacked along a first axis (K,)."""
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

    def __call__(
        self, form: FreeForm, log_l: Float[jax.Array, ""], z: PyTree
    ) -> Float[jax.Array, ""]:
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
    form: FreeForm,
    v: Float[jax.Array, " d"],
    target: Target,
    at: PyTree,
    unit: PyTree,
    ratio: Ratio,
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
