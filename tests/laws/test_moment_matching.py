"""Several members as one: the nearest law that there is."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.errors import UsageError
from posterity.families import Gaussian, Mixture, Transformed
from tests.laws.table import NAMES, TABLE, laws

WEIGHTS = np.array([0.2, 0.5, 0.3])


def three(name: str, seed: int) -> Any:
    return TABLE[name].draw(np.random.default_rng(seed), (3,), 2)


@pytest.mark.parametrize("name", NAMES)
@laws
@given(seed=st.integers(0, 2**32 - 1))
def test_expected_statistics_are_those_of_the_mixture(name: str, seed: int) -> None:
    members = three(name, seed)
    one = members.moment_matched(WEIGHTS)
    wanted = WEIGHTS @ members.mean_parameters
    np.testing.assert_allclose(
        one.mean_parameters, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max()
    )


@laws
@given(seed=st.integers(0, 2**32 - 1))
def test_mean_and_covariance_are_those_of_the_mixture(seed: int) -> None:
    members = three("Gaussian", seed)
    one = members.moment_matched(WEIGHTS)
    mean = WEIGHTS @ members.mean
    apart = members.mean - mean
    within = np.tensordot(WEIGHTS, members.covariance, 1)
    assert isinstance(one, Gaussian)
    np.testing.assert_allclose(one.mean, mean)
    np.testing.assert_allclose(one.covariance, within + (WEIGHTS[:, None] * apart).T @ apart)


def test_bounded_events_are_averaged_where_nothing_bounds_them() -> None:
    members = three("Transformed", 0)
    one = Mixture.from_standard(WEIGHTS, members).collapse()
    assert isinstance(one, Transformed)
    assert one.law == members.law.moment_matched(WEIGHTS)


def test_what_cannot_be_collapsed() -> None:
    mixture = Mixture.from_standard(WEIGHTS, three("Gaussian", 0))
    with pytest.raises(UsageError, match="moment_matched"):
        Mixture.moment_matched(mixture, WEIGHTS)
    assert isinstance(mixture.collapse(), Gaussian)
