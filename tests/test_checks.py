"""Checks name the place, and let through only what is finite, proper and of one kind."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from posterity.adapters.samples.variables import CHAINS
from posterity.arrays.tree import identical, structure
from posterity.distillation.sampling.noise import KEY
from posterity.errors import ParameterError, PosterityError, StructureError
from posterity.families import (
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    Mixture,
    Plate,
    Product,
)
from posterity.families.checks import (
    check_finite,
    check_proper,
    check_same_structure,
)
from posterity.federation.run import GOSSIP
from posterity.models import LogisticRegression
from posterity.networks.training import LAYERS
from posterity.pursuit.learning.conjugate import FEATURES
from tests.laws.table import TABLE, some, to_jax


@pytest.mark.parametrize("name", TABLE)
def test_proper_members_pass(name: str) -> None:
    for member in some(name, count=2, batch=(3,)):
        check_finite(member, "here")
        check_proper(member, "here")
        check_same_structure(member, to_jax(member), "here")


def test_the_place_and_the_first_bad_entry_are_named() -> None:
    precision = np.ones((4, 2, 2))
    precision[2, 0, 1] = precision[2, 1, 0] = np.inf
    precision[3, 1, 1] = np.nan
    member = Product(weights=Gaussian(np.zeros((4, 2)), precision))
    with pytest.raises(ParameterError) as caught:
        check_finite(member, "site 'north'")
    assert "blocks.weights.precision of site 'north', member [2, 0, 1], that is inf" in str(
        caught.value
    )


def test_a_bad_scalar_has_no_index() -> None:
    with pytest.raises(ParameterError, match="rate of the fit that is nan"):
        check_finite(Gamma(1.0, np.nan), "the fit")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_jax_leaves_are_checked_too(bad: float) -> None:
    with pytest.raises(ParameterError, match="site"):
        check_finite(Gamma(jnp.float32(1.0), jnp.float32(bad)), "site")


IMPROPER: list[tuple[Any, str]] = [
    (Gamma(-2.0, 1.0), "improper Gamma in"),
    (Product(a=Gamma(1.0, 1.0), b=Gamma(1.0, -1.0)), r"improper Product \(Gamma\) in"),
    (
        Plate(DiagonalGaussian(np.zeros((3, 1)), np.array([[1.0], [1.0], [-1.0]]))),
        r"improper Plate \(DiagonalGaussian member \[2\]\) in",
    ),
    (
        Product(
            a=Plate(
                Gamma(np.ones((2, 2)), np.ones((2, 2))), Dirichlet(np.array([[0.0, 0], [0, -2]]))
            )
        ),
        r"improper Product \(Plate member \[1\] \(Dirichlet member \[1\]\)\) in",
    ),
    (Mixture(np.zeros(2), Gamma([1.0, 1.0], [1.0, -1.0])), "improper Mixture in"),
]


@pytest.mark.parametrize("member,message", IMPROPER)
def test_the_improper_part_is_named(member: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message + " the fit"):
        check_proper(member, "the fit")


def test_structures_differ_by_family_shape_and_names_only() -> None:
    q = Product(a=Gamma(1.0, 2.0))
    assert structure(q) == structure(Product(a=Gamma(3.0, 4.0))) == structure(to_jax(q))
    for other in (
        Product(b=Gamma(1.0, 2.0)),
        Product(a=Gamma([1.0], [2.0])),
        Gamma(1.0, 2.0),
        Product(a=Gamma(1.0, 2.0), b=Gamma(1.0, 2.0)),
    ):
        with pytest.raises(StructureError, match="in site 'x'"):
            check_same_structure(q, other, "site 'x'")
        assert not identical(q, other)


def test_identical_compares_every_digit() -> None:
    q = Gamma(1.0, 2.0)
    assert identical(q, Gamma(1.0, 2.0))
    assert not identical(q, Gamma(1.0, np.nextafter(2.0, 3.0)))
    assert not identical(q, Gamma(1.0, np.nan))
    assert identical(None, None)
    assert not identical(q, None)


def test_description() -> None:
    found = repr(Product(a=DiagonalGaussian(np.zeros(2), np.ones(2))))
    assert found.startswith("Product(")
    for word in ("a=", "DiagonalGaussian", "d=2", "0 ± 1"):
        assert word in found


def test_an_error_can_be_placed() -> None:
    error = ParameterError(found="nan", expected="numbers", fix="Fit again.")
    placed = error.at("site 'north'")
    assert type(placed) is ParameterError
    assert str(placed) == "found nan in site 'north'; expected numbers. Fit again."
    codes = [kind.exit_code for kind in PosterityError.__subclasses__()]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes


def test_a_constraint_says_what_to_do() -> None:
    key, layers, model = object(), object(), LogisticRegression()
    for act, fix in (
        (lambda: CHAINS.check(chains="third"), "axis holds the chains"),
        (lambda: KEY.check(key=key), "Pass jax.random.key"),
        (lambda: LAYERS.check(layers=layers), "Pass Layers.dense"),
        (lambda: FEATURES.check(features=key), "OwnFeatures"),
        (lambda: GOSSIP.check(schedule=model), "Use `advance` and `forget`"),
    ):
        with pytest.raises(PosterityError) as error:
            act()
        assert fix in error.value.fix
