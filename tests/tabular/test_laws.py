"""Laws of tables: parts are the whole, predictions are those of draws, and units change nothing."""

import jax
import numpy as np
import pandas as pd
import pytest

from posterity.fusion.fuse import fuse
from posterity.tabular import Recipe, fit
from posterity.tabular.design import design
from posterity.tabular.predict import predict
from posterity.tabular.reconcile import reconciled
from posterity.tabular.tables.reader import read_cells

COLUMNS = ("age", "sex")
LEVELS = {"sex": ("f", "m", "x")}
MODELS = {
    "linear": {"noise_variance": 2.0},
    "logistic": {},
    "poisson": {},
    "gamma": {"dispersion": 1.0},
}


def table(model, seed=0, count=240):
    rng = np.random.default_rng(seed)
    data = pd.DataFrame({"age": rng.normal(60, 9, count).round(1)})
    data["sex"] = rng.choice(LEVELS["sex"], count)
    f = 0.04 * (data["age"] - 60) + 0.5 * (data["sex"] == "m")
    draws = {
        "linear": f + rng.normal(0, 1.4, count),
        "logistic": 1 * (rng.random(count) < 1 / (1 + np.exp(-f))),
        "poisson": rng.poisson(np.exp(f)),
        "gamma": rng.exponential(np.exp(f)) + 1e-3,
    }
    return data.assign(y=draws[model])


def recipe_of(model, **changes):
    options = {"categories": LEVELS, "prior_sd": {"": 100.0}, **MODELS[model]} | changes
    return Recipe(model, "y", COLUMNS, **options)


def made(tmp_path, data, recipe, site):
    path = tmp_path / f"{site}.csv"
    data.to_csv(path, index=False)
    return fit(path, recipe, site)


@pytest.mark.parametrize("parts", [2, 5])
@pytest.mark.parametrize("model", MODELS)
def test_parts_that_are_fused_are_the_whole(model, parts, tmp_path):
    """To rounding for linear models; of others to the distance of one shot."""
    data = table(model)
    whole = made(tmp_path, data, recipe_of(model), "all").ledger.posterior
    ledgers = [
        made(tmp_path, data[part::parts], recipe_of(model), f"s{part}").ledger
        for part in range(parts)
    ]
    both = fuse(ledgers, warn=False).posterior
    if model == "linear":
        np.testing.assert_allclose(both.precision, whole.precision, rtol=1e-9)
        np.testing.assert_allclose(both.mean, whole.mean, rtol=1e-6, atol=1e-9)
    else:
        assert float(both.kl(whole)) < 0.05 * parts


@pytest.mark.parametrize("model", MODELS)
def test_predictions_are_those_of_draws(model, tmp_path):
    data = table(model)
    found = made(tmp_path, data, recipe_of(model), "all")
    posterior = found.ledger.posterior
    records = design(read_cells(tmp_path / "all.csv"), found.recipe, predicting=True)
    parts = predict(posterior, found.recipe, records)
    draws = np.asarray(posterior.sample(jax.random.key(0), (20_000,)))
    f = draws @ records.x[:40].T
    mean = {"linear": f, "logistic": 1 / (1 + np.exp(-f))}.get(model, np.exp(f))
    name = "p" if model == "logistic" else "mean"
    spread = mean.std(0) / np.sqrt(len(draws))
    np.testing.assert_allclose((parts[name][:40] - mean.mean(0)) / spread, 0, atol=5)
    low, high = np.quantile(mean, [0.05, 0.95], axis=0)
    for end, own in (("low", low), ("high", high)):
        np.testing.assert_allclose(parts[end][:40], own, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["units", "levels", "both"])
def test_units_and_orders_of_levels_change_nothing(model, kind, tmp_path):
    """What a file in other units and levels says of a record, and of the fusion with another."""
    data = table(model)
    other = {"center": {"age": 60}, "scale": {"age": 10}} if kind != "levels" else {}
    if kind != "units":
        other["categories"] = {"sex": ("x", "m", "f")}
    wide = {"prior_sd": {"": 1e5}}
    one = made(tmp_path, data, recipe_of(model, **wide), "one")
    two = made(tmp_path, data, recipe_of(model, **wide, **other), "two")
    answers = []
    for fitted in (one, two):
        records = design(read_cells(tmp_path / "one.csv"), fitted.recipe, predicting=True)
        answers.append(predict(fitted.ledger.posterior, fitted.recipe, records))
    for name, own in answers[0].items():
        np.testing.assert_allclose(answers[1][name], own, rtol=2e-4, atol=1e-6)
    done = reconciled(
        {"one": one.ledger, "two": two.ledger}, {"one": one.provenance, "two": two.provenance}
    )
    laws = [done.values[name].factor(name) for name in ("one", "two")]
    size = np.sqrt(np.diagonal(laws[0].precision))
    gap = (laws[1].precision - laws[0].precision) / np.outer(size, size)
    np.testing.assert_allclose(gap, 0, atol=1e-4)
