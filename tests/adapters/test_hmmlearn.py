"""hmmlearn's variational HMMs: round trips that predict the same, fusion, and what is refused."""

import sys

import numpy as np
import pytest
from hmmlearn.hmm import GaussianHMM
from hmmlearn.vhmm import VariationalCategoricalHMM, VariationalGaussianHMM

from posterity import Beta, Ledger, fuse
from posterity.adapters.hmmlearn import to_ledger, to_model
from posterity.errors import MissingExtraError, ParameterError, StructureError, UsageError
from posterity.families import NormalGamma, NormalWishart
from tests.hidden_chains import MEANS, draw

pytestmark = pytest.mark.filterwarnings("ignore::posterity.errors.IdentificationWarning")

LENGTHS = (90, 60)
X = draw(MEANS[:3], LENGTHS, seed=0)[0]
FLAT = np.concatenate(X)
SYMBOLS = np.random.default_rng(0).integers(3, size=(80, 1))


def gaussian(kind: str = "full", x: np.ndarray = FLAT, **options: object) -> VariationalGaussianHMM:
    model = VariationalGaussianHMM(
        n_components=4, covariance_type=kind, random_state=0, n_iter=15, tol=1.0, **options
    )
    lengths = LENGTHS if x is FLAT else None
    return model.fit(x, lengths)


def categorical() -> VariationalCategoricalHMM:
    return VariationalCategoricalHMM(n_components=2, random_state=0, n_iter=8, tol=1.0).fit(SYMBOLS)


KINDS = ["full", "diag", "spherical"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_predicts_and_scores_the_same(kind: str) -> None:
    model = gaussian(kind)
    ledger = to_ledger(model, "north")
    back = to_model(ledger)
    assert back.covariance_type == ("full" if kind == "full" else "diag")
    np.testing.assert_array_equal(back.predict(FLAT, LENGTHS), model.predict(FLAT, LENGTHS))
    np.testing.assert_allclose(
        back.predict_proba(FLAT, LENGTHS), model.predict_proba(FLAT, LENGTHS), atol=1e-8
    )
    assert back.score(FLAT, LENGTHS) == pytest.approx(model.score(FLAT, LENGTHS), rel=1e-10)
    q = ledger.posterior
    assert isinstance(q.emissions.members, NormalWishart if kind == "full" else NormalGamma)
    again = to_ledger(back, "north")
    for mine, theirs in ((again.posterior, ledger.posterior), (again.prior, ledger.prior)):
        close = dict(rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(mine.natural_parameters, theirs.natural_parameters, **close)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_what_was_learnt_are_counts(kind: str) -> None:
    ledger = to_ledger(gaussian(kind), "north")
    learnt = ledger.posterior - ledger.prior
    members = learnt.emissions.members
    counts = np.asarray(members.mean_precision if kind == "full" else members.mean_precision[:, 0])
    np.testing.assert_allclose(np.asarray(members.degrees).reshape(4, -1)[:, 0], counts, rtol=1e-9)
    occupied = ledger.posterior.occupancy(ledger.prior)
    np.testing.assert_allclose(occupied, counts, rtol=1e-6, atol=1e-6)
    assert occupied.sum() == pytest.approx(sum(LENGTHS))


def test_symbols_make_the_round_trip_as_well() -> None:
    model = categorical()
    ledger = to_ledger(model, "north")
    back = to_model(ledger)
    np.testing.assert_array_equal(back.predict(SYMBOLS), model.predict(SYMBOLS))
    assert back.score(SYMBOLS) == pytest.approx(model.score(SYMBOLS), rel=1e-10)


def test_fused_sites_become_one_model_that_predicts() -> None:
    """Two sites of one prior, whose states have other numbers; what is fused labels new frames."""
    wide = dict(
        means_prior=np.zeros((4, 2)),
        beta_prior=np.full(4, 0.1),
        dof_prior=np.full(4, 4.0),
        scale_prior=np.stack([np.eye(2)] * 4),
    )
    sites = []
    for name, held, seed in (("north", [0, 1, 2], 0), ("south", [2, 3], 1)):
        (x,), _ = draw(MEANS[held], (150,), seed=seed)
        sites.append(to_ledger(gaussian(x=x, **wide), name))
    fused = fuse(sites, rule="product")
    model = to_model(fused.ledger)
    (x,), (z,) = draw(MEANS[:4], (200,), seed=7)
    found = model.predict(x)
    same = (found[:, None] == found) == (z[:, None] == z)
    assert same.mean() > 0.95
    np.testing.assert_allclose(model.startprob_prior_.sum(), 1.0)
    refit = to_model(fused.ledger, n_iter=2, tol=10.0, random_state=0).fit(x)
    assert np.isfinite(refit.score(x))


def test_a_bare_posterior_predicts_and_is_fitted_anew_by_the_default_prior() -> None:
    q = to_ledger(gaussian(), "north").posterior
    model = to_model(q, algorithm="map", n_iter=1, tol=10.0)
    assert model.algorithm == "map"
    assert len(model.predict(FLAT, LENGTHS)) == sum(LENGTHS)
    assert np.isfinite(model.score(FLAT, LENGTHS))
    with pytest.raises(ParameterError, match="nan"):
        to_ledger(model, "south")  # it has no prior
    assert model.fit(FLAT, LENGTHS).beta_prior_.tolist() == [1.0] * 4


def broken() -> VariationalGaussianHMM:
    model = gaussian()
    model.means_posterior_[0, 0] = np.nan
    return model


@pytest.mark.parametrize(
    "convert, error, match",
    [
        (lambda: to_ledger(VariationalGaussianHMM(2), "s"), UsageError, "not fitted"),
        (lambda: to_ledger(GaussianHMM(2), "s"), UsageError, "point estimates"),
        (lambda: to_ledger(gaussian("tied"), "s"), StructureError, "tied"),
        (lambda: to_ledger(broken(), "s"), ParameterError, "site 's'"),
        (lambda: to_model(Beta.from_standard(1.0, 1.0)), StructureError, "HiddenMarkov"),
        (lambda: to_model(to_ledger(gaussian(), "s"), n_components=3), UsageError, "n_components"),
    ],
)
def test_what_cannot_be_converted_is_refused(convert, error, match) -> None:
    with pytest.raises(error, match=match):
        convert()


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger: Ledger = to_ledger(categorical(), "s")
    monkeypatch.setitem(sys.modules, "hmmlearn.vhmm", None)
    with pytest.raises(MissingExtraError, match="hmm"):
        to_model(ledger)
