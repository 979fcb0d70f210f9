"""What is said of a federation whose sites differ: the law of its population, or why it is not."""

import numpy as np
import pytest

import posterity
from posterity import Gaussian, Product
from posterity.errors import UsageError
from posterity.inference.federated_effects import (
    ROUGH,
    TAKEN_AS_IT_IS,
    caveats_of,
    effects_of,
    with_random_effects,
)
from posterity.models import LinearRegression
from posterity.reporting.population import in_words, population_of
from posterity.reporting.summary import rows, summarise


def federated(count=3, apart=1.0):
    """A federation of sites without names of coefficients, all of which differ."""
    rng = np.random.default_rng(7)
    data = {}
    for site in range(count):
        x = np.column_stack([np.ones(60), rng.normal(size=60)])
        data[f"s{site}"] = x, apart * x @ rng.normal(size=2) + rng.normal(size=60)
    prior = Gaussian.from_standard(np.zeros(2), 9 * np.eye(2))
    return posterity.federate(data, LinearRegression(1.0), prior, personal=True)


def test_a_federation_whose_sites_differ_is_summarised_by_the_law_of_its_population(monkeypatch):
    run = federated()
    law = run.population.law.coefficients
    anew = summarise(run.ledger)
    assert [row.label for row in anew.rows] == ["coefficients: 0", "coefficients: 1"]
    np.testing.assert_allclose([row.sd for row in anew.rows], law.marginal_variance**0.5, rtol=0.02)
    monkeypatch.setattr(rows, "ANEW", 0)  # the sum's influences, where others take long
    known = [site.nats for site in summarise(run.ledger).sites]
    assert known != [site.nats for site in anew.sites]
    left = [run.ledger.cavity(site) for site in run.ledger.sites]
    np.testing.assert_allclose(known, [float(run.posterior.kl(one)) for one in left])


def test_factors_from_other_spreads_leave_the_sum_as_it_is_and_a_note():
    ledger = federated().ledger
    assert with_random_effects(ledger) is not ledger
    apart = Gaussian(np.full(2, 600.0), 200 * np.eye(2))  # spreads of twenty, for certain
    moved = ledger.update(
        "odd", Product(coefficients=Gaussian(np.zeros(2), np.zeros((2, 2))), log_spread=apart)
    )
    assert with_random_effects(moved) is moved and caveats_of(moved) == [TAKEN_AS_IT_IS]
    assert [row.block for row in summarise(moved).rows] == 2 * ["coefficients"] + 2 * ["log_spread"]
    with pytest.raises(UsageError, match="whose sites differ"):
        effects_of(moved)


def heterogeneity_of_records(count, apart):
    """Q of the sites' least squares, whose noise variance is one."""
    rng = np.random.default_rng(7)
    total = np.zeros((2, 2))
    linear = np.zeros(2)
    square = 0.0
    for _ in range(count):
        x = np.column_stack([np.ones(60), rng.normal(size=60)])
        y = apart * x @ rng.normal(size=2) + rng.normal(size=60)
        total += x.T @ x
        linear += x.T @ y
        square += x.T @ y @ np.linalg.solve(x.T @ x, x.T @ y)
    return square - linear @ np.linalg.solve(total, linear)


@pytest.mark.parametrize("apart", [0.0, 0.1, 0.35, 3.0])
def test_heterogeneity_of_a_federation_is_that_of_the_records_or_is_not_given(apart):
    ledger = federated(5, apart).ledger
    found = population_of(ledger, 0.95, {})
    effects = effects_of(ledger)
    assert found["degrees"] == 8 and all(one["tau"] is not None for one in found["coefficients"])
    if apart > 0.2:  # factors hide errors below the spread
        assert (effects.spread > effects.errors.min(0)).any() and caveats_of(ledger) == [ROUGH]
        assert found["q"] is found["p"] is found["coefficients"][0]["i2"] is None
        assert "Q =" not in "".join(in_words(found))
    else:
        assert caveats_of(ledger) == [] and "Q =" in in_words(found)[0]
        assert found["q"] == pytest.approx(heterogeneity_of_records(5, apart), rel=0.05)
