"""How sure a fusion is: margins of matches, evidence by number of components, warnings."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity import Dirichlet, Gamma, Gaussian, Ledger, Plate, fuse
from posterity.errors import IdentificationWarning
from posterity.fusion import components, confidence
from posterity.fusion.alignment import Alignment
from posterity.fusion.check import of_matching
from posterity.fusion.clustering import Clustering
from posterity.fusion.confidence import Moves
from tests.fusion.made import conjugate_site, plate, site_plates, wishart_prior

pytestmark = [
    pytest.mark.filterwarnings("ignore::posterity.errors.IdentificationWarning"),
    pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning"),
]

SEEDS = st.integers(0, 10**6)


def elsewhere(clustering: Clustering, row: int, group: int) -> Clustering:
    """One component in another group, in exchange for its own site's member there."""
    local, labels = clustering.local, clustering.labels.copy()
    labels[(local.site == local.site[row]) & (labels == group)] = labels[row]
    labels[row] = group
    return clustering.relabelled(labels)


def at_spread(clustering: Clustering, spread: float) -> float:
    """The objective where shapes are spread as given, not as is best."""
    criterion, judged, counts = clustering.local.criterion, clustering.judged, clustering.counts
    evidence = judged.evidence
    prices = criterion.prices(evidence.surprise, evidence.typical, counts.astype(float), spread)
    return float(criterion.length_of_sums(judged.misfit, judged.shape, prices.sum(), len(counts)))


def by_trying(clustering: Clustering, free: bool, spread: float | None = None) -> np.ndarray:
    """Margins by computing the objective of every move from scratch."""
    objective = lambda c: c.objective if spread is None else at_spread(c, spread)
    groups, least = len(clustering.counts), np.full(len(clustering.labels), np.inf)
    for row, home in enumerate(clustering.labels):
        alone = clustering.counts[home] == 1
        for group in {*range(groups + (free and not alone))} - {home}:
            moved = elsewhere(clustering, row, group)
            same = len(moved.counts) == groups
            names_only = same and alone and clustering.counts[group] == 1
            if (free or same) and not names_only:
                least[row] = min(least[row], objective(moved) - objective(clustering))
    return least


def said(*arguments: Any, **options: Any) -> list[str]:
    """The warnings that a matching is uncertain."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fuse(*arguments, **options)
    return [str(w.message) for w in caught if w.category is IdentificationWarning]


@pytest.mark.slow
@settings(max_examples=6)
@given(
    seed=SEEDS,
    spread=st.sampled_from([0.1, 0.3, 1.0]),
    divergence=st.sampled_from(["reverse", "forward"]),
    free=st.booleans(),
)
def test_margins_are_what_every_move_adds_to_the_objective(
    seed: int, spread: float, divergence: Any, free: bool
) -> None:
    fused = fuse(site_plates(seed, count=3, spread=spread), divergence=divergence)
    assert fused.plate.confidence is not None
    clustering = fused.plate.confidence.clustering
    moves = Moves(clustering, free)
    found, true = moves.rises()[:, 0], by_trying(clustering, free, moves._spread)
    np.testing.assert_allclose(found, true, atol=1e-8)
    near = true < 15
    assert (by_trying(clustering, free)[near] <= true[near] + 1e-8).all()  # the best spread


def test_margins_of_what_nothing_else_is_near() -> None:
    values = np.where(np.eye(4) > 0, 5000.0, 0.05)
    topics = [Plate(Dirichlet.from_standard(v)) for v in (values, values + np.eye(4))]
    fused = fuse(topics, components=4)
    for margins in fused.margins.values():
        assert (margins > 30).all()


def test_blocks_of_any_size_give_the_same_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = fuse(site_plates(5, count=6, spread=0.3))
    assert fused.plate.confidence is not None
    whole = Moves(fused.plate.confidence.clustering)
    expected = whole.rises()
    monkeypatch.setattr(components, "PIECE", 1)
    np.testing.assert_allclose(whole.rises(), expected, rtol=1e-12)


@pytest.mark.slow
@settings(max_examples=4)
@given(seed=SEEDS)
def test_confidence_does_not_depend_on_order_and_names(seed: int) -> None:
    rng, sites = np.random.default_rng(seed), site_plates(seed, spread=0.5)
    orders = {name: rng.permutation(site.size) for name, site in sites.items()}
    names = dict(zip(sites, rng.permutation([*"abcd"]).tolist(), strict=True))
    other = {
        names[name]: Plate(
            sites[name].members[order],
            Dirichlet(sites[name].weights.concentration_minus_one[order]),
        )
        for name, order in sorted(orders.items(), key=lambda item: names[item[0]])
    }
    one, two = fuse(sites), fuse(other)
    assert one.components_evidence == two.components_evidence
    for name, order in orders.items():
        assert (one.margins[name][order] == two.margins[names[name]]).all()


def test_the_component_between_two_others_is_the_doubtful_one() -> None:
    sites = {name: plate(0.0, 1.0) for name in "abcd"} | {"e": plate(3.0, 0.45)}
    fused = fuse(sites)
    assert fused.plate.ambiguous() == [("e", 1, fused.margins["e"][1])]
    words = said(sites)[-1]
    assert "are 1 of 10 matches, component 1 of 'e'" in words


def test_surer_components_have_larger_margins() -> None:
    """Wrong matches are those of small margins."""
    margins, wrong = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        means, sites, truth = 2.0 * rng.normal(size=(5, 2)), {}, []
        for j in range(5):
            rows = rng.choice(5, 3, replace=False)
            data = [means[row] + rng.normal(size=(30, 2)) for row in rows]
            sites[f"{j}"] = conjugate_site(f"{j}", Dirichlet.from_standard(np.ones(3)), data)
            truth.append(rows)
        fused = fuse(sites)
        labels, true = np.concatenate(list(fused.matching.values())), np.concatenate(truth)
        table = np.zeros((fused.components, 5))
        np.add.at(table, (labels, true), 1)
        margins.append(np.concatenate(list(fused.margins.values())))
        wrong.append(table.argmax(1)[labels] != true)
    margin, miss = np.concatenate(margins), np.concatenate(wrong)
    assert miss[margin < 3].mean() > 0.15
    assert miss[margin > 10].mean() < 0.02 < miss.mean()


def test_an_alignment_that_kept_no_components_knows_no_margins() -> None:
    labels = {"a": np.array([0, 1]), "b": np.array([1])}
    streamed = Alignment(labels, components=2, cost=0.0, trace=(0.0,))
    assert all(np.isnan(margins).all() for margins in streamed.margins.values())
    assert streamed.components_evidence == {} and streamed.left == np.inf
    assert not [*of_matching(streamed)]


@settings(max_examples=6)
@given(seed=SEEDS, spread=st.sampled_from([0.3, 2.0]))
def test_there_is_evidence_for_every_number_near_the_one_found(seed: int, spread: float) -> None:
    sites = site_plates(seed, spread=spread)
    fused, sizes = fuse(sites), [site.size for site in sites.values()]
    evidence, found = fused.components_evidence, fused.components
    assert evidence[found] == 0.0 == min(evidence.values())
    near = range(max(found - 2, *sizes), min(found + 2, sum(sizes)) + 1)
    assert set(near) <= set(evidence) <= set(range(max(sizes), sum(sizes) + 1))
    assert list(evidence) == sorted(evidence)


def test_a_number_that_was_given_has_no_rivals() -> None:
    sites = site_plates(0)
    assert fuse(sites, components=6).components_evidence == {}
    assert fuse(sites, matching="kl-fusion").components_evidence == {}
    assert all((margins > 0).all() for margins in fuse(sites, components=6).margins.values())


def test_matches_of_permuted_sites_have_margins() -> None:
    sites = {"a": plate(0.0, 5.0), "b": plate(5.1, 0.1), "c": plate(0.05, 5.0)}
    fused = fuse(sites, matching="hungarian")
    assert fused.components_evidence == {}
    assert all((margins > 3).all() for margins in fused.margins.values())
    wrong = fuse({**sites, "d": plate(5.0, 0.0)}, matching="identity")
    assert (wrong.margins["b"] < 0).all() and (wrong.margins["d"] < 0).all()
    lone = fuse({"a": plate(0.0), "b": plate(1.0)}, matching="hungarian")
    assert np.isinf(lone.margins["a"]).all()


def test_a_component_without_data_has_no_margin() -> None:
    prior = Plate(wishart_prior(2), Dirichlet.from_standard(np.ones(2)))
    data = [np.random.default_rng(0).normal(size=(30, 2)), np.zeros((0, 2))]
    empty = conjugate_site("a", Dirichlet.from_standard(np.ones(2)), data)
    full = Ledger.of_site("b", prior=prior, posterior=empty.posterior)
    fused = fuse([empty, full], rule="barycenter")
    assert np.isnan(fused.margins["a"][1]) and fused.matching["a"][1] == -1
    assert fused.margins["a"][0] > 0


def test_what_is_plain_to_see_is_not_warned_of() -> None:
    assert said(site_plates(3, count=8)) == []


def test_a_number_that_hangs_on_little_is_warned_of() -> None:
    sites = {name: plate(0.0, 5.0) for name in "abc"} | {"d": plate(0.0, 5.5)}
    evidence = fuse(sites).components_evidence
    assert 0 < sorted(evidence.values())[1] < 3
    assert "the number of components is uncertain: 3 are only" in said(sites)[0]


def test_a_component_that_might_as_well_be_alone_is_warned_of() -> None:
    """Two counts that are alike at two of six sites, and others far from them."""
    rng = np.random.default_rng(8)
    rates = [[2.2, 11.3]] * 2 + [[0.2, 2.2]] * 2 + [[2.2, 11.3]] * 2

    def site(name: str, own: list[float]) -> Ledger:
        learnt = Gamma(rng.poisson(100 * np.array(own)).astype(float), np.full(2, 100.0))
        start = Gamma.from_standard(np.ones(2), np.full(2, 0.1))
        return Ledger.of_site(name, prior=Plate(start), posterior=Plate(start + learnt))

    sites = [site(f"site {k}", own) for k, own in enumerate(rates)]
    fused = fuse(sites)
    alone = min(own.min() for own in fused.margins.values())
    assert fused.components == 3 and alone < confidence.AMBIGUOUS
    assert fused.components_evidence[4] == pytest.approx(alone)
    assert not fused.status.converged
    assert not fused.doubts  # what the counts say tells the three rates apart


def test_two_gaussian_sites_that_may_share_nothing_have_no_scale() -> None:
    far = [plate(0.0, 40.0), plate(13.0, 90.0)]
    assert "no scale" in said(far)[0] and not fuse(far).plate.identified
    assert not any("no scale" in words for words in said([*far, plate(0.0, 13.0)]))
    shared = [plate(0.0, 40.0), plate(0.1, 90.0)]
    assert fuse(shared).plate.identified
    places = 8 * np.random.default_rng(1).normal(size=(3, 10))
    law = lambda mean: Plate(Gaussian.from_standard(mean, np.stack([np.eye(10) / 100] * 3)))
    moved = [law(places), law(places + 1.0)]  # by ten standard errors
    assert fuse(moved).components == 6 and "no scale" in said(moved)[0]
    clusters = [[np.random.default_rng(j).normal(20.0 * j, 1.0, (50, 2))] for j in range(2)]
    base = Dirichlet.from_standard(np.ones(1))
    counted = [conjugate_site(f"{j}", base, data) for j, data in enumerate(clusters)]
    assert fuse(counted).plate.identified


def test_matchings_that_were_asserted_are_not_warned_of() -> None:
    swapped = {"a": plate(0.0, 5.0), "b": plate(5.0, 0.0), "c": plate(0.0, 5.0)}
    assert said(swapped, matching="identity") == []


def test_the_status_is_converged_where_every_match_is_sure():
    sure = fuse([plate(0.0, 50.0, 90.0), plate(0.0, 50.0, 90.0), plate(0.0, 50.0, 90.0)])
    assert sure.status.converged and sure.status.left == 0.0
    assert fuse([plate(0.0), plate(9.0)], matching="identity").status.converged  # nothing matched


def test_the_status_says_what_hangs_on_little():
    with pytest.warns(IdentificationWarning):
        unsure = fuse([plate(0.0), plate(0.3)])
    assert unsure.status.state == "not converged"
    assert unsure.status.reasons == tuple(own.finding for own in of_matching(unsure.plate))
    assert unsure.status.reasons
