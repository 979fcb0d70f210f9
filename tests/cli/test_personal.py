"""Partial pooling, as a configuration asks for it and as its file predicts."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli.commands import call, document, refuse, succeed
from cli.configurations import LOGISTIC
from cli.test_recipes import put
from scipy.special import expit, logsumexp, ndtr
from scipy.stats import multivariate_normal, norm

import posterity
from posterity.cli.jobs import federation_of
from posterity.cli.options import read
from posterity.federation import site_posterior
from posterity.inference.federated_effects import effects_at
from posterity.models import LogisticRegression, PersonalRegression, Records
from posterity.tabular.recipe import recipe_in


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
    run = federation_of(read("federate", {}, Path("own.toml"))).start()
    assert run.agreement.model == PersonalRegression(LogisticRegression(), columns)
    assert run.agreement.update.pools  # as by default in Python
    np.testing.assert_allclose(np.exp(run.ledger.prior.log_spread.mean), spread)


@pytest.mark.slow
def test_files_name_what_differs_between_sites(folder):
    configured('["v"]')
    call("federate", "own.toml")
    rows = document("show", "coupled.safetensors")["rows"]
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
    run = federation_of(read("federate", {}, Path("own.toml"))).start()
    assert run.agreement.model.personal == (2, 3)
    np.testing.assert_allclose(np.exp(run.ledger.prior.log_spread.mean), spread)


def test_false_leaves_a_regression_as_it_is(folder):
    configured("false")
    run = federation_of(read("federate", {}, Path("own.toml"))).start()
    assert run.agreement.model == LogisticRegression()


@pytest.mark.parametrize(
    ("personal", "code", "words"),
    [
        ('["w"]', 2, "'w'; ['u', 'v']"),
        ('{ u = 0.1, "0" = 0.5 }', 2, "twice; ['u', '0']"),
        ('["v", 1]', 2, "personal"),
        ("[2]", 2, "personal; among"),
        ("[]", 2, "personal"),
        ("{ v = -1.0 }", 2, "model.personal"),
    ],
)
def test_what_a_configuration_cannot_mean_is_refused(folder, personal, code, words):
    configured(personal)
    refuse("federate own.toml", code, words)


SITES = tuple(f"h{place}" for place in range(4))


def hospitals(count, sample):
    """Tables h0.csv, ... of two columns, whose intercepts differ; the arrays of each."""
    rng = np.random.default_rng(5)
    tables = {}
    for site in SITES:
        x = rng.normal(size=count).round(3)
        y = sample(rng, rng.normal(0.5, 0.8) + x)
        tables[site] = x, y
        with Path(f"{site}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("x", "y"), *zip(x, y, strict=True)])
    return tables


def federated(*options):
    sites = [word for site in SITES for word in ("--site", f"{site}={site}.csv")]
    data = document(
        "federate", *sites, "--target", "y", "--intercept", "--personal", "intercept",
        "--prior-sd", "2", "--tolerance", "0.001", "-o", "f.safetensors", *options,
    )  # fmt: skip
    assert data["status"]["state"] == "converged"


def predicted(table, *options):
    Path("new.csv").write_text(table)
    notes = document("predict", "f.safetensors", "new.csv", "-o", "p.csv", *options)["notes"]
    with Path("p.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}, notes


def exactly(tables, site, x, spreads):
    """Weights, means and deviations of ``x · β`` by log spread: all records' joint Gaussian."""
    rows = [np.column_stack([np.ones(len(own)), own]) for own, _ in tables.values()]
    design, y = np.concatenate(rows), np.concatenate([y for _, y in tables.values()])
    which = np.repeat(np.arange(len(tables)), [len(own) for own in rows])
    new = np.array([1.0, x])
    log, means, deviations = [], [], []
    for s in spreads:
        same = np.exp(2 * s) * (which[:, None] == which)
        covariance = 4 * design @ design.T + same + 0.49 * np.eye(len(y))
        ahead = 4 * design @ new + np.exp(2 * s) * (which == SITES.index(site) if site else 0.0)
        solved = np.linalg.solve(covariance, ahead)
        means.append(solved @ y)
        deviations.append(np.sqrt(4 * new @ new + np.exp(2 * s) - solved @ ahead))
        log.append(
            multivariate_normal.logpdf(y, np.zeros(len(y)), covariance)
            + norm.logpdf(s, np.log(0.5), np.hypot(1.5, 0.75))
        )
    return np.exp(log - logsumexp(log)), np.array(means), np.array(deviations)


def test_a_known_site_and_an_unseen_one_are_predicted_as_all_records_together_say(folder):
    """Of normal records the posterior is exact for each spread, and one spread is summed over."""
    tables = hospitals(12, lambda rng, f: (f + 0.7 * rng.normal(size=len(f))).round(4))
    federated("--model", "linear", "--noise-variance", "0.49")
    table = "x,hospital\n0.5,h1\n-1.0, new \n2.0,h3\n0.5,\n,h2\n"
    ours, notes = predicted(table, "--site-column", "hospital")
    assert "2 records are predicted for an unseen site (['new'])" in notes
    assert np.isnan(ours["mean"][4]), "a value is missing"
    for place, (site, x) in enumerate([("h1", 0.5), (None, -1.0), ("h3", 2.0), (None, 0.5)]):
        weights, means, deviations = exactly(tables, site, x, np.linspace(-4, 3, 61))
        mean = weights @ means
        variance = weights @ (deviations**2 + (means - mean) ** 2)
        np.testing.assert_allclose(ours["mean"][place], mean, atol=0.05 * variance**0.5)
        np.testing.assert_allclose(ours["variance"][place], variance, rtol=0.1)
        for end, level in (("low", 0.05), ("high", 0.95)):
            below = weights @ ndtr((ours[end][place] - means) / deviations)
            assert abs(below - level) < 0.01, (place, end)
    unseen, notes = predicted("x\n0.5\n")
    np.testing.assert_allclose(unseen["mean"], ours["mean"][3])
    assert any("--site-column NAME" in note for note in notes)
    scored = document("evaluate", "f.safetensors", "h1.csv", "--site-column", "y")
    assert scored["all"]["records"] == 12
    refuse("predict f.safetensors new.csv -o q.csv --site-column clinic", 4, "'clinic'")


def test_chances_are_those_that_draws_of_each_site_give(folder):
    tables = hospitals(30, lambda rng, f: (rng.random(len(f)) < expit(f)).astype(int))
    federated("--model", "logistic")
    table = "x,hospital\n0.5,h1\n-1.0,h3\n0.5,elsewhere\n"
    ours, _ = predicted(table, "--site-column", "hospital")
    model = PersonalRegression(LogisticRegression(), (0,))
    ledger = posterity.load("f.safetensors")
    factors = {site: ledger.factor(site) for site in SITES}
    shared = effects_at(ledger.prior, ledger.posterior, factors, np.array([0])).law
    draws = [site_posterior(model, shared)]
    for site in ("h3", "h1"):
        x, y = tables[site]
        records = Records((np.column_stack([np.ones(len(x)), x]), y), np.ones(len(x)))
        draws.insert(0, site_posterior(model, shared, records))
    x = np.array([[1.0, 0.5], [1.0, -1.0], [1.0, 0.5]])
    theirs = [own.predict(x[k : k + 1])[0] for k, own in enumerate(draws)]
    spread = draws[-1].posterior.components.mean.std()
    np.testing.assert_allclose(ours["p"], theirs, atol=4 * 0.25 * spread / 512**0.5)
    assert ours["high"][2] - ours["low"][2] > ours["high"][0] - ours["low"][0]


def test_counts_where_sites_differ_have_a_median_and_no_mean(folder):
    """A log-normal spread leaves no finite expectation, of a site that nobody has seen."""
    hospitals(10, lambda rng, f: rng.poisson(np.exp(f)))
    federated("--model", "poisson")
    ours, _ = predicted("x,hospital\n0.5,h1\n0.5,z\n", "--site-column", "hospital")
    assert list(ours) == ["median", "low", "high"]
    assert all(ours["low"] < ours["median"]) and all(ours["median"] < ours["high"])
    scored = document("evaluate", "f.safetensors", "h1.csv", "--site-column", "x")
    assert "rmse" not in scored["all"] and scored["all"]["log_score"] < 0
    # A posterior without its ledger knows no site, and not how much too narrow it is.
    about = posterity.inspect("f.safetensors").provenance
    posterity.save(posterity.load("f.safetensors").posterior, "f.safetensors", provenance=about)
    alone, notes = predicted("x,hospital\n0.5,h1\n", "--site-column", "hospital")
    assert any("(['h1'])" in note for note in notes) and "too narrow" in notes[0]
    np.testing.assert_allclose(np.log(alone["median"][0]), np.log(ours["median"][1]), atol=0.3)


@pytest.mark.slow
def test_what_is_shown_of_a_federation_is_the_law_of_its_population(folder):
    """Rows, ratios and the page have the moments that the spreads imply, and no sum of factors."""
    hospitals(30, lambda rng, f: (rng.random(len(f)) < expit(f)).astype(int))
    federated("--model", "logistic")
    ledger = posterity.load("f.safetensors")
    factors = {site: ledger.factor(site) for site in SITES}
    law = effects_at(ledger.prior, ledger.posterior, factors, np.array([0])).law.coefficients
    data = document("show", "f.safetensors")
    assert [row["name"] for row in data["rows"]] == ["intercept", "x"]
    sd = np.sqrt(np.diag(law.covariance))
    assert sd[0] > 1.1 * ledger.posterior.coefficients.covariance[0, 0] ** 0.5
    np.testing.assert_allclose([row["mean"] for row in data["rows"]], law.mean, atol=0.01 * sd[0])
    np.testing.assert_allclose([row["sd"] for row in data["rows"]], sd, rtol=0.01)
    intercept, x = data["population"]["coefficients"]
    assert intercept["low"] == data["rows"][0]["low"] and intercept["tau"] > 0 and x["tau"] is None
    own = {(row["site"], row["name"]): row for row in data["population"]["sites"]}
    for site in SITES:  # between its own estimate and the population's
        row = own[site, "intercept"]
        assert (row["mean"] - row["estimate"]) * (row["mean"] - intercept["mean"]) < 0
    pulls = document("show", "f.safetensors", "--site", "h0")["pulls"]
    assert pulls[0]["mean"] == pytest.approx(data["rows"][0]["mean"])
    printed = csv.DictReader(succeed("show", "f.safetensors", "--csv").stdout.splitlines())
    np.testing.assert_allclose([float(row["sd"]) for row in printed], sd, rtol=0.01)
    (row,) = csv.DictReader(
        succeed("show", "f.safetensors", "--ratios", "--csv").stdout.splitlines()
    )
    assert float(row["high"]) == pytest.approx(np.exp(data["rows"][1]["high"]))
    succeed("report", "f.safetensors", "-o", "f.html")
    words = Path("f.html").read_text()
    assert words.count(f"{intercept['tau']:.3g} where its likelihood is greatest") == 1


@pytest.mark.slow
def test_sites_far_apart_are_noted_as_told_roughly(folder):
    for place, site in enumerate("abc"):
        rng = np.random.default_rng(place)
        x = rng.normal(size=200).round(3)
        put(f"{site}.csv", {"x": x, "y": (rng.random(200) < expit(2 * place - 2 + x)).astype(int)})
    line = "federate a.csv b.csv c.csv --target y --model logistic --intercept"
    succeed(*line.split(), "--personal", "intercept=1", "-o", "f.safetensors")
    shown = document("show", "f.safetensors")
    assert "tell these errors" in shown["notes"][0] and shown["population"]["q"] is None
    assert "Q =" not in succeed("show", "f.safetensors").stdout
    line = "forget f.safetensors --site a -o g.safetensors --receipt r.safetensors"
    assert call(*line.split()).exit_code == 9  # not exact without refinement
    assert "tell these errors" in document("show", "g.safetensors")["notes"][0]
    told = document("predict", "f.safetensors", "a=a.csv", "-o", "p.csv")["notes"]
    assert any("tell these errors" in note for note in told)


def test_sites_that_differ_are_refined_without_saying_again_what_differs(folder):
    hospitals(60, lambda rng, f: (rng.random(len(f)) < expit(f)).astype(int))
    sites = "".join(f'{site} = "{site}.csv"\n' for site in SITES)
    Path("all.toml").write_text(f'[sites]\n{sites}[data]\nlike = "f.safetensors"\n')
    line = "--model logistic --target y --intercept --personal intercept -o f.safetensors"
    succeed("federate", *(f"{site}.csv" for site in SITES), *line.split())
    line = "forget f.safetensors --site h0 --config all.toml -o g.safetensors --receipt r.json"
    done = document(*line.split())
    assert done["refined"] and done["distance"] < 1e-3


def test_a_model_of_one_set_of_coefficients_has_no_column_of_sites(folder):
    hospitals(10, lambda rng, f: rng.poisson(np.exp(f)))
    document("fit", "h0.csv", "--model", "poisson", "--target", "y", "-o", "f.safetensors")
    refuse("predict f.safetensors h1.csv -o q.csv --site-column x", 2, "--site-column; --by")


@pytest.mark.slow
def test_the_prior_of_a_spread_is_a_quarter_of_a_default(folder):
    """A quarter of 10 with a link, also for an intercept; of 10 deviations of a linear noise."""
    tables = hospitals(40, lambda rng, f: (rng.random(len(f)) < expit(f)).astype(int))
    alone = "\n".join(f"{x},0" for x in tables["h1"][0])
    Path("h1.csv").write_text(f"x,y\n{alone}\n")
    sites = [word for site in SITES for word in ("--site", f"{site}={site}.csv")]
    line = "--model logistic --target y --intercept --personal intercept -o g.safetensors"
    notes = document("federate", *sites, *line.split())["notes"]
    alone = "h1: the target is 0 in every record: what this site tells of the population"
    assert sum(note.startswith(alone) for note in notes) == 1
    assert alone in " ".join(succeed("show", "g.safetensors").stdout.split())
    prior = posterity.load("g.safetensors").prior
    assert np.exp(prior.log_spread.mean) == pytest.approx([2.5])
    line = "--model linear --target y --intercept --personal true --prior-sd intercept=2"
    document("federate", *sites, *line.split(), "-o", "h.safetensors")
    prior = posterity.load("h.safetensors").prior
    noise = recipe_in(posterity.inspect("h.safetensors").provenance).noise_variance
    assert np.exp(prior.log_spread.mean) == pytest.approx([0.5, 2.5 * noise**0.5])


@pytest.mark.parametrize(
    "options, own, spare",
    [
        ({}, [], 47),
        ({"personal": "x"}, ["x"], 38),
        ({"personal": "true"}, ["one", "x", "far"], 20),
        ({"own": "intercept"}, ["one"], 38),
        ({"weights": "times"}, [], 97),
    ],
)
def test_noise_is_that_of_pooled_least_squares(tmp_path, monkeypatch, options, own, spare):
    """Of small sites, with a column far from 0 and one that depends on another."""
    monkeypatch.chdir(tmp_path)
    rng, sites = np.random.default_rng(3), np.repeat(np.arange(10), 5)
    x, far, noise = rng.normal(size=(3, 50)).round(3)
    y, times = noise + 3 * far, np.ones(50) + ("weights" in options)
    table = np.column_stack([x, 1e8 + far, -2 * x, times, y])
    for site in range(10):
        rows = [",".join(map(repr, row)) for row in table[sites == site].tolist()]
        Path(f"{site}.csv").write_text("\n".join(["x,far,copy,times,y", *rows]))
    values = {f"model.{key}": value for key, value in options.items()}
    values |= {"model.kind": "linear", "model.target": "y", "model.intercept": True}
    values |= {"sites": [f"{site}={site}.csv" for site in range(10)]}
    values |= {"data.columns": "x,far,copy"}
    job = federation_of(read("federate", values, None))
    apart = sites[:, None] == np.arange(10)
    columns = {"one": np.ones(50), "x": x, "far": far}.items()
    design = np.column_stack([c[:, None] * apart if n in own else c for n, c in columns])
    residual = times @ (y - design @ np.linalg.lstsq(design, y)[0]) ** 2
    assert job.arguments["model"].noise_variance == pytest.approx(residual / spare, rel=1e-6)
    assert job.notes == (
        f"noise variance {residual / spare:.4g}, estimated from the residuals of all sites on "
        f"{spare} degrees of freedom",
    )


@pytest.mark.parametrize(
    "model, options, own",
    [
        ("gamma", {}, []),
        ("gamma", {"personal": "x", "weights": "times"}, ["x"]),
        ("negative-binomial", {}, []),
        ("negative-binomial", {"own": "intercept"}, ["one"]),
        ("negative-binomial", {"personal": "true"}, ["one", "x", "far"]),
    ],
)
def test_a_dispersion_is_that_of_pooled_records(tmp_path, monkeypatch, model, options, own):
    """Of small sites, beside one table in which sites' own coefficients have columns."""
    monkeypatch.chdir(tmp_path)
    rng, sites = np.random.default_rng(3), np.repeat(np.arange(10), 6)
    x, far = rng.normal(size=(2, 60)).round(3)
    y = np.exp(1 + x / 2) * rng.gamma(2, 0.5, 60) + 1e-3
    y, times = (y if model == "gamma" else rng.poisson(y)), rng.integers(1, 4, 60)

    def dispersion(names, columns, rows, **more):
        for site, kept in rows.items():
            text = [[*names, "times", "y"], *np.column_stack([*columns, times, y])[kept].tolist()]
            Path(f"{site}.csv").write_text("\n".join(",".join(map(str, row)) for row in text))
        values = {f"model.{key}": value for key, value in more.items()}
        values |= {"model.kind": model, "model.target": "y", "data.columns": ",".join(names)}
        values |= {"sites": [f"{site}={site}.csv" for site in rows]}
        job = federation_of(read("federate", values, None))
        return job.arguments["model"], job.notes[-1]

    columns = {"one": np.ones(60), "x": x, "far": far}.items()
    blocks = [c[:, None] * (sites[:, None] == range(10)) if n in own else c for n, c in columns]
    wide = np.column_stack(blocks)
    weights = {key: value for key, value in options.items() if key == "weights"}
    rows = {"all": slice(None)}
    wanted, _ = dispersion([f"c{k}" for k in range(wide.shape[1])], wide.T, rows, **weights)
    rows, options = {f"s{k}": sites == k for k in range(10)}, {"intercept": True, **options}
    found, note = dispersion(["x", "far"], [x, 1e6 + far], rows, **options)
    value = getattr(found, "model", found).dispersion
    assert value == pytest.approx(getattr(wanted, "model", wanted).dispersion, rel=1e-4)
    assert note == f"dispersion {value:.4g}, estimated from the records of all sites"


@pytest.mark.slow
def test_spreads_between_sites_are_no_ratios():
    """By default spreads of a model with a link have medians; their logarithms are no effects."""
    rng = np.random.default_rng(3)
    for site in "abc":
        x = rng.normal(size=80).round(2)
        ill = (rng.random(80) < expit(x)).astype(int)
        put(f"{site}.csv", {"x": x, "ill": ill})
    line = "federate a.csv b.csv c.csv --target ill --model logistic --intercept --personal true"
    succeed(*line.split(), "-o", "p.safetensors")
    rows = document("show", "p.safetensors", "--ratios")["ratios"]
    assert [row["name"] for row in rows] == ["x"] and 1 < rows[0]["ratio"] < 10


def test_a_federation_of_sites_that_differ_names_its_own_flag():
    rng = np.random.default_rng(0)
    line = ["federate", "--target", "ill", "--model", "logistic", "--intercept"]
    for site, slope in {"north": 1.0, "south": 1.0, "west": -2.0}.items():
        x = rng.normal(size=300)
        put(f"{site}.csv", {"x": x, "ill": 1 * (rng.random(300) < expit(slope * x))})
        line += ["--site", f"{site}={site}.csv"]
    notes = " ".join(document(*line, "-o", "all.safetensors")["notes"])
    assert "'west' contradicts the others" in notes
    assert "(posterity federate --personal true)" in notes
