"""Laplace approximations against closed forms."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posterity
from posterity.adapters.numpyro import from_guide
from posterity.errors import ParameterError

numpyro: Any = pytest.importorskip("numpyro", reason="numpyro is not installed: the extra numpyro")
dist: Any = pytest.importorskip("numpyro.distributions")

from numpyro.infer import autoguide  # noqa: E402

COUNTS = np.array([3.0, 5.0, 1.0, 4.0])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
LINE = X, X @ [1.0, -2.0] + RNG.normal(size=30) / 2


def lines(x: Any, y: Any) -> None:
    """A conjugate regression, whose Laplace approximation is the posterior."""
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def flat(y: Any) -> None:
    """Of a density that is the same for every ``a``."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.factor("undone", a**2 / 2)
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def two(z: Any = None) -> None:
    numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("scale", dist.HalfNormal(2.0))


@functools.cache
def begun(kind: str, model: Any) -> tuple[Any, Any]:
    """A guide that knows its model's sites, and where it begins; made once."""
    args = {flat: (COUNTS,), lines: LINE}.get(model, ())
    guide = getattr(autoguide, kind)(model)
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(0.1), numpyro.infer.Trace_ELBO())
    begin = lambda key: svi.get_params(svi.init(key, *args))
    if kind != "AutoLaplaceApproximation":  # which keeps what is traced, and computes with it
        begin = jax.jit(begin)
    return guide, begin(jax.random.key(0))


@pytest.fixture(autouse=True, scope="module")
def unchecked():
    """NumPyro looks at arguments of its laws one operation after another."""
    with numpyro.validation_enabled(False):
        yield


@pytest.mark.slow
def test_a_conjugate_regression(tmp_path: Any) -> None:
    x, y = LINE
    precision = np.eye(2) / 4 + x.T @ x / 0.25
    mean = np.linalg.solve(precision, x.T @ y / 0.25)
    guide, _ = begun("AutoLaplaceApproximation", lines)
    q, tolerance = from_guide(guide, {"auto_loc": jnp.asarray(mean)}), 1e-4
    law: Any = q.law
    assert np.allclose(law.mean, mean, atol=tolerance)
    assert np.allclose(law.covariance, np.linalg.inv(precision), rtol=tolerance, atol=1e-6)
    assert q.names == ("w[0]", "w[1]")
    posterity.save(q, tmp_path / "q.safetensors")
    again = posterity.load(tmp_path / "q.safetensors")
    assert again == q and again.names == q.names


@pytest.mark.slow
def test_a_guides_own_curvature_that_is_none() -> None:
    guide, params = begun("AutoLaplaceApproximation", flat)
    with pytest.raises(ParameterError, match="not positive definite"):
        from_guide(guide, params)
