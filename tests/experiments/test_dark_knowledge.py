"""Small versions of the experiments: the truth, the peers, a run of each; no data folder."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.diagnostics import split_gelman_rubin
from pictures import shows_data
from scipy import stats

from experiments import data, harness
from experiments.dark_knowledge import peers, peers_pbp, regression, toy1d, toy2d
from posterity.errors import UsageError
from posterity.networks import Layers

# --- peers -----------------------------------------------------------------------------------


@pytest.mark.experiment
def test_nuts_samples_a_law_that_is_known() -> None:
    """A linear network without hidden units: the posterior is Gaussian."""
    layers, rng = Layers.dense(2, 1), np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    variances, noise = np.full(3, 2.0), 0.5
    density = peers.values(layers, x, y, variances, noise)
    draws = peers.nuts(density, np.zeros((2, 3)), warmup=200, draws=500, seed=0)
    assert draws.shape == (2, 500, 3)
    columns = {"bias": np.ones((30, 1)), "kernel": x}
    order = sorted(layers.places[0], key=lambda name: layers.places[0][name].start)
    design = np.concatenate([columns[name] for name in order], 1)
    precision = design.T @ design / noise + np.eye(3) / 2
    mean = np.linalg.solve(precision, design.T @ y / noise)
    deviation = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    # 1,000 draws of a Gaussian, of which NUTS makes as good as independent ones
    np.testing.assert_allclose(draws.mean((0, 1)), mean, atol=5 * deviation.max() / 1000**0.5)
    assert split_gelman_rubin(draws).max() < 1.05


def test_moments_of_rectified_units() -> None:
    rng = np.random.default_rng(0)
    for mean, deviation in ((0.5, 1.0), (-1.0, 0.7), (3.0, 0.2)):
        a = np.maximum(rng.normal(mean, deviation, 200_000), 0)
        found = jax.jit(peers_pbp.rectified)(mean, deviation**2)
        error = a.std() / len(a) ** 0.5
        assert abs(float(found[0]) - a.mean()) < 5 * error
        spread = ((a - a.mean()) ** 2).std() / len(a) ** 0.5
        assert abs(float(found[1]) - a.var()) < 5 * spread + 1e-6


def test_pbp_forward_is_the_moments_of_its_network() -> None:
    """Exact for the mean; units are taken as independent for the variance, as the paper does."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        state = jax.device_get(jax.jit(lambda: peers_pbp.started((3, 40, 1), rng))())
        x = rng.normal(size=3)
        mean, variance = jax.jit(peers_pbp.forward)(state.means, state.variances, x)
    first, second = (
        np.asarray(m) + np.sqrt(np.asarray(v)) * rng.normal(size=(20_000, *m.shape))
        for m, v in zip(state.means, state.variances, strict=True)
    )
    hidden = np.maximum(first @ np.append(x, 1) / 2, 0)
    hidden = np.concatenate([hidden, np.ones((20_000, 1))], 1)
    values = np.einsum("nki,ni->n", second, hidden) / 41**0.5
    assert abs(float(mean) - np.mean(values)) < 5 * np.std(values) / len(values) ** 0.5
    assert float(variance) == pytest.approx(np.var(values), rel=0.06)


@pytest.mark.experiment
def test_pbp_learns_a_curve_and_its_noise() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (200, 1))
    y = np.abs(x[:, 0]) + 0.2 * rng.normal(size=200)
    fitted = peers_pbp.fit(x, y, hidden=(20,), epochs=15, seed=0)
    mean, variance, noise = fitted.predict(x)
    assert np.sqrt(np.mean((mean - np.abs(x[:, 0])) ** 2)) < 0.15
    assert 0.02 < noise < 0.12 and (variance > 0).all()


def test_gamma_update_is_the_moments_of_the_tilted_law() -> None:
    """One known factor, against quadrature."""
    q, value, variance = peers_pbp.Gamma(6.0, 6.0), 1.7, 0.4
    grid = np.linspace(1e-4, 8, 200_001)
    weights = stats.gamma.pdf(grid, 6.0, scale=1 / 6.0) * stats.norm.pdf(
        value, scale=np.sqrt(1 / grid)
    )
    mean = np.average(grid, weights=weights)
    exact = lambda gamma: stats.t.logpdf(
        value, 2 * gamma.shape, scale=np.sqrt(gamma.rate / gamma.shape)
    )
    with jax.enable_x64(True):
        found = jax.device_get(peers_pbp._tilted(q, lambda g: jnp.asarray(exact(g))))
    assert float(found.shape / found.rate) == pytest.approx(mean, rel=1e-4)
    second = np.average(grid**2, weights=weights)
    spread = float(found.shape) / float(found.rate) ** 2
    assert spread == pytest.approx(second - mean**2, rel=1e-3)
    del variance


def test_mode_is_the_best_of_its_starts() -> None:
    density = lambda z: -((z[0] ** 2 - 1) ** 2) + 0.3 * z[0] - (z[1] - 2) ** 2
    found = peers.mode(density, 2, seed=0, starts=8)
    assert found[0] > 0.9 and found[1] == pytest.approx(2.0, abs=1e-4)


# --- data ------------------------------------------------------------------------------------


def test_splits_of_the_protocol() -> None:
    found = data.random_splits(506, 20)
    assert found.shape == (20, 506) and (found.sum(1) == 51).all()
    with pytest.raises(UsageError, match="boston"):
        data.uci_regression("california")


@pytest.mark.data
@pytest.mark.parametrize("name", data.UCI_NAMES)
def test_stored_splits_are_those_of_the_protocol(name: str) -> None:
    table = data.uci_regression(name)
    assert np.isfinite(table.X).all() and len(table.X) == len(table.y)
    assert np.array_equal(table.is_test, data.random_splits(len(table.y), len(table.is_test)))
    constant = np.flatnonzero(table.X.std(0) == 0).tolist()
    assert constant == ([8, 11] if name == "naval" else [])


# --- statistics ------------------------------------------------------------------------------


def test_verdicts_and_what_is_kept(tmp_path: Path) -> None:
    found = harness.statistics([1.0, 3.0])
    assert found["mean"] == 2 and found["standard error"] == 1 and found["count"] == 2
    assert harness.statistics([1.0])["standard error"] is None
    assert harness.at_most("", found, 2.0)["met"] and not harness.at_most("", found, 1.9)["met"]
    assert harness.at_least("", found, 2.0)["met"] and not harness.at_least("", found, 2.1)["met"]
    calls = []
    make = lambda: calls.append(1) or {"a": [1.0]}
    for _ in range(2):
        assert harness.kept(tmp_path, "some", make, 1) == {"a": [1.0]}
    assert harness.kept(tmp_path, "some", make, 2) == {"a": [1.0]} and len(calls) == 2
    harness.write(tmp_path, "some", {"list": [1, 2], "text": "[a]"})
    written = json.loads((tmp_path / "some.json").read_text())
    assert {"list": [1, 2], "text": "[a]"}.items() <= written.items()


def test_a_run_has_its_keywords_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    def run(
        tables: tuple[str, ...] = ("a", "b"),
        /,
        *,
        seeds: tuple[int, ...] = (0, 1),
        splits: int | None = None,
        minutes: float = 1.5,
        only_kept: bool = False,
        _small: int = 1,
    ) -> dict[str, Any]:
        found = (tables, seeds, splits, minutes, only_kept, _small)
        return {"found": found, "goals": [harness.at_most("few", {"mean": 1.0}, 2.0)]}

    words = ["b", "--seeds", "3", "4", "--splits", "7", "--only-kept"]
    found = harness.command(run, words, tables="ab")["found"]
    assert found == (("b",), (3, 4), 7, 1.5, True, 1)
    assert capsys.readouterr().out.startswith("met      few")
    assert harness.command(run, [])["found"] == (("a", "b"), (0, 1), None, 1.5, False, 1)
    with pytest.raises(SystemExit):
        harness.command(run, ["c"], tables="ab")


def test_divergences() -> None:
    truth = np.array([[0.5, 0.5], [0.9, 0.1]])
    assert toy2d.kl(truth, truth) == 0
    found = np.array([[0.25, 0.75], [0.9, 0.1]])
    assert toy2d.kl(truth, found) == pytest.approx(np.log(4 / 3) / 4)
    grid = toy1d.grid()
    one = toy1d.Band(grid, grid * 0 + 1, 3.0)
    other = toy1d.Band(grid + 1, grid * 0 + 5, 3.0)
    assert toy1d.kl(one, one, slice(None)) == 0
    assert toy1d.kl(one, other, slice(None)) == pytest.approx((0.5 - 1 + np.log(2) + 1 / 8) / 2)


# --- runs ------------------------------------------------------------------------------------


@pytest.mark.experiment
def test_toy2d_small(tmp_path: Path) -> None:
    arguments = ["--quick", "--results", str(tmp_path), "--cache", str(tmp_path / "cache")]
    harness.command(toy2d.run, arguments)
    found = json.loads((tmp_path / "toy2d.json").read_text())
    divergence = {n: own["mean"] for n, own in found["KL to the true predictive, grid"].items()}
    # Few draws and steps: what was an order of magnitude still is.
    assert divergence["SGLD, ours"] < 0.02 < divergence[toy2d.SGD]
    assert divergence["2-10-2, ours"] < divergence[toy2d.SGD] / 2
    split = found["mutual information, grid"]["2-10-2, ours, split"]
    assert split["correlation"]["mean"] > 0.8
    for name in ("figure1", "figure1-split"):
        assert shows_data(tmp_path / f"{name}.png")


@pytest.mark.experiment
def test_toy1d_small(tmp_path: Path) -> None:
    arguments = ["--quick", "--results", str(tmp_path), "--cache", str(tmp_path / "cache")]
    harness.command(toy1d.run, arguments)
    found = json.loads((tmp_path / "toy1d.json").read_text())
    assert set(found["scores"]) == set(toy1d.METHODS)
    near = found["scores"][toy1d.SGLD]["from -4 to 4"]
    assert near["mean, RMS difference to HMC"]["mean"] < 5
    assert shows_data(tmp_path / "figure2.png")


# Few steps: what has not converged is said, and judged by the divergence below.
@pytest.mark.experiment
@pytest.mark.filterwarnings("ignore::posterity.errors.ConvergenceWarning")
def test_regression_small() -> None:
    """The 442 patients of scikit-learn's diabetes table stand for a UCI one."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    X = np.concatenate([X, np.ones((len(y), 1))], 1)  # a constant column, as naval has
    table = data.Regression("diabetes", X, y, data.random_splits(len(y), 1))
    found = regression.one_split(table, 0, 5, "constant", 2000)
    score = {name: found[name]["log likelihood"] for name in regression.PAPER if name in found}
    # A normal with the moments of the training targets is what knows nothing.
    test = table.is_test[0]
    known = stats.norm.logpdf(y[test], y[~test].mean(), y[~test].std()).mean()
    assert score[regression.TEACHER] > known + 0.1
    assert score[regression.STUDENT] > score[regression.TEACHER] - 0.15
    judged = regression.judged("diabetes, constant noise", [found, found], 20)
    assert judged["splits run, of"] == [2, 20] and len(judged["goals"]) == 1
