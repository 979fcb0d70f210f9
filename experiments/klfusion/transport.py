"""Transport distances, which the study of divergences compares with the library's own.

The squared 2-Wasserstein distance between the Gaussians that components are about, and optimal
transport of whole mixtures. Objects of both are passed as ``posterity.fuse(divergence=...)``.
"""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np

from posterity.arrays.typing import Float, Int, Real
from posterity.errors import ConvergenceWarning, StructureError
from posterity.families import ExponentialFamily
from posterity.families.composite import Composite
from posterity.families.gaussian_moments import HasGaussianMoments, Moments
from posterity.fusion.clustering import assign
from posterity.fusion.divergences.discrepancy import Discrepancy, shares, sums

Array = np.ndarray
STEPS = 500
SETTLED = 1e-13
"""Change of a covariance, as a part of its trace, that ends the iteration."""
LOOSE = 1e-8
"""The same, beyond which it is said that the iteration did not settle."""


@dataclasses.dataclass(frozen=True)
class Wasserstein(Discrepancy):
    """``W₂²(p, q)`` of the Gaussians that two components are about, in squared units of the event.

    ``|m - m'|² + tr C + tr C' - 2 tr (C^½ C' C^½)^½``: what it costs to carry the mass of one to
    the other. Gaussians are about themselves; Normal-Wisharts and Normal-Gammas about the Gaussian
    of their expected mean and precision, so that their ``κ`` and ``ν`` make no difference (the
    barycentre has the average ones). Products add up. It depends on the units of coordinates,
    which KL does not.

    Source: alvarez2016; delon2020 (components of mixtures).

    >>> from posterity.families import DiagonalGaussian
    >>> q = DiagonalGaussian.from_standard(mean=[[0.0], [3.0]], variance=[[1.0], [25.0]])
    >>> float(Wasserstein().between(q[0], q[1]))
    25.0
    """

    unit = "squared units"

    @property
    def value(self) -> str:
        """``"wasserstein"``."""
        return "wasserstein"

    def check(self, member: ExponentialFamily) -> None:
        """Raise a StructureError for a family that is about no Gaussian."""
        if isinstance(member, Composite):
            for part in member.parts():
                self.check(part)
        else:
            about_gaussian(member)

    def between(self, p: ExponentialFamily, q: ExponentialFamily) -> Float[Real, "*batch"]:
        """``W₂²(p, q)``, in squared units of the event."""
        p._check_alike(q)
        if isinstance(p, Composite):
            pairs = zip(p.parts(), q.parts(), strict=True)  # pyright: ignore
            return p._total([self.between(mine, theirs) for mine, theirs in pairs])
        return _squared_distance(about_gaussian(p).moments, about_gaussian(q).moments)

    def _middle(
        self, members: ExponentialFamily, labels: Int[Array, " n"], weights: Float[Array, " n"]
    ) -> ExponentialFamily:
        """Means average; standard deviations do, or covariances by a fixed point (alvarez2016)."""
        share = shares(labels, weights)
        return _middle(members, labels, share)


def _middle(
    members: ExponentialFamily, labels: Int[Array, " n"], share: Float[Array, " n"]
) -> ExponentialFamily:
    if isinstance(members, Composite):
        return members.rebuild([_middle(part, labels, share) for part in members.parts()])
    about = about_gaussian(members)
    law, beside = about.moments, about.beside_moments

    def average(values: Array) -> Array:
        return sums(share.reshape(-1, *(1,) * (values.ndim - 1)) * values, labels)

    if law.diagonal:
        spread = average(np.sqrt(law.spread)) ** 2
    else:
        spread = _covariances(law.spread, labels, share)
    middle = Moments(average(law.mean), spread)
    return about.with_moments(middle, tuple(map(average, beside)))


def _squared_distance(p: Moments, q: Moments) -> Float[Real, "*batch"]:
    apart = ((p.mean - q.mean) ** 2).sum(-1)
    if p.diagonal:
        return apart + ((np.sqrt(p.spread) - np.sqrt(q.spread)) ** 2).sum(-1)
    # The distance of two square roots, turned onto each other (an orthogonal Procrustes problem):
    # a sum of squares, so that near covariances keep their digits, as a difference of traces
    # would not.
    mine, theirs = np.linalg.cholesky(p.spread), np.linalg.cholesky(q.spread)
    return apart + ((mine - _turned(theirs, mine)) ** 2).sum((-2, -1))


def _turned(roots: Float[Array, "... d d"], onto: Float[Array, "... d d"]) -> Array:
    """Square roots of the same covariances, as near as can be to those given."""
    left, _, right = np.linalg.svd(np.swapaxes(roots, -1, -2) @ onto)
    return roots @ (left @ right)


def _covariances(
    spread: Float[Array, "n *inner d d"], labels: Int[Array, " n"], share: Float[Array, " n"]
) -> Float[Array, "g *inner d d"]:
    """``S ← S^-½ (Σ w (S^½ C S^½)^½)² S^-½`` until it stays (alvarez2016, theorem 4.2).

    Over square roots ``S = R Rᵀ`` that is ``R ← Σ w R_l``, each root of a ``C`` turned onto ``R``:
    nothing is inverted.

    Warns:
        ConvergenceWarning: after 500 steps without settling.
    """
    weight, roots = share.reshape(-1, *(1,) * (spread.ndim - 1)), np.linalg.cholesky(spread)
    root = np.linalg.cholesky(sums(weight * spread, labels))
    current, change = root @ np.swapaxes(root, -1, -2), np.array(np.inf)
    for _ in range(STEPS):
        root = sums(weight * _turned(roots, root[labels]), labels)
        following = root @ np.swapaxes(root, -1, -2)
        trace = np.trace(current, axis1=-2, axis2=-1)
        change, current = np.abs(following - current).max((-2, -1)) / trace, following
        if (change < SETTLED).all():
            break
    if (change > LOOSE).any():
        warnings.warn(
            f"a Wasserstein barycentre has not settled after {STEPS} steps: its covariance still "
            f"changed by {change.max():.1g} of its trace",
            ConvergenceWarning,
            stacklevel=2,
        )
    return current


def about_gaussian(member: ExponentialFamily) -> HasGaussianMoments:
    """The same, which is about one; a StructureError for a family that is not."""
    if not isinstance(member, HasGaussianMoments):
        raise StructureError(
            found=f"a transport distance between members of {type(member).__name__}",
            expected="Gaussian, DiagonalGaussian, NormalWishart, NormalGamma, or another kind of "
            "posterity.families.gaussian_moments.HasGaussianMoments, or products of them",
            fix="Choose another divergence: 'reverse', 'forward', 'jeffreys' and 'renyi' serve all "
            "families.",
        )
    return member


@dataclasses.dataclass(frozen=True)
class OptimalTransport(Wasserstein):
    """``MW₂²``: a site's mixture is carried to the fused one at the least cost (delon2020).

    The cost of a unit of mass from a component to another is :class:`Wasserstein`'s. All of a
    site's mass has to arrive, in the proportions of the fused mixture: it serves sites that have
    the same components in much the same proportions. What a site lacks is carried there all the
    same. A plan may cut a component in pieces; it becomes the assignment, a site's own components
    apart, that keeps the most of its mass in place.

    Plans are POT's, exact, by network simplex (flamary2021); it is imported where there are any.
    """

    @property
    def value(self) -> str:
        """``"optimal-transport"``."""
        return "optimal-transport"

    def assign(
        self,
        costs: Float[Array, "n g"],
        starts: Int[Array, " bounds"],
        labels: Int[Array, " n"],
        masses: Float[Array, " n"],
    ) -> Int[Array, " n"]:
        """The assignment that keeps most of the transported mass; ties go to what is near."""
        sizes = np.diff(starts)
        total = np.add.reduceat(masses, starts[:-1])
        share = masses / np.repeat(total, sizes)
        fused = np.bincount(labels, share, costs.shape[1]) / len(sizes)
        blocks = zip(np.split(share, starts[1:-1]), np.split(costs, starts[1:-1]), strict=True)
        plan = np.concatenate([transport_plan(own, fused, part) for own, part in blocks])
        near = costs / max(float(costs.max()), np.finfo(float).tiny)
        return assign(1 - plan + 1e-9 * near, starts)


def transport_plan(
    source: Float[Array, " k"], target: Float[Array, " g"], costs: Float[Array, "k g"]
) -> Float[Array, "k g"]:
    """The cheapest way to carry ``source`` to ``target``, both of mass one."""
    from ot import emd

    return np.asarray(emd(source / source.sum(), target / target.sum(), costs))
