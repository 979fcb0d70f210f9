"""Figure 3: Beta-Bernoulli on three graphs. And times, measured against theory."""

from typing import Any

import jax
import numpy as np

from experiments.gfvl.problem import COIN_PRIOR, GRAPHS, LEAVER, Array, Effort, Sites, coins
from experiments.gfvl.report import Curve, estimate, significant
from experiments.gfvl.simulate import Leave, Simulation, simulate
from experiments.gfvl.walks import cover_times, expected_cover_time, expected_hitting_time
from posterity import Beta
from posterity.graphs import MetropolisHastings
from posterity.models import BetaBernoulli

WALK = MetropolisHastings()
SLOTS = 200
BEFORE = 200  # visits before someone asks to leave
LONG = 3000  # visits in which every token surely comes to one agent


def walked(graph: str, sites: Any, effort: Effort, seed: int, visits: int, **how: Any) -> Any:
    options = {"visits": visits, "repetitions": effort.walks, "key": jax.random.key(seed)}
    return simulate(sites, BetaBernoulli(), COIN_PRIOR, GRAPHS[graph], **options, **how)


def learning(effort: Effort) -> dict[str, Curve]:
    """By graph, KL(posterior ‖ true posterior) after every slot, data drawn anew by group."""
    found = {}
    for graph in effort.some(GRAPHS, "complete"):
        sets = [coins(seed) for seed in range(effort.data_sets)]
        trials = [walked(graph, own, effort, 1000 + k, SLOTS) for k, own in enumerate(sets)]
        kl = np.concatenate([divergence(*pair) for pair in zip(trials, sets, strict=True)])
        found[graph] = Curve(kl, trials[0].visits, groups=effort.data_sets)
    return found


def divergence(trial: Simulation, sites: Sites) -> Array:
    """KL to the exact posterior of all data of `sites`."""
    data = np.concatenate(list(sites.values()))
    target = Beta.from_standard(COIN_PRIOR.a + data.sum(), COIN_PRIOR.b + (1 - data).sum())
    # The difference of large terms is off by their rounding.
    return np.maximum(np.asarray(trial.posteriors.kl(target)), 0.0)


def unlearning(effort: Effort) -> dict[str, dict[str, Curve]]:
    """Figure 5, conjugate: by graph, from the request on; the target is without the leaver."""
    sites, found = coins(0), {}
    rest = {agent: data for agent, data in sites.items() if agent != LEAVER}
    ways: dict[str, dict[str, Any]] = {
        "during the walk": {"leave": Leave(LEAVER, BEFORE)},
        "asked directly": {"leave": Leave(LEAVER, BEFORE, asked=True)},
        "from scratch": {},
    }
    for graph in effort.some(GRAPHS, "complete"):
        found[graph] = {}
        for how, leave in ways.items():
            own = sites if leave else sites | {LEAVER: None}
            trial = walked(graph, own, effort, 7, BEFORE + SLOTS, **leave)
            kl = divergence(trial, rest)
            rows = kl[:, BEFORE:] if leave else kl[:, : SLOTS + 1]
            found[graph][how] = Curve(rows, np.arange(SLOTS + 1))
    return found


def times(effort: Effort) -> dict[str, Any]:
    """Hops until all agents are visited, and until the leaver is, against theory."""
    found = {}
    for number, (name, network) in enumerate(effort.some(GRAPHS, "complete").items()):
        key, other = jax.random.split(jax.random.key(number))
        usual = {"repetitions": effort.times}
        all_sites = cover_times(network, WALK, key=key, **usual)
        one_site = cover_times(network, WALK, key=other, sites=[LEAVER], **usual)
        hitting = expected_hitting_time(network, LEAVER)
        found[name] = {
            "cover time": _compared(all_sites, expected_cover_time(network)),
            "unlearning time": _compared(one_site, hitting),
            "unlearning time, in figure 5's walks": _compared(removal_times(name, effort), hitting),
        }
    return found


def removal_times(graph: str, effort: Effort) -> Array:
    """Hops from the request until the leaver's counts are gone from the posterior.

    Tokens start at the leaver, so that all hold its counts, and are uniform when it asks.
    """
    leave = {"leave": Leave(LEAVER, BEFORE), "first": LEAVER}
    trial = walked(graph, coins(0), effort, 11, BEFORE + LONG, **leave)
    counts = trial.parameters.sum(-1)[:, BEFORE:]
    gone = counts[:, 1:] < counts[:, :-1]
    assert gone.any(1).all(), "walks too short"
    return gone.argmax(1)


def _compared(hops: Array, theory: float) -> dict[str, Any]:
    z = (np.mean(hops) - theory) / (np.std(hops, ddof=1) / np.sqrt(len(hops)))
    return {
        "hops, measured": estimate(hops),
        "hops, theory": significant(theory, 6),
        "z": round(float(z), 2),
        "repetitions": len(hops),
    }
