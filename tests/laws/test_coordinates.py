"""Standard, natural, mean and flat parameters are one-to-one; NumPy and JAX agree on them."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.families import Beta, Gamma, Plate
from tests.laws.table import (
    NAMES,
    TABLE,
    cast,
    close,
    dear_ones_slow,
    laws,
    members,
    some,
    to_jax,
)

families = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize("name", TABLE)
@laws
@given(data=st.data())
def test_standard_parameters_and_back(name: str, data: st.DataObject) -> None:
    (p,) = data.draw(members(name))
    close(type(p).from_standard(**p.standard_parameters()), p, rtol=1e-10, atol=1e-11)


@families
@laws
@given(data=st.data())
def test_mean_parameters_and_back(name: str, data: st.DataObject) -> None:
    """The inverse amplifies rounding by the inverse of the Fisher information: up to 1e6.

    So does the mean of two members' mean parameters, which belongs to a member too.
    """
    p, q = data.draw(members(name, 2))
    close(p.with_natural_parameters(p.natural_parameters), p, rtol=1e-15)
    back = p.with_mean_parameters(p.mean_parameters)
    close(back, p, rtol=1e-9, atol=1e-9)
    close(back.mean_parameters, p.mean_parameters, rtol=1e-11, atol=1e-11)
    middle = (p.mean_parameters + q.mean_parameters) / 2
    moment_match = p.with_mean_parameters(middle)
    assert np.all(moment_match.is_proper())
    close(moment_match.mean_parameters, middle, rtol=1e-10, atol=1e-10)


def answers(p: Any, q: Any) -> dict[str, Any]:
    """Everything that has a closed form."""
    return {
        "log_normalizer": p.log_normalizer(),
        "mean_parameters": p.mean_parameters,
        "natural_parameters": p.natural_parameters,
        "entropy": p.entropy(),
        "kl": p.kl(q),
        "proper": p.is_proper().astype(float),
        "back": p.with_mean_parameters(p.mean_parameters),
        "step": p + 0.5 * (q - p),
    }


@pytest.mark.parametrize("name", dear_ones_slow(NAMES))
def test_numpy_and_jax_agree(name: str) -> None:
    p, q = some(name, count=2, batch=(3,), size=3)
    numpy = answers(p, q)
    assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(numpy))
    with jax.enable_x64(True):
        ours = jax.jit(answers)(to_jax(p), to_jax(q))
        close(ours, numpy, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@families
def test_float32_stays_float32(name: str) -> None:
    """In both homes, even where JAX may use float64: precision is not invented."""
    p, q = (cast(m, np.float32) for m in some(name, count=2, batch=(3,)))
    with jax.enable_x64(True):
        for found in (answers(p, q), jax.eval_shape(answers, p, q)):
            del found["proper"]
            leaves = jax.tree.leaves_with_path(found)
            dtypes = {jax.tree_util.keystr(path): str(leaf.dtype) for path, leaf in leaves}
            assert dtypes == dict.fromkeys(dtypes, "float32")


@families
def test_float32_is_close_to_float64(name: str) -> None:
    p, q = some(name, count=2, batch=(3,))
    narrow, wide = (answers(cast(p, t), cast(q, t)) for t in (np.float32, np.float64))
    for found in (narrow, wide):
        del found["back"]
    close(narrow, wide, rtol=2e-3, atol=1e-4)


def test_every_stick_of_a_plate_is_free_to_vary() -> None:
    rates = Gamma.from_standard(shape=np.full(3, 2.0), rate=np.ones(3))
    sticks = Beta.from_standard(a=np.ones(3), b=np.full(3, 2.0))
    assert Plate(rates).degrees_of_variation == 3
    assert Plate(rates, sticks).degrees_of_variation == 6
