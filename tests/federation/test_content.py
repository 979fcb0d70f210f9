"""What tells one function from another: its code and all that it refers to, in every process."""

import dataclasses
import functools
import subprocess
import sys
import threading
import types

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from beartype import beartype
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import jaxtyped

from posterity.errors import UsageError
from posterity.federation import versioned
from posterity.federation.content import content
from posterity.inference import LocalUpdate
from posterity.models import FunctionModel, LogisticRegression, NeuralNetwork

SOURCE = """
import functools
import jax
import jax.numpy as jnp
import numpy as np
import helpers
from posterity.models import PredictorModel

UNUSED = 1
SCALE = 5.0
TABLE = np.array([1.0, 2.0])
NAMES = {"south", "north", "west"}

def helper(z):
    return z * SCALE

def factorial(n):
    return 1 if n == 0 else n * factorial(n - 1)

def likelihood(z, x, power=2, *, shift=0.25):
    inner = lambda u: u + 0.5
    return -jnp.abs(helper(z) + inner(x) - TABLE.sum()) ** power + helpers.offset(z, factorial(3))

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n > 0 and even(n - 1)

def late(z, x):
    import helpers
    from helpers import twice as double
    return helpers.offset(z, x) + double(z) + late.scale

late.scale = 1.5

def closure(rate):
    weights = np.ones(3)
    def inside(z, x):
        return rate * z + weights.sum() + len(NAMES)
    return inside

class Base:
    def loss(self, z):
        return z + 1

class Likelihood(Base):
    bias = 3

    def __init__(self, width):
        self.width = width

    def __call__(self, z, x):
        return self.loss(z) * self.width + self.bias

class Regression(PredictorModel):
    slope: float = 2.0

    def predictor_log_likelihood(self, f, y):
        return helper(f) * self.slope

@jax.custom_jvp
def kinked(z):
    return jnp.abs(z)

kinked.defjvp(lambda primals, tangents: (primals[0], 0.5 * tangents[0]))

every = {
    "function": likelihood,
    "partial": functools.partial(likelihood, power=4),
    "closure": closure(0.3),
    "object": Likelihood(7),
    "method": Likelihood(7).__call__,
    "model": Regression(),
    "derivative": kinked,
    "mutual": even,
    "both": [odd, even],
    "late": late,
}
"""
HELPERS = """
def offset(z, n):
    return z - n

def other(z):
    return z

def twice(z):
    return 2 * z
"""


def module(name, source):
    made = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), made.__dict__)
    return made


def contents(monkeypatch, source=SOURCE, helpers=HELPERS):
    """The digests of all functions of these modules."""
    monkeypatch.setitem(sys.modules, "helpers", module("helpers", helpers))
    return {name: content(value) for name, value in module("likelihoods", source).every.items()}


EDITS = {
    "return z * SCALE": ("return z / SCALE", {"function", "partial", "model"}),
    "SCALE = 5.0": ("SCALE = 6.0", {"function", "partial", "model"}),
    "TABLE = np.array([1.0, 2.0])": ("TABLE = np.array([1.0, 3.0])", {"function", "partial"}),
    "u + 0.5": ("u + 0.6", {"function", "partial"}),
    "power=2": ("power=3", {"function", "partial"}),
    "shift=0.25": ("shift=0.5", {"function", "partial"}),
    "power=4": ("power=5", {"partial"}),
    "n * factorial(n - 1)": ("n + factorial(n - 1)", {"function", "partial"}),
    "closure(0.3)": ("closure(0.4)", {"closure"}),
    "np.ones(3)": ("np.zeros(3)", {"closure"}),
    '"west"': ('"east"', {"closure"}),
    "return z + 1": ("return z + 2", {"object", "method"}),
    "bias = 3": ("bias = 4", {"object", "method"}),
    'Likelihood(7),\n    "method"': ('Likelihood(8),\n    "method"', {"object"}),
    "Likelihood(7).__call__": ("Likelihood(8).__call__", {"method"}),
    "slope: float = 2.0": ("slope: float = 2.5", {"model"}),
    "* self.slope": ("- self.slope", {"model"}),
    "jnp.abs(z)": ("-jnp.abs(z)", {"derivative"}),
    "0.5 * tangents": ("0.6 * tangents", {"derivative"}),
    "n == 0 or odd": ("n == 1 or odd", {"mutual", "both"}),
    "n > 0 and even": ("n > 1 and even", {"mutual", "both"}),
    "late.scale = 1.5": ("late.scale = 2.5", {"late"}),
    "UNUSED = 1": ("# a remark\n\n\nUNUSED = 2", set()),
}


@pytest.mark.parametrize("old", EDITS)
def test_an_edit_is_noticed_where_it_matters_and_only_there(old, monkeypatch):
    new, touched = EDITS[old]
    assert SOURCE.count(old) == 1
    before = contents(monkeypatch)
    after = contents(monkeypatch, SOURCE.replace(old, new))
    assert {name for name in before if before[name] != after[name]} == touched
    assert len(set(before.values())) == len(before)


def test_a_module_counts_by_what_is_used_of_it(monkeypatch):
    before = contents(monkeypatch)
    edited = contents(monkeypatch, helpers=HELPERS.replace("z - n", "z + n"))
    users = {"function", "partial", "late"}
    assert {name for name in before if before[name] != edited[name]} == users
    edited = contents(monkeypatch, helpers=HELPERS.replace("2 * z", "3 * z"))
    assert {name for name in before if before[name] != edited[name]} == {"late"}
    assert contents(monkeypatch, helpers=HELPERS.replace("return z\n", "return -z\n")) == before


def test_functions_that_call_each_other_count_alike_in_any_order():
    made = module("likelihoods", CYCLES)
    one, two, three = made.one, made.two, made.three
    assert content({"a": one, "b": two}) == content({"b": two, "a": one})
    assert content([one, two]) != content([two, one])
    assert len({content(value) for value in (one, two, three)}) == 3
    assert content(one) == content(module("likelihoods", CYCLES).one)
    for old in ("x + 1", "x + 2", "x + 3"):
        edited = module("likelihoods", CYCLES.replace(old, "x - 1"))
        assert content(edited.one) != content(one)


CYCLES = """
def one(x):
    return two(x) + three(x + 1)

def two(x):
    return three(x + 2) + one(x)

def three(x):
    return one(x) + two(x + 3)
"""


@dataclasses.dataclass
class Scaled:
    scale: float

    def __post_init__(self):
        self._doubled = 2 * self.scale

    @functools.cached_property
    def tripled(self):
        return 3 * self.scale


class Bare:
    def __init__(self, scale):
        self._scale = scale

    @functools.cached_property
    def tripled(self):
        return 3 * self._scale


@pytest.mark.parametrize("kind, hidden", [(Scaled, "_doubled"), (Bare, "_scale")])
def test_hidden_attributes_count_and_cached_ones_do_not(kind, hidden):
    made, before = kind(1.0), content(kind(1.0))
    assert made.tripled == 3.0
    assert content(made) == before != content(kind(2.0))
    setattr(made, hidden, 7.0)
    assert content(made) != before


def quadratic(scale):
    return lambda z, x: -scale * (x - z[0]) ** 2


def network(scale):
    class Perceptron(nn.Module):
        @nn.compact
        def __call__(self, x):
            return scale * nn.Dense(1)(x)

    return NeuralNetwork(Perceptron().apply, {"w": np.zeros(4)}, likelihood="bernoulli")


def perceptron(scale):
    act = lambda x: jnp.tanh(scale * x)
    mlp = eqx.nn.MLP(2, 1, 3, 1, activation=act, key=jax.random.key(0))
    return NeuralNetwork.from_equinox(mlp, likelihood="bernoulli")


def typed(scale):
    @jaxtyped(typechecker=beartype)
    def loss(z: float, x: float) -> float:
        return -scale * (x - z) ** 2

    return loss


WRAPPED = {
    "lambda": quadratic,
    "model": lambda scale: FunctionModel(quadratic(scale)),
    "jit": lambda scale: jax.jit(quadratic(scale)),
    "filter_jit": lambda scale: eqx.filter_jit(quadratic(scale)),
    "vmap": lambda scale: jax.vmap(quadratic(scale), in_axes=(None, 0)),
    "axes": lambda scale: jax.vmap(quadratic(1.0), in_axes=(None, int(scale))),
    "grad": lambda scale: jax.grad(quadratic(scale)),
    "checkpoint": lambda scale: jax.checkpoint(quadratic(scale)),
    "cache": lambda scale: functools.cache(quadratic(scale)),
    "vectorize": lambda scale: np.vectorize(quadratic(scale)),
    "typed": typed,
    "bound": lambda scale: np.array([scale]).dot,
    "flax": network,
    "equinox": perceptron,
    "schedule": lambda scale: optax.exponential_decay(0.1, 10, scale / 4),
    "joined": lambda scale: optax.join_schedules([optax.constant_schedule(scale)] * 2, [3]),
    "rate": lambda scale: LocalUpdate(rate=optax.cosine_decay_schedule(0.1, int(scale))),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_is_wrapped_counts(name):
    make = WRAPPED[name]
    assert content(make(2.0)) == content(make(2.0)) != content(make(3.0))


PROGRAM = """
import sys
sys.path[:0] = {path!r}
from federation.test_content import HELPERS, SOURCE, WRAPPED, content, module
sys.modules["helpers"] = module("helpers", HELPERS)
print({{name: content(value) for name, value in module("likelihoods", SOURCE).every.items()}})
print({{name: content(make(2.0)) for name, make in WRAPPED.items()}})
"""


@pytest.mark.slow
def test_other_processes_find_the_same(monkeypatch):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(path=sys.path)],
        env={"PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    wrapped = {name: content(make(2.0)) for name, make in WRAPPED.items()}
    assert done.stdout == f"{contents(monkeypatch)}\n{wrapped}\n"


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
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
    told = lambda value: repr(_in_order(value))
    assert (content(one) == content(other)) == (told(one) == told(other))


def _in_order(value):
    if isinstance(value, dict):
        return {name: _in_order(value[name]) for name in sorted(value)}
    return type(value)(map(_in_order, value)) if isinstance(value, list | tuple) else value


def test_arrays_count_by_type_shape_and_numbers():
    arrays = [np.zeros(4), np.zeros((2, 2)), np.zeros(4, np.float32), np.ones(4), np.zeros(0)]
    assert len({content(array) for array in arrays}) == len(arrays)
    assert content(np.arange(6).reshape(2, 3).T) == content(np.arange(6).reshape(2, 3).T.copy())
    assert content(jnp.ones(2)) == content(np.ones(2, np.float32))
    assert content(jax.random.key(1)) != content(jax.random.key(2))
    assert content(np.ma.array([1, 2], mask=[0, 1])) != content(np.ma.array([1, 2], mask=[1, 1]))


OPAQUE = {
    "lock": threading.Lock(),
    "generator": (n for n in [1]),
    "ufunc": np.frompyfunc(lambda x: x, 1, 1),
    "hidden": functools.partial(lambda lock, z, x: z, threading.Lock()),
}


@pytest.mark.parametrize("value", OPAQUE.values(), ids=list(OPAQUE))
def test_what_cannot_be_compared_needs_a_version(value):
    with pytest.raises(UsageError, match=r"cannot be compared.*versioned"):
        content(value)


def test_a_version_stands_for_the_code():
    with_lock = functools.partial(lambda lock, z, x: z + x, threading.Lock())
    functools.update_wrapper(with_lock, quadratic)
    one, same, two = (versioned(version)(with_lock) for version in ("1", "1", "2"))
    assert one(1.0, 2.0) == 3.0
    assert content(one) == content(same) != content(two)
    assert content(FunctionModel(one)) != content(FunctionModel(two))
    assert content(versioned("1")(quadratic)) != content(versioned("1")(network))


def test_models_of_the_library_count_by_name():
    assert content(LogisticRegression()) == content(LogisticRegression())
