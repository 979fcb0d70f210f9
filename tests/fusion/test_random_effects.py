"""Random effects in one shot, beside metafor and sums over grids."""

import shutil
import subprocess
import time

import numpy as np
import pytest
import scipy
from fusion.trials import (
    ERROR,
    ERRORS,
    I2,
    MEAN,
    MEANS,
    QS,
    TAU,
    TAUS,
    TRIALS,
    TWO,
    Q,
    at,
    fused,
    of_two,
    trials,
)

from posterity.families import Gaussian


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


@pytest.mark.parametrize("error", [0.1, 1e-3, 1e-4, 1e-6, 1e-9])
def test_a_spread_of_many_errors_is_that_of_equal_errors_in_closed_form(error):
    """Estimates that are 1 apart have the variance 1, of which the squared error is sampling."""
    sites = [(f"s{k}", float(k), error) for k in (-1, 0, 1)]
    population = fused(trials(sites)).population
    np.testing.assert_allclose(population.spread, [np.sqrt(1 - error**2)], rtol=1e-8)
    np.testing.assert_allclose(population.i2, [1 - error**2], rtol=1e-8)


def test_intervals_do_not_shrink_with_errors_that_no_longer_matter():
    """Of known effects the errors tell nothing of the spread, however small they are."""

    def ends(error):
        sites = [(f"s{k}", float(k), error) for k in (-1, 0, 1)]
        population = fused(trials(sites)).population
        known = population.interval, population.spread_interval, population.prediction_interval
        return np.array([own()[0] for own in known])

    np.testing.assert_allclose(ends(1e-3), ends(1e-5), rtol=1e-4)
    np.testing.assert_allclose(ends(1e-9), ends(1e-6), rtol=1e-8)


def test_a_spread_that_was_expected_is_the_median_of_its_prior():
    known = fused(trials(), personal={"treat": 0.01}).population
    other = fused(trials(), personal={"treat": 10.0}).population
    assert (known.spread_interval() < other.spread_interval()).all()
    np.testing.assert_allclose(known.spreads_before.mean, [np.log(0.01)])


def test_the_shares_of_variation_do_not_cancel_where_one_site_knows_most():
    population = fused(trials([("a", 0.1, 1e-9), ("b", 0.9, 0.2), ("c", 0.4, 0.3)])).population
    typical = 1 / (0.2**-2 + 0.3**-2)  # the two others', as the weight of the first is infinite
    expected = population.spread**2 / (population.spread**2 + typical)
    np.testing.assert_allclose(population.i2, expected, rtol=1e-6)


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_intervals_integrate_over_the_spread():
    """Sums over a grid of the mean and the log spread, by Bayes' rule alone."""
    y = np.array([mean for _, mean, _ in TRIALS])
    sd = np.array([error for *_, error in TRIALS])
    population = fused(trials()).population
    usual = np.average(sd, weights=sd**-2)
    mu = np.linspace(-4, 3, 2801)
    s = np.linspace(-7, 3, 1201)
    variance = np.exp(2 * s)[:, None] + sd**2
    log = scipy.stats.norm.logpdf(s, np.log(np.hypot(2 * usual, TAU)), np.hypot(1.5, 0.75))
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


@pytest.mark.slow
def test_time_grows_as_the_number_of_sites_to_five_hundred_of_eight_coefficients():
    count, size = 500, 8
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
    seconds = []
    for number in (count // 5, count):
        start = time.process_time()
        population = fused(dict(list(sites.items())[:number])).population
        seconds.append(time.process_time() - start)
    assert seconds[1] < 15 * seconds[0]
    np.testing.assert_allclose(population.spread, spread, atol=0.05)
    weights = population.nodes.weights
    assert 1 / (weights**2).sum() > 100  # effective sample size of the draws of spreads
    low, high = population.spread_interval(0.999).T
    assert (low[1:] < spread[1:]).all() and (spread[1:] < high[1:]).all()
    away = (population.mean - truth) / np.sqrt(np.diag(population.covariance))
    assert (away**2).sum() < scipy.stats.chi2.isf(1e-4, size)


@pytest.mark.slow
def test_draws_of_many_spreads_are_those_of_sums():
    """Coefficients without correlations: given what log spreads share, each is one by itself."""
    count, size = 5, 30
    rng = np.random.default_rng(35)
    sd = rng.uniform(0.3, 1, (count, size))
    y = 0.7 * rng.normal(size=(count, size)) + sd * rng.normal(size=(count, size))
    names = [f"c{k}" for k in range(size)]
    laws = [Gaussian.from_standard(mean, np.diag(own**2)) for mean, own in zip(y, sd, strict=True)]
    population = fused({f"s{j}": law.named(names) for j, law in enumerate(laws)}).population
    assert np.ptp(population.nodes.weights) == 0  # draws
    shared = np.linspace(-6, 6, 81)
    apart = np.linspace(-3.4, 3.4, 181)
    usual = np.average(sd, 0, weights=sd**-2)
    median = np.hypot(2 * usual, population.spread)
    s = np.log(median)[:, None, None] + shared[:, None] + apart
    variance = np.exp(2 * s)[..., None] + sd.T[:, None, None] ** 2
    total = (1 / variance).sum(-1)
    mean = (y.T[:, None, None] / variance).sum(-1) / total
    squares = ((y.T[:, None, None] - mean[..., None]) ** 2 / variance).sum(-1)
    log = -(np.log(variance).sum(-1) + np.log(total) + squares) / 2
    log = log + scipy.stats.norm.logpdf(apart, 0, 0.75)
    every = scipy.special.logsumexp(log, axis=2).sum(0) + scipy.stats.norm.logpdf(shared, 0, 1.5)
    chance = scipy.special.softmax(every)[:, None] * scipy.special.softmax(log, axis=2)
    first = (chance * mean).sum((1, 2))
    variances = (chance * (1 / total + mean**2)).sum((1, 2)) - first**2
    sds = np.sqrt(np.diag(population.covariance))
    np.testing.assert_allclose(sds, np.sqrt(variances), rtol=0.05)
    np.testing.assert_allclose((population.mean - first) / sds, 0, atol=0.05)
    spreads = population.law.log_spread
    middle = (chance * s).sum((1, 2))
    wide = np.sqrt((chance * s**2).sum((1, 2)) - middle**2)
    np.testing.assert_allclose((spreads.mean - middle) / wide, 0, atol=0.15)
    np.testing.assert_allclose(np.sqrt(np.diag(spreads.covariance)), wide, rtol=0.15)
