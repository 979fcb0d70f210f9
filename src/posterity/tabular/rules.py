"""Rules on the options of recipes: which contradict each other, or lack another."""

from typing import Any

from posterity.errors import UsageError
from posterity.tabular.options import HAZARDS, ONLY, ORDERED, SPLINE


def check_rules(r: Any) -> None:
    """Raise a UsageError for options of a recipe ``r`` that contradict each other."""
    cuts = r.cuts
    foreign = [key for key in ONLY if getattr(r, key) not in (None, (), "gaussian")]
    foreign = [key for key in foreign if r.model not in ONLY[key]]
    having = ", ".join(ONLY[foreign[0]]) if foreign else ""
    what = " and ".join(foreign).replace("_", " ")
    ended = "the column of whether the time ended by one (--event NAME)"
    names = "all their names, of ordered ones ascending (--category TARGET=A,B,C)"
    unnamed = r.model in (*ORDERED, "multinomial") and not r.levels
    labels = f"{len(r.levels)} levels of the target {r.target!r}"
    knots = "two knots at least, the same at every site (--cuts T,T,...)"
    rules = (  # what is wrong, what is found, what is expected
        (foreign, f"{what} of a {r.model} model", f"one of the models {having}"),
        (not r.target, "no target", "the column to predict (--target NAME)"),
        (r.model == "survival" and not r.event, "survival without an event", ended),
        (unnamed, f"{r.model} {r.target!r} without levels", names),
        (r.model == "logistic" and len(r.levels) not in (0, 2), labels, "two: of 0 and of 1"),
        (cuts and r.hazard in HAZARDS, "both cuts and a hazard", "one"),
        (r.hazard == SPLINE and len(cuts) < 2, f"a spline with knots {list(cuts)}", knots),
        (tuple(sorted(set(cuts))) != cuts, f"cuts {cuts}", "ascending times"),
        (r.prior_sd and r.prior is not None, "a prior and prior_sd", "one"),
        (r.columns is not None and r.without, "columns and without", "one"),
        (r.weighting and not r.weights, f"--weights {r.weighting} alone", "--record-weights NAME"),
        (
            r.robust and r.family == "diagonal",
            "a sandwich covariance, and --family diagonal",
            "one",
        ),
    )
    UsageError.check(*((*rule, "See posterity fit --help.") for rule in rules))
