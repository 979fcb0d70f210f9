"""Partial pooling in a configuration."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from cli.commands import call, document, refuse
from cli.configurations import LOGISTIC

from posterity.cli.federate import OPTIONS
from posterity.cli.jobs import federation_of
from posterity.cli.options import read
from posterity.models import LogisticRegression, PersonalRegression


def configured(personal):
    kind = 'kind = "logistic-regression"'
    own = LOGISTIC.replace(kind, f"{kind}\npersonal = {personal}")
    Path("own.toml").write_text(own.replace("steps = 2", "steps = 0"))


@pytest.mark.parametrize(
    ("personal", "columns", "spread"),
    [
        ("true", (0, 1), [0.5, 0.5]),
        ('["v"]', (1,), [0.5]),
        ("[1]", (1,), [0.5]),
        ('[" v "]', (1,), [0.5]),
        ("{ v = 2.0, u = 0.1 }", (0, 1), [0.1, 2.0]),
    ],
)
def test_a_configuration_says_what_differs_between_sites(folder, personal, columns, spread):
    configured(personal)
    run = federation_of(read(OPTIONS, {}, Path("own.toml"))).start()
    assert run.agreement.model == PersonalRegression(LogisticRegression(), columns)
    assert run.agreement.update.pools  # as by default in Python
    np.testing.assert_allclose(np.exp(run.ledger.prior.log_spread.mean), spread)


def test_files_name_what_differs_between_sites(folder):
    configured('["v"]')
    call("federate", "own.toml")
    rows = document("inspect", "coupled.safetensors")["coefficients"]
    named = [(row["block"], row["name"]) for row in rows]
    assert named == [("coefficients", "u"), ("coefficients", "v"), ("log_spread", "v")]
    shutil.copy("coupled.safetensors", "first.safetensors")
    configured('["u"]')
    call("federate", "own.toml")
    refuse("diff first.safetensors coupled.safetensors", 4, "log_spread; ['u']")


@pytest.mark.parametrize(
    ("personal", "spread"), [('["sex"]', [2.5, 2.5]), ("{sex = 0.3}", [0.3, 0.3])]
)
def test_a_column_of_texts_stands_for_all_its_levels(folder, personal, spread):
    rows = [f"{dose},{'fmx'[dose % 3]},{dose % 2}" for dose in range(12)]
    Path("texts.csv").write_text("\n".join(["dose,sex,ill", *rows]))
    Path("own.toml").write_text(
        '[sites]\na = "texts.csv"\n[data]\ncategory = {sex = ["f", "m", "x"]}\n'
        '[model]\nkind = "logistic-regression"\ntarget = "ill"\nintercept = true\n'
        f'personal = {personal}\n[output]\nfile = "own.safetensors"\n'
    )
    run = federation_of(read(OPTIONS, {}, Path("own.toml"))).start()
    assert run.agreement.model.personal == (2, 3)
    np.testing.assert_allclose(np.exp(run.ledger.prior.log_spread.mean), spread)


def test_false_leaves_a_regression_as_it_is(folder):
    configured("false")
    run = federation_of(read(OPTIONS, {}, Path("own.toml"))).start()
    assert run.agreement.model == LogisticRegression()


@pytest.mark.parametrize(
    ("personal", "code", "words"),
    [
        ('["w"]', 2, "'w'; ['u', 'v']"),
        ('{ u = 0.1, "0" = 0.5 }', 2, "twice; ['u', '0']"),
        ('["v", 1]', 2, "personal"),
        ("[2]", 2, "personal; 0 to 1"),
        ("[]", 2, "personal"),
        ("{ v = -1.0 }", 2, "model.personal"),
    ],
)
def test_what_a_configuration_cannot_mean_is_refused(folder, personal, code, words):
    configured(personal)
    refuse("federate own.toml", code, words)
