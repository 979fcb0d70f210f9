"""What holds of each divergence and of its barycentres, whatever the family."""

from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity import Beta, DiagonalGaussian, Dirichlet, Gamma, Gaussian
from posterity.arrays.tree import map_leaves
from posterity.errors import StructureError, UsageError
from posterity.families import ExponentialFamily
from posterity.fusion import divergences
from posterity.fusion.divergences import Discrepancy, Jeffreys, Renyi, divergence_of
from tests.laws.table import TABLE, covariance

FAMILIES = ["Beta", "Categorical", "Dirichlet", "Gamma", "DiagonalGaussian", "Gaussian"]
FAMILIES += ["NormalGamma", "NormalWishart", "Wishart", "Product", "Plate-sticks"]
CASES = [(d, n) for d in (Jeffreys(), Renyi(0.3)) for n in FAMILIES]
MIDDLES = {"Jeffreys": ["Gaussian", "NormalWishart"], "Renyi": ["Dirichlet", "Product"]}
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=3, deadline=None)


def cases(test: Any) -> Any:
    """Every divergence with every family that it is defined for."""
    names = [f"{divergence.value}-{name}" for divergence, name in CASES]
    return pytest.mark.parametrize(("divergence", "name"), CASES, ids=names)(test)


def middles(test: Any) -> Any:
    """Every divergence with a family, and another: a descent is long where types are checked."""
    chosen = [
        pytest.param(d, name, marks=[pytest.mark.slow] * (name != names[0]), id=f"{d.value}-{name}")
        for d, name in CASES
        if name in (names := MIDDLES[type(d).__name__])
    ]
    return pytest.mark.parametrize(("divergence", "name"), chosen)(test)


def drawn(name: str, seed: int, count: int, size: int = 2) -> Any:
    return TABLE[name].draw(np.random.default_rng(seed), (count,), size)


@cases
def test_never_negative_and_zero_at_itself_only(divergence: Discrepancy, name: str) -> None:
    q = drawn(name, 0, 4)
    table = divergence.costs(q, q)
    assert table.shape == (4, 4) and (table >= 0).all()
    # Rounding of parameters of a certain size.
    own, apart = np.diagonal(table), table[~np.eye(4, dtype=bool)]
    assert own.max() < 1e-9 * (1 + table.max())
    assert apart.min() > 1e3 * own.max()


@cases
def test_a_table_is_every_pair(divergence: Discrepancy, name: str) -> None:
    p, q = drawn(name, 1, 3), drawn(name, 2, 4)
    table = divergence.costs(q, p)
    for l, g in np.ndindex(4, 3):
        np.testing.assert_allclose(table[l, g], divergence.between(p[g], q[l]), rtol=1e-8)


@pytest.mark.parametrize("name", FAMILIES)
@few
@given(seed=seeds)
def test_symmetry_order_and_limits(name: str, seed: int) -> None:
    p, q = drawn(name, seed, 5), drawn(name, seed + 1, 5)
    for divergence in (Jeffreys(), Renyi(0.5)):
        np.testing.assert_allclose(divergence.between(p, q), divergence.between(q, p), rtol=1e-9)
    orders = np.array([0.05, 0.3, 0.5, 0.7, 0.95, 1 - 1e-5, 1.0])
    by_order = np.array([Renyi(float(order)).between(p, q) for order in orders])
    # Never falls with the order, while (1/order - 1) times it never rises (vanerven2014,
    # theorem 3 and proposition 2 with it). Near order 1 rounding is divided by what is left to 1.
    assert (np.diff(by_order, axis=0) >= -1e-8 * by_order[1:]).all()
    other = by_order * (1 / orders - 1)[:, None]
    assert (np.diff(other, axis=0) <= 1e-8 * other[:-1]).all()
    # To first order in what is left to 1, whose slope is half the variance of log p / q.
    np.testing.assert_allclose(by_order[-2], p.kl(q), rtol=1e-2)
    gap = p.kl(q) - by_order[-2]
    nearer = p.kl(q) - Renyi(1 - 1e-6).between(p, q)
    np.testing.assert_allclose(nearer, gap / 10, rtol=1e-2, atol=1e-8)
    np.testing.assert_array_equal(by_order[-1], p.kl(q))
    # Skew symmetry (vanerven2014, proposition 2).
    skewed = 0.3 * Renyi(0.7).between(q, p)
    np.testing.assert_allclose(0.7 * by_order[1], skewed, rtol=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_renyi_is_the_gap_of_the_log_normaliser(name: str) -> None:
    p, q, order = drawn(name, 3, 6), drawn(name, 4, 6), 0.3
    mixed = order * p + (1 - order) * q
    gap = order * p.log_normalizer() + (1 - order) * q.log_normalizer() - mixed.log_normalizer()
    np.testing.assert_allclose(Renyi(order).between(p, q), gap / (1 - order), rtol=1e-7)


def test_renyi_is_its_integral() -> None:
    laws = [(Gamma, scipy.stats.gamma, lambda a, b: (a, 0, 1 / b), np.inf)]
    laws += [(Beta, scipy.stats.beta, lambda a, b: (a, b), 1.0)]
    for family, law, arguments, end in laws:
        p, q = family.from_standard(2.0, 3.0), family.from_standard(4.0, 1.5)
        f, g = law(*arguments(2.0, 3.0)), law(*arguments(4.0, 1.5))
        for order in (0.2, 0.5, 0.8):

            def mixed(z: float, f: Any = f, g: Any = g, order: float = order) -> float:
                return f.pdf(z) ** order * g.pdf(z) ** (1 - order)

            total, error = scipy.integrate.quad(mixed, 0, end)
            expected = np.log(total) / (order - 1)
            assert abs(Renyi(order).between(p, q) - expected) < 1e-7 + 10 * error / total


@pytest.mark.parametrize(
    "divergence, name", [case for case in CASES if drawn(case[1], 5, 1).location() is not None]
)
def test_translation_changes_nothing(divergence: Discrepancy, name: str) -> None:
    p, q = drawn(name, 5, 3), drawn(name, 6, 3)
    shift = map_leaves(lambda part: part * 0 + 7.0, p.location())
    np.testing.assert_allclose(
        divergence.between(p.translate(shift), q.translate(shift)),
        divergence.between(p, q),
        rtol=1e-7,
    )


@middles
def test_no_neighbour_is_nearer_to_all_than_the_barycentre(
    divergence: Discrepancy, name: str
) -> None:
    q, rng = drawn(name, 8, 5), np.random.default_rng(0)
    weights = rng.uniform(0.5, 2.0, 5)
    labels = np.array([0, 0, 1, 1, 1])
    centre = divergence.barycenter(q, labels, weights)
    assert centre.is_proper().all()

    def total(c: ExponentialFamily) -> np.ndarray:
        return np.bincount(labels, weights * divergence.between(c[labels], q))

    least = total(centre)
    for other in (0, 2, 4):
        for size in (1e-3, 0.1):
            near = centre + size * (q[np.array([other, other])] - centre)
            assert (total(near) >= least * (1 - 1e-9)).all()


@middles
def test_a_barycentre_knows_no_order_and_keeps_what_is_one(
    divergence: Discrepancy, name: str
) -> None:
    q, labels = drawn(name, 7, 6), np.array([0, 1, 0, 1, 1, 0])
    order = np.array([4, 2, 0, 5, 3, 1])
    one, other = divergence.barycenter(q, labels), divergence.barycenter(q[order], labels[order])
    np.testing.assert_array_equal(one.natural_parameters, other.natural_parameters)
    same = divergence.barycenter(q[np.array([0, 0, 0])], np.zeros(3, int))
    assert divergence.between(same, q[:1])[0] < 1e-9


@pytest.mark.parametrize("divergence", [Jeffreys(), Renyi(0.3)])
def test_a_relaxed_assignment_weighs_members(divergence: Discrepancy) -> None:
    q, weights = drawn("Gamma", 7, 3), np.array([1.0, 2.0, 0.5])
    plan = np.array([[1.0, 0.0], [0.25, 0.75], [0.0, 1.0]])
    found = divergence.barycenter(q, plan, weights).natural_parameters
    for group in range(2):
        own = divergence.barycenter(q, np.zeros(3, int), weights * plan[:, group] + 1e-300)
        np.testing.assert_allclose(found[group], own.natural_parameters[0], rtol=1e-9)


@pytest.mark.parametrize("name", ["Dirichlet", "Gaussian"])
def test_the_middle_of_one_is_not_looked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many components have no partner: they should cost a try, not forty."""
    tries, members_at = [], divergences._members_at
    monkeypatch.setattr(divergences, "_members_at", lambda *at: tries.append(at) or members_at(*at))
    q = drawn(name, 7, 3)
    found = Renyi(0.3).barycenter(q, np.arange(3))
    np.testing.assert_allclose(found.natural_parameters, q.natural_parameters, rtol=1e-9)
    assert 1 <= len(tries) <= 2


REFERENCES = {
    "Gamma": Gamma.from_standard([2.0, 9.0, 0.7], [3.0, 1.0, 0.5]),
    "Dirichlet": Dirichlet.from_standard([[2.0, 1.0, 0.4], [9.0, 3.0, 1.0], [1.0, 1.0, 7.0]]),
    "DiagonalGaussian": DiagonalGaussian.from_standard(
        [[0.0, 1.0], [2.0, -1.0], [0.5, 0.0]], [[1.0, 0.1], [4.0, 1.0], [0.5, 2.0]]
    ),
}


@pytest.mark.parametrize(
    ("divergence", "name"),
    [
        (Jeffreys(), "DiagonalGaussian"),
        (Jeffreys(), "Dirichlet"),
        (Renyi(0.5), "Gamma"),
        (Renyi(0.95), "Gamma"),
    ],
    ids=str,
)
def test_an_independent_minimiser_finds_the_same_barycentre(
    divergence: Discrepancy, name: str
) -> None:
    q, weights = REFERENCES[name], np.array([1.0, 2.0, 0.5])
    found = divergence.barycenter(q, np.zeros(3, int), weights)

    def total(natural: np.ndarray) -> float:
        c = q.with_natural_parameters(natural[None])
        if not c.is_proper().all():
            return np.inf
        return float(weights @ divergence.between(c, q))

    # Nelder and Mead take no derivative, and start elsewhere.
    start = q.natural_parameters.mean(0)
    options = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 10_000, "maxfev": 10_000}
    best = scipy.optimize.minimize(total, start, method="Nelder-Mead", options=options)
    assert total(found.natural_parameters[0]) <= best.fun * (1 + 1e-10)
    np.testing.assert_allclose(found.natural_parameters[0], best.x, rtol=1e-4, atol=1e-4)


def test_jeffreys_barycentre_is_not_on_the_geodesic_of_the_sided_ones() -> None:
    q = REFERENCES["DiagonalGaussian"]
    found = Jeffreys().barycenter(q, np.zeros(3, int))
    right = q.with_natural_parameters(q.natural_parameters.mean(0, keepdims=True))
    left = q.with_mean_parameters(q.mean_parameters.mean(0, keepdims=True))

    def total(c: Any) -> float:
        return float(Jeffreys().between(c, q).sum())

    for one, other, make in (
        (right.natural_parameters, left.natural_parameters, q.with_natural_parameters),
        (right.mean_parameters, left.mean_parameters, q.with_mean_parameters),
    ):
        best = scipy.optimize.minimize_scalar(
            lambda t: total(make((1 - t) * one + t * other)),  # noqa: B023
            bounds=(0, 1),
            method="bounded",
        )
        assert total(found) < best.fun * (1 - 1e-4)


@pytest.mark.parametrize("divergence", [Jeffreys(), Renyi(0.5)])
def test_ugly_units_and_far_origins_are_survived(divergence: Discrepancy) -> None:
    rng, unit = np.random.default_rng(0), np.array([1e-6, 1.0, 1e6])
    mean, labels = 1e3 + rng.normal(size=(6, 3)), np.array([0, 0, 0, 1, 1, 1])
    spread = covariance(rng, 6, 3)
    scaled = Gaussian.from_standard(mean * unit, spread * np.outer(unit, unit))
    plain = Gaussian.from_standard(mean, spread)
    found, expected = (divergence.barycenter(q, labels) for q in (scaled, plain))
    np.testing.assert_allclose(found.mean / unit, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(
        found.covariance / np.outer(unit, unit), expected.covariance, rtol=1e-5, atol=1e-6
    )
    assert found.is_proper().all()


def test_names_are_read() -> None:
    assert divergence_of("renyi") == Renyi(0.5) and divergence_of("renyi:0.3") == Renyi(0.3)
    assert divergence_of(Renyi(1.0)) == divergence_of("renyi:1") == divergence_of("reverse")
    for divergence in (Jeffreys(), Renyi(0.25)):
        assert divergence_of(divergence.value) == divergence
    for wrong in ("kl", "renyi:", "renyi:x", "jeffreys:1", "wasserstein", "optimal-transport"):
        with pytest.raises(UsageError, match=r"reverse.*jeffreys"):
            divergence_of(wrong)


@pytest.mark.parametrize("order", [0.0, -1.0, 1.5, np.nan, np.inf])
def test_orders_are_above_0_and_up_to_1(order: float) -> None:
    with pytest.raises(UsageError, match="above 0 and up to 1"):
        Renyi(order)


def test_families_do_not_mix() -> None:
    p, q = drawn("Gaussian", 0, 3), drawn("DiagonalGaussian", 0, 3)
    for divergence in (Jeffreys(), Renyi()):
        with pytest.raises(StructureError):
            divergence.between(p, q)
