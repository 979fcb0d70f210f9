"""The table is complete, and what it draws is what the laws assume."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.families import exported
from tests.laws.table import TABLE, laws, members


def test_every_exported_family_is_enrolled() -> None:
    assert {row.family for row in TABLE.values()} == set(exported().values())
    assert {"Gaussian", "Mixture", "Plate", "Product"} <= exported().keys()
    assert not {"Distribution", "ExponentialFamily"} & exported().keys()


@pytest.mark.parametrize("name", TABLE)
@laws
@given(data=st.data())
def test_members_are_proper_numpy_float64(name: str, data: st.DataObject) -> None:
    (member,) = data.draw(members(name))
    assert type(member) is TABLE[name].family
    assert all(
        isinstance(leaf, np.ndarray | np.generic) and leaf.dtype == np.float64
        for leaf in jax.tree.leaves(member)
    )
    assert np.all(member.is_proper())
