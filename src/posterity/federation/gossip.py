"""Gossip: tokens walk from site to site over a graph, and carry only natural parameters.

The turn of a site depends on its :class:`SiteState`, the agreement, its records and the token that
it received, and not on other sites. Each site itself ensures that its factor counts exactly once.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np

from posterity.arguments import COUNT
from posterity.arrays.keys import below, bits, fold_in
from posterity.arrays.typing import KeyArray
from posterity.entries import Entry, merge_entries
from posterity.errors import LedgerError, ParameterError
from posterity.families.checks import check_same_structure
from posterity.federation.agreement import Agreement
from posterity.federation.driver import Federation
from posterity.federation.messages import FIRST, Epoch, Token
from posterity.federation.schedules import Schedule
from posterity.federation.site import Site
from posterity.federation.state import Map, State, Visit, answered, question, without_turn
from posterity.graphs.topology import Network, check_sites
from posterity.graphs.walks import NOWHERE, MetropolisHastings, Walk, WalkState
from posterity.runtime.sharing import SharedMap

WALKS = 32
"""Number of walks over which the hops to all sites are averaged."""
LONGEST = 1 << 17
"""Largest number of hops of these walks."""
_BEGINNING: dict[str, Any] = {"sequence": 0, "previous": None, "answered": {}}
"""State of a new epoch: the token's sequence number, its ``previous``, and each site's answers."""


@dataclasses.dataclass(frozen=True)
class SiteState:
    """The state of a site between two visits. Immutable; plain data except the factor."""

    name: str
    entry: Entry | None = None
    """The site's versioned factor; None before its first turn."""
    count: int = 0
    """Number of local steps that the site has taken."""
    epoch: Epoch = FIRST
    """The newest epoch of which the site has received a token."""
    answered: int = -1
    """The sequence number of the last token that the site answered in that epoch."""
    counted: bool = False
    """True if the tokens of that epoch include the site's factor."""
    leaving: bool = False
    """True if the site's factor is to be removed when the next token arrives."""

    def take(
        self, agreed: Agreement, token: Token, step: int | None = None
    ) -> tuple["SiteState", State]:
        """Return the site in the token's epoch, and the part of the federation's state it has.

        ``step`` is the step of that state, by default the token's sequence number. Unless the site
        is ``counted``, the first token of an epoch lacks its factor, which is then added. Raises
        LedgerError if the token is of a lower epoch, already answered or superseded, and
        ParameterError if the sum is beyond the range of float64.
        """
        own = self
        if token.epoch > own.epoch:
            own = dataclasses.replace(own, epoch=token.epoch, answered=-1, counted=False)
        if token.epoch < own.epoch or token.sequence <= own.answered:
            raise LedgerError(
                found=f"a token of {named(token)} at site {own.name!r}",
                expected=f"one above epoch {own.epoch[0]}, sequence {own.answered}",
                fix="Drop it: it is a replay, or was overtaken.",
            )
        exact_sum = token.exact_sum
        entry = own.entry
        if not own.counted and entry is not None and entry.factor is not None:
            exact_sum = exact_sum.changed(add=[entry.factor])
        entries = {} if entry is None else {own.name: entry}
        leaving = (own.name,) if own.leaving else ()
        counts = {own.name: own.count} if own.count else {}
        step = token.sequence if step is None else step
        known = State(agreed.prior, exact_sum, entries, counts, step, token.epoch, leaving=leaving)
        return own, known

    def send(self, token: Token, after: State) -> tuple["SiteState", Token]:
        """Return the site's state after a turn with the token that led to ``after``, and the token
        that it sends. Store the state before sending the token.
        """
        name = self.name
        leaving = self.name in after.leaving
        entry = after.entries.get(name)
        count = after.counts.get(name, self.count)
        kept = SiteState(name, entry, count, token.epoch, token.sequence, True, leaving)
        place = (token.agreement, token.epoch, token.sequence + 1)
        return kept, Token(*place, after.exact_sum, name, token.digest)


def turn(
    site: Site, own: SiteState, token: Token, *, key: KeyArray
) -> tuple[SiteState, Token, Visit]:
    """Make a whole turn of a site: receive the token, improve the factor, and send the token.

    If the token's posterior is improper, since other sites' factors are missing, the site only
    relays it. If the posterior would be improper without its factor, a site that is to leave waits.
    Pure: the same arguments give the same token bit for bit, in every process.

    Raises:
        StructureError: if the token differs from the prior in family or shape.
        LedgerError, ParameterError: as for :meth:`SiteState.take`.
        SiteError: if the site fails, unless the agreement skips sites that fail.
    """
    agreed = site.agreement
    check_same_structure(agreed.prior, token.posterior, f"a token of {named(token)}")
    own, known = own.take(agreed, token)
    try:
        result = without_turn(agreed, known, own.name)
    except ParameterError:  # other sites' factors are missing: it leaves with a later token
        result = known, Visit(known.step, own.name, "refused")
    if result is None and site.records.silent:
        result = known, Visit(known.step, own.name, "relayed")
    if result is None and not agreed.admits(known.posterior):
        result = known, Visit(known.step, own.name, "refused")  # other factors are missing
    if result is None:
        asked = question(agreed, known, own.name, known.posterior, key)
        answer: Any = Federation(agreed, {own.name: site}).ask(asked)
        result = answered(agreed, known, answer)
    after, visit = result
    return *own.send(token, after), visit


def named(token: Token) -> str:
    """Return epoch and sequence number of a token in words."""
    return f"epoch {token.epoch[0]}, sequence {token.sequence}"


@dataclasses.dataclass(frozen=True)
class OverGraph(Schedule):
    """Tokens that a ``walk`` moves over a networkx ``graph`` whose nodes are the sites."""

    graph: Any
    walk: Walk = dataclasses.field(default_factory=MetropolisHastings)
    network: Network = dataclasses.field(init=False, repr=False, compare=False)

    unit: ClassVar[str] = "hops"

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", Network.from_graph(self.graph))

    def hop(self, at: str, before: str | None, *, key: KeyArray) -> str:
        """Return the next site of the walk from ``at``, with ``before`` as the previous site."""
        numbers = (NOWHERE if name is None else self.network.index(name) for name in (at, before))
        state = WalkState(*(np.array([number], np.int32) for number in numbers))
        drawn = np.array([bits(fold_in(key, 1))], np.uint32)
        return self.network.names[int(self.walk.move(self.network, state, drawn).position[0])]

    @functools.cached_property
    def _cover(self) -> int:
        """The mean number of hops of ``WALKS`` walks until they have visited every site, or until
        ``LONGEST``.
        """
        draw = np.random.default_rng(0)
        tokens = np.arange(WALKS)
        state = WalkState(tokens % self.network.size, np.full(WALKS, NOWHERE))
        visited = np.zeros((WALKS, self.network.size), bool)
        left = np.full(WALKS, self.network.size)
        hops = 0
        for _ in range(LONGEST):
            left -= ~visited[tokens, state.position]
            visited[tokens, state.position] = True
            late = int(np.count_nonzero(left))
            if not late:
                break
            hops += late
            drawn = draw.integers(2**32, size=WALKS, dtype=np.uint32)
            state = self.walk.move(self.network, state, drawn)
        return hops // WALKS

    def round(self, sites: int) -> int:
        """Return the hops of a walk to all sites, and one for the visit at the last of them."""
        return self._cover + 1


@dataclasses.dataclass(frozen=True)
class Gossip(OverGraph):
    """One token on a random walk, as in gong2021; a step is one hop.

    The site that has the token updates its own factor, adds the change to the token, and sends it
    to the neighbour that the walk picks. The token starts at ``start``, or at a site drawn
    uniformly.

    Args:
        graph: undirected, connected networkx graph whose nodes are the sites.
        walk: :class:`MetropolisHastings`, as in gong2021, which visits all sites equally often;
            or :class:`NonBacktracking`.
        start: name of the first site; by default it is drawn uniformly.

    Source: gong2021, algorithm 1.
    """

    start: str | None = None

    def init(self, state: State, sites: tuple[str, ...], *, key: KeyArray) -> State:
        """Return the state with the token's position, its sequence number, and the last one that
        each site answered. Raises StructureError if the graph's nodes are not these sites.
        """
        check_sites(self.network.names, sites)
        if self.start is None:
            start = below(key, self.network.size, 1)[0]
        else:
            start = self.network.index(self.start)
        own = {"at": self.network.names[start], "from": None, **_BEGINNING}
        return dataclasses.replace(state, schedule=own)

    def turns(self, agreed: Agreement, state: State) -> tuple[str, ...]:
        return (state.schedule["at"],)

    def seen(self, agreed: Agreement, state: State, site: str) -> State:
        """Return the state that the site has with the token. Raises LedgerError if it has already
        answered the token.
        """
        return site_state(state, site).take(agreed, token_of(state), state.step)[1]

    def concluded(
        self, agreed: Agreement, state: State, after: State, visit: Visit, *, key: KeyArray
    ) -> tuple[State, Visit]:
        own = state.schedule
        site = visit.site
        kept, token = site_state(state, site).send(token_of(state), after)
        others = tuple(name for name in state.leaving if name != site)
        entries = {} if kept.entry is None else {site: kept.entry}
        sent = {
            "at": self.hop(site, own["from"], key=key),
            "from": site,
            "sequence": token.sequence,
            "previous": token.previous,
            "answered": SharedMap.of(own["answered"]) | {site: kept.answered},
        }
        maps = {"entries": state.entries | entries, "counts": state.counts | after.counts}
        place: Any = {"exact_sum": token.exact_sum, "leaving": others, "schedule": sent}
        return dataclasses.replace(state, **maps, **place), visit

    def learn(self, state: State, changed: Map) -> State:
        """Return the state in a new epoch; the token's sum includes all sites' factors."""
        schedule = {**state.schedule, **_BEGINNING}
        return dataclasses.replace(super().learn(state, changed), schedule=schedule)


def token_of(state: State, agreement: str = "") -> Token:
    """Return the current token of a federation with this digest of its agreement."""
    own = state.schedule
    place = (agreement, state.epoch, own["sequence"])
    return Token(*place, state.exact_sum, own["from"], own["previous"])


def site_state(state: State, site: str) -> SiteState:
    """Return the site's part of the federation's state."""
    return SiteState(
        site,
        state.entries.get(site),
        state.counts.get(site, 0),
        state.epoch,
        state.schedule["answered"].get(site, -1),
        counted=True,  # within one process, an epoch begins with the sum of all factors
        leaving=site in state.leaving,
    )


@dataclasses.dataclass(frozen=True)
class LedgerGossip(OverGraph):
    """Several tokens walk at once; each carries the newest factor of every site that it has met.

    With sums only, two tokens would count a site's data twice or lose it. Versioned maps are
    merged when tokens meet, directly or through the map that a site stores. Each site's highest
    version wins, so the result does not depend on the order of events. The disadvantages are less
    privacy, since a token contains the factors of single sites, and K times the traffic.

    A step moves one token by one hop, in turn. The run's posterior is that of all maps merged. A
    visit is refused if the posterior of the site's map, or of all maps merged, would be improper
    after it. Not in gong2021; maps are merged as in the ledger (shapiro2011).
    """

    tokens: int = 2

    def __post_init__(self) -> None:
        COUNT.check(tokens=self.tokens)
        super().__post_init__()

    def init(self, state: State, sites: tuple[str, ...], *, key: KeyArray) -> State:
        """Return the state with the tokens' positions, and the maps of each token and site."""
        check_sites(self.network.names, sites)
        starts = below(key, self.network.size, self.tokens)
        at = [self.network.names[start] for start in starts]
        own = {"at": at, "from": [None] * self.tokens, "turn": 0}
        known = {"tokens": {str(token): {} for token in range(self.tokens)}, "sites": {}}
        return dataclasses.replace(state, schedule=own, known=known)

    def turns(self, agreed: Agreement, state: State) -> tuple[str, ...]:
        return (state.schedule["at"][state.schedule["turn"]],)

    def seen(self, agreed: Agreement, state: State, site: str) -> State | None:
        here = state.with_entries(self._joined(state, site))
        # An improper posterior may become proper with factors that are still missing.
        return here if agreed.admits(here.posterior) else None

    def concluded(
        self, agreed: Agreement, state: State, after: State, visit: Visit, *, key: KeyArray
    ) -> tuple[State, Visit]:
        own = state.schedule
        tokens = state.known["tokens"]
        sites = state.known["sites"]
        turn = own["turn"]
        site = visit.site
        joined = self._joined(state, site)
        if after is not state:  # the site had its turn
            together = after.with_entries(merge_entries(state.entries, after.entries))
            if agreed.admits(together.posterior):
                state = together
                joined = dict(after.entries)
            else:
                visit = Visit(state.step, site, "refused")
        at = list(own["at"])
        before = list(own["from"])
        at[turn], before[turn] = self.hop(site, before[turn], key=key), site
        own = {"at": at, "from": before, "turn": (turn + 1) % self.tokens}
        known = {"tokens": {**tokens, str(turn): joined}, "sites": {**sites, site: joined}}
        return dataclasses.replace(state, schedule=own, known=known), visit

    def _joined(self, state: State, site: str) -> Map:
        """Return the merged entries of the current token and the site."""
        token = state.known["tokens"][str(state.schedule["turn"])]
        return merge_entries(token, state.known["sites"].get(site, {}))

    def learn(self, state: State, changed: Map) -> State:
        """Return the state with the changes in the maps of all tokens and sites at once."""

        def renewed(maps):
            return {name: {**entries, **changed} for name, entries in maps.items()}

        sites = {site: {} for site in changed} | dict(state.known["sites"])
        known = {"tokens": renewed(state.known["tokens"]), "sites": renewed(sites)}
        return dataclasses.replace(super().learn(state, changed), known=known)
