"""Documents under topics, against scikit-learn; what is foretold; refinement through federate."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_digits
from sklearn.decomposition import LatentDirichletAllocation

import posterity
from posterity import Dirichlet, Ledger, Plate
from posterity.adapters.sklearn import to_ledger
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.models import Documents, TopicModel, documents

COUNTS = load_digits().data[:60]  # a document an image, a word a pixel
DATA = documents(COUNTS)
MODEL = TopicModel(64, concentration=0.3, iterations=1000, tolerance=1e-8)


@pytest.fixture(scope="module")
def fitted() -> tuple[LatentDirichletAllocation, Ledger]:
    """Topics, and the estimator that has them, both inferring to the last digit."""
    estimator = LatentDirichletAllocation(
        5,
        random_state=0,
        max_iter=4,
        doc_topic_prior=0.3,
        topic_word_prior=0.1,
        mean_change_tol=1e-8,
        max_doc_update_iter=1000,
    ).fit(COUNTS)
    return estimator, to_ledger(estimator, "north")


# --- against scikit-learn --------------------------------------------------------------------


def test_mixtures_are_those_of_scikit_learn(fitted) -> None:
    estimator, ledger = fitted
    found = MODEL.mixtures(ledger.posterior, DATA)
    np.testing.assert_allclose(found.mean, estimator.transform(COUNTS), atol=1e-5)


def test_bounds_and_perplexity_are_those_of_scikit_learn(fitted) -> None:
    estimator, ledger = fitted
    q = ledger.posterior
    bound = MODEL.expected_log_likelihood(q, DATA).sum()
    assert bound - q.kl(ledger.prior) == pytest.approx(estimator.score(COUNTS), rel=1e-7)
    perplexity = np.exp(-(bound - q.kl(ledger.prior)) / COUNTS.sum())
    assert perplexity == pytest.approx(estimator.perplexity(COUNTS), rel=1e-7)
    assert MODEL.perplexity(q, DATA) == pytest.approx(np.exp(-bound / COUNTS.sum()))


def test_prior_and_expected_counts_are_a_step_of_coordinate_ascent(fitted) -> None:
    _, ledger = fitted
    q = ledger.posterior
    for _ in range(3):
        again = ledger.prior + MODEL.expected_counts(q, DATA)
        gain = elbo(again, ledger.prior) - elbo(q, ledger.prior)
        assert gain > 0
        q = again
    counts = MODEL.expected_counts(q, DATA).members.concentration_minus_one
    np.testing.assert_allclose(counts.sum(0), COUNTS.sum(0), rtol=1e-12, atol=1e-12)


def elbo(q: Plate, prior: Plate) -> float:
    return float(MODEL.expected_log_likelihood(q, DATA).sum() - q.kl(prior))


# --- by JAX ----------------------------------------------------------------------------------


def test_the_natural_gradient_is_the_expected_counts(fitted) -> None:
    q, some = fitted[1].posterior, Documents(DATA.words[:6], DATA.counts[:6])
    with jax.enable_x64(True):

        def total(eta):
            own = q.with_natural_parameters(eta)
            return MODEL.expected_log_likelihood(own, jax.tree.map(jax.numpy.asarray, some)).sum()

        value, slope = jax.jit(jax.value_and_grad(total))(jax.numpy.asarray(q.natural_parameters))
        slope, value = np.asarray(slope), float(value)
    assert value == pytest.approx(MODEL.expected_log_likelihood(q, some).sum(), rel=1e-7)
    found = MODEL.expected_counts(q, some).natural_parameters
    np.testing.assert_allclose(q.inverse_fisher_product(slope), found, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_fused_posterior_goes_back_to_the_sites() -> None:
    """Each site improves its own factor; topics keep their places, and the bound rises."""
    model = TopicModel(64, concentration=0.3, iterations=100, tolerance=1e-6)
    halves = {"a": COUNTS[::2], "b": COUNTS[1::2]}
    ledgers = [
        to_ledger(
            LatentDirichletAllocation(
                4, random_state=seed, max_iter=5, doc_topic_prior=0.3, topic_word_prior=0.1
            ).fit(x),
            name,
        )
        for seed, (name, x) in enumerate(halves.items())
    ]
    fused = posterity.fuse(ledgers, rule="product")
    data = {name: documents(x) for name, x in halves.items()}
    with pytest.warns(UserWarning, match="not converged"):
        run = posterity.federate(data, model, fused.ledger, steps=2)
    before, after = fused.posterior, run.posterior
    assert isinstance(before, Plate) and isinstance(after, Plate) and before.size == after.size
    assert elbo_of(model, after, fused.ledger.prior) > elbo_of(model, before, fused.ledger.prior)
    total = after.members.concentration.sum() - fused.ledger.prior.members.concentration.sum()
    assert total == pytest.approx(COUNTS.sum(), rel=1e-6)  # nothing is counted twice
    near = np.corrcoef(before.members.mean, after.members.mean)[: before.size, before.size :]
    assert (near.argmax(1) == np.arange(before.size)).all()


def elbo_of(model: TopicModel, q: Plate, prior: Plate) -> float:
    return float(model.expected_log_likelihood(q, DATA).sum() - q.kl(prior))


# --- what is foretold ------------------------------------------------------------------------


def test_completion_by_hand() -> None:
    topics = Plate(Dirichlet.from_standard([[6.0, 2.0, 2.0], [1.0, 1.0, 8.0]]))
    model = TopicModel(3, concentration=0.5)
    seen, unseen = documents([[4, 0, 1], [0, 0, 0]]), documents([[1, 2, 0], [0, 0, 3]])
    theta = model.mixtures(topics, seen).mean
    np.testing.assert_allclose(theta[1], 0.5)  # a document without words has the prior's
    for kind, chances in {
        "mean": topics.members.mean,
        "geometric": np.exp(topics.members.mean_parameters),
    }.items():
        found = model.log_predictive(topics, seen, unseen, topics=kind)
        expected = (np.array([[1, 2, 0], [0, 0, 3]]) * np.log(theta @ chances)).sum(1)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_dense_sparse_and_repeated_tables_are_the_same() -> None:
    sparse = csr_array(COUNTS)
    for table in (sparse, sparse.tocsc(), COUNTS.astype(np.float32), COUNTS.astype(int)):
        found = documents(table)
        np.testing.assert_array_equal(found.words, DATA.words)
        np.testing.assert_array_equal(found.counts, DATA.counts)
    twice = csr_array((np.ones(3), np.array([1, 1, 2]), np.array([0, 3])), (1, 4))
    assert documents(twice).counts.tolist() == [[2.0, 1.0]]
    assert twice.nnz == 3  # the caller's table stays what it was
    assert documents(np.zeros((2, 4))).totals.tolist() == [0.0, 0.0]
    assert documents(np.zeros((0, 4))).words.shape == (0, 1)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_extreme_concentrations_and_counts(scale: float) -> None:
    rng = np.random.default_rng(0)
    topics = Plate(Dirichlet.from_standard(rng.gamma(0.05, 1.0, (4, 30)) * scale + 1e-4))
    model = TopicModel(30, concentration=1e-3)
    data = documents(np.vstack([rng.poisson(0.3, (5, 30)) * 11151, np.eye(1, 30)]))
    theta = model.mixtures(topics, data).mean
    assert np.isfinite(theta).all()
    assert np.isfinite(model.expected_log_likelihood(topics, data)).all()
    assert np.isfinite(model.expected_counts(topics, data).natural_parameters).all()


def test_one_topic_says_what_words_say() -> None:
    topics = Plate(Dirichlet.from_standard([[3.0, 1.0]]))
    model = TopicModel(2)
    bound = model.expected_log_likelihood(topics, documents([[2, 1]]))
    np.testing.assert_allclose(bound, [2, 1] @ topics.members.mean_parameters[0])


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf])
def test_counts_that_are_none(bad: float) -> None:
    with pytest.raises(ParameterError, match="counts"):
        documents([[1.0, bad]])


def test_documents_that_do_not_fit() -> None:
    topics = Plate(Dirichlet.from_standard([[3.0, 1.0]]))
    with pytest.raises(ParameterError, match="word number 2"):
        TopicModel(2).mixtures(topics, documents([[1, 0, 1]]))
    with pytest.raises(StructureError, match="over 3 words"):
        TopicModel(3).mixtures(topics, documents([[1, 0, 1]]))
    with pytest.raises(StructureError, match="table of counts"):
        documents(["a text"])
    with pytest.raises(StructureError, match="different lengths"):
        documents([[1, 2], [0]])
    for seen in ([[1, 0]], [[1, 0]] * 3):
        with pytest.raises(StructureError, match="same documents"):
            TopicModel(2).log_predictive(topics, documents(seen), documents([[0, 1]] * 2))
    for wrong in ({"iterations": 0}, {"vocabulary": 0}, {"tolerance": 0.0}):
        with pytest.raises(UsageError):
            dataclasses.replace(MODEL, **wrong)
    with pytest.raises(StructureError, match="one shape"):
        TopicModel(2).check((DATA.words, DATA.counts[:, :3]))
    with pytest.raises(ParameterError):
        dataclasses.replace(MODEL, concentration=0.0)
