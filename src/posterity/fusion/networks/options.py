"""Networks among what is to be fused, and how they are fused: options and widths."""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from numbers import Integral
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
WIDTH = Constraint(
    "a positive whole number",
    lambda n: isinstance(n, Integral) and not isinstance(n, bool) and int(n) > 0,
)
EXAMPLES = Constraint(
    "at least two examples, one a row, of finite numbers",
    lambda x: np.ndim(x) > 1 and len(x) > 1 and np.isfinite(x).all(),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Options:
    """Options of :func:`posterity.fuse` for networks.

    The fused network is to predict what the *weighted concatenation* predicts: all sites'
    networks side by side, output ``k`` of site ``j`` counted by its share ``a_jk``, in proportion
    to the precision that the site's posterior gained over its prior about that output.

    Attributes:
        tolerance: nats of predictive KL between the two, on random inputs, up to which the
            narrowest network is taken where ``components`` is None; None is .005, and .02 where
            there are several hidden layers.
        most: hidden units of each layer, or of each of all, that the fused network may have at
            most where ``components`` is None. Where no such network is within the tolerance, it
            has these, and a warning says how far it is.
        refit: whether all layers but the first are fitted to what they stand for, on random
            inputs.
        outputs: ``"classes"`` are logits of classes, of which a single one is a logit between
            two; ``"values"`` are what is predicted, and nats are counted in units of how unsure
            the last layer is of them. None takes two or more outputs as classes and one as a
            value.
        inputs: examples (n, *image) without labels, instead of random inputs.
        nonnegative: whether random inputs are not negative, as intensities are.
        samples: how many random inputs there are, for a refit and as many anew for the KL; None is
            3000, and 600 images.
    """

    tolerance: float | int | None = None
    most: int | Widths | None = None
    refit: bool = True
    outputs: Outputs | str | None = None
    inputs: Num[np.ndarray, "n ..."] | None = None
    nonnegative: bool = False
    samples: int | None = None

    def __post_init__(self) -> None:
        POSITIVE.or_none().check(tolerance=self.tolerance)
        for width in self.most if isinstance(self.most, tuple) else (self.most,):
            COUNT.or_none().check(most=width)
        one_of("classes", "values").or_none().check(outputs=self.outputs)
        COUNT.or_none().check(samples=self.samples)
        EXAMPLES.or_none().check(inputs=self.inputs)


def by_layer(value: Any, layers: Layers, name: str) -> Widths:
    """A width for each hidden layer, from one for all or one for each; a UsageError for what is
    none.
    """
    hidden = len(layers.widths)
    several = isinstance(value, Sequence) and not isinstance(value, str)
    widths: tuple[Any, ...] = tuple(value) if several else (value,) * hidden
    if len(widths) != hidden or not all(map(WIDTH.allows, widths)):
        raise UsageError(
            found=f"{name}={value!r}",
            expected=f"a positive whole number, or one for each of {hidden} hidden layers",
            fix=f"Pass {name}=None to have widths found.",
        )
    return tuple(map(int, widths))


def is_network(value: Any) -> bool:
    """Tell whether it is a network, a ledger of one or a file with either."""
    if isinstance(value, str | os.PathLike):
        value, _ = open_artifact(value)
    value = value.prior if isinstance(value, Ledger) else value
    return getattr(value, "network_layers", None) is not None and not value.batch_shape


def has_units(posterior: ExponentialFamily | None) -> bool:
    """Tell whether it is a network with hidden units: one without is like a labelled Gaussian."""
    layers = None if posterior is None else posterior.network_layers
    return layers is not None and bool(layers.widths)


def without_networks(
    blocks: Iterable[ExponentialFamily],
    options: Options | None,
    components: int | tuple[int, ...] | None,
) -> int | None:
    """Check that there are no networks, nor options for them; return the number of components."""
    if any(has_units(block) for block in blocks):
        raise StructureError(
            found="a Network as a block of a Product",
            expected="networks by themselves",
            fix="Fuse the networks, and the other blocks apart from them.",
        )
    if options is not None or isinstance(components, tuple):
        raise UsageError(
            found=f"components={components!r}" if options is None else f"networks={options!r}",
            expected="a width a layer, and networks=, only for Networks with hidden layers",
            fix="Leave it out.",
        )
    return components
