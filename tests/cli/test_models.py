"""Models of hospitals beside statsmodels': counts, positive values, survival with censoring."""

import dataclasses
import functools
import itertools
import json
import operator
import shlex
import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
from cli.commands import document, refuse, succeed
from cli.test_recipes import put, rows, take
from scipy.integrate import cumulative_trapezoid, quad
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import gamma, nbinom

import posterity
from posterity.errors import ConvergenceError
from posterity.families import Gaussian
from posterity.models import (
    Adjusted,
    GammaRegression,
    LogisticRegression,
    MultinomialRegression,
    NegativeBinomialRegression,
    PoissonRegression,
    Records,
)
from posterity.tabular import fit
from posterity.tabular.design import design
from posterity.tabular.one_shot import _of_classes, expected_distance
from posterity.tabular.predict import log_predictive, predict
from posterity.tabular.recipe import Recipe
from posterity.tabular.regressions import check_converged, data_of, model_of
from posterity.tabular.sites import sites_in
from posterity.tabular.tables.reader import read_cells

api = pytest.importorskip("statsmodels.api")
OrderedModel = pytest.importorskip("statsmodels.miscmodels.ordinal_model").OrderedModel
approx_hess = pytest.importorskip("statsmodels.tools.numdiff").approx_hess
COUNT = 400


def covariates(seed=0, count=COUNT):
    rng = np.random.default_rng(seed)
    return rng, np.column_stack([np.ones(count), rng.normal(size=count), rng.random(count) < 0.4])


def lives(seed=0, count=COUNT):
    """Times with delayed entry and censoring, of a hazard that doubles at time 1."""
    rng, x = covariates(seed, count)
    ratio = np.exp(x[:, 1:] @ [0.6, -0.5])
    needed = rng.exponential(size=count) / ratio
    time = np.where(needed < 0.3, needed / 0.3, 1 + (needed - 0.3) / 0.6)
    entry = np.where(rng.random(count) < 0.3, rng.random(count) * 0.5, 0.0)
    censored = entry + rng.exponential(2.0, count)
    kept = time > entry
    columns = {"x": x[:, 1], "z": x[:, 2], "time": np.minimum(time, censored), "entry": entry,
               "dead": 1 * (time <= censored)}  # fmt: skip
    return {name: own[kept] for name, own in columns.items()}


def close(q, params, covariance, within=0.12):
    """The Gaussian of least reverse KL lies about the likelihood's top, not on it."""
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((q.mean - params) / sd, 0, atol=within)
    np.testing.assert_allclose(np.sqrt(q.marginal_variance) / sd, 1, atol=within)


MODELS = {
    "gamma": (GammaRegression(0.5), lambda f: f.gamma(2.0, size=30)),
    "counts": (NegativeBinomialRegression(0.7), lambda f: f.poisson(2.0, 30)),
    "exposed": (
        NegativeBinomialRegression(0.7, True),
        lambda f: np.column_stack([f.poisson(2.0, 30), f.gamma(2.0, size=30)]),
    ),
    "adjusted": (
        Adjusted(PoissonRegression(True)),
        lambda f: np.column_stack([f.poisson(2.0, 30), *f.gamma(2.0, size=(3, 30))]),
    ),
    "weighted": (
        Adjusted(LogisticRegression()),
        lambda f: np.column_stack([f.integers(0, 2, 30), *f.gamma(2.0, size=(2, 30))]),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_slopes_and_expectations_are_those_of_the_likelihood(name):
    model, draw = MODELS[name]
    rng = np.random.default_rng(0)
    mean, variance, y = rng.normal(size=30), rng.gamma(1.0, size=30), draw(rng)
    model.check((rng.normal(size=(30, 2)), y))
    value, slope = model.predictor_value_and_slope(mean, y)
    at = lambda f: model.predictor_log_likelihood(f, y)
    np.testing.assert_allclose(value, at(mean), rtol=1e-12)
    np.testing.assert_allclose(slope, (at(mean + 1e-5) - at(mean - 1e-5)) / 2e-5, atol=1e-6)
    assert (at(mean + 0.1) + at(mean - 0.1) < 2 * value + 1e-12).all(), "concave"
    if (known := model.predictor_expectation(mean, variance, y)) is not None:
        u, chances = np.polynomial.hermite_e.hermegauss(90)
        f = mean[:, None] + np.sqrt(variance)[:, None] * u
        parts = model.predictor_value_and_slope(f, y[:, None])
        for one, other in zip(known, parts, strict=False):
            np.testing.assert_allclose(one, other @ chances / chances.sum(), rtol=1e-6, atol=1e-8)
    assert isinstance(model.predictor_mean(mean), np.ndarray)


@pytest.mark.parametrize("model", ["negative-binomial", "gamma"])
def test_dispersed_models_are_near_maximum_likelihood_under_a_wide_prior(model):
    rng, x = covariates()
    mean, years = np.exp(x @ [0.5, 0.6, -0.4]), rng.gamma(2, 1, COUNT)
    if model == "gamma":
        y, family, more = rng.gamma(2, mean / 2), api.families.Gamma(api.families.links.Log()), {}
        exposure, dispersion = {}, 0.5
    else:
        y = rng.poisson(years * mean * rng.gamma(1 / 0.7, 0.7, COUNT))
        family, more = api.families.NegativeBinomial(alpha=0.7), {"exposure": years}
        exposure, dispersion = {"exposure": "years"}, 0.7
    put("t.csv", {"x": x[:, 1], "z": x[:, 2], "y": y, "years": years})
    recipe = Recipe(model, "y", ("x", "z"), prior_sd={"": 1e3}, dispersion=dispersion, **exposure)
    made = fit("t.csv", recipe)
    other = api.GLM(y, x, family=family, **more).fit(scale=0.5 if model == "gamma" else 1.0)
    close(made.ledger.posterior, other.params, other.cov_params())
    data = design(read_cells(Path("t.csv")), made.recipe, predicting=True)
    found = predict(made.ledger.posterior, made.recipe, data)
    np.testing.assert_allclose(found["mean"], other.predict(), rtol=0.04)
    score = log_predictive(made.ledger.posterior, made.recipe, data)
    if model == "negative-binomial":
        wanted = nbinom.logpmf(y, 1 / 0.7, 1 / (1 + 0.7 * other.predict()))
        np.testing.assert_allclose(score, wanted, atol=0.15)
    assert abs(score.mean() - other.llf / COUNT) < 0.02
    counts = rng.integers(1, 5, COUNT)
    put("w.csv", {"x": x[:, 1], "z": x[:, 2], "y": y, "n": counts})
    weighted = dataclasses.replace(recipe, weights="n", exposure=None)
    scale = 1.0 if exposure else 0.5
    heavy = api.GLM(y, x, family=family, freq_weights=counts).fit(scale=scale)
    close(fit("w.csv", weighted).ledger.posterior, heavy.params, heavy.cov_params())
    refuse("fit t.csv --model logistic --target z --dispersion 1 -o g.safetensors", 2, "gamma")
    found = fit("t.csv", dataclasses.replace(recipe, dispersion=None))

    def adjusted(log):
        """Minus the adjusted profile likelihood (cox1987)."""
        if model == "gamma":  # whose fitted values do not depend on the dispersion
            scale = other.predict() * np.exp(log)
            return -gamma.logpdf(y, np.exp(-log), scale=scale).sum() - 1.5 * log
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has a line for each look at its own dispersion
            kind = api.families.NegativeBinomial(alpha=np.exp(log))
        own = api.GLM(y, x, family=kind, **more).fit(tol=1e-13, maxiter=99)
        bend = -own.model.hessian(own.params, observed=True)
        return np.linalg.slogdet(bend)[1] / 2 - own.llf

    best = minimize_scalar(adjusted, bounds=(-3, 2), method="bounded", options={"xatol": 1e-7})
    np.testing.assert_allclose(np.log(found.spread), best.x, atol=1e-5)
    top = found.ledger.posterior.mean
    np.testing.assert_allclose(top, made.ledger.posterior.mean, atol=0.02)
    known = dataclasses.replace(recipe, dispersion=found.spread)
    again = fit("t.csv", known)
    assert again.ledger == found.ledger
    assert found.third is None and again.third is not None


def test_sites_agree_on_a_dispersion_and_files_carry_it():
    rng, x = covariates(8)
    y = rng.poisson(np.exp(x @ [0.5, 0.6, -0.4]) * rng.gamma(1 / 0.7, 0.7, COUNT))
    table, line = {"x": x[:, 1], "z": x[:, 2], "y": y}, "--model negative-binomial --target y"
    halves = {"n": np.arange(COUNT) < 150, "s": np.arange(COUNT) >= 150}
    for site, own in {**halves, "all": np.ones(COUNT, bool)}.items():
        put(f"{site}.csv", {name: values[own] for name, values in table.items()})
    data = document(*f"federate --site n=n.csv --site s=s.csv {line} --intercept "
                    "-o f.safetensors".split())  # fmt: skip
    (note,) = [one for one in data["notes"] if "dispersion" in one]
    value = sites_in(posterity.inspect("f.safetensors").provenance)["n"]["dispersion"]
    assert f"{value:.4g}" in note and 0.4 < value < 1.1
    succeed(*f"fit all.csv {line} --dispersion {value!r} -o all.safetensors".split())
    one, other = (posterity.load(f"{name}.safetensors").posterior for name in ("f", "all"))
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-5)
    for site in "ns":
        told = document(*f"fit {site}.csv {line} -o {site}.safetensors".split())
        assert told["noise_variance"] is None and told["dispersion"] > 0
        shown = succeed("show", f"{site}.safetensors", "--ratios").stdout
        assert f"dispersion {told['dispersion']:.4g}." in shown
    fused = document("fuse", "n.safetensors", "s.safetensors", "-o", "b.safetensors")
    assert fused["one_shot"] is None and "federate" in fused["notes"][0]
    score = {name: document("evaluate", f"{name}.safetensors", "all.csv")["all"]["log_score"]
             for name in ("b", "f", "all")}  # fmt: skip
    assert abs(np.ptp([*score.values()])) < 0.005
    put("none.csv", {**table, "y": 0 * y})
    refuse(
        f"fit none.csv {line} -o x.safetensors",
        3,
        "whose targets are all 0, which tell no dispersion; --dispersion V",
    )
    document(*f"fit n.csv {line} --dispersion 0.5 --prior-sd 1 -o known.safetensors".split())
    document("fit", "none.csv", "--like", "known.safetensors", "-o", "x.safetensors")
    put("same.csv", {**table, "y": 0 * y + 3})
    told = document(*f"fit same.csv {line} -o x.safetensors".split())
    assert any("no more than Poisson's" in one for one in told["notes"])
    line = "--model gamma --target y -o x.safetensors"
    refuse(f"fit same.csv {line}", 3, "whose targets are all 3, which tell no dispersion")
    put("two.csv", {"x": [1.0, 2.0], "y": [3.0, 5.0]})
    refuse(f"fit two.csv {line}", 3, "2 records; too few to estimate a dispersion")


@pytest.mark.parametrize("cuts", [(), (1.0, 2.0)])
def test_survival_is_poisson_regression_of_split_records(cuts):
    """Beside statsmodels' of the same records, split by hand."""
    columns = lives()
    put("t.csv", columns)
    recipe = Recipe("survival", "time", ("x", "z"), event="dead", entry="entry", cuts=cuts,
                    prior_sd={"": 1e3})  # fmt: skip
    made = fit("t.csv", recipe)
    ends = [0.0, *cuts, np.inf]
    x, y, exposure = [], [], []
    for own in zip(*columns.values(), strict=True):
        a, b, time, entry, dead = own
        for place, (low, high) in enumerate(itertools.pairwise(ends)):
            spent = min(time, high) - max(entry, low)
            if spent > 0:
                x.append([*np.eye(len(ends) - 1)[place], a, b])
                y.append(dead and low < time <= high)
                exposure.append(spent)
    other = api.GLM(np.array(y, float), np.array(x), family=api.families.Poisson(),
                    exposure=np.array(exposure)).fit()  # fmt: skip
    close(made.ledger.posterior, other.params, other.cov_params())
    assert made.records == len(columns["x"])


KNOTS = (0.2, 0.6, 1.5)


@pytest.mark.parametrize("hazard", ["weibull", "gompertz", "spline"])
def test_hazards_of_a_shape_are_near_their_own_maximum_likelihood(hazard):
    """Beside SciPy's search of the exact likelihood, with delayed entry and censoring."""
    rng, x = covariates(7)
    ratio = np.exp(x[:, 1:] @ [0.6, -0.5])
    needed = rng.exponential(size=COUNT) / ratio
    weibull = hazard == "weibull"
    time = (needed / 0.4) ** (1 / 1.6) if weibull else np.log1p(needed * 0.8 / 0.3) / 0.8
    entry = np.where(rng.random(COUNT) < 0.3, rng.random(COUNT) * 0.4, 0.0)
    end = entry + rng.exponential(1.5, COUNT)
    kept, dead = time > entry, 1.0 * (time <= end)
    own = {"x": x[:, 1], "z": x[:, 2], "time": np.minimum(time, end), "entry": entry, "dead": dead}
    own = {name: values[kept] for name, values in own.items()}
    put("t.csv", own)
    knots = KNOTS if hazard == "spline" else ()
    recipe = Recipe("survival", "time", ("x", "z"), event="dead", entry="entry", hazard=hazard,
                    prior_sd={"": 1e3}, cuts=knots)  # fmt: skip
    made = fit("t.csv", recipe)
    size = len(recipe.baseline)
    assert made.ledger.posterior.names[:size] == recipe.baseline
    grid = np.linspace(0.02, own["time"].max() ** 0.5, 3000) ** 2
    # As R's splines::ns, by the second derivatives that make it natural.
    natural = CubicSpline(np.log(KNOTS), np.eye(3), bc_type="natural")

    def log_hazard(p, t):
        end = np.clip(np.log(t), *np.log([KNOTS[0], KNOTS[-1]]))
        return (natural(end) + (np.log(t) - end)[:, None] * natural(end, 1)) @ p[:3]

    def cumulative(p, t):
        if hazard == "spline":
            whole = cumulative_trapezoid(np.exp(log_hazard(p, grid)), grid, initial=0)
            return np.interp(t, grid, whole)
        if weibull:
            return np.exp(p[0]) * t ** (p[1] + 1) / (p[1] + 1)
        return np.exp(p[0]) * np.expm1(p[1] * t) / p[1]

    def energy(p):
        line = p[-2] * own["x"] + p[-1] * own["z"]
        if hazard == "spline":
            start = log_hazard(p, own["time"])
        else:
            start = p[0] + p[1] * (np.log(own["time"]) if weibull else own["time"])
        spent = cumulative(p, own["time"]) - cumulative(p, own["entry"])
        return (spent * np.exp(line) - own["dead"] * (start + line)).sum()

    best = minimize(energy, [0.0, 0.3, *[0.0] * size], method="BFGS")
    # Not the inverse Hessian of BFGS, which is that of the path that it took.
    covariance = np.linalg.inv(approx_hess(best.x, energy))
    close(made.ledger.posterior, best.x, covariance, 0.16)
    data = design(read_cells(Path("t.csv")), made.recipe, predicting=True)
    score = log_predictive(made.ledger.posterior, made.recipe, data)
    assert abs(score.sum() + best.fun) < 3
    found = predict(made.ledger.posterior, made.recipe, data, times=[1.0])["survival_1"]
    line = best.x[-2] * own["x"] + best.x[-1] * own["z"]
    np.testing.assert_allclose(found, np.exp(-cumulative(best.x, 1.0) * np.exp(line)), atol=0.02)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")
def test_survival_is_that_of_r():
    """Beside survreg of a Weibull hazard, and coxph with delayed entry beside many cuts."""
    columns = lives(11)
    put("t.csv", columns)
    Path("s.R").write_text(
        """
        if (!requireNamespace("survival", quietly = TRUE)) quit(status = 3)
        library(survival)
        t <- read.csv("t.csv")
        w <- survreg(Surv(time, dead) ~ x + z, t)
        c <- coxph(Surv(entry, time, dead) ~ x + z, t)
        cat(sprintf('{"weibull": [%s], "cox": [%s]}',
            paste(c(coef(w), log(w$scale)), collapse = ","), paste(coef(c), collapse = ",")))
        """
    )
    run = subprocess.run(["Rscript", "s.R"], capture_output=True, text=True, check=False)
    if run.returncode == 3:
        pytest.skip("R has no package survival")
    theirs = json.loads(run.stdout)
    recipe = Recipe("survival", "time", ("x", "z"), event="dead", prior_sd={"": 1e3})
    *line, scale = theirs["weibull"]  # log time is line + scale times Gumbel noise
    shape = np.exp(-scale)
    wanted = [np.log(shape) - line[0] * shape, shape - 1, *(-shape * np.array(line[1:]))]
    q = fit("t.csv", dataclasses.replace(recipe, hazard="weibull")).ledger.posterior
    np.testing.assert_allclose((q.mean - wanted) / np.sqrt(q.marginal_variance), 0, atol=0.15)
    cuts = tuple(np.quantile(columns["time"], np.linspace(0.03, 0.97, 32)).round(4).tolist())
    for more in ({"cuts": cuts}, {"hazard": "spline", "cuts": (0.1, 0.4, 0.9, 1.2, 3.0)}):
        q = fit("t.csv", dataclasses.replace(recipe, entry="entry", **more)).ledger.posterior
        away = (q.mean[-2:] - theirs["cox"]) / np.sqrt(q.marginal_variance[-2:])
        np.testing.assert_allclose(away, 0, atol=0.25)


def choices(seed, count, beta):
    """Classes a, b and c of records whose log odds against a are linear in two columns."""
    rng, x = covariates(seed, count)
    odds = np.exp(np.column_stack([np.zeros(count), x @ beta.T]))
    shares = odds.cumsum(1) / odds.sum(1, keepdims=True)
    y = (rng.random(count)[:, None] > shares).sum(1)
    return x, y, {"x": x[:, 1], "z": x[:, 2], "class": np.array([*"abc"])[y]}


BETA = np.array([[0.3, 0.7, -0.5], [-0.4, -0.6, 0.9]])


def test_multinomial_classes_are_near_maximum_likelihood_under_a_wide_prior():
    """Beside statsmodels' search, and predictions beside its own."""
    x, y, table = choices(3, COUNT, BETA)
    put("t.csv", table)
    recipe = Recipe("multinomial", "class", ("x", "z"), categories={"class": ("a", "b", "c")},
                    prior_sd={"": 1e3})  # fmt: skip
    made = fit("t.csv", recipe)
    q = made.ledger.posterior
    assert q.names[:3] == ("b:intercept", "b:x", "b:z")
    other = api.MNLogit(y, x).fit(disp=0)
    close(q, other.params.T.ravel(), other.cov_params())
    data = design(read_cells(Path("t.csv")), made.recipe, predicting=True)
    found = predict(q, made.recipe, data)
    np.testing.assert_allclose(found["mean"], other.predict(), atol=0.02)
    assert abs(log_predictive(q, made.recipe, data).mean() - other.llf / COUNT) < 0.02


def test_a_multinomial_factor_is_the_gradient_of_its_expectation():
    """And third derivatives are how its precision changes with the mean."""
    x, y, _ = choices(1, 40, BETA)
    model, rng = MultinomialRegression(3), np.random.default_rng(0)
    root = 0.2 * rng.normal(size=(6, 6))
    covariance, mean, records = root @ root.T + 0.01 * np.eye(6), rng.normal(size=6), (
        Records.of((np.tile(x, 2), y)))  # fmt: skip
    at = lambda mean: model.expected_factor(Gaussian.from_standard(mean, covariance), records)
    _, factor = at(mean)
    slope = factor.precision_mean - factor.precision @ mean
    third = _of_classes(model, Gaussian.from_standard(mean, covariance), *records.data)
    for place, step in enumerate(1e-4 * np.eye(6)):
        above, below = at(mean + step), at(mean - step)
        np.testing.assert_allclose((above[0] - below[0]) / 2e-4, slope[place], atol=1e-6)
        bend = (below[1].precision - above[1].precision) / 2e-4
        np.testing.assert_allclose(bend, third[place], atol=1e-4)
        moved = [one.precision_mean - one.precision @ (mean + side * step)
                 for side, (_, one) in ((1, above), (-1, below))]  # fmt: skip
        np.testing.assert_allclose((moved[1] - moved[0]) / 2e-4, factor.precision[place], atol=1e-4)
    np.testing.assert_allclose(third, third.transpose(1, 2, 0), atol=1e-6)


@pytest.mark.slow
def test_a_class_that_a_site_never_saw():
    """One shot says that it does not know; a federation ends where all records do."""
    _, y, table = choices(4, 300, BETA)
    north = np.arange(300) < 150
    north &= y != 2
    sites = {"north": north, "south": np.arange(300) >= 150}
    options = "--model multinomial --target class --category class=a,b,c"
    for name, rows_ in {**sites, "all": sites["north"] | sites["south"]}.items():
        put(f"{name}.csv", {key: own[rows_] for key, own in table.items()})
        succeed(*f"fit {name}.csv {options} -o {name}.safetensors".split())
    fused = document("fuse", *(f"{site}.safetensors" for site in sites), "-o", "both.safetensors")
    assert fused["one_shot"] is None and "of north are not nearly Gaussian" in fused["warnings"][0]
    line = f"federate --site north=north.csv --site south=south.csv {options} --intercept"
    data = document(*line.split(), "-o", "f.safetensors")
    assert data["status"]["state"] == "converged", data["status"]
    wanted, one_shot, found = (
        posterity.load(f"{name}.safetensors").posterior for name in ("all", "both", "f")
    )
    assert float(found.kl(wanted)) < 1e-3 < 0.01 < float(one_shot.kl(wanted))
    succeed("predict", "f.safetensors", "south.csv", "-o", "p.csv")
    chances = rows("p.csv")
    np.testing.assert_allclose(sum(chances[f"p{k}"] for k in range(3)), 1, atol=1e-6)
    scored = document("evaluate", "f.safetensors", "south.csv")["all"]
    assert 0.4 < scored["accuracy"] < 1
    note = "no record has the level ['c']: only the prior"
    data = document(*f"fit north.csv {options} -o n.safetensors".split())
    assert any(note in line for line in data["notes"])
    refuse(f"fit north.csv {options.split(' --cat')[0]} -o n.safetensors", 2, "multinomial; names")
    refuse(f"fit north.csv {options} --offset x -o n.safetensors", 2, "multinomial")


def test_classes_that_columns_tell_apart_are_noted_and_names_are_apart():
    x = np.linspace(-3, 3, 60)
    label = np.array(["low down", "b", "b:x"])[np.digitize(x, [-1, 1])]
    put("t.csv", {"x": x, "x:x": np.sin(9 * x), "class": label})
    options = "--model multinomial --target class --category 'class=low down,b,b:x'"
    line = f"fit t.csv {options} --without x:x -o t.safetensors"
    data = document(*shlex.split(line))
    assert data["parameters"][1]["name"] == "b:x" and "without exception" in data["notes"][-1]
    refuse(f"fit t.csv {options} -o t.safetensors", 4, "'b:x:x'")


@pytest.mark.parametrize(("hazard", "slopes", "within"), [
    ("gompertz", (-40.0, -1.0, 10.0, 40.0), 2e-4), ("weibull", (-0.8, -0.5, 0.0, 3.0, 6.0), 1e-3),
])  # fmt: skip
def test_cumulative_hazards_are_their_integrals(hazard, slopes, within):
    """The records at which a hazard is taken add up to its closed form, however steep it is."""
    put("t.csv", {"time": [1.0, 0.7], "entry": [0.0, 0.1], "dead": [1, 0]})
    recipe = Recipe("survival", "time", (), event="dead", entry="entry", hazard=hazard)
    data = design(read_cells(Path("t.csv")), recipe)
    assert data.y.sum() == 1
    ends = {1.0: 0.0, 0.7: 0.1}
    weibull = lambda t, b: t ** (b + 1) / (b + 1)
    part = weibull if hazard == "weibull" else lambda t, b: np.expm1(b * t) / b
    for slope in slopes:
        total = (data.exposure * np.exp(data.x @ [0.0, slope])).sum()
        wanted = sum(part(end, slope) - part(start, slope) for end, start in ends.items())
        np.testing.assert_allclose(total, wanted, within)


@pytest.mark.parametrize("options", [{"cuts": (1.0,)}, {"hazard": "weibull"}])
def test_records_that_end_at_their_entry(options):
    columns = {"time": [0.0, 0.0, 2.0, 1.5], "dead": [0, 0, 1, 1]}
    put("t.csv", columns)
    put("u.csv", {name: own[2:] for name, own in columns.items()})
    recipe = Recipe("survival", "time", (), event="dead", **options)
    made, fewer = fit("t.csv", recipe, "s"), fit("u.csv", recipe, "s")
    assert made.ledger == fewer.ledger
    data = design(read_cells(Path("t.csv")), made.recipe, predicting=True)
    np.testing.assert_allclose(log_predictive(made.ledger.posterior, made.recipe, data)[:2], 0)
    assert any(note.startswith("2 records are censored") for note in made.notes)
    put("t.csv", {"time": [0.0, 2.0], "dead": [1, 1]})
    line = "fit t.csv --model survival --target time --event dead -o s.safetensors"
    refuse(line, 5, "line 2; half the unit")


def test_times_and_positive_values_have_a_unit():
    dead = ["TRUE", "FALSE", "TRUE"]  # as R writes them
    put("t.csv", {"months": [12.0, 24.0, 6.0], "dead": dead, "x": [0.0, 1.0, 2.0]})
    put("u.csv", {"months": [1.0, 2.0, 0.5], "dead": [1, 0, 1], "x": [0.0, 1.0, 2.0]})
    line = "fit t.csv --model survival --target months --event dead --unit months=months"
    succeed(*line.split(), "-o", "t.safetensors")
    more = "fit u.csv --like t.safetensors --unit months=years -o u.safetensors"
    refuse(more, 2, "--convert months")
    succeed(*more.split(), "--convert", "months=12", "--site", "t")
    assert posterity.load("t.safetensors") == posterity.load("u.safetensors")


def test_ordinal_levels_are_climbed_one_by_one():
    """Beside statsmodels' logistic regression of whether each level that was reached was left."""
    rng, x = covariates(5)
    odds = lambda j: 1 / (1 + np.exp(-(0.8 - 0.9 * j + x[:, 1:] @ [0.7, -0.5])))
    beyond = rng.random((COUNT, 2)) < np.column_stack([odds(0), odds(1)])
    grade = beyond[:, 0] * (1 + beyond[:, 1])
    names = np.array(["low", "mid", "high"])
    put("t.csv", {"x": x[:, 1], "z": x[:, 2], "grade": names[grade]})
    line = "fit t.csv --target grade --model ordinal --prior-sd 1000 -o t.safetensors"
    refuse(line, 2, "without levels; --category")
    succeed(*line.split(), "--category", "grade=low,mid,high")
    q = posterity.load("t.safetensors").posterior
    assert q.names == ("above[low]", "above[mid]", "x", "z")
    rows_ = [(np.eye(2)[j], x[i, 1:], grade[i] > j) for i in range(COUNT) for j in range(2)
             if grade[i] >= j]  # fmt: skip
    design_ = np.array([np.concatenate(own[:2]) for own in rows_])
    other = api.GLM(np.array([own[2] for own in rows_], float), design_,
                    family=api.families.Binomial()).fit()  # fmt: skip
    close(q, other.params, other.cov_params())
    put(
        "rest.csv",
        {"x": x[grade != 1, 1], "z": x[grade != 1, 2], "grade": names[grade[grade != 1]]},
    )
    rest = document(*line.replace("t.csv", "rest.csv").replace("t.safe", "r.safe").split(),
                    "--category", "grade=low,mid,high")["notes"]  # fmt: skip
    assert any("no record has the level ['mid']" in note for note in rest)
    document("predict", "t.safetensors", "t.csv", "-o", "p.npz")
    mean = np.load("p.npz")["mean"]
    first, second = (1 / (1 + np.exp(-(q.mean[j] + x[:, 1:] @ q.mean[2:]))) for j in range(2))
    wanted = np.column_stack([1 - first, first * (1 - second), first * second])
    np.testing.assert_allclose(mean, wanted, atol=0.01)
    np.testing.assert_allclose(mean.sum(1), 1)
    score = document("evaluate", "t.safetensors", "t.csv")["all"]
    chosen = mean[np.arange(COUNT), grade]
    assert score["log_score"] == pytest.approx(np.log(chosen).mean())
    assert score["records"] == COUNT


@pytest.mark.slow
def test_proportional_odds_at_the_shell_are_those_of_statsmodels():
    """Fitted, predicted and scored; levels are those of a site, or the remedy is named."""
    rng, x = covariates(6)
    f = x[:, 1:] @ [0.7, -0.5]
    grade = np.digitize(f + rng.logistic(size=COUNT), [-1, 1])
    names = np.array(["low", "mid", "high"])

    def rows(chosen):
        return {"x": x[chosen, 1], "z": x[chosen, 2], "grade": names[grade[chosen]]}

    put("t.csv", rows(grade >= 0))
    put("rest.csv", rows(grade != 1))
    put("top.csv", rows(grade != 0))
    line = "fit t.csv --target grade --model proportional-odds -o t.safetensors"
    refuse(line, 2, "without levels; --category")
    line += " --category grade=low,mid,high"
    succeed(*line.split())
    q = posterity.load("t.safetensors").posterior
    assert q.names == ("above[low]", "above[mid]", "x", "z")
    other = OrderedModel(grade, x[:, 1:], distr="logit").fit(method="bfgs", disp=0)
    np.testing.assert_allclose(q.mean[2:], other.params[:2], atol=0.1 * other.bse[0])
    np.testing.assert_allclose(np.sqrt(q.marginal_variance[2:]), other.bse[:2], rtol=0.03)
    rest = "fit --target grade --model proportional-odds --category grade=low,mid,high"
    refuse(f"{rest} rest.csv -o r.safetensors", 3, "no record with the level ['mid']; federate")
    refuse(f"{rest} top.csv -o r.safetensors", 3, "no record with the level ['low']; federate")
    together = rest.replace("fit", "federate", 1)
    found = document(*f"{together} t.csv rest.csv top.csv -o r.safetensors".split())
    assert found["status"]["state"] == "converged"
    put("more.csv", rows((grade != 1) & (x[:, 1] > 0)))
    refuse(f"{together} rest.csv more.csv -o n.safetensors", 3, "no record with the level ['mid']")
    own = f"{together} t.csv rest.csv --own above[mid] -o n.safetensors"
    refuse(own, 3, "no record with the level ['mid']")
    document("predict", "t.safetensors", "t.csv", "-o", "p.npz")
    mean = np.load("p.npz")["mean"]
    np.testing.assert_allclose(mean, other.predict(), atol=0.01)
    score = document("evaluate", "t.safetensors", "t.csv")["all"]
    chosen = mean[np.arange(COUNT), grade]
    assert score["log_score"] == pytest.approx(np.log(chosen).mean())


@pytest.mark.parametrize("seed", [1, 3])
def test_the_distance_of_proportional_odds_is_within_a_factor_of_three(seed):
    """Also of few records between two thresholds, whose gap may be near 0 at a site."""
    rng = np.random.default_rng(seed)
    recipe = Recipe("proportional-odds", "grade", categories={"grade": ("a", "b", "c", "d")})
    laws, sites, drawn = [], {}, []
    for count in (120, 90, 70):
        x, sex = rng.normal(0.5, 0.9, count).round(2), rng.integers(0, 2, count)
        grade = np.digitize(0.5 * x + 0.5 * sex + rng.logistic(size=count), [-0.5, 1, 2.2])
        drawn.append((x, sex, np.array(["a", "b", "c", "d"])[grade]))
    for site, own in [*enumerate(drawn), ("all", map(np.concatenate, zip(*drawn, strict=True)))]:
        put("t.csv", dict(zip(("x", "sex", "grade"), own, strict=True)))
        made = fit("t.csv", recipe, str(site))
        laws.append(made.ledger)
        sites |= sites_in(made.provenance)
    *each, whole = laws
    one = functools.reduce(operator.or_, each)
    true, stated = float(one.posterior.kl(whole.posterior)), expected_distance(one, sites).distance
    assert true / 3 < stated < 3 * true


@pytest.mark.slow
def test_survival_at_the_shell_is_fused_federated_and_predicted():
    for site, seed in (("n", 2), ("s", 3)):
        put(f"{site}.csv", lives(seed, 250))
    line = ("--model", "survival", "--target", "time", "--event", "dead", "--entry", "entry",
            "--cuts", "1,2")  # fmt: skip
    for site in "ns":
        succeed("fit", f"{site}.csv", *line, "-o", f"{site}.safetensors")
    data = document("fuse", "n.safetensors", "s.safetensors", "-o", "one.safetensors")
    assert data["one_shot"] < 0.1 and "hazard[1-2]" in data["columns"]
    put("z.csv", {**lives(4, 60), "dead": 0 * lives(4, 60)["dead"]})
    told = document("fit", "z.csv", *line, "-o", "z.safetensors")["notes"]
    assert any("no record has an event" in note and "smaller --prior-sd" in note for note in told)
    (told,) = document("fuse", "n.safetensors", "z.safetensors", "-o", "nz.safetensors")["warnings"]
    assert "likelihoods of z are not nearly Gaussian" in told and "contradicts" not in told
    recipe = Recipe("survival", "time", ("x", "z"), event="dead", hazard="weibull")
    data = design(read_cells(Path("z.csv")), recipe)
    prior = Gaussian.from_standard(np.zeros(4), 1e6 * np.eye(4))
    run = posterity.federate({"z": data_of(recipe, data)}, model_of(recipe), prior, steps=0)
    with pytest.raises(ConvergenceError, match=r"No record has an event.*or federate"):
        check_converged(run, recipe, data)
    sites = ("--site", "n=n.csv", "--site", "s=s.csv")
    notes = document("federate", *sites, *line, "-o", "fed.safetensors")["notes"]
    assert not any("no intercept" in note for note in notes), "hazards are in its place"
    assert not any("more than a quarter" in note for note in notes)
    one, fed = (posterity.load(f"{name}.safetensors").posterior for name in ("one", "fed"))
    assert float(one.kl(fed)) < 0.1
    told = document("predict", "fed.safetensors", "n.csv", "-o", "p.csv", "--times", "0.5,1.5")
    assert told["columns"][:4] == ["log_hazard_ratio", "survival_0.5", "low_0.5", "high_0.5"]
    found, columns = rows("p.csv"), lives(2, 250)
    mean = dict(zip(fed.names, fed.mean, strict=True))
    ratio = np.exp(mean["x"] * columns["x"] + mean["z"] * columns["z"])
    hazard = np.exp(mean["hazard[0-1]"]) + 0.5 * np.exp(mean["hazard[1-2]"])
    np.testing.assert_allclose(found["survival_1.5"], np.exp(-ratio * hazard), atol=0.02)
    assert (found["low_1.5"] < found["survival_1.5"]).all()
    data = document("evaluate", "fed.safetensors", "s.csv")
    assert 0.6 < data["all"]["concordance"] < 0.8
    refuse("predict n.safetensors n.csv -o q.csv --times 0", 2, "times")
    weibull = [*line[:-2], "--hazard", "weibull", "-o", "w.safetensors"]
    succeed("fit", "n.csv", *weibull)
    refuse("predict w.safetensors n.csv -o q.csv", 2, "without times; --times")
    assert document("evaluate", "w.safetensors", "s.csv")["all"]["concordance"] > 0.6
    refuse("evaluate w.safetensors s.csv --times 1", 2, "--times")
    put("odd.csv", {**lives(2, 30), "entry": 99.0 * np.ones(len(lives(2, 30)["x"]))})
    refuse(f"fit odd.csv {' '.join(line)} -o o.safetensors", 5, "line 2; after a nonnegative entry")


@pytest.mark.parametrize("hazard", [(), ("--cuts", "1"), ("--own", "intercept")])
def test_a_hazard_ratio_is_one_to_the_baseline(hazard):
    put("t.csv", take(lives(2, 250), "time", "dead", "x"))
    line = ("--target", "time", "--event", "dead", "--model", "survival", *hazard)
    found = document("fit", "t.csv", *line, "-o", "t.safetensors")["parameters"]
    slope = next(own["mean"] for own in found if own["name"] == "x")
    succeed("predict", "t.safetensors", "t.csv", "--times", "1", "-o", "p.csv")
    ratio = rows("p.csv")["log_hazard_ratio"]
    np.testing.assert_allclose(ratio, slope * lives(2, 250)["x"], atol=1e-6)


def test_densities_of_survival_add_up_to_one():
    put("t.csv", lives(4, 120))
    recipe = Recipe("survival", "time", ("x", "z"), event="dead", cuts=(1.0,))
    made = fit("t.csv", recipe)

    def density(time, event=1):
        put("u.csv", {"x": [0.3], "z": [1], "time": [time], "dead": [event]})
        data = design(read_cells(Path("u.csv")), made.recipe, predicting=True)
        return np.exp(log_predictive(made.ledger.posterior, made.recipe, data))[0]

    area = quad(density, 1e-9, 1.0, limit=8)[0] + quad(density, 1.0 + 1e-9, 3.0, limit=8)[0]
    assert area + density(3.0, 0) == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
def test_records_without_an_event_are_noted_and_a_baseline_is_not():
    columns = {"x": [0.0, 1.0, 2.0, 4.0], "time": [1.0, 2.0, 3.0, 4.0], "dead": [0, 1, 0, 1]}
    put("t.csv", columns)
    line = ["fit", "t.csv", "--model", "survival", "--target", "time", "--event", "dead", "-o"]
    line.append("t.safetensors")
    for more in ("--cuts", "2"), ("--hazard", "weibull"):
        assert not any("constant in all" in n for n in document(*line, *more)["notes"])
    put("t.csv", {**columns, "dead": [0] * 4})
    assert any("no record has an event" in note for note in document(*line)["notes"])
    put("t.csv", {"x": columns["x"], "time": columns["time"]})
    refuse("evaluate t.safetensors t.csv", 4, "no column 'time' or 'dead'")


def test_weights_are_no_matter_for_predictions_and_what_overflows_is_noted(recwarn):
    put("t.csv", {"x": [1.0, 2.0, 3.0, 5.0], "w": [1, 3, 1, 2], "y": [2, 4, 8, 9]})
    line = "fit t.csv --target y --model poisson --record-weights w"
    succeed(*line.split(), "-o", "t.safetensors")
    put("new.csv", {"x": [1.0, 2.0, 1e5], "w": ["", 0, 1], "y": [2, 4, 1]})
    data = document("predict", "t.safetensors", "new.csv", "-o", "p.csv")
    assert data["records"] == 3 and "predictions of 1 of 3 records overflow" in data["notes"][0]
    assert rows("p.csv")["variance"][2] == np.inf
    notes = document("evaluate", "t.safetensors", "new.csv")["notes"]
    assert any("records of weight 0 are left out" in note for note in notes)
    assert any("1 of 3 records is left out, since a value" in note for note in notes)
    put("new.csv", {"x": [1.0, 2.0], "y": [2, 4]})
    scored = document("evaluate", "t.safetensors", "new.csv")
    assert scored["all"]["records"] == 2
    assert any("counts once in the scores" in note for note in scored["notes"])
    assert not recwarn.list


def test_intervals_in_which_no_record_was_are_no_matter_before_them():
    """Their log hazards are the prior's, of standard deviation 1000."""
    put("t.csv", {"x": [0.0, 1.0, 2.0, 4.0], "time": [1.0, 2.0, 3.0, 4.0], "dead": [0, 1, 1, 1]})
    results = []
    for cuts in ((2.0,), (2.0, 5.0)):
        made = fit("t.csv", Recipe("survival", "time", event="dead", cuts=cuts))
        data = design(read_cells(Path("t.csv")), made.recipe, predicting=True)
        q = made.ledger.posterior
        found = predict(q, made.recipe, data, times=[1.0, 4.0])
        results.append({**found, "score": log_predictive(q, made.recipe, data)})
    for name, values in results[0].items():
        np.testing.assert_allclose(results[1][name], values, atol=0.05)
