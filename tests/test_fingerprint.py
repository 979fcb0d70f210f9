"""What tells one function from another: its source and all that it refers to, in every process."""

import dataclasses
import functools
import importlib.util
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

import posterity
from posterity.errors import UsageError
from posterity.families import DiagonalGaussian
from posterity.fingerprint import digest, digests, renew_programs, versioned
from posterity.models import FunctionModel, LogisticRegression, Model, NeuralNetwork

SOURCE = """
import functools
import jax
import jax.numpy as jnp
import numpy as np
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
    return -jnp.abs(helper(z) + inner(x) - TABLE.sum()) ** power + factorial(3)

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n > 0 and even(n - 1)

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
        return f * self.slope

every = {
    "function": likelihood,
    "partial": functools.partial(likelihood, power=4),
    "closure": closure(0.3),
    "object": Likelihood(7),
    "method": Likelihood(7).__call__,
    "model": Regression(),
    "mutual": even,
    "both": [odd, even],
}
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function that imports a source and gives the digests of what it defines."""

    def make(source):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        path = folder / "likelihoods.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("likelihoods", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "likelihoods", module)
        spec.loader.exec_module(module)
        return {name: digest(value) for name, value in module.every.items()}

    return make


EDITS = {
    "return z * SCALE": ("return z / SCALE", {"function", "partial"}),
    "SCALE = 5.0": ("SCALE = 6.0", {"function", "partial"}),
    "TABLE = np.array([1.0, 2.0])": ("TABLE = np.array([1.0, 3.0])", {"function", "partial"}),
    "u + 0.5": ("u + 0.6", {"function", "partial"}),
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
    "n == 0 or odd": ("n == 1 or odd", {"mutual", "both"}),
    "n > 0 and even": ("n > 1 and even", {"mutual", "both"}),
    "UNUSED = 1": ("# a remark\n\n\nUNUSED = 2", set()),
}


def test_an_edit_is_noticed_where_it_matters_and_only_there(made):
    before = made(SOURCE)
    assert len(set(before.values())) == len(before)
    for old, (new, touched) in EDITS.items():
        assert SOURCE.count(old) == 1
        after = made(SOURCE.replace(old, new))
        assert {name for name in before if before[name] != after[name]} == touched, old


def test_bytecode_does_not_count(made):
    # The same source compiled differently: asserts are left out, as another Python would emit
    # other instructions.
    source = "def loss(z):\n    assert z\n    return z\nevery = {'loss': loss}\n"
    program = (
        "import importlib.util, sys; from posterity.fingerprint import digest;"
        "spec = importlib.util.spec_from_file_location('likelihoods', sys.argv[1]);"
        "module = importlib.util.module_from_spec(spec); sys.modules['likelihoods'] = module;"
        "spec.loader.exec_module(module); print(digest(module.loss))"
    )
    here = made(source)["loss"]
    file = sys.modules["likelihoods"].__file__
    done = subprocess.run(
        [sys.executable, "-O", "-c", program, str(file)],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.stdout.strip() == here


@dataclasses.dataclass
class Scaled:
    scale: float

    @functools.cached_property
    def tripled(self):
        return 3 * self.scale


class Bare:
    def __init__(self, scale):
        self._scale = scale

    @functools.cached_property
    def tripled(self):
        return 3 * self._scale


@pytest.mark.parametrize("kind", [Scaled, Bare])
def test_what_is_held_counts_and_what_is_cached_does_not(kind):
    one, before = kind(1.0), digest(kind(1.0))
    assert one.tripled == 3.0
    assert digest(one) == before != digest(kind(2.0))


def quadratic(scale):
    return lambda z, x: -scale * (x - z[0]) ** 2


def network(scale):
    class Perceptron(nn.Module):
        width: int = 1

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.width)(x)

    apply = Perceptron(int(scale)).apply
    return NeuralNetwork(apply, {"w": np.zeros(4)}, likelihood="bernoulli")


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
    "cache": lambda scale: functools.cache(quadratic(scale)),
    "typed": typed,
    "flax": network,
    "equinox": perceptron,
    "schedule": lambda scale: optax.exponential_decay(0.1, 10, scale / 4),
    "joined": lambda scale: optax.join_schedules([optax.constant_schedule(scale)] * 2, [3]),
    "optimiser": lambda scale: optax.chain(optax.clip(1.0), optax.adam(scale)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_is_wrapped_counts(name):
    make = WRAPPED[name]
    assert digest(make(2.0)) == digest(make(2.0)) != digest(make(3.0))


PROGRAM = """
import sys
sys.path[:0] = {path!r}
from test_fingerprint import WRAPPED, digest
print({{name: digest(make(2.0)) for name, make in WRAPPED.items()}})
"""


@pytest.mark.slow
def test_other_processes_find_the_same():
    from test_fingerprint import WRAPPED  # the functions' module is the other process's, too

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(path=sys.path)],
        env={"PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{ {name: digest(make(2.0)) for name, make in WRAPPED.items()} }\n"


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


OPAQUE = {
    "lock": threading.Lock(),
    "generator": (n for n in [1]),
    "ufunc": np.frompyfunc(abs, 1, 1),
    "hidden": functools.partial(quadratic, threading.Lock()),
    "nameless": eval("lambda z: z"),
    "crowded": (lambda z: z, lambda z: 2 * z)[0],
}


@pytest.mark.parametrize("value", OPAQUE.values(), ids=list(OPAQUE))
def test_what_cannot_be_compared_needs_a_version(value):
    with pytest.raises(UsageError, match=r"in the model; .*Wrap.*versioned"):
        digests({"model": value})


def test_a_version_stands_for_the_source():
    with_lock = functools.partial(quadratic, threading.Lock())
    functools.update_wrapper(with_lock, quadratic)
    one, same, two = (versioned(version)(with_lock) for version in ("1", "1", "2"))
    assert digest(one) == digest(same) != digest(two)
    assert digest(FunctionModel(one)) != digest(FunctionModel(two))
    assert digest(versioned("1")(quadratic)) != digest(versioned("1")(network))


def test_models_of_the_library_count_by_name():
    assert digest(LogisticRegression()) == digest(LogisticRegression())


class Holder:
    centre = 1.0


class Centred:
    def __init__(self, centre):
        self.centre = centre

    def density(self, z):
        return -((z - self.centre) ** 2)

    def __call__(self, z):
        return -((z - SHIFT * self.centre) ** 2)


class Shifted(Model):
    def log_likelihood(self, z, data):
        return -((z - SHIFT) ** 2) + 0 * data


SHIFT, CENTRE, HELD, OWN = 1.0, np.array([1.0]), Holder(), types.ModuleType("a_users_module")
OWN.SHIFT = 1.0  # type: ignore[attr-defined]
by_global = lambda z: -((z - SHIFT) ** 2)
by_helper = lambda z: 1 * by_global(z)
by_array = lambda z: -((z - CENTRE[0]) ** 2)
by_class = lambda z: -((z - HELD.centre) ** 2)
by_module = lambda z: -((z - OWN.SHIFT) ** 2)
centred = Centred(1.0)
compiled = jax.jit(by_global)


def set_global():
    globals()["SHIFT"] = 2.0


CHANGES = {
    "global": (by_global, set_global),
    "helper": (by_helper, set_global),
    "compiled": (compiled, set_global),
    "partial": (functools.partial(by_global), set_global),
    "Partial": (jax.tree_util.Partial(by_global), set_global),
    "array": (by_array, lambda: CENTRE.fill(2.0)),
    "class": (by_class, lambda: setattr(Holder, "centre", 2.0)),
    "object": (by_class, lambda: setattr(HELD, "centre", 2.0)),
    "module": (by_module, lambda: setattr(OWN, "SHIFT", 2.0)),
    "method": (centred.density, lambda: setattr(centred, "centre", 2.0)),
    "callable": (centred, lambda: setattr(centred, "centre", 2.0)),
    "its method": (centred, set_global),
    "model": (FunctionModel(lambda z, x: by_global(z)), set_global),
    "own model": (Shifted(), set_global),
}


@pytest.fixture
def restored():
    yield
    globals()["SHIFT"] = OWN.SHIFT = Holder.centre = centred.centre = 1.0  # type: ignore[attr-defined]
    CENTRE.fill(1.0)
    vars(HELD).clear()


@pytest.mark.parametrize("name", CHANGES)
def test_programs_are_renewed_where_data_changed(name, restored):
    function, change = CHANGES[name]
    called = function if callable(function) else lambda z: function.log_likelihood(z, 0.0)
    program = jax.jit(lambda z: called(z))
    renew_programs(function, Centred, double=True)
    assert program(1.0) == 0.0
    renew_programs(function, double=True)
    renew_programs(Centred(3.0), lambda z: z, LogisticRegression(), double=True)
    assert program._cache_size() == 1  # nothing has changed
    change()
    renew_programs(function, double=True)
    assert program(1.0) == -1.0


def test_arrays_have_the_digits_of_the_precision_they_are_used_in():
    data, subtract = np.array([1e9 + 0.25, 3.0]), jax.jit(jax.lax.sub)
    called = lambda z: subtract(z * np.ones(2), data)[0]
    program = jax.jit(lambda z: called(z))
    for double, expected in ((True, 0.75), (False, 0.0), (True, 0.75)):
        renew_programs(called, double=double)
        with jax.enable_x64(double):
            assert program(1e9 + 1) == expected


def test_what_cannot_be_compared_is_taken_as_unchanged():
    lock = threading.Lock()
    with_lock = lambda z: z if lock else -z
    for _ in range(2):
        renew_programs(with_lock, lock, *OPAQUE.values(), double=True)


def test_verbs_use_the_data_of_today(restored):
    base, sites = DiagonalGaussian.from_standard([0.0], [100.0]), {"a": np.zeros((4, 1))}
    model = FunctionModel(lambda z, x: -((z[0] - SHIFT) ** 2) + 0 * x[:, 0])
    target = lambda z: -50 * (z[0] - SHIFT) ** 2
    found = []
    for _ in range(2):
        found.append(posterity.federate(sites, model, base).posterior.mean[0])
        found.append(posterity.pursue(target, base, components=1).posterior.components.mean[0, 0])
        set_global()
    np.testing.assert_allclose(found, [1.0, 1.0, 2.0, 2.0], atol=0.01)
