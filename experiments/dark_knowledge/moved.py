"""Images moved a little at random: inputs of students that hear of no label."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from posterity.distillation import Inputs


class Moved(Inputs):
    """Images at random sizes, slants and places, without a label.

    Computer fonts are upright, all of one size; people write neither way. ``x`` (n, side, side).
    """

    x: Any
    turn: float = 0.25
    slant: float = 0.4
    stretch: float = 0.2
    move: float = 1.5

    def sample(self, n: int, *, key: jax.Array) -> Any:
        """Images bent by a linear map each, flat (n, side²)."""
        first, second = jax.random.split(key)
        x = jnp.asarray(self.x)
        x = x[jax.random.randint(first, (n,), 0, len(x))]
        most = jnp.array([self.turn, self.slant, *2 * [self.stretch], *2 * [self.move]])
        changes = most * jax.random.uniform(second, (n, 6), minval=-1.0)
        bent = jax.vmap(_bent)(x, changes[:, 0], changes[:, 1], 1 + changes[:, 2:4], changes[:, 4:])
        return bent.reshape(n, math.prod(x.shape[1:]))


def _bent(image: Any, turn: Any, slant: Any, stretch: Any, move: Any) -> Any:
    side = image.shape[0]
    middle = (side - 1) / 2
    grid = jnp.stack(jnp.meshgrid(*2 * [jnp.arange(side) - middle], indexing="ij"))
    cos, sin = jnp.cos(turn), jnp.sin(turn)
    rotation = jnp.array([[cos, -sin], [sin, cos]])
    shear = jnp.array([[1.0, 0.0], [slant, 1.0]])
    places = jnp.tensordot(rotation @ shear * stretch[:, None], grid, 1) + move[:, None, None]
    return jax.scipy.ndimage.map_coordinates(image, list(places + middle), order=1)
