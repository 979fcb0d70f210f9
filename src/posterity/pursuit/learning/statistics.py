"""Sufficient statistics of a task: sums of features by class, a factor of conjugate posteriors.

A record is the vector ``(e_y, φ(x))``: which class it is of, as a one and zeros, beside its
features. Of a Gaussian with mean zero the Wishart is the conjugate posterior of the precision, and
its one matrix, the sum of squares of such vectors, holds the count of every class, the sum of its
features, and the squares of all features: what linear discriminants and regressions on the classes
are made of. Given the class it says that features are Gaussian about a mean of that class, all
with one covariance; given the features it is the linear regression of ``e_y``.
"""

import numpy as np
from jaxtyping import Float, Int, PyTree

from posterity.families import Categorical, Dirichlet, Product, Wishart
from posterity.pursuit.learning.readout import PRIOR as SHARPNESS

Array = np.ndarray

WEAK = 1e-6
"""Squares that the prior has seen of each coordinate: enough to be a law, and no more."""
CONCENTRATION = 1.0
"""The concentration of each class before it is seen."""
ROWS = 4096


def prior(classes: int, size: int) -> Product:
    """The law before any task, of so many classes and features: the same at all sites.

    >>> sorted(prior(2, 3).blocks)
    ['classes', 'records', 'sharpness']
    """
    both = classes + size
    return Product(
        classes=Dirichlet.from_standard(np.full(classes, CONCENTRATION)),
        records=Wishart(np.array(0.0), WEAK * np.eye(both)),
        sharpness=SHARPNESS,
    )


def factor(
    features: Float[Array, "n d"],
    y: Int[Array, " n"],
    classes: int,
    sharpness: Float[Array, " j"],
) -> Product:
    """The factor that the records of one task add to the prior: sums of their own alone.

    Args:
        features: of each record.
        y: the class of each.
        classes: how many there are.
        sharpness: log likelihood, in nats, of each degree of sharpness (:func:`.readout.evidence`).
    """
    counts = np.bincount(y, minlength=classes).astype(np.float64)
    return Product(
        classes=Dirichlet(counts),
        records=Wishart(np.array(float(len(y))), squares(features, y, classes)),
        sharpness=Categorical(sharpness[:-1] - sharpness[-1]),
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
