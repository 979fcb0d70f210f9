"""The Gaussian of the tightest bound on ``log ∫ exp f(v) N(v | 0, I) dv``, by natural gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

from posterity.arrays.namespace import namespace
from posterity.arrays.search import Point, Rule, search
from posterity.arrays.typing import Bool, Float, Number, PyTree, Real
from posterity.runtime.lazy import jax, jnp


class Whitened(NamedTuple):
    """A Gaussian over whitened local parameters ``v`` (p,), whose prior is standard normal."""

    mean: Float[Real, " p"]
    precision: Float[Real, "p p"]

    @classmethod
    def prior(cls, size: int, dtype: Any) -> "Whitened":
        """Return the standard normal."""
        return cls(jnp.zeros(size, dtype), jnp.eye(size, dtype=dtype))

    @property
    def factor(self) -> Float[Real, "p p"]:
        """The root ``F`` of the covariance ``F Fᵀ``, ``v = mean + F ε``; NaN if improper."""
        xp = namespace(self.precision)
        return xp.inverse_lower(xp.cholesky(self.precision)).T

    def kl(self) -> Float[Real, ""]:
        """Return ``KL(q ‖ N(0, I))`` in nats."""
        factor = self.factor
        logdet = -2 * jnp.log(jnp.diagonal(factor)).sum()
        return ((factor**2).sum() + self.mean @ self.mean - len(self.mean) + logdet) / 2


class Expectation(NamedTuple):
    """``E[f]`` under a Gaussian, with ``E[∇f]`` and ``-E[∇²f]`` in ``v``."""

    value: Float[Real, ""]
    slope: Float[Real, " p"]
    precision: Float[Real, "p p"]


Expected = Callable[[Any, Whitened], Expectation]
"""A function of a tree of further arguments and the Gaussian."""


def best_gaussian(
    expected: Expected,
    given: PyTree,
    start: Whitened,
    *,
    most: int = 100,
    tolerance: float = 1e-9,
    near: float = 1e-3,
) -> tuple[Whitened, Bool[Real, ""]]:
    """Return the Gaussian of the tightest bound, and whether the search came ``near`` to it.

    The search ends where a further step would change the bound by ``tolerance`` nats, or after
    ``most`` evaluations; log-concave ``f`` need five to ten. ``near`` is the distance from the
    optimum, in nats, at which a whole step is safe. It is not differentiable, see
    :func:`log_evidence`.
    """

    def look(q: Whitened) -> Point:
        around = expected(given, q)
        bound = around.value - q.kl()
        squared = _squared(q, around)
        finite = jnp.isfinite(bound) & jnp.isfinite(squared)  # NaN of an improper Gaussian
        rounding = 1e-13 * (1 + jnp.abs(bound))
        return Point(q, around, jnp.where(finite, -bound, jnp.inf), rounding, squared, finite)

    best = search(look, start, move=_moved, most=most, rule=Rule(close=tolerance)).best
    return best.at, best.squared / 2 < near


def log_evidence(expected: Expected, given: PyTree, start: Whitened) -> Float[Real, ""]:
    """Return the bound in nats, differentiable in the arguments ``given``.

    The search is not differentiated, but one more step from its end is, which carries the
    dependence of the optimum on ``given``. First derivatives have an error of second order in the
    search's error, and second derivatives are close. NaN if the search did not converge, so that
    its gradient is not used: a visit then steps back, or fails if it cannot.
    """
    q, near = best_gaussian(expected, *jax.lax.stop_gradient((given, start)))
    q = _moved(q, expected(given, q), 1.0)
    return jnp.where(near, expected(given, q).value - q.kl(), jnp.nan)


def _moved(q: Whitened, around: Expectation, rate: Number) -> Whitened:
    """Make a step in natural parameters, towards the prior plus the expected curvature."""
    goal = around.precision + jnp.eye(len(q.mean), dtype=q.mean.dtype)
    precision = q.precision + rate * (goal - q.precision)
    step = namespace(precision).solve_positive(precision, rate * (around.slope - q.mean))
    return Whitened(q.mean + step, precision)


def _squared(q: Whitened, around: Expectation) -> Float[Real, ""]:
    """Return ``gᵀ C g + ‖Fᵀ (Λ' - Λ) F‖²/2``, the squared length of the natural gradient."""
    factor = q.factor
    slope = around.slope - q.mean
    goal = around.precision + jnp.eye(len(q.mean), dtype=q.mean.dtype)
    bend = factor.T @ (goal - q.precision) @ factor
    return ((factor.T @ slope) ** 2).sum() + (bend**2).sum() / 2
