"""Gossip as the paper's algorithm reads: one walk, plain loops over slots, NumPy scalars.

What `experiments.gfvl.simulate` is timed against. Source: gong2021, sections III to V.
"""

import math

import numpy as np
from numpy.random import Generator
from scipy.special import digamma, polygamma

Links = list[list[int]]
Pair = tuple[float, float]


def metropolis_hastings(links: Links, here: int, rng: Generator) -> int:
    """The next site: a neighbour, uniformly, with chance min(1, deg / its deg); else the same."""
    there = links[here][rng.integers(len(links[here]))]
    return there if rng.random() < len(links[here]) / len(links[there]) else here


def conjugate(
    prior: Pair, records: list[np.ndarray], links: Links, visits: int, rng: Generator
) -> list[Pair]:
    """Beta-Bernoulli: natural parameters (a - 1, b - 1) before the first visit and after each.

    As the algorithm has it a site sums its records' sufficient statistics when it is visited.
    """
    total = np.array(prior) - 1
    factors = [np.zeros(2) for _ in records]
    here, trace = int(rng.integers(len(records))), [(float(total[0]), float(total[1]))]
    for _ in range(visits):
        new = statistics(records[here])
        total = total - factors[here] + new
        factors[here] = new
        trace.append((float(total[0]), float(total[1])))
        here = metropolis_hastings(links, here, rng)
    return trace


def kept_sums(
    prior: Pair, records: list[np.ndarray], links: Links, visits: int, rng: Generator
) -> list[Pair]:
    """The same walk with all sites' sums known before it, by Python's own numbers, which are the
    fastest for one walk; all draws are made at once.
    """
    sums = [tuple(map(float, statistics(own))) for own in records]
    ones, zeros = prior[0] - 1, prior[1] - 1
    waiting, trace = [True] * len(records), [(ones, zeros)]
    here = int(rng.integers(len(records)))
    for proposed, chance in rng.random((visits, 2)).tolist():
        if waiting[here]:
            ones, zeros = ones + sums[here][0], zeros + sums[here][1]
            waiting[here] = False
        trace.append((ones, zeros))
        there = links[here][int(proposed * len(links[here]))]
        if chance < len(links[here]) / len(links[there]):
            here = there
    return trace


def in_step(
    prior: Pair, records: list[np.ndarray], links: Links, visits: int, walks: int, rng: Generator
) -> np.ndarray:
    """The same for many walks at once, (walks, visits + 1, 2): the fastest plain NumPy.

    Sites have their sums before the walk, and all sites equally many neighbours.
    """
    sums, table = np.array([statistics(own) for own in records]), np.array(links)
    here, rows = rng.integers(len(records), size=walks), np.arange(walks)
    waiting = np.ones((walks, len(records)))
    trace = np.empty((walks, visits + 1, 2))
    trace[:, 0] = total = np.broadcast_to(np.array(prior) - 1, (walks, 2))
    for visit in range(visits):
        total = total + sums[here] * waiting[rows, here, None]
        waiting[rows, here] = 0.0
        trace[:, visit + 1] = total
        # Degrees are equal: each proposal is accepted.
        here = table[here, rng.integers(table.shape[1], size=walks)]
    return trace


def statistics(flips: np.ndarray) -> np.ndarray:
    """How many ones, and how many zeros."""
    ones = flips.sum()
    return np.array([ones, flips.size - ones])


def waiting(
    prior: Pair,
    statistics: list[Pair],
    links: Links,
    visits: int,
    rng: Generator,
    *,
    steps: int,
    rate: float = 0.005,
    samples: int = 30,
) -> list[Pair]:
    """Beta-exponential by REINFORCE: `statistics` are each site's count and sum of records."""
    total = np.array(prior) - 1
    factors = [np.zeros(2) for _ in statistics]
    here, trace = int(rng.integers(len(statistics))), [(float(total[0]), float(total[1]))]
    for _ in range(visits):
        cavity = total - factors[here]
        for _ in range(steps):
            total = local_iteration(total, total - cavity, statistics[here], rate, samples, rng)
        factors[here] = total - cavity
        trace.append((float(total[0]), float(total[1])))
        here = metropolis_hastings(links, here, rng)
    return trace


def local_iteration(
    eta: np.ndarray, factor: np.ndarray, data: Pair, rate: float, samples: int, rng: Generator
) -> np.ndarray:
    """One natural-gradient step on the local free energy, halved until the Beta is proper."""
    a, b = eta + 1
    z = rng.beta(a, b, samples)
    loss = data[0] * np.log(z) + data[1] / z
    mean = np.array([digamma(a), digamma(b)]) - digamma(a + b)
    score = np.stack([np.log(z), np.log1p(-z)], 1) - mean
    gradient = loss @ score / samples
    both = polygamma(1, a + b)
    fisher = np.diag([polygamma(1, a), polygamma(1, b)]) - both
    direction = factor + np.linalg.inv(fisher) @ gradient
    while not (math.isfinite(rate * direction.sum()) and (eta - rate * direction > -1).all()):
        rate /= 2
        if rate < 1e-12:
            return eta
    return eta - rate * direction
