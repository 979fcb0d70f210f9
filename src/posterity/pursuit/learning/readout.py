"""Sufficient statistics of a task, the scores of classes that follow, and how sharp chances are.

A record is the vector ``(e_y, φ(x))``: which class it is of, as a one and zeros, beside its
features. Of a Gaussian with mean zero the Wishart is the conjugate posterior of the precision, and
its one matrix, the sum of squares of such vectors, holds all that is needed.

Scores are the linear regression of ``e_y`` on features, whose ridge is chosen by generalised
cross-validation, from sums alone (golub1979). Chances are ``softmax(β s)``, of a degree ``β`` that
hardly depends on features, records or classes: from 5 to 13 in nine tables and sets of images. A
task learns it from its own classes, on quarters of its records that were not fitted; log
likelihoods of a grid of degrees add up over tasks. Of two classes it comes out a quarter low.
"""

import dataclasses
from typing import Self

import numpy as np
from jaxtyping import Float, Int, PyTree
from scipy.special import logsumexp

from posterity.arrays.linear_algebra import symmetric
from posterity.families import Categorical, Dirichlet, Product, Wishart

Array = np.ndarray

RIDGES = np.geomspace(1e-5, 1e3, 33)  # Tried ridges, of the mean of the features' variances
MOST_FITTED = 0.8
"""Degrees of freedom a record beyond which cross-validation from sums cannot be trusted."""
CONSTANT = 1e-9  # Share of a feature's square that varies, below which it is taken for a constant

ROUNDING = 1e-10
"""Share of the greatest variance of a coordinate, below which one is taken for rounding."""
DEGREES = np.geomspace(1.0, 64.0, 25)
"""The degrees that are weighed, from a chance of e to one of e**64 for a score of one to zero."""
MIDDLE, SPREAD = 9.0, 0.4  # The prior's median degree, and its standard deviation in logarithms
RECORDS = 4000
"""Records of a task that are looked at, evenly spread over it: a few hundred tell a degree."""
FEATURES = 500
"""Features that are used: the first ones, since the right degree hardly depends on them."""
FOLDS = 4  # Parts of a task; fewer records of a class say nothing
WEAK = 1e-6  # Squares that the prior has seen of each coordinate: enough to be a law, and no more
ROWS = 4096


def prior(classes: int, size: int) -> Product:
    """The law before any task, of so many classes and features: the same at all sites.

    >>> sorted(prior(2, 3).blocks)
    ['classes', 'records', 'sharpness']
    """
    levels = -0.5 * (np.log(DEGREES / MIDDLE) / SPREAD) ** 2
    return Product(
        classes=Dirichlet.from_standard(np.ones(classes)),
        records=Wishart(np.array(0.0), WEAK * np.eye(classes + size)),
        sharpness=Categorical(levels[:-1] - levels[-1]),
    )


def factor(
    features: Float[Array, "n d"], y: Int[Array, " n"], classes: int, known: Float[Array, " j"]
) -> Product:
    """The factor that the records of one task add to the prior, with their :func:`evidence`."""
    return Product(
        classes=Dirichlet(np.bincount(y, minlength=classes).astype(np.float64)),
        records=Wishart(np.array(float(len(y))), squares(features, y, classes)),
        sharpness=Categorical(known[:-1] - known[-1]),
    )


def squares(
    features: Float[Array, "n d"], y: Int[Array, " n"], classes: int
) -> Float[Array, "m m"]:
    """The sum of ``v vᵀ`` of ``v = (e_y, φ)``, exactly symmetric."""
    size = features.shape[1]
    sums = np.zeros((classes + size, classes + size))
    for at in range(0, len(y), ROWS):
        part = features[at : at + ROWS]
        sums[classes:, classes:] += part.T @ part
    for label in range(classes):
        own = features[y == label]
        sums[label, label] = len(own)
        sums[label, classes:] = sums[classes:, label] = own.sum(0)
    upper = np.triu(sums)
    return upper + np.triu(sums, 1).T


def counted(total: PyTree, prior: PyTree) -> Float[Array, " k"]:
    """Records of each class, whole numbers, from a posterior and its prior."""
    return np.rint(np.asarray(total.classes.concentration) - prior.classes.concentration)


def summed(total: PyTree, prior: PyTree) -> Float[Array, "m m"]:
    """The squares of all records, from a posterior and its prior."""
    return total.records.inverse_scale - prior.records.inverse_scale


@dataclasses.dataclass(frozen=True, eq=False)
class Readout:
    """Scores of classes, one number each near one for its own records and near zero for others'.
    ``shift`` and ``axes`` turn features into independent coordinates, ``slopes`` and ``level``
    these into scores; ``narrow`` says how well each coordinate is known, ``noise`` is the variance
    of a record about its score, ``records`` how many there were.
    """

    shift: Float[Array, " d"]
    axes: Float[Array, "d r"]
    slopes: Float[Array, "r k"]
    level: Float[Array, " k"]
    narrow: Float[Array, " r"]
    noise: Float[Array, " k"]
    records: float

    @classmethod
    def of_records(
        cls, features: Float[Array, "n d"], y: Int[Array, " n"], classes: int, own_units: int = 0
    ) -> Self:
        """The same as :meth:`of_sums`, from records, each class with one at least."""
        counts = np.bincount(y, minlength=classes).astype(np.float64)
        sums = np.stack([features[y == label].sum(0) for label in range(classes)])
        return cls.of_sums(counts, sums, features.T @ features, own_units)

    @classmethod
    def of_sums(
        cls,
        counts: Float[Array, " k"],
        sums: Float[Array, "k d"],
        squares: Float[Array, "d d"],
        own_units: int = 0,
    ) -> Self:
        """Make the readout from counts of classes, all positive, sums of their features, and sums
        of squares. The first ``own_units`` features have units of their own, and are brought to the
        spread of the others.
        """
        n = counts.sum()
        level, mean = counts / n, sums.sum(0) / n
        about = symmetric(squares - n * np.outer(mean, mean))
        together = sums - np.outer(counts, mean)
        spread = np.diagonal(about)
        known = spread > CONSTANT * np.maximum(np.diagonal(squares), 0)
        scale = _scale(spread, known, own_units)
        values, vectors = np.linalg.eigh(about * scale[:, None] * scale)
        values = np.maximum(values, 0)
        target = vectors.T @ (together * scale).T
        ridge, freedom = _chosen(values, target, n * level * (1 - level), n)
        slopes = target / (values + ridge)[:, None]
        left = n * level * (1 - level) - _explained(values, target, ridge)
        noise = np.maximum(left, 0) / max(n - freedom, 1.0)
        axes, narrow = scale[:, None] * vectors, 1 / (values + ridge)
        return cls(mean, axes, slopes, level, narrow, noise, float(n))

    def coordinates(self, features: Float[Array, "n d"]) -> Float[Array, "n r"]:
        """Independent ones."""
        return (features - self.shift) @ self.axes

    def scores(self, features: Float[Array, "n d"]) -> Float[Array, "n k"]:
        """Scores of each class, which sum to one."""
        return self.coordinates(features) @ self.slopes + self.level

    def leverage(self, coordinates: Float[Array, "n r"]) -> Float[Array, " n"]:
        """Variance of a score over that of a record (n,): large far from all records."""
        return coordinates**2 @ self.narrow + 1 / self.records


def _scale(spread: Array, known: Array, own_units: int) -> Array:
    """The factor of each feature; zero for a constant."""
    scale = known.astype(np.float64)
    own = known & (np.arange(len(spread)) < own_units)
    others = known & ~own
    scale[own] = np.sqrt((spread[others].mean() if others.any() else 1.0) / spread[own])
    return scale


def _chosen(values: Array, target: Array, total: Array, n: float) -> tuple[float, float]:
    """The ridge, and its degrees of freedom with that of the level."""
    rank = (values > ROUNDING * values.max()).sum()
    unit = max(values.sum() / max(rank, 1), np.finfo(float).tiny)
    best = (np.inf, unit * RIDGES[-1], 1.0)
    for ridge in unit * RIDGES:
        freedom = 1 + (values / (values + ridge)).sum()
        if freedom > max(MOST_FITTED * n, 2.0) and ridge < unit * RIDGES[-1]:
            continue
        left = max((total - _explained(values, target, ridge)).sum(), 0.0)
        error = left / max(1 - freedom / n, 1e-3) ** 2
        if error < best[0]:
            best = (error, ridge, freedom)
    return best[1], best[2]


def _explained(values: Array, target: Array, ridge: float) -> Array:
    """Sum of squares that the regression takes away, by class."""
    slopes = target / (values + ridge)[:, None]
    return 2 * (target * slopes).sum(0) - (values[:, None] * slopes**2).sum(0)


def evidence(
    features: Float[Array, "n d"],
    y: Int[Array, " n"],
    classes: int,
    own_units: int = 0,
    originals: Int[Array, " n"] | None = None,
) -> Float[Array, " j"]:
    """Log likelihood, in nats, of the degrees: each quarter predicted by a fit of the others.
    ``originals`` numbers what each record is a copy of: copies of one are in one quarter. Zeros,
    which say nothing, of a task that has fewer than two classes of four records.
    """
    common = np.flatnonzero(np.bincount(y, minlength=classes) >= FOLDS)
    places = np.flatnonzero(np.isin(y, common))
    if len(places) > RECORDS:
        places = places[np.linspace(0, len(places) - 1, RECORDS).astype(int)]
        common = np.unique(y[places])
    if len(common) < 2:
        return np.zeros(len(DEGREES))
    own, labels = features[places, :FEATURES], np.searchsorted(common, y[places])
    part = _parts(labels, places if originals is None else originals[places])
    total = np.zeros(len(DEGREES))
    for fold in range(FOLDS):
        out = part == fold
        fitted = Readout.of_records(own[~out], labels[~out], len(common), own_units)
        scores = fitted.scores(own[out])
        gaps = scores - scores[np.arange(len(scores)), labels[out]][:, None]
        sums = [np.asarray(logsumexp(degree * gaps, axis=1), float).sum() for degree in DEGREES]
        total += -np.array(sums)
    return total


def _parts(labels: Int[Array, " n"], originals: Int[Array, " n"]) -> Int[Array, " n"]:
    """Every fourth original of each class, with all its copies."""
    part = np.zeros(len(labels), int)
    for label in np.unique(labels):
        own = labels == label
        part[own] = np.unique(originals[own], return_inverse=True)[1] % FOLDS
    return part
