"""The interface of all laws: exponential families, composites and mixtures."""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from posterity.arrays.leaves import kind_of
from posterity.arrays.namespace import is_traced, namespace
from posterity.arrays.tree import LABEL, Node, leaves, map_leaves
from posterity.arrays.typing import Bool, Float, Floats, Int, KeyArray, PyTree, Real, Shape
from posterity.errors import StructureError, UsageError
from posterity.families.layers import Layers
from posterity.families.marginals import (
    Marginal,
    Names,
    Sampled,
    Table,
    numbered,
    scattered,
    unknown,
)
from posterity.families.names import (
    checked_tree,
    described,
    described_leaf,
    is_quick,
    names_of,
    not_reordered,
    with_names,
)
from posterity.families.supports import map_supports
from posterity.runtime.jax_loaded import is_jax
from posterity.runtime.lazy import jax, jnp


class Members(NamedTuple):
    """The exchangeable members of a law, along one batch axis.

    Attributes:
        kind: kind of a member: ``member``, ``component`` or ``state``.
        laws: laws of the members, of batch shape (K,).
        path: path of the members among the parts of the law.
        labels: path of the members' names, or None without names.
        weights: expected weights (K,), or None.
        weight_sd: standard deviations of the weights, if there is a posterior over them.
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
        """Make a law from its textbook parameters."""

    def standard_parameters(self) -> dict[str, Any]:
        """Return the textbook parameters by the argument names of ``from_standard``: those of the
        law's fields, unless a class overrides the method.
        """
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    @abc.abstractmethod
    def batch_shape(self) -> Shape:
        """The shape of the batch: the axes before those of one member."""

    @property
    def event_shape(self) -> Any:
        """The shape of one event: a tuple, or a tree of tuples."""
        return map_supports(lambda support: support.shape, self.support)

    @property
    def support(self) -> Any:
        """The set of possible events: a tree of :class:`Support`, shaped as ``event_shape``; a
        UsageError if the family does not define it.
        """
        lacking = "the property support, of what is in posterity.families.supports"
        raise unsaid(self, "where its events lie", lacking)

    def __repr__(self) -> str:
        """One line: the family, its dimensions, the first means and standard deviations.

        >>> from posterity.families import Gaussian
        >>> Gaussian.from_standard([1.0, 2.0], [[1.0, 0.0], [0.0, 4.0]]).named(["age", "dose"])
        Gaussian(d=2, age=1 ± 1, dose=2 ± 2)
        """
        return described(self)

    def _described(self, numbers: bool) -> str:
        """Return a one-line description of the law and its parts, with ``numbers`` also moments."""
        return described_leaf(self, numbers)

    def _first_moments(self) -> tuple[Real, Real, int] | None:
        """Return means, standard deviations and their number, or None if they are expensive."""
        total = sum(math.prod(np.shape(leaf)) for leaf in self.children())
        if not is_quick(total, self.named_size or 1):
            return None
        numbers = map_leaves(np.asarray, self)  # raises for tracers, which have no values
        if not np.all(numbers.is_proper()):
            return np.full(1, np.nan), np.full(1, np.nan), 1
        law = numbers.marginals()[0]
        return law.mean, law.sd, len(law.mean)

    # --- properties and marginal laws ---------------------------------------------------------

    addend: ClassVar[str] = "Wrap components without labels as posterity.Plate(members, weights)."
    """Advice in errors where parameters must be added, but those of the law cannot."""
    marginal_draws: ClassVar[int] = 4096
    """Number of draws from which marginals without closed formulas are estimated."""
    emits_symbols: ClassVar[bool] = False
    """True if it is a posterior over the probabilities of symbols 0, 1, ..."""
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
        """Return for each of ``quantities`` the marginal laws (*batch, n) of its coordinates, with
        means, standard deviations and quantiles, by default of draws. Members must be proper.
        """
        shape = (self.marginal_draws, *self.batch_shape, -1)
        draws = jax.tree.leaves(self.sample(jax.random.key(0), shape[:1]))
        flat = [np.reshape(leaf, shape) for leaf in draws]
        return [Sampled(np.concatenate(flat, axis=-1, dtype=float))]

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return labels of the coordinates of :meth:`marginals`: the names, or numbers."""
        return names or (("",) if self.event_shape == () else numbered(self.named_size or 1))

    def tables(self, names: Names | None = None) -> tuple[Table, ...]:
        """Return the marginal laws of all coordinates of the law and its parts, block by block.

        Axes of a batch come first; values of improper parts are NaN.

        Args:
            names: names by path, for coordinates without names of their own.

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
        """Return the tables at a path of names and in a block, without axes of the batch."""
        labels = self.labels(names.get(path, ()))
        proper = np.asarray(self.is_proper())
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
        """Return the expected mean (..., d) and covariance (..., d, d) or variances (..., d).

        For a posterior over a Gaussian's parameters they are that Gaussian's, NaN if undefined;
        for a Gaussian they are its own. None for other laws.
        """
        return None

    def numpy_draws(self, rng: np.random.Generator, count: int) -> Float[np.ndarray, "..."]:
        """Draw real vectors (count, *batch, d), without JAX for some families; they differ from
        those of :meth:`sample`.
        """
        key = jax.random.key(rng.integers(2**32))
        return np.asarray(self.sample(key, (count,)))

    def independent_blocks(self) -> Mapping[str, Any]:
        """Return the blocks of a product of independent blocks; empty for other laws."""
        return {}

    @property
    def event_size(self) -> int:
        """The number of coordinates of an event, including those of every member of a plate."""
        return self.named_size or 1

    @property
    def unmapped(self) -> tuple["Distribution", Any]:
        """The law of unconstrained coordinates and the supports that they are mapped onto, for a
        transformed law; for other laws, the law itself and None.
        """
        return self, None

    @property
    def network_layers(self) -> Layers | None:
        """The layers of the network whose weights are the event, or None."""
        return None

    def exchangeable_members(self) -> Members | None:
        """Return the exchangeable members of the law with their weights, or None."""
        return None

    def _support_or_none(self) -> Any:
        try:
            return self.support
        except UsageError:
            return None

    # --- names of coordinates ------------------------------------------------------------------

    @property
    def named_size(self) -> int | None:
        """The number of the law's own coordinates that can have names; None if only parts can."""
        return None

    def named_parts(self) -> dict[str, Any]:
        """Return the parts whose coordinates can have names, by block or field."""
        return {}

    def reordered(self, places: Int[np.ndarray, " d"]) -> Self:
        """Return the law with the coordinate at ``places[i]`` as the ``i``-th, exactly and without
        names; a StructureError if the law's coordinates cannot be permuted.
        """
        raise not_reordered(self, places)

    @property
    def names(self) -> Any:
        """Names of the coordinates, empty without names; by path if parts have the names.

        >>> from posterity.families import Gaussian
        >>> Gaussian.from_standard([0.5], [[1.0]]).named(["age"]).names
        ('age',)
        """
        if self.named_size is not None:
            return self.__dict__.get(LABEL, ())
        parts = self.named_parts()
        return next(iter(parts.values())).names if len(parts) == 1 else names_of(self)

    def named(self, names: Any) -> Self:
        """Return the law with named coordinates; its parameters do not change.

        Arithmetic, files and the verbs keep names, and align laws by them.

        Args:
            names: one text per coordinate, in their order; for laws made of parts a dictionary by
                block or field, or by path (``"emissions/members"``).

        Raises:
            StructureError: if names are not distinct texts, or not as many as coordinates.

        >>> from posterity.families import Gaussian
        >>> q = Gaussian.from_standard([1.0, 2.0], np.eye(2)).named(["age", "dose"])
        >>> q.names
        ('age', 'dose')
        """
        return with_names(self, names_of(self) | checked_tree(self, names))

    @abc.abstractmethod
    def is_proper(self) -> Bool[Real, "*batch"]:
        """Tell whether each member is a distribution; a factor need not be one."""

    @abc.abstractmethod
    def sample(self, key: KeyArray, shape: Shape = ()) -> Any:
        """Return independent draws of shape ``shape + batch + event``; members must be proper.

        >>> from posterity.families import Gaussian
        >>> q = Gaussian.from_standard([1.0, 2.0], np.eye(2))
        >>> q.sample(jax.random.key(0), (3,)).shape
        (3, 2)
        """

    def sample_members(self, key: KeyArray, labels: Int[Real, "*shape"]) -> Any:
        """Return a draw of the member at each label, of shape ``labels.shape + event``."""
        if is_traced(labels):
            return jax.tree.map(jnp.asarray, self)[labels].sample(key)
        members: Any = self  # on the host, where parameters are in float64
        return members[np.asarray(labels)].sample(key)

    def moment_matched(self, weights: Float[Real, " k"]) -> Self:
        """Return the law that matches the moments of the mixture of a batch (K,), with weights that
        sum to one; a UsageError if the family does not define it.
        """
        del weights
        raise unsaid(self, "how several become one", "the method moment_matched")

    def log_prob(self, z: PyTree) -> Floats:
        """Return the log density in nats at ``z`` of shape ``shape + batch + event``; a
        StructureError if the axes of ``z`` do not fit an event.

        >>> from posterity.families import Gamma
        >>> Gamma.from_standard(1.0, 1.0).log_prob(np.array([1.0, 2.0]))
        array([-1., -2.])
        """
        return self._log_prob(fitted(self.event_shape, z, self))

    @abc.abstractmethod
    def _log_prob(self, z: PyTree) -> Floats:
        """Return the log density, for events of the right shape."""


def fitted(shape: PyTree, z: PyTree, law: Distribution | None = None) -> Any:
    """Return a tree of arrays whose last axes are those of the tree ``shape``; a StructureError
    unless they fit, and leading axes broadcast with the batch of a law.
    """
    leading = [() if law is None else law.batch_shape]

    def one(shape: Shape, part: PyTree) -> Any:
        array: Any = part if hasattr(part, "shape") else namespace(part).np.asarray(part)
        own = len(array.shape) - len(shape)
        number = is_jax(array) or kind_of(array.dtype) in "biuf"
        if not number or own < 0 or array.shape[own:] != shape:
            raise ValueError("another shape")
        leading.append(array.shape[:own])
        return array

    try:
        event = map_supports(one, shape, z)
        np.broadcast_shapes(*leading)
    except (ValueError, TypeError, IndexError):  # of what is no tree of this form
        found = f"values of shapes {[np.shape(leaf) for leaf in leaves(z)]} for {law or 'a law'!r}"
        expected = f"events of shape {shape}, with leading axes that broadcast"
        raise StructureError(found=found, expected=expected) from None
    return event


def unsaid(law: Distribution, what: str, lacking: str) -> UsageError:
    """Return the error of a law that does not say ``what``, for which its class has to have what
    is ``lacking``.
    """
    found = f"a {type(law).__name__}, which does not say {what}"
    return UsageError(found=found, expected=f"a law whose class has {lacking}")
