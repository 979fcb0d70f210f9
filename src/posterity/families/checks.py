"""Checks of parameters: finite, proper, and of the same structure."""

from typing import Any

import numpy as np

from posterity.arrays.tree import leaves_with_path, structure
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families import Distribution, ExponentialFamily
from posterity.families.coordinates import check_inside


def check_finite(family: Any, place: str) -> None:
    """Raise a ParameterError with the name of the block if a parameter is NaN or infinite."""
    for path, leaf in leaves_with_path(family):
        values = np.asarray(leaf)
        where = f"{'.'.join(path)} of {place}"
        check_inside(np.isfinite(values), values, where, "finite natural parameters")


def check_proper(law: Distribution, place: str) -> None:
    """Raise a ParameterError if a member of the batch is improper or not finite."""
    check_finite(law, place)
    if not np.all(law.is_proper()):
        raise ParameterError(
            found=f"improper {type(law).__name__}{_improper_part(law)} in {place}",
            expected="precisions that are positive definite, positive concentrations and degrees",
            fix="A difference of posteriors is a factor: add it to a prior before using it.",
        )


def check_prior(prior: Any, what: str = "a prior") -> None:
    """Raise a UsageError unless ``prior`` is one proper distribution without a batch."""
    one = isinstance(prior, Distribution) and prior.batch_shape == ()
    if not one or not np.all(prior.is_proper()):
        raise UsageError(
            found=f"{what} {prior!r}{', which is improper' * one}",
            expected="one proper law: a member of a batch, a network prior's `.network(layers)`",
        )


def check_adds(law: Any, place: str) -> None:
    """Raise a StructureError unless ``law`` is an exponential family, whose parameters add."""
    if isinstance(law, ExponentialFamily):
        return
    raise StructureError(
        found=f"a {type(law).__name__} in {place}",
        expected="an exponential family, a Ledger, or the path of a file with one",
        fix=getattr(law, "addend", Distribution.addend),
    )


def check_same_structure(expected: Distribution, law: Any, place: str) -> None:
    """Raise a StructureError unless both have the same family and shapes."""
    if structure(expected) != structure(law):
        raise StructureError(found=f"{law!r} in {place}", expected=repr(expected))


def _improper_part(law: Any) -> str:
    """Return the member and the part that are improper, for the message."""
    for part in law.parts() if law.composed else ():
        proper = np.asarray(part.is_proper())
        if not proper.all():
            index = [int(i) for i in np.argwhere(~proper)[0]]
            where = f" member {index}" if index else ""
            return f" ({type(part).__name__}{where}{_improper_part(part)})"
    return ""
