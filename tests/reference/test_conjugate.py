"""The product of per-site posteriors is the posterior of the pooled data."""

import functools
import itertools
import operator

import numpy as np
import pytest

from posterity.ledger import Ledger
from tests.laws.table import close, identical
from tests.reference.conjugate import (
    CONJUGATE,
    pooled_posterior,
    site_ledgers,
    split_data,
)

pairs = pytest.mark.parametrize("name", CONJUGATE)
LOCATED = ["Gaussian mean", "diagonal Gaussian mean", "Normal-Wishart", "Normal-Gamma"]


@pairs
@pytest.mark.parametrize("seed", range(5))
def test_the_merged_ledger_is_the_pooled_posterior(name: str, seed: int) -> None:
    case = CONJUGATE[name]
    sites = split_data(case, seed=seed)
    merged = functools.reduce(operator.or_, site_ledgers(case, sites))
    pooled = pooled_posterior(case, sites)
    close(merged.posterior, pooled, rtol=1e-12, atol=1e-13)
    close(merged.posterior.standard_parameters(), pooled.standard_parameters(), rtol=1e-11)
    assert abs(merged.posterior.kl(pooled)) < 1e-11


@pairs
def test_the_order_of_merging_does_not_change_a_bit(name: str) -> None:
    case = CONJUGATE[name]
    ledgers = site_ledgers(case, split_data(case, sites=4))
    orders = [functools.reduce(operator.or_, order) for order in itertools.permutations(ledgers)]
    assert all(identical(order.posterior, orders[0].posterior) for order in orders)


@pairs
def test_forgetting_leaves_the_pooled_posterior_of_the_others(name: str) -> None:
    case = CONJUGATE[name]
    sites = split_data(case)
    merged = functools.reduce(operator.or_, site_ledgers(case, sites)).forget("site-3")
    others = {site: data for site, data in sites.items() if site != "site-3"}
    close(merged.posterior, pooled_posterior(case, others), rtol=1e-12, atol=1e-13)
    without = functools.reduce(operator.or_, site_ledgers(case, others))
    assert identical(merged.posterior, without.posterior)


@pairs
def test_a_cavity_is_the_posterior_of_the_others(name: str) -> None:
    case = CONJUGATE[name]
    sites = split_data(case)
    merged = functools.reduce(operator.or_, site_ledgers(case, sites))
    others = {site: data for site, data in sites.items() if site != "site-1"}
    close(merged.cavity("site-1"), pooled_posterior(case, others), rtol=1e-12, atol=1e-13)
    close(
        merged.cavity("site-1") + merged.factor("site-1"), merged.posterior, rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("offset", [1e3, 1e6])
@pytest.mark.parametrize("name", LOCATED)
def test_data_far_from_the_origin(name: str, offset: float) -> None:
    """Naturals agree to rounding; the location too, wherever the data are."""
    case = CONJUGATE[name]
    sites = split_data(case, offset=offset)
    merged = functools.reduce(operator.or_, site_ledgers(case, sites)).posterior
    pooled = pooled_posterior(case, sites)
    close(merged, pooled, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(merged.location(), pooled.location(), rtol=1e-12)
    assert merged.is_proper()


@pytest.mark.parametrize("offset", [1e3, 1e5])
@pytest.mark.parametrize("name", ["Normal-Wishart", "Normal-Gamma"])
def test_the_scatter_about_a_far_mean_keeps_what_float64_holds(name: str, offset: float) -> None:
    """It is the difference of sums of size ``n offset²``: each is off by its rounding."""
    case = CONJUGATE[name]
    # A prior near the data, as a user with far data would choose; else its distance dominates.
    case = case._replace(prior=case.prior.translate(np.full(3, offset)))
    sites = split_data(case, offset=offset)
    merged = functools.reduce(operator.or_, site_ledgers(case, sites)).posterior
    pooled = pooled_posterior(case, sites)
    count = sum(map(len, sites.values()))
    lost = 8 * len(sites) * np.finfo(np.float64).eps * count * 3 * offset**2
    assert np.abs(merged.inverse_scale - pooled.inverse_scale).max() <= lost
    assert lost < 0.1 * np.linalg.norm(pooled.inverse_scale, 2)


@pairs
def test_no_data_is_the_prior(name: str) -> None:
    case = CONJUGATE[name]
    empty = Ledger.of_site("nobody", prior=case.prior, posterior=case.prior)
    assert identical(empty.posterior, Ledger(case.prior).posterior)
