"""Mixture: weighted distributions of one family. Not an exponential family itself."""

from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Key

from posterity.arrays.namespace import Real, as_leaf, namespace
from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: Real
    standard_error: Real


class Mixture(eqx.Module):
    """``Σ_k w_k q_k(z)`` with ``q_k`` of one family, ``components`` of batch shape ``(K,)``.

    ``log_weights`` (K,) need not be normalised. Entropy and KL have no closed form: they are
    Monte Carlo estimates that carry their standard error.

    >>> from posterity.families import DiagonalGaussian
    >>> two = DiagonalGaussian.from_standard([[0.0], [9.0]], [[1.0], [1.0]])
    >>> q = Mixture.from_standard([1.0, 3.0], two)
    >>> q.weights
    array([0.25, 0.75])
    """

    log_weights: Float[Real, " k"] = eqx.field(converter=as_leaf)
    components: ExponentialFamily

    def __check_init__(self) -> None:
        if self.components.batch_shape != self.log_weights.shape:
            raise StructureError(
                found=f"weights of shape {self.log_weights.shape} for components of batch shape "
                f"{self.components.batch_shape}",
                expected="one weight a component",
                fix="Give log_weights of shape (K,) and components of batch shape (K,).",
            )

    @classmethod
    def from_standard(cls, weights: Any, components: ExponentialFamily) -> Self:
        """From weights, which are normalised, and components."""
        weights = as_leaf(weights)
        return cls(namespace(weights).np.log(weights / weights.sum()), components)

    def standard_parameters(self) -> dict[str, Any]:
        """``weights`` and ``components``."""
        return {"weights": self.weights, "components": self.components}

    @property
    def weights(self) -> Float[Real, " k"]:
        """Normalised weights."""
        xp = namespace(self.log_weights)
        return xp.np.exp(self.log_weights - xp.logsumexp(self.log_weights))

    def is_proper(self) -> Bool[Real, ""]:
        """Whether the log weights are finite and all components are distributions."""
        finite = namespace(self.log_weights).np.isfinite(self.log_weights).all()
        return finite & self.components.is_proper().all()

    def log_prob(self, z: Any) -> Float[Real, "..."]:
        """Log density in nats at ``z``, of shape ``shape + event``."""
        return namespace(*jax.tree.leaves((self, z))).logsumexp(self._joint(z))

    def responsibilities(self, z: Any) -> Float[Real, "*shape k"]:
        """Posterior probability of each component given ``z``."""
        joint = self._joint(z)
        xp = namespace(joint)
        return xp.np.exp(joint - xp.logsumexp(joint)[..., None])

    def sample(self, key: Key[jax.Array, ""], shape: tuple[int, ...] = ()) -> Any:
        """Independent draws, of shape ``shape + event``."""
        first, second = jax.random.split(key)
        labels = jax.random.categorical(first, jnp.asarray(self.log_weights), shape=shape)
        draws = self.components.sample(second, shape)

        def pick(draw: jax.Array) -> jax.Array:
            index = labels.reshape(shape + (1,) * (draw.ndim - len(shape)))
            return jnp.take_along_axis(draw, index, axis=len(shape)).squeeze(len(shape))

        return jax.tree.map(pick, draws)

    def entropy(self, *, key: Key[jax.Array, ""], num_samples: int = 1024) -> Estimate:
        """Differential entropy in nats, by Monte Carlo."""
        return _estimate(-self.log_prob(self.sample(key, (num_samples,))))

    def kl(self, other: "Mixture", *, key: Key[jax.Array, ""], num_samples: int = 1024) -> Estimate:
        """``KL(self || other)`` in nats, by Monte Carlo; may come out negative when small."""
        z = self.sample(key, (num_samples,))
        return _estimate(self.log_prob(z) - other.log_prob(z))

    def _joint(self, z: Any) -> Real:
        event_axes = _event_axes(self.components)
        spread = jax.tree.map(
            lambda leaf, own: namespace(leaf).np.expand_dims(leaf, leaf.ndim - own), z, event_axes
        )
        total = namespace(self.log_weights).logsumexp(self.log_weights)
        return self.components.log_prob(spread) + (self.log_weights - total)


def _event_axes(components: ExponentialFamily) -> Any:
    """The number of axes of each leaf of one event."""
    member = components[0]
    event = jax.eval_shape(member.sample, jax.random.key(0))
    return jax.tree.map(lambda leaf: leaf.ndim, event)


def _estimate(values: Real) -> Estimate:
    return Estimate(values.mean(), values.std(ddof=1) / len(values) ** 0.5)
