"""What every law offers: an exponential family, what is built from several, and mixtures."""

import abc
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from posterity.arrays.namespace import is_jax, namespace
from posterity.arrays.tree import LABEL, Node, leaves
from posterity.arrays.typing import Bool, Float, Int, KeyArray, Real
from posterity.errors import StructureError, UsageError
from posterity.families.names import named, names_of, not_reordered


class Distribution(Node, abc.ABC):
    """A law, or a batch of laws, whose parameters are the leaves of a tree.

    An *event* is an array, or a tree of arrays, of the shapes of ``event_shape``.
    """

    @classmethod
    @abc.abstractmethod
    def from_standard(cls, *args: Any, **kwargs: Any) -> Self:
        """From the parameters that textbooks use."""

    @abc.abstractmethod
    def standard_parameters(self) -> dict[str, Any]:
        """The parameters that textbooks use, by the names that ``from_standard`` takes."""

    @property
    @abc.abstractmethod
    def batch_shape(self) -> tuple[int, ...]:
        """The axes before those of one member."""

    @property
    @abc.abstractmethod
    def event_shape(self) -> Any:
        """The shape of one event: a tuple, or a tree of tuples."""

    @property
    def support(self) -> Any:
        """Where one event lies: a tree of :class:`Support`, shaped as ``event_shape``.

        Raises:
            UsageError: of a family whose author does not say.
        """
        raise UsageError(
            found=f"a {type(self).__name__}, which does not say where its events lie",
            expected="a law with a support",
            fix="Give its class the property support, of what is in posterity.families.supports.",
        )

    def free_form(self) -> Any:
        """How members like this one are moved by numbers without bounds.

        A :class:`posterity.families.free_forms.FreeForm`; None for a law that has none.
        """
        return None

    def __repr__(self) -> str:
        """One line: the family, its dimensions, the first means and standard deviations.

        >>> from posterity.families import Gaussian
        >>> Gaussian.from_standard([1.0, 2.0], [[1.0, 0.0], [0.0, 4.0]]).named(["age", "dose"])
        Gaussian(d=2, age=1 ± 1, dose=2 ± 2)
        """
        from posterity.summary.short import short

        return short(self)

    def _repr_html_(self) -> str:
        from posterity.summary.html import of_law

        return of_law(self)

    # --- names of coordinates ------------------------------------------------------------------

    @property
    def named_size(self) -> int | None:
        """How many coordinates of its own go by names; None where only those of its parts do."""
        return None

    def named_parts(self) -> dict[str, Any]:
        """The parts that have names of their own, by block or field."""
        return {}

    def reordered(self, places: Int[np.ndarray, " d"]) -> Self:
        """With the coordinate at ``places[i]`` as the ``i``-th, exactly and without names.

        Raises:
            StructureError: of a law whose coordinates cannot change places.
        """
        raise not_reordered(self, places)

    @property
    def names(self) -> Any:
        """Names of its coordinates, empty if they have none; by path where its parts have them.

        >>> from posterity.families import Gaussian
        >>> Gaussian.from_standard([0.5], [[1.0]]).named(["age"]).names
        ('age',)
        """
        if self.named_size is not None:
            return self.__dict__.get(LABEL, ())
        parts = self.named_parts()
        return next(iter(parts.values())).names if len(parts) == 1 else names_of(self)

    def named(self, names: Any) -> Self:
        """The same law, its coordinates under these names: labels, which change no number.

        Arithmetic, files and the verbs keep them, and put laws with names in one order first.

        Args:
            names: a text a coordinate, in their order; by block or field where it is made of
                parts, or by path (``"emissions/members"``).

        Raises:
            StructureError: if they are not distinct texts, or not as many as coordinates.
        """
        return named(self, names)

    @abc.abstractmethod
    def is_proper(self) -> Bool[Real, "*batch"]:
        """Whether each member is a distribution; a factor may well not be."""

    @abc.abstractmethod
    def sample(self, key: KeyArray, shape: tuple[int, ...] = ()) -> Any:
        """Independent draws, of shape ``shape + batch + event``; needs proper members."""

    def moment_matched(self, weights: Float[Real, " k"]) -> Self:
        """The one law nearest to the mixture of a batch (K,) with these weights, which sum to one.

        Raises:
            UsageError: of a family whose author does not say.
        """
        del weights
        raise UsageError(
            found=f"a {type(self).__name__}, which does not say how several become one",
            expected="a family of which moments can be matched",
            fix="Give its class the method moment_matched.",
        )

    def log_prob(self, z: Any) -> Float[Real, "..."]:
        """Log density at ``z``, of shape ``shape + batch + event``, in nats.

        Raises:
            StructureError: if ``z`` has other axes than an event.
        """
        return self._log_prob(check_event(self, z))

    @abc.abstractmethod
    def _log_prob(self, z: Any) -> Float[Real, "..."]:
        """As :meth:`log_prob`, for events of the right shape."""


def check_event(law: Distribution, z: Any) -> Any:
    """``z`` as arrays; a StructureError unless its last axes are those of an event."""
    found, fits = fitted(law.event_shape, z)
    try:
        together = fits and np.broadcast_shapes(law.batch_shape, *fits)
    except ValueError:
        together = None
    if together is None:
        raise StructureError(
            found=f"values of shapes {[np.shape(leaf) for leaf in leaves(z)]} for {law!r}",
            expected=f"events of shape {law.event_shape}, with leading axes that fit the batch "
            f"shape {law.batch_shape}",
            fix="Put the axes of one event last.",
        )
    return found


def fitted(shape: Any, z: Any) -> tuple[Any, list[tuple[int, ...]] | None]:
    """The event as arrays, and the axes before the event's own; None where it does not fit."""
    if shape is None:
        return None, []
    if isinstance(shape, dict):
        if not isinstance(z, Mapping) or set(z) != set(shape):
            return z, None
        pairs = {name: fitted(shape[name], z[name]) for name in shape}
        return {name: found for name, (found, _) in pairs.items()}, _joined(pairs.values())
    if any(not isinstance(axis, int) for axis in shape):
        if not isinstance(z, tuple | list) or len(z) != len(shape):
            return z, None
        parts = [fitted(own, part) for own, part in zip(shape, z, strict=True)]
        return tuple(found for found, _ in parts), _joined(parts)
    array = z if hasattr(z, "shape") else namespace(z).np.asarray(z)
    axes, number = len(array.shape) - len(shape), is_jax(array) or array.dtype.kind in "biuf"
    fits = number and axes >= 0 and array.shape[axes:] == shape
    return array, [array.shape[:axes]] if fits else None


def _joined(parts: Any) -> list[tuple[int, ...]] | None:
    batches = [batch for _, batch in parts]
    return None if any(b is None for b in batches) else [axes for b in batches for axes in b]
