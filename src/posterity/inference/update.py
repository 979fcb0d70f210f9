"""A site's local update, which minimises its local free energy.

The local free energy is ``F_k(q) = E_q[loss_k] + α KL(q ‖ cavity_k)``, a function of ``η_k`` with
``q = cavity_k + η_k``. Natural-gradient descent is the damped fixed-point iteration
``η_k ← η_k - ρ (η_k - ∇_μ E_q[log likelihood_k] / α)`` (gong2021, equation 17; bui2018).
"""

import abc
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from posterity.arguments import COUNT, POSITIVE, SHARE, Constraint, one_of
from posterity.arrays.tree import Setting, leaves, static, tree_map
from posterity.arrays.typing import Bool, DTypeLike, Float, Int, KeyArray, Number, PyTree, Real
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.inference import estimators
from posterity.inference.cubature import Cubature
from posterity.inference.descent import (
    NARROWER,
    TRUST,
    Q,
    beside,
    convex_end,
    descend,
    dtype_of,
    either,
    fisher_length,
    safe_step,
)
from posterity.inference.estimators import Estimator, Evaluator, Exact, Nodal
from posterity.models import Model, PredictorModel, Records
from posterity.runtime.jax_loaded import is_jax
from posterity.runtime.lazy import jax, jnp

ESTIMATORS: dict[str, type[Estimator]] = {
    "exact": Exact,
    "closed-form": estimators.ClosedForm,
    "predictor-quadrature": estimators.PredictorQuadrature,
    "quadrature": estimators.Quadrature,
    "enumeration": estimators.Enumeration,
    "cubature": Cubature,
    "variational-online-newton": estimators.VariationalOnlineNewton,
    "reparameterization": estimators.Reparameterization,
}
"""Estimators by name, in order of preference (see :func:`best_estimator`)."""

RATE = Constraint(
    f"{SHARE.expected}, or a function", lambda rate: callable(rate) or SHARE.allows(rate)
)
DTYPE = one_of("float64", "float32")
SLOW = 1e-4
"""Length of the natural gradient, in sqrt(nats), above which a line search counts as unfinished."""
ROOTS = 128
"""Largest number of coordinates for L-BFGS on a triangular root."""
LOOKS = 100
"""Largest number of evaluations of the free energy by a line search in one visit."""
ESTIMATOR = Constraint(
    f"an Estimator object or one of {list(ESTIMATORS)}",
    lambda given: isinstance(given, Estimator) or given in ESTIMATORS,
)


def best_estimator(
    model: Model,
    q: ExponentialFamily,
    *,
    few: int = 512,
    several: int = 64,
    some: int = 256,
    searches: int = 512,
) -> Estimator:
    """Return the estimator of least variance, then least cost, for a model and a family.

    Conjugate models have exact factors. Other expectations are computed in closed form or by
    quadrature where these exist, and by cubature for Gaussians and Products of them. Diagonal
    Gaussians with many parameters use variational online Newton. The rest use implicit
    reparameterisation, for which draws have to be differentiable; else there is a UsageError.

    Cubature is of at most ``few`` parameters for a diagonal Gaussian, ``several`` for one and a
    model with several optima, such as networks, where noise breaks symmetries, and ``some`` for
    other families. Where a model integrates out site-specific parameters at each node, by a search,
    there are at most ``searches`` nodes.
    """
    options = {name: kind() for name, kind in ESTIMATORS.items()}
    options["cubature"] = Cubature(most=searches) if model.joint else Cubature()
    most = several if model.optima == "several" else few
    if q.event_size > (most if options["variational-online-newton"].fits(model, q) else some):
        del options["cubature"]
    for kind in options.values():
        if kind.fits(model, q):
            return kind
    raise UsageError(
        found=f"{type(model).__name__} and a posterior {q!r}, whose draws have no derivatives",
        expected="a model with an expectation in closed form, or a posterior over numbers",
        fix="Sum the labels out of the likelihood and leave them out of the prior, or pass an "
        "Estimator of your own: LocalUpdate(estimator).",
    )


def check_estimator(estimator: Estimator, model: Model, q: ExponentialFamily) -> None:
    """Raise a UsageError unless the estimator supports this model and family."""
    if not estimator.fits(model, q):
        raise UsageError(
            found=f"estimator {type(estimator).__name__} for {type(model).__name__} and a "
            f"posterior of {type(q).__name__}",
            expected=estimator.fitting,
            fix=f"Leave the estimator out: the default here is "
            f"{type(best_estimator(model, q)).__name__}.",
        )


class UpdateInfo(NamedTuple):
    """Diagnostics of one local update."""

    halvings: Int[Real, ""]
    """Number of halvings of steps: to stay in the domain, within reach, or to lower the energy."""
    finite: Bool[Real, ""]
    """True if the gradients were finite; if not, the factor is meaningless."""
    residual: Float[Real, ""]
    """Length of the last ``∇_μ E_q[log likelihood]/α - η_k`` in the Fisher metric, sqrt(nats)."""
    quadrature_error: Float[Real, ""]
    """Estimated displacement of the posterior, in nats, by the error of sums over nodes."""
    tail: Float[Real, ""]
    """An estimate of the part of the expectation in tails beyond the nodes, in nats. More nodes do
    not reduce it."""
    evaluations: Int[Real, ""]
    """Number of evaluations of the log likelihood."""
    value: Float[Real, ""] | None = None
    """``E_q[log likelihood]/α`` at the last evaluation of a line search."""
    value_error: Float[Real, ""] | None = None
    """Difference of the value from that by other nodes."""
    gradient: Any = None
    """``∇_μ E_q[log likelihood]/α`` there, a factor."""


class Decaying(Setting):
    """A step size that is a function of the number of steps so far."""

    function: Callable[[Any], Any] = static()

    def __call__(self, count: Number) -> Any:
        """Return the rate after ``count`` steps."""
        return self.function(count)


class LocalUpdate(Setting):
    """The rule by which a site improves its factor in one visit.

    By default a site minimises its free energy. If expectations can be computed, it uses a line
    search that never raises the free energy. If they are noisy, it takes steps of decreasing rate
    within a trust region.

    Args:
        estimator: estimator of the natural gradient: an object of :mod:`posterity.inference` or
            its name; by default the best one for the model and the family.
        steps: number of natural-gradient steps per visit; by default 1 for conjugate models, and
            20 if gradients are noisy or a rate is given. Otherwise the largest number of
            evaluations of a line search, 100 by default; it ends earlier at convergence.
        rate: step size ``ρ`` in (0, 1], or a function of the number of steps that the site has
            taken (any optax schedule), instead of a line search. By default 1 for conjugate
            models, and ``1/2 / (1 + t/20)^(3/4)`` if gradients are noisy. Steps are halved until
            the posterior is proper.
        temperature: ``α`` of generalised Bayes; 1 is Bayes' rule.
        batch_size: number of records per step, redrawn at each step; all by default.
        dtype: ``"float32"`` for faster steps in single precision where gradients are noisy, as for
            networks. Factors and their sums remain float64.
        trust: trust region of noisy steps, in nats: the sum of both KL divergences between the
            members before and after is at most ``trust`` plus the number of coordinates, and longer
            steps are halved.

    >>> from posterity import Beta, federate
    >>> from posterity.inference import Quadrature
    >>> from posterity.models import BetaExponential
    >>> sites = {"a": np.array([0.2, 0.5]), "b": np.array([0.4])}
    >>> prior = Beta.from_standard(2.0, 2.0)
    >>> run = federate(sites, BetaExponential(), prior, update=LocalUpdate(estimator=Quadrature()))
    >>> run.posterior.mean.round(2).item()
    0.5
    """

    estimator: Estimator | None
    steps: int | None
    rate: "float | Decaying | None"
    temperature: float
    trust: float
    batch_size: int | None = static()
    dtype: str = static()

    trains: ClassVar[bool] = False
    """True if the site trains separately, as with :class:`TrainedApart`."""
    pools: ClassVar[bool] = False
    """True if the site integrates out its own parameters, as in partial pooling."""

    def __init__(
        self,
        estimator: Estimator | str | None = None,
        *,
        steps: int | None = None,
        rate: float | int | Callable[[Any], Any] | None = None,
        temperature: float | int = 1.0,
        batch_size: int | None = None,
        dtype: str = "float64",
        trust: float | int = TRUST,
    ):
        ESTIMATOR.or_none().check(estimator=estimator)
        COUNT.or_none().check(steps=steps, batch_size=batch_size)
        RATE.or_none().check(rate=rate)
        POSITIVE.check(temperature=temperature, trust=trust)
        DTYPE.check(dtype=dtype)
        self.estimator = ESTIMATORS[estimator]() if isinstance(estimator, str) else estimator
        if rate is not None and not isinstance(rate, Decaying):
            rate = Decaying(rate) if callable(rate) else float(rate)
        self.rate = rate  # pyright: ignore[reportAttributeAccessIssue]
        self.steps = steps
        self.batch_size = batch_size
        self.dtype = dtype
        self.trust = float(trust)
        self.temperature = float(temperature)

    def resolve(self, model: Model, q: ExponentialFamily) -> "LocalUpdate":
        """Return the update with every default set for a model and family.

        Raises:
            UsageError: if the model does not support this family, its expectations under ``q`` are
                infinite, or an argument is incompatible with them.
        """
        _check_prior(model, q)
        _require(
            self.batch_size is None or not model.joint,
            f"batch_size={self.batch_size} for {type(model).__name__}",
            "all records of a site at each step: they tell of each other through its parameters",
        )
        estimator = self.estimator or best_estimator(model, q)
        check_estimator(estimator, model, q)
        noisy = estimator.stochastic or self.batch_size is not None
        _require(
            noisy or self.dtype == "float64",
            f"dtype={self.dtype!r} and {type(estimator).__name__}",
            "noisy gradients for it: without noise, digits are what a descent ends at",
        )
        exact = isinstance(estimator, Exact) and not noisy
        searched = isinstance(estimator, Evaluator) and not noisy and self.rate is None
        steps = self.steps or (1 if exact else LOOKS if searched else 20)
        rate = self.rate or (1.0 if exact else None if searched else decaying if noisy else 0.5)
        return dataclasses.replace(self, estimator=estimator, steps=steps, rate=rate)

    @property
    def rule(self) -> str:
        """A description of the rule. Requires a resolved update."""
        if self.conjugate:
            return "the exact factor, once"
        about = self.estimator
        how = type(self.estimator).__name__
        names = [name for name in ("nodes", "samples", "baseline") if hasattr(about, name)]
        if names:
            how += " of " + " and ".join(f"{getattr(about, name)} {name}" for name in names)
        if self.searches:
            return f"{how}, line search on the free energy, up to {self.steps} points a visit"
        batch = "" if self.batch_size is None else f", batches of {self.batch_size}"
        rate = self.rate if isinstance(self.rate, float) else "decaying"
        return f"{how}{batch}, {self.steps} steps a visit at a rate of {rate}"

    def needs_jax(self, model: Model) -> bool:
        """True if steps require JAX, else NumPy can make them. Requires a resolved update."""
        able = getattr(self.estimator, "numpy", False) and (self.searches or self.conjugate)
        return not (able and model.in_numpy)

    @property
    def searches(self) -> bool:
        """True if the update uses a line search. Requires a resolved update."""
        return self.rate is None and not self.trains

    def newtonian(self, model: Model, q: ExponentialFamily) -> bool:
        """True if a natural gradient is a Newton step in the mean, and so not much shorter than the
        distance to the minimum of the site's free energy: log likelihoods are concave in linear
        predictors, and the posterior is a full Gaussian. Requires a resolved update.
        """
        along = self.searches and isinstance(model, PredictorModel)
        return along and model.known_optima == "one" and q.gaussian and not q.diagonal

    @property
    def noisy(self) -> bool:
        """True if the direction depends on a random key. Requires a resolved update."""
        return self.batch_size is not None or getattr(self.estimator, "stochastic", False)

    @property
    def conjugate(self) -> bool:
        """True if one visit gives the exact factor, independently of the other sites."""
        return isinstance(self.estimator, Exact) and self.rate == 1.0 and self.batch_size is None

    def __call__(
        self,
        model: Model,
        q: Q,
        factor: Q,
        records: Records,
        count: Int[Any, ""] | int,
        *,
        key: KeyArray | None,
    ) -> tuple[Q, UpdateInfo]:
        """Return the site's new factor, from ``q = cavity + factor``, and diagnostics.

        Pure and traceable. ``count`` is the number of steps that the site took before; if it is
        negative, a line search only evaluates ``q``. Only noisy updates need a ``key``.
        Requires a resolved update.
        """
        records = records.widened()
        if self.needs_jax(model) or any(map(is_jax, leaves(records))):
            q, factor = (tree_map(jnp.asarray, part) for part in (q, factor))
        if self.searches:
            return self._searched(model, q, factor, records, self.steps * (count >= 0))  # pyright: ignore[reportOptionalOperand]
        wide = dtype_of(q)
        q, factor, records = (_floats(part, self.dtype) for part in (q, factor, records))
        cavity = q - factor
        reach = self.trust + q.event_size if self.noisy else None

        def step(index: Int[Real, ""], carry: PyTree) -> Any:
            q, factor, _, info = carry
            own_key = key if key is None or not self.noisy else jax.random.fold_in(key, index)
            direction = self.direction(model, q, factor, records, key=own_key)
            rate = self.rate(count + index) if callable(self.rate) else self.rate
            step = safe_step(q, direction, rate, admits=model.admits, reach=reach)
            finite = jnp.isfinite(jnp.asarray(direction.natural_parameters)).all()
            # If the posterior is so wide that draws overflow, continue from a narrower one.
            new = either(finite | ~jnp.asarray(self.noisy), lambda: step.q, lambda: q * NARROWER)
            info = info._replace(
                halvings=info.halvings + jnp.where(step.taken, step.halvings, 0),
                # Noisy steps may recover from a gradient that is not finite.
                finite=finite if self.noisy else info.finite & finite,
            )
            # In exact arithmetic q = cavity + factor; updating both separately would drift.
            return new, new - cavity, (q, direction), info

        zero = jnp.zeros((), jnp.int32)
        none = jnp.zeros((), dtype_of(q))
        # Every step stays where expectations are finite; a start outside has no gradient.
        info = UpdateInfo(zero, jnp.asarray(model.admits(q)), none, none, none, zero)
        start = (q, factor, (q, q.zero()), info)
        # A loop, not a scan: the number of steps is a traced argument of the program.
        first = jnp.zeros((), jnp.arange(0).dtype)
        _, factor, last, info = jax.lax.fori_loop(first, self.steps, step, start)
        info = info._replace(residual=fisher_length(*last), evaluations=self.steps)
        return _floats(factor, wide), info

    def _searched(
        self,
        model: Model,
        q: ExponentialFamily,
        factor: ExponentialFamily,
        records: Records,
        most: Int[Any, ""] | int,
    ) -> tuple[Any, UpdateInfo]:
        """Return the new factor and diagnostics after a descent of the free energy."""
        estimator = self.estimator
        cavity = q - factor
        assert isinstance(estimator, Evaluator) and self.steps is not None, "resolve first"
        along = isinstance(model, PredictorModel)
        regression = cast(PredictorModel, model)
        about: dict[str, Any] = {"temperature": self.temperature, "most": most}
        about |= {"admits": model.admits, "by_nodes": estimator.by_nodes(model, q, records)}
        about |= {"quick": self.newtonian(model, q)}

        looks = itertools.count()  # of NumPy; JAX calls once, to compile

        def evaluate(q, otherwise=False):
            next(looks)
            return estimator.evaluate(model, q, records, otherwise=otherwise)

        numpy = q.xp.np is np

        def least_squares():
            return cavity + regression.rough_factor(q, records) / self.temperature

        none = tree_map(lambda leaf: leaf[:0], records)
        rough = least_squares if along and regression.rough_factor(q, none) is not None else None
        if not numpy and not along:  # predictors have one optimum
            begun = (factor.natural_parameters != 0).any()
            q = beside(q, ~begun & (most > 0))
        end = descend(evaluate, q, cavity, rough=rough, **about)
        convex = numpy and along and model.known_optima == "one" and q.event_size <= ROOTS
        if convex and most and end.finite and end.residual > SLOW and not end.ahead:
            there = convex_end(evaluate, end.q, cavity, self.temperature, model.admits)
            end = descend(evaluate, there, cavity, **about)
        at = end.best.at
        energy = end.best.value / self.temperature
        terms = cavity.natural_parameters * at.mean_parameters
        info = UpdateInfo(
            end.halvings,
            end.finite,
            end.residual,
            end.uncertainty,
            end.tail / self.temperature,
            next(looks) if numpy else end.evaluations,
            at.negative_entropy() - terms.sum() - energy,
            end.off / self.temperature,
            end.best.direction - (cavity - at),
        )
        return end.q - cavity, info

    @functools.cached_property
    def traced(self) -> "LocalUpdate":
        """The update with arrays instead of numbers, so that updates can share a compiled program.

        The arrays have 64 bits if JAX has them enabled at the first access.
        """
        return jax.tree.map(jnp.asarray, self)

    def line_search(self, model: Model, q: ExponentialFamily) -> "LocalUpdate | None":
        """Return the noiseless line search on all records with the same optimum.

        Return itself if it is one, or None if no estimator can compute a free energy.
        """
        estimator = self.estimator
        if not isinstance(estimator, Evaluator):
            estimator = best_estimator(model, q)
        elif self.searches:
            return self
        if not isinstance(estimator, Evaluator):
            return None
        plain = {"batch_size": None, "dtype": "float64", "rate": None}
        return dataclasses.replace(self, estimator=estimator, steps=LOOKS, **plain)

    def refinements(self) -> "Iterator[tuple[LocalUpdate, int]]":
        """Yield the update itself, then with more and more nodes, if there are any, and the
        multiple of its nodes that each has.
        """
        yield self, 1
        if isinstance(self.estimator, Nodal):
            for estimator, work in self.estimator.finer():
                yield dataclasses.replace(self, estimator=estimator), work

    def direction(
        self, model: Model, q: Q, factor: Q, records: Records, *, key: KeyArray | None
    ) -> Q:
        """Return ``∇_μ E_q[log likelihood] / α - η_k``, zero at a local free energy's optimum."""
        assert self.estimator is not None, "resolve first"
        if self.batch_size is not None and self.batch_size < records.size:
            assert key is not None, "batches are drawn"
            key, batch_key = jax.random.split(key)
            records = records.batch(self.batch_size, key=batch_key)
        return self.estimator(model, q, records, key=key) / self.temperature - factor


def exact_factor(update: LocalUpdate, model: Model, records: Records) -> Any:
    """Return the factor of one visit of a ``conjugate`` update, without tracing the model."""
    factor = model.factor(records)  # pyright: ignore[reportAttributeAccessIssue]
    return factor if update.temperature == 1 else factor / update.temperature


class TrainedApart(LocalUpdate):
    """An update that trains a separate posterior on the site's records.

    It does not use the cavity or natural-parameter steps: the sites' posteriors are averaged.
    """

    trains: ClassVar[bool] = True

    @abc.abstractmethod
    def trained(
        self, model: Model, view: ExponentialFamily, records: Records, *, key: KeyArray
    ) -> Any:
        """Return the posterior after training on the site's records, starting from ``view``."""


def _floats(tree: PyTree, dtype: DTypeLike) -> Any:
    """Return the tree with floats of this dtype, or of 32 bits if JAX has no others enabled."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)

    def floats(leaf):
        return jnp.issubdtype(leaf.dtype, jnp.floating)

    return jax.tree.map(lambda leaf: leaf.astype(dtype) if floats(leaf) else leaf, tree)


def decaying(count: Number) -> Any:
    """Return ``1/2 / (1 + t/20)^(3/4)``, a rate that decays as noise requires."""
    return 0.5 / (1 + count / 20) ** 0.75


def _check_prior(model: Model, q: ExponentialFamily) -> None:
    prior = f"a prior {type(q).__name__}"
    name = type(model).__name__
    families = " or ".join(family.__name__ for family in model.families)
    _require(
        isinstance(q, model.families) and q.batch_shape == (),
        f"{prior} of batch shape {q.batch_shape}",
        f"{families}, of batch shape (), which {name} needs",
    )
    expected = f"one under which the log likelihood of {name} has an expectation"
    _require(bool(model.admits(q)), f"{prior} of parameters {q.standard_parameters()}", expected)


def _require(condition: bool, result: str, expected: str) -> None:
    if not condition:
        raise UsageError(found=result, expected=expected, fix="Mend this argument.")
