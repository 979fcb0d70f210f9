"""Mixtures of laws of one family; a mixture is not an exponential family."""

import dataclasses
from typing import Any, NamedTuple, Self

import numpy as np

from posterity.arrays.leaves import as_leaf
from posterity.arrays.namespace import is_traced, namespace
from posterity.arrays.typing import Bool, Float, Floats, Int, KeyArray, PyTree, Real, Shape
from posterity.errors import StructureError
from posterity.families.coordinates import POSITIVE, checked, vector
from posterity.families.distribution import Distribution, Members
from posterity.families.marginals import Marginal, MixedMarginal, Names, Table
from posterity.families.names import alike, called, copies, few, joined, names_of, with_names
from posterity.families.supports import map_supports
from posterity.runtime.lazy import jax
from posterity.runtime.programs import sampler


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: Real
    standard_error: Real


class Mixture(Distribution):
    """The mixture ``Σ_k w_k q_k(z)`` of ``components`` of one family, of batch shape ``(K,)``.

    ``log_weights`` (K,) need not be normalised. KL has no closed form, and is a Monte Carlo
    estimate with a standard error.

    >>> from posterity.families import DiagonalGaussian
    >>> two = DiagonalGaussian.from_standard([[0.0], [9.0]], [[1.0], [1.0]])
    >>> q = Mixture.from_standard([1.0, 3.0], two)
    >>> q.weights
    array([0.25, 0.75])
    """

    log_weights: Float[Real, " k"]
    components: Any

    is_mixture = True
    addend = (
        "Wrap components without labels as posterity.Plate(members, weights), or take "
        ".collapse(), the one law nearest to all."
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_weights", as_leaf(self.log_weights))
        shape = self.log_weights.shape
        whole = len(shape) == 1 and shape[0] and isinstance(self.components, Distribution)
        if not whole or self.components.batch_shape != shape:
            raise StructureError(
                found=f"weights of shape {shape} for components {self.components!r}",
                expected="one weight a component, and at least one component",
            )

    @classmethod
    def from_standard(cls, weights: Any, components: Distribution) -> Self:
        """Make a law from components and positive weights (K,), which are normalised."""
        known = checked({"weights": vector(POSITIVE)}, {"weights": weights}, cls.__name__)
        weights = known["weights"]
        return cls(namespace(weights).np.log(weights / weights.sum()), components)

    def standard_parameters(self) -> dict[str, Any]:
        return {"weights": self.weights, "components": self.components}

    @property
    def weights(self) -> Float[Real, " k"]:
        """Normalised weights."""
        xp = namespace(self.log_weights)
        return xp.np.exp(self.log_weights - xp.logsumexp(self.log_weights))

    @property
    def size(self) -> int:
        """The number of components ``K``."""
        return self.log_weights.shape[0]

    @property
    def batch_shape(self) -> Shape:
        return ()

    @property
    def event_shape(self) -> Any:
        return self.components.event_shape

    def named_parts(self) -> dict[str, Any]:
        """Return ``components``, whose names are the mixture's."""
        return {"components": self.components}

    @property
    def support(self) -> Any:
        return self.components.support

    def exchangeable_members(self) -> Members:
        weights = np.asarray(self.weights, float)
        return Members("component", self.components, "components", None, weights)

    def marginals(self) -> list[Marginal]:
        weights = np.asarray(self.weights, float)
        return [MixedMarginal(weights, law) for law in self.components.marginals()]

    def numpy_draws(self, rng: np.random.Generator, count: int) -> Float[np.ndarray, "..."]:
        """Draw from all components, and pick one of them at random for each draw."""
        each = self.components.numpy_draws(rng, count)
        chosen = rng.choice(self.size, count, p=np.asarray(self.weights, float))
        return each[np.arange(count), chosen]

    def _tables(self, names: Names, path: str, block: str) -> list[Table]:
        inner = self.components._tables(names, joined(path, "components"), block)
        weights = np.asarray(self.weights, float)
        return [dataclasses.replace(t, law=MixedMarginal(weights, t.law)) for t in inner]

    def _described(self, numbers: bool) -> str:
        shown = [copies(self, self.components)]
        if numbers:
            shown.append(f"weights {few(np.asarray(self.weights))}")
        return called(self, shown)

    def is_proper(self) -> Bool[Real, ""]:
        finite = namespace(self.log_weights).np.isfinite(self.log_weights).all()
        return finite & self.components.is_proper().all()

    def _log_prob(self, z: PyTree) -> Floats:
        joint = self._joint(z)
        return namespace(joint).logsumexp(joint)

    def collapse(self) -> Any:
        """Return one law in place of the mixture, which can be a ledger's prior: the member with
        the mixture's expected statistics (mean and covariance, for Gaussians), which minimises
        ``KL(mixture ‖ q)`` and covers all modes. A UsageError for components without moment
        matching.

        >>> from posterity.families import DiagonalGaussian
        >>> two = DiagonalGaussian.from_standard([[-1.0], [1.0]], [[1.0], [1.0]])
        >>> Mixture.from_standard([0.5, 0.5], two).collapse().variance
        array([2.])
        """
        one = self.components.moment_matched(self.weights)
        return with_names(one, names_of(self.components))

    def sample(self, key: KeyArray, shape: Shape = ()) -> Any:
        """Return independent draws of shape ``shape + event``."""
        labels, rest = _drawn_labels(key, shape, self.log_weights)
        return self.components.sample_members(rest, labels)

    def kl(self, other: Distribution, *, key: KeyArray, num_samples: int = 1024) -> Estimate:
        """Return ``KL(self || other)`` in nats, by Monte Carlo; a small one may be negative."""
        other = alike(self, other)[1]
        z = self.sample(key, (num_samples,))
        if not any(map(is_traced, jax.tree.leaves(z))):
            z = jax.device_get(z)
        gaps = self.log_prob(z) - other.log_prob(z)
        return Estimate(gaps.mean(), gaps.std(ddof=1) / num_samples**0.5)

    def _joint(self, z: PyTree) -> Real:
        """Return ``log w_k q_k(z)``, of shape ``shape + (K,)``."""
        # Events get an axis of length one for the components.

        def spread(own, part):
            return namespace(part).np.expand_dims(part, part.ndim - len(own))

        total = namespace(self.log_weights).logsumexp(self.log_weights)
        each = self.components.log_prob(map_supports(spread, self.event_shape, z))
        return each + (self.log_weights - total)


@sampler
def _drawn_labels(
    key: KeyArray, shape: Shape, log_weights: Real
) -> tuple[Int[Real, "*shape"], KeyArray]:
    """Return labels of components, and a key for draws of these."""
    first, second = jax.random.split(key)
    return jax.random.categorical(first, log_weights, shape=shape), second
