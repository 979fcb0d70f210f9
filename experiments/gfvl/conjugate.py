"""Figure 3: Beta-Bernoulli on three graphs. And times, measured against theory."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from experiments.gfvl.curves import Curve, estimate, significant
from experiments.gfvl.problem import COIN_PRIOR, GRAPHS, LEAVER, Array, Effort, Sites, coins
from experiments.gfvl.reference import kl_of_betas
from experiments.gfvl.simulate import Leave, Simulation, simulate
from experiments.gfvl.theory import expected_cover_time, expected_hitting_time
from posterity.graphs import MetropolisHastings
from posterity.graphs.times import cover_times
from posterity.models import BetaBernoulli

WALK = MetropolisHastings()
SLOTS = 200
BEFORE = 200
"""Visits before someone asks to leave."""
LONG = 3000
"""Visits in which every token surely comes to one agent."""


def learning(effort: Effort) -> dict[str, Curve]:
    """By graph, KL(posterior ‖ true posterior) after every slot, data drawn anew by group."""
    return {name: _over_data_sets(name, effort) for name in effort.some(GRAPHS, "complete")}


def _over_data_sets(graph: str, effort: Effort) -> Curve:
    trials = []
    for seed in range(effort.data_sets):
        trials.append(
            simulate(
                coins(seed),
                BetaBernoulli(),
                COIN_PRIOR,
                GRAPHS[graph],
                visits=SLOTS,
                repetitions=effort.walks,
                key=jax.random.key(1000 + seed),
            )
        )
    rows = [divergence(trial, coins(seed)) for seed, trial in enumerate(trials)]
    return Curve(np.concatenate(rows), trials[0].visits, groups=effort.data_sets)


def divergence(trial: Simulation, sites: Sites) -> Array:
    """KL to the exact posterior of all data of `sites`."""
    data = np.concatenate(list(sites.values()))
    a, b = COIN_PRIOR.a + data.sum(), COIN_PRIOR.b + (1 - data).sum()
    q = trial.posteriors
    # The difference of large terms is off by their rounding.
    return np.maximum(kl_of_betas(np.asarray(q.a), np.asarray(q.b), float(a), float(b)), 0.0)


def unlearning(effort: Effort) -> dict[str, dict[str, Curve]]:
    """Figure 5, conjugate: by graph, from the request on; the target is without the leaver."""
    sites = coins(0)
    rest = {agent: data for agent, data in sites.items() if agent != LEAVER}
    found = {}
    for name in effort.some(GRAPHS, "complete"):
        trials = {
            "during the walk": _leave(name, sites, effort, asked=False),
            "asked directly": _leave(name, sites, effort, asked=True),
            "from scratch": _leave(name, sites | {LEAVER: None}, effort),
        }
        found[name] = {
            how: _after(divergence(trial, rest), how == "from scratch")
            for how, trial in trials.items()
        }
    return found


def _leave(graph: str, sites: dict[str, Any], effort: Effort, asked: bool | None = None) -> Any:
    return simulate(
        sites,
        BetaBernoulli(),
        COIN_PRIOR,
        GRAPHS[graph],
        visits=BEFORE + SLOTS,
        repetitions=effort.walks,
        leave=None if asked is None else Leave(LEAVER, BEFORE, asked),
        key=jax.random.key(7),
    )


def _after(kl: Array, restarted: bool) -> Curve:
    rows = kl[:, : SLOTS + 1] if restarted else kl[:, BEFORE:]
    return Curve(rows, np.arange(SLOTS + 1))


def times(effort: Effort) -> dict[str, Any]:
    """Hops until all agents are visited, and until the leaver is, against theory."""
    found = {}
    for number, (name, network) in enumerate(effort.some(GRAPHS, "complete").items()):
        key, other = jax.random.split(jax.random.key(number))
        size = {"repetitions": effort.times}
        found[name] = {
            "cover time": _compared(
                cover_times(network, WALK, key=key, **size), expected_cover_time(network, WALK)
            ),
            "unlearning time": _compared(
                cover_times(network, WALK, sites=[LEAVER], key=other, **size),
                expected_hitting_time(network, WALK, LEAVER),
            ),
            "unlearning time, in figure 5's walks": _compared(
                removal_times(name, effort), expected_hitting_time(network, WALK, LEAVER)
            ),
        }
    return found


def removal_times(graph: str, effort: Effort) -> Array:
    """Hops from the request until the leaver's counts are gone from the posterior.

    Tokens start at the leaver, so that all hold its counts, and are uniform when it asks.
    """
    trial = simulate(
        coins(0),
        BetaBernoulli(),
        COIN_PRIOR,
        GRAPHS[graph],
        visits=BEFORE + LONG,
        repetitions=effort.walks,
        leave=Leave(LEAVER, BEFORE),
        first=LEAVER,
        key=jax.random.key(11),
    )
    counts = np.asarray(trial.parameters).sum(-1)[:, BEFORE:]
    gone = counts[:, 1:] < counts[:, :-1]
    assert gone.any(1).all(), "walks too short"
    return gone.argmax(1)


def _compared(hops: Array, theory: float) -> dict[str, Any]:
    measured = estimate(hops)
    z = (np.mean(hops) - theory) / (np.std(hops, ddof=1) / np.sqrt(len(hops)))
    return {
        "hops, measured": measured,
        "hops, theory": significant(theory, 6),
        "z": round(float(z), 2),
        "repetitions": len(hops),
    }
