"""Gossip: a token walks from site to site over a graph, and only natural parameters travel."""

import contextlib
import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import numpy as np

from posterity.arrays.tree_sums import TreeSum
from posterity.errors import LedgerError, UsageError
from posterity.families import ExponentialFamily
from posterity.federation.schedules import Schedule, Step
from posterity.federation.state import Map, State
from posterity.federation.visit import Federation, visit
from posterity.graphs.times import cover_times, sampled_cover_time
from posterity.graphs.topology import Network, check_sites, index_of
from posterity.graphs.walks import NOWHERE, MetropolisHastings, Walk, WalkState


@dataclasses.dataclass(frozen=True)
class Token:
    """What travels: the exact sum of natural parameters, and the number of the message.

    The sum is the posterior and, beside it, what rounding that left out: with it a site that takes
    its factor out leaves no residue. Together they are seldom more than twice the posterior's size.

    A site that receives sends the token on with the next sequence number. A new epoch begins
    whenever the posterior changes other than by a visit, as when a site is forgotten at once;
    tokens of a lower epoch are void.
    """

    epoch: int
    sequence: int
    exact_sum: TreeSum

    @property
    def posterior(self) -> ExponentialFamily:
        """The sum, rounded to nearest once."""
        return self.exact_sum.value


WALKS = 32
"""Walks over which the time to cover a graph is averaged, where theory does not know it."""
MATRIX_SITES = 256
"""Sites of the largest network of which the walks are averages themselves."""
LONGEST = 1 << 17
"""Hops of the longest walk that is measured to tell the time to cover a graph."""


@dataclasses.dataclass(frozen=True)
class OverGraph(Schedule):
    """Tokens that a ``walk`` moves over a networkx ``graph`` whose nodes are the sites."""

    graph: Any
    walk: Walk = dataclasses.field(default_factory=MetropolisHastings)
    network: Network = dataclasses.field(init=False, repr=False, compare=False)

    unit: ClassVar[str] = "hops"

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", Network.from_graph(self.graph))
        self.walk.checked(self.network)

    def hop(self, at: str, before: str | None, *, key: jax.Array) -> str:
        """The site that the walk goes to from ``at``, having come from ``before``."""
        names, (tree, arrays) = self.network.names, self._flat
        numbers = (NOWHERE if name is None else index_of(name, names) for name in (at, before))
        return names[int(_hop(tree, arrays, *map(np.int32, numbers), key))]

    @functools.cached_property
    def cover(self) -> int:
        """Hops after which a token has visited every site, on average over starts and walks.

        An average over a few walks, in part in theory; ``LONGEST`` where one of them, on a network
        too large for that, takes more.
        """
        if self.network.size == 1:
            return 0
        if self.network.size <= MATRIX_SITES:
            with contextlib.suppress(UsageError):
                return math.ceil(sampled_cover_time(self.network, self.walk, repetitions=WALKS))
        with contextlib.suppress(UsageError):
            walks = {"repetitions": WALKS, "key": jax.random.key(0), "limit": LONGEST}
            return math.ceil(float(cover_times(self.network, self.walk, **walks).mean()))
        return LONGEST

    def round(self, sites: int) -> int:
        """As many hops as it takes to cover the graph, and the visit where the last one leads."""
        del sites
        return self.cover + 1

    @property
    def rule(self) -> str:
        """With what the graph asks for."""
        return f"{super().rule}, of which {self.about_cover} cover the graph"

    @property
    def about_cover(self) -> str:
        """The time to cover the graph in words: how sure it is."""
        return f"{'more than' if self.cover == LONGEST else 'about'} {self.cover}"

    @functools.cached_property
    def _flat(self) -> tuple[Any, tuple[Any, ...]]:
        """Walk and links as a tree and its arrays, taken apart once and not at each hop."""
        leaves, tree = jax.tree.flatten((self.walk.checked(self.network), self.network.unnamed()))
        return tree, tuple(leaves)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@functools.partial(jax.jit, static_argnums=0)
def _hop(tree: Any, arrays: Any, position: Any, previous: Any, key: jax.Array) -> jax.Array:
    walk, network = jax.tree.unflatten(tree, arrays)
    here = WalkState(position, previous)
    return walk.step(network, here, key=jax.random.fold_in(key, 1)).position


@dataclasses.dataclass(frozen=True)
class Gossip(OverGraph):
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

    start: str | None = None

    def init(self, state: State, sites: tuple[str, ...], *, key: jax.Array) -> State:
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
        own = {"at": site, "from": None, "epoch": 0, "sequence": 0, "seen": {}}
        return dataclasses.replace(state, schedule=own)

    def step(self, federation: Federation, state: State, *, key: jax.Array) -> Step:
        """The site with the token updates and sends it on."""
        return self.receive(federation, state, state.schedule["at"], key=key)

    def receive(self, federation: Federation, state: State, site: str, *, key: jax.Array) -> Step:
        """The site takes the newest token, and sends it on to a neighbour of its own."""
        own = state.schedule
        state, happened = visit(federation, state, site, key=key)
        before = own["from"] if site == own["at"] else None
        there = self.hop(site, before, key=key)
        seen = {**own["seen"], site: own["sequence"]}
        sent = {"at": there, "from": site, "sequence": own["sequence"] + 1, "seen": seen}
        return dataclasses.replace(state, schedule={**own, **sent}), (happened,)

    def learn(self, state: State, changed: Map) -> State:
        """A new epoch: a token on its way does not know of the change."""
        del changed
        own = {**state.schedule, "epoch": state.schedule["epoch"] + 1, "sequence": 0, "seen": {}}
        return dataclasses.replace(state, schedule=own)


def token_of(state: State) -> Token:
    """The token as it is on its way now."""
    return Token(state.schedule["epoch"], state.schedule["sequence"], state.exact_sum)


def is_answered(state: State, token: Token, site: str) -> bool:
    """Whether the site has answered this token, and its answer is the newest token.

    Raises:
        LedgerError: unless it is such a token or the newest itself, of the same content.
    """
    own = state.schedule
    version, current = (token.epoch, token.sequence), (own["epoch"], own["sequence"])
    if version == (current[0], current[1] - 1) and own["seen"].get(site) == token.sequence:
        return True
    if version != current:
        raise LedgerError(
            found=f"a token of epoch {version[0]}, sequence {version[1]} at site {site!r}",
            expected=f"epoch {current[0]}, sequence {current[1]}, the newest",
            fix="Drop it: it is a replay, was overtaken, or belongs to another federation.",
        )
    if token.exact_sum != state.exact_sum:
        raise LedgerError(
            found=f"another posterior in the token of epoch {version[0]}, sequence {version[1]}",
            expected="one content for one version",
            fix="Drop it: it was altered, or belongs to another federation.",
        )
    return False
