"""Small federations that several test modules share: few shapes, so that little is compiled."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity.artifact import digest
from posterity.artifact.checkpoint import opened
from posterity.families import Beta, Dirichlet, Gamma, Gaussian, NormalWishart
from posterity.federation import Asynchronous, Gossip, LedgerGossip, Sequential, Synchronous
from posterity.federation.checkpoint import VERB, arguments_of, load, save
from posterity.graphs import complete, ring
from posterity.models import (
    BetaBernoulli,
    ConjugateModel,
    DirichletCategorical,
    GammaPoisson,
    GaussianMean,
    GaussianMeanCovariance,
    LinearRegression,
    Model,
)

NAMES = ("ash", "elm", "fir", "oak")
RECORDS = 32


def square(z, x):
    """Of ``z`` only the square is seen: symmetric about zero, and a saddle there."""
    return -0.5 * (z[0] ** 2 - x) ** 2


class Square(Model):
    """The same as a class."""

    def log_likelihood(self, z, data):
        return square(z, data)


class Example(NamedTuple):
    """A conjugate model, its prior, and four sites' data."""

    model: Any
    prior: Any
    sites: dict[str, Any]


def _example(model, prior, draw):
    rng = np.random.default_rng(0)
    return Example(model, prior, {name: draw(rng, 3 + k) for k, name in enumerate(NAMES)})


CONJUGATE = {
    "Beta": _example(
        BetaBernoulli(), Beta.from_standard(0.7, 1.3), lambda rng, n: rng.integers(0, 2, n)
    ),
    "Dirichlet": _example(
        DirichletCategorical(3),
        Dirichlet.from_standard(np.array([0.1, 0.7, 2.0])),
        lambda rng, n: rng.integers(0, 3, n),
    ),
    "Gamma": _example(
        GammaPoisson(), Gamma.from_standard(0.3, 0.1), lambda rng, n: rng.poisson(4, n)
    ),
    "Gaussian": _example(
        GaussianMean([[0.3, 0.1], [0.1, 0.7]]),
        Gaussian.from_standard([0.1, -0.3], [[30.0, 1.0], [1.0, 10.0]]),
        lambda rng, n: rng.normal(size=(n, 2)),
    ),
    "NormalWishart": _example(
        GaussianMeanCovariance(),
        NormalWishart.from_standard(
            mean=np.array([0.1, 0.2]),
            mean_precision=np.asarray(0.3),
            scale=np.eye(2) / 3,
            degrees_of_freedom=np.asarray(3.1),
        ),
        lambda rng, n: rng.normal(size=(n, 2)),
    ),
    "regression": _example(
        LinearRegression(noise_variance=0.3),
        Gaussian.from_standard([0.0, 0.0], [[7.0, 0.0], [0.0, 7.0]]),
        lambda rng, n: (rng.normal(size=(n, 2)), rng.normal(size=n)),
    ),
}

SCHEDULES = {
    "sequential": Sequential(),
    "synchronous": Synchronous(),
    "asynchronous": Asynchronous(speeds={"ash": 3.0}),
    "gossip": Gossip(complete(list(NAMES))),
    "ledger gossip": LedgerGossip(ring(list(NAMES))),
}

NORMAL = Gaussian.from_standard(np.zeros(2), 4 * np.eye(2))


def logistic_site(rng, truth, records=RECORDS):
    """Inputs and labels of a logistic regression."""
    x = rng.normal(size=(records, 2))
    return x, (rng.random(records) < 1 / (1 + np.exp(-x @ truth))).astype(float)


def logistic_sites():
    """Three sites that agree, and ``oak``, which does not."""
    rng = np.random.default_rng(1)
    truths = dict.fromkeys(NAMES, np.array([1.0, -1.0])) | {"oak": np.array([-1.5, 1.5])}
    return {name: logistic_site(rng, truth) for name, truth in truths.items()}


def flips(z, x):
    """Log likelihoods of coin flips, which break down below zero."""
    return jnp.where(x < 0, jnp.nan, x * jnp.log(z) + (1 - x) * jnp.log1p(-z))


BROKEN = set[str]()
"""Which faults of :class:`Moody` are switched on."""


KINDS = ("raise", "nan", "infinite", "improper", "hopeless", "shape", "interrupt", "slight")
FAULTS = dict(enumerate(KINDS, start=2))


class Moody(ConjugateModel[Beta]):
    """Coin flips, of which the first says what goes wrong at the site: 2 or more, if at all."""

    families: ClassVar[Any] = (Beta,)

    def factor(self, records):
        fault = FAULTS.get(int(records.data[0]))
        ones = float((records.data == 1).sum())
        if fault not in BROKEN:
            return Beta(ones, records.size - ones)
        if fault == "raise":
            raise ConnectionError("the ward is closed")
        if fault == "interrupt":
            raise KeyboardInterrupt
        wrong = {
            "nan": np.nan,
            "infinite": np.inf,
            "improper": -100.0,
            "slight": -1.5,
            "hopeless": -1e14,
        }
        return Beta(np.ones(2), np.ones(2)) if fault == "shape" else Beta(wrong[fault], 1.0)

    def log_likelihood(self, z, data):
        return data * 0.0


def snapshot(run):
    """All that an event may change, to be compared."""
    state = run.state
    bits = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state.exact_sum)]
    plain = lambda part: dict(part) if isinstance(part, Mapping) else digest(part)
    own = json.dumps((state.epoch, state.schedule), sort_keys=True, default=plain)
    return digest(run.ledger), bits, own, state.known, dict(state.counts), state.step, state.leaving


def save_checkpoint(run, path):
    """Save a run once, in place of an earlier state of it."""
    with opened(path, VERB, arguments_of(run)) as checkpoint:
        load(run, checkpoint)
        save(run, checkpoint)


def load_checkpoint(run, path):
    """The run that was saved, given one that was set up in the same way."""
    with opened(path, VERB, arguments_of(run)) as checkpoint:
        return load(run, checkpoint)
