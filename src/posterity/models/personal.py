"""Hierarchical models, in which every site has local parameters: partial pooling.

The shared ``z`` determines the law of local parameters ``b_k ~ p(b | z)``. A site integrates its
``b_k`` out, so its factor is a marginal likelihood of ``z`` with dependent records. ``b_k``
is not stored or sent. This is structured variational inference for a federation (hassan2023), in
which each visit optimises ``q(b_k | z)`` anew: the Gaussian of the tightest bound ``log ∫ exp f(v)
N(v | 0, I) dv ≥ max_q E_q[f] - KL(q ‖ N(0, I))``, with equality for quadratic ``f``. It is found by
natural gradients (khan2023) with a line search on the bound, so every iterate is a bound.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from posterity.arguments import POSITIVE, Constraint, instance
from posterity.arrays.namespace import namespace
from posterity.arrays.tree import static
from posterity.arrays.typing import Float, Real, Shape
from posterity.errors import UsageError
from posterity.families import ExponentialFamily, Gaussian, Product
from posterity.models.base import Model, PredictorModel, weighted
from posterity.models.nodes import cubature, hermite, log_normal_mean, normal_nodes
from posterity.models.records import Records
from posterity.models.regression import LinearRegression, LogisticRegression
from posterity.models.tightest import Expectation, Whitened, best_gaussian, log_evidence
from posterity.runtime.lazy import jax, jnp


@dataclasses.dataclass(frozen=True)
class Spreads:
    """The prior of coefficients' spreads between sites: their logarithms are correlated normals."""

    typical: float = 0.25
    """Median of a spread, in the coefficient's prior standard deviations."""
    errors: float = 2.0
    """Median of a spread in the fusion of finished posteriors, in the sites' mean standard error
    weighed by precision: intervals then hold where few sites differ by as much
    (docs/decisions/0059). It is more where sites' estimates differ by more."""
    common: float = 1.5
    """Standard deviation of the part of log spreads that all coefficients have in common."""
    own: float = 0.75
    """Standard deviation of each log spread's own part."""


SPREADS = Spreads()
FARTHEST = 1e100
"""Largest expected spread, and its inverse the smallest: squares of what is some deviations of the
prior beyond remain numbers."""
SPREAD = Constraint(
    f"a positive number from {1 / FARTHEST:g} to {FARTHEST:g}",
    lambda x: POSITIVE.allows(x) and 1 / FARTHEST <= x <= FARTHEST,
)
REGRESSION = instance(
    "a model with a linear predictor: LogisticRegression, LinearRegression, a PredictorModel",
    PredictorModel,
)


class Law(NamedTuple):
    """The law of ``b = mean + scale v``, ``v`` standard normal; ``scale`` is (p,) or (p, p)."""

    mean: Float[Any, " p"]
    scale: Float[Any, "..."]

    def at(self, v: Any) -> Any:
        """Return ``b`` for each ``v`` (..., p)."""
        return self.mean + (v * self.scale if jnp.ndim(self.scale) < 2 else v @ self.scale.T)


class PersonalModel(Model):
    """A model of sites that share ``z`` and have local ``b`` (p,), Gaussian given ``z``.

    Authors write :meth:`local_prior` and :meth:`local_log_likelihood`. Parameters that are not
    Gaussian are functions of ``b``, such as ``exp(b)`` for positive ones.

    Records of a site are dependent through ``b``, so minibatches are not possible. A record's
    weight multiplies its log likelihood given ``b``.

    >>> class Baselines(PersonalModel):  # counts about a rate of each site's own
    ...     def local_prior(self, z):
    ...         return z[:1], jnp.exp(z[1:])
    ...     def local_log_likelihood(self, z, b, data):
    ...         return data * b[0] - jnp.exp(b[0])
    """

    joint = True

    @abc.abstractmethod
    def local_prior(self, z: Any) -> tuple[Any, Any]:
        """Return the mean (p,) and scale of ``b``: standard deviations (p,) or a root (p, p)."""

    @abc.abstractmethod
    def local_log_likelihood(self, z: Any, b: Float[Real, " p"], data: Any) -> Float[Real, " n"]:
        """Return ``log p(record | z, b)`` of each record, in nats."""

    def total(self, z: Any, records: Records) -> Float[Real, ""]:
        """Return the tightest Gaussian bound on ``log ∫ p(records | z, b) p(b | z) db`` in nats, up
        to the error of quadrature.
        """
        return log_evidence(self.expected, (z, records), self._start(z))

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """Return each record's log likelihood as if it were its site's only one, in nats; they do
        not sum to ``total``.
        """
        alone = jax.tree.map(lambda leaf: jnp.asarray(leaf)[:, None], data)
        return jax.vmap(lambda one: self.total(z, Records(one, jnp.ones(1))))(alone)

    def local(self, z: Any, records: Records | None) -> Law:
        """Return the law of a site's ``b`` given ``z`` and its records, or the prior's if none."""
        law = self._law(z)
        if records is None or records.size == 0:
            return law
        q, _ = best_gaussian(self.expected, (z, records), self._start(z))
        factor = q.factor
        scale = law.scale[:, None] * factor if jnp.ndim(law.scale) < 2 else law.scale @ factor
        return Law(law.at(q.mean), scale)

    def log_predictive(self, z: Any, law: Law, data: Any) -> Float[Real, " n"]:
        """Return ``log E[p(record | z, b)]`` of each record alone, ``b ~ law``, in nats."""
        nodes, chances = cubature(len(law.mean))
        values = jax.vmap(lambda v: self.local_log_likelihood(z, law.at(v), data))(nodes)
        return jax.scipy.special.logsumexp(values, 0, b=chances[:, None])

    def expected(self, given: Any, q: Whitened) -> Expectation:
        """Return the expectation of a site's log likelihood under a Gaussian over the whitened
        ``b``, by cubature.
        """
        z, records = given
        law = self._law(z)
        factor = q.factor
        epsilon, chances = cubature(len(q.mean))

        def each(b):
            return self.local_log_likelihood(z, b, records.data)

        def own(v):
            return weighted(each(law.at(v)), records)

        values, slopes = jax.vmap(jax.value_and_grad(own))(q.mean + epsilon @ factor.T)
        # Stein's lemma: E[∇²f] = E[∇f εᵀ] F⁻¹, the derivative of these very sums.
        whitened = namespace(factor).inverse_lower(factor.T)
        bend = whitened @ (epsilon * chances[:, None]).T @ slopes
        return Expectation(chances @ values, chances @ slopes, -(bend + bend.T) / 2)

    def _law(self, z: Any) -> Law:
        mean, scale = self.local_prior(z)
        return Law(jnp.asarray(mean), jnp.asarray(scale))

    def _start(self, z: Any) -> Whitened:
        mean = self._law(z).mean
        return Whitened.prior(len(mean), mean.dtype)


class PersonalRegression(PersonalModel):
    """A regression with varying coefficients: each site has its own, about the population's.

    ``z`` is ``{"coefficients": (d,), "log_spread": (p,)}``. The coefficients in ``personal`` are
    normal at each site, with the population's as means and ``exp(log_spread)`` as standard
    deviations; the others are the population's. Data are ``(x, y)`` as for the ``model``.

    A site's factor is its marginal likelihood, which is exact for a Gaussian likelihood and else by
    expectation propagation with Gaussian local coefficients (minka2001), see
    :class:`~posterity.inference.pooling.PartialPooling`. If an estimator is named, it is the
    tightest Gaussian bound, with expectations by quadrature along each predictor.
    """

    model: PredictorModel
    personal: Shape = static()

    families = (Product,)
    nodes: ClassVar[int] = 24
    """Gauss-Hermite nodes along each record's predictor, under the posterior."""

    def check(self, data: Any) -> None:
        self.model.check(data)

    def local_prior(self, z: Any) -> tuple[Any, Any]:
        return z["coefficients"][np.array(self.personal)], jnp.exp(z["log_spread"])

    def local_log_likelihood(self, z: Any, b: Float[Real, " p"], data: Any) -> Float[Real, " n"]:
        """Return ``log p(y | x · β)``, with the site's own coefficients in ``β``."""
        x, y = data
        return self.model.predictor_log_likelihood(x @ self.coefficients(z, b), y)

    def coefficients(self, z: Any, b: Float[Real, "... p"]) -> Float[Real, "... d"]:
        """Return all coefficients of a site: its own, and the population's for the others."""
        shared = jnp.broadcast_to(z["coefficients"], (*jnp.shape(b)[:-1], *z["coefficients"].shape))
        return shared.at[..., np.array(self.personal)].set(b)

    def expected(self, given: Any, q: Whitened) -> Expectation:
        """Return the expectation by quadrature along predictors ``f ~ N(m, s²)``."""
        z, records = given
        x, y = records.data
        own = x[:, np.array(self.personal)] * jnp.exp(z["log_spread"])
        offset = x @ z["coefficients"]
        deviation = _norm(own @ q.factor)
        epsilon, chances = hermite(self.nodes)
        f = (offset + own @ q.mean)[:, None] + deviation[:, None] * epsilon
        values, slopes = self.model.predictor_value_and_slope(f, jnp.asarray(y, f.dtype)[:, None])
        bend = slopes @ (chances * epsilon) / jnp.where(deviation > 0, deviation, 1.0)
        weights = records.weights
        slope = (weights * (slopes @ chances)) @ own
        bend = (own.T * (weights * bend)) @ own
        return Expectation(weights @ (values @ chances), slope, -bend)

    def log_predictive(self, z: Any, law: Law, data: Any) -> Float[Real, "*m n"]:
        """Return the log predictive density in nats, in closed form for linear regression, else by
        quadrature. ``z`` and ``law`` may have leading axes.
        """
        x, y = data
        mean, deviation = self._predictor(z, law, x)
        np_ = namespace(mean).np
        y = np_.asarray(y, mean.dtype)
        if isinstance(self.model, LinearRegression):
            variance = self.model.noise_variance + deviation**2
            return -((y - mean) ** 2 / variance + np_.log(2 * np.pi * variance)) / 2

        def at(u):
            return mean[..., None] + deviation[..., None] * u

        def log_likelihood(u):
            return self.model.predictor_log_likelihood(at(u), y[:, None])

        if isinstance(self.model, LogisticRegression):  # its likelihood has no narrow peaks
            u, chances = _nodes_for(deviation)
            return namespace(mean).logsumexp(log_likelihood(u) + np.log(chances))
        return log_normal_mean(log_likelihood, mean)

    def predict(self, z: Any, law: Law, x: Float[Real, "n d"]) -> Float[Real, "*m n"]:
        """Return ``E[y | x]`` of each row, ``b ~ law``; leading axes as in ``log_predictive``."""
        mean, deviation = self._predictor(z, law, x)
        if isinstance(self.model, LinearRegression):
            return mean
        epsilon, chances = _nodes_for(deviation)
        return self.model.predictor_mean(mean[..., None] + deviation[..., None] * epsilon) @ chances

    def _predictor(self, z: Any, law: Law, x: Any) -> tuple[Any, Any]:
        columns = np.array(self.personal)
        common = np.setdiff1d(np.arange(x.shape[-1]), columns)
        own = x[:, columns]
        matrices = law.scale.ndim > law.mean.ndim
        spread = own @ law.scale if matrices else own * law.scale[..., None, :]
        mean = law.mean @ own.T + z["coefficients"][..., common] @ x[:, common].T
        return mean, _norm(spread)


def _nodes_for(deviation: Real, *, within: int = 32, most: int = 128) -> tuple[Any, Any]:
    """Return nodes and weights along predictors: ``within`` for each unit of the largest deviation,
    if that is known, and at ``most`` so many.
    """
    known = isinstance(deviation, np.ndarray) and deviation.size
    count = math.ceil(within * max(1.0, deviation.max())) if known else most
    return normal_nodes(min(count, most), deviation.dtype)


def _norm(rows: Any) -> Any:
    """Return the length of each row, differentiable also at zero."""
    np_ = namespace(rows).np
    squares = (rows**2).sum(-1)
    positive = squares > 0
    return np_.where(positive, np_.sqrt(np_.where(positive, squares, 1.0)), 0.0)


# --- from one argument ---------------------------------------------------------------------------


def hierarchical(
    model: Model,
    prior: ExponentialFamily,
    personal: bool | Sequence[int | str] | Mapping[Any, float],
    *,
    spreads: Spreads = SPREADS,
) -> tuple[PersonalRegression, Product]:
    """Return a regression with coefficients that vary between sites, and a prior of its parameters.

    Args:
        model: regression of one site.
        prior: Gaussian prior of the population's coefficients, or a Product of such
            ``coefficients`` and a Gaussian ``log_spread``.
        personal: True for all coefficients, or the columns of those that vary, by number or by the
            prior's names; a mapping gives the prior median of each one's spread between sites.
        spreads: prior of the spreads, if ``prior`` has none.

    The prior of spreads is log-normal. Its median is a quarter of the coefficient's prior standard
    deviation, or as in ``personal``. Log spreads have a common part of standard deviation 1.5 and
    independent parts of 0.75, so that the spread of one coefficient informs about the others'.

    Raises:
        UsageError: if the model is not a regression, the columns are not the prior's, or the prior
            is neither Gaussian nor such a Product.

    >>> from posterity.models import LogisticRegression
    >>> prior = Gaussian.from_standard(mean=[0.0, 0.0], covariance=[[4.0, 0.0], [0.0, 1.0]])
    >>> model, joint = hierarchical(LogisticRegression(), prior, [0])
    >>> np.exp(joint.log_spread.mean).round(2)
    array([0.5])
    """
    REGRESSION.check(model=model)
    given = dict(prior.independent_blocks()) or {"coefficients": prior}
    coefficients = given.get("coefficients")
    spread = given.get("log_spread")
    unknown = set(given) - {"coefficients", "log_spread"}
    if coefficients is None or not coefficients.gaussian or unknown:
        raise UsageError(
            found=f"a prior {prior!r}",
            expected="a Gaussian of the coefficients, or a Product of `coefficients` and "
            "`log_spread`",
        )
    expected = _columns(personal, coefficients.own_size, coefficients.names)
    columns = tuple(expected)
    spread = _spread_prior(coefficients, expected, spreads) if spread is None else spread
    if coefficients.names and len(columns) == getattr(spread, "own_size", 0) and not spread.names:
        spread = spread.named([coefficients.names[j] for j in columns])
    if not spread.gaussian or spread.own_size != len(columns):
        raise UsageError(
            found=f"log_spread {spread!r} for {len(columns)} coefficients of a site's own",
            expected="a Gaussian of one dimension each",
        )
    return PersonalRegression(model, columns), Product(coefficients=coefficients, log_spread=spread)  # pyright: ignore[reportArgumentType]


def _columns(personal: Any, size: int, names: Sequence[str] = ()) -> dict[int, float | None]:
    """Return the numbers of the columns, sorted, each with its median spread, or None."""
    several = isinstance(personal, Sequence | Mapping) or getattr(personal, "ndim", 0) == 1
    asked = range(size) if personal is True else list(personal) if several else []
    places = {name: place for place, name in enumerate(names)}
    columns: list[Any] = [places.get(one, one) if isinstance(one, str) else one for one in asked]
    whole = all(type(j) is not bool and isinstance(j, int | np.integer) for j in columns)
    whole = whole and all(0 <= j < size for j in columns)
    if not columns or not whole or len(set(columns)) < len(columns):
        named = f", or names among {list(names)}" if names else ""
        raise UsageError(
            found=f"personal={personal!r} for {size} coefficients",
            expected=f"True, or different whole numbers from 0 to {size - 1}{named}",
        )
    spreads: list[Any] = [None] * len(columns)
    if isinstance(personal, Mapping):
        spreads = [*personal.values()]
        SPREAD.check(**{f"personal[{j}]": s for j, s in zip(columns, spreads, strict=True)})
    return dict(sorted(zip(map(int, columns), spreads, strict=True)))


def _spread_prior(
    coefficients: Any, expected: Mapping[int, float | None], spreads: Spreads
) -> Gaussian:
    """Return the prior of correlated log-normal spreads."""
    known = coefficients.standard_parameters()
    variance = known["variance"] if coefficients.diagonal else np.diagonal(known["covariance"])
    usual = spreads.typical * np.sqrt(variance)
    typical = np.array([usual[j] if s is None else s for j, s in expected.items()], float)
    SPREAD.check(**{f"personal[{j}]": s for j, s in zip(expected, typical.tolist(), strict=True)})
    together = np.full((len(typical), len(typical)), spreads.common**2)
    return Gaussian.from_standard(np.log(typical), together + spreads.own**2 * np.eye(len(typical)))
