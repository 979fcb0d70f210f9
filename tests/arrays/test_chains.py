"""Chains in different places are told from chains that mix slowly, known variances from others."""

import numpy as np
import scipy.signal

from posterity.arrays.chains import Limits, apart, diagnose, error_of_variance, sizes


def test_one_chain_elsewhere_is_seen_and_slow_mixing_is_not() -> None:
    """Of 60 coordinates with an autocorrelation time of 40 and 200 draws, some R-hat is high."""
    time, count = 40, 200
    fall = (time - 1) / (time + 1)
    noise = np.random.default_rng(0).normal(size=(16, count + 10 * time, 60))
    gain = [(1 - fall**2) ** 0.5]
    draws = scipy.signal.lfilter(gain, [1, -fall], noise, axis=1)[:, -count:]
    assert diagnose(draws).rhat.max() > Limits().rhat and not apart(draws).any()
    draws[0, :, 7] += 8
    assert np.flatnonzero(apart(draws)).tolist() == [7]


def test_draws_without_coordinates_have_no_sizes() -> None:
    for count in (3, 20):
        draws = np.empty((1, count, 0))
        assert [len(each) for each in (sizes(draws), error_of_variance(draws))] == [0, 0]
    assert [len(each) for each in diagnose(np.empty((1, 3, 0)))] == [0, 0]


def test_variances_are_known_but_of_heavy_tails() -> None:
    """The standard error of a normal sample's variance is known; Student's with two degrees of
    freedom has none.
    """
    rng = np.random.default_rng(0)
    draws = np.stack([rng.normal(size=(16, 500)), rng.standard_t(2, (16, 500))], -1)
    normal, student = error_of_variance(np.append(draws, np.zeros((16, 500, 1)), -1))[:2]
    np.testing.assert_allclose(normal, (2 / 8000) ** 0.5, rtol=0.1)
    assert normal < Limits().variance_error < student
