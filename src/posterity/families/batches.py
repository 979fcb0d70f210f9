"""Batches of members: put together, taken apart, and brought to rest."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.typing import ArrayLike, Index, Int, Real
from posterity.errors import StructureError
from posterity.families.distribution import Distribution
from posterity.families.names import names_of

Law = TypeVar("Law", bound=Distribution)


def concatenate(members: Sequence[Law]) -> Law:
    """One batch from several, along the first batch axis.

    Raises:
        StructureError: if there are none, or they are not of one family and dimensions.
    """
    _check_all_alike(members)
    if not members[0].batch_shape or len({member.batch_shape[1:] for member in members}) > 1:
        raise StructureError(
            found=f"members of batch shapes {[member.batch_shape for member in members[:3]]}",
            expected="batches that agree but for their first axis",
            fix="Put single members together by stack.",
        )
    xp = namespace(*leaves(members[0])).np
    return map_leaves(lambda *arrays: xp.concatenate(arrays), *members)


def stack(members: Sequence[Law]) -> Law:
    """One batch, with a new first axis, from several members of equal shape.

    Raises:
        StructureError: if there are none, or they are not of one family and shape.
    """
    _check_all_alike(members, batch=True)
    xp = namespace(*leaves(members[0])).np
    return map_leaves(lambda *arrays: xp.stack(arrays), *members)


def at_rest(law: Law) -> Law:
    """The same parameters as NumPy float64 arrays; no zero has a sign."""
    if all(_rests(leaf) for leaf in leaves(law)):
        return law
    return map_leaves(_rested, law)


def place(leaf: Real, labels: Int[np.ndarray, " k"], size: int, axis: int) -> Real:
    """The entries of ``leaf`` along an axis, added up at their places ``labels`` of ``size``."""
    kept = labels >= 0
    if labels.min(initial=0) < -1 or labels.max(initial=-1) >= size:
        raise StructureError(
            found=f"labels {labels.tolist()}",
            expected=f"numbers below {size}, or -1 for what is left out",
            fix="Number entries from 0 on.",
        )
    front = namespace(leaf).np.moveaxis(leaf, axis, 0)
    if namespace(leaf).np is np:
        out = np.zeros((size, *front.shape[1:]), front.dtype)
        np.add.at(out, labels[kept], front[kept])
    else:
        out = namespace(leaf).np.zeros((size, *front.shape[1:]), front.dtype)
        out = out.at[labels[kept]].add(front[kept])
    return namespace(leaf).np.moveaxis(out, 0, axis)


def _check_all_alike(members: Sequence[Any], batch: bool = False) -> None:
    def kind(member: Any) -> Any:
        shape = member.batch_shape if batch else None
        return member.outline(), shape, names_of(member)

    kinds = map(kind, members)
    first = next(kinds, None)
    if first is None or any(other != first for other in kinds):
        raise StructureError(
            found=f"{len(members)} members {[repr(member) for member in members[:3]]}",
            expected="members of one family, blocks, dimensions and names, at least one",
            fix="Put together only what one model made.",
        )


def _rests(leaf: ArrayLike) -> bool:
    """True if an array is NumPy's, of float64, and without a signed zero."""
    if type(leaf) is not np.ndarray or leaf.dtype != np.float64:
        return False
    if np.count_nonzero(leaf) == leaf.size:
        return True
    return not np.any((leaf == 0) & np.signbit(leaf))


def _rested(leaf: ArrayLike) -> np.ndarray:
    # Adding 0 turns -0 into 0: parameters that are equal then have equal bytes.
    return np.asarray(np.asarray(leaf, dtype=np.float64) + 0.0)


def broadcasts(mine: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    """True if two batch shapes broadcast."""
    try:
        np.broadcast_shapes(mine, theirs)
    except ValueError:
        return False
    return True


def batch_index(index: Index, batch: tuple[int, ...]) -> tuple[Any, ...]:
    """``index`` as a tuple that stays within the axes of the batch."""
    index = index if isinstance(index, tuple) else (index,)
    used = sum(0 if i is None or i is ... else _axes(i) for i in index)
    if used > len(batch):
        raise IndexError(f"{used} indices for a batch of shape {batch}")
    rest = (slice(None),) * (len(batch) - used)
    at = next((n for n, i in enumerate(index) if i is ...), None)
    return index if at is None else (*index[:at], *rest, *index[at + 1 :])


def _axes(index: Any) -> int:
    """The number of axes that one index takes: a mask as many as it has."""
    if isinstance(index, slice):
        return 1
    kind = index.dtype if hasattr(index, "dtype") else np.asarray(index).dtype
    return np.ndim(index) if np.issubdtype(kind, np.bool_) else 1
