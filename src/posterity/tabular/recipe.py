"""Recipes: the description of a regression, as data in its file.

A recipe names the model, the target and its levels, the columns with their levels and units, the
transformations to numbers, and the prior. It is JSON under a key of the provenance. It is checked
when it is read and never evaluated as code, and every verb passes it on with the posterior.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from posterity.artifact.container import altered, parsed
from posterity.errors import PosterityError
from posterity.models.strata import AT, Strata
from posterity.runtime.text import cut
from posterity.tabular.options import (
    CONTAINERS,
    DISPERSED,
    ESTIMATE,
    FIELDS,
    HAZARDS,
    INTERCEPT,
    LINKS,
    MISSING,
    ORDERED,
    PRIOR_SD,
    SAMPLING,
    SPLINE,
    USUAL_SD,
    Factor,
    Term,
)
from posterity.tabular.rules import check_rules

RECIPE = "recipe"
"""The key of the provenance whose value is the recipe, as JSON."""
VERSION = 4
"""The version of recipes that are written, and the only one that is read."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The options that all sites share; an option left out has the same default everywhere.

    Attributes:
        model: one of :data:`MODELS`.
        target: name of the column to predict; for survival the time.
        columns: names of the predictors; by default all other columns except ``without``.
        without: names of columns to leave out.
        terms: terms of a formula; by default each column is one term.
        categories: levels by column. For a predictor the first is the reference, and each other
            level gets a column of zeros and ones. For a target: those coded 0 and 1 of a logistic
            model, all of an ordered one (ascending) or a multinomial one (reference first).
        center: number to subtract by column, in the column's unit; by default 0.
        scale: number to divide by, by column, after ``center``; by default 1.
        unit: unit of a column's numbers, by column, as people write it.
        intercept: whether regressions have a column of ones.
        exposure: for counts, name of the column with each record's exposure; the rate is per one.
        trials: for logistic, name of the column of trials, of which the target counts successes.
        event: for survival, name of the column that is 1 for an event, and 0 for censoring.
        entry: for survival, name of the column with the start of observation; by default 0.
        cuts: for survival, times at which the hazard may change; by default it is constant.
        hazard: for survival, another form: ``"weibull"``, ``exp(a + b log t)``, ``"gompertz"``,
            ``exp(a + b t)``, or ``"spline"``, a natural cubic spline in ``log t`` whose knots are
            the cuts and whose coefficients are the log hazards there.
        dispersion: of negative binomial counts and of gamma values; ``"estimate"`` maximises the
            adjusted profile likelihood.
        own: coefficients that each site has for itself, by name or by the name of their column.
        strata: names of the sites that have them.
        offset: name of the column that is added to the linear predictor.
        weights: name of the column of records' weights.
        weighting: what these are: ``"counts"`` of equal records, the default for whole numbers, or
            those of ``"sampling"`` with unequal probabilities, with sandwich covariances.
        cluster: name of the column of whose values records are dependent, which gives sandwich
            covariances.
        prior_sd: standard deviations of the coefficients' prior around 0, in units after ``center``
            and ``scale``, by name; under ``""`` that of all others.
        prior: digest of a prior's file, instead of ``prior_sd``.
        noise_variance: of a linear model, after the target's ``scale``; ``"estimate"`` is the
            site's own, from the residuals of least squares.
        family: family of a regression's posterior.
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
    trials: str | None = None
    event: str | None = None
    entry: str | None = None
    cuts: tuple[float | int, ...] = ()
    hazard: str | None = None
    dispersion: float | str | None = None
    own: tuple[str, ...] = ()
    strata: tuple[str, ...] = ()
    offset: str | None = None
    weights: str | None = None
    weighting: str | None = None
    cluster: str | None = None
    prior_sd: Mapping[str, float | int] = dataclasses.field(default_factory=dict)
    prior: str | None = None
    noise_variance: float | int | str | None = None
    family: str = "gaussian"

    def __hash__(self) -> int:
        return hash(self.canonical())

    @property
    def baseline(self) -> tuple[str, ...]:
        """The names of the coefficients that replace an intercept; empty if there is one.

        For survival log hazards between cuts, or intercept and slope of one in (log) time; for
        ascending levels the log odds of exceeding each but the last.
        """
        if self.model in ORDERED:
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
        """The names of the target's levels; empty for a numeric target."""
        return self.categories.get(self.target or "", ())

    def canonical(self) -> str:
        """Return the recipe as JSON, which is equal for equal options in any order.

        >>> Recipe("poisson", "n", columns=("b", "a")).canonical()[:52]
        '{"categories":{},"center":{},"cluster":null,"columns'
        """
        options: dict[str, Any] = dataclasses.asdict(self)
        del options["without"]
        for key in ("columns", "own", "strata"):
            options[key] = sorted(options[key] or ())
        if self.intercept:  # otherwise the first category replaces it
            options["terms"] = sorted(self.terms, key=lambda term: (len(term), str(term)))
        options["center"] = {name: float(value) for name, value in self.center.items() if value}
        options["scale"] = {name: float(value) for name, value in self.scale.items() if value != 1}
        wide = self.prior_sd.get("")
        options["prior_sd"] = {
            name: float(sd) for name, sd in self.prior_sd.items() if not name or sd != wide
        }
        if isinstance(self.noise_variance, int):
            options["noise_variance"] = float(self.noise_variance)
        options["version"] = VERSION
        return json.dumps(options, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @property
    def in_one_form(self) -> bool:
        """True if parameters are no affine function of those in other units and levels."""
        means = not self.intercept and self.categories.keys() & {*(self.columns or ())}
        return bool(self.terms or self.baseline or means or self.model == "multinomial")

    @property
    def spread(self) -> str | None:
        """The option for the variation of records about their means; None if the model has none."""
        if self.model in DISPERSED:
            return "dispersion"
        return "noise_variance" if self.model == "linear" else None

    @property
    def indicated(self) -> set[str]:
        """The columns with an indicator of missing values."""
        return {name for kind, name, *_ in itertools.chain(*self.terms) if kind == MISSING}

    @property
    def conjugate(self) -> bool:
        """True if factors hold all information in the records: a linear model with known noise."""
        known = type(self.noise_variance) in (int, float) and self.family == "gaussian"
        return known and not self.robust

    @property
    def robust(self) -> bool:
        """True if covariances are sandwiches: of clusters, or of weights of sampling."""
        return self.cluster is not None or self.weighting == SAMPLING

    @property
    def shared(self) -> "Recipe":
        """The recipe of one site, or of sites that share all coefficients."""
        return self.replaced(own=(), strata=())

    def is_own(self, name: str) -> bool:
        """Return True if each site has a coefficient of its own for a column of the design.

        A column of texts includes all columns made from its levels, also in products.
        """
        return name in self.own or any(f":{own}[" in f":{name}" for own in self.own)

    @property
    def stratified(self) -> Strata:
        """The coefficients of sites that share all, and those that each site has for itself."""
        names = self.shared.coefficients()
        inputs = self.shared.inputs()
        places = (k for k in range(len(names)) if self.is_own(inputs[k % len(inputs)]))
        return Strata(names, frozenset(places) if self.strata else frozenset(), self.strata)

    def deviations(self) -> list[float]:
        """Return the prior standard deviations of the coefficients, in their order."""
        sd = self.prior_sd
        strata = self.stratified
        usual = [sd.get(strata.names[k], sd.get("", 1.0)) for k, _ in strata.coefficients]
        pairs = zip(self.coefficients(), usual, strict=True)
        return [float(sd.get(name, wide)) for name, wide in pairs]

    def coefficients(self) -> tuple[str, ...]:
        """Return the names of the coefficients: ``intercept``, ``age``, ``sex[male]``.

        In a multinomial model all levels but the first have them: ``mild:intercept``, ``mild:age``.
        """
        starts = [f"{level}:" for level in self.levels[1:]]
        starts = starts if self.model == "multinomial" else [""]
        return tuple(start + name for start in starts for name in self.inputs())

    def inputs(self) -> tuple[str, ...]:
        """Return the names of the design's columns; ``age@north`` belongs to one site alone."""
        names = [INTERCEPT] if self.intercept else []
        names = list(self.baseline) or names
        for term in self.coded():
            blocks = [self._factor_names(factor, full) for factor, full in term]
            names += [":".join(parts) for parts in itertools.product(*blocks)]

        def sites(name):
            return self.strata if self.strata and self.is_own(name) else ()

        each = ([f"{name}{AT}{site}" for site in sites(name)] or [name] for name in names)
        return tuple(itertools.chain(*each))

    def coded(self) -> list[list[tuple[Factor, bool]]]:
        """Return the factors of each term, and whether all levels of a category get a column.

        As in R, all do if the model does not contain the term without the category: for ``a:b``
        alone all levels of a category ``b``, for ``a + a:b`` all but the reference.
        """
        terms = self.terms or tuple(
            (("levels" if name in self.categories else "column", name),) for name in self._in_turn()
        )
        known = {frozenset(term) for term in terms}
        if self.intercept or self.baseline:
            known.add(frozenset())
        result = []
        for term in terms:
            own = []
            for factor in term:
                full = factor[0] == "levels" and frozenset(term) - {factor} not in known
                own.append((factor, full))
                if full and len(term) == 1:  # the first category replaces the intercept
                    known.add(frozenset())
            result.append(own)
        return result

    def _in_turn(self) -> Sequence[str]:
        """Return the columns; without an intercept the first category by name before all others,
        since all of its levels have a coefficient, at every site.
        """
        columns = list(self.columns or ())
        texts = sorted(name for name in columns if name in self.categories)
        if self.intercept or self.baseline or not texts:
            return columns
        return [texts[0], *(name for name in columns if name != texts[0])]

    def _factor_names(self, factor: Factor, full: bool) -> list[str]:
        kind, name, *numbers = factor
        if kind == "column":
            return [name]
        if kind == "levels":
            levels = self.categories[name]
            return [f"{name}[{level}]" for level in (levels if full else levels[1:])]
        if kind == "power":
            return [f"{name}^{numbers[0]:g}"]
        if kind == "spline":
            size = int(numbers[0]) + len(numbers) - 3  # of degree, two bounds and inner knots
            return [f"bs({name})[{place}]" for place in range(1, size + 1)]
        return [f"{kind}({name})"]

    def replaced(self, **changes: Any) -> "Recipe":
        """Return the recipe with other options."""
        return dataclasses.replace(self, **changes)

    def filled(self, columns: Sequence[str]) -> "Recipe":
        """Return the recipe with these columns, and with defaults for options left out."""
        own: dict[str, Any] = {"columns": tuple(columns)}
        if self.prior is None:
            usual = {} if "" in self.prior_sd else dict(PRIOR_SD.get(self.model, USUAL_SD))
            wide = usual.pop(INTERCEPT, None)
            if wide:
                usual |= dict.fromkeys(self.baseline or (INTERCEPT,) * self.intercept, wide)
            own["prior_sd"] = usual | dict(self.prior_sd)
        if self.spread is not None and getattr(self, self.spread) is None:
            own[self.spread] = ESTIMATE
        return self.replaced(**own)

    def describe(self) -> list[str]:
        """Return sentences for people on the target and its predictors."""
        used = [self._column(name) for name in self.columns or ()]
        if self.terms:
            written = self.shared.inputs()[len(self.baseline) or int(self.intercept) :]
            used = [f"{', '.join(written)} of {', '.join(used)}"]
        target = self._column(self.target or "")
        if len(self.levels) == 2:
            target = f"{self.target} ({self.levels[1]} rather than {self.levels[0]})"
        ones = ["an intercept"] if self.intercept else []
        ones = [f"a {self.hazard} hazard"] if self.hazard else ones
        if self.cuts:
            what = "a spline hazard with knots" if self.hazard else "hazards that change"
            ones = [f"{what} at {', '.join(map(str, self.cuts))}"]
        predictors = ", ".join([*ones, *used])
        link = LINKS.get(self.model, "log")
        named = {name: getattr(self, name.lower()) for name in ("Event", "Entry", "Exposure")}
        weighed = "Weights of sampling" if self.weighting == SAMPLING else "Counts of records"
        named |= {"Offset": self.offset, weighed: self.weights, "Trials": self.trials}
        named |= {"Records are dependent, with sandwich covariances, within": self.cluster}
        named |= {"Each site has for itself": ", ".join(self.own)}
        return [
            f"Predicts {target} from {predictors}: {self.model} regression, link {link}.",
            *(f"{what}: {column}." for what, column in named.items() if column),
        ]

    def _column(self, name: str) -> str:
        levels = self.categories.get(name)
        if levels is not None:
            return f"{name} (levels {', '.join(levels)})"
        unit = self.unit.get(name)
        center = self.center.get(name)
        scale = self.scale.get(name, 1)
        parts = [f"in {unit}"] if unit else []
        parts += [f"from {center:g}"] if center else []
        parts += [f"by {scale:g}"] if scale != 1 else []
        return f"{name} ({', '.join(parts)})" if parts else name


_PLAIN = Recipe("linear", columns=())


def check_recipe(recipe: Recipe) -> None:
    """Raise a UsageError for options that are of another type than declared, or contradict each
    other, for any records.
    """
    for key, value in vars(recipe).items():
        if key not in FIELDS or (key == "columns" and value is None):
            continue
        each = {key: value}
        kind = type(getattr(_PLAIN, key))
        if kind in CONTAINERS:
            CONTAINERS[kind].check(**each)
            named = value.items() if kind is dict else enumerate(value)
            each = {f"{key} {name}" if name != "" else key: own for name, own in named}
        FIELDS[key].check(**each)
    check_rules(recipe)


def recipe_in(provenance: Mapping[str, str]) -> Recipe | None:
    """Return the recipe in a file's provenance, or None. Raises an ArtifactError if it is one that
    :func:`check_recipe` refuses.

    >>> from posterity.tabular.sites import as_provenance
    >>> recipe_in(as_provenance(Recipe("linear", "y", ("x",)))).target
    'y'
    """
    if RECIPE not in provenance:
        return None
    options = _frozen(parsed(provenance[RECIPE], RECIPE))
    version = options.pop("version", None)
    known = version == VERSION and {"model"} <= options.keys() <= FIELDS.keys()
    if not known or options.get("columns") is None:
        raise altered(cut(f"a recipe of version {version} with {', '.join(options)}"))
    try:
        recipe = Recipe(**options)
        check_recipe(recipe)
    except PosterityError as error:
        raise altered(cut(f"a recipe with {error.found}")) from error
    for kind, name, *_ in itertools.chain(*recipe.terms):
        if name not in options["columns"] or (kind == "levels") != (name in recipe.categories):
            raise altered(cut(f"a recipe with a term {kind} of no such column: {name!r}"))
    return recipe


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(own) for name, own in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
