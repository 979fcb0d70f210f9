"""The plan of a fusion (its checked arguments), and the reading of posteriors."""

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from posterity.arguments import COUNT, Constraint, one_of
from posterity.arrays.stacks import unstacked
from posterity.arrays.tree import leaves
from posterity.artifact import Posterior, open_artifact
from posterity.artifact.many import Alone, Several, called, read_alone, read_many
from posterity.errors import StructureError, UsageError
from posterity.families import Distribution, ExponentialFamily, Network
from posterity.families.checks import check_proper
from posterity.families.layers import Dense
from posterity.families.names import Names, some
from posterity.fusion.blocks import blocks
from posterity.fusion.criterion import USUAL, DescriptionLength
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching, Rule
from posterity.fusion.networks.options import Options, is_network
from posterity.ledger import Ledger

BUDGET = 512 * 2**20  # Bytes of memory that fusion uses, by default
SHARE = 8  # Parameters up to 1/SHARE of the budget are matched in memory
IN_MEMORY = BUDGET // SHARE  # Bytes of parameters up to which all sites are matched in memory
TOGETHER = 512  # Files that are read, and sites that are written to tables, at a time
SUFFIX = ".safetensors"

Fusible = Posterior | Alone | Several | str | os.PathLike[str]
Item = tuple[str | None, Any]
"""A name or None, and a posterior, a ledger, a path, or a batch of posteriors."""


def items(posteriors: Any) -> Iterator[Item]:
    """Yield the posteriors to fuse, each with its name or None. A folder stands for its files
    ``*.safetensors``, a pattern for the files that match, in the order of their names.
    """
    if isinstance(posteriors, Mapping):
        yield from posteriors.items()
        return
    alone = isinstance(posteriors, str | os.PathLike | Distribution | Ledger)
    if not alone and not isinstance(posteriors, Iterable):
        raise UsageError(
            found=f"posteriors {posteriors!r}",
            expected="posteriors, ledgers or paths in a list, a mapping or an iterator",
        )
    for value in [posteriors] if alone else posteriors:
        if isinstance(value, str | os.PathLike):
            yield from ((None, path) for path in files(value))
        else:
            yield None, value


def files(path: str | os.PathLike[str]) -> list[str]:
    """Return the files that a path stands for: itself, those in a folder, or those that match a
    pattern. Raise a UsageError if there are none.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        paths = glob.glob(os.path.join(glob.escape(path), f"*{SUFFIX}"))
    elif not glob.has_magic(path) or os.path.lexists(path):
        return [path]
    else:
        paths = glob.glob(path, recursive=True)
    if not paths:
        raise UsageError(
            found=f"no file that is meant by {path!r}",
            expected=f"a folder with files *{SUFFIX}, or a pattern that matches some",
        )
    return sorted(paths)


def within(posteriors: Iterator[Item], limit: int) -> tuple[Iterator[Item], bool]:
    """Return an iterator over the same posteriors, and whether all take at most ``limit`` bytes;
    reading ahead stops once they take more.
    """
    first = []
    size = 0
    for item in posteriors:
        first.append(item)
        size += size_of(item[1])
        if size > limit:
            return itertools.chain(first, posteriors), False
    return iter(first), True


def one_by_one(posteriors: Iterable[Item]) -> Iterator[Alone]:
    """Read the files among the posteriors, and split each batch into its sites."""
    for name, value in posteriors:
        read = _read(value, name)
        if isinstance(read, Alone):
            yield read
            continue
        prior = read.prior
        sites = zip(read.names, unstacked(read.posterior), read.digests, strict=True)
        for own, law, digest in sites:
            q = law if prior is None else Ledger.of_site(own, prior=prior, posterior=law)
            yield Alone(own, q, digest, read.provenance)


def together(posteriors: Iterable[Item]) -> Iterator[Alone | Several]:
    """Read the files among the posteriors, many unnamed ones at a time; keep batches whole."""

    def by_path(item):
        return item[0] is None and _is_path(item[1])

    for paths, own in itertools.groupby(posteriors, by_path):
        while paths and (few := [os.fspath(path) for _, path in itertools.islice(own, TOGETHER)]):
            yield from read_many(few)
        yield from (_read(value, name) for name, value in own)


def _read(value: Any, name: str | None) -> Alone | Several:
    """Return a value, or that of a file, with its name, or None for one without."""
    if _is_path(value):
        return read_alone(os.fspath(value), name)
    if isinstance(value, Alone | Several):
        return value
    many = name is None and isinstance(value, ExponentialFamily) and len(value.batch_shape) == 1
    if many and any(block.is_plate for block in blocks(value).values()):
        # A batch (sites,) of posteriors with plates stands for as many sites.
        nothing: Any = [None] * value.batch_shape[0]
        return Several(nothing, value, None, nothing, {})
    return Alone(name, called(value, name), "", {})  # pyright: ignore[reportArgumentType]


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def size_of(value: Any) -> int:
    """Return the bytes of a posterior's parameters or of a file; zero for an unreadable file."""
    if _is_path(value):
        try:
            return os.stat(value).st_size
        except (OSError, ValueError):  # reading the file will report the error
            return 0
    value = value.value if isinstance(value, Alone) else value
    law = value.prior if isinstance(value, Ledger) else getattr(value, "posterior", value)
    return sum(getattr(leaf, "nbytes", 0) for leaf in leaves(law))


PRIOR = Constraint(
    "an exponential family; that of a ledger is ledger.prior, that in a file posterity.load(path)",
    lambda value: value is None or isinstance(value, ExponentialFamily),
    StructureError,
)

CRITERION = Constraint(
    "a posterity.fusion.criterion.DescriptionLength",
    lambda value: isinstance(value, DescriptionLength),
)


class Plan:
    """The checked arguments of :func:`posterity.fuse`. ``matching_by_site`` is the matching that
    the user passed, if any; ``rule`` is None if it follows from the sites; ``bytes`` of memory are
    used, and ``numbers`` are those of the criterion.
    """

    def __init__(
        self,
        rule: Rule | str | None = None,
        divergence: Divergence | str = Divergence.REVERSE,
        matching: Matching | str | Mapping[str, Any] = Matching.EVIDENCE,
        components: int | tuple[int, ...] | None = None,
        prior: Any = None,
        absorb: bool | None = None,
        budget: int | None = None,
        networks: Options | None = None,
        criterion: DescriptionLength | None = None,
    ):
        COUNT.or_none().check(budget=budget)
        PRIOR.check(prior=prior)
        CRITERION.or_none().check(criterion=criterion)
        self.matching_by_site = matching if isinstance(matching, Mapping) else None
        name = Matching.IDENTITY if isinstance(matching, Mapping) else matching
        one_of(*map(str, Matching)).check(matching=name)
        one_of(*map(str, Divergence)).check(divergence=divergence)
        one_of(*map(str, Rule)).or_none().check(rule=rule)
        self.rule = None if rule is None else Rule(rule)
        self.matching = Matching(name)
        self.divergence = Divergence(divergence)
        self.components = components
        self.prior = prior
        self.absorb = absorb
        self.budget = budget
        self.bytes = BUDGET if budget is None else budget
        self.networks = networks
        self.criterion = criterion
        self.numbers = USUAL if criterion is None else criterion
        searched = self.matching is Matching.EVIDENCE and components is None
        if not searched:
            by = "matching='evidence' and components=None"
            self.refuse("absorb", "criterion", of=f"a number of components not sought by {by}")

    def refuse(self, *names: str, of: str) -> None:
        """Raise a UsageError for arguments that mean nothing in a fusion ``of`` such sites."""
        passed = [name for name in names if getattr(self, name) not in (None, False)]
        if passed:
            raise UsageError(
                found=f"{passed[0]}= for {of}",
                expected="that argument left out, as it means nothing there",
            )

    def passed(self, **others: Any) -> list[str]:
        """Return the names of the arguments, besides ``prior``, that are not the default; those of
        ``others`` have None as their default.
        """
        searched = ("matching", "components", "absorb", "criterion")
        names = ("rule", "divergence", *searched, "budget", "networks")
        own = {name: getattr(self, name) for name in names}
        usual = {"divergence": Divergence.REVERSE, "matching": Matching.EVIDENCE}
        given = [name for name, value in own.items() if value != usual.get(name)]
        return given + [name for name, value in others.items() if value is not None]

    def in_memory_only(self, first: Any) -> str:
        """Return the choice that needs all sites in memory; empty if sums suffice."""
        if self.matching is Matching.KL_FUSION:
            return "matching='kl-fusion'"
        value = open_artifact(first)[0] if _is_path(first) else first
        value = getattr(value, "value", getattr(value, "posterior", value))
        law = value.prior if isinstance(value, Ledger) else value
        family = isinstance(law, ExponentialFamily)
        tied = family and any(block.is_tied for block in blocks(law).values())
        return "posteriors whose blocks share labels" * tied or "networks" * is_network(law)


def check_structure(
    first: str,
    like: ExponentialFamily,
    posteriors: Mapping[str, ExponentialFamily],
    prior: ExponentialFamily | None,
) -> None:
    """Raise a StructureError unless all posteriors and the prior have the first one's structure."""
    if all(q.network_layers is not None for q in posteriors.values()):
        _check_layers(posteriors)  # type: ignore[arg-type]  # its error names the layer
    outline = like.outline(plates=False)
    for name, law in [*posteriors.items(), *([] if prior is None else [("", prior)])]:
        if law.batch_shape or law.outline(plates=False) != outline:
            raise StructureError(
                found=f"{law!r} at site {name!r}" if law is not prior else f"prior {prior!r}",
                expected=f"one law with family, blocks and dimensions of site {first!r}: {like!r} "
                "(plates may differ in size; exchangeable components are one Plate(batch))",
            )
    if prior is not None:
        check_proper(prior, "the prior")


def _check_layers(networks: Mapping[str, Network]) -> None:
    """Raise a StructureError if depths, inputs, outputs or kinds of layers of networks differ."""
    (first, like), *others = networks.items()
    if not isinstance(like.layers[-1], Dense):
        raise StructureError(
            found=f"a last layer {like.layers[-1]}",
            expected="a Dense one, whose outputs mean the same at every site",
        )
    for name, network in others:
        difference = network.layers.difference(like.layers)
        if difference is not None:
            raise StructureError(
                found=f"{difference[0]} at site {name!r}",
                expected=f"{difference[1]}, as at site {first!r}; numbers of hidden units may "
                "differ",
            )


def check_no_units(like: ExponentialFamily, names: Names) -> None:
    """Raise a StructureError for a network that is passed as a law of its tensors, with names of
    coordinates by path: its hidden units, whose order is arbitrary, could not be matched.
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
