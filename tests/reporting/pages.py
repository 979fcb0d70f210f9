"""Ledgers of all kinds, and pages as a parser sees them."""

import collections
import html.parser
import itertools

import numpy as np

from posterity.artifact.recipe import Recipe, as_provenance
from posterity.families import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    NormalGamma,
    Plate,
    Product,
)
from posterity.ledger import Ledger

STRANGE = 'north "<script>alert(1)</script>" & \u202e\U0001f600 ' + "é" * 60
VOID = {"meta", "input", "link", "br"}
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
