"""The Beta family."""

from typing import Any, ClassVar, Self

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import ArrayLike, Flat, Float, Int, KeyArray, PyTree, Real, Shape
from posterity.families.base import Line
from posterity.families.coordinates import ABOVE_MINUS_ONE, POSITIVE, Coordinates, place, scalar
from posterity.families.dirichlet import invert_mean_log
from posterity.families.emitting import MixingWeights, check_exchangeable
from posterity.families.formulas import BETA
from posterity.families.marginals import Closed, Marginal, known_moments, same_shape
from posterity.families.supports import UnitInterval
from posterity.runtime.lazy import jax
from posterity.runtime.programs import sampler


class Beta(MixingWeights):
    """The Beta law ``Beta(z | a, b)``; statistics ``(log z, log(1 - z))``.

    Natural parameters: ``a_minus_one`` and ``b_minus_one``. A batch (..., K) can be the ordered
    sticks of a truncated Dirichlet process, which define weights of components (blei2006).

    >>> float(Beta.from_standard(a=2.0, b=6.0).mean)
    0.25
    """

    a_minus_one: Float[Real, "*batch"]
    b_minus_one: Float[Real, "*batch"]

    coordinates: ClassVar[Coordinates] = {
        "a_minus_one": scalar(ABOVE_MINUS_ONE),
        "b_minus_one": scalar(ABOVE_MINUS_ONE),
    }
    standard: ClassVar[Coordinates] = {"a": scalar(POSITIVE), "b": scalar(POSITIVE)}
    shows_prior = True

    @classmethod
    def from_standard(cls, a: ArrayLike, b: ArrayLike) -> Self:
        """Make it from the concentrations at one and at zero, both positive."""
        known = cls._checked(a=a, b=b)
        return cls._of(a_minus_one=known["a"] - 1, b_minus_one=known["b"] - 1)._held()

    @property
    def a(self) -> Float[Real, "*batch"]:
        """The concentration at one."""
        return self.a_minus_one + 1

    @property
    def b(self) -> Float[Real, "*batch"]:
        """The concentration at zero."""
        return self.b_minus_one + 1

    @property
    def mean(self) -> Float[Real, "*batch"]:
        """The mean ``a / (a + b)``."""
        return self.a / (self.a + self.b)

    def observations(self) -> Float[Real, "*batch"]:
        """Return ``a + b``."""
        return self.a + self.b

    @property
    def support(self) -> UnitInterval:
        return UnitInterval()

    def _line(self, drop: float) -> Line:
        """Return the line ``x = logit z``, with log density ``a log σ(x) + b log σ(-x)``.

        The peak is at ``log(a/b)``, with curvature ``ab/(a + b)``. The log density is at most ``a
        x`` and ``-b x``, which bound the tails.
        """
        np_ = self.xp.np
        a = self.a
        b = self.b
        peak = -a * np_.log1p(b / a) - b * np_.log1p(a / b)
        centre = np_.log(a) - np_.log(b)
        scale = 1 / np_.sqrt(1 + a / (1 + a / b))

        def at(offset: PyTree) -> tuple[Any, Any, Any]:
            x = centre + offset
            statistics = -np_.stack([np_.logaddexp(0.0, -x), np_.logaddexp(0.0, x)], axis=-1)
            limits = np_.finfo(x.dtype)  # keeps z inside of (0, 1) after rounding
            z = np_.clip(np_.exp(statistics[..., 0]), limits.tiny, 1 - limits.epsneg)
            return z, statistics, statistics @ np_.stack([a, b])

        return Line(scale, (peak - drop) / a - centre, (drop - peak) / b - centre, at)

    def marginals(self) -> list[Marginal]:
        return [Closed(BETA, same_shape(self.a, self.b)).picked((..., None))]

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """Return ``log B(a, b)``."""
        gammaln = self.xp.special.gammaln
        return gammaln(self.a) + gammaln(self.b) - gammaln(self.a + self.b)

    @property
    def mean_parameters(self) -> Flat:
        """``ψ(a) - ψ(a + b)`` and ``ψ(b) - ψ(a + b)``."""
        digamma = self.xp.digamma
        total = digamma(self.a + self.b)
        return self.flatten(
            a_minus_one=digamma(self.a) - total, b_minus_one=digamma(self.b) - total
        )

    def with_mean_parameters(self, vector: Flat) -> Self:
        self._check_length(vector)
        natural = invert_mean_log(vector) - 1
        return self._of(a_minus_one=natural[..., 0], b_minus_one=natural[..., 1])

    def sufficient_statistics(self, z: Float[Real, "*shape"]) -> Float[Real, "*shape dim"]:
        xp = namespace(z).np
        return self.flatten(a_minus_one=xp.log(z), b_minus_one=xp.log1p(-z))

    def sample(self, key: KeyArray, shape: Shape = ()) -> Float[Real, "*shape"]:
        return _draw(key, shape, self.a, self.b)

    # --- as sticks of a Dirichlet process ---------------------------------------------------------

    @property
    def weights_shape(self) -> Shape:
        return self.batch_shape

    def mean_weights(self) -> Float[Real, "*batch k"]:
        """Return the expected weights by stick breaking, normalised to sum to one."""
        np_ = self.xp.np
        stick = self.mean
        left = np_.cumprod(1 - stick[..., :-1], axis=-1)
        weights = stick * np_.concatenate([np_.ones_like(stick[..., :1]), left], axis=-1)
        return weights / weights.sum(-1, keepdims=True)

    def weight_marginals(self) -> Marginal:
        """Return means and standard deviations of products of independent sticks; no quantiles."""
        mean = np.asarray(self.mean_weights(), float)
        a, b = same_shape(self.a, self.b)
        square = (a + b) * (a + b + 1)
        ones = np.ones((*a.shape[:-1], 1))

        def before(left):
            return np.concatenate([ones, np.cumprod(left, axis=-1)[..., :-1]], axis=-1)

        first = a / (a + b) * before(b / (a + b))
        second = a * (a + 1) / square * before(b * (b + 1) / square)
        return known_moments(mean, np.sqrt(np.maximum(second - first**2, 0.0)))

    def counts(self, prior: Self | None = None) -> Float[np.ndarray, "*batch k"]:
        """Return ``a - 1``, as ``a`` is one in any prior."""
        del prior
        return np.asarray(self.a) - 1

    @classmethod
    def of_counts(cls, counts: Float[np.ndarray, "*batch k"]) -> Self:
        """Return sticks whose parameters are their own count and the sum of all later ones."""
        later = np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1][..., 1:]
        return cls(counts, np.concatenate([later, np.zeros_like(counts[..., :1])], axis=-1))

    @classmethod
    def exchangeable(cls, total: float, categories: int) -> Self:
        """Return ``Beta(1, total)`` for every stick."""
        return cls(np.zeros(categories), np.full(categories, total - 1))

    def total(self, prior: Self | None) -> float:
        """Return the prior's ``b``, which is that of the last stick, as no count follows it."""
        total = float(self.b[-1])
        if prior is not None:
            fair = bool((np.asarray(prior.a) == 1).all() and np.allclose(prior.b, total))
            check_exchangeable(fair, prior.standard_parameters())
        return total

    def relabelled(self, labels: Int[np.ndarray, " k"], size: int) -> Self:
        """Return the sticks of relabelled counts, with sums over later sticks recomputed."""
        return self.of_counts(place(np.asarray(self.a_minus_one), labels, size, -1))

    def among(self, rows: ArrayLike) -> Self | None:
        """Return None, as the law depends on the order of the sticks."""
        del rows
        return None


@sampler
def _draw(key: KeyArray, shape: Shape, a: Real, b: Real) -> Float[Real, "*shape"]:
    return jax.random.beta(key, a, b, shape + a.shape, a.dtype)
