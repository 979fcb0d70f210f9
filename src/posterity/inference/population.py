"""The posterior of the shared parameters of a partially pooled regression, correct for few sites.

The federation's posterior is a sum of factors in which the population's coefficients ``c`` and the
log spreads ``s`` are independent Gaussians. For few sites that is too narrow: for two sites, by a
third. But a site's factor of the coefficients has the precision ``E_s[(Λ⁻¹ + D(s))⁻¹]``, so the
Gaussian message ``exp(hᵀβ - βᵀΛβ/2)`` of its records can be recovered. With the messages of all
sites, the coefficients are integrated out in closed form for every ``s``, and the log spreads by
sums over nodes, which are placed repeatedly until they cover the density.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import chdtri, ndtr

from posterity.arrays.typing import Float
from posterity.families import Gaussian, Product
from posterity.families.names import names_of, with_names
from posterity.inference.expectation_propagation import Matrix, Normal
from posterity.inference.pooling import grids, marginal
from posterity.models.nodes import normal_pairs

LINES = {1: (401, 12.0), 2: (61, 8.0)}
"""By number of log spreads: equidistant nodes along each, and their range in deviations."""
DRAWS, FEWEST, WORK = 4096, 512, 2e9
"""For more log spreads: largest and smallest number of nodes, and number of operations."""
TAILS = 5
"""Smallest degrees of freedom of the Student distribution of nodes, else the number of log spreads;
the densities of spreads that may be small have long tails."""
PLACED = 4
"""Number of placements of the nodes."""
ENOUGH = 100
"""Smallest effective sample size of the nodes."""
TURNS, SETTLED, EXACT = 30, 1e-11, 1e-2
"""Iterations of the search for a site's message, its relative residual at convergence, and the
relative residual of the linear solve in an iteration."""
ASTRAY = 0.02
"""Largest accepted relative residual, as sites may have found factors under other spreads."""


class Nodes(NamedTuple):
    """The joint distribution of ``c`` and ``s``: nodes of ``s``, a Gaussian of ``c`` at each."""

    weights: Float[np.ndarray, " m"]
    log_spread: Float[np.ndarray, "m p"]
    mean: Float[np.ndarray, "m d"]
    covariance: Float[np.ndarray, "m d d"]


class Population(NamedTuple):
    """The posterior of the shared parameters, by sums over nodes."""

    law: Any
    """Gaussians of ``coefficients`` and ``log_spread`` with the computed moments."""
    draws: float
    """Effective sample size of the nodes; infinite for a grid."""
    nodes: Nodes | None = None
    """The nodes of the sums; None if ``law`` is the federation's posterior."""


def population(prior: Any, posterior: Any, factors: Sequence[Any], own: Any) -> Population:
    """Return means and covariances of ``c`` and ``s`` under the product of all sites' messages.

    ``prior``, ``posterior`` and the sites' ``factors`` are Products of ``coefficients`` and
    ``log_spread``; ``own`` are the columns that vary between sites. In two cases the result has the
    posterior itself: if the effective sample size ``draws`` is too small, as with very many log
    spreads; and, with ``draws`` 0, if factors come from very different spreads, as early in a run.
    """
    c = Normal.of(posterior.coefficients)
    s = Normal.of(posterior.log_spread)
    every = messages(posterior, factors, own)
    if any(message is None for message in every):
        return Population(posterior, 0.0)
    found = [message for message in every if message is not None and message.precision.any()]
    before = Normal.of(prior.coefficients), Normal.of(prior.log_spread)
    shared = (c.mean, c.covariance), (s.mean, s.covariance)
    draws = np.inf
    at = None
    for turn in range(PLACED if found else 0):
        places, widths = _places(*shared[1], turn, len(found) * len(c.linear) ** 3)
        log, means, covariances = _integrated(found, before, c, places, own)
        weights = np.exp(log + widths - (log + widths).max())
        weights /= weights.sum()
        worth = float(1 / (weights**2).sum())
        on_grid = len(own) in LINES
        last = turn == PLACED - 1 and not on_grid
        if not worth >= (ENOUGH if last else 2 * len(own)):
            return Population(posterior, worth if np.isfinite(worth) else 0.0)
        draws = np.inf if on_grid else worth
        mean, covariance = _moments(weights, means)
        covariance = covariance + np.tensordot(weights, covariances, 1)
        shared = (mean, covariance), _moments(weights, places)
        at = Nodes(weights, places, means, covariances)
    laws = {}
    for name, moments in zip(("coefficients", "log_spread"), shared, strict=True):
        names = names_of(getattr(posterior, name))
        mean, covariance = moments  # symmetric up to rounding
        symmetric = (covariance + covariance.T) / 2
        laws[name] = with_names(Gaussian.from_standard(mean, symmetric), names)
    return Population(Product(laws), draws, at)


def messages(posterior: Any, factors: Sequence[Any], own: Any) -> list[Normal | None]:
    """Return the Gaussian message of each site's records from its factor (:func:`message_of`)."""
    c = Normal.of(posterior.coefficients)
    s = Normal.of(posterior.log_spread)
    nodes, chances = grids(len(own))[0]
    variance = np.zeros((len(nodes), len(c.linear)))
    variance[:, own] = np.exp(2 * (s.mean + nodes @ np.linalg.cholesky(s.covariance).T))
    given = [Normal.of(factor.coefficients) for factor in factors]
    return [message_of(one, variance, chances) if one.precision.any() else one for one in given]


def message_of(
    factor: Normal, variance: Float[np.ndarray, "m d"], chances: Float[np.ndarray, " m"]
) -> Normal | None:
    """Return ``(h, Λ)`` such that ``E[(I + ΛD)⁻¹ h]`` and ``E[(Λ⁻¹ + D)⁻¹]`` are the factor.

    ``D`` has the diagonals ``variance`` with probabilities ``chances``. Return None if there is no
    such message, because the factor was computed under very different spreads.
    """
    unit = 1 / np.sqrt(np.maximum(np.diagonal(factor.precision), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(factor.precision * unit * unit[:, None])
    kept = values > values[-1] * 1e-10
    basis = vectors[:, kept] / unit[:, None]  # Λ has the factor's range
    between = np.einsum("ia,mi,ib->mab", basis, variance, basis)
    noise = np.diag(1 / values[kept])  # Λ⁻¹ in that basis
    left = np.diag(np.inf * values[kept])
    for _ in range(TURNS):
        every = np.linalg.inv(noise + between)
        left = np.tensordot(chances, every, 1) - np.diag(values[kept])
        if np.abs(left).max() <= SETTLED:
            break
        step = _newton(every, chances, left)
        share = 1.0
        while np.linalg.eigvalsh(noise + share * step)[0] <= SETTLED and share > SETTLED:
            share /= 2
        if share <= SETTLED:
            break
        noise = noise + share * step
    if np.abs(left).max() > ASTRAY:
        return None
    inverse = np.linalg.inv(noise)
    shrunk = np.tensordot(chances, np.linalg.inv(np.eye(len(noise)) + inverse @ between), 1)
    along = np.linalg.lstsq(basis, factor.linear, rcond=None)[0]
    return Normal(basis @ np.linalg.solve(shrunk, along), basis @ inverse @ basis.T)


def _newton(
    every: Float[np.ndarray, "m r r"], chances: Float[np.ndarray, " m"], left: Matrix
) -> Matrix:
    """Solve ``E[G δ G] = left`` for ``δ`` by conjugate gradients."""

    def applied(step):
        return np.tensordot(chances, every @ step @ every, 1)

    about = np.linalg.inv(np.tensordot(chances, every, 1))
    step = np.zeros_like(left)
    rest = left
    ahead = direction = about @ rest @ about
    product = (rest * ahead).sum()
    for _ in range(TURNS):
        image = applied(direction)
        length = product / (direction * image).sum()
        step = step + length * direction
        rest = rest - length * image
        if np.abs(rest).max() <= EXACT * np.abs(left).max():
            break
        ahead = about @ rest @ about
        before = product
        product = (rest * ahead).sum()
        direction = ahead + product / before * direction
    return (step + step.T) / 2


def _integrated(
    messages: Sequence[Normal],
    prior: tuple[Normal, Normal],
    about: Normal,
    s: Float[np.ndarray, "m p"],
    own: Any,
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m d"], Float[np.ndarray, "m d d"]]:
    """Return the log density of each ``s`` up to a constant, and moments of ``c`` given ``s``."""
    (before, spread), mean, covariance = prior, about.mean, about.covariance
    log = s @ spread.linear - ((s @ spread.precision) * s).sum(1) / 2
    precision = np.tile(before.precision, (len(s), 1, 1))
    pull = np.tile(before.linear - before.precision @ mean, (len(s), 1))
    for message in messages:
        at = marginal(message, mean, covariance, s, own)
        # The value at the mean itself; `marginal` averages over the distribution of c.
        log = log + at.value + (at.precision * covariance).sum((1, 2)) / 2
        precision = precision + at.precision
        pull = pull + at.linear - at.precision @ mean
    inverse = np.linalg.inv(precision)
    moved = (inverse @ pull[..., None])[..., 0]
    log = log + (pull * moved).sum(1) / 2 - np.linalg.slogdet(precision)[1] / 2
    return log, mean + moved, inverse


def _places(
    mean: Float[np.ndarray, " p"], covariance: Float[np.ndarray, "p p"], turn: int, work: int
) -> tuple[Float[np.ndarray, "m p"], Float[np.ndarray, " m"]]:
    """Return nodes around these moments, and minus the logarithm of their density."""
    root = np.linalg.cholesky(covariance)
    size = len(mean)
    if size in LINES:
        count, reach = LINES[size]
        line = np.linspace(-reach, reach, count)
        grid = np.stack(np.meshgrid(*[line] * size, indexing="ij"), -1).reshape(-1, size)
        return mean + grid @ root.T, np.zeros(len(grid))
    count = np.clip(WORK / (10 * work), FEWEST, DRAWS if turn == PLACED - 1 else FEWEST)
    degrees = max(TAILS, size)
    normal = normal_pairs(size + 1, int(count) // 2, turn)
    nodes = normal[:, :-1] * np.sqrt(degrees / chdtri(degrees, ndtr(normal[:, -1])))[:, None]
    density = np.log1p((nodes**2).sum(1) / degrees)
    return mean + nodes @ root.T, (degrees + size) / 2 * density


def _moments(
    weights: Float[np.ndarray, " m"], points: Float[np.ndarray, "m p"]
) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, "p p"]]:
    mean = weights @ points
    away = points - mean
    return mean, (away.T * weights) @ away
