"""Students: any network, in any units, as a file."""

import equinox as eqx
import flax.linen as nn
import jax
import numpy as np
import pytest

import posterity
from posterity.artifact import Architecture, register_architecture
from posterity.distillation import Head, Scaling, Student
from posterity.distillation.student import applied, finish, start
from posterity.errors import (
    ArtifactError,
    ParameterError,
    PosterityError,
    StructureError,
    UsageError,
)
from posterity.networks import Layers

KEY = jax.random.key(0)
perceptron = eqx.filter_jit(lambda outputs: eqx.nn.MLP(2, outputs, 8, 1, key=KEY))
X = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
HEAD = Head("categorical", 3, split=True)
SCALING = Scaling(np.array([1e6, 0.0]), np.array([10.0, 1.0]))
BUILT = register_architecture("one dense layer", lambda p: lambda x: x @ p["w"] + p["b"])


class Dense(nn.Module):
    """A perceptron of flax."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(HEAD.size)(nn.relu(nn.Dense(7)(x)))


def students() -> dict[str, object]:
    """One of each kind."""
    dense = Dense()
    weights = {"w": np.ones((2, 4), np.float32), "b": np.arange(4, dtype=np.float32)}
    return {
        "layers": Layers.dense(2, 6, HEAD.size),
        "equinox": perceptron(HEAD.size),
        "flax": (dense.apply, jax.jit(dense.init)(KEY, X)),
        "architecture": Architecture("one dense layer", {}, weights),
    }


@pytest.mark.parametrize("kind", students())
def test_any_network_is_a_student(kind: str) -> None:
    network, parameters = start(students()[kind], HEAD, X, key=KEY)
    outputs = np.asarray(jax.jit(applied(network))(parameters, X))
    student = finish(network, parameters, HEAD, Scaling())
    np.testing.assert_allclose(student.outputs(X), outputs, rtol=1e-5, atol=1e-6)
    found = student.predict(X)
    assert found.mean.shape == (9, 3)
    np.testing.assert_allclose(found.mean.sum(1), 1)
    # What is compiled for a network serves another one like it; of flax only the same module.
    assert kind == "flax" or hash(applied(network)) == hash(
        applied(start(students()[kind], HEAD, X, key=KEY)[0])
    )


@pytest.mark.parametrize("kind", ["layers", "architecture"])
def test_a_file_holds_all_that_a_student_is(kind: str, tmp_path) -> None:
    network, parameters = start(students()[kind], HEAD, X, key=KEY)
    student = finish(network, parameters, HEAD, SCALING)
    path = tmp_path / "student.safetensors"
    posterity.save(student, path)
    loaded = posterity.load(path)
    assert isinstance(loaded, Student)
    assert loaded.head == HEAD
    np.testing.assert_array_equal(loaded.predict(X).mean, student.predict(X).mean)
    np.testing.assert_array_equal(loaded.scaling.x_shift, SCALING.x_shift)
    assert posterity.inspect(path).kind == "Student"


@pytest.mark.parametrize("kind", ["equinox", "flax"])
def test_a_file_cannot_hold_a_function(kind: str, tmp_path) -> None:
    network, parameters = start(students()[kind], HEAD, X, key=KEY)
    path = tmp_path / "student.safetensors"
    with pytest.raises(ArtifactError, match="register_architecture"):
        posterity.save(finish(network, parameters, HEAD, Scaling()), path)
    assert not path.exists()


def test_large_offsets_keep_their_digits() -> None:
    layers = Layers.dense(2, 6, HEAD.size)
    weights = np.random.default_rng(1).normal(size=layers.size)
    plain = Student(layers, weights, HEAD)
    moved = Student(layers, weights, HEAD, SCALING)
    x = X.astype(np.float64)
    np.testing.assert_allclose(
        moved.outputs(x * [10.0, 1.0] + [1e6, 0.0]), plain.outputs(x), rtol=1e-4, atol=1e-5
    )


def test_values_come_in_their_units() -> None:
    layers, head = Layers.dense(2, 3, 2), Head("gaussian", 1, noise_variance=4.0)
    weights = np.random.default_rng(1).normal(size=layers.size)
    units = Scaling(y_shift=np.array([100.0]), y_scale=np.array([5.0]))
    plain, moved = (Student(layers, weights, head, s).predict(X) for s in (Scaling(), units))
    np.testing.assert_allclose(moved.mean, 100 + 5 * plain.mean)
    np.testing.assert_allclose(moved.variance, 25 * plain.variance)
    np.testing.assert_array_equal(moved.noise_variance, 4.0)


def test_values_have_a_t_law_also_from_a_file(tmp_path) -> None:
    layers = Layers.dense(2, 3, 2)
    weights = np.random.default_rng(1).normal(size=layers.size)
    for degrees in (3.5, np.inf):
        student = Student(layers, weights, Head("gaussian", 1, noise_variance=4, degrees=degrees))
        posterity.save(student, tmp_path / "s.safetensors")
        again = posterity.load(tmp_path / "s.safetensors")
        assert again.predict(X).degrees == again.head.degrees == degrees
        written = b"degrees" in (tmp_path / "s.safetensors").read_bytes()
        assert written == np.isfinite(degrees), "files of before have none, and are normal"
    for wrong in (2.0, np.nan, "4", True):
        with pytest.raises(UsageError, match="above 2"):
            Head("gaussian", 1, degrees=wrong)


@pytest.mark.parametrize(
    ("student", "error"),
    [
        (Layers.dense(2, 6, 3), StructureError),  # no output for the split
        (Layers.dense(3, 6, 4), StructureError),  # other inputs
        (perceptron(3), StructureError),
        ((lambda p, x: (x, x), {"w": np.ones(2)}), StructureError),
        ([2, 6, 4], UsageError),
        ("layers", UsageError),
    ],
)
def test_students_that_do_not_fit(student, error) -> None:
    with pytest.raises(error):
        start(student, HEAD, X, key=KEY)


def test_inputs_that_do_not_fit() -> None:
    layers = Layers.dense(2, 6, HEAD.size)
    student = Student(layers, np.zeros(layers.size), HEAD)
    with pytest.raises(ParameterError):
        student.predict(X * np.inf)
    for x in (X[:, :1], X[0], np.array("x"), 3.0):
        with pytest.raises(StructureError):
            student.predict(x)
    assert student.predict(X[:0]).mean.shape == (0, 3)
    scaled = Student(lambda parameters, x: x @ parameters, np.ones((2, 2)),
                     Head("categorical", 2), Scaling(np.zeros(2), np.ones(2)))  # fmt: skip
    with pytest.raises(StructureError, match="2 numbers each"):
        scaled.predict(np.zeros((3, 5)))
    for network, weights, head in (
        (layers, 3, HEAD),
        (layers, layers.size, Head("categorical", 5)),
    ):
        with pytest.raises(StructureError):
            Student(network, np.zeros(weights), head)
    with pytest.raises(UsageError):
        Student("layers", np.zeros(3), HEAD)


def test_forged_files_are_refused(tmp_path) -> None:
    """What a file holds is checked as it is read: a head of other outputs than the network's."""
    layers = Layers.dense(2, 6, HEAD.size)
    student = Student(layers, np.zeros(layers.size), HEAD)
    object.__setattr__(student, "head", Head("categorical", 7))
    with pytest.raises(PosterityError):
        posterity.save(student, tmp_path / "student.safetensors")
    object.__setattr__(student, "head", HEAD)
    object.__setattr__(student, "parameters", np.full(layers.size, np.nan, np.float32))
    with pytest.raises(ParameterError):
        posterity.save(student, tmp_path / "student.safetensors")
