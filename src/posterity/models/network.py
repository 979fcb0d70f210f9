"""Bayesian neural networks: any pytree of parameters and the function that applies it."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Key

from posterity.errors import UsageError
from posterity.families import DiagonalGaussian, ExponentialFamily
from posterity.families.arrays import Real
from posterity.families.gaussian import LOG_2PI
from posterity.models.base import Model, check_values

Likelihood = Literal["bernoulli", "categorical", "gaussian"]


class NeuralNetwork(Model):
    """A network with a mean-field Gaussian over all its weights; data ``(x, y)``.

    ``z`` is the flat vector of weights, in the order of the leaves of the pytree.
    Likelihoods: ``"bernoulli"`` (one logit an input, ``y`` in {0, 1}), ``"categorical"`` (K
    logits, ``y`` in {0, …, K - 1}) and ``"gaussian"`` (outputs shaped as ``y``, known noise
    variance).

    >>> import jax.numpy as jnp
    >>> parameters = {"w": jnp.zeros((2, 1)), "b": jnp.zeros(1)}
    >>> net = NeuralNetwork(lambda p, x: x @ p["w"] + p["b"], parameters, likelihood="bernoulli")
    >>> net.prior(variance=1.0).precision.shape
    (3,)
    """

    apply: Callable[[Any, Any], Any] = eqx.field(static=True)
    structure: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    likelihood: Likelihood = eqx.field(static=True)
    noise_variance: float = eqx.field(static=True)

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (DiagonalGaussian,)

    def __init__(
        self,
        apply: Callable[[Any, Any], Any],
        parameters: Any,
        *,
        likelihood: Likelihood = "categorical",
        noise_variance: float = 1.0,
    ):
        """From ``apply(parameters, x)`` and one pytree of parameters, for their shapes.

        For flax pass ``module.apply`` and ``module.init(...)``; for equinox see
        :meth:`from_equinox`.

        Raises:
            UsageError: if the likelihood is unknown or there are no parameters.
        """
        leaves, self.structure = jax.tree.flatten(parameters)
        self.shapes = tuple(np.shape(leaf) for leaf in leaves)
        if likelihood not in ("bernoulli", "categorical", "gaussian") or not leaves:
            raise UsageError(
                found=f"likelihood {likelihood!r} and {len(leaves)} arrays of parameters",
                expected="'bernoulli', 'categorical' or 'gaussian', and at least one parameter",
                fix="Choose the likelihood of the labels, and pass initialised parameters.",
            )
        self.apply = apply
        self.likelihood, self.noise_variance = likelihood, float(noise_variance)

    @classmethod
    def from_equinox(cls, module: Any, **options: Any) -> "NeuralNetwork":
        """From an equinox module of one unbatched input; its arrays are the parameters."""
        arrays, static = eqx.partition(module, eqx.is_inexact_array)

        def apply(parameters: Any, x: Any) -> Any:
            return jax.vmap(eqx.combine(parameters, static))(x)

        return cls(apply, arrays, **options)

    @property
    def size(self) -> int:
        """Number of weights ``p``."""
        return sum(math.prod(shape) for shape in self.shapes)

    def unravel(self, z: Float[Real, " p"]) -> Any:
        """The pytree of parameters with the flat weights ``z``."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        pieces = jnp.split(jnp.asarray(z), ends)
        shaped = [p.reshape(shape) for p, shape in zip(pieces, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, shaped)

    def outputs(self, z: Float[Real, " p"], x: Any) -> Float[Real, "n ..."]:
        """What the network with weights ``z`` says of ``x``: logits or means."""
        outputs = self.apply(self.unravel(z), x)
        return outputs.reshape(outputs.shape[0]) if self.likelihood == "bernoulli" else outputs

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """``log p(y | network(x))``."""
        x, y = data
        outputs = self.outputs(z, x)
        if self.likelihood == "bernoulli":
            return y * outputs - jax.nn.softplus(outputs)
        if self.likelihood == "categorical":
            log_probabilities = jax.nn.log_softmax(outputs)
            labels = jnp.asarray(y, int)[:, None]
            return jnp.take_along_axis(log_probabilities, labels, -1)[:, 0]
        residual = ((y - outputs.reshape(y.shape)) ** 2).reshape(y.shape[0], -1)
        each = residual / self.noise_variance + math.log(self.noise_variance) + LOG_2PI
        return -each.sum(-1) / 2

    def prior(
        self, *, variance: float = 1.0, key: Key[jax.Array, ""] | None = None
    ) -> DiagonalGaussian:
        """Independent Gaussian weights of equal variance.

        Without a key all means are zero. There the gradient of a layered network vanishes by
        symmetry, so give a key: it scatters the means by a tenth of the standard deviation.
        """
        means = np.zeros(self.size)
        if key is not None:
            noise = np.asarray(jax.random.normal(key, (self.size,)), np.float64)
            means = 0.1 * math.sqrt(variance) * noise
        return DiagonalGaussian.from_standard(means, np.full(self.size, variance))

    def check(self, data: Any) -> None:
        """Inputs and labels; whole labels where they are classes."""
        super().check(data)
        labels = np.asarray(data[1])
        if self.likelihood == "bernoulli":
            check_values(labels, np.isin(labels, (0, 1)), "labels in {0, 1}")
        if self.likelihood == "categorical":
            whole = (labels >= 0) & (labels == np.floor(labels))
            check_values(labels, whole, "labels 0, 1, 2, …")
