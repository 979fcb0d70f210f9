"""Values of Gaussian processes of scikit-learn, against what it predicts."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from posterity.adapters.sklearn import from_estimator, to_ledger
from posterity.errors import ParameterError, StructureError, UsageError


def check_moments(q: Any, mean: Any, covariance: Any, rtol: float = 1e-5) -> None:
    """In deviations."""
    scale = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((q.mean - mean) / scale, 0, atol=rtol)
    np.testing.assert_allclose((q.covariance - covariance) / np.outer(scale, scale), 0, atol=rtol)


KERNEL = ConstantKernel(4.0) * RBF(1.0)


def process(x: np.ndarray, y: np.ndarray, **parameters: Any) -> GaussianProcessRegressor:
    model = GaussianProcessRegressor(KERNEL, alpha=0.01, optimizer=None, **parameters)
    return model.fit(x, y)


def test_values_of_a_process_are_those_it_predicts() -> None:
    x = np.linspace(0, 6, 40)[:, None]
    model = process(x, 1e3 + 10 * np.sin(x[:, 0]), normalize_y=True)
    points = np.array([[0.5], [2.0], [9.0]])
    q = from_estimator(model, points)
    mean, covariance = model.predict(points, return_cov=True)
    check_moments(q, mean, covariance)
    assert q.names == ("f(0.5)", "f(2)", "f(9)")
    assert from_estimator(model, points, names=["low", "middle", "high"]).names[0] == "low"
    with pytest.raises(StructureError, match="normalize_y=False"):
        to_ledger(model, "north", points)
    with pytest.raises(UsageError, match="without points"):
        from_estimator(model)
    with pytest.raises(ParameterError, match="depend on each other"):
        from_estimator(model, np.array([[1.0], [1.0]]))


def test_columns_of_a_frame_go_by_name() -> None:
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(30, 2)), columns=["u", "v"])
    model = GaussianProcessRegressor(ConstantKernel(4.0) * RBF([1.0, 9.0]), optimizer=None)
    model.set_params(alpha=0.01).fit(x, 5 * x.u)
    q, other = from_estimator(model, x[:3]), from_estimator(model, x[:3][["v", "u"]])
    np.testing.assert_array_equal(other.mean, q.mean)
    check_moments(q, model.predict(x[:3]), model.predict(x[:3], return_cov=True)[1])
    with pytest.raises(StructureError, match=r"\['v'\] missing"):
        from_estimator(model, x[:3].rename(columns={"v": "w"}))


def test_noise_of_a_white_kernel_is_no_part_of_the_function() -> None:
    x = np.linspace(0, 6, 40)[:, None]
    y = np.sin(x[:, 0])
    white = GaussianProcessRegressor(KERNEL + WhiteKernel(0.01), alpha=1e-10, optimizer=None)
    q, plain = from_estimator(white.fit(x, y), x[::9]), from_estimator(process(x, y), x[::9])
    check_moments(q, plain.mean, plain.covariance, 1e-4)


def test_two_sites_of_a_process_make_the_pooled_one_where_points_say_all() -> None:
    """A factor is exact if all records lie at the points."""
    points = np.linspace(0, 6, 5)[:, None]
    rng = np.random.default_rng(0)
    y = rng.normal(size=(4, 5))
    x = np.tile(points, (2, 1))
    merged = to_ledger(process(x, y[:2].ravel()), "east", points)
    merged |= to_ledger(process(x, y[2:].ravel()), "north", points)
    pooled = from_estimator(process(np.tile(points, (4, 1)), y.ravel()), points)
    check_moments(merged.posterior, pooled.mean, pooled.covariance, 1e-6)
