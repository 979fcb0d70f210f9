"""How sharp the answers of a linear regression on classes are: a law over degrees, and evidence.

Regression on ones and zeros says how near a record is to each class, as numbers that sum to one
but are no probabilities. ``softmax(β s)`` of these scores are, for the right ``β``. What is right
hardly depends on the features, on how many records there were, or on how many classes are told
apart: measured, from 5 to 13 in all of nine tables and sets of images and their pairs of classes.
So a task can learn it from its own classes alone, on quarters of its records that were not fitted:
log likelihoods of a grid of degrees, which add up over tasks as every conjugate factor does.

A task of two classes finds a degree about a quarter below what is right for four or ten, so
tasks of few classes leave the learner somewhat too cautious, never too bold.
"""

import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp

from posterity.families import Categorical
from posterity.pursuit.learning.readout import Readout

Array = np.ndarray

DEGREES = np.geomspace(1.0, 64.0, 25)
"""The degrees that are weighed, from a chance of e to one of e**64 for a score of one to zero."""
MIDDLE, SPREAD = 9.0, 0.4
"""Of the prior: the degree in its middle, and its standard deviation in logarithms."""
RECORDS = 4000
"""Records of a task that are looked at, evenly spread over it: a few hundred tell a degree."""
FEATURES = 500
"""Features that are used: the first ones, since the right degree hardly depends on them."""
FOLDS = 4
FEWEST = FOLDS
"""Records of a class below which parts of them say nothing."""

PRIOR = Categorical(
    -0.5 * (np.log(DEGREES / MIDDLE)[:-1] / SPREAD) ** 2
    + 0.5 * (np.log(DEGREES[-1] / MIDDLE) / SPREAD) ** 2
)


def evidence(
    features: Float[Array, "n d"],
    y: Int[Array, " n"],
    classes: int,
    own_units: int = 0,
    originals: Int[Array, " n"] | None = None,
) -> Float[Array, " j"]:
    """Log likelihood, in nats, of the degrees: each quarter predicted by a fit of the others.

    ``originals`` numbers what each record is a copy of: copies of one are in one quarter.
    Zeros, which say nothing, of a task that has fewer than two classes of four records.
    """
    common = np.flatnonzero(np.bincount(y, minlength=classes) >= FEWEST)
    places = np.flatnonzero(np.isin(y, common))
    if len(places) > RECORDS:
        places = places[np.linspace(0, len(places) - 1, RECORDS).astype(int)]
        common = np.unique(y[places])
    if len(common) < 2:
        return np.zeros(len(DEGREES))
    own, labels = features[places, :FEATURES], np.searchsorted(common, y[places])
    part = _parts(labels, places if originals is None else originals[places])
    total = np.zeros(len(DEGREES))
    for held in range(FOLDS):
        fitted = Readout.of_records(own[part != held], labels[part != held], len(common), own_units)
        scores = fitted.scores(own[part == held])
        total += log_likelihoods(scores, labels[part == held])
    return total


def log_likelihoods(scores: Float[Array, "n k"], y: Int[Array, " n"]) -> Float[Array, " j"]:
    """Of each degree, in nats, summed over records."""
    gaps = scores - scores[np.arange(len(y)), y][:, None]
    return np.array(
        [-np.asarray(logsumexp(degree * gaps, axis=1), float).sum() for degree in DEGREES]
    )


def _parts(labels: Int[Array, " n"], originals: Int[Array, " n"]) -> Int[Array, " n"]:
    """Every fourth original of each class, with all its copies."""
    found = np.zeros(len(labels), int)
    for label in np.unique(labels):
        own = labels == label
        _, numbers = np.unique(originals[own], return_inverse=True)
        found[own] = numbers % FOLDS
    return found
