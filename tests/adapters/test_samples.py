"""Draws as laws: against closed forms, and reports that alarm where there is reason alone."""

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.signal
import scipy.stats

import posterity
from posterity.adapters import from_samples
from posterity.arrays.chains import diagnose, tails
from posterity.errors import FitWarning, ParameterError, StructureError, UsageError
from posterity.families import (
    DiagonalGaussian,
    Gaussian,
    Mixture,
    Transformed,
)
from posterity.families.supports import PositiveNumbers, RealNumbers

RNG = np.random.default_rng(0)


def autoregressive(chains: int, count: int, size: int, effective: float, rng: Any) -> np.ndarray:
    """Standard normal, with so many effective draws in all."""
    time = chains * count / effective
    step = (time - 1) / (time + 1)
    noise = rng.normal(size=(chains, count, size)) * np.sqrt(1 - step**2)
    noise[:, 0] /= np.sqrt(1 - step**2)
    return scipy.signal.lfilter([1.0], [1.0, -step], noise, axis=1)


def quiet(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return from_samples(*args, **kwargs)


# --- effective draws -----------------------------------------------------------------------------


@pytest.mark.parametrize(("chains", "count"), [(4, 2000), (4, 11), (2, 57)])
@pytest.mark.parametrize("share", [0.1, 1.0, 5.0])
def test_effective_sizes_and_rhat_are_those_of_arviz(chains: int, count: int, share: float) -> None:
    """Of chains worth a tenth of their draws, all of them, and more: these alternate."""
    arviz: Any = pytest.importorskip("arviz")
    effective = share * chains * count
    draws = autoregressive(chains, count, 8, effective, np.random.default_rng(1))
    found, ends = diagnose(draws), tails(draws)
    if count == 2000 and share <= 1:
        assert abs(np.log(found.size.mean() / effective)) < 0.15
    for i in range(8):
        assert np.isclose(found.size[i], arviz.ess(draws[..., i], method="mean"), rtol=0.02)
        assert np.isclose(found.rhat[i], arviz.rhat(draws[..., i]), rtol=1e-9)
        tail = arviz.ess(draws[..., i], method="tail", prob=(0.05, 0.95))
        assert np.isclose(ends[i], tail, rtol=0.02)


def test_chains_of_other_widths_and_chains_that_stand_still_are_warned_of() -> None:
    rng = np.random.default_rng(2)
    draws = rng.normal(size=(4, 500, 2)) * np.array([1, 1, 1, 3.0])[:, None, None]
    with pytest.warns(FitWarning, match=r"Chains disagree: R-hat is 1\.1"):
        from_samples(draws)
    draws = rng.normal(size=(4, 500, 2))
    draws[3, 250:] = draws[3, 250]
    with pytest.warns(FitWarning, match=r"R-hat is 1\.29 for z\[0\] \(and of 1 more"):
        from_samples(draws)


def test_few_draws_and_constants_have_no_rhat() -> None:
    assert np.isnan(diagnose(np.ones((2, 5, 1))).rhat).all()
    for number in (np.nan, np.inf):
        draws = np.random.default_rng(0).normal(size=(4, 100, 2))
        draws[0, 3, 0] = number
        assert np.isnan(diagnose(draws).size).tolist() == [True, False]
    found = diagnose(np.stack([np.zeros((20, 1)), np.ones((20, 1))]))
    assert np.isinf(found.rhat).all()


# --- laws ----------------------------------------------------------------------------------------


def test_moments_of_a_gaussian() -> None:
    draws = RNG.normal(size=(500, 3)) @ RNG.normal(size=(3, 3)) + 5
    q: Any = quiet(draws, names=["a", "b", "c"]).posterior
    assert isinstance(q, Gaussian) and q.names == ("a", "b", "c")
    assert np.allclose(q.mean, draws.mean(0))
    assert np.allclose(q.covariance, np.cov(draws.T, bias=True))
    q = quiet(draws, "diagonal").posterior
    assert isinstance(q, DiagonalGaussian) and np.allclose(q.variance, draws.var(0))


def test_huge_offsets_keep_their_digits() -> None:
    noise = RNG.normal(size=(1000, 2))
    offset = np.array([1e6, -3e6])
    q: Any = from_samples(offset + 1e-3 * noise).posterior
    assert np.allclose(q.mean - offset, 1e-3 * noise.mean(0), atol=1e-8)
    assert np.allclose(q.covariance, 1e-6 * np.cov(noise.T, bias=True), rtol=1e-4, atol=1e-12)
    scales = 10.0 ** np.array([-8, 0, 8])
    fit = from_samples(RNG.normal(size=(2000, 3)) * scales)
    assert np.allclose(np.sqrt(np.diag(fit.posterior.covariance)) / scales, 1, atol=0.1)  # type: ignore


def test_bounded_variables_are_mapped_and_the_map_is_kept(tmp_path: Any) -> None:
    rng = np.random.default_rng(4)
    logs = rng.normal(size=(1000, 2)) @ [[0.5, 0.2], [0.0, 0.3]] + 1
    draws = {"beta": rng.normal(size=(1000, 2)), "scale": np.exp(logs)}
    fit = from_samples(draws, support={"scale": "positive"})
    q: Any = fit.posterior
    assert isinstance(q, Transformed) and fit.ok
    assert q.supports.tree == {"beta": RealNumbers((2,)), "scale": PositiveNumbers((2,))}
    assert q.names == ("beta[0]", "beta[1]", "scale[0]", "scale[1]")
    assert np.allclose(q.law.mean[2:], logs.mean(0))
    assert np.allclose(q.law.covariance[2:, 2:], np.cov(logs.T, bias=True))
    posterity.save(q, tmp_path / "q.safetensors")
    again = posterity.load(tmp_path / "q.safetensors")
    assert again == q and again.names == q.names
    s, t = np.exp(logs / 4).T
    table = from_samples({"s": s, "t": t}, support={"s": "positive"})
    assert table.posterior.event_shape == {"s": (), "t": ()}
    whole = from_samples(np.exp(logs), support="positive", names=["s", "t"])
    assert whole.posterior.event_shape == (2,) and whole.posterior.names == ("s", "t")
    simplex = from_samples({"pi": rng.dirichlet([30, 20, 50], 1000)}, support="simplex").posterior
    assert simplex.names == ("pi[0]", "pi[1]") and simplex.event_shape == {"pi": (3,)}


def test_few_draws_of_many_coordinates_are_taken_where_that_is_said() -> None:
    rng = np.random.default_rng(13)
    wide = rng.normal(size=(12, 40))
    for draws, options in (
        (wide, {"chains": 1}),
        (wide, {"names": [f"w{i}" for i in range(40)]}),
        ({"w": wide, "mu": wide[:, 0] ** 2}, {}),
    ):
        law: Any = quiet(draws, "diagonal", **options).posterior
        assert law.mean.shape[0] >= 40
    assert quiet({"a": wide}, chains="first").posterior.names == ("a",)


@pytest.mark.slow
def test_a_mixture_finds_modes_and_their_number() -> None:
    rng = np.random.default_rng(6)
    side = rng.random((1500, 1)) < 0.3
    draws = np.where(side, 10.0, 0.0) * [1.0, -1.0] + rng.normal(size=(1500, 2))
    fit = from_samples(draws, "mixture", names=["a", "b"])
    q: Any = fit.posterior
    assert isinstance(q, Mixture) and q.size == 2 and q.names == ("a", "b") and fit.ok
    heavy = int(np.argmax(q.weights))
    assert np.isclose(q.weights[heavy], 1 - side.mean(), atol=1e-3)
    assert np.allclose(q.components.mean[heavy], draws[~side[:, 0]].mean(0), atol=1e-2)
    assert quiet(draws, "mixture", components=1).posterior.size == 1


# --- alarms --------------------------------------------------------------------------------------


def test_honest_draws_are_not_warned_of() -> None:
    """Of AR(1) chains worth 300 draws; the docs say how seldom it happens."""
    for seed in range(5):
        draws = autoregressive(4, 500, 3, 300, np.random.default_rng(seed))
        fit = from_samples(draws)
        assert fit.ok
    assert "ok" in repr(fit) and "R-hat" in str(fit.checks)


def test_two_modes_are_warned_of() -> None:
    rng = np.random.default_rng(7)
    draws = rng.normal(size=(4, 300, 2))
    draws[..., 1] += np.where(rng.random((4, 300)) < 0.5, -2.5, 2.5)
    with pytest.warns(
        FitWarning, match=r"Two modes.*: effect has an excess kurtosis of.*'mixture'"
    ):
        fit = from_samples(draws, names=["noise", "effect"])
    assert not fit.ok and fit.checks.coordinates["effect"].kurtosis < -1


def test_stuck_chains_are_warned_of() -> None:
    apart = np.array([0, 0, 0, 8.0])[:, None, None]
    with pytest.warns(FitWarning, match="Chains disagree: R-hat is"):
        from_samples(np.random.default_rng(9).normal(size=(4, 300, 1)) + apart)


def test_skewed_positive_draws_are_told_of_a_support() -> None:
    rng = np.random.default_rng(10)
    draws = {"sigma": np.exp(rng.normal(size=2000) / 2), "mu": rng.normal(size=2000)}
    with pytest.warns(FitWarning, match=r"Skewed: sigma .* positive, .* support=\{'sigma': 'p"):
        from_samples(draws)
    with pytest.warns(FitWarning, match=r"within \(0, 1\), say so by .*'unit'"):
        from_samples({"p": rng.beta(1, 9, 2000)})
    with pytest.warns(FitWarning, match=r"Heavy tails: z"):
        from_samples(rng.standard_t(2.5, (4000, 1)))


def test_what_a_family_leaves_out_is_warned_of() -> None:
    rng = np.random.default_rng(11)
    with pytest.warns(FitWarning, match=r"Skewed: z.*mixture"):
        from_samples(rng.lognormal(0, 1.5, (2000, 1)) - 0.3)
    with pytest.warns(FitWarning, match="More parameters than draws"):
        from_samples(rng.normal(size=(90, 30)))
    with pytest.warns(FitWarning, match="Few effective draws"):
        from_samples(autoregressive(1, 2000, 1, 15, rng))


# --- what is refused -----------------------------------------------------------------------------

FINE = {"a": RNG.normal(size=50), "b": RNG.normal(size=(50, 2))}
ONES = RNG.normal([1.0, 9.0], 0.1, (50, 2))
NAN = {**FINE, "b": np.where(np.arange(100).reshape(50, 2) == 31, np.nan, FINE["b"])}
COPY = np.column_stack([FINE["a"], FINE["b"], FINE["a"] - FINE["b"][:, 1]])


@pytest.mark.parametrize(
    ("draws", "options", "error", "words"),
    [
        (NAN, {}, ParameterError, r"draws of 'b' .*1 such, the first at \[0, 15, 1\]"),
        ({**FINE, "c": FINE["a"] + 1j}, {}, StructureError, "'c'.*complex"),
        ({**FINE, "c": np.array(["x"] * 50)}, {}, StructureError, "'c'.*real numbers"),
        ({**FINE, "c": np.zeros(49)}, {}, StructureError, "as many of each variable"),
        ({**FINE, "c": np.full(50, 3.0)}, {}, ParameterError, r"draws of \['c'\] that do not vary"),
        (np.full((50, 1), 1e8), {}, ParameterError, "do not vary"),
        (COPY, {"names": list("wxyz")}, ParameterError, r"'[wyz]', .*are linearly dependent"),
        (RNG.normal(size=(20, 25)), {}, StructureError, "20 draws of 25.*at least 26.*'diagonal'"),
        (RNG.normal(size=(5, 1)), {}, StructureError, "5 draws"),
        (RNG.normal(size=(3, 20, 2, 2)), {}, StructureError, "a dictionary by name"),
        (RNG.normal(size=(50, 2)), {"names": ["a"]}, StructureError, "2 different texts"),
        (RNG.normal(size=(50, 2)), {"names": 5}, StructureError, "5 is no list.*2 different"),
        (RNG.normal(size=(50, 2)), {"names": ["a", "a"]}, StructureError, r"\['a'\] come twice"),
        ({"a": RNG.normal(size=(12, 300))}, {}, StructureError, r"\(12, 300\).*chains='first'"),
        ({"a": np.ones((1, 900, 3))}, {}, StructureError, r"\(1, 900, 3\).*chains='first'"),
        (RNG.normal(size=(12, 300)), {}, StructureError, r"\(12, 300\).*chains=1"),
        (RNG.normal(size=(50, 2)), {"chains": 7}, StructureError, r"\(50, 2\) with chains=7"),
        (RNG.normal(size=(50, 2)), {"chains": "third"}, UsageError, "chains='third'"),
        (RNG.normal(size=50), {"chains": "first"}, StructureError, r"expected \(chains, draws"),
        (FINE, {"support": {"c": "positive"}}, UsageError, r"supports for \['c'\]"),
        (ONES, {"support": {"a": "positive"}}, UsageError, "array as a dictionary by name"),
        (FINE, {"support": {"a": "positive"}}, ParameterError, "'a' outside of the support"),
        (FINE, {"support": {"a": "between"}}, UsageError, "support of 'a'='between'"),
        (FINE, {"support": {"a": "simplex"}}, StructureError, "shape"),
        (FINE, {"family": "cauchy"}, UsageError, "family='cauchy'"),
        (FINE, {"family": "mixture", "components": 0}, UsageError, "components=0"),
        (FINE, {"components": 3}, UsageError, "'components'.* beside family='gaussian'"),
        ({"a": ONES}, {"plate": True, "support": "positive"}, UsageError, "'support'.*logarithms"),
        ({"a": ONES}, {"plate": True, "names": ["x", "y"]}, UsageError, "'names'.*plate=True"),
        ((FINE["a"], FINE["a"]), {}, UsageError, "draws as tuple"),
        ([FINE["a"], FINE["a"]], {}, UsageError, "draws as list"),
        ({"a": FINE}, {}, StructureError, "'a'"),
        (RNG.normal(size=(50, 1)) * 1e200, {}, ParameterError, "beyond 1e"),
        ("draws.csv", {}, UsageError, "draws as str"),
        (None, {}, UsageError, "draws as NoneType"),
        ({}, {}, UsageError, "not empty"),
        (np.empty((0, 3)), {}, StructureError, r"shape \(0, 3\)"),
    ],
)
def test_bad_draws(draws: Any, options: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=f"(?s){words}"):
        from_samples(draws, **options)


@pytest.mark.parametrize("family", ["gaussian", "diagonal"])
@pytest.mark.parametrize("switching", ["no", "chains", "draws", "three"])
def test_switched_labels_of_a_mixture_become_a_plate(family, switching):
    """Its members are the components that were drawn, in some order; sites' plates fuse."""
    rng = np.random.default_rng(2)
    centres = np.array([0.0, 3.0, -4.0][: 3 if switching == "three" else 2])
    mu = rng.normal(centres, 0.1, (4, 1000, len(centres)))
    spread = rng.normal(centres / 10, 0.01, mu.shape)
    order = np.tile(np.arange(len(centres)), (4, 1000, 1))
    if switching == "chains":
        order[1] = order[1, :, ::-1]
    elif switching != "no":
        order = rng.permuted(order, axis=-1)
    draws = {n: np.take_along_axis(v, order, -1) for n, v in (("mu", mu), ("log_sd", spread))}
    plates = []
    for _ in range(2):
        fit = from_samples(draws, family, chains="first", plate=True)
        assert fit.ok and fit.posterior.is_plate
        members = fit.posterior.members
        mean = np.asarray(members.mean)
        rank = np.argsort(mean[:, members.names.index("mu")])
        wanted = np.sort(centres)
        np.testing.assert_allclose(mean[rank][:, members.names.index("mu")], wanted, atol=0.02)
        found = mean[rank][:, members.names.index("log_sd")]
        np.testing.assert_allclose(found, wanted / 10, atol=0.01)
        np.testing.assert_allclose(np.sqrt(members.marginal_variance).max(-1), 0.1, rtol=0.1)
        plates.append(fit.posterior)
        draws = {name: own[..., ::-1] for name, own in draws.items()}
    fused = posterity.fuse(dict(zip("ab", plates, strict=True)))
    assert fused.posterior.size == len(centres)


def test_what_is_no_plate_says_why():
    rng = np.random.default_rng(2)
    alike = rng.normal(0.0, 1.0, (2, 400, 2))
    with pytest.raises(StructureError, match="deviations apart"):
        from_samples({"mu": alike}, chains="first", plate=True)
    still = {"mu": np.array([0.0, 9.0]) + alike / 10, "x": np.ones(alike.shape)}
    with pytest.raises(ParameterError, match=r"\['x'\] that do not vary"):
        from_samples(still, chains="first", plate=True)
    with pytest.raises(StructureError, match="first axis"):
        from_samples({"mu": alike, "sigma": alike[..., 0]}, chains="first", plate=True)
    with pytest.raises(UsageError, match="family"):
        from_samples({"mu": alike}, "mixture", chains="first", plate=True)


def test_a_plate_is_a_family_too():
    draws = np.random.default_rng(0).normal([0.0, 3.0], 0.1, (2, 500, 2))
    draws[1] = draws[1, :, ::-1]
    fit = from_samples({"mu": draws}, chains="first", plate=True)
    assert fit.posterior == from_samples({"mu": draws}, chains="first", plate=True).posterior
