"""Natural parameters form a vector space, and the flat view of it is linear."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.errors import UsageError
from posterity.families import Gamma
from posterity.families.coordinates import scalar
from tests.laws.table import NAMES, close, identical, laws, members, some, to_jax

SCALARS = st.floats(-8, 8, allow_subnormal=False)
EPS = 8 * np.finfo(np.float64).eps
families = pytest.mark.parametrize("name", NAMES)


@families
@laws
@given(data=st.data())
def test_addition_commutes_and_associates(name: str, data: st.DataObject) -> None:
    p, q, r = data.draw(members(name, 3))
    assert identical(p + q, q + p)
    close((p + q) + r, p + (q + r), rtol=0, atol=EPS)


@families
@laws
@given(data=st.data())
def test_zero_and_negation(name: str, data: st.DataObject) -> None:
    (p,) = data.draw(members(name))
    assert identical(p + p.zero(), p)
    assert identical(p - p, p.zero())
    assert identical(p + (-p), p.zero())
    assert identical(-(-p), p)


@families
@laws
@given(data=st.data(), a=SCALARS, b=SCALARS)
def test_scalars_distribute(name: str, data: st.DataObject, a: float, b: float) -> None:
    p, q = data.draw(members(name, 2))
    close(a * (p + q), a * p + a * q, rtol=0, atol=EPS * 8)
    close((a + b) * p, a * p + b * p, rtol=0, atol=EPS * 16)
    close((a * b) * p, a * (b * p), rtol=0, atol=EPS * 64)
    assert identical(1.0 * p, p)
    assert identical(p / 2.0, 0.5 * p)
    assert identical(np.float64(a) * p, p * a)


@families
@laws
@given(data=st.data(), a=SCALARS)
def test_flat_natural_parameters_are_linear(name: str, data: st.DataObject, a: float) -> None:
    """An array of scalars goes along the batch."""
    p, q = data.draw(members(name, 2))
    flat = a * p.natural_parameters + q.natural_parameters
    close((a * p + q).natural_parameters, flat, rtol=0, atol=EPS * 8)
    assert flat.shape == (*p.batch_shape, p.dimension)
    weights = np.arange(1.0, 1 + np.prod(p.batch_shape, dtype=int)).reshape(p.batch_shape)
    expected = weights[..., None] * p.natural_parameters
    for product in (weights * p, p * weights):
        close(product.natural_parameters, expected, rtol=EPS)
        close(p.with_natural_parameters(expected), product, rtol=EPS)


@families
def test_an_array_of_scalars_on_one_member_makes_a_batch(name: str) -> None:
    (p,) = some(name)
    batch = np.array([1.0, 2.0, -3.0]) * p
    assert batch.batch_shape == (3,)
    assert identical(batch[2], -3.0 * p)


def test_a_jax_scalar_on_the_left() -> None:
    with jax.enable_x64(True):
        every = [some(name)[0] for name in NAMES]
        close(jax.jit(lambda a, q: [a * p for p in q])(2.0, every), [2.0 * p for p in every])
        p = every[NAMES.index("Gaussian")]  # and outside of any program
        close(jax.numpy.asarray(2.0) * to_jax(p), 2.0 * p, rtol=EPS)


@pytest.mark.parametrize(
    "other", [1.0, None, Gamma(1.0, 1.0)], ids=["a number", "nothing", "another family"]
)
def test_only_members_of_one_family_add(other: Any) -> None:
    (p,) = some("Gaussian")
    with pytest.raises(TypeError):
        p + other
    with pytest.raises(TypeError):
        p - other


def test_a_family_whose_author_does_not_say_tells_what_is_missing() -> None:
    class Unsaid(Gamma):
        base_measure = None

    q = Unsaid.from_standard(2.0, 1.0)
    assert q.kl(q) == 0
    for act in (lambda: q.log_prob(1.0), q.entropy):
        with pytest.raises(UsageError, match="Unsaid, which does not say its base measure"):
            act()

    class Lacking(Gamma):
        standard = {"mode": scalar()}  # noqa: RUF012

    class Silent(Gamma):
        standard = {}  # noqa: RUF012

    for kind, says in ((Lacking, "properties .'mode'"), (Silent, "class has `standard`")):
        with pytest.raises(UsageError, match=says):
            kind(2.0, 1.0).standard_parameters()
