"""Layers as data: sizes, places in the flat vector, and what is refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.errors import PosterityError, StructureError, UsageError
from posterity.networks import Conv, Dense, Layers

LENET = Layers(
    (
        Conv((5, 5), 1, 6, pool=2),
        Conv((5, 5), 6, 16, pool=2, padding="same"),
        Dense(6 * 6 * 16, 12),
        Dense(12, 10, "identity"),
    ),
    image=(28, 28, 1),
)


def test_a_perceptron() -> None:
    layers = Layers.dense(4, 3, 2)
    assert layers.layers == (Dense(4, 3), Dense(3, 2, "identity"))
    assert (layers.inputs, layers.outputs, layers.widths) == (4, 2, (3,))
    assert layers.size == 4 * 3 + 3 + 3 * 2 + 2
    assert layers.summary == "4-3 relu-2"


def test_sizes_that_were_counted_in_numpy() -> None:
    layers = Layers.dense(np.int64(4), 3, np.arange(3).max())
    assert layers == Layers.dense(4, 3, 2)
    assert {type(size) for layer in layers.layers for size in layer.kernel} == {int}


def test_images_through_convolutions() -> None:
    assert LENET.images == ((28, 28, 1), (12, 12, 6), (6, 6, 16), (12,), (10,))
    assert LENET.size == (25 + 1) * 6 + (150 + 1) * 16 + (576 + 1) * 12 + 130
    assert LENET.summary == "28x28x1-5x5 conv 6 relu-5x5 conv 16 relu-12 relu-10"
    # A unit of the second convolution shows at 36 places of the flattened image.
    assert [LENET.by_unit(n) for n in range(4)] == [
        (25, 1, 6), (25, 6, 16), (36, 16, 12), (1, 12, 10),
    ]  # fmt: skip
    wider = LENET.with_widths([8, 4, 20])
    assert wider[2] == Dense(6 * 6 * 4, 20) and wider.with_widths(LENET.widths) == LENET
    strided = Layers((Conv((3, 2), 2, 4, stride=2),), image=(9, 8, 2))
    assert strided.images[-1] == (4, 4, 4)


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.sampled_from([(), (3,), (2, 1)]),
    st.booleans(),
)
def test_weights_lie_where_places_say(sizes: list[int], batch: tuple[int, ...], bias: bool) -> None:
    layers = Layers(
        tuple(dataclasses.replace(layer, bias=bias) for layer in Layers.dense(*sizes).layers)
    )
    z = np.arange(layers.size * int(np.prod(batch)), dtype=float).reshape(*batch, layers.size)
    arrays = layers.unravel(z)
    pieces = [own[name].reshape(*batch, -1) for own in arrays for name in sorted(own)]
    assert np.array_equal(np.concatenate(pieces, -1), z)
    if not batch:
        assert np.array_equal(layers.ravel(arrays), z)
        nested = [{name: array.tolist() for name, array in own.items()} for own in arrays]
        assert np.array_equal(layers.ravel(nested), z)


WRONG: dict[str, tuple[Any, type[PosterityError], str]] = {
    "no layers": (lambda: Layers(()), UsageError, "at least one"),
    "one size": (lambda: Layers.dense(3), UsageError, r"Layers\.dense\(4, 16, 3\)"),
    "sizes in a list": (lambda: Layers.dense([4, 16, 3]), UsageError, r"sizes \(\[4, 16, 3\],\)"),
    "no units": (lambda: Dense(3, 0), UsageError, "positive"),
    "activation": (lambda: Dense(3, 1, "softmax"), UsageError, "relu"),
    "padding": (lambda: Conv((3, 3), 1, 1, padding="full"), UsageError, "valid"),
    "a size that is true": (lambda: Dense(True, 1), UsageError, "positive"),
    "misfit": (lambda: Layers((Dense(3, 2), Dense(3, 2))), StructureError, "layer 1"),
    "no image": (lambda: Layers((Conv((3, 3), 1, 2),)), StructureError, "layer 0"),
    "small image": (
        lambda: Layers((Conv((3, 3), 1, 2, pool=4),), (5, 5, 1)), StructureError, "layer 0",
    ),
    "channels": (lambda: Layers((Conv((3, 3), 3, 2),), (8, 8, 1)), StructureError, "layer 0"),
    "widths": (lambda: LENET.with_widths([3]), UsageError, "3 hidden layers"),
    "array": (
        lambda: Layers.dense(2, 1).ravel([{"kernel": np.ones((1, 2)), "bias": np.ones(1)}]),
        StructureError, "kernel of layer 0 of shape",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_no_layers_are(case: str) -> None:
    make, kind, said = WRONG[case]
    with pytest.raises(kind, match=said):
        make()
