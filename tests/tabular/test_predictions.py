"""Records, predictions and their scores for a Python user: no settings, no command."""

import csv
import json
from typing import Any

import numpy as np
import pytest

from posterity.artifact import open_artifact, save
from posterity.errors import StructureError, UsageError
from posterity.families import Gaussian
from posterity.federation import federate
from posterity.tabular import Reading, Recipe, fit
from posterity.tabular.federated import arranged
from posterity.tabular.fitting import prior_of
from posterity.tabular.multicentre import personal_of, sites_of
from posterity.tabular.predictions import predicted, texts_of
from posterity.tabular.sites import as_provenance, sites_in


@pytest.fixture
def tables(tmp_path):
    """Tables of two sites, whose doses and noise are alike."""
    paths = {}
    for seed, site in enumerate(("north", "south")):
        rng = np.random.default_rng(seed)
        dose = rng.normal(size=40).round(3)
        y = (1 + 2 * dose + rng.normal(size=40)).round(3)
        lines = [f"{a},{b},{'ab'[n % 2]}" for n, (a, b) in enumerate(zip(dose, y, strict=True))]
        paths[site] = tmp_path / f"{site}.csv"
        paths[site].write_text("\n".join(["dose,y,ward", *lines, ",1,b"]) + "\n")
    return paths


RECIPE = Recipe("linear", "y", without=("ward",), noise_variance="estimate")
DROPPED = Reading(drop_missing=True)


def test_predictions_are_scored_in_all_and_by_group(tables, tmp_path):
    fitted = fit(tables["north"], RECIPE, reading=DROPPED)
    file = tmp_path / "north.safetensors"
    save(fitted.ledger, file, provenance=fitted.provenance)
    value, about = open_artifact(file)
    found = predicted(value, about.provenance, tables["south"], recipe=fitted.recipe, scored=True)
    whole, groups = found.scores(0.9, texts_of(tables["south"], "ward"))
    assert found.notes == ("1 of 41 records is left out, since a value is missing or unknown",)
    assert len(found.parts["mean"]) == 41 and np.isnan(found.parts["mean"][-1])
    assert whole["records"] == 40
    assert {ward: own["records"] for ward, own in groups.items()} == {"a": 20, "b": 20}
    assert whole["rmse"] ** 2 == pytest.approx(np.mean([v["rmse"] ** 2 for v in groups.values()]))
    found.write(tmp_path / "made.json")
    found.write(tmp_path / "made.csv")
    made = json.loads((tmp_path / "made.json").read_text())
    rows = list(csv.DictReader((tmp_path / "made.csv").read_text().splitlines()))
    assert made["mean"][-1] is None and rows[-1]["mean"] == ""
    assert float(rows[0]["mean"]) == pytest.approx(made["mean"][0])


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5])
def test_intervals_without_an_end_are_refused(tables, level):
    fitted = fit(tables["north"], RECIPE, reading=DROPPED)
    given = fitted.ledger, fitted.provenance, tables["south"]
    with pytest.raises(UsageError, match=f"level={level}"):
        predicted(*given, recipe=fitted.recipe, level=level)


def test_a_value_without_a_recipe_is_refused(tables, tmp_path):
    fitted = fit(tables["north"], RECIPE, reading=DROPPED)
    save(fitted.ledger, tmp_path / "plain.safetensors")
    value, about = open_artifact(tmp_path / "plain.safetensors")
    with pytest.raises(StructureError, match="does not specify what it predicts"):
        predicted(value, about.provenance, tables["south"])


def test_a_file_describes_ten_thousand_sites_and_their_sum_beyond():
    for count, told in ((10_000, 10_000), (10_001, 1)):
        each = {f"s{number}": {"records": 2} for number in range(count)}
        assert len(sites_in(as_provenance(RECIPE, each))) == told
    for count, kept in ((200_000, True), (200_001, False)):
        known = sites_in(as_provenance(RECIPE, {"a": {"records": 2, "third": [0.5] * count}}))
        assert ("third" in known["a"]) == kept


def test_the_tables_of_sites_are_a_federation(tables):
    sites = sites_of(tables, RECIPE, dict.fromkeys(tables, DROPPED), estimate=True)
    names = next(iter(sites.tables.values())).names
    prior = prior_of(names, sites.recipe, None)
    job = arranged(sites.tables, sites.model, prior, sites.recipe, target="y")
    run: Any = federate(job.data, sites.model, job.prior, personal=job.personal)
    assert sites.pooled and sites.facts["north"]["dropped"] == 1
    assert job.names == ("intercept", "dose")
    assert run.posterior.mean == pytest.approx([1, 2], abs=0.5)
    one = Gaussian.from_standard([0.0], [[1.0]])
    with pytest.raises(StructureError, match="a prior of 1 coefficients"):
        arranged(sites.tables, sites.model, one, sites.recipe, target="y")


def test_columns_that_differ_are_named_or_numbered():
    names = ("intercept", "sex[m]", "sex[x]", "age")
    assert personal_of(["sex", 3], names) == ["sex[m]", "sex[x]", "age"]
    assert personal_of(["0"], ()) == [0]
    assert personal_of({"age": 0.5}, names) == {"age": 0.5}
    assert personal_of(None, names) is False
    with pytest.raises(UsageError, match="a column twice"):
        personal_of(["age", "3"], names)
