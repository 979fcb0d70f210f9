"""The terms of a federation between organisations, which every member signs."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import networkx as nx

from posterity import fingerprint
from posterity.arguments import COUNT, POSITIVE, Constraint, one_of
from posterity.arrays.keys import seeded
from posterity.arrays.typing import KeyArray
from posterity.artifact.manifest import as_text
from posterity.engine.refusal import Refusal
from posterity.engine.signing import PublicKey
from posterity.entries import check_names
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.federation import Agreement, Gossip, step_key
from posterity.federation.remaining import TOLERANCE
from posterity.federation.schedules import Schedule
from posterity.federation.specification import build, imported, make_schedule

WALKS = one_of("gossip", "sequential")
"""Orders in which a token can walk in a federation without a server."""
MOST_LISTENERS = 8
"""Number of neighbours up to which all are sent what every member needs."""
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


@dataclasses.dataclass(frozen=True)
class Terms:
    """The terms of a federation: model and options, members, links, limits and schedule.

    ``members`` maps names to public keys; ``links`` are the pairs of members between whom the token
    may walk; ``seed`` determines all random numbers. A key in ``authorities`` may sign the
    tombstone of any member; a member may sign its own.

    Without a ``server`` a token walks by ``order``: "gossip" is a random walk over the links,
    "sequential" visits members in order of their names. A server asks the others by ``schedule``.
    ``steps`` is the maximum number of hops, passes or rounds of an epoch. An epoch ends earlier
    once less than ``tolerance`` nats are left to change, unless ``tolerance`` is None.
    """

    name: str
    agreement: Agreement
    members: Mapping[str, PublicKey]
    links: tuple[tuple[str, str], ...]
    limits: Limits = dataclasses.field(default_factory=Limits)
    seed: int = 0
    authorities: Mapping[str, PublicKey] = dataclasses.field(default_factory=dict)
    order: str = "gossip"
    schedule: Schedule | None = None
    server: str | None = None
    steps: int | None = None
    tolerance: float | None = TOLERANCE

    def __post_init__(self) -> None:
        NAME.check(name=self.name)
        check_names([*self.members, *self.authorities])
        if both := sorted(self.members.keys() & self.authorities):
            raise UsageError(
                found=f"{both[0]!r}, a member and an authority",
                expected="authorities that are not members",
                fix="Leave it out, since a member may always have itself forgotten, or rename it.",
            )
        graph = nx.Graph(self.links)
        graph.add_nodes_from(self.members)
        if set(graph) != set(self.members) or not self.members or not nx.is_connected(graph):
            raise UsageError(
                found=f"links {sorted(map(list, self.links))} of members {sorted(self.members)}",
                expected="links between members, by which each can be reached from each",
                fix="Link every member, and remove links to others.",
            )
        COUNT.or_none().check(steps=self.steps)
        POSITIVE.or_none().check(tolerance=self.tolerance)
        one_of(*sorted(self.members)).or_none().check(server=self.server)
        if self.server is None:
            WALKS.check(**{"schedule.kind": self.order})
        keys = [*self.members.values(), *self.authorities.values()]
        if len(set(keys)) < len(keys):
            raise UsageError(
                found="one public key for two members or authorities",
                expected="a different key for each",
                fix="Each site makes its own key, by `posterity site init`.",
            )

    @classmethod
    def of(
        cls,
        name: str,
        *,
        model: str,
        prior: ExponentialFamily,
        members: Mapping[str, str],
        links: list[list[str]] | None = None,
        update: str | None = None,
        model_options: Mapping[str, Any] | None = None,
        update_options: Mapping[str, Any] | None = None,
        personal: bool | Sequence[int | str] | Mapping[str, float] = False,
        own: Sequence[int | str] = (),
        padding: bool = True,
        total_weight: float | None = None,
        limits: Mapping[str, Any] | None = None,
        seed: int = 0,
        authorities: Mapping[str, str] | None = None,
        schedule: Mapping[str, Any] | None = None,
        server: str | None = None,
        steps: int | None = None,
        tolerance: float | None = None,
    ) -> Self:
        """Make the terms from plain values, as they stand in a configuration file.

        ``model`` and ``update`` are import paths, ``package.module:name``, of callables that are
        called with the options. Each of the ``members`` has its own copy of the coefficients in
        ``own``, so adding a member needs new terms. Without ``links`` every two members are linked,
        or each with the server if there is one. ``schedule`` has a ``kind`` and its options. With
        ``steps`` and no ``tolerance`` all steps are made; with neither, the tolerance is
        :data:`posterity.federation.remaining.TOLERANCE`. Raises a UsageError if a value is invalid
        or an import path fails, and a LedgerError if the names of two members look alike.
        """
        made = build(imported(model, "model.path"), model_options or {}, "model")
        rule = None
        if update is not None:
            rule = build(imported(update, "update.path"), update_options or {}, "update")
        options = {"personal": personal, "own": own, "padding": padding}
        options |= {"total_weight": total_weight}
        sites = list(members)
        agreement = Agreement.of(made, prior, rule, sites=sites, on_error="pass", **options)
        names, order = sorted(members), dict(schedule or {})
        kind = order.pop("kind", "gossip" if server is None else "sequential")
        made_by = None if server is None else make_schedule(kind, order, names)
        if server is None and order:
            raise UsageError(
                found=f"options {sorted(order)} in table [schedule]",
                expected="only a kind, for a walking token",
                fix="Leave them out; `links` determine where it walks.",
            )
        ends = [server] if server is not None and server in members else names
        pairs = links or [[one, other] for one in ends for other in names if one != other]
        linked = tuple(sorted({(min(pair), max(pair)) for pair in pairs}))
        return cls(
            name,
            agreement,
            members={site: _key_of(members[site], f"members.{site}") for site in names},
            links=linked,
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
        )

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the terms, equal in every process; each letter contains it."""
        document = {
            "name": self.name,
            "numbers": self.agreement.digest,
            "members": {site: str(key) for site, key in self.members.items()},
            "authorities": {name: str(key) for name, key in self.authorities.items()},
            "links": sorted(self.links),
            "limits": dataclasses.asdict(self.limits),
            "seed": self.seed,
            "order": self.order,
            "schedule": fingerprint.digest((type(self.schedule).__name__, self.schedule)),
            "server": self.server,
            "steps": self.steps,
            "tolerance": self.tolerance,
        }
        return hashlib.sha256(as_text(document).encode()).hexdigest()

    def neighbours(self, site: str, gone: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Return the members linked with a site after those that are ``gone`` were forgotten."""
        return tuple(sorted(self._graphs(gone - {site}).neighbors(site)))

    @functools.cached_property
    def _graphs(self) -> Callable[[frozenset[str]], nx.Graph]:
        left = functools.partial(_graph, tuple(self.members), self.links)
        return functools.lru_cache(maxsize=16)(left)

    @functools.cached_property
    def walk(self) -> Callable[[frozenset[str]], Gossip]:
        """A function from the members that are gone to the walk among those that stay."""
        return functools.lru_cache(maxsize=16)(lambda gone: Gossip(self._graphs(gone)))

    def staying(self, gone: frozenset[str]) -> tuple[str, ...]:
        """Return the names of the members that are not gone, sorted."""
        return tuple(sorted(self.members.keys() - gone))

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
        before = None if origin in gone else origin
        return self.walk(gone).hop(site, before, key=self.step_key(sequence, gone))

    def listeners(self, site: str, gone: frozenset[str]) -> tuple[str, ...]:
        """Return the members to whom a site forwards notices: all neighbours if they are few. If
        every two members are linked and there are many, they are those at distances of powers of
        two in the order of names, so that every notice still reaches all members in a few hops.
        """
        around, names = self.neighbours(site, gone), self.staying(gone - {site})
        pairs = len(names) * (len(names) - 1) // 2
        if len(around) <= MOST_LISTENERS or len(self._graphs(gone - {site}).edges) < pairs:
            return around
        place, size = names.index(site), len(names)
        distances = [sign << power for power in range(size.bit_length()) for sign in (1, -1)]
        few = {names[(place + distance) % size] for distance in distances} - {site}
        return tuple(sorted(few))

    def towards(self, site: str, other: str, gone: frozenset[str]) -> str:
        """Return the neighbour by which a site reaches another member, or the member if linked."""
        graph = self._graphs(gone - {site, other})
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
    try:
        return PublicKey.of(text)
    except Refusal as refusal:
        raise refusal.at(place) from refusal
