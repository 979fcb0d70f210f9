"""What the experiment beside BFI has written, and a part of it again."""

import json

import numpy as np
import pytest

from experiments.bfi import run

EXPECTED = json.loads((run.PLACE.results / "expected.json").read_text())
BOTH = [name for name, own in EXPECTED.items() if "posterity, one shot" in own]


@pytest.mark.parametrize("name", BOTH)
def test_a_federation_ended_at_the_pooled_posterior_and_one_rule_is_one(name):
    own = EXPECTED[name]
    assert own["one rule: largest relative difference"] < 1e-6
    assert own["posterity, federated"]["nats"] < 1e-6
    assert own["posterity, federated"]["status"] == "converged"
    assert own["posterity, one shot"]["nats"] < own["BFI, one shot"]["nats"]


@pytest.mark.parametrize("kind", ["one class", "8 patients"])
def test_what_posterity_makes_of_a_table_is_what_was_written(kind):
    found = run.ours(run.failing(kind), "logistic")
    for name, written in (
        ("one shot", "posterity, one shot"),
        ("federated", "posterity, federated"),
    ):
        own = run.off(found[name], found["pooled"])
        np.testing.assert_allclose(own["nats"], EXPECTED[kind][written]["nats"], 0.02, 1e-6)


@pytest.mark.experiment
def test_bfi_again():
    if why := run.missing():
        pytest.skip(why)
    found = run.compared(run.failing("8 patients"), "logistic")
    for name in ("BFI, one shot", "posterity, one shot"):
        np.testing.assert_allclose(
            found[name]["nats"], EXPECTED["8 patients"][name]["nats"], rtol=0.02
        )
