"""The categorical family."""

from typing import ClassVar, Self

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import ArrayLike, Flat, Float, Int, KeyArray, Real, Shape
from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.coordinates import POSITIVE, Coordinates, vector
from posterity.families.marginals import Marginal, known_moments, numbered
from posterity.families.supports import Labels
from posterity.runtime.lazy import jax
from posterity.runtime.programs import sampler


class Categorical(ExponentialFamily):
    """A law of ``K`` labels; statistics: one-hot indicators without the last label.

    Natural parameter: ``log_odds`` (..., K - 1) against the last label, ``log p_k / p_K``. The
    representation is minimal, so the Fisher information is invertible.

    >>> Categorical.from_standard(probabilities=[0.25, 0.75]).probabilities
    array([0.25, 0.75])
    """

    log_odds: Float[Real, "*batch k"]

    coordinates: ClassVar[Coordinates] = {"log_odds": vector()}
    standard: ClassVar[Coordinates] = {"probabilities": vector(POSITIVE)}
    base_measure = 0.0
    reparameterized = False

    @classmethod
    def from_standard(cls, probabilities: ArrayLike) -> Self:
        """Make a law from positive probabilities (..., K), which are normalised."""
        known = cls._checked(probabilities=probabilities)["probabilities"]
        log = namespace(known).np.log
        return cls._of(log_odds=log(known[..., :-1]) - log(known[..., -1:]))._held()

    @property
    def probabilities(self) -> Float[Real, "*batch labels"]:
        """The probability of each label."""
        return self.xp.np.exp(self.log_probabilities)

    @property
    def log_probabilities(self) -> Float[Real, "*batch labels"]:
        """The logarithms of the probabilities."""
        logits = self._logits()
        return logits - self.xp.logsumexp(logits)[..., None]

    @property
    def support(self) -> Labels:
        return Labels(count=self.own_size + 1)

    over_labels = True
    quantities = ("probability",)

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return all K labels, including the last, which has no coordinate."""
        size = self.own_size + 1
        return names if len(names) == size else numbered(size)

    def marginals(self) -> list[Marginal]:
        """Return the moments of each label's indicator, without quantiles."""
        p = np.asarray(self.probabilities, float)
        return [known_moments(p, np.sqrt(p * (1 - p)))]

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """Return ``log(1 + Σ exp(log odds))``."""
        return self.xp.logsumexp(self._logits())

    @property
    def mean_parameters(self) -> Flat:
        return self.probabilities[..., :-1]

    def with_mean_parameters(self, vector: Flat) -> Self:
        self._check_length(vector)
        last = 1 - vector.sum(-1, keepdims=True)
        return self._of(log_odds=namespace(vector).np.log(vector) - namespace(last).np.log(last))

    def sufficient_statistics(self, z: Int[Real, "*shape"]) -> Float[Real, "*shape dim"]:
        xp = namespace(z, self.log_odds).np
        labels = xp.arange(self.log_odds.shape[-1])
        return (xp.asarray(z)[..., None] == labels).astype(self.log_odds.dtype)

    def _relabel_axis(self, labels: np.ndarray, size: int, axis: int) -> Self:
        if axis == len(self.batch_shape):
            raise StructureError(
                found=f"new names for the labels of {self!r}",
                expected="an axis of the batch: log odds are held against the last label",
            )
        return super()._relabel_axis(labels, size, axis)

    def sample(self, key: KeyArray, shape: Shape = ()) -> Int[Real, "*shape"]:
        return _draw(key, shape, self._logits())

    def _logits(self) -> Real:
        last = self.xp.np.zeros_like(self.log_odds[..., :1])
        return self.xp.np.concatenate([self.log_odds, last], axis=-1)


@sampler
def _draw(key: KeyArray, shape: Shape, logits: Real) -> Int[Real, "*shape"]:
    return jax.random.categorical(key, logits, shape=shape + logits.shape[:-1])
