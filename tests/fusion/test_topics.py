"""Topics: how many there are is chosen by the evidence of their words."""

import numpy as np
import pytest

from posterity import Dirichlet, Ledger, Plate, fuse
from posterity.errors import StructureError, UsageError

WORDS, PRIOR = 120, 0.05


def ledger(name: str, counts: np.ndarray, prior: float = PRIOR) -> Ledger:
    """A site's topics, of counts (k, V) beyond the prior."""
    start = Plate(Dirichlet.from_standard(np.full(counts.shape, prior)))
    return Ledger.of_site(name, prior=start, posterior=start + Plate(Dirichlet(counts)))


def sites(seed: int, *held: list[int], words: int = 3000) -> tuple[list[Ledger], np.ndarray]:
    """Sites that hold these of six topics, and all counts of each (6, V)."""
    rng = np.random.default_rng(seed)
    truth = rng.dirichlet(np.full(WORDS, 0.1), 6)
    total, made = np.zeros(truth.shape), []
    for number, own in enumerate(held):
        counts = rng.poisson(truth[own] * words) * 1.0
        np.add.at(total, own, counts)
        made.append(ledger(f"site {number}", counts))
    return made, total


def same_rows(one: np.ndarray, other: np.ndarray) -> bool:
    """The rows are the same in some order."""
    return np.allclose(one[np.lexsort(one.T)], other[np.lexsort(other.T)], atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_shared_topics_add_up_and_others_stay_apart(seed: int) -> None:
    made, total = sites(seed, [0, 1, 2], [2, 3, 4], [4, 5, 0])
    fused = fuse(made, rule="product")
    assert same_rows(fused.posterior.members.concentration - PRIOR, total)
    assert fused.components_evidence[6] == 0.0 and fused.components_evidence[5] > 100.0
    margins = np.concatenate(list(fused.margins.values()))
    assert (margins > 100.0).all()


def test_sites_that_share_nothing_keep_all_their_topics() -> None:
    made, _ = sites(0, [0, 1, 2], [3, 4, 5])
    assert fuse(made).components == 6


def test_halves_of_a_topic_at_one_site_are_one_where_the_prior_is_known() -> None:
    made, total = sites(1, [0, 0, 1, 2], [0, 1, 3])
    fused = fuse(made, rule="product")
    assert fused.components == 4 and len(fused.absorbed["site 0"]) == 1
    labels = fused.matching["site 0"]
    assert labels[0] == labels[1] == fused.matching["site 1"][0]
    assert same_rows(fused.posterior.members.concentration - PRIOR, total[:4])
    mean = fuse(made).posterior.members
    assert mean.batch_shape == (4,)
    apart = fuse(made, absorb=False)
    assert apart.components == 5 and not apart.absorbed
    bare = fuse([own.posterior for own in made])
    assert bare.components == 5 and not bare.absorbed
    with pytest.raises(UsageError, match="absorb"):
        fuse([own.posterior for own in made], absorb=True)


def test_neither_the_order_nor_passes_nor_small_priors_change_what_is_one() -> None:
    made, total = sites(2, [0, 0, 1, 2], [2, 3, 4], [4, 5, 0, 1])
    whole = fuse(made, rule="product")
    assert same_rows(whole.posterior.members.concentration - PRIOR, total)
    assert fuse(made[::-1], rule="product").posterior == whole.posterior
    passes = fuse(made, rule="product", budget=2**16)
    assert same_rows(passes.posterior.members.concentration, whole.posterior.members.concentration)
    assert passes.cost == pytest.approx(whole.cost, rel=1e-9)
    assert passes.components_evidence == pytest.approx(whole.components_evidence, abs=1e-6)
    for name, own in whole.margins.items():
        np.testing.assert_allclose(passes.margins[name], own, rtol=1e-9)
    others = [
        ledger(own.sites[0], own.factor(own.sites[0]).members.natural_parameters, 0.2)
        for own in made[:2]
    ]
    with pytest.warns(UserWarning, match="priors differ"):
        assert fuse([*others, made[2]], rule="product").components == 6


@pytest.mark.filterwarnings("ignore:site 'none' says nothing")
def test_topics_without_words_and_a_number_that_is_wanted() -> None:
    made, total = sites(3, [0, 1], [1, 2], [2, 0])
    empty = ledger("none", np.zeros((3, WORDS)))
    fused = fuse([*made, empty], rule="product")
    assert np.isclose(
        fused.posterior.members.concentration.sum(),
        total.sum() + 0.0 + PRIOR * WORDS * fused.components,
    )
    assert fused.components == 3
    assert fuse(made, components=2).components == 2
    assert fuse(made, components=5).components == 5


def test_many_topics_are_merged_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, total = sites(4, *([0, 1, 2], [3, 4, 5], [1, 3, 5], [0, 2, 4]) * 3)
    monkeypatch.setattr("posterity.fusion.topics.TOGETHER", 7)
    fused = fuse(made, rule="product")
    assert same_rows(fused.posterior.members.concentration - PRIOR, total)


def test_vocabularies_that_differ_are_refused_in_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posterity.fusion.reading.TOGETHER", 1)
    made, _ = sites(5, [0, 1, 2], [2, 3, 4])
    own = [
        site.named({"members": tuple(f"{name} {index:03d}" for index in range(WORDS))})
        for name, site in zip(("word", "other"), made, strict=True)
    ]
    with pytest.raises(StructureError, match=r"other words at 'site 1'.*one_vocabulary"):
        fuse((site for site in own), budget=2**15)
