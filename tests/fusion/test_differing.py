"""Sites that truly differ: random effects in one shot, beside metafor, quadrature and laws."""

import shutil
import subprocess
import time

import numpy as np
import pytest
import scipy

import posterity
from posterity.artifact import digest
from posterity.errors import FusionWarning, ParameterError, StructureError, UsageError
from posterity.families import DiagonalGaussian, Gaussian, Plate
from posterity.inference import effects_of
from posterity.inference.random_effects import Effects, RandomEffects
from posterity.ledger import Ledger
from posterity.models.personal import Spreads

TRIALS = [  # study, estimate and standard error
    ("t0", -0.34159, 0.49860),
    ("t1", -0.74860, 0.50013),
    ("t2", -1.27988, 0.34797),
    ("t3", -0.80888, 0.22862),
    ("t4", -0.04681, 0.10804),
    ("t5", -0.69365, 0.27935),
    ("t6", -1.08647, 0.29241),
    ("t7", -0.54337, 0.10354),
    ("t8", -1.18023, 0.10535),
]
# Figures of metafor 3.8-1: rma(estimate, sei=std.error, method="REML").
TAU, Q, I2, MEAN, ERROR = 0.3798754453, 63.9938355032, 0.820380230281, -0.7355318299, 0.1541544028
TWO = [  # study, estimates of a and b, and their variances and covariance: aa, ab, bb
    ("s0", -0.513, -0.371, 0.0643, -0.0152, 0.1483),
    ("s1", 0.385, -1.088, 0.0496, -0.0161, 0.0702),
    ("s2", 0.175, -1.715, 0.0365, -0.0075, 0.0557),
    ("s3", -0.987, -1.363, 0.0339, 0.0308, 0.0603),
    ("s4", 1.638, -1.398, 0.0220, 0.0125, 0.1529),
    ("s5", -0.555, -0.803, 0.1408, 0.0096, 0.0125),
    ("s6", 0.271, None, 0.0772, None, None),
]
# Figures of rma.mv(y, V, mods=~outcome-1, random=~outcome|study, struct="DIAG").
TAUS, QS = (0.8466608806, 0.3627171447), 186.859867988
MEANS, ERRORS = (0.0812321635, -1.1270760562), (0.3326407918, 0.1838249079)


def one(name, mean, sd):
    return Gaussian.from_standard([mean], [[sd**2]]).named([name])


def trials(rows=TRIALS):
    return {study: one("treat", mean, sd) for study, mean, sd in rows}


def of_two():
    """The posterior of each study's coefficients; the last has no b."""
    sites = {}
    for study, a, b, aa, ab, bb in TWO[:-1]:
        sites[study] = Gaussian.from_standard([a, b], [[aa, ab], [ab, bb]]).named(["a", "b"])
    study, a, _, aa, *_ = TWO[-1]
    return sites | {study: one("a", a, aa**0.5)}


def drawn(seed, count=5, size=3, spread=0.7):
    """Sites of full covariances about one population."""
    rng = np.random.default_rng(seed)
    names = [f"c{k}" for k in range(size)]
    sites = {}
    for place in range(count):
        design = rng.normal(size=(12, size))
        covariance = np.linalg.inv(design.T @ design)
        mean = spread * rng.normal(size=size) + np.linalg.cholesky(covariance) @ rng.normal(
            size=size
        )
        sites[f"s{place}"] = Gaussian.from_standard(mean, covariance).named(names)
    return sites


def fused(sites, personal=True, **options):
    return posterity.fuse(sites, personal=personal, **options)


def at(fusion, spreads):
    """The population's coefficients if their spreads are these, known to a millionth."""
    known = fusion.population
    personal = dict(zip(known.personal, spreads, strict=True))
    sure = Spreads(common=1e-6, own=1e-6)
    prior = RandomEffects.of(known.prior.blocks["coefficients"], personal, sure)
    return Effects(prior, known.messages)


# --- beside metafor and quadrature ---------------------------------------------------------------


def test_one_coefficient_is_that_of_metafor():
    fusion = fused(trials())
    population = fusion.population
    np.testing.assert_allclose(population.spread, [TAU], rtol=1e-6)
    np.testing.assert_allclose(population.i2, [I2], rtol=1e-6)
    np.testing.assert_allclose(population.q, Q, rtol=1e-9)
    assert population.degrees == 8
    np.testing.assert_allclose(population.p, scipy.stats.chi2.sf(Q, 8), rtol=1e-6)
    plugged = at(fusion, [TAU])
    np.testing.assert_allclose(plugged.mean, [MEAN], rtol=1e-6)
    np.testing.assert_allclose(plugged.covariance**0.5, [[ERROR]], rtol=1e-6)


def test_several_coefficients_are_those_of_metafor():
    fusion = fused(of_two())
    population = fusion.population
    np.testing.assert_allclose(population.spread, TAUS, rtol=1e-6)
    np.testing.assert_allclose(population.q, QS, rtol=1e-8)
    assert population.degrees == 11
    plugged = at(fusion, population.spread)
    np.testing.assert_allclose(plugged.mean, MEANS, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(plugged.covariance)), ERRORS, rtol=1e-6)


METAFOR = """
suppressMessages(library(metafor))
exact <- list(threshold=1e-14, maxiter=10000)
d <- read.csv("one.csv")
f <- rma(estimate, sei=error, data=d, method="REML", control=exact)
cat(sprintf("%.12g", c(sqrt(f$tau2), f$QE, f$I2 / 100, f$beta, f$se)), sep="\\n")
d <- read.csv("two.csv"); v <- as.matrix(read.csv("v.csv", header=FALSE))
d$outcome <- factor(d$outcome)
f <- rma.mv(y, v, mods=~outcome-1, random=~outcome|study, struct="DIAG", data=d)
cat(sprintf("%.12g", c(sqrt(f$tau2), f$QE, f$beta, f$se)), sep="\\n")
"""


def has_metafor():
    if shutil.which("Rscript") is None:
        return False
    line = ["Rscript", "-e", "quit(status=!requireNamespace('metafor', quietly=TRUE))"]
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_metafor(), reason="R's metafor is not installed")
def test_the_recorded_figures_are_what_metafor_says(tmp_path):
    rows = "\n".join(f"{mean},{sd}" for _, mean, sd in TRIALS)
    (tmp_path / "one.csv").write_text(f"estimate,error\n{rows}\n")
    lines = ["study,outcome,y"]
    parts = []
    for study, a, b, aa, ab, bb in TWO:
        lines.append(f"{study},a,{a}")
        if b is not None:
            lines.append(f"{study},b,{b}")
        parts.append(np.array([[aa]] if b is None else [[aa, ab], [ab, bb]]))
    (tmp_path / "two.csv").write_text("\n".join(lines) + "\n")
    np.savetxt(tmp_path / "v.csv", scipy.linalg.block_diag(*parts), delimiter=",")
    (tmp_path / "m.R").write_text(METAFOR)
    run = subprocess.run(
        ["Rscript", "m.R"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    told = [*map(float, run.stdout.split())]
    np.testing.assert_allclose(told[:5], [TAU, Q, I2, MEAN, ERROR], rtol=1e-6)
    recorded = [*TAUS, QS, *MEANS, *ERRORS]
    np.testing.assert_allclose(told[5:], recorded, rtol=1e-6)


def test_intervals_integrate_over_the_spread():
    """Sums over a grid of the mean and the log spread, by Bayes' rule alone."""
    y = np.array([mean for _, mean, _ in TRIALS])
    sd = np.array([error for *_, error in TRIALS])
    population = fused(trials()).population
    mu = np.linspace(-4, 3, 2801)
    s = np.linspace(-7, 3, 1201)
    variance = np.exp(2 * s)[:, None] + sd**2
    log = scipy.stats.norm.logpdf(s, np.log(2 * np.median(sd)), np.hypot(1.5, 0.75))
    log = (
        log[:, None]
        + np.array([scipy.stats.norm.logpdf(y, m, np.sqrt(variance)).sum(1) for m in mu]).T
    )
    joint = np.exp(log - log.max())
    joint /= joint.sum()
    of_mean = np.cumsum(joint.sum(0))
    ends = np.interp([0.025, 0.975], of_mean, mu + (mu[1] - mu[0]) / 2)
    np.testing.assert_allclose(population.interval(), [ends], atol=2e-4)
    of_spread = np.cumsum(joint.sum(1))
    ends = np.exp(np.interp([0.025, 0.975], of_spread, s + (s[1] - s[0]) / 2))
    np.testing.assert_allclose(population.spread_interval(), [ends], rtol=2e-3)
    deviation = np.sqrt(joint.sum(0) @ (mu - joint.sum(0) @ mu) ** 2)
    np.testing.assert_allclose(population.covariance**0.5, [[deviation]], rtol=1e-4)
    # A new site's, and the first site's own: the mean of their laws given both.
    below = scipy.special.ndtr((population.prediction_interval()[0, 0] - mu) / np.exp(s)[:, None])
    assert (joint * below).sum() == pytest.approx(0.025, abs=1e-4)
    share = np.exp(2 * s)[:, None] / variance[:, :1]
    own = (joint * (mu + share * (y[0] - mu))).sum()
    mean, _ = population.shrunken("t0")
    np.testing.assert_allclose(mean, [own], atol=2e-3)


# --- laws ----------------------------------------------------------------------------------------


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


def test_equal_sites_have_no_spread():
    population = fused({f"s{k}": one("treat", 1.0, 0.2) for k in range(6)}).population
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
    population = fused(drawn(6), personal=["c1"]).population
    assert population.personal == ("c1",)
    expected = fused(drawn(6), personal={"c1": 0.5}).population
    assert "log_spread" in expected.prior.blocks
    np.testing.assert_allclose(population.spread, expected.spread, rtol=1e-6)
    by_number = fused(drawn(6), personal=[1]).population
    assert digest(by_number.prior) == digest(population.prior)


def test_five_hundred_sites_of_twenty_coefficients_take_seconds():
    count, size = 500, 20
    rng = np.random.default_rng(0)
    truth = np.arange(size)
    spread = np.array([0.0, 0.1, 0.2, *[0.5] * (size - 3)])
    sites = {}
    for place in range(count):
        design = rng.normal(size=(60, size))
        covariance = np.linalg.inv(design.T @ design / rng.uniform(0.5, 5))
        own = truth + spread * rng.normal(size=size)
        mean = rng.multivariate_normal(own, covariance)
        names = [f"c{k}" for k in range(size)]
        sites[f"s{place:03}"] = Gaussian.from_standard(mean, covariance).named(names)
    start = time.process_time()
    population = fused(sites).population
    assert time.process_time() - start < 60
    np.testing.assert_allclose(population.spread, spread, atol=0.05)
    weights = population.nodes.weights
    assert 1 / (weights**2).sum() > 100  # effective sample size of the draws of spreads
    low, high = population.spread_interval(0.999).T
    assert (low[1:] < spread[1:]).all() and (spread[1:] < high[1:]).all()
    away = (population.mean - truth) / np.sqrt(np.diag(population.covariance))
    assert (away**2).sum() < scipy.stats.chi2.isf(1e-4, size)


# --- refusals and doubts -------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"rule": "product"}, {"divergence": "forward"}, {"matching": "hungarian"}, {"components": 2},
    {"absorb": False}, {"budget": 10**9}, {"weights": {"t0": 1.0}}, {"checkpoint": "c"},
    {"level": 0.5}, {"networks": posterity.fusion.networks.options.Options()},
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
    assert "fuse(..., personal=True)" in said and "--personal" in said
