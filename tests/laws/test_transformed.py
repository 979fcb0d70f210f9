"""Laws behind maps: names on the law below, and parts in another order."""

from typing import Any

import numpy as np
import pytest

import posterity
from posterity.errors import StructureError
from posterity.families import Gaussian, Mixture, Transformed
from posterity.families.supports import PositiveNumbers, RealNumbers, Simplex

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(5, 5))
LAW = Gaussian.from_standard(RNG.normal(size=5), ROOT @ ROOT.T + np.eye(5))
TREE = {"beta": RealNumbers((2,)), "sigma": PositiveNumbers(()), "pi": Simplex((3,))}
NAMES = ["beta[0]", "beta[1]", "sigma", "pi[0]", "pi[1]"]
Q = Transformed.from_standard(LAW, TREE).named(NAMES)
EVENT = {"beta": np.array([0.3, -1.0]), "sigma": np.array(0.7), "pi": np.array([0.2, 0.5, 0.3])}


def test_the_law_below_has_the_names_and_keeps_them(tmp_path: Any) -> None:
    assert Q.law.names == Q.names == tuple(NAMES) and LAW.names == ()
    posterity.save(Q, tmp_path / "q.safetensors")
    loaded: Any = posterity.load(tmp_path / "q.safetensors")
    assert loaded.law.names == Q.names
    assert Q.named(list("abcde")).law.names == tuple("abcde") and Q.law.names == tuple(NAMES)
    assert Transformed.from_standard(LAW, TREE).law.names == ()
    two = Mixture(np.log([0.5, 0.5]), Gaussian.from_standard(np.zeros((2, 1)), np.ones((2, 1, 1))))
    inner = Transformed.from_standard(two, PositiveNumbers((1,))).named(["s"]).law
    assert inner.names == ("s",)


def test_parts_do_not_change_places() -> None:
    with pytest.raises(StructureError, match="another order"):
        Q.reordered(np.array([2, 0, 1, 3, 4]))


@pytest.mark.parametrize("supports", [3, {"a": 3}, None, {}, LAW])
def test_what_is_no_support_is_refused(supports: Any) -> None:
    with pytest.raises(StructureError, match="supports"):
        Transformed.from_standard(LAW, supports)
