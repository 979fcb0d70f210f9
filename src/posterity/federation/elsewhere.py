"""Members of the family away from a posterior, which may be at a saddle or one of several optima.

Their means mirror the posterior's about the prior's, since symmetric likelihoods have another
optimum there, or are some deviations away from it. They are narrow, as a wide member averages over
optima.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from posterity.arrays.keys import fold_in, of_jax
from posterity.arrays.typing import Float
from posterity.families import ExponentialFamily
from posterity.federation.agreement import Agreement
from posterity.federation.keys import first_key
from posterity.inference.descent import HALVINGS, NARROWER
from posterity.inference.joint import pieces, precision_matrix, whitened

DRAWS, CLOSE = 16, 0.8
"""Number of draws from the prior, and the weight of the chosen one in the mean of a start."""
PLACED, MOST_PLACED = 16, 32
"""Number of members placed over the prior, and the largest number of parameters for them."""
APART = 2.0
"""Distance in standard deviations to which a start is moved away if it is nearer and has returned:
if a posterior stretches over several optima, as between symmetric ones, near starts return."""
HALF = 4.0
"""Factor by which a member that covers half of a posterior, one deviation away from its mean, is
more precise along that direction."""
TIED = 1e-6
"""Relative difference of widths from which one direction is wider than another."""
WIDE = 1024
"""Largest number of parameters for such a member, as its direction takes matrices (8 MiB)."""
APART_BY = 1.0
"""Smallest divergence, in nats, of a member of the same free energy that is another optimum."""
DIRECTIONS, DEVIATIONS = 4, (1.0, 2.0)
"""Number of directions in which the free energy is evaluated, to both sides, and distances."""
EXCHANGED = 4
"""Largest number of parameters of which two at a time are exchanged."""
FEW = 64
"""Largest number of parameters for a second start with noisy steps."""
FAR = 1e6
"""Largest difference of a value elsewhere, in nats; also the value for results not finite."""


def is_due(agreed: Agreement) -> bool:
    """Return whether to check a run for other optima.

    False if factors are exact, or if the model is known to have one optimum or several. Also False
    if a second start takes too long: with site-specific parameters that are optimised in each
    evaluation, or with many parameters and noisy steps.
    """
    long = agreed.model.joint or (agreed.update.noisy and agreed.prior.event_size > FEW)
    exact = agreed.update.conjugate or agreed.line_search is None
    return not (exact or long) and agreed.model.known_optima == "unknown"


def start_elsewhere(
    agreed: Agreement, posterior: ExponentialFamily, place: int, apart: float = 0.0
) -> Any:
    """Return an admitted member elsewhere, moved back to the posterior by halves if necessary.
    Gaussians are at least ``apart`` standard deviations away before that.
    """
    q: Any = posterior
    prior: Any = agreed.prior
    rng = np.random.default_rng(place)
    parts = zip(q.parts(), prior.parts(), strict=True)
    start = q.rebuild([_elsewhere(part, own, rng, place, apart) for part, own in parts])
    for _ in range(HALVINGS):
        if agreed.admits(start):
            break
        start = (start + q) / 2
    return start


def _elsewhere(part: Any, prior: Any, rng: np.random.Generator, place: int, apart: float) -> Any:
    """Return a narrow Gaussian on the other side of the prior's mean, displaced by noise; if it is
    nearer than ``apart`` standard deviations, one that far away along the noise. In other
    families, return a member around the least likely of some draws from the prior.
    """
    if part.batch_shape:
        return prior
    if part.gaussian:
        noise = rng.normal(size=part.own_size)
        mirrored = 2 * (prior.mean - part.mean) if place == 0 else 0.0
        start = part.translate(mirrored + part.at_noise(noise) - part.mean)
        if float(start.kl(part)) < apart**2 / 2:
            noise *= apart / np.linalg.norm(noise)
            start = part.translate(part.at_noise(noise) - part.mean)
        return start * NARROWER
    draws = prior.sample(of_jax(fold_in(first_key(), place)), (DRAWS,))
    least = np.argmin(np.nan_to_num(part.log_prob(draws), nan=np.inf))
    there = np.asarray(part.sufficient_statistics(draws))[least]
    about = CLOSE * there + (1 - CLOSE) * np.asarray(prior.mean_parameters)
    start = part.with_mean_parameters(about)
    return start if np.isfinite(start.natural_parameters).all() else prior


def halves(agreed: Agreement, posterior: ExponentialFamily) -> list[Any]:
    """Return a member that covers half of a Gaussian posterior, in the direction in which it is
    widest beside the prior; none if that is not admitted, or in other families. If the posterior
    covers several optima, as of exchangeable parameters, one of them is reached from there.
    """
    q: Any = posterior
    parts: list[Any] = list(q.parts())
    if q.event_size > WIDE or not all(p.gaussian and p.batch_shape == () for p in parts):
        return []
    widths = whitened(q, whitened(q, precision_matrix(agreed.prior)).T)
    ways = pieces(q, widest((widths + widths.T) / 2))
    half = q.rebuild([_half(part, way) for part, way in zip(parts, ways, strict=True)])
    return [half] if agreed.admits(half) else []


def placed(agreed: Agreement, posterior: ExponentialFamily) -> list[Any]:
    """Return members of a Gaussian posterior's shape with means all over the prior, a Latin
    hypercube in its deviations; none in other families, or of many parameters.

    An optimum that no path of rising density connects to the posterior is reached from there.
    """
    q: Any = posterior
    pairs: list[tuple[Any, Any]] = list(zip(q.parts(), agreed.prior.parts(), strict=True))
    plain = all(part.gaussian and part.batch_shape == () for part, _ in pairs)
    if q.event_size > MOST_PLACED or not plain:
        return []
    rng = np.random.default_rng(q.event_size)
    ranks = rng.permuted(np.tile(np.arange(PLACED), (q.event_size, 1)), axis=1).T
    noise = scipy.special.ndtri((ranks + 0.5) / PLACED)
    ends = np.cumsum([part.own_size for part, _ in pairs])[:-1]
    members = []
    for row in noise:
        own = zip(pairs, np.split(row, ends), strict=True)
        moved = [part.translate(prior.at_noise(z) - part.mean) for (part, prior), z in own]
        members.append(q.rebuild(moved))
    return [member for member in members if agreed.admits(member)]


def widest(widths: Float[np.ndarray, "d d"]) -> Float[np.ndarray, " d"]:
    """Return the direction of the largest eigenvalue, or of those that tie with it, that is nearest
    to a fixed one: signs of eigenvectors, and which of equal ones comes last, are rounding.
    """
    values, vectors = np.linalg.eigh(widths)
    widest = vectors[:, values >= (1 - TIED) * values[-1]]
    way = widest @ (widest.T @ np.random.default_rng(0).normal(size=len(widths)))
    return way / np.linalg.norm(way)


def _half(part: Any, way: np.ndarray) -> Any:
    along = part.gram(part.unwhitened(way)[None], np.array([HALF - 1.0]))
    moved = part.translate(part.at_noise(way) - part.mean)
    return moved.at_mean(np.zeros_like(way), part.precision + along)


def looked_at(agreed: Agreement, posterior: ExponentialFamily) -> list[Any]:
    """Return the members at which the free energy is compared: the posterior and some elsewhere."""
    q: Any = posterior
    found = [q, *_images(agreed, q), start_elsewhere(agreed, q, 0)]
    parts: list[Any] = list(q.parts())
    if not all(part.gaussian and part.batch_shape == () for part in parts):
        return [*found, *(start_elsewhere(agreed, q, place) for place in (1, 2))]
    sizes = [part.own_size for part in parts]
    size = sum(sizes)
    ways = np.linalg.qr(np.random.default_rng(size).normal(size=(size, size)))[0][:DIRECTIONS]
    for way in (far * side * way for way in ways for far in DEVIATIONS for side in (1, -1)):
        own = np.split(way, np.cumsum(sizes)[:-1])
        moved = [p.translate(p.at_noise(o) - p.mean) for p, o in zip(parts, own, strict=True)]
        found.append(q.rebuild(moved) * NARROWER)
    return [member for member in found if agreed.admits(member)]


def _images(agreed: Agreement, posterior: ExponentialFamily) -> list[Any]:
    """Return the images of a Gaussian posterior on the other side of the prior's mean, and with two
    of few parameters exchanged that have the same prior. A symmetric likelihood has the same free
    energy there.
    """
    q: Any = posterior
    prior: Any = agreed.prior
    pairs = list(zip(q.parts(), prior.parts(), strict=True))
    if not all(part.gaussian and part.batch_shape == () for part, _ in pairs):
        return []
    images = [q.rebuild([p.translate(2 * (own.mean - p.mean)) for p, own in pairs])]
    if q.event_size > EXCHANGED or len(pairs) > 1:
        return images
    for orders in itertools.combinations(range(q.event_size), 2):
        order = np.arange(q.event_size)
        order[list(orders)] = orders[::-1]
        image, same = (_reordered(member, order) for member in (q, prior))
        if same == prior:
            images.append(image)
    return images


def exchanged(agreed: Agreement, posterior: ExponentialFamily) -> list[Any]:
    """Return the images of a Gaussian posterior under all exchanges of up to four parameters that
    leave the prior as it is.
    """
    q: Any = posterior
    parts: list[Any] = list(q.parts())
    if len(parts) > 1 or not q.gaussian or q.batch_shape or q.event_size > EXCHANGED:
        return []
    orders = list(itertools.permutations(range(q.event_size)))[1:]
    same = [order for order in orders if _reordered(agreed.prior, np.array(order)) == agreed.prior]
    return [_reordered(q, np.array(order)) for order in same]


def _reordered(member: Any, order: np.ndarray) -> Any:
    (part,) = member.parts()
    precision = part.precision
    for axis in range(np.ndim(precision)):
        precision = np.take(precision, order, axis)
    moved = part.translate(part.mean[order] - part.mean)
    return member.rebuild([moved.at_mean(np.zeros(len(order)), precision)])


def values_elsewhere(values: Sequence[float | None]) -> np.ndarray | None:
    """Return a site's values at these members, clipped; None without that of the posterior."""
    here = values[0]
    if here is None:
        return None
    known = [here - FAR if value is None else value for value in values]
    return np.clip(np.array(known), here - FAR, here + FAR)


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
        if abs(energy - energies[0]) <= allowed and float(m.kl(q)) > APART_BY
    )
    return float(energies[0] - energies.min()), next(same, None)
