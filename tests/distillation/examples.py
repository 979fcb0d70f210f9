"""Small problems that the tests of this room share."""

from typing import Any

import jax
import numpy as np

from posterity.distillation import Langevin
from posterity.families import Gaussian
from posterity.models import LinearRegression, NeuralNetwork
from posterity.networks import Layers

KEY = jax.random.key(0)
LAYERS = Layers.dense(2, 5, 2)
NET = NeuralNetwork.of_layers(LAYERS)


def points(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Two classes in the plane, which overlap."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2))
    return x, (x[:, 0] + 0.5 * rng.normal(size=count) > 0).astype(int)


def network_teacher(**options: Any) -> Langevin:
    """Chains of a small network."""
    options = {"chains": 8, "climb": 300, "burn_in": 500} | options
    return Langevin(NET, NET.prior(variance=1.0), points(), **options)


def line(scale: Any = (1.0, 1.0), count: int = 60) -> tuple[Any, Any, Gaussian]:
    """Data of a linear regression, and its exact posterior under :func:`line_prior`."""
    rng = np.random.default_rng(1)
    x = np.stack([np.ones(count), rng.normal(size=count)], 1) * np.asarray(scale)
    y = x @ (np.array([1.0, -2.0]) / np.asarray(scale)) + rng.normal(size=count)
    prior = line_prior(scale)
    precision = np.asarray(prior.precision) + x.T @ x
    return (x, y), prior, Gaussian(x.T @ y, precision)


def line_prior(scale: Any = (1.0, 1.0)) -> Gaussian:
    """A wide one."""
    return Gaussian.from_standard(np.zeros(2), np.diag(100.0 / np.asarray(scale) ** 2))


LINE = LinearRegression(1.0)
