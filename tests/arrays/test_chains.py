"""Chains in different places are told from chains that mix slowly."""

import numpy as np
import scipy.signal

from posterity.arrays.chains import DISAGREE, apart, diagnose


def test_one_chain_elsewhere_is_seen_and_slow_mixing_is_not() -> None:
    """Of 60 coordinates with an autocorrelation time of 40 and 200 draws, some R-hat is high."""
    time, count = 40, 200
    fall = (time - 1) / (time + 1)
    noise = np.random.default_rng(0).normal(size=(16, count + 10 * time, 60))
    gain = [(1 - fall**2) ** 0.5]
    draws = scipy.signal.lfilter(gain, [1, -fall], noise, axis=1)[:, -count:]
    assert diagnose(draws).rhat.max() > DISAGREE and not apart(draws).any()
    draws[0, :, 7] += 8
    assert np.flatnonzero(apart(draws)).tolist() == [7]
