"""Several tokens at once, over versioned maps; beyond the paper."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from posterity.errors import UsageError
from posterity.federation.gossip import hop
from posterity.federation.schedules import Schedule, Step
from posterity.federation.state import Problem, State, Visit, visit
from posterity.graphs.topology import Network, check_sites
from posterity.graphs.walks import MetropolisHastings, Walk
from posterity.ledger import Entry, merge_entries

Map = dict[str, Entry]


@dataclasses.dataclass(frozen=True)
class LedgerGossip(Schedule):
    """Several tokens walk at once; each carries every site's newest factor that it has met.

    Two tokens that carried only sums would count a site's data twice or lose it. A versioned
    map merges where they meet, directly or by way of what a site remembers: each site's highest
    version wins, so whatever happened in which order, the result is the same. The price is
    privacy, since a token shows the factors of single sites, and K times the traffic.

    A step moves one token by one hop, the tokens taking turns. The run's posterior is that of all
    maps merged. A visit is refused if the site's own map, or all of them merged, would not be a
    distribution after it. Beyond gong2021; the merging is the ledger's (shapiro2011).
    """

    graph: Any
    tokens: int = 2
    walk: Walk = dataclasses.field(default_factory=MetropolisHastings)
    network: Network = dataclasses.field(init=False, repr=False, compare=False)

    unit: ClassVar[str] = "hops"
    saveable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UsageError(
                found=f"tokens={self.tokens}", expected="at least one", fix="Give 2, say."
            )
        object.__setattr__(self, "network", Network.from_graph(self.graph))
        self.walk.checked(self.network)

    def init(self, sites: tuple[str, ...], *, key: jax.Array) -> Any:
        """Where the tokens are, and what each token and each site knows."""
        check_sites(self.network.names, sites, "nodes for")
        starts = jax.random.randint(key, (self.tokens,), 0, self.network.size)
        at = [self.network.names[int(start)] for start in starts]
        known = {str(token): {} for token in range(self.tokens)}
        return {"at": at, "from": [None] * self.tokens, "turn": 0, "tokens": known, "sites": {}}

    def step(self, problem: Problem, state: State, *, key: jax.Array) -> Step:
        """The token whose turn it is visits the site where it stands, and hops."""
        own, turn = state.schedule, state.schedule["turn"]
        site = own["at"][turn]
        seen = merge_entries(own["tokens"][str(turn)], own["sites"].get(site, {}))
        state, knows, happened = _visited(problem, state, site, seen, key)
        at, before = list(own["at"]), list(own["from"])
        at[turn], before[turn] = hop(self.network, self.walk, site, before[turn], key=key), site
        schedule = {
            "at": at,
            "from": before,
            "turn": (turn + 1) % self.tokens,
            "tokens": {**own["tokens"], str(turn): knows},
            "sites": {**own["sites"], site: knows},
        }
        return dataclasses.replace(state, schedule=schedule), (happened,)

    def replace(self, own: Any, changed: Mapping[str, Entry]) -> Any:
        """Every token and every site learns of it at once, as if each had been asked."""
        learn = lambda known: {name: {**held, **changed} for name, held in known.items()}
        sites = {site: {} for site in changed} | own["sites"]
        return {**own, "tokens": learn(own["tokens"]), "sites": learn(sites)}


def _visited(
    problem: Problem, state: State, site: str, seen: Map, key: jax.Array
) -> tuple[State, Map, Visit]:
    """The state after a site that knows ``seen`` had its turn, and what it knows then."""
    here = state.with_entries(seen)
    refused = state, seen, Visit(state.step, site, "refused")
    if not problem.admits(here.posterior):  # the factors that it lacks make up for those it has
        return refused
    after, happened = visit(problem, here, site, key=key)
    together = after.with_entries(merge_entries(state.entries, after.entries))
    problem.grid.check(together.load, f"the posterior after site {site!r}")
    if not problem.admits(together.posterior):
        return refused
    return together, dict(after.entries), happened
