"""A call of posterity leaves the process as it found it: peers compute the same bits before it and
after it, and what a process has set is set as before.
"""

import logging
import os
import random
import signal
import threading
import warnings

import blackjax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import MCMC, NUTS
from sklearn.linear_model import LogisticRegression as SklearnLogistic
from threadpoolctl import threadpool_info

import posterity
from posterity import Gaussian, models
from posterity.adapters.numpyro import joint
from posterity.distillation import Langevin
from posterity.families import stack
from posterity.tabular.estimators import FederatedLogisticRegression

try:  # its releases lag behind JAX's: pip install --pre tfp-nightly
    from tensorflow_probability.substrates import jax as tfp
except ImportError:
    tfp = None

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:posterity", "ignore::UserWarning")

RNG = np.random.default_rng(0)
Y = RNG.normal(size=6)  # float64, as data are, of which JAX makes constants
ERRORS = RNG.uniform(0.5, 1.5, size=6)
X = RNG.normal(size=(20, 2))
LABELS = (X[:, 0] > 0).astype(float)
BASE = Gaussian.from_standard(np.zeros(2), np.eye(2))
WEIGHTS = {"w": jnp.full((2, 1), 0.1)}


def density(z):
    """The caller's own log density, of data in its closure."""
    return -0.5 * jnp.sum(((Y - z[0]) / ERRORS) ** 2) - 0.5 * jnp.sum(z**2)


compiled = jax.jit(density)


def likelihood(z, batch):
    """The caller's own log likelihood, which uses data of the closure beside the records."""
    x, y = batch
    return -0.5 * (y - x @ z - Y.mean()) ** 2 * ERRORS[0]


compiled_likelihood = jax.jit(lambda z, batch: likelihood(z, batch) + 0 * jnp.sum(Y))


class Caching:
    """A log density that keeps its last intermediate, as libraries of bijections do."""

    def __init__(self):
        self.last = None

    def __call__(self, z):
        self.last = z * 1.0
        return density(self.last)


caching = Caching()


def eight_schools():
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    numpyro.sample("y", dist.Normal(mean, ERRORS), obs=Y)


def of_bijectors(z):
    """A density by TensorFlow Probability, whose bijectors keep what they last computed."""
    scaled = BIJECTORS["scale"].forward(z)
    law = tfp.distributions.Independent(tfp.distributions.Normal(0.0, 1.0 + 0 * z), 1)
    return law.log_prob(scaled) + jnp.sum((Y - scaled[0]) ** 2) * -0.5


BIJECTORS = {"scale": None if tfp is None else tfp.bijectors.Softplus()}


# --- peers, each with what it computes ------------------------------------------------------------


def own_functions():
    z = jnp.full(2, 0.1)
    batch = (jnp.asarray(X), jnp.asarray(LABELS))
    return density(z), compiled(z), jax.grad(density)(z), compiled_likelihood(z, batch), caching(z)


def numpyro_nuts():
    chain = MCMC(NUTS(eight_schools), num_warmup=20, num_samples=20, progress_bar=False)
    chain.run(jax.random.key(0))
    return chain.get_samples()


def blackjax_nuts():
    kernel = blackjax.nuts(density, step_size=0.3, inverse_mass_matrix=jnp.ones(2))
    state = kernel.init(jnp.zeros(2))
    state, _ = jax.jit(kernel.step)(jax.random.key(1), state)
    return state.position


def flax_training():
    network = nn.Dense(1)
    parameters = network.init(jax.random.key(0), X)
    optimiser = optax.adam(0.1)
    state = optimiser.init(parameters)

    @jax.jit
    def step(parameters, state):
        loss = lambda own: jnp.mean((network.apply(own, X)[:, 0] - LABELS) ** 2)
        moves, state = optimiser.update(jax.grad(loss)(parameters), state)
        return optax.apply_updates(parameters, moves), state

    for _ in range(3):
        parameters, state = step(parameters, state)
    return parameters


def scikit_learn():
    fitted = SklearnLogistic().fit(X, LABELS)
    return fitted.coef_, np.linalg.inv(X.T @ X)


def tensorflow_probability():
    if tfp is None:
        return ()
    z = jnp.full(2, 0.1)
    return of_bijectors(z), jax.jit(jax.grad(of_bijectors))(z)


def random_numbers():
    """What the global generators give next; they are put back."""
    before = np.random.get_state(), random.getstate()
    drawn = np.random.random(), random.random()
    np.random.set_state(before[0])
    random.setstate(before[1])
    return drawn


PEERS = (
    own_functions,
    numpyro_nuts,
    blackjax_nuts,
    flax_training,
    scikit_learn,
    tensorflow_probability,
    random_numbers,
)


def bits(peer):
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(peer())]
    return [(leaf.dtype, leaf.shape, leaf.tobytes()) for leaf in leaves]


# --- what a process has set -----------------------------------------------------------------------


def settings():
    """Flags, filters, handlers and numbers of threads that a call might change."""
    root = logging.getLogger()
    return {
        "JAX": dict(jax.config.values),
        "warnings": list(warnings.filters),
        "signals": {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)},
        "logging": (root.level, list(root.handlers), logging.root.manager.disable),
        "NumPy": (np.geterr(), np.get_printoptions()),
        "environment": dict(os.environ),
        "BLAS": [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()],
        "threads": threading.active_count(),
        "folder": os.getcwd(),
    }


# --- verbs ----------------------------------------------------------------------------------------


def sites():
    return {"a": (X, LABELS), "b": (X[::-1], LABELS)}


PLATE = posterity.Plate(stack([BASE, BASE * 2]))


def fused():
    return posterity.fuse({"a": BASE, "b": BASE * 2}, prior=BASE)


VERBS = {
    "pursue": lambda: posterity.pursue(density, BASE, components=2),
    "pursue, compiled": lambda: posterity.pursue(compiled, BASE, components=1),
    "pursue, caching": lambda: posterity.pursue(caching, BASE, components=1),
    "pursue, NumPyro": lambda: posterity.pursue(joint(eight_schools), "full", components=1),
    "pursue, TFP": lambda: posterity.pursue(of_bijectors, BASE, components=1),
    "federate": lambda: posterity.federate(sites(), likelihood, BASE),
    "federate, compiled": lambda: posterity.federate(sites(), compiled_likelihood, BASE),
    "forget": lambda: posterity.forget(posterity.federate(sites(), likelihood, BASE), "b"),
    "fuse": fused,
    "report": lambda: posterity.report(fused(), title="guests"),
    "estimator": lambda: FederatedLogisticRegression().fit(X, LABELS, sites=np.arange(20) % 2),
    "chains": lambda: Langevin(
        models.FunctionModel(likelihood), BASE, (X, LABELS), chains=2
    ).sample(2),
    "distill": lambda: posterity.distill(
        BASE, model=models.LogisticRegression(), inputs=X, steps=20, tolerance=10.0
    ),
}


@pytest.fixture(scope="module")
def before():
    return {peer: bits(peer) for peer in PEERS}


NEEDED = pytest.mark.skipif(
    tfp is None, reason="no TensorFlow Probability: pip install tfp-nightly"
)
LONG = {"pursue, NumPyro", "federate, compiled", "pursue, compiled"}


def case(verb):
    marks = [NEEDED] if "TFP" in verb else [pytest.mark.slow] if verb in LONG else []
    return pytest.param(verb, marks=marks)


CASES = [case(verb) for verb in VERBS]


@pytest.mark.slow
@pytest.mark.parametrize("verb", CASES)
def test_a_verb_leaves_the_process_as_it_was(verb, before):
    found = settings()
    VERBS[verb]()
    assert settings() == found
    for peer in PEERS:
        assert bits(peer) == before[peer], peer.__name__
