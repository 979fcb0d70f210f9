"""The terms of a federation between organisations, which every member signs."""

import copy
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import networkx as nx

from posterity.arguments import COUNT, POSITIVE, Constraint, one_of
from posterity.arrays.keys import bits, fold_in, seeded
from posterity.arrays.typing import KeyArray
from posterity.artifact import digest
from posterity.artifact.manifest import as_text
from posterity.engine.refusal import Refusal
from posterity.engine.signing import PublicKey
from posterity.entries import check_names
from posterity.errors import UsageError, within
from posterity.families import ExponentialFamily
from posterity.federation import Agreement, Gossip, step_key
from posterity.federation.remaining import TOLERANCE
from posterity.federation.schedules import Schedule
from posterity.federation.specification import NamedModel, build, make_schedule, make_update
from posterity.ledger import Ledger
from posterity.runtime import fingerprint

WALKS = one_of("gossip", "sequential")
"""Orders in which a token can walk in a federation without a server."""
MOST_LISTENERS = 8
"""Number of neighbours up to which all are sent what every member needs."""
MOST_MEMBERS = 1024
"""Largest number of members. Every member answers every survey, and its answer is sent on to all:
those of 1,024 are a million letters an epoch. The links of as many, all listed, take 170 MB."""
MOST_CHANGES = 100
"""Number of changes of a member's key; after as many new terms are due. All are in certificates."""
MEMBERS = Constraint(f"at most {MOST_MEMBERS:,}", lambda number: number <= MOST_MEMBERS)
DEADLINE = 300.0
"""Default seconds of silence after which the others go on without a member. Whoever takes longer
for one visit is passed over again and again; a process is back from a restart in less."""
NAME = Constraint("a name", lambda name: isinstance(name, str) and bool(name.strip()))


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds within which a site accepts the messages of other members.

    ``magnitude`` bounds the natural parameters of a posterior. ``pseudo_counts`` bounds by how much
    all factors together change them; in a conjugate family they are numbers of records, each times
    its sufficient statistics. ``bytes`` bounds the size of a letter. ``epochs`` bounds by how much
    one letter may raise the highest epoch number that a site has recorded.
    """

    magnitude: float = 1e12
    pseudo_counts: float = 1e6
    bytes: int = 2**26
    epochs: int = 1000

    def __post_init__(self) -> None:
        POSITIVE.check(magnitude=self.magnitude, pseudo_counts=self.pseudo_counts)
        COUNT.check(bytes=self.bytes, epochs=self.epochs)


class Rotation(NamedTuple):
    """A change of a member's key, signed by the key before or by an authority.

    ``old`` is the key before, which still counts for what is of an epoch number below ``epoch``;
    ``key`` is the one after. ``signer`` is the name of the member or of the authority, ``notice``
    the signed statement.
    """

    site: str
    old: PublicKey
    key: PublicKey
    epoch: int
    signer: str
    notice: str

    @property
    def label(self) -> str:
        """The name of the key before, among the names of members."""
        return f"{self.site} by {self.old}, which was replaced"


@dataclasses.dataclass(frozen=True)
class Terms:
    """The terms of a federation: model and options, members, links, limits and schedule.

    Terms are data: the ``model`` is a name, and ``update`` are options of the local update. They
    are made at the first use of :attr:`agreement`; ``allow`` are the packages, with versions, of
    which a model may be loaded for that. Each member has its own copy of the coefficients ``own``.

    ``members`` maps names to public keys; ``links`` are the pairs of members between whom the token
    may walk, None for every two, or each with the server if there is one. ``seed`` determines all
    random numbers. A key in ``authorities`` may sign the tombstone of any member, or replace its
    key; a member may sign its own. ``rotations`` are the members' changes of keys since, in order.

    Without a ``server`` a token walks by ``order``: "gossip" is a random walk over the links,
    "sequential" visits members in order of their names. A server asks the others by ``schedule``.
    ``steps`` is the maximum number of hops, passes or rounds of an epoch. An epoch ends earlier
    once less than ``tolerance`` nats are left to change, unless ``tolerance`` is None.

    A member for which the others wait is passed over after ``deadline`` seconds of silence, as the
    waiting member's own clock measures them, if at least ``quorum`` members remain. The posterior
    of those who answered may be converged if they are as many; by default only that of all may.
    """

    name: str
    model: NamedModel
    prior: ExponentialFamily
    members: Mapping[str, PublicKey]
    links: tuple[tuple[str, str], ...] | None = None
    update: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    personal: bool | Sequence[int | str] | Mapping[str, float] = False
    own: Sequence[int | str] = ()
    padding: bool = True
    limits: Limits = dataclasses.field(default_factory=Limits)
    seed: int = 0
    authorities: Mapping[str, PublicKey] = dataclasses.field(default_factory=dict)
    order: str = "gossip"
    schedule: Schedule | None = None
    server: str | None = None
    steps: int | None = None
    tolerance: float | None = TOLERANCE
    quorum: int | None = None
    deadline: float = DEADLINE
    allow: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    rotations: tuple[Rotation, ...] = dataclasses.field(default=(), compare=False)

    def __post_init__(self) -> None:
        NAME.check(name=self.name)
        check_names([*self.members, *self.authorities])
        both = sorted(self.members.keys() & self.authorities)
        pairs = self.links or ()
        graph = nx.Graph(pairs)
        graph.add_nodes_from(self.members)
        linked = self.links is None or (set(graph) == set(self.members) and nx.is_connected(graph))
        names = sorted(self.members)
        keys = [*self.members.values(), *self.authorities.values()]
        shared = len(set(keys)) < len(keys)
        there = f"{len(pairs)} links {pairs[:9]} of {len(names)} members {names[:9]}"
        reach = "links between members, by which each can be reached from each"
        key = "one public key for two members or authorities"
        UsageError.check(
            (both, f"{both}, members and authorities", "authorities that are not members"),
            (not self.members or not linked, there, reach),
            (shared, key, "a different key for each"),
        )
        COUNT.or_none().check(steps=self.steps)
        POSITIVE.or_none().check(tolerance=self.tolerance)
        size = len(self.members)
        some = Constraint(f"1 to {size} members", lambda n: type(n) is int and 0 < n <= size)
        some.or_none().check(quorum=self.quorum)
        POSITIVE.check(deadline=self.deadline)
        one_of(*sorted(self.members)).or_none().check(server=self.server)
        if self.server is None:
            WALKS.check(**{"schedule.kind": self.order})

    @classmethod
    def of(
        cls,
        name: str,
        *,
        model: str,
        prior: ExponentialFamily,
        members: Mapping[str, str],
        links: list[list[str]] | None = None,
        options: Mapping[str, Any] | None = None,
        package: str | None = None,
        version: str | None = None,
        allow: Mapping[str, str] | None = None,
        update: Mapping[str, Any] | None = None,
        personal: bool | Sequence[int | str] | Mapping[str, float] = False,
        own: Sequence[int | str] = (),
        padding: bool = True,
        limits: Mapping[str, Any] | None = None,
        seed: int = 0,
        authorities: Mapping[str, str] | None = None,
        schedule: Mapping[str, Any] | None = None,
        server: str | None = None,
        steps: int | None = None,
        tolerance: float | None = None,
        quorum: int | None = None,
        deadline: float = DEADLINE,
    ) -> Self:
        """Make the terms from plain values, as they stand in a configuration file.

        ``model`` is the name of a model with its ``options``, of posterity or of a ``package`` of
        a ``version`` (:class:`~posterity.federation.specification.NamedModel`), and ``update`` the
        options of the local update. A model that may be loaded is made at once, so that errors show
        early. As each of the ``members`` has its own copy of the coefficients in ``own``, adding a
        member needs new terms. ``schedule`` has a ``kind`` and its options. With ``steps`` and no
        ``tolerance`` all steps are made; with neither, the tolerance is
        :data:`posterity.federation.remaining.TOLERANCE`. Raises a UsageError if a value is invalid,
        and a LedgerError if the names of two members look alike.
        """
        MEMBERS.check(**{"number of members": len(members)})
        names = sorted(members)
        order = dict(schedule or {})
        kind = order.pop("kind", "gossip" if server is None else "sequential")
        made_by = None if server is None else make_schedule(kind, order, names)
        if server is None and order:
            raise UsageError(
                found=f"options {sorted(order)} in table [schedule]",
                expected="only a kind, for a walking token",
            )
        terms = cls(
            name,
            NamedModel(model, options or {}, package, version),
            prior,
            members={site: _key_of(members[site], f"members.{site}") for site in names},
            links=tuple(sorted({(min(pair), max(pair)) for pair in links})) if links else None,
            update=update or {},
            personal=personal,
            own=own,
            padding=padding,
            limits=build(Limits, limits or {}, "limits"),
            seed=seed,
            authorities={
                who: _key_of(key, f"authorities.{who}") for who, key in (authorities or {}).items()
            },
            order=kind,
            schedule=made_by,
            server=server,
            steps=steps,
            tolerance=TOLERANCE if (steps, tolerance) == (None, None) else tolerance,
            quorum=quorum,
            deadline=deadline,
            allow=allow or {},
        )
        if terms.knows_model:
            _ = terms.agreement
        return terms

    def after(self, *rotations: Rotation) -> Self:
        """Return the same terms after other changes of keys."""
        terms = copy.copy(self)  # with all that was computed
        object.__setattr__(terms, "rotations", rotations)
        return terms

    @property
    def changes(self) -> tuple[str, ...]:
        """The signed notices of the changes of keys."""
        return tuple(each.notice for each in self.rotations)

    @property
    def keys(self) -> Mapping[str, PublicKey]:
        """The present key of each member by its name, and those before by their labels."""
        old = {each.label: each.old for each in self.rotations}
        return {**old, **self.members, **{each.site: each.key for each in self.rotations}}

    def keys_of(self, site: str) -> list[PublicKey]:
        """Return the present key of a member, and those before."""
        return [self.keys[site], *(each.old for each in self.rotations if each.site == site)]

    def rotated(self, new: Rotation) -> Self:
        """Return the terms after one more change of a key. One by an authority takes the place of
        one by the member, and of all that followed that. Raises a Refusal if it does not follow
        those before, or the key is or was anybody's.
        """
        chain = [each for each in self.rotations if each.site == new.site]
        lost = [*itertools.dropwhile(lambda each: each.old != new.old, chain)]
        wins = lost and new.signer in self.authorities and lost[0].signer == new.site
        present = self.keys[new.site]
        used = {*self.keys.values(), *self.authorities.values()}
        follows = new.old == present and len(chain) < MOST_CHANGES
        if new.key in used or not (wins or follows):
            found = f"a change of key {new.old} of {new.site!r} to {new.key}, by {new.signer!r}"
            expected = f"at most {MOST_CHANGES}, this one of {present}, to a key of nobody yet"
            raise Refusal.of(found, expected, "retired")
        return self.after(*(each for each in self.rotations if each not in lost), new)

    @property
    def knows_model(self) -> bool:
        """Whether the model may be loaded here."""
        return self.model.may_load(self.allow)

    @functools.cached_property
    def agreement(self) -> Agreement:
        """The common settings of all sites, with model and update made from their names. Raises a
        UsageError if the model may not be loaded here or an option is invalid.
        """
        options: Any = {"personal": self.personal, "own": self.own, "padding": self.padding}
        made = self.model.make(self.allow)
        rule = make_update(self.update)
        sites = list(self.members)
        return Agreement.of(made, self.prior, rule, sites=sites, on_error="pass", **options)

    @functools.cached_property
    def law(self) -> ExponentialFamily:
        """The prior of all coefficients, those that members have for themselves too. Only the
        latter need the model.
        """
        apart = self.own or self.personal is not False
        return self.agreement.prior if apart else Ledger(self.prior).prior

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the terms, equal in every process; each letter contains it. No model is made
        for it.
        """
        document = {
            "name": self.name,
            "model": dataclasses.asdict(self.model),
            "prior": digest(self.prior),
            "update": dict(self.update),
            "personal": self.personal,
            "own": list(self.own),
            "padding": self.padding,
            "members": {site: str(key) for site, key in self.members.items()},
            "authorities": {name: str(key) for name, key in self.authorities.items()},
            "links": self.links,
            "limits": dataclasses.asdict(self.limits),
            "seed": self.seed,
            "order": self.order,
            "schedule": fingerprint.digest((type(self.schedule).__name__, self.schedule)),
            "server": self.server,
            "steps": self.steps,
            "tolerance": self.tolerance,
            "quorum": self.quorum,
            "deadline": self.deadline,
        }
        return hashlib.sha256(as_text(document).encode()).hexdigest()

    def neighbours(self, site: str, gone: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Return the members linked with a site after those that are ``gone`` were forgotten."""
        if self.links is not None:
            return tuple(sorted(self._graphs(gone - {site}).neighbors(site)))
        hub = self._hub(gone - {site})
        others = tuple(name for name in self.staying(gone) if name != site)
        return others if hub in (None, site) else (hub,)

    def _hub(self, gone: frozenset[str]) -> str | None:
        """Return the server, if links are not listed and each is with it; None after it is gone."""
        return None if self.server in gone else self.server

    @functools.cached_property
    def _graphs(self) -> Callable[[frozenset[str]], nx.Graph]:
        left = functools.partial(_graph, tuple(self.members), self.links or ())
        return functools.lru_cache(maxsize=16)(left)

    @functools.cached_property
    def walk(self) -> Callable[[frozenset[str]], Gossip]:
        """A function from the members that are gone to the walk among those that stay."""
        return functools.lru_cache(maxsize=16)(lambda gone: Gossip(self._graphs(gone)))

    def staying(self, gone: frozenset[str]) -> tuple[str, ...]:
        """Return the names of the members that are not gone, sorted."""
        return tuple(sorted(self.members.keys() - gone))

    def is_quorum(self, number: int) -> bool:
        """Return whether the posterior of so many members, but not all, may be converged."""
        return self.quorum is not None and number >= self.quorum

    def step_key(self, sequence: int, gone: frozenset[str]) -> KeyArray:
        """Return the random key of the hop with this number, or of its pass if the order is by
        name.
        """
        passes = sequence // max(len(self.staying(gone)), 1)
        return step_key(seeded(self.seed), sequence if self.order == "gossip" else passes)

    def following(self, site: str, origin: str | None, sequence: int, gone: frozenset[str]) -> str:
        """Return the site that the token with this number goes to next from ``site``. It came from
        ``origin``; members that are ``gone`` are skipped.
        """
        if self.order == "sequential":
            names = self.staying(gone - {site})
            return names[(names.index(site) + 1) % len(names)]
        key = self.step_key(sequence, gone)
        if self.links is None:  # the hop of Metropolis-Hastings where every two are linked
            others = self.neighbours(site, gone) or (site,)
            return others[bits(fold_in(key, 1)) * len(others) >> 32]
        return self.walk(gone).hop(site, None if origin in gone else origin, key=key)

    def listeners(self, site: str, gone: frozenset[str]) -> tuple[str, ...]:
        """Return the members to whom a site forwards notices: all neighbours if they are few, or by
        listed links. If there are many without a list, they are those at distances of powers of
        two in the order of names, so that every notice still reaches all members in a few hops.
        """
        around = self.neighbours(site, gone)
        names = self.staying(gone - {site})
        listed = self.links is not None or self._hub(gone - {site}) is not None
        if listed or len(around) <= MOST_LISTENERS:
            return around
        place = names.index(site)
        size = len(names)
        distances = [sign << power for power in range(size.bit_length()) for sign in (1, -1)]
        few = {names[(place + distance) % size] for distance in distances} - {site}
        return tuple(sorted(few))

    def towards(self, site: str, other: str, gone: frozenset[str]) -> str:
        """Return the neighbour by which a site reaches another member, or the member if linked."""
        left = gone - {site, other}
        if self.links is None:
            hub = self._hub(left)
            return other if hub in (None, site) else hub
        graph = self._graphs(left)
        return other if graph.has_edge(site, other) else nx.shortest_path(graph, site, other)[1]


def _graph(
    members: tuple[str, ...], links: tuple[tuple[str, str], ...], gone: frozenset[str]
) -> nx.Graph:
    """Return the graph of those that stay, where the neighbours of each that is gone are linked."""
    graph = nx.Graph(links)
    graph.add_nodes_from(members)
    for site in sorted(gone & set(members)):
        around = sorted(graph.neighbors(site))
        graph.remove_node(site)
        graph.add_edges_from((a, b) for a in around for b in around if a < b)
    return graph


def _key_of(text: str, place: str) -> PublicKey:
    with within(place):
        return PublicKey.of(text)
