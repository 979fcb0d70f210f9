"""Fusion of hidden Markov models: states found, all that hangs on them moved together."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

import posterity
from posterity import Ledger, fuse
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families import Dirichlet, HiddenMarkov, NormalWishart, Plate, Product, stack
from posterity.fusion.diff import diff
from posterity.models import HiddenMarkovModel, Records, label, padded
from tests.hidden_chains import MEANS, draw
from tests.laws.table import identical

pytestmark = [
    pytest.mark.filterwarnings("ignore::posterity.errors.IdentificationWarning"),
    pytest.mark.filterwarnings("ignore:The posterior has not converged:UserWarning"),
]

ONE = NormalWishart.from_inverse_scale(np.zeros(2), 0.1, np.eye(2), 4.0)


def known(held: list[int], seed: int, length: int = 200, **prior: float) -> Ledger:
    """A site that has seen the states ``held`` of all, whose order is its own."""
    (x,), (z,) = draw(MEANS[held], (length,), seed=seed)
    size = len(held)
    moves, start = np.zeros((size, size)), np.eye(size)[z[0]]
    np.add.at(moves, (z[:-1], z[1:]), 1.0)
    learnt = HiddenMarkov(
        emissions=Plate(stack([ONE] * size).observed(x, np.eye(size)[z])),
        initial=Dirichlet(start),
        transitions=Plate(Dirichlet(moves)),
    )
    base = HiddenMarkov.prior(ONE, states=size, **{"stay": 4.0, **prior})
    return Ledger.of_site(f"site-{seed}", prior=base, posterior=base + learnt)


SITES = [known([0, 1, 2], 0), known([3, 1], 1), known([2, 4, 0, 3], 2)]
ORDERS = [[0, 1, 2], [3, 1], [2, 4, 0, 3]]


@pytest.mark.parametrize("rule", ["product", "barycenter"])
def test_sites_that_share_some_states_find_them(rule: str) -> None:
    fused = fuse(SITES, rule=rule)
    assert fused.components == 5
    found = np.concatenate([fused.matching[f"site-{n}"] for n in range(3)])
    assert adjusted_rand_score(np.concatenate(ORDERS), found) == 1.0
    x, z = draw(MEANS, (400,), seed=9)
    assert adjusted_rand_score(z[0], label(fused.posterior, x)[0]) > 0.98
    assert set(fused.margins) == set(fused.matching) and 5 in fused.components_evidence


def test_a_product_counts_every_transition_once_and_the_prior_once() -> None:
    """What is fused is what one fit of all labelled data would have."""
    fused = fuse(SITES, rule="product")
    q, prior, moves = fused.posterior, fused.ledger.prior, np.zeros((5, 5))
    np.testing.assert_allclose(prior.spread(), [1.0, 4.0, 1.0])
    starts = np.zeros(5)
    for ledger in SITES:
        own = ledger.posterior - ledger.prior
        at = fused.matching[ledger.sites[0]]
        moves[np.ix_(at, at)] += own.transitions.members.concentration_minus_one
        starts[at] += own.initial.concentration_minus_one
    rows = q.transitions.members.concentration - prior.transitions.members.concentration
    np.testing.assert_allclose(rows, moves, atol=1e-9)
    learnt = q.initial.concentration - prior.initial.concentration
    np.testing.assert_allclose(learnt, starts, atol=1e-12)
    assert q.occupancy(prior).sum() == pytest.approx(600)


@settings(max_examples=4)
@given(st.permutations(range(4)), st.permutations(range(3)))
def test_neither_the_order_of_states_nor_that_of_sites_matters(
    states: list[int], sites: list[int]
) -> None:
    def moved(ledger: Ledger) -> Ledger:
        labels = np.array([k for k in states if k < ledger.posterior.states])
        prior, q = (law.relabel(labels, len(labels)) for law in (ledger.prior, ledger.posterior))
        return Ledger.of_site(ledger.sites[0], prior=prior, posterior=q)

    one = fuse(SITES, rule="product").posterior
    other = fuse([moved(SITES[n]) for n in sites], rule="product").posterior
    assert identical(one, other)


@pytest.mark.slow
def test_a_site_is_forgotten_exactly_and_files_keep_all(tmp_path) -> None:
    fused = fuse(SITES, rule="product")
    posterity.save(fused.ledger, tmp_path / "fused.safetensors")
    ledger = posterity.load(tmp_path / "fused.safetensors")
    assert ledger == fused.ledger and isinstance(ledger.posterior, HiddenMarkov)
    left = ledger.forget("site-1").posterior
    others = ledger.prior + ledger.factor("site-0") + ledger.factor("site-2")
    np.testing.assert_allclose(left.natural_parameters, others.natural_parameters, rtol=1e-15)
    assert bool(left.is_proper())
    draw = jax.jit(lambda law: law.sample(jax.random.key(0), (3,)))
    events = jax.tree.map(np.asarray, draw(fused.posterior))
    np.testing.assert_allclose(events["transitions"][0].sum(-1), 1.0, rtol=1e-5)


def test_regions_keep_their_sites_apart() -> None:
    region = fuse(SITES[:2], rule="product").ledger
    fused = fuse({"region": region, "site-2": SITES[2]}, rule="product")
    assert fused.ledger.sites == ("site-0", "site-1", "site-2")
    once = fuse(SITES, rule="product").posterior
    np.testing.assert_allclose(
        fused.posterior.natural_parameters, once.natural_parameters, rtol=1e-9, atol=1e-9
    )


def test_diff_matches_states() -> None:
    q = fuse(SITES, rule="product").posterior
    order = np.array([3, 0, 4, 1, 2])
    same = diff(q, q.relabel(order, 5))
    assert same.kl == (0.0, 0.0)
    assert [pair.b for pair in same.blocks[0].plate.pairs] == order.tolist()
    found = diff(q, SITES[1].posterior).blocks[0]
    assert len(found.plate.pairs) == 2 and len(found.plate.only_in_a) == 3
    assert found.plate.weights.ab > 0 and found.kl.ab > found.plate.weights.ab


def test_states_that_were_never_visited_match_nothing() -> None:
    base = HiddenMarkov.prior(ONE, states=6, stay=4.0)
    own = SITES[1].posterior - SITES[1].prior
    wide = Ledger.of_site("wide", prior=base, posterior=base + own.relabel(np.array([4, 1]), 6))
    fused = fuse([SITES[0], wide, SITES[2]], rule="product")
    assert fused.components == 5
    assert (fused.matching["wide"] >= 0).tolist() == [False, True, False, False, True, False]


def test_states_of_a_site_that_become_one_add_up() -> None:
    q = SITES[0].posterior - SITES[0].prior
    joined = q.relabel(np.array([0, 1, 0]), 2)
    rows = np.asarray(q.transitions.members.concentration_minus_one)
    expected = rows[0] + rows[2]
    found = np.asarray(joined.transitions.members.concentration_minus_one)
    np.testing.assert_allclose(found[0], [expected[0] + expected[2], expected[1]])
    assert found.sum() == pytest.approx(rows.sum())


def test_a_chain_is_a_block_among_others() -> None:
    rate = Dirichlet.from_standard([2.0, 3.0])
    sites = {f"s{n}": Product(chain=s.posterior, other=rate) for n, s in enumerate(SITES)}
    priors = Product(chain=SITES[0].prior, other=rate)
    fused = fuse(sites, rule="product", prior=priors)
    assert fused.plates.keys() == {"chain"} and fused.components == 5
    assert isinstance(fused.posterior.chain, HiddenMarkov)


def test_one_state_sites_fuse() -> None:
    single = [known([0], 5), known([0], 6)]
    fused = fuse(single, rule="product", components=1)
    assert fused.posterior.transitions.members.concentration.item() == pytest.approx(5 + 398)
    with pytest.warns(UserWarning, match="one state do not tell"):
        apart = fuse([known([0], 5), known([1], 6)], rule="product")
    assert apart.components == 2
    with_others = fuse([known([0], 5), SITES[0], SITES[1]], rule="product")
    np.testing.assert_allclose(with_others.ledger.prior.spread(), [1.0, 4.0, 1.0])
    assert not with_others.rebased


def test_priors_that_differ_are_averaged_and_told() -> None:
    other = known([3, 1], 1, stay=8.0, concentration=3.0)
    with pytest.warns(UserWarning, match="priors differ"):
        fused = fuse([SITES[0], other], rule="product")
    np.testing.assert_allclose(fused.ledger.prior.spread(), [2.0, 6.0, 1.0])
    assert fused.rebased == ("site-0", "site-1")
    given_one = fuse([SITES[0], other], rule="product", prior=SITES[2].prior)
    np.testing.assert_allclose(given_one.ledger.prior.spread(), [1.0, 4.0, 1.0])


def test_without_priors_what_nobody_saw_is_asked_for() -> None:
    bare = [ledger.posterior for ledger in SITES]
    with pytest.raises(StructureError, match="no prior"):
        fuse(bare)
    same = [known([0, 1], n).posterior for n in (3, 4)]
    fused = fuse(same)
    assert fused.components == 2 and bool(fused.posterior.is_proper())
    with pytest.raises(UsageError, match="no prior for"):
        fuse(same, rule="product")


def test_what_cannot_be_fused_is_refused() -> None:
    lopsided = SITES[0].prior + HiddenMarkov(
        emissions=SITES[0].prior.emissions * 0.0,
        initial=Dirichlet(np.zeros(3)),
        transitions=Plate(Dirichlet(np.triu(np.ones((3, 3))))),
    )
    odd = Ledger.of_site("odd", prior=lopsided, posterior=lopsided + SITES[0].factor("site-0"))
    with pytest.raises(StructureError, match=r"tells components apart.*'odd'"):
        fuse([odd, SITES[1]], rule="product")
    with pytest.raises(UsageError, match="share labels"):
        fuse(SITES, budget=100)
    diagonal = HiddenMarkov(SITES[1].posterior.blocks, emissions=Plate(Dirichlet(np.zeros((2, 3)))))
    with pytest.raises(StructureError, match="family, blocks and dimensions"):
        fuse([SITES[0].posterior, diagonal])


def test_blocks_that_are_no_chain_are_refused() -> None:
    blocks = dict(SITES[0].posterior.blocks)
    with pytest.raises(StructureError, match="plates without weights"):
        HiddenMarkov(emissions=blocks["emissions"])
    with pytest.raises(StructureError, match="of as many states"):
        HiddenMarkov(blocks, initial=Dirichlet(np.zeros(2)))
    with pytest.raises(ParameterError, match="positive"):
        HiddenMarkov.prior(ONE, states=2, concentration=0.0)


@pytest.mark.slow
def test_a_round_of_refinement_raises_the_bound_and_keeps_the_states() -> None:
    """Sites look at their data again, in the company of the others."""
    fused = fuse(SITES, rule="product")
    sites = {n: padded(draw(MEANS[o], (200,), seed=n)[0], 208) for n, o in enumerate(ORDERS)}
    data = {f"site-{n}": own for n, own in sites.items()}

    def bound(q: HiddenMarkov) -> float:
        x, lengths = (np.concatenate(parts) for parts in zip(*data.values(), strict=True))
        with jax.enable_x64(True):
            value, _ = HiddenMarkovModel().expected_factor(q, Records.of((x, lengths)))
        return float(value) - float(q.kl(fused.ledger.prior))

    run = posterity.federate(data, HiddenMarkovModel(), fused.ledger, steps=1)
    assert bound(run.posterior) >= bound(fused.posterior)
    x, z = draw(MEANS, (300,), seed=9)
    before, after = (label(q, x)[0] for q in (fused.posterior, run.posterior))
    assert adjusted_rand_score(z[0], after) > 0.98 and (before == after).mean() > 0.98
