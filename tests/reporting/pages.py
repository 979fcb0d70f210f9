"""Ledgers of all kinds, pages of them, and pages as a parser sees them."""

import collections
import html.parser
import itertools
from pathlib import Path

import numpy as np

import posterity
from posterity import federate, forget, fuse, report
from posterity.distillation import Head, Student
from posterity.families import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    Mixture,
    NormalGamma,
    Plate,
    Product,
)
from posterity.families.layers import Layers
from posterity.federation import Gossip
from posterity.graphs import ring
from posterity.ledger import Ledger
from posterity.models import BetaBernoulli
from posterity.pursuit import Pursuit, Row
from posterity.status import Status
from posterity.tabular.recipe import Recipe
from posterity.tabular.sites import as_provenance

STRANGE = 'north "<script>alert(1)</script>" & \u202e\U0001f600 ' + "é" * 60
VOID = {"col", "meta", "input", "link", "br"}
RECIPE = Recipe(
    "logistic",
    "ill",
    ("age", "sex"),
    categories={"ill": ("no", "yes"), "sex": ("female", "male")},
    unit={"age": "years"},
    scale={"age": 10.0},
)


class Page(html.parser.HTMLParser):
    """Elements of a page, each with its attributes, its text and those that it is in."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.found, self.open = collections.defaultdict(list), []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        node = {"tag": tag, "text": "", "pieces": [], **dict(attrs)}
        self.found[tag].append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for node in self.open:
            node["text"] += data
            node["pieces"].append(data)

    def all(self):
        return itertools.chain(*self.found.values())

    def of(self, tag, class_):
        return [node for node in self.found[tag] if class_ in (node.get("class") or "").split()]


def clinics(sites=3, size=3, seed=0, full=True):
    """A regression's ledger, whose sites have their own data alone."""
    rng = np.random.default_rng(seed)
    names = ["intercept", "age", "sex[male]", *(f"x{n}" for n in range(3, size))][:size]
    family = Gaussian if full else DiagonalGaussian
    wide = 100 * np.eye(size) if full else np.full(size, 100.0)
    ledger = Ledger(family.from_standard(np.zeros(size), wide).named(names))
    factors = {}
    for site in range(sites):
        x = rng.normal(size=(30 + 10 * site, size))
        precision = x.T @ x if full else (x**2).sum(0)
        mean = rng.normal(size=size)
        linear = precision @ mean if full else precision * mean
        factors[f"site {site:03d}"] = family(linear, precision)
    return ledger.extend(factors, independent=True)


def rescaled(ledger, units):
    """The ledger of coefficients in other units."""
    scale = np.array(units)

    def scaled(law):
        precision = np.asarray(law.precision) / scale[:, None] / scale
        return Gaussian(np.asarray(law.precision_mean) / scale, precision)

    prior = scaled(ledger.prior).named([f"in {unit:g}" for unit in units])
    factors = {site: scaled(ledger.factor(site)) for site in ledger.sites}
    return Ledger(prior).extend(factors, independent=True)


def conjugate():
    """A ledger of several blocks, each of another family whose quantiles a page works out."""
    rng = np.random.default_rng(1)

    def law(scale):
        counts = lambda *shape: scale * rng.integers(1, 20, shape)
        return Product(
            share=Beta(*counts(2)),
            rate=Gamma(counts(), counts()),
            words=Dirichlet(counts(4)),
            slope=DiagonalGaussian(counts(2) - 9.0, counts(2)),
            line=Gaussian(counts(2) - 9.0, np.diag(counts(2)) + 0.3),
        )

    prior = law(0.1)
    return Ledger(prior).extend({site: law(1.0) for site in ("a", "b", "c")})


def mixture():
    """A ledger of a plate, whose quantiles a page does not work out."""

    def law(mean, count):
        size = len(mean)
        kappa = np.full(size, 0.1 + count)[:, None]
        members = NormalGamma.from_standard(np.array(mean, float)[:, None], kappa, 1 + kappa, kappa)
        return Plate(members)

    prior = law([0.0, 0.0], 0.0)
    return Ledger(prior).extend({s: law([k, 5 + k], 9.0) - prior for k, s in enumerate("abc")})


def provenance():
    """Texts of a file that posterity fit wrote."""
    sites = {f"site {site:03d}": {"records": 30 + 10 * site} for site in range(3)}
    return as_provenance(RECIPE.filled(("age", "sex")), sites)


def sites_of(mixture):
    """The ledgers that sites of a mixture have."""
    return {s: Ledger(mixture.prior).update(s, mixture.factor(s)) for s in mixture.sites}


def pursuit():
    """A pursuit of two components, which were polished."""
    parts = DiagonalGaussian.from_standard([[0.0], [3.0]], [[1.0], [0.3]])
    rows = (
        Row(1, -2.3, 0.05, -2.3, 0.05, 1.0, 1.0, 1.4, 1.0, 100),
        Row(2, -1.5, 0.03, 0.8, 0.02, np.nan, np.nan, 1.9, 1.85, 500),
    )
    return Pursuit(Mixture.from_standard([0.7, 0.3], parts), Status.of(5e-4, 1e-2), rows)


def walk():
    """A federation that goes from site to site."""
    sites = {name: np.array([1, 0, 1]) for name in ("north", "<b>", "\U0001f3e5")}
    schedule = Gossip(ring(list(sites)))
    return federate(sites, BetaBernoulli(), Beta.from_standard(1.0, 1.0), schedule=schedule)


def patients(path, count=120):
    """A table of records of :data:`RECIPE`, of whom the older are ill."""
    rng = np.random.default_rng(0)
    age, male = rng.normal(50, 20, count), rng.random(count) < 0.5
    ill = rng.random(count) < 1 / (1 + np.exp(-(age - 50) / 20))
    word = lambda kind, yes, no: np.where(kind, yes, no)
    rows = zip(age.round(1), word(male, "male", "female"), word(ill, "yes", "no"), strict=True)
    lines = ["age,sex,ill", *(",".join(map(str, row)) for row in rows), ",male,yes"]
    Path(path).write_text("\n".join(lines) + "\n")


def survival(path):
    """A posterior of hazards with its recipe, and a table of times."""
    recipe = Recipe("survival", "time", ("age",), event="event", cuts=(5.0,)).filled(("age",))
    names = list(recipe.coefficients())
    q = Gaussian.from_standard([-2.0, -2.5, 0.5], 0.01 * np.eye(3)).named(names)
    rng = np.random.default_rng(0)
    age, time = rng.normal(size=60), rng.exponential(8, 60) + 0.1
    rows = zip(age, time, rng.integers(2, size=60), strict=True)
    lines = ["age,time,event", *(f"{a:.2f},{t:.2f},{e}" for a, t, e in rows)]
    Path(path).write_text("\n".join(lines) + "\n")
    return q, as_provenance(recipe)


def student():
    """A student of :data:`RECIPE`, which says that the older are likelier ill."""
    hidden = [0.0, 0.0], [-2.5, 2.5], [0.5, -0.5], [0.0, 0.0]  # biases, and what each input adds
    weights = np.concatenate([np.ravel(hidden), [0.0, 1.0, -1.0]])
    columns = {"columns": '["intercept","age","sex[male]"]'}
    return Student(Layers.dense(3, 2, 1), weights, Head("bernoulli", 1)), columns | provenance()


def everything(folder):
    """Pages of every kind, by name; files are in a folder."""
    ledger, at = clinics(5), lambda name: str(folder / name)
    done = forget(ledger, "site 001")
    curves, about = survival(at("survival.csv"))
    posterity.save(curves, at("survival.safetensors"), provenance=about)
    patients(at("patients.csv"))
    q = Gaussian.from_standard([-2.5, 0.5, 0.0], 0.01 * np.eye(3)).named(clinics().names)
    posterity.save(q, at("both.safetensors"), provenance=provenance())
    learned, about = student()
    posterity.save(learned, at("student.safetensors"), provenance=about)
    long = [f"Department of cardiology and of intensive care, number {n}" for n in range(10)]
    many = clinics(10)
    named = dict(zip(long, map(many.factor, many.sites), strict=True))
    return {
        "ledger": report(ledger),
        "receipt": report(ledger, done.ledger, done.receipt),
        "receipt alone": report(done.receipt),
        "fusion": report(fuse(sites_of(mixture()), warn=False)),  # its sites differ
        "walk": report(walk()),
        "pursuit": report(pursuit()),
        "student": report(at("student.safetensors"), data=at("patients.csv")),
        "survival": report(at("survival.safetensors"), data=at("survival.csv")),
        "regression": report(at("both.safetensors"), data=at("patients.csv")),
        "sixty": report(clinics(2, 60)),
        "one": report(clinics(1)),
        "long": report(Ledger(many.prior).extend(named)),
        "units": report(rescaled(ledger, [1e-9, 1.0, 1e9])),
        "no recipe": report(clinics().total),
        "strange": report(clinics(1).update(STRANGE, clinics(1).factor("site 000"))),
    }
