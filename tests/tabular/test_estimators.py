"""Estimators over the verbs: scikit-learn's own checks, and what sites and forgetting come to."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import posterity
from posterity.errors import (
    FitWarning,
    LedgerError,
    UsageError,
)
from posterity.tabular.estimators import (
    FederatedLinearRegression,
    FederatedLogisticRegression,
)
from posterity.tabular.recipe import recipe_in

REGRESSIONS = (FederatedLinearRegression, FederatedLogisticRegression)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
SITES = np.array(["east", "north", "west"])[np.arange(60) % 3]
SIGNAL = X @ [1.0, -0.5] + 0.3
TARGETS = {
    FederatedLinearRegression: SIGNAL + 0.5 * RNG.normal(size=60),
    FederatedLogisticRegression: (SIGNAL + RNG.logistic(size=60) > 0).astype(int),
}
FRAME = pd.DataFrame(X, columns=["age", "dose"])


@pytest.mark.filterwarnings("ignore")  # of tiny and odd data, which the checks are made of
@parametrize_with_checks([FederatedLinearRegression(), FederatedLogisticRegression()])
def test_scikit_learn_takes_them_for_its_own(estimator, check):
    check(estimator)


def fitted(kind, x=X, rows=slice(None), **options):
    return kind(**options).fit(x[rows], TARGETS[kind][rows], sites=SITES[rows])


@pytest.mark.parametrize("kind", REGRESSIONS)
def test_many_sites_come_to_what_one_with_all_records_does(kind):
    model = fitted(kind, noise_variance=0.25) if "Linear" in kind.__name__ else fitted(kind)
    pooled = clone(model).fit(X, TARGETS[kind])
    assert model.sites_ == ("east", "north", "west") and pooled.sites_ == ("site",)
    assert model.status_.converged and model.n_iter_ >= 1
    assert pooled.posterior_.kl(model.posterior_) < 2e-3  # each may be 1e-3 from the optimum
    np.testing.assert_allclose(model.predict(X), pooled.predict(X), rtol=0.02)
    assert model.score(X, TARGETS[kind]) > 0.3


def test_linear_regression_is_that_of_pooled_records_in_closed_form():
    model = fitted(FederatedLinearRegression, prior_sd=3.0)
    ones, y = np.column_stack([np.ones(60), X]), TARGETS[FederatedLinearRegression]
    noise = np.linalg.lstsq(ones, y)[1][0] / (60 - 3)
    assert model.noise_variance_ == pytest.approx(noise, rel=1e-10)
    covariance = np.linalg.inv(ones.T @ ones / noise + np.eye(3) / 9)
    mean = covariance @ ones.T @ y / noise
    np.testing.assert_allclose(np.append(model.intercept_, model.coef_), mean, rtol=1e-9)
    _, sd = model.predict(X, return_std=True)
    np.testing.assert_allclose(sd**2, noise + ((ones @ covariance) * ones).sum(1), rtol=1e-9)


def test_logistic_regression_is_near_the_mode_of_pooled_records():
    model = fitted(FederatedLogisticRegression, prior_sd=1.0)
    ones, y = np.column_stack([np.ones(60), X]), TARGETS[FederatedLogisticRegression]
    loss = lambda z: np.logaddexp(0, -np.where(y, 1, -1) * (ones @ z)).sum() + z @ z / 2
    mode = minimize(loss, np.zeros(3)).x
    sd = np.sqrt(np.diag(model.posterior_.covariance))
    assert (abs(model.posterior_.mean - mode) < 0.25 * sd).all()
    p = model.predict_proba(X)
    assert np.allclose(p.sum(1), 1) and (model.predict(X) == (p[:, 1] > 0.5)).all()
    low, high = model.predict_interval(X).T
    assert (low < p[:, 1]).all() and (p[:, 1] < high).all()


@pytest.mark.parametrize("intercept", [True, False])
def test_coefficients_have_the_shapes_of_scikit_learns_own(intercept):
    kinds = LinearRegression, LogisticRegression
    for kind, own in zip(REGRESSIONS, kinds, strict=True):
        model = fitted(kind, fit_intercept=intercept)
        theirs = own(fit_intercept=intercept).fit(X, TARGETS[kind])
        assert np.shape(model.coef_) == np.shape(theirs.coef_)
        assert np.shape(model.intercept_) == np.shape(theirs.intercept_)


@pytest.mark.parametrize("kind", REGRESSIONS)
def test_forgetting_is_fitting_without_the_site(kind):
    model = fitted(kind)
    before, left = model.ledger_, model.forget("north")
    again = fitted(kind, rows=SITES != "north")
    assert left.sites_ == again.sites_ == ("east", "west") and left.records_ == again.records_
    assert again.posterior_.kl(left.posterior_) < 5e-3
    assert left.status_.converged and model.ledger_ is before
    np.testing.assert_allclose(left.predict(X), again.predict(X), rtol=0.02)


def test_what_a_linear_model_forgot_is_exact_without_records():
    model = pickle.loads(pickle.dumps(fitted(FederatedLinearRegression)))
    left, again = (
        model.forget("north", "east"),
        fitted(FederatedLinearRegression, rows=SITES == "west"),
    )
    assert left.noise_variance_ == pytest.approx(again.noise_variance_, rel=1e-12)
    assert left.status_.converged and left.ledger_.independent  # of one site's noise alone
    assert not (model.ledger_.independent or model.forget("west").ledger_.independent)
    np.testing.assert_allclose(left.posterior_.mean, again.posterior_.mean, rtol=1e-9)
    np.testing.assert_allclose(left.posterior_.covariance, again.posterior_.covariance, rtol=1e-9)


def test_a_pickle_has_no_records_and_says_what_it_cannot_refine():
    model = fitted(FederatedLogisticRegression)
    again = pickle.loads(pickle.dumps(model))
    assert not hasattr(again, "run_") and hasattr(model, "run_")
    assert (again.predict_proba(X) == model.predict_proba(X)).all()
    left = again.forget("north")
    assert not left.status_.converged and left.sites_ == ("east", "west")


def test_sites_pass_through_pipelines_and_searches():
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedLogisticRegression().set_fit_request(sites=True)
        pipe = make_pipeline(StandardScaler().set_output(transform="pandas"), model)
        grid = {"federatedlogisticregression__prior_sd": [0.01, 3.0]}
        search = GridSearchCV(pipe, grid, cv=2)
        search.fit(FRAME, TARGETS[FederatedLogisticRegression], sites=SITES)
    best = search.best_estimator_[-1]
    assert best.prior_sd == 3.0 and best.sites_ == ("east", "north", "west")
    assert best.posterior_.names == ("intercept", "age", "dose")


def test_more_classes_are_one_each_against_the_rest():
    labels = np.digitize(SIGNAL, [-0.5, 0.5])
    model = OneVsRestClassifier(FederatedLogisticRegression()).fit(X, labels)
    assert model.score(X, labels) > 0.7
    with pytest.raises(ValueError, match="Only binary"):
        FederatedLogisticRegression().fit(X, labels)


@pytest.mark.parametrize("kind", REGRESSIONS)
def test_a_saved_file_says_what_it_predicts_from_what(kind, tmp_path):
    y = pd.Series(TARGETS[kind], name="outcome")
    model = kind().fit(FRAME, y, sites=SITES)
    model.save(tmp_path / "all.safetensors")
    loaded = posterity.load(tmp_path / "all.safetensors")
    assert loaded == model.ledger_ and loaded.names == ("intercept", "age", "dose")
    recipe = recipe_in(posterity.inspect(tmp_path / "all.safetensors").provenance)
    assert recipe.target == "outcome" and recipe.columns == ("age", "dose")


def test_a_prior_by_name_is_that_of_all_sites():
    prior = posterity.Gaussian.from_standard([0.0, 5.0, 0.0], np.diag([1.0, 1e-8, 1.0]))
    prior = prior.named(["dose", "age", "intercept"])
    model = FederatedLinearRegression(prior=prior).fit(FRAME, SIGNAL + 0.1 * X[:, 0] ** 2)
    assert model.coef_[0] == pytest.approx(5.0, abs=1e-2)
    by_name = FederatedLinearRegression(prior_sd={"": 10.0, "dose": 1e-6}).fit(
        FRAME, SIGNAL + X[:, 1] ** 2
    )
    assert abs(by_name.coef_[1]) < 1e-3 < abs(by_name.coef_[0])


def test_noise_that_nothing_tells_of_is_taken_for_large():
    with pytest.warns(FitWarning, match="square of the largest target"):
        model = FederatedLinearRegression().fit(X[:3], [1.0, 2.0, -4.0])
    assert model.noise_variance_ == 16.0


@pytest.mark.parametrize(
    "sites, match", [(SITES[:5], "shape"), ([None] * 60, "texts"), (np.full(60, np.nan), "texts")]
)
def test_sites_that_name_no_site_are_refused(sites, match):
    with pytest.raises(ValueError, match=match):
        FederatedLinearRegression().fit(X, SIGNAL, sites=sites)


@pytest.mark.parametrize(
    "options",
    [
        {"prior_sd": -1.0},
        {"prior_sd": 0.0},
        {"prior_sd": "wide"},
        {"prior_sd": {"dose": -1.0}},
        {"prior_sd": 1.0, "prior": posterity.Gaussian.from_standard(np.zeros(3), np.eye(3))},
        {"max_iter": 0},
        {"tol": 0.0},
    ],
)
@pytest.mark.parametrize("kind", REGRESSIONS)
def test_options_that_make_no_sense_are_refused(kind, options):
    with pytest.raises(UsageError):
        kind(**options).fit(FRAME, TARGETS[kind])


def test_a_level_is_between_0_and_1():
    with pytest.raises(UsageError, match="level"):
        fitted(FederatedLinearRegression).predict_interval(X, 95)


def test_one_class_is_named_as_it_was_written():
    with pytest.raises(ValueError, match="one class only, 'ill'"):
        FederatedLogisticRegression().fit(X, ["ill"] * 60)


def test_who_never_took_part_cannot_leave_nor_can_all():
    model = fitted(FederatedLinearRegression)
    with pytest.raises(LedgerError):
        model.forget("south")
    with pytest.raises(UsageError, match="one that stays"):
        model.forget("north", "east", "west")


def test_importing_posterity_does_not_import_scikit_learn():
    code = "import posterity, posterity.fusion, sys; assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
