"""The heart experiment, small: the whole chain on the real patients, and its parts."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import expit

from experiments import data
from experiments.harness import Place
from experiments.heart import forgetting, kinds, run, trials
from experiments.heart.preparation import SITES, Split, prepare
from posterity.families import Gaussian


@pytest.fixture(scope="module")
def splits() -> dict[str, Split]:
    return prepare(data.heart_disease(), seed=0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the quick run of the logistic part leaves behind."""
    folder = tmp_path_factory.mktemp("heart")
    place = Place(folder, folder / "cache")
    run.run(place, seeds=1, quick=True, _parts=("logistic",))
    return folder


@pytest.fixture(scope="module")
def expected(written: Path) -> dict[str, Any]:
    return json.loads((written / "expected.json").read_text())


@pytest.mark.experiment
def test_federated_logistic_regression_is_the_pooled_one(expected: dict[str, Any]) -> None:
    goals = expected["goals"]["federated"]["logistic"]
    for method in kinds.logistic().methods:
        assert goals[method]["met"] and abs(goals[method]["mean"]) < 1e-4
        kl = expected["results"]["logistic"]["KL to pooled"][method]["mean"]
        assert kl < 1e-3, method


@pytest.mark.experiment
def test_hospitals_alone_know_less(expected: dict[str, Any]) -> None:
    scores = expected["results"]["logistic"]["scores"]
    pooled = scores["pooled"]["everyone"]["log likelihood"]["mean"]
    assert pooled > scores["local"]["everyone"]["log likelihood"]["mean"]
    for site in SITES:
        assert pooled > scores["local, on everyone"][site]["log likelihood"]["mean"]
    assert -0.6 < pooled < -0.3  # always saying 1/2 scores -0.693


@pytest.mark.experiment
def test_refinement_reaches_the_retrained_posterior(expected: dict[str, Any]) -> None:
    for site in SITES:
        found = expected["results"]["logistic"]["forgetting"][site]
        kl = {stage: value["mean"] for stage, value in found["KL to retrained"].items()}
        assert kl["before"] > 1.0  # there is something to forget
        assert 0.01 < kl["after 0 sweeps"] < kl["before"]  # subtraction alone is not exact
        assert kl["after 1 sweeps"] < 0.005 and kl["after 2 sweeps"] < 1e-5
        for attack in forgetting.ATTACKS:
            auc = found["AUC"][attack]
            assert auc["after 5 sweeps"]["mean"] == pytest.approx(
                auc["retrained"]["mean"], abs=1e-3
            )


@pytest.mark.experiment
def test_run_draws_and_goes_on_where_it_was(
    written: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("likelihood", "forgetting", "membership"):
        assert (written / f"{name}.png").read_bytes().startswith(b"\x89PNG")

    def computed(*_: Any) -> dict[str, Any]:
        raise AssertionError("was kept, and is computed again")

    monkeypatch.setitem(run.PARTS, "logistic", computed)
    options: dict[str, Any] = {"quick": True, "_parts": ("logistic",)}
    again = Place(written / "again", written / "cache")
    assert run.run(again, seeds=1, **options)["goals"] == expected["goals"]
    with pytest.raises(AssertionError, match="computed again"):
        run.run(again, seeds=2, **options)


@pytest.mark.experiment
@pytest.mark.filterwarnings("ignore::posterity.errors.ConvergenceWarning")  # it is cut short
def test_network_federates_and_forgets(splits: dict[str, Split]) -> None:
    few = {site: Split(*(part[:48] for part in split)) for site, split in splits.items()}
    kind = kinds.network(0.1, key=trials.purpose(0, trials.SCATTER), short=True)
    sites, key = trials.training(few), trials.purpose(0, trials.NOISE)
    x, y = trials.together(trials.held_out(few))
    predicted = lambda q: kind.predict(q, x)
    federated = trials.fit(kind, forgetting.METHOD, sites, key=key)
    pooled = trials.fit(kind, "pooled", sites, key=key).posterior
    score = lambda q: trials.mean_log_likelihood(predicted(q), y)
    # cut short: the full run comes within 0.005
    assert score(federated.posterior) == pytest.approx(score(pooled), abs=0.02)
    stages, refused = forgetting.forgotten(federated, "switzerland", (0, 5))
    rest = {site: patients for site, patients in sites.items() if site != "switzerland"}
    retrained = trials.fit(kind, forgetting.METHOD, rest, key=key).posterior
    distance = lambda q: forgetting.bernoulli_kl(predicted(q), predicted(retrained))
    assert not refused
    assert distance(stages["after 5 sweeps"]) < distance(federated.posterior) / 5
    assert distance(stages["after 5 sweeps"]) < distance(stages["after 0 sweeps"])


def test_refused_subtraction_starts_again(splits: dict[str, Split]) -> None:
    """A factor so large that no distribution is left without it."""
    kind = kinds.logistic(short=True)
    whole = trials.fit(kind, forgetting.METHOD, trials.training(splits), key=jax.random.key(0))
    entry = whole.state.entries["va"]._replace(factor=2 * whole.posterior)
    state = dataclasses.replace(whole.state, entries={**whole.state.entries, "va": entry})
    broken = dataclasses.replace(whole, state=state)
    stages, refused = forgetting.forgotten(broken, "va", (0, 3))
    rest = {site: d for site, d in trials.training(splits).items() if site != "va"}
    retrained = trials.fit(kind, forgetting.METHOD, rest, key=jax.random.key(0)).posterior
    assert refused and stages["after 3 sweeps"].kl(retrained) < 1e-3


def test_predictions_average_over_the_posterior() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(18, 18)) / 6
    q = Gaussian.from_standard(rng.normal(size=18) / 2, root @ root.T + 0.1 * np.eye(18))
    x = rng.normal(size=(5, 18))
    draws = expit(np.asarray(q.sample(jax.random.key(0), (4_000,))) @ x.T)
    error = draws.std(0) / np.sqrt(len(draws))
    assert np.all(np.abs(kinds.predict_logistic(q, x) - draws.mean(0)) < 4 * error)


def test_network_predictions_average_over_the_posterior() -> None:
    kind = kinds.network(0.1, key=jax.random.key(1))
    model: Any = kind.model
    x = np.random.default_rng(0).normal(size=(5, 18))

    def chances(key: jax.Array) -> jax.Array:
        z = kind.prior.sample(key, (4_000,))
        return jax.nn.sigmoid(jax.vmap(lambda z: model.outputs(z, x))(z))

    draws = np.asarray(jax.jit(chances)(jax.random.key(2)))
    error = draws.std(0) / np.sqrt(len(draws))
    assert np.all(np.abs(kind.predict(kind.prior, x) - draws.mean(0)) < 4 * error + 2e-3)


def test_bernoulli_kl_by_hand() -> None:
    assert forgetting.bernoulli_kl(np.array([0.5]), np.array([0.25])) == pytest.approx(
        0.5 * np.log(2) + 0.5 * np.log(2 / 3)
    )
    assert forgetting.bernoulli_kl(np.array([1.0, 0.0]), np.array([0.5, 0.5])) == pytest.approx(
        np.log(2)
    )
