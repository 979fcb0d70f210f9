"""Beta."""

from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Key

from posterity.arrays.namespace import Real, as_leaf, namespace
from posterity.families.base import SCALAR, ExponentialFamily
from posterity.families.dirichlet import invert_mean_log, solve_diagonal_minus_constant


class Beta(ExponentialFamily):
    """``Beta(z | a, b)``; statistics ``(log z, log(1 - z))``.

    Natural parameters: ``a_minus_one`` and ``b_minus_one``.

    >>> float(Beta.from_standard(a=2.0, b=6.0).mean)
    0.25
    """

    a_minus_one: Float[Real, "*batch"] = eqx.field(converter=as_leaf)
    b_minus_one: Float[Real, "*batch"] = eqx.field(converter=as_leaf)

    coordinates: ClassVar[dict[str, int]] = {"a_minus_one": SCALAR, "b_minus_one": SCALAR}

    @classmethod
    def from_standard(cls, a: Any, b: Any) -> Self:
        """From the two concentrations."""
        return cls(as_leaf(a) - 1, as_leaf(b) - 1)

    def standard_parameters(self) -> dict[str, Real]:
        """``a`` and ``b``."""
        return {"a": self.a, "b": self.b}

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
        """``a / (a + b)``."""
        return self.a / (self.a + self.b)

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """``log B(a, b)``."""
        gammaln = self.xp.special.gammaln
        return gammaln(self.a) + gammaln(self.b) - gammaln(self.a + self.b)

    @property
    def mean_parameters(self) -> Float[Real, "*batch dim"]:
        """``ψ(a) - ψ(a + b)`` and ``ψ(b) - ψ(a + b)``."""
        digamma = self.xp.digamma
        total = digamma(self.a + self.b)
        return self.flatten(
            a_minus_one=digamma(self.a) - total, b_minus_one=digamma(self.b) - total
        )

    def fisher_information(self) -> Float[Real, "*batch dim dim"]:
        """``diag(ψ'(a), ψ'(b)) - ψ'(a + b)``."""
        np_, trigamma = self.xp.np, self.xp.trigamma
        shared = -trigamma(self.a + self.b)
        rows = [[trigamma(self.a) + shared, shared], [shared, trigamma(self.b) + shared]]
        return np_.stack([np_.stack(row, axis=-1) for row in rows], axis=-2)

    def inverse_fisher_product(
        self, vector: Float[Real, "*batch dim"]
    ) -> Float[Real, "*batch dim"]:
        """As the Dirichlet's, in two dimensions."""
        np_, trigamma = self.xp.np, self.xp.trigamma
        diagonal = np_.stack([trigamma(self.a), trigamma(self.b)], axis=-1)
        return solve_diagonal_minus_constant(diagonal, trigamma(self.a + self.b), vector)

    def with_mean_parameters(self, vector: Float[Real, "*batch dim"]) -> Self:
        """By the Dirichlet's Newton iteration, in two dimensions."""
        concentration = invert_mean_log(vector)
        return self.from_standard(concentration[..., 0], concentration[..., 1])

    def sufficient_statistics(self, z: Float[Real, "*shape"]) -> Float[Real, "*shape dim"]:
        """``(log z, log(1 - z))``."""
        xp = namespace(z).np
        return self.flatten(a_minus_one=xp.log(z), b_minus_one=xp.log1p(-z))

    def log_base_measure(self) -> float:
        """Zero."""
        return 0.0

    def is_proper(self) -> Bool[Real, "*batch"]:
        """Whether both concentrations are positive and finite."""
        isfinite = self.xp.np.isfinite
        return (self.a > 0) & (self.b > 0) & isfinite(self.a) & isfinite(self.b)

    def sample(
        self, key: Key[jax.Array, ""], shape: tuple[int, ...] = ()
    ) -> Float[jax.Array, "*shape"]:
        """Draws by JAX's gamma sampler."""
        a, b = jnp.asarray(self.a), jnp.asarray(self.b)
        return jax.random.beta(key, a, b, shape + a.shape, a.dtype)
