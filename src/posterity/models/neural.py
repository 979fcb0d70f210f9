"""Bayesian neural networks: any pytree of parameters and the function that applies it."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from posterity.arrays.tree import static
from posterity.arrays.typing import Float, KeyArray, PyTree, Real
from posterity.errors import StructureError, UsageError
from posterity.families import DiagonalGaussian, ExponentialFamily, Network
from posterity.families.layers import Layers
from posterity.lazy import eqx, jax, jnp
from posterity.models.base import VARIANCE, Model, Optima
from posterity.models.data import BINARY_LABELS, TARGETS, check_column, check_data, labels, pair
from posterity.models.forward import Forward
from posterity.models.likelihoods import LIKELIHOOD, OUTPUTS, log_likelihood


class NeuralNetwork(Model):
    """A network with a mean-field Gaussian over all its weights; data ``(x, y)``.

    ``z`` is the flat vector of weights, in the order of the leaves of the pytree; they take the
    precision of ``z``, whatever that of the parameters was.
    Likelihoods: ``"bernoulli"`` (one logit an input, ``y`` in {0, 1}), ``"categorical"`` (K
    logits, ``y`` in {0, …, K - 1}) and ``"gaussian"`` (outputs shaped as ``y``, known noise
    variance).

    >>> import jax.numpy as jnp
    >>> parameters = {"w": jnp.zeros((2, 1)), "b": jnp.zeros(1)}
    >>> net = NeuralNetwork(lambda p, x: x @ p["w"] + p["b"], parameters, likelihood="bernoulli")
    >>> net.prior(variance=1.0).precision.shape
    (3,)
    """

    apply: Callable[[Any, Any], Any] = static()
    structure: Any = static()
    shapes: tuple[tuple[int, ...], ...] = static()
    likelihood: str = static()
    noise_variance: float = static()

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (DiagonalGaussian,)
    optima: ClassVar[Optima] = "several"

    def __init__(
        self,
        apply: Callable[[Any, Any], Any],
        parameters: PyTree,
        *,
        likelihood: str = "categorical",
        noise_variance: float | int = 1.0,
    ):
        """From ``apply(parameters, x)`` and one pytree of parameters, for their shapes.

        For flax's linen pass ``module.apply`` and ``module.init(...)``; for nnx split the module
        into ``graph, state`` and pass ``lambda p, x: nnx.merge(graph, p)(x)`` and ``state``; for
        equinox see :meth:`from_equinox`. All leaves become weights: leave out batch statistics.

        Raises:
            UsageError: if the likelihood is unknown, or the leaves are not arrays of floats.
            ParameterError: if the noise variance is not positive.
        """
        leaves, self.structure = jax.tree.flatten(parameters)
        LIKELIHOOD.check(likelihood=likelihood)
        VARIANCE.check(noise_variance=noise_variance)
        strange = [type(leaf).__name__ for leaf in leaves if not eqx.is_inexact_array_like(leaf)]
        if strange or not leaves:
            raise UsageError(
                found=f"{len(leaves)} parameters, of which no floats: {strange}",
                expected="a pytree of arrays of floats, at least one",
                fix="Pass initialised parameters alone; equinox modules to `from_equinox`.",
            )
        self.shapes = tuple(np.shape(leaf) for leaf in leaves)
        self.apply, self.likelihood = apply, likelihood
        self.noise_variance = float(noise_variance)

    @classmethod
    def from_equinox(cls, module: PyTree, **options: Any) -> "NeuralNetwork":
        """From an equinox module of one unbatched input; its arrays are the parameters."""
        arrays, static = eqx.partition(module, eqx.is_inexact_array)

        def apply(parameters: PyTree, x: PyTree) -> Any:
            return jax.vmap(eqx.combine(parameters, static))(x)

        return cls(apply, arrays, **options)

    @classmethod
    def of_layers(cls, layers: Layers, **options: Any) -> "NeuralNetwork":
        """From the layers of a :class:`~posterity.families.Network`, which priors then are.

        >>> net = NeuralNetwork.of_layers(Layers.dense(4, 3, 2))
        >>> net.prior(variance=0.1)
        Network(4-3 relu-2)
        """
        return cls(Forward(layers), layers.unravel(np.zeros(layers.size)), **options)

    @property
    def layers(self) -> Layers | None:
        """The network's layers, where it was made from them."""
        return self.apply.layers if isinstance(self.apply, Forward) else None

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

    def outputs(self, z: Float[Real, " p"], x: PyTree) -> Float[Real, "n ..."]:
        """Logits or means of the network with weights ``z`` at inputs ``x``."""
        outputs = self.apply(self.unravel(z), x)
        return outputs.reshape(outputs.shape[0]) if self.likelihood == "bernoulli" else outputs

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        """``log p(y | network(x))``."""
        x, y = data
        outputs = self.outputs(z, x)
        return log_likelihood(outputs, y, self.likelihood, self.noise_variance)

    def prior(self, *, variance: float = 1.0, key: KeyArray | None = None) -> DiagonalGaussian:
        """Independent Gaussian weights of equal variance.

        Without a key all means are zero. There the gradient of a layered network vanishes by
        symmetry, so give a key: it scatters the means by a tenth of the standard deviation.
        """
        means = np.zeros(self.size)
        if key is not None:
            # One dtype, so that all sites that know the key draw the same prior.
            noise = np.asarray(jax.random.normal(key, (self.size,), jnp.float32), np.float64)
            means = 0.1 * math.sqrt(variance) * noise
        variances, layers = np.full(self.size, float(variance)), self.layers
        if layers is not None:
            return Network.from_standard(means, variances, layers)
        return DiagonalGaussian.from_standard(means, variances)

    def check(self, data: PyTree) -> None:
        """Inputs that the network takes, and labels that fit its outputs."""
        x, y = pair(data)
        check_data(data, ())
        outputs, categorical = self._shape_of_outputs(x), self.likelihood == "categorical"
        if self.likelihood != "gaussian":
            known = labels(outputs[-1], TARGETS.shape) if categorical else BINARY_LABELS
            check_column(y, known)
        target = (*np.shape(y), *outputs[-1:]) if categorical else np.shape(y)
        if outputs != target and (categorical or outputs != (*target, 1)):
            raise StructureError(
                found=f"outputs of shape {outputs} for labels of shape {np.shape(y)}",
                expected=f"{OUTPUTS[self.likelihood]}, as the {self.likelihood} likelihood needs",
                fix="Mend the last layer, the labels, or the likelihood.",
            )

    def _shape_of_outputs(self, x: PyTree) -> tuple[int, ...]:
        z = jax.ShapeDtypeStruct((self.size,), jnp.float32)
        try:
            return jax.eval_shape(lambda z, x: self.apply(self.unravel(z), x), z, x).shape
        except Exception as error:  # whatever the user's network raises
            shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x)]
            raise StructureError(
                found=f"{type(error).__name__}: {error} for inputs of shapes {shapes}",
                expected="a network that gives one array for a batch of inputs",
                fix="Check the shape of x and that `apply(parameters, x)` takes a batch.",
            ) from error
