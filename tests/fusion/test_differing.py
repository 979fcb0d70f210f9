"""Sites that truly differ: laws of their fusion, sites of every kind, refusals."""

import numpy as np
import pytest
from fusion.trials import TRIALS, TWO, Q, at, drawn, fused, of_two, one, trials

import posterity
from posterity.artifact import digest
from posterity.errors import FusionWarning, ParameterError, StructureError, UsageError
from posterity.families import Beta, DiagonalGaussian, Gaussian, Plate
from posterity.fusion.doubts import Kind
from posterity.fusion.networks.options import Options
from posterity.inference import effects_of
from posterity.ledger import Ledger


@pytest.mark.parametrize("sites", [trials(), of_two(), drawn(0)], ids=["one", "two", "three"])
def test_the_order_of_sites_does_not_matter(sites):
    again = dict(reversed(sites.items()))
    if sites.keys() == of_two().keys():
        again = {"s6": again.pop("s6").named(["a"]), **again}
    assert digest(fused(sites).ledger) == digest(fused(again).ledger)


@pytest.mark.parametrize("unit", [1e-6, 3.0, 1e5])
def test_units_scale_a_coefficient_and_its_spread_and_nothing_else(unit):
    def scaled(law):
        factor = np.diag([unit, 1.0, 1.0])
        covariance = factor @ law.covariance @ factor
        return Gaussian.from_standard(factor @ law.mean, covariance).named(law.names)

    sites = drawn(1)
    plain = fused(sites).population
    other = fused({site: scaled(law) for site, law in sites.items()}).population
    scale = np.array([unit, 1.0, 1.0])
    np.testing.assert_allclose(other.spread / scale, plain.spread, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(other.q, plain.q, rtol=1e-8)
    np.testing.assert_allclose(other.i2, plain.i2, rtol=1e-5, atol=1e-9)
    ends = plain.interval() * scale[:, None]
    width = np.ptp(ends, axis=1, keepdims=True)
    np.testing.assert_allclose(other.interval() / width, ends / width, atol=1e-3)


@pytest.mark.parametrize("gone", ["t0", "t4"])
def test_forgetting_a_site_is_fusing_without_it(gone):
    sites = trials()
    left = fused(sites).ledger.forget(gone)
    del sites[gone]
    again = fused(sites)
    assert digest(left.compact()) == digest(again.ledger)
    np.testing.assert_array_equal(effects_of(left).spread, again.population.spread)
    assert left.posterior == again.posterior


def test_all_sites_can_be_forgotten():
    ledger = fused(drawn(2)).ledger
    alone = ledger.forget(*ledger.sites[1:])
    mean, errors = effects_of(alone).alone("s0")
    np.testing.assert_allclose(effects_of(alone).mean, mean, rtol=1e-4)
    assert (np.sqrt(np.diag(effects_of(alone).covariance)) > errors).all()
    assert np.isnan(effects_of(alone).spread).all()
    none = ledger.forget(*ledger.sites)
    np.testing.assert_allclose(effects_of(none).mean, 0.0, atol=1e-6)


def test_without_spread_it_is_the_product_and_with_a_huge_one_sites_stand_alone():
    sites = drawn(3, spread=0.1)
    total = sum(np.linalg.inv(law.covariance) for law in sites.values())
    linear = sum(np.linalg.solve(law.covariance, law.mean) for law in sites.values())
    fusion = fused(sites)
    none = at(fusion, [1e-9] * 3)
    np.testing.assert_allclose(none.mean, np.linalg.solve(total, linear), rtol=1e-6)
    np.testing.assert_allclose(none.covariance, np.linalg.inv(total), rtol=1e-6)
    huge = at(fusion, [1e5] * 3)
    for site, law in sites.items():
        mean, sd = none.shrunken(site)
        np.testing.assert_allclose(mean, none.mean, rtol=1e-6)
        np.testing.assert_allclose(sd, np.sqrt(np.diag(none.covariance)), rtol=1e-6)
        mean, sd = huge.shrunken(site)
        np.testing.assert_allclose(mean, law.mean, atol=1e-6)
        np.testing.assert_allclose(sd, np.sqrt(np.diag(law.covariance)), rtol=1e-6)


# --- sites of every kind -------------------------------------------------------------------------


def test_priors_of_ledgers_are_counted_once():
    """Sites of one prior, whose posteriors hold it: the same factors as without it."""
    prior = Gaussian.from_standard([1.0], [[4.0]]).named(["treat"])
    ledgers = {}
    for site, law in trials().items():
        precision = prior.precision + law.precision
        linear = prior.precision_mean + law.precision_mean
        posterior = Gaussian._of(precision_mean=linear, precision=precision).named(["treat"])
        ledgers[site] = Ledger.of_site(site, prior=prior, posterior=posterior)
    population = fused(ledgers).population
    np.testing.assert_allclose(population.q, Q, rtol=1e-8)
    assert population.prior.blocks["coefficients"].mean == pytest.approx([1.0])
    plain = fused(trials(), prior=prior).population  # posteriors whose prior is passed
    assert plain.q > Q


def test_diagonal_posteriors_and_those_without_names():
    plain = {s: Gaussian.from_standard(law.mean, law.covariance) for s, law in drawn(4).items()}
    assert fused(plain).population.names == ("0", "1", "2")
    diagonal = {s: DiagonalGaussian.from_standard(law.mean, np.ones(3)) for s, law in plain.items()}
    full = {s: Gaussian.from_standard(law.mean, np.eye(3)) for s, law in plain.items()}
    np.testing.assert_allclose(fused(diagonal).population.mean, fused(full).population.mean)


def test_a_site_far_surer_than_others_is_what_it_says():
    sites = trials() | {"sure": one("treat", 0.25, 1e-7)}
    population = fused(sites).population
    mean, sd = population.shrunken("sure")
    np.testing.assert_allclose([*mean, *sd], [0.25, 1e-7], rtol=1e-3)
    assert 0.3 < population.spread < 1
    low, high = population.interval()[0]
    assert low < np.mean([mean for _, mean, _ in TRIALS]) < high


@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize("known", [2, 5])
def test_sites_that_tell_next_to_nothing_change_nothing(known, count):
    """As their precision goes to zero, however many they are and far their estimates lie."""
    sites = trials(TRIALS[:known])
    silent = {f"z{k}": one("treat", -1e3 * (k + 1), 1e9) for k in range(count)}
    ledger = fused(sites | silent, warn=False).ledger
    many = effects_of(ledger)
    few = effects_of(ledger.forget(*silent))
    np.testing.assert_allclose(many.spread, few.spread, rtol=1e-6)
    for ends in ("interval", "spread_interval", "prediction_interval"):
        np.testing.assert_allclose(getattr(many, ends)(), getattr(few, ends)(), rtol=1e-6)


def test_equal_sites_have_no_spread():
    sites = {f"s{k}": one("treat", 1.0, 0.2) for k in range(6)}
    population = fused(sites, warn=False).population
    assert (*population.spread, *population.i2, population.q) == pytest.approx((0, 0, 0), abs=1e-5)
    assert population.p == pytest.approx(1.0)
    low, high = population.interval()[0]
    assert low < 1 - 1.96 * 0.2 / 6**0.5 and high > 1 + 1.96 * 0.2 / 6**0.5


def test_two_sites_do():
    population = fused(trials(TRIALS[:2])).population
    low, high = population.interval()[0]
    assert low < -0.75 and high > -0.35 and np.isfinite([low, high]).all()


def test_coefficients_that_a_site_does_not_determine_are_unknown_there():
    """Two columns that are one at site 'x': their sum is known, neither of them is."""
    prior = Gaussian.from_standard([0.0, 0.0], 100 * np.eye(2)).named(["a", "b"])
    ones = np.ones((2, 2))
    factor = Gaussian._of(precision_mean=np.array([3.0, 3.0]), precision=ones).named(["a", "b"])
    ledgers = {"x": Ledger(prior).update("x", factor)}
    for site, law in drawn(5, size=2).items():
        ledgers[site] = Ledger(prior).update(site, law.named(["a", "b"]))
    population = fused(ledgers).population
    mean, errors = population.alone("x")
    assert np.isnan(mean).all() and np.isinf(errors).all()
    mean, sd = population.shrunken("x")
    assert np.isfinite(mean).all() and np.isfinite(sd).all()
    assert population.degrees == 2 * 5 + 1 - 2


@pytest.mark.parametrize("gone", [("s6",), ("s0", "s6")])
def test_a_coefficient_of_one_site_only_has_no_spread_from_records(gone):
    sites = {site: of_two()[site] for site in ("s0", "s1")} | {
        site: one("a", a, aa**0.5) for site, a, _, aa, *_ in TWO[2:]
    }
    sites = {site: law for site, law in sites.items() if site not in gone}
    population = fused(sites).population
    known = [np.isfinite(own) for own in population.spread]
    assert known == [True, len(gone) == 1]
    assert (np.diff(population.interval()) > 0).all()


def test_only_some_coefficients_differ():
    fusion = fused(drawn(6), personal=["c1"], warn=False)
    (own,) = fusion.doubts  # of what all share
    assert own.kind is Kind.CONTRADICTION and "c2" in own.finding and "personal=" in own.advice
    population = fusion.population
    assert population.personal == ("c1",)
    expected = fused(drawn(6), personal={"c1": 0.5}, warn=False).population
    assert "log_spread" in expected.prior.blocks
    np.testing.assert_allclose(population.spread, expected.spread, rtol=1e-6)
    by_number = fused(drawn(6), personal=[1], warn=False).population
    assert digest(by_number.prior) == digest(population.prior)


# --- refusals and doubts -------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"rule": "product"}, {"divergence": "forward"}, {"matching": "hungarian"}, {"components": 2},
    {"absorb": False}, {"budget": 10**9}, {"weights": {"t0": 1.0}}, {"checkpoint": "c"},
    {"networks": Options()},
    {"matching": {"t0": [0]}},
], ids=lambda options: next(iter(options)))  # fmt: skip
def test_arguments_that_say_nothing_of_differing_sites_are_refused(options):
    (name,) = options
    with pytest.raises(UsageError, match=f"personal= with {name}="):
        fused(trials(), **options)


def test_what_is_no_gaussian_of_coefficients_is_refused():
    plate = Plate(DiagonalGaussian.from_standard(np.zeros((2, 1)), np.ones((2, 1))))
    with pytest.raises(StructureError, match="one Gaussian over coefficients"):
        fused({"a": plate, "b": plate})
    with pytest.raises(UsageError, match="at least two sites"):
        fused(trials(TRIALS[:1]))
    with pytest.raises(UsageError, match="'age'"):
        fused(trials(), personal=["age"])
    some = {"a": one("treat", 0.0, 1.0), "b": Gaussian.from_standard([0.0], [[1.0]])}
    with pytest.raises(StructureError, match="no names of coefficients"):
        fused(some)
    improper = Gaussian._of(precision_mean=np.zeros(1), precision=np.zeros((1, 1)))
    with pytest.raises(ParameterError):
        fused({"a": improper.named(["treat"]), "b": one("treat", 0.0, 1.0)})
    with pytest.raises(StructureError, match="those of the prior, \\['age'\\]"):
        fused(trials(), prior=one("age", 0.0, 1.0))
    with pytest.raises(UsageError, match="a ledger whose sites differ"):
        assert posterity.fuse(trials(TRIALS[1:3])).population


def test_priors_and_spreads_that_are_none_are_refused():
    for prior in (
        Beta.from_standard(1.0, 2.0),
        Plate(DiagonalGaussian(np.ones((1, 1)), np.ones((1, 1)))),
    ):
        with pytest.raises(StructureError, match=r"as the prior.*one Gaussian"):
            fused(trials(), prior=prior)
    with pytest.raises(ParameterError, match="the prior"):
        fused(trials(), prior=one("treat", 0.0, 1.0).zero())
    for spread in ("wide", None, np.nan, 0.0, -1.0):
        with pytest.raises(UsageError, match=r"personal\[0\]=.*positive"):
            fused(trials(), personal={"treat": spread})


def test_the_order_of_coefficients_in_a_prior_does_not_matter():
    sites = drawn(8, size=2)
    means, variances = np.array([0.1, -0.2]), np.diag([20.0, 30.0])
    found = []
    for order in ([0, 1], [1, 0]):
        prior = Gaussian.from_standard(means[order], variances[np.ix_(order, order)])
        found.append(fused(sites, prior=prior.named([f"c{k}" for k in order])).population)
    np.testing.assert_array_equal(found[0].mean, found[1].mean)
    np.testing.assert_array_equal(found[0].interval(), found[1].interval())


def test_a_site_counts_once():
    ledger = fused(trials()).ledger
    with pytest.raises(UsageError):
        fused([ledger, ledger])
    with pytest.raises(UsageError):
        fused({"all": ledger, "t0": trials()["t0"]})
    with pytest.raises(UsageError, match="personal=True"):
        posterity.fuse({"all": ledger, "more": one("treat", 0.0, 1.0)})


def test_where_sites_differ_the_doubt_names_the_call():
    with pytest.warns(FusionWarning) as heard:
        posterity.fuse(trials())
    (said,) = {str(one.message) for one in heard if "differ" in str(one.message)}
    assert "fuse(..., personal=True)" in said


def test_sites_that_are_less_sure_than_their_prior_are_said_once():
    with pytest.warns(FusionWarning) as heard:
        found = fused(trials(TRIALS[:3]), prior=one("treat", 0.0, 0.1)).doubts
    (own,) = found
    assert len(heard) == 1 and own.kind is Kind.WIDER and own.nats == 0
    assert "site 't0' (and 2 more) is wider" in own.finding and "the prior that" in own.advice


# --- what the others make of a site --------------------------------------------------------------


def near(count, seed, spread=0.0):
    """Sites with the errors 1 about one value, or a population of this spread."""
    rng = np.random.default_rng([seed, count])
    return {f"s{k:02}": one("x", rng.normal() * np.hypot(spread, 1), 1.0) for k in range(count)}


@pytest.mark.parametrize("personal", [True, {"x": 2.0}])
@pytest.mark.parametrize("unit", [1.0, 1e-6])
def test_a_site_far_from_all_others_contradicts_them(unit, personal):
    sites = {**near(6, 0), "odd": one("x", 1000.0, 1.0)}
    scaled = {site: one("x", law.mean[0] * unit, unit) for site, law in sites.items()}
    personal = {"x": 2.0 * unit} if isinstance(personal, dict) else personal
    with pytest.warns(FusionWarning, match="'odd' contradicts the others: x is"):
        (own,) = fused(scaled, personal=personal).doubts
    assert own.kind is Kind.CONTRADICTION and own.site == "odd" and own.nats > 15
    assert fused({site: sites[site] for site in sites if site != "odd"}).doubts == ()


def test_the_level_is_the_chance_that_a_site_is_doubted():
    sites = {**near(9, 1, 3.0), "far": one("x", 14.0, 1.0)}
    assert fused(sites).doubts == ()
    (own,) = fused(sites, level=0.1, warn=False).doubts
    assert own.site == "far" and -np.log(0.1) < own.nats < -np.log(1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("spread", [0.0, 2.0, 100.0])
def test_sites_that_simply_differ_are_not_doubted(count, spread):
    """At a level of 5 % a doubt in 30 fields is likely, and six of them have a chance of .003."""
    doubted = sum(
        bool(fused(near(count, seed, spread), level=0.05, warn=False).doubts) for seed in range(30)
    )
    assert doubted < 6


def test_a_site_is_doubted_in_the_coefficient_in_which_it_is_far():
    sites = drawn(9, count=8)
    law = sites["s3"]
    away = law.mean + np.array([0, 50, 0])
    sites["s3"] = Gaussian.from_standard(away, law.covariance).named(law.names)
    (own,) = fused(sites, warn=False).doubts
    assert own.site == "s3" and "c1" in own.finding


def test_copies_and_sites_that_say_nothing_are_told():
    ledgers = {}
    prior = one("treat", 0.0, 1.0)
    for site, law in trials().items():
        ledgers[site] = Ledger(prior).update(site, law)
    ledgers["silent"] = Ledger(prior).update("silent", prior.zero())
    ledgers["again"] = Ledger(prior).update("again", trials()["t4"])
    found = {own.kind: own for own in fused(ledgers, warn=False).doubts}
    assert found.keys() == {Kind.COPY, Kind.NOTHING}
    assert "'again' and 't4' hold the same posterior" in found[Kind.COPY].finding
    assert found[Kind.NOTHING].site == "silent"


def test_a_ledger_without_sites_says_nothing():
    prior = one("treat", 0.0, 1.0)
    ledgers = {site: Ledger(prior).update(site, law) for site, law in trials().items()}
    whole = fused(ledgers, warn=False)
    found = fused({**ledgers, "none": Ledger(prior)}, warn=False)
    assert [(own.kind, own.site) for own in found.doubts] == [(Kind.NOTHING, "none")]
    np.testing.assert_allclose(found.population.mean, whole.population.mean, rtol=1e-9)


def test_shared_coefficients_that_differ_are_told_without_a_site_to_blame():
    rng = np.random.default_rng(4)
    wide = np.hypot(1.0, [3.0, 1.2])  # of errors and spreads
    sites = {
        f"s{k:02}": Gaussian.from_standard(wide * rng.normal(size=2), np.eye(2)) for k in range(30)
    }
    kinds = [own.kind for own in fused(sites, personal=["0"], warn=False).doubts]
    assert kinds == [Kind.DIFFERENCE]
    assert fused(sites).doubts == ()
