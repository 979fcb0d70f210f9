"""Families built out of families: what they are asked adds up over their parts."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Bool, Flat, Float, Int, KeyArray, PyTree, Real
from posterity.families.base import ExponentialFamily
from posterity.families.coordinates import Coordinates
from posterity.families.distribution import Distribution
from posterity.families.supports import map_supports
from posterity.lazy import jax


class Composite(ExponentialFamily):
    """Independent parts: normalisers, entropies and divergences add, parameters line up.

    A subclass says what its ``parts`` are, each with a batch shape of its own that starts
    with the composite's, and rebuilds itself from new parts.
    """

    coordinates: ClassVar[Coordinates] = {}
    composed: ClassVar[bool] = True
    standard: ClassVar[Coordinates] = {}

    standard_parameters = Distribution.standard_parameters

    def __post_init__(self) -> None:
        """Parts have checked themselves."""

    @property
    def event_shape(self) -> Any:
        """The parts', with axes for the members of a part's own batch."""

        def copied(part: ExponentialFamily) -> Any:
            inner = self._inner(part)
            return map_supports(lambda shape: (*inner, *shape), part.event_shape)

        return self.join_event([copied(part) for part in self.parts()])

    @property
    def degrees_of_variation(self) -> int:
        """Those of all members of all parts."""
        parts = self.parts()
        return sum(math.prod(self._inner(part)) * part.degrees_of_variation for part in parts)

    @property
    def reparameterized(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if draws of all parts are differentiable functions of the parameters."""
        return all(part.reparameterized for part in self.parts())

    @property
    def named_size(self) -> int | None:
        """Only parts have coordinates."""
        return None

    @property
    def event_size(self) -> int:
        """Those of all members of all parts."""
        return sum(math.prod(part.batch_shape) * part.event_size for part in self.parts())

    @property
    def dimension(self) -> int:
        """That of all members of all parts."""
        return sum(math.prod(self._inner(part)) * part.dimension for part in self.parts())

    @property
    def natural_parameters(self) -> Flat:
        """Those of the parts, one after the other."""
        return self._line_up([part.natural_parameters for part in self.parts()])

    def with_natural_parameters(self, vector: Flat) -> Self:
        """Cut the flat vector into the parts'."""
        self._check_length(vector)
        return self._of_pieces("natural", vector)

    @property
    def mean_parameters(self) -> Flat:
        """Those of the parts, one after the other."""
        return self._line_up([part.mean_parameters for part in self.parts()])

    def with_mean_parameters(self, vector: Flat) -> Self:
        """Cut the flat vector into the parts'."""
        self._check_length(vector)
        return self._of_pieces("mean", vector)

    def fisher_information(self) -> Float[Real, "*batch dim dim"]:
        """Block-diagonal: parts are independent, and so are the members of a part's own batch."""
        xp, batch, total, start = self.xp.np, len(self.batch_shape), 0.0, 0
        for part in self.parts():
            blocks, size = part.fisher_information(), part.dimension
            blocks = blocks.reshape(*self.batch_shape, -1, size, size)
            for index in range(blocks.shape[batch]):
                around = (start, self.dimension - start - size)
                block = blocks[(slice(None),) * batch + (index,)]
                total = total + xp.pad(block, [(0, 0)] * batch + [around, around])
                start += size
        return total

    def squared_length(self, step: Self) -> Float[Real, ""]:
        """The sum over parts, and over the members of a part's own batch."""
        total: Any = 0.0
        for part, along in zip(self.parts(), step.parts(), strict=True):
            # A formula of a family's own is for one member; the general one takes them all.
            general = type(part).squared_length is ExponentialFamily.squared_length
            for index in [()] if general else np.ndindex(part.batch_shape):
                total = total + part[index].squared_length(along[index])
        return total

    def inverse_fisher_product(self, vector: Flat) -> Flat:
        """Part by part: the Fisher information of independent parts is block-diagonal."""
        self._check_length(vector)
        pieces = self._cut(vector, [part.dimension for part in self.parts()])
        pairs = zip(self.parts(), pieces, strict=True)
        return self._line_up([part.inverse_fisher_product(piece) for part, piece in pairs])

    def sufficient_statistics(self, z: PyTree) -> Float[Real, "*shape dim"]:
        """Those of the parts, one after the other."""
        flat = []
        for part, event in zip(self.parts(), self.split_event(z), strict=True):
            statistics = part.sufficient_statistics(event)
            inner = len(self._inner(part))
            flat.append(statistics.reshape(*statistics.shape[: -1 - inner], -1))
        return self.xp.np.concatenate(flat, axis=-1)

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """The sum over parts."""
        return self._total([part.log_normalizer() for part in self.parts()])

    def negative_entropy(self) -> Float[Real, "*batch"]:
        """The sum over parts."""
        return self._total([part.negative_entropy() for part in self.parts()])

    def _kl(self, other: Self) -> Float[Real, "*batch"]:
        pairs = zip(self.parts(), other.parts(), strict=True)
        return self._total([mine._kl(theirs) for mine, theirs in pairs])

    def _log_prob(self, z: PyTree) -> Float[Real, "..."]:
        pairs = zip(self.parts(), self.split_event(z), strict=True)
        return self._total([part._log_prob(event) for part, event in pairs])

    def log_base_measure(self) -> float:
        """The sum over parts."""
        copies = ((math.prod(self._inner(part)), part) for part in self.parts())
        return float(sum(n * part.log_base_measure() for n, part in copies))

    def is_proper(self) -> Bool[Real, "*batch"]:
        """True if all parts are distributions."""
        flags = []
        for part in self.parts():
            flag, inner = part.is_proper(), len(self._inner(part))
            flags.append(flag.all(tuple(range(-inner, 0))) if inner else flag)
        return namespace(*flags).np.stack(flags).all(0)

    @property
    def support(self) -> Any:
        """The parts', with axes for the members of a part's own batch."""

        def copied(part: ExponentialFamily) -> Any:
            inner = self._inner(part)
            return map_supports(lambda support: support.copies(inner), part.support)

        return self.join_event([copied(part) for part in self.parts()])

    def sample(self, key: KeyArray, shape: tuple[int, ...] = ()) -> Any:
        """Independent draws of the parts."""
        return self._sampled(key, lambda part, key: part.sample(key, shape))

    def sample_members(self, key: KeyArray, labels: Int[Real, "*shape"]) -> Any:
        """Independent draws of the parts' members."""
        return self._sampled(key, lambda part, key: part.sample_members(key, labels))

    def _sampled(self, key: KeyArray, one: Callable[[Any, KeyArray], Any]) -> Any:
        parts = self.parts()
        keys = jax.random.split(key, len(parts))
        return self.join_event([one(part, key) for part, key in zip(parts, keys, strict=True)])

    @property
    def free_size(self) -> int:
        """The number for all parts, the members of plates counted each."""
        return sum(math.prod(self._inner(part)) * part.free_size for part in self.parts())

    def free_parameters(self) -> Float[Real, "*batch free"]:
        """Part by part."""
        return self._line_up([part.free_parameters() for part in self.parts()])

    def with_free_parameters(self, free: Float[Real, "*batch free"]) -> Self:
        """Part by part."""
        return self._of_pieces("free", free)

    def _inner(self, part: ExponentialFamily) -> tuple[int, ...]:
        """The axes of a part's batch that the composite's lacks."""
        return part.batch_shape[len(self.batch_shape) :]

    def _line_up(self, vectors: list[Real]) -> Real:
        own = len(self.batch_shape)
        flat = [vector.reshape(*vector.shape[:own], -1) for vector in vectors]
        return namespace(*flat).np.concatenate(flat, axis=-1)

    def _cut(self, vector: Real, sizes: Sequence[int]) -> list[Real]:
        """The piece of a flat vector for each part, shaped as the part's own batch."""
        start, pieces = 0, []
        for part, size in zip(self.parts(), sizes, strict=True):
            inner = self._inner(part)
            end = start + math.prod(inner) * size
            pieces.append(vector[..., start:end].reshape(*vector.shape[:-1], *inner, size))
            start = end
        return pieces

    def _of_pieces(self, kind: Literal["natural", "mean", "free"], vector: Real) -> Self:
        """Parts made from flat parameters, each from its own piece."""
        parts = self.parts()
        sizes = [part.free_size if kind == "free" else part.dimension for part in parts]
        pairs = zip(parts, self._cut(vector, sizes), strict=True)
        return self.rebuild([getattr(p, f"with_{kind}_parameters")(piece) for p, piece in pairs])

    def _total(self, terms: list[Real]) -> Real:
        """The sum of the parts' terms, those of a part's own batch added up."""
        sums = []
        for part, term in zip(self.parts(), terms, strict=True):
            inner = len(self._inner(part))
            sums.append(term.sum(tuple(range(-inner, 0))) if inner else term)
        return sum(sums[1:], start=sums[0])
