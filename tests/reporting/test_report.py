"""Pages as a parser sees them: whole, safe, and with the posterior's own numbers."""

import dataclasses
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
from cli.commands import document, refuse, succeed
from reporting import pages

import posterity
from posterity import Gaussian, Ledger, fuse, report
from posterity.artifact import digest
from posterity.distillation import Head, Student
from posterity.errors import ArtifactError, FusionWarning, StructureError, UsageError
from posterity.families.layers import Layers
from posterity.federation.state import Visit
from posterity.reporting.cautions import doubts_of
from posterity.reporting.charts import Axis, ticks
from posterity.reporting.markup import shown, visible
from posterity.reporting.sources import Source
from posterity.reporting.summary import summarise
from posterity.reporting.verbs import federation
from posterity.tabular.predictions import predicted
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.sites import as_provenance

pytestmark = pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def panels(page):
    """By label of a number the means and ends of its lines, the fused one last."""
    found = {}
    for node in page.of("table", "forest"):
        (power,) = re.findall("× 10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", "".join(node["pieces"][:3])) or ["⁰"]
        unit = 10.0 ** int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))
        lines = re.findall(
            r"(\S+)\s+\((\S+) to (\S+)\)", " ".join(node["pieces"]).replace("−", "-")
        )
        found[node["pieces"][0]] = [[float(v) * unit for v in line] for line in lines]
    return found


def is_written(line, row, fused):
    """Whether a line has the numbers of a row, rounded to a twentieth of the fused interval."""
    error = np.abs(np.subtract(line, [row.mean, row.low, row.high]))
    return bool((error <= 0.05001 * (fused.high - fused.low)).all())


LEDGERS = [pages.clinics, pages.conjugate, pages.mixture, lambda: pages.clinics(full=False)]


@pytest.mark.parametrize("make", LEDGERS)
def test_a_page_is_whole_and_has_the_posteriors_numbers(make):
    ledger = make()
    made = report(ledger, level=0.8)
    page, rows = pages.Page(made.html), summarise(ledger, 0.8).rows
    drawn = panels(page)
    for row in rows:
        if row.quantity in ("", "mean") or not summarise(ledger).components:
            assert is_written(drawn[row.label][-1], row, row)
    ids = [node["id"] for node in page.all() if "id" in node]
    assert len(set(ids)) == len(ids)
    targets = [node["href"] for node in page.found["a"]]
    assert {t.removeprefix("#") for t in targets} <= set(ids)
    assert not any({"src", "srcset", "data", "action"} & node.keys() for node in page.all())
    assert all(table["text"] and "caption" in made.html for table in page.found["table"])
    assert len(page.found["caption"]) == len(page.found["table"])
    assert made.html == report(ledger, level=0.8).html


def test_each_site_has_its_own_estimate():
    ledger = pages.clinics()
    drawn, fused = panels(pages.Page(report(ledger).html)), summarise(ledger, 0.95).rows
    for place, label in enumerate(["intercept", "age", "sex[male]"]):
        for site, line in zip(ledger.sites, drawn[label], strict=False):
            alone = ledger.prior + ledger.factor(site)
            assert is_written(line, summarise(alone, 0.95).rows[place], fused[place])


SCALES = [1e-9], [1e9], [1e-100, 1.0, 1e100]


@pytest.mark.parametrize("units", SCALES)
def test_numbers_of_any_size_are_told_apart(units):
    """Short texts, in which the ends of no interval are the same, and axes with room."""
    ledger = pages.rescaled(pages.clinics(size=len(units)), units)
    page = pages.Page(report(ledger).html)
    drawn, rows = panels(page), summarise(ledger, 0.95).rows
    for row in rows:
        assert is_written(drawn[row.label][-1], row, row)
    values = [node["text"] for node in page.of("td", "value")]
    assert len(values) == len(units) * 4 and max(map(len, values)) < 25
    for axis in page.of("svg", "axis"):
        ends = [piece for piece in axis["pieces"] if piece]
        assert len(ends) == len(set(ends)) and len("  ".join(ends)) <= 22


def test_a_short_interval_far_from_zero_has_the_digits_that_it_needs():
    prior = Gaussian.from_standard([1e6], [[1e-4]]).named(["year"])
    page = pages.Page(report(Ledger(prior).update("a", Gaussian([1e10], [[1e4]]))).html)
    (line,) = panels(page)["year"][-1:]
    assert line == [1e6, 999999.986, 1000000.014]
    (numbers,) = (t for t in page.found["table"] if t["text"].startswith("All numbers"))
    assert "999999.986 to 1000000.01" in numbers["text"]


def test_names_that_begin_alike_keep_their_ends():
    one, other = (f"department of cardiology number {n}" for n in (1, 2))
    ledger = pages.clinics(2)
    ledger = Ledger(ledger.prior).extend(
        dict(zip((one, other), map(ledger.factor, ledger.sites), strict=True))
    )
    page = pages.Page(report(ledger).html)
    ends = {node["pieces"][-1] for node in page.of("span", "name")}
    assert ends == {" number 1", " number 2"}
    assert {node["text"] for node in page.of("span", "name")} == {one, other}


def test_names_break_out_of_nothing():
    ledger = Ledger(Gaussian.from_standard([0.0], [[1.0]]).named(["</script><b>"]))
    for site in (pages.STRANGE, "'\"><img src=x onerror=alert(1)>", "]]>--></title>"):
        ledger = ledger.update(site, Gaussian([1.0], [[2.0]]))
    text = report(ledger, title="<i>&</i>").html
    page = pages.Page(text)
    assert not page.found["img"] and not page.found["b"] and not page.found["i"]
    assert [s for s in page.found["script"] if s["text"].startswith("alert")] == []
    assert page.found["h1"][0]["text"] == "<i>&</i>"
    (data,) = (s for s in page.found["script"] if s.get("type") == "application/json")
    assert json.loads(data["text"])["sites"] == [*map(visible, ledger.sites)]
    assert "\u202e" not in text
    # Words from right to left do not turn the numbers beside them.
    clinic = pages.clinics(1)
    text = report(Ledger(clinic.prior).update("בית חולים", clinic.factor("site 000"))).html
    assert "\u2068בית חולים\u2069" in text
    # Joiners are kept where letters and emoji need them, and no name is cut beside one.
    woman = "\U0001f469\u200d\u2695\ufe0f"
    for name in (woman, "می\u200cخواهم", f"{'x' * 20} {woman} clinic"):
        text = report(Ledger(clinic.prior).update(name, clinic.factor("site 000"))).html
        page = pages.Page(text)
        assert all(visible(name) in label["text"] for label in page.found["label"])
        assert visible(name).strip("\u2068\u2069") == name
        assert all(woman in node["pieces"][-1] for node in page.of("span", "name"))


def test_units_and_words_are_the_recipes():
    posterity.save(pages.clinics(), "both.safetensors", provenance=pages.provenance())
    page = pages.Page(report("both.safetensors").html)
    assert page.of("p", "lead")[0]["text"].startswith("Predicts ill (yes rather than no) from")
    units = [node["text"] for node in page.of("span", "unit")]
    assert units == ["log odds", "log odds per 10 years", "log odds, male rather than female"]
    facts = [node["text"] for node in page.found["dd"]]
    assert facts[:3] == ["3", "120", "3"]
    assert any("odds ratio" in node["text"] for node in page.found["td"])


def test_many_sites_are_few_lines_and_the_rest_together():
    text = report(pages.clinics(300, 4)).html
    page = pages.Page(text)
    assert len(text) < 1_000_000
    assert len([node for node in page.found["input"] if node["type"] == "checkbox"]) == 12
    (data,) = (s for s in page.found["script"] if s.get("type") == "application/json")
    assert json.loads(data["text"])["sites"][-1] == "all others together"


def test_a_site_may_be_named_like_all_others_together():
    ledger = pages.clinics(14)
    named = {name: ledger.factor(name) for name in ledger.sites[1:]}
    named |= {"all others together": ledger.factor(ledger.sites[0]) * 40}
    ledger = Ledger(ledger.prior).extend(named)
    page = pages.Page(report(ledger).html)
    (data,) = (s for s in page.found["script"] if s.get("type") == "application/json")
    sites = json.loads(data["text"])["sites"]
    assert len(set(sites)) == 12 and {"all others together", sites[-1]} - set(ledger.sites)
    own = summarise(ledger.prior + ledger.factor("all others together"), 0.95).rows[0]
    lines, fused = panels(page)["intercept"], summarise(ledger, 0.95).rows[0]
    assert any(is_written(line, own, fused) for line in lines)


def test_each_mark_is_where_its_site_is_or_an_arrow_to_it():
    """A site that contradicts the others is an arrow at the end of the axis."""
    ledger = pages.clinics(2)
    far = Gaussian(np.full(3, 5e3), 100 * np.eye(3))  # about 50, surely
    vague = Gaussian(np.full(3, 3.0), 0.02 * np.eye(3))  # about 100, by a long interval
    page = pages.Page(report(ledger.update("far", far).update("vague", vague)).html)
    fused = [row for row in page.found["tr"] if "data-low" in row]
    assert len(fused) == 3
    for row in fused:
        assert float(row["data-low"]) < 1 and 50 < float(row["data-high"]) < 90
    assert len(page.of("path", "beyond")) == 3


def test_records_that_are_not_known_of_all_sites_are_a_lower_bound():
    posterity.save(pages.clinics(3), "all.safetensors", provenance=pages.provenance())
    posterity.save(pages.clinics(4), "most.safetensors", provenance=pages.provenance())
    assert "<dd>120</dd>" in report("all.safetensors").html
    assert "<dd>at least 120</dd>" in report("most.safetensors").html


def test_each_of_several_has_its_own_facts():
    ledger, other = pages.clinics(), pages.clinics(4, seed=7)
    done = posterity.forget(ledger, "site 001")
    page = pages.Page(report(done.receipt, other, done.ledger).html)
    facts = {d["text"]: e["text"] for d, e in zip(page.found["dt"], page.found["dd"], strict=True)}
    assert (facts["Ledger 1: Sites"], facts["Ledger 2: Sites"]) == ("4", "2")
    assert sum(li["text"].startswith("Ledger 2: ") for li in page.found["li"]) > 2


def test_many_numbers_are_some_panels_and_a_table():
    page = pages.Page(report(pages.clinics(2, 60)).html)
    assert len(page.of("table", "forest")) == 24
    assert any("of 60 numbers 24 are drawn" in p["text"].lower() for p in page.found["p"])


def test_what_is_no_distribution_says_so():
    ledger = pages.clinics(2)
    left = ledger.update("gone", Gaussian(np.zeros(3), -1e6 * np.eye(3)))
    text = report(left).html
    assert "This is not a probability distribution" in text
    assert "this is the prior." in report(Ledger(ledger.prior)).html
    weak = ledger.update("weak", Gaussian(np.ones(3), np.diag([1.0, 1.0, -0.5])))
    assert "no estimate alone" in report(weak).html


# --- files ---------------------------------------------------------------------------------------


def test_a_receipt_is_checked_against_its_ledgers():
    ledger = pages.clinics()
    done = posterity.forget(ledger, "site 001")
    posterity.save(ledger, "before.safetensors")
    posterity.save(done.ledger, "after.safetensors")
    done.receipt.save("receipt.json")
    page = pages.Page(report("before.safetensors", "receipt.json", "after.safetensors").html)
    assert page.found["h1"][0]["text"] == "A receipt of forgetting site 001; a ledger of 2 sites"
    assert len(page.of("li", "yes")) > 5 and not page.of("li", "no")
    alone = pages.Page(report("receipt.json").html)
    assert not alone.of("li", "yes") and alone.of("li", "open")
    other = pages.clinics(3, seed=7)
    posterity.save(other, "other.safetensors")
    assert "is missing, so nothing was checked" in report("receipt.json", "other.safetensors").html


def test_a_receipt_that_does_not_hold_is_told_first():
    ledger = pages.clinics()
    done = posterity.forget(ledger, "site 001")
    other = posterity.forget(pages.clinics(seed=7), "site 001").ledger
    posterity.save(other, "other.safetensors")
    forged = dataclasses.replace(done.receipt, after=digest(other))
    page = pages.Page(report(forged, ledger, "other.safetensors").html)
    crossed = [li["text"] for li in page.of("li", "no")]
    assert "Every other factor is the same, to the last bit" in crossed
    assert page.found["li"][0]["text"] == "The receipt of forgetting site 001 does not hold."


def test_files_are_fused_and_a_result_is_known_by_its_inputs():
    for name, seed in (("north", 0), ("south", 1)):
        one = pages.clinics(1, 3, seed)
        site = Ledger(one.prior).update(name, one.factor("site 000"), independent=True)
        posterity.save(site, f"{name}.safetensors", provenance=pages.provenance())
    inputs = ["north.safetensors", "south.safetensors"]
    made = report(*inputs)
    assert made.title == "A fusion of 2 sites"
    assert "no file of the result was given" in made.html
    for name in inputs:
        (files,) = (t for t in pages.Page(made.html).found["table"] if t["text"][:5] == "Files")
        assert files["text"].count(name) == 1
    succeed("fuse", *inputs, "-o", "both.safetensors")
    again = report("both.safetensors", *inputs)
    assert again.title == "A fusion of 2 sites"
    assert "the same posterior, to the last bit" in again.html
    with pytest.warns(FusionWarning, match="differ"):
        fusion = fuse([posterity.load(name) for name in inputs])
    assert report(fusion).title == "A fusion of 2 sites"


def test_notes_on_each_site_are_on_the_page_of_their_files():
    for name, seed in (("north", 0), ("south", 1)):
        one = pages.clinics(1, 3, seed)
        site = Ledger(one.prior).update(name, one.factor("site 000"), independent=True)
        about = as_provenance(pages.RECIPE, {name: {"notes": [f"odd numbers of {name}"]}})
        posterity.save(site, f"{name}.safetensors", provenance=about)
    page = report("north.safetensors", "south.safetensors").html
    assert page.count("odd numbers of north") == page.count("odd numbers of south") == 1


@pytest.mark.parametrize("more", [[], ["--rule", "barycenter"], ["--personal", "true"]])
def test_a_result_is_fused_again_under_the_prior_that_was_passed(more):
    for name, mean in (("north", 0.0), ("south", 0.1), ("prior", 0.0)):
        law = Gaussian.from_standard([mean], [[100.0 if name == "prior" else 1.0]])
        posterity.save(law.named(["age"]), f"{name}.safetensors")
    inputs = ["north.safetensors", "south.safetensors"]
    rule = more or ["--rule", "product"]
    succeed("fuse", *inputs, "--prior", "prior.safetensors", *rule, "-o", "both.safetensors")
    assert "the same posterior, to the last bit" in report(*inputs, "both.safetensors").html


def test_matches_have_their_margins():
    fusion = fuse(pages.sites_of(pages.mixture()))
    page = pages.Page(report(fusion).html)
    known = [shown(float(m)) for own in fusion.margins.values() for m in own]
    (numbers,) = (t for t in page.found["table"] if t["text"].startswith("Every match"))
    assert all(margin in numbers["text"] for margin in known)
    assert [w for w in fusion.warnings if w[1:] not in page.found["header"][0]["text"]] == []


def test_a_page_doubts_what_the_check_of_a_fusion_doubts():
    ledger = pages.clinics(4)
    sites = {site: Ledger(ledger.prior).update(site, ledger.factor(site)) for site in ledger.sites}
    (doubt,) = fuse(sites, warn=False).warnings
    assert f"{doubt[:1].upper()}{doubt[1:]}." in html.unescape(report(ledger).html)
    refined = Ledger(ledger.prior).extend({s: 20 * ledger.factor(s) for s in ledger.sites})
    assert "federate(..., personal=True)" in report(refined).html


def test_sites_with_a_line_are_those_that_add_most():
    ledger = pages.clinics(20)
    (data,) = (
        s
        for s in pages.Page(report(ledger).html).found["script"]
        if s.get("type") == "application/json"
    )
    most = sorted(summarise(ledger).sites, key=lambda site: -site.nats)[:11]
    assert json.loads(data["text"])["sites"][:-1] == sorted(site.name for site in most)


def test_visits_are_told_one_by_one():
    visits = [
        Visit(0, "a", "updated", change=1.0),
        Visit(1, "b", "updated", change=1e-3),
        Visit(2, "a", "failed", error="ValueError: <no>"),
    ]
    page = pages.Page("".join(federation(Source("", pages.clinics(), visits=visits))))
    assert "ValueError: <no>" in page.of("p", "note")[0]["text"]
    visits = [Visit(n, f"site {n % 3}", "updated", change=1 / (1 + n)) for n in range(2500)]
    page = "".join(federation(Source("", pages.clinics(), visits=visits)))
    assert "One visit in 5 is drawn." in page
    assert "no record of how far the posterior moved" in "".join(
        federation(Source("", None, visits=[Visit(0, "a", "updated")]))
    )


def test_predictions_are_judged_as_evaluate_does():
    pages.patients("test.csv", 80)
    posterity.save(pages.clinics(), "both.safetensors", provenance=pages.provenance())
    scores = document("evaluate", "both.safetensors", "test.csv")["all"]
    made = report("both.safetensors", data="test.csv")
    page = pages.Page(made.html)
    (found,) = (t for t in page.found["table"] if t["text"].startswith("Scores"))
    for key in ("log_score", "brier", "auroc", "calibration_error"):
        assert shown(scores[key]) in found["text"]
    assert (
        "80 records of test.csv.</p><p>1 of 81 records is left out, since a value is missing"
        in made.html
    )
    assert "no records of persons" not in made.html


def test_survival_is_predicted_beside_what_was_seen():
    from posterity.reporting import evaluation

    q, about = pages.survival("test.csv")
    found = predicted(q, about, Path("test.csv"), recipe=recipe_in(about), scored=True)
    assert 0 <= found.scores(0.9)[0]["concordance"] <= 1
    page = pages.Page("".join(evaluation.section(q, about, Path("test.csv"), 0.9)))
    (curve,) = (t for t in page.found["table"] if t["text"].startswith("Survival"))
    assert curve["text"].count("middle risk") == 30


# --- what is refused -----------------------------------------------------------------------------


def test_what_is_no_source_is_refused():
    Path("text.safetensors").write_text("no posterior")
    Path("strange.json").write_text('{"receipt": 3}')
    posterity.save(pages.clinics(), "ledger.safetensors")
    newer = Path("ledger.safetensors").read_bytes()
    Path("newer.safetensors").write_bytes(newer.replace(b'\\"format\\":2', b'\\"format\\":9'))
    for name in ("none.safetensors", "text.safetensors", "strange.json", "newer.safetensors", "."):
        with pytest.raises(ArtifactError):
            report(name)
    with pytest.raises(ArtifactError, match="format version 9"):
        report("newer.safetensors")
    with pytest.raises(UsageError):
        report()
    with pytest.raises(StructureError, match="a dict"):
        report({"north": pages.clinics()})
    with pytest.raises(UsageError):
        report(pages.clinics(), level=1.0)
    with pytest.raises(StructureError, match="does not specify what it predicts"):
        Path("test.csv").write_text("age\n1\n")
        report("ledger.safetensors", data="test.csv")


def test_the_command():
    posterity.save(pages.clinics(), "ledger.safetensors", provenance=pages.provenance())
    found = document("report", "ledger.safetensors", "-o", "report.html", "--level", "0.5")
    assert found["title"] == "A ledger of 3 sites"
    assert found["bytes"] == Path("report.html").stat().st_size < 200_000
    text = succeed("report", "ledger.safetensors", "-o", "two.html", "--title", "Ours").stdout
    assert "Ours" in text and "<h1>Ours</h1>" in Path("two.html").read_text()
    refuse("report -o new.html", 2, "no file")
    refuse("report ledger.safetensors -o new.pdf", 2, "ends in .html")
    refuse("report ledger.safetensors -o none/new.html", 5, "folder")
    refuse("report none.safetensors -o new.html", 5, "none.safetensors")


def test_ticks_are_round_and_whole_where_counts_are():
    assert ticks(-1.0, 1.0) == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert ticks(3.0, 3.0) == [3.0]
    for low, high in np.sort(np.random.default_rng(0).normal(size=(50, 2))).tolist():
        assert all(low - 1e-9 <= t <= high + 1e-9 for t in ticks(low, high))
    for high in (1.5, 2.5, 3.5, 9.5, 40.5):
        axis = Axis("components", 0.5, high, whole=True)
        assert axis.ticks and all(tick == int(tick) for tick in axis.ticks)


def test_several_levels_are_judged_and_have_their_units():
    from posterity.reporting.words import effects_of

    levels = {"state": ("well", "mild", "grave")}
    recipe = Recipe("multinomial", "state", ("age",), categories=levels).filled(("age",))
    names = list(recipe.coefficients())
    assert effects_of(recipe)["grave:age"].unit == "log odds per unit of grave against well"
    q = Gaussian.from_standard([0.0, 1.0, 0.5, -1.0], 0.01 * np.eye(4)).named(names)
    rows = [f"{age},{state}" for age in (-1.0, 0.0, 1.0) for state in levels["state"]]
    Path("test.csv").write_text("\n".join(["age,state", *rows, ""]))
    about = as_provenance(recipe)
    found = predicted(q, about, Path("test.csv"), recipe=recipe_in(about), scored=True)
    assert sum(found.columns[f"p{k}"] for k in range(3)) == pytest.approx(np.ones(9))
    assert {"brier", "accuracy", "log_score"} <= found.scores(0.9)[0].keys()


def test_mixtures_pursuits_networks_and_students():
    from posterity.families import Network

    page = pages.Page(report(pages.pursuit()).html)
    assert page.found["h1"][0]["text"] == "A mixture of 2 components"
    (listing,) = (t for t in page.found["table"] if t["text"].startswith("Component by"))
    assert "all polished" in listing["text"] and shown(-2.3) in listing["text"]
    layers = Layers.dense(2, 5, 3)
    network = Network.from_standard(np.zeros(layers.size), np.ones(layers.size), layers)
    page = pages.Page(report(Ledger(network).update("a", network)).html)
    assert any(t["text"].startswith("Layers") for t in page.found["table"])
    student = Student(layers, np.zeros(layers.size), Head("categorical", 3))
    posterity.save(student, "student.safetensors", provenance={"columns": '["age","dose"]'})
    assert "Columns: age, dose." in report("student.safetensors").html


def test_a_student_of_arrays_is_scored_as_evaluate_does():
    about = {"columns": '["age","dose"]', "target": "size"}
    rng = np.random.default_rng(0)
    for name, head in {"label": Head("bernoulli", 1), "value": Head("gaussian", 1)}.items():
        layers = Layers.dense(2, head.size)
        student = Student(layers, rng.normal(size=layers.size), head)
        posterity.save(student, f"{name}.safetensors", provenance=about)
        rows = [f"{k},{k % 3},{k % 2}" for k in range(20)]
        Path("test.csv").write_text("\n".join(["age,dose,size", *rows]))
        (score, *_) = document("evaluate", f"{name}.safetensors", "test.csv")["all"].items()
        page = report(f"{name}.safetensors", data="test.csv").html
        assert score == ("records", 20) and "On 20 records of test.csv" in page
        assert ("observed share" if name == "label" else "observed size") in page
        Path("test.csv").write_text("age,dose\n1,2\n")
        with pytest.raises(StructureError, match="no target in"):
            report(f"{name}.safetensors", data="test.csv")


def test_a_student_that_a_table_does_not_suit_is_refused():

    layers = Layers.dense(2, 5, 2)
    student = Student(layers, np.zeros(layers.size), Head("categorical", 2))
    recipe = Recipe("logistic", "ill", ("age",)).filled(("age",))
    known = {"columns": '["age","dose"]'} | as_provenance(recipe)
    posterity.save(student, "student.safetensors", provenance=known)
    Path("test.csv").write_text("age,ill\n50,1\n60,0\n")
    with pytest.raises(StructureError, match=r"'dose'.*'test.csv'.*the student"):
        report("student.safetensors", data="test.csv")


def test_dependent_factors_of_a_batch_are_shown_without_doubts() -> None:
    prior = Gaussian.from_standard(np.zeros((2, 2)), np.broadcast_to(np.eye(2), (2, 2, 2)))
    ledger = Ledger(prior)
    for number in range(3):
        law = Gaussian.from_standard(np.full((2, 2), 9.0 * number), np.tile(np.eye(2), (2, 1, 1)))
        ledger = ledger.update(f"site {number}", law)
    assert not ledger.independent and list(doubts_of(ledger, {})) == []
    assert "site 2" in report(ledger).html
