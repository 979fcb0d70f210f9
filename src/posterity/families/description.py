"""One line on a law: what ``repr`` says, quickly and whatever the law holds.

Numbers are said where they are known and cheap: of one member, in up to 64 dimensions where a
matrix would have to be inverted. Else it is the family with its dimensions and batch.
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from posterity.arrays.tree import LABEL
from posterity.arrays.typing import PyTree
from posterity.families.names import names_of, with_names
from posterity.text import MOST, SHOWN, cut, listed, short_name

MOST_SOLVED = 64
"""Dimensions up to which a matrix is inverted to be described."""
MOST_READ = 10_000
"""Numbers of a law up to which all are looked at."""


def described(law: PyTree) -> str:
    """One line below 200 characters on a law; never an error."""
    for numbers in (True, False):
        try:
            with np.errstate(all="ignore"):
                line = law._described(numbers)
        except Exception:  # of tracers, of what is half built: a description is no place to fail
            continue
        if len(line) <= MOST:
            return line
    try:
        return cut(law._described(numbers=False))
    except Exception:
        return cut(f"{type(law).__name__}({_shapes(law)})")


def family_of(law: PyTree) -> str:
    """A law without its numbers; never an error."""
    try:
        return law._described(numbers=False)
    except Exception:
        return type(law).__name__


def posterior_line(prior: Any, sites: Collection[str], total: Callable[[], Any]) -> str:
    """The posterior of so many sites where it is summed in no time, else what kind it is."""
    if len(sites) > MOST_SOLVED or prior.dimension > MOST_READ:
        return family_of(prior)
    return described(with_names(total(), names_of(prior)))


def leaf(law: PyTree, numbers: bool) -> str:
    """A law without parts: its dimensions, its batch and its first numbers."""
    kinds = getattr(law, "coordinates", None)  # one number has no axis
    sized = kinds is None or any(coordinate.axes for coordinate in kinds.values())
    own = [f"d={law.named_size}"] if sized and law.named_size is not None else []
    own += batch(law)
    if numbers and not law.batch_shape:
        own += _numbers(law)
    return called(law, own)


def called(law: PyTree, own: list[str]) -> str:
    """The name of a law's class, with what there is to say of it in parentheses."""
    return f"{type(law).__name__}({', '.join(own)})" if own else type(law).__name__


def batch(law: PyTree) -> list[str]:
    """The batch shape, if there is one."""
    return [f"batch={tuple(law.batch_shape)}"] if law.batch_shape else []


def copies(law: PyTree, members: PyTree) -> str:
    """The number of members and their family, without their own batch."""
    names = law.__dict__.get(LABEL, ())
    kind = members[(0,) * len(members.batch_shape)]._described(numbers=False)
    return f"{law.size} x {kind}" + (f" {listed(names)}" if names else "")


def few(values: np.ndarray) -> str:
    """The first few of some numbers."""
    more = " ..." if len(values) > SHOWN else ""
    return " ".join(f"{value:.2g}" for value in values[:SHOWN]) + more


def _numbers(law: PyTree) -> list[str]:
    """Means and standard deviations of the first few coordinates, if they are cheap."""
    moments = law._first_moments()
    if moments is None:
        return []
    mean, sd, size = moments
    if not np.isfinite(mean[:SHOWN]).all() or not (sd[:SHOWN] >= 0).all():
        return ["improper"] if np.isnan(sd[:SHOWN]).any() else []
    names = law.__dict__.get(LABEL, ())
    labels = law.labels(names) if names else ()
    shown = [f"{m:.3g} ± {s:.2g}" for m, s in zip(mean[:SHOWN], sd[:SHOWN], strict=True)]
    shown = [f"{short_name(n)}={line}" for n, line in zip(labels, shown, strict=False)] or shown
    return [*shown, f"{size - SHOWN} more"] if size > SHOWN else shown


def _shapes(law: PyTree) -> str:
    """The fields of an incomplete law with their types and shapes."""
    result = (
        f"{name}={type(value).__name__}{tuple(getattr(value, 'shape', ()))}"
        for name, value in law.__dict__.items()
        if name != LABEL
    )
    return ", ".join(result) or "nothing"
