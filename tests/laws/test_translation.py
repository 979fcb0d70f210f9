"""Moving everything by one offset changes nothing but the location.

Tolerances are first-order bounds on rounding. With unit roundoff ``eps``, a location ``m`` read
back from naturals is wrong by about ``eps`` times the condition number times ``|m|``. Of a
Normal-Wishart also the scatter about the mean is the difference of two numbers, each of size
``κ|m|²``: it loses ``eps κ|m|²``, that is ``eps (offset/spread)²`` of itself.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.arrays.tree import map_leaves
from posterity.errors import StructureError
from posterity.families import DiagonalGaussian, ExponentialFamily
from tests.laws.table import EPS, NAMES, cast, identical, laws, located, members, some

SLACK = 8
"""Constant of the first-order bounds, times the dimension: a few operations a digit."""

OFFSETS = {
    ("Gaussian", np.float64): 1e6,
    ("DiagonalGaussian", np.float64): 1e6,
    ("Gaussian", np.float32): 1e3,
    ("DiagonalGaussian", np.float32): 1e3,
    ("NormalWishart", np.float64): 1e4,
    ("NormalGamma", np.float64): 1e4,
    ("NormalWishart", np.float32): 30.0,
    ("NormalGamma", np.float32): 30.0,
}
cases = pytest.mark.parametrize(
    "name,dtype", OFFSETS, ids=lambda case: case if isinstance(case, str) else case.__name__
)


def precision_of(member: Any) -> np.ndarray:
    """The precision matrix of a Gaussian's or a Normal-Wishart's observations."""
    match type(member).__name__:
        case "Gaussian":
            return member.precision
        case "NormalWishart":
            return member.wishart.mean
        case "DiagonalGaussian":
            mean = member.precision
        case _:
            mean = member.degrees_of_freedom / member.inverse_scale
    return mean[..., None] * np.eye(mean.shape[-1])


def offset_of(name: str, dtype: type, members: list[Any], seed: int) -> np.ndarray:
    """So many of the smallest spreads, in a random direction."""
    largest = max(float(np.linalg.eigvalsh(precision_of(m)).max()) for m in members)
    shape = members[0].location().shape
    direction = np.random.default_rng(seed).normal(size=shape)
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    return (OFFSETS[name, dtype] / largest**0.5 * direction).astype(dtype)


def tolerance(p: Any, q: Any, offset: np.ndarray) -> np.ndarray:
    """How far rounding may move ``kl(p, q)``, to first order, from parameters at the origin."""
    eps, size = EPS[np.dtype(offset.dtype)], offset.shape[-1]
    p, q = cast(p, np.float64), cast(q, np.float64)
    reach = np.linalg.norm(offset, axis=-1) + np.linalg.norm(p.location(), axis=-1)
    reach = reach + np.linalg.norm(q.location(), axis=-1)
    slack = SLACK * size * eps
    gap, plain = p.location() - q.location(), type(p).__name__
    if plain in ("Gaussian", "DiagonalGaussian"):
        mine, theirs = np.linalg.eigvalsh(precision_of(p)), np.linalg.eigvalsh(precision_of(q))
        condition = mine[..., -1] / mine[..., 0] + theirs[..., -1] / theirs[..., 0]
        shift = np.sqrt(theirs[..., -1]) * slack * condition * reach
        distance = np.sqrt(np.einsum("...i,...ij,...j", gap, precision_of(q), gap))
        return distance * shift + shift**2 + slack * condition * (1 + p.kl(q))
    if plain == "NormalGamma":
        p, q, gap = p.coordinatewise, q.coordinatewise, gap[..., None]
        return tolerance_normal_wishart(p, q, gap, np.abs(reach)[..., None], slack).sum(-1)
    return tolerance_normal_wishart(p, q, gap, reach, slack)


def tolerance_normal_wishart(
    p: Any, q: Any, gap: np.ndarray, reach: np.ndarray, slack: float
) -> np.ndarray:
    """Derivative of KL in the two scatters about the mean and the two means, times their loss."""
    size, (mine, theirs) = p.own_size, (m.standard_parameters() for m in (p, q))
    lost, condition = 0.0, 0.0
    for member in (p, q):
        eigenvalues = np.linalg.eigvalsh(member.inverse_scale)
        condition = condition + eigenvalues[..., -1] / eigenvalues[..., 0]
        lost = lost + slack * member.mean_precision * reach**2 / eigenvalues[..., 0]
    trace = np.einsum("...ij,...ji", mine["scale"], q.inverse_scale)
    nu, nu_other = mine["degrees_of_freedom"], theirs["degrees_of_freedom"]
    distance = np.einsum("...i,...ij,...j", gap, p.wishart.mean, gap)
    kappa = theirs["mean_precision"]
    shift = np.sqrt(np.linalg.eigvalsh(p.wishart.mean)[..., -1]) * slack * reach
    in_scatter = (nu * trace + nu_other * size + kappa * distance) * (lost + slack * condition)
    in_means = kappa * (np.sqrt(distance) * shift + shift**2)
    special = slack * (nu + nu_other) * (1 + np.log1p(nu + nu_other))
    return in_scatter + in_means + special


@cases
@laws
@given(data=st.data(), seed=st.integers(0, 99))
def test_kl_does_not_change(name: str, dtype: type, data: st.DataObject, seed: int) -> None:
    p, q = (cast(m, dtype) for m in data.draw(members(name, 2)))
    offset = offset_of(name, dtype, [p, q], seed)
    moved = p.translate(offset).kl(q.translate(offset))
    bound = tolerance(p, q, offset)
    assert moved.dtype == dtype
    assert np.all(np.abs(moved - p.kl(q)) <= bound)
    assert np.all(moved > -bound)
    # To itself it is zero, where the generic formula returns negative values in float32.
    far = p.translate(offset)
    bound = SLACK**2 * far.location().shape[-1] * EPS[np.dtype(dtype)] * (1 + np.abs(p.entropy()))
    assert np.all(np.abs(far.kl(far)) <= bound)


@pytest.mark.parametrize("name,dtype", [case for case in OFFSETS if case[1] is np.float64])
@laws
@given(data=st.data(), seed=st.integers(0, 99))
def test_translation_moves_the_location_and_nothing_else(
    name: str, dtype: type, data: st.DataObject, seed: int
) -> None:
    (p,) = data.draw(members(name))
    offset = offset_of(name, dtype, [p], seed)
    far = p.translate(offset)
    reach = np.linalg.norm(offset, axis=-1, keepdims=True) + 10
    assert np.all(np.abs(far.location() - p.location() - offset) <= 1e-12 * reach)
    assert np.all(far.is_proper())
    # 1e-16 (offset/spread)² of the scatter, at most 1e-6 here, and the condition number.
    np.testing.assert_allclose(far.entropy(), p.entropy(), rtol=1e-4, atol=1e-4)
    there_and_back = far.translate(-offset)
    assert np.all(np.abs(there_and_back.location() - p.location()) <= 1e-12 * reach)
    flat = p.natural_parameters.reshape(-1, p.dimension)
    at_origin = p.translate(-p.location()).natural_parameters.reshape(flat.shape)
    np.testing.assert_allclose(p.centred(flat), at_origin, atol=1e-9 * np.abs(flat).max())


def events(name: str, p: Any, rng: np.random.Generator) -> Any:
    """One event near the location of ``p``, without a sampler."""
    noise = rng.normal(size=p.location().shape)
    spread = 1 / np.sqrt(np.linalg.eigvalsh(precision_of(p))[..., -1])[..., None]
    point = p.location() + noise * spread
    if name == "NormalWishart":
        return point, p.wishart.mean * 1.1
    if name == "NormalGamma":
        return point, 1.1 * p.degrees_of_freedom / p.inverse_scale
    return point


@cases
@laws
@given(data=st.data(), seed=st.integers(0, 99))
def test_log_prob_does_not_change(name: str, dtype: type, data: st.DataObject, seed: int) -> None:
    (p,) = (cast(m, dtype) for m in data.draw(members(name)))
    z = cast(events(name, cast(p, np.float64), np.random.default_rng(seed)), dtype)
    offset = offset_of(name, dtype, [p], seed)
    moved = (z[0] + offset, z[1]) if isinstance(z, tuple) else z + offset
    point = z[0] if isinstance(z, tuple) else z
    # The event is as far from the mean as a second member might be, and loses digits as one.
    bound = tolerance(p, p.translate(point - p.location()), offset)
    gap = np.abs(p.translate(offset).log_prob(moved) - p.log_prob(z))
    assert np.all(gap <= 4 * bound)


COMPOSED = [name for name in located() if name not in {case[0] for case in OFFSETS}]
"""Rows that move by moving their parts."""


def far_offset(place: Any, distance: float) -> Any:
    """One offset of this size in every coordinate, shaped as the location."""
    if isinstance(place, dict):
        return {name: far_offset(own, distance) for name, own in place.items()}
    return None if place is None else np.full_like(place, distance)


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.parametrize("distance", [1e2, 1e6, 1e8])
@laws
@given(data=st.data())
def test_what_is_composed_loses_no_more_digits_than_its_parts(
    name: str, distance: float, data: st.DataObject
) -> None:
    """Wrapping changes nothing: the parts, moved alone, are to the last bit those of the whole."""
    if "Dirichlet" in name:
        distance = min(distance, OFFSETS["NormalWishart", np.float64])
    p, q = data.draw(members(name, 2))
    offset = far_offset(p.location(), distance)
    far, other = p.translate(offset), q.translate(offset)
    assert np.any(far.natural_parameters != p.natural_parameters)
    for moved, part, twin, mirror in zip(*map(leaf_parts, (far, p, other, q)), strict=True):
        if part.location() is None:
            assert identical(moved, part) and identical(twin, mirror)
            continue
        step = np.full(part.own_size, distance)
        assert identical(moved, part.translate(step)) and identical(twin, mirror.translate(step))
    back = far.translate(far_offset(p.location(), -distance))
    for one, origin in zip(leaf_parts(back), leaf_parts(p), strict=True):
        if one.location() is not None:
            assert np.abs(one.location() - origin.location()).max() <= 1e-11 * distance


def leaf_parts(law: Any) -> list[Any]:
    """The families that have no parts of their own."""
    return [leaf for part in law.parts() for leaf in leaf_parts(part)] if law.composed else [law]


@pytest.mark.parametrize("name", NAMES)
def test_no_offset_moves_nothing(name: str) -> None:
    (p,) = some(name)
    assert p.translate(None) is p
    if p.location() is None:
        with pytest.raises(StructureError, match="location"):
            p.translate(np.ones(2))
    elif not isinstance(p.location(), dict):
        for strange in (np.ones(()), np.ones(1), np.ones(p.location().shape[-1] + 1)):
            with pytest.raises(StructureError, match="numbers a member"):
                p.translate(strange)
    else:
        with pytest.raises(StructureError):
            p.translate({"another": np.ones(2)})
        one = next(name for name, place in p.location().items() if place is not None)
        moved = p.translate({one: p.location()[one]})
        others = [n for n, place in p.location().items() if place is not None and n != one]
        gaps = [moved.location()[n] - p.location()[n] for n in others]
        assert all(np.abs(gap).max() < 1e-12 for gap in gaps)


def test_the_generic_formula_fails_where_the_centred_one_holds() -> None:
    """The reason for the centred formulas: the law is not met by accident."""
    one = np.ones(1, np.float32)
    p = DiagonalGaussian.from_standard(0 * one, one)
    q = DiagonalGaussian.from_standard(one / 100, one * np.float32(1.01))
    far, other, offset = p.translate(1000 * one), q.translate(1000 * one), 1000 * one
    assert abs(far.kl(other) - p.kl(q)) <= tolerance(p, q, offset)
    assert abs(ExponentialFamily._kl(far, other) - p.kl(q)) > 10 * tolerance(p, q, offset)


@pytest.mark.parametrize("name", located())
def test_a_normalizer_that_is_said_to_stay_does(name: str) -> None:
    (member,) = some(name, batch=(5,))
    offset = map_leaves(np.ones_like, member.location())
    stays = np.allclose(member.log_normalizer(), member.translate(offset).log_normalizer())
    assert stays or not member.normalizer_stays
    assert member.normalizer_stays or name not in ("NormalWishart", "NormalGamma")
