from pathlib import Path

import numpy as np
import pytest
from cli.commands import call, document, fail, ledger, plate, refuse, succeed

import posterity
from posterity import artifact
from posterity.families import Plate
from posterity.fusion import Divergence, Matching, Rule


def test_the_barycentre_is_written_and_what_matched_is_told(files):
    line = ("fuse", "n.safetensors", "s.safetensors", "-o", "out.safetensors")
    result = succeed(*line, "--rule", "barycenter")
    assert "Fused 2 sites: barycenter (reverse KL), as asked for." in result.stdout
    assert "2 components" in result.stdout
    assert "Wrote Plate to out.safetensors" in result.stdout
    assert isinstance(posterity.load("out.safetensors"), Plate)


def test_ledgers_of_one_prior_become_a_ledger_that_can_forget(files):
    found = document("fuse", "n.safetensors", "s.safetensors", "-o", "out.safetensors")
    assert "one prior" in found["why"]
    assert (found["kind"], found["rule"], found["divergence"]) == ("Ledger", "product", "reverse")
    assert found["plates"][""]["components"] == 2
    assert found["plates"][""]["matching"] in (
        {"north": [0, 1], "south": [1, 0]},
        {"north": [1, 0], "south": [0, 1]},
    )
    fused = posterity.load("out.safetensors")
    assert fused.sites == ("north", "south")
    assert fused.forget("south").sites == ("north",)


def test_the_output_records_where_it_came_from(files):
    found = document(
        "fuse", "n.safetensors", "plain.safetensors", "-o", "out.safetensors",
        "--divergence", "forward", "--matching", "hungarian", "--components", 2,
        "--weight", "north=2", "--weight", "plain=0.5",
    )  # fmt: skip
    written = posterity.inspect("out.safetensors")
    files = {"north": "n.safetensors", "plain": "plain.safetensors"}
    inputs = {site: posterity.inspect(file).digest for site, file in files.items()}
    assert found["sites"] == inputs
    assert found["digest"] == written.digest
    assert written.provenance == {
        "made by": f"posterity {posterity.__version__} fuse",
        "rule": "barycenter",
        "divergence": "forward",
        "matching": "hungarian",
        "components": "2",
        "input north": inputs["north"],
        "input plain": inputs["plain"],
        "weight north": "2.0",
        "weight plain": "0.5",
    }


def test_fusing_is_what_the_library_does(files):
    Path("out.safetensors").write_bytes(b"an older output, which is replaced")
    succeed("fuse", "n.safetensors", "e.safetensors", "-o", "out.safetensors")
    fused = posterity.fuse(["n.safetensors", "e.safetensors"]).ledger
    assert artifact.digest(posterity.load("out.safetensors")) == artifact.digest(fused)


def test_posteriors_that_are_no_ledgers_need_a_prior(strange):
    posterity.save(plate([0.0, 0.0], 0.0, 0.5), "prior.safetensors")
    product = "fuse plain.safetensors other.safetensors --rule product"
    refuse(f"{product} -o out.safetensors", 2, "prior")
    refuse(f"{product} --prior prior.safetensors -o prior.safetensors", 2, "one of the inputs")
    found = document(*product.split(), "--prior", "prior.safetensors", "-o", "out.safetensors")
    assert list(found["sites"]) == ["other", "plain"]
    prior = posterity.inspect("prior.safetensors").digest
    assert posterity.inspect("out.safetensors").provenance["prior"] == prior


def test_how_sure_it_is_is_told(files):
    arguments = ("fuse", "n.safetensors", "s.safetensors", "-o", "out.safetensors")
    found = document(*arguments)["plates"][""]
    fused = posterity.fuse(["n.safetensors", "s.safetensors"])
    assert found["margins"] == {site: m.tolist() for site, m in fused.margins.items()}
    assert found["components_evidence"] == {str(g): n for g, n in fused.components_evidence.items()}
    others = {int(g): n for g, n in found["components_evidence"].items() if g != "2"}
    number = min(others, key=others.__getitem__)
    assert f"Next best: {number} components" in succeed(*arguments).stdout
    assert found["identified"] is True and found["doubtful"] == []


def test_sites_without_a_scale_are_told_of(files):
    for name, places in {"a": [0.0, 40.0], "b": [13.0, 90.0]}.items():
        mean = np.array(places)[:, None]
        members = posterity.DiagonalGaussian.from_standard(mean, np.ones(mean.shape))
        posterity.save(Plate(members), f"{name}.safetensors")
    arguments = ("fuse", "a.safetensors", "b.safetensors", "-o", "out.safetensors")
    data = document(*arguments, code=9)
    assert data["plates"][""]["identified"] is False and data["status"]["reasons"]
    result = call(*arguments)
    assert (result.exit_code, "is not identified" in result.stdout) == (9, True)
    assert result.stderr.startswith("warning: ")


def test_doubtful_matches_are_listed_and_warned_of_once(files):
    posterity.save(ledger("t\x1bhin", 1.75, 5.0), "t.safetensors")
    arguments = ("fuse", "n.safetensors", "s.safetensors", "t.safetensors", "-o", "out.safetensors")
    result, found = call(*arguments), document(*arguments, code=9)["plates"][""]
    assert result.exit_code == 9 and result.stderr.count("matching is uncertain") == 1
    assert "on standard error" in result.stdout
    doubtful = [row for row in found["doubtful"] if row["site"] == "t\x1bhin"]
    assert [row["component"] for row in doubtful] == [0]
    assert doubtful[0]["margin"] < 3
    assert "margin in nats" in result.stdout and r"t\x1bhin" in result.stdout
    assert "\x1b" not in result.stdout


def test_what_has_no_margin_is_null(files):
    for name, place in (("a", 0.0), ("b", 0.1)):
        posterity.save(ledger(name, place), f"{name}.safetensors")
    arguments = ("fuse", "a.safetensors", "b.safetensors", "-o", "out.safetensors")
    found = document(*arguments, "--matching", "hungarian")["plates"][""]
    assert found["margins"] == {"a": [None], "b": [None]}
    assert found["components_evidence"] == {} and found["doubtful"] == []


def test_wide_matchings_are_cut_for_people_only(files):
    wide = [5.0 * k for k in range(30)]
    posterity.save(ledger("wide", *wide), "w.safetensors")
    arguments = ("fuse", "n.safetensors", "w.safetensors", "-o", "out.safetensors")
    assert "more" in succeed(*arguments).stdout
    assert len(document(*arguments)["plates"][""]["matching"]["wide"]) == 30


def test_names_from_files_cannot_steer_the_terminal(files):
    posterity.save(ledger("we\x1b[31mst", 0.0), "w.safetensors")
    arguments = ("fuse", "n.safetensors", "w.safetensors", "-o", "out.safetensors")
    shown = succeed(*arguments).stdout + succeed("inspect", "w.safetensors").stdout
    assert "\x1b" not in shown
    assert r"we\x1b[31mst" in shown
    assert "\x1b" not in call(*arguments, "--weight", "a=1").stderr


def test_one_site_s_data_under_two_names(files):
    posterity.save(ledger("copy", 0.0, 5.0), "copy.safetensors")
    names = ("n.safetensors", "copy.safetensors", "-o", "out.safetensors")
    (line,) = document("fuse", *names)["warnings"]
    assert "hold the same posterior" in line
    assert call("fuse", *names).stderr.count("hold the same posterior") == 1


@pytest.mark.parametrize("budget", [(), ("--budget", 1)])
def test_priors_that_differ_are_noted(files, budget):
    for name, rate in (("a", 1.0), ("b", 2.0)):
        prior = posterity.Gamma.from_standard(1.0, rate)
        gamma = posterity.Ledger.of_site(
            name, prior=prior, posterior=prior + posterity.Gamma(rate, 1.0)
        )
        posterity.save(gamma, f"{name}.safetensors")
    line = ("fuse", "a.safetensors", "b.safetensors", "-o", "out", "--rule", "product", *budget)
    found = document(*line)
    assert found["rebased"] == ["a", "b"] and "priors differ" in found["notes"][0]
    assert posterity.inspect("out").provenance["rebased"] == '["a", "b"]'
    assert succeed(*line).stderr.startswith("note: priors differ: ")


def test_help_has_every_choice():
    text = succeed("fuse", "--help").stdout
    for kind in (Rule, Matching, Divergence):
        assert f"[{'|'.join(kind)}]" in text


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        ("", 2, "0 sites"),
        ("n.safetensors", 2, "1 site"),
        ("n.safetensors n.safetensors", 2, "and 'n.safetensors', of site 'north'"),
        ("plain.safetensors sub/plain.safetensors", 2, "'sub/plain.safetensors', of site 'plain'"),
        ("n.safetensors e.safetensors --components 4", 2, "components=4; between 5 and 7"),
        ("n.safetensors s.safetensors --rule other", 2, "'other'"),
        ("n.safetensors s.safetensors --divergence other", 2, "'other'"),
        ("n.safetensors s.safetensors --matching other", 2, "'other'"),
        ("n.safetensors s.safetensors --weight north", 2, "--weight north; SITE=X"),
        ("n.safetensors s.safetensors --weight =1", 2, "--weight =1; SITE=X"),
        ("n.safetensors s.safetensors --weight north=x", 2, "--weight north = 'x'; a number"),
        ("n.safetensors s.safetensors --weight south=1 --weight south=1", 2, "once a name"),
        ("n.safetensors s.safetensors --weight north=1", 2, "south"),
        ("n.safetensors s.safetensors --weight north=nan --weight south=1", 2, "nan"),
        ("n.safetensors s.safetensors --weight north=0 --weight south=1", 2, "0.0"),
        ("n.safetensors improper.safetensors", 3, "site 'improper'"),
        ("n.safetensors gamma.safetensors", 4, "site 'gamma'"),
        ("n.safetensors solid.safetensors", 4, "site 'solid'"),
        ("n.safetensors mixture.safetensors", 4, "site 'mixture'"),
        ("n.safetensors s.safetensors --rule product --prior mixture.safetensors", 4, "a Mixture"),
        ("n.safetensors truncated.safetensors", 5, "'truncated.safetensors'"),
        ("n.safetensors altered.safetensors", 5, "'altered.safetensors'"),
        ("n.safetensors pipe", 5, "'pipe'; a pipe or a device"),
        ("n.safetensors nowhere.safetensors", 5, "'nowhere.safetensors'"),
    ],
)
def test_inputs_that_are_refused(strange, arguments, code, words):
    Path("kept.safetensors").write_bytes(b"kept")
    refuse(f"fuse {arguments} -o kept.safetensors", code, words)


def test_without_files_no_model_of_several_sites_is_advised():
    error = fail(2, "fuse", "-o", "x.safetensors")
    assert error["found"] == "0 sites" and error["fix"] == "Pass all sites together."


@pytest.mark.parametrize(
    "output, code, words",
    [
        ("no/such/folder.safetensors", 5, "in a folder that does not exist"),
        ("sub", 5, "'sub', which is not a file"),
        ("/dev/null", 5, "which is not a file"),
        ("s.safetensors", 2, "one of the inputs"),
        ("./s.safetensors", 2, "one of the inputs"),
        ("link.safetensors", 2, "one of the inputs"),
    ],
)
def test_outputs_that_are_refused(strange, output, code, words):
    refuse(f"fuse n.safetensors s.safetensors -o {output}", code, words)
