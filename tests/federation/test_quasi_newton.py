"""Quasi-Newton steps of the free energy: their end, the factors there, and curved ridges."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity.errors import ConvergenceWarning
from posterity.families import DiagonalGaussian, Gaussian
from posterity.federation import federate
from posterity.federation.agreement import Agreement
from posterity.federation.federate import start
from posterity.federation.keys import first_key
from posterity.federation.optima import free_energy
from posterity.federation.quasi_newton import FLAT, Whitened, flattest, quasi_newton
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


@pytest.mark.parametrize("family", PRIORS)
def test_they_end_where_rounds_do(family: str) -> None:
    sites, prior = hospitals(), PRIORS[family]
    begun = start(sites, LogisticRegression(), prior).advance(1)
    ended = quasi_newton(begun.federation, begun.state)
    assert ended is not None
    assert ended.left < 1e-9
    optimum = federate(sites, LogisticRegression(), prior, tolerance=1e-9).posterior
    assert distance(ended.state.posterior, optimum) < 1e-8
    left = begun._restarted_at(ended.state).sweep(1).posterior  # the factors are at rest
    assert distance(ended.state.posterior, left) < 1e-9


def test_they_follow_searches_that_end_far_from_their_optima() -> None:
    sites, prior = hospitals(), PRIORS["full"]
    begun = start(sites, LogisticRegression(), prior)
    for rounds, far in ((1, False), (2, True)):
        run = begun.advance(rounds)
        assert not run.is_exhausted
        visits = [dataclasses.replace(visit, residual=2.0) for visit in run.trace]
        exhausted = dataclasses.replace(run, trace=visits)
        assert exhausted.is_exhausted is far
    after = exhausted.from_better()
    assert after.trace[-1].outcome == "restarted"
    optimum = federate(sites, LogisticRegression(), prior, tolerance=1e-9).posterior
    assert distance(after.posterior, optimum) < 1e-8


def test_they_end_early_where_they_cannot_reach_a_free_energy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("posterity.federation.quasi_newton.LOOK", 2)
    run = start(hospitals(), LogisticRegression(), PRIORS["full"]).advance(1)
    least = quasi_newton(run.federation, run.state)
    assert least is not None and not least.hopeless
    best = free_energy(run.federation, least.state)
    near = quasi_newton(run.federation, run.state, best + 1e-3)
    assert near is not None and not near.hopeless and near.left == least.left
    far = quasi_newton(run.federation, run.state, best - 1e6)
    assert far is not None and far.hopeless
    assert free_energy(run.federation, far.state) > best


def test_there_are_none_from_a_covariance_that_is_not_positive_definite() -> None:
    run = start(hospitals(), LogisticRegression(), PRIORS["full"]).advance(1)
    narrow = -1e3 * run.state.factor("a")
    entry = run.state.entries["a"]._replace(factor=narrow)
    state = run.state.with_entries(run.state.entries | {"a": entry})
    ended = quasi_newton(run.federation, state)
    assert ended is not None
    assert ended.left == np.inf
    assert ended.state is state
    assert np.isnan(flattest(run.federation, state, run.posterior)).all()


def test_sites_that_take_no_part_keep_their_factors() -> None:
    sites, prior = hospitals(), PRIORS["full"]
    ledger = federate(sites, LogisticRegression(), prior, tolerance=1e-9).ledger
    begun = start({site: sites[site] for site in "ab"}, LogisticRegression(), ledger).advance(1)
    displaced = begun.state.with_entries(
        start(sites, LogisticRegression(), prior).advance(1).ledger.entries
    )
    ended = quasi_newton(begun.federation, displaced)
    assert ended is not None
    assert ended.state.factor("c") == displaced.factor("c")


@pytest.mark.parametrize("family", PRIORS)
def test_coordinates_of_means_and_covariances(family: str) -> None:
    run = federate(hospitals(), LogisticRegression(), PRIORS[family], tolerance=1e-9)
    about = Whitened(run.federation, run.state)
    there = about.origin + np.linspace(-0.2, 0.3, len(about.origin))
    back = about.coordinates(about.moved(there)[0].posterior)
    np.testing.assert_allclose(back, there, rtol=0, atol=1e-9)  # in standard deviations
    gradient = about.gradient(there)
    for each in np.eye(len(there)):
        before, after = (about.energy(there + h * each)[0] for h in (-1e-5, 1e-5))
        assert (after - before) / 2e-5 == pytest.approx(gradient @ each, abs=1e-6)


def test_a_regression_is_flat_in_no_direction() -> None:
    run = federate(hospitals(), LogisticRegression(), PRIORS["full"], tolerance=1e-9)
    begun = run.restarted().advance(1)
    curvature, left = flattest(run.federation, begun.state, run.posterior)
    assert 5 * FLAT < curvature < 2
    assert left == pytest.approx(distance(begun.posterior, run.posterior), rel=0.2)


@pytest.mark.slow
def test_a_function_is_evaluated_by_the_program_of_line_searches() -> None:
    agreed = Agreement.of(lambda z, y: -jnp.cosh(y - z[0]), Gaussian.from_standard([0.0], [[1.0]]))
    site, q = Site.of(agreed, "a", np.array([0.5, -1.0, 2.0])), Gaussian.from_standard([0.0], [[2]])
    report = site.report(q, q.zero(), ("value", "gradient"), key=first_key())
    mean = np.exp(q.covariance[0, 0] / 2) * np.cosh(np.array([0.5, -1.0, 2.0])).sum()
    assert report.value == pytest.approx(-mean)
    direction: Any = report.direction
    assert direction.precision[0, 0] == pytest.approx(mean)  # minus the second derivative


def product(z: Any, data: Any) -> Any:
    return -((data[1] - z[0] * z[1] * data[0]) ** 2) / 2


@pytest.mark.slow
def test_a_rough_value_is_that_of_the_fewest_nodes() -> None:
    q = Gaussian.from_standard(np.ones(4), np.eye(4))
    curved = lambda z, y: -((y - jnp.exp(z[0]) * z[1] * z[2] * z[3]) ** 2) / 9
    site = Site.of(Agreement.of(curved, q, LocalUpdate(Cubature(8))), "a", np.arange(5.0))
    rough, exact, both = (
        site.report(q, q.zero(), parts, key=first_key()).value
        for parts in (("rough",), ("value",), ("rough", "value"))
    )
    with jax.enable_x64(True):
        few = jax.jit(Cubature(8).evaluate, static_argnums=0)(site.model, q, site.records)
    assert rough == pytest.approx(float(few.value))
    assert both == exact != rough


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
        run = federate(sites, product, Gaussian.from_standard(np.zeros(2), np.eye(2)))
    assert run.status.state == "converged to one of several"
    q: Any = run.posterior
    np.testing.assert_allclose(q.mean[0], q.mean[1], rtol=1e-3)
