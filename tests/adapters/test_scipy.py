"""Frozen distributions and laws: the same log density, both ways, and what is refused."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from posterity import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    NormalGamma,
    Plate,
    Product,
    Transformed,
    Wishart,
)
from posterity.adapters.scipy import from_frozen, to_frozen
from posterity.errors import ParameterError, StructureError, UsageError

FROZEN: dict[str, tuple[Any, type, Any]] = {
    "norm": (stats.norm(3.0, 0.5), Gaussian, [[2.0], [3.7]]),
    "norm-int": (stats.norm(3, 2), Gaussian, [[2.0], [3.7]]),
    "gamma": (stats.gamma(2.5, scale=4.0), Gamma, [0.1, 9.0]),
    "gamma-large": (stats.gamma(1e6, scale=1e-9), Gamma, [1e-3, 1.001e-3]),
    "erlang": (stats.erlang(3, scale=4.0), Gamma, [0.1, 9.0]),
    "expon": (stats.expon(scale=4.0), Gamma, [0.1, 9.0]),
    "chi2": (stats.chi2(5, scale=0.5), Gamma, [0.1, 9.0]),
    "beta": (stats.beta(0.5, 3), Beta, [0.1, 0.9]),
    "uniform": (stats.uniform(), Beta, [0.1, 0.9]),
    "lognorm": (stats.lognorm(s=0.7, scale=3.0), Transformed, [0.1, 9.0]),
    "multivariate_normal": (
        stats.multivariate_normal([1.0, 2.0], [[2.0, 0.3], [0.3, 1.0]]),
        Gaussian,
        [[0.0, 1.0], [2.0, 2.0]],
    ),
    "multivariate_normal-1": (stats.multivariate_normal(1.0, 2.0), Gaussian, [[0.0], [2.0]]),
    "dirichlet": (stats.dirichlet([0.5, 2.0, 3.0]), Dirichlet, [[0.2, 0.3, 0.5]]),
    "wishart": (stats.wishart(5, [[2.0, 0.3], [0.3, 1.0]]), Wishart, [[[3.0, 0.1], [0.1, 2.0]]]),
}


def log_density(frozen: Any, z: np.ndarray) -> np.ndarray:
    if any(kind in type(frozen).__name__ for kind in ("wishart", "dirichlet")):
        return np.array([frozen.logpdf(one) for one in z])
    return np.asarray(frozen.logpdf(z[..., 0] if z.ndim == 2 and z.shape[1] == 1 else z))


@pytest.mark.parametrize("name", FROZEN)
def test_both_ways_the_log_density_is_the_same(name: str) -> None:
    frozen, family, points = FROZEN[name]
    z = np.asarray(points, float)
    q = from_frozen(frozen)
    assert type(q) is family and q.batch_shape == ()
    np.testing.assert_allclose(q.log_prob(z), log_density(frozen, z), rtol=1e-7)
    again = to_frozen(q)
    np.testing.assert_allclose(log_density(again, z), log_density(frozen, z), rtol=1e-7)


@pytest.mark.parametrize(
    "frozen",
    [
        stats.norm([[0.0, 1.0, 2.0]], [[1.0], [2.0]]),
        stats.gamma([[2.0], [3.0]], scale=[1.0, 2.0, 4.0]),
        stats.beta(np.array([[1.0], [2.0]]), np.array([1.0, 2.0, 3.0])),
        stats.lognorm([[0.5], [0.7]], scale=[1.0, 2.0, 4.0]),
    ],
    ids=["norm", "gamma", "beta", "lognorm"],
)
def test_arrays_of_parameters_are_batches(frozen: Any) -> None:
    q = from_frozen(frozen)
    assert q.batch_shape == (2, 3)
    z = np.full((2, 3), 0.3)
    found = q.log_prob(z[..., None] if isinstance(q, Gaussian) else z)
    np.testing.assert_allclose(found, frozen.logpdf(z), rtol=1e-10)
    np.testing.assert_allclose(to_frozen(q).logpdf(z), frozen.logpdf(z), rtol=1e-10)


def test_names_come_along() -> None:
    q = from_frozen(stats.multivariate_normal([1.0, 2.0]), names=["age", "bp"])
    assert q.names == ("age", "bp")
    assert from_frozen(stats.norm(1, 2), names=["age"]).names == ("age",)
    with pytest.raises(StructureError, match="3 names"):
        from_frozen(stats.dirichlet([1.0, 2.0]), names=["a", "b", "c"])
    q = DiagonalGaussian.from_standard([1.0, -2.0], [4.0, 1e-8])  # which is one vector
    z = np.array([[0.5, -2.0], [1.5, -2.0001]])
    np.testing.assert_allclose(to_frozen(q).logpdf(z), q.log_prob(z), rtol=1e-6)


@pytest.mark.parametrize(
    ("frozen", "said"),
    [
        (stats.t(3), "Gaussian, whose tails are lighter.*from_samples"),
        (stats.multivariate_t([0.0, 0.0]), "Gaussian, whose tails"),
        (stats.invgamma(2.0), "of the inverse"),
        (stats.invwishart(5, np.eye(2)), "of the inverse"),
        (stats.weibull_min(2.0), "Gamma"),
        (stats.poisson(2.0), "None is similar"),
        (stats.gamma(2.0, loc=1.0), "loc=0"),
        (stats.lognorm(1.0, 1.0), "loc=0"),
        (stats.beta(2.0, 3.0, scale=2.0), "scale=1"),
        (stats.beta(2.0, 3.0, loc=[0.0, 0.1]), "loc=0"),
        (stats.uniform(0, 2), "scale=1"),
    ],
)
def test_what_no_law_holds_names_the_nearest(frozen: Any, said: str) -> None:
    with pytest.raises(StructureError, match=said):
        from_frozen(frozen)


@pytest.mark.parametrize(
    ("frozen", "said"),
    [
        (stats.norm, "Call it with its parameters"),
        (stats.multivariate_normal, "Call it with its parameters"),
        (1.0, r"builtins\.float"),
        (Gamma.from_standard(1.0, 1.0), "found posterity"),
    ],
)
def test_what_is_no_frozen_distribution(frozen: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        from_frozen(frozen)


@pytest.mark.parametrize(
    "frozen",
    [
        stats.norm(np.nan, 1.0),
        stats.norm(0.0, [1.0, np.inf]),
        stats.norm(0.0, 0.0),
        stats.norm(0.0, -1.0),
        stats.norm(0.0, [1.0, -2.0]),
        stats.lognorm(-1.0),
        stats.gamma(-1.0),
        stats.beta(0.0, 1.0),
        stats.lognorm(1.0, scale=-1.0),
        stats.gamma(2.0, scale=-1.0),
    ],
)
def test_parameters_out_of_range_are_refused(frozen: Any) -> None:
    with pytest.raises(ParameterError):
        from_frozen(frozen)


def test_a_singular_covariance_says_where() -> None:
    covariance = [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    frozen = stats.multivariate_normal(np.zeros(3), covariance, allow_singular=True)
    with pytest.raises(ParameterError, match=r"\['z0', 'z1'\]"):
        from_frozen(frozen)


def test_laws_without_a_counterpart() -> None:
    pair = NormalGamma.from_standard([0.0], [1.0], [1.0], [2.0])
    gamma = Gamma.from_standard([1.0, 2.0], [1.0, 2.0])
    for law in (pair, Plate(gamma), Product(a=gamma)):
        with pytest.raises(StructureError, match="no counterpart"):
            to_frozen(law)
    with pytest.raises(StructureError, match="expected one distribution"):
        to_frozen(Dirichlet.from_standard(np.ones((2, 3))))
    improper: Any = Gamma.from_standard(1.0, 1.0) - Gamma.from_standard(1.0, 2.0)
    with pytest.raises(ParameterError, match="improper"):
        to_frozen(improper)
    with pytest.raises(UsageError, match=r"builtins\.list"):
        to_frozen([gamma])
