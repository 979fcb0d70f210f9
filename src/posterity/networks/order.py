"""In which order layers stand that a tree holds, and which way round their kernels are."""

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.arguments import one_of
from posterity.errors import StructureError, UsageError
from posterity.families.layers import Dense, Layers
from posterity.networks.parts import Part, parts_of

LAYOUT = one_of("last", "first").or_none()
MANY = 6
"""Layers up to which every order is tried."""


class Tree(NamedTuple):
    """A tree whose parts are known, in the order of the layers."""

    parts: tuple[Part, ...]
    layouts: tuple[str, ...]
    layers: Layers


def described(
    tree: Any, layers: Layers | None, activation: str | None, layout: Any, order: Any
) -> Tree:
    """The tree's layers: those that are given, else dense ones, inferred.

    Raises:
        StructureError, UsageError: as :func:`~posterity.networks.pytrees.from_pytree`.
    """
    LAYOUT.check(layout=layout)
    parts = parts_of(tree)
    if layers is not None:
        return Tree(*ordered(parts, layers, layout, order), layers)
    if windows := [part.path for part in parts if len(part.shape) == 4]:
        raise UsageError(
            found=f"convolutions at {windows}, of which arrays show neither stride nor pooling",
            expected="the layers",
            fix="Pass layers=Layers((Conv(...), ..., Dense(...)), image=(28, 28, 1)).",
        )
    if activation is None and len(parts) > 1:
        raise UsageError(
            found="hidden layers whose activation is not named",
            expected="activation= or layers=: arrays do not show it",
            fix="Pass activation='relu', or what it is.",
        )
    chosen, layouts = ordered(parts, None, layout, order)
    last = len(chosen) - 1
    found = tuple(
        Dense(*part.sizes(own), "identity" if n == last else activation or "identity",
              part.bias is not None)
        for n, (part, own) in enumerate(zip(chosen, layouts, strict=True))
    )  # fmt: skip
    return Tree(chosen, layouts, Layers(found))


def ordered(
    parts: list[Part],
    layers: Layers | None,
    layout: str | None,
    order: Sequence[str] | None,
    *,
    widths: bool = True,
) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Parts from inputs to outputs, and where the channels of each stand."""
    if layers is not None and len(parts) != len(layers):
        raise StructureError(
            found=f"{len(parts)} layers at {[part.path for part in parts]}",
            expected=f"{len(layers)} layers, as described: {layers.summary}",
            fix="Describe all layers, and no other.",
        )
    if order is not None:
        if sorted(order) != sorted(part.path for part in parts):
            raise UsageError(
                found=f"order={list(order)}",
                expected=f"each of {[part.path for part in parts]} once",
                fix="Name layers from inputs to outputs.",
            )
        parts = sorted(parts, key=lambda part: list(order).index(part.path))
        orders = [tuple(parts)]
    else:
        parts = sorted(parts, key=lambda part: _natural(part.path))
        orders = [*_chains(parts)]
    layouts = [(chosen, _layouts(chosen, layout)) for chosen in orders]
    fitting = [pair for pair in layouts if _follows(*pair, layers)]
    if not (fitting or widths):
        fitting = [pair for pair in layouts if _follows(*pair, None)]
    # Numbers in names say the order where they can; linen's count constructors, not calls.
    fitting = [pair for pair in fitting if _kept(pair[0])] or fitting
    if not fitting:
        chosen = orders[0] if orders else tuple(parts)
        raise StructureError(
            found=f"layers {[f'{part.path} {part.shape}' for part in chosen]}",
            expected="each to take what the one before gives"
            + (f", as described: {layers.summary}" if layers else ""),
            fix="Networks with branches, as residual ones, are no Layers; else pass `order`.",
        )
    if len(fitting) > 1:
        raise UsageError(
            found=f"layers {[part.path for part in parts]}, which several orders fit",
            expected="numbered names, or an order",
            fix="Pass order=[...], their paths from inputs to outputs.",
        )
    return fitting[0]


def _natural(path: str) -> list[Any]:
    return [(int(piece), "") if piece.isdigit() else (-1, piece)
            for piece in re.split(r"(\d+)", path)]  # fmt: skip


def _kept(chosen: Sequence[Part]) -> bool:
    """Whether layers whose names differ in numbers alone stand in the order of these."""
    stem = lambda part: re.sub(r"\d+", "", part.path)
    return all(
        _natural(a.path) < _natural(b.path)
        for a, b in itertools.combinations(chosen, 2)
        if stem(a) == stem(b)
    )


def _chains(parts: list[Part]) -> Any:
    """Orders that layers may have: of many, that of their names alone."""
    return itertools.permutations(parts) if len(parts) <= MANY else [tuple(parts)]


def _layouts(parts: Sequence[Part], layout: str | None) -> tuple[str, ...]:
    found = []
    common = {part.layout for part in parts} - {None}
    for part in parts:
        own = layout or part.layout or (common.copy().pop() if len(common) == 1 else None)
        if own is None:
            raise UsageError(
                found=f"a kernel of shape {part.shape} at {part.path!r}, of which it cannot be "
                "told whether inputs or outputs come first",
                expected="a layout",
                fix="Pass layout='last' for (inputs, outputs), 'first' for (outputs, inputs).",
            )
        found.append(own)
    return tuple(found)


def _follows(parts: Sequence[Part], layouts: Sequence[str], layers: Layers | None) -> bool:
    """Whether each takes what the one before gives, and is shaped as described."""
    if layers is not None:
        pairs = zip(parts, layouts, layers.layers, strict=True)
        return all(to_ours(np.empty(p.shape), own).shape == layer.kernel
                   and (p.bias is not None) == layer.bias for p, own, layer in pairs)  # fmt: skip
    sizes = [part.sizes(own) for part, own in zip(parts, layouts, strict=True)]
    for (before, after), part, last in zip(
        itertools.pairwise(sizes), parts[1:], parts, strict=False
    ):
        flattened = len(last.shape) == 4 and len(part.shape) == 2
        if after[0] != before[1] and not (flattened and after[0] % before[1] == 0):
            return False
        if len(last.shape) == 2 and len(part.shape) == 4:
            return False
    return True


def to_ours(kernel: np.ndarray, layout: str) -> np.ndarray:
    """A kernel with its inputs before its outputs, and its window before both."""
    if layout == "last":
        return kernel
    return kernel.T if kernel.ndim == 2 else kernel.transpose(2, 3, 1, 0)
