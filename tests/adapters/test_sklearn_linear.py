"""Coefficients of scikit-learn against other optimisers, numerical Hessians and a chain."""

import inspect
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning as TheirConvergenceWarning
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    LogisticRegression,
    LogisticRegressionCV,
    Ridge,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

import posterity
from posterity import Gaussian
from posterity.adapters.sklearn import from_estimator, to_estimator, to_ledger
from posterity.errors import ConvergenceWarning, ParameterError, StructureError, UsageError

EXACT = dict(tol=1e-10, max_iter=10_000)
NEWTON = dict(solver="newton-cholesky", **EXACT)


def table(n: int = 300, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Columns, a response, and labels of two classes that overlap."""
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({"age": rng.normal(size=n), "bp": rng.normal(size=n) + 2})
    x["dose"] = rng.normal(size=n) - 0.5 * x.age
    score = x.to_numpy() @ [1.0, -0.7, 0.0] + 1.2
    return x, score + 0.5 * rng.normal(size=n), (score + rng.logistic(size=n) > 0).astype(int)


X, TARGET, LABEL = table()
Z = np.column_stack([np.ones(len(X)), X])
ONES = X.rename(columns={"age": "intercept"})


def check_moments(q: Any, mean: Any, covariance: Any, rtol: float = 1e-5) -> None:
    scale = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((q.mean - mean) / scale, 0, atol=rtol)
    np.testing.assert_allclose((q.covariance - covariance) / np.outer(scale, scale), 0, atol=rtol)


def hessian(f: Any, at: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """By central differences of fourth order, of values alone."""
    size, weight = len(at), {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
    found = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            for a, wa in weight.items():
                for b, wb in weight.items():
                    moved = at.copy()
                    moved[i] += a * step
                    moved[j] += b * step
                    found[i, j] += wa * wb * f(moved) / step**2
    return (found + found.T) / 2


# --- linear regression ---------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_bayesian_ridge_is_the_exact_posterior_given_its_noise_and_prior(weighted: bool) -> None:
    weight = np.linspace(0.5, 2, len(X)) if weighted else None
    model = BayesianRidge().fit(X, TARGET, sample_weight=weight)
    q = from_estimator(model, X, sample_weight=weight)
    assert q.names == ("intercept", "age", "bp", "dose")
    w = np.ones(len(X)) if weight is None else weight
    prior = np.diag([0.0, *[model.lambda_] * 3])  # a flat one for the intercept
    precision = prior + model.alpha_ * (Z.T * w) @ Z
    mean = np.linalg.solve(precision, model.alpha_ * (Z.T * w) @ TARGET)
    check_moments(q, mean, np.linalg.inv(precision))


def test_factors_of_sites_add_up_to_the_pooled_regression(tmp_path: Any) -> None:
    prior = Gaussian.from_standard(np.zeros(4), 100 * np.eye(4)).named(
        ["intercept", "age", "bp", "dose"]
    )
    precision, slope = np.eye(4) / 100, np.zeros(4)
    merged: Any = None
    for k, site in enumerate(["east", "north"]):
        x, y = X[k::2], TARGET[k::2]
        model = (BayesianRidge, ARDRegression)[k]().fit(x, y)
        posterity.save(to_ledger(model, site, x, y, prior=prior), tmp_path / "site.safetensors")
        ledger: Any = posterity.load(tmp_path / "site.safetensors")
        merged = ledger if merged is None else merged | ledger
        precision += model.alpha_ * Z[k::2].T @ Z[k::2]
        slope += model.alpha_ * Z[k::2].T @ y
    check_moments(
        merged.posterior, np.linalg.solve(precision, slope), np.linalg.inv(precision), 1e-8
    )


def test_what_ard_pruned_keeps_its_place_and_the_variance_of_its_prior() -> None:
    model = ARDRegression(threshold_lambda=100).fit(X, TARGET)
    assert model.sigma_.shape == (2, 2)  # `dose` is gone
    q = from_estimator(model, X)
    assert q.names == ("intercept", "age", "bp", "dose")
    assert q.mean[3] == pytest.approx(0, abs=1e-12)
    assert q.covariance[3, 3] == pytest.approx(1 / model.lambda_[2])
    np.testing.assert_allclose(q.covariance[1:3, 1:3], model.sigma_, rtol=1e-8)


def test_columns_are_found_by_name() -> None:
    model = BayesianRidge().fit(X, TARGET)
    q = from_estimator(model, X)
    check_moments(from_estimator(model, X[["dose", "age", "bp"]]), q.mean, q.covariance)
    assert from_estimator(BayesianRidge(fit_intercept=False).fit(X, TARGET), X).names == tuple(X)


@pytest.mark.parametrize("kind", [BayesianRidge, ARDRegression])
def test_the_covariance_is_the_estimators_own_whatever_data_are_passed(kind: Any) -> None:
    y = TARGET + X.dose  # of which ARD leaves no column out
    plain = kind(fit_intercept=False).fit(X, y)
    for x in (None, X, 10 * X, X[:5]):
        check_moments(from_estimator(plain, x), plain.coef_, plain.sigma_, 1e-8)
    centred = (X - X.mean()).to_numpy()
    model = kind().fit(centred, y)
    q = from_estimator(model, 100 * centred)
    np.testing.assert_allclose(q.covariance[1:, 1:], model.sigma_, rtol=1e-8)
    scaled = make_pipeline(StandardScaler(with_mean=False), plain).fit(X, y)
    q, scale = from_estimator(scaled), X.std(ddof=0).to_numpy()
    check_moments(q, plain.coef_ / scale, plain.sigma_ / np.outer(scale, scale), 1e-8)


@pytest.mark.parametrize("kind", [BayesianRidge, ARDRegression])
def test_data_of_another_fit_are_refused(kind: Any) -> None:
    prior = Gaussian.from_standard(np.zeros(4), 100 * np.eye(4))
    model = kind().fit(X, TARGET)
    order = np.random.default_rng(0).permutation(len(X))
    for x, y in ((X, TARGET[order]), (X, TARGET + 1), (X, -TARGET), (X.iloc[order], TARGET)):
        with pytest.raises(UsageError, match="deviations elsewhere"):
            to_ledger(model, "north", x, y, prior=prior)
    with pytest.raises(UsageError, match="deviations elsewhere"):
        from_estimator(model, X, TARGET[::-1])
    plain = kind(fit_intercept=False).fit(X, TARGET)
    three = Gaussian.from_standard(np.zeros(3), 100 * np.eye(3))
    for x in (-X, 2 * X):
        with pytest.raises(UsageError, match="deviations elsewhere"):
            to_ledger(plain, "north", x, TARGET, prior=three)
    far, big = X * [1e-3, 1, 1e3] + [0, 1e3, 1e5], 1e6 + 10 * TARGET  # ugly, and its own
    to_ledger(kind().fit(far, big), "north", far, big, prior=prior)


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (
            lambda m: from_estimator(m, X.assign(age="old")),
            StructureError,
            r"columns \['age'\].* hold no numbers",
        ),
        (lambda m: from_estimator(m, X, ["old"] * len(X)), StructureError, "values y"),
        (lambda m: from_estimator(m, X, sample_weight="no"), StructureError, "sample_weight"),
        (lambda m: from_estimator(m, X, sample_weight=np.ones(3)), StructureError, "sample_weight"),
        (
            lambda m: from_estimator(m, X, names=list("abcd")),
            UsageError,
            "names=.'a'.*None for a linear model",
        ),
        (lambda m: from_estimator(m.fit(ONES, TARGET), ONES), StructureError, "the intercept"),
        (lambda m: from_estimator(m), UsageError, "how many records"),
        (lambda m: from_estimator(m, X.assign(bp=X.bp * 7)), UsageError, r"\['bp'\] have another"),
        (
            lambda m: from_estimator(m, X.rename(columns={"dose": "drug"})),
            StructureError,
            r"\['dose'\] missing",
        ),
        (
            lambda m: from_estimator(m, X.assign(age=np.nan)),
            ParameterError,
            r"NaN or infinity in columns \['age'\]",
        ),
    ],
)
def test_data_that_are_refused(ask: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        ask(BayesianRidge().fit(X, TARGET))


def test_bayesian_ridge_comes_back() -> None:
    model = BayesianRidge().fit(X, TARGET)
    q = from_estimator(model, X)
    back: Any = to_estimator(q, like=BayesianRidge(), noise_precision=float(model.alpha_))
    for found, wanted in zip(
        back.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    with pytest.raises(UsageError, match="noise_precision"):
        to_estimator(q, like=BayesianRidge())
    check_moments(from_estimator(back, X), q.mean, q.covariance)


# --- logistic regression -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "level"),
    [
        (dict(C=0.5, **NEWTON), 0.0),
        (dict(C=np.inf, **NEWTON), 0.0),
        (dict(C=0.5, fit_intercept=False, **NEWTON), None),
        (dict(C=0.5, solver="liblinear", intercept_scaling=2.0, **EXACT), 2 / 4),
        (dict(class_weight="balanced", **NEWTON), 0.0),
        (dict(class_weight={0: 0.5, 1: 3.0}, **NEWTON), 0.0),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_two_classes_against_another_optimiser_and_hessian(
    parameters: dict[str, Any], level: float | None, weighted: bool
) -> None:
    weight = np.linspace(0.2, 1.5, len(X)) if weighted else None
    model = LogisticRegression(**parameters).fit(X, LABEL, sample_weight=weight)
    q = from_estimator(model, X, LABEL, sample_weight=weight)
    z = X.to_numpy() if level is None else Z
    prior = np.r_[[] if level is None else [level], np.full(3, 1 / model.C)]
    w = np.ones(len(X)) if weight is None else weight
    if model.class_weight == "balanced":  # counts of records, or of their weights
        counts = np.ones(len(X))
        if "sample_weight" in inspect.signature(_compute_class_weight()).parameters:
            counts = w
        w = w * np.where(
            LABEL == 1,
            counts.sum() / (2 * counts[LABEL == 1].sum()),
            counts.sum() / (2 * counts[LABEL == 0].sum()),
        )
    elif model.class_weight:
        w = w * np.where(LABEL == 1, 3.0, 0.5)

    def loss(b: np.ndarray) -> float:
        f = z @ b
        return float(w @ (np.logaddexp(0, f) - LABEL * f) + prior @ b**2 / 2)

    mode = minimize(loss, np.zeros(z.shape[1]), method="BFGS", options={"gtol": 1e-6}).x
    check_moments(q, mode, np.linalg.inv(hessian(loss, mode)), 2e-4)


def _compute_class_weight() -> Any:
    from sklearn.utils.class_weight import compute_class_weight

    return inspect.unwrap(compute_class_weight)


def test_several_classes_are_contrasts_with_the_first() -> None:
    """Against the penalty of scikit-learn itself: all classes have coefficients, then contrasts."""
    data = load_iris(as_frame=True)
    x, y = data.data.iloc[:, :2] - 4, data.target_names[data.target]
    model = LogisticRegression(C=2.0, **NEWTON).fit(x, y)
    q = from_estimator(model, x, y)
    columns = ["intercept", *x]
    assert q.names == tuple(f"{k}:{c}" for k in ("versicolor", "virginica") for c in columns)
    z, codes = np.column_stack([np.ones(len(x)), x]), data.target.to_numpy()

    def loss(b: np.ndarray) -> float:
        table = b.reshape(3, 3)
        f = z @ table.T
        picked = f[np.arange(len(f)), codes]
        return float(
            (np.logaddexp.reduce(f, axis=1) - picked).sum() + (table[:, 1:] ** 2).sum() / 4
        )

    full = np.column_stack([model.intercept_, model.coef_]).reshape(-1)
    best = minimize(loss, full, method="BFGS", options={"gtol": 1e-7}).x
    contrast = np.kron(np.array([[-1.0, 1, 0], [-1, 0, 1]]), np.eye(3))
    # Adding one number to all intercepts changes nothing: that direction is left out.
    covariance = contrast @ np.linalg.pinv(hessian(loss, best), rcond=1e-6) @ contrast.T
    check_moments(q, contrast @ best, covariance, 5e-4)

    back = to_estimator(q, like=LogisticRegression(), classes=model.classes_)
    np.testing.assert_allclose(back.predict_proba(x), model.predict_proba(x), atol=1e-8)
    np.testing.assert_allclose(back.coef_, model.coef_, atol=1e-8)
    assert list(back.predict(x)) == list(model.predict(x))


def test_moments_are_those_of_a_chain() -> None:
    """Of NUTS (NumPyro 0.22, float64, seed 0, 20,000 draws, a flat prior for the intercept)."""
    mean = [1.19502, 0.97634, -0.67211, 0.00993]
    deviations = [0.11844, 0.06485, 0.05445, 0.05008]
    size = 9700  # the least of the effective sample sizes
    x, _, y = table(2000, seed=3)
    model = LogisticRegression(C=0.7, **NEWTON).fit(x, y)
    q = from_estimator(model, x, y)
    scale = np.sqrt(np.diagonal(q.covariance))
    # The mode is off the mean by about 1/√n of a deviation, which this many draws see.
    bias = 1 / np.sqrt(len(x))
    assert np.all(abs(q.mean - mean) / scale < 4 / np.sqrt(size) + bias)
    assert np.all(abs(deviations / scale - 1) < 4 / np.sqrt(2 * size) + bias)


def test_factors_of_labels_leave_the_penalty_out() -> None:
    model = LogisticRegression(C=0.01, **NEWTON).fit(X, LABEL)
    prior = Gaussian.from_standard(np.zeros(4), np.diag([1e6, 0.01, 0.01, 0.01]))
    ledger = to_ledger(model, "north", X, LABEL, prior=prior)
    q = from_estimator(model, X, LABEL)
    check_moments(ledger.posterior, q.mean, q.covariance, 1e-4)
    assert ledger.posterior.names == q.names == ("intercept", "age", "bp", "dose")
    with pytest.raises(UsageError, match="the same at all sites"):
        to_ledger(model, "north", X, LABEL)
    with pytest.raises(UsageError, match="without its data"):
        to_ledger(model, "north", X, prior=prior)


def test_an_l1_penalty_is_refused() -> None:
    options: Any = dict(l1_ratio=0.5, solver="saga", tol=1e-3, max_iter=10_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of penalty=, which newer versions do without
        sparse = LogisticRegression(penalty="elasticnet", **options).fit(X, LABEL)
        with pytest.raises(UsageError, match="l1 penalty"):
            from_estimator(sparse, X, LABEL)
        old = LogisticRegression(penalty="l1", solver="liblinear").fit(X, LABEL)
        flat = LogisticRegression(penalty=None, **NEWTON).fit(X, LABEL)
    with pytest.raises(UsageError, match="l1 penalty"):
        from_estimator(old, X, LABEL)
    free = LogisticRegression(C=np.inf, **NEWTON).fit(X, LABEL)
    q, same = from_estimator(flat, X, LABEL), from_estimator(free, X, LABEL)
    check_moments(q, same.mean, same.covariance)


def test_sparse_data_and_tables_of_one_column() -> None:
    model = LogisticRegression(**NEWTON).fit(X, LABEL)
    q = from_estimator(model, csr_matrix(X.to_numpy()), pd.DataFrame({"ill": LABEL}))
    check_moments(
        q, from_estimator(model, X, LABEL).mean, from_estimator(model, X, LABEL).covariance
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = LogisticRegressionCV(Cs=2).fit(X, LABEL)
    with pytest.raises(UsageError, match="the C that it chose"):
        from_estimator(chosen, X, LABEL)


def test_other_data_and_unfinished_fits() -> None:
    model = LogisticRegression(**NEWTON).fit(X, LABEL)
    with pytest.raises(ParameterError, match="deviations from the mode"):
        from_estimator(model, X, 1 - LABEL)
    with pytest.warns(ConvergenceWarning, match="deviations from the mode"):
        from_estimator(model, X[::2], LABEL[::2])  # the mode of a half is not far
    with pytest.raises(UsageError, match=r"not have in common: \[2\]"):
        from_estimator(model, X, np.where(LABEL, 2, 0) + (np.arange(300) == np.argmax(LABEL)) * -1)
    raw = X * [1.0, 1e5, 1.0]  # pascals: the default optimiser gives up
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TheirConvergenceWarning)
        lost = LogisticRegression(max_iter=1).fit(raw, LABEL)
    with pytest.raises(ParameterError, match="StandardScaler"):
        from_estimator(lost, raw, LABEL)
    rough = LogisticRegression(**NEWTON).fit(X, LABEL)
    rough.coef_ = rough.coef_ + 0.3 * np.sqrt(from_estimator(model, X, LABEL).covariance[1, 1])
    with pytest.warns(ConvergenceWarning, match="deviations from the mode"):
        from_estimator(rough, X, LABEL)


def test_separated_classes_pass_with_a_penalty_alone() -> None:
    label = (X.age > 0).astype(int)
    assert from_estimator(LogisticRegression(**NEWTON).fit(X, label), X, label).is_proper()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        free = LogisticRegression(C=np.inf, max_iter=200).fit(X, label)
    with pytest.raises(ParameterError, match=r"\['age'\] separate perfectly"):
        from_estimator(free, X, label)


# --- pipelines -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scaler",
    [
        StandardScaler(),
        StandardScaler(with_std=False),
        MinMaxScaler((-1, 2)),
        MaxAbsScaler(),
        RobustScaler(),
        make_pipeline(MaxAbsScaler(), StandardScaler()),
    ],
)
def test_scaled_columns_come_back_in_raw_units(scaler: Any) -> None:
    raw = X * [1.0, 2e4, 1e-3] + [0.0, 1e5, 0.0]
    line = make_pipeline(scaler, LogisticRegression(**NEWTON)).fit(raw, LABEL)
    q = from_estimator(line, raw, LABEL)
    assert q.names == ("intercept", "age", "bp", "dose")
    z = np.column_stack([np.ones(len(raw)), raw])
    np.testing.assert_allclose(z @ q.mean, line.decision_function(raw), rtol=1e-6, atol=1e-8)
    inner = from_estimator(line[-1], line[:-1].transform(raw), LABEL)
    u = np.column_stack([np.ones(len(raw)), line[:-1].transform(raw)])
    spread = lambda z, q: np.einsum("nd,de,ne->n", z, q.covariance, z)
    np.testing.assert_allclose(spread(z, q), spread(u, inner), rtol=1e-6)
    back = to_estimator(q, like=LogisticRegression())
    np.testing.assert_allclose(back.predict_proba(raw), line.predict_proba(raw), atol=1e-8)


def test_a_scaled_regression_and_several_classes_come_back_too() -> None:
    raw = X * [1.0, 2e4, 1.0]
    line = make_pipeline(StandardScaler(), BayesianRidge()).fit(raw, TARGET)
    q = from_estimator(line, raw)
    z = np.column_stack([np.ones(len(raw)), raw])
    np.testing.assert_allclose(z @ q.mean, line.predict(raw), rtol=1e-8)
    kind = np.digitize(TARGET, [-1, 1])
    line = make_pipeline(StandardScaler(), LogisticRegression(**NEWTON)).fit(raw, kind)
    q = from_estimator(line, raw, kind)
    f = line.decision_function(raw)
    np.testing.assert_allclose(z @ q.mean[:4], f[:, 1] - f[:, 0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(z @ q.mean[4:], f[:, 2] - f[:, 0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (
            make_pipeline(
                ColumnTransformer([("all", StandardScaler(), list(X))]), LogisticRegression()
            ),
            StructureError,
            "ColumnTransformer",
        ),
        (make_pipeline(MinMaxScaler(clip=True), LogisticRegression()), StructureError, "clip=True"),
        (
            make_pipeline(StandardScaler(), LogisticRegression(fit_intercept=False)),
            StructureError,
            "with_mean=False",
        ),
        (make_pipeline(StandardScaler(), Ridge()), UsageError, "OLS of statsmodels"),
        (Ridge(), UsageError, "point estimates"),
    ],
)
def test_what_is_no_scaling_or_no_such_model_is_refused(model: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        from_estimator(model.fit(X, LABEL), X, LABEL)
    with pytest.raises(UsageError, match="not fitted"):
        from_estimator(LogisticRegression(), X, LABEL)


def test_a_constant_column_is_named() -> None:
    x = X.assign(one=3.0)
    model = LogisticRegression(C=np.inf, solver="lbfgs", **EXACT).fit(x, LABEL)
    with pytest.raises(ParameterError, match="'one'"):
        from_estimator(model, x, LABEL)
