from pathlib import Path

import numpy as np
import pytest
from cli.commands import document, ledger, plate, refuse, succeed

import posterity
from posterity import artifact
from posterity.families import Gamma, HiddenMarkov, NormalGamma, Plate, Transformed
from posterity.families.supports import PositiveNumbers


def test_a_ledger(files):
    both = ledger("north", 0.0, 5.0) | ledger("south", 1.0, 2.0)
    posterity.save(both.forget("north"), "both.safetensors", provenance={"fit": "by hand"})
    found = document("inspect", "both.safetensors")
    assert (found["kind"], found["proper"]) == ("Ledger", True)
    assert found["bytes"] == Path("both.safetensors").stat().st_size
    assert found["digest"] == posterity.inspect("both.safetensors").digest
    assert found["prior_digest"] == artifact.digest(both.prior)
    assert found["provenance"] == {"fit": "by hand"}
    assert found["sites"] == {
        "north": {"epoch": 0, "sequence": 0, "forgotten": True},
        "south": {"epoch": 0, "sequence": 0, "forgotten": False},
    }
    text = succeed("inspect", "both.safetensors").stdout
    for part in (found["digest"], found["prior_digest"], "fit: by hand", "no (forgotten)"):
        assert part in text


def test_what_is_no_distribution(files):
    posterity.save(-plate([0.0], 50.0, 1.0), "factor.safetensors")
    assert document("inspect", "factor.safetensors")["proper"] is False


def test_blocks(files):
    gamma = Gamma.from_standard([1.0, 2.0], [1.0, 1.0])
    product = posterity.Product({"a/b": gamma[0], "c": Plate(gamma)})
    posterity.save(product, "p.safetensors")
    blocks = document("inspect", "p.safetensors")["family"]["parameters"]["blocks"]
    assert blocks["parameters"]["c"]["parameters"]["members"]["parameters"]["rate"] == [2]
    text = succeed("inspect", "p.safetensors").stdout
    assert "a/b: Gamma" in text
    assert "members: Gamma" in text
    assert "weights" not in text
    posterity.save({"name": None}, "plain.safetensors")
    assert "name: null" in succeed("inspect", "plain.safetensors").stdout


def test_values_by_name_on_their_supports(files):
    law = posterity.Gaussian.from_standard([0.0], [[1.0]])
    on = Transformed.from_standard(law, {"scale": PositiveNumbers(())})
    posterity.save(on, "t.safetensors")
    text = succeed("inspect", "t.safetensors").stdout
    assert "law: Gaussian" in text
    assert "PositiveNumbers" in text


def test_states_of_a_hidden_markov_model(files):
    one = NormalGamma.from_standard(np.zeros(1), np.ones(1), np.ones(1), np.full(1, 3.0))
    posterity.save(HiddenMarkov.prior(one, states=2), "h.safetensors")
    text = succeed("inspect", "h.safetensors").stdout
    for part in ("HiddenMarkov", "emissions: Plate", "initial: Dirichlet", "transitions: Plate"):
        assert part in text


def test_a_terminal_without_columns(files):
    assert "Plate" in succeed("inspect", "plain.safetensors", COLUMNS="0").stdout


@pytest.mark.parametrize(
    "name", ["truncated.safetensors", "altered.safetensors", "text.safetensors", "sub", "nowhere"]
)
def test_files_that_cannot_be_trusted(strange, name):
    refuse(f"inspect {name}", 5, f"'{name}'")


def test_a_pipe_is_not_waited_for(strange):
    refuse("inspect pipe", 5, "'pipe'; a pipe or a device")
