"""Components as the search moves them: parameters that nothing bounds, in units of their own.

A :class:`Shape` says for one kind of law how parameters become draws, densities and entropies, and
how a vector of plain numbers moves them. Moves are relative to where the search began: means in
its standard deviations, scales as ratios; so steps fit whatever the units of the target are.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posterity.models.cubature import normal_pairs

QUASI = 21_000
"""Numbers of noise beyond which there are no quasi-random sequences."""


class Shape(abc.ABC):
    """How members of one family are parametrised; hashable, and without arrays.

    Parameters are a pytree for one component; functions are pure and traceable.
    """

    nodal: bool = True
    """Whether draws are smooth functions of normal noise: sums over fixed nodes serve then."""

    @property
    @abc.abstractmethod
    def noise_size(self) -> int:
        """Numbers of normal noise that one draw takes."""

    @property
    @abc.abstractmethod
    def moves(self) -> int:
        """Numbers that move one component."""

    @abc.abstractmethod
    def of(self, law: Any) -> Any:
        """The parameters of a member."""

    @abc.abstractmethod
    def law(self, parameters: Any) -> Any:
        """The member, or the batch (K,) of them."""

    @abc.abstractmethod
    def draw(self, parameters: Any, noise: Any) -> Any:
        """The event that the noise becomes."""

    @abc.abstractmethod
    def log_prob(self, parameters: Any, z: Any) -> Float[jax.Array, ""]:
        """Log density of one event, in nats."""

    @abc.abstractmethod
    def entropy(self, parameters: Any) -> Float[jax.Array, ""]:
        """Differential entropy, in nats."""

    @abc.abstractmethod
    def move(self, parameters: Any, v: Float[jax.Array, " p"]) -> Any:
        """The parameters moved; not at all by zero."""

    @abc.abstractmethod
    def place(self, z: Any, deviation: Any) -> Any:
        """Parameters about an event, with these standard deviations, shaped as the event.

        Only where ``nodal``.
        """

    def fit(self, z: Any, deviation: Any, root: np.ndarray) -> Any:
        """As :meth:`place`, where a root (d, d) of a whole covariance is known, too."""
        del root
        return self.place(z, deviation)

    @abc.abstractmethod
    def deviation(self, parameters: Any) -> Any:
        """Standard deviations of the coordinates, shaped as an event; only where ``nodal``."""

    def noise(self, key: jax.Array, number: int) -> Any:
        """Fresh noise for so many draws; traced."""
        return jax.random.normal(key, (number, self.noise_size))

    def fixed_noise(self, key: jax.Array, number: int) -> Any:
        """The same outside of compiled code."""
        if not self.nodal:
            return self.noise(key, number)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32))
        return jnp.asarray(rng.standard_normal((number, self.noise_size)))

    def nodes(self, number: int) -> Float[np.ndarray, "n noise"]:
        """Noise that does not change: a quasi-random sample in mirrored pairs, of unit variances.

        Of unit covariance where there are as many pairs as numbers.
        """
        pairs = max(number // 2, 1)
        if self.noise_size > QUASI:
            half = np.random.default_rng(0).standard_normal((pairs, self.noise_size))
            nodes = np.concatenate([half, -half])
        else:
            nodes = normal_pairs(self.noise_size, pairs)
        return nodes / nodes.std(0)

    @abc.abstractmethod
    def narrowest(self, parameters: Any, unit: Any) -> float:
        """The least deviation in any direction, in units (d,) of its coordinates; if ``nodal``."""
