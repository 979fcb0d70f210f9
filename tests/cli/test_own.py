"""Coefficients that each site has for itself, beside a pooled fit with columns of the sites."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli.commands import call, document, refuse, succeed
from cli.test_models import lives
from cli.test_recipes import put, rows

import posterity
from posterity.errors import FusionWarning, StructureError, UsageError
from posterity.federation.agreement import Agreement
from posterity.inference.federated_effects import effects_at
from posterity.models import LogisticRegression, MultinomialRegression
from posterity.tabular import fit
from posterity.tabular.recipe import Recipe, recipe_in

LEVELS = {"n": 0.0, "s": 1.5}
FORMS = {  # a model, what its table has beside x, and the recipe of the pooled fit
    "linear": ("--target y --noise-variance 2", {}),
    "logistic": ("--target ill", {}),
    "gamma": ("--target y2 --dispersion 0.5", {"dispersion": 0.5}),
    "multinomial": ("--target grade --category grade=a,b,c", {}),
}


def records(site, seed, count=90):
    rng = np.random.default_rng(seed)
    x, years = rng.normal(size=count).round(3), rng.gamma(3, 1, count).round(2) + 0.1
    f = LEVELS.get(site, 0.7) + 0.8 * x
    return {
        "x": x, "years": years, "y": (f + rng.normal(0, 1.4, count)).round(3),
        "ill": 1 * (rng.random(count) < 1 / (1 + np.exp(-f))),
        "count": rng.poisson(years * np.exp(f / 2)), "y2": rng.gamma(2, np.exp(f) / 2) + 1e-3,
        "grade": np.array([*"abc"])[rng.integers(0, 3, count)],
    }  # fmt: skip


def tables(*names):
    """Each site's table, and all of them in one with a column of the site."""
    each = {site: records(site, seed) for seed, site in enumerate(LEVELS)}
    for site, own in each.items():
        put(f"{site}.csv", {name: own[name] for name in names})
    whole = {name: np.concatenate([own[name] for own in each.values()]) for name in names}
    put("all.csv", {**whole, "site": np.repeat([*LEVELS], 90)})


def pooled(recipe, tmp_path="all.csv"):
    terms = ((("levels", "site"),), (("column", "x"),))
    levels = {**recipe.categories, "site": tuple(LEVELS)}
    own = recipe.replaced(terms=terms, intercept=False, categories=levels, columns=("site", "x"))
    return fit(tmp_path, own).ledger.posterior


@pytest.mark.slow
@pytest.mark.parametrize("model", ["linear", "logistic", "gamma", "multinomial"])
def test_sites_with_an_intercept_each_are_fused_and_federated_as_one_fit_of_all(model):
    line, more = FORMS[model]
    columns = [word for word in line.split() if word in records("n", 0)] + ["x"]
    tables(*columns)
    options = f"--model {model} {line} --own intercept --prior-sd 5".split()
    target = line.split()[1]
    for site in LEVELS:
        succeed("fit", f"{site}.csv", *options, "-o", f"{site}.safetensors")
    fused = document("fuse", "n.safetensors", "s.safetensors", "-o", "b.safetensors")
    assert not fused["notes"] and fused["one_shot"] < 0.1
    data = document("federate", "--site", "n=n.csv", "--site", "s=s.csv", *options, "--intercept",
                    "-o", "f.safetensors")  # fmt: skip
    assert data["status"]["state"] == "converged"
    noise = {"noise_variance": 2.0} if model == "linear" else {}
    levels = {"grade": tuple("abc")} if target == "grade" else {}
    recipe = Recipe(model, target, categories=levels, prior_sd={"": 5.0}, **noise, **more)
    wanted = pooled(recipe)
    one, other = (posterity.load(f"{name}.safetensors") for name in "fb")
    name = "b:intercept@n" if model == "multinomial" else "intercept@n"
    assert {name, name.replace("@n", "@s")} < {*one.posterior.names} == {*other.posterior.names}
    match = lambda q, names: [q.names.index(n) for n in names]
    order = [n.replace("intercept@", "site[") + "]" * ("@" in n) for n in one.posterior.names]
    places = match(wanted, order)
    away = (one.posterior.mean - wanted.mean[places]) / np.sqrt(wanted.marginal_variance[places])
    assert abs(away).max() < 1e-4
    np.testing.assert_allclose(one.posterior.covariance,
                               wanted.covariance[np.ix_(places, places)], atol=1e-5)  # fmt: skip
    within = 1e-9 if model == "linear" else 0.1
    away = other.posterior.mean - one.posterior.mean[match(one.posterior, other.posterior.names)]
    assert abs(away / np.sqrt(other.posterior.marginal_variance)).max() < within
    if model == "multinomial":  # of which federate --personal knows nothing
        alike = [*options[: options.index("--own")], "--prior-sd", "5"]
        for site in LEVELS:
            succeed("fit", f"{site}.csv", *alike, "-o", f"{site}1.safetensors")
        told = call("fuse", "n1.safetensors", "s1.safetensors", "--personal", "b:intercept",
                    "-o", "p.safetensors", "--json")  # fmt: skip
        (note,) = json.loads(told.stdout)["notes"]
        assert "is unknown" in note and "federate" not in note
    if model in ("logistic", "multinomial"):
        classes = 3 if model == "multinomial" else 2
        size = 2 * (classes - 1)
        prior = posterity.Gaussian.from_standard(np.zeros(size), 25 * np.eye(size))
        each = {site: records(site, seed) for seed, site in enumerate(LEVELS)}
        sites = {
            site: (np.tile(np.column_stack([np.ones(90), own["x"]]), classes - 1),
                   np.searchsorted([*"abc"], own["grade"]) if classes == 3 else own["ill"])
            for site, own in each.items()
        }  # fmt: skip
        regression = MultinomialRegression(3) if classes == 3 else LogisticRegression()
        starts = ("b:", "c:") if classes == 3 else ("",)
        named = prior.named([start + name for start in starts for name in ("intercept", "x")])
        run = posterity.federate(sites, regression, named, own=["intercept"])
        assert run.posterior.names == one.posterior.names
        assert float(run.posterior.kl(one.posterior)) < 1e-6
        assert float(run.ledger.prior.kl(one.prior)) < 1e-12
        with pytest.raises(UsageError, match="personal= and own="):
            posterity.federate(sites, regression, prior, own=[0], personal=True)
        with pytest.raises(StructureError, match=r"own=\['age'\]"):
            posterity.federate(sites, regression, prior, own=["age"])
        with pytest.raises(StructureError, match=r"inputs of shape \(90, 3\)"):
            posterity.federate({"n": (np.ones((90, 3)), sites["n"][1])}, regression, prior, own=[0])
    succeed(
        "forget", "b.safetensors", "--site", "s", "-o", "left.safetensors", "--receipt", "r.json"
    )
    left = posterity.load("left.safetensors").posterior
    north = posterity.load("n.safetensors").posterior
    at = match(left, north.names)
    np.testing.assert_allclose(left.mean[at], north.mean, atol=1e-8)
    gone = left.names.index(name.replace("@n", "@s"))
    assert left.marginal_variance[gone] == pytest.approx(25)


def test_what_each_site_has_for_itself_is_part_of_what_is_agreed_on():
    prior = posterity.Gaussian.from_standard(np.zeros(2), np.eye(2))
    named, model = prior.named(["age", "sex"]), LogisticRegression()
    agreed = [
        Agreement.of(model, named, sites=["n", "s"], own=[one]) for one in ("age", "sex", "age")
    ]
    assert agreed[0].digest == agreed[2].digest != agreed[1].digest
    assert agreed[0].columns == ("age", "sex")
    assert Agreement.of(model, prior, sites=["n", "s"], own=[0]).columns == ()  # of any names
    two = prior.named(["m:age", "m:sex"])
    strata = Agreement.of(MultinomialRegression(2), two, sites=["n", "s"], own=["age"]).strata
    assert strata is not None and strata.listed == "m:age"


def test_a_record_is_predicted_by_its_sites_own_coefficient_or_by_the_prior(monkeypatch):
    tables("ill", "x")
    options = ["--model", "logistic", "--target", "ill", "--own", "intercept", "--prior-sd", "2"]
    for site in LEVELS:
        succeed("fit", f"{site}.csv", *options, "-o", f"{site}.safetensors")
    succeed("fuse", "n.safetensors", "s.safetensors", "-o", "b.safetensors")
    put("new.csv", {"x": [0.0] * 3, "where": ["n", "s", "west"]})
    data = document("predict", "b.safetensors", "new.csv", "-o", "p.csv", "--site-column", "where")
    (note,) = data["notes"]
    assert "predicted for an unseen site (['west'])" in note and "with the prior of" in note
    north, south, unseen = rows("p.csv")["p"]
    q = posterity.load("b.safetensors").posterior
    assert north < 0.6 < south and unseen == pytest.approx(0.5)
    assert rows("p.csv")["high"][2] == pytest.approx(1 / (1 + np.exp(-2 * 1.6448536)))
    mean, sd = (float(np.ravel(v)[q.names.index("intercept@n")])
                for v in (q.mean, np.sqrt(q.marginal_variance)))  # fmt: skip
    low = 1 / (1 + np.exp(-(mean - 1.6448536 * sd)))
    assert rows("p.csv")["low"][0] == pytest.approx(low)
    data = document("predict", "b.safetensors", "new.csv", "-o", "p.csv")
    assert "3 records" in data["notes"][0] and "--site-column NAME" in data["notes"][0]
    put("s.csv", {"x": [0.0] * 3})
    for table, site in (("n=new.csv", "n"), ("s.csv", "s"), ("west=s.csv", None)):
        (note,) = document("predict", "b.safetensors", table, "-o", "p.csv")["notes"]
        assert f"those of site {site!r}" in note if site else "SITE=TABLE" in note
        known = {"n": north, "s": south, None: 0.5}[site]
        assert rows("p.csv")["p"] == pytest.approx([known] * 3)
    put("s2.csv", {**records("s", 9, 200), "where": ["s"] * 200})
    line = "evaluate b.safetensors s2.csv --by where --json"
    scored = document(*line.split()[:-1], "--site-column", "where")["groups"]["s"]
    blind = document(*line.split()[:-1])["groups"]["s"]
    assert scored["log_score"] > blind["log_score"] + 0.02
    assert document("evaluate", "b.safetensors", "s=s2.csv")["all"] == scored
    about = " ".join(succeed("show", "b.safetensors").stdout.split())
    assert "Each site has for itself: intercept" in about
    recipe = recipe_in(posterity.inspect("b.safetensors").provenance)
    assert recipe.strata == ("n", "s") and recipe.own == ("intercept",)
    succeed("fit", "n.csv", "--like", "b.safetensors", "--site", "west", "-o", "w.safetensors")
    succeed("fuse", "b.safetensors", "w.safetensors", "-o", "three.safetensors")
    names = posterity.load("three.safetensors").posterior.names
    assert {f"intercept@{site}" for site in ("n", "s", "west")} < {*names}
    # Derivatives that a file has no room for are not written out in all sites' coefficients.
    both = ["fuse", "n.safetensors", "s.safetensors", "-o", "b.safetensors"]
    assert document(*both)["one_shot"] is not None
    monkeypatch.setattr("posterity.tabular.reconcile.MOST_NUMBERS", 19)
    monkeypatch.setattr("posterity.tabular.reconcile.moved_cubic", None)
    assert document(*both)["one_shot"] is None


@pytest.mark.slow
def test_hazards_of_a_sites_own():
    for site, seed in (("n", 2), ("s", 3)):
        put(f"{site}.csv", lives(seed, 150))
    line = ["--model", "survival", "--target", "time", "--event", "dead", "--entry", "entry",
            "--hazard", "spline", "--cuts", "0.2,1,2", "--own", "hazard"]  # fmt: skip
    for site in "ns":
        succeed("fit", f"{site}.csv", *line, "-o", f"{site}.safetensors")
    succeed("fuse", "n.safetensors", "s.safetensors", "-o", "b.safetensors")
    data = document("federate", "--site", "n=n.csv", "--site", "s=s.csv", *line, "-o",
                    "f.safetensors")  # fmt: skip
    assert data["status"]["state"] == "converged" and len(data["columns"]) == 8
    one, other = (posterity.load(f"{name}.safetensors").posterior for name in "bf")
    places = [other.names.index(name) for name in one.names]
    away = (one.mean - other.mean[places]) / np.sqrt(one.marginal_variance)
    assert abs(away).max() < 0.2
    put("t.csv", {**lives(2, 150), "site": ["n"] * len(lives(2, 150)["x"])})
    found = document("evaluate", "f.safetensors", "t.csv", "--site-column", "site")["all"]
    alone = document("evaluate", "n.safetensors", "t.csv", "--site-column", "site")["all"]
    assert abs(found["log_score"] - alone["log_score"]) < 0.02
    # Curves of a report, as its scores, have the hazards of the table's site.
    put("unseen.csv", lives(2, 150))
    pages = [posterity.report("f.safetensors", data=f"{name}.csv").html for name in ("n", "unseen")]
    (seen, _, _), (unseen, _, _) = (
        page.partition("Predicted</th>")[2].partition("</table>") for page in pages
    )
    assert seen and seen != unseen


def test_a_priors_file_and_other_units_are_one_regression_of_all_records():
    """Beside the closed form, with a site that nobody has seen."""
    tables("y", "x")
    line = ["--model", "linear", "--target", "y", "--noise-variance", "2", "--own", "intercept"]
    covariance = np.array([[4.0, 1.5], [1.5, 2.0]])
    prior = posterity.Gaussian.from_standard([1.0, 0.5], covariance)
    posterity.save(prior.named(["intercept", "x"]), "p.safetensors")
    units = {"n": [], "s": ["--center", "x=1", "--scale", "x=2"]}
    for site, own in units.items():
        succeed("fit", f"{site}.csv", *line, *own, "--prior", "p.safetensors",
                "-o", f"{site}.safetensors")  # fmt: skip
    told = document("fuse", "n.safetensors", "s.safetensors", "-o", "b.safetensors")
    assert "'s' is put into the units and levels of 'n'" in told["notes"] and told["one_shot"] == 0
    document("federate", "--site", "n=n.csv", "--site", "s=s.csv", *line, "--intercept",
             "--prior", "p.safetensors", "-o", "f.safetensors")  # fmt: skip
    # The intercepts of n, of s and of any other site, and the slope that they share.
    wide = np.full((4, 4), 1.5**2 / 2.0)
    wide[np.diag_indices(4)], wide[3, :3], wide[:3, 3] = (4.0, 4.0, 4.0, 2.0), 1.5, 1.5
    precision, linear = np.linalg.inv(wide), np.linalg.solve(wide, [1.0, 1.0, 1.0, 0.5])
    for place, (seed, site) in enumerate(enumerate(LEVELS)):
        own = records(site, seed)
        x = np.column_stack([*np.eye(3)[:, [place]] * np.ones(90), own["x"]])
        precision, linear = precision + x.T @ x / 2, linear + x.T @ own["y"] / 2
    cov = np.linalg.inv(precision)
    mean, names = cov @ linear, ["intercept@n", "intercept@s", "x"]
    put("new.csv", {"x": [0.5] * 3, "where": ["n", "s", "west"]})
    for file in ("b", "f"):
        q = posterity.load(f"{file}.safetensors").posterior
        at = [q.names.index(name) for name in names]
        np.testing.assert_allclose(q.mean[at], mean[[0, 1, 3]], rtol=1e-8)
        np.testing.assert_allclose(q.covariance[np.ix_(at, at)], cov[[0, 1, 3]][:, [0, 1, 3]],
                                   rtol=1e-8)  # fmt: skip
        succeed("predict", f"{file}.safetensors", "new.csv", "-o", "p.csv",
                "--site-column", "where")  # fmt: skip
        told = rows("p.csv")
        for place in range(3):
            x, found = (
                np.append(np.eye(3)[place], 0.5),
                (told["mean"][place], told["variance"][place]),
            )
            np.testing.assert_allclose(found, [x @ mean, x @ cov @ x], rtol=1e-7)
    for own in ("x", "intercept,x"):  # a slope of each site takes up its center where it can
        for site, more in units.items():
            succeed("fit", f"{site}.csv", *line[:-1], own, *more, "-o", f"{site}.safetensors")
        succeed("fuse", "n.safetensors", "s.safetensors", "-o", "b.safetensors")
        succeed("fit", "s.csv", "--like", "n.safetensors", "-o", "s2.safetensors", "--site", "s")
        succeed("fuse", "n.safetensors", "s2.safetensors", "-o", "c.safetensors")
        one, other = (posterity.load(f"{file}.safetensors").posterior for file in "bc")
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6)
        succeed("fit", "s.csv", *line[:-1], own, "--center", "x=3", "-o", "w.safetensors",
                "--site", "w")  # fmt: skip
        call = "fuse w.safetensors b.safetensors -o three.safetensors"
        if own == "x":
            refuse(call, 4, "one intercept of ['n', 's']; --center")
        else:
            succeed(*call.split())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_files_are_fused_by_partial_pooling_as_tables_are_federated(model):
    """Exactly where factors hold all that records say, up to the federation's tolerance; else about
    as well as they do.
    """
    sites = [f"h{k}" for k in range(6)]
    line = ["--model", model, "--target", "y" if model == "linear" else "ill", "--prior-sd", "5"]
    line += ["--noise-variance", "2"] if model == "linear" else []
    for seed, site in enumerate(sites):
        own = records(site, seed, 150)
        shift = np.random.default_rng(seed).normal(0, 0.8)
        own["y"] = own["y"] + shift
        own["ill"] = 1 * (own["y"] > 0.7)
        put(f"{site}.csv", {name: own[name] for name in ("x", line[3])})
        succeed("fit", f"{site}.csv", *line, "-o", f"{site}.safetensors")
    files = [f"{site}.safetensors" for site in sites]
    told = document("fuse", *files, "--personal", "intercept=0.5", "-o", "one.safetensors")
    assert told["status"]["state"] == "converged"
    assert told["one_shot"] == (0.0 if model == "linear" else None)
    options = [word for site in sites for word in ("--site", f"{site}={site}.csv")]
    document("federate", *options, *line, "--intercept", "--personal", "intercept=0.5",
             "-o", "fed.safetensors")  # fmt: skip
    one, fed = (posterity.load(f"{name}.safetensors") for name in ("one", "fed"))
    factors = {site: fed.factor(site) for site in fed.sites}
    place = fed.posterior.coefficients.names.index("intercept")
    law = effects_at(fed.prior, fed.posterior, factors, np.array([place])).law
    assert float(one.posterior.kl(law)) < (1e-3 if model == "linear" else 0.05)
    if model == "linear":
        own = records("h3", 3, 150)
        design = np.column_stack([np.ones(150), own["x"]])
        told = one.factor("h3").coefficients.precision
        np.testing.assert_allclose(told, design.T @ design / 2, rtol=1e-9)
    put("new.csv", {"x": [0.3, 0.3], "where": ["h0", "west"]})
    made = {}
    for name in ("one", "fed"):
        succeed("predict", f"{name}.safetensors", "new.csv", "--site-column", "where",
                "-o", "p.csv")  # fmt: skip
        made[name] = rows("p.csv")["mean" if model == "linear" else "p"]
    within = 1e-3 if model == "linear" else 0.02
    np.testing.assert_allclose(made["one"], made["fed"], atol=within)
    two = "fuse h0.safetensors h1.safetensors"
    refuse(f"{two} --personal age -o p.safetensors", 2, "'intercept'")
    refuse(f"{two} --personal -o p.safetensors", 2, "--personal NAME,NAME, or --personal true")
    Path("none.toml").write_text("[model]\npersonal = []\n")
    refuse(f"{two} none.toml -o p.safetensors", 2, "personal")
    if model == "linear":
        # A site whose slope, which all share, contradicts that of the others.
        own = records("h1", 1, 150)
        put("h1.csv", {"x": -own["x"], "y": own["y"]})
        succeed("fit", "h1.csv", *line, "-o", "h1.safetensors")
        call = ["fuse", *(f"h{k}.safetensors" for k in range(3)), "-o", "odd.safetensors"]
        told = document(*call, "--personal", "intercept")
        assert "'h1' contradicts the others: " in " ".join(told["warnings"])
        assert not document(*call, "--personal", "x,intercept")["warnings"]


def test_a_precision_below_zero_by_rounding_costs_no_digits_and_one_farther_off_is_said():
    rng = np.random.default_rng(0)
    prior = posterity.Gaussian.from_standard(np.zeros(3), 4 * np.eye(3)).named(["a", "b", "c"])
    factors = {}
    for site in "mno":
        x = np.column_stack([np.ones(40), rng.normal(size=40), np.zeros(40)])
        y = rng.normal() + x[:, 1] + rng.normal(size=40)
        factors[site] = x.T @ x, x.T @ y

    def pooled(away):
        sites = {}
        for place, (site, (precision, linear)) in enumerate(factors.items()):
            lower = np.diag([0.0, 0.0, away if place == 0 else 0.0])
            law = posterity.Gaussian._of(precision_mean=linear, precision=precision + lower)
            sites[site] = law.named(prior.names)
        return posterity.fuse(posterity.Ledger(prior).extend(sites), personal=[0]).posterior

    wanted = pooled(0.0)
    near = pooled(-4e-16)
    assert float(near.kl(wanted)) < 1e-12
    with pytest.warns(FusionWarning, match="site 'm' is wider than its prior"):
        pooled(-1e-3)


@pytest.mark.parametrize(("more", "code", "words"), [
    ("--own age", 2, "--own age; 'intercept', 'x'"),
    ("--own intercept --prior p.safetensors", 4, "['age'] unknown; ['intercept', 'x']"),
])  # fmt: skip
def test_own_coefficients_that_make_no_sense(more, code, words):
    tables("ill", "x")
    prior = posterity.Gaussian.from_standard([0.0, 0.0], np.eye(2)).named(["intercept", "age"])
    posterity.save(prior, "p.safetensors")
    refuse(f"fit n.csv --model logistic --target ill -o q.safetensors {more}", code, words)


def test_thresholds_of_a_sites_own_need_all_levels_there():
    rng = np.random.default_rng(2)
    levels = np.array(["none", "mild", "severe"])
    for site, known in (("a", levels), ("b", levels[[0, 2]])):
        rows = zip(rng.normal(size=40), rng.choice(known, 40), strict=True)
        Path(f"{site}.csv").write_text("x,pain\n" + "".join(f"{x},{pain}\n" for x, pain in rows))
    Path("f.toml").write_text(
        '[model]\nkind = "proportional-odds"\ntarget = "pain"\nown = ["above"]\n[data.category]\n'
        'pain = ["none", "mild", "severe"]\n[sites]\na = "a.csv"\nb = "b.csv"\n'
    )
    refuse("federate f.toml -o f.safetensors", 3, "no record with the level ['mild']")
