"""What families built out of families share: they add up over their parts."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jaxtyping import Bool, Float

from posterity.arrays.namespace import Real, namespace
from posterity.families.base import ExponentialFamily


class Composite(ExponentialFamily):
    """Independent parts: normalisers, entropies and divergences add, parameters line up.

    A subclass says what its ``parts`` are, each with a batch shape of its own that starts
    with the composite's, and rebuilds itself from new parts.
    """

    coordinates: ClassVar[dict[str, int]] = {}

    def parts(self) -> Sequence[ExponentialFamily]:
        """The independent parts."""
        raise TypeError(f"{type(self).__name__} is abstract: it names no parts")

    def rebuild(self, parts: Sequence[ExponentialFamily]) -> Self:
        """The same composite made of other parts."""
        raise TypeError(f"{type(self).__name__} is abstract: it names no parts")

    def split_event(self, z: Any) -> Sequence[Any]:
        """The event of each part."""
        raise TypeError(f"{type(self).__name__} is abstract: it names no parts")

    def join_event(self, events: Sequence[Any]) -> Any:
        """One event from the events of the parts."""
        raise TypeError(f"{type(self).__name__} is abstract: it names no parts")

    @property
    def reparameterized(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether draws of all parts are differentiable functions of the parameters."""
        return all(part.reparameterized for part in self.parts())

    @property
    def natural_parameters(self) -> Float[Real, "*batch dim"]:
        """Those of the parts, one after the other."""
        return self._line_up([part.natural_parameters for part in self.parts()])

    def with_natural_parameters(self, vector: Float[Real, "*batch dim"]) -> Self:
        """Cut the flat vector into the parts'."""
        pieces = self._cut(vector)
        pairs = zip(self.parts(), pieces, strict=True)
        return self.rebuild([part.with_natural_parameters(piece) for part, piece in pairs])

    @property
    def mean_parameters(self) -> Float[Real, "*batch dim"]:
        """Those of the parts, one after the other."""
        return self._line_up([part.mean_parameters for part in self.parts()])

    def with_mean_parameters(self, vector: Float[Real, "*batch dim"]) -> Self:
        """Cut the flat vector into the parts'."""
        pairs = zip(self.parts(), self._cut(vector), strict=True)
        return self.rebuild([part.with_mean_parameters(piece) for part, piece in pairs])

    def inverse_fisher_product(
        self, vector: Float[Real, "*batch dim"]
    ) -> Float[Real, "*batch dim"]:
        """Part by part: the Fisher information of independent parts is block-diagonal."""
        pairs = zip(self.parts(), self._cut(vector), strict=True)
        return self._line_up([part.inverse_fisher_product(piece) for part, piece in pairs])

    def sufficient_statistics(self, z: Any) -> Float[Real, "*shape dim"]:
        """Those of the parts, one after the other."""
        pairs = zip(self.parts(), self.split_event(z), strict=True)
        own = len(self.batch_shape)
        flat = []
        for part, event in pairs:
            statistics = part.sufficient_statistics(event)
            inner = len(part.batch_shape) - own
            flat.append(statistics.reshape(*statistics.shape[: -1 - inner], -1))
        return self.xp.np.concatenate(flat, axis=-1)

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """The sum over parts."""
        return self._total([part.log_normalizer() for part in self.parts()])

    def negative_entropy(self) -> Float[Real, "*batch"]:
        """The sum over parts."""
        return self._total([part.negative_entropy() for part in self.parts()])

    def kl(self, other: Self) -> Float[Real, "*batch"]:
        """The sum over parts."""
        pairs = zip(self.parts(), other.parts(), strict=True)
        return self._total([mine.kl(theirs) for mine, theirs in pairs])

    def log_prob(self, z: Any) -> Float[Real, "..."]:
        """The sum over parts."""
        own = len(self.batch_shape)
        terms = []
        for part, event in zip(self.parts(), self.split_event(z), strict=True):
            value, inner = part.log_prob(event), len(part.batch_shape) - own
            terms.append(value.sum(tuple(range(-inner, 0))) if inner else value)
        return sum(terms[1:], start=terms[0])

    def log_base_measure(self) -> float:
        """The sum over parts."""
        own = len(self.batch_shape)
        copies = [int(np.prod(part.batch_shape[own:])) for part in self.parts()]
        pairs = zip(copies, self.parts(), strict=True)
        return float(sum(n * part.log_base_measure() for n, part in pairs))

    def is_proper(self) -> Bool[Real, "*batch"]:
        """Whether all parts are."""
        own, flags = len(self.batch_shape), []
        for part in self.parts():
            flag, inner = part.is_proper(), len(part.batch_shape) - own
            flags.append(flag.all(tuple(range(-inner, 0))) if inner else flag)
        return namespace(*flags).np.stack(flags).all(0)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> Any:
        """Independent draws of the parts."""
        parts = self.parts()
        keys = jax.random.split(key, len(parts))
        return self.join_event([part.sample(k, shape) for k, part in zip(keys, parts, strict=True)])

    def _line_up(self, vectors: list[Real]) -> Real:
        own = len(self.batch_shape)
        flat = [vector.reshape(*vector.shape[:own], -1) for vector in vectors]
        return namespace(*flat).np.concatenate(flat, axis=-1)

    def _cut(self, vector: Real) -> list[Real]:
        own, start, pieces = len(self.batch_shape), 0, []
        for part in self.parts():
            inner = part.batch_shape[own:]
            size = int(np.prod(inner)) * part.dimension
            piece = vector[..., start : start + size]
            pieces.append(piece.reshape(*vector.shape[:-1], *inner, part.dimension))
            start += size
        return pieces

    def _total(self, terms: list[Real]) -> Real:
        own = len(self.batch_shape)
        sums = [t.sum(tuple(range(own, t.ndim))) if t.ndim > own else t for t in terms]
        return sum(sums[1:], start=sums[0])
