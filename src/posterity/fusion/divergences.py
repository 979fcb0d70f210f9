"""Divergences of components other than the two directions of KL, with their barycentres."""

import abc
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from posterity.arguments import Constraint
from posterity.arrays.canonical import canonical_mean, canonical_sums
from posterity.arrays.search import Point, search
from posterity.arrays.typing import Bool, Float, Int, Real
from posterity.errors import ConvergenceWarning, UsageError
from posterity.families import ExponentialFamily
from posterity.fusion.geometry import Divergence, chunks, kl_matrix, moved, of_places, opposite

__all__ = ["Discrepancy", "Jeffreys", "Name", "Renyi", "divergence_of"]

Array = np.ndarray
Name = Literal["reverse", "forward", "jeffreys", "renyi"]
Gradient = Callable[[ExponentialFamily], Float[Array, "g dim"]]
ORDER = Constraint(
    "an order above 0 and up to 1: beyond 1 the divergence is infinite wherever the one is as "
    "wide as the other, and the middle of several need not exist",
    lambda order: 0 < float(order) <= 1,
)
PROBE = 1e-4  # Step of central differences, as a part of the way; smaller for ways of many nats
LOOKS, HALVINGS = 300, 40
ROUNDING = 1e-14  # Relative rounding error of an objective
LOOSE = 1e-9  # Remaining gain, per nat of the objective, above which there is a warning
DIGITS = 1e-6  # Relative error up to which a member reproduces its mean parameters


class Discrepancy(abc.ABC):
    """A divergence of two members of a family, with the barycentre of several.

    The two directions of KL are not subclasses: their Bregman geometry is in
    :mod:`posterity.fusion.geometry`.
    """

    @property
    @abc.abstractmethod
    def value(self) -> str:
        """The name of the divergence as ``fuse`` takes it."""

    @abc.abstractmethod
    def between(self, p: ExponentialFamily, q: ExponentialFamily) -> Float[Real, "*batch"]:
        """Return the divergence from ``p`` (the global member) to ``q``, in nats; batches
        broadcast. Raise a StructureError if structures differ or it is undefined for the family.
        """

    @abc.abstractmethod
    def _middle(
        self, members: ExponentialFamily, labels: Int[Array, " n"], weights: Float[Array, " n"]
    ) -> ExponentialFamily:
        """Return the barycentres of members that are centred at the origin."""

    def check(self, member: ExponentialFamily) -> None:
        """Raise a StructureError for a family for which the divergence is not defined."""
        del member

    def costs(self, members: ExponentialFamily, centroids: ExponentialFamily) -> Array:
        """Return ``between(centroid, member)`` (N, G) for all pairs of batches (N,) and (G,)."""
        out = np.empty((*members.batch_shape, *centroids.batch_shape))
        for rows in chunks(len(out), 32 * out.shape[1] * members.dimension):
            out[rows] = self.between(centroids[None], members[rows][:, None])
        return out

    def barycenter(
        self,
        members: ExponentialFamily,
        plan: Float[Array, "n g"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
    ) -> ExponentialFamily:
        """Return the :func:`barycenter` of members (N,), where ``D`` is :meth:`between`.

        Warns:
            ConvergenceWarning: if an iteration stopped before it converged.
        """
        self.check(members)
        weights = np.ones(len(plan)) if weights is None else np.asarray(weights, float)
        labels = plan
        if plan.ndim == 2:
            rows, labels = np.nonzero(plan)
            weights, members = weights[rows] * plan[rows, labels], members[rows]
        # Squared means cancel in moments: these are averaged about the members' mean.
        origin = of_places(canonical_mean, members.location())
        return moved(self._middle(moved(members, origin), labels, weights), opposite(origin))


@dataclasses.dataclass(frozen=True)
class Renyi(Discrepancy):
    """``D_α(p || q) = log ∫ p^α q^(1-α) / (α - 1)``, in nats, of an order ``0 < α <= 1``.

    In an exponential family it is a Jensen gap of the log normaliser at the mixed natural
    parameters ``α η_p + (1 - α) η_q``, which are proper for such orders. It never falls with the
    order. Order 1 is ``KL(p || q)``; ``D_α / α`` tends to ``KL(q || p)`` as the order tends to 0.
    Order 1/2 is symmetric and equals twice the Bhattacharyya distance.

    Raises:
        UsageError: for an order outside ``(0, 1]``.

    Source: renyi1961; vanerven2014; nielsen2011 (exponential families).

    >>> from posterity.families import DiagonalGaussian
    >>> q = DiagonalGaussian.from_standard(mean=[[0.0], [2.0]], variance=[[1.0], [1.0]])
    >>> float(Renyi(0.5).between(q[0], q[1]))
    1.0
    """

    order: int | float = 0.5

    def __post_init__(self) -> None:
        ORDER.check(order=self.order)

    @property
    def value(self) -> str:
        """``"renyi:0.5"`` for order 0.5."""
        return f"renyi:{self.order:g}"

    def between(self, p: ExponentialFamily, q: ExponentialFamily) -> Float[Real, "*batch"]:
        """``D_α(p || q)``, in nats, never negative; its rounding error grows as ``1/(1-α)``.

        With ``m`` at the mixed natural parameters it is
        ``α/(1-α) KL(m || p) + KL(m || q)`` (vanerven2014, theorem 30).
        """
        order = self.order
        p._check_alike(q)
        if order == 1:
            return np.maximum(p.kl(q), 0.0)
        mixed = order * p.natural_parameters + (1 - order) * q.natural_parameters
        m = p.with_natural_parameters(mixed)
        return np.maximum(order / (1 - order) * m.kl(p) + m.kl(q), 0.0)

    def _middle(
        self, members: ExponentialFamily, labels: Int[Array, " n"], weights: Float[Array, " n"]
    ) -> ExponentialFamily:
        """Find the barycentres by the concave-convex procedure (nielsen2011, section 3), with steps
        up to ``1/(1-α)`` times as long. A plain step sets the barycentre's mean parameters to the
        average of those of all ``m``. It always descends, but goes ``1 - α`` of the way only.
        """
        share, order = _shares(labels, weights), self.order
        average = lambda values: _sums(share[:, None] * values, labels)
        total = members.with_natural_parameters(average(members.natural_parameters))
        if order == 1:
            return total
        rest = (1 - order) * members.natural_parameters
        objective = lambda c: _sums(share * self.between(c[labels], members), labels)

        def descent(c: ExponentialFamily) -> Float[Array, "g dim"]:
            mixed = members.with_natural_parameters(order * c.natural_parameters[labels] + rest)
            return order / (1 - order) * (average(mixed.mean_parameters) - c.mean_parameters)

        return least(total, objective, descent, rate=1 / order)


@dataclasses.dataclass(frozen=True)
class Jeffreys(Discrepancy):
    """``J(p, q) = KL(p || q) + KL(q || p)``, in nats: symmetric, and about twice a small KL.

    The barycentre lies between the averages of natural and of mean parameters.

    Source: nielsen2009, section 3.

    >>> from posterity.families import DiagonalGaussian
    >>> q = DiagonalGaussian.from_standard(mean=[[0.0], [2.0]], variance=[[1.0], [1.0]])
    >>> float(Jeffreys().between(q[0], q[1]))
    4.0
    """

    @property
    def value(self) -> str:
        """``"jeffreys"``."""
        return "jeffreys"

    def between(self, p: ExponentialFamily, q: ExponentialFamily) -> Float[Real, "*batch"]:
        """``KL(p || q) + KL(q || p)``, in nats."""
        return np.maximum(p.kl(q) + q.kl(p), 0.0)

    def costs(self, members: ExponentialFamily, centroids: ExponentialFamily) -> Array:
        """Return the divergences (N, G) of batches (N,) and (G,) by two matrix products."""
        return kl_matrix(centroids, members) + kl_matrix(members, centroids).T

    def _middle(
        self, members: ExponentialFamily, labels: Int[Array, " n"], weights: Float[Array, " n"]
    ) -> ExponentialFamily:
        """Minimise ``KL(c || right) + KL(left || c)`` over ``c``.

        ``right`` is the average of natural parameters and ``left`` that of mean parameters. Up to a
        constant this equals the summed divergence to all members. Its gradient is
        ``F (η_c - η_right) + μ_c - μ_left``; near the minimum its curvature is ``2F``.

        Source: nielsen2009, section 3 (the reduction; that the minimum lies on the geodesic between
        the two holds in one dimension, not in several, see ``docs/decisions/0024``).
        """
        share = _shares(labels, weights)[:, None]
        right = members.with_natural_parameters(_sums(share * members.natural_parameters, labels))
        left = members.with_mean_parameters(_sums(share * members.mean_parameters, labels))

        def descent(c: ExponentialFamily) -> Float[Array, "g dim"]:
            # F (η_right - η_c) by central differences: larger divergences take smaller steps.
            eta, apart = c.natural_parameters, np.abs(c.kl(right) + right.kl(c))
            step, way = (PROBE / (1 + apart))[:, None], right.natural_parameters - eta
            at = lambda eta: c.with_natural_parameters(eta).mean_parameters
            slope = (at(eta + step * way) - at(eta - step * way)) / (2 * step)
            return slope - (c.mean_parameters - left.mean_parameters)

        start = members.with_natural_parameters(
            (right.natural_parameters + left.natural_parameters) / 2
        )
        return least(start, lambda c: c.kl(right) + left.kl(c), descent, rate=0.5)


def divergence_of(choice: Divergence | Discrepancy | str) -> Divergence | Discrepancy:
    """Return the divergence with a name (``"renyi:0.3"`` has an order), or the object itself;
    raise a UsageError for anything else.
    """
    if isinstance(choice, Renyi) and choice.order == 1:
        return Divergence.REVERSE  # the same divergence
    if isinstance(choice, Divergence | Discrepancy):
        return choice
    name, colon, order = choice.partition(":") if isinstance(choice, str) else ("", "", "")
    if not colon and name in list(Divergence):
        return Divergence(name)
    if choice == "jeffreys":
        return Jeffreys()
    if name == "renyi":
        try:
            return divergence_of(Renyi(float(order) if colon else 0.5))
        except ValueError:
            pass  # not a number
    raise UsageError(
        found=f"divergence={choice!r}",
        expected=f"one of {list(get_args(Name))}, 'renyi:0.3' for another order, or an object of "
        "posterity.fusion.divergences",
        fix="Choose one of these for divergence.",
    )


def barycenter(
    members: ExponentialFamily,
    plan: Float[Array, "n g"] | Int[Array, " n"],
    divergence: Divergence | Discrepancy | Name | str = "reverse",
    weights: Float[Array, " n"] | None = None,
) -> ExponentialFamily:
    """Return the ``G`` members that minimise ``Σ_lg w_l P_lg D(g, l)`` for assigned components.

    For ``"reverse"``, ``D`` is ``KL(g || l)`` and the minimiser is the weighted average of natural
    parameters. For ``"forward"``, ``D`` is ``KL(l || g)`` and the minimiser is the average of mean
    parameters (claici2020, proposition 1; banerjee2005, proposition 1). With labels the result
    does not depend on the order of components, to the last bit.

    Args:
        members: batch (N,) of local components.
        plan: relaxed assignment (N, G) with non-negative entries, or labels (N,) without gaps.
        divergence: ``"reverse"``, ``"forward"``, or another divergence of
            :mod:`posterity.fusion.divergences`, by name or as an object.
        weights: weight (N,) of each component; by default equal.

    >>> from posterity.families import Gamma
    >>> q = Gamma.from_standard(shape=[2.0, 4.0], rate=[1.0, 3.0])
    >>> barycenter(q, np.array([0, 0])).rate
    array([2.])
    """
    divergence = divergence_of(divergence)
    if isinstance(divergence, Discrepancy):
        return divergence.barycenter(members, plan, weights)
    # Squared means cancel in moments: these are averaged about the members' mean.
    reverse = divergence is Divergence.REVERSE
    origin = None if reverse else of_places(canonical_mean, members.location())
    members = moved(members, origin)
    coordinates = divergence.coordinates(members)
    weights = np.ones(len(coordinates)) if weights is None else np.asarray(weights, float)
    if plan.ndim == 2:
        share = plan * weights[:, None]
        mean = share.T @ coordinates / share.sum(0)[:, None]
    else:
        size, alike = int(plan.max()) + 1, (weights == 1).all()
        total = canonical_sums(coordinates if alike else coordinates * weights[:, None], plan, size)
        counts = np.bincount(plan) if alike else canonical_sums(weights[:, None], plan, size)[:, 0]
        mean = total / counts[:, None]
    return moved(divergence.family(members[:1], mean), opposite(origin))


def _shares(labels: Int[Array, " n"], weights: Float[Array, " n"]) -> Float[Array, " n"]:
    """Scale weights so that they add up to one within each label."""
    return weights / _sums(weights, labels)[labels]


def _sums(values: Any, labels: Int[Array, " n"]) -> Any:
    """Return the sums (G, ...) of values (N, ...) by label, independent of their order."""
    size = int(labels.max()) + 1
    total = canonical_sums(values.reshape(len(values), -1), labels, size)
    return total.reshape(size, *values.shape[1:])


def least(
    start: ExponentialFamily,
    objective: Callable[[ExponentialFamily], Float[Array, " g"]],
    descent: Gradient,
    rate: float,
) -> ExponentialFamily:
    """Minimise the objective of each member (G,) from ``start`` by natural-gradient steps; a
    ConvergenceWarning is issued if 300 evaluations do not suffice.

    ``descent`` is minus the gradient with respect to natural parameters. A step goes straight, in
    natural parameters, to the member whose mean parameters are larger by ``rate * descent``, which
    is halved until such a member exists. The slopes at both ends give the length of the step, at
    least a tenth of the way.
    """

    def look(at: Float[Array, "g dim"]) -> Point:
        member = start.with_natural_parameters(at)
        value, way = objective(member), descent(member)
        direction = _reached(member, rate * way) - at
        beyond = descent(start.with_natural_parameters(at + direction))
        first, last = (np.maximum((direction * w).sum(-1), 0.0) for w in (way, way - beyond))
        share = np.clip(np.divide(first, last, out=np.ones_like(first), where=last > 0), 0.1, 1.0)
        direction, slope = share[:, None] * direction, share * first
        return Point(at, direction, value, ROUNDING * (1 + abs(value)), slope, np.isfinite(value))

    best = search(look, start.natural_parameters, most=LOOKS).best
    left = best.squared / 2
    if not (left <= LOOSE * (1 + abs(best.value))).all():
        warnings.warn(
            f"a barycentre has not settled after {LOOKS} looks; {left.max():.1g} nats are left",
            ConvergenceWarning,
            stacklevel=3,
        )
    return start.with_natural_parameters(best.at)


def _reached(member: ExponentialFamily, step: Float[Array, "g dim"]) -> Float[Array, "g dim"]:
    """Return natural parameters at the mean parameters plus a step, halved until they exist."""
    mean, natural = member.mean_parameters, member.natural_parameters
    missing = np.ones(len(mean), bool)
    for _ in range(HALVINGS):
        tried, exists = _members_at(member, mean + step)
        natural = np.where((missing & exists)[:, None], tried, natural)
        missing &= ~exists
        if not missing.any():
            break
        step = step / 2
    return natural


def _members_at(
    like: ExponentialFamily, mean: Float[Array, "g dim"]
) -> tuple[Float[Array, "g dim"], Bool[Array, " g"]]:
    """Return the natural parameters for given mean parameters, and which rows are valid: those of
    a proper member that reproduces its mean parameters. Nearly degenerate members do not.
    """
    try:
        with np.errstate(all="ignore"):
            member = like.with_mean_parameters(mean)
            size = np.abs(mean) + np.abs(mean).max(-1, keepdims=True) / 1e3
            kept = np.abs(member.mean_parameters - mean) <= DIGITS * size
            return member.natural_parameters, np.asarray(member.is_proper() & kept.all(-1))
    except np.linalg.LinAlgError:  # one invalid row, such as a singular matrix, fails the batch
        return mean, np.zeros(len(mean), bool)
