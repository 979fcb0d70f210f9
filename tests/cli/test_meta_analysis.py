"""A meta-analysis at the shell: a table of studies, sites that differ, and names at the door."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli.commands import document, refuse, succeed
from cli.test_recipes import put
from fusion.trials import MEAN, TAU, TRIALS, Q, fused, trials

import posterity
from posterity.artifact import digest
from posterity.tabular.tables.files import read_sites

ROWS = "\n".join(f"{study},treat,{mean},{sd}" for study, mean, sd in TRIALS)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("trials.csv").write_text(f"study,term,estimate,std.error\n{ROWS}\n")


def test_a_table_of_studies_is_one_ledger_whose_sites_are_fused():
    told = document("import", "trials.csv", "--flat-prior", "-o", "trials.safetensors")
    assert len(told["parameters"]) == 9 and "--personal true" in told["notes"][0]
    told = document("fuse", "trials.safetensors", "--personal", "true", "-o", "all.safetensors")
    assert told["count"] == 9 and told["warnings"] == []
    found = told["population"]
    assert (found["q"], found["degrees"]) == (pytest.approx(Q, rel=1e-6), 8)
    (treat,) = found["coefficients"]
    assert treat["tau"] == pytest.approx(TAU, rel=1e-6)
    direct = fused(trials()).population
    ends = treat["low"], treat["high"]
    np.testing.assert_allclose(ends, direct.interval()[0], rtol=1e-5)
    assert ends[0] < MEAN < ends[1]
    # The same in each file's own name, or as so many files.
    for study, mean, sd in TRIALS:
        Path("one.csv").write_text(f"term,estimate,std.error\ntreat,{mean},{sd}\n")
        name = f"{study}.safetensors"
        succeed("import", "one.csv", "-o", name, "--site", study, "--flat-prior")
    files = [f"{study}.safetensors" for study, *_ in TRIALS]
    doubts = document("fuse", *files, "-o", "product.safetensors")["warnings"]
    assert doubts == document("show", "trials.safetensors")["warnings"] != []
    assert doubts == document("show", "product.safetensors")["warnings"]
    document("fuse", *files, "--personal", "true", "-o", "files.safetensors")
    one, other = (posterity.load(f"{name}.safetensors").posterior for name in ("all", "files"))
    np.testing.assert_allclose(one.coefficients.mean, other.coefficients.mean, rtol=1e-6)


def test_a_fusion_with_random_effects_leaves_another_runs_checkpoint_alone():
    succeed("import", "trials.csv", "--flat-prior", "-o", "trials.safetensors")
    other = Path("all.safetensors.checkpoint")
    other.write_text("of a federation")
    succeed("fuse", "trials.safetensors", "--personal", "true", "-o", "all.safetensors")
    assert other.read_text() == "of a federation"


@pytest.mark.slow
def test_show_and_the_page_tell_of_the_population():
    succeed("import", "trials.csv", "--flat-prior", "-o", "trials.safetensors")
    line = ("fuse", "trials.safetensors", "--personal", "true", "-o", "all.safetensors")
    words = ("Q = 63.99 on 8 degrees", "τ is 0.38", "I² 82%", "a new site's is from")
    said = " ".join(succeed(*line).stdout.split())
    assert all(word in said for word in ("partial pooling", *words)), said
    said = " ".join(succeed("show", "all.safetensors").stdout.split())
    assert all(word in said for word in words), said
    shown = document("show", "all.safetensors")
    told = shown["population"]
    (row,) = shown["rows"]  # one interval of the coefficient, and that of its exact law
    (treat,) = told["coefficients"]
    ends = row["low"], row["high"]
    np.testing.assert_allclose(ends, (treat["low"], treat["high"]), rtol=1e-9)
    assert shown["level"] == told["level"] == document(*line)["population"]["level"]
    assert told["sites"][0]["site"] == "t0" and told["coefficients"][0]["i2"] > 0.8
    succeed("report", "all.safetensors", "-o", "page.html")
    page = Path("page.html").read_text()
    assert all(word in page for word in ("Q = 63.99", "I² 82%", "Own estimate"))


def test_a_population_of_which_one_site_is_left_tells_of_no_difference():
    Path("two.csv").write_text("study,estimate,se\nA,1,0.1\nB,2,0.1\n")
    succeed("import", "two.csv", "--flat-prior", "-o", "two.safetensors")
    succeed("fuse", "two.safetensors", "--personal", "true", "-o", "all.safetensors")
    line = ("--site", "B", "-o", "one.safetensors", "--receipt", "r.json")
    succeed("forget", "all.safetensors", *line)
    found = document("show", "one.safetensors")["population"]
    assert (found["q"], found["degrees"], found["p"]) == (pytest.approx(0, abs=1e-9), 0, None)
    said = " ".join(succeed("show", "one.safetensors").stdout.split())
    assert "No two sites know a common coefficient" in said and "nan" not in said
    succeed("report", "one.safetensors", "-o", "page.html")


@pytest.mark.slow
def test_a_study_is_forgotten_as_if_it_had_never_been_there():
    succeed("import", "trials.csv", "--flat-prior", "-o", "trials.safetensors")
    line = ("--personal", "true", "-o")
    succeed("fuse", "trials.safetensors", *line, "all.safetensors")
    forget = ("forget", "all.safetensors", "--site", "t4", "-o", "left.safetensors")
    assert document(*forget, "--receipt", "receipt.json")["exact"]
    succeed("verify", "receipt.json", "all.safetensors", "left.safetensors")
    rows = [row for row in ROWS.splitlines() if not row.startswith("t4,")]
    Path("left.csv").write_text("\n".join(["study,term,estimate,std.error", *rows]) + "\n")
    succeed("import", "left.csv", "--flat-prior", "-o", "eight.safetensors")
    succeed("fuse", "eight.safetensors", *line, "again.safetensors")
    one, other = (posterity.load(f"{name}.safetensors") for name in ("left", "again"))
    assert one.posterior == other.posterior
    tau = [document("show", f"{n}.safetensors")["population"] for n in ("left", "again")]
    assert tau[0] == tau[1]


def test_a_table_of_studies_in_python_and_one_whose_studies_lack_terms():
    assert read_sites("trials.csv").sites == tuple(study for study, *_ in TRIALS)
    Path("two.csv").write_text(
        "site;term;estimate;std.error\nA;a;0,1;0,2\nA;b;1,0;0,3\nB;a;-0,4;0,1\nC;b;2,0;0,2\n"
    )
    ledger = read_sites("two.csv")
    population = posterity.fuse(ledger, personal=True).population
    assert population.names == ("a", "b") and population.degrees == 2
    mean, errors = population.alone("B")
    assert mean[0] == pytest.approx(-0.4) and np.isnan(mean[1]) and np.isinf(errors[1])


@pytest.mark.parametrize(("table", "code", "words"), [
    ("study,estimate,se\nA,1,0.1\nA,2,0.1\n", 5, "'A'; line 2; line 3"),
    ("study,estimate,se\nA,1,0\nB,2,0.1\n", 3, "'A'"),
    ("study,estimate,se\n,1,0.1\nB,2,0.1\n", 5, "no study in line 2"),
])  # fmt: skip
def test_tables_of_studies_that_make_no_sense(table, code, words):
    Path("bad.csv").write_text(table)
    refuse("import bad.csv --flat-prior -o bad.safetensors", code, words)


def test_a_table_of_studies_has_no_prior_to_take_off_and_no_one_name():
    refuse("import trials.csv -o t.safetensors", 2, "--flat-prior")
    refuse("import trials.csv --flat-prior --site t -o t.safetensors", 2, "--site")
    refuse("import trials.csv --flat-prior --family gamma -o t.safetensors", 2, "--family")


def test_a_table_of_one_study_is_not_said_to_be_several():
    Path("one.csv").write_text("study,estimate,se\nA,1,0.1\n")
    assert document("import", "one.csv", "--flat-prior", "-o", "one.safetensors")["notes"] == []


def hospitals():
    """Two hospitals that have both fitted a file 'data.csv'."""
    for seed, site in enumerate(("north", "south")):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=200).round(2)
        Path(site).mkdir()
        put(f"{site}/data.csv", {"x": x, "y": 1 * (rng.random(200) < 1 / (1 + np.exp(-x)))})
        line = ("--target", "y", "--model", "logistic", "-o", f"{site}/data.safetensors")
        succeed("fit", f"{site}/data.csv", *line)


@pytest.mark.slow
def test_a_site_of_one_class_takes_part_in_no_comparison():
    """``fuse``, ``show`` and the page agree that its likelihood gives no Q, p and I²."""
    hospitals()
    x = np.linspace(-2, 2, 40).round(2)
    Path("west").mkdir()
    put("west/data.csv", {"x": x, "y": 0 * x})
    line = ("--target", "y", "--model", "logistic", "-o", "west/data.safetensors")
    succeed("fit", "west/data.csv", *line)
    named = [f"{site}={site}/data.safetensors" for site in ("north", "south", "west")]
    told = document("fuse", *named, "--personal", "x", "-o", "all.safetensors")
    shown = document("show", "all.safetensors")
    succeed("report", "all.safetensors", "-o", "page.html")
    succeed("report", *named, "all.safetensors", "-o", "anew.html")
    for data in (told, shown):
        assert "the likelihoods of west are not nearly Gaussian" in data["warnings"][-1]
        population = data["population"]
        assert population["q"] is population["p"] is population["coefficients"][1]["i2"] is None
    for page in ("page.html", "anew.html"):
        text = Path(page).read_text()
        assert "likelihoods of west are not nearly" in text and "differ by Q" not in text
    told = document("fuse", *named[:2], "--personal", "x", "-o", "two.safetensors")
    assert told["population"]["q"] is not None and not told["warnings"]


def test_sites_are_shown_in_the_order_of_their_numbers():
    rows = "".join(f"trial {n},{n / 10},0.3\n" for n in range(1, 12))
    Path("many.csv").write_text(f"study,estimate,se\n{rows}")
    succeed("import", "many.csv", "--flat-prior", "-o", "many.safetensors")
    names = [f"trial {n}" for n in range(1, 12)]
    assert [site["name"] for site in document("show", "many.safetensors")["sites"]] == names
    succeed("fuse", "many.safetensors", "--personal", "true", "-o", "all.safetensors")
    data = document("show", "all.safetensors")
    assert [row["site"] for row in data["population"]["sites"]] == names


def test_files_of_one_name_are_named_at_the_door():
    hospitals()
    files = "north/data.safetensors", "south/data.safetensors"
    refuse(f"fuse {' '.join(files)} -o b.safetensors", 2, "north=FILE")
    named = f"north={files[0]}", f"south={files[1]}"
    document("fuse", *named, "-o", "b.safetensors")
    ledger = posterity.load("b.safetensors")
    assert ledger.sites == ("north", "south")
    same = posterity.fuse({"north": files[0], "south": files[1]})
    assert digest(same.ledger) == digest(ledger)
    document("fuse", *named, "-o", "p.safetensors", "--personal", "intercept")
    assert posterity.load("p.safetensors").sites == ("north", "south")
    refuse(f"fuse {named[0]} south={files[0]} north={files[1]} -o c.safetensors", 2, "'north'")
    refuse(f"fuse a=b.safetensors {named[1]} -o c.safetensors", 6, "a ledger of one site")
    refuse(f"fuse {named[0]} {named[1]} -o {files[0]}", 2, "one of the inputs")


def test_names_at_the_door_of_forget_report_and_verify():
    hospitals()
    succeed("fuse", "north=north/data.safetensors", "south=south/data.safetensors",
            "-o", "b.safetensors")  # fmt: skip
    succeed("report", "north=north/data.safetensors", "south=south/data.safetensors",
            "-o", "page.html")  # fmt: skip
    page = Path("page.html").read_text()
    assert "north" in page and "south" in page
    succeed("forget", "b.safetensors", "--site", "north", "-o", "left.safetensors",
            "--receipt", "r.json")  # fmt: skip
    told = succeed("verify", "r.json", "b.safetensors", "left.safetensors").stdout
    assert "north forgotten exactly" in told
    # A ledger of one site has the name that it is given, for its receipt too.
    succeed("forget", "north=north/data.safetensors", "--site", "north", "-o", "n.safetensors",
            "--receipt", "n.json")  # fmt: skip
    assert json.loads(Path("n.json").read_text())["sites"] == ["north"]
    succeed("verify", "n.json", "north=north/data.safetensors", "n.safetensors")
    refuse("verify n.json north/data.safetensors n.safetensors", 6, "claims")
    shutil.copy("north/data.safetensors", "a=b.safetensors")  # a path that exists is no name
    assert document("show", "a=b.safetensors")["sites"][0]["name"] == "data"


def test_sites_that_are_too_many_to_leave_out_are_left_out_one_at_a_time(monkeypatch):
    succeed("import", "trials.csv", "--flat-prior", "-o", "trials.safetensors")
    succeed("fuse", "trials.safetensors", "--personal", "true", "-o", "all.safetensors")
    each = document("show", "all.safetensors", "--site", TRIALS[0][0])["sites"]
    assert all(site["nats"] is not None for site in each)
    monkeypatch.setattr("posterity.reporting.summary.rows.ANEW", 0)
    for site in document("show", "all.safetensors")["sites"]:
        assert site["nats"] is None
        assert "posterity show FILE --site NAME" in site["why"]
    assert document("show", "all.safetensors", "--site", TRIALS[0][0])["pulls"]


def test_what_does_not_suit_a_population_is_refused_in_words_of_the_shell():
    succeed("import", "trials.csv", "--flat-prior", "-o", "t.safetensors")
    fuse = "fuse t.safetensors --personal true -o all.safetensors"
    for option in ("--checkpoint kept", "--budget 500"):
        refuse(f"{fuse} {option}", 2, f"--personal with {option.split()[0]}")
    for spread in ("1e300", "1e-300"):
        line = f"fuse t.safetensors --personal treat={spread} -o all.safetensors"
        refuse(line, 2, "from 1e-100 to 1e+100")
    assert not Path("all.safetensors").exists()
    succeed(*fuse.split())
    Path("one.csv").write_text("term,estimate,std.error\ntreat,1,0.1\n")
    succeed("import", "one.csv", "--flat-prior", "--site", "one", "-o", "one.safetensors")
    line = "fuse all.safetensors one.safetensors -o b.safetensors"
    refuse(line, 2, "posterity fuse --personal true")


def test_a_file_says_that_it_was_fused_about_a_population_and_a_page_fuses_it_again():
    for study, mean, sd in TRIALS[:4]:
        Path("one.csv").write_text(f"term,estimate,std.error\ntreat,{mean},{sd}\n")
        line = ("-o", f"{study}.safetensors", "--site", study, "--flat-prior")
        succeed("import", "one.csv", *line)
    files = [f"{study}.safetensors" for study, *_ in TRIALS[:4]]
    succeed("fuse", *files, "--personal", "treat=0.5", "-o", "all.safetensors")
    told = document("inspect", "all.safetensors")["provenance"]
    assert json.loads(told["personal"]) == {"treat": 0.5}
    assert {"rule", "matching", "divergence"}.isdisjoint(told)
    succeed("report", *files, "all.safetensors", "-o", "page.html")
    assert "Own estimate" in Path("page.html").read_text()
