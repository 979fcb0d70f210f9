"""Members of the family away from a posterior, which may be at a saddle or one of several optima.

They are narrow, as a wide member averages over optima. One mirrors the posterior about the prior's
mean, since symmetric likelihoods have another optimum there; the others lie all over the prior.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from posterity.arrays.keys import fold_in, of_jax
from posterity.families import ExponentialFamily
from posterity.federation.agreement import Agreement
from posterity.federation.keys import first_key
from posterity.inference.descent import NARROWER
from posterity.inference.joint import aside, is_gaussian, joint_mean, moved_to


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """Where other optima are sought, and which of them count."""

    placed: int = 32
    """Number of members placed over the prior."""
    neighbours: int = 3
    """Number of nearest ones with which the density at a member is compared."""
    failures: int = 2
    """Most places at which a site fails, as sums may not be finite there, before it counts as lost.
    """
    close: float = 0.8
    """Weight of a draw from the prior in the mean of a member of other families than Gaussians."""
    apart: float = 1.0
    """Smallest divergence, in nats, of a member of the same free energy that is another optimum."""
    alike: float = 2.0
    """Largest distance between two posteriors that count as the same, in tolerances."""
    better: float = 1.0
    """Largest decrease of the free energy, in nats, by another optimum that does not make a run
    move there, whatever the tolerance."""
    faint: float = 50.0
    """Excess of free energy, in nats, from which another optimum has negligible posterior mass."""
    directions: int = 4
    """Number of directions in which a report has values, to both sides."""
    deviations: tuple[float, ...] = (1.0, 2.0)
    """Their distances from the posterior's mean."""
    noisy: int = 64
    """Largest number of parameters for a second start with noisy steps."""
    far: float = 1e6
    """Largest difference of a value elsewhere, in nats; also that of values not finite."""


ELSEWHERE = Elsewhere()


def is_due(agreed: Agreement) -> bool:
    """Return whether to check a run for other optima.

    False if factors are exact, or if no second starts were agreed, as by default for models that
    are known to have one optimum or several. Also False if a second start takes too long: with
    site-specific parameters that are optimised in each evaluation, or with many parameters and
    noisy steps.
    """
    long = agreed.model.joint or (agreed.update.noisy and agreed.prior.event_size > ELSEWHERE.noisy)
    exact = agreed.update.conjugate or agreed.line_search is None
    return not (exact or long) and agreed.restarts > 0


def starts_elsewhere(agreed: Agreement, posterior: ExponentialFamily) -> tuple[list[Any], ...]:
    """Return the admitted members from which second starts are made: the narrow mirror image of a
    Gaussian posterior about the prior's mean, if that is elsewhere, and the members placed all over
    the prior.

    Gaussians are placed as a Latin hypercube in the prior's deviations, narrow beside the
    posterior; other families about draws from the prior.
    """
    q: Any = posterior
    pairs: list[tuple[Any, Any]] = list(zip(q.parts(), agreed.prior.parts(), strict=True))
    rng = np.random.default_rng(q.event_size)
    each = [_placed(part, prior, rng, number) for number, (part, prior) in enumerate(pairs)]
    members = [q.rebuild(list(own)) for own in zip(*each, strict=True)]
    images = [image for image in _mirrored(agreed, q) if float(image.kl(q)) > ELSEWHERE.apart]
    mirrored = [image * NARROWER for image in images]
    kinds = mirrored, members
    return tuple([member for member in kind if agreed.admits(member)] for kind in kinds)


def _placed(part: Any, prior: Any, rng: np.random.Generator, number: int) -> list[Any]:
    """Return one part of the members placed over the prior."""
    if part.batch_shape:
        return [prior] * ELSEWHERE.placed
    if part.gaussian:
        ranks = rng.permuted(np.tile(np.arange(ELSEWHERE.placed), (part.own_size, 1)), axis=1).T
        noise = scipy.special.ndtri((ranks + 0.5) / ELSEWHERE.placed)
        return [part.translate(prior.at_noise(row) - part.mean) * NARROWER for row in noise]
    draws = prior.sample(of_jax(fold_in(first_key(), number)), (ELSEWHERE.placed,))
    rows = np.asarray(part.sufficient_statistics(draws))
    close = ELSEWHERE.close
    members = []
    for row in close * rows + (1 - close) * np.asarray(prior.mean_parameters):
        member = part.with_mean_parameters(row)
        members.append(member if np.isfinite(member.natural_parameters).all() else prior)
    return members


def _mirrored(agreed: Agreement, posterior: ExponentialFamily) -> list[Any]:
    """Return the image of a Gaussian posterior on the other side of the prior's mean."""
    q: Any = posterior
    if not is_gaussian(q):
        return []
    prior: Any = agreed.prior
    return [moved_to(q, 2 * joint_mean(prior) - joint_mean(q))]


def looked_at(agreed: Agreement, posterior: ExponentialFamily) -> list[Any]:
    """Return the members at which the free energy is compared: the posterior and some elsewhere."""
    q: Any = posterior
    if not is_gaussian(q):
        return [q, *starts_elsewhere(agreed, q)[1]]
    size = q.event_size
    axes = np.linalg.qr(np.random.default_rng(size).normal(size=(size, size)))[0]
    steps = [far * side for far in ELSEWHERE.deviations for side in (1, -1)]
    moved = [aside(q, step * axis) for axis in axes[: ELSEWHERE.directions] for step in steps]
    found = [q, *_mirrored(agreed, q), *(member * NARROWER for member in moved)]
    return [member for member in found if agreed.admits(member)]


def values_elsewhere(values: Sequence[float | None]) -> np.ndarray | None:
    """Return a site's values at these members, clipped; None without that of the posterior."""
    here = values[0]
    if here is None:
        return None
    far = ELSEWHERE.far
    known = [here - far if value is None else value for value in values]
    return np.clip(np.array(known), here - far, here + far)


def compared_elsewhere(
    agreed: Agreement,
    posterior: ExponentialFamily,
    values: Sequence[np.ndarray | None],
    allowed: float,
) -> tuple[float, Any] | None:
    """Return the decrease of the free energy, in nats, at the best of these members, and a member
    more than a nat away that has the same free energy up to ``allowed``; None if there is none, or
    if values are unknown.
    """
    members: Any = looked_at(agreed, posterior)
    told = [each for each in values if each is not None and each.shape == (len(members),)]
    if len(told) < len(values):
        return None
    prior = np.array([float(member.kl(agreed.prior)) for member in members])
    energies = prior - np.sum(told, axis=0)
    q: Any = posterior
    same = (
        m
        for m, energy in zip(members[1:], energies[1:], strict=True)
        if abs(energy - energies[0]) <= allowed and float(m.kl(q)) > ELSEWHERE.apart
    )
    return float(energies[0] - energies.min()), next(same, None)
