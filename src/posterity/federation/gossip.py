"""Gossip: a token walks from site to site over a graph, and only natural parameters travel."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from posterity.errors import LedgerError
from posterity.families import ExponentialFamily
from posterity.federation.network import Network, check_sites
from posterity.federation.schedules import Schedule, Step, site_key
from posterity.federation.state import Problem, State, Visit, visit
from posterity.federation.walks import NOWHERE, MetropolisHastings, Walk, WalkState


@dataclasses.dataclass(frozen=True)
class Token:
    """What travels: the posterior's natural parameters, and the number of the message.

    A site that receives sends the token on with the next sequence number. An epoch is a new
    start of the walk; tokens of a lower epoch are void.
    """

    epoch: int
    sequence: int
    posterior: ExponentialFamily


@dataclasses.dataclass(frozen=True)
class Gossip(Schedule):
    """One token on a random walk, as in the paper; a step is one hop.

    The site at which the token stands updates its own factor, adds the change to the token, and
    sends it to the neighbour that the walk picks. The token starts at ``start``, or at a site
    drawn uniformly.

    Args:
        graph: an undirected, connected networkx graph whose nodes are the sites.
        walk: :class:`MetropolisHastings`, as in the paper, visits all sites equally often;
            :class:`WeightedMetropolisHastings` and :class:`NonBacktracking` go beyond it.
        start: name of the first site.

    Source: gong2021, algorithm 1.
    """

    graph: Any
    walk: Walk = dataclasses.field(default_factory=MetropolisHastings)
    start: str | None = None
    network: Network = dataclasses.field(init=False, repr=False, compare=False)

    unit: ClassVar[str] = "hops"

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", Network.from_graph(self.graph))
        self.walk.checked(self.network)

    def init(self, sites: tuple[str, ...], *, key: jax.Array) -> Any:
        """Where the token is, its number, and the last number that each site has seen.

        Raises:
            StructureError: if the nodes of the graph are not exactly these sites.
        """
        check_sites(self.network.names, sites, "nodes for")
        if self.start is None:
            start = int(jax.random.randint(key, (), 0, self.network.size))
        else:
            start = self.network.index(self.start)
        site = self.network.names[start]
        return {"at": site, "from": None, "epoch": 0, "sequence": 0, "seen": {}, "leaving": []}

    def step(self, problem: Problem, state: State, *, key: jax.Array) -> Step:
        """The site with the token updates and sends it on."""
        state, happened = deliver(problem, state, token_of(state), key=key)
        own = state.schedule
        there = hop(self.network, self.walk, own["at"], own["from"], key=key)
        return dataclasses.replace(state, schedule={**own, "at": there, "from": own["at"]}), (
            happened,
        )


def token_of(state: State) -> Token:
    """The token as it is on its way now."""
    return Token(state.schedule["epoch"], state.schedule["sequence"], state.posterior)


def deliver(
    problem: Problem, state: State, token: Token, *, site: str | None = None, key: jax.Array
) -> tuple[State, Visit]:
    """The site (by default the one the token is on its way to) receives a token.

    A token that the site has answered, and whose answer is still the newest, changes nothing:
    the answer is the token that the state holds. All older ones are refused.

    Raises:
        LedgerError: if the token is of another epoch, older than the state's, or not yet issued.
    """
    own = state.schedule
    site = own["at"] if site is None else site
    seen = own["seen"].get(site, [own["epoch"], -1])
    version, current = [token.epoch, token.sequence], [own["epoch"], own["sequence"]]
    if version == seen and token.sequence + 1 == own["sequence"]:
        return state, Visit(state.step, site, "relayed")
    if version != current:
        raise LedgerError(
            found=f"a token of epoch {version[0]}, sequence {version[1]} at site {site!r}",
            expected=f"epoch {current[0]}, sequence {current[1]}, the newest",
            fix="Drop it: it is a replay, was overtaken, or belongs to another federation.",
        )
    if site in own["leaving"]:
        state, happened = state.without(site), Visit(state.step, site, "forgotten")
        own = {**own, "leaving": [name for name in own["leaving"] if name != site]}
    else:
        state, happened = visit(problem, state, site, key=site_key(key, site))
    seen = {**own["seen"], site: version}
    own = {**own, "seen": seen, "sequence": own["sequence"] + 1}
    return dataclasses.replace(state, schedule=own), happened


def leave_when_reached(state: State, *sites: str) -> State:
    """The sites asked to be forgotten; each factor leaves when the token comes by.

    Raises:
        LedgerError: if a site is forgotten already; nothing is asked then.
    """
    state.without(*sites)  # refused now rather than at the visit
    leaving = sorted({*state.schedule["leaving"], *sites})
    return dataclasses.replace(state, schedule={**state.schedule, "leaving": leaving})


def hop(network: Network, walk: Walk, at: str, before: str | None, *, key: jax.Array) -> str:
    """The site that the walk goes to from ``at``, having come from ``before``."""
    place = lambda name: jnp.asarray(NOWHERE if name is None else network.index(name), jnp.int32)
    here = WalkState(place(at), place(before))
    there = _hop(walk.checked(network), network.unnamed(), here, jax.random.fold_in(key, 1))
    return network.names[int(there.position)]


@eqx.filter_jit
def _hop(walk: Walk, network: Network, here: WalkState, key: jax.Array) -> WalkState:
    return walk.step(network, here, key=key)
