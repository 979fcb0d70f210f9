"""A user's own family as what the states of a chain emit."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy

from posterity.arrays.namespace import namespace
from posterity.errors import StructureError
from posterity.families import Dirichlet, Gamma, HiddenMarkov, Plate
from posterity.families.emitting import Emitting
from posterity.models import Records, label, padded
from posterity.models.hidden_markov import check_emissions, counted


class PoissonRate(Gamma, Emitting):
    """Of counts, one a step: vectors of one channel."""

    def expected_log_likelihood(self, x: Any) -> Any:
        log, mean = self.xp.digamma(self.shape) - self.xp.np.log(self.rate), self.mean
        return x * log - mean - namespace(x).special.gammaln(x + 1)

    def plugged_log_likelihood(self, x: Any) -> Any:
        return x * np.log(self.mean) - self.mean - namespace(x).special.gammaln(x + 1)

    def observed(self, x: Any, weights: Any) -> Any:
        return type(self)(weights.T @ x[:, 0], weights.sum(0))


RATES = PoissonRate.from_standard([20.0, 400.0], [10.0, 10.0])
Q = HiddenMarkov(
    emissions=Plate(RATES),
    initial=Dirichlet.from_standard([1.0, 1.0]),
    transitions=Plate(Dirichlet.from_standard([[9.0, 1.0], [1.0, 9.0]])),
)


def test_states_are_told_by_a_familys_own_formulas() -> None:
    truth = np.repeat([0, 1, 0], 20)
    x = np.random.default_rng(0).poisson(np.array([2.0, 40.0])[truth])[:, None]
    for parameters in ("expected-logs", "means"):
        (found,) = label(Q, [x], parameters=parameters)
        np.testing.assert_array_equal(found, truth)


def test_counts_are_what_it_adds() -> None:
    """With rates so far apart, each step adds to its own state, with certainty."""
    x = np.array([[1.0], [2.0], [41.0], [39.0], [0.0]])
    with jax.enable_x64(True):
        bound, factor = counted(Q, Records.of(padded([x])))
    members: Any = factor.emissions.members
    np.testing.assert_allclose(members.shape_minus_one, [3.0, 80.0], atol=1e-6)
    np.testing.assert_allclose(members.rate, [3.0, 2.0], atol=1e-6)
    path = [0, 0, 1, 1, 0]
    emitted = RATES.expected_log_likelihood(x)[np.arange(5), path].sum()
    logs = scipy.special.psi([9.0, 1.0]) - scipy.special.psi(10.0)
    start = scipy.special.psi(1.0) - scipy.special.psi(2.0)
    assert float(bound) == pytest.approx(emitted + start + 2 * logs.sum(), abs=1e-6)


def test_what_does_not_say_what_it_emits_is_refused() -> None:
    check_emissions(RATES)
    assert not RATES.emits_symbols and Dirichlet.emits_symbols
    with pytest.raises(StructureError, match="Emitting"):
        check_emissions(Gamma.from_standard(1.0, 1.0))
