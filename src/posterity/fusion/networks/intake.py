"""Networks among what is to be fused: they are matched in memory, however large."""

import os
from collections.abc import Iterable
from typing import Any

from posterity.artifact import open_artifact
from posterity.errors import StructureError, UsageError
from posterity.families import ExponentialFamily
from posterity.families.network import Network
from posterity.fusion.networks.options import Options
from posterity.ledger import Ledger


def is_network(value: Any) -> bool:
    """Whether it is a network, a ledger of one or a file with either."""
    if isinstance(value, str | os.PathLike):
        value, _ = open_artifact(value)
    value = value.prior if isinstance(value, Ledger) else value
    return isinstance(value, Network) and not value.batch_shape


def has_units(posterior: Any) -> bool:
    """Whether it is a network with hidden units; one without is like any labelled Gaussian."""
    return isinstance(posterior, Network) and bool(posterior.layers.widths)


def without_networks(
    blocks: Iterable[ExponentialFamily],
    options: Options | None,
    components: int | tuple[int, ...] | None,
) -> int | None:
    """The number of components; networks beside other blocks, and what is said of them, refused.

    Raises:
        StructureError: a network in a block of a product.
        UsageError: ``networks=`` or several ``components`` where there are none.
    """
    if any(has_units(block) for block in blocks):
        raise StructureError(
            found="a Network as a block of a Product",
            expected="networks by themselves: what its units are matched by is not said of blocks",
            fix="Fuse the networks, and the other blocks apart from them.",
        )
    if options is not None or isinstance(components, tuple):
        raise UsageError(
            found=f"components={components!r}" if options is None else f"networks={options!r}",
            expected="a width a layer, and networks=, only for Networks with hidden layers",
            fix="Leave it out.",
        )
    return components
