"""The walk through a posterior's products: its blocks by path, and back."""

from collections.abc import Mapping

from posterity.families import ExponentialFamily
from posterity.families.names import joined


def blocks(posterior: ExponentialFamily, path: str = "") -> dict[str, ExponentialFamily]:
    """What is in a posterior's products, by path; ``""`` is the posterior itself.

    A product whose blocks share labels is one block.

    >>> from posterity.families import Gamma
    >>> q = Gamma.from_standard(shape=1.0, rate=1.0)
    >>> list(blocks(Product(noise=q, layers=Product(first=q, second=q))))
    ['layers/first', 'layers/second', 'noise']
    """
    if not _apart(posterior):
        return {path: posterior}
    inner = (blocks(block, joined(path, name)) for name, block in posterior.blocks.items())  # pyright: ignore[reportAttributeAccessIssue]
    return {path: block for found in inner for path, block in found.items()}


def assembled(
    like: ExponentialFamily, found: Mapping[str, ExponentialFamily], path: str = ""
) -> ExponentialFamily:
    """A posterior of the same products, with the blocks that were ``found`` by path."""
    if not _apart(like):
        return found[path]
    inner = like.blocks.items()  # pyright: ignore[reportAttributeAccessIssue]
    parts = [assembled(block, found, joined(path, name)) for name, block in inner]
    return like.rebuild(parts)  # pyright: ignore[reportAttributeAccessIssue]


def _apart(posterior: ExponentialFamily) -> bool:
    """Whether it is a product whose blocks have nothing to do with each other."""
    return bool(posterior.independent_blocks())
