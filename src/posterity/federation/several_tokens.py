"""Several tokens at once, over versioned maps; beyond the paper."""

import dataclasses

import jax

from posterity.arguments import COUNT
from posterity.entries import merge_entries
from posterity.federation.gossip import OverGraph
from posterity.federation.schedules import Step
from posterity.federation.state import Map, State
from posterity.federation.visit import Federation, Visit, visit
from posterity.graphs.topology import check_sites


@dataclasses.dataclass(frozen=True)
class LedgerGossip(OverGraph):
    """Several tokens walk at once; each carries every site's newest factor that it has met.

    Two tokens that carried only sums would count a site's data twice or lose it. A versioned
    map merges where they meet, directly or by way of what a site remembers: each site's highest
    version wins, so whatever happened in which order, the result is the same. The price is
    privacy, since a token shows the factors of single sites, and K times the traffic.

    A step moves one token by one hop, the tokens taking turns. The run's posterior is that of all
    maps merged. A visit is refused if the site's own map, or all of them merged, would not be a
    distribution after it. Beyond gong2021; the merging is the ledger's (shapiro2011).
    """

    tokens: int = 2

    def __post_init__(self) -> None:
        COUNT.check(tokens=self.tokens)
        super().__post_init__()

    def init(self, state: State, sites: tuple[str, ...], *, key: jax.Array) -> State:
        """Where the tokens are, and what each token and each site knows."""
        check_sites(self.network.names, sites, "nodes for")
        starts = jax.random.randint(key, (self.tokens,), 0, self.network.size)
        at = [self.network.names[int(start)] for start in starts]
        own = {"at": at, "from": [None] * self.tokens, "turn": 0}
        known = {"tokens": {str(token): {} for token in range(self.tokens)}, "sites": {}}
        return dataclasses.replace(state, schedule=own, known=known)

    def step(self, federation: Federation, state: State, *, key: jax.Array) -> Step:
        """The token whose turn it is visits the site where it stands, and hops."""
        own, tokens, sites = state.schedule, state.known["tokens"], state.known["sites"]
        turn, site = own["turn"], own["at"][own["turn"]]
        seen = merge_entries(tokens[str(turn)], sites.get(site, {}))
        state, knows, happened = _visited(federation, state, site, seen, key)
        at, before = list(own["at"]), list(own["from"])
        at[turn], before[turn] = self.hop(site, before[turn], key=key), site
        own = {"at": at, "from": before, "turn": (turn + 1) % self.tokens}
        known = {"tokens": {**tokens, str(turn): knows}, "sites": {**sites, site: knows}}
        return dataclasses.replace(state, schedule=own, known=known), (happened,)

    def learn(self, state: State, changed: Map) -> State:
        """Every token and every site learns of it at once, as if each had been asked."""
        told = lambda maps: {name: {**held, **changed} for name, held in maps.items()}
        sites = {site: {} for site in changed} | dict(state.known["sites"])
        known = {"tokens": told(state.known["tokens"]), "sites": told(sites)}
        return dataclasses.replace(state, known=known)


def _visited(
    federation: Federation, state: State, site: str, seen: Map, key: jax.Array
) -> tuple[State, Map, Visit]:
    """The state after a site that knows ``seen`` had its turn, and what it knows then."""
    here = state.with_entries(seen)
    refused = state, seen, Visit(state.step, site, "refused")
    if not federation.admits(here.posterior):  # the factors that it lacks make up for those it has
        return refused
    after, happened = visit(federation, here, site, key=key)
    together = after.with_entries(merge_entries(state.entries, after.entries))
    if not federation.admits(together.posterior):
        return refused
    return together, dict(after.entries), happened
