"""Predictions against averages by hand, and what is uncertain of them."""

import dataclasses

import jax
import numpy as np
import pytest
import scipy.special
import scipy.stats

from posterity.errors import ParameterError, StructureError
from posterity.families import Network, stack
from posterity.models.forward import outputs
from posterity.networks import Dense, Layers, Prediction, describe, predict
from posterity.networks.predictive import between_sites, divergence

LAYERS = Layers.dense(3, 4, 3)
OUTPUTS = jax.jit(outputs, static_argnums=0)
BETWEEN = jax.jit(between_sites, static_argnums=0)
RNG = np.random.default_rng(0)
NETWORK = Network.from_standard(RNG.normal(size=LAYERS.size), np.full(LAYERS.size, 0.2), LAYERS)
X = RNG.normal(size=(6, 3))


def test_averages_over_draws_by_hand() -> None:
    key, samples = jax.random.key(3), 7
    noise = np.asarray(jax.random.normal(key, (samples, LAYERS.size), np.float32))
    z = NETWORK.mean + np.sqrt(NETWORK.variance) * noise
    logits = [np.asarray(OUTPUTS(LAYERS, row.astype(np.float32), X)) for row in z]
    chances = scipy.special.softmax(logits, axis=-1)
    found = describe(NETWORK, X, key=key, samples=samples)
    np.testing.assert_allclose(found.mean, chances.mean(0), rtol=1e-4)
    total = scipy.stats.entropy(chances.mean(0), axis=-1)
    within = scipy.stats.entropy(chances, axis=-1).mean(0)
    assert found.entropy is not None and found.mutual_information is not None
    np.testing.assert_allclose(found.entropy, total, rtol=1e-4)
    np.testing.assert_allclose(found.mutual_information, total - within, rtol=1e-3, atol=1e-5)
    labels = np.array([0, 1, 2, 0, 1, 2])
    expected = np.log(chances.mean(0)[np.arange(6), labels])
    np.testing.assert_allclose(found.log_predictive(labels), expected, rtol=1e-4)
    np.testing.assert_allclose(predict(NETWORK, X, key=key, samples=samples), found.mean)


def test_at_the_mean_nothing_is_epistemic() -> None:
    found = describe(NETWORK, X, samples=0)
    expected = scipy.special.softmax(OUTPUTS(LAYERS, NETWORK.mean.astype(np.float32), X), axis=-1)
    np.testing.assert_allclose(found.mean, expected, rtol=1e-4)
    np.testing.assert_allclose(found.mutual_information, 0, atol=1e-5)


def test_other_likelihoods() -> None:
    """Of a linear network the outputs are Gaussian, and so known."""
    layers = Layers((Dense(3, 1, "identity"),))
    network = Network.from_standard(np.array([0.5, 1.0, -1.0, 2.0]), np.full(4, 0.1), layers)
    mean = X @ [1.0, -1.0, 2.0] + 0.5
    spread = 0.1 * (1 + (X**2).sum(1))
    draws = 4000
    found = describe(network, X, samples=draws, likelihood="gaussian")
    assert found.entropy is None and found.variance is not None
    assert (np.abs(found.mean[:, 0] - mean) < 4 * np.sqrt(spread / draws)).all()
    assert (np.abs(found.variance[:, 0] / spread - 1) < 4 * np.sqrt(2 / draws)).all()
    chances = predict(network, X, samples=0, likelihood="bernoulli")
    np.testing.assert_allclose(chances, scipy.special.expit(mean), rtol=1e-4)
    both = describe(network, X, samples=5, likelihood="bernoulli")
    np.testing.assert_allclose(np.exp(both.log_predictive(np.zeros(6))), 1 - both.mean, rtol=1e-5)


def test_log_chances_are_right_where_chances_are_lost() -> None:
    """``-log(1 + exp(a))`` of logits ``a`` at which the other class has all but everything."""
    logit = 60.0
    for outputs_, likelihood in ((1, "bernoulli"), (2, "categorical")):
        layers = Layers.dense(1, outputs_)
        mean = np.concatenate([np.zeros(2 * outputs_ - 1), [logit]])
        network = Network.from_standard(mean, np.full(len(mean), 1e-12), layers)
        found = describe(network, np.ones((1, 1)), likelihood=likelihood)
        np.testing.assert_allclose(found.log_predictive([0]), -logit, rtol=1e-5)
        np.testing.assert_allclose(found.log_predictive([1]), 0, atol=1e-6)


def test_values_far_from_zero_keep_their_variance() -> None:
    layers, draws = Layers.dense(1, 1), 4000
    network = Network.from_standard(np.array([3000.0, 0.0]), np.array([0.01, 1e-9]), layers)
    found = describe(network, np.ones((1, 1)), likelihood="gaussian", samples=draws)
    assert found.variance is not None
    assert abs(found.variance[0, 0] / 0.01 - 1) < 4 * np.sqrt(2 / draws)


def test_a_likelihood_of_another_number_of_outputs_is_refused() -> None:
    with pytest.raises(StructureError, match=r"3 outputs .* one logit"):
        predict(NETWORK, X, likelihood="bernoulli")
    with pytest.raises(StructureError, match=r"1 output .* K logits"):
        predict(Network.prior(Layers.dense(3, 1)), X)


def test_many_inputs_and_draws_are_seen_in_parts() -> None:
    expected = describe(NETWORK, X, samples=9)
    found = describe(NETWORK, X, samples=9, activations=64, rows=4)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5)
    assert predict(NETWORK, X[:0]).shape == (0, 3)


def test_what_cannot_be_predicted() -> None:
    for network, x in [(NETWORK, X[:, :2]), (NETWORK, np.ones(())), (stack([NETWORK] * 2), X)]:
        with pytest.raises(StructureError, match=r"inputs of shape|one Network"):
            predict(network, x)
    with pytest.raises(ParameterError, match="NaN"):
        predict(NETWORK, X * np.nan)
    found = describe(NETWORK, X, samples=0)
    with pytest.raises(StructureError, match="of shape"):
        found.log_predictive([0, 1])
    with pytest.raises(ParameterError, match="from 0 to 2"):
        found.log_predictive(np.full(6, 3))


def test_densities_of_values_need_the_noise() -> None:
    layers = Layers((Dense(3, 2, "identity"),))
    network = Network.from_standard(np.zeros(8), np.full(8, 0.1), layers)
    found = describe(network, X, samples=10, likelihood="gaussian")
    y = RNG.normal(size=(6, 2))
    with pytest.raises(StructureError, match="noise_variance="):
        found.log_predictive(y)
    found = dataclasses.replace(found, noise_variance=np.full((6, 2), 0.5))
    assert found.variance is not None
    law = scipy.stats.norm(found.mean, np.sqrt(found.variance + 0.5))
    np.testing.assert_allclose(found.log_predictive(y), law.logpdf(y).sum(1))
    with pytest.raises(StructureError, match="values of shape"):
        found.log_predictive(y[:, 0])
    with pytest.raises(ParameterError, match="finite"):
        found.log_predictive(y * np.nan)


@pytest.mark.parametrize("degrees", [2.5, 4.0, 1e3, np.inf])
def test_the_law_of_values_has_their_moments(degrees: float) -> None:
    mean, variance, noise = RNG.uniform(1, 2, (3, 5, 2))
    found = Prediction(mean, variance=variance, noise_variance=noise, degrees=degrees)
    law = found.law()
    np.testing.assert_allclose(law.mean(), mean)
    np.testing.assert_allclose(law.var(), variance + noise)
    np.testing.assert_allclose(law.cdf(law.ppf(0.9)), 0.9)
    low, high = law.interval(0.5)
    np.testing.assert_allclose(law.cdf(high) - law.cdf(low), 0.5)
    y = law.rvs(random_state=0)
    assert np.isfinite(y).all()
    np.testing.assert_allclose(found.log_predictive(y), law.logpdf(y).sum(1))
    normal = scipy.stats.norm(mean, np.sqrt(variance + noise))
    if degrees > 100:
        np.testing.assert_allclose(law.ppf(0.9), normal.ppf(0.9), rtol=1e-3)
    np.testing.assert_array_equal(
        dataclasses.replace(found, degrees=np.inf).law().logpdf(y), normal.logpdf(y)
    )


def test_classes_have_no_law_of_values() -> None:
    with pytest.raises(StructureError, match="prediction of classes"):
        describe(NETWORK, X, samples=0).law()


def test_divergences_of_predictives_against_scipy_and_with_all_digits_where_they_agree() -> None:
    p, q = RNG.dirichlet([1.0, 2.0, 3.0], (2, 5))
    p[0] = [0.0, 0.25, 0.75]
    with np.errstate(divide="ignore"):
        classes = [{"log_chances": np.log(one)} for one in (p, q)]
    found = divergence(*classes)
    np.testing.assert_allclose(found, scipy.stats.entropy(p, q, axis=1), rtol=1e-12)
    away = 1e-9 * np.array([0.3, -0.1, -0.2])
    close = divergence({"log_chances": np.log(q)}, {"log_chances": np.log(q + away)})
    np.testing.assert_allclose(close, (away**2 / q).sum(1) / 2, rtol=1e-6)
    first = {"mean": X[:, :2], "variance": np.full((6, 2), 0.3), "noise": np.full((6, 2), 0.2)}
    second = {"mean": X[:, 1:], "variance": np.full((6, 2), 0.7)}
    expected = (0.5 / 0.7 - 1 - np.log(0.5 / 0.7) + (X[:, :2] - X[:, 1:]) ** 2 / 0.7).sum(1) / 2
    np.testing.assert_allclose(divergence(first, second), expected, rtol=1e-12)
    for one, other in [classes, (first, second)]:
        traced = jax.jit(divergence)(one, other)
        np.testing.assert_allclose(traced, divergence(one, other), rtol=1e-5, atol=1e-7)


def test_classes_that_nobody_saw_have_no_chance_and_add_no_entropy() -> None:
    with np.errstate(divide="ignore"):
        logs = np.log([[0.5, 0.5, 0.0]])
    found = Prediction.of_classes(logs)
    assert found.mutual_information is None
    np.testing.assert_allclose(found.entropy, np.log(2))
    np.testing.assert_allclose(found.log_predictive([0]), -np.log(2))


def test_between_sites_by_hand() -> None:
    rng = np.random.default_rng(7)
    fused, sites, shares = (
        rng.normal(size=(5, 3)),
        2 * rng.normal(size=(4, 5, 3)),
        rng.random((4, 3)),
    )
    found = BETWEEN("categorical", fused, sites, shares)
    shares = shares / shares.sum(0)
    p, each = scipy.special.softmax(fused, -1), scipy.special.softmax(sites, -1)
    weights = p @ shares.T  # (n, sites)
    np.testing.assert_allclose(weights.sum(1), 1)
    apart = (weights.T * scipy.stats.entropy(each, p[None], axis=-1)).sum(0)
    near = np.exp(-apart)[:, None]
    mixed = near * p + (1 - near) * np.einsum("nj,jnk->nk", weights, each)
    lack = np.einsum("jk,nk,jnk->n", shares, p, np.log(p) - np.log(each)).clip(0)
    powers = mixed ** (1 / np.sqrt(1 + 4 * lack**2))[:, None]
    expected = powers / powers.sum(1, keepdims=True)
    np.testing.assert_allclose(np.exp(found["log_chances"]), expected, rtol=1e-4)
    of_sites = (weights.T * scipy.stats.entropy(each, axis=-1)).sum(0)
    within = near[:, 0] * scipy.stats.entropy(p, axis=-1) + (1 - near[:, 0]) * of_sites
    np.testing.assert_allclose(found["entropy"], within, rtol=1e-4)
    values = BETWEEN("gaussian", fused, sites, shares)
    np.testing.assert_allclose(values["mean"], fused)
    expected = np.einsum("jk,jnk->nk", shares, (sites - fused) ** 2)
    np.testing.assert_allclose(values["variance"], expected, rtol=1e-4)


def test_sites_that_agree_leave_the_prediction_as_it_is() -> None:
    logits = np.array([[3.0, -80.0, 0.0], [0.0, 0.0, 0.0]])
    for likelihood, fused in (("categorical", logits), ("bernoulli", logits[:, :1])):
        shares = np.full((2, fused.shape[1]), 0.5)
        found = BETWEEN(likelihood, fused, np.stack([fused, fused]), shares)
        said = Prediction.of({k: np.asarray(v, float) for k, v in found.items()}, likelihood)
        expected = scipy.special.softmax(fused, 1) if fused.shape[1] > 1 else None
        if expected is None:
            expected = scipy.special.expit(fused[:, 0])
        np.testing.assert_allclose(said.mean, expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(said.mutual_information, 0, atol=1e-6)
