"""A small version of figure 4 on images of digits; AMPS against all permutations."""

import itertools
import json

import numpy as np
import pytest
from pictures import shows_data
from scipy.sparse import csr_array
from sklearn.datasets import load_digits

from experiments.data import Newsgroups, newsgroups
from experiments.harness import Place
from experiments.klfusion import topics
from experiments.klfusion.topic_models import amps, fit, objective, permutations
from posterity import Dirichlet, Ledger, Plate


@pytest.mark.parametrize("seed", range(5))
def test_amps_is_the_best_of_all_permutations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prior = Dirichlet.from_standard(np.full((3, 8), 0.1))
    true = rng.dirichlet(np.full(8, 0.3), 3)
    naturals = np.stack([rng.poisson(true[rng.permutation(3)] * 40) for _ in range(3)]) * 1.0
    found = permutations(prior, naturals, sweeps=5)
    every = itertools.product(map(list, itertools.permutations(range(3))), repeat=2)
    best = max(objective(prior, naturals, np.array([[0, 1, 2], *pair])) for pair in every)
    assert objective(prior, naturals, found) == pytest.approx(best, rel=1e-12)
    ledgers = [
        Ledger.of_site(f"s{j}", prior=Plate(prior), posterior=Plate(prior + Dirichlet(own)))
        for j, own in enumerate(naturals)
    ]
    total = amps(ledgers).members.concentration.sum()  # pyright: ignore
    assert total == pytest.approx(naturals.sum() + 0.1 * 24)


@pytest.fixture(scope="module")
def data() -> Newsgroups:
    """A document an image, a word a pixel, a group a digit."""
    x, y = load_digits(return_X_y=True)
    words, groups = tuple(map(str, range(64))), tuple("0123456789")
    return Newsgroups(csr_array(x[:400]), y[:400], np.ones(400, bool), words, groups)


def test_a_fit_counts_every_word_and_foretells(data: Newsgroups) -> None:
    q = fit(data.counts[:300], 6, alpha=0.1, beta=0.05, seed=0, passes=2)
    counts = q.members.concentration - 0.05  # pyright: ignore
    np.testing.assert_allclose(counts.sum(0), data.counts[:300].sum(0), rtol=1e-4, atol=1e-3)
    problem = topics.trial(data.counts, data.y, topics.PARTITIONS["all shared"], 0, 100)
    even = Plate(Dirichlet.from_standard(np.ones((1, 64))))
    frequent = Plate(Dirichlet.from_standard(data.counts.sum(0)[None] + 0.05))
    scores = [topics.judge(plate, problem).mean for plate in (even, frequent, q)]
    assert scores == sorted(scores) and scores[0] == pytest.approx(-np.log(64))


@pytest.mark.parametrize("name", topics.PARTITIONS)
def test_trials_split_all_documents_and_hide_a_tenth(data: Newsgroups, name: str) -> None:
    partition = topics.PARTITIONS[name]
    problem = topics.trial(data.counts, data.y, partition, 3, 100)
    assert len(problem.sites) == partition.sites
    assert sum(table.shape[0] for table in problem.sites) == 300
    hidden, shown = problem.unseen.totals.sum(), problem.seen.totals.sum()
    kept = sum(table.sum() for table in problem.sites)
    assert hidden + shown + kept == data.counts.sum()
    error = np.sqrt(0.1 * 0.9 * (hidden + shown))
    assert abs(hidden - 0.1 * (hidden + shown)) < 4 * error


def test_sites_that_share_half_have_half_of_the_groups_each() -> None:
    shares = topics.half_shared(np.random.default_rng(0), 20)
    assert ((shares > 0).sum(0) == 10).all() and ((shares > 0).sum(1) == 2).all()
    np.testing.assert_allclose(shares.sum(1), 1.0)


@pytest.mark.experiment
def test_results_are_written_by_the_run(data: Newsgroups, tmp_path) -> None:
    methods = (topics.OURS, topics.PAPERS, "AMPS", topics.TOGETHER)
    small = {"_data": data, "topics": 5, "held_out": 80, "methods": methods}
    place = Place(tmp_path, tmp_path / "cache")
    found = topics.run(place, trials=2, **small)
    assert found.items() <= json.loads((tmp_path / "topics.json").read_text()).items()
    assert shows_data(tmp_path / "figure4.png")
    for name in topics.PARTITIONS:
        assert set(found[name]["methods"]) == {topics.POOLED, topics.ALONE, *methods}
    assert topics.run(place, trials=2, **small) == found  # from the cache


@pytest.mark.data
def test_newsgroups() -> None:
    data = newsgroups()
    assert data.counts.shape == (18846, 12497) == (len(data.y), len(data.words))
    assert data.counts.max() == 30 and data.counts.indices.dtype == np.int32
    assert len(data.group_names) == 20 and data.is_train.sum() == 11314
