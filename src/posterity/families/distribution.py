"""The interface of every law: exponential families, what is built from several, and mixtures."""

import abc
import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from posterity.arrays.namespace import is_jax, namespace
from posterity.arrays.tree import LABEL, Node, leaves, map_leaves
from posterity.arrays.typing import Bool, Float, Int, KeyArray, PyTree, Real
from posterity.errors import StructureError, UsageError
from posterity.families import numeric
from posterity.families.layers import Layers
from posterity.families.marginals import Marginal, Names, Table, numbered, scattered, unknown
from posterity.families.names import (
    MOST_READ,
    MOST_SOLVED,
    checked_tree,
    described,
    described_leaf,
    names_of,
    not_reordered,
    with_names,
)
from posterity.families.supports import Continuous, map_supports
from posterity.lazy import jax, jnp
from posterity.text import html


class Members(NamedTuple):
    """Laws of one kind that a law is made of, one a component: they lie along one batch axis.

    Attributes:
        kind: what each of them is: ``member``, ``component`` or ``state``.
        laws: all of them, of batch shape (K,).
        path: where they are, as a path of parts of the law.
        labels: where their names are, as such a path; None where they have none.
        weights: expected weights (K,), or None where there are none.
        weight_sd: their standard deviations, where there is a posterior over them.
    """

    kind: str
    laws: Any
    path: str
    labels: str | None
    weights: Float[np.ndarray, " k"] | None = None
    weight_sd: Float[np.ndarray, " k"] | None = None


class Distribution(Node, abc.ABC):
    """A law, or a batch of laws, whose parameters are the leaves of a tree.

    An *event* is an array, or a tree of arrays, of the shapes of ``event_shape``.
    """

    @classmethod
    @abc.abstractmethod
    def from_standard(cls, *args: Any, **kwargs: Any) -> Self:
        """Make it from the parameters that textbooks use."""

    def standard_parameters(self) -> dict[str, Any]:
        """The parameters that textbooks use, by the names that ``from_standard`` takes; a
        UsageError of a law whose fields are others, and whose author does not say.
        """
        names = [field.name for field in dataclasses.fields(self)]
        try:
            inspect.signature(type(self).from_standard).bind(**dict.fromkeys(names))
        except TypeError:
            raise unsaid(self, "standard_parameters") from None
        return {name: getattr(self, name) for name in names}

    @property
    @abc.abstractmethod
    def batch_shape(self) -> tuple[int, ...]:
        """The axes before those of one member."""

    @property
    def event_shape(self) -> Any:
        """The shape of one event: a tuple, or a tree of tuples."""
        return map_supports(lambda support: support.shape, self.support)

    @property
    def support(self) -> Any:
        """The set of possible events: a tree of :class:`Support`, shaped as ``event_shape``; a
        UsageError of a family whose author does not say.
        """
        raise unsaid(
            self,
            "the property support, of what is in posterity.families.supports",
            "where its events lie",
            "a support",
        )

    def __repr__(self) -> str:
        """One line: the family, its dimensions, the first means and standard deviations.

        >>> from posterity.families import Gaussian
        >>> Gaussian.from_standard([1.0, 2.0], [[1.0, 0.0], [0.0, 4.0]]).named(["age", "dose"])
        Gaussian(d=2, age=1 ± 1, dose=2 ± 2)
        """
        return described(self)

    def _repr_html_(self) -> str:
        return html(self, "law")

    def _described(self, numbers: bool) -> str:
        """The law with its parts in a line; with ``numbers`` also the first ones."""
        return described_leaf(self, numbers)

    def _first_moments(self) -> tuple[Real, Real, int] | None:
        """First means and standard deviations, and how many there are; None where that is dear."""
        total = sum(math.prod(np.shape(leaf)) for leaf in self.children())
        if total > MOST_READ or (self.named_size or 1) > MOST_SOLVED:
            return None
        numbers = map_leaves(np.asarray, self)  # an error for tracers, which stand for no numbers
        if not np.all(numbers.is_proper()):
            return np.full(1, np.nan), np.full(1, np.nan), 1
        law = numbers.marginals()[0]
        return law.mean, law.sd, len(law.mean)

    # --- what it says of the numbers that it is over ------------------------------------------

    addend: ClassVar[str] = "Wrap components without labels as posterity.Plate(members, weights)."
    """The advice in errors where parameters must add, and those of the law do not."""
    emits_symbols: ClassVar[bool] = False
    """True if it is a posterior over the parameters of symbols 0, 1, ..."""
    over_labels: ClassVar[bool] = False
    """True if an event is one of the labels 0, 1, ..."""
    is_plate: ClassVar[bool] = False
    """True if it is a ``Plate``: exchangeable copies of one family."""
    is_tied: ClassVar[bool] = False
    """True if it is a product whose blocks share labels, as those of a ``HiddenMarkov`` do."""
    is_mixture: ClassVar[bool] = False
    """True if it is a ``Mixture``."""
    composed: ClassVar[bool] = False
    """True if it is made of independent parts, such as blocks or the members of a plate."""
    gaussian: ClassVar[bool] = False
    """True if it is a Gaussian in information form, with the methods of ``AnyGaussian``."""

    diagonal: ClassVar[bool] = False
    """True if the coordinates of a Gaussian are independent."""

    quantities: ClassVar[tuple[str, ...]] = ("",)
    """The quantities of :meth:`marginals`, in words; ``""`` for the coordinates of an event."""

    def marginals(self) -> list[Marginal]:
        """Return for each of ``quantities`` the marginal laws (*batch, n) of its coordinates.

        Means, standard deviations and quantiles. Members must be proper. A law over one number
        whose author does not write this is integrated along its support; of any other, moments
        and quantiles are those of draws.
        """
        if self.event_shape == () and isinstance(self._support_or_none(), Continuous):
            return [numeric.by_quadrature(self).picked((..., None))]
        return [numeric.from_draws(self)]

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Labels of the coordinates of :meth:`marginals`, given the names that there are."""
        return names or (("",) if self.event_shape == () else numbered(self.named_size or 1))

    def tables(self, names: Names | None = None) -> tuple[Table, ...]:
        """The marginal laws of all numbers that the law and its parts are over, block by block.

        Of a batch there is an axis for each of its own; improper parts have NaN.

        Args:
            names: by path, of coordinates that have no names of their own.

        >>> from posterity.families import Gamma, Product
        >>> (table,) = Product(noise=Gamma.from_standard(shape=4.0, rate=2.0)).tables()
        >>> table.block, table.law.mean
        ('noise', array([2.]))
        """
        known = {**(names or {}), **names_of(self)}
        batch = tuple(map(numbered, self.batch_shape))
        with np.errstate(all="ignore"):
            result = self._tables(known, "", "")
        return tuple(dataclasses.replace(t, axes=(*batch, *t.axes)) for t in result)

    def _tables(self, names: Names, path: str, block: str) -> list[Table]:
        """The tables at a path of names and in a block, without axes of the batch."""
        labels, proper = self.labels(names.get(path, ())), np.asarray(self.is_proper())
        some: Any = self
        if proper.all():
            laws = self.marginals()
        elif proper.any():
            laws = [scattered(law, proper) for law in some[proper].marginals()]
        else:
            laws = [unknown((*proper.shape, len(labels))) for _ in self.quantities]
        shape = (*self.batch_shape, len(labels))
        pairs = zip(self.quantities, laws, strict=True)
        return [Table(block, what, (), labels, law.reshaped(shape)) for what, law in pairs]

    def expected_moments(self) -> tuple[Real, Real] | None:
        """Expected mean (..., d) and covariance (..., d, d), or variances (..., d), of a record.

        Of a posterior over a Gaussian's parameters these are that Gaussian's, NaN where there are
        none; of a Gaussian they are its own. None for other laws.
        """
        return None

    def numpy_draws(self, rng: np.random.Generator, count: int) -> Float[np.ndarray, "..."]:
        """Draws (count, *batch, d) of a law of real vectors, which need no JAX where that can be.

        They are not those of :meth:`sample`.
        """
        key = jax.random.key(rng.integers(2**32))
        return np.asarray(self.sample(key, (count,)))

    def independent_blocks(self) -> Mapping[str, Any]:
        """The blocks of a product, where they have nothing to do with each other; else none."""
        return {}

    @property
    def event_size(self) -> int:
        """The number of coordinates of an event, those of the members of a plate counted each."""
        return self.named_size or 1

    @property
    def unmapped(self) -> tuple["Distribution", Any]:
        """The law of unconstrained numbers and the supports that these are mapped onto, of a law
        that is made so; of any other the law itself, whatever its support, and None.
        """
        return self, None

    @property
    def network_layers(self) -> Layers | None:
        """The layers whose weights it is over; None for what is over no network."""
        return None

    def exchangeable_members(self) -> Members | None:
        """The components that the law is made of, with their weights; None where there are none."""
        return None

    def _support_or_none(self) -> Any:
        try:
            return self.support
        except UsageError:
            return None

    # --- names of coordinates ------------------------------------------------------------------

    @property
    def named_size(self) -> int | None:
        """The number of its own coordinates that have names; None if only those of its parts do."""
        return None

    def named_parts(self) -> dict[str, Any]:
        """The parts that have names of their own, by block or field."""
        return {}

    def reordered(self, places: Int[np.ndarray, " d"]) -> Self:
        """Return the law with the coordinate at ``places[i]`` as the ``i``-th, exactly and without
        names; a StructureError of a law whose coordinates cannot change places.
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
        return with_names(self, names_of(self) | checked_tree(self, names))

    @abc.abstractmethod
    def is_proper(self) -> Bool[Real, "*batch"]:
        """True if each member is a distribution; a factor may well not be."""

    @abc.abstractmethod
    def sample(self, key: KeyArray, shape: tuple[int, ...] = ()) -> Any:
        """Independent draws, of shape ``shape + batch + event``; needs proper members."""

    def sample_members(self, key: KeyArray, labels: Int[Real, "*shape"]) -> Any:
        """Return for each label a draw of that member of a batch (K,): ``labels.shape + event``."""
        return jax.tree.map(jnp.asarray, self)[labels].sample(key)

    def moment_matched(self, weights: Float[Real, " k"]) -> Self:
        """The one law nearest to the mixture of a batch (K,) with these weights, which sum to one;
        a UsageError of a family whose author does not say.
        """
        del weights
        raise unsaid(
            self,
            "the method moment_matched",
            "how several become one",
            "moments that can be matched",
        )

    def log_prob(self, z: PyTree) -> Float[Real, "..."]:
        """Log density at ``z``, of shape ``shape + batch + event``, in nats; a StructureError if
        ``z`` has other axes than an event.
        """
        return self._log_prob(fitted(self.event_shape, z, self))

    @abc.abstractmethod
    def _log_prob(self, z: PyTree) -> Float[Real, "..."]:
        """The log density, for events of the right shape."""


def fitted(shape: PyTree, z: PyTree, law: Distribution | None = None) -> Any:
    """A tree of numbers as arrays, each of whose last axes are as in the tree ``shape``; a
    StructureError unless they are, and the axes before them broadcast with the batch of a law.
    """
    leading = [() if law is None else law.batch_shape]

    def one(shape: Any, part: PyTree) -> Any:
        if shape is None:
            return None
        if isinstance(shape, dict):
            if isinstance(part, Mapping) and set(part) == set(shape):
                return {name: one(shape[name], part[name]) for name in shape}
        elif all(isinstance(axis, int) for axis in shape):
            array: Any = part if hasattr(part, "shape") else namespace(part).np.asarray(part)
            own, number = len(array.shape) - len(shape), is_jax(array) or array.dtype.kind in "biuf"
            if number and own >= 0 and array.shape[own:] == shape:
                leading.append(array.shape[:own])
                return array
        elif isinstance(part, tuple | list):
            return tuple(one(*pair) for pair in zip(shape, part, strict=True))
        raise ValueError("another shape")

    try:
        event = one(shape, z)
        np.broadcast_shapes(*leading)
    except ValueError:
        of, batch = "", ""
        if law is not None:
            of, batch = f" for {law!r}", f" with the batch shape {law.batch_shape}"
        raise StructureError(
            found=f"values of shapes {[np.shape(leaf) for leaf in leaves(z)]}{of}",
            expected=f"events of shape {shape}, with leading axes that broadcast{batch}",
            fix="Put the axes of one event last; name parts as events do.",
        ) from None
    return event


def unsaid(
    law: Distribution,
    lacking: str,
    what: str = "its textbook parameters",
    expected: str = "the parameters that its from_standard takes",
) -> UsageError:
    """The error of a law whose author does not say something, which its class lacks."""
    return UsageError(
        found=f"a {type(law).__name__}, which does not say {what}",
        expected=f"a law with {expected}",
        fix=f"Give its class {lacking}.",
    )
