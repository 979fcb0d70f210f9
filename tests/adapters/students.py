"""Students of all sorts, for exports of them: random layers, heads and units."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from posterity.distillation.heads import Head
from posterity.distillation.scaling import Scaling
from posterity.distillation.student import Student
from posterity.errors import StructureError
from posterity.families.layers import ACTIVATIONS, Conv, Dense, Layers
from posterity.networks.predictive import Prediction

HEADS = [
    Head("categorical", 2),
    Head("categorical", 5),
    Head("categorical", 3, split=True),
    Head("bernoulli", 1),
    Head("bernoulli", 1, split=True),
    Head("gaussian", 1),
    Head("gaussian", 2, split=True),
    Head("gaussian", 2, noise_variance=0.3),
    Head("gaussian", 3, split=True, noise_variance=4.0),
]


@st.composite
def networks(draw: Any, outputs: int) -> Layers:
    """Up to two convolutions, up to three dense layers, with options of all sorts."""
    options = {"activation": st.sampled_from(ACTIVATIONS), "bias": st.booleans()}
    some = lambda more: {name: draw(kind) for name, kind in {**options, **more}.items()}
    image = draw(st.one_of(
        st.tuples(st.integers(1, 6)),
        st.tuples(st.integers(1, 4), st.integers(1, 4)),
        st.tuples(st.integers(4, 9), st.integers(4, 9), st.integers(1, 3)),
    ))  # fmt: skip
    layers, first = [], image
    for _ in range(draw(st.integers(0, 2)) if len(image) == 3 else 0):
        conv = Conv(
            inputs=image[-1],
            **some({
                "window": st.tuples(st.integers(1, 3), st.integers(1, 3)),
                "outputs": st.integers(1, 4),
                "stride": st.integers(1, 3),
                "padding": st.sampled_from(["same", "valid"]),
                "pool": st.integers(1, 2),
                "pooling": st.sampled_from(["max", "mean"]),
            }),
        )  # fmt: skip
        try:
            image = conv.image(image)
        except StructureError:  # too small by now for such a window
            break
        layers.append(conv)
    for size in [*draw(st.lists(st.integers(1, 6), max_size=2)), outputs]:
        layers.append(Dense(int(np.prod(image)), size, **some({})))
        image = (size,)
    return Layers(tuple(layers), first)


def weights(layers: Layers, rng: np.random.Generator, size: float = 1.0) -> np.ndarray:
    """Random ones under which signals keep their size."""
    found = []
    for own in layers.places:
        fan = np.prod(own["kernel"].shape[:-1])
        found.append({
            name: size * rng.normal(size=place.shape) / np.sqrt(fan if name == "kernel" else 1)
            for name, place in own.items()
        })  # fmt: skip
    return layers.ravel(found).astype(np.float32)


@st.composite
def students(draw: Any) -> tuple[Student, np.random.Generator]:
    """A student, and what its inputs may be drawn by."""
    head = draw(st.sampled_from(HEADS))
    layers = draw(networks(head.size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    units: dict[str, Any] = {}
    if draw(st.booleans()):
        units["x_shift"] = rng.choice([0.0, 2000.0, 1.7e9, -1e-9], size=layers.inputs)
        units["x_scale"] = rng.choice([1.0, 10.0, 1e-9, 1e5], size=layers.inputs)
    if head.likelihood == "gaussian" and draw(st.booleans()):
        units["y_shift"] = rng.choice([0.0, 2000.0, 1.7e9], size=head.targets)
        units["y_scale"] = rng.choice([1.0, 10.0, 1e5], size=head.targets)
    return Student(layers, weights(layers, rng), head, Scaling(**units)), rng


def inputs(student: Student, n: int, rng: np.random.Generator) -> np.ndarray:
    """Inputs (n, …) that go into the network as normal ones."""
    scaling, x = student.scaling, rng.normal(size=(n, student.network.inputs))
    if scaling.x_shift is not None:
        x = scaling.x_shift + scaling.x_scale * x
        return x.reshape(n, *student.network.image)
    return x.astype(np.float32).reshape(n, *student.network.image)


def named(found: Prediction, head: Head) -> dict[str, np.ndarray]:
    """A prediction by the names that exports give to its parts."""
    if head.likelihood == "gaussian":
        parts = {
            "mean": found.mean,
            "variance": found.variance,
            "noise_variance": found.noise_variance,
        }
    else:
        assert found.log_chances is not None
        parts = {
            "probabilities": np.exp(found.log_chances),
            "log_probabilities": found.log_chances,
            "entropy": found.entropy,
            "mutual_information": found.mutual_information,
        }
    return {name: value for name, value in parts.items() if value is not None}


def agree(found: dict[str, np.ndarray], student: Student, x: np.ndarray) -> None:
    """The same names, shapes and values, to 1e-5; values relative to their units."""
    expected = named(student.predict(x), student.head)
    assert list(found) == list(expected)
    units = {}
    if student.scaling.y_scale is not None:
        units = {"mean": student.scaling.y_scale}
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        unit = units.get(name, 1.0)
        # Against the unit first: a mean of 1.7e9 is right by what differs in it.
        gap = (found[name].astype(np.float64) - value) / unit
        scale = np.abs(value) if name != "mean" else 1.0
        assert (np.abs(gap) <= 1e-5 * (1 + scale)).all(), (name, np.abs(gap).max())
