"""The data of one site: arrays whose first axis counts records, and a weight for each record."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from posterity.arrays.leaves import kind_of
from posterity.arrays.tree import Node, tree_leaves, tree_map
from posterity.arrays.typing import Float, KeyArray, Real
from posterity.errors import StructureError
from posterity.models.tables import Names, arrays
from posterity.runtime.lazy import jax, jnp


class Records(Node):
    """Data of one site: arrays whose first axis counts records, and a weight for each record.

    Weights multiply log likelihoods: 1 to count each record once, 1/n for a mean loss, n/b for a
    minibatch of b records, 0 for padding.

    >>> Records.of(np.array([1.0, 2.0])).weights
    array([1., 1.])
    """

    data: Any
    weights: Float[Real, " n"]

    @classmethod
    def of(cls, data: Any, weight: float | int = 1, names: Names = ()) -> "Records":
        """Make records with one weight; None is a site without records. Data frames are read by the
        ``names`` of columns (:func:`posterity.models.tables.arrays`, whose errors are raised). A
        StructureError if the arrays have no common first axis.
        """
        if data is None:
            return cls(None, np.zeros(0))
        data = arrays(data, names)
        shapes = [leaf.shape for leaf in tree_leaves(data)]
        lengths = {shape[:1] for shape in shapes}
        if len(lengths) != 1 or lengths == {()}:
            raise StructureError(
                found=f"data of shapes {shapes}",
                expected="arrays whose first axes agree",
            )
        return cls(data, np.full(lengths.pop(), float(weight)))

    @classmethod
    def of_model(cls, model: Any, data: Any, names: Names = ()) -> "Records":
        """Make at least one record from data checked by a model; a StructureError or ParameterError
        if the data do not suit the model, or are empty.
        """
        records = cls.of(data, names=names)
        model.check(records.data)
        if not records.size:
            raise StructureError(found="no records", expected="one at least")
        return records

    @property
    def size(self) -> int:
        """Number of records."""
        return self.weights.shape[0]

    @property
    def silent(self) -> bool:
        """True if there are no records of nonzero weight."""
        return not np.any(self.weights)

    def widened(self) -> "Records":
        """Return the records with 64-bit integers and floats, so that ``x**2`` does not overflow in
        narrow types; traced or not.
        """
        return Records(tree_map(_widened, self.data), self.weights)

    def held_sparse(self, most: float = 1 / 32, least: int = 1 << 18) -> "Records":
        """Return records ``(x, y)`` whose inputs ``x`` (n, d), arrays of NumPy, are in compressed
        rows if at ``most`` this share of them is not zero, and there are at ``least`` this many. A
        dense product makes some 32 multiplications in the time of one of a sparse product; of fewer
        inputs it takes less time than the import of sparse arrays.
        """
        x, *others = self.data
        if x.size < least or np.count_nonzero(x) > most * x.size:
            return self
        from scipy.sparse import csr_array  # not above: it takes a tenth of a second

        return Records((csr_array(_widened(x)), *others), self.weights)

    def batch(self, size: int, *, key: KeyArray) -> "Records":
        """Draw records without replacement, with weights scaled up to represent all records.

        Records of weight zero, such as padding, are drawn only if there are too few others.
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
        """Pad to ``size`` records by copies of weight zero; there must be at least one record.

        The default size is the next of 64, 256, 1024 and then powers of two, so that few programs
        are compiled.
        """
        extra = (_next_size(self.size) if size is None else size) - self.size

        def repeat(leaf):
            return np.concatenate([leaf, np.repeat(leaf[:1], extra, axis=0)])

        weights = np.concatenate([self.weights, np.zeros(extra)])
        return Records(tree_map(repeat, self.data), weights)


def joined(sites: Iterable[Records], *, together: int = 1 << 16) -> Iterator[Records]:
    """Yield the records of all sites, concatenated for sites whose data differ only in length, some
    ``together`` at a time.
    """
    kinds: dict[Any, list[Records]] = {}
    for records in sites:
        if not records.size:
            continue
        tree = repr(tree_map(lambda leaf: (str(leaf.dtype), leaf.shape[1:]), records.data))
        kinds.setdefault(tree, []).append(records)
    for kind in kinds.values():
        ends = np.cumsum([records.size for records in kind]) // together
        for batch in np.split(np.arange(len(kind)), np.flatnonzero(np.diff(ends)) + 1):
            first, *others = (kind[place] for place in batch)

            def every(*leaves):
                return np.concatenate(leaves)

            yield tree_map(every, first, *others) if others else first


def _widened(leaf: Real) -> Any:
    kind = kind_of(np.dtype(leaf.dtype))
    wide = {"i": np.int64, "u": np.int64, "f": np.float64}.get(kind)
    return leaf if wide in (None, leaf.dtype) else leaf.astype(wide)


def _next_size(size: int) -> int:
    """Return the smallest of 64, 256, 1024, 2048, 4096, ... that is at least ``size``."""
    result = 64
    while result < size:
        result *= 4 if result < 1024 else 2
    return result
