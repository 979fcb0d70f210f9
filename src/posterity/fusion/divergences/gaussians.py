"""Which components are about a Gaussian, for distances that only Gaussians have in closed form."""

from posterity.errors import StructureError
from posterity.families import ExponentialFamily
from posterity.families.about import AboutGaussian


def about_gaussian(member: ExponentialFamily) -> AboutGaussian:
    """The same, which is about one; a StructureError for a family that is not."""
    if not isinstance(member, AboutGaussian):
        raise StructureError(
            found=f"a transport distance between members of {type(member).__name__}",
            expected="Gaussian, DiagonalGaussian, NormalWishart, NormalGamma, or another kind of "
            "posterity.families.about.AboutGaussian, or products of them",
            fix="Choose another divergence: 'reverse', 'forward', 'jeffreys' and 'renyi' serve all "
            "families.",
        )
    return member
