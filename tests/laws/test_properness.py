"""Proper members form an open convex cone; what is not finite or positive is outside it."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.families import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    HiddenMarkov,
    Network,
    NormalGamma,
    NormalWishart,
    Plate,
    Product,
    Transformed,
    Wishart,
    exported,
)
from posterity.families.layers import Layers
from tests.laws.table import NAMES, TABLE, laws, members, some

families = pytest.mark.parametrize("name", NAMES)
ONE, EYE = np.ones(()), np.eye(2)

IMPROPER: dict[str, Any] = {
    "Gaussian, negative": Gaussian(np.zeros(2), -EYE),
    "Gaussian, indefinite": Gaussian(np.zeros(2), np.diag([1.0, -1.0])),
    "Gaussian, singular": Gaussian(np.zeros(2), np.ones((2, 2))),
    "DiagonalGaussian, negative": DiagonalGaussian(np.zeros(2), np.array([1.0, -1.0])),
    "DiagonalGaussian, flat": DiagonalGaussian(np.zeros(2), np.array([1.0, 0.0])),
    "Network": Network(np.zeros(2), np.array([1.0, -1.0]), Layers.dense(1, 1)),
    "Gamma, shape": Gamma(-1.0, 1.0),
    "Gamma, rate": Gamma(0.0, 0.0),
    "Beta, a": Beta(-1.0, 0.0),
    "Beta, b": Beta(0.0, -2.0),
    "Dirichlet": Dirichlet([0.0, -1.0, 1.0]),
    "Wishart, degrees": Wishart(-2 * ONE, EYE),
    "Wishart, scale": Wishart(ONE, -EYE),
    "NormalWishart, kappa": NormalWishart(-ONE, 5 * ONE, np.zeros(2), EYE),
    "NormalWishart, no kappa": NormalWishart(0 * ONE, 5 * ONE, np.zeros(2), EYE),
    "NormalWishart, degrees": NormalWishart(ONE, -ONE, np.zeros(2), EYE),
    "NormalWishart, scatter below its mean": NormalWishart(ONE, 5 * ONE, 2 * np.ones(2), EYE),
    "NormalGamma, degrees": NormalGamma(np.ones(2), np.array([1.0, -1.0]), np.zeros(2), np.ones(2)),
    "NormalGamma, scatter": NormalGamma(np.ones(1), np.ones(1), np.ones(1), np.ones(1)),
    "Transformed": Transformed.onto(
        Gamma.from_standard(1.0, 1.0), DiagonalGaussian(np.zeros(1), -np.ones(1))
    ),
    "Product": Product(a=Gamma.from_standard(1.0, 1.0), b=Gamma(0.0, -1.0)),
    "HiddenMarkov": HiddenMarkov(
        emissions=Plate(Gamma.from_standard([1.0, 1.0], [1.0, 1.0])),
        initial=Dirichlet([1.0, 1.0]),
        transitions=Plate(Dirichlet([[1.0, 1.0], [1.0, -3.0]])),
    ),
    "Plate, a member": Plate(Gamma([0.0, 0.0], [1.0, -1.0])),
    "Plate, the weights": Plate(
        Gamma.from_standard([1.0, 1.0], [1.0, 1.0]), Dirichlet([1.0, -3.0])
    ),
}


def test_improper() -> None:
    assert not [name for name, member in IMPROPER.items() if member.is_proper()]
    with jax.enable_x64(True):
        traced = jax.jit(lambda members: [member.is_proper() for member in members])
        assert not any(traced(list(IMPROPER.values())))


def test_every_family_is_enrolled_and_has_a_way_to_be_improper() -> None:
    """Except the categorical, whose every finite parameter is a distribution."""
    assert {row.family for row in TABLE.values()} == set(exported().values())
    assert not {"Distribution", "ExponentialFamily"} & exported().keys()
    kinds = {row.family.__name__ for row in TABLE.values()} - {"Categorical", "Mixture"}
    assert {name.split(",")[0] for name in IMPROPER} == kinds


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", TABLE)
def test_what_is_not_finite_is_improper(name: str, value: float) -> None:
    """In any single place, and without a warning from NumPy."""
    (p,) = some(name, size=2)
    leaves, tree = jax.tree.flatten(p)
    for i, leaf in enumerate(leaves):
        for index in np.ndindex(leaf.shape):
            spoilt = np.array(leaf)
            spoilt[index] = value
            if spoilt.ndim >= 2 and index[-1] != index[-2] and spoilt.shape[-1] == spoilt.shape[-2]:
                spoilt[*index[:-2], index[-1], index[-2]] = value  # it stays symmetric
            member = jax.tree.unflatten(tree, [*leaves[:i], spoilt, *leaves[i + 1 :]])
            assert not np.any(member.is_proper()), (i, index)


@families
@laws
@given(data=st.data(), weight=st.floats(0, 1))
def test_convex_combinations_of_proper_members_are_proper(
    name: str, data: st.DataObject, weight: float
) -> None:
    p, q = data.draw(members(name, 2))
    assert np.all((weight * p + (1 - weight) * q).is_proper())


@families
def test_factors_need_not_be_proper_and_batches_say_which_member_is(name: str) -> None:
    """The categorical's always are: every finite parameter is a distribution."""
    (p,), (batch,) = some(name), some(name, batch=(3,))
    assert bool((p - 1e6 * p).is_proper()) == (name == "Categorical")
    broken = np.array([1.0, np.nan, 1.0]) * batch
    assert broken.is_proper().tolist() == [True, False, True]


def test_the_normalizer_of_a_singular_gaussian_is_no_exception() -> None:
    """One factor without information must not fail the batch it is in."""
    batch = Gaussian(np.zeros((2, 2)), np.stack([np.zeros((2, 2)), EYE]))
    values = batch.log_normalizer()
    assert np.isnan(values[0])
    assert values[1] == 0
