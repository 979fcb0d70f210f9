import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federation.examples import CONJUGATE, NAMES

from experiments.gfvl.simulate import Leave, simulate
from experiments.gfvl.walks import positions
from posterity.errors import (
    ConvergenceWarning,
    ParameterError,
    SiteError,
    StructureError,
    UsageError,
)
from posterity.families import Beta, Gaussian
from posterity.federation import federate
from posterity.federation.federate import start
from posterity.federation.schedules import Schedule
from posterity.graphs import MetropolisHastings, Network, NonBacktracking, complete, ring
from posterity.inference import LocalUpdate
from posterity.inference.estimators import PredictorQuadrature
from posterity.models import BetaBernoulli, BetaExponential, LogisticRegression

pytestmark = pytest.mark.experiment

KEY = jax.random.key(0)
VISITS = 12
WAITS = {name: np.random.default_rng(k).exponential(0.3, 2 + 3 * k) for k, name in enumerate(NAMES)}


@dataclasses.dataclass(frozen=True)
class Follow(Schedule):
    """Visits in a given order."""

    path: Any

    def turns(self, agreed, state):
        return (self.path[state.step],)


def followed(data, model, prior, path, leave=None):
    """Natural parameters before and after each visit, by the protocol itself."""
    run = start(data, model, prior, schedule=Follow([NAMES[k] for k in path]))
    trace = [run.posterior.natural_parameters]
    for step, site in enumerate(path):
        if leave is not None and step == leave.visit and leave.asked:
            run = run.forget(leave.site)
        reached = NAMES[site] == leave.site if leave is not None else False
        if reached and step >= leave.visit and leave.site in run.sites:
            run = run.forget(leave.site)
        run = run.advance(1)
        trace.append(run.posterior.natural_parameters)
    return np.stack(trace)


LEAVING = [None, Leave("elm", 5), Leave("elm", 5, asked=True), Leave("elm", 0), Leave("oak", 11)]


@pytest.mark.parametrize("name", CONJUGATE)
@pytest.mark.parametrize("leave", LEAVING[:3])
def test_conjugate_walks_are_those_of_the_protocol(name, leave):
    model, prior, data = CONJUGATE[name]
    trial = simulate(
        data, model, prior, complete(list(NAMES)),
        visits=VISITS, repetitions=2, leave=leave, key=KEY,
    )  # fmt: skip
    for walk, found in zip(trial.positions, trial.parameters, strict=True):
        expected = followed(data, model, prior, walk, leave)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "leave",
    [
        *LEAVING[2:3],
        *(pytest.param(one, marks=pytest.mark.slow) for one in LEAVING[:2] + LEAVING[3:]),
    ],
)
def test_other_walks_are_those_of_the_protocol(leave):
    prior = Beta.from_standard(3.0, 3.0)
    trial = simulate(
        WAITS, BetaExponential(), prior, complete(list(NAMES)),
        visits=VISITS, repetitions=2, leave=leave, key=KEY,
    )  # fmt: skip
    for walk, found in zip(trial.positions, trial.parameters, strict=True):
        expected = followed(WAITS, BetaExponential(), prior, walk, leave)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("conjugate", "every"),
    [(True, 1), (True, 5), (True, VISITS), pytest.param(False, 5, marks=pytest.mark.slow)],
)
def test_some_records_are_kept(conjugate, every):
    model, prior, data = CONJUGATE["Beta"]
    if not conjugate:
        model, prior, data = BetaExponential(), Beta.from_standard(3.0, 3.0), WAITS
    make = lambda every: simulate(
        data, model, prior, ring(list(NAMES)), visits=VISITS, repetitions=2, every=every, key=KEY
    )
    all_, some = make(1), make(every)
    np.testing.assert_array_equal(some.visits, np.arange(0, VISITS + 1, every))
    np.testing.assert_array_equal(some.positions, all_.positions)
    np.testing.assert_allclose(some.parameters, all_.parameters[:, ::every], rtol=1e-12)
    assert some.posteriors.batch_shape == (2, len(some.visits))


def test_sites_without_data_and_weights_and_starts():
    data = {"ash": np.ones(3), "elm": None, "fir": np.zeros(0), "oak": np.zeros(1)}
    trial = simulate(
        data, BetaBernoulli(), Beta(0.0, 0.0), ring(list(NAMES)), visits=60, repetitions=5,
        weights={"ash": 2.0}, first="fir", walk=NonBacktracking(), key=KEY,
    )  # fmt: skip
    assert (trial.positions[:, 0] == 2).all()
    last = trial.posteriors[:, -1].standard_parameters()
    np.testing.assert_array_equal(last["a"], 7.0)
    np.testing.assert_array_equal(last["b"], 2.0)


def test_walks_are_those_of_positions_and_keys():
    network = Network.from_graph(ring(list(NAMES)))
    model, prior, data = CONJUGATE["Beta"]
    usual = {"visits": VISITS, "repetitions": 3}
    one = simulate(data, model, prior, network, key=KEY, **usual)
    again = simulate(data, model, prior, ring(list(NAMES)), key=KEY, **usual)
    other = simulate(data, model, prior, network, key=jax.random.key(1), **usual)
    np.testing.assert_array_equal(one.parameters, again.parameters)
    assert (one.positions != other.positions).any()
    walked = positions(
        network, MetropolisHastings(), hops=VISITS - 1, repetitions=3,
        key=jax.random.split(KEY)[0],
    )  # fmt: skip
    np.testing.assert_array_equal(one.positions, walked)


def test_where_all_were_visited_the_posterior_is_that_of_all_data():
    model, prior, data = CONJUGATE["Gaussian"]
    trial = simulate(
        data, model, prior, complete(list(NAMES)), visits=100, repetitions=3, every=100, key=KEY
    )
    whole = federate(data, model, prior, steps=1).posterior.natural_parameters
    np.testing.assert_allclose(trial.parameters[:, -1], np.stack([whole] * 3), rtol=1e-6)


class Odd(BetaBernoulli):
    """Sees NaN where there are many records."""

    def factor(self, records):
        return super().factor(records) * jnp.where(records.weights.sum() > 3, jnp.nan, 1.0)


@pytest.mark.parametrize(
    "model",
    [Odd(), pytest.param(lambda z, x: x * jnp.log(z) + jnp.log(x - 0.5), marks=pytest.mark.slow)],
)
def test_a_site_that_gives_nan_is_named(model):
    data = {"ash": np.ones(2), "elm": np.ones(3), "fir": np.zeros(4), "oak": np.ones(1)}
    usual = {"visits": VISITS, "repetitions": 3, "key": KEY}
    prior = Beta.from_standard(2.0, 2.0)
    update = None if isinstance(model, Odd) else LocalUpdate(steps=2)
    with pytest.raises(SiteError, match="site 'fir'"):
        simulate(data, model, prior, complete(list(NAMES)), update=update, **usual)
    with pytest.raises(SiteError, match="site 'fir'"):
        federate(data, model, prior, steps=1, update=update)


def test_what_a_site_holds_is_refused_by_name_among_many():
    data = {f"site {k}": np.ones(3) for k in range(5)} | {"site 3": np.array([1.0, 2.0, 0.0])}
    with pytest.raises(ParameterError, match="'site 3'"):
        start(data, BetaBernoulli(), Beta.from_standard(1.0, 1.0))


@pytest.mark.slow
def test_sums_over_too_few_nodes_are_said():
    rng = np.random.default_rng(0)
    data = {name: (rng.normal(size=(5, 1)), np.array([0, 1, 1, 0, 1])) for name in "abc"}
    prior = Gaussian.from_standard(np.zeros(1), 1e3 * np.eye(1))
    update = LocalUpdate(PredictorQuadrature(nodes=8))
    walk = {"visits": 6, "repetitions": 1, "update": update, "key": KEY}
    with pytest.warns(ConvergenceWarning, match="nodes"):
        simulate(data, LogisticRegression(), prior, ring(list("abc")), **walk)


MODEL, PRIOR, COINS = CONJUGATE["Beta"]
REFUSED = {
    "a visit below 24": {"leave": Leave("elm", 24)},
    "'yew'": {"leave": Leave("yew", 1)},
    "a site without a node": {"graph": ring(["ash"])},
    "a site with data": {"sites": dict.fromkeys(NAMES)},
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_cannot_be_simulated(says):
    usual = {"graph": ring(list(NAMES)), "sites": COINS, "visits": 24, "repetitions": 2, "key": KEY}
    with pytest.raises((UsageError, StructureError), match=re.escape(says)):
        simulate(model=MODEL, prior=PRIOR, **(usual | REFUSED[says]))
