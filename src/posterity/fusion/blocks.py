"""One block of the posteriors of all sites, with all components in one batch."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from posterity.arrays.canonical import canonical_mean
from posterity.arrays.stacks import unstacked
from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.typing import Bool, Float, Int
from posterity.errors import StructureError, UsageError, within
from posterity.families import ExponentialFamily, HiddenMarkov, concatenate, stack
from posterity.families.emitting import MixingWeights
from posterity.families.names import joined, some
from posterity.fusion.geometry import middle, moved, opposite
from posterity.ledger import Ledger

Array = np.ndarray
SAME = 1e-12  # Relative tolerance up to which priors are one
UNUSED = 1.0  # Expected observations below which a component is nearly its prior and is not matched


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
    """Return a posterior with the products of ``like`` and the blocks of ``own``, by path."""
    parts = like.independent_blocks()
    if not parts:
        return own[path]
    blocks = [assembled(block, own, joined(path, name)) for name, block in parts.items()]
    return like.rebuild(blocks)  # pyright: ignore[reportAttributeAccessIssue]


def picked(members: ExponentialFamily, rows: Int[Array, " some"]) -> ExponentialFamily:
    """Return the members at these ascending rows; if these are all, without a copy."""
    return members if len(rows) == members.batch_shape[0] else members[rows]


class MemberPriors:
    """The priors of the components of each site. ``laws`` has each distinct prior once: of one
    component or, if priors differ within a site, as a batch. ``own`` (J,) is the index of each
    site's prior, or -1 if it is unknown.
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
        """Append the priors of further sites."""
        place = np.array([*map(self._place, more.laws), -1], np.int32)
        self.own = np.concatenate([self.own, place[more.own]])

    def take(self, sites: Int[Array, " some"]) -> "MemberPriors":
        """Return the priors of some of the sites."""
        some = MemberPriors()
        some.laws = self.laws
        some.own = self.own[sites]
        return some

    @property
    def exchangeable(self) -> Bool[Array, " sites"]:
        """Mask of sites whose prior is known, and the same for all components."""
        return np.array([*(not law.batch_shape for law in self.laws), False])[self.own]

    @property
    def differ(self) -> bool:
        """True if priors differ by more than rounding, within or between sites, or some are
        unknown.
        """
        return not self.exchangeable.all() or bool(common_prior(stack(self.laws))[1].any())

    def each(self, names: Sequence[str]) -> ExponentialFamily:
        """Return the prior of one component at each site, as a batch (J,). Raise a StructureError
        that names a site whose prior differs between components or is unknown.
        """
        if not self.exchangeable.all():
            site = int(np.flatnonzero(~self.exchangeable)[0])
            raise differing_members(f"site {names[site]!r}")
        return stack(self.laws)[self.own]

    def at(self, sites: Int[Array, " n"]) -> ExponentialFamily:
        """Return the priors (n,) of components at these sites, which are all exchangeable."""
        used, place = np.unique(self.own[sites], return_inverse=True)
        return stack([self.laws[index] for index in used.tolist()])[place]


def common_prior(
    priors: ExponentialFamily, prior: ExponentialFamily | None = None
) -> tuple[ExponentialFamily, Bool[Array, " sites"]]:
    """Return the prior that is counted once, and a mask of sites whose prior differs from it by
    more than rounding.

    It is ``prior``, or by default the average of all sites' priors (J,) in natural parameters,
    which is exactly the common prior, if there is one, and independent of the order of sites.
    """

    def mean(leaf):
        return np.where((leaf == leaf[:1]).all(0), leaf[0], canonical_mean(leaf))

    common = map_leaves(mean, priors) if prior is None else prior
    others = np.zeros(priors.batch_shape, bool)
    for leaf, mine in zip(leaves(priors), leaves(common), strict=True):
        close = np.isclose(leaf, mine, rtol=SAME, atol=SAME * float(np.abs(mine).max(initial=0.0)))
        others |= ~close.reshape(len(others), -1).all(1)
    return common, others


def one_member(prior: Any) -> ExponentialFamily:
    """Return the prior of one component, from the prior of a plate or of a plain block."""
    if not prior.is_plate:
        return prior
    if not _alike(prior.members):
        raise differing_members("the prior")
    return prior.members[0]


def differing_members(place: str) -> StructureError:
    """Return the error for components of one plate with different priors."""
    return StructureError(
        found=f"members that differ in the prior, at {place}",
        expected="exchangeable members: one prior for all of a plate, or rule='barycenter'",
    )


def _alike(members: ExponentialFamily) -> bool:
    return not any((leaf != leaf[:1]).any() for leaf in leaves(members))


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of the posteriors of J sites, with N components in all: one per site, or a plate.

    Attributes:
        path: path of the block, ``""`` for posteriors without blocks.
        names: names of the sites.
        like: block of the first site.
        members: all components (N,), site by site.
        sizes: number of components (J,) of each site.
        counts: expected observations (N,); ones without mixing weights.
        used: whether each component (N,) has seen data; True if that is unknown.
        concentrations: total concentration (J,) of the prior over mixing weights; zero if unknown.
        priors: priors of the components.
        origin: origin to which members are relative, None for zero.
        first: index of the first site among all sites.
        regions: ledgers of several sites, by index in this block.
        whole, whole_priors: for blocks that share labels, which are matched as plates, the whole
            posteriors, and their priors with as many labels.
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
        """Make it from the block of each site, and its prior if known; raise a StructureError if a
        prior over mixing weights differs between components.
        """
        like: Any = posteriors[0]
        plates = posteriors
        own = np.ones(len(names), int)
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
        """Make it from a batch (J,) of the sites' blocks, and their common prior, if known."""
        like = batch[0]
        own = np.ones(len(names), int)
        priors = [prior] * len(names)
        if not batch.is_plate:
            return cls._laid(path, names, like, batch, own, priors)
        members = map_leaves(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch.members)
        weights = batch.weights
        sizes = own * batch.size
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
        """Make it, with ``seen`` from mixing weights: counts (n,), whether these show which
        components have data (J,), and total concentrations (J,).
        """
        many = len(names)
        counts, shown, totals = seen or (np.ones(sizes.sum()), np.ones(many, bool), np.zeros(many))
        used = (counts >= UNUSED) | ~np.repeat(shown, sizes)
        return cls(path, names, like, members, sizes, counts, used, totals, MemberPriors(priors))

    @property
    def plate(self) -> bool:
        """True if there are components to match."""
        return self.like.is_plate

    @property
    def weighted(self) -> bool:
        """True if there are posteriors over mixing weights."""
        like: Any = self.like
        return like.is_plate and like.weights is not None

    @functools.cached_property
    def site(self) -> Int[Array, " n"]:
        """The site of each component, by its index in this block."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def place(self) -> str:
        """The name of the block for messages."""
        return f" in block {self.path!r}" if self.path else ""

    @functools.cached_property
    def held(self) -> Float[Array, " n"]:
        """The number of sites that have each component: one, or, without mixing weights, the number
        of sites with it in a region's ledger.
        """
        held = np.ones(len(self.site))
        for index, ledger in {} if self.weighted else self.regions.items():
            factors: list[Any] = [blocks(ledger.factor(name))[self.path] for name in ledger.sites]
            natural = np.array([own.members.natural_parameters for own in factors])
            held[self.site == index] = np.maximum((natural != 0).any(-1).sum(0), 1)
        return held

    @functools.cached_property
    def population(self) -> ExponentialFamily:
        """The :func:`population` of the components that have seen data."""
        return population(self.members[self.used], self.counts[self.used], self.priors)

    def at_components(self, of_sites: Float[Array, " all"]) -> Float[Array, " n"]:
        """Return, for each component, the value of its site, from values of all sites."""
        return of_sites[self.first + self.site]

    def pieces(self, labels: Array) -> Iterator[tuple["Block", Array]]:
        """Yield the block itself, with the labels: it is one piece."""
        yield self, labels

    def by_site(self, values: Array) -> Mapping[str, Array]:
        """Return the values of the components (N,), by site."""
        ends = np.cumsum(self.sizes).tolist()
        pieces = map(values.__getitem__, map(slice, [0, *ends[:-1]], ends))
        return dict(zip(self.names, pieces, strict=True))


def population(
    members: ExponentialFamily, counts: Float[Array, " n"], priors: MemberPriors, few: int = 3
) -> ExponentialFamily:
    """Return the law (1,) from which normal components are drawn: the member with the least summed
    ``KL(component || .)`` to all of them, without those with fewer observations than parameters, if
    at least a ``few`` are left.

    Its location is as uncertain as in the sites' priors, if they are known, since few clusters do
    not determine it.
    """
    some = counts >= members.degrees_of_variation
    if some.sum() < few:
        some = counts >= np.sort(counts)[-max(few, len(counts) // 2) :][0]
    origin = middle(members[some])
    laws = moved(members[some], origin)
    found = laws[:1].with_mean_parameters(canonical_mean(laws.mean_parameters)[None])
    here = found.location()
    starts = [law for law in priors.laws if not law.batch_shape]
    own: Any = moved(found, here)
    known = [own.mean_precision, *(law.mean_precision[None] for law in starts)]  # pyright: ignore
    known = np.min(known, axis=0)
    found = moved(type(own)(known, own.degrees, own.precision_mean, own.scatter), opposite(here))
    return moved(found, opposite(origin))


def check_seen(block: Any, used: Bool[Array, " n"]) -> None:
    """Raise a UsageError if a site of a block has no component that is used."""
    seen = block.sizes > 0
    starts = (np.cumsum(block.sizes) - block.sizes)[seen]
    seen[seen] = np.logical_or.reduceat(used, starts)
    empty = np.flatnonzero(~seen).tolist()
    if empty:
        raise UsageError(
            found="no component with at least one observation at "
            f"{some([block.names[site] for site in empty], 3)}{block.place}",
            expected="at least one component that has seen data at every site",
        )


def _total(weights: MixingWeights, prior: MixingWeights | None, name: str) -> float:
    with within(f"site {name!r}"):
        return weights.total(prior)


def resized(prior: HiddenMarkov, labels: int) -> HiddenMarkov:
    """Return the same prior with another number of labels."""
    spread = prior.spread()  # raises if the prior differs between labels
    if prior.states == labels:
        return prior
    return type(prior).exchangeable(prior.as_plate(prior).members[0], spread, labels)


def side_by_side(
    names: Sequence[str],
    posteriors: Sequence[ExponentialFamily],
    priors: Sequence[ExponentialFamily | None],
) -> dict[str, Block]:
    """Return the blocks of all sites, by path, for posteriors of one structure. Priors of shared
    labels keep their concentrations with another number of labels.
    """
    own: list[Any] = [blocks(posterior) for posterior in posteriors]
    known: list[Any] = [{} if prior is None else blocks(prior) for prior in priors]
    laid = {}
    for path, like in own[0].items():
        laws = [q[path] for q in own]
        starts = [p.get(path) for p in known]
        if not like.is_tied:
            laid[path] = Block.of_sites(path, names, laws, starts)
            continue
        for index, (name, q) in enumerate(zip(names, laws, strict=True)):
            with within(f"site {name!r}"):
                starts[index] = starts[index] and resized(starts[index], q.states)
        plates = [q.as_plate(p) for q, p in zip(laws, starts, strict=True)]
        block = Block.of_sites(path, names, plates, [p and p.as_plate(p) for p in starts])
        laid[path] = dataclasses.replace(block, whole=laws, whole_priors=starts)
    return laid
