"""Students in torch, where it is installed (make test-adapters): modules, files and state dicts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posterity.adapters.torch import to_state_dict, to_torch
from posterity.distillation.heads import Head
from posterity.distillation.scaling import Scaling
from posterity.distillation.student import Student
from posterity.families.layers import Conv, Dense, Layers
from tests.adapters.students import HEADS, agree, inputs, weights
from tests.test_docs import ROOT, run, script


@pytest.fixture(scope="module")
def torch() -> Any:
    """Heavy, and no part of the test extra."""
    return pytest.importorskip("torch", reason="torch is not installed: make test-adapters")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def served(torch: Any, module: Any, x: np.ndarray) -> dict[str, np.ndarray]:
    with torch.no_grad():
        return {name: value.numpy() for name, value in module(torch.tensor(x)).items()}


@pytest.mark.parametrize("head", HEADS)
def test_a_state_dict_goes_through_a_file(torch: Any, head: Head, tmp_path: Path) -> None:
    layers = Layers.dense(3, 5, head.size)
    units = {"x_shift": np.ones(3), "x_scale": np.full(3, 2.0)}
    if head.likelihood == "gaussian":
        units |= {"y_shift": np.full(head.targets, 1e6), "y_scale": np.full(head.targets, 3.0)}
    student = Student(layers, weights(layers, rng()), head, Scaling(**units))
    torch.save(to_state_dict(student), tmp_path / "student.pt")
    found = torch.load(tmp_path / "student.pt", weights_only=True)
    other = to_torch(Student(layers, np.zeros(layers.size), head, Scaling(
        **{name: np.ones_like(value) for name, value in units.items()}
    )))  # fmt: skip
    other.load_state_dict(found)
    x = inputs(student, 4, rng())
    agree(served(torch, other, x), student, x)


def test_layers_load_into_a_network_without_posterity(torch: Any) -> None:
    layers = Layers(
        (Conv((3, 3), 1, 4, pool=2, padding="same"), Dense(36, 5, "tanh"),
         Dense(5, 3, "identity")), (6, 6, 1),
    )  # fmt: skip
    student = Student(layers, weights(layers, rng()), Head("categorical", 3))
    nn = torch.nn
    plain = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3),
    )  # fmt: skip
    state = to_state_dict(student)
    assert all(name.startswith("layers.") for name in state)
    plain.load_state_dict({name.removeprefix("layers."): value for name, value in state.items()})
    x = inputs(student, 4, rng())
    with torch.no_grad():
        logits = plain(torch.tensor(x).permute(0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(logits, student.outputs(x), atol=1e-5)


@pytest.mark.slow
def test_modules_are_copies_that_are_saved_and_exported(torch: Any, tmp_path: Path) -> None:
    layers = Layers.dense(3, 5, 4)
    student = Student(layers, weights(layers, rng()), Head("categorical", 3, split=True))
    module, x = to_torch(student), inputs(student, 4, rng())
    torch.save(module, tmp_path / "module.pt")
    again = torch.load(tmp_path / "module.pt", weights_only=False)
    agree(served(torch, again, x), student, x)
    exported = torch.export.export(module, (torch.tensor(x),)).module()
    agree(served(torch, exported, x), student, x)
    before = student.parameters.copy()
    for value in to_state_dict(student).values():
        value.zero_()
    for parameter in to_torch(student).parameters():
        assert parameter.requires_grad
        with torch.no_grad():
            parameter.zero_()
    np.testing.assert_array_equal(student.parameters, before)
    assert to_torch(student)(torch.zeros((0, 3)))["probabilities"].shape == (0, 3)


@pytest.mark.slow
def test_the_page_runs(torch: Any, tmp_path: Path) -> None:
    """With its blocks for torch, which the tests of the documentation leave out."""
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8").replace("```py\n", "```python\n")
    path = tmp_path / "page.py"
    path.write_text(script(page), encoding="utf-8")
    (tmp_path / "reader").mkdir()
    run(tmp_path / "reader", "Python of docs/serving.md", str(path))
    assert (tmp_path / "reader" / "student.pt").exists()
