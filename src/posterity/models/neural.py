"""Bayesian neural networks: a pytree of parameters and the function that applies it."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from posterity.arguments import one_of
from posterity.arrays.tree import static
from posterity.arrays.typing import Float, KeyArray, PyTree, Real, Shape
from posterity.errors import StructureError, UsageError
from posterity.families import DiagonalGaussian, Network
from posterity.families.layers import Dense, Layers
from posterity.models.base import VARIANCE, Model
from posterity.models.data import (
    BINARY_LABELS,
    TARGETS,
    check_column,
    check_data,
    labels,
    pair,
    real_numbers,
)
from posterity.models.forward import Forward, Function, NoisyForward, shapes_of
from posterity.models.likelihoods import LIKELIHOOD, OUTPUTS, log_likelihood
from posterity.runtime.lazy import eqx, jax, jnp
from posterity.runtime.programs import jitted

NOISES = one_of("constant", "varying")


@functools.partial(jitted, static_argnums=1, inline=True)
def _cut(z: Float[Real, " p"], shapes: tuple[Shape, ...]) -> list[Any]:
    """Return arrays of these shapes from flat weights, in order."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    return [p.reshape(shape) for p, shape in zip(jnp.split(z, ends), shapes, strict=True)]


class NeuralNetwork(Model):
    """A network with a mean-field Gaussian over all its weights; data ``(x, y)``.

    ``z`` is the flat vector of weights, in the order of the leaves of the pytree; weights have the
    precision of ``z``. Likelihoods are ``"bernoulli"`` (one logit per input, ``y`` in {0, 1}),
    ``"categorical"`` (K logits, ``y`` in {0, ..., K - 1}) and ``"gaussian"`` (outputs shaped as
    ``y`` with a known noise variance; with ``noise_variance=None`` a pair of outputs and noise
    variances, see :meth:`regression`).

    >>> import jax.numpy as jnp
    >>> parameters = {"w": jnp.zeros((2, 1)), "b": jnp.zeros(1)}
    >>> net = NeuralNetwork(lambda p, x: x @ p["w"] + p["b"], parameters, likelihood="bernoulli")
    >>> net.prior(variance=1.0).precision.shape
    (3,)
    """

    apply: Callable[[Any, Any], Any]
    structure: Any = static()
    shapes: tuple[Shape, ...] = static()
    likelihood: str = static()
    noise_variance: float | None

    families = (DiagonalGaussian,)
    optima = "several"

    def __init__(
        self,
        apply: Callable[[Any, Any], Any],
        parameters: PyTree,
        *,
        likelihood: str = "categorical",
        noise_variance: float | int | None = 1.0,
    ):
        """Make a model from ``apply(parameters, x)`` and one pytree of parameters (their shapes).

        For flax's linen pass ``module.apply`` and ``module.init(...)``; for nnx split the module
        into ``graph, state`` and pass ``lambda p, x: nnx.merge(graph, p)(x)`` and ``state``; for
        equinox see :meth:`from_equinox`. All leaves become weights: leave out batch statistics.

        Raises:
            UsageError: if the likelihood is unknown, or the leaves are not arrays of floats.
            ParameterError: if the noise variance is not positive.
        """
        leaves, self.structure = jax.tree.flatten(parameters)
        LIKELIHOOD.check(likelihood=likelihood)
        VARIANCE.or_none().check(noise_variance=noise_variance)
        strange = [type(leaf).__name__ for leaf in leaves if not eqx.is_inexact_array_like(leaf)]
        if strange or not leaves:
            raise UsageError(
                found=f"{len(leaves)} parameters, of which no floats: {strange}",
                expected="a pytree of arrays of floats, at least one; modules by `from_equinox`",
            )
        self.shapes = tuple(np.shape(leaf) for leaf in leaves)
        known = isinstance(apply, Forward | NoisyForward)
        self.apply = apply if known else Function(apply)
        self.likelihood = likelihood
        self.noise_variance = None if noise_variance is None else float(noise_variance)

    @classmethod
    def from_equinox(cls, module: PyTree, **options: Any) -> "NeuralNetwork":
        """Make a network from an equinox module of one unbatched input; its arrays are the
        parameters.
        """
        arrays, static = eqx.partition(module, eqx.is_inexact_array)

        def apply(parameters, x):
            return jax.vmap(eqx.combine(parameters, static))(x)

        return cls(apply, arrays, **options)

    @classmethod
    def of_layers(cls, layers: Layers, **options: Any) -> "NeuralNetwork":
        """Make a network from layers; its priors are :class:`~posterity.families.Network` laws.

        >>> net = NeuralNetwork.of_layers(Layers.dense(4, 3, 2))
        >>> net.prior(variance=0.1)
        Network(4-3 relu-2)
        """
        return cls(Forward(layers), layers.unravel(np.zeros(layers.size)), **options)

    @classmethod
    def regression(cls, layers: Layers, y: Any, *, noise: str = "constant") -> "NeuralNetwork":
        """Make a regression of unknown noise from the layers of the means, for ``y`` of any scale.

        The noise is learned with the weights. The number of outputs of the last layer is doubled:
        means, then logarithms of noise variances. Weights of zero give a noise variance of a tenth
        of the variance of ``y``.

        Args:
            layers: layers with one output per value of a record.
            y: values (n,) or (n, k), whose means and standard deviations are the outputs' units.
            noise: ``"constant"``, or ``"varying"`` with the inputs.

        Raises:
            UsageError: for another kind of noise.
            StructureError: if ``y`` does not have one value per record and output, or the last
                layer is not dense with biases.
            ParameterError: for values that are not finite.

        >>> net = NeuralNetwork.regression(Layers.dense(4, 3, 1), [1e6, 3e6, 2e6], noise="varying")
        >>> net.layers.summary
        '4-3 relu-2'
        """
        NOISES.check(noise=noise)
        y = real_numbers(y, "the values", None, records=False).astype(np.float64)
        *hidden, last = layers.layers
        columns = y.reshape(len(y), -1) if y.size and y.ndim else np.empty((0, 0))
        if columns.shape[1] != last.outputs or not isinstance(last, Dense) or not last.bias:
            raise StructureError(
                found=f"values of shape {y.shape} for {layers.summary}",
                expected="one value of each output, from a dense layer with biases",
            )
        last = dataclasses.replace(last, outputs=2 * last.outputs)
        layers = Layers((*hidden, last), layers.image)
        # Of equal values the deviation may be a rounding error.
        scale = np.where(np.ptp(columns, 0) > 0, columns.std(0), 1.0)
        forward = NoisyForward(layers, columns.mean(0), scale, noise == "varying")
        parameters = layers.unravel(np.zeros(layers.size))
        return cls(forward, parameters, likelihood="gaussian", noise_variance=None)

    @property
    def layers(self) -> Layers | None:
        """The network's layers, or None if it was not made from layers."""
        return self.apply.layers if isinstance(self.apply, Forward | NoisyForward) else None

    @property
    def size(self) -> int:
        """Number of weights ``p``."""
        return sum(math.prod(shape) for shape in self.shapes)

    def unravel(self, z: Float[Real, " p"]) -> Any:
        """Return the pytree of parameters with the flat weights ``z``."""
        return jax.tree.unflatten(self.structure, _cut(jnp.asarray(z), self.shapes))

    def outputs(self, z: Float[Real, " p"], x: PyTree) -> Any:
        """Return logits or means (or a pair with noise variances) at inputs ``x``."""
        outputs = self.apply(self.unravel(z), x)
        return outputs.reshape(outputs.shape[0]) if self.likelihood == "bernoulli" else outputs

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        return self.log_likelihood_of(self.outputs(z, data[0]), data[1])

    def log_likelihood_of(self, outputs: PyTree, y: Any) -> Float[Real, " n"]:
        """Return ``log p(y | outputs)`` of each record, in nats, for outputs of ``apply``."""
        if self.noise_variance is not None:
            return log_likelihood(outputs, y, self.likelihood, self.noise_variance)
        mean, noise = outputs
        return log_likelihood(mean, y, self.likelihood, noise.reshape(len(noise), -1))

    def prior(self, *, variance: float = 1.0, key: KeyArray | None = None) -> DiagonalGaussian:
        """Return a prior of independent Gaussian weights of equal variance.

        Without a key all means are zero, where the gradient of a layered network vanishes by
        symmetry. With a key, means are scattered by a tenth of the standard deviation.
        """
        means = np.zeros(self.size)
        if key is not None:
            # A fixed dtype, so that all sites with this key draw the same prior.
            noise = np.asarray(jax.random.normal(key, (self.size,), jnp.float32), np.float64)
            means = 0.1 * math.sqrt(variance) * noise
        variances = np.full(self.size, float(variance))
        layers = self.layers
        if layers is not None:
            return Network.from_standard(means, variances, layers)
        return DiagonalGaussian.from_standard(means, variances)

    def check(self, data: PyTree) -> None:
        x, y = pair(data)
        check_data(data, ())
        outputs = self.shape_of_outputs(x)
        categorical = self.likelihood == "categorical"
        if self.likelihood != "gaussian":
            known = labels(outputs[-1], TARGETS.shape) if categorical else BINARY_LABELS
            check_column(y, known)
        target = (*np.shape(y), *outputs[-1:]) if categorical else np.shape(y)
        if outputs != target and (categorical or outputs != (*target, 1)):
            raise StructureError(
                found=f"outputs of shape {outputs} for labels of shape {np.shape(y)}",
                expected=f"{OUTPUTS[self.likelihood]}, as the {self.likelihood} likelihood needs",
            )

    def shape_of_outputs(self, x: PyTree) -> Shape:
        """Return the shape of the outputs for a batch of inputs; a StructureError if the network
        fails.
        """
        z = jax.ShapeDtypeStruct((self.size,), jnp.float32)
        made = shapes_of(lambda z, x: self.apply(self.unravel(z), x), z, x)
        return getattr(made[0] if self.noise_variance is None else made, "shape", ())
