"""Evidence with a Gaussian nuisance integrated out: the tightest Gaussian bound.

``log ∫ exp f(v) N(v | 0, I) dv ≥ max_q E_q[f] - KL(q ‖ N(0, I))`` over Gaussians ``q``, with
equality where ``f`` is quadratic. The inner optimum is found by natural gradients (khan2023) with
a line search on the bound itself, so it holds wherever the search stops.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from posterity.arrays.search import Point, search
from posterity.arrays.typing import Bool, Float, Number, PyTree, Real
from posterity.lazy import jax, jnp

MAX_STEPS = 100
"""Points that the search looks at; log-concave ``f`` take five to ten."""
TOLERANCE = 1e-9
"""In nats: what a further step would change, to second order."""
NEARLY = 1e-3
"""In nats: this close to the optimum a whole step is safe."""


class Whitened(NamedTuple):
    """A Gaussian over ``v`` (p,), whose prior is the standard normal."""

    mean: Float[Real, " p"]
    precision: Float[Real, "p p"]

    @classmethod
    def prior(cls, size: int, dtype: Any) -> "Whitened":
        """The standard normal."""
        return cls(jnp.zeros(size, dtype), jnp.eye(size, dtype=dtype))

    @property
    def factor(self) -> Float[Real, "p p"]:
        """``F`` with ``v = mean + F ε``, ``F Fᵀ`` the covariance; NaN if there is none."""
        identity = jnp.eye(len(self.mean), dtype=self.mean.dtype)
        lower = jnp.linalg.cholesky(self.precision)
        return jax.scipy.linalg.solve_triangular(lower, identity, lower=True).T

    def kl(self) -> Float[Real, ""]:
        """``KL(q ‖ N(0, I))`` in nats."""
        factor = self.factor
        logdet = -2 * jnp.log(jnp.diagonal(factor)).sum()
        return ((factor**2).sum() + self.mean @ self.mean - len(self.mean) + logdet) / 2


class Expectation(NamedTuple):
    """The value of ``E[f]`` under a Gaussian, its slope and minus its curvature in ``v``."""

    value: Float[Real, ""]
    slope: Float[Real, " p"]
    precision: Float[Real, "p p"]


Expected = Callable[[Any, Whitened], Expectation]
"""Of what else there is to depend on, a tree of arrays, and the Gaussian."""


def best_gaussian(
    expected: Expected, given: PyTree, start: Whitened
) -> tuple[Whitened, Bool[Real, ""]]:
    """The Gaussian of the tightest bound, and whether the search came near it.

    Not to be differentiated: see :func:`log_evidence`.
    """

    def look(q: Whitened) -> Point:
        around = expected(given, q)
        bound, squared = _bound(q, around), _squared(q, around)
        finite = jnp.isfinite(bound) & jnp.isfinite(squared)  # NaN of an improper Gaussian
        rounding = 1e-13 * (1 + jnp.abs(bound))
        return Point(q, around, jnp.where(finite, -bound, jnp.inf), rounding, squared, finite)

    best = search(look, start, move=_moved, most=MAX_STEPS, close=TOLERANCE).best
    return best.at, best.squared / 2 < NEARLY


def log_evidence(expected: Expected, given: PyTree, start: Whitened) -> Float[Real, ""]:
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


def _moved(q: Whitened, around: Expectation, rate: Number) -> Whitened:
    """A step in natural parameters, towards prior and expected curvature together."""
    goal = around.precision + jnp.eye(len(q.mean), dtype=q.mean.dtype)
    precision = q.precision + rate * (goal - q.precision)
    return Whitened(q.mean + jnp.linalg.solve(precision, rate * (around.slope - q.mean)), precision)


def _squared(q: Whitened, around: Expectation) -> Float[Real, ""]:
    """``gᵀ C g + ‖Fᵀ (Λ' - Λ) F‖²/2``: the squared length of the natural gradient."""
    factor, slope = q.factor, around.slope - q.mean
    goal = around.precision + jnp.eye(len(q.mean), dtype=q.mean.dtype)
    bend = factor.T @ (goal - q.precision) @ factor
    return ((factor.T @ slope) ** 2).sum() + (bend**2).sum() / 2


def _bound(q: Whitened, around: Expectation) -> Float[Real, ""]:
    return around.value - q.kl()
