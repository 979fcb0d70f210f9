"""Walks and questions that make no sense for a network."""

from functools import partial

import jax
import pytest

from experiments.gfvl.walks import positions
from posterity.errors import UsageError
from posterity.graphs import (
    MetropolisHastings,
    Network,
    NonBacktracking,
    cover_times,
    grid,
    ring,
    star,
)

KEY = jax.random.key(0)
WALK, ONWARD = MetropolisHastings(), NonBacktracking()


class Staying(MetropolisHastings):
    def destination(self, network, state, bits):
        return state.position


STAYING = Staying()
STAR = Network.from_graph(star(["hub", "a", "b"]))
THREE, TWENTY, LARGE = (Network.from_graph(ring(size)) for size in (3, 20, 5000))
GRID = Network.from_graph(grid(4, 5))

walk = partial(positions, STAR, WALK, key=KEY)
wait = partial(cover_times, STAR, WALK, repetitions=1, key=KEY)
NAME = (UsageError, "found site")
AS_MANY = (UsageError, "as many starts as repetitions")
MEASURE = (UsageError, "cover_times")
USES = {
    "start by name": (lambda: walk(hops=3, start="c"), *NAME),
    "start too large": (lambda: walk(hops=3, start=3), *NAME),
    "start negative": (lambda: walk(hops=3, start=-1), *NAME),
    "start fractional": (lambda: walk(hops=3, start=0.5), *NAME),
    "a start too large": (lambda: walk(hops=3, start=[0, 7], repetitions=2), *NAME),
    "two starts": (lambda: walk(hops=3, start=[0, 1], repetitions=3), *AS_MANY),
    "no repetition": (lambda: walk(hops=3, repetitions=0), *AS_MANY),
    "hops": (lambda: walk(hops=-1), UsageError, "hops=-1"),
    **{f"wait at {site}": (partial(wait, sites=[site]), *NAME) for site in ("z", 7, -1, 1.5)},
    **{f"wait at {site}": (partial(wait, sites=[site]), *NAME) for site in (1.0, True)},
    "matrix too large": (lambda: WALK.transition_matrix(LARGE), UsageError, "5000 sites.*at most"),
    "no chain": (lambda: ONWARD.transition_matrix(THREE), UsageError, "cover_times"),
    "covered later": (
        lambda: cover_times(TWENTY, ONWARD, limit=18, repetitions=9, key=KEY),
        UsageError, "9 of 9 repetitions .* after 18 hops",
    ),
    "never covered": (
        lambda: cover_times(STAR, STAYING, repetitions=2, key=KEY), UsageError, "2 of 2 repetit",
    ),
    "hit later": (
        lambda: cover_times(TWENTY, ONWARD, sites=[1], start=0, limit=0, repetitions=9, key=KEY),
        UsageError, "after 0 hops",
    ),
}  # fmt: skip


@pytest.mark.parametrize("act, error, says", USES.values(), ids=list(USES))
def test_what_makes_no_sense(act, error, says):
    with pytest.raises(error, match=says):
        act()


def test_a_limit_is_kept_to_the_hop():
    assert cover_times(TWENTY, ONWARD, limit=19, repetitions=9, key=KEY).tolist() == [19] * 9
