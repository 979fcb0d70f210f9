"""What is maximised: a component's entropy and tempered ratio, and the ELBO of the mixture.

All are means over draws that are smooth functions of noise. With noise that does not change they
are functions that can be searched along and maximised to the last digit (giordano2024); with fresh
noise, and minibatches, their gradients are unbiased.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from posterity.pursuit.shapes import Shape
from posterity.pursuit.target import Target

compiled = functools.partial(jax.jit, static_argnums=0)
"""For functions of a shape first."""
TOGETHER = 256
"""Draws at which a log density is asked at a time, where there may be many."""


class Components(NamedTuple):
    """``q_t``: places for ``K`` components, of which some may be empty.

    So that one program serves however many there are.
    """

    parameters: Any
    """Of each place, stacked along a first axis (K,)."""
    log_weights: Float[jax.Array, " k"]
    """Normalised; minus infinity where a place is empty."""


def log_probs(shape: Shape, parameters: Any, z: Any) -> Float[jax.Array, " k"]:
    """``log h_k(z)`` of each place."""
    return jax.vmap(lambda own: shape.log_prob(own, z))(parameters)


def log_mixture(shape: Shape, q: Components, z: Any) -> Float[jax.Array, ""]:
    """``log q(z)``."""
    return jax.nn.logsumexp(log_probs(shape, q.parameters, z) + q.log_weights)


class Ratio(NamedTuple):
    """``log L/q_t`` where the mixture has mass, and far from it no more than ``log L - floor``.

    Without a floor the ratio grows without bound far from the mixture, and a component that follows
    it there shrinks to a point or runs away.
    """

    q: Components
    floor: Float[jax.Array, ""]
    """Nats; the least that ``log q_t`` counts for."""
    begun: Float[jax.Array, ""]
    """1, or 0 while there is no mixture yet: the ratio is ``log L``."""

    def __call__(self, shape: Shape, log_l: Any, z: Any) -> Float[jax.Array, ""]:
        """At one event, whose ``log L`` is known."""
        mixed = jnp.logaddexp(log_mixture(shape, self.q, z), self.floor)
        return log_l - self.begun * mixed


def _asked(target: Target, z: Any, key: Any) -> Float[jax.Array, ""]:
    return target.log_density(z) if key is None else target.estimate(z, key)


def component(
    shape: Shape, v: Any, target: Target, start: Any, noise: Any, ratio: Ratio, temper: Any,
    key: Any = None,
) -> Float[jax.Array, ""]:  # fmt: skip
    """``H[h] + λ E_h[log L/q_t]``, in nats: egorov2019's component step.

    At λ = 1 that is the evidence lower bound of ``h`` less ``E_h[log q_t]``, its similarity to what
    is there.
    """
    own = shape.move(start, v)

    def one(noise: Any) -> Any:
        z = shape.draw(own, noise)
        return ratio(shape, _asked(target, z, key), z)

    return shape.entropy(own) + temper * jax.vmap(one)(noise).mean()


def addition(
    shape: Shape, move: Any, target: Target, start: Any, noise: Any, before: Any
) -> Float[jax.Array, ""]:  # fmt: skip
    """The ELBO of ``(1 - α) q_t + α h`` as a function of ``h`` and the log odds of ``α``.

    ``before`` are the draws ``z`` of each place (K, n), ``log L`` and ``log q_t`` there, and
    ``q_t``: known, and not computed again.
    """
    v, odds = move[:-1], move[-1]
    own = shape.move(start, v)
    z, log_l, log_q, q = before
    less, more = -jax.nn.softplus(odds), -jax.nn.softplus(-odds)  # log(1 - α), log α
    spread = jax.vmap(jax.vmap(lambda z: shape.log_prob(own, z)))(z)
    mixed = jnp.logaddexp(less + log_q, more + spread)
    weights = jnp.exp(q.log_weights)
    # Where a place is empty its draws mean nothing, nor may their gradients.
    kept = jnp.where((weights > 0)[:, None], log_l - mixed, 0.0).mean(1)

    def one(noise: Any) -> Any:
        z = shape.draw(own, noise)
        mixed = jnp.logaddexp(less + log_mixture(shape, q, z), more + shape.log_prob(own, z))
        return target.log_density(z) - mixed

    return jnp.exp(less) * (weights * kept).sum() + jnp.exp(more) * jax.vmap(one)(noise).mean()


def joint(
    shape: Shape, moves: Any, target: Target, start: Components, noise: Any, key: Any = None
) -> Float[jax.Array, ""]:
    """The ELBO as a function of all components (K, p) and all log weights, the last column.

    Stratified: as many draws from each. With fresh noise (a key), densities of the mixture are not
    differentiated in its own parameters: that term is zero on average, and all noise at the end.
    """
    used = jnp.isfinite(start.log_weights)
    logits = jnp.where(used, jnp.where(used, start.log_weights, 0.0) + moves[:, -1], -jnp.inf)
    log_weights = jax.nn.log_softmax(logits)
    own = jax.vmap(shape.move)(start.parameters, moves[:, :-1])
    q = Components(own, log_weights)
    if key is not None:
        q = jax.lax.stop_gradient(q)

    def one(own: Any, noise: Any) -> Any:
        z = shape.draw(own, noise)
        return _asked(target, z, key) - log_mixture(shape, q, z)

    along = 0 if key is not None else None
    values = jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, along))(own, noise)
    values = jnp.where(used[:, None], values, 0.0).mean(1)
    return (jnp.where(used, jnp.exp(log_weights), 0.0) * values).sum()


@compiled
def draws(shape: Shape, parameters: Any, noise: Any) -> Any:
    """Events (n, ...) of one component."""
    return jax.vmap(lambda noise: shape.draw(parameters, noise))(noise)


@compiled
def densities(shape: Shape, parameters: Any, z: Any) -> Float[jax.Array, "k n"]:
    """``log h_k`` at events (n, ...)."""
    return jax.vmap(lambda z: log_probs(shape, parameters, z), out_axes=1)(z)


@jax.jit
def values(target: Target, z: Any) -> Float[jax.Array, " n"]:
    """``log L`` at events (n, ...), some at a time."""
    return jax.lax.map(target.log_density, z, batch_size=TOGETHER)


@compiled
def ratios(shape: Shape, target: Target, z: Any, ratio: Ratio) -> Float[jax.Array, " n"]:
    """``log L/q_t`` at events (n, ...)."""
    one = lambda z: ratio(shape, target.log_density(z), z)
    return jax.lax.map(one, z, batch_size=TOGETHER)


@compiled
def moved(shape: Shape, parameters: Any, v: Any) -> Any:
    """The parameters of one component moved."""
    return shape.move(parameters, v)


@compiled
def moved_all(shape: Shape, parameters: Any, v: Any) -> Any:
    """Of several (K,), each by its own."""
    return jax.vmap(shape.move)(parameters, v)


@compiled
def outline(shape: Shape, parameters: Any) -> tuple[Any, Any]:
    """Deviations of a component, and its middle, shaped as events."""
    return shape.deviation(parameters), shape.draw(parameters, jnp.zeros(shape.noise_size))


@compiled
def picked(shape: Shape, parameters: Any, labels: Any, noise: Any) -> Any:
    """Events (n, ...) of the components (K,) that labels name."""

    def one(label: Any, noise: Any) -> Any:
        return shape.draw(jax.tree.map(lambda leaf: leaf[label], parameters), noise)

    return jax.vmap(one)(labels, noise)
