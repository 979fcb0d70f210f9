"""Recipes: what a regression or mixture is about, as data in its file.

A recipe names the model, the target and its levels, the columns with their levels and units, the
transformations that make numbers of them, and the prior. It is JSON under a key of the provenance,
checked by a schema when it is read and never evaluated as code. Under a second key a file says of
each site how many records it had. Both travel with the posterior through every verb.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from posterity.arguments import POSITIVE, Constraint, one_of
from posterity.artifact.container import altered
from posterity.artifact.strata import AT, Strata
from posterity.errors import PosterityError, UsageError

RECIPE, SITES = "recipe", "sites"
"""Keys of the provenance: a recipe as JSON, and what is known of each site's records."""
VERSION = 4
COUNTS = ("poisson", "negative-binomial")
DISPERSED = ("negative-binomial", "gamma")
"""Models of counts, which have exposures, and those with a dispersion."""
LABELS = ("logistic", "ordinal", "multinomial")
"""Models whose target has levels by name."""
MODELS = ("linear", *LABELS, *COUNTS, "gamma", "survival", "mixture")
REGRESSIONS = MODELS[:-1]
ONLY: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("target", "categories", "own"), REGRESSIONS),
    **dict.fromkeys(
        ("offset", "weights", "family"), tuple(n for n in REGRESSIONS if n != "multinomial")
    ),
    **dict.fromkeys(("event", "entry", "cuts", "hazard"), ("survival",)),
    **dict.fromkeys(("components", "component_sd"), ("mixture",)),
    "dispersion": DISPERSED,
    "exposure": COUNTS,
    "noise_variance": ("linear",),
}
"""Options that some models alone have, and these models."""
FAMILIES = ("gaussian", "diagonal")
INTERCEPT = "intercept"
"""The name of the coefficient of the column of ones."""
ESTIMATE = "estimate"
PRIOR_SD: Mapping[str, Mapping[str, float]] = {
    "linear": {"": 1e6},
    "mixture": {"": 10.0},
    "multinomial": {"": 10.0},
}
"""Of coefficients, or of components' means, where no other is asked for; see :data:`USUAL_SD`."""
USUAL_SD = {"": 10.0, INTERCEPT: 1000.0}
"""Of models with a link. An intercept is the predictor where all columns are 0, which may be far
from any record."""
FINITE = Constraint("a finite number", lambda value: abs(value) < float("inf"))
LINKS = {"linear": "identity", **dict.fromkeys(LABELS, "logit")}
"""The function of the target's mean that is linear in the coefficients; of all others it is the
logarithm, of survival that of the hazard."""
HAZARDS = {"weibull": "log(time)", "gompertz": "time"}
"""The covariate that a log hazard is linear in, beside columns."""
SPLINE = "spline"
"""A log hazard that is a natural cubic spline in log time, whose knots are the cuts."""
LISTS = ("third", "dispersed")
"""Lists of numbers about a site: the derivatives of :mod:`~posterity.artifact.cubics`."""
MOST_SITES, MOST_NUMBERS = 10_000, 200_000
"""Sites of which a file says one by one how many records they had, and third derivatives of all of
them that it holds at most."""


Factor = tuple[Any, ...]
"""A function, the column, and numbers: ``("log", "dose")``, ``("power", "a", 2)``."""
POWERS, DEGREES = range(2, 10), range(1, 6)
"""Powers of columns, and degrees of splines."""
Term = tuple[Factor, ...]
"""Factors whose product is a column of the design, or several."""
MISSING = "missing"
FUNCTIONS = ("log", "log2", "log10", "log1p", "exp", "sqrt", "abs", MISSING)
"""Functions of one column of numbers, the last of which is 1 where there is none and else 0: then
the column's other factors are 0 there. Beside them are ``column`` itself, the ``levels`` of a
category, ``power`` (and which) and ``spline`` (degree, lower and upper bound, inner knots)."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The options that all sites share; those left out have the same default everywhere.

    Attributes:
        model: one of :data:`MODELS`.
        target: the column that is predicted, of survival the time; none of a mixture.
        columns: those that it is predicted from; of a mixture those that it is of. All others of
            the table if left out, but ``without``.
        without: columns that are left out.
        terms: of a formula; each column by itself if there are none.
        categories: by column its levels, of which the first is the reference and all others get a
            column of zeros and ones each; of the target the one that is 0, and the one that is 1.
        center: by column what is taken off it, in its unit; 0 if left out.
        scale: by column what it is divided by after that; 1 if left out.
        unit: by column the unit that its numbers are in, as people write it.
        intercept: whether regressions get a column of ones.
        exposure: of counts, the column of how much each record stands for; the rate is of one.
        event: of survival, the column of whether the time ended by an event, 1, or by censoring, 0.
        entry: of survival, the column of when a record came under observation; 0 if left out.
        cuts: of survival, the times at which the hazard may change; it is constant without any.
        hazard: of survival in place of that, ``"weibull"``, ``exp(a + b log t)``,
            ``"gompertz"``, ``exp(a + b t)``, or ``"spline"``, a natural cubic spline in
            ``log t`` whose knots are the cuts and whose coefficients are the log hazards there.
        dispersion: of negative binomial counts and of gamma values; ``"estimate"`` takes that
            which maximises the adjusted profile likelihood.
        own: coefficients that each site has for itself, by name or by the name of their column.
        strata: the sites that have them.
        offset: the column that is added to the linear predictor.
        weights: the column that says how many records like it a record stands for.
        prior_sd: standard deviations of the coefficients' prior about 0, in units after ``center``
            and ``scale``; by name, and under ``""`` that of all others. Of a mixture that of the
            components' means.
        prior: in place of that the digest of a prior's file.
        noise_variance: of a linear model, after the target's ``scale``; ``"estimate"`` takes the
            site's own, of the residuals of least squares.
        family: of a regression's posterior.
        components: of a mixture.
        component_sd: of a mixture, about how wide a component is in every column.
    """

    model: str
    target: str | None = None
    columns: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    terms: tuple[Term, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    center: Mapping[str, float | int] = dataclasses.field(default_factory=dict)
    scale: Mapping[str, float | int] = dataclasses.field(default_factory=dict)
    unit: Mapping[str, str] = dataclasses.field(default_factory=dict)
    intercept: bool = True
    exposure: str | None = None
    event: str | None = None
    entry: str | None = None
    cuts: tuple[float | int, ...] = ()
    hazard: str | None = None
    dispersion: float | str | None = None
    own: tuple[str, ...] = ()
    strata: tuple[str, ...] = ()
    offset: str | None = None
    weights: str | None = None
    prior_sd: Mapping[str, float | int] = dataclasses.field(default_factory=dict)
    prior: str | None = None
    noise_variance: float | int | str | None = None
    family: str = "gaussian"
    components: int | None = None
    component_sd: float | int | None = None

    def __hash__(self) -> int:
        return hash(self.canonical())

    @property
    def regression(self) -> bool:
        """True if a target is predicted from a linear predictor."""
        return self.model != "mixture"

    @property
    def baseline(self) -> tuple[str, ...]:
        """The names of coefficients in the place of an intercept; none where there is one.

        Of survival the log hazards between cuts, or the line of one in (log) time; of ordinal
        levels, for each but the last, the log odds of going beyond it for those who come so far.
        """
        if self.model == "ordinal":
            return tuple(f"above[{level}]" for level in self.levels[:-1])
        if self.hazard == SPLINE:
            return tuple(f"hazard[{knot:g}]" for knot in self.cuts)
        if self.hazard is not None:
            return "hazard", f"hazard:{HAZARDS[self.hazard]}"
        ends = [0.0, *self.cuts]
        names = [f"hazard[{a:g}-{b:g}]" for a, b in itertools.pairwise(ends)]
        return (*names, f"hazard[{ends[-1]:g}-]") if self.cuts else ()

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of the target's levels; none of a target that is a number."""
        return self.categories.get(self.target or "", ())

    def canonical(self) -> str:
        """The recipe as JSON; equal for equal requests, whatever their order.

        >>> Recipe("poisson", "n", columns=("b", "a")).canonical()[:52]
        '{"categories":{},"center":{},"columns":["a","b"],"co'
        """
        options: dict[str, Any] = dataclasses.asdict(self)
        del options["without"]
        for key in ("columns", "own", "strata"):
            options[key] = sorted(options[key] or ())
        if self.intercept:  # else the first category stands for it
            options["terms"] = sorted(self.terms, key=lambda term: (len(term), str(term)))
        options["center"] = {name: float(value) for name, value in self.center.items() if value}
        options["scale"] = {name: float(value) for name, value in self.scale.items() if value != 1}
        wide = self.prior_sd.get("")
        options["prior_sd"] = {
            name: float(sd) for name, sd in self.prior_sd.items() if not name or sd != wide
        }
        for key in ("noise_variance", "component_sd"):
            options[key] = float(options[key]) if isinstance(options[key], int) else options[key]
        options["version"] = VERSION
        return json.dumps(options, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @property
    def in_one_form(self) -> bool:
        """True if coefficients are no affine function of those in other units and levels."""
        return bool(self.terms or self.baseline or self.model == "multinomial")

    @property
    def spread(self) -> str | None:
        """The option of how much records vary about their means; None of models without one."""
        if self.model in DISPERSED:
            return "dispersion"
        return "noise_variance" if self.model == "linear" else None

    @property
    def indicated(self) -> set[str]:
        """The columns whose values may be missing, which an indicator says."""
        return {name for kind, name, *_ in itertools.chain(*self.terms) if kind == MISSING}

    @property
    def conjugate(self) -> bool:
        """True if factors hold all that records tell, as of a linear model whose noise is known."""
        return type(self.noise_variance) in (int, float) and self.family == "gaussian"

    @property
    def shared(self) -> "Recipe":
        """The recipe of one site, or of sites that share all coefficients."""
        return self.replaced(own=(), strata=())

    def is_own(self, name: str) -> bool:
        """True if each site has a coefficient of its own for a column of the design.

        A column of texts stands for all that is made of its levels, products with others too.
        """
        return name in self.own or any(f":{own}[" in f":{name}" for own in self.own)

    @property
    def stratified(self) -> Strata:
        """The coefficients of sites that share all, and which of them each has for itself."""
        names, inputs = self.shared.coefficients(), self.shared.inputs()
        places = (k for k in range(len(names)) if self.is_own(inputs[k % len(inputs)]))
        return Strata(names, frozenset(places) if self.strata else frozenset(), self.strata)

    def deviations(self) -> list[float]:
        """Prior standard deviations of the coefficients, in their order."""
        sd, strata = self.prior_sd, self.stratified
        usual = [sd.get(strata.names[k], sd.get("", 1.0)) for k, _ in strata.coefficients]
        pairs = zip(self.coefficients(), usual, strict=True)
        return [float(sd.get(name, wide)) for name, wide in pairs]

    def coefficients(self) -> tuple[str, ...]:
        """The names of the coefficients: ``intercept``, ``age``, ``sex[male]``.

        Of a multinomial model those of each level but the first: ``mild:intercept``, ``mild:age``.
        """
        starts = [f"{level}:" for level in self.levels[1:]]
        starts = starts if self.model == "multinomial" else [""]
        return tuple(start + name for start in starts for name in self.inputs())

    def inputs(self) -> tuple[str, ...]:
        """The names of the columns of the design, ``age@north`` of those that a site has alone."""
        names = [INTERCEPT] if self.intercept and self.regression else []
        names = list(self.baseline) or names
        for term in self.coded():
            blocks = [self._factor_names(factor, full) for factor, full in term]
            names += [":".join(parts) for parts in itertools.product(*blocks)]
        sites = lambda name: self.strata if self.strata and self.is_own(name) else ()
        each = ([f"{name}{AT}{site}" for site in sites(name)] or [name] for name in names)
        return tuple(itertools.chain(*each))

    def coded(self) -> list[list[tuple[Factor, bool]]]:
        """The factors of each term, and whether of a category all levels get a column.

        All do where the term without it is none of the model's, as R has it: of ``a:b`` alone all
        levels of a category ``b`` do, of ``a + a:b`` all but the reference.
        """
        terms = self.terms or tuple(
            (("levels" if name in self.categories else "column", name),)
            for name in self.columns or ()
        )
        known = {frozenset(term) for term in terms}
        if self.intercept or not self.terms:
            known.add(frozenset())
        result = []
        for term in terms:
            own = []
            for factor in term:
                full = factor[0] == "levels" and frozenset(term) - {factor} not in known
                own.append((factor, full))
                if full and len(term) == 1:  # the first category stands for the intercept
                    known.add(frozenset())
            result.append(own)
        return result

    def _factor_names(self, factor: Factor, full: bool) -> list[str]:
        """The names of the columns that a factor makes."""
        kind, name, *numbers = factor
        if kind == "column":
            return [name]
        if kind == "levels":
            levels = self.categories[name]
            return [f"{name}[{level}]" for level in (levels if full else levels[1:])]
        if kind == "power":
            return [f"{name}^{numbers[0]:g}"]
        if kind == "spline":
            return [f"bs({name})[{place}]" for place in range(1, spline_size(numbers) + 1)]
        return [f"{kind}({name})"]

    def replaced(self, **changes: Any) -> "Recipe":
        """The recipe with other options."""
        return dataclasses.replace(self, **changes)

    def filled(self, columns: Sequence[str]) -> "Recipe":
        """Return the recipe with these columns, and the defaults of what it leaves open."""
        own: dict[str, Any] = {"columns": tuple(columns)}
        if self.prior is None:
            usual = {} if "" in self.prior_sd else dict(PRIOR_SD.get(self.model, USUAL_SD))
            if wide := usual.pop(INTERCEPT, None):
                usual |= dict.fromkeys(self.baseline or (INTERCEPT,) * self.intercept, wide)
            own["prior_sd"] = usual | dict(self.prior_sd)
        if self.spread is not None and getattr(self, self.spread) is None:
            own[self.spread] = ESTIMATE
        if not self.regression and self.component_sd is None:
            own["component_sd"] = 1.0
        return self.replaced(**own)

    def describe(self) -> list[str]:
        """Sentences that say what is predicted from what, for people."""
        used = [self._column(name) for name in self.columns or ()]
        if self.terms:
            written = self.shared.inputs()[len(self.baseline) or int(self.intercept) :]
            used = [f"{', '.join(written)} of {', '.join(used)}"]
        if not self.regression:
            return [f"A mixture of {self.components} components of {', '.join(used)}."]
        target = self._column(self.target or "")
        if len(self.levels) == 2:
            target = f"{self.target} ({self.levels[1]} rather than {self.levels[0]})"
        ones = ["an intercept"] if self.intercept else []
        ones = [f"a {self.hazard} hazard"] if self.hazard else ones
        if self.cuts:
            what = "a spline hazard with knots" if self.hazard else "hazards that change"
            ones = [f"{what} at {', '.join(map(str, self.cuts))}"]
        predictors, link = ", ".join([*ones, *used]), LINKS.get(self.model, "log")
        named = {name: getattr(self, name.lower()) for name in ("Event", "Entry", "Exposure")}
        named |= {"Offset": self.offset, "Weights of records": self.weights}
        named |= {"Each site has for itself": ", ".join(self.own)}
        return [
            f"Predicts {target} from {predictors}: {self.model} regression, link {link}.",
            *(f"{what}: {column}." for what, column in named.items() if column),
        ]

    def _column(self, name: str) -> str:
        levels = self.categories.get(name)
        if levels is not None:
            return f"{name} (levels {', '.join(levels)})"
        unit, center, scale = self.unit.get(name), self.center.get(name), self.scale.get(name, 1)
        parts = [f"in {unit}"] if unit else []
        parts += [f"from {center:g}"] if center else []
        parts += [f"by {scale:g}"] if scale != 1 else []
        return f"{name} ({', '.join(parts)})" if parts else name


def spline_size(numbers: Sequence[float]) -> int:
    """Columns of a spline of this degree, bounds and inner knots, none of them a constant."""
    return int(numbers[0]) + len(numbers) - 3


# --- files ---------------------------------------------------------------------------------------


def _by_name(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_term(term: Any) -> bool:
    """A list of factors that :class:`Recipe` knows."""
    return isinstance(term, list) and bool(term) and all(map(_is_factor, term))


def _is_factor(factor: Any) -> bool:
    match factor:
        case [kind, str()] if isinstance(kind, str):
            return kind in (*FUNCTIONS, "column", "levels")
        case ["power", str(), power]:
            return _number(power) and power in POWERS
        case ["spline", str(), degree, *bounds] if 2 <= len(bounds) < 99:
            numbers = all(map(_number, (degree, *bounds)))
            return numbers and degree in DEGREES and _ascending(bounds)
    return False


def _ascending(bounds: Sequence[float | int]) -> bool:
    """True if inner knots, ascending, lie between a lower and an upper bound, which come first."""
    knots = [bounds[0], *bounds[2:], bounds[1]]
    return all(one <= other for one, other in itertools.pairwise(knots)) and knots[0] < knots[-1]


def _optional(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


_POSITIVE = lambda value: _number(value) and value > 0
_TEXT = lambda value: isinstance(value, str)
_ESTIMATED = _optional(lambda value: value == ESTIMATE or _POSITIVE(value))
SCHEMA: Mapping[str, Callable[[Any], bool]] = {
    "model": lambda value: value in MODELS,
    **dict.fromkeys(("columns", "own", "strata"), _texts),
    **dict.fromkeys(("target", "exposure", "event", "entry"), _optional(_TEXT)),
    **dict.fromkeys(("offset", "weights", "prior"), _optional(_TEXT)),
    "terms": lambda value: isinstance(value, list) and all(map(_is_term, value)),
    "categories": _by_name(lambda levels: _texts(levels) and len(set(levels)) == len(levels) > 1),
    "center": _by_name(_number),
    **dict.fromkeys(("scale", "prior_sd"), _by_name(_POSITIVE)),
    "unit": _by_name(_TEXT),
    "intercept": lambda value: isinstance(value, bool),
    "cuts": lambda value: isinstance(value, list) and all(map(_POSITIVE, value)),
    "hazard": _optional(lambda value: _TEXT(value) and value in (*HAZARDS, SPLINE)),
    **dict.fromkeys(("dispersion", "noise_variance"), _ESTIMATED),
    "family": lambda value: value in FAMILIES,
    "components": _optional(lambda value: type(value) is int and value > 0),
    "component_sd": _optional(_POSITIVE),
    "version": lambda value: value in (2, 3, VERSION),
}
"""Conditions on each key of a recipe in a file; keys of later versions than 2 may be missing."""


def recipe_in(provenance: Mapping[str, str]) -> Recipe | None:
    """The recipe in a file's provenance; None if it has none.

    Raises:
        ArtifactError: if there is one that the schema refuses.

    >>> recipe_in(as_provenance(Recipe("linear", "y", ("x",)))).target
    'y'
    """
    if RECIPE not in provenance:
        return None
    try:
        options = json.loads(provenance[RECIPE])
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict) or not {"model", "columns", "version"} <= options.keys():
        raise altered("a recipe that is no JSON object of the options of a fit")
    for key, value in options.items():
        if key not in SCHEMA or not SCHEMA[key](value):
            raise altered(f"a recipe with {key} = {json.dumps(value)[:100]}")
    del options["version"]
    for key in ("columns", "cuts", "own", "strata"):
        options[key] = tuple(options.get(key, ()))
    terms = options.get("terms", [])
    options["terms"] = tuple(tuple(map(tuple, term)) for term in terms)
    levels = options.get("categories", {})
    options["categories"] = {name: tuple(own) for name, own in levels.items()}
    recipe = Recipe(**options)
    try:
        check_recipe(recipe)
    except PosterityError as error:
        raise altered(f"a recipe with {error.found}") from error
    for kind, name, *_ in itertools.chain(*recipe.terms):
        if name not in options["columns"] or (kind == "levels") != (name in recipe.categories):
            raise altered(f"a recipe with a term {kind} of {name!r}, which is no such column")
    return recipe


def as_provenance(
    recipe: Recipe | None, sites: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, str]:
    """The provenance to save with what was made by a recipe, of these sites."""
    if recipe is None:
        return {}
    sites = sites or {}
    if len(sites) > MOST_SITES:  # a header has no room for them: their sum alone
        sites = {"": together(sites.values()) | {"sites": len(sites)}}
    if sum(len(own.get("third", ())) for own in sites.values()) > MOST_NUMBERS:
        sites = without_lists(sites)
    text = json.dumps(sites, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return {RECIPE: recipe.canonical(), **({SITES: text} if sites else {})}


def sites_in(provenance: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return by site what its records were: ``records``, ``dropped``, ``noise_variance``, and
    versions; an ArtifactError for what is no such table.
    """
    if SITES not in provenance:
        return {}
    try:
        sites = json.loads(provenance[SITES])
    except (ValueError, RecursionError):
        sites = None
    numbers = ("records", "dropped", "noise_variance", "dispersion", "spare", "sites")
    if not isinstance(sites, dict) or not all(
        isinstance(own, dict)
        and all(_number(own.get(key, 0)) for key in numbers)
        and all(isinstance(own.get(key, []), list) for key in LISTS)
        and all(_number(value) for key in LISTS for value in own.get(key, []))
        for own in sites.values()
    ):
        raise altered("a table of sites that is no JSON object of numbers by site")
    return sites


def together(sites: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Records of several sites in all, and their noise variance, each weighed by its records.

    >>> together([{"records": 10, "noise_variance": 2.0}, {"records": 30, "noise_variance": 4.0}])
    {'records': 40, 'noise_variance': 3.5}
    """
    sites, total = list(sites), {}
    for key in ("records", "dropped"):
        if known := [own[key] for own in sites if key in own]:
            total[key] = sum(known)
    for key in ("noise_variance", "dispersion"):
        # Numbers of records may be rounded to 0.
        noisy = [(max(own["records"], 1), own[key]) for own in sites if {key, "records"} <= {*own}]
        if noisy:
            count = sum(records for records, _ in noisy)
            total[key] = sum(records * value for records, value in noisy) / count
    return total


def without_lists(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what is known of sites' records, without derivatives of their likelihoods."""
    plain = lambda own: {key: value for key, value in own.items() if key not in LISTS}
    return {site: plain(own) for site, own in sites.items()}


def kept(provenance: Mapping[str, str], sites: Iterable[str] | None = None) -> dict[str, str]:
    """The recipe of a file and what it says of ``sites``, for what is made of it.

    Of all sites, for what is no ledger, without the derivatives by which ledgers are fused.
    """
    recipe, known = recipe_in(provenance), sites_in(provenance)
    if sites is None:
        return as_provenance(recipe, without_lists(known))
    if "" in known:  # their sum alone is known, and some of them have left
        known = {}
    known = {site: own for site, own in known.items() if site in set(sites)}
    return as_provenance(recipe, known)


# --- requests ------------------------------------------------------------------------------------


def check_recipe(recipe: Recipe) -> None:
    """Raise a UsageError for what makes no sense whatever the records are."""
    one_of(*MODELS).check(model=recipe.model)
    one_of(*FAMILIES).check(family=recipe.family)
    FINITE.check(**{f"center {name}": value for name, value in recipe.center.items()})
    POSITIVE.check(**{f"scale {name}": value for name, value in recipe.scale.items()})
    POSITIVE.check(**{f"prior_sd {name}".rstrip(): sd for name, sd in recipe.prior_sd.items()})
    POSITIVE.or_none().check(component_sd=recipe.component_sd)
    for key in ("noise_variance", "dispersion"):
        if getattr(recipe, key) != ESTIMATE:
            POSITIVE.or_none().check(**{key: getattr(recipe, key)})
    one_of(*HAZARDS, SPLINE).or_none().check(hazard=recipe.hazard)
    POSITIVE.check(**{f"cuts[{place}]": cut for place, cut in enumerate(recipe.cuts)})
    for key, models in ONLY.items():
        value, what = getattr(recipe, key), key.replace("_", " ")
        if value and value != "gaussian" and recipe.model not in models:
            raise UsageError(
                found=f"{what} {value!r} of a {recipe.model} model",
                expected=f"no {what}, or a model among {', '.join(models)}",
                fix="See posterity fit --help.",
            )
    r, cuts, spline = recipe, recipe.cuts, recipe.hazard == SPLINE
    components = "a whole number of components (--components K), at least 1"
    ended = "the column of whether the time ended by one (--event NAME)"
    names = "all their names, of ordinal ones ascending (--category TARGET=A,B,C)"
    unnamed = r.model in ("ordinal", "multinomial") and not r.levels
    labels = f"{len(r.levels)} levels of the target {r.target!r}"
    odd = r.model == "logistic" and len(r.levels) not in (0, 2)
    knots = "two knots at least, the same at every site (--cuts T,T,...)"
    file = r.prior is not None
    rules = (  # what is wrong, what is found, what is expected
        (r.regression and not r.target, "no target", "the column to predict (--target NAME)"),
        (not r.regression and (r.components or 0) < 1, f"components {r.components}", components),
        (r.model == "survival" and not r.event, "survival without an event", ended),
        (unnamed, f"{r.model} {r.target!r} without levels", names),
        (odd, labels, "two: the one that is 0 and the one that is 1"),
        (cuts and r.hazard in HAZARDS, "both cuts and a hazard", "one"),
        (spline and len(cuts) < 2, f"a spline with knots {list(cuts)}", knots),
        (tuple(sorted(set(cuts))) != cuts, f"cuts {cuts}", "ascending times"),
        (r.prior_sd and file, "a prior and prior_sd", "one"),
        (r.columns is not None and r.without, "columns and without", "one"),
    )
    for wrong, found, expected in rules:
        if wrong:
            raise UsageError(found=found, expected=expected, fix="See posterity fit --help.")
