"""Walks that make no sense for a network."""

from functools import partial

import jax
import pytest

from experiments.gfvl.walks import cover_times, positions
from posterity.errors import UsageError
from posterity.graphs import MetropolisHastings, Network, star

KEY = jax.random.key(0)
STAR = Network.from_graph(star(["hub", "a", "b"]))
walk = partial(positions, STAR, MetropolisHastings(), key=KEY)
USES = {
    "start": (lambda: walk(hops=3, start="c"), "found site"),
    "no repetition": (lambda: walk(hops=3, repetitions=0), "repetitions=0"),
    "hops": (lambda: walk(hops=-1), "hops=-1"),
    "wait": (
        lambda: cover_times(STAR, MetropolisHastings(), repetitions=1, key=KEY, sites=["z"]),
        "found site",
    ),
}


@pytest.mark.parametrize("act, says", USES.values(), ids=list(USES))
def test_what_makes_no_sense(act, says):
    with pytest.raises(UsageError, match=says):
        act()
