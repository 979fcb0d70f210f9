"""Networks that do not fit together, and arguments that say nothing of networks."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from posterity.arguments import Constraint
from posterity.errors import StructureError, UsageError
from posterity.families.network import Network
from posterity.fusion.matching import Matching
from posterity.fusion.networks.locals import Local
from posterity.fusion.networks.options import Options
from posterity.fusion.sites import Site
from posterity.networks.layers import Dense, Layers

WIDTH = Constraint("a positive whole number", lambda n: isinstance(n, int) and n > 0)


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


def check_arguments(matching: Matching, absorb: bool | None, budget: int | None) -> None:
    """Refuse what is only said of plates.

    Raises:
        UsageError: for ``absorb=True`` or a ``budget``.
    """
    if absorb:
        raise UsageError(
            found="absorb=True for networks",
            expected="absorb=None: two units of one site are never one",
            fix="Leave absorb out.",
        )
    if budget is not None:
        raise UsageError(
            found=f"budget={budget} for networks",
            expected="budget=None: networks are matched in memory",
            fix="Leave budget out, or fuse regions of fewer sites first.",
        )


def widths_wanted(
    components: Any, locals_: list[Local], matching: Matching, options: Options
) -> tuple[int, ...] | None:
    """A width for each hidden layer, where the user names them, no more than there are units.

    Raises:
        UsageError: for widths that are none, or of another number of layers.
    """
    layers = locals_[0].layers
    hidden = len(layers.widths)
    if options.units == "selected" and matching is not Matching.EVIDENCE:
        raise UsageError(
            found=f"matching={matching.value!r} with networks=Options(units='selected')",
            expected="units='matched', or no matching",
            fix="Leave one of them out.",
        )
    if components is None:
        return None
    wanted = (components,) * hidden if isinstance(components, int) else tuple(components)
    if len(wanted) != hidden or not all(map(WIDTH.allows, wanted)) or not hidden:
        raise UsageError(
            found=f"components={components!r}",
            expected=f"a width, or a positive one for each of {hidden} hidden layers",
            fix="Pass components=None to have widths found.",
        )
    total = [sum(local.layers.widths[index] for local in locals_) for index in range(hidden)]
    over = [index for index in range(hidden) if wanted[index] > total[index]]
    if over:
        raise UsageError(
            found=f"components={components!r}",
            expected=f"no more than {total}: all sites' units side by side, none made up",
            fix="Pass components=None to have widths found.",
        )
    return wanted


def networks_of(sites: Mapping[str, Site]) -> dict[str, Network]:
    """The sites' networks.

    Raises:
        StructureError: if another family is among them.
    """
    for name, site in sites.items():
        if not isinstance(site.posterior, Network):
            raise StructureError(
                found=f"a {type(site.posterior).__name__} at site {name!r}",
                expected="a Network at every site, or at none",
                fix="Make it one: Network(precision_mean, precision, layers).",
            )
    return {name: site.posterior for name, site in sites.items()}  # pyright: ignore[reportReturnType]
