"""gensim's topic models as ledgers and back."""

import sys

import numpy as np
import pytest
from gensim.models import LdaModel
from sklearn.datasets import load_digits

import posterity
from posterity import Dirichlet, Plate
from posterity.adapters.gensim import to_ledger, to_model
from posterity.errors import MissingExtraError, StructureError, UsageError

COUNTS = load_digits().data[:60]
CORPUS = [[(int(w), int(row[w])) for w in np.flatnonzero(row)] for row in COUNTS]
WORDS = {index: f"pixel{index}" for index in range(64)}


def fitted(**options) -> LdaModel:
    options = {"num_topics": 3, "passes": 3, "update_every": 0, "random_state": 0} | options
    return LdaModel(CORPUS, id2word=WORDS, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("eta", [0.2, "symmetric", "auto"])
def test_a_model_comes_back(dtype, eta, tmp_path) -> None:
    model = fitted(dtype=dtype, eta=eta)
    posterity.save(to_ledger(model, "north"), tmp_path / "north.safetensors")
    ledger = posterity.load(tmp_path / "north.safetensors")
    again = to_model(ledger, alpha=model.alpha, dtype=dtype)
    close = dict(rtol=1e-5, atol=1e-6) if dtype is np.float32 else dict(rtol=1e-12)
    np.testing.assert_allclose(again.state.get_lambda(), model.state.get_lambda(), **close)
    np.testing.assert_allclose(again.eta, model.state.eta, **close)
    np.testing.assert_allclose(again.get_topics(), model.get_topics(), **close)
    assert again.show_topic(0, 3)[0][0] == model.show_topic(0, 3)[0][0]
    assert ledger.posterior.members.concentration.dtype == np.float64


def test_a_batch_fit_counts_every_word() -> None:
    factor = to_ledger(fitted(dtype=np.float64), "north").factor("north")
    np.testing.assert_allclose(
        factor.members.concentration_minus_one.sum(0), COUNTS.sum(0), rtol=1e-9, atol=1e-9
    )


def test_sites_of_both_libraries_fuse() -> None:
    ledgers = [to_ledger(fitted(random_state=seed, eta=0.1), f"s{seed}") for seed in range(2)]
    fused = posterity.fuse(ledgers, rule="product", components=3)
    back = to_model(fused.ledger)
    assert back.num_topics == 3 and back.id2word[0] == "pixel0"
    np.testing.assert_allclose(back.eta, 0.1, rtol=1e-6)


def test_what_is_refused(monkeypatch) -> None:
    with pytest.raises(UsageError, match="without documents"):
        to_ledger(LdaModel(num_topics=2, id2word=WORDS), "a")
    with pytest.raises(UsageError, match=r"builtins\.dict"):
        to_ledger({}, "a")
    topics = Plate(Dirichlet.from_standard([[1.0, 2.0]]))
    with pytest.raises(UsageError, match="num_topics"):
        to_model(topics, num_topics=3)
    with pytest.raises(StructureError, match="Plate of Dirichlet"):
        to_model(topics.members)
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(MissingExtraError, match="gensim"):
        to_model(topics)
