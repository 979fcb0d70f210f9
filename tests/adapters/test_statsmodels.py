"""Results of statsmodels against its own intervals, pooled fits, and ugly data."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy.stats import t
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from statsmodels.tools.sm_exceptions import ConvergenceWarning as TheirConvergenceWarning

import posterity
from posterity import Gamma, Gaussian, Ledger, Product
from posterity.adapters import sklearn
from posterity.adapters.statsmodels import from_results, to_ledger
from posterity.errors import ConvergenceWarning, ParameterError, StructureError, UsageError

CLOSE: Any = dict(rtol=1e-8, atol=1e-10)
COLUMNS = ["const", "age", "bp"]


def table(n: int = 300, seed: int = 0) -> pd.DataFrame:
    """Columns in units that are nowhere near each other."""
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({"age": rng.normal(60, 10, n), "bp": rng.normal(1.3e5, 2e4, n)})
    score = 0.05 * (x.age - 60) + 4e-5 * (x.bp - 1.3e5)
    x["risk"] = score + rng.normal(size=n)
    x["ill"] = (score + rng.logistic(size=n) > 0).astype(float)
    x["visits"] = rng.poisson(np.exp(0.3 * score))
    x["kind"] = rng.choice(["a", "b", "c"], n)
    return x


DATA = table()
X = sm.add_constant(DATA[["age", "bp"]])


def quiet(fit: Any, **arguments: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(**arguments)


MODELS = {
    "OLS": lambda: sm.OLS(DATA.risk, X).fit(),
    "robust": lambda: sm.OLS(DATA.risk, X).fit(cov_type="HC3"),
    "WLS": lambda: sm.WLS(DATA.risk, X, weights=np.linspace(1, 2, 300)).fit(),
    "GLS": lambda: sm.GLS(DATA.risk, X, sigma=np.linspace(1, 2, 300)).fit(),
    "Logit": lambda: sm.Logit(DATA.ill, X).fit(disp=0),
    "Probit": lambda: sm.Probit(DATA.ill, X).fit(disp=0),
    "Binomial": lambda: sm.GLM(DATA.ill, X, family=sm.families.Binomial()).fit(),
    "Poisson": lambda: sm.GLM(DATA.visits, X, family=sm.families.Poisson()).fit(),
    "Gamma": lambda: sm.GLM(
        np.exp(DATA.risk), X, family=sm.families.Gamma(sm.families.links.Log())
    ).fit(),
}


@pytest.mark.parametrize("name", MODELS)
def test_moments_and_intervals_are_those_of_the_results(name: str) -> None:
    results = MODELS[name]()
    q = from_results(results)
    assert q.names == tuple(results.params.index) == tuple(COLUMNS)
    np.testing.assert_allclose(q.mean, results.params, rtol=1e-6)
    np.testing.assert_allclose(q.covariance, results.cov_params(), rtol=1e-5, atol=1e-30)
    wald = results.conf_int(alpha=0.05).to_numpy()
    half = 1.959963985 * np.sqrt(np.diagonal(q.covariance))
    if results.use_t:  # statsmodels then has the intervals of a t distribution
        half *= t.ppf(0.975, results.df_resid) / 1.959963985
    np.testing.assert_allclose((wald[:, 1] - wald[:, 0]) / 2, half, rtol=1e-5)


def test_names_are_those_of_statsmodels() -> None:
    """Of arrays and formulas, and of the other parameters of a count model."""
    plain = from_results(sm.OLS(DATA.risk.to_numpy(), X.to_numpy()).fit())
    assert plain.names == ("const", "x1", "x2")
    q = from_results(smf.ols("risk ~ age + C(kind)", DATA).fit())
    assert q.names == ("Intercept", "C(kind)[T.b]", "C(kind)[T.c]", "age")
    rng = np.random.default_rng(0)
    y = rng.negative_binomial(3, 0.4, 300)
    x = sm.add_constant(rng.normal(size=(300, 1)))
    for data in (x, pd.DataFrame(x, columns=["const", "x1"])):
        q = from_results(sm.NegativeBinomial(y, data).fit(disp=0))
        assert q.names == ("const", "x1", "alpha")


@pytest.mark.parametrize("pandas", [True, False])
def test_classes_of_a_multinomial_are_in_the_names(pandas: bool) -> None:
    y = DATA.kind if pandas else pd.Categorical(DATA.kind).codes
    results = sm.MNLogit(y, X if pandas else X.to_numpy()).fit(disp=0)
    q = from_results(results)
    first, second = ("b", "c") if pandas else ("1", "2")
    columns = COLUMNS if pandas else ["const", "x1", "x2"]
    assert q.names == tuple(f"{k}:{c}" for k in (first, second) for c in columns)
    params = np.asarray(results.params)
    np.testing.assert_allclose(q.mean, np.r_[params[:, 0], params[:, 1]], rtol=1e-6)
    errors = np.asarray(results.bse)
    deviations = np.sqrt(np.diagonal(q.covariance))
    np.testing.assert_allclose(deviations, np.r_[errors[:, 0], errors[:, 1]], rtol=1e-5)


def test_a_mixed_model_gives_its_fixed_effects() -> None:
    data = DATA.assign(ward=np.arange(300) % 10)
    data["risk"] += np.random.default_rng(1).normal(size=10)[data.ward]
    results = smf.mixedlm("risk ~ age", data, groups=data.ward).fit()
    q = from_results(results)
    assert q.names == ("Intercept", "age")
    np.testing.assert_allclose(q.mean, results.fe_params, **CLOSE)
    np.testing.assert_allclose(np.sqrt(np.diagonal(q.covariance)), results.bse_fe, rtol=1e-6)


def test_noise_of_a_linear_regression() -> None:
    results = sm.OLS(DATA.risk, X).fit()
    q = from_results(results, noise=True)
    assert isinstance(q, Product) and q.coefficients.names == tuple(COLUMNS)
    assert float(q.noise.mean) == pytest.approx(1 / results.scale)  # E[1/σ²] = (n - d)/RSS
    with pytest.raises(UsageError, match="linear regression"):
        from_results(MODELS["Poisson"](), noise=True)


# --- sites ---------------------------------------------------------------------------------------


def weak() -> Gaussian:
    return Gaussian.from_standard(np.zeros(3), np.diag([1e4, 1.0, 1e-6]))


def test_sites_of_a_linear_regression_add_up_to_the_pooled_fit(tmp_path: Any) -> None:
    """With one known noise the product of likelihoods is the likelihood of all records."""
    parts = {name: DATA.iloc[k::3] for k, name in enumerate(["east", "north", "south"])}
    files = []
    for name, part in parts.items():
        x = sm.add_constant(part[["age", "bp"]])
        results = sm.OLS(part.risk, x).fit(cov_type="fixed scale", cov_kwds={"scale": 1.0})
        ledger = to_ledger(results, name, prior=weak())
        assert ledger.posterior.names == tuple(COLUMNS)
        posterity.save(ledger, tmp_path / f"{name}.safetensors")
        files.append(tmp_path / f"{name}.safetensors")
    merged: Any = None
    for file in files:
        loaded: Any = posterity.load(file)
        merged = loaded if merged is None else merged | loaded
    pooled = X.T @ X + np.diag([1e-4, 1.0, 1e6])
    np.testing.assert_allclose(
        merged.posterior.mean, np.linalg.solve(pooled, X.T @ DATA.risk), rtol=1e-6
    )
    np.testing.assert_allclose(merged.posterior.precision, pooled, rtol=1e-6)


def test_a_prior_of_other_order_is_met_and_of_other_names_refused() -> None:
    results = MODELS["Logit"]()
    prior = Gaussian.from_standard(np.zeros(3), np.diag([1e-6, 1.0, 1e4]))
    ledger = to_ledger(results, "north", prior=prior.named(["bp", "age", "const"]))
    assert ledger.posterior.names == ("bp", "age", "const")
    plain = to_ledger(results, "north", prior=weak()).posterior
    np.testing.assert_allclose(ledger.posterior.mean[::-1], plain.mean, rtol=1e-8)
    with pytest.raises(StructureError, match="'dose'"):
        to_ledger(results, "north", prior=prior.named(["bp", "age", "dose"]))
    with pytest.raises(StructureError, match="a prior like the factor"):
        to_ledger(results, "north", prior=Gaussian.from_standard(np.zeros(2), np.eye(2)))


def test_sites_of_two_libraries_meet_under_one_name() -> None:
    prior = weak().named(["intercept", "age", "bp"])
    mine = to_ledger(MODELS["Logit"](), "east", prior=prior, names={"const": "intercept"})
    x = X[["age", "bp"]]
    line = make_pipeline(StandardScaler(), LogisticRegression(C=1e6, tol=1e-10)).fit(x, DATA.ill)
    theirs = sklearn.to_ledger(line, "east", x, DATA.ill, prior=prior)
    assert mine.posterior.names == theirs.posterior.names
    gap: Any = mine.posterior
    assert float(gap.kl(theirs.posterior)) < 1e-6  # one likelihood, by two libraries
    with pytest.raises(UsageError, match="constant"):
        from_results(MODELS["Logit"](), names={"constant": "intercept"})


def test_noise_of_a_ledger_counts_the_records_of_each_site() -> None:
    prior = Product(coefficients=weak(), noise=Gamma.from_standard(1e-3, 1e-3))
    results = MODELS["OLS"]()
    ledger = to_ledger(results, "north", prior=prior)
    noise: Any = ledger.factor("north")
    assert float(noise.noise.shape_minus_one) == pytest.approx(results.df_resid / 2)
    assert float(noise.noise.rate) == pytest.approx(results.ssr / 2)
    assert isinstance(ledger, Ledger) and ledger.independent


# --- ugly data -----------------------------------------------------------------------------------


def test_what_is_no_results_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Call its fit\(\)"):
        from_results(sm.OLS(DATA.risk, X))
    model = LogisticRegression().fit(DATA[["age"]] / 60, DATA.ill)
    with pytest.raises(UsageError, match="sklearn"):
        from_results(model)
    with pytest.raises(UsageError, match=r"found builtins\.dict"):
        from_results({})


def test_penalised_fits_are_refused() -> None:
    x = (X - X.mean()) / X.std().replace(0, 1)
    for results in (
        sm.OLS(DATA.risk, x).fit_regularized(alpha=0.1),
        sm.Logit(DATA.ill, x.assign(const=1.0)).fit_regularized(alpha=1.0, disp=0),
    ):
        with pytest.raises(UsageError, match="penal"):
            from_results(results)


def test_columns_that_depend_on_each_other_are_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = X.assign(months=X.age * 12)
        results = sm.OLS(DATA.risk, x).fit()  # of a pseudo-inverse: finite, plausible, wrong
        with pytest.raises(ParameterError, match=r"\['age', 'months'\]"):
            from_results(results)
        x = X.assign(smoker=0.0)
        with pytest.raises(ParameterError, match=r"\['smoker'\]"):
            from_results(sm.OLS(DATA.risk, x).fit())


def test_missing_values_few_records_perfect_fits_and_few_clusters_are_refused() -> None:
    risk = DATA.risk.where(np.arange(300) != 3)
    groups = {"groups": (np.arange(300) % 2)}
    for fit, words in (
        (lambda: quiet(sm.OLS(risk, X, missing="none").fit), "'age'"),
        (lambda: quiet(sm.OLS(DATA.risk[:3], X[:3]).fit), "3 records and 3 coefficients"),
        (lambda: sm.OLS(2 * X.age, X[["age"]]).fit(), "squared residuals"),
        (lambda: sm.OLS(DATA.risk, X).fit(cov_type="cluster", cov_kwds=groups), "more clusters"),
    ):
        with pytest.raises(ParameterError, match=words):
            from_results(fit())


@pytest.mark.parametrize("model", ["Logit", "Probit", "Binomial"])
@pytest.mark.parametrize("wholly", [True, False])
def test_separated_classes_are_refused(model: str, wholly: bool) -> None:
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"const": 1.0, "age": rng.normal(60, 10, 200)})
    x["treated"] = rng.integers(0, 2, 200).astype(float)
    ill = (x.age > 60).astype(float)
    if not wholly:
        ill = (rng.random(200) < 0.5).astype(float)
        ill[x.treated == 1] = 1.0
    fit = (
        sm.GLM(ill, x, family=sm.families.Binomial()).fit
        if model == "Binomial"
        else getattr(sm, model)(ill, x).fit
    )
    try:
        results = quiet(fit, **({} if model == "Binomial" else {"disp": 0}))
    except np.linalg.LinAlgError:
        pytest.skip("statsmodels before 0.15 refuses separated classes by itself")
    with pytest.raises(ParameterError, match="'age'" if wholly else r"\['treated'\]"):
        to_ledger(results, "north", prior=weak())


def test_a_separated_class_of_several_is_refused() -> None:
    kind = DATA.kind.mask(DATA.age > 70, "c").mask((DATA.age <= 70) & (DATA.kind == "c"), "a")
    results = quiet(sm.MNLogit(kind, X).fit, disp=0, maxiter=50)
    with pytest.raises(ParameterError, match=r"\['age'"):
        from_results(results)


def test_overlapping_classes_with_large_errors_pass() -> None:
    x = (X - X.mean()) / X.std().replace(0, 1) + [1.0, 0.0, 0.0]
    x["again"] = x.age + np.random.default_rng(7).normal(0, 1e-3, 300)
    q = from_results(sm.Logit(DATA.ill, x).fit(disp=0))
    assert np.sqrt(q.covariance[3, 3]) > 10  # it is looked at, and let through


def test_large_counts_of_an_unfinished_fit_take_no_memory() -> None:
    counts = DATA.visits.where(DATA.index > 0, 10**15)
    results = quiet(sm.GLM(counts, X, family=sm.families.Poisson()).fit, maxiter=1)
    with pytest.warns(ConvergenceWarning):
        from_results(results)


def test_an_unfinished_fit_is_warned_of() -> None:
    with pytest.warns(TheirConvergenceWarning):
        results = sm.Logit(DATA.ill, X).fit(disp=0, maxiter=2)
    with pytest.warns(ConvergenceWarning, match="Logit results .* not converged"):
        from_results(results)


def test_a_group_without_events_is_warned_of() -> None:
    data = DATA.assign(treated=(np.arange(300) % 2).astype(float))
    data["visits"] = np.where(data.treated == 1, 0, data.visits)
    results = smf.glm("visits ~ age + treated", data, family=sm.families.Poisson()).fit()
    with pytest.warns(ConvergenceWarning, match=r"\['treated'\].* no events"):
        from_results(results)


def test_huge_offsets_and_results_without_their_data() -> None:
    seconds = 1.7e9 + DATA.age * 86400 * 365
    results = sm.OLS(DATA.risk, pd.DataFrame({"const": 1.0, "seconds": seconds})).fit()
    np.testing.assert_allclose(from_results(results).mean, results.params, rtol=1e-6)
    results = sm.OLS(DATA.risk, X).fit()
    mean = from_results(results).mean
    results.remove_data()
    np.testing.assert_array_equal(from_results(results).mean, mean)
