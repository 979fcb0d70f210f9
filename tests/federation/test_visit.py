"""What a site does of a visit, what crosses to other processes, and that both give the same."""

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federation.examples import CONJUGATE, NORMAL, SCHEDULES, flips, logistic_sites, snapshot
from laws.table import identical

from posterity.errors import ParameterError, SiteError
from posterity.families import Beta, at_rest
from posterity.federation import Gossip
from posterity.federation.federate import start
from posterity.federation.keys import site_key
from posterity.federation.messages import Improve
from posterity.federation.state import answered, commit
from posterity.graphs import ring
from posterity.inference import LocalUpdate, VariationalOnlineNewton
from posterity.models import LogisticRegression, NeuralNetwork

KEY = jax.random.key(3)


def hidden_layer(parameters, x):
    return jnp.tanh(x @ parameters["first"]) @ parameters["last"]


NETWORK = NeuralNetwork(
    hidden_layer, {"first": np.zeros((2, 3)), "last": np.zeros((3, 1))}, likelihood="bernoulli"
)
NOISY = LocalUpdate(VariationalOnlineNewton(4), steps=2, rate=0.1)
SETTINGS = {
    "conjugate": CONJUGATE["NormalWishart"][:2],
    "quadrature": (LogisticRegression(), NORMAL),
    "network": (NETWORK, NETWORK.prior(key=jax.random.key(0))),
}


def begun(name, **options):
    model, prior = SETTINGS[name]
    sites = CONJUGATE["NormalWishart"].sites if name == "conjugate" else logistic_sites()
    update = NOISY if name == "network" else None
    return start(sites, model, prior, update=update, key=KEY, **options)


@pytest.fixture(scope="module")
def pool():
    """A process that shares nothing with this one."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as executor:
        yield executor


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_site_elsewhere_proposes_what_the_visit_commits(name, pool):
    run = begun(name).advance(1)
    federation, state, site, key = run.federation, run.state, "elm", site_key(KEY, "elm")
    problem, count = federation.sites[site], state.counts[site]
    others = jax.tree.leaves(federation.sites["oak"].records.data)
    assert not any(leaf.tobytes() in pickle.dumps(problem) for leaf in others)
    asked = pool.submit(problem.improve, state.posterior, state.factor(site), count, key=key)
    here = problem.improve(state.posterior, state.factor(site), count, key=key)
    there = asked.result()
    assert identical(here.factor, there.factor)
    assert here == there
    assert identical(here.factor, at_rest(here.factor))
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(here.factor))
    question = Improve(site, state.posterior, state.factor(site), count, key)
    after, happened = answered(run.agreement, state, federation.ask(question))
    committed, halvings = commit(run.agreement, state, site, there.factor)
    assert committed == after
    assert happened.halvings == there.halvings + halvings
    assert happened.residual == there.residual


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_runs_go_on_in_another_process(schedule, pool):
    run = begun("conjugate", schedule=SCHEDULES[schedule]).advance(3).forget("oak")
    there = pool.submit(type(run).advance, run, 4).result()
    assert snapshot(there) == snapshot(run.advance(4))
    assert there.trace == run.advance(4).trace
    assert snapshot(copy.deepcopy(run)) == snapshot(run)
    assert snapshot(copy.deepcopy(run).advance(4)) == snapshot(there)


@pytest.mark.slow
def test_an_error_elsewhere_comes_back_with_the_run_to_go_on_from(pool):
    data = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, -1.0])}
    run = start(data, flips, Beta.from_standard(2.0, 2.0), schedule=Gossip(ring(["a", "b"])))
    with pytest.raises(SiteError, match=r"gradient .* of site 'b'") as caught:
        pool.submit(type(run).advance, run, 20).result()
    there = caught.value.run
    assert snapshot(there) == snapshot(run.advance(there.state.step))
    problem = run.federation.sites["b"]
    with pytest.raises(ParameterError, match="gradient"):
        pool.submit(problem.improve, run.posterior, run.state.factor("b"), key=KEY).result()
