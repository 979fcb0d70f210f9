"""Partial pooling of regressions: a site's marginal likelihood of the shared parameters.

A site's coefficients are ``β ~ N(c, D)``, where ``c`` are the population's coefficients and ``D``
is diagonal: ``exp(2 s_j)`` if a site's coefficient varies around the population's, else zero.
Expectation propagation over the site's records (minka2001) gives a Gaussian message
``exp(hᵀβ - βᵀΛβ/2)`` that approximates its likelihood; for linear regression it is the likelihood.
With the message, ``β`` and ``c`` are integrated out in closed form for every ``s``. The slope and
the curvature in ``s``, which natural-gradient steps use (bui2018), have closed forms too.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from posterity.arguments import at_least
from posterity.arrays.linear_algebra import outer
from posterity.arrays.tree import static
from posterity.arrays.typing import Float
from posterity.errors import ParameterError, UsageError
from posterity.families import ExponentialFamily
from posterity.inference.descent import not_finite
from posterity.inference.expectation_propagation import Likelihood, Matrix, Normal, Vector
from posterity.inference.population import GRID, Nodes, grids, laws_at, variances
from posterity.inference.update import LocalUpdate
from posterity.models import LinearRegression, Model, PersonalRegression, Records
from posterity.models.personal import Law


@dataclasses.dataclass(frozen=True)
class Effort:
    """What a visit may cost, and how exact it is."""

    steps: int = 20
    """Largest number of natural-gradient steps of the log spreads."""
    small: float = 1e-10
    """Estimated change in nats up to which no further step is made. What n sites leave in one
    direction adds to n^2 times as much: a millionth of a nat would displace the posterior of 30 by
    1e-3."""
    slack: float = 1e-2
    """Squared step length, in nats, that bounds the tolerated rise of the free energy (a tenth)."""
    shortest: float = 1e-3
    """Smallest share of a natural-gradient step."""
    aside: float = 3.0**0.5
    """Displacement of all log spreads, in deviations, to which the message is compared: the outer
    nodes of a sum over three, of probability 1/6 each."""
    furthest: float = 40.0
    """Largest log spread of a node; a step that exceeds it is shortened."""


EFFORT = Effort()


class Marginal(NamedTuple):
    """``E[log ∫ likelihood(β) N(β | c, D(s)) dβ]``, ``c ~ N(m, C)``, at several log spreads ``s``.

    ``slope`` (m, p) and ``curvature`` (m, p, p) are its derivatives by ``s``. As a function of
    ``c`` the integral is the Gaussian of natural parameters ``linear`` and ``precision``.
    """

    value: Float[np.ndarray, " m"]
    slope: Float[np.ndarray, "m p"]
    curvature: Float[np.ndarray, "m p p"]
    linear: Float[np.ndarray, "m d"]
    precision: Float[np.ndarray, "m d d"]


class PooledInfo(NamedTuple):
    """Diagnostics of one visit."""

    residual: float
    """Fisher length of the remaining natural gradient, in sqrt(nats)."""
    quadrature_error: float
    """Estimated displacement of the posterior, in nats, by the error of sums over nodes."""
    message_error: float = 0.0
    """The same by one Gaussian message for all log spreads; 0 after a visit, which is not asked."""


class PartialPooling(LocalUpdate):
    """The default local update for a :class:`~posterity.models.PersonalRegression`.

    Both parts of the factor minimise the site's free energy: the population's coefficients in
    closed form, the log spreads by natural gradients and a line search.

    Args:
        nodes: number of quasi-random nodes over more than two log spreads. One or two log spreads
            have a grid.
    """

    nodes: int = static()

    pools: ClassVar[bool] = True

    def __init__(self, nodes: int = 64):
        at_least(8).check(nodes=nodes)
        super().__init__(steps=1)
        self.nodes = nodes

    @staticmethod
    def serves(model: Model, q: ExponentialFamily) -> bool:
        """Return whether this is the default update for a model and family."""
        if not isinstance(model, PersonalRegression):
            return False
        parts = dict(q.independent_blocks())
        own = hasattr(model.model, "predictor_value_and_slope")
        plain = all(hasattr(part, "precision_mean") for part in parts.values())
        return own and plain and parts.keys() == {"coefficients", "log_spread"}

    def resolve(self, model: Model, q: ExponentialFamily) -> "PartialPooling":
        """Return itself. Raises UsageError if the model has no site-specific coefficients."""
        if not self.serves(model, q):
            raise UsageError(
                found=f"PartialPooling for {type(model).__name__} and a {type(q).__name__}",
                expected="a PersonalRegression, and Gaussian coefficients and log spreads",
                fix="Leave the update out, or pass personal=True.",
            )
        return self

    @property
    def rule(self) -> str:
        return "marginal likelihood by expectation propagation, natural gradients"

    def needs_jax(self, model: Model) -> bool:
        return not (isinstance(model, PersonalRegression) and model.model.in_numpy)

    def improved(
        self, model: PersonalRegression, view: Any, factor: Any, records: Records, count: int
    ) -> tuple[Any, PooledInfo]:
        """Return the site's improved factor, given the posterior ``view``, and diagnostics.

        From the site's fourth visit on, half of the change is applied, and later decreasing shares,
        so that a few sites with many records do not oscillate.

        Raises:
            ParameterError: if the log likelihood is not finite near the posterior.
        """
        new, info = self._refined(model, view, factor, records, EFFORT.steps)
        share = 1.0 if count < 3 else min(0.5, 12 / (count + 1))
        return (new if share == 1 else factor + (new - factor) * share), info

    def target(
        self, model: PersonalRegression, view: Any, factor: Any, records: Records
    ) -> tuple[Any, PooledInfo]:
        """Return the factor after one full natural-gradient step, which is ``factor`` at the
        optimum. Raises ParameterError if the log likelihood is not finite near the posterior.
        """
        return self._refined(model, view, factor, records, 0)

    def _refined(
        self, model: PersonalRegression, view: Any, factor: Any, records: Records, steps: int
    ) -> tuple[Any, PooledInfo]:
        site = _Site(model, view, factor, records, self.nodes)
        site.descend(steps)
        one, other = site.gradients()
        # Two sets of random nodes have equal errors; that of a finer grid is negligible.
        erring = 1 if len(site.own) in GRID else 2
        error = float(view.squared_length(other - one)) / 2 / erring + site.likelihood.left
        if not np.isfinite(error):
            raise not_finite()
        aside = 0.0 if steps else site.message_error()
        return site.factor() if steps else one, PooledInfo(float(site.residual), error, aside)


class _Site:
    """The state of one visit: cavity, message of the records, and the refined posterior."""

    def __init__(
        self, model: PersonalRegression, view: Any, factor: Any, records: Records, nodes: int
    ):
        self.model = model
        self.view = view
        self.own = np.array(model.personal)
        self.coefficients = Normal.of(view.coefficients)
        self.cavity = self.coefficients.plus(Normal.of(factor.coefficients), -1.0)
        self.spread = Normal.of(view.log_spread)
        self.others = self.spread.plus(Normal.of(factor.log_spread), -1.0)
        self.residual, self.likelihood = np.inf, Likelihood(model, records)
        self.grids = grids(len(self.own), nodes)

    def descend(self, steps: int) -> None:
        """Make natural-gradient steps of the log spreads, each shortened by a line search."""
        for step in range(steps + 1):
            self.message = self._message(self.spread.mean)
            energy, at = self._energy(self.spread)
            if at is not None and steps and not step:
                # Coefficients first: under a wide prior of theirs any spread would seem too small.
                self.coefficients = self.cavity.plus(self._of_coefficients(at, 0))
                energy, at = self._energy(self.spread)
            if at is None:
                raise ParameterError(
                    found="log spreads that may be so large that sums over them overflow",
                    expected="a prior under which sites differ by less than exp(40)",
                    fix="Give `log_spread` a smaller standard deviation, 2 at most, say.",
                )
            self.at = at
            ahead = self._gradient(self.spread, at, 0)
            change = ahead.plus(self.spread.plus(self.others, -1.0), -1.0)
            self.residual = _length(self.spread, change)
            if step == steps or self.residual**2 / 2 <= EFFORT.small:
                break
            # Sums over nodes are not exact: near the optimum they may rise while the energy falls.
            share = 1.0
            slack = min(self.residual**2, EFFORT.slack) / 10
            while share > EFFORT.shortest:
                moved = self.spread.plus(change, share)
                lower, there = self._energy(moved)
                if lower <= energy + slack:
                    break
                share /= 2
            else:
                break
            self.spread = moved
            self.coefficients = self.cavity.plus(self._of_coefficients(there, 0))

    def factor(self) -> Any:
        """Return the site's factor at the end of the descent."""
        spread = self.spread.plus(self.others, -1.0)
        return self._joined(self._of_coefficients(self.at, 0), spread)

    def gradients(self) -> list[Any]:
        """Return the factor after a full step, by each of two sets of nodes."""
        steps = []
        otherwise = self._marginal(self.spread, self.grids[1][0])
        for seed, at in enumerate((self.at, otherwise)):
            if at is None:
                raise not_finite()
            gradient = self._gradient(self.spread, at, seed)
            steps.append(self._joined(self._of_coefficients(at, seed), gradient))
        return steps

    def message_error(self) -> float:
        """Return the displacement of the posterior, in nats, if log spreads had messages of their
        own; infinite if these are not finite. It is large if records are few or rare events, whose
        likelihood is far from Gaussian.

        All log spreads are displaced together, which is cheap, so it is a rough estimate.
        """
        if isinstance(self.model.model, LinearRegression):
            return 0.0
        deviation = np.sqrt(np.diagonal(self.spread.covariance))
        law = self.coefficients
        shared = Normal.nothing(len(law.linear))
        spread = Normal.nothing(len(self.own))
        for away in (EFFORT.aside * deviation, -EFFORT.aside * deviation):
            place = self.spread.mean + away
            try:
                both = self._message(place), self.message
            except ParameterError:
                return np.inf
            own, one = (
                marginal(message, law.mean, law.covariance, place[None], self.own)
                for message in both
            )
            slope = (own.slope[0] - one.slope[0]) / 6
            bend = -np.diag(slope * away) / deviation**2  # Stein's lemma
            spread = spread.plus(Normal(slope + bend @ self.spread.mean, bend))
            parts = own.linear[0] - one.linear[0], own.precision[0] - one.precision[0]
            shared = shared.plus(Normal(*parts), 1 / 6)
        nats = (_length(law, shared) ** 2 + _length(self.spread, spread) ** 2) / 2
        return nats if np.isfinite(nats) else np.inf

    def _joined(self, coefficients: Normal, spread: Normal) -> Any:
        laws = {"coefficients": coefficients, "log_spread": spread}
        return type(self.view)(**{n: _law(getattr(self.view, n), law) for n, law in laws.items()})

    def _message(self, log_spread: Vector) -> Normal:
        covariance = self.cavity.covariance
        covariance[self.own, self.own] += np.exp(2 * log_spread)
        return self.likelihood.message(self.cavity.mean, covariance)

    def _marginal(self, spread: Normal, nodes: Any) -> Marginal | None:
        """Return the marginal likelihood at these nodes; None if sums over them overflow."""
        s = spread.mean + nodes @ np.linalg.cholesky(spread.covariance).T
        if not s.max() < EFFORT.furthest:
            return None
        law = self.coefficients
        try:
            return marginal(self.message, law.mean, law.covariance, s, self.own)
        except np.linalg.LinAlgError:
            return None

    def _energy(self, spread: Normal) -> tuple[float, Any]:
        """Return ``KL(spread ‖ cavity) - E[log Z]`` in nats up to a constant, and the marginal."""
        at = self._marginal(spread, self.grids[0][0]) if spread.proper else None
        mean = spread.mean
        if at is None:
            return np.inf, None
        others = self.others
        covariance = spread.covariance
        cross = (others.precision * covariance).sum() + mean @ others.precision @ mean
        entropy = -np.linalg.slogdet(spread.precision)[1] / 2
        return float(cross / 2 - others.linear @ mean - entropy - self.grids[0][1] @ at.value), at

    def _of_coefficients(self, at: Marginal, seed: int) -> Normal:
        """Return ``∇_μ E[log Z]`` as a factor of the population's coefficients."""
        chances = self.grids[seed][1]
        precision = np.tensordot(chances, at.precision, 1)
        linear = chances @ at.linear
        if self.view.coefficients.diagonal:
            kept = np.diag(np.diagonal(precision))
            return Normal(linear + (kept - precision) @ self.coefficients.mean, kept)
        return Normal(linear, precision)

    def _gradient(self, spread: Normal, at: Marginal, seed: int) -> Normal:
        """Return ``∇_μ E[log Z]`` as a factor of the log spreads (Bonnet and Price)."""
        chances = self.grids[seed][1]
        precision = -np.tensordot(chances, at.curvature, 1)
        if self.view.log_spread.diagonal:
            precision = np.diag(np.diagonal(precision))
        return Normal(chances @ at.slope + precision @ spread.mean, precision)


def marginal(
    message: Normal, mean: Vector, covariance: Matrix, s: Float[np.ndarray, "m p"], own: Any
) -> Marginal:
    """Return a site's marginal likelihood at several log spreads ``s`` of its ``own`` columns.

    ``message`` approximates the likelihood, and ``c ~ N(mean, covariance)``.
    """
    variance = variances(s, own, len(mean))
    ahead = Normal(message.linear - message.precision @ mean, message.precision)
    shrunk, lost = ahead.blurred(variance)
    pull = shrunk.linear
    around = shrunk.precision @ covariance @ shrunk.precision  # of the pull, as c is random
    value = (pull * variance) @ ahead.linear - lost - (shrunk.precision * covariance).sum((1, 2))
    within = own[:, None], own
    w = shrunk.precision[:, *within]
    u = pull[:, own]
    second = outer(u) + around[:, *within]
    own_variance = variance[:, own]
    slope = own_variance * np.diagonal(second - w, axis1=1, axis2=2)
    curvature = outer(own_variance) * (2 * w**2 - 4 * second * w) + 2 * slope[:, :, None] * np.eye(
        len(own)
    )
    linear = pull + shrunk.precision @ mean
    return Marginal(value / 2, slope, curvature, linear, shrunk.precision)


def own_law(
    model: PersonalRegression, shared: Any, records: Records | None, draws: dict[str, Any]
) -> Law:
    """Return the law of a site's own coefficients given draws (m, ...) of the shared parameters.

    Means are (m, p); scales are roots of covariances (m, p, p).
    """
    coefficients = Normal.of(shared.coefficients)
    own = np.array(model.personal)
    size = len(coefficients.linear)
    message = Normal.nothing(size)
    if records is not None and records.size:
        covariance = coefficients.covariance
        covariance[own, own] += np.exp(2 * shared.log_spread.mean)
        message = Likelihood(model, records).message(coefficients.mean, covariance)
    centre = draws["coefficients"]
    known = np.zeros((len(centre), size, size))
    mean, covariance = laws_at(
        message, Nodes(np.ones(len(centre)), draws["log_spread"], centre, known), own
    )
    return Law(mean[:, own], np.linalg.cholesky(covariance[:, own[:, None], own]))


def _length(law: Normal, change: Normal) -> float:
    """Return the length of a natural-parameter change in the Fisher metric, in sqrt(nats)."""
    covariance = law.covariance
    slope = change.linear - change.precision @ law.mean
    bend = covariance @ change.precision
    return float(np.sqrt(slope @ covariance @ slope + (bend * bend.T).sum() / 2))


def _law(like: Any, law: Normal) -> Any:
    precision = np.diagonal(law.precision) if like.diagonal else law.precision
    return type(like)._of(precision_mean=law.linear, precision=precision)
