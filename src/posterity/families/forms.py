"""Unconstrained parameters of members of a family, for searches over laws.

A :class:`FreeForm` has the functions that all members of one structure share: from parameters to
draws, densities and entropies, and how a vector of unconstrained numbers moves the parameters.
Moves are relative to their start, means in standard deviations and scales as ratios, so that a step
of 1 has about the same length in any units. Parameters of one member are a pytree, of NumPy arrays
if they come from a law; events are vectors of all their numbers (see :func:`flat`). Draws,
densities, entropies and moves are pure functions and can be traced.
"""

import abc
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from posterity.arrays.typing import PyTree, Real


class FreeForm(abc.ABC):
    """The unconstrained parameters of one family; hashable, and without arrays."""

    smooth: bool = False
    """True of a :class:`SmoothForm`; otherwise the noise of a draw is a random key."""

    size: int
    """Numbers of one event."""

    @property
    @abc.abstractmethod
    def noise_size(self) -> int:
        """Number of normal random numbers for one draw, if draws are smooth."""

    @property
    @abc.abstractmethod
    def moves(self) -> int:
        """Number of coordinates of a move of one member."""

    @abc.abstractmethod
    def parameters(self, law: Any) -> Any:
        """Return the parameters of a member."""

    @abc.abstractmethod
    def law(self, parameters: PyTree, like: Any) -> Any:
        """Return the member, or a batch (K,) of them, as NumPy arrays, of the kind of ``like``."""

    @abc.abstractmethod
    def draw(self, parameters: PyTree, noise: Real) -> Any:
        """Map noise (noise_size,), or a key, to an event (size,)."""

    @abc.abstractmethod
    def log_prob(self, parameters: PyTree, z: Real) -> Float[jax.Array, ""]:
        """Return the log density of one event (size,), in nats."""

    @abc.abstractmethod
    def entropy(self, parameters: PyTree) -> Float[jax.Array, ""]:
        """Return the differential entropy, in nats."""

    @abc.abstractmethod
    def move(self, parameters: PyTree, v: Real) -> Any:
        """Return the parameters after a move ``v``; a move of zero changes nothing."""


class SmoothForm(FreeForm):
    """A form whose draws are smooth functions of standard normal noise.

    Its members can be placed around an event, and have standard deviations.
    """

    smooth = True

    @abc.abstractmethod
    def place(self, z: Real, deviation: Real, root: np.ndarray | None = None) -> Any:
        """Return parameters around an event (size,), with standard deviations (size,).

        If the family has correlations, they are those of ``root @ root.T`` (d, d), if it is given.
        """

    @abc.abstractmethod
    def deviation(self, parameters: PyTree) -> Any:
        """Return the standard deviations of the coordinates (size,)."""

    @abc.abstractmethod
    def narrowed(self, parameters: PyTree) -> Any:
        """Return parameters with half the standard deviations, around the same event."""

    @abc.abstractmethod
    def narrowest(self, parameters: PyTree, unit: Float[np.ndarray, " d"]) -> float:
        """Return the least standard deviation in any direction, in these units."""


class ExactForm(SmoothForm):
    """Gaussians ``mean + root @ noise`` whose roots have inverses: methods take NumPy's arrays as
    well as JAX's, events and noise in rows too, and gradients have closed forms.
    """

    @property
    @abc.abstractmethod
    def widening(self) -> Float[np.ndarray, " moves"]:
        """The gradient of the entropy in moves."""

    @abc.abstractmethod
    def standardised(self, parameters: PyTree, away: Real) -> Any:
        """Return ``root⁻¹ away`` of differences (..., d) from the mean."""

    @abc.abstractmethod
    def pulled(self, parameters: PyTree, away: Real) -> Any:
        """Return ``root⁻ᵀ away``: minus the slope of the log density at standardised ``away``."""

    @abc.abstractmethod
    def pull(self, parameters: PyTree, v: Real, noise: Real, slopes: Real) -> Any:
        """Return the gradient in moves ``v`` of ``Σ slopes · draws``, for rows of both."""
