"""Membership inference: what attacks find, how sure that is, and nothing after forgetting."""

import numpy as np
import pytest
from engine.conjugate import CONJUGATE
from scipy import stats

from experiments.privacy import membership
from experiments.privacy.membership import (
    Membership,
    attack_auc,
    auc_difference,
    difference_test,
    membership_test,
)
from posterity.engine.privacy.noise import GaussianMechanism, record_contributions
from posterity.errors import ParameterError, UsageError
from posterity.families import Gaussian
from posterity.federation import federate
from posterity.federation.forget import forget
from posterity.models import FunctionModel, GaussianMean, LinearRegression


def test_auc_and_delong_by_hand():
    """Wins [[1, 1], [1, .5], [0, 0]]: row means 1, .75, 0, column means 2/3, 1/2."""
    auc = attack_auc([3.0, 2.0, 0.0], [1.0, 2.0])
    assert auc.value == pytest.approx(3.5 / 6)
    rows, columns = np.array([1, 0.75, 0]), np.array([2 / 3, 1 / 2])
    variance = np.sum((rows - 3.5 / 6) ** 2) / 2 / 3 + np.sum((columns - 3.5 / 6) ** 2) / 2
    assert auc.standard_error == pytest.approx(np.sqrt(variance))
    assert attack_auc([2.0, 3.0], [0.0, 1.0]) == (1.0, 0.0)


def test_auc_is_mann_whitney():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 40) / 1.0, rng.integers(0, 7, 30) / 1.0
    statistic, _ = stats.mannwhitneyu(a, b)
    assert attack_auc(a, b).value == pytest.approx(statistic / (40 * 30))


def _normals(rng, shift):
    return rng.normal(shift, size=80), rng.normal(size=40)


def test_difference_of_attacks():
    rng = np.random.default_rng(2)
    a, b = _normals(rng, 1.0)
    noisy = (a + rng.normal(size=80), b + rng.normal(size=40))
    found = auc_difference((a, b), noisy)
    single = [attack_auc(*scores) for scores in ((a, b), noisy)]
    assert found.value == pytest.approx(single[0].value - single[1].value)
    # DeLong's standard error of the same difference, from the placements of both attacks
    wins = [(1 + np.sign(s[:, None] - t)) / 2 for s, t in ((a, b), noisy)]
    gap = wins[0] - wins[1]
    delong = np.sqrt(gap.mean(1).var(ddof=1) / 80 + gap.mean(0).var(ddof=1) / 40)
    assert found.standard_error == pytest.approx(delong)
    # pairing is worth something
    assert found.standard_error < np.hypot(single[0].standard_error, single[1].standard_error)
    # the same attack twice differs by nothing; a monotone change of scores alters no attack
    assert auc_difference((a, b), (np.exp(a), np.exp(b))) == (0.0, 0.0)
    assert auc_difference((a, b), noisy) == found
    backwards = auc_difference(noisy, (a, b))
    assert backwards.value == -found.value


def test_attacks_on_other_patients_are_not_compared():
    with pytest.raises(ParameterError, match="the same records"):
        auc_difference(([1.0, 2.0], [0.0, 1.0]), ([1.0, 2.0, 3.0], [0.0, 1.0]))


def test_bad_scores_are_refused():
    for members in ([1.0], [1.0, np.nan], [[1.0]]):
        with pytest.raises(ParameterError, match="finite score"):
            Membership.of(members, [1.0, 2.0])


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0, 4.0])
@pytest.mark.parametrize("sizes", [(10, 10), (100, 15)])
def test_the_interval_holds_the_truth_as_often_as_it_says(shift, sizes):
    rng, tries = np.random.default_rng(5), 500
    truth = stats.norm.cdf(shift / np.sqrt(2))
    inside = 0
    for _ in range(tries):
        found = Membership.of(rng.normal(shift, size=sizes[0]), rng.normal(size=sizes[1]), 0.9)
        inside += found.low <= truth <= found.high
    assert inside / tries >= 0.9 - 3 * np.sqrt(0.9 * 0.1 / tries)


RNG = np.random.default_rng(6)
SIZE = 30
MODEL = GaussianMean(np.eye(SIZE))
PRIOR = Gaussian.from_standard(np.zeros(SIZE), 100 * np.eye(SIZE))
SITES = {name: RNG.normal(size=(20, SIZE)) for name in ("north", "south", "west")}
OTHERS = RNG.normal(size=(40, SIZE))


def test_a_small_sites_records_are_told_from_others_before_forgetting_and_not_after():
    run = federate(SITES, MODEL, PRIOR, steps=1)
    never = federate({s: SITES[s] for s in ("south", "west")}, MODEL, PRIOR, steps=1).posterior
    attack = lambda q: membership_test(q, SITES["north"], OTHERS, model=MODEL, reference=never)
    before = attack(run.posterior)
    assert before.tells and before.auc > 0.7
    done = forget(run, "north")
    after = attack(done.ledger.posterior)
    assert (after.auc, after.standard_error) == (0.5, 0.0)  # bit for bit the one never trained
    assert after.low < 0.5 < after.high and not after.tells


@pytest.mark.parametrize("number", (0, 4))
def test_conjugate_models_need_no_draws(number):
    """The exact predictive of records, beside the mean over draws that others take."""
    model, prior, data = CONJUGATE[number]
    plain = FunctionModel(lambda z, data: model.log_likelihood(z, data))
    exact = membership._log_predictive(prior, model, data, 1)
    drawn = membership._log_predictive(prior, plain, data, 20_000)
    np.testing.assert_allclose(exact, drawn, atol=0.15)


def test_functions_are_attacked_as_posteriors_are():
    exact = lambda x: stats.multivariate_normal(np.zeros(SIZE), 101 * np.eye(SIZE)).logpdf(x)
    found = membership_test(exact, SITES["north"], OTHERS)
    assert found == membership_test(PRIOR, SITES["north"], OTHERS, model=MODEL)
    assert found.auc != 0.5
    flat = membership_test(exact, SITES["north"], OTHERS, reference=exact)
    assert flat.auc == 0.5


def test_a_posterior_without_its_model_is_refused():
    with pytest.raises(UsageError, match="without a model"):
        membership_test(PRIOR, SITES["north"], OTHERS)
    with pytest.raises(ParameterError, match="finite score"):
        membership_test(lambda x: np.full(len(x), -np.inf), SITES["north"], OTHERS)


def test_two_tokens_tell_exactly_who_is_between_them():
    """Of fewer candidates than natural parameters nobody is left in doubt."""
    prior, candidates = Gaussian.from_standard(np.zeros(8), np.eye(8)), RNG.normal(size=(30, 8))
    rows = record_contributions(LinearRegression(), prior, (candidates, RNG.normal(size=30)))
    token = prior + prior.with_natural_parameters(RNG.normal(size=rows.shape[1]))
    there = token + prior.with_natural_parameters(rows[:12].sum(0))
    found = difference_test(token, there, rows[:12], rows[12:])
    assert found.auc == 1.0 and found.tells
    nothing = difference_test(token, token, rows[:12], rows[12:])
    assert nothing.auc == 0.5


def test_noise_takes_the_certainty_away_and_little_noise_little_of_it():
    prior, x = Gaussian.from_standard(np.zeros(8), np.eye(8)), RNG.normal(size=(30, 8))
    rows = record_contributions(LinearRegression(), prior, (x, RNG.normal(size=30)))
    found = []
    for noise in (0.0, 0.05, 5.0):
        made = GaussianMechanism(prior, 1.0, noise, "add or remove")
        released = (
            prior + made.release(rows[:15], rng=np.random.default_rng(n)) for n in range(20)
        )
        attack = lambda q: difference_test(prior, q, rows[:15], rows[15:], mechanism=made)  # noqa: B023
        found.append(np.mean([attack(q).auc for q in released]))
    assert found[0] == 1.0 and found[1] > 0.9
    assert 0.5 - 4 * 0.11 / np.sqrt(20) < found[2] < 0.65  # .11: the error of one AUC of noise
