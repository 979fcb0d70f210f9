"""Sites as they come, a few or a batch at a time: checked, and laid down as rows of tables."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from posterity.arrays.canonical import content_hashes
from posterity.arrays.stacks import unstacked
from posterity.arrays.tree import map_leaves
from posterity.arrays.typing import Bool, Float, Int, Num
from posterity.artifact.aligned import coordinates_in, labels_in, listed, named, ordered
from posterity.artifact.columns import unnamed
from posterity.artifact.many import Alone, Several, name_of, read_alone, read_many
from posterity.artifact.recipes import KEY, check_same
from posterity.checks import check_adds, check_proper
from posterity.errors import ParameterError, StructureError
from posterity.families import ExponentialFamily, Plate, at_rest, stack
from posterity.families.names import Names
from posterity.fusion.blocks import UNUSED, Block, Plates, side_by_side
from posterity.fusion.common_prior import CommonTotal, common_total, one_member, unlike
from posterity.fusion.geometry import Divergence
from posterity.fusion.given import warn_of_names
from posterity.fusion.networks.intake import without_networks
from posterity.fusion.passes import Layout
from posterity.fusion.paths import blocks
from posterity.fusion.refusals import (
    check_enough,
    check_held,
    check_priors_known,
    check_streams,
    counted_twice,
    twice,
    warn_of_copies,
)
from posterity.fusion.samples import HASH, site_digests
from posterity.fusion.sites import Site, _check_structure
from posterity.fusion.sources import Item
from posterity.fusion.tables import Room, Table
from posterity.ledger import Ledger

Array = np.ndarray
Law = TypeVar("Law", bound=Any)
BARE = 4
"""Sites without a prior that are remembered: an error names three."""
TOGETHER = 512
"""Single sites that are checked and laid down at a time."""


class Slab(NamedTuple):
    """What some sites say of one block: a row of components (N,), one site after the other.

    ``counts`` are expected observations, ``concentrations`` those of the prior over all components
    of a site; None without mixing weights.
    """

    members: ExponentialFamily
    sizes: Int[Array, " sites"]
    used: Bool[Array, " n"]
    counts: Float[Array, " n"] | None
    concentrations: Float[Array, " sites"] | None


class Column:
    """One block of all sites: a table of the components that have seen data.

    Attributes:
        like: the block of the first site.
        layout: what is in which column of the table.
        keys: digests of the sites' contents.
        sizes: components of each site, with those that have seen no data.
        used: which have.
        concentrations: of each site's prior over mixing weights.
        priors: of one component, all that are different; none where they are not asked for.
        own: which of them is each site's.
    """

    def __init__(self, path: str, like: ExponentialFamily, divergence: Divergence, room: Room):
        without_networks([like], None, None)
        self.path, self.like = path, like
        self.priors: list[ExponentialFamily] = []
        self._rows: dict[bytes, int] = {}
        self._own: list[Array] = []
        self.weighted = isinstance(like, Plate) and like.weights is not None
        template = like.members[:1] if isinstance(like, Plate) else stack([like])
        self.layout = Layout(template, divergence, self.weighted)
        self.table = Table(self.layout.width, room)
        self._parts: list[tuple[Array, Array, Array, Array]] = []

    def add(self, slab: Slab, names: Sequence[str]) -> None:
        """More sites; a UsageError unless every one has components that have seen data."""
        site = np.repeat(np.arange(len(names)), slab.sizes)
        held = np.bincount(site[slab.used], minlength=len(names))
        check_held([names[index] for index in np.flatnonzero(held == 0).tolist()], self.place)
        natural = slab.members.natural_parameters[slab.used]
        rows = np.zeros((len(natural), self.layout.width))
        rows[:, : self.layout.dim] = natural
        hashes = content_hashes(natural)
        rows[:, HASH] = hashes.view(float)
        keys = site_digests(hashes, held)
        if slab.counts is not None:
            rows[:, self.layout.counts] = slab.counts[slab.used]
        self.table.append(rows, held)
        known = np.asarray(slab.concentrations if slab.concentrations is not None else [], float)
        self._parts.append((keys, slab.sizes.astype(np.int32), slab.used, known))

    def close(self) -> None:
        """Nothing more will be added."""
        self.table.close()
        parts = zip(*self._parts, strict=True)
        self.keys, self.sizes, self.used, self.concentrations = map(np.concatenate, parts)
        self._parts, self._rows = [], {}
        self.own = np.concatenate([np.zeros(0, np.int32), *self._own])

    def note_priors(self, names: Sequence[str], priors: Sequence[Any]) -> None:
        """What the same sites started from: one prior each, or one for all of them."""
        seen: dict[int, int] = {}
        for prior, name in zip(priors, names, strict=False):
            if id(prior) not in seen:
                one = one_member(prior, f"site {name!r}") if self.plate else prior
                row = one.natural_parameters
                seen[id(prior)] = self._rows.setdefault(row.tobytes(), len(self._rows))
                if seen[id(prior)] == len(self.priors):
                    self.priors.append(one)
        own = np.array([seen[id(prior)] for prior in priors], np.int32)
        self._own.append(np.broadcast_to(own, len(names)))

    def prior_rows(self) -> Float[Array, "priors dim"]:
        """Natural parameters of the different priors."""
        return stack(self.priors).natural_parameters

    def common_prior(self, given: Any) -> ExponentialFamily:
        """The prior of one component that is counted once: the given one, or all sites' average."""
        if given is not None:
            return one_member(given, "the prior") if self.plate else given
        if len(self.priors) == 1:
            return self.priors[0]
        share = np.bincount(self.own) / len(self.own)
        return self.priors[0].with_natural_parameters(share @ self.prior_rows())

    def others(self, given: Any) -> tuple[Bool[Array, " sites"], Bool[Array, " sites"]]:
        """Which sites started from another prior of one component, or over mixing weights."""
        members = unlike(stack(self.priors), self.common_prior(given))[self.own]
        known = self.weighted
        return members, self.common_total(given).others if known else np.zeros_like(members)

    def common_total(
        self, given: Any = None, importance: Float[Array, " sites"] | None = None
    ) -> CommonTotal:
        """The prior concentration of mixing weights over all components together."""
        weights = None if given is None else given.weights
        return common_total(self.concentrations, weights, importance)

    @property
    def place(self) -> str:
        """For error messages: which block."""
        return f" in block {self.path!r}" if self.path else ""

    @property
    def plate(self) -> bool:
        """Whether there is something to match."""
        return isinstance(self.like, Plate)


class Intake:
    """All sites, once they have been read.

    Attributes:
        names: of the sites, in the order in which they came.
        like: the posterior of the first.
        columns: what all say, by block.
        bare: the first sites without a prior.
        contributors: by the name of each whose data a ledger holds, the site that brought it.
        prior: of the first site, if it is known.
        coordinates: the names of coordinates of the first site that has them; all are brought into
            this order, and laid down without names.
    """

    def __init__(
        self,
        prior: ExponentialFamily | None,
        divergence: Divergence,
        room: Room,
        *,
        every: bool,
        product: bool,
    ):
        self.names: list[str] = []
        self.columns: dict[str, Column] = {}
        self.like: Any = None
        self.prior: ExponentialFamily | None = None
        self.bare: list[str] = []
        self.contributors: dict[str, str] = {}
        self.coordinates: Names = coordinates_in(prior)
        self._given = None if prior is None else named(at_rest(prior), {})
        self._divergence, self._room, self._every = divergence, room, every
        self._product = product
        self._known: set[str] = set()
        self._ledgers: set[str] = set()
        self._first = "the prior"
        self._unnamed: list[str] = []
        self._labelled = False
        self._recipe: dict[str, dict[str, str]] = {}

    # --- what comes ------------------------------------------------------------------------------

    def read(self, items: Iterable[Item]) -> None:
        """All sites, with their names where they have one.

        Raises:
            UsageError, StructureError, ParameterError, ArtifactError: as :func:`fuse`.
        """
        waiting: dict[str, Site] = {}
        for name, value in read_together(items):
            many = isinstance(value, Several) or (
                isinstance(value, ExponentialFamily) and bool(value.batch_shape)
            )
            if many or len(waiting) == TOGETHER:
                self._lay_sites(waiting)
                waiting = {}
            if many:
                self._lay_batch(value)
            else:
                site, own = self._single(name, value)
                waiting[own] = site
        self._lay_sites(waiting)
        check_enough(len(self.names))
        for column in self.columns.values():
            column.close()
        if self.coordinates and self._unnamed:
            for line in unnamed(dict.fromkeys(self._unnamed, ()), listed(self.coordinates)):
                warnings.warn(line, stacklevel=5)

    def _single(self, name: str | None, value: Any) -> tuple[Site, str]:
        if isinstance(value, Alone):
            name, value, _, about = value
            self._check_recipe(name, about)
        own = name_of(value.sites) if isinstance(value, Ledger) else ""
        name = name if name is not None else own or f"site-{len(self._known):04d}"
        self._enrol(name)
        site = unchecked(name, self._ordered(name, value))
        self._note_contributors(name, site.contributors)
        return site, name

    def _ordered(self, name: str, value: Law) -> Law:
        """In the order of the first that names its coordinates, and without names."""
        own = coordinates_in(value)
        if not self._labelled and labels_in(value):
            self._labelled = True
            warn_of_names("sites are read in passes, which match members by what they say")
        if own and not self.coordinates:
            self.coordinates, self._first = own, repr(name)
        if not own and len(self._unnamed) < BARE and name not in self._unnamed:
            self._unnamed.append(name)
        return named(ordered(named(value, own), self.coordinates, repr(name), self._first), {})

    def _check_recipe(self, name: str, provenance: dict[str, str]) -> None:
        """Refuse what was fitted by other flags than the first that says by which."""
        if KEY in provenance:
            self._recipe = self._recipe or {name: provenance}
            check_same({**self._recipe, name: provenance})

    def _note_contributors(self, name: str, contributors: Sequence[str]) -> None:
        """Refuse data of one site in two ledgers, which a product would count twice."""
        for contributor in contributors:
            self._ledgers.add(name)
            other = self.contributors.setdefault(contributor, name)
            if self._product and other != name:
                raise counted_twice(f"data of site {contributor!r}", other, name)

    def _enrol(self, name: str) -> None:
        if name in self._known:
            raise twice(name)
        self._known.add(name)

    def check_counted_once(self) -> None:
        """Refuse sites without a prior, and copies; warn of those that ledgers tell apart."""
        check_priors_known(self.bare)
        keys = self.keys
        order = np.argsort(keys, kind="stable")
        for at in np.flatnonzero(keys[order][1:] == keys[order][:-1]):
            twin, name = sorted((self.names[order[at]], self.names[order[at + 1]]))
            if not {twin, name} & self._ledgers:
                raise counted_twice("the same posterior", twin, name)
            warn_of_copies(twin, name, stacklevel=5)

    @property
    def keys(self) -> Num[Array, " sites"]:
        """Digests of all that each site says."""
        keys = np.zeros(len(self.names), np.uint64)
        for column in self.columns.values():
            keys = keys * np.uint64(3) + column.keys
        return keys

    # --- what is laid down -----------------------------------------------------------------------

    def _lay_sites(self, sites: dict[str, Site]) -> None:
        """Sites of their own."""
        if not sites:
            return
        if self._given is not None:
            sites = {n: s if s.prior else s._replace(prior=self._given) for n, s in sites.items()}
        self._begin(*next(iter(sites.items())))
        _check_structure({self._expected[0]: self._expected[1], **sites}, None)
        self._note_bare([name for name, site in sites.items() if site.prior is None])
        with _named_where_improper(
            list(sites), [site.posterior for site in sites.values()].__getitem__
        ):
            for block in side_by_side(sites):
                self._lay(block.path, slab_of(block), block.names, block.priors)
        self.names += sites

    def _lay_batch(self, batch: ExponentialFamily | Several) -> None:
        """Sites of one size, as a batch."""
        names, prior = [], self._given
        if isinstance(batch, Several):
            self._check_recipe(batch.names[0], batch.provenance)
            names, prior, batch = batch.names, batch.prior or prior, batch.posterior
        first = names[0] if names else f"site-{len(self._known):04d}"
        if prior is not self._given:
            prior = self._ordered(first, prior)
        batch, contributors = at_rest(self._ordered(first, batch)), names
        count, known = check_batch(batch, bool(names)), len(self._known)
        names = names or [f"site-{known + index:04d}" for index in range(count)]
        for name in names:
            self._enrol(name)
        for name in contributors if prior is not self._given else ():
            self._note_contributors(name, [name])
        one = Site(batch[0], prior)
        self._begin(names[0], one)
        _check_structure(dict([self._expected, (names[0], one)]), None)
        self._note_bare(names[:BARE] if prior is None else [])
        priors = {} if prior is None else blocks(prior)
        with _named_where_improper(names, batch.__getitem__):
            for path, block in blocks(batch).items():
                own = priors.get(path)
                self._lay(path, slab_of_batch(block, own), names, [own])
        self.names += names

    def _begin(self, name: str, site: Site) -> None:
        if not self.columns:
            _check_structure({name: site}, self._given)
            self.like, self.prior = site.posterior, site.prior
            self._expected = (name, Site(site.posterior, None))
            for path, like in blocks(site.posterior).items():
                check_streams(like)
                self.columns[path] = Column(path, like, self._divergence, self._room)

    def _note_bare(self, names: Sequence[str]) -> None:
        self.bare += names[: BARE - len(self.bare)]

    def _lay(self, path: str, slab: Slab, names: Sequence[str], priors: Sequence[Any]) -> None:
        column = self.columns[path]
        if self._every:
            slab = slab._replace(used=np.ones(len(slab.used), bool))
        column.add(slab, names)
        if self._product and None not in priors:
            column.note_priors(names, priors)


# --- one block of some sites ---------------------------------------------------------------------


def slab_of(block: Block) -> Slab:
    """That of sites that are each their own object."""
    if not isinstance(block, Plates):
        ones = np.ones(len(block.names), int)
        members = stack(block.posteriors)
        check_proper(members, "these sites")
        return Slab(members, ones, ones > 0, None, None)
    check_proper(block.members, "these sites")
    if not block.weighted:
        return Slab(block.members, block.sizes, block.used, None, None)
    weights = [weights for weights, _ in block.weights]
    for law in [stack(weights)] if len(set(block.sizes)) == 1 else weights:
        check_proper(law, "these sites")
    return Slab(block.members, block.sizes, block.used, block.counts, block.concentrations)


def slab_of_batch(batch: ExponentialFamily, prior: ExponentialFamily | None) -> Slab:
    """That of sites that are one batch (J,)."""
    check_proper(batch, "these sites")
    count = batch.batch_shape[0]
    if not isinstance(batch, Plate):
        return Slab(batch, np.ones(count, int), np.ones(count, bool), None, None)
    members = map_leaves(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch.members)
    sizes = np.full(count, batch.size)
    if batch.weights is None:
        return Slab(members, sizes, np.ones(sizes.sum(), bool), None, None)
    law = prior.weights if isinstance(prior, Plate) else None
    counts = batch.weights.counts(law).reshape(-1)
    shown = batch.weights.shows_prior
    totals = [w.total(law) for w in unstacked(batch.weights if shown else batch.weights[:1])]
    used = (counts >= UNUSED) | (not shown and law is None)
    known = np.array(totals * (1 if shown else count), float)
    return Slab(members, sizes, used, counts, known)


def read_together(items: Iterable[Item]) -> Iterator[Item]:
    """The same, with files read; those without names of their own many at a time."""
    paths: list[str] = []
    for name, value in items:
        alone = not isinstance(value, str | os.PathLike)
        if alone or name is not None or len(paths) == TOGETHER:
            yield from ((None, found) for found in read_many(paths))
            paths = []
        if alone:
            yield name, value
        elif name is None:
            paths.append(os.fspath(value))
        else:
            yield name, read_alone(os.fspath(value), name)
    yield from ((None, found) for found in read_many(paths))


def check_batch(batch: ExponentialFamily, named: bool = False) -> int:
    """The number of sites in a batch that stands for some; if they are ``named`` it does.

    Raises:
        StructureError: if it might as well be one site's components.
    """
    plates = any(isinstance(block, Plate) for block in blocks(batch).values())
    if len(batch.batch_shape) != 1 or not (plates or named):
        raise StructureError(
            found=f"a batch of shape {batch.batch_shape} of {batch!r}",
            expected="one posterior a site, or a batch (sites,) of posteriors with plates",
            fix="If the batch is of exchangeable components, wrap it: posterity.Plate(batch).",
        )
    return batch.batch_shape[0]


def unchecked(name: str, value: Any) -> Site:
    """What a site brings, but for whether its parameters are proper, which is checked together."""
    if isinstance(value, Ledger):
        return Site(value.total, value.prior, value.sites)
    check_adds(value, f"site {name!r}")
    return Site(at_rest(value), None)


@contextlib.contextmanager
def _named_where_improper(names: Sequence[str], posterior: Callable[[int], Any]) -> Iterator[None]:
    """If one of many that were checked together is no distribution, the error names its site."""
    try:
        yield
    except ParameterError:
        for index, name in enumerate(names):
            check_proper(posterior(index), f"site {name!r}")
        raise
