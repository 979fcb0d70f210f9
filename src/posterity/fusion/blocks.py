"""What all sites say of one block, side by side; plates laid out as one row of components."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np

from posterity.arrays.typing import Bool, Float, Int
from posterity.errors import StructureError
from posterity.families import ExponentialFamily, Plate, Tied, concatenate
from posterity.families.mixing import MixingWeights
from posterity.fusion.paths import blocks
from posterity.fusion.sites import Site

Array = np.ndarray
UNUSED = 1.0
"""A component with less than one expected observation is its prior, and matches nothing."""


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of every site's posterior, in the order of sites, with the priors that are known.

    ``path`` is ``""`` where posteriors have no blocks.
    """

    path: str
    names: list[str]
    posteriors: list[ExponentialFamily]
    priors: list[ExponentialFamily | None]

    @property
    def place(self) -> str:
        """For error messages: which block."""
        return f" in block {self.path!r}" if self.path else ""


@dataclasses.dataclass(frozen=True)
class Plates(Block):
    """The plates of a block: ``N`` components in all, those of one site after those of another."""

    posteriors: list[Plate]  # pyright: ignore[reportIncompatibleVariableOverride]
    priors: list[Plate | None]  # pyright: ignore[reportIncompatibleVariableOverride]

    @functools.cached_property
    def members(self) -> ExponentialFamily:
        """All components (N,)."""
        return concatenate([plate.members for plate in self.posteriors])

    @functools.cached_property
    def sizes(self) -> Int[Array, " sites"]:
        """The number of components of each site."""
        return np.array([plate.size for plate in self.posteriors])

    @functools.cached_property
    def site(self) -> Int[Array, " n"]:
        """The site of each component, by its index."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def weighted(self) -> bool:
        """Whether there are posteriors over mixing weights."""
        return self.posteriors[0].weights is not None

    @property
    def weights(self) -> list[tuple[MixingWeights, MixingWeights | None]]:
        """Each site's posterior over mixing weights, and its prior where that is known."""
        pairs = zip(self.posteriors, self.priors, strict=True)
        return [(q.weights, p and p.weights) for q, p in pairs]  # pyright: ignore

    @functools.cached_property
    def counts(self) -> Float[Array, " n"]:
        """Expected observations of each component; one each where there are no mixing weights."""
        if not self.weighted:
            return np.ones(len(self.site))
        return np.concatenate([weights.counts(prior) for weights, prior in self.weights])

    @functools.cached_property
    def concentrations(self) -> Float[Array, " sites"]:
        """The prior's concentration over all components together, by site; zero if not known.

        Raises:
            StructureError: a prior that tells components apart.
        """
        found = []
        for (weights, prior), name in zip(self.weights, self.names, strict=True):
            try:
                found.append(weights.total(prior))
            except StructureError as error:
                raise error.at(f"site {name!r}") from error
        return np.array(found, float)

    @property
    def used(self) -> Bool[Array, " n"]:
        """Whether a component has seen data; all have where that is not known."""
        if not self.weighted:
            return np.ones(len(self.site), bool)
        shown = np.array([q.shows_prior or prior is not None for q, prior in self.weights])
        return (self.counts >= UNUSED) | ~shown[self.site]

    def by_site(self, values: Array) -> dict[str, Array]:
        """What belongs to the components (N,) of each site."""
        pieces = np.split(values, np.cumsum(self.sizes)[:-1])
        return dict(zip(self.names, pieces, strict=True))


@dataclasses.dataclass(frozen=True)
class TiedPlates(Plates):
    """Posteriors whose blocks share labels, with the plates in which the labels are matched.

    ``whole`` and ``whole_priors`` are the posteriors themselves and priors of as many labels.
    """

    whole: list[Tied]
    whole_priors: list[Tied | None]

    @classmethod
    def of(
        cls, path: str, names: list[str], whole: list[Tied], priors: list[Tied | None]
    ) -> "TiedPlates":
        """From the posteriors; priors of another number of labels keep their concentrations."""
        found: list[Tied | None] = []
        for name, q, prior in zip(names, whole, priors, strict=True):
            try:
                found.append(None if prior is None else resized(prior, q.labels))
            except StructureError as error:
                raise error.at(f"site {name!r}") from error
        plates = [q.as_plate(p) for q, p in zip(whole, found, strict=True)]
        start = [None if p is None else p.as_plate(p) for p in found]
        return cls(path, names, plates, start, whole, found)


def resized(prior: Tied, labels: int) -> Tied:
    """The same prior of so many labels."""
    spread = prior.spread()  # it tells no label apart, or raises
    if prior.labels == labels:
        return prior
    return type(prior).exchangeable(prior.as_plate(prior).members[0], spread, labels)


def side_by_side(sites: Mapping[str, Site]) -> list[Block]:
    """The blocks of all sites, which are of one structure."""
    posteriors = [blocks(site.posterior) for site in sites.values()]
    priors = [{} if site.prior is None else blocks(site.prior) for site in sites.values()]
    return [
        _kind(like)(path, list(sites), [q[path] for q in posteriors], [p.get(path) for p in priors])
        for path, like in posteriors[0].items()
    ]


def _kind(like: ExponentialFamily) -> Callable[..., Block]:
    """What lays a block of this family out."""
    if isinstance(like, Tied):
        return TiedPlates.of
    return Plates if isinstance(like, Plate) else Block
