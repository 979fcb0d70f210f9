"""How networks are fused: what is measured to be best, and what it was measured against."""

import dataclasses
from typing import Any, Literal

import numpy as np

from posterity.arguments import COUNT, NATURAL, POSITIVE, Constraint, one_of
from posterity.errors import UsageError

Shares = Literal["precision", "equal"]
Outgoing = Literal["sum", "average"]
Units = Literal["matched", "selected"]
Outputs = Literal["classes", "values"]
FLAG = Constraint("True or False", lambda value: isinstance(value, bool | np.bool_))


@dataclasses.dataclass(frozen=True, eq=False)
class Options:
    """How :func:`posterity.fuse` fuses networks.

    The fused network is to predict what the *weighted concatenation* predicts: all sites'
    networks side by side, output ``k`` of site ``j`` counted by its share ``a_jk``.

    Attributes:
        tolerance: nats of predictive KL between the two, on random inputs, up to which the
            narrowest network is taken where ``components`` is None.
        most: hidden units of each layer, or of each of all, that the fused network may have at
            most where ``components`` is None. Where no such network is within the tolerance, it
            has these, and a warning says how far it is.
        shares: ``"precision"``, ``a_jk`` in proportion to the precision that the posterior of a
            site gained over its prior about output ``k``; or ``"equal"``, one over the sites.
        outgoing: how the outgoing weights of units that were matched become one: ``"sum"``, the
            sum of what its sites say, each by its share; or ``"average"``, the sum over the
            shares of those sites that have the unit.
        refit: whether all layers but the first are fitted to what they stand for, on random
            inputs.
        ridge: how strongly a refit holds on to what it starts from, relative to the mean square
            of the units' outputs.
        units: ``"matched"`` units are averaged; ``"selected"`` ones are taken from the sites as
            they are, those that tell most of the outputs, and the rest is dropped.
        drop: signal to noise of a unit's surest outgoing weight below which it is left out
            before anything else; None keeps all.
        outputs: ``"classes"`` are logits of classes, of which a single one is a logit between
            two; ``"values"`` are what is predicted, and nats are counted in units of how unsure
            the last layer is of them. None takes two or more outputs as classes and one as a
            value.
        inputs: examples (n, *image) without labels, instead of random inputs.
        nonnegative: whether random inputs are not negative, as intensities are.
        samples: how many random inputs there are, for a refit and as many anew for the KL; None is
            3000, and 600 images.
        seed: of the random inputs.
    """

    tolerance: float | int = 0.005
    most: int | tuple[int, ...] | None = None
    shares: Shares | str = "precision"
    outgoing: Outgoing | str = "sum"
    refit: bool = True
    ridge: float | int = 1e-4
    units: Units | str = "matched"
    drop: float | int | None = None
    outputs: Outputs | str | None = None
    inputs: Any = None
    nonnegative: bool = False
    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        POSITIVE.check(tolerance=self.tolerance, ridge=self.ridge)
        for width in self.most if isinstance(self.most, tuple) else (self.most,):
            COUNT.or_none().check(most=width)
        POSITIVE.or_none().check(drop=self.drop)
        one_of("precision", "equal").check(shares=self.shares)
        one_of("sum", "average").check(outgoing=self.outgoing)
        one_of("matched", "selected").check(units=self.units)
        one_of("classes", "values").or_none().check(outputs=self.outputs)
        FLAG.check(refit=self.refit, nonnegative=self.nonnegative)
        COUNT.or_none().check(samples=self.samples)
        NATURAL.check(seed=self.seed)
        if self.inputs is None:
            return
        given = np.asarray(self.inputs)
        if given.ndim < 2 or len(given) < 2 or given.dtype.kind not in "fiub":
            raise UsageError(
                found=f"inputs of shape {given.shape} and type {given.dtype}",
                expected="at least two examples, one a row",
                fix="Pass an array (n, inputs), or (n, height, width, channels) of images.",
            )
        if not np.isfinite(given).all():
            raise UsageError(
                found="inputs with NaN or infinite numbers",
                expected="finite examples",
                fix="Prepare them as the sites prepared theirs.",
            )
