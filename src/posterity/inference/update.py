"""A site's local step: minimising its local free energy.

``F_k(q) = E_q[loss_k] + α KL(q ‖ cavity_k)``, over ``η_k`` with ``q = cavity_k + η_k``. Natural
gradient descent is ``η_k ← η_k - ρ (η_k - ∇_μ E_q[log likelihood_k] / α)`` (gong2021, equation
17; bui2018): a damped fixed-point iteration in natural parameters.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from posterity.arguments import COUNT, POSITIVE, SHARE, Constraint, one_of
from posterity.arrays.namespace import is_jax
from posterity.arrays.tree import Setting, leaves, static, tree_map
from posterity.arrays.typing import Bool, DTypeLike, Float, Int, KeyArray, Number, PyTree, Real
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.inference import estimators
from posterity.inference.cubature import Cubature
from posterity.inference.descent import (
    MOST,
    NARROWER,
    TRUST,
    Q,
    convex_end,
    descend,
    dtype_of,
    either,
    fisher_length,
    joint_end,
    safe_step,
)
from posterity.inference.estimators import Estimator, Evaluator, Exact, LeastSquares
from posterity.inference.joint import is_joint
from posterity.lazy import jax, jnp
from posterity.models import Model, PredictorModel, Records

ESTIMATORS: dict[str, type[Estimator]] = {
    "exact": Exact,
    "closed-form": estimators.ClosedForm,
    "predictor-quadrature": estimators.PredictorQuadrature,
    "quadrature": estimators.Quadrature,
    "enumeration": estimators.Enumeration,
    "cubature": Cubature,
    "variational-online-newton": estimators.VariationalOnlineNewton,
    "bonnet-price": estimators.BonnetPrice,
    "least-squares": LeastSquares,
    "reparameterization": estimators.Reparameterization,
    "reinforce": estimators.Reinforce,
}
"""By name, best first where several fit (see ``best_estimator``)."""

FEW, SEVERAL, SOME = 512, 64, 256
"""The most parameters for which the default spreads nodes: over a diagonal Gaussian, of which more
is asked by way of its draws; over one of a model that has several optima, as networks have, where
noise finds a way out of what is symmetric; and over any other."""
SEARCHES = 512
"""The most nodes at which a site's own parameters are integrated out."""
SLOPES_LIMIT = 64
"""The most natural parameters for which the default fits slopes to draws."""
RATE = Constraint(
    f"{SHARE.expected}, or a function", lambda rate: callable(rate) or SHARE.allows(rate)
)
DOMAIN = one_of("halve", "retract")
DTYPE = one_of("float64", "float32")
TRUSTED = Constraint("a positive number of nats, or infinity", lambda given: given > 0)
SLOW = 1e-4
"""Length of a natural gradient, in sqrt(nats), at which a line search may end for want of looks."""
REMEMBERED = 3
"""Steps that suggest the next one, as natural gradients may go to and fro."""
LOOKS = 100
"""Points that a line search looks at in one visit, at most."""
ESTIMATOR = Constraint(
    f"an Estimator object or one of {list(ESTIMATORS)}",
    lambda given: isinstance(given, Estimator) or given in ESTIMATORS,
)


def best_estimator(model: Model, q: ExponentialFamily) -> Estimator:
    """The one of least variance, then of least cost, that the model and the family allow.

    Expectations are exact for conjugate models, in closed form or by quadrature where these
    exist, and nearly so for Gaussians and Products of them by cubature. Diagonal Gaussians of many
    parameters use online Newton, small continuous families least squares, the rest implicit
    reparameterisation where draws can be differentiated, and REINFORCE with a leave-one-out
    baseline where not.
    """
    options = {name: kind() for name, kind in ESTIMATORS.items() if name != "bonnet-price"}
    # Where a log likelihood is a search of its own, thousands of nodes are too many.
    options["cubature"] = Cubature(most=SEARCHES) if model.joint else Cubature()
    options["least-squares"] = LeastSquares(max(64, 4 * q.dimension))
    most = SEVERAL if model.optima == "several" else FEW
    if q.event_size > (most if options["variational-online-newton"].fits(model, q) else SOME):
        del options["cubature"]
    if not q.reparameterized or q.dimension > SLOPES_LIMIT:
        del options["least-squares"]
    return next(kind for kind in options.values() if kind.fits(model, q))


def check_estimator(estimator: Estimator, model: Model, q: ExponentialFamily) -> None:
    """Raise a UsageError unless the estimator serves this model and family."""
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
    """Steps that were shortened: to stay in the domain, near, or below the free energy before."""
    refused: Int[Real, ""]
    """Steps that were not taken, since no shorter one stayed in the domain."""
    finite: Bool[Real, ""]
    """Whether the gradients were; if not, the factor is meaningless."""
    residual: Float[Real, ""]
    """Length, in the Fisher metric at ``q``, of the last ``∇_μ E_q[log likelihood]/α - η_k``."""
    quadrature_error: Float[Real, ""]
    """By how many nats, at most, sums over nodes may have misplaced the posterior."""


class Decaying(Setting):
    """A rate that is a function of the number of steps taken so far."""

    function: Callable[[Any], Any] = static()

    def __call__(self, count: Number) -> Any:
        """The rate after ``count`` steps."""
        return self.function(count)


class LocalUpdate(Setting):
    """The rule by which a site improves its factor in one visit.

    By default a site minimises its free energy: where expectations can be computed, by a line
    search that never raises it; where they are noisy, by steps that shrink, and that go no further
    than a gradient can be trusted.

    Args:
        estimator: of the natural gradient; an object of :mod:`posterity.inference`, or its name
            there; by default the best that the model and the family allow.
        steps: natural-gradient steps a visit; by default 1 where the model is conjugate, 20 where
            gradients are noisy or a rate is given, and else up to 100 points of a line search,
            which ends when there is no more to gain.
        rate: ``ρ`` in (0, 1], or a function of the number of steps that the site has taken (any
            optax schedule), in place of a line search; by default 1 where conjugate, and
            ``1/2 / (1 + t/20)^(3/4)`` where gradients are noisy (``1/5 / (1 + t/100)^(3/4)`` where
            steps are retracted).
        temperature: ``α`` of generalised Bayes; 1 is Bayes' rule.
        domain: what path steps take. ``"halve"``: straight, halved until the posterior is proper.
            ``"retract"`` (Gaussians): along the manifold with a correction of second order, which
            keeps every precision positive definite (lin2020); the default of variational online
            Newton, whose curvatures may be negative.
        batch_size: records a step sees, drawn anew each step; all by default.
        trust: nats, and one more a coordinate, that a noisy step may put between two members (the
            sum of both KL divergences): longer ones are halved; infinite for none.
        dtype: ``"float32"`` for steps in half the digits, where gradients are noisy: a network's
            take less time so. Factors and their sums are of 64 bits all the same.
    """

    estimator: Estimator | None
    steps: int | None
    rate: "float | Decaying | None"
    temperature: float
    trust: float | None
    """None for infinite."""
    domain: str | None = static()
    batch_size: int | None = static()
    dtype: str = static()

    trains: ClassVar[bool] = False
    """Whether the site trains apart, as a :class:`TrainedApart`."""
    pools: ClassVar[bool] = False
    """Whether the site integrates parameters of its own out, as partial pooling does."""

    def __init__(
        self,
        estimator: Estimator | str | None = None,
        *,
        steps: int | None = None,
        rate: float | int | Callable[[Any], Any] | None = None,
        temperature: float | int = 1.0,
        domain: str | None = None,
        batch_size: int | None = None,
        trust: float | int | None = TRUST,
        dtype: str = "float64",
    ):
        ESTIMATOR.or_none().check(estimator=estimator)
        COUNT.or_none().check(steps=steps, batch_size=batch_size)
        RATE.or_none().check(rate=rate)
        POSITIVE.check(temperature=temperature)
        TRUSTED.or_none().check(trust=trust)
        DOMAIN.or_none().check(domain=domain)
        DTYPE.check(dtype=dtype)
        self.estimator = ESTIMATORS[estimator]() if isinstance(estimator, str) else estimator
        if rate is not None and not isinstance(rate, Decaying):
            rate = Decaying(rate) if callable(rate) else float(rate)
        self.rate = rate  # pyright: ignore[reportAttributeAccessIssue]
        self.steps, self.batch_size, self.dtype = steps, batch_size, dtype
        self.temperature, self.domain = float(temperature), domain
        self.trust = None if trust is None or math.isinf(trust) else float(trust)

    def resolve(self, model: Model, q: ExponentialFamily) -> "LocalUpdate":
        """Return the update with every default filled in for a model and family.

        Raises:
            UsageError: if the model has no posterior in this family, or has infinite expectations
                under ``q``, or a choice does not fit.
        """
        _check_prior(model, q)
        _require(
            self.batch_size is None or not model.joint,
            f"batch_size={self.batch_size} for {type(model).__name__}",
            "all records of a site at each step: they tell of each other through its parameters",
        )
        estimator = self.estimator or best_estimator(model, q)
        check_estimator(estimator, model, q)
        domain = self.domain or estimator.domain
        _require(
            domain == "halve" or q.gaussian,
            f"domain={domain!r} and a posterior of {type(q).__name__}",
            "a Gaussian posterior for it",
        )
        noisy = estimator.stochastic or self.batch_size is not None
        _require(
            noisy or self.dtype == "float64",
            f"dtype={self.dtype!r} and {type(estimator).__name__}",
            "noisy gradients for it: without noise, digits are what a descent ends at",
        )
        exact = isinstance(estimator, Exact) and not noisy
        searched = isinstance(estimator, Evaluator) and not noisy and self.rate is None
        decaying = slowly_decaying if domain == "retract" else quickly_decaying
        steps = self.steps or (1 if exact else LOOKS if searched else 20)
        rate = self.rate or (1.0 if exact else None if searched else decaying if noisy else 0.5)
        return dataclasses.replace(self, estimator=estimator, steps=steps, rate=rate, domain=domain)

    @property
    def rule(self) -> str:
        """The rule in words; resolve first."""
        if self.conjugate:
            return "the exact factor, once"
        about, how = self.estimator, type(self.estimator).__name__
        names = [name for name in ("nodes", "samples", "baseline") if hasattr(about, name)]
        if names:
            how += " of " + " and ".join(f"{getattr(about, name)} {name}" for name in names)
        if self.searches:
            return f"{how}, line search on the free energy, up to {self.steps} points a visit"
        batch = "" if self.batch_size is None else f", batches of {self.batch_size}"
        rate = self.rate if isinstance(self.rate, float) else "decaying"
        return f"{how}{batch}, {self.steps} steps a visit at a rate of {rate}"

    def needs_jax(self, model: Model) -> bool:
        """True if it takes JAX to make its steps; NumPy's are the same, resolve first."""
        able = getattr(self.estimator, "numpy", False) and (self.searches or self.conjugate)
        return not (able and model.in_numpy)

    @property
    def searches(self) -> bool:
        """True if steps are found by a line search, once resolved."""
        return self.rate is None and not self.trains

    def newtonian(self, model: Model, q: ExponentialFamily) -> bool:
        """True if a natural gradient is a Newton step in the mean, and so not much shorter than the
        way to where a site's free energy is least: log likelihoods are concave functions of linear
        predictors, and the posterior a full Gaussian. Resolve first.
        """
        along = self.searches and isinstance(model, PredictorModel)
        return along and model.known_optima == "one" and q.gaussian and not q.diagonal

    @property
    def noisy(self) -> bool:
        """True if two keys give two directions, once resolved."""
        return self.batch_size is not None or getattr(self.estimator, "stochastic", False)

    @property
    def conjugate(self) -> bool:
        """True if one visit gives the exact factor, whatever the others say."""
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
        """The site's new factor, from ``q = cavity + factor``.

        Pure and traceable; ``count`` is how many steps the site took before, and only an estimator
        that draws needs a ``key``. Resolve first.
        """
        records = records.widened()
        if self.needs_jax(model) or any(map(is_jax, leaves(records))):
            q, factor = (tree_map(jnp.asarray, part) for part in (q, factor))
        if self.searches:
            return self._searched(model, q, factor, records)
        wide = dtype_of(q)
        q, factor, records = (_floats(part, self.dtype) for part in (q, factor, records))
        cavity, retract = q - factor, self.domain == "retract"
        trusted = self.noisy and not retract
        reach = self.trust + q.event_size if trusted and self.trust is not None else None

        def step(index: Int[Real, ""], carry: PyTree) -> Any:
            q, factor, _, info = carry
            own_key = key if key is None or not self.noisy else jax.random.fold_in(key, index)
            direction = self.direction(model, q, factor, records, key=own_key)
            rate = self.rate(count + index) if callable(self.rate) else self.rate
            step = safe_step(q, direction, rate, admits=model.admits, retract=retract, reach=reach)
            finite = jnp.isfinite(jnp.asarray(direction.natural_parameters)).all()
            # Where a posterior is so wide that its draws overflow, a narrower one may do.
            new = either(finite | ~jnp.asarray(self.noisy), lambda: step.q, lambda: q * NARROWER)
            # In exact arithmetic q = cavity + factor; to derive each from the other would drift.
            info = info._replace(
                halvings=info.halvings + jnp.where(step.taken, step.halvings, 0),
                refused=info.refused + ~step.taken,
                # Noisy steps may recover from what is not finite.
                finite=finite if self.noisy else info.finite & finite,
            )
            return new, new - cavity, (q, direction), info

        zero = jnp.zeros((), jnp.int32)
        # Every step stays where expectations are finite; a start outside has no gradient at all.
        none = jnp.zeros((), dtype_of(q))
        info = UpdateInfo(zero, zero, jnp.asarray(model.admits(q)), none, none)
        start = (q, factor, (q, q.zero()), info)
        # A loop, not a scan: the number of steps is an argument of the program, no part of it.
        first = jnp.zeros((), jnp.arange(0).dtype)
        _, factor, last, info = jax.lax.fori_loop(first, self.steps, step, start)
        return _floats(factor, wide), info._replace(residual=fisher_length(*last))

    def _searched(
        self, model: Model, q: ExponentialFamily, factor: ExponentialFamily, records: Records
    ) -> tuple[Any, UpdateInfo]:
        """A descent of the free energy."""
        estimator, cavity = self.estimator, q - factor
        assert isinstance(estimator, Evaluator) and self.steps is not None, "resolve first"
        along, regression = isinstance(model, PredictorModel), cast(PredictorModel, model)
        about: dict[str, Any] = {"temperature": self.temperature, "most": self.steps}
        about |= {"admits": model.admits, "retract": self.domain == "retract"}
        convex = self.newtonian(model, q)
        about |= {"by_nodes": estimator.by_nodes(model, q, records), "quick": convex}
        about |= {"remembered": 0 if convex or self.domain == "retract" else REMEMBERED}

        evaluate = lambda q, otherwise=False: estimator.evaluate(
            model, q, records, otherwise=otherwise
        )
        numpy = q.xp.np is np
        together = numpy and along and is_joint(q) and cavity.is_proper()
        start: dict[str, Any] = {**about, "most": 1} if together else about
        rough = lambda: cavity + regression.rough_factor(q, records) / self.temperature
        none = tree_map(lambda leaf: leaf[:0], records)
        rough = rough if along and regression.rough_factor(q, none) is not None else None
        end = descend(evaluate, q, cavity, rough=rough, **start)
        if together and end.finite:
            curved = lambda q: estimator.curved(model, q, records)
            there = joint_end(curved, end.q, cavity, self.temperature, self.steps)
            end = descend(evaluate, there, cavity, **start)
            if end.residual > SLOW:
                end = descend(evaluate, end.q, cavity, **about)
        slow = end.finite and end.residual > SLOW and not end.ahead if numpy and convex else False
        if slow and q.event_size <= MOST:
            there = convex_end(evaluate, end.q, cavity, self.temperature)
            end = descend(evaluate, there, cavity, **about)
        _, finite, halvings, residual, uncertainty, _ = end
        return end.q - cavity, UpdateInfo(halvings, 0 * halvings, finite, residual, uncertainty)

    @functools.cached_property
    def traced(self) -> "LocalUpdate":
        """Return the update with arrays for numbers, so that a program that it is an argument of
        serves others too.

        Of 64 bits where JAX has them when it is first asked for.
        """
        return jax.tree.map(jnp.asarray, self)

    def line_search(self, model: Model, q: ExponentialFamily) -> "LocalUpdate | None":
        """The line search, without noise and of all records, that has the same optimum.

        Itself if it is one; None where no estimator can compute a free energy.
        """
        estimator = self.estimator
        if not isinstance(estimator, Evaluator):
            estimator = best_estimator(model, q)
        elif self.searches:
            return self
        if not isinstance(estimator, Evaluator):
            return None
        plain = {"batch_size": None, "dtype": "float64", "domain": estimator.domain}
        return dataclasses.replace(self, estimator=estimator, steps=LOOKS, rate=None, **plain)

    def finer(self) -> "LocalUpdate | None":
        """Return the update with more nodes, where there are more to be had."""
        finer = self.estimator.finer() if isinstance(self.estimator, Evaluator) else None
        return None if finer is None else dataclasses.replace(self, estimator=finer)

    def direction(
        self, model: Model, q: Q, factor: Q, records: Records, *, key: KeyArray | None
    ) -> Q:
        """``∇_μ E_q[log likelihood] / α - η_k``: zero where the local free energy is least."""
        assert self.estimator is not None, "resolve first"
        if self.batch_size is not None and self.batch_size < records.size:
            assert key is not None, "batches are drawn"
            key, batch_key = jax.random.split(key)
            records = records.batch(self.batch_size, key=batch_key)
        return self.estimator(model, q, records, key=key) / self.temperature - factor


def exact_factor(update: LocalUpdate, model: Model, records: Records) -> Any:
    """The factor of one visit if the update is ``conjugate``; the model need not be traced."""
    factor = model.factor(records)  # pyright: ignore[reportAttributeAccessIssue]
    return factor if update.temperature == 1 else factor / update.temperature


class TrainedApart(LocalUpdate):
    """An update that trains apart from the shared posterior and takes its share of the way.

    It sees no cavity and takes no steps of natural parameters: what all found is averaged.
    """

    trains: ClassVar[bool] = True

    @abc.abstractmethod
    def trained(
        self, model: Model, view: ExponentialFamily, records: Records, *, key: KeyArray
    ) -> Any:
        """The posterior after training from the shared ``view`` on, on the site's records."""


def _floats(tree: PyTree, dtype: DTypeLike) -> Any:
    """With floating-point numbers of this precision; where JAX holds to 32 bits, of these."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    floats = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if floats(leaf) else leaf, tree)


def quickly_decaying(count: Number) -> Any:
    """``1/2 / (1 + t/20)^(3/4)``: steps that shrink as noise requires."""
    return 0.5 / (1 + count / 20) ** 0.75


def slowly_decaying(count: Number) -> Any:
    """``1/5 / (1 + t/100)^(3/4)``: smaller first steps, for posteriors with many optima."""
    return 0.2 / (1 + count / 100) ** 0.75


def _check_prior(model: Model, q: ExponentialFamily) -> None:
    prior, name = f"a prior {type(q).__name__}", type(model).__name__
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
