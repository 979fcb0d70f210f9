"""Quasi-Newton steps on the free energy of all sites: their end, and how far it is."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from posterity.errors import ConvergenceWarning
from posterity.families import DiagonalGaussian, Gamma, Gaussian
from posterity.federation import federate
from posterity.federation.agreement import Agreement
from posterity.federation.federate import start
from posterity.federation.keys import first_key
from posterity.federation.optima import free_energy
from posterity.federation.optimum import Descent, Effort, without
from posterity.federation.site import Site
from posterity.federation.state import distance
from posterity.inference import Cubature, LocalUpdate
from posterity.models import LogisticRegression

PRIORS = {
    "full": Gaussian.from_standard(np.zeros(3), 4.0 * np.eye(3)),
    "diagonal": DiagonalGaussian.from_standard(np.zeros(3), np.full(3, 4.0)),
}


def hospitals() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = {site: np.c_[np.ones(30), rng.normal([5.0, 0.0], size=(30, 2))] for site in "abc"}
    return {
        site: (rows, (rows @ [1, -0.3, 1] > rng.logistic(size=30)) * 1) for site, rows in x.items()
    }


def descended(run: Any, **effort: Any) -> Any:
    return Descent(run.federation, run.state, Effort(**effort)).end(run.tolerance)


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("family", PRIORS)
def test_steps_end_where_rounds_do_and_say_how_far_that_is(family: str, rounds: int) -> None:
    sites, prior = hospitals(), PRIORS[family]
    begun = start(sites, LogisticRegression(), prior).advance(rounds)
    ended = descended(begun)
    assert ended.settled and ended.rest < 1e-6
    optimum = federate(sites, LogisticRegression(), prior, tolerance=1e-9).posterior
    assert distance(ended.state.posterior, optimum) < 1e-6
    assert ended.left == pytest.approx(distance(begun.posterior, optimum), rel=0.05)
    left = begun._restarted_at(ended.state).sweep(1).posterior  # the factors are at rest
    assert distance(ended.state.posterior, left) < 1e-6


def test_what_is_left_is_not_said_where_the_budget_was_too_small() -> None:
    begun = start(hospitals(), LogisticRegression(), PRIORS["full"]).advance(1)
    whole = descended(begun)
    short = descended(begun, most=2)
    assert short.asked == 2 < whole.asked
    assert short.left == np.inf or short.left == pytest.approx(whole.left, rel=0.3)
    assert (
        descended(start(hospitals(), LogisticRegression(), PRIORS["full"]), most=2).left == np.inf
    )


def test_a_posterior_that_cannot_be_evaluated_has_no_optimum() -> None:
    run = start(hospitals(), LogisticRegression(), PRIORS["full"]).advance(1)
    narrow = -1e3 * run.state.factor("a")
    entry = run.state.entries["a"]._replace(factor=narrow)
    state = run.state.with_entries(run.state.entries | {"a": entry})
    assert Descent(run.federation, state).end(run.tolerance).left == np.inf


def test_sites_that_take_no_part_keep_their_factors() -> None:
    sites, prior = hospitals(), PRIORS["full"]
    ledger = federate(sites, LogisticRegression(), prior, tolerance=1e-9).ledger
    begun = start({site: sites[site] for site in "ab"}, LogisticRegression(), ledger).advance(1)
    displaced = begun.state.with_entries(
        start(sites, LogisticRegression(), prior).advance(1).ledger.entries
    )
    ended = Descent(begun.federation, displaced).end(1e-6)
    assert ended.state.factor("c") == displaced.factor("c")
    assert without(ended.state, "ab") == prior + displaced.factor("c")
    assert free_energy(begun.federation, ended.state) == pytest.approx(ended.energy)
    assert ended.energy < free_energy(begun.federation, displaced)


def test_a_gamma_family_needs_no_coordinates() -> None:
    """Rates of exponential times, whose logarithm is a half of what the site says."""
    rng = np.random.default_rng(0)
    sites = {site: rng.exponential(2.0, size=12) for site in "ab"}
    times = lambda z, x: jnp.log(z) - z * x - 0.1 * jnp.sqrt(z)
    run = start(sites, times, Gamma.from_standard(2.0, 1.0)).advance(1)
    ended = descended(run)
    optimum = run.converge(1e-9).posterior
    assert ended.left == pytest.approx(distance(run.posterior, optimum), rel=0.1, abs=1e-8)


@pytest.mark.slow
def test_a_function_is_evaluated_by_the_program_of_line_searches() -> None:
    agreed = Agreement.of(lambda z, y: -jnp.cosh(y - z[0]), Gaussian.from_standard([0.0], [[1.0]]))
    site, q = Site.of(agreed, "a", np.array([0.5, -1.0, 2.0])), Gaussian.from_standard([0.0], [[2]])
    report = site.report(q, q.zero(), ("noiseless",), key=first_key())
    mean = np.exp(q.covariance[0, 0] / 2) * np.cosh(np.array([0.5, -1.0, 2.0])).sum()
    assert report.value == pytest.approx(-mean)
    direction: Any = report.direction
    assert direction.precision[0, 0] == pytest.approx(mean)  # minus the second derivative


def product(z: Any, data: Any) -> Any:
    return -((data[1] - z[0] * z[1] * data[0]) ** 2) / 2


@pytest.mark.slow
def test_a_rough_value_is_that_at_the_mean() -> None:
    q = Gaussian.from_standard(np.ones(4), np.eye(4))
    curved = lambda z, y: -((y - jnp.exp(z[0]) * z[1] * z[2] * z[3]) ** 2) / 9
    site = Site.of(Agreement.of(curved, q, LocalUpdate(Cubature(8))), "a", np.arange(5.0))
    rough, exact = (
        site.report(q, q.zero(), (part,), key=first_key()) for part in ("rough", "noiseless")
    )
    left = np.arange(5.0) - np.e
    assert rough.value == pytest.approx(-(left**2).sum() / 9) and rough.value != exact.value
    np.testing.assert_allclose(rough.slope, np.full(4, 2 * np.e * left.sum() / 9))


def test_the_slope_at_the_mean_is_the_same_in_numpy() -> None:
    sites = hospitals()
    q = Gaussian.from_standard([0.1, -0.2, 0.3], np.eye(3))

    def written_out(z: Any, data: Any) -> Any:
        x, y = data
        return y * (x @ z) - jnp.logaddexp(0.0, x @ z)

    one, other = (
        Site.of(Agreement.of(model, q), "a", sites["a"]).report(
            q, q.zero(), ("rough",), key=first_key()
        )
        for model in (LogisticRegression(), written_out)
    )
    assert one.value == pytest.approx(other.value)
    np.testing.assert_allclose(one.slope, other.slope)


@pytest.mark.slow
@pytest.mark.parametrize("slope", [pytest.param(0.25, marks=pytest.mark.experiment), 0.5])
def test_a_curved_ridge_is_followed_to_its_end(slope: float) -> None:
    # Visits alone end two nats away from the optimum after a hundred rounds, or seem to converge.
    rng = np.random.default_rng(0)
    x = {
        site: rng.normal(600, 7, size)
        for site, size in zip("abcde", (50, 50, 50, 12, 3), strict=True)
    }
    sites = {site: (x[site], slope + rng.normal(size=len(x[site]))) for site in x}
    with pytest.warns(ConvergenceWarning):  # exchanged parameters are as likely
        prior = Gaussian.from_standard(np.zeros(2), np.eye(2))
        run = federate(sites, product, prior, tolerance=1e-6)
    assert run.status.state == "converged to one of several"
    q: Any = run.posterior
    np.testing.assert_allclose(q.mean[0], q.mean[1], rtol=1e-3)
