from pathlib import Path

import numpy as np
import pytest
from cli.commands import document, ledger, refuse, succeed

import posterity
from posterity.families import Gamma, Network
from posterity.networks import Layers


def test_components_are_matched(files):
    found = document("diff", "n.safetensors", "e.safetensors")
    block = found["blocks"][""]
    assert found["kl_ab"] == block["kl_ab"] > 0 < found["kl_ba"]
    assert [(pair["a"], pair["b"]) for pair in block["components"]] == [(0, 2), (1, 1)]
    assert [lone["component"] for lone in block["only_in_b"]] == [0, 3, 4]
    assert block["only_in_a"] == []
    assert (found["sites_a"], found["sites_b"]) == (["north"], ["east"])
    text = succeed("diff", "n.safetensors", "e.safetensors").stdout
    for part in ("only in b", "total, in nats", "sites of b: east"):
        assert part in text


def test_a_file_does_not_differ_from_itself(files):
    found = document("diff", "n.safetensors", "n.safetensors")
    assert (found["kl_ab"], found["kl_ba"]) == (0.0, 0.0)


def test_wide_diffs_are_cut_for_people_only(files):
    posterity.save(ledger("wide", *[10.0 * k for k in range(40)]), "w.safetensors")
    assert "and 17 more" in succeed("diff", "w.safetensors", "w.safetensors").stdout
    found = document("diff", "w.safetensors", "w.safetensors")
    assert len(found["blocks"][""]["components"]) == 40


def test_what_overflows_is_still_json(files):
    narrow = Gamma.from_standard(1e300, 1e-300), Gamma.from_standard(1.0, 1e300)
    for name, gamma in zip("ab", narrow, strict=True):
        posterity.save(gamma, f"{name}.safetensors")
    with np.errstate(all="ignore"):
        found = document("diff", "a.safetensors", "b.safetensors")
        assert found["kl_ab"] is None
        assert "overflow" in succeed("diff", "a.safetensors", "b.safetensors").stdout


def test_different_models_are_refused(strange):
    refuse("diff n.safetensors gamma.safetensors", 4, "Gamma; second posterior")
    refuse("diff n.safetensors pipe", 5, "'pipe'")


def test_files_in_other_units_and_levels_are_compared_in_those_of_the_first(files):
    """The same records are at the same posterior, whatever the form of each file."""
    rng = np.random.default_rng(0)
    age, group = rng.normal(50, 10, 90), rng.choice(["a", "b", "c"], 90)
    rise = age / 10 + (group == "b") + rng.normal(size=90)
    columns = {"age": age, "group": group, "rise": rise, "ill": np.where(rise > 5, "yes", "no")}
    for name, keep in (("t", slice(None)), ("u", group != "c")):
        lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        kept = [",".join(columns), *np.array(lines)[keep]]
        Path(f"{name}.csv").write_text("\n".join(kept), encoding="utf-8")
    target = {"linear": "rise", "logistic": "ill"}
    for name, table, model, flags in (
        ("v1", "t", "linear", "--noise-variance 1 --category group=a,b,c"),
        ("v2", "t", "linear", "--noise-variance .01 --scale rise=10 --scale age=3 --center age=5 "
         "--category group=b,c,a"),
        ("v3", "u", "linear", "--noise-variance 1 --category group=a,b"),
        ("v4", "t", "linear", "--noise-variance 1 --category group=a,b,c --prior-sd .1"),
        ("g1", "t", "logistic", "--category ill=no,yes --category group=a,b,c"),
        ("g2", "t", "logistic", "--category ill=yes,no --category group=a,b,c"),
    ):  # fmt: skip
        flags = f"--columns age,group --model {model} --target {target[model]} {flags}"
        succeed(*f"fit {table}.csv -o {name}.safetensors --site s {flags}".split())
    compare = lambda a, b: document("diff", f"{a}.safetensors", f"{b}.safetensors")
    for a, b in (("v1", "v2"), ("v2", "v1"), ("g1", "g2")):
        found = compare(a, b)
        assert found["kl_ab"] + found["kl_ba"] < 1e-6
        assert (found["sites_a"], found["sites_b"]) == (["s"], ["s"])
        assert found["notes"] == ["'b' is put into the units and levels of 'a'"]
    lacking = compare("v1", "v3")
    assert lacking["kl_ab"] > 1 and len(lacking["columns"]) == 4
    prior = compare("v1", "v4")  # the prior is part of what is compared
    assert prior["kl_ab"] > 1 and prior["notes"] == []
    refuse(
        "diff g1.safetensors v1.safetensors", 4, "'a' and 'b' fitted by different flags; --model"
    )


@pytest.mark.slow
def test_estimates_for_mixtures_carry_their_standard_error(files):
    for name, means in (("a", [0.0, 5.0]), ("b", [0.0, 6.0])):
        two = posterity.DiagonalGaussian(np.array(means)[:, None], np.ones((2, 1)))
        posterity.save(posterity.Mixture.from_standard([1.0, 1.0], two), f"{name}.safetensors")
    found = document("diff", "a.safetensors", "b.safetensors")
    assert 0 < found["standard_errors"]["kl_ab"] < found["kl_ab"]
    assert "standard error" in succeed("diff", "a.safetensors", "b.safetensors").stdout


def test_networks_whose_distance_overflows_are_refused(files):
    layers = Layers.dense(2, 3, 2)
    for name, size in (("small", 1.0), ("huge", 1e308)):
        mean = size * np.linspace(-1, 1, layers.size)
        law = Network.from_standard(mean, np.ones(layers.size), layers)
        posterity.save(law, f"{name}.safetensors")
    refuse("diff small.safetensors huge.safetensors", 3, "overflows")
