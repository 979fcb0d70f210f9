"""What posteriors say, row by row: exact against SciPy's laws and against draws."""

import subprocess
import sys

import numpy as np
import pytest
from laws.table import TABLE
from scipy import special, stats

from posterity import Ledger, fuse
from posterity.errors import LedgerError, UsageError
from posterity.families import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    HiddenMarkov,
    Mixture,
    Network,
    NormalGamma,
    NormalWishart,
    Plate,
    Product,
    Transformed,
    Wishart,
    exported,
)
from posterity.families.layers import Layers
from posterity.families.supports import PositiveNumbers, RealNumbers
from posterity.reporting.summary import influences, summarise
from posterity.reporting.summary.rows import cavity, takes_long


def rows(law, level=0.9):
    return summarise(law, level).rows


def agrees(row, law, level=0.9):
    low, high = law.interval(level)
    np.testing.assert_allclose(row[4:], [law.mean(), law.std(), low, high], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("name", TABLE)
def test_every_family_is_told(name, batch):
    if batch and name == "Mixture":
        return
    rng = np.random.default_rng(0)
    found = summarise(TABLE[name].draw(rng, batch, 3))
    assert found.proper
    assert found.family in exported()
    assert len(found.rows) == found.size
    assert found.size or found.layers
    for row in found.rows:
        assert np.isfinite(row.mean) or row.sd == np.inf, row  # few degrees of freedom
        assert row.sd >= 0, row
        assert np.isnan(row.low) or row.low <= row.high, row
    labels = [row.label for row in found.rows]
    assert len(set(labels)) == len(labels)


def test_scalars_are_exact():
    agrees(rows(Gamma.from_standard(0.3, 2.0))[0], stats.gamma(0.3, scale=0.5))
    agrees(rows(Beta.from_standard(0.3, 2.0))[0], stats.beta(0.3, 2.0))
    agrees(rows(Gaussian.from_standard([1.0], [[4.0]]), 0.5)[0], stats.norm(1, 2), 0.5)
    q = Dirichlet.from_standard([1.0, 2.0, 1e-6]).named(["a", "b", "c"])
    for row, alpha in zip(rows(q), (1.0, 2.0, 1e-6), strict=True):
        agrees(row, stats.beta(alpha, 3.000001 - alpha))
    one = rows(Dirichlet.from_standard([3.0]))[0]
    assert tuple(one[4:]) == (1.0, 0.0, 1.0, 1.0)


def test_mean_and_variance_of_a_gaussian_that_is_not_known():
    q = NormalGamma.from_standard([1.0], [2.0], [3.0], [4.0]).named(["age"])
    mean, variance = rows(q)
    agrees(mean, stats.t(4, 1.0, np.sqrt(3 / 8)))
    low, high = stats.invgamma(2, scale=1.5).interval(0.9)
    np.testing.assert_allclose([variance.mean, variance.low, variance.high], [1.5, low, high])
    assert variance.sd == np.inf
    assert (mean.label, variance.label) == ("mean of age", "variance of age")
    full = NormalWishart.from_standard([1.0, 0.0], 2.0, [[0.5, 0.2], [0.2, 1.0]], 6.0)
    inverse = np.linalg.inv([[0.5, 0.2], [0.2, 1.0]])
    agrees(rows(full)[0], stats.t(5, 1.0, np.sqrt(inverse[0, 0] / 10)))
    agrees(rows(full)[2], stats.invgamma(2.5, scale=inverse[0, 0] / 2))


def test_entries_of_a_wishart():
    scale = np.array([[0.5, 0.3], [0.3, 1.0]])
    entries = rows(Wishart.from_standard(scale, 5.0))
    agrees(entries[0], stats.gamma(2.5, scale=1.0))
    draws = stats.wishart(5, scale).rvs(40_000, random_state=1)[:, 0, 1]
    for value, p in ((entries[1].low, 0.05), (entries[1].high, 0.95)):
        error = np.sqrt(p * (1 - p) / len(draws))
        assert abs((draws < value).mean() - p) < 4 * error
    assert abs(draws.mean() - entries[1].mean) < 4 * draws.std() / 200
    assert entries[1].name == "0, 1"


def test_mixtures_by_their_distribution_function():
    two = Gaussian.from_standard([[0.0], [9.0]], [[[4.0]], [[1.0]]])
    (row,) = rows(Mixture.from_standard([1.0, 3.0], two))
    at = lambda x: 0.25 * stats.norm(0, 2).cdf(x) + 0.75 * stats.norm(9, 1).cdf(x)
    np.testing.assert_allclose([at(row.low), at(row.high)], [0.05, 0.95], atol=1e-12)
    assert row.mean == 6.75
    np.testing.assert_allclose(row.sd**2, 0.25 * 4 + 0.75 + 0.25 * 0.75 * 81)


def test_maps_of_normal_laws():
    like = Product(scale=Gamma.from_standard(2.0, 1.0), share=Beta.from_standard(1.0, 1.0))
    u = Gaussian.from_standard([1.0, -1.0], [[0.25, 0.1], [0.1, 1.0]])
    q = Transformed.onto(like, u)
    scale, share = rows(q)
    agrees(scale, stats.lognorm(0.5, scale=np.e))
    assert (scale.name, share.name) == ("scale", "share")
    inverse = lambda p: np.log(p / (1 - p))
    np.testing.assert_allclose([inverse(share.low), inverse(share.high)],
                               stats.norm(-1, 1).interval(0.9))  # fmt: skip
    expected = stats.norm(-1, 1).expect(special.expit)
    np.testing.assert_allclose(share.mean, expected, rtol=1e-8)
    assert [row.name for row in rows(q.named(["a", "b"]))] == ["a", "b"]


def test_names_of_mapped_numbers_are_not_told_twice():
    tree = {"beta": RealNumbers((2,)), "sigma": PositiveNumbers(())}
    law = DiagonalGaussian.from_standard(np.zeros(3), np.ones(3))
    q = Transformed.from_standard(law, tree)
    told = lambda law: [row.label for row in rows(law)]
    assert told(q.named(["beta[0]", "beta[1]", "sigma"])) == ["beta[0]", "beta[1]", "sigma"]
    assert told(q.named(["age", "dose", "noise"])) == ["beta: age", "beta: dose", "sigma: noise"]


def test_what_is_mapped_together_is_drawn():
    law = Transformed.onto(Dirichlet.from_standard([1.0, 1.0, 1.0]),
                           DiagonalGaussian.from_standard([0.0, 0.0], [0.01, 0.01]))  # fmt: skip
    found = rows(law)
    assert len(found) == 3
    np.testing.assert_allclose([row.mean for row in found], 1 / 3, atol=0.01)
    near = DiagonalGaussian.from_standard(np.zeros(3), np.full(3, 1e-6))
    matrix = Transformed.onto(Wishart.from_standard(np.eye(2), 3.0), near)
    assert [row.name for row in rows(matrix)] == ["(0, 0)", "(0, 1)", "(1, 1)"]


def test_improper_parts_are_told_as_unknown():
    members = Gaussian(np.zeros((2, 1)), np.array([[[1.0]], [[-1.0]]]))
    found = summarise(Product(a=Plate(members), b=Gamma.from_standard(1.0, 1.0)))
    first, second, rate = found.rows
    assert not found.proper
    assert (first.mean, rate.mean) == (0.0, 1.0)
    assert np.isnan(second.mean) and np.isnan(second.low)
    assert np.isnan(rows(Gaussian(np.zeros(2), np.zeros((2, 2))))[0].mean)


def test_components_states_and_topics():
    members = NormalWishart.from_standard(
        np.eye(2), [2.0, 2.0], np.stack([np.eye(2)] * 2), [5.0, 3.0]
    )
    plate = Plate(members, Dirichlet.from_standard([1.0, 3.0])).named(["low", "high"])
    low, high = summarise(plate).components
    assert (low.name, low.weight) == ("low", 0.25)
    np.testing.assert_allclose(low.weight_sd, stats.beta(1, 3).std())
    np.testing.assert_allclose(low.covariance, np.eye(2) / 2)
    assert np.isnan(high.covariance).all()  # no expected covariance at three degrees of freedom
    words = Plate(Dirichlet.from_standard([[9.0, 1.0, 2.0]])).named(
        {"members": ["cat", "dog", "elk"]}
    )
    (topic,) = summarise(words).components
    assert topic.kind == "topic"
    assert [word for word, _ in topic.top] == ["cat", "elk", "dog"]
    emission = NormalGamma.from_standard([0.0], [1.0], [1.0], [4.0])
    chain = summarise(HiddenMarkov.prior(emission, states=2, stay=3.0))
    assert [state.kind for state in chain.components] == ["state"] * 2
    assert sum(state.weight for state in chain.components) == pytest.approx(1)
    assert ("transitions", "0", "1") in {(r.block, r.member, r.name) for r in chain.rows}


def test_sticks_weigh_as_draws_do():
    sticks = Beta.from_standard([2.0, 3.0, 50.0], [3.0, 1.0, 0.1])
    members = DiagonalGaussian.from_standard(np.zeros((3, 1)), np.ones((3, 1)))
    found = summarise(Plate(members, sticks)).components
    v = np.random.default_rng(0).beta([2.0, 3.0, 50.0], [3.0, 1.0, 0.1], (40_000, 3))
    draws = v * np.cumprod(np.column_stack([np.ones(40_000), 1 - v[:, :-1]]), 1)
    for component, own in zip(found, draws.T, strict=True):
        assert abs(component.weight - own.mean()) < 5e-3
        assert abs(component.weight_sd / own.std() - 1) < 0.02


def test_networks_by_layer():
    layers = Layers.dense(300, 200, 2)
    mean = np.zeros(layers.size)
    mean[-402:] = 3.0
    found = summarise(Network.from_standard(mean, np.ones(layers.size), layers))
    assert found.rows == ()
    assert [layer.weights for layer in found.layers] == [60_200, 402]
    assert [layer.sure for layer in found.layers] == [0.0, 1.0]
    assert found.layers[1].size == pytest.approx(3.0)


def test_who_pulls_where():
    prior = Gaussian.from_standard(np.zeros(2), 100 * np.eye(2)).named(["age", "dose"])
    factor = lambda mean, count: Gaussian(np.array(mean) * count, np.eye(2) * count)
    ledger = Ledger(prior).extend({"a": factor([1.0, 0.0], 50.0), "b": factor([1.0, 2.0], 10.0)})
    small = summarise(ledger).sites[1]
    assert (small.name, small.most.name) == ("b", "dose")
    without = ledger.cavity("b")
    assert small.nats == pytest.approx(float(ledger.posterior.kl(without)))
    sd = np.sqrt(ledger.posterior.covariance[1, 1])
    assert small.most.by == pytest.approx((ledger.posterior.mean[1] - without.mean[1]) / sd)
    assert [pull.name for pull in influences(ledger, "b")] == ["age", "dose"]
    with pytest.raises(LedgerError, match="nobody"):
        influences(ledger, "nobody")
    left = summarise(ledger.forget("b")).sites[1]
    assert (left.why, left.nats) == ("forgotten", None)
    assert summarise(Ledger(prior)).sites == ()


def test_what_is_left_without_a_site_may_be_no_distribution():
    prior = Gaussian.from_standard([0.0], [[1.0]]).named(["age"])
    ledger = Ledger(prior).extend(
        {"took": Gaussian(np.zeros(1), np.array([[-1.5]])), "gave": Gaussian(np.ones(1), np.eye(1))}
    )
    gave, took = summarise(ledger).sites
    assert gave.nats is None and "no distribution" in gave.why
    assert took.nats > 0
    broken = summarise(ledger.forget("gave"))
    assert not broken.proper
    assert np.isnan(broken.rows[0].mean)
    assert all(site.nats is None and site.why for site in broken.sites)


def test_many_sites_are_subtracted_and_say_the_same():
    prior = Gaussian.from_standard([0.0], [[1.0]])
    one = Gaussian(np.array([2.0]), np.array([[1.0]]))
    ledger = Ledger(prior).extend({f"s{n:03}": one for n in range(101)})
    nats = [site.nats for site in summarise(ledger).sites]
    np.testing.assert_allclose(nats, ledger.posterior.kl(ledger.cavity("s000")))


@pytest.mark.parametrize("level", [0, 1, -0.1, "x", None, np.nan])
def test_bad_levels_and_what_is_no_posterior(level):
    with pytest.raises(UsageError, match="level"):
        summarise(Gamma.from_standard(1.0, 1.0), level)
    with pytest.raises(UsageError, match="a posterior or a ledger"):
        summarise({"a": 1})


def test_summaries_and_reprs_need_no_jax():
    code = (
        "import sys, numpy as np; from posterity.families import Gaussian;"
        "from posterity import Ledger; from posterity.reporting.summary import summarise;"
        "q = Gaussian.from_standard([1.0], [[1.0]]); summarise(Ledger(q).update('a', q)).rows;"
        "repr(q); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def fused(sites: int, **options) -> Ledger:
    """As many estimates of one coefficient, each by another number."""
    prior = Gaussian.from_standard([0.0], [[100.0]])
    means = np.linspace(-0.5, 0.5, sites)
    own = {f"s{k}": Gaussian.from_standard([mean], [[0.1]]) for k, mean in enumerate(means)}
    return fuse(own, prior=prior, **options).ledger


def test_posteriors_without_a_site_are_summed_anew_up_to_a_hundred_sites(monkeypatch):
    few, many = fused(100, rule="product"), fused(101, rule="product")
    assert cavity(few, "s3") == few.cavity("s3")
    np.testing.assert_allclose(cavity(many, "s3").mean, many.cavity("s3").mean, rtol=1e-12)
    monkeypatch.setattr(Ledger, "cavity", lambda *_: pytest.fail("a sum over all sites"))
    assert cavity(many, "s3").is_proper()


def test_populations_without_each_site_are_estimated_up_to_some_dozens():
    few, many = fused(110, personal=True), fused(220, personal=True)
    assert few.prior.dimension == 4
    assert not takes_long(few) and takes_long(many)
