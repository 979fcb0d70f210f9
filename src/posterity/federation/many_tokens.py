"""Several tokens at once, over versioned maps; beyond the paper."""

import dataclasses
import functools
from typing import Any, ClassVar

import jax

from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.federation.gossip import hop
from posterity.federation.network import Network, check_sites
from posterity.federation.schedules import Schedule, Step, site_key
from posterity.federation.state import Problem, State, visit
from posterity.federation.walks import MetropolisHastings, Walk
from posterity.ledger import Entry

Map = dict[str, Entry]


@dataclasses.dataclass(frozen=True)
class LedgerGossip(Schedule):
    """Several tokens walk at once; each carries every site's newest factor that it has met.

    Two tokens that carried only sums would count a site's data twice or lose it. A versioned
    map merges where they meet, directly or by way of what a site remembers: each site's highest
    version wins, so whatever happened in which order, the result is the same. The price is
    privacy, since a token shows the factors of single sites, and K times the traffic.

    A step moves one token by one hop, the tokens taking turns. Beyond gong2021; the merging is
    the ledger's (shapiro2011).
    """

    graph: Any
    tokens: int = 2
    walk: Walk = dataclasses.field(default_factory=MetropolisHastings)
    network: Network = dataclasses.field(init=False, repr=False, compare=False)

    unit: ClassVar[str] = "hops"

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
        seen = _merged(own["tokens"][str(turn)], own["sites"].get(site, {}))
        here = dataclasses.replace(state, posterior=_total(state, seen), entries=seen)
        after, happened = visit(problem, here, site, key=site_key(key, site))
        knows = dict(after.entries)
        at, before = list(own["at"]), list(own["from"])
        at[turn], before[turn] = hop(self.network, self.walk, site, before[turn], key=key), site
        schedule = {
            "at": at,
            "from": before,
            "turn": (turn + 1) % self.tokens,
            "tokens": {**own["tokens"], str(turn): knows},
            "sites": {**own["sites"], site: knows},
        }
        entries = _merged(dict(state.entries), knows)
        state = dataclasses.replace(
            after, entries=entries, posterior=_total(state, entries), schedule=schedule
        )
        return state, (happened,)

    def replace(self, own: Any, site: str, entry: Entry) -> Any:
        """Every token and every site learns of it at once, as if each had been asked."""
        learn = lambda known: {name: {**held, site: entry} for name, held in known.items()}
        sites = {site: {}} | own["sites"]
        return {**own, "tokens": learn(own["tokens"]), "sites": learn(sites)}


def _merged(mine: Map, theirs: Map) -> Map:
    """Each site's highest entry."""
    rank = lambda entry: entry.rank
    return {
        site: max((known[site] for known in (mine, theirs) if site in known), key=rank)
        for site in sorted({*mine, *theirs})
    }


def _total(state: State, entries: Map) -> ExponentialFamily:
    """The posterior that a map amounts to; on the grid, in any order."""
    factors = (entry.factor for entry in entries.values() if entry.factor is not None)
    return functools.reduce(lambda total, factor: total + factor, factors, state.prior)
