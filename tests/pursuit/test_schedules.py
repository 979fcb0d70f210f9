"""Schedules of λ."""

import numpy as np
import pytest
import scipy.special

from posterity.errors import ParameterError, UsageError
from posterity.pursuit import Best, Fixed, Flatness, Schedule
from posterity.pursuit.schedules import LEAST, MOST

RATIOS = np.random.default_rng(0).normal(size=1000)


def test_each_rule_says_its_own() -> None:
    assert Fixed(2).values(3, RATIOS) == (2.0,)
    assert Schedule(lambda t: 1 + 1 / t).values(2, RATIOS) == (1.5,)
    assert Best((0.5, 2)).values(1, RATIOS) == (0.5, 2.0)


@pytest.mark.parametrize("scale", [2.0, 4.0])
def test_flatness_makes_the_ratio_as_flat_as_it_says(scale: float) -> None:
    """The entropy of the tempered ratio is that of the uniform law over the share."""
    (found,) = Flatness(0.1).values(2, scale * RATIOS)
    weights = scipy.special.softmax(found * scale * RATIOS)
    assert LEAST < found < MOST
    assert np.exp(scipy.special.entr(weights).sum()) == pytest.approx(100, rel=1e-6)


def test_flatness_sharpens_what_is_flat_and_flattens_what_is_sharp() -> None:
    assert Flatness().values(2, 0.01 * RATIOS) == (MOST,)
    assert Flatness().values(2, 1000 * RATIOS) == (LEAST,)
    assert Flatness().values(2, np.array([np.nan, -np.inf])) == (1.0,)


def test_what_is_no_rule() -> None:
    for make, value in (
        (Fixed, 0),
        (Fixed, np.nan),
        (Best, ()),
        (Best, (1.0, -1.0)),
        (Flatness, 2),
    ):
        with pytest.raises(UsageError):
            make(value)
    with pytest.raises(ParameterError, match="schedule"):
        Schedule(lambda t: 1 - t).values(1, RATIOS)
