"""Round trips through ledgers and files, fusion of fitted estimators, and what is refused."""

import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import posterity
from posterity import Beta, Dirichlet, Ledger, NormalGamma, NormalWishart, Plate
from posterity.adapters.sklearn import from_estimator, to_estimator, to_ledger
from posterity.errors import MissingExtraError, ParameterError, StructureError, UsageError

CLOSE = dict(rtol=1e-10, atol=1e-10)
IRIS = load_iris().data
COUNTS = load_digits().data[:80]  # a document an image, a word a pixel
MIXTURE_ATTRIBUTES = [
    "weights_",
    "means_",
    "covariances_",
    "precisions_",
    "precisions_cholesky_",
    "mean_precision_",
    "degrees_of_freedom_",
    "weight_concentration_",
    "weight_concentration_prior_",
    "mean_prior_",
    "mean_precision_prior_",
    "degrees_of_freedom_prior_",
    "covariance_prior_",
    "n_features_in_",
]
TOPIC_ATTRIBUTES = [
    "components_",
    "exp_dirichlet_component_",
    "doc_topic_prior_",
    "topic_word_prior_",
    "n_features_in_",
]


def mixture(kind="full", weights="dirichlet_distribution", x=IRIS, **parameters):
    model = BayesianGaussianMixture(
        n_components=parameters.pop("n_components", 5),
        covariance_type=kind,
        weight_concentration_prior_type=weights,
        random_state=0,
        **parameters,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x)


def topics(x=COUNTS, **parameters):
    return LatentDirichletAllocation(4, random_state=0, max_iter=3, **parameters).fit(x)


def check_attributes(model, again, names):
    for name in names:
        np.testing.assert_allclose(getattr(again, name), getattr(model, name), **CLOSE)


# --- round trips ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "diag"])
@pytest.mark.parametrize("weights", ["dirichlet_distribution", "dirichlet_process"])
def test_mixture_comes_back(kind, weights, tmp_path):
    model = mixture(kind, weights)
    posterity.save(to_ledger(model, "north"), tmp_path / "north.safetensors")
    again = to_estimator(posterity.load(tmp_path / "north.safetensors"), random_state=0)

    check_attributes(model, again, MIXTURE_ATTRIBUTES)
    for ask in ("predict_proba", "score_samples", "score"):
        np.testing.assert_allclose(getattr(again, ask)(IRIS), getattr(model, ask)(IRIS), **CLOSE)
    np.testing.assert_array_equal(again.predict(IRIS), model.predict(IRIS))
    points, labels = again.sample(20)
    assert points.shape == (20, 4)
    np.testing.assert_array_equal(labels, model.sample(20)[1])
    alone = to_estimator(to_ledger(model, "north").posterior)  # without its ledger
    np.testing.assert_allclose(alone.score_samples(IRIS), model.score_samples(IRIS), **CLOSE)
    assert alone.get_params()["mean_prior"] is None
    alone.set_params(random_state=0, max_iter=1000)
    np.testing.assert_allclose(alone.fit(IRIS).mean_prior_, IRIS.mean(0))
    plate = to_ledger(model, "a").posterior
    assert isinstance(plate.weights, Beta if weights == "dirichlet_process" else Dirichlet)
    if kind == "full":
        assert isinstance(plate.members, NormalWishart)
        expected = plate.members.wishart.mean
    else:
        assert isinstance(plate.members, NormalGamma)
        expected = plate.members.degrees_of_freedom / plate.members.inverse_scale
    np.testing.assert_allclose(expected, model.precisions_, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", ["batch", "online"])
def test_topics_come_back(dtype, method):
    model = topics(COUNTS.astype(dtype), learning_method=method, topic_word_prior=0.3)
    ledger = to_ledger(model, "north")
    assert isinstance(ledger.posterior, Plate) and ledger.posterior.weights is None
    again = to_estimator(ledger, random_state=0)

    assert again.components_.dtype == np.float64
    # What a float32 estimator derives from its topics has float32's digits.
    close = CLOSE if dtype is np.float64 else dict(rtol=1e-5, atol=1e-5)
    check_attributes(model, again, ["components_", "topic_word_prior_", "doc_topic_prior_"])
    np.testing.assert_allclose(
        again.exp_dirichlet_component_, model.exp_dirichlet_component_, **close
    )
    if dtype is np.float64 and method == "batch":
        alone = to_estimator(ledger.posterior, doc_topic_prior=0.25)  # without its ledger
        np.testing.assert_allclose(alone.transform(COUNTS), model.transform(COUNTS), **CLOSE)
        assert alone.topic_word_prior_ == 1 / 4
        total = ledger.factor("north").members.concentration_minus_one.sum()
        assert total == pytest.approx(COUNTS.sum(), rel=1e-6)
        assert np.isfinite(again.partial_fit(COUNTS).score(COUNTS))  # learning goes on
        again = to_estimator(ledger, random_state=0)
    if dtype is np.float64:
        check_attributes(model, again, TOPIC_ATTRIBUTES)
        for ask in ("transform", "score", "perplexity"):
            np.testing.assert_allclose(
                getattr(again, ask)(COUNTS), getattr(model, ask)(COUNTS), **CLOSE
            )


def test_parameters_tell_the_prior_and_can_fit_again():
    model = mixture("full", mean_precision_prior=0.5, weight_concentration_prior=0.1)
    again = to_estimator(to_ledger(model, "north"), random_state=0, tol=1e-3)
    parameters = again.get_params()
    assert parameters["n_components"] == 5 and parameters["mean_precision_prior"] == 0.5
    assert parameters["weight_concentration_prior"] == pytest.approx(0.1, abs=1e-12)
    np.testing.assert_allclose(parameters["covariance_prior"], model.covariance_prior_, **CLOSE)
    np.testing.assert_allclose(again.fit(IRIS).means_, model.means_, rtol=1e-6)
    model = mixture("full", max_iter=200)
    again = to_estimator(to_ledger(model, "north"), warm_start=True).fit(IRIS)
    assert again.n_iter_ < model.n_iter_
    assert again.score(IRIS) == pytest.approx(model.score(IRIS), abs=0.05)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_single_precision_is_widened_once(kind):
    model = mixture(kind, x=IRIS.astype(np.float32))
    again = to_estimator(to_ledger(model, "north"))
    for name in ("means_", "covariances_", "mean_precision_", "weight_concentration_"):
        assert getattr(again, name).dtype == np.float64
        np.testing.assert_allclose(getattr(again, name), getattr(model, name), **CLOSE)
    np.testing.assert_allclose(again.score(IRIS), model.score(IRIS), rtol=1e-4)


# --- what the contributions are ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_contributions_are_sufficient_statistics(kind):
    # One component sees everything; reg_covar would add n times itself to the scatter.
    x = IRIS[:50]
    factor = to_ledger(mixture(kind, x=x, n_components=1, reg_covar=0.0), "a").factor("a")
    squares = x.T @ x if kind == "full" else (x**2).sum(0)
    np.testing.assert_allclose(factor.members.mean_precision[0], 50.0, **CLOSE)
    np.testing.assert_allclose(factor.members.degrees[0], 50.0, **CLOSE)
    np.testing.assert_allclose(factor.members.precision_mean[0], x.sum(0), **CLOSE)
    np.testing.assert_allclose(factor.members.scatter[0], squares, **CLOSE)
    np.testing.assert_allclose(factor.weights.concentration_minus_one, [50.0], **CLOSE)


# --- fusion --------------------------------------------------------------------------------------


def clusters(seed, centres, count=60):
    key = np.random.default_rng(seed)
    return np.concatenate([key.normal(c, 0.3, size=(count, 2)) for c in centres])


SHARED = dict(mean_prior=np.zeros(2), mean_precision_prior=0.01, degrees_of_freedom_prior=4.0)
CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0]])


@pytest.mark.parametrize("kind", ["full", "diag"])
@pytest.mark.parametrize("weights", ["dirichlet_distribution", "dirichlet_process"])
def test_fused_mixtures_predict(kind, weights):
    shared = SHARED | {"covariance_prior": np.eye(2) if kind == "full" else np.ones(2)}
    seen = {"east": [0, 1, 2], "north": [1, 2, 3], "south": [0, 3]}
    models = {
        site: mixture(kind, weights, clusters(i, CENTRES[held]), n_components=4, **shared)
        for i, (site, held) in enumerate(seen.items())
    }
    fusion = posterity.fuse([to_ledger(m, s) for s, m in models.items()], rule="product")
    assert fusion.components == 4

    fused = to_estimator(fusion.ledger, random_state=0)
    x = clusters(9, CENTRES)
    labels = fused.predict(x).reshape(4, -1)
    assert (labels == labels[:, :1]).all() and len(set(labels[:, 0])) == 4
    assert fused.predict_proba(x).sum(1) == pytest.approx(np.ones(len(x)))
    assert fused.score(x) > max(model.score(x) for model in models.values())
    assert fused.sample(5)[0].shape == (5, 2)
    np.testing.assert_allclose(fused.mean_prior_, np.zeros(2))

    forgot = to_estimator(fusion.ledger.forget("south"))
    assert forgot.mean_precision_.sum() < fused.mean_precision_.sum()


def test_product_of_single_components_is_the_pooled_fit():
    # With one component all responsibilities are one: the correspondence is known, and exact.
    x = clusters(0, CENTRES[:1], 90)
    fit = dict(n_components=1, reg_covar=0.0, covariance_prior=np.eye(2), **SHARED)
    sites = [to_ledger(mixture(x=part, **fit), f"s{i}") for i, part in enumerate(np.split(x, 3))]
    fused = to_estimator(posterity.fuse(sites, rule="product").ledger)
    pooled = mixture(x=x, **fit)
    check_attributes(pooled, fused, [n for n in MIXTURE_ATTRIBUTES if "weight_" not in n])


def corpora(seed, held, documents=80, words=30):
    """Documents of some of three topics; each topic has ten words of its own."""
    key = np.random.default_rng(seed)
    rows = np.eye(3).repeat(words // 3, 1) * 0.95 * 3 / words + 0.05 / words
    shares = key.dirichlet(np.full(len(held), 0.2), size=documents)
    return key.poisson(60 * shares @ rows[held]), shares


def test_fused_topics_transform():
    fit = dict(n_components=2, topic_word_prior=0.1, doc_topic_prior=0.2, random_state=0)
    sites = []
    for index, held in enumerate([[0, 1], [1, 2], [0, 2]]):
        model = LatentDirichletAllocation(**fit).fit(corpora(index, held)[0])
        sites.append(to_ledger(model, f"site-{index}"))
    fusion = posterity.fuse(sites, rule="product")
    assert fusion.components == 3

    fused = to_estimator(fusion.ledger, doc_topic_prior=0.2)
    counts, shares = corpora(7, [0, 1, 2])
    found = fused.transform(counts)
    order = [int(np.argmax(fused.components_[:, 10 * t : 10 * t + 10].sum(1))) for t in range(3)]
    assert sorted(order) == [0, 1, 2]
    assert np.abs(found[:, order] - shares).mean() < 0.05
    one = to_estimator(sites[0], doc_topic_prior=0.2)
    assert fused.perplexity(counts) < one.perplexity(counts)


# --- refusals ------------------------------------------------------------------------------------


def gamma_plate(kappa=1.0, nu=5.0):
    wide = np.ones((3, 2))
    members = NormalGamma.from_standard(0 * wide, kappa * wide, wide, nu * wide)
    return Plate(members, Dirichlet.from_standard(np.ones(3)))


def ledger_of(members, weights=None):
    plate = gamma_plate()
    prior = Plate(members, plate.weights if weights is None else weights)
    return Ledger(prior).update("a", plate - prior)


def broken():
    model = mixture()
    model.means_[0, 0] = np.nan
    return model


UNEQUAL = np.array([0.1, 0.2, 0.2])


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: mixture("tied"), StructureError, "tied.*one of .*full"),
        (lambda: mixture("spherical"), StructureError, "spherical.*one of .*full"),
        (BayesianGaussianMixture, UsageError, "Mixture that is not fitted.*a fitted model"),
        (LatentDirichletAllocation, UsageError, "Allocation that is not fitted.*a fitted model"),
        (lambda: GaussianMixture().fit(IRIS), UsageError, "GaussianMixture; expected a fitted"),
        (broken, ParameterError, "nan.*north"),
    ],
)
def test_estimators_that_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        to_ledger(make(), "north")


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: gamma_plate(kappa=UNEQUAL[:2]), StructureError, "mean_precision differs"),
        (lambda: gamma_plate(nu=np.array([3.0, 4.0])), StructureError, "of_freedom differs"),
        (lambda: gamma_plate(nu=1.0), StructureError, "1 degrees of freedom in 2 dimensions"),
        (
            lambda: ledger_of(gamma_plate(kappa=UNEQUAL[:, None]).members),
            StructureError,
            "a prior whose components differ",
        ),
        (
            lambda: ledger_of(gamma_plate(kappa=0.1).members, Dirichlet.from_standard(UNEQUAL)),
            StructureError,
            "prefers some components",
        ),
        (
            lambda: Ledger(Plate(Dirichlet.from_standard([UNEQUAL, UNEQUAL]))),
            StructureError,
            "prefers some of them",
        ),
        (lambda: Plate(gamma_plate().members), StructureError, "without mixing weights"),
        (
            lambda: Plate(Dirichlet.from_standard(np.ones((3, 4))), gamma_plate().weights),
            StructureError,
            "Dirichlet with Dirichlet weights",
        ),
        (lambda: Dirichlet.from_standard(UNEQUAL), StructureError, "expected a Plate of Normal"),
        (
            lambda: Plate(Beta.from_standard(*np.ones((2, 3)))),
            StructureError,
            "expected a Plate of NormalWishart",
        ),
        (
            lambda: Plate(Dirichlet.from_standard(np.ones((2, 3, 4)))),
            StructureError,
            r"batch=\(2,\)",
        ),
        (lambda: gamma_plate() - gamma_plate(), ParameterError, "posterior for scikit-learn"),
    ],
)
def test_posteriors_that_no_estimator_holds(make, error, words):
    with pytest.raises(error, match=words):
        to_estimator(make())


def test_parameters_that_the_posterior_determines_and_no_library(monkeypatch):
    assert to_estimator(gamma_plate(nu=1.5)).covariance_type == "diag"
    with pytest.raises(UsageError, match=r"n_components.*does not determine"):
        to_estimator(gamma_plate(), n_components=3)
    monkeypatch.setitem(sys.modules, "sklearn.mixture", None)
    for ask in (lambda: to_ledger(object(), "north"), lambda: to_estimator(gamma_plate())):
        with pytest.raises(MissingExtraError, match=r"posterity\[sklearn\]"):
            ask()


# --- names ---------------------------------------------------------------------------------------

COLUMNS = ["sepal length", "sepal width", "petal length", "petal width"]


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_columns_of_a_mixture_name_its_coordinates(kind, tmp_path):
    frame = pd.DataFrame(IRIS, columns=COLUMNS)
    model = mixture(kind, x=frame)
    posterity.save(to_ledger(model, "north"), tmp_path / "north.safetensors")
    ledger = posterity.load(tmp_path / "north.safetensors")
    assert ledger.posterior.members.names == tuple(COLUMNS)
    again = to_estimator(ledger)
    assert list(again.feature_names_in_) == COLUMNS
    np.testing.assert_allclose(again.score_samples(frame), model.score_samples(frame), **CLOSE)
    with pytest.raises(ValueError, match="same order"):  # of scikit-learn: it compares them
        again.predict(frame[COLUMNS[::-1]])


def test_words_of_topics_are_their_names():
    texts = ["goal ball goal", "vote law", "ball goal ball", "law vote vote"]
    counts = CountVectorizer().fit(texts)
    words = counts.get_feature_names_out()
    model = LatentDirichletAllocation(2, random_state=0).fit(counts.transform(texts))
    ledger = to_ledger(model, "north", names=words)
    assert ledger.posterior.members.names == ("ball", "goal", "law", "vote")
    assert to_estimator(ledger).feature_names_in_.tolist() == words.tolist()
    with pytest.raises(StructureError, match="3 names"):
        to_ledger(model, "north", names=words[:3])
    assert from_estimator(model, names=words) == ledger.posterior
