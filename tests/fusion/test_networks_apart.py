"""What a fused network keeps of its sites, and what it predicts where they do not agree."""

import itertools

import numpy as np
import pytest

import posterity
from posterity.families.layers import Layers
from posterity.fusion.diff import diff
from posterity.fusion.networks import Options, combine
from posterity.networks import describe, predict
from tests.fusion.nets import LENET, TWO, as_site, random_network

QUICK = Options(samples=60)
KINDS = {"one": Layers.dense(4, 6, 3), "two": TWO, "conv": LENET}


def some(layers, count, seed=0, spread=0.01):
    rng = np.random.default_rng(seed)
    return {f"s{j}": as_site(f"s{j}", random_network(layers, rng, spread)) for j in range(count)}


def said_by_sites(network, x):
    """What each site says by the hidden units of the fused network, (sites, n, outputs)."""
    arrays = network.layers.unravel(network.mean)
    hidden = np.maximum(x @ arrays[0]["kernel"] + arrays[0]["bias"], 0)
    hidden = np.concatenate([hidden, np.ones((len(x), 1))], 1)
    return np.einsum("nl,mlk->mnk", hidden, arrays[-1]["sites"])


@pytest.mark.parametrize("ledgers", [True, False])
def test_each_site_is_kept_as_it_predicts(ledgers):
    layers, rng = KINDS["one"], np.random.default_rng(1)
    sites = some(layers, 3)
    held = sites if ledgers else {name: own.posterior for name, own in sites.items()}
    fused = posterity.fuse(held, components=18, networks=Options(samples=2000)).posterior
    assert fused.layers.sites == 3
    assert fused.plain.layers == layers.with_widths([18])
    x = rng.normal(size=(50, 4))
    own = [describe(site.posterior, x, samples=0).log_chances for site in sites.values()]
    kept = said_by_sites(fused, x)
    kept = kept - np.logaddexp.reduce(kept, -1, keepdims=True)
    best = min(
        max(np.abs(kept[j] - own[k]).mean() for j, k in enumerate(order))
        for order in itertools.permutations(range(3))
    )
    assert best < 0.05 * np.std(own)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_adds_up_to_the_fused_network(kind):
    fused = posterity.fuse(some(KINDS[kind], 3), networks=QUICK).posterior
    last = fused.layers.unravel(fused.mean)[-1]
    np.testing.assert_allclose(last["shares"].sum(0), 1)
    whole = (last["shares"][:, None] * last["sites"]).sum(0)
    np.testing.assert_allclose(whole[:-1], last["kernel"], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(whole[-1], last["bias"], rtol=1e-6, atol=1e-8)


def test_a_fused_network_predicts_at_its_mean_and_is_less_sure_where_sites_disagree():
    layers, x = KINDS["one"], np.random.default_rng(2).normal(size=(40, 4))
    alike = {name: some(layers, 1)["s0"] for name in ("a", "b", "c")}
    average = posterity.fuse(alike, rule="barycenter", networks=QUICK).posterior
    at_mean = describe(average, x)
    expected = describe(alike["a"].posterior, x, samples=0)
    np.testing.assert_allclose(at_mean.mean, expected.mean, atol=1e-2)
    assert at_mean.mutual_information.max() < 1e-3
    apart = posterity.fuse(some(layers, 3), networks=QUICK).posterior
    found, mean = describe(apart, x), describe(apart, x, samples=0)
    assert (found.mutual_information >= 0).all()
    assert found.mutual_information.mean() > 5 * at_mean.mutual_information.mean()
    assert found.entropy.mean() > mean.entropy.mean()
    np.testing.assert_array_equal(predict(apart, x), found.mean)
    drawn = describe(apart, x, samples=50)
    assert np.abs(drawn.mean - found.mean).max() > 1e-3


def test_who_is_forgotten_says_nothing_any_more():
    sites, x = some(KINDS["one"], 4), np.random.default_rng(3).normal(size=(40, 4))
    whole = posterity.fuse(sites, components=24, networks=QUICK)
    left = whole.ledger.forget("s2").posterior
    rows = left.layers.unravel(left.mean)[-1]
    gone = np.flatnonzero((rows["shares"] == 0).all(1))
    assert len(gone) == 1
    assert not rows["sites"][gone].any()
    rest = {name: site for name, site in sites.items() if name != "s2"}
    again = posterity.fuse(rest, components=18, networks=QUICK).posterior
    np.testing.assert_allclose(predict(left, x), predict(again, x), atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_in_the_file(kind, tmp_path):
    fused = posterity.fuse(some(KINDS[kind], 2), networks=QUICK)
    x = np.random.default_rng(4).normal(size=(9, fused.posterior.layers.inputs))
    for value in (fused.posterior, fused.ledger):
        posterity.save(value, tmp_path / "fused.safetensors")
        back = posterity.load(tmp_path / "fused.safetensors")
        assert back == value
        back = back.posterior if value is fused.ledger else back
        np.testing.assert_array_equal(predict(back, x), predict(fused.posterior, x))


def test_fused_networks_are_fused_again_and_compared():
    first, second = (posterity.fuse(some(TWO, 2, seed), networks=QUICK) for seed in (0, 1))
    again = posterity.fuse({"a": first.ledger.posterior, "b": second.posterior}, networks=QUICK)
    assert again.posterior.layers.sites == 2
    assert diff(first.posterior, first.posterior.plain).kl.ab == pytest.approx(0)


def test_so_many_sites_that_their_layers_outweigh_the_network_are_not_kept(monkeypatch):
    monkeypatch.setattr(combine, "KEPT", 0)
    fused = posterity.fuse(some(Layers.dense(2, 3, 3), 3), components=3, networks=QUICK).posterior
    assert fused.layers.sites == 0
    assert posterity.fuse(some(TWO, 2), networks=QUICK).posterior.layers.sites == 2
