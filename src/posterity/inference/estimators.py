"""Estimators of natural gradients of expected log likelihoods, which determine sites' factors.

At a minimum of the local free energy the site's factor equals ``∇_μ E_q[log likelihood] / α``
(bui2018, khan2023). Every estimator returns that gradient in the form of a factor, so an exact
conjugate factor, a quadrature and a Monte Carlo estimate have the same type.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np

from posterity.arguments import at_least
from posterity.arrays.linear_algebra import gram
from posterity.arrays.namespace import namespace
from posterity.arrays.tree import Setting, static, tree_map
from posterity.arrays.typing import Bool, Float, KeyArray, Real
from posterity.families import Categorical, ExponentialFamily
from posterity.families.gaussian import AnyGaussian
from posterity.inference.descent import dtype_of
from posterity.inference.joint import joint_mean, moved_to, slope_in_mean
from posterity.models import ConjugateModel, ExpectedModel, Model, PredictorModel, Records
from posterity.models.nodes import expectation_nodes, in_parts, normal_nodes
from posterity.runtime.lazy import jax, jnp

Q = TypeVar("Q", bound=ExponentialFamily)
Flag = Bool[Real, ""] | bool
"""A boolean, traced or not."""
PREDICTOR_NODES = 64
"""Default number of nodes along a predictor."""
NODES_LIMIT = 4096
"""Largest number of nodes of a refined sum."""
BLOCK = 32
"""Number of records that are evaluated together at all nodes. Their arrays stay in the processor's
cache, and blocks of padding are left out."""
IMPOSSIBLE = 1e4
"""Largest log-likelihood difference, in nats, between the best label and another one."""
NOTHING = 1e-20
"""Probability up to which a node with a log likelihood that is not finite is ignored."""


class Estimator(Setting):
    """An estimator of the natural gradient ``∇_μ E_q[log likelihood]``, which is a factor of the
    family of ``q``. A subclass defines :meth:`__call__`, and ``fitting``, which describes what it
    supports.
    """

    stochastic: ClassVar[bool] = False
    """True if the result depends on the key; step sizes must then decay for convergence."""
    fitting: ClassVar[str]
    """Description of the supported models and families, for error messages."""
    models: ClassVar[type[Model]] = Model
    """Class of the supported models."""
    numpy: ClassVar[bool] = False
    """True if the estimator can use NumPy arrays, with models that can."""

    def fits(self, model: Model, q: ExponentialFamily) -> bool:
        """Return whether the estimator supports this model and family."""
        return isinstance(model, self.models) and self._serves(q)

    def _serves(self, q: ExponentialFamily) -> bool:
        return True

    @abc.abstractmethod
    def __call__(self, model: Model, q: Any, records: Records, *, key: KeyArray) -> Any:
        """Return the natural gradient at ``q``, a factor; ``q`` must be proper and unbatched.

        Call it within ``jax.enable_x64(True)``, else JAX computes in float32.
        """


class Expectation(NamedTuple):
    """``E_q[log likelihood]`` in nats, and its gradient ``∇_μ`` as a factor.

    ``tail`` is an estimate of what a sum over nodes lacks by tails beyond its nodes, in nats.
    """

    value: Float[Real, ""]
    gradient: Any
    tail: Float[Real, ""] | float = 0.0


def over_records(
    function: Callable[[Records], Any], records: Records, block: int | None = None
) -> Any:
    """Return the result of a ``function`` of records, a pytree of sums over them, as the sum of its
    results for blocks of ``block`` records (`BLOCK` by default).

    Blocks at the end in which no record has weight are left out. If there are more records than one
    block, the function is traced with JAX arrays, and derivatives of the result in forward mode
    alone are available.
    """
    size = records.size
    block = block or BLOCK
    weights = jnp.asarray(records.weights)
    if size <= block:
        return function(records)

    def of_block(number: Any) -> Any:
        start = jnp.minimum(number * block, size - block)

        def part(leaf):
            return jax.lax.dynamic_slice_in_dim(jnp.asarray(leaf), start, block)

        # The last block begins earlier if it would be shorter; no record counts twice.
        new = start + jnp.arange(block) >= number * block
        return function(Records(tree_map(part, records.data), jnp.where(new, part(weights), 0.0)))

    used = jnp.where(weights != 0, jnp.arange(1, size + 1), 0).max()
    zero = tree_map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(of_block, 0))

    def add(number, total):
        return jax.tree.map(jnp.add, total, of_block(number))

    return jax.lax.fori_loop(0, -(-used // block), add, zero)


class Curved(NamedTuple):
    """An expectation with its derivatives in the concatenated means of Gaussian parts.

    ``slope`` (d,) is the first derivative, and ``curvature`` (d, d) minus the second one. If the
    expectation is a sum over nodes, so is the curvature, which may then differ from the derivative
    of the sum by the quadrature error.
    """

    expected: Expectation
    slope: Float[Real, " d"]
    curvature: Float[Real, "d d"]


class Evaluator(Estimator):
    """A noiseless estimator that also computes the expectation, so that line searches are possible.

    The gradient is that of the computed value. A descent therefore converges to the optimum of a
    sum over nodes, whatever its quadrature error.
    """

    nodal: ClassVar[bool] = False
    """True if the estimator sums over nodes, and uses ``otherwise``."""

    def __call__(self, model: Model, q: Any, records: Records, *, key: Any = None) -> Any:
        return self.evaluate(model, q, records).gradient

    @abc.abstractmethod
    def evaluate(
        self, model: Model, q: ExponentialFamily, records: Records, *, otherwise: Flag = False
    ) -> Expectation:
        """Return the expectation and its natural gradient, within ``jax.enable_x64(True)``.

        If the expectation is a sum over nodes, ``otherwise`` (may be traced) selects other nodes;
        the difference between the two sums is at least the error of the first.
        """

    def curved(
        self, model: Model, q: ExponentialFamily, records: Records, *, otherwise: Flag = False
    ) -> Curved:
        """Return the expectation and its derivatives in the means of Gaussian parts.

        Call it within ``jax.enable_x64(True)``.
        """

        def at(mean: Float[Real, " d"]) -> tuple[Any, Expectation]:
            moved = moved_to(q, mean)
            expected = self.evaluate(model, moved, records, otherwise=otherwise)
            return slope_in_mean(moved, expected.gradient), expected

        mean = jnp.asarray(joint_mean(q))
        slope, back, expected = jax.linearize(at, mean, has_aux=True)
        return Curved(expected, slope, -jax.lax.map(back, jnp.eye(len(mean), dtype=slope.dtype)))

    def by_nodes(self, model: Any, q: Any, records: Records) -> bool:
        """Return whether the expectation is a sum over nodes, and so depends on ``otherwise``."""
        del model, q, records
        return self.nodal


class Exact(Estimator):
    """The conjugate factor, which does not depend on ``q``: one step is the exact posterior."""

    fitting: ClassVar[str] = "conjugate models"
    models: ClassVar[type[Model]] = ConjugateModel
    numpy: ClassVar[bool] = True

    def fits(self, model: Model, q: ExponentialFamily) -> bool:
        return isinstance(model, ConjugateModel) and isinstance(q, model.conjugate_to)

    def __call__(self, model: Any, q: Any, records: Records, *, key: Any = None) -> Any:
        return model.factor(records)


class ClosedForm(Evaluator):
    """The gradient of an expectation in closed form: the model's own formula if it has one, else
    the derivative of its expected log likelihood.
    """

    fitting: ClassVar[str] = "models that know E_q[log likelihood] (ExpectedModel)"
    models: ClassVar[type[Model]] = ExpectedModel
    numpy: ClassVar[bool] = True

    def evaluate(
        self, model: Any, q: ExponentialFamily, records: Records, *, otherwise: Flag = False
    ) -> Expectation:
        """Return ``F⁻¹ ∇_η E_q[log likelihood]``, or the model's own result if it has one."""
        known = model.expected_factor(q, records)
        if known is not None:
            return Expectation(*known)
        weights = records.weights
        data = records.data
        return _derived(q, lambda q: (weights * model.expected_log_likelihood(q, data)).sum())


class Enumeration(Evaluator):
    """The expectation of a Categorical posterior by a sum over all labels."""

    fitting: ClassVar[str] = "Categorical posteriors"

    def _serves(self, q: ExponentialFamily) -> bool:
        return q.over_labels and not q.batch_shape

    def evaluate(
        self, model: Model, q: Categorical, records: Records, *, otherwise: Flag = False
    ) -> Expectation:
        values = jax.vmap(model.total, (0, None))(jnp.arange(q.dimension + 1), records)
        # Only differences from the best label matter; impossible labels are kept finite.
        values = jnp.maximum(values, values.max() - IMPOSSIBLE)
        return Expectation(q.probabilities @ values, type(q)._of(log_odds=values[:-1] - values[-1]))


class Nodal(Evaluator):
    """A sum over nodes, whose error is estimated by the sum over half of them."""

    nodes: int = static(default=128)
    most: int = static(default=NODES_LIMIT)
    """Largest number of nodes of a refined sum."""

    nodal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(8).check(nodes=self.nodes)

    def finer(self, times: int = 4) -> Iterator[tuple[Self, int]]:
        """Yield estimators with more and more nodes, up to ``most``, and the multiple of this
        one's nodes that each has: so many ``times`` that of the one before, by which the error of a
        kink falls to a half and that of a smooth function to nearly nothing.
        """
        more = times
        while more * self.nodes <= self.most:
            yield dataclasses.replace(self, nodes=more * self.nodes), more
            more *= times


def of_half(chances: Real, otherwise: Flag) -> Any:
    """Return the probabilities of nodes; with ``otherwise``, of every other node only."""
    if otherwise is False:
        return chances
    np_ = namespace(chances, otherwise).np
    half = np_.where(np_.arange(len(chances)) % 2 == 0, chances, 0.0)
    return np_.where(otherwise, half / half.sum(), chances)


class Quadrature(Nodal):
    """One-dimensional posteriors: a sum over nodes that are placed according to ``q``.

    ``∇_μ E_q[f] = F⁻¹ Cov_q(s, f)`` is computed by the trapezoidal rule after mapping the support
    to the real line, where it converges exponentially (trefethen2014). Log likelihoods are
    evaluated at rounded ``z``: a Beta with much mass within 1e-16 of 1 (``b`` < 0.3) loses digits.
    """

    fitting: ClassVar[str] = "Beta, Gamma and one-dimensional Gaussian posteriors"

    def _serves(self, q: ExponentialFamily) -> bool:
        return q.line() is not None

    def evaluate(
        self, model: Model, q: ExponentialFamily, records: Records, *, otherwise: Flag = False
    ) -> Expectation:
        """Return the mean ``Σ p f`` and the gradient ``F⁻¹ Σ p f (s - μ)``."""
        z, statistics, chances = expectation_nodes(q, self.nodes)
        chances = of_half(chances, otherwise)

        def each(records):
            return jax.vmap(model.total, (0, None))(z, records)

        values = each(records) if model.joint else over_records(each, records)
        # At nodes without mass f may overflow, or naive code may take the logarithm of 0.
        values = jnp.where((chances > NOTHING) | jnp.isfinite(values) & (chances > 0), values, 0.0)
        centred = statistics - chances @ statistics
        mean = chances @ values
        return Expectation(mean, _natural(q, (chances * (values - mean)) @ centred))


class PredictorQuadrature(Nodal):
    """Gaussian posteriors and linear predictors: a one-dimensional sum over nodes per record.

    With ``f ~ N(x·m, v)``, ``v = xᵀ C x``, the theorems of Bonnet and Price (opper2009) need only
    ``E[ℓ'(f)]`` and ``E[ℓ''(f)] = E[ℓ'(f) (f - x·m)] / v``; the second form remains usable if the
    spread of ``f`` exceeds the resolution of the nodes. For the logistic likelihood 64 nodes give
    all digits for deviations up to 1, 1e-6 at 5 and 1e-3 at 10. With the default number of nodes,
    expectations that the model has in closed form are used instead.
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
        """Return ``Σ E[ℓ]`` and its gradient, from ``Σ E[ℓ'] x`` and ``-Σ E[ℓ''] x xᵀ``."""
        return self._along(model, q, records, otherwise)[0]

    def curved(
        self, model: PredictorModel, q: AnyGaussian, records: Records, *, otherwise: Flag = False
    ) -> Curved:
        """Return the expectation with the whole curvature ``-Σ E[ℓ''] x xᵀ`` in the mean."""
        expected, x, slope, bend = self._along(model, q, records, otherwise)
        return Curved(expected, slope @ x, gram(x, bend))

    def _along(
        self, model: PredictorModel, q: AnyGaussian, records: Records, otherwise: Flag
    ) -> tuple[Expectation, Any, Any, Any]:
        """Return the expectation, ``x``, and per record ``E[ℓ']`` and ``-E[ℓ'']``, weighted."""
        x, y = records.data
        np_ = q.xp.np
        weights = records.weights
        x = x.astype(dtype_of(q), copy=False)
        mean, variance = q.predictor(x)
        by_default = self.nodes == PREDICTOR_NODES
        known = model.predictor_expectation(mean, variance, y) if by_default else None
        if known is None:
            deviation = np_.sqrt(variance)
            epsilon, chances = normal_nodes(self.nodes, deviation.dtype)
            chances = of_half(chances, otherwise)
            sums = np_.stack([chances, chances * epsilon])

            def along_nodes(mean: Real, deviation: Real, y: Real) -> Any:
                # Shape (nodes, records): the fastest layout for a compiled sum over nodes.
                predictor = mean + deviation * epsilon[:, None]
                values, slopes = model.predictor_value_and_slope(predictor, y)
                return chances @ values, *(sums @ slopes)

            value, slope, bend = in_parts(along_nodes, (mean, deviation, y), self.nodes)
            # If x = 0 the deviation is zero, and the curvature is later multiplied by zero.
            known = value, slope, bend / np_.where(deviation > 0, deviation, 1.0)
        value, slope, bend = known
        slope = weights * slope
        bend = -weights * bend
        expected = Expectation(weights @ value, q.at_mean(slope @ x, q.gram(x, bend)))
        return expected, x, slope, bend


class Sampling(Estimator):
    """An estimator by a mean over ``samples`` draws from the posterior. It is noisy, so that step
    sizes must decay for convergence.
    """

    samples: int = static(default=8)

    stochastic: ClassVar[bool] = True
    fewest: ClassVar[int] = 1
    """The smallest allowed number of samples."""

    def __post_init__(self) -> None:
        at_least(self.fewest).check(samples=self.samples)


class Reparameterization(Sampling):
    """Derivatives of the log likelihood through the draws.

    Gaussian draws are location-scale transforms of noise; Gamma, Beta, Dirichlet and Wishart
    draws are differentiated implicitly (figurnov2018) by JAX's gamma sampler.
    """

    samples: int = static(default=16)

    fitting: ClassVar[str] = "differentiable log likelihoods of continuous parameters"

    def _serves(self, q: ExponentialFamily) -> bool:
        return q.reparameterized

    def __call__(self, model: Model, q: Any, records: Records, *, key: KeyArray) -> Any:
        def mean(q: Any) -> Real:
            draws = q.sample(key, (self.samples,))
            return jax.vmap(model.total, (0, None))(draws, records).mean()

        return _derived(q, mean).gradient


class VariationalOnlineNewton(Sampling):
    """Diagonal Gaussians of many weights: curvature from gradients only (khan2018, shen2024).

    By Stein's lemma ``E[∇²f] = E[∇f ε] / σ``; at antithetic draws this is a central difference,
    and no Hessian is formed. An odd number of samples is rounded up. Estimates of curvature may
    be negative; steps are then halved.
    """

    fewest: ClassVar[int] = 2
    fitting: ClassVar[str] = "differentiable log likelihoods under diagonal Gaussians"

    def _serves(self, q: ExponentialFamily) -> bool:
        return q.gaussian and q.diagonal

    def __call__(self, model: Model, q: AnyGaussian, records: Records, *, key: KeyArray) -> Any:
        """Return the factor of precision ``-E[∇f (z - m)] / v`` and slope ``E[∇f]`` at ``m``."""
        draws = _antithetic(q, self.samples, key)
        slopes = jax.vmap(jax.grad(model.total), (0, None))(draws, records)
        curvature = (slopes * (draws - q.mean)).mean(0) * q.precision
        return q.at_mean(slopes.mean(0), -curvature)


def _natural(q: Q, gradient: Float[Real, " dim"]) -> Q:
    """Convert a gradient in ``η`` to the gradient in ``μ``, in the form of a factor."""
    return q.with_natural_parameters(q.inverse_fisher_product(gradient))


def _derived(q: Q, expectation: Callable[[Q], Real]) -> Expectation:
    """Return an expectation under ``q`` and its natural gradient ``F⁻¹ ∇_η``."""

    def along(eta):
        return expectation(q.with_natural_parameters(eta))

    value, slope = jax.value_and_grad(along)(jnp.asarray(q.natural_parameters))
    return Expectation(value, _natural(q, slope))


def _antithetic(q: AnyGaussian, samples: int, key: KeyArray) -> Real:
    """Return antithetic pairs of draws, the same for a key in 32 and in 64 bits."""
    noise = jax.random.normal(key, ((samples + 1) // 2, q.own_size), np.float32)
    noise = noise.astype(dtype_of(q))
    return q.at_noise(jnp.concatenate([noise, -noise]))
