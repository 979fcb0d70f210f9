"""Kullback-Leibler divergence and entropy: closed, centred formulas against the generic ones."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.families import ExponentialFamily
from tests.laws.table import NAMES, laws, members, some

EPS = np.finfo(np.float64).eps
families = pytest.mark.parametrize("name", NAMES)


def generic_terms(p: Any, q: Any) -> np.ndarray:
    """Sum of the magnitudes that the generic formula adds: what its rounding is relative to."""
    mean = np.abs(p.mean_parameters)
    inner = ((np.abs(p.natural_parameters) + np.abs(q.natural_parameters)) * mean).sum(-1)
    return 1 + inner + np.abs(p.log_normalizer()) + np.abs(q.log_normalizer())


@families
@laws
@given(data=st.data())
def test_kl_is_the_bregman_divergence(name: str, data: st.DataObject) -> None:
    """Also positive, and zero at itself; and the entropy is the generic one."""
    p, q = data.draw(members(name, 2))
    gap = np.abs(p.kl(q) - ExponentialFamily.kl(p, q))
    # Inverses and determinants of matrices with condition numbers up to a few hundred.
    assert np.all(gap <= 1e3 * EPS * generic_terms(p, q))
    tolerance = 1e3 * EPS * (1 + np.abs(p.negative_entropy()))
    assert np.all(p.kl(q) > -tolerance)
    assert np.all(np.abs(p.kl(p)) <= tolerance)
    gap = np.abs(p.negative_entropy() - ExponentialFamily.negative_entropy(p))
    assert np.all(gap <= 1e3 * EPS * generic_terms(p, p))
    assert np.array_equal(p.entropy(), -p.negative_entropy() - p.log_base_measure())


@families
@laws
@given(data=st.data(), power=st.integers(4, 9))
def test_kl_of_a_small_step_is_half_its_fisher_norm(
    name: str, data: st.DataObject, power: int
) -> None:
    """Near itself KL falls with the square of the step, and rounding never makes it negative."""
    p, q = data.draw(members(name, 2))
    # A thousandth of the way, or less of it where that is no small step.
    short = 1e-3 / np.sqrt(1 + 1e3 * p.kl(p + 1e-3 * (q - p)))

    def along(share: float) -> Any:
        step = (share * short)[..., None] * (q - p).natural_parameters
        return p.with_natural_parameters(p.natural_parameters + step)

    share = 10.0 ** (3 - power)
    near, far = along(share), along(1.0)
    tolerance = 1e3 * EPS * (1 + np.abs(p.negative_entropy()))
    assert np.all(p.kl(near) > -tolerance)
    assert np.all(p.kl(near) <= 2 * share**2 * p.kl(far) + tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["DiagonalGaussian", "Gaussian"])
@pytest.mark.parametrize("ratio", [1e-7, 1e-4, 1e-2, 1e2, 1e4])
def test_gaussian_kl_keeps_its_digits_when_variances_are_far_apart(
    name: str, ratio: float, dtype: type
) -> None:
    family = type(some(name)[0])
    precision = np.ones((1,) if name == "DiagonalGaussian" else (1, 1), dtype)
    p = family(np.zeros(1, dtype), precision)
    q = family(np.zeros(1, dtype), precision * dtype(ratio))
    ratio = float(dtype(ratio))
    expected = (ratio - 1 - np.log(ratio)) / 2
    np.testing.assert_allclose(p.kl(q), expected, rtol=16 * np.finfo(dtype).eps)
    assert np.asarray(p.kl(q)).dtype == dtype
