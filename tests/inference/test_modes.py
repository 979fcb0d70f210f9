"""Which ends of climbs are one mode."""

import numpy as np

from posterity.inference.modes import Ends, Mode, climbs, found


def test_of_ends_near_each_other_the_highest_is_the_mode() -> None:
    at = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 0.0], [5.0, 9.0]])
    ends = Ends(at, np.array([1.0, 0.5, 2.0, np.inf]), 40)
    modes = found(ends, lambda at: np.ones(2))
    assert [mode.energy for mode in modes] == [0.5, 2.0]
    np.testing.assert_array_equal(modes[0].at, at[1])
    assert len(found(ends, lambda at: np.ones(2), most=1)) == 1


def test_what_is_known_or_unlikely_is_no_new_mode() -> None:
    at = np.array([[0.0], [4.0]])
    ends = Ends(at, np.array([1.0, 2.0]), 2)
    known = [Mode(0.0, np.array([0.3]), np.ones(1))]
    assert [mode.energy for mode in found(ends, lambda at: np.ones(1), known)] == [2.0]
    assert found(ends.among(ends.energies < 1), lambda at: np.ones(1)) == []


def test_deviations_are_those_given_all_other_coordinates() -> None:
    precision = np.array([[2.0, -1.5], [-1.5, 4.0]])
    factor = np.linalg.cholesky(np.linalg.inv(precision))
    mode = Mode(0.0, np.zeros(2), factor)
    np.testing.assert_allclose(mode.deviations, [2**-0.5, 0.5])
    np.testing.assert_array_equal(mode._replace(factor=np.ones(2)).deviations, np.ones(2))


def test_climbs_from_all_over_end_at_the_two_modes_of_a_quartic() -> None:
    """Minus log density (x² - 4)² / 4: modes at ±2, of curvature 8."""

    def look(z):
        return ((z**2 - 4) ** 2).sum(1) / 4, z * (z**2 - 4)

    begin = np.linspace(-3, 3, 20)[:, None]
    modes = found(climbs(look, begin, np.ones(1), most=60), lambda at: np.full(1, 8**-0.5))
    np.testing.assert_allclose(sorted(float(mode.at[0]) for mode in modes), [-2, 2], atol=1e-5)
