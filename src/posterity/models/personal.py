"""Models in which every site has parameters of its own: partial pooling.

What sites share, ``z``, governs the law of what is each one's own: ``b_k ~ p(b | z)``. A site
integrates its ``b_k`` out, so what it says of ``z`` is a marginal likelihood, in which records
belong together; nothing of ``b_k`` is stored or sent. This is structured variational inference
for a federation (hassan2023) in which each visit finds the best ``q(b_k | z)`` anew: the Gaussian
of the tightest bound ``log ∫ exp f(v) N(v | 0, I) dv ≥ max_q E_q[f] - KL(q ‖ N(0, I))``, with
equality where ``f`` is quadratic. That optimum is found by natural gradients (khan2023) with a line
search on the bound itself, so it holds wherever the search stops.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from posterity.arrays.search import Point, search
from posterity.arrays.typing import Bool, Float, Number, PyTree, Real
from posterity.lazy import jax, jnp
from posterity.models.base import Model, weighted
from posterity.models.nodes import cubature
from posterity.models.records import Records

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


class Law(NamedTuple):
    """``b = mean + scale v`` with ``v`` standard normal: ``scale`` (p,) or a matrix (p, p)."""

    mean: Float[Any, " p"]
    scale: Float[Any, "..."]

    def at(self, v: Any) -> Any:
        """``b`` of each ``v`` (..., p)."""
        return self.mean + (v * self.scale if jnp.ndim(self.scale) < 2 else v @ self.scale.T)


class PersonalModel(Model):
    """Sites that share ``z`` and have a ``b`` (p,) each, Gaussian given ``z``.

    Authors write :meth:`local_prior` and :meth:`local_log_likelihood`. Parameters that are not
    Gaussian are functions of ``b``: ``exp(b)`` where they are positive.

    Records of a site tell of each other through ``b``, so a batch of them does not stand for all,
    and weights of records count them as if ``b`` had been seen so many times.

    >>> class Baselines(PersonalModel):  # counts about a rate of each site's own
    ...     def local_prior(self, z):
    ...         return z[:1], jnp.exp(z[1:])
    ...     def local_log_likelihood(self, z, b, data):
    ...         return data * b[0] - jnp.exp(b[0])
    """

    joint: ClassVar[bool] = True

    @abc.abstractmethod
    def local_prior(self, z: Any) -> tuple[Any, Any]:
        """Mean (p,) and scale of ``b`` given ``z``: standard deviations (p,) or ``L`` (p, p)."""

    @abc.abstractmethod
    def local_log_likelihood(self, z: Any, b: Float[Real, " p"], data: Any) -> Float[Real, " n"]:
        """``log p(record | z, b)`` of each record, in nats."""

    def total(self, z: Any, records: Records) -> Float[Real, ""]:
        """The tightest Gaussian bound on ``log ∫ p(records | z, b) p(b | z) db``, in nats.

        Its expectations are sums over nodes: it is a bound up to their error.
        """
        return log_evidence(self.expected, (z, records), self._start(z))

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """Of each record as if it were its site's only one; they do not sum to ``total``."""
        alone = jax.tree.map(lambda leaf: jnp.asarray(leaf)[:, None], data)
        return jax.vmap(lambda one: self.total(z, Records(one, jnp.ones(1))))(alone)

    def local(self, z: Any, records: Records | None) -> Law:
        """The site's own ``b`` given ``z`` and its records, or for a site without any."""
        start = self._start(z)
        if records is None or records.size == 0:
            return self._law(z)
        q, _ = best_gaussian(self.expected, (z, records), start)
        law, factor = self._law(z), q.factor
        scale = law.scale[:, None] * factor if jnp.ndim(law.scale) < 2 else law.scale @ factor
        return Law(law.at(q.mean), scale)

    def log_predictive(self, z: Any, law: Law, data: Any) -> Float[Real, " n"]:
        """``log E[p(record | z, b)]`` of each record alone, ``b`` of that law, in nats."""
        nodes, chances = cubature(len(law.mean))
        values = jax.vmap(lambda v: self.local_log_likelihood(z, law.at(v), data))(nodes)
        return jax.scipy.special.logsumexp(values, 0, b=chances[:, None])

    def expected(self, given: Any, q: Whitened) -> Expectation:
        """Of the site's log likelihood under a Gaussian over the whitened ``b``, by cubature."""
        z, records = given
        law, factor = self._law(z), q.factor
        epsilon, chances = cubature(len(q.mean))
        own = lambda v: self._weighted(z, law.at(v), records)
        values, slopes = jax.vmap(jax.value_and_grad(own))(q.mean + epsilon @ factor.T)
        # Stein's lemma: E[∇²f] = E[∇f εᵀ] F⁻¹, the derivative of these very sums.
        bend = jnp.linalg.solve(factor.T, (epsilon * chances[:, None]).T @ slopes)
        return Expectation(chances @ values, chances @ slopes, -(bend + bend.T) / 2)

    def _weighted(self, z: Any, b: Any, records: Records) -> Any:
        return weighted(self.local_log_likelihood(z, b, records.data), records)

    def _law(self, z: Any) -> Law:
        mean, scale = self.local_prior(z)
        return Law(jnp.asarray(mean), jnp.asarray(scale))

    def _start(self, z: Any) -> Whitened:
        mean = self._law(z).mean
        return Whitened.prior(len(mean), mean.dtype)
