"""The data of one site: arrays whose first axis counts records, and a weight a record."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from posterity.arrays.tree import Node, tree_leaves, tree_map
from posterity.arrays.typing import Float, KeyArray, PyTree, Real
from posterity.errors import StructureError
from posterity.lazy import jax, jnp


class Records(Node):
    """Data of one site: arrays whose first axis counts records, and a weight a record.

    The weights multiply log likelihoods: 1 for each record counted once, 1/n for a loss that is
    a mean, n/b for a minibatch of b, 0 for padding.
    """

    data: Any
    weights: Float[Real, " n"]

    @classmethod
    def of(cls, data: PyTree, weight: float | int = 1) -> "Records":
        """All records with one weight; None is a site without any; a StructureError if the arrays
        have no common first axis.
        """
        if data is None:
            return cls(None, np.zeros(0))
        if type(data) is not np.ndarray:  # a tree of one takes longer than all the rest
            data = tree_map(np.asarray, data)
        shapes = [leaf.shape for leaf in tree_leaves(data)]
        lengths = {shape[:1] for shape in shapes}
        if len(lengths) != 1 or lengths == {()}:
            raise StructureError(
                found=f"data of shapes {shapes}",
                expected="arrays whose first axes agree: one entry a record",
                fix="Give NumPy arrays, not lists: x of shape (n, d) and y of shape (n,), say.",
            )
        return cls(data, np.full(lengths.pop(), float(weight)))

    @classmethod
    def of_model(cls, model: Any, data: Any) -> "Records":
        """The records that a model takes, one at least; a StructureError or ParameterError for data
        that the model cannot take, or no records.
        """
        model.check(data)
        records = cls.of(data)
        if not records.size:
            raise StructureError(
                found="no records", expected="one at least", fix="Pass the data of the posterior."
            )
        return records

    @property
    def size(self) -> int:
        """Number of records."""
        return self.weights.shape[0]

    @property
    def silent(self) -> bool:
        """True if there are none, or none of any weight."""
        return not np.any(self.weights)

    def widened(self) -> "Records":
        """Return the records with integers and floats of 64 bits, in which ``x**2`` is what it
        says; traced or not.
        """
        return Records(tree_map(_widened, self.data), self.weights)

    def batch(self, size: int, *, key: KeyArray) -> "Records":
        """Some records, drawn without replacement, whose weights stand for all.

        Those of no weight, as padding is, are not among them while there are others.
        """
        weights = jnp.asarray(self.weights)
        real = weights > 0
        order = jnp.where(real, jax.random.uniform(key, weights.shape), 2.0)
        index = jnp.argsort(order)[:size]
        count = real.sum()
        share = count / jnp.minimum(size, jnp.maximum(count, 1))
        data = tree_map(lambda leaf: jnp.asarray(leaf)[index], self.data)
        return Records(data, weights[index] * share)

    def padded(self, size: int | None = None) -> "Records":
        """Up to ``size`` records, the rest of no weight; there must be one at least.

        By default up to the next of few sizes, so that few programs are compiled: 64, 256, 1024
        and from there on the powers of two, as numbers matter more where there are many.
        """
        extra = (_next_size(self.size) if size is None else size) - self.size
        repeat = lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], extra, axis=0)])
        weights = np.concatenate([self.weights, np.zeros(extra)])
        return Records(tree_map(repeat, self.data), weights)


TOGETHER = 1 << 16
"""Records of several sites that are looked at together."""


def joined(sites: Iterable[Records]) -> Iterator[Records]:
    """The records of all sites, of some sites at a time: those that differ in length alone."""
    kinds: dict[Any, list[Records]] = {}
    for records in sites:
        if not records.size:
            continue
        tree = repr(tree_map(lambda leaf: (str(leaf.dtype), leaf.shape[1:]), records.data))
        kinds.setdefault(tree, []).append(records)
    for kind in kinds.values():
        ends = np.cumsum([records.size for records in kind]) // TOGETHER
        for batch in np.split(np.arange(len(kind)), np.flatnonzero(np.diff(ends)) + 1):
            first, *others = (kind[place] for place in batch)
            every = lambda *leaves: np.concatenate(leaves)
            yield tree_map(every, first, *others) if others else first


def _widened(leaf: Real) -> Any:
    kind = np.dtype(leaf.dtype).kind
    wide = {"i": np.int64, "u": np.int64, "f": np.float64}.get(kind)
    return leaf if wide in (None, leaf.dtype) else leaf.astype(wide)


def _next_size(size: int) -> int:
    """The smallest of 64, 256, 1024, 2048, 4096, … that is not below ``size``."""
    result = 64
    while result < size:
        result *= 4 if result < 1024 else 2
    return result
