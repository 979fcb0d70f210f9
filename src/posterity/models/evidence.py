"""What records say once a Gaussian nuisance is integrated out: the tightest Gaussian bound.

``log ∫ exp f(v) N(v | 0, I) dv ≥ max_q E_q[f] - KL(q ‖ N(0, I))`` over Gaussians ``q``, with
equality where ``f`` is quadratic. The inner optimum is found by natural gradients (khan2023) with
a line search on the bound itself, so it holds wherever the search stops.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

MAX_STEPS = 100
"""Of the search; each asks for one expectation. Log-concave ``f`` take five to ten."""
TOLERANCE = 1e-9
"""In nats: what a further step would change, to second order."""
SHORTEST = 1e-6
"""Steps that must be shorter than this lead nowhere: rounding is all there is to gain."""
NEARLY = 1e-3
"""In nats: this close to the optimum a whole step is safe."""


class Whitened(NamedTuple):
    """A Gaussian over ``v`` (p,), whose prior is the standard normal."""

    mean: Float[jax.Array, " p"]
    precision: Float[jax.Array, "p p"]

    @classmethod
    def prior(cls, size: int, dtype: Any) -> "Whitened":
        """The standard normal."""
        return cls(jnp.zeros(size, dtype), jnp.eye(size, dtype=dtype))

    @property
    def factor(self) -> Float[jax.Array, "p p"]:
        """``F`` with ``v = mean + F ε``, ``F Fᵀ`` the covariance; NaN if there is none."""
        identity = jnp.eye(len(self.mean), dtype=self.mean.dtype)
        lower = jnp.linalg.cholesky(self.precision)
        return jax.scipy.linalg.solve_triangular(lower, identity, lower=True).T

    def kl(self) -> Float[jax.Array, ""]:
        """``KL(q ‖ N(0, I))`` in nats."""
        factor = self.factor
        logdet = -2 * jnp.log(jnp.diagonal(factor)).sum()
        return ((factor**2).sum() + self.mean @ self.mean - len(self.mean) + logdet) / 2


class Expectation(NamedTuple):
    """Of ``f`` under a Gaussian: its value, its slope and minus its curvature in ``v``."""

    value: Float[jax.Array, ""]
    slope: Float[jax.Array, " p"]
    precision: Float[jax.Array, "p p"]


Expected = Callable[[Any, Whitened], Expectation]
"""Of what else there is to depend on, a tree of arrays, and the Gaussian."""


class Search(NamedTuple):
    """Where the search stands; ``left`` is what a step would change, in nats to second order."""

    q: Whitened
    around: Expectation
    bound: Float[jax.Array, ""]
    rate: Float[jax.Array, ""]
    left: Float[jax.Array, ""]
    steps: Any


def best_gaussian(
    expected: Expected, given: Any, start: Whitened
) -> tuple[Whitened, Bool[jax.Array, ""]]:
    """The Gaussian of the tightest bound, and whether the search came near it.

    Not to be differentiated: see :func:`log_evidence`.
    """
    around = expected(given, start)
    rate = jnp.ones((), start.mean.dtype)
    first = Search(start, around, _bound(start, around), rate, _left(start, around), 0)
    unfinished = lambda s: (s.left > TOLERANCE) & (s.steps < MAX_STEPS) & (s.rate > SHORTEST)
    step = functools.partial(_searched, functools.partial(expected, given))
    last = jax.lax.while_loop(unfinished, step, first)
    return last.q, last.left < NEARLY


def log_evidence(expected: Expected, given: Any, start: Whitened) -> Float[jax.Array, ""]:
    """The bound in nats; differentiable in what is ``given``.

    The search itself is not differentiated. One more step from its end is: it carries how the
    optimum depends on what is given, so that first derivatives are right to second order in
    what the search left, and second derivatives are close. NaN where the search did not come
    near, so that nobody takes a slope of nowhere for one: a visit steps back from there, and what
    it cannot step back from it fails for, or has no bound of its doubt.
    """
    q, near = best_gaussian(expected, *jax.lax.stop_gradient((given, start)))
    q = _moved(q, expected(given, q), 1.0)
    return jnp.where(near, _bound(q, expected(given, q)), jnp.nan)


def _searched(expected: Callable[[Whitened], Expectation], search: Search) -> Search:
    """One step, taken if it raises the bound; the next is longer then, and else shorter."""
    moved = _moved(search.q, search.around, search.rate)
    around = expected(moved)
    bound = _bound(moved, around)
    slack = 1e-13 * (1 + jnp.abs(search.bound))
    better = bound >= search.bound - slack  # NaN, of an improper Gaussian, is not
    tried = Search(moved, around, bound, jnp.minimum(2 * search.rate, 1.0), bound, search.steps + 1)
    stayed = search._replace(rate=search.rate / 2, steps=search.steps + 1)
    kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), tried, stayed)
    return kept._replace(left=_left(kept.q, kept.around))


def _moved(q: Whitened, around: Expectation, rate: Any) -> Whitened:
    """A step in natural parameters, towards prior and expected curvature together."""
    goal = around.precision + jnp.eye(len(q.mean), dtype=q.mean.dtype)
    precision = q.precision + rate * (goal - q.precision)
    return Whitened(q.mean + jnp.linalg.solve(precision, rate * (around.slope - q.mean)), precision)


def _left(q: Whitened, around: Expectation) -> Float[jax.Array, ""]:
    """``(gᵀ C g + ‖Fᵀ (Λ' - Λ) F‖²/2)/2``: the squared length of the natural gradient, halved."""
    factor, slope = q.factor, around.slope - q.mean
    goal = around.precision + jnp.eye(len(q.mean), dtype=q.mean.dtype)
    bend = factor.T @ (goal - q.precision) @ factor
    return (((factor.T @ slope) ** 2).sum() + (bend**2).sum() / 2) / 2


def _bound(q: Whitened, around: Expectation) -> Float[jax.Array, ""]:
    return around.value - q.kl()
