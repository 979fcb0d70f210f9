"""The words of recipes: models, functions, links, and the condition on each option."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posterity.arguments import FINITE, FLAG, POSITIVE, Constraint, instance, one_of
from posterity.errors import UsageError
from posterity.families.names import some

COUNTS = ("poisson", "negative-binomial")
DISPERSED = ("negative-binomial", "gamma")
"""Models of counts, which have exposures, and models with a dispersion."""
ODDS = "proportional-odds"
ORDERED = ("ordinal", ODDS)
"""Models of ascending levels, which have a coefficient for each but the last."""
LABELS = ("logistic", *ORDERED, "multinomial")
"""Models whose target has named levels."""
MODELS = ("linear", *LABELS, *COUNTS, "gamma", "survival")
ONLY: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        ("offset", "weights", "weighting", "family"), tuple(n for n in MODELS if n != "multinomial")
    ),
    **dict.fromkeys(("event", "entry", "cuts", "hazard"), ("survival",)),
    "trials": ("logistic",),
    "dispersion": DISPERSED,
    "exposure": COUNTS,
    "noise_variance": ("linear",),
}
"""Options that only some models have, with these models."""
FAMILIES = ("gaussian", "diagonal")
INTERCEPT = "intercept"
"""The name of the coefficient of the column of ones."""
ESTIMATE = "estimate"
SAMPLING = "sampling"
WEIGHTINGS = ("counts", SAMPLING)
"""What weights of records are: numbers of equal records, or inverse probabilities of sampling."""
PRIOR_SD: Mapping[str, Mapping[str, float]] = {
    "linear": {"": 1e6},
    "multinomial": {"": 10.0},
}
"""Default prior deviations of coefficients; others in :data:`USUAL_SD`."""
USUAL_SD = {"": 10.0, INTERCEPT: 1000.0}
"""Default prior deviations for models with a link. The intercept is the predictor where all columns
are 0, which may be far from any record."""
LINKS = {"linear": "identity", **dict.fromkeys(LABELS, "logit")}
"""The function of the target's mean that is linear in the coefficients. For all other models it is
the logarithm; for survival, that of the hazard."""
HAZARDS = {"weibull": "log(time)", "gompertz": "time"}
"""The covariate, besides columns, in which a log hazard is linear."""
SPLINE = "spline"
"""A log hazard that is a natural cubic spline in log time, whose knots are the cuts."""
Factor = tuple[Any, ...]
"""A function, the column, and numbers: ``("log", "dose")``, ``("power", "a", 2)``."""
POWERS = range(2, 10)
"""Powers of columns: with the tenth, most columns are collinear in double precision."""
DEGREES = range(1, 6)
"""Degrees of splines, as SciPy has them."""
Term = tuple[Factor, ...]
"""Factors whose product is one column of the design, or several."""
MISSING = "missing"
FUNCTIONS = ("log", "log2", "log10", "log1p", "exp", "sqrt", "abs", MISSING)
"""Functions of one numeric column. The last is 1 where the value is missing and 0 elsewhere; the
column's other factors are then 0 there. Other kinds are ``column`` itself, a category's ``levels``,
``power`` (exponent) and ``spline`` (degree, lower and upper bound, inner knots)."""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_factor(factor: Any) -> bool:
    match factor:
        case (str() as kind, str()):
            return kind in (*FUNCTIONS, "column", "levels")
        case ("power", str(), power):
            return _is_number(power) and power in POWERS
        case ("spline", str(), degree, low, high, *inner) if len(inner) < 97:
            knots = [low, *inner, high]
            numbers = all(map(_is_number, (degree, *knots)))
            return numbers and degree in DEGREES and knots == sorted(knots) and low < high
    return False


_TEXT = instance("a text", str)
_ESTIMATED = Constraint(
    f"a positive number, or {ESTIMATE!r}", lambda x: x == ESTIMATE or POSITIVE.allows(x)
).or_none()
_LEVELS = Constraint(
    "two different texts at least",
    lambda levels: (
        isinstance(levels, tuple | list)
        and all(map(_TEXT.allows, levels))
        and len(set(levels)) == len(levels) > 1
    ),
)
_TERM = Constraint(
    "factors that a recipe supports",
    lambda term: isinstance(term, tuple) and bool(term) and all(map(_is_factor, term)),
)
FIELDS: Mapping[str, Constraint] = {
    "model": one_of(*MODELS),
    **dict.fromkeys(("columns", "own", "strata", "unit"), _TEXT),
    **dict.fromkeys(("target", "exposure", "trials", "event", "entry"), _TEXT.or_none()),
    **dict.fromkeys(("offset", "weights", "cluster", "prior"), _TEXT.or_none()),
    "weighting": one_of(*WEIGHTINGS).or_none(),
    "terms": _TERM,
    "categories": _LEVELS,
    "center": FINITE,
    **dict.fromkeys(("scale", "prior_sd", "cuts"), POSITIVE),
    "intercept": FLAG,
    "hazard": one_of(*HAZARDS, SPLINE).or_none(),
    **dict.fromkeys(("dispersion", "noise_variance"), _ESTIMATED),
    "family": one_of(*FAMILIES),
}
"""The condition on each option; for lists and dictionaries, on each of their values."""
CONTAINERS = {
    dict: instance("values by name", Mapping),
    tuple: instance("a tuple", tuple, list),
}
"""The condition on dictionaries and lists of options."""


def indicator(name: str) -> str:
    """Return the term of a formula that indicates missing values of a column, whose name goes
    between backticks unless it is a word.

    >>> indicator("ldl"), indicator("CRP (mg/L)")
    ('missing(ldl)', 'missing(`CRP (mg/L)`)')
    """
    return f"{MISSING}({name})" if name.isidentifier() else f"{MISSING}(`{name}`)"


def no_coefficient(found: str, names: Sequence[str]) -> UsageError:
    """Return the error for a name of coefficients that differ by site that is none of ``names``."""
    start = (*names, "")[0].partition("[")[0]
    fix = "Name coefficients that differ by site; for an intercept pass --intercept too."
    if start in ("above", "hazard"):
        fix = f"Name coefficients that differ by site: {start!r} in place of 'intercept'."
    return UsageError(found=found, expected=f"coefficients or columns among {some(names)}", fix=fix)
