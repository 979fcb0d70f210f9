"""Models in which every site has parameters of its own: partial pooling.

What sites share, ``z``, governs the law of what is each one's own: ``b_k ~ p(b | z)``. A site
integrates its ``b_k`` out, so what it says of ``z`` is a marginal likelihood, in which records
belong together; nothing of ``b_k`` is stored or sent. This is structured variational inference
for a federation (hassan2023) in which each visit finds the best ``q(b_k | z)`` anew.
"""

import abc
from typing import Any, ClassVar, NamedTuple

from posterity.arrays.typing import Float, Real
from posterity.lazy import jax, jnp
from posterity.models.base import Model, weighted
from posterity.models.cubature import cubature
from posterity.models.evidence import Expectation, Whitened, best_gaussian, log_evidence
from posterity.models.records import Records


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
