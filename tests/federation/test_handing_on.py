"""What left is found where it was handed on, and honest refinements are not taken for that."""

import functools

import numpy as np
import pytest
from federation.examples import NORMAL, logistic_site

from posterity.families import Gaussian
from posterity.federation import federate, forget
from posterity.federation.federate import start
from posterity.handed_on import Likeness
from posterity.handed_on import handed_on as handed_on_by
from posterity.ledger import Ledger
from posterity.models import LogisticRegression

handed_on = functools.partial(handed_on_by, likeness=Likeness())
SITES = ("ash", "elm", "fir", "oak")


def problem(seed):
    """Sites that agree, or not, some of them far from the origin; of few records or of many."""
    rng = np.random.default_rng(seed)
    truth, apart, offset = rng.normal(size=2), seed % 3, 2.0 * (seed % 2)
    sites = {}
    for name in SITES:
        x, _ = logistic_site(rng, truth, 20 if name == "elm" else 60)
        own, x = truth + apart * rng.normal(size=2), x + np.array([offset, 0.0])
        sites[name] = x, (rng.random(len(x)) < 1 / (1 + np.exp(-x @ own))).astype(float)
    return sites


@pytest.fixture(scope="module")
def refinements():
    """Ledgers before and after each of four sites left each of six federations."""
    found = []
    for seed in range(6):
        run = federate(problem(seed), LogisticRegression(), NORMAL)
        for site in SITES:
            found.append((site, run.ledger, forget(run, site, allow_unconverged=True).ledger))
    return found


def test_no_honest_refinement_is_taken_for_handing_on(refinements):
    assert not any(handed_on([site], before, after) for site, before, after in refinements)


def test_what_is_found_after_a_first_pass_is_not_handed_on():
    for seed in range(6):
        run = start(problem(seed), LogisticRegression(), NORMAL).advance(1)
        for site in SITES:
            after = run.forget(site).refined().ledger
            assert not handed_on([site], run.ledger, after)


FORGERIES = {
    "a millionth more": lambda f: ((0, f * 1.000001),),
    "taken twice": lambda f: ((0, f * -1.0),),
    "in halves": lambda f: ((0, f * 0.5), (1, f * 0.5)),
    "in uneven parts": lambda f: ((0, f * 0.2), (1, f * 0.5), (2, f * 0.3)),
    "behind two others that cancel": lambda f: (
        (0, f), (1, part(f, 0.0, 0.0) + LARGE), (2, part(f, 0.0, 0.0) - LARGE),
    ),
}  # fmt: skip
IN_PART = ("in halves", "in uneven parts")
LARGE = Gaussian(np.full(2, 2.0**60), np.full((2, 2), 2.0**60))


def part(factor, mean, precision):
    """Shares of the two parameters of a factor."""
    return Gaussian(factor.precision_mean * mean, factor.precision * precision)


def forged(site, before, after, kind):
    """The ledger after, in which stayers have parts of what left beside what they refined."""
    entries = dict(after.entries)
    for place, gain in FORGERIES[kind](before.factor(site)):
        name = after.sites[place]
        entries[name] = entries[name]._replace(factor=entries[name].factor + gain)
    return Ledger(after.prior, entries)


@pytest.mark.parametrize("kind", FORGERIES)
def test_what_was_handed_on_beside_an_honest_refinement_is_found(kind, refinements):
    found = [handed_on([s], old, forged(s, old, new, kind)) for s, old, new in refinements]
    assert np.mean(found) > (0.3 if kind in IN_PART else 0.7)
