import dataclasses

import jax
import networkx as nx
import numpy as np
import pytest
from federation.examples import CONJUGATE, NAMES, NORMAL, logistic_sites
from hypothesis import strategies as st
from laws.table import identical

from posterity.entries import Entry
from posterity.errors import LedgerError, ParameterError, UsageError
from posterity.families import Beta, Gaussian
from posterity.federation import Gossip, LedgerGossip, federate
from posterity.federation.federate import start
from posterity.federation.gossip import site_state
from posterity.federation.keys import fold_in
from posterity.graphs import MetropolisHastings, NonBacktracking, complete, ring
from posterity.graphs.walks import NOWHERE, WalkState
from posterity.ledger import Ledger
from posterity.models import LogisticRegression

MODEL, PRIOR, DATA = CONJUGATE["Beta"]


def walked(steps=0, schedule=None):
    return start(DATA, MODEL, PRIOR, schedule=schedule or Gossip(ring(list(NAMES)))).advance(steps)


# --- the walk ----------------------------------------------------------------------------------


@pytest.mark.parametrize("walk", [MetropolisHastings(), NonBacktracking()])
def test_hops_are_steps_of_the_walk(walk):
    names = [f"{n:02}" for n in range(12)]
    graph = nx.random_regular_graph(4, len(names), seed=1)
    gossip = Gossip(nx.relabel_nodes(graph, dict(enumerate(names))), walk=walk)
    network, before = gossip.network, None
    move = jax.jit(lambda state, bits: walk.move(network, state, bits).position)
    for n in range(25):
        key, here = fold_in(jax.random.key(7), n), names[n % 12]
        own_key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), n), 1)
        number = NOWHERE if before is None else network.index(before)
        state = WalkState(np.asarray(network.index(here)), np.asarray(number))
        expected = move(state, jax.random.bits(own_key, (), "uint32"))
        assert gossip.hop(here, before, key=key) == names[int(expected)]
        before = network.neighbours_of(here)[n % 4]


# --- tokens ------------------------------------------------------------------------------------


def refused(run, token, site, message):
    with pytest.raises(LedgerError, match=message):
        site_state(run.state, site).take(run.agreement, token)


def test_a_site_answers_a_token_once():
    run = walked(3)
    token, site = run.token, run.state.schedule["at"]
    refused(run.advance(1), token, site, "sequence 3 at site .* above epoch 0, sequence 3")
    with pytest.raises(UsageError, match="Gossip, which alone"):
        _ = start(DATA, MODEL, PRIOR).token


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.forget(run.ledger.sites[0]),
        lambda run: run.forget(run.ledger.sites[0]).readmit(run.ledger.sites[0]),
        lambda run: run.sweep(),
        lambda run: run.restarted(),
    ],
)
def test_a_change_from_outside_voids_tokens_on_their_way(change):
    run = walked(3)
    token, site = run.token, run.state.schedule["at"]
    changed = change(run)
    refused(changed, token, site, "found a token of epoch 0")
    assert changed.token.epoch > token.epoch
    assert changed.advance(1).state.step == changed.state.step + 1


def test_a_site_leaves_when_the_token_reaches_it():
    run = walked(12)
    assert set(run.ledger.sites) == set(NAMES)
    leaving = run.forget("oak", when="visit")
    assert identical(leaving.posterior, run.posterior)
    assert leaving.sites == run.sites
    path = leaving.advance(40)
    visits = [visit.outcome for visit in path.trace[12:] if visit.site == "oak"]
    assert visits[0] == "forgotten"
    assert set(visits[1:]) == {"relayed"}
    assert identical(path.posterior, walked(12).forget("oak").posterior)
    assert "oak" not in leaving.converge().ledger.sites


# --- several tokens ----------------------------------------------------------------------------

entries = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        lambda epoch, sequence, gone: Entry(
            epoch, sequence, None if gone else Beta(1.0 + epoch, 1.0 + sequence)
        ),
        st.integers(0, 2),
        st.integers(0, 3),
        st.booleans(),
    ),
)


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_several_tokens_count_every_site_once(tokens):
    schedule = LedgerGossip(ring(list(NAMES)), tokens=tokens)
    run = federate(DATA, MODEL, PRIOR, schedule=schedule, steps=60)
    once = federate(DATA, MODEL, PRIOR, steps=1)
    assert identical(run.posterior, once.posterior)
    known = run.state.known["tokens"].values()
    assert all(set(token) == set(NAMES) for token in known)


def test_sites_that_two_tokens_visit_in_turn_converge():
    # Two tokens that share factors but not what they know of them drift apart for good.
    sites = logistic_sites()
    schedule = LedgerGossip(complete(list(NAMES)), tokens=2)
    run = federate(sites, LogisticRegression(), NORMAL, schedule=schedule, steps=120)
    assert len({visit.site for visit in run.trace}) == 4
    target = federate(sites, LogisticRegression(), NORMAL, steps=20).posterior
    assert float(run.posterior.kl(target)) < 1e-9
    for known in run.state.known["tokens"].values():
        own = run.state.with_entries(known).posterior
        assert float(own.kl(target)) < 1e-6
    # Refinement from outside reaches every token: nobody goes on from what it knew before.
    left = run.forget("oak").sweep(8)
    stay = {site: sites[site] for site in NAMES if site != "oak"}
    target = federate(stay, LogisticRegression(), NORMAL, steps=20).posterior
    assert float(left.posterior.kl(target)) < 1e-9
    later = left.advance(8)
    assert float(later.posterior.kl(target)) < 1e-9
    versions = [known["ash"].sequence for known in later.state.known["tokens"].values()]
    assert min(versions) >= left.ledger.entries["ash"].sequence


def test_a_map_that_is_no_distribution_is_not_worked_on():
    names, rng = ["a", "b"], np.random.default_rng(0)
    sites = {name: (rng.normal(size=(32, 2)), np.ones(32)) for name in names}
    schedule = LedgerGossip(ring(names), tokens=1)
    run = start(sites, LogisticRegression(), NORMAL, schedule=schedule)
    factor = lambda precision: Gaussian(np.zeros(2), precision * np.eye(2))
    prior = run.state.prior
    ledger = Ledger(prior).update("a", factor(5.0)).update("b", factor(-3.0))
    run = run.with_ledger(ledger)
    alone = {"tokens": {"0": {"b": run.state.entries["b"]}}, "sites": {}}
    run = dataclasses.replace(run, state=dataclasses.replace(run.state, known=alone))
    after = run.advance(1)
    assert after.trace[-1].outcome == "refused"
    assert identical(after.posterior, run.posterior)
    with pytest.raises(ParameterError, match="improper posterior without 'a'"):
        run.forget("a")


@pytest.mark.slow
def test_a_round_lasts_as_long_as_a_walk_to_all_sites():
    names = [f"{k:03}" for k in range(20)]
    for graph, expected in ((ring(names), 190), (complete(names), 67.4)):
        assert 0.75 * expected < Gossip(graph).round(20) < 1.25 * expected
    long = nx.path_graph([f"{k:03}" for k in range(300)])
    assert 50_000 < Gossip(long).round(300) <= 1 << 17
