"""Students in onnxruntime: the same predictions, whatever the layers; and what is refused."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings

import posterity
from posterity.adapters import onnx as adapter
from posterity.adapters.onnx import to_onnx
from posterity.distillation.heads import Head
from posterity.distillation.scaling import Scaling
from posterity.distillation.student import Student
from posterity.errors import (
    ArtifactError,
    MissingExtraError,
    ParameterError,
    StructureError,
    UsageError,
)
from posterity.families.layers import ACTIVATIONS, Conv, Dense, Layers
from tests.adapters.students import HEADS, agree, inputs, students, weights

RNG = np.random.default_rng(0)
START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _again() -> None:
    """The same numbers for a test alone as among others."""
    RNG.bit_generator.state = START


def session(model: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def served(running: onnxruntime.InferenceSession, x: np.ndarray) -> dict[str, Any]:
    names, [taken] = [output.name for output in running.get_outputs()], running.get_inputs()
    dtype = np.float32 if taken.type == "tensor(float)" else np.float64
    return dict(zip(names, running.run(None, {"x": x.astype(dtype)}), strict=True))


def perceptron(head: Head, *hidden: int, size: float = 1.0, inputs: int = 3) -> Student:
    layers = Layers.dense(inputs, *hidden, head.size)
    return Student(layers, weights(layers, RNG, size), head)


@pytest.mark.slow
@given(students())
@settings(max_examples=60, deadline=None)
def test_any_student_predicts_the_same(drawn: Any) -> None:
    student, rng = drawn
    running = session(to_onnx(student))
    for n in (1, 7):
        x = inputs(student, n, rng)
        agree(served(running, x), student, x)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_far_out(activation: str) -> None:
    """Where exponentials overflow and tanh is flat."""
    layers = Layers((Dense(1, 1, activation), Dense(1, 2, "identity")))
    student = Student(layers, np.array([0, 1, 0, 0, 1e-3, -1e-3]), Head("categorical", 2))
    x = np.array([-1e4, -100, -20, -5, -1e-3, 0, 1e-3, 5, 20, 100, 1e4], np.float32)[:, None]
    agree(served(session(to_onnx(student)), x), student, x)


@pytest.mark.parametrize("size", [3, 4, 5, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_same_padding_is_on_the_same_sides(size: int, stride: int) -> None:
    image = (size, size + 1, 1)
    conv = Conv((2, 4), 1, 2, "identity", stride=stride, padding="same")
    layers = Layers((conv, Dense(int(np.prod(conv.image(image))), 4, "identity")), image)
    student = Student(layers, weights(layers, RNG), Head("categorical", 4))
    x = inputs(student, 2, RNG)
    agree(served(session(to_onnx(student)), x), student, x)


def test_lenet_of_ten_classes() -> None:
    layers = Layers(
        (Conv((5, 5), 1, 20, pool=2), Conv((5, 5), 20, 50, pool=2), Dense(800, 100),
         Dense(100, 11, "identity")), (28, 28, 1),
    )  # fmt: skip
    student = Student(layers, weights(layers, RNG), Head("categorical", 10, split=True))
    x = RNG.uniform(size=(32, 28, 28, 1)).astype(np.float32)
    agree(served(session(to_onnx(student)), x), student, x)


@pytest.mark.parametrize("head", HEADS)
def test_huge_weights(head: Head) -> None:
    """All but one class are far below what a float32 holds as a chance, not as a logarithm."""
    student = perceptron(head, 8, size=1e3)
    x = inputs(student, 50, RNG)
    found, truth = served(session(to_onnx(student)), x), student.predict(x)
    if head.likelihood != "gaussian":
        assert truth.log_chances is not None and truth.log_chances.min() < -1e3
        wrong = np.abs(found["log_probabilities"] - truth.log_chances)
        assert (wrong <= 1e-5 * np.abs(student.outputs(x)).max()).all()
        assert all(np.isfinite(value).all() for value in found.values())
        return
    np.testing.assert_allclose(found["mean"], truth.mean, rtol=1e-4, atol=1)
    with np.errstate(over="ignore"):
        noise = np.asarray(truth.noise_variance).astype(np.float32)
    assert (np.isinf(found["noise_variance"]) == np.isinf(noise)).all()


def test_a_class_that_is_sure_to_1e_30() -> None:
    layers = Layers.dense(1, 2)
    student = Student(layers, np.array([0, 0, 0, -70.0]), Head("categorical", 2))
    found = served(session(to_onnx(student)), np.ones((1, 1), np.float32))
    np.testing.assert_allclose(found["log_probabilities"], [[0, -70]], atol=1e-5)
    np.testing.assert_allclose(found["probabilities"][0, 1], np.exp(-70), rtol=1e-4)


def test_seconds_since_1970_keep_their_digits() -> None:
    seconds = 1.7e9 + np.arange(50.0)
    scaling = Scaling.of_inputs(seconds[:, None])
    layers = Layers.dense(1, 8, 2)
    student = Student(layers, weights(layers, RNG), Head("gaussian", 1), scaling)
    running = session(to_onnx(student))
    assert running.get_inputs()[0].type == "tensor(double)"
    found = served(running, seconds[:, None])
    agree(found, student, seconds[:, None])
    assert len(np.unique(found["mean"])) > 40


def test_years_and_bytes_are_float32() -> None:
    x = np.stack([np.linspace(1990, 2020, 50), np.linspace(0, 255, 50)], 1)
    layers = Layers.dense(2, 8, 2)
    scaling = Scaling.of_inputs(x).with_outputs(np.array([2e3]), np.array([50.0]))
    assert scaling.x_shift is not None and scaling.x_scale is not None
    student = Student(layers, weights(layers, RNG), Head("gaussian", 1), scaling)
    running = session(to_onnx(student))
    assert running.get_inputs()[0].type == running.get_outputs()[0].type == "tensor(float)"
    agree(served(running, x.astype(np.float32)), student, x)


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "student.onnx"
    student = perceptron(Head("gaussian", 2, True, 0.5), 4)
    model = to_onnx(student, path)
    onnx.checker.check_model(str(path), full_check=True)
    assert path.read_bytes() == model.SerializeToString()
    about = session(path.read_bytes()).get_modelmeta()
    assert about.producer_name == "posterity"
    assert about.custom_metadata_map == {
        "likelihood": "gaussian", "split": "True", "noise_variance": "0.5",
        "posterity": posterity.__version__,
    }  # fmt: skip
    assert model.opset_import[0].version == adapter.OPSET
    assert session(model).get_inputs()[0].shape == ["n", 3]


def test_the_same_student_is_the_same_file(tmp_path: Path) -> None:
    student = perceptron(Head("categorical", 3), 4)
    paths = [tmp_path / name for name in ("one.onnx", "two.onnx")]
    for path in paths:
        to_onnx(student, str(path))
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "student.onnx"
    path.write_bytes(b"before")
    student = perceptron(Head("categorical", 3), 4)
    with pytest.raises(ArtifactError, match="cannot be written"):
        to_onnx(student, tmp_path / "nowhere" / "student.onnx")
    broken = Student(student.network, np.full(student.size, np.nan), student.head)
    with pytest.raises(ParameterError, match="NaN or infinity among the weights"):
        to_onnx(broken, path)
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    student = Student(lambda p, x: x @ p, np.zeros((3, 2)), Head("categorical", 2))
    with pytest.raises(UsageError, match="Layers"):
        to_onnx(student)
    layers = Layers((Conv((3, 3), 1, 2),), (3, 3, 1))
    student = Student(layers, weights(layers, RNG), Head("categorical", 2))
    with pytest.raises(StructureError, match="convolution as the last layer"):
        to_onnx(student)
    with monkeypatch.context() as patch:
        patch.setattr(adapter, "BYTES", 100)
        with pytest.raises(StructureError, match="bytes of weights"):
            to_onnx(perceptron(Head("categorical", 3), 40))
    for name in [name for name in sys.modules if name.split(".")[0] == "onnx"]:
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError, match=r"posterity\[onnx\]"):
        to_onnx(perceptron(Head("categorical", 3), 4))
