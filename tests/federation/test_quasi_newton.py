"""Quasi-Newton steps of the free energy: their end, the factors there, and curved ridges."""

from typing import Any

import numpy as np
import pytest

from posterity.errors import ConvergenceWarning
from posterity.families import DiagonalGaussian, Gaussian
from posterity.federation import federate
from posterity.federation.federate import start
from posterity.federation.quasi_newton import quasi_newton
from posterity.federation.state import distance
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


@pytest.mark.slow
@pytest.mark.parametrize("family, slope", [(Gaussian, 0.25), (DiagonalGaussian, 0.5)])
def test_a_curved_ridge_is_followed_to_its_end(family: Any, slope: float) -> None:
    # A hundred rounds of visits alone end two nats away from the optimum.
    rng = np.random.default_rng(0)
    x = {
        site: rng.normal(600, 7, size)
        for site, size in zip("abcde", (50, 50, 50, 12, 3), strict=True)
    }
    sites = {site: (x[site], slope + rng.normal(size=len(x[site]))) for site in x}
    variance = np.eye(2) if family is Gaussian else np.ones(2)

    def product(z: Any, data: Any) -> Any:
        return -((data[1] - z[0] * z[1] * data[0]) ** 2) / 2

    with pytest.warns(ConvergenceWarning):  # exchanged parameters are as likely
        run = federate(sites, product, family.from_standard(np.zeros(2), variance))
    assert run.status.state == "converged to one of several"
    q: Any = run.posterior
    np.testing.assert_allclose(q.mean[0], q.mean[1], rtol=1e-3)
