"""Every family, enrolled once: a new one inherits all laws by one line in ``TABLE``."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from posterity import families
from posterity.families import (
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    Distribution,
    ExponentialFamily,
    Gamma,
    Gaussian,
    Mixture,
    NormalGamma,
    NormalWishart,
    Plate,
    Product,
    Wishart,
)

Rng = np.random.Generator
Batch = tuple[int, ...]
Draw = Callable[[Rng, Batch, int], Any]

laws = settings(max_examples=settings().max_examples // 8)
"""For tests that run once a family: many families make up for few examples of each."""

EPS = {np.dtype(t): float(np.finfo(t).eps) for t in (np.float32, np.float64)}


def positive(rng: Rng, *shape: int) -> np.ndarray:
    """Positive numbers between about a fifth and twenty."""
    return np.asarray(np.exp(rng.uniform(-1.6, 3.0, shape)))


def covariance(rng: Rng, *shape: int) -> np.ndarray:
    """Symmetric, with eigenvalues no smaller than 0.3."""
    root = rng.normal(size=(*shape, shape[-1]))
    return root @ np.swapaxes(root, -1, -2) / shape[-1] + 0.3 * np.eye(shape[-1])


def diagonal_gaussian(rng: Rng, batch: Batch, size: int) -> DiagonalGaussian:
    return DiagonalGaussian.from_standard(
        3 * rng.normal(size=(*batch, size)), positive(rng, *batch, size)
    )


def gaussian(rng: Rng, batch: Batch, size: int) -> Gaussian:
    return Gaussian.from_standard(
        3 * rng.normal(size=(*batch, size)), covariance(rng, *batch, size)
    )


def gamma(rng: Rng, batch: Batch, size: int) -> Gamma:
    return Gamma.from_standard(positive(rng, *batch), positive(rng, *batch))


def beta(rng: Rng, batch: Batch, size: int) -> Beta:
    return Beta.from_standard(positive(rng, *batch), positive(rng, *batch))


def dirichlet(rng: Rng, batch: Batch, size: int) -> Dirichlet:
    return Dirichlet.from_standard(positive(rng, *batch, size + 1))


def categorical(rng: Rng, batch: Batch, size: int) -> Categorical:
    return Categorical.from_standard(rng.dirichlet(np.full(size + 1, 2.0), batch))


def wishart(rng: Rng, batch: Batch, size: int) -> Wishart:
    degrees_of_freedom = size - 1 + positive(rng, *batch)
    return Wishart.from_standard(covariance(rng, *batch, size), degrees_of_freedom)


def normal_wishart(rng: Rng, batch: Batch, size: int) -> NormalWishart:
    return NormalWishart.from_standard(
        mean=rng.normal(size=(*batch, size)),
        mean_precision=positive(rng, *batch),
        scale=covariance(rng, *batch, size),
        degrees_of_freedom=size - 1 + positive(rng, *batch),
    )


def normal_gamma(rng: Rng, batch: Batch, size: int) -> NormalGamma:
    names = ("mean_precision", "inverse_scale", "degrees_of_freedom")
    scales = {name: positive(rng, *batch, size) for name in names}
    return NormalGamma.from_standard(mean=rng.normal(size=(*batch, size)), **scales)


def product(rng: Rng, batch: Batch, size: int) -> Product:
    return Product(noise=gamma(rng, batch, size), weight=gaussian(rng, batch, size))


def plate(rng: Rng, batch: Batch, size: int) -> Plate:
    return Plate(gaussian(rng, (*batch, size + 1), 2))


def plate_with_dirichlet(rng: Rng, batch: Batch, size: int) -> Plate:
    return Plate(normal_wishart(rng, (*batch, size + 1), 2), dirichlet(rng, batch, size))


def plate_with_sticks(rng: Rng, batch: Batch, size: int) -> Plate:
    count = (*batch, size + 1)
    return Plate(diagonal_gaussian(rng, count, 2), beta(rng, count, 1))


def product_of_plates(rng: Rng, batch: Batch, size: int) -> Product:
    topics = Plate(categorical(rng, (*batch, 2), size), dirichlet(rng, batch, 1))
    return Product(topics=topics, rate=gamma(rng, batch, size))


def mixture(rng: Rng, batch: Batch, size: int) -> Mixture:
    return Mixture.from_standard(rng.dirichlet(np.full(3, 2.0)), gaussian(rng, (3,), size))


class Row(NamedTuple):
    """One family: how to draw a proper member, as NumPy float64, from batch shape and size."""

    family: type
    draw: Draw


TABLE: dict[str, Row] = {
    "DiagonalGaussian": Row(DiagonalGaussian, diagonal_gaussian),
    "Gaussian": Row(Gaussian, gaussian),
    "Gamma": Row(Gamma, gamma),
    "Beta": Row(Beta, beta),
    "Dirichlet": Row(Dirichlet, dirichlet),
    "Categorical": Row(Categorical, categorical),
    "Wishart": Row(Wishart, wishart),
    "NormalWishart": Row(NormalWishart, normal_wishart),
    "NormalGamma": Row(NormalGamma, normal_gamma),
    "Product": Row(Product, product),
    "Plate": Row(Plate, plate),
    "Plate-Dirichlet": Row(Plate, plate_with_dirichlet),
    "Plate-sticks": Row(Plate, plate_with_sticks),
    "Product-Plate": Row(Product, product_of_plates),
    "Mixture": Row(Mixture, mixture),
}

NAMES = [name for name, row in TABLE.items() if issubclass(row.family, ExponentialFamily)]
"""Rows that are exponential families: all but mixtures."""


def exported() -> set[type]:
    """Every family that ``posterity.families`` exports, bar the abstract base."""
    members = (getattr(families, name) for name in families.__all__)
    kinds = {m for m in members if isinstance(m, type) and issubclass(m, Distribution)}
    return kinds - {Distribution, ExponentialFamily}


def located() -> list[str]:
    """Rows with a location to move."""
    return [name for name in NAMES if some(name)[0].location() is not None]


def some(
    name: str, *, count: int = 1, batch: Batch = (), size: int = 2, seed: int = 0
) -> list[Any]:
    """A few fixed members of equal shapes, for tests that compile."""
    rng = np.random.default_rng(seed)
    return [TABLE[name].draw(rng, batch, size) for _ in range(count)]


def members(name: str, count: int = 1) -> st.SearchStrategy[list[Any]]:
    """Random members of equal shapes: batch shapes, dimensions and parameters vary."""
    return st.builds(
        lambda seed, batch, size: some(name, count=count, batch=batch, size=size, seed=seed),
        st.integers(0, 2**32 - 1),
        st.sampled_from([(), (3,), (2, 1)]),
        st.integers(1, 3),
    )


def cast(member: Any, dtype: Any) -> Any:
    """The same member with NumPy leaves of another precision."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype=dtype), member)


def to_jax(member: Any) -> Any:
    """The same member with JAX leaves; keeps float64 only inside ``jax.enable_x64``."""
    return jax.tree.map(jnp.asarray, member)


def close(left: Any, right: Any, rtol: float = 1e-12, atol: float = 0.0) -> None:
    """Fail unless every pair of leaves agrees, ``atol`` being relative to the largest entry."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    for a, b in pairs:
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape, (a.shape, b.shape)
        scale = max(np.abs(b).max(initial=0.0), 1.0)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol * scale)


def identical(left: Any, right: Any) -> bool:
    """Equal to the last bit, in structure, precision and content."""
    if jax.tree.structure(left) != jax.tree.structure(right):
        return False
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in pairs
    )
