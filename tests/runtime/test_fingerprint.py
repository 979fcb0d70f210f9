"""Digests of arguments: by content where it is declared, by name and version where it is code."""

import dataclasses
import functools
import subprocess
import sys
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.artifact.checkpoint import of_arguments, opened
from posterity.errors import CheckpointWarning
from posterity.models import FunctionModel, LogisticRegression, Model, NeuralNetwork
from posterity.runtime.fingerprint import digest, unversioned, versioned


@dataclasses.dataclass
class Scaled:
    scale: float

    @functools.cached_property
    def tripled(self):
        return 3 * self.scale


def quadratic(scale):
    return lambda z, x: -scale * (x - z[0]) ** 2


def perceptron(scale):
    mlp = eqx.nn.MLP(2, 1, 3, 1, activation=jnp.tanh, key=jax.random.key(0))
    return jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, scale) if eqx.is_array(leaf) else leaf, mlp
    )


@versioned("1")
def known(z, x):
    return -((x - z[0]) ** 2)


@versioned("2")
class Known(Model):
    def log_likelihood(self, z, data):
        return -((data - z[0]) ** 2)


class Own(Model):
    def log_likelihood(self, z, data):
        return -((data - z[0]) ** 2)


DECLARED = {
    "dataclass": Scaled,
    "partial": lambda scale: functools.partial(known, scale),
    "equinox": perceptron,
    "tree": lambda scale: {"rates": [scale, 1.0]},
    "version": lambda scale: versioned(str(scale))(quadratic(1.0)),
    "method": lambda scale: Scaled(scale).__repr__,
    "model": lambda scale: FunctionModel(known, noise_variance=scale),
}


@pytest.mark.parametrize("name", DECLARED)
def test_what_is_declared_counts(name):
    make = DECLARED[name]
    assert digest(make(2.0)) == digest(make(2.0)) != digest(make(3.0))


def test_what_is_kept_for_later_does_not_count():
    one = Scaled(1.0)
    assert one.tripled == 3.0
    assert digest(one) == digest(Scaled(1.0))


UNKNOWN = {
    "lambda": quadratic(1.0),
    "function": quadratic,
    "a class": Own(),
    "options in a closure": optax.adam(0.1),
    "compiled": jax.jit(quadratic(1.0)),
    "a lock": threading.Lock(),
    "in a partial": functools.partial(known, threading.Lock()),
    "in a model": FunctionModel(quadratic(1.0)),
}
NAMED = [known, Known(), FunctionModel(known), LogisticRegression(), jnp.tanh, np.exp, len, Scaled]


@pytest.mark.parametrize("name", UNKNOWN)
def test_code_that_may_have_changed_is_named(name):
    assert unversioned(UNKNOWN[name])


def test_code_of_packages_and_with_a_version_is_known():
    network = NeuralNetwork.from_equinox(perceptron(1.0), likelihood="bernoulli")
    assert unversioned(NAMED[:-1]) == ()
    assert unversioned(Scaled) == (f"{__name__}.Scaled",)
    assert unversioned(network) != ()  # a function within a function


def test_a_checkpoint_says_which_functions_may_have_changed(tmp_path):
    path = tmp_path / "run"
    for model, warned in ((known, False), (quadratic(1.0), True)):
        path.unlink(missing_ok=True)
        with opened(path, "test", {"model": model}) as checkpoint:
            assert checkpoint.load() is None
            checkpoint.save({"leaf": np.ones(1)}, {})
        again = of_arguments(path, "test", {"model": model})
        if warned:
            with pytest.warns(CheckpointWarning, match=r"quadratic.<locals>.<lambda> may have"):
                again.load()
        else:
            again.load()


PROGRAM = """
import sys
sys.path[:0] = {path!r}
from runtime.test_fingerprint import DECLARED, NAMED, digest
print([digest(make(2.0)) for make in DECLARED.values()] + [digest(NAMED)])
"""


@pytest.mark.slow
def test_other_processes_find_the_same():
    # The functions' module is that of the other process.
    from runtime.test_fingerprint import DECLARED, NAMED

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(path=sys.path)],
        env={"PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{[digest(make(2.0)) for make in DECLARED.values()] + [digest(NAMED)]}\n"


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(PLAIN, PLAIN)
def test_plain_data_are_told_apart(one, other):
    # By way of text, which tells 1 from 1.0 and from True, and 0.0 from -0.0.
    text = lambda value: repr(_in_order(value))
    assert (digest(one) == digest(other)) == (text(one) == text(other))


def _in_order(value):
    if isinstance(value, dict):
        return {name: _in_order(value[name]) for name in sorted(value)}
    return type(value)(map(_in_order, value)) if isinstance(value, list | tuple) else value


def test_arrays_count_by_type_shape_and_numbers():
    arrays = [np.zeros(4), np.zeros((2, 2)), np.zeros(4, np.float32), np.ones(4), np.zeros(0)]
    arrays += [np.zeros(1), np.zeros(())]
    assert len({digest(array) for array in arrays}) == len(arrays)
    assert digest(np.arange(6).reshape(2, 3).T) == digest(np.arange(6).reshape(2, 3).T.copy())
    assert digest(jnp.ones(2)) == digest(np.ones(2, np.float32))
    assert digest(jax.random.key(1)) != digest(jax.random.key(2))
    assert digest(np.ma.array([1, 2], mask=[0, 1])) != digest(np.ma.array([1, 2], mask=[1, 1]))
    assert digest(np.array(["a", None], object)) != digest(np.array(["b", None], object))
