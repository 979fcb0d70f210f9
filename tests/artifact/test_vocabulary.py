"""Topics over other words: nothing but the prior is spread."""

import numpy as np
import pytest

import posterity
from posterity import Dirichlet, Ledger, Plate
from posterity.artifact import one_vocabulary, with_vocabulary
from posterity.errors import ParameterError, StructureError

RNG = np.random.default_rng(0)
PRIOR = 0.05


def site(name: str, counts: np.ndarray, prior: float = PRIOR) -> Ledger:
    counts = np.asarray(counts, float)
    before = Plate(Dirichlet.from_standard(np.full(counts.shape, prior)))
    return Ledger.of_site(name, prior=before, posterior=before + Plate(Dirichlet(counts)))


def over(posterior, words):
    """Topics over these words."""
    return posterior.named({"members": words})


def every(sites, words):
    return {name: over(posterior, words[name]) for name, posterior in sites.items()}


def counts_of(posterior: Plate, prior: Plate) -> np.ndarray:
    return posterior.members.concentration - prior.members.concentration


def test_a_ledger_takes_new_words_without_counts() -> None:
    ledger = site("a", RNG.poisson(5.0, (3, 4)))
    words, wanted = ["d", "a", "c", "b"], ["a", "b", "x", "c", "d", "y"]
    found = with_vocabulary(over(ledger, words), wanted)
    assert found.posterior.members.names == tuple(wanted)
    np.testing.assert_array_equal(
        found.prior.members.concentration, np.full((3, 6), 1 + (PRIOR - 1))
    )
    own, old = found.factor("a").members.concentration_minus_one, ledger.factor("a").members
    for place, word in enumerate(wanted):
        expected = old.concentration_minus_one[:, words.index(word)] if word in words else 0.0
        np.testing.assert_array_equal(own[:, place], np.broadcast_to(expected, 3))
    assert found.entries["a"].independent


def test_there_and_back_is_the_same_to_the_last_bit() -> None:
    ledger = site("a", RNG.gamma(0.3, 5.0, (3, 5)))
    words = list("abcde")
    ledger = over(ledger, words)
    moved = with_vocabulary(ledger, words[::-1])
    assert with_vocabulary(moved, words) == ledger
    assert with_vocabulary(ledger, words) is ledger


def planted(vocabularies: dict[str, list[str]]) -> tuple[dict[str, Ledger], np.ndarray, list[str]]:
    """Counts of three topics at each site, over its own words, in an order of its own."""
    everything = sorted(set().union(*vocabularies.values()))
    topics = RNG.dirichlet(np.full(len(everything), 0.1), 3)
    total, sites = np.zeros(topics.shape), {}
    for name, words in vocabularies.items():
        own = RNG.permutation(3)
        columns = [everything.index(word) for word in words]
        counts = np.round(topics[own][:, columns] * 5000)
        total[own[:, None], columns] += counts
        sites[name] = site(name, counts)
    return sites, total, everything


def test_product_of_fused_topics_is_the_pooled_counts() -> None:
    words = [f"w{index:03d}" for index in range(200)]
    vocabularies = {
        "a": list(RNG.permutation(words[:150])),
        "b": list(RNG.permutation(words[40:])),
        "c": list(RNG.permutation(words)),
    }
    sites, total, everything = planted(vocabularies)
    ledgers, union = one_vocabulary(every(sites, vocabularies))
    assert list(union) == everything
    # Absent words are evidence of a difference: the number would be found too large.
    fused = posterity.fuse(ledgers, rule="product", components=3)
    found = counts_of(fused.posterior, fused.ledger.prior)
    order = [int(np.abs(total - row).sum(1).argmin()) for row in found]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(found, total[order], rtol=1e-12, atol=1e-9)


def test_files_that_name_their_words_are_fused_over_the_union(tmp_path) -> None:
    words = [f"w{index:03d}" for index in range(120)]
    vocabularies = {"a": words[::-1], "b": words[20:], "c": words[:100]}
    sites, total, everything = planted(vocabularies)
    for name, ledger in sites.items():
        path = tmp_path / f"{name}.safetensors"
        posterity.save(over(ledger, vocabularies[name]), path)
    fused = posterity.fuse(tmp_path, rule="product")
    assert list(fused.posterior.members.names) == everything
    found = counts_of(fused.posterior, fused.ledger.prior)
    np.testing.assert_allclose(found.sum(0), total.sum(0), rtol=1e-12, atol=1e-9)
    assert posterity.load(tmp_path / "b.safetensors").prior.members.names == tuple(words[20:])


def test_a_site_that_shares_no_word_is_warned_of() -> None:
    sites = {name: site(name, np.full((1, 2), 9.0)) for name in "abc"}
    words = {"a": ["x", "y"], "b": ["y", "z"], "c": ["Y", "Z"]}
    with pytest.warns(UserWarning, match=r"\['c'\] share no word"):
        one_vocabulary(every(sites, words))


def test_priors_that_differ_are_rebased_on_the_union() -> None:
    a, b = site("a", [[9.0, 1.0]], 0.5), site("b", [[9.0, 1.0]], 0.25)
    ledgers, _ = one_vocabulary({"a": over(a, ["x", "y"]), "b": over(b, ["x", "z"])})
    with pytest.warns(UserWarning, match="priors differ"):
        fused = posterity.fuse(ledgers, rule="product", components=1)
    np.testing.assert_allclose(fused.ledger.prior.members.concentration, 0.375)
    np.testing.assert_allclose(counts_of(fused.posterior, fused.ledger.prior), [[18.0, 1.0, 1.0]])


class Words(Dirichlet):
    """A user's own kind."""


def test_a_users_own_symbols_go_by_words_and_stay_what_they_are() -> None:
    topics = Plate(Words.from_standard([[9.0, 1.0]]))
    found = with_vocabulary(over(topics, ["x", "y"]), ["y", "z", "x"], unseen=0.5)
    assert type(found.members) is Words
    np.testing.assert_array_equal(found.members.concentration, [[1.0, 0.5, 9.0]])


# --- what is refused -------------------------------------------------------------------------


def test_words_that_do_not_fit() -> None:
    ledger = site("a", [[9.0, 1.0]])
    named = over(ledger, ["x", "y"])
    with pytest.raises(StructureError, match="come twice"):
        over(ledger, ["x", "x"])
    with pytest.raises(StructureError, match="3 names"):
        over(ledger, ["x", "y", "z"])
    with pytest.raises(StructureError, match="come twice"):
        with_vocabulary(named, ["x", "y", "y"])
    with pytest.raises(StructureError, match="would be lost"):
        with_vocabulary(named, ["x", "z"])
    with pytest.raises(StructureError, match="Plate of Dirichlet"):
        with_vocabulary(Dirichlet.from_standard([1.0, 1.0]).named(["x", "y"]), ["x", "y"])
    with pytest.raises(StructureError, match="without names of words in site 'b'"):
        one_vocabulary({"a": named, "b": ledger})


def test_the_concentration_of_unseen_words_has_to_be_known() -> None:
    ledger = site("a", [[9.0, 1.0]])
    bare = over(ledger, ["x", "y"]).posterior
    with pytest.raises(StructureError, match="unseen="):
        with_vocabulary(bare, ["x", "y", "z"])
    found = with_vocabulary(bare, ["x", "y", "z"], unseen=0.5)
    np.testing.assert_array_equal(found.members.concentration[:, 2], [0.5])
    before = Plate(Dirichlet.from_standard([[0.1, 0.9]]))
    uneven = over(Ledger.of_site("a", prior=before, posterior=bare), ["x", "y"])
    with pytest.raises(StructureError, match="differs between words"):
        with_vocabulary(uneven, ["x", "y", "z"])
    moved = with_vocabulary(uneven, ["z", "y", "x"], unseen=0.2)
    np.testing.assert_allclose(moved.prior.members.concentration, [[0.2, 0.9, 0.1]])
    for unseen in (0.0, -1.0, float("nan")):
        with pytest.raises(ParameterError, match="positive"):
            with_vocabulary(bare, ["x", "y", "z"], unseen=unseen)
