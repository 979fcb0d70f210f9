"""One block of the posteriors of all sites, side by side."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from posterity.arrays.stacks import unstacked
from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.typing import Bool, Float, Int
from posterity.errors import StructureError, UsageError
from posterity.families import ExponentialFamily, HiddenMarkov, concatenate, stack
from posterity.families.emitting import MixingWeights
from posterity.families.names import joined
from posterity.ledger import Ledger

Array = np.ndarray
SAME = 1e-12  # Priors that agree to so many digits were meant to be one
UNUSED = 1.0
"""A component with less than one expected observation is its prior, and matches nothing."""


def blocks(posterior: ExponentialFamily, path: str = "") -> dict[str, ExponentialFamily]:
    """Return the blocks in a posterior's products, by path; ``""`` is the posterior itself. A
    product whose blocks share labels is one block.
    """
    parts = posterior.independent_blocks()
    inner = (blocks(block, joined(path, name)) for name, block in parts.items())
    return {at: block for own in inner for at, block in own.items()} if parts else {path: posterior}


def assembled(
    like: ExponentialFamily, own: Mapping[str, ExponentialFamily], path: str = ""
) -> ExponentialFamily:
    """A posterior of the same products, with its ``own`` blocks by path."""
    if not (parts := like.independent_blocks()):
        return own[path]
    blocks = [assembled(block, own, joined(path, name)) for name, block in parts.items()]
    return like.rebuild(blocks)  # pyright: ignore[reportAttributeAccessIssue]


def picked(members: ExponentialFamily, rows: Int[Array, " some"]) -> ExponentialFamily:
    """The members at these rows, which rise: themselves, without a copy, where that is all."""
    return members if len(rows) == members.batch_shape[0] else members[rows]


class MemberPriors:
    """The priors of the components of each site: every different one once in ``laws``, as those of
    one component or, where the components of a site started from priors that differ, as a batch;
    ``own`` (J,) has which of them is each site's, -1 where it is not known.
    """

    def __init__(self, priors: Sequence[ExponentialFamily | None] = ()):
        self.laws: list[ExponentialFamily] = []
        self._places: dict[bytes, int] = {}
        seen: dict[int, int] = {id(None): -1}
        for prior in priors:
            if id(prior) not in seen:
                seen[id(prior)] = self._place(prior)  # pyright: ignore[reportArgumentType]
        self.own: Array = np.array([seen[id(prior)] for prior in priors], np.int32)

    def _place(self, prior: Any) -> int:
        law = prior
        if prior.is_plate:
            law = prior.members[0] if _alike(prior.members) else prior.members
        key = b"".join(np.asarray(leaf).tobytes() for leaf in leaves(law))
        place = self._places.setdefault(key, len(self.laws))
        if place == len(self.laws):
            self.laws.append(law)
        return place

    def extend(self, more: "MemberPriors") -> None:
        """Append those of further sites."""
        place = np.array([*map(self._place, more.laws), -1], np.int32)
        self.own = np.concatenate([self.own, place[more.own]])

    def take(self, sites: Int[Array, " some"]) -> "MemberPriors":
        """Return the blocks of some of the sites."""
        some = MemberPriors()
        some.laws, some.own = self.laws, self.own[sites]
        return some

    @property
    def exchangeable(self) -> Bool[Array, " sites"]:
        """True where a site's prior is known, and the same for all of its components."""
        return np.array([*(not law.batch_shape for law in self.laws), False])[self.own]

    @property
    def differ(self) -> bool:
        """Return whether there are several priors, beyond rounding, at one site or at different
        ones.
        """
        first = leaves(self.laws[0]) if self.exchangeable.all() else []
        others = [own for law in self.laws[1:] for own in zip(leaves(law), first, strict=True)]
        close = lambda a, b: np.allclose(a, b, rtol=SAME, atol=SAME * np.abs(b).max(initial=0.0))
        return not first or not all(close(np.asarray(a), np.asarray(b)) for a, b in others)

    def each(self, names: Sequence[str]) -> ExponentialFamily:
        """The prior of one component at each site, as a batch (J,); all are known. A StructureError
        names a site whose components started from priors that differ.
        """
        if not self.exchangeable.all():
            site = int(np.flatnonzero(~self.exchangeable)[0])
            raise differing_members(f"site {names[site]!r}")
        return stack(self.laws)[self.own]

    def at(self, sites: Int[Array, " n"]) -> ExponentialFamily:
        """The priors (n,) of components at these sites, which are all exchangeable."""
        used, place = np.unique(self.own[sites], return_inverse=True)
        return stack([self.laws[index] for index in used.tolist()])[place]


def one_member(prior: Any) -> ExponentialFamily:
    """The prior of one component, of a prior for a plate or for a plain block."""
    if not prior.is_plate:
        return prior
    if not _alike(prior.members):
        raise differing_members("the prior")
    return prior.members[0]


def differing_members(place: str) -> StructureError:
    """The error for components of one plate that started from different priors."""
    return StructureError(
        found=f"members that differ in the prior, at {place}",
        expected="exchangeable members: one prior for all components of a plate",
        fix="Use one prior for all components, or rule='barycenter'.",
    )


def _alike(members: ExponentialFamily) -> bool:
    return not any((leaf != leaf[:1]).any() for leaf in leaves(members))


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of the posteriors of J sites, with N components in all: one a site, or a plate.

    Attributes:
        path: of the block, ``""`` where posteriors have no blocks.
        names: of the sites.
        like: the block of the first site.
        members: all components (N,), those of one site after those of another.
        sizes: (J,) components of each site.
        counts: (N,) expected observations; ones where there are no mixing weights.
        used: (N,) whether a component has seen data; all have where that is not known.
        concentrations: (J,) of the prior over mixing weights, all components together; zero where
            it is not known.
        priors: what components started from.
        origin: the place from which the members are seen, None for the origin itself.
        first: the index of the first site among all.
        regions: ledgers of several sites, by their index in this block.
        whole, whole_priors: of posteriors whose blocks share labels, which are matched in the
            plates of these, the posteriors themselves and priors of as many labels.
    """

    path: str
    names: Sequence[str]
    like: ExponentialFamily
    members: ExponentialFamily
    sizes: Int[Array, " sites"]
    counts: Float[Array, " n"]
    used: Bool[Array, " n"]
    concentrations: Float[Array, " sites"]
    priors: MemberPriors
    origin: Any = None
    first: int = 0
    whole: Sequence[HiddenMarkov] = ()
    whole_priors: Sequence[HiddenMarkov | None] = ()
    regions: Mapping[int, Ledger] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_sites(
        cls,
        path: str,
        names: Sequence[str],
        posteriors: Sequence[ExponentialFamily],
        priors: Sequence[ExponentialFamily | None],
    ) -> Self:
        """Make the blocks from that of each site, and its prior where that is known; a
        StructureError if a prior over mixing weights tells components apart.
        """
        like: Any = posteriors[0]
        plates, own = posteriors, np.ones(len(names), int)
        if not like.is_plate:
            return cls._laid(path, names, like, stack(posteriors), own, priors)
        members = concatenate([plate.members for plate in plates])  # pyright: ignore
        sizes = np.array([plate.size for plate in plates])  # pyright: ignore
        if like.weights is None:
            return cls._laid(path, names, like, members, sizes, priors)
        pairs = [(q.weights, p and p.weights) for q, p in zip(plates, priors, strict=True)]  # pyright: ignore
        counts = np.concatenate([weights.counts(prior) for weights, prior in pairs])
        shown = np.array([q.shows_prior or prior is not None for q, prior in pairs])
        totals = [_total(*pair, name) for pair, name in zip(pairs, names, strict=True)]
        seen = counts, shown, np.array(totals, float)
        return cls._laid(path, names, like, members, sizes, priors, seen)

    @classmethod
    def of_batch(
        cls, path: str, names: Sequence[str], batch: Any, prior: ExponentialFamily | None
    ) -> Self:
        """Make the blocks from those of sites as a batch (J,), which share a prior where one is
        known.
        """
        like, own, priors = batch[0], np.ones(len(names), int), [prior] * len(names)
        if not batch.is_plate:
            return cls._laid(path, names, like, batch, own, priors)
        members = map_leaves(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch.members)
        weights, sizes = batch.weights, own * batch.size
        if weights is None:
            return cls._laid(path, names, like, members, sizes, priors)
        law: Any = None if prior is None else prior.weights  # pyright: ignore
        some = unstacked(weights if weights.shows_prior else weights[:1])
        totals = np.array([_total(w, law, name) for w, name in zip(some, names, strict=False)])
        shown = np.full(len(names), weights.shows_prior or law is not None)
        seen = weights.counts(law).reshape(-1), shown, totals * np.ones(len(names))
        return cls._laid(path, names, like, members, sizes, priors, seen)

    @classmethod
    def _laid(
        cls,
        path: str,
        names: Sequence[str],
        like: ExponentialFamily,
        members: ExponentialFamily,
        sizes: Int[Array, " sites"],
        priors: Sequence[ExponentialFamily | None],
        seen: tuple[Array, Array, Array] | None = None,
    ) -> Self:
        """With what mixing weights say: counts (n,), where (J,) these tell what was seen,
        totals.
        """
        many = len(names)
        counts, shown, totals = seen or (np.ones(sizes.sum()), np.ones(many, bool), np.zeros(many))
        used = (counts >= UNUSED) | ~np.repeat(shown, sizes)
        return cls(path, names, like, members, sizes, counts, used, totals, MemberPriors(priors))

    @property
    def plate(self) -> bool:
        """True where there are components to match."""
        return self.like.is_plate

    @property
    def weighted(self) -> bool:
        """True where there are posteriors over mixing weights."""
        like: Any = self.like
        return like.is_plate and like.weights is not None

    @functools.cached_property
    def site(self) -> Int[Array, " n"]:
        """The site of each component, by its index in this block."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def place(self) -> str:
        """The name of a block for error messages."""
        return f" in block {self.path!r}" if self.path else ""

    @functools.cached_property
    def held(self) -> Float[Array, " n"]:
        """The number of sites that have each component, where mixing weights do not tell: one, or
        as many as there are in a region's ledger.
        """
        held = np.ones(len(self.site))
        for index, ledger in {} if self.weighted else self.regions.items():
            factors: list[Any] = [blocks(ledger.factor(name))[self.path] for name in ledger.sites]
            natural = np.array([own.members.natural_parameters for own in factors])
            held[self.site == index] = np.maximum((natural != 0).any(-1).sum(0), 1)
        return held

    def at_components(self, of_sites: Float[Array, " all"]) -> Float[Array, " n"]:
        """Numbers of all sites, for each component that of its site."""
        return of_sites[self.first + self.site]

    def pieces(self, labels: Array) -> Iterator[tuple["Block", Array]]:
        """The block itself: what is in memory is one piece."""
        yield self, labels

    def by_site(self, values: Array) -> Mapping[str, Array]:
        """The values of the components (N,), by site."""
        ends = np.cumsum(self.sizes).tolist()
        pieces = map(values.__getitem__, map(slice, [0, *ends[:-1]], ends))
        return dict(zip(self.names, pieces, strict=True))


def check_seen(block: Any, used: Bool[Array, " n"]) -> None:
    """Raise a UsageError if there are sites of a block none of whose components are used."""
    seen = block.sizes > 0
    starts = (np.cumsum(block.sizes) - block.sizes)[seen]
    seen[seen] = np.logical_or.reduceat(used, starts)
    empty = np.flatnonzero(~seen).tolist()
    if empty:
        more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        raise UsageError(
            found="no component with at least one observation at "
            f"{[block.names[site] for site in empty[:3]]}{more}{block.place}",
            expected="at least one component that has seen data at every site",
            fix="Leave the site out, or check its fit.",
        )


def _total(weights: MixingWeights, prior: MixingWeights | None, name: str) -> float:
    try:
        return weights.total(prior)
    except StructureError as error:
        raise error.at(f"site {name!r}") from error


def resized(prior: HiddenMarkov, labels: int) -> HiddenMarkov:
    """The same prior of so many labels."""
    spread = prior.spread()  # it tells no label apart, or raises
    if prior.states == labels:
        return prior
    return type(prior).exchangeable(prior.as_plate(prior).members[0], spread, labels)


def side_by_side(
    names: Sequence[str],
    posteriors: Sequence[ExponentialFamily],
    priors: Sequence[ExponentialFamily | None],
) -> dict[str, Block]:
    """The blocks of all sites, by path; their posteriors are of one structure. Priors of labels
    that blocks share keep their concentrations over another number of labels.
    """
    own: list[Any] = [blocks(posterior) for posterior in posteriors]
    known: list[Any] = [{} if prior is None else blocks(prior) for prior in priors]
    laid = {}
    for path, like in own[0].items():
        laws, starts = [q[path] for q in own], [p.get(path) for p in known]
        if not like.is_tied:
            laid[path] = Block.of_sites(path, names, laws, starts)
            continue
        for index, (name, q) in enumerate(zip(names, laws, strict=True)):
            try:
                starts[index] = starts[index] and resized(starts[index], q.states)
            except StructureError as error:
                raise error.at(f"site {name!r}") from error
        plates = [q.as_plate(p) for q, p in zip(laws, starts, strict=True)]
        block = Block.of_sites(path, names, plates, [p and p.as_plate(p) for p in starts])
        laid[path] = dataclasses.replace(block, whole=laws, whole_priors=starts)
    return laid
