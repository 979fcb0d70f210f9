"""Names are labels: they change no number, travel along, and put laws in one order."""

import pickle
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import posterity
from posterity.errors import StructureError
from posterity.families import Beta, DiagonalGaussian, Gaussian, stack
from posterity.families.names import in_order, names_of, with_names
from posterity.ledger import Ledger
from tests.laws.table import NAMES, TABLE, identical, laws, members, some

every = pytest.mark.parametrize("name", list(TABLE))
families = pytest.mark.parametrize("name", NAMES)


def sizes(law: Any, path: str = "") -> dict[str, int]:
    """By path, how many coordinates go by names."""
    found = {} if law.named_size is None else {path: law.named_size}
    for name, part in law.named_parts().items():
        found |= sizes(part, f"{path}/{name}" if path else name)
    return found


def called(law: Any) -> Any:
    """The law with all its coordinates named."""
    return law.named({p: [f"{p}.{n}" for n in range(size)] for p, size in sizes(law).items()})


@pytest.mark.parametrize(("size", "told"), [(64, True), (65, False)])
def test_a_line_has_the_numbers_of_what_is_read_without_delay(size, told):
    """A matrix of 64 rows is inverted for it, 64 sites are added, and 10,000 numbers are read."""
    wide = Gaussian.from_standard(np.zeros(size), np.eye(size))
    assert ("0 ± 1, 0 ± 1, 0 ± 1, 61 more" in repr(wide)) == told
    sites = {f"s{number}": Beta.from_standard(2.0, 3.0) for number in range(size)}
    assert ("±" in repr(Ledger(Beta.from_standard(1.0, 1.0)).extend(sites))) == told
    long = 5000 + size - 64
    prior = DiagonalGaussian.from_standard(np.zeros(long), np.ones(long))
    assert ("±" in repr(Ledger(prior))) == told


@every
def test_names_change_no_number_and_travel(name: str) -> None:
    (law,) = some(name)
    q = called(law)
    assert identical(q, law) and set(names_of(q)) == set(sizes(law)) and not names_of(law)
    for other in (pickle.loads(pickle.dumps(q)), posterity.families.at_rest(q)):
        assert names_of(other) == names_of(q)
    if hasattr(q, "outline"):
        assert names_of(stack([q, q])) == names_of(q)
    with tempfile.TemporaryDirectory() as folder:
        posterity.save(q, Path(folder) / "q.safetensors")
        back = posterity.load(Path(folder) / "q.safetensors")
    assert identical(back, q) and names_of(back) == names_of(q)
    # To JAX they are no part of the tree: what it makes has none.
    assert jax.tree.structure(q) == jax.tree.structure(law)
    assert not names_of(jax.tree.map(lambda leaf: leaf, q))


@families
@laws
@given(data=st.data())
def test_arithmetic_keeps_names(name: str, data: st.DataObject) -> None:
    p, q = data.draw(members(name, 2))
    n, m = called(p), called(q)
    for with_some, without in ((n + m, p + q), (n - q, p - q), (p + m, p + q), (-n, -p)):
        assert identical(with_some, without) and names_of(with_some) == names_of(n)
    assert names_of(2.0 * n) == names_of(n / 3.0) == names_of(n.zero()) == names_of(n)


@families
def test_an_order_and_back(name: str) -> None:
    (law,) = some(name)
    q, rng = called(law), np.random.default_rng(0)
    wanted = {path: tuple(rng.permutation(own).tolist()) for path, own in names_of(q).items()}
    try:
        moved = in_order(q, wanted, "here", "there")
    except StructureError as error:  # sticks of a Dirichlet process stand in an order
        assert "weights" in repr(law) and "order" in str(error)
        return
    assert names_of(moved) == wanted
    assert identical(in_order(moved, names_of(q), "here", "there"), q)
    assert identical(q + moved, q + q) and identical(moved + q, moved + moved)


@families
def test_other_names_do_not_go_together(name: str) -> None:
    (law,) = some(name)
    q = called(law)
    if not names_of(q):
        return
    path = next(iter(names_of(q)))
    other = with_names(q, {**names_of(q), path: (*names_of(q)[path][1:], "another")})
    with pytest.raises(StructureError, match="'another'"):
        q + other
