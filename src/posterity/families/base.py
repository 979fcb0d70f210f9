"""Exponential families: the methods that authors write, and those derived from them.

The density is ``q(z | eta) = h exp(eta . s(z) - A(eta))``. Natural parameters ``eta`` form a
vector space (:mod:`posterity.families.vector_space`). All families here have a base measure ``h``
that does not depend on ``z``.
"""

import abc
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from posterity.arrays import tree_sums
from posterity.arrays.namespace import compiled
from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.typing import Bool, Flat, Float, Floats, PyTree, Real
from posterity.errors import StructureError
from posterity.families.distribution import unsaid
from posterity.families.names import alike, names_of, with_names
from posterity.families.supports import (
    listed,
)
from posterity.families.vector_space import VectorSpace, broadcasts
from posterity.runtime.lazy import jax


class Line(NamedTuple):
    """A law over one number along a line on which its density decays at both ends.

    ``at(offset)`` returns event, sufficient statistics and log density (up to a constant) at
    offsets from the middle. ``scale`` is the width of the middle, and the density is negligible
    beyond ``left`` and ``right``.
    """

    scale: Real
    left: Real
    right: Real
    at: Any


Evaluated = tuple[Float[np.ndarray, " n"], Callable[[], Float[np.ndarray, "n dim"]]]


class ExponentialFamily(VectorSpace):
    """A batch of members of an exponential family, by their natural parameters.

    Leaves are the natural parameters, read-only NumPy or JAX arrays of shape ``batch + own``.
    Authors of a family list the leaves in ``coordinates`` and the textbook parameters in
    ``standard``, and write the abstract formulas for any leading batch axes; other methods are
    derived here. See ``docs/new-family.md``.

    Flat vectors (``natural_parameters``, ``mean_parameters``, ``sufficient_statistics``) hold
    a symmetric matrix as its upper triangle, scaled so that inner products are kept.

    Source: wainwright2008, chapter 3.
    """

    reparameterized: ClassVar[bool] = True
    """True if draws are differentiable functions of the parameters."""
    additive: ClassVar[bool] = True
    """True if the posterior from this prior is its sum with all factors (:meth:`given`)."""

    # --- methods that the author of a family writes -----------------------------------------

    @abc.abstractmethod
    def log_normalizer(self) -> Float[Real, "*batch"]:
        """Return ``A(eta)`` in nats; undefined for improper members, see ``is_proper``."""

    @property
    @abc.abstractmethod
    def mean_parameters(self) -> Flat:
        """The mean parameters ``mu = grad A(eta) = E[s(z)]``, flat."""

    @abc.abstractmethod
    def with_mean_parameters(self, vector: Flat) -> Self:
        """Return the member with these mean parameters, by the inverse map ``grad A*``."""

    @abc.abstractmethod
    def sufficient_statistics(self, z: PyTree) -> Float[Real, "*shape dim"]:
        """Return the sufficient statistics ``s(z)``, flat.

        >>> from posterity.families import Gamma
        >>> Gamma.from_standard(1.0, 1.0).sufficient_statistics(np.array(1.0))
        array([ 0., -1.])
        """

    def evaluated(self, vector: Float[np.ndarray, "n dim"]) -> Evaluated:
        """Return log normalizers (n,) at natural parameters of members like this one, and a
        function that computes their gradients (n, dim).
        """
        made = self.with_natural_parameters(vector)
        return made.log_normalizer(), lambda: made.mean_parameters

    base_measure: ClassVar[float | None] = None
    """``log h`` in nats, for each of the ``own_size`` numbers, or None if undefined."""

    def log_base_measure(self) -> float:
        """Return the constant ``log h`` in nats; a UsageError if the family does not define it."""
        if self.base_measure is not None:
            return self.own_size * self.base_measure
        lacking = "the method log_base_measure, which returns log h; 0.0 where h = 1"
        raise unsaid(self, "its base measure", lacking)

    # --- optional methods --------------------------------------------------------------------

    def given(self, factors: Sequence["ExponentialFamily"]) -> "ExponentialFamily":
        """Return the posterior from this prior and sites' factors, all without names but the
        prior: their exact sum, rounded once. Raises ParameterError if it is beyond float64.

        >>> from posterity.families import Beta
        >>> Beta.from_standard(1.0, 1.0).given([Beta(2.0, 1.0), Beta(1.0, 5.0)])
        Beta(0.364 ± 0.14)
        """
        return with_names(tree_sums.total([self, *factors]), names_of(self))

    def parts(self) -> Sequence["ExponentialFamily"]:
        """Return the independent parts; a law that is not composed is its only part."""
        return (self,)

    def rebuild(self, parts: Sequence["ExponentialFamily"]) -> Self:
        """Return the law with other :meth:`parts`."""
        return parts[0]  # type: ignore[return-value]

    def split_event(self, z: PyTree) -> Sequence[Any]:
        """Return the event of each part."""
        return (z,)

    def join_event(self, events: Sequence[Any]) -> Any:
        """Return the event with these parts."""
        return events[0]

    @property
    def degrees_of_variation(self) -> int:
        """Degrees of freedom of an event: its coordinates less constraints between them."""
        support = self._support_or_none()
        free = [getattr(own, "free_shape", own.shape) for own in listed(support)]
        return sum(map(math.prod, listed(self.event_shape) if support is None else free))

    def observations(self) -> Float[Real, "*batch"] | None:
        """Return the number of observations that a law amounts to, or None if undefined: with a
        location, the variance of one observation over that of the location; without, up to a
        factor, the number that grows as records do.

        >>> from posterity.families import NormalWishart
        >>> NormalWishart.from_standard([0.0], 5.0, [[1.0]], 4.0).observations().item()
        5.0
        """
        return None

    normalizer_stays: ClassVar[bool] = False
    """True if the log normalizer is invariant under translation."""

    def location(self) -> Any:
        """Return the point (..., d) that :meth:`translate` moves; None for families without one."""
        return None

    def translate(self, offset: PyTree) -> Self:
        """Return the law of the event plus ``offset``, shaped as :meth:`location`; None is zero.

        Raises:
            StructureError: if the offset has other axes, or the family no location.

        >>> from posterity.families import Gaussian
        >>> q = Gaussian.from_standard([1.0, 2.0], np.eye(2))
        >>> q.translate(np.array([0.0, 3.0])).mean
        array([1., 5.])
        """
        return self if offset is None else with_names(self._translate(offset), names_of(self))

    def centred(self, vector: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """Return natural parameters (n, dim) after each member's translation to the origin; the
        same for families without a location.
        """
        made = self.with_natural_parameters(vector)
        place = made.location()
        if place is None:
            return vector
        return made.translate(map_leaves(operator.neg, place)).natural_parameters

    def _translate(self, offset: PyTree) -> Self:
        """Translate the law; families with a location override it."""
        raise StructureError(
            found=f"an offset for a {type(self).__name__}", expected="None: it has no location"
        )

    def _own_offset(self, offset: PyTree) -> Real:
        """Return a checked offset for each of a member's own coordinates, in its precision."""
        if not hasattr(offset, "shape"):
            offset = np.asarray(offset, self.xp.np.result_type(*leaves(self)))
        if offset.shape[-1:] != (self.own_size,) or not broadcasts(
            offset.shape[:-1], self.batch_shape
        ):
            raise StructureError(
                found=f"an offset of shape {offset.shape} for {self!r}",
                expected=f"{self.own_size} numbers a member, as location() has them",
            )
        return offset

    def line(self, drop: float = 300.0) -> Line | None:
        """Return the line for quadrature, to where the density is ``drop`` nats below its peak:
        functions that grow towards the ends, as ``1/z``, need far more than rounding's 37 nats.

        None for a batch, and for laws that are not over one number. Families that have a line
        override ``_line``, for one member.
        """
        return None if self.batch_shape else self._line(drop)

    def _line(self, drop: float) -> Line | None:
        del drop
        return None

    def resampled(
        self, rng: np.random.Generator, factors: Self, pooled: Self, draws: int
    ) -> Self | None:
        """Return posteriors (draws, n) of sites that differ by sampling alone (rubin1984).

        For each draw a parameter is drawn from ``pooled``, and given it each site's factor, of as
        many records as the site has, which is added to this prior. All may be translated by a
        common offset, under which divergences are invariant. None if the family does not define it.

        Args:
            rng: random generator.
            factors: factors of the sites, of batch shape (n,).
            pooled: this prior plus all factors.
            draws: number of draws.
        """
        del rng, factors, pooled, draws
        return None

    def moment_matched(self, weights: Float[Real, " k"]) -> Self:
        """Return the member with the mixture's expected statistics; it minimises ``KL(mix ‖ q)``.

        Source: wainwright2008, section 3.6.

        >>> from posterity.families import Gamma
        >>> members = Gamma.from_standard([1.0, 3.0], [1.0, 1.0])
        >>> members.moment_matched(np.array([0.5, 0.5])).mean.round(3).item()
        2.0
        """
        first = self[(0,) * len(self.batch_shape)]
        return first.with_mean_parameters(weights @ self.mean_parameters)

    # --- derived from the author's formulas --------------------------------------------------

    def is_proper(self) -> Bool[Real, "*batch"]:
        """Tell whether each member is a distribution: all natural parameters are in the domain."""
        xp = self.xp
        size = self.own_size
        proper: Any = True
        for name, coordinate in self.coordinates.items():
            inside = coordinate.domain.contains(xp, getattr(self, name), coordinate.axes, size)
            proper = proper & inside
        return proper

    def _log_prob(self, z: PyTree) -> Floats:
        inner = (self.natural_parameters * self.sufficient_statistics(z)).sum(-1)
        return inner + self.log_base_measure() - self.log_normalizer()

    def negative_entropy(self) -> Float[Real, "*batch"]:
        """Return ``A*(mu) = eta . mu - A(eta)`` in nats, the convex conjugate without ``log h``."""
        inner = (self.natural_parameters * self.mean_parameters).sum(-1)
        return inner - self.log_normalizer()

    def entropy(self) -> Float[Real, "*batch"]:
        """Return the differential entropy in nats.

        >>> from posterity.families import Gamma
        >>> Gamma.from_standard(1.0, 1.0).entropy().round(3).item()
        1.0
        """
        return -self.negative_entropy() - self.log_base_measure()

    def kl(self, other: Self) -> Float[Real, "*batch"]:
        """Return ``KL(self || other)`` in nats, member by member; nonnegative up to rounding.

        Raises:
            StructureError: if the other is of another family, or its own axes differ.

        >>> from posterity.families import Gamma
        >>> Gamma.from_standard(1.0, 1.0).kl(Gamma.from_standard(1.0, 2.0)).round(3).item()
        0.307
        """
        self._check_alike(other)
        return self._kl(alike(self, other)[1])

    def _kl(self, other: Self) -> Float[Real, "*batch"]:
        """Return the Bregman divergence of ``A`` (wainwright2008, section 5.2.2)."""
        step = other.natural_parameters - self.natural_parameters
        gap = other.log_normalizer() - self.log_normalizer()
        return gap - (step * self.mean_parameters).sum(-1)

    def fisher_information(self) -> Float[Real, "*batch dim dim"]:
        """Return ``Cov[s(z)]``, the derivative of the mean parameters, in flat coordinates."""
        vector = self.natural_parameters
        one = self[(0,) * len(self.batch_shape)] if self.batch_shape else self
        flat = vector.reshape(-1, vector.shape[-1])
        with jax.enable_x64(flat.dtype == np.float64):
            each = _jacobians(one, jax.numpy.asarray(flat))
        each = each.reshape(*vector.shape, vector.shape[-1])
        return np.asarray(each) if self.xp.np is np else each

    def squared_length(self, step: Self) -> Float[Real, ""]:
        """Return ``stepᵀ F step`` in nats, summed over a batch: twice the KL of a small step."""
        along = step.natural_parameters
        with jax.enable_x64(self.natural_parameters.dtype == np.float64):
            squared = _squared_length(self, jax.numpy.asarray(along))
        return np.asarray(squared) if self.xp.np is np else squared

    def inverse_fisher_product(self, vector: Flat) -> Flat:
        """Return ``F(η)⁻¹ v``, which maps a gradient in ``η`` to the natural gradient."""
        return self.xp.solve_positive(self.fisher_information(), vector)


@compiled()
def _jacobians(like: ExponentialFamily, vectors: Float[Real, "n dim"]) -> Float[Real, "n dim dim"]:
    """Return derivatives of mean parameters by flat natural parameters, one member after the other,
    as they may be large.
    """

    def means(eta):
        return like.with_natural_parameters(eta).mean_parameters

    return jax.lax.map(jax.jacfwd(means), vectors)


@compiled()
def _squared_length(q: ExponentialFamily, along: Flat) -> Float[Real, ""]:
    """Return ``alongᵀ F(q) along`` summed over a batch, by a derivative of the mean parameters."""

    def means(eta):
        return q.with_natural_parameters(eta).mean_parameters

    _, moved = jax.jvp(means, (jax.numpy.asarray(q.natural_parameters),), (along,))
    return (along * moved).sum()
