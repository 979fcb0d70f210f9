"""Transport distances of the study of divergences: what holds of them, and fusing by them."""

import sys
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.klfusion.transport import OptimalTransport, Wasserstein, transport_plan
from posterity import DiagonalGaussian, Gamma, Gaussian, NormalWishart, Product, fuse
from posterity.errors import StructureError
from posterity.families.gaussian_moments import HasGaussianMoments, Moments
from tests.fusion.made import plate
from tests.laws.table import TABLE, covariance

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=3, deadline=None)


def drawn(name: str, seed: int, count: int, size: int = 2) -> Any:
    return TABLE[name].draw(np.random.default_rng(seed), (count,), size)


@few
@given(seed=seeds, size=st.integers(1, 4))
def test_wasserstein_is_a_metric_and_the_textbooks(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    mean, spread = rng.normal(size=(3, size)), covariance(rng, 3, size)
    q, found = Gaussian.from_standard(mean, spread), Wasserstein()
    for a, b in ((0, 1), (1, 2), (0, 2)):
        root = scipy.linalg.sqrtm(spread[a])
        cross = scipy.linalg.sqrtm(root @ spread[b] @ root).real
        bures = np.trace(spread[a] + spread[b] - 2 * cross)
        expected = ((mean[a] - mean[b]) ** 2).sum() + bures
        np.testing.assert_allclose(found.between(q[a], q[b]), expected, rtol=1e-7)
    one, two, three = (np.sqrt(found.between(q[a], q[b])) for a, b in ((0, 1), (1, 2), (0, 2)))
    assert three <= (one + two) * (1 + 1e-12)
    variance = np.exp(rng.normal(size=(3, size)))
    flat = DiagonalGaussian.from_standard(mean, variance)
    full = Gaussian.from_standard(mean, np.stack([np.diag(v) for v in variance]))
    np.testing.assert_allclose(found.costs(flat, flat), found.costs(full, full), atol=1e-12)


def test_wasserstein_is_transport_on_the_line() -> None:
    p = DiagonalGaussian.from_standard([1.0], [4.0])
    q = DiagonalGaussian.from_standard([-0.5], [0.25])
    f, g = scipy.stats.norm(1.0, 2.0), scipy.stats.norm(-0.5, 0.5)
    carried, _ = scipy.integrate.quad(lambda u: (f.ppf(u) - g.ppf(u)) ** 2, 0, 1)
    np.testing.assert_allclose(Wasserstein().between(p, q), carried, rtol=1e-6)


def test_wasserstein_barycentres_of_what_commutes_average_deviations() -> None:
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    variance, share = np.exp(rng.normal(size=(4, 3))), np.array([0.1, 0.2, 0.3, 0.4])
    spread = np.stack([(turn * v) @ turn.T for v in variance])
    mean = rng.normal(size=(4, 3))
    found = Wasserstein().barycenter(
        Gaussian.from_standard(mean, spread), np.zeros(4, int), weights=share
    )
    expected = (turn * (share @ np.sqrt(variance)) ** 2) @ turn.T
    np.testing.assert_allclose(found.covariance[0], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.mean[0], share @ mean, rtol=1e-12, atol=1e-14)


def test_a_normal_wishart_keeps_its_counts_under_transport() -> None:
    q = NormalWishart.from_standard(
        [[0.0, 0.0], [1.0, 0.0]], [10.0, 30.0], [np.eye(2) / 20, np.eye(2) / 40], [20.0, 40.0]
    )
    found = Wasserstein().barycenter(q, np.zeros(2, int))
    assert found.mean_precision == [20.0] and found.degrees_of_freedom == [30.0]
    np.testing.assert_allclose(found.mean, [[0.5, 0.0]])
    np.testing.assert_allclose(found.inverse_scale[0] / 30, np.eye(2), atol=1e-12)


@pytest.mark.parametrize("name", ["Gamma", "Beta", "Dirichlet", "Categorical", "Wishart"])
def test_transport_wants_gaussians(name: str) -> None:
    q = drawn(name, 0, 3)
    with pytest.raises(StructureError, match=name):
        Wasserstein().between(q, q)
    with pytest.raises(StructureError, match=name):
        Wasserstein().barycenter(q, np.zeros(3, int))
    both = Product(a=q, b=drawn("Gaussian", 0, 3))
    with pytest.raises(StructureError, match=name):
        Wasserstein().check(both)


class Noise(Gamma, HasGaussianMoments):
    """A user's own: over the precision of noise of mean zero."""

    @property
    def moments(self) -> Moments:
        variance = self.rate / self.shape
        return Moments(0 * variance[..., None], variance[..., None])

    @property
    def beside_moments(self) -> tuple[Any, ...]:
        return (self.shape,)

    def with_moments(self, moments: Moments, beside: tuple[Any, ...] = ()) -> Any:
        (shape,) = beside
        return self.from_standard(shape, shape * moments.spread[..., 0])


def test_a_users_own_family_has_a_transport_distance() -> None:
    """Standard deviations are as far apart as they are, and average."""
    q, plain = Noise.from_standard([2.0, 4.0], [2.0, 36.0]), Gamma.from_standard(2.0, 2.0)
    assert float(Wasserstein().between(q[0], q[1])) == 4.0
    middle: Any = Wasserstein().barycenter(q, np.zeros(2, int), np.ones(2))
    assert type(middle) is Noise
    np.testing.assert_allclose([middle.shape[0], middle.rate[0]], [3.0, 3.0 * 4.0])
    with pytest.raises(StructureError, match="HasGaussianMoments"):
        Wasserstein().check(plain)


def test_the_divergence_decides_who_goes_with_whom() -> None:
    # Sharp and wide components about the same places: transport goes by place alone.
    north, south = plate(0.0, 1.0), plate(0.4, 3.0)
    by_place = fuse([north, south], divergence=Wasserstein(), components=2)
    one, other = by_place.matching.values()
    assert one.tolist() == other.tolist()


# --- optimal transport ----------------------------------------------------------------------------


def test_whole_mixtures_are_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a linear programme in place of POT, which takes seconds to import."""
    monkeypatch.setitem(sys.modules, "ot", _Programme)  # type: ignore[arg-type]
    fused = fuse([plate(0.0, 5.0), plate(5.1, 0.1)], divergence=OptimalTransport())
    assert fused.divergence == OptimalTransport() and fused.components == 2
    one, other = fused.matching.values()
    assert (one == other[::-1]).all()
    # All mass has to arrive: what a site lacks takes what is nearest, though it is far.
    divergence = OptimalTransport()
    costs = np.array([[0.0, 9.0], [9.0, 0.0], [1.0, 4.0]])
    starts, labels = np.array([0, 2, 3]), np.array([0, 1, 0])
    found = divergence.assign(costs, starts, labels, np.array([1.0, 1.0, 5.0]))
    assert found.tolist() == [0, 1, 0]


@pytest.mark.filterwarnings("ignore")
def test_pot_finds_the_plan_of_the_linear_programme() -> None:
    rng = np.random.default_rng(0)
    source, target, costs = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(4)), rng.random((3, 4))
    plan = transport_plan(source, target, costs)
    np.testing.assert_allclose(plan.sum(1), source)
    np.testing.assert_allclose(plan.sum(0), target)
    best = (_Programme.emd(source, target, costs) * costs).sum()
    np.testing.assert_allclose((plan * costs).sum(), best, rtol=1e-9)


class _Programme:
    """Stands for POT."""

    @staticmethod
    def emd(a: np.ndarray, b: np.ndarray, costs: np.ndarray) -> np.ndarray:
        from scipy.optimize import linprog

        k, g = costs.shape
        rows, columns = np.kron(np.eye(k), np.ones(g)), np.kron(np.ones(k), np.eye(g))
        held = {"A_eq": np.vstack([rows, columns]), "b_eq": np.concatenate([a, b])}
        return linprog(costs.ravel(), **held).x.reshape(k, g)
