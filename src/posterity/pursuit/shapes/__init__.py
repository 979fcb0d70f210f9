"""The kinds of components, and which one a law is of."""

from posterity.errors import UsageError
from posterity.families import (
    DiagonalGaussian,
    Distribution,
    ExponentialFamily,
    Gaussian,
    LowRankGaussian,
    Product,
)
from posterity.pursuit.shapes.base import Shape
from posterity.pursuit.shapes.gaussians import Diagonal, Full
from posterity.pursuit.shapes.general import General
from posterity.pursuit.shapes.joined import Joined
from posterity.pursuit.shapes.low_rank import LowRank

__all__ = ["Diagonal", "Full", "General", "Joined", "LowRank", "Shape", "shape_of"]


def shape_of(base: Distribution) -> Shape:
    """The shape of components like this law.

    Raises:
        UsageError: for a law that is not one reparameterised one.
    """
    if base.batch_shape == ():
        size = base.event_shape[0] if len(base.event_shape or ()) == 1 else 0
        if type(base) is LowRankGaussian:
            return LowRank(size, base.rank)
        if isinstance(base, DiagonalGaussian):
            return Diagonal(size)
        if type(base) is Gaussian:
            return Full(size)
        if isinstance(base, Product):
            blocks = dict(base.blocks)
            return Joined(tuple(blocks), tuple(shape_of(part) for part in blocks.values()))
        if isinstance(base, ExponentialFamily) and base.reparameterized:
            return General.like(base)
    raise UsageError(
        found=f"a base {base!r}",
        expected="one law of a reparameterised family: DiagonalGaussian, Gaussian, "
        "LowRankGaussian, Gamma, Beta, Dirichlet, ..., a Product of these, or Transformed",
        fix="Pass DiagonalGaussian.from_standard(mean, variance), say.",
    )
