"""Every family, enrolled once: a new one inherits all laws by one line in ``TABLE``."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from posterity import families
from posterity.families import (
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    ExponentialFamily,
    Gamma,
    Gaussian,
    HiddenMarkov,
    Mixture,
    Network,
    NormalWishart,
    Plate,
    Product,
    Transformed,
)
from posterity.families.coordinates import Coordinate
from posterity.families.layers import Layers

Rng = np.random.Generator
Batch = tuple[int, ...]
Draw = Callable[[Rng, Batch, int], Any]

laws = settings(max_examples=settings().max_examples // 6)
"""For tests that run once a family: many families make up for few examples of each."""

EPS = {np.dtype(t): float(np.finfo(t).eps) for t in (np.float32, np.float64)}


def positive(rng: Rng, *shape: int) -> np.ndarray:
    """Positive numbers between about a fifth and twenty."""
    return np.asarray(np.exp(rng.uniform(-1.6, 3.0, shape)))


def covariance(rng: Rng, *shape: int) -> np.ndarray:
    """Symmetric, with eigenvalues no smaller than 0.3."""
    root = rng.normal(size=(*shape, shape[-1]))
    return root @ np.swapaxes(root, -1, -2) / shape[-1] + 0.3 * np.eye(shape[-1])


def parameter(rng: Rng, coordinate: Coordinate, batch: Batch, size: int) -> np.ndarray:
    """A textbook parameter within its domain, whatever that is."""
    shape = (*batch, *coordinate.shape(size))
    if coordinate.axes == 2:
        return covariance(rng, *batch, size)
    bound = coordinate.domain.bound(size)
    return bound + positive(rng, *shape) if np.isfinite(bound) else 3 * rng.normal(size=shape)


def by_standard(family: Any) -> Draw:
    """A draw of a family's textbook parameters, as their domains say; ``size`` counts from one."""

    def draw(rng: Rng, batch: Batch, size: int) -> Any:
        own = size + 1 if family in SIMPLICES else size
        kinds = family.standard.items()
        return family.from_standard(**{n: parameter(rng, kind, batch, own) for n, kind in kinds})

    return draw


SIMPLICES = (Categorical, Dirichlet)
"""Families whose vectors have an entry more than they have dimensions."""
gaussian, diagonal_gaussian = by_standard(Gaussian), by_standard(DiagonalGaussian)
gamma, beta, dirichlet = by_standard(Gamma), by_standard(Beta), by_standard(Dirichlet)
categorical, normal_wishart = by_standard(Categorical), by_standard(NormalWishart)


def product_of_locations(rng: Rng, batch: Batch, size: int) -> Product:
    return Product(a=diagonal_gaussian(rng, batch, size), b=gaussian(rng, batch, 1))


def product_of_plates(rng: Rng, batch: Batch, size: int) -> Product:
    topics = Plate(categorical(rng, (*batch, 2), size), dirichlet(rng, batch, 1))
    return Product(topics=topics, rate=gamma(rng, batch, size))


def plate_of(draw: Draw, weights: Draw | None = None) -> Draw:
    """A draw of plates with a member more than there are dimensions; sticks are a batch of them."""

    def plate(rng: Rng, batch: Batch, size: int) -> Plate:
        count = (*batch, size + 1)
        own = draw(rng, count, 2)
        if weights is None:
            return Plate(own)
        return Plate(own, weights(rng, count if weights is beta else batch, size))

    return plate


plate_with_dirichlet = plate_of(normal_wishart, dirichlet)


def hidden_markov(rng: Rng, batch: Batch, size: int) -> HiddenMarkov:
    states = size + 1
    rows = dirichlet(rng, (*batch, states), size)
    emissions = Plate(normal_wishart(rng, (*batch, states), 1))
    start = dirichlet(rng, batch, size)
    return HiddenMarkov(emissions=emissions, initial=start, transitions=Plate(rows))


def network(rng: Rng, batch: Batch, size: int) -> Network:
    layers = Layers.dense(size, 2, 1)
    own = diagonal_gaussian(rng, batch, layers.size)
    return Network(own.precision_mean, own.precision, layers)


def mixture(rng: Rng, batch: Batch, size: int) -> Mixture:
    return Mixture.from_standard(rng.dirichlet(np.full(3, 2.0)), gaussian(rng, (3,), size))


def transformed(rng: Rng, batch: Batch, size: int) -> Transformed:
    like = Product({"scale": gamma(rng, (), 1), "place": gaussian(rng, (), size)})
    return Transformed.onto(like, diagonal_gaussian(rng, batch, size + 1))


class Row(NamedTuple):
    """One family: how to draw a proper member, as NumPy float64, from batch shape and size."""

    family: type
    draw: Draw


TABLE: dict[str, Row] = {
    **{
        name: Row(law, by_standard(law))
        for name, law in families.exported().items()
        if getattr(law, "standard", None) and law is not Network
    },
    "Network": Row(Network, network),
    "Product": Row(Product, lambda *a: Product(noise=gamma(*a), weight=gaussian(*a))),
    "Product-located": Row(Product, product_of_locations),
    "Plate": Row(Plate, plate_of(gaussian)),
    "Plate-Dirichlet": Row(Plate, plate_with_dirichlet),
    "Plate-sticks": Row(Plate, plate_of(diagonal_gaussian, beta)),
    "Plate-Product": Row(Plate, plate_of(product_of_locations)),
    "Product-Plate": Row(Product, product_of_plates),
    "HiddenMarkov": Row(HiddenMarkov, hidden_markov),
    "Mixture": Row(Mixture, mixture),
    "Transformed": Row(Transformed, transformed),
}
"""Families whose textbook parameters are arrays, and that list them, enrol themselves."""

NAMES = [name for name, row in TABLE.items() if issubclass(row.family, ExponentialFamily)]
"""Rows that are exponential families: all but mixtures, and what adds up to none of its kind."""

DEAR = {
    *("HiddenMarkov", "Plate-Dirichlet", "Plate-sticks", "Plate-Product", "Product-Plate"),
    *("Product", "Wishart", "NormalGamma"),
}
"""Rows that take long to compile: made of others, or with the formulas of others."""


def dear_ones_slow(names: Iterable[str]) -> list[Any]:
    """Cases for tests that compile."""
    return [pytest.param(n, marks=pytest.mark.slow) if n in DEAR else n for n in names]


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
    return jax.tree.map(jax.device_put, member)  # jnp.asarray compiles a program a shape


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
