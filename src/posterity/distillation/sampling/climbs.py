"""Starting points of a network's chains, by climbs of Adam to the posterior's mass."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree

from posterity.arrays import keys
from posterity.arrays.tree import taken
from posterity.distillation.sampling.schedules import adam
from posterity.distillation.sampling.target import Target
from posterity.distillation.sampling.tuning import gradient
from posterity.networks.predictive import Prediction, expectations_of, merged
from posterity.runtime.interrupts import deferred
from posterity.runtime.programs import jitted

RATE = 1e-2
LENGTHS = (2000, 6000, 20_000)
"""Numbers of steps that are compared for networks that learn their noise."""
LEAST = -1e30  # Log density of predictions that are not finite


def climb(
    target: Target,
    positions: PyTree,
    steps: int,
    *,
    key: jax.Array,
    chunk: int = 250,  # Steps of a climb per compiled call; Ctrl-C ends it between calls
) -> Any:
    """Return positions after ``steps`` of Adam on the log density, with a rate that falls to 0."""
    state = positions, _moments(positions)
    with deferred() as interrupts:
        for begin in range(0, steps, chunk):
            interrupts.check()
            ends = np.array([begin, min(begin + chunk, steps), steps], np.int32)
            state = _climbed(target, state, ends, key)
    return state[0]


_moments = jitted(lambda positions: adam(-RATE, 0, 1).init(positions))


@jitted
def _climbed(target: Target, state: PyTree, ends: Any, key: jax.Array) -> Any:
    """Return positions and Adam's state; ``ends`` are the first, the last and the total steps."""

    def one(number: Any, state: PyTree) -> Any:
        positions, moments = state
        slope = gradient(target, positions, jax.random.fold_in(key, number))
        moves, moments = adam(-RATE, 0, ends[2]).update(slope, moments)
        return jax.tree.map(jnp.add, positions, moves), moments

    return jax.lax.fori_loop(ends[0], ends[1], one, state)


def length(
    target: Target,
    *,
    key: jax.Array,
    chains: int = 4,  # Chains by whose predictions they are compared
    few: int = 30,  # Least number of records held out that can tell lengths apart
    many: int = 2000,  # Most records held out
    # One in so many records is held out.
    one_in: int = 5,
) -> int:
    """Return the number of steps after which a network that learns its noise predicts records that
    it did not learn from: the least of :data:`LENGTHS` that is within one standard error of the
    best.

    A network that climbed too little takes what it could explain for noise, one that climbed too
    far overfits where the table is noisy, and chains stay near where they begin. Scores are log
    densities of normals with the moments of a few networks together; the error is that of the
    paired difference of two lengths. Equal records are held out together. Source: breiman1984 (the
    rule of one standard error).
    """
    first, second, third = jax.random.split(key, 3)
    number = _distinct(target.data)
    order = keys.of_numpy(first).permutation(number.max() + 1)
    most = min(target.count // one_in, many)
    held_out = np.isin(number, order[np.cumsum(np.bincount(number)[order]) <= most])
    held = int(held_out.sum())
    if held < few:
        return LENGTHS[0]

    data = jax.tree.map(np.asarray, target.data)
    out = taken(data, held_out)
    rest = jax.device_put(taken(data, ~held_out))
    count = target.count - held
    whole = target.batch_size == target.count
    batch_size = count if whole else min(target.batch_size, count)
    learner = dataclasses.replace(target, data=rest, count=count, batch_size=batch_size)
    start = learner.start(chains, key=second)
    scores = np.array([_scores(learner, climb(learner, start, n, key=third), out) for n in LENGTHS])
    best = scores.mean(1).argmax()
    behind = scores[best] - scores
    error = behind.std(1, ddof=1) / held**0.5
    return LENGTHS[np.argmax(behind.mean(1) <= error)]


def _distinct(data: PyTree) -> Int[np.ndarray, " n"]:
    """Return a number for each record, the same for records that are equal in all columns."""
    columns = [np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(data)]
    return np.unique(np.hstack(columns), axis=0, return_inverse=True)[1].ravel()


def _scores(target: Target, positions: PyTree, records: tuple[Any, Any]) -> Float[np.ndarray, " n"]:
    """Return log densities, in nats, of records by normals with the moments of all chains."""
    outputs = jax.tree.map(np.asarray, outputs_at(target, positions, records[0]))
    with np.errstate(invalid="ignore", over="ignore"):  # of chains that diverge
        whole = merged([(expectations_of("gaussian", outputs), 1)])
        each = Prediction.of(whole, "gaussian").log_predictive(records[1])
    return np.nan_to_num(each, nan=LEAST, neginf=LEAST)


outputs_at = jitted(lambda target, positions, x: target.outputs(positions, x))
"""Outputs (c, n, k) of chains at these positions, compiled."""
