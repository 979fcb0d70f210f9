"""Natural gradients of expected log likelihoods, which are what sites' factors are made of.

The local free energy is least where a site's factor equals ``∇_μ E_q[log likelihood] / α``
(bui2018, khan2023). Every estimator here gives that gradient as a member of the family, so an
exact conjugate factor, a quadrature and a Monte Carlo estimate all come out in the same form.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from posterity.arguments import Constraint, at_least
from posterity.arrays.namespace import is_jax, namespace
from posterity.arrays.tree import Setting, static
from posterity.arrays.typing import Bool, Float, KeyArray, Real
from posterity.families import Categorical, ExponentialFamily
from posterity.families.gaussian import AnyGaussian
from posterity.inference.descent import dtype_of
from posterity.inference.joint import joint_mean, moved_to, slope_in_mean
from posterity.lazy import jax, jnp
from posterity.models import ConjugateModel, ExpectedModel, Model, PredictorModel, Records
from posterity.models.nodes import TAIL, expectation_nodes, normal_nodes

Q = TypeVar("Q", bound=ExponentialFamily)
Flag = Bool[Real, ""] | bool
"""Traced or not."""
AT_A_TIME = 1 << 15
"""Nodes of records that NumPy looks at together."""
PREDICTOR_NODES = 64
"""Nodes along a predictor, by default."""
NODES_LIMIT = 4096
"""Nodes beyond which a sum over them is not refined."""
IMPOSSIBLE = 1e4
"""Nats below the best label at which another one is out of the question."""
NOTHING = 1e-20
"""A chance so small that what a naive log likelihood says there, unless finite, is not asked."""
BASELINE = Constraint(
    "'leave-one-out', or a number, such as 0.0 for none",
    lambda given: given == "leave-one-out" or isinstance(given, float | int),
)


class Estimator(Setting):
    """One way to find ``∇_μ E_q[log likelihood]``."""

    stochastic: ClassVar[bool] = False
    """Whether two keys give two answers: steps must then shrink to converge."""
    domain: ClassVar[str] = "halve"
    """What is best done with steps that leave the family (:class:`LocalUpdate`)."""
    fitting: ClassVar[str]
    """What models and families it serves, for messages."""
    models: ClassVar[type[Model]] = Model
    """What models it serves."""
    numpy: ClassVar[bool] = False
    """Whether it works on NumPy's arrays, by models that do."""

    def fits(self, model: Model, q: ExponentialFamily) -> bool:
        """Return whether the estimator serves this model and family."""
        return isinstance(model, self.models) and self._serves(q)

    def _serves(self, q: ExponentialFamily) -> bool:
        return True

    @abc.abstractmethod
    def __call__(self, model: Model, q: Any, records: Records, *, key: KeyArray) -> Any:
        """The natural gradient at ``q``, a factor; ``q`` must be proper and unbatched.

        Call it within ``jax.enable_x64(True)``, or JAX computes in float32.
        """


class Expectation(NamedTuple):
    """``E_q[log likelihood]``, in nats, and ``∇_μ`` of it, as a factor."""

    value: Float[Real, ""]
    gradient: Any


class Curved(NamedTuple):
    """An expectation as a function of the means of Gaussian parts, which are one after the other.

    ``slope`` (d,) is its derivative, and ``curvature`` (d, d) minus the second one. Where the
    expectation is a sum over nodes, so is the curvature, which may differ from the derivative of
    that sum by as little as nodes miss.
    """

    expected: Expectation
    slope: Float[Real, " d"]
    curvature: Float[Real, "d d"]


class Evaluator(Estimator):
    """An estimator without noise, which knows the expectation itself: steps can be searched for.

    The gradient is that of the value, so that what little the nodes of a sum miss does not stop a
    descent: it ends where that sum has its optimum.
    """

    nodal: ClassVar[bool] = False
    """True if the estimator sums over nodes, and heeds ``otherwise``."""

    def __call__(self, model: Model, q: Any, records: Records, *, key: Any = None) -> Any:
        return self.evaluate(model, q, records).gradient

    @abc.abstractmethod
    def evaluate(
        self, model: Model, q: ExponentialFamily, records: Records, *, otherwise: Flag = False
    ) -> Expectation:
        """The expectation and its natural gradient; call it within ``jax.enable_x64(True)``.

        Where the expectation is a sum over nodes, ``otherwise`` (traced) asks for it by others:
        what the two say differs by no less than the error of the first.
        """

    def curved(self, model: Model, q: ExponentialFamily, records: Records) -> Curved:
        """The expectation and its derivatives in the means of Gaussian parts.

        Call it within ``jax.enable_x64(True)``.
        """

        def at(mean: Float[Real, " d"]) -> tuple[Any, Expectation]:
            moved = moved_to(q, mean)
            expected = self.evaluate(model, moved, records)
            return slope_in_mean(moved, expected.gradient), expected

        mean = jnp.asarray(joint_mean(q))
        slope, back, expected = jax.linearize(at, mean, has_aux=True)
        return Curved(expected, slope, -jax.lax.map(back, jnp.eye(len(mean), dtype=slope.dtype)))

    def by_nodes(self, model: Any, q: Any, records: Records) -> bool:
        """True if the expectation is a sum over nodes, of which others may tell otherwise."""
        del model, q, records
        return self.nodal

    def finer(self) -> "Evaluator | None":
        """An estimator of four times the nodes; None where there is none."""
        return None


class Exact(Estimator):
    """The conjugate factor, whatever ``q`` is."""

    fitting: ClassVar[str] = "conjugate models"
    models: ClassVar[type[Model]] = ConjugateModel
    numpy: ClassVar[bool] = True

    def fits(self, model: Model, q: ExponentialFamily) -> bool:
        return isinstance(model, ConjugateModel) and isinstance(q, model.conjugate_to)

    def __call__(self, model: Any, q: Any, records: Records, *, key: Any = None) -> Any:
        return model.factor(records)


class ClosedForm(Evaluator):
    """Differentiates the known expectation."""

    fitting: ClassVar[str] = "models that know E_q[log likelihood] (ExpectedModel)"
    models: ClassVar[type[Model]] = ExpectedModel
    numpy: ClassVar[bool] = True

    def evaluate(
        self, model: Any, q: ExponentialFamily, records: Records, *, otherwise: Flag = False
    ) -> Expectation:
        """``F⁻¹ ∇_η E_q[log likelihood]``, or what the model says of itself."""
        if (known := model.expected_factor(q, records)) is not None:
            return Expectation(*known)
        weights, data = records.weights, records.data
        return _derived(q, lambda q: (weights * model.expected_log_likelihood(q, data)).sum())


class Enumeration(Evaluator):
    """Categorical posteriors: every label is asked."""

    fitting: ClassVar[str] = "Categorical posteriors"

    def _serves(self, q: ExponentialFamily) -> bool:
        return q.over_labels and not q.batch_shape

    def evaluate(
        self, model: Model, q: Categorical, records: Records, *, otherwise: Flag = False
    ) -> Expectation:
        values = jax.vmap(lambda z: model.total(z, records))(jnp.arange(q.dimension + 1))
        # Only what a label lacks against the best one counts; an impossible label stays finite.
        values = jnp.maximum(values, values.max() - IMPOSSIBLE)
        return Expectation(q.probabilities @ values, type(q)._of(log_odds=values[:-1] - values[-1]))


class Nodal(Evaluator):
    """A sum over nodes, of which there may be too few: told by what half of them say."""

    nodes: int = static(default=128)

    nodal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(8).check(nodes=self.nodes)

    def finer(self) -> "Evaluator | None":
        more = 4 * self.nodes
        return None if more > NODES_LIMIT else dataclasses.replace(self, nodes=more)

    def _of_half(self, chances: Real, otherwise: Flag) -> Any:
        """The chances of every other node, where half of them are asked."""
        if otherwise is False:
            return chances
        np_ = namespace(chances, otherwise).np
        half = np_.where(np.arange(self.nodes) % 2 == 0, chances, 0.0)
        return np_.where(otherwise, half / half.sum(), chances)


class Quadrature(Nodal):
    """One-dimensional posteriors: a sum over nodes that follow ``q``.

    ``∇_μ E_q[f] = F⁻¹ Cov_q(s, f)``, by the trapezoidal rule on the line that the support is
    mapped to, where it converges exponentially (trefethen2014). The log likelihood is asked at
    rounded ``z``: a Beta with much mass within 1e-16 of one (``b`` below 0.3) loses digits.
    """

    fitting: ClassVar[str] = "Beta, Gamma and one-dimensional Gaussian posteriors"

    def _serves(self, q: ExponentialFamily) -> bool:
        return q.line(TAIL) is not None

    def evaluate(
        self, model: Model, q: ExponentialFamily, records: Records, *, otherwise: Flag = False
    ) -> Expectation:
        """``F⁻¹ Σ p f (s - μ)``."""
        z, statistics, chances = expectation_nodes(q, self.nodes)
        chances = self._of_half(chances, otherwise)
        values = jax.vmap(lambda point: model.total(point, records))(z)
        # Nodes of no mass may lie where f overflows, or where naive code takes the logarithm of 0.
        values = jnp.where((chances > NOTHING) | jnp.isfinite(values) & (chances > 0), values, 0.0)
        centred, mean = statistics - chances @ statistics, chances @ values
        return Expectation(mean, _natural(q, (chances * (values - mean)) @ centred))


class PredictorQuadrature(Nodal):
    """Gaussian posteriors seen through a linear predictor: a sum over nodes on the line.

    With ``f ~ N(x·m, v)``, ``v = xᵀ C x``, the theorems of Bonnet and Price (opper2009) need only
    ``E[ℓ'(f)]`` and ``E[ℓ''(f)] = E[ℓ'(f) (f - x·m)] / v``; the second form stays usable where
    ``f`` is spread wider than the nodes resolve. For the logistic likelihood 64 nodes give all
    digits for deviations up to 1, 1e-6 at 5 and 1e-3 at 10. Where no other number of nodes is
    asked for, what the model knows of expectations takes their place.
    """

    nodes: int = static(default=PREDICTOR_NODES)

    fitting: ClassVar[str] = "Gaussian posteriors of models with a linear predictor"
    models: ClassVar[type[Model]] = PredictorModel
    numpy: ClassVar[bool] = True

    def _serves(self, q: ExponentialFamily) -> bool:
        return q.gaussian

    def by_nodes(self, model: Any, q: Any, records: Records) -> bool:
        none = q.xp.np.zeros(0)
        asked = self.nodes != PREDICTOR_NODES
        return asked or model.predictor_expectation(none, none, records.data[1][:0]) is None

    def evaluate(
        self, model: PredictorModel, q: AnyGaussian, records: Records, *, otherwise: Flag = False
    ) -> Expectation:
        """``Σ E[ℓ]``, and of its gradient ``Σ E[ℓ'] x`` and ``-Σ E[ℓ''] x xᵀ``."""
        x, value, slope, bend = self._along(model, q, records, otherwise)
        return Expectation(value, q.at_mean(slope @ x, q.gram(x, bend)))

    def curved(self, model: PredictorModel, q: AnyGaussian, records: Records) -> Curved:
        """``-Σ E[ℓ''] x xᵀ``, of which a factor's precision is a part or all."""
        x, value, slope, bend = self._along(model, q, records, False)
        expected = Expectation(value, q.at_mean(slope @ x, q.gram(x, bend)))
        return Curved(expected, slope @ x, (x.T * bend) @ x)

    def _along(
        self, model: PredictorModel, q: AnyGaussian, records: Records, otherwise: Flag
    ) -> tuple[Any, Any, Any, Any]:
        """Inputs ``x``, ``Σ E[ℓ]``, and of each record ``E[ℓ']`` and ``-E[ℓ'']``, weighted."""
        x, y = records.data
        np_, weights = q.xp.np, records.weights
        x = np_.asarray(x, dtype_of(q))
        mean, variance = q.predictor(x)
        by_default = self.nodes == PREDICTOR_NODES
        if by_default and (known := model.predictor_expectation(mean, variance, y)) is not None:
            value, slope, bend = known
            return x, weights @ value, weights * slope, -weights * bend
        deviation = np_.sqrt(variance)
        epsilon, chances = normal_nodes(self.nodes, deviation.dtype)
        chances = self._of_half(chances, otherwise)
        sums = np_.stack([chances, chances * epsilon])

        def along_nodes(mean: Real, deviation: Real, y: Real) -> Any:
            # Nodes by records: so a sum over nodes takes least where it is compiled.
            predictor = mean + deviation * epsilon[:, None]
            values, slopes = model.predictor_value_and_slope(predictor, y)
            return chances @ values, *(sums @ slopes)

        value, slope, bend = in_parts(along_nodes, (mean, deviation, y), AT_A_TIME // self.nodes)
        # Where x = 0 the deviation is zero, and the curvature is multiplied by zero later.
        bend = bend / np_.where(deviation > 0, deviation, 1.0)
        return x, weights @ value, weights * slope, -weights * bend


class Sampling(Estimator):
    """A mean over draws from the posterior."""

    samples: int = static(default=8)

    stochastic: ClassVar[bool] = True
    fewest: ClassVar[int] = 1
    """The fewest samples that it can do with."""

    def __post_init__(self) -> None:
        at_least(self.fewest).check(samples=self.samples)


class Reinforce(Sampling):
    """Scores times log likelihoods, less a baseline: the paper's estimator.

    ``∇_η E_q[f] = E_q[(f - c)(s - μ)]`` for any constant ``c``. The paper subtracts one
    constant; ``baseline="leave-one-out"`` takes the mean of the other draws instead (kool2019),
    which stays unbiased and has a fraction of the variance.

    Source: gong2021, equation 18.
    """

    samples: int = static(default=30)
    baseline: str | float = static(default="leave-one-out")

    fitting: ClassVar[str] = "every model and family"

    def __post_init__(self) -> None:
        BASELINE.check(baseline=self.baseline)
        at_least(2 if self.baseline == "leave-one-out" else 1).check(samples=self.samples)

    def __call__(self, model: Model, q: Any, records: Records, *, key: KeyArray) -> Any:
        """``F⁻¹`` times the mean of centred values times scores."""
        z, values = _draw(model, q, records, self.samples, key)
        if isinstance(self.baseline, str):
            values = (values - values.mean()) * self.samples / (self.samples - 1)
        else:
            values = values - self.baseline
        score = q.sufficient_statistics(z) - q.mean_parameters
        return _natural(q, values @ score / self.samples)


class LeastSquares(Sampling):
    """The slope of a linear regression of the log likelihood on ``s(z)`` (salimans2013).

    Biased for few samples, exact when the model is conjugate.
    """

    samples: int = static(default=64)

    fitting: ClassVar[str] = "every model and family of fewer parameters than samples"

    def _serves(self, q: ExponentialFamily) -> bool:
        return q.dimension + 1 < self.samples

    def __call__(self, model: Model, q: Any, records: Records, *, key: KeyArray) -> Any:
        z, values = _draw(model, q, records, self.samples, key)
        statistics = q.sufficient_statistics(z)
        centred = statistics - statistics.mean(0)
        slope, *_ = jnp.linalg.lstsq(centred, values - values.mean())
        return q.with_natural_parameters(slope)


class Reparameterization(Sampling):
    """Differentiates through the draws.

    Gaussian draws are a location and scale of noise; Gamma, Beta, Dirichlet and Wishart draws
    are differentiated implicitly (figurnov2018), which JAX's gamma sampler does.
    """

    samples: int = static(default=16)

    fitting: ClassVar[str] = "differentiable log likelihoods of continuous parameters"

    def _serves(self, q: ExponentialFamily) -> bool:
        return q.reparameterized

    def __call__(self, model: Model, q: Any, records: Records, *, key: KeyArray) -> Any:
        return _derived(q, lambda q: _draw(model, q, records, self.samples, key)[1].mean()).gradient


class BonnetPrice(Sampling):
    """Gaussian posteriors: ``E[∇f]`` and ``E[∇²f]`` at antithetic draws (opper2009).

    An odd number of samples is rounded up.
    """

    fewest: ClassVar[int] = 2
    fitting: ClassVar[str] = "twice differentiable log likelihoods under Gaussian posteriors"

    def _serves(self, q: ExponentialFamily) -> bool:
        return q.gaussian

    def __call__(self, model: Model, q: AnyGaussian, records: Records, *, key: KeyArray) -> Any:
        """``-E[∇²f]``, and ``E[∇f]`` about the mean."""
        f = lambda z: model.total(z, records)
        draws = _antithetic(q, self.samples, key)
        gradient = jax.vmap(jax.grad(f))(draws).mean(0)
        hessian = jax.vmap(jax.hessian(f))(draws).mean(0)
        return q.at_mean(gradient, q.curvature(hessian))


class VariationalOnlineNewton(Sampling):
    """Diagonal Gaussians of many weights: curvature from gradients alone (khan2018, shen2024).

    ``E[∇²f] = E[∇f ε] / σ`` by Stein's lemma, at antithetic draws, where it is a central
    difference; no Hessian is formed. An odd number of samples is rounded up. Estimates of
    curvature may be negative, so steps are retracted unless told otherwise.
    """

    fewest: ClassVar[int] = 2
    domain: ClassVar[str] = "retract"
    fitting: ClassVar[str] = "differentiable log likelihoods under diagonal Gaussians"

    def _serves(self, q: ExponentialFamily) -> bool:
        return q.gaussian and q.diagonal

    def __call__(self, model: Model, q: AnyGaussian, records: Records, *, key: KeyArray) -> Any:
        """``-E[∇f (z - m)] / v``, and ``E[∇f]`` about the mean."""
        draws = _antithetic(q, self.samples, key)
        slopes = jax.vmap(jax.grad(lambda z: model.total(z, records)))(draws)
        curvature = (slopes * (draws - q.mean)).mean(0) * q.precision
        return q.at_mean(slopes.mean(0), -curvature)


def in_parts(function: Callable[..., Any], columns: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    """Columns (n,) that a function makes of others, by NumPy as many at a time as caches hold."""
    rows = len(columns[0])
    if rows <= size or any(map(is_jax, columns)):
        return function(*columns)
    starts = range(0, rows, size)
    parts = [function(*(column[at : at + size] for column in columns)) for at in starts]
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


def _natural(q: Q, gradient: Float[Real, " dim"]) -> Q:
    """The gradient in ``η`` as the one in ``μ``, in the form of a factor."""
    return q.with_natural_parameters(q.inverse_fisher_product(gradient))


def _derived(q: Q, expectation: Callable[[Q], Real]) -> Expectation:
    """An expectation under the member, and ``F⁻¹ ∇_η`` of it."""
    along = lambda eta: expectation(q.with_natural_parameters(eta))
    value, slope = jax.value_and_grad(along)(jnp.asarray(q.natural_parameters))
    return Expectation(value, _natural(q, slope))


def _draw(
    model: Model, q: ExponentialFamily, records: Records, samples: int, key: KeyArray
) -> tuple[Any, Real]:
    z = q.sample(key, (samples,))
    return z, jax.vmap(lambda point: model.total(point, records))(z)


def _antithetic(q: AnyGaussian, samples: int, key: KeyArray) -> Real:
    """Draws in pairs that mirror each other at the mean; of one key the same in 32 bits and 64."""
    noise = jax.random.normal(key, ((samples + 1) // 2, q.own_size), np.float32)
    noise = noise.astype(dtype_of(q))
    return q.at_noise(jnp.concatenate([noise, -noise]))
