"""What a site does when it is its turn: minimise its local free energy.

``F_k(q) = E_q[loss_k] + α KL(q ‖ cavity_k)``, over ``η_k`` with ``q = cavity_k + η_k``. Natural
gradient descent is ``η_k ← η_k - ρ (η_k - ∇_μ E_q[log likelihood_k] / α)`` (gong2021, equation
17; bui2018): a damped fixed-point iteration in natural parameters.
"""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Key

from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.families.gaussian import AnyGaussian
from posterity.inference.estimators import ESTIMATORS, Estimator, Exact, best_estimator
from posterity.inference.estimators import check_estimator as _check_estimator
from posterity.models import Model, Records

Q = TypeVar("Q", bound=ExponentialFamily)
HALVINGS = 40
"""A step that is still outside the domain after so many halvings is not taken."""


class UpdateInfo(NamedTuple):
    """What happened in one local update, for people."""

    halvings: Int[jax.Array, ""]
    """Steps that were shortened to stay in the domain, each halving counted."""
    refused: Int[jax.Array, ""]
    """Steps that were not taken, since no shorter one stayed in the domain."""
    finite: Bool[jax.Array, ""]
    """Whether all gradients were; if not, the factor is meaningless."""
    residual: Float[jax.Array, ""]
    """Length, in the Fisher metric at ``q``, of the last ``∇_μ E_q[log likelihood]/α - η_k``."""


class LocalUpdate(eqx.Module):
    """How a site improves its factor in one visit.

    Args:
        estimator: of the natural gradient; an object of :mod:`posterity.inference.estimators`,
            or its name there; by default the best that the model and the family allow.
        steps: natural-gradient steps a visit; by default 1 where the model is conjugate, else 20.
        rate: ``ρ`` in (0, 1], or a function of the number of steps that the site has taken (any
            optax schedule); by default 1 where conjugate, 1/2 where gradients are exact, and
            ``1/2 / (1 + t/20)^(3/4)`` where they are noisy (``1/5 / (1 + t/100)^(3/4)`` where
            steps are retracted).
        temperature: ``α`` of generalised Bayes; 1 is Bayes' rule.
        domain: what to do with a step that leaves the family. ``"halve"``: halve it until the
            posterior is proper. ``"retract"`` (Gaussians): follow the manifold with a correction
            of second order, which keeps every precision positive definite (lin2020), in steps that
            change no precision by more than itself to first order; the default of
            variational online Newton, whose curvatures may be negative.
        batch_size: records a step sees, drawn anew each step; all by default.
    """

    estimator: Estimator | None
    steps: int | None = eqx.field(static=True)
    rate: float | Callable[[Any], Any] | None = eqx.field(static=True)
    temperature: float = eqx.field(static=True)
    domain: str | None = eqx.field(static=True)
    batch_size: int | None = eqx.field(static=True)

    def __init__(
        self,
        estimator: Estimator | str | None = None,
        *,
        steps: int | None = None,
        rate: float | int | Callable[[Any], Any] | None = None,
        temperature: float | int = 1.0,
        domain: str | None = None,
        batch_size: int | None = None,
    ):
        _require(_counts(steps), f"steps={steps}", "a whole number, at least 1")
        fine = rate is None or callable(rate) or (isinstance(rate, Real) and 0 < rate <= 1)
        _require(fine, f"rate={rate}", "a number in (0, 1], or a function")
        positive = math.isfinite(temperature) and temperature > 0
        _require(positive, f"temperature={temperature}", "a positive number")
        _require(_counts(batch_size), f"batch_size={batch_size}", "a whole number, at least 1")
        if domain not in (None, "halve", "retract"):
            raise _mistake(f"domain={domain!r}", "'halve' or 'retract'")
        self.estimator, self.steps, self.batch_size = _estimator(estimator), steps, batch_size
        self.rate = float(rate) if isinstance(rate, Real) else rate
        self.temperature, self.domain = float(temperature), domain

    def resolve(self, model: Model, q: ExponentialFamily) -> "LocalUpdate":
        """With every default filled in for this model and family.

        Raises:
            UsageError: if the model has no posterior in this family, or has infinite expectations
                under ``q``, or a choice does not fit.
        """
        _require(
            isinstance(q, model.families) and q.batch_shape == (),
            f"a prior {type(q).__name__} of batch shape {q.batch_shape}",
            " or ".join(f.__name__ for f in model.families)
            + f", of batch shape (), which {type(model).__name__} needs",
        )
        _require(
            bool(model.admits(q)),
            f"a prior {type(q).__name__} of parameters {q.standard_parameters()}",
            f"one under which the log likelihood of {type(model).__name__} has an expectation",
        )
        estimator = self.estimator or best_estimator(model, q)
        _check_estimator(estimator, model, q)
        domain = self.domain or estimator.domain
        _require(
            domain == "halve" or isinstance(q, AnyGaussian),
            f"domain={domain!r} and a posterior of {type(q).__name__}",
            "a Gaussian posterior for it",
        )
        noisy = estimator.stochastic or self.batch_size is not None
        exact = isinstance(estimator, Exact) and not noisy
        decaying = slowly_decaying if domain == "retract" else quickly_decaying
        return LocalUpdate(
            estimator,
            steps=self.steps or (1 if exact else 20),
            rate=self.rate or (1.0 if exact else decaying if noisy else 0.5),
            temperature=self.temperature,
            domain=domain,
            batch_size=self.batch_size,
        )

    @property
    def noisy(self) -> bool:
        """Whether two keys give two directions, once resolved."""
        return self.batch_size is not None or (
            self.estimator is not None and self.estimator.stochastic
        )

    @property
    def conjugate(self) -> bool:
        """Whether one visit gives the exact factor, whatever the others say."""
        return isinstance(self.estimator, Exact) and self.rate == 1.0 and self.batch_size is None

    def __call__(
        self,
        model: Model,
        q: Q,
        factor: Q,
        records: Records,
        count: Int[Any, ""] | int,
        *,
        key: Key[jax.Array, ""],
    ) -> tuple[Q, UpdateInfo]:
        """The site's new factor, after ``steps`` steps from ``q = cavity + factor``.

        Pure and traceable; ``count`` is how many steps the site took before. Resolve first.
        """
        cavity = q - factor

        def step(carry: Any, index: Any) -> tuple[Any, None]:
            q, factor, _, info = carry
            own_key = jax.random.fold_in(key, index)
            direction = self.direction(model, q, factor, records, key=own_key)
            rate = self.rate(count + index) if callable(self.rate) else self.rate
            moved, halvings = self._advance(model, q, direction, rate)
            # In exact arithmetic q = cavity + factor; to derive each from the other would drift.
            return (moved, moved - cavity, (q, direction), _note(info, direction, halvings)), None

        zero = jnp.zeros((), jnp.int32)
        # Every step stays where expectations are finite; a start outside has no gradient at all.
        info = UpdateInfo(zero, zero, jnp.asarray(model.admits(q)), jnp.zeros((), _dtype(q)))
        start = (q, factor, (q, q.zero()), info)
        (_, factor, last, info), _ = jax.lax.scan(step, start, jnp.arange(self.steps))
        return factor, info._replace(residual=fisher_length(*last))

    def direction(
        self, model: Model, q: Q, factor: Q, records: Records, *, key: Key[jax.Array, ""]
    ) -> Q:
        """``∇_μ E_q[log likelihood] / α - η_k``: zero where the local free energy is least."""
        assert self.estimator is not None, "resolve first"
        if self.batch_size is not None and self.batch_size < records.size:
            key, batch_key = jax.random.split(key)
            records = _batch(records, self.batch_size, key=batch_key)
        gradient = self.estimator(model, q, records, key=key)
        return gradient / self.temperature - factor

    def _advance(self, model: Model, q: Q, direction: Q, rate: Any) -> tuple[Q, jax.Array]:
        """The posterior after one step that stays in the domain, and how often it was halved."""
        straight = lambda q, direction, rate: q + direction * rate
        curved = lambda q, direction, rate: q.retract(direction, rate)
        move = curved if self.domain == "retract" else straight
        inside = lambda q: q.is_proper() & model.admits(q)

        def outside(state: tuple[jax.Array, jax.Array]) -> jax.Array:
            halvings, rate = state
            return ~inside(move(q, direction, rate)) & (halvings <= HALVINGS)

        halve = lambda state: (state[0] + 1, state[1] / 2)
        start = (jnp.zeros((), jnp.int32), jnp.asarray(rate, _dtype(q)))
        halvings, rate = jax.lax.while_loop(outside, halve, start)
        moved = move(q, direction, rate)
        stay = lambda new, old: jnp.where(halvings <= HALVINGS, new, old)
        return jax.tree.map(stay, moved, q), halvings


def quickly_decaying(count: Any) -> Any:
    """``1/2 / (1 + t/20)^(3/4)``: steps that shrink as noise requires."""
    return 0.5 / (1 + count / 20) ** 0.75


def slowly_decaying(count: Any) -> Any:
    """``1/5 / (1 + t/100)^(3/4)``: smaller first steps, for posteriors with many optima."""
    return 0.2 / (1 + count / 100) ** 0.75


def fisher_length(q: ExponentialFamily, direction: ExponentialFamily) -> jax.Array:
    """``sqrt(dᵀ F d)`` by a product of the Fisher information with a vector."""
    vector = jnp.asarray(direction.natural_parameters)
    means = lambda eta: q.with_natural_parameters(eta).mean_parameters
    _, moved = jax.jvp(means, (jnp.asarray(q.natural_parameters),), (vector,))
    return jnp.sqrt(jnp.maximum(vector @ moved, 0.0))


def _note(info: UpdateInfo, direction: ExponentialFamily, halvings: jax.Array) -> UpdateInfo:
    """``info`` after one more step."""
    taken = halvings <= HALVINGS
    return UpdateInfo(
        info.halvings + jnp.where(taken, halvings, 0),
        info.refused + ~taken,
        info.finite & jnp.isfinite(jnp.asarray(direction.natural_parameters)).all(),
        info.residual,
    )


def _dtype(q: ExponentialFamily) -> Any:
    return q.natural_parameters.dtype


def _batch(records: Records, size: int, *, key: Key[jax.Array, ""]) -> Records:
    """Some records, drawn without replacement, whose weights stand for all."""
    index = jax.random.choice(key, records.size, (size,), replace=False)
    data = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], records.data)
    return Records(data, jnp.asarray(records.weights)[index] * (records.size / size))


def _counts(number: int | None) -> bool:
    return number is None or (isinstance(number, Integral) and number >= 1)


def _estimator(given: Estimator | str | None) -> Estimator | None:
    if given is None or isinstance(given, Estimator):
        return given
    known = isinstance(given, str) and given in ESTIMATORS
    _require(known, f"estimator {given!r}", f"an Estimator object or one of {list(ESTIMATORS)}")
    return ESTIMATORS[given]()


def _require(condition: bool, found: str, expected: str) -> None:
    if not condition:
        raise _mistake(found, expected)


def _mistake(found: str, expected: str) -> UsageError:
    return UsageError(found=found, expected=expected, fix="Mend this argument.")
