"""Whether networks of several sites are of one kind."""

import dataclasses
from collections.abc import Mapping

from posterity.errors import StructureError
from posterity.families.layers import Dense, Layers
from posterity.families.network import Network


def check_alike(networks: Mapping[str, Network]) -> None:
    """Refuse other depths, inputs, outputs or kinds of layers, by site and layer.

    Raises:
        StructureError: naming the layer.
    """
    (first, like), *others = networks.items()
    if not isinstance(like.layers.layers[-1], Dense):
        raise StructureError(
            found=f"a last layer {like.layers.layers[-1]}",
            expected="a dense one, whose outputs mean the same at every site",
            fix="End the network with a Dense layer.",
        )
    for name, network in others:
        _check_pair(name, network.layers, first, like.layers)


def _check_pair(name: str, layers: Layers, first: str, like: Layers) -> None:
    if len(layers) != len(like):
        found, expected = f"{len(layers)} layers", f"{len(like)}"
    elif layers.image != like.image:
        found, expected = f"inputs of shape {layers.image} to layer 0", f"{like.image}"
    else:
        widened = layers.with_widths(like.widths)
        wrong = [
            index
            for index, (mine, theirs) in enumerate(zip(widened.layers, like.layers, strict=True))
            if dataclasses.replace(mine, outputs=theirs.outputs) != theirs
            or (index == len(like) - 1 and mine != theirs)
        ]
        if not wrong:
            return
        index = wrong[0]
        found = f"layer {index} {_told(layers, index)}"
        expected = _told(like, index)
    raise StructureError(
        found=f"{found} at site {name!r}",
        expected=f"{expected}, as at site {first!r}; numbers of hidden units may differ",
        fix="Fuse networks of one depth, with the same inputs, outputs, windows and activations.",
    )


def _told(layers: Layers, index: int) -> str:
    return f"{layers.layers[index]}" + (" (the last)" if index == len(layers) - 1 else "")
