"""The rule that is natural for sites, why it is that one, and what it is exact for."""

from typing import Any

import numpy as np
import pytest

from posterity import Dirichlet, Gaussian, Ledger, fuse
from posterity.errors import FusionWarning
from tests.fusion import made


def regressions(count: int, prior: Any = None) -> tuple[dict[str, Ledger], Gaussian]:
    """Linear regressions of one model at some hospitals, and the one on all their records."""
    rng = np.random.default_rng(0)
    prior = Gaussian.from_standard(np.zeros(3), 100 * np.eye(3)) if prior is None else prior
    sites, pooled = {}, prior
    for j in range(count):
        x = np.hstack([np.ones((40, 1)), 5 + rng.normal(size=(40, 2))])
        y = x @ np.array([1.0, -2.0, 0.5]) + rng.normal(size=40)
        factor = Gaussian(x.T @ y, x.T @ x)
        name, pooled = f"hospital {j}", pooled + factor
        sites[name] = Ledger.of_site(name, prior=prior, posterior=prior + factor)
    return sites, pooled


def clusters(count: int) -> tuple[dict[str, Ledger], list[np.ndarray]]:
    """Three clusters at sites that know which record is whose, and all records of each."""
    rng = np.random.default_rng(1)
    records: list[list[np.ndarray]] = [[], [], []]
    sites = {}
    for j in range(count):
        own = [rng.normal(size=(50, 2)) + 9 * g for g in range(3)]
        for g, x in enumerate(own):
            records[g].append(x)
        base = Dirichlet.from_standard(np.ones(3) / 3)
        sites[f"site {j}"] = made.conjugate_site(f"site {j}", base, own[j % 3 :] + own[: j % 3])
    return sites, [np.concatenate(some) for some in records]


def test_ledgers_of_one_prior_are_added_up_and_a_site_can_be_forgotten() -> None:
    sites, pooled = regressions(4)
    fused = fuse(sites)
    assert fused.rule == "product" and "one prior" in fused.why and "one prior" in repr(fused)
    np.testing.assert_allclose(fused.posterior.mean, pooled.mean)
    np.testing.assert_allclose(fused.posterior.covariance, pooled.covariance)
    assert fused.ledger is not None and not fused.warnings
    left = fused.ledger.forget("hospital 2").posterior
    others = {name: own for name, own in sites.items() if name != "hospital 2"}
    assert left == fuse(others).posterior


def test_matched_components_of_ledgers_are_those_of_the_pooled_records() -> None:
    sites, records = clusters(4)
    fused = fuse(sites)
    whole = made.conjugate_site("all", Dirichlet.from_standard(np.ones(3) / 3), records).posterior
    assert fused.rule == "product" and fused.components == 3
    place = fused.matching["site 0"]
    np.testing.assert_allclose(fused.posterior.members[place].mean, whole.members.mean)
    assert np.max(whole.members.kl(fused.posterior.members[place])) < 1e-9


def test_posteriors_alone_are_averaged_unless_their_prior_is_said() -> None:
    sites, pooled = regressions(3)
    bare = {name: own.posterior for name, own in sites.items()}
    fused = fuse(bare)
    assert fused.rule == "barycenter" and "the prior of 'hospital 0' is not known" in fused.why
    said = fuse(bare, prior=sites["hospital 0"].prior)
    assert said.rule == "product"
    np.testing.assert_allclose(said.posterior.mean, pooled.mean)


def test_what_is_asked_for_goes_before_what_is_natural() -> None:
    sites, _ = regressions(3)
    average = fuse(sites, rule="barycenter")
    assert average.rule == "barycenter" and average.why == "as asked for"
    weights = dict.fromkeys(sites, 1.0)
    assert fuse(sites, weights=weights).rule == "barycenter"
    assert fuse(sites, divergence="forward").rule == "barycenter"


def test_ledgers_of_different_priors_are_averaged_until_one_is_named() -> None:
    wide = Gaussian.from_standard(np.zeros(3), 400 * np.eye(3))
    sites, pooled = regressions(2)
    sites["hospital 1"] = regressions(2, wide)[0]["hospital 1"]
    fused = fuse(sites)
    assert fused.rule == "barycenter" and "different priors" in fused.why
    named = fuse(sites, prior=sites["hospital 0"].prior)
    assert named.rule == "product" and named.rebased == ("hospital 1",)
    np.testing.assert_allclose(named.posterior.mean, pooled.mean)


def test_data_that_two_ledgers_share_are_averaged_with_a_warning() -> None:
    sites, _ = regressions(3)
    a, b, c = sites.values()
    with pytest.warns(FusionWarning, match="hold data of site 'hospital 1'"):
        fused = fuse([a | b, b | c])
    assert fused.rule == "barycenter" and "count data twice" in fused.why
    assert any("hospital 1" in line for line in fused.warnings)


@pytest.mark.parametrize("weighted", [True, False])
def test_a_tree_of_fusions_orders_components_as_one_of_all_sites_does(weighted: bool) -> None:
    sites, _ = clusters(4)
    if not weighted:
        bare = lambda law: type(law)(law.members)
        sites = {
            n: Ledger.of_site(n, prior=bare(own.prior), posterior=bare(own.posterior))
            for n, own in sites.items()
        }
        alone = sites["site 3"]
        kept = lambda law: type(law)(law.members[:2])
        sites["site 3"] = Ledger.of_site(
            "site 3", prior=kept(alone.prior), posterior=kept(alone.posterior)
        )
    names = list(sites)
    regions = [fuse({n: sites[n] for n in some}).ledger for some in (names[:2], names[2:])]
    tree, flat = fuse(regions), fuse(sites)
    assert tree.ledger == flat.ledger
    assert tree.posterior == flat.posterior
