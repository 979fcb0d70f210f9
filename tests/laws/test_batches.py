"""Batches behave as NumPy arrays of members do."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.families import concatenate, stack
from tests.laws.table import NAMES, close, identical, laws, members, some, to_jax

families = pytest.mark.parametrize("name", NAMES)
INDICES = [
    (1, (5,)),
    (slice(1, 3), (2, 5)),
    ((slice(None), 2), (4,)),
    ((..., 2), (4,)),
    ((..., None), (4, 5, 1)),
    (None, (1, 4, 5)),
    (np.array([3, 0, 0]), (3, 5)),
    (np.array([True, False, True, True]), (3, 5)),
    (np.eye(4, 5, dtype=bool), (4,)),
    ([0, 1], (2, 5)),
    (..., (4, 5)),
]


@families
def test_indexing_follows_numpy(name: str) -> None:
    (batch,) = some(name, batch=(4, 5))
    for index, shape in INDICES:
        picked = batch[index]
        assert picked.batch_shape == shape, index
        full: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
        full = full if any(i is ... for i in full) else (*full, ...)
        expected = batch.natural_parameters[*full, :]
        assert np.array_equal(picked.natural_parameters, expected), index


def test_indexing_of_jax_leaves() -> None:
    with jax.enable_x64(True):
        (batch,) = some("NormalWishart", batch=(4, 5))
        own = [np.array(i) if isinstance(i, list) else i for i, _ in INDICES]  # JAX takes no lists
        picked = jax.jit(lambda batch: [batch[index] for index in own])(batch)
        for index, found in zip(own, picked, strict=True):
            assert identical(found, batch[index]), index
        assert identical(to_jax(batch)[2], to_jax(batch[2]))


@families
def test_an_index_never_reaches_into_a_member(name: str) -> None:
    (member,), (batch,) = some(name), some(name, batch=(3,))
    cases = [(member, index) for index in (0, slice(None), np.array([0]))]
    for law, index in [*cases, *((batch, index) for index in ((0, 0), (..., 0, 0), 3))]:
        with pytest.raises(IndexError):
            law[index]
    assert [m.batch_shape for m in batch] == [(), (), ()]


@families
@laws
@given(data=st.data())
def test_stack_and_concatenate_are_undone_by_indexing(name: str, data: st.DataObject) -> None:
    p, q, r = data.draw(members(name, 3))
    stacked = stack([p, q, r])
    assert stacked.batch_shape == (3, *p.batch_shape)
    assert all(identical(stacked[i], m) for i, m in enumerate([p, q, r]))
    assert identical(concatenate([stack([p, q]), stack([r])]), stacked)


@families
@laws
@given(data=st.data())
def test_a_batch_computes_member_by_member(name: str, data: st.DataObject) -> None:
    p, q = data.draw(members(name, 2))
    both, other = stack([p, q]), stack([q, p])
    close(both.kl(other), np.stack([p.kl(q), q.kl(p)]), rtol=1e-10, atol=1e-12)
    close(both.log_normalizer(), np.stack([p.log_normalizer(), q.log_normalizer()]), rtol=1e-12)
    close(both.entropy(), np.stack([p.entropy(), q.entropy()]), rtol=1e-10, atol=1e-12)
    assert np.array_equal(both.is_proper(), np.stack([p.is_proper(), q.is_proper()]))
