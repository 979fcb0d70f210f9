"""An architecture travels as a name, options and arrays; only what is registered is built."""

import copy
import pickle
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from posterity import artifact
from posterity.artifact import Architecture, register_architecture
from posterity.errors import ArtifactError, ParameterError, PosterityError


def network(parameters: Any, *, widths: list[int], activation: str = "tanh") -> Any:
    def apply(x: np.ndarray) -> np.ndarray:
        for layer in range(len(widths)):
            inner = parameters[f"layer {layer}"]
            x = getattr(np, activation)(x @ inner["w"] + inner["b"])
        return x

    return apply


register_architecture("test network", network)
RNG = np.random.default_rng(0)
PARAMETERS = {
    f"layer {n}": {"w": RNG.normal(size=(a, b)), "b": np.zeros(b, np.float32)}
    for n, (a, b) in enumerate([(3, 4), (4, 2)])
}
OPTIONS = {"widths": [4, 2], "activation": "tanh"}


@pytest.fixture
def student() -> Architecture:
    return Architecture("test network", OPTIONS, PARAMETERS)


def test_a_student_comes_back_and_says_the_same(tmp_path: Path, student: Architecture) -> None:
    artifact.save(student, tmp_path / "student", provenance={"teacher": "SGLD"})
    again, found = artifact.open_artifact(tmp_path / "student")
    assert again == student and type(again) is Architecture
    assert found.kind == "Architecture"
    assert found.arrays["parameters/layer%200/b"] == ("float32", (4,))
    x = RNG.normal(size=(5, 3))
    assert np.array_equal(again.build()(x), network(PARAMETERS, **OPTIONS)(x))
    artifact.save({"student": student, "step": 3}, tmp_path / "both")
    assert artifact.load(tmp_path / "both") == {"student": student, "step": 3}


def test_it_owns_what_it_is_made_of(student: Architecture) -> None:
    own = {"w": np.ones(2)}
    made = Architecture("test network", {"widths": [1]}, own)
    own["w"][0] = 5.0
    assert made.parameters["w"][0] == 1.0 and not made.parameters["w"].flags.writeable
    assert pickle.loads(pickle.dumps(student)) == copy.deepcopy(student) == student
    assert student != Architecture("test network", {"widths": [4, 2]}, PARAMETERS)
    assert student != Architecture("test network", OPTIONS, {**PARAMETERS, "more": np.ones(1)})
    assert student != PARAMETERS


def test_arrays_of_jax_are_saved_as_numpys(tmp_path: Path) -> None:
    made = Architecture("test network", {}, {"w": jnp.ones(3)})
    artifact.save(made, tmp_path / "file")
    assert isinstance(artifact.load(tmp_path / "file").parameters["w"], np.ndarray)


REFUSED: dict[str, tuple[Any, str]] = {
    "an unknown name": (("os.system", {}, {}), "'os.system' that this installation does not know"),
    "options of arrays": (("test network", {"x": np.ones(1)}, {}), "options"),
    "options of functions": (("test network", {"f": [{"g": print}]}, {}), "options"),
    "options of nothing": (("test network", None, {}), "options"),
    "options by numbers": (("test network", {1: "a"}, {}), "options"),
    "options by a number and its digits": (("test network", {"x": {1: 2, "1": 3}}, {}), "options"),
    "options by truth": (("test network", {"x": [{True: 1}]}, {}), "options"),
    "options in pairs": (("test network", [("x", 1)], {}), "options"),
    "options of NaN": (("test network", {"x": float("nan")}, {}), "options"),
    "parameters of text": (("test network", {}, {"w": "x"}), "dtype"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_architecture(case: str) -> None:
    arguments, said = REFUSED[case]
    with pytest.raises(PosterityError, match=said):
        Architecture(*arguments)


def test_options_are_as_a_file_has_them(tmp_path: Path) -> None:
    made = Architecture("test network", {"widths": (4, [2])}, {})
    artifact.save(made, tmp_path / "file")
    assert artifact.load(tmp_path / "file").options == made.options == {"widths": [4, [2]]}


def test_parameters_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="nan at 'parameters/w'"):
        artifact.save(Architecture("test network", {}, {"w": [np.nan]}), tmp_path / "file")


def test_a_name_has_one_builder() -> None:
    assert register_architecture("test network", network) is network
    with pytest.raises(ArtifactError, match="second architecture named 'test network'"):
        register_architecture("test network", print)
