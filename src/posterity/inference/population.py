"""The posterior of the shared parameters of a partially pooled regression, correct for few sites.

The federation's posterior is a sum of factors in which the population's coefficients ``c`` and the
log spreads ``s`` are independent Gaussians. For few sites that is too narrow: for three, by half.
But a site's factor of the coefficients has the precision ``E_s[(Λ⁻¹ + D(s))⁻¹]``, so the
Gaussian message ``exp(hᵀβ - βᵀΛβ/2)`` of its records can be recovered. With the messages of all
sites, the coefficients are integrated out in closed form for every ``s``, and the log spreads by
sums over nodes, which are placed repeatedly until they cover the density.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from scipy.special import chdtri, ndtr

from posterity.arguments import BETWEEN
from posterity.arrays.linear_algebra import outer, pseudo_inverse, symmetric
from posterity.arrays.typing import Float
from posterity.families import Gaussian, Mixture, Product
from posterity.families.formulas import NORMAL
from posterity.families.marginals import Closed, MixedMarginal
from posterity.inference.expectation_propagation import Matrix, Normal
from posterity.models.nodes import hermite_grid, normal_pairs

GRID = {1: 32, 2: 12}
"""Number of Gauss-Hermite nodes per log spread, by the number of log spreads."""
CHECKED = {1: 40, 2: 16}
"""The same for a second, finer grid, which shows the error of the first one."""
LINES = {1: (401, 12.0), 2: (61, 8.0)}
"""By number of log spreads: equidistant nodes along each, and their range in deviations."""
BLOCKS = ("coefficients", "log_spread")
"""Blocks that sites share: the population's coefficients, and the log spreads of sites."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """What sums over log spreads and the search for messages cost, and how exact they are."""

    draws: int = 4096
    """Largest number of nodes for more log spreads than a grid has."""
    fewest: int = 512
    """Smallest number of them."""
    work: float = 2e9
    """Number of operations that bounds them."""
    tails: int = 5
    """Smallest degrees of freedom of the Student distribution of nodes, else the number of log
    spreads; the densities of spreads that may be small have long tails."""
    placed: int = 4
    """Number of placements of the nodes."""
    share: float = 0.25
    """Smallest effective share of nodes other than grids': with less, tails are missed."""
    turns: int = 30
    """Iterations of the search for a site's message."""
    settled: float = 1e-11
    """Its relative residual at convergence."""
    exact: float = 1e-2
    """Relative residual of the linear solve in an iteration."""
    reach: float = 10.6
    """Range of the nodes of a Gauss-Hermite grid, in standard deviations (56 nats)."""
    astray: float = 0.02
    """Largest accepted relative residual, as sites may have found factors under other spreads."""


EFFORT = Effort()


class Nodes(NamedTuple):
    """The joint distribution of ``c`` and ``s``: nodes of ``s``, a Gaussian of ``c`` at each."""

    weights: Float[np.ndarray, " m"]
    log_spread: Float[np.ndarray, "m p"]
    mean: Float[np.ndarray, "m d"]
    covariance: Float[np.ndarray, "m d d"]

    def marginals(self, more: Any = 0.0) -> MixedMarginal:
        """Return the law of each coefficient (d,), with ``more`` variance at each node."""
        sds = np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2) + more)
        return MixedMarginal(self.weights, Closed(NORMAL, (self.mean, sds)))

    def interval(self, level: float, more: Any = 0.0) -> Float[np.ndarray, "d 2"]:
        """Return the central interval of each coefficient, with ``more`` variance at each node."""
        BETWEEN.check(level=level)
        return np.stack(self.marginals(more).interval(level), axis=-1)


class Messages(NamedTuple):
    """Messages ``exp(hᵀβ - βᵀΛβ/2)`` of J sites' records, whose ``estimate`` is ``Λ⁺h``."""

    linear: Float[np.ndarray, "sites d"]
    precision: Float[np.ndarray, "sites d d"]
    estimate: Float[np.ndarray, "sites d"]

    @classmethod
    def of(cls, each: Sequence[Normal]) -> "Messages":
        """Stack the messages of sites."""
        linear, precision = map(np.stack, zip(*each, strict=True))
        estimates = [pseudo_inverse(own.precision)[0] @ own.linear for own in each]
        return cls(linear, precision, np.stack(estimates))


def nodes_of(
    messages: Messages, before: tuple[Normal, Normal], start: tuple[Any, Any], own: Any
) -> Nodes | None:
    """Return nodes over the log spreads; None if too few of them count.

    ``before`` is the prior of ``c`` and of ``s``; ``start`` has the mean and covariance of ``s``
    about which the first nodes are placed.
    """
    prior, spread = before
    sites, size = messages.linear.shape
    shared = start
    at = None
    share = 0.0
    for turn in range(EFFORT.placed):
        places, widths = _places(*shared, turn, sites * size**3)
        given = integrated(messages, prior, variances(places, own, size))
        log = given.log + places @ spread.linear - ((places @ spread.precision) * places).sum(1) / 2
        weights = np.exp(log + widths - (log + widths).max())
        weights /= weights.sum()
        worth = 1 / (weights**2).sum()
        if not worth >= 2 * len(own):
            return None
        share = worth / len(places)
        at = Nodes(weights, places, given.mean, given.covariance)
        shared = _moments(weights, places)
    return at if len(own) in LINES or share > EFFORT.share else None


def grids(size: int, count: int = 64) -> list[tuple[Any, Any]]:
    """Return nodes and probabilities of two sums over ``size`` log spreads, the second as a check.

    For one or two log spreads these are grids; otherwise they are two quasi-random sets of
    ``count`` nodes.
    """
    if size in GRID:
        return [_grid(size, nodes[size]) for nodes in (GRID, CHECKED)]
    pairs = max(count // 2, size)
    return [(normal_pairs(size, pairs, seed), np.full(2 * pairs, 0.5 / pairs)) for seed in (0, 1)]


def _grid(size: int, nodes: int) -> tuple[Any, Any]:
    places, chances = hermite_grid(size, nodes)
    kept = (np.abs(places) < EFFORT.reach).all(1)
    return places[kept], chances[kept]


def law_of(at: Nodes, names: Sequence[Sequence[str]]) -> Product:
    """Return Gaussians of ``coefficients`` and ``log_spread`` with the moments of the nodes."""
    mean, covariance = _moments(at.weights, at.mean)
    covariance = covariance + np.tensordot(at.weights, at.covariance, 1)
    laws = {}
    shared = (mean, covariance), _moments(at.weights, at.log_spread)
    for name, (centre, spread), own in zip(BLOCKS, shared, names, strict=True):
        laws[name] = Gaussian.from_standard(centre, symmetric(spread)).named(own)
    return Product(laws)


def messages(posterior: Any, factors: Mapping[str, Any], own: Any) -> dict[str, Normal] | None:
    """Return the Gaussian message of each site's records from its factor (:func:`message_of`), by
    site; None if one is not to be had.
    """
    c = Normal.of(posterior.coefficients)
    s = Normal.of(posterior.log_spread)
    nodes, chances = grids(len(own))[0]
    log_spread = s.mean + nodes @ np.linalg.cholesky(s.covariance).T
    variance = variances(log_spread, own, len(c.linear))
    found: dict[str, Normal] = {}
    for site, factor in factors.items():
        given = Normal.of(factor.coefficients)
        message = message_of(given, variance, chances) if given.precision.any() else given
        if message is None:
            return None
        found[site] = message
    return found


def message_of(
    factor: Normal, variance: Float[np.ndarray, "m d"], chances: Float[np.ndarray, " m"]
) -> Normal | None:
    """Return ``(h, Λ)`` such that ``E[(I + ΛD)⁻¹ h]`` and ``E[(Λ⁻¹ + D)⁻¹]`` are the factor.

    ``D`` has the diagonals ``variance`` with probabilities ``chances``. Return None if there is no
    such message, because the factor was computed under very different spreads.
    """
    unit = 1 / np.sqrt(np.maximum(np.diagonal(factor.precision), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(factor.precision * outer(unit))
    kept = values > values[-1] * 1e-10
    basis = vectors[:, kept] / unit[:, None]  # Λ has the factor's range
    between = np.einsum("ia,mi,ib->mab", basis, variance, basis)
    noise = np.diag(1 / values[kept])  # Λ⁻¹ in that basis
    left = np.diag(np.inf * values[kept])
    for _ in range(EFFORT.turns):
        every = np.linalg.inv(noise + between)
        left = np.tensordot(chances, every, 1) - np.diag(values[kept])
        if np.abs(left).max() <= EFFORT.settled:
            break
        step = _newton(every, chances, left)
        share = 1.0
        least = EFFORT.settled
        while np.linalg.eigvalsh(noise + share * step)[0] <= least and share > least:
            share /= 2
        if share <= least:
            break
        noise = noise + share * step
    if np.abs(left).max() > EFFORT.astray:
        return None
    inverse = np.linalg.inv(noise)
    shrunk = np.tensordot(chances, np.linalg.inv(np.eye(len(noise)) + inverse @ between), 1)
    along = np.linalg.lstsq(basis, factor.linear, rcond=None)[0]
    return Normal(basis @ np.linalg.solve(shrunk, along), basis @ inverse @ basis.T)


def _newton(
    every: Float[np.ndarray, "m r r"], chances: Float[np.ndarray, " m"], left: Matrix
) -> Matrix:
    """Solve ``E[G δ G] = left`` for ``δ`` by conjugate gradients."""
    about = np.linalg.inv(np.tensordot(chances, every, 1))

    def image(step):
        return np.tensordot(chances, every @ step.reshape(left.shape) @ every, 1).ravel()

    def ahead(rest):
        return (about @ rest.reshape(left.shape) @ about).ravel()

    operators = [scipy.sparse.linalg.LinearOperator([left.size] * 2, f) for f in (image, ahead)]
    found = scipy.sparse.linalg.cg(
        operators[0], left.ravel(), rtol=EFFORT.exact, maxiter=EFFORT.turns, M=operators[1]
    )
    step = found[0].reshape(left.shape)
    return symmetric(step)


class Integrated(NamedTuple):
    """What sites tell for each of m diagonals of ``D``, with their own coefficients and ``c``
    integrated out.

    ``log`` is the log marginal likelihood up to a constant; ``mean`` and ``covariance`` are those
    of ``c``; ``slope`` has the derivatives of ``log`` by the diagonal.
    """

    log: Float[np.ndarray, " m"]
    mean: Float[np.ndarray, "m d"]
    covariance: Float[np.ndarray, "m d d"]
    slope: Float[np.ndarray, "m d"]


def variances(log_spread: Float[np.ndarray, "m p"], own: Any, size: int) -> Any:
    """Return the diagonals (m, d) of ``D``: zero for coefficients that all sites share."""
    result = np.zeros((len(log_spread), size))
    result[:, own] = np.exp(2 * log_spread)
    return result


def integrated(
    messages: Messages, before: Normal, variance: Float[np.ndarray, "m d"], *, room: int = 2**22
) -> Integrated:
    """Return the marginal likelihood of ``D`` and the law of ``c``, whose prior is ``before``.

    A message may lack coefficients, whose rows are zero. ``room`` is the number of floats of the
    arrays over diagonals and sites that are made at a time.
    """
    sites, size = messages.linear.shape
    step = max(1, room // (sites * size * size))
    total = messages.precision.sum(0) + before.precision
    centre = np.linalg.solve(total, messages.linear.sum(0) + before.linear)
    # About a mean of all, so that sums of squares do not cancel.
    ahead = messages.linear - messages.precision @ centre
    about = Messages(ahead, messages.precision, messages.estimate - centre)
    prior = Normal(before.linear - before.precision @ centre, before.precision)
    starts = range(0, len(variance), step)
    parts = [_integrated(about, prior, variance[start : start + step]) for start in starts]
    found = Integrated(*map(np.concatenate, zip(*parts, strict=True)))
    return found._replace(mean=found.mean + centre)


def _integrated(
    messages: Messages, before: Normal, variance: Float[np.ndarray, "m d"]
) -> Integrated:
    given, lost = Normal(messages.linear, messages.precision).blurred(variance[:, None, :])
    pull, shrunk = given
    total = symmetric(before.precision + shrunk.sum(1))
    ahead = before.linear + pull.sum(1)
    covariance = np.linalg.inv(total)
    mean = (covariance @ ahead[..., None])[..., 0]
    # Less each site's own hᵀΛ⁺h, of which precise sites would leave nothing but rounding.
    value = (ahead * mean).sum(1) - (pull * messages.estimate).sum((1, 2))
    lost = lost.sum(1) + np.linalg.slogdet(total)[1]
    left = pull - (shrunk @ mean[:, None, :, None])[..., 0]
    known = (shrunk @ covariance[:, None] * np.swapaxes(shrunk, 2, 3)).sum(-1)
    slope = left**2 - np.diagonal(shrunk, axis1=2, axis2=3) + known
    return Integrated((value - lost) / 2, mean, covariance, slope.sum(1) / 2)


def at_spreads(message: Normal, at: Nodes, own: Any, names: Sequence[str]) -> Mixture:
    """Return the law of a site's coefficients: a Gaussian at each of the nodes.

    ``message`` is the likelihood of the site's records, zero for a site that is not known.
    """
    laws = Gaussian.from_standard(*laws_at(message, at, own)).named(names)
    return Mixture.from_standard(at.weights, laws)


def laws_at(
    message: Normal, at: Nodes, own: Any
) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m d d"]]:
    """Return mean and covariance of a site's coefficients at each of the nodes."""
    deviation = np.exp(at.log_spread)
    both = outer(deviation)
    inner = np.eye(len(own)) + message.precision[np.ix_(own, own)] * both
    left = np.linalg.inv(inner / both)  # the covariance of β - c given c
    along = np.tile(np.eye(at.mean.shape[1]), (len(at.mean), 1, 1))  # dβ / dc
    along[:, own] -= left @ message.precision[own]
    mean = (along @ at.mean[..., None])[..., 0]
    mean[:, own] += left @ message.linear[own]
    covariance = along @ at.covariance @ np.swapaxes(along, 1, 2)
    covariance[:, own[:, None], own] += left
    return mean, symmetric(covariance)


def thinned(at: Nodes, most: int = 128) -> Nodes:
    """Return ``most`` nodes at equal shares of probability, each a Gaussian of a mixture."""
    turn = np.lexsort(at.log_spread.T)
    shares = (np.arange(most) + 0.5) / most * at.weights.sum()
    kept = turn[np.searchsorted(np.cumsum(at.weights[turn]), shares)]
    weights = np.full(most, 1 / most)
    return Nodes(weights, at.log_spread[kept], at.mean[kept], at.covariance[kept])


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
    most = EFFORT.draws if turn == EFFORT.placed - 1 else EFFORT.fewest
    count = np.clip(EFFORT.work / (10 * work), EFFORT.fewest, most)
    degrees = max(EFFORT.tails, size)
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
