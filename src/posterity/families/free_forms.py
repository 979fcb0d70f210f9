"""The form of the Gaussians of a search (:mod:`posterity.families.gaussian_forms`), and events."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import PyTree, Real
from posterity.families.distribution import Distribution
from posterity.families.gaussian import AnyGaussian
from posterity.families.gaussian_forms import DiagonalForm, FullForm, GaussianForm


def event_of(law: Distribution) -> Any:
    """Return the shapes of one event of a law."""
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, law).sample(jax.random.key(0)))


def shaped(z: Real, like: PyTree) -> Any:
    """Return an event like another from a vector of its numbers (..., size)."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])[:-1].tolist()
    parts = zip(namespace(z).np.split(z, ends, axis=-1), leaves, strict=True)
    rows = [part.reshape(*z.shape[:-1], *leaf.shape) for part, leaf in parts]
    return jax.tree.unflatten(structure, rows)


def form_of(law: Distribution) -> GaussianForm | None:
    """Return the form of Gaussians like this one; None if a law is not one."""
    if not isinstance(law, AnyGaussian):
        return None
    return (DiagonalForm if law.diagonal else FullForm)(law.own_size)
