"""The structure of posteriors: the blocks in their products by path, and whether all are alike."""

from collections.abc import Mapping

from posterity.checks import check_proper
from posterity.errors import StructureError
from posterity.families import ExponentialFamily, Network
from posterity.families.layers import Dense
from posterity.families.names import Names, joined, some


def blocks(posterior: ExponentialFamily, path: str = "") -> dict[str, ExponentialFamily]:
    """The blocks in a posterior's products, by path; ``""`` is the posterior itself.

    A product whose blocks share labels is one block.

    >>> from posterity.families import Gamma
    >>> q = Gamma.from_standard(shape=1.0, rate=1.0)
    >>> list(blocks(Product(noise=q, layers=Product(first=q, second=q))))
    ['layers/first', 'layers/second', 'noise']
    """
    parts = posterior.independent_blocks()
    inner = (blocks(block, joined(path, name)) for name, block in parts.items())
    return {at: block for own in inner for at, block in own.items()} if parts else {path: posterior}


def assembled(
    like: ExponentialFamily, own: Mapping[str, ExponentialFamily], path: str = ""
) -> ExponentialFamily:
    """A posterior of the same products, with its ``own`` blocks by path."""
    if not (parts := like.independent_blocks()):
        return own[path]
    blocks = [assembled(block, own, joined(path, name)) for name, block in parts.items()]
    return like.rebuild(blocks)  # pyright: ignore[reportAttributeAccessIssue]


def check_structure(
    first: str,
    like: ExponentialFamily,
    posteriors: Mapping[str, ExponentialFamily],
    prior: ExponentialFamily | None,
) -> None:
    """Raise a StructureError unless posteriors, and the prior, have the structure of the first."""
    if like.batch_shape:
        raise StructureError(
            found=f"a batch of shape {like.batch_shape} at site {first!r}",
            expected="one posterior a site, or a batch (sites,) of posteriors with plates",
            fix="If the batch is of exchangeable components, wrap it: posterity.Plate(batch).",
        )
    if all(q.network_layers is not None for q in posteriors.values()):
        _check_layers(posteriors)  # type: ignore[arg-type]  # which says of which layer
    outline = like.outline(plates=False)
    for name, law in [*posteriors.items(), *([] if prior is None else [("", prior)])]:
        if law.batch_shape or law.outline(plates=False) != outline:
            raise StructureError(
                found=f"{law!r} at site {name!r}" if law is not prior else f"prior {prior!r}",
                expected=f"the family, blocks and dimensions of site {first!r}: {like!r} (plates "
                "may differ in size)",
                fix="Fit the same model at every site."
                if law is not prior
                else "Give one of the posteriors' family; wrap that of one component as "
                "posterity.Plate(stack([member])).",
            )
    if prior is not None:
        check_proper(prior, "the prior")


def _check_layers(networks: Mapping[str, Network]) -> None:
    """Refuse networks of other depths, inputs, outputs or kinds of layers, by site and layer."""
    (first, like), *others = networks.items()
    if not isinstance(like.layers[-1], Dense):
        raise StructureError(
            found=f"a last layer {like.layers[-1]}",
            expected="a dense one, whose outputs mean the same at every site",
            fix="End the network with a Dense layer.",
        )
    for name, network in others:
        if (difference := network.layers.difference(like.layers)) is not None:
            raise StructureError(
                found=f"{difference[0]} at site {name!r}",
                expected=f"{difference[1]}, as at site {first!r}; numbers of hidden units may "
                "differ",
                fix="Fuse networks of one depth, with the same inputs, outputs, windows and "
                "activations.",
            )


def check_no_units(like: ExponentialFamily, names: Names) -> None:
    """Refuse a network that comes as a law of its tensors, whose hidden units are in any order.

    Args:
        like: the posterior of a site.
        names: of coordinates, by path.
    """
    kernels: dict[str, None] = {}
    for path, block in blocks(like).items():
        own = names.get(path, ())
        entries = [name.rpartition("[") for name in own if name.endswith("]")]
        tensors = {f"{path}/{start}": place.count(",") for start, _, place in entries}
        if not own and block.gaussian and block.location() is not None:
            tensors = {path: 1}
        found = [name.strip(" /.") for name, commas in tensors.items() if commas]
        kernels |= dict.fromkeys(name for name in found if name.endswith(("kernel", "weight")))
    if len(kernels) > 1:
        raise StructureError(
            found=f"weights of a network, by tensors {some(list(kernels))}",
            expected="a Network, whose hidden units are matched: sites that were trained apart "
            "have them in orders of their own",
            fix="Make one of each law: posterity.networks.from_pytree(to_state_dict(law, module), "
            "to_state_dict(law, module, at='variance'), activation='relu'), of flax by to_params; "
            "or pass matching='identity' if all sites went on from one network.",
        )
