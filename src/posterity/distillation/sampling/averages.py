"""Means of a chain's numbers and their standard errors, in constant memory: batches that grow."""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

BATCHES = 32


class BatchMeans(NamedTuple):
    """Sums over consecutive batches of one length; when all are full, neighbours are joined.

    So batches are longer than the chain remembers, once it is long enough, and their means are
    independent.
    """

    sums: jax.Array
    """(BATCHES, groups, chains)."""
    length: jax.Array
    """Of a batch."""
    count: jax.Array
    """Numbers so far, since batches began to count."""

    @classmethod
    def empty(cls, shape: tuple[int, int]) -> Self:
        """Before the first number, of so many groups and chains."""
        return cls(jnp.zeros((BATCHES, *shape), jnp.float32), jnp.int32(1), jnp.int32(0))

    def with_(self, values: Float[jax.Array, "groups chains"]) -> Self:
        """After one more number of each chain."""
        full = self.count == BATCHES * self.length
        halved = self.sums.reshape(BATCHES // 2, 2, *values.shape).sum(1)
        joined = jnp.concatenate([halved, jnp.zeros_like(halved)])
        sums = jnp.where(full, joined, self.sums)
        length = jnp.where(full, 2 * self.length, self.length)
        return type(self)(sums.at[self.count // length].add(values), length, self.count + 1)

    def mean(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each group over chains and time, and its standard error: infinite for too few numbers.

        Chains are independent; batches of a chain nearly so, unless it is slow: the worse counts.
        """
        length, count = int(self.length), int(self.count)
        whole = count // length
        if whole < BATCHES // 2:
            return np.full(self.sums.shape[1], np.nan), np.full(self.sums.shape[1], np.inf)
        each = np.asarray(self.sums[:whole], np.float64) / length
        error = each.mean(2).std(0, ddof=1) / whole**0.5
        if each.shape[2] > 3:
            error = np.maximum(error, each.mean(0).std(1, ddof=1) / each.shape[2] ** 0.5)
        return each.mean((0, 2)), error
