"""What fusing and comparing refuse: one table of calls, errors and words."""

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import numpy as np
import pytest

from posterity import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    Ledger,
    Mixture,
    Plate,
    PosterityError,
    Product,
    fuse,
)
from posterity.errors import ArtifactError, LedgerError, ParameterError, StructureError, UsageError
from posterity.families import stack
from posterity.fusion.diff import diff
from tests.fusion.made import conjugate_site, gamma_ledger, plate, points

NAN = Plate(DiagonalGaussian(np.array([[np.nan]]), np.array([[1.0]])))
IMPROPER = Plate(DiagonalGaussian(np.array([[1.0]]), np.array([[-1.0]])))
WIDE = Plate(DiagonalGaussian.from_standard(np.zeros((2, 3)), np.ones((2, 3))))
FULL = Plate(Gaussian.from_standard(np.zeros((2, 1)), np.ones((2, 1, 1))))
MIXTURE = Mixture.from_standard([1.0], points([0.0]))
TWO, UNEVEN = [plate(0.0), plate(1.0)], [plate(0.0), plate(1.0, 2.0)]
NAMED = {"a": plate(0.0), "b": plate(1.0)}
ONE, OTHER = Gamma.from_standard(1.0, 1.0), Gamma.from_standard(3.0, 2.0)
THIRD = Gamma.from_standard(3.7, 2.1)  # of more than a few whole counts
GAMMAS = Plate(Gamma.from_standard([1.0, 2.0], [1.0, 1.0]))
LEDGERS = [gamma_ledger("a", 2.0), gamma_ledger("b", 3.0)]
SHARP, EMPTY = [plate(0.0, 5.0) * 2.0, plate(0.1, 5.0) * 2.0], np.zeros((0, 2))


def conjugate(base: Any, other: Any = None, clusters: Any = None) -> list[Any]:
    """Two sites of two clusters, with these priors over their mixing weights."""
    rng = np.random.default_rng(0)
    data = clusters or [rng.normal(9 * k, 1.0, (30, 2)) for k in range(2)]
    shifted = [x + 0.1 for x in data]
    return [conjugate_site("a", base, data), conjugate_site("b", other or base, shifted)]


def dirichlet(*alpha: float) -> Dirichlet:
    return Dirichlet.from_standard(np.array(alpha))


ODD = Beta.from_standard(np.full(2, 2.0), np.full(2, 3.0))
FUSE: list[tuple[Any, dict[str, Any], type[PosterityError], str]] = [
    # posteriors
    ([], {}, UsageError, "0 sites"),
    ([plate(0.0)], {}, UsageError, "1 site;"),
    (plate(0.0), {}, UsageError, "1 site;"),
    ([gamma_ledger("a", 2.0), gamma_ledger("a", 3.0)], {}, UsageError, "two posteriors of .*'a'"),
    ({"a": plate(0.0), "b": NAN}, {}, ParameterError, "site 'b'.*nan"),
    ({"a": plate(0.0), "b": IMPROPER}, {}, ParameterError, "improper.*site 'b'"),
    ([plate(0.0), WIDE], {}, StructureError, "site-0001"),
    ([plate(0.0), FULL], {}, StructureError, "Gaussian"),
    ([plate(0.0), Plate(points([1.0]), dirichlet(1.0))], {}, StructureError, "Dirichlet"),
    ([Product(x=ONE), Product(y=ONE)], {}, StructureError, "y=Gamma"),
    ([points([0.0]), points([1.0])], {}, StructureError, "batch"),
    ([ONE, Gamma.from_standard([1.0], [1.0])], {}, StructureError, "site-0001"),
    ([plate(0.0), MIXTURE], {}, StructureError, "Mixture in site 'site-0001'.*Plate"),
    (MIXTURE, {}, StructureError, "Plate"),
    ([plate(0.0), "nowhere.safetensors"], {}, ArtifactError, "cannot be read"),
    (conjugate(dirichlet(1.0, 1.0), clusters=[EMPTY, EMPTY]), {}, UsageError, "no component"),
    ([stack([plate(0.0), plate(1.0) * -1.0])], {}, ParameterError, "improper.*site-0001"),
    ({1: LEDGERS[0], 2: LEDGERS[1]}, {}, LedgerError, "a site called 1"),
    # choices
    (TWO, {"budget": 0}, UsageError, "budget=0"),
    (TWO, {"rule": "sum"}, UsageError, "rule='sum'.*barycenter"),
    (TWO, {"divergence": "both"}, UsageError, "divergence='both'.*reverse"),
    (TWO, {"matching": "best"}, UsageError, "matching='best'.*evidence"),
    (TWO, {"absorb": True}, UsageError, "absorb=True .*without mixing weights"),
    (SHARP, {"absorb": True, "prior": plate(0.0)}, UsageError, "without mixing weights"),
    *(
        (TWO, {"level": level}, UsageError, "level=.*between 0 and 1")
        for level in (0, 1, np.nan, "x")
    ),
    (TWO, {"warn": "no"}, UsageError, "warn='no'.*True or False"),
    # number of components
    (TWO, {"components": 0}, UsageError, "whole number of components"),
    (TWO, {"components": 3}, UsageError, "between 1 and 2"),
    (TWO, {"components": 2, "matching": "identity"}, UsageError, "between 1 and 1"),
    ([*TWO, plate(*range(9))], {"components": 4}, UsageError, "between 9 and 11"),
    (UNEVEN, {"matching": "hungarian"}, UsageError, "same number"),
    (UNEVEN, {"matching": "identity"}, UsageError, "same number"),
    ([ONE, OTHER], {"components": 2}, UsageError, "Plate"),
    ([ONE, OTHER], {"components": "x"}, UsageError, "whole number of components where there is"),
    # weights of sites
    (TWO, {"weights": {"a": 1.0}}, UsageError, "weights"),
    (NAMED, {"weights": {"a": 1.0, "b": -1.0}}, UsageError, "positive"),
    (NAMED, {"weights": {"a": 1.0, "b": np.nan}}, UsageError, "positive"),
    (LEDGERS, {"rule": "product", "weights": {"a": 1.0, "b": 1.0}}, UsageError, "weights"),
    # what a product counts
    (TWO, {"rule": "product"}, UsageError, r"no prior for \['site-0000', 'site-0001'\]"),
    ([THIRD, THIRD], {"rule": "product", "prior": ONE}, UsageError, "the same posterior in both"),
    (
        [gamma_ledger("a", 2.0) | gamma_ledger("b", 4.0), gamma_ledger("b", 4.0)],
        {"rule": "product"},
        UsageError,
        "data of site 'b'",
    ),
    # priors
    (LEDGERS, {"prior": Beta.from_standard(1.0, 1.0)}, StructureError, "prior Beta"),
    (LEDGERS, {"prior": Gamma.from_standard([1.0], [1.0])}, StructureError, "prior Gamma"),
    (LEDGERS, {"prior": ONE - ONE}, ParameterError, "the prior"),
    (SHARP, {"rule": "product", "prior": plate(0.0, 1.0)}, StructureError, "exchangeable"),
    (SHARP, {"rule": "product", "prior": points([0.0])[0]}, StructureError, "Plate"),
    (conjugate(dirichlet(5.0, 1.0)), {}, StructureError, "tells components apart.*'a'"),
    (conjugate(ODD), {"rule": "product"}, StructureError, "tells components apart"),
]
UNTYPED: list[tuple[Any, dict[str, Any], type[PosterityError], str]] = [
    (3, {}, UsageError, "posteriors 3; expected .* in a list"),
    (None, {"budget": 2**20}, UsageError, "posteriors None"),
    (LEDGERS, {"prior": LEDGERS[0]}, StructureError, "prior=Ledger.*ledger.prior"),
    (LEDGERS, {"prior": "file", "budget": 2**20}, StructureError, "prior='file'.*load"),
    (NAMED, {"weights": {"a": "x", "b": 1.0}}, UsageError, "positive"),
    (NAMED, {"weights": [1.0, 2.0]}, UsageError, r"weights \[1.0, 2.0\]"),
]
"""What annotations forbid, but users without a type checker pass all the same."""
DIFF: list[tuple[Any, Any, type[PosterityError], str]] = [
    (ONE, Beta.from_standard(1.0, 1.0), StructureError, "Beta.*second posterior"),
    (ONE, GAMMAS, StructureError, "Plate"),
    (GAMMAS, Plate(GAMMAS.members, dirichlet(1.0, 1.0)), StructureError, "Dirichlet"),
    (Product(x=ONE), Product(y=ONE), StructureError, "y=Gamma"),
    (Product(x=ONE), Product(x=ONE, y=ONE), StructureError, "y=Gamma"),
    (Product(x=ONE, y=ONE), Product(x=ONE, y=ODD[0]), StructureError, "block 'y'"),
    (plate(0.0), WIDE, StructureError, "DiagonalGaussian"),
    (ONE, GAMMAS.members, StructureError, "Gamma"),
    (stack([GAMMAS, GAMMAS]), GAMMAS, StructureError, "Plate"),
    (ONE, MIXTURE, StructureError, "Mixture"),
    (MIXTURE, Mixture.from_standard([1.0], FULL.members[:1]), StructureError, "Gaussian"),
    (ONE, ONE - ONE, ParameterError, "the second posterior"),
    (Mixture(np.array([np.nan]), points([0.0])), MIXTURE, ParameterError, "the first posterior"),
]


def _checked(call: Callable[[], Any], error: type[PosterityError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        call()
    assert caught.value.found and caught.value.expected


@pytest.mark.parametrize(("posteriors", "arguments", "error", "words"), FUSE)
def test_fuse_refuses(
    posteriors: Any, arguments: dict[str, Any], error: type[PosterityError], words: str
) -> None:
    """In memory and as tables alike."""
    for budget in (None, 100):
        _checked(lambda b=budget: fuse(posteriors, **{"budget": b, **arguments}), error, words)


@pytest.mark.parametrize(("posteriors", "arguments", "error", "words"), UNTYPED)
def test_fuse_refuses_what_annotations_forbid(
    posteriors: Any, arguments: dict[str, Any], error: type[PosterityError], words: str
) -> None:
    _checked(lambda: unwrap(fuse)(posteriors, **arguments), error, words)


def test_weights_may_be_as_large_as_numbers_are() -> None:
    sites = dict(zip("ab", conjugate(dirichlet(1.0, 1.0)), strict=True))
    large = fuse(sites, weights={"a": 1e308, "b": 1e308}).posterior
    assert large == fuse(sites, rule="barycenter").posterior


@pytest.mark.parametrize(("a", "b", "error", "words"), DIFF)
def test_diff_refuses(a: Any, b: Any, error: type[PosterityError], words: str) -> None:
    _checked(lambda: diff(a, b), error, words)
    with pytest.raises(error):
        diff(b, a)


def test_copies_of_a_site_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="sites 'a' and 'b' hold the same posterior"):
        twins = fuse([gamma_ledger("a", 2.5), gamma_ledger("b", 2.5)], rule="product")
    np.testing.assert_allclose(twins.posterior.shape, 4.0)  # type: ignore[attr-defined]


def test_sites_closer_than_chance_are_warned_of() -> None:
    rng, prior = np.random.default_rng(0), Gaussian.from_standard(np.zeros(3), 100 * np.eye(3))
    sites = {}
    for name in "abc":
        near = Gaussian.from_standard(1 + 0.1 * rng.normal(size=3), 0.01 * np.eye(3))
        sites[name] = Ledger.of_site(name, prior=prior, posterior=near)
    fuse(sites)  # without a warning
    copy = Gaussian.from_standard(sites["a"].posterior.mean + 1e-4, 0.01 * np.eye(3))
    sites["d"] = Ledger.of_site("d", prior=prior, posterior=copy)
    with pytest.warns(UserWarning, match="sites 'a' and 'd' hold nearly the same posterior"):
        fuse(sites)
