"""Students in onnxruntime and torch: the same predictions, whatever the layers; what is refused."""

import dataclasses
import sys
from collections.abc import Callable
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
from posterity.adapters.torch import to_torch
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

Serve = Callable[[Student, np.ndarray], dict[str, Any]]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def session(model: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def served(running: onnxruntime.InferenceSession, x: np.ndarray) -> dict[str, Any]:
    names, [taken] = [output.name for output in running.get_outputs()], running.get_inputs()
    dtype = np.float32 if taken.type == "tensor(float)" else np.float64
    return dict(zip(names, running.run(None, {"x": x.astype(dtype)}), strict=True))


@pytest.fixture(scope="module", params=["onnx", "torch"])
def serve(request: Any) -> Serve:
    """What a student exported to one of the libraries gives."""
    if request.param == "onnx":
        return lambda student, x: served(session(to_onnx(student)), x)
    torch = pytest.importorskip("torch", reason="torch is not installed: make test-adapters")

    def by_torch(student: Student, x: np.ndarray) -> dict[str, Any]:
        with torch.no_grad():
            return {n: v.numpy() for n, v in to_torch(student)(torch.tensor(x)).items()}

    return by_torch


def perceptron(head: Head, *hidden: int, size: float = 1.0) -> Student:
    layers = Layers.dense(3, *hidden, head.size)
    return Student(layers, weights(layers, rng(), size), head)


@pytest.mark.slow
@given(students())
@settings(max_examples=60, deadline=None)
def test_any_student_predicts_the_same(serve: Serve, drawn: Any) -> None:
    student, random = drawn
    x = inputs(student, 7, random)
    found = serve(student, x)
    agree(found, student, x)
    for name, value in serve(student, x[:1]).items():
        np.testing.assert_allclose(value, found[name][:1], rtol=1e-5, atol=1e-6)


def test_activations_far_out(serve: Serve) -> None:
    """Where exponentials overflow and tanh is flat."""
    x = np.array([-1e4, -100, -20, -5, -1e-3, 0, 1e-3, 5, 20, 100, 1e4], np.float32)[:, None]
    for activation in ACTIVATIONS:
        layers = Layers((Dense(1, 1, activation), Dense(1, 2, "identity")))
        student = Student(layers, np.array([0, 1, 0, 0, 1e-3, -1e-3]), Head("categorical", 2))
        agree(serve(student, x), student, x)


def test_the_same_padding_is_on_the_same_sides(serve: Serve) -> None:
    for size in (3, 4, 5, 7):
        for stride in (1, 2, 3):
            image = (size, size + 1, 1)
            conv = Conv((2, 4), 1, 2, "identity", stride=stride, padding="same")
            dense = Dense(int(np.prod(conv.image(image))), 4, "identity")
            layers = Layers((conv, dense), image)
            student = Student(layers, weights(layers, rng()), Head("categorical", 4))
            x = inputs(student, 2, rng())
            agree(serve(student, x), student, x)


def test_what_cannot_be_exported(serve: Serve) -> None:
    x, head = np.zeros((1, 3)), Head("categorical", 2)
    with pytest.raises(UsageError, match="Layers"):
        serve(Student(lambda p, x: x @ p, np.zeros((3, 2)), head), x)
    layers = Layers((Conv((3, 3), 1, 2),), (3, 3, 1))
    with pytest.raises(StructureError, match="convolution as the last layer"):
        serve(Student(layers, weights(layers, rng()), head), x)
    layers = Layers.dense(3, 2)
    with pytest.raises(ParameterError, match="NaN or infinity among the weights"):
        serve(Student(layers, np.full(layers.size, np.nan), head), x)


def test_lenet_of_ten_classes() -> None:
    layers = Layers(
        (Conv((5, 5), 1, 20, pool=2), Conv((5, 5), 20, 50, pool=2), Dense(800, 100),
         Dense(100, 11, "identity")), (28, 28, 1),
    )  # fmt: skip
    student = Student(layers, weights(layers, rng()), Head("categorical", 10, split=True))
    x = rng().uniform(size=(32, 28, 28, 1)).astype(np.float32)
    agree(served(session(to_onnx(student)), x), student, x)


@pytest.mark.parametrize("head", HEADS)
def test_huge_weights(head: Head) -> None:
    """All but one class are far below what a float32 holds as a chance, not as a logarithm."""
    student = perceptron(head, 8, size=1e3)
    x = inputs(student, 50, rng())
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
    student = Student(Layers.dense(1, 2), np.array([0, 0, 0, -70.0]), Head("categorical", 2))
    found = served(session(to_onnx(student)), np.ones((1, 1), np.float32))
    np.testing.assert_allclose(found["log_probabilities"], [[0, -70]], atol=1e-5)
    np.testing.assert_allclose(found["probabilities"][0, 1], np.exp(-70), rtol=1e-4)


def test_units_that_need_the_digits_of_float64_have_them_alone() -> None:
    seconds = 1.7e9 + np.arange(50.0)[:, None]
    years = np.stack([np.linspace(1990, 2020, 50), np.linspace(0, 255, 50)], 1)
    for x, kind in ((seconds, "tensor(double)"), (years, "tensor(float)")):
        layers, scaling = Layers.dense(x.shape[1], 8, 2), Scaling.of_inputs(x)
        if kind == "tensor(float)":
            units = {"y_shift": np.array([2e3]), "y_scale": np.array([50.0])}
            scaling = dataclasses.replace(scaling, **units)
        student = Student(layers, weights(layers, rng()), Head("gaussian", 1), scaling)
        running = session(to_onnx(student))
        assert running.get_inputs()[0].type == kind
        assert running.get_outputs()[0].type == "tensor(float)"
        found = served(running, x)
        agree(found, student, x)
        assert len(np.unique(found["mean"])) > 40


def test_the_file_says_what_it_is_and_is_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "student.onnx"
    student = perceptron(Head("gaussian", 2, True, 0.5, degrees=4), 4)
    model = to_onnx(student, path)
    onnx.checker.check_model(str(path), full_check=True)
    assert path.read_bytes() == model.SerializeToString() == to_onnx(student).SerializeToString()
    about = session(path.read_bytes()).get_modelmeta()
    assert about.producer_name == "posterity"
    assert about.custom_metadata_map == {
        "likelihood": "gaussian", "split": "True", "noise_variance": "0.5", "degrees": "4.0",
        "posterity": posterity.__version__,
    }  # fmt: skip
    assert model.opset_import[0].version == adapter.OPSET
    assert session(model).get_inputs()[0].shape == ["n", 3]


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "student.onnx"
    path.write_bytes(b"before")
    student = perceptron(Head("categorical", 3), 40)
    with pytest.raises(ArtifactError, match="cannot be written"):
        to_onnx(student, tmp_path / "nowhere" / "student.onnx")
    with pytest.raises(ParameterError, match="NaN"):
        to_onnx(Student(student.network, np.full(student.size, np.nan), student.head), path)
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name, export", [("onnx", to_onnx), ("torch", to_torch)])
def test_the_extra_is_named(name: str, export: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [n for n in sys.modules if n.split(".")[0] == name] or [name]:
        monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError, match=rf"posterity\[{name}\]"):
        export(perceptron(Head("categorical", 3), 4))
