"""Draws for ArviZ: as many, by name, and of the law that they are said of."""

import sys
import warnings
from typing import Any

import jax
import numpy as np
import pytest

import posterity
from posterity.adapters.arviz import to_arviz
from posterity.errors import MissingExtraError, StructureError, UsageError
from posterity.families import (
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    Mixture,
    Plate,
    Product,
    Transformed,
)
from posterity.families.supports import PositiveNumbers, RealNumbers

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def arviz() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it says of its own future when it is imported
        return pytest.importorskip("arviz", reason="arviz is not installed: the extra arviz")


def test_draws_of_a_mixture_by_name(arviz: Any) -> None:
    """ArviZ's own summary finds mean and spread, and no sign of chains that do not mix."""
    law = DiagonalGaussian.from_standard([[0.0, -1.0], [0.0, 1.0]], [[0.25, 0.01]] * 2)
    supports = {"scale": PositiveNumbers(), "shift": RealNumbers()}
    posterior = Mixture.from_standard([1.0, 3.0], Transformed.from_standard(law, supports))
    data = to_arviz(posterior, key=KEY)
    found = data.posterior
    assert set(found.data_vars) == {"scale", "shift"}
    assert found["scale"].dims == ("chain", "draw") and found["scale"].shape == (4, 1000)
    told = arviz.summary(data, round_to="none", kind="stats")
    sd = (0.01 + 0.75) ** 0.5  # 1 - .5² between the modes
    assert abs(told.loc["shift", "mean"] - 0.5) < 5 * sd / 4000**0.5
    assert abs(float(told.loc["shift", "sd"]) / sd - 1) < 0.05
    assert (arviz.rhat(data)["shift"] < 1.01).all()
    assert abs(np.log(found["scale"].values).mean()) < 5 * 0.5 / 4000**0.5
    again = to_arviz(posterior, key=KEY).posterior
    assert found.equals(again)


def test_events_without_names_and_within_others(arviz: Any) -> None:
    gaussian = Gaussian.from_standard([0.0, 5.0], np.eye(2))
    found = to_arviz(gaussian, key=KEY, chains=2, draws=7).posterior
    assert found["z"].shape == (2, 7, 2)
    blocks = Product(
        {"noise": Gamma.from_standard(2.0, 1.0),
         "inner": Product({"pi": Dirichlet.from_standard(np.ones(3)), "m": gaussian})}
    )  # fmt: skip
    found = to_arviz(blocks, key=KEY, chains=1, draws=5).posterior
    assert {name: part.shape for name, part in found.data_vars.items()} == {
        "noise": (1, 5), "inner.pi": (1, 5, 3), "inner.m": (1, 5, 2)
    }  # fmt: skip
    assert np.allclose(found["inner.pi"].values.sum(-1), 1)


def test_columns_have_names(arviz: Any) -> None:
    gaussian = Gaussian.from_standard([0.0, 5.0], np.eye(2))
    found = to_arviz(gaussian, key=KEY, names=["age", "dose"]).posterior
    assert abs(float(found["dose"].mean()) - 5) < 5 / 4000**0.5
    with pytest.raises(StructureError, match="3 names; expected 2 different texts"):
        to_arviz(gaussian, key=KEY, names=["a", "b", "c"])
    with pytest.raises(StructureError, match="come twice"):
        to_arviz(gaussian, key=KEY, names=["a", "a"])
    with pytest.raises(StructureError, match="names by part"):
        to_arviz(Product({"m": gaussian}), key=KEY, names=["a", "b"])


def test_names_of_the_law_are_coordinates(arviz: Any) -> None:
    """And come back with them, from the draws."""
    from posterity.adapters import from_samples

    gaussian = Gaussian.from_standard([0.0, 5.0], np.eye(2)).named(["age", "dose"])
    found = to_arviz(gaussian, key=KEY, draws=200)
    assert list(found.posterior["z"].coords["z_dim_0"].values) == ["age", "dose"]
    assert abs(float(found.posterior["z"].sel(z_dim_0="dose").mean()) - 5) < 5 / 800**0.5
    fit = from_samples(found)
    assert fit.posterior.names == ("z[age]", "z[dose]")
    ledger = posterity.Ledger.of_site("north", prior=gaussian, posterior=gaussian + gaussian)
    assert list(to_arviz(ledger, key=KEY, draws=5).posterior["z_dim_0"].values) == ["age", "dose"]
    assert to_arviz(fit, key=KEY, draws=5).posterior["z"].shape == (4, 5, 2)
    product = Product(effect=gaussian, noise=Gamma.from_standard(1.0, 1.0).named(["sigma"]))
    found = to_arviz(product, key=KEY, draws=5).posterior
    assert list(found.coords["effect_dim_0"].values) == ["age", "dose"]
    assert found["noise"].shape == (4, 5)
    sites = {"beta": RealNumbers((2,)), "scale": PositiveNumbers()}
    law = DiagonalGaussian.from_standard(np.zeros(3), np.ones(3))
    named = Transformed.from_standard(law, sites).named(["beta[age]", "beta[bp]", "scale"])
    found = to_arviz(named, key=KEY, draws=5).posterior
    assert list(found.coords["beta_dim_0"].values) == ["age", "bp"]
    plate = Plate(Dirichlet.from_standard(np.ones((2, 3))).named(["a", "b", "c"]))
    found = to_arviz(plate.named(["x", "y"]), key=KEY, draws=5).posterior
    assert found["0"].shape == (4, 5, 2, 3)
    assert list(found.coords["0_dim_0"].values) == ["x", "y"]
    assert list(found.coords["0_dim_1"].values) == ["a", "b", "c"]


def test_what_is_refused(arviz: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="expected one proper"):
        to_arviz(DiagonalGaussian.from_standard(np.zeros((2, 1)), np.ones((2, 1))), key=KEY)
    factor = DiagonalGaussian.from_standard([0.0], [1.0])
    with pytest.raises(UsageError, match=r"DiagonalGaussian.*improper"):
        to_arviz(factor - factor, key=KEY)
    with pytest.raises(UsageError, match="draws=0"):
        to_arviz(factor, key=KEY, draws=0)
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(MissingExtraError, match=r"posterity\[arviz\]"):
        to_arviz(factor, key=KEY)
