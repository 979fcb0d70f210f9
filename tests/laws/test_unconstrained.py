"""Real arrays onto events and back: laws over every family that says where its events lie."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families import (
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    Distribution,
    Gamma,
    Gaussian,
    Mixture,
    NormalGamma,
    NormalWishart,
    Plate,
    Product,
    Wishart,
)
from posterity.families.supports import (
    Continuous,
    Labels,
    PositiveDefiniteMatrices,
    RealNumbers,
    Simplex,
    Support,
    UnitInterval,
    listed,
    map_supports,
)
from posterity.families.unconstrained import Supports, unconstrained
from tests.laws.table import EPS, TABLE, cast, dear_ones_slow, laws, members, some, to_jax


def smooth(law: Distribution) -> bool:
    """Whether real arrays are mapped onto its events."""
    return all(isinstance(own, Continuous) for own in listed(law.support))


ROWS = [name for name in TABLE if smooth(some(name)[0])]
rows = pytest.mark.parametrize("name", ROWS)
MATRICES = {"Wishart", "NormalWishart", "Plate-Dirichlet", "HiddenMarkov"}
FAR = 20.0
"""How far from zero real numbers may be, and all is still sound."""


def reals(bijection: Supports, rng: np.random.Generator, lead: tuple, scale: float) -> Any:
    """Uniform on ``[-scale, scale]``; a few are at the ends."""

    def one(support: Any) -> np.ndarray:
        drawn = rng.uniform(-scale, scale, (*lead, *support.free_shape))
        return np.where(rng.random(drawn.shape) < 0.2, scale * np.sign(drawn), drawn)

    return map_supports(one, bijection.tree)


def inside(support: Any, z: Any) -> bool:
    """Whether every event is in the support, by formulas of the test's own."""

    def one(own: Support, part: Any) -> bool:
        part = np.asarray(part)
        assert part.shape[len(part.shape) - len(own.shape) :] == own.shape
        if isinstance(own, Simplex):
            close = np.abs(part.sum(-1) - 1).max() < 10 * own.shape[-1] * EPS[part.dtype]
            return bool((part > 0).all() and close)
        if isinstance(own, PositiveDefiniteMatrices):
            deviations = np.sqrt(np.diagonal(part, axis1=-2, axis2=-1))
            unit = part / deviations[..., :, None] / deviations[..., None, :]
            even = np.abs(unit - np.swapaxes(unit, -1, -2)).max() < 1e-6
            return bool(even and (np.linalg.eigvalsh(unit) > 0).all())
        low = -np.inf if isinstance(own, RealNumbers) else 0.0
        high = 1.0 if isinstance(own, UnitInterval) else np.inf
        return bool(((part > low) & (part < high)).all())

    return all(jax.tree.leaves(map_supports(one, support, z)))


def largest_gap(support: Any, u: Any, v: Any) -> float:
    gap = map_supports(lambda _, a, b: float(np.abs(a - b).max(initial=0)), support, u, v)
    return max(jax.tree.leaves(gap))


@rows
@laws
@given(data=st.data(), seed=st.integers(0, 99))
def test_there_and_back(name: str, data: st.DataObject, seed: int) -> None:
    """To rounding times how far the map is bent.

    The logistic squeezes ``e^|u|`` against one, and correlations of 1 - 1/400 in three dimensions
    have condition numbers of 1e8.
    """
    (law,) = data.draw(members(name))
    bijection = unconstrained(law)
    for scale, tolerance in ((3.0, 1e-11), (FAR, 1e-6)):
        u = reals(bijection, np.random.default_rng(seed), (2,), scale)
        z = bijection.forward(u)
        assert inside(bijection.tree, z)
        assert largest_gap(bijection.tree, u, bijection.inverse(z)) < tolerance
    u = cast(u, np.float32)
    z = bijection.forward(u)
    assert {leaf.dtype for leaf in jax.tree.leaves(z)} == {np.dtype(np.float32)}
    assert bijection.log_det(u).dtype == np.float32 and np.isfinite(bijection.log_det(u)).all()
    if name not in MATRICES:  # correlations of 1 - 1e-9 do not exist in float32
        assert inside(bijection.tree, z)


def chart(support: Any, z: Any) -> np.ndarray:
    """The numbers that the base measure is Lebesgue's of, a row an event."""
    flat: list[Any] = []

    def one(own: Support, part: Any) -> None:
        if isinstance(own, Simplex):
            part = part[..., :-1]
        if isinstance(own, PositiveDefiniteMatrices):
            part = part[..., *np.triu_indices(own.shape[-1])]
        flat.append(part.reshape(len(part), -1))

    map_supports(one, support, z)
    return np.concatenate(flat, axis=1)


@rows
@laws
@given(data=st.data(), seed=st.integers(0, 99))
def test_the_log_determinant_is_the_jacobians(name: str, data: st.DataObject, seed: int) -> None:
    """By central differences, wrong by their step squared."""
    (law,) = data.draw(members(name))
    bijection, step = unconstrained(law), 1e-4
    u = reals(bijection, np.random.default_rng(seed), (), 2.0)
    flat, size = bijection.ravel(u), bijection.size

    def moved(sign: int) -> np.ndarray:
        there = bijection.unravel(flat + sign * step * np.eye(size))
        return chart(bijection.tree, bijection.forward(there))

    jacobian = (moved(1) - moved(-1)) / (2 * step)
    assert jacobian.shape == (size, size)  # as many numbers as vary
    assert abs(bijection.log_det(u) - np.linalg.slogdet(jacobian)[1]) < 1e-5 * size


@pytest.mark.parametrize("name", dear_ones_slow(ROWS))
def test_gradients_are_finite_and_values_numpys(name: str) -> None:
    """Of the log density too, compiled, at up to 20 from zero.

    In single precision, but for matrices: correlations of 1 - 1e-9 do not exist there.
    """
    dtype = np.float64 if name in MATRICES else np.float32
    (law,) = some(name)
    law, bijection = cast(law, dtype), unconstrained(law)
    u = cast(reals(bijection, np.random.default_rng(0), (64,), FAR), dtype)
    density = lambda law, u: law.log_prob(bijection.forward(u)) + bijection.log_det(u)
    with jax.enable_x64(dtype is np.float64):
        moved = to_jax(law)
        slope = jax.value_and_grad(lambda u: density(moved, u))
        compiled = jax.jit(jax.vmap(slope))
        values, slopes = compiled(to_jax(u))
        near = jax.tree.map(lambda leaf: leaf / 8, u)  # further out, 1 - z has few digits
        np.testing.assert_allclose(compiled(to_jax(near))[0], density(law, near), rtol=1e-4)
    assert np.isfinite(values).all()
    for leaf in jax.tree.leaves(slopes):
        assert leaf.dtype == dtype and np.isfinite(leaf).all()


# --- densities of u are densities --------------------------------------------------------------

GRID = np.linspace(-100, 100, 10_001)
COARSE = np.linspace(-25, 25, 501)
LINES = {
    "Gamma": Gamma.from_standard(2.5, 3.0),
    "Gamma-spike": Gamma.from_standard(0.4, 1e4),
    "Beta": Beta.from_standard(2.0, 0.7),
    "Gaussian": Gaussian.from_standard([1.0], [[2.0]]),
    "Dirichlet": Dirichlet.from_standard([0.7, 3.0]),
    "Wishart": Wishart.from_standard([[0.5]], 3.0),
    "Mixture": Mixture.from_standard([1.0, 2.0], Gamma.from_standard([2.0, 9.0], [1.0, 0.1])),
}
PLANES = {
    "Dirichlet": Dirichlet.from_standard([1.2, 3.0, 0.8]),
    "NormalGamma": NormalGamma.from_standard([0.3], [2.0], [1.5], [4.0]),
    "NormalWishart": NormalWishart.from_standard([0.3], 2.0, [[0.7]], 4.0),
    "Product": Product(a=Gamma.from_standard(2.0, 1.0), b=Beta.from_standard(3.0, 2.0)),
    "Plate": Plate(Gamma.from_standard([2.0, 3.0], [1.0, 4.0])),
}


def log_density(law: Distribution, u: Any) -> np.ndarray:
    bijection = unconstrained(law)
    return np.asarray(law.log_prob(bijection.forward(u)) + bijection.log_det(u))


@pytest.mark.parametrize("name", LINES)
def test_densities_on_the_line_integrate_to_one(name: str) -> None:
    """The trapezoidal rule is exact to rounding for smooth functions that decay."""
    law = LINES[name]
    u = GRID.reshape(-1, *unconstrained(law).free_shape)
    assert abs(np.trapezoid(np.exp(log_density(law, u)), GRID) - 1) < 1e-9


@pytest.mark.parametrize("name", PLANES)
def test_densities_on_the_plane_integrate_to_one(name: str) -> None:
    law = PLANES[name]
    bijection = unconstrained(law)
    plane = np.stack(np.meshgrid(COARSE, COARSE, indexing="ij"), -1)
    values = np.exp(log_density(law, bijection.unravel(plane)))
    integral = np.trapezoid(np.trapezoid(values, COARSE, axis=1), COARSE)
    # NormalGamma's mean has the tails of Student's t: what is beyond 25 is one in a million.
    assert abs(integral - 1) < 1e-5


# --- what the maps are -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_zero_is_the_centre(size: int) -> None:
    simplex = unconstrained(Dirichlet.from_standard(np.ones(size)))
    np.testing.assert_allclose(simplex.forward(np.zeros(size - 1)), 1 / size, rtol=1e-14)
    wishart = unconstrained(Wishart.from_standard(np.eye(size), size + 1.0))
    centre = np.zeros(wishart.free_shape)
    np.testing.assert_array_equal(wishart.forward(centre), np.eye(size))
    # Other units of coordinates move logarithms of scales, and leave the rest.
    u = np.random.default_rng(0).normal(size=centre.shape)
    units = np.geomspace(1e-6, 1e4, size)
    moved = wishart.inverse(wishart.forward(u) * units[:, None] * units) - u
    np.testing.assert_allclose(moved[:size], np.log(units), atol=1e-12)
    np.testing.assert_allclose(moved[size:], 0, atol=1e-9)


def test_logistic_and_exponential() -> None:
    u = np.linspace(-30, 30, 61)
    beta, gamma = (unconstrained(kind.from_standard(1.0, 1.0)) for kind in (Beta, Gamma))
    assert gamma.forward(0) == 1.0 and beta.forward(0) == 0.5  # whole numbers serve as well
    np.testing.assert_allclose(beta.forward(u), special.expit(u), rtol=1e-14)
    np.testing.assert_allclose(beta.log_det(u), special.log_expit(u) + special.log_expit(-u))
    np.testing.assert_array_equal(gamma.forward(u), np.exp(u))
    np.testing.assert_array_equal(gamma.log_det(u), u)


def test_many_chains_broadcast_over_parts() -> None:
    law = Product(a=Gamma.from_standard(2.0, 1.0), b=DiagonalGaussian.from_standard([0.0], [1.0]))
    bijection = unconstrained(law)
    u = {"a": np.zeros(5), "b": np.zeros((3, 1, 1))}
    assert bijection.log_det(u).shape == (3, 5)
    assert bijection.free_shape == {"a": (), "b": (1,)}


# --- what is refused ---------------------------------------------------------------------------


def test_labels_are_refused() -> None:
    assert set(TABLE) - set(ROWS) == {"Categorical", "Product-Plate"}
    labels = Categorical.from_standard([0.5, 0.25, 0.25])
    assert labels.support == Labels(count=3)
    for law in (labels, some("Product-Plate")[0]):
        with pytest.raises(UsageError, match="sum labels out"):
            unconstrained(law)
    held = labels.support.holds(labels.xp, np.array([0.0, 2.0, 3.0, 0.5, -1.0]))
    np.testing.assert_array_equal(held, [True, True, False, False, False])


def test_a_family_that_does_not_say_is_refused() -> None:
    class Quiet(Gamma):
        support = Distribution.support

    with pytest.raises(UsageError, match=r"a Quiet, .* support"):
        unconstrained(Quiet.from_standard(1.0, 1.0))
    with pytest.raises(UsageError, match="a Quiet"):
        unconstrained(Product(a=Quiet.from_standard(1.0, 1.0)))


class AboveOne(RealNumbers):
    """A user's own."""

    name = "numbers above one"

    def holds(self, xp, z):
        return z > 1

    def forward(self, xp, u):
        return 1 + xp.np.exp(u)

    def inverse(self, xp, z):
        return xp.np.log(z - 1)

    def log_slope(self, xp, u):
        return u


def test_a_users_own_support_joins_in() -> None:
    class Shifted(Gamma):
        @property
        def support(self) -> Any:
            return AboveOne()

    plate = unconstrained(Plate(Shifted.from_standard([1.0, 2.0], [1.0, 2.0])))
    z = plate.forward((np.zeros((4, 2)), None))
    np.testing.assert_array_equal(z[0], 2.0)
    with pytest.raises(ParameterError, match=r"event, member \[0, 1\], that is 1.*above one"):
        plate.inverse((np.array([[3.0, 1.0]]), None))


def test_what_has_other_axes_is_refused() -> None:
    bijection = unconstrained(some("Product")[0])
    for u in ({"noise": 0.0}, {"noise": 0.0, "weight": np.zeros(3)}, np.zeros(3)):
        for function in (bijection.forward, bijection.log_det, bijection.inverse):
            with pytest.raises(StructureError, match="shapes"):
                function(u)
    with pytest.raises(StructureError, match="broadcast"):
        bijection.forward({"noise": np.zeros(3), "weight": np.zeros((4, 2))})


@pytest.mark.parametrize(
    "law, event, what",
    [
        (Gamma.from_standard(1.0, 1.0), 0.0, "positive numbers"),
        (Gamma.from_standard(1.0, 1.0), np.inf, "positive numbers"),
        (Beta.from_standard(1.0, 1.0), 1.0, "between zero and one"),
        (DiagonalGaussian.from_standard([0.0], [1.0]), [np.nan], "finite numbers"),
        (Dirichlet.from_standard([1.0, 1.0]), [0.5, 0.6], "sum to one"),
        (Dirichlet.from_standard([1.0, 1.0]), [0.0, 1.0], "positive numbers"),
        (Wishart.from_standard(np.eye(2), 3.0), [[1.0, 2.0], [2.0, 1.0]], "positive definite"),
        (Wishart.from_standard(np.eye(2), 3.0), [[1.0, 0.2], [0.0, 1.0]], "symmetric"),
    ],
)
def test_events_outside_are_refused(law: Any, event: Any, what: str) -> None:
    with pytest.raises(ParameterError, match=what):
        unconstrained(law).inverse(np.asarray(event))
