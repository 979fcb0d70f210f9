"""Options for the fusion of networks, and checks of networks and widths."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from posterity.arguments import COUNT, POSITIVE, Constraint, one_of
from posterity.arrays.typing import Num
from posterity.artifact import open_artifact
from posterity.errors import StructureError, UsageError
from posterity.families import ExponentialFamily
from posterity.families.layers import Layers
from posterity.ledger import Ledger

Outputs = Literal["classes", "values"]
Widths = tuple[int, ...]
EXAMPLES = Constraint(
    "at least two examples, one a row, of finite numbers",
    lambda x: np.ndim(x) > 1 and len(x) > 1 and np.isfinite(x).all(),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Options:
    """Options of :func:`posterity.fuse` for networks.

    The target of the fused network is the *weighted concatenation*: all sites' networks side by
    side, with output ``k`` of site ``j`` multiplied by its share ``a_jk``. The share is
    proportional to the precision that the site's posterior gained over its prior on that output.

    Attributes:
        tolerance: predictive KL from the concatenation to the fused network, in nats, up to which
            the narrowest network is chosen if ``components`` is None; by default 0.005, or 0.02
            for several hidden layers without convolutions.
        refit: whether all layers but the first are refitted to the sites' outputs, on random
            inputs.
        outputs: ``"classes"`` for logits of classes (a single output is the logit of two classes);
            ``"values"`` for predicted values, whose squared errors are measured by the variance
            due to the last layer. By default two or more outputs are classes, and one is a value.
        inputs: unlabelled examples (n, *image), instead of random inputs.
        samples: number of random inputs for refits, and of further ones for the KL; by default
            3000, or 600 for images.
    """

    tolerance: float | int | None = None
    refit: bool = True
    outputs: Outputs | str | None = None
    inputs: Num[np.ndarray, "n ..."] | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        POSITIVE.or_none().check(tolerance=self.tolerance)
        one_of("classes", "values").or_none().check(outputs=self.outputs)
        COUNT.or_none().check(samples=self.samples)
        EXAMPLES.or_none().check(inputs=self.inputs)

    def number(self, layers: Layers) -> int:
        """Return the number of random inputs for such layers."""
        # Fewer images suffice, since each has many patches.
        return self.samples or (600 if layers.windows else 3000)

    def allowed(self, layers: Layers) -> float:
        """Return the tolerance for networks of such layers."""
        deep = len(layers) > 2 and not layers.windows
        return float(self.tolerance or (0.02 if deep else 0.005))


def by_layer(components: Any, layers: Layers) -> Widths:
    """Return a width for each hidden layer, from one for all or one for each; raise a UsageError
    for an invalid width.
    """
    hidden = len(layers.widths)
    several = isinstance(components, Sequence) and not isinstance(components, str)
    widths: tuple[Any, ...] = tuple(components) if several else (components,) * hidden
    if len(widths) != hidden or not all(map(COUNT.allows, widths)):
        raise UsageError(
            found=f"components={components!r}",
            expected=f"a positive whole number, or one for each of {hidden} hidden layers",
        )
    return tuple(map(int, widths))


def is_network(value: Any) -> bool:
    """Return whether the value is a network, a ledger of one, or a file with either."""
    if isinstance(value, str | os.PathLike):
        value, _ = open_artifact(value)
    value = value.prior if isinstance(value, Ledger) else value
    return getattr(value, "network_layers", None) is not None and not value.batch_shape


def has_units(posterior: ExponentialFamily | None) -> bool:
    """Return whether the posterior is a network with hidden units, which need matching."""
    layers = None if posterior is None else posterior.network_layers
    return layers is not None and bool(layers.widths)


def without_networks(
    blocks: Sequence[ExponentialFamily], options: Options | None, components: Any
) -> int | None:
    """Check that there are no networks and no options for them; return ``components``, a number
    only where there is a plate.
    """
    if any(has_units(block) for block in blocks):
        raise StructureError(
            found="a Network as a block of a Product", expected="networks by themselves"
        )
    plates = any(block.is_plate for block in blocks)
    if options is not None or not (components is None or (plates and COUNT.allows(components))):
        raise UsageError(
            found=f"components={components!r}" if options is None else f"networks={options!r}",
            expected="a whole number of components where there is a Plate; networks=, or a "
            "width a layer, of Networks with hidden layers",
        )
    return components
