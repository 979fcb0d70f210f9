"""The heart experiment's parts: design matrices, metrics, membership inference."""

import numpy as np
import pytest

from experiments import data
from experiments.heart import preparation, trials
from experiments.heart.preparation import COLUMNS, SITES
from experiments.privacy.membership import attack_auc
from posterity.errors import ParameterError

NAN = np.nan


@pytest.fixture(scope="module")
def heart() -> data.HeartDisease:
    return data.heart_disease()


# --- preparation ---------------------------------------------------------------------------


def test_design_of_two_patients_by_hand() -> None:
    # age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal
    X = np.array(
        [
            [65, 1, 2, 150, 290, 1, 2, 115, 1, 2.5, 3, 0, 6],
            [45, 0, 4, NAN, NAN, NAN, NAN, 140, 0, NAN, NAN, NAN, NAN],
        ]
    )
    x = preparation.design(X, data.FEATURES)
    first, second = (dict(zip(COLUMNS, row, strict=True)) for row in x)
    ones = ("intercept", "age", "sex", "cp_2", "trestbps", "chol", "fbs", "restecg_2", "exang")
    assert first == dict.fromkeys(COLUMNS, 0.0) | dict.fromkeys(ones, 1.0) | {
        "thalach": -1.0,
        "oldpeak": 1.5,
    }
    assert second == dict.fromkeys(COLUMNS, 0.0) | {"age": -1.0} | dict.fromkeys(
        ("intercept", *preparation.MISSING), 1.0
    )


def test_design_refuses_what_it_has_no_column_for() -> None:
    X = np.zeros((2, 13))
    X[1, 0] = NAN
    with pytest.raises(ParameterError, match="without age"):
        preparation.design(X, data.FEATURES)


def test_sites_hold_every_patient_once(heart: data.HeartDisease) -> None:
    sites = preparation.prepare(heart, seed=1)
    assert tuple(sites) == SITES
    for c, split in enumerate(sites.values()):
        mine = heart.center == c
        whole = preparation.design(heart.X[mine], heart.feature_names)
        got = np.concatenate([split.x_train, split.x_test])
        assert np.array_equal(np.sort(got, axis=0), np.sort(whole, axis=0))
        assert all(part.dtype == np.float64 and np.isfinite(part).all() for part in split)
        for label in (0, 1):
            n = np.sum(heart.y[mine] == label)
            assert np.sum(split.y_train == label) == round(0.66 * n)
            assert np.sum(split.y_test == label) == n - round(0.66 * n)


def test_labels_stay_with_their_patients(heart: data.HeartDisease) -> None:
    """With y in place of the age, the age's column must be the label."""
    X = heart.X.copy()
    X[:, 0] = heart.y
    marked = data.HeartDisease(X, *(getattr(heart, f) for f in list(vars(heart))[1:]))
    centre, unit = preparation.SCALES["age"]
    for split in preparation.prepare(marked, seed=2).values():
        for x, y in ((split.x_train, split.y_train), (split.x_test, split.y_test)):
            np.testing.assert_allclose(x[:, COLUMNS.index("age")] * unit + centre, y, atol=1e-12)


def test_a_site_needs_no_other_site(heart: data.HeartDisease) -> None:
    """A hospital's arrays are the same, to the last bit, whatever the others hold."""
    X, y = heart.X.copy(), heart.y.copy()
    others = heart.center != 1
    X[others, 3:6], y[others] = 1e6, 1
    changed = data.HeartDisease(X, y, *(getattr(heart, f) for f in list(vars(heart))[2:]))
    before, after = (preparation.prepare(d, seed=3) for d in (heart, changed))
    assert all(map(np.array_equal, before["hungary"], after["hungary"]))
    assert not np.array_equal(before["cleveland"].x_train, after["cleveland"].x_train)


def test_splits_depend_on_the_seed_alone(heart: data.HeartDisease) -> None:
    first, again, other = (preparation.prepare(heart, seed=s) for s in (0, 0, 1))
    for site in SITES:
        assert all(map(np.array_equal, first[site], again[site]))
        assert not np.array_equal(first[site].x_train, other[site].x_train)


# --- metrics -------------------------------------------------------------------------------


def test_accuracy_and_log_likelihood_by_hand() -> None:
    p, y = [0.8, 0.25, 0.5, 0.4], [1, 0, 1, 1]
    assert trials.accuracy(p, y) == 0.75
    by_hand = np.log([0.8, 0.75, 0.5, 0.4])
    np.testing.assert_allclose(trials.log_likelihoods(p, y), by_hand, rtol=1e-15)
    np.testing.assert_allclose(trials.mean_log_likelihood(p, y), by_hand.mean(), rtol=1e-15)
    assert trials.mean_log_likelihood([1.0, 0.0], [1, 0]) == 0.0
    assert trials.mean_log_likelihood([1.0, 0.0], [1, 1]) == -np.inf


def test_calibration_error_by_hand() -> None:
    # two bins of two: |0.15 - 0| and |0.75 - 0.5|, each half of the patients
    p, y = np.array([0.1, 0.2, 0.7, 0.8]), np.array([0, 0, 1, 0])
    expected = 0.5 * 0.15 + 0.5 * 0.25
    assert trials.expected_calibration_error(p, y, bins=2) == pytest.approx(expected)
    assert trials.expected_calibration_error(p[::-1], y[::-1], bins=2) == pytest.approx(expected)
    # one bin: only the overall rate; gaps of both signs cancel
    assert trials.expected_calibration_error(p, y, bins=1) == pytest.approx(0.45 - 0.25)
    # equal probabilities share a bin: 3 of 4 at 0.75 is perfect, whatever the order
    for y in ([0, 1, 1, 1], [1, 1, 1, 0]):
        assert trials.expected_calibration_error([0.75] * 4, y) == pytest.approx(0, abs=1e-15)


def test_calibration_error_of_few_patients_is_what_the_docstring_says() -> None:
    rng, n, errors = np.random.default_rng(0), 313, []
    for _ in range(200):
        p = rng.uniform(0.79, 0.81, n)
        errors.append(trials.expected_calibration_error(p, rng.random(n) < p))
    assert np.mean(errors) == pytest.approx(0.8 * np.sqrt(0.16 * trials.BINS / n), rel=0.05)


def test_scores_by_hand() -> None:
    p, reference, y = [0.8, 0.3], [0.4, 0.6], [1, 0]
    np.testing.assert_allclose(trials.log_likelihoods(p, y), np.log([0.8, 0.7]))
    np.testing.assert_allclose(trials.ratio_scores(p, reference, y), np.log([0.8 / 0.4, 0.7 / 0.4]))


def test_attack_finds_members_of_an_overfitted_model() -> None:
    """One nearest neighbour remembers: its members are told apart; a stranger's are not."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(300, 3)), rng.integers(0, 2, 300)
    nearest = np.argmin(((x[:, None] - x[None, :200]) ** 2).sum(-1), axis=1)
    probabilities = np.where(y[nearest] == 1, 0.9, 0.1)
    scores = trials.log_likelihoods(probabilities, y)
    found = attack_auc(scores[:200], scores[200:])
    assert found.value - 4 * found.standard_error > 0.5
    flat = trials.ratio_scores(probabilities, probabilities, y)
    assert attack_auc(flat[:200], flat[200:]) == (0.5, 0.0)


def test_certain_and_wrong_models_have_no_finite_score() -> None:
    scores = trials.ratio_scores([1.0, 0.5], [1.0, 0.5], [0, 1])
    with pytest.raises(ParameterError, match="NaN or infinity"):
        attack_auc(scores, scores)
