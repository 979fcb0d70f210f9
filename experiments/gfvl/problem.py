"""What is studied: ten agents, their graphs, their data, and the readings of what is not said.

The paper states K = 10, the graphs, Metropolis-Hastings walks and the two models. Not stated
where we could look: priors, numbers of records, parameters, the direction of the divergence and
the learning rate. `README.md` says how each gap was filled.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity import Beta
from posterity.graphs import Network, complete, ring, star
from posterity.inference import Reinforce
from posterity.inference.update import LocalUpdate

Array = np.ndarray
Sites = dict[str, Array]

AGENTS = tuple(f"agent {k}" for k in range(10))
GRAPHS = {make.__name__: Network.from_graph(make(list(AGENTS))) for make in (star, ring, complete)}
LEAVER = AGENTS[-1]  # who asks to be forgotten; on the star it is a leaf

COIN_PRIOR = Beta.from_standard(1.0, 1.0)
WAITING_PRIOR = Beta.from_standard(2.0, 2.0)
RECORDS = 100
COIN_CHANCE, MEAN_WAIT = 0.3, 0.5
COMMON_WAIT, LEAVERS_WAIT = 0.3, 0.9

PAPERS_RATE = 0.005
PAPERS_SAMPLES = 30
WITHIN = 1.2  # a posterior is at the floor once its divergence is at most this many times as large


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is run.

    ``walks`` and ``noisy`` are repetitions where a visit is cheap, and of Monte Carlo estimators,
    which have so many ``iterations``; ``data_sets`` each have so many walks; ``times`` are
    repetitions of cover and unlearning times. A ``brief`` run has few variants, for each is a
    program of its own, which takes seconds to compile.
    """

    walks: int
    data_sets: int
    noisy: int
    iterations: int
    times: int
    brief: bool = False

    def some(self, variants: Mapping[str, Any], *names: str) -> dict[str, Any]:
        """All variants, or these where it shall be brief."""
        return {n: v for n, v in variants.items() if not self.brief or n in names}


FULL = Effort(walks=1000, data_sets=20, noisy=100, iterations=20_000, times=20_000)
QUICK = Effort(walks=100, data_sets=3, noisy=4, iterations=10_000, times=1000, brief=True)


def coins(seed: int) -> Sites:
    """Flips of one coin, at every agent."""
    rng = np.random.default_rng(seed)
    return {agent: rng.binomial(1, COIN_CHANCE, RECORDS).astype(float) for agent in AGENTS}


def waiting_times(seed: int, mean: float = MEAN_WAIT, leavers: float | None = None) -> Sites:
    """Exponential waiting times, from one mean, or from another at the agent that leaves."""
    rng = np.random.default_rng(seed)
    means = {agent: mean for agent in AGENTS} | ({LEAVER: leavers} if leavers else {})
    return {agent: rng.exponential(means[agent], RECORDS) for agent in AGENTS}


def without_leaver(sites: Mapping[str, Array]) -> dict[str, Array | None]:
    """The same agents, the leaver without data: it only relays."""
    return {agent: None if agent == LEAVER else data for agent, data in sites.items()}


def papers_update(steps: int) -> LocalUpdate:
    """REINFORCE with a constant baseline, as the paper has it, `steps` iterations a visit."""
    return LocalUpdate(Reinforce(PAPERS_SAMPLES, 0.0), steps=steps, rate=PAPERS_RATE)
