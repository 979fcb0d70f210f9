"""Federations, and models with their records, made from settings."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity import models
from posterity.arrays.keys import seeded
from posterity.arrays.typing import KeyArray
from posterity.artifact import provenance
from posterity.cli import files
from posterity.cli.options import Settings, conflict, incomplete
from posterity.cli.recipes import recipe_of, records_of_sites
from posterity.cli.schema import options_of
from posterity.cli.schema import places_of as options_in
from posterity.entries import dependent
from posterity.errors import StructureError, UsageError
from posterity.families import Distribution
from posterity.families.names import Names, some
from posterity.federation import Run, specification
from posterity.federation.federate import start
from posterity.federation.specification import one_of
from posterity.ledger import Ledger
from posterity.models.tables import SPREAD
from posterity.runtime.files import named as split_name
from posterity.tabular.federated import arranged, robust_ledger
from posterity.tabular.fitting import prior_of
from posterity.tabular.multicentre import NOISE_OF_ONE, Sites
from posterity.tabular.options import DISPERSED
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.records import TARGET, Table, oddities, read_sites
from posterity.tabular.rows import Design
from posterity.tabular.sites import as_provenance, twice
from posterity.tabular.tables.reader import clean

OF_SITES = dict.fromkeys((*specification.MODELS, "function", "network"))
OF_ONE_TABLE: dict[str, Any] = dict.fromkeys(("network", *specification.REGRESSIONS))
"""Models of many sites, and models of one table of records."""
WITH_INTERCEPT = ("function", *specification.REGRESSIONS)
"""Models that accept a column of ones."""
OF_REGRESSIONS = (
    *("kind", "target", "intercept", "noise_variance", "personal"),
    *(option.key for option in options_of("recipe") if option.place.startswith("model.")),
)
"""Options of regression models."""


@dataclasses.dataclass(frozen=True)
class Federated:
    """A federation that is ready to start: arguments of :func:`posterity.federate`.

    ``record`` is the provenance of its ledger: the recipe, if the records are tables. ``pooled`` is
    whether the model's noise variance or dispersion was estimated from several sites. ``designs``
    are those of tables, by site.
    """

    arguments: dict[str, Any]
    steps: int | None
    notes: tuple[str, ...]
    record: dict[str, str]
    pooled: bool
    designs: Mapping[str, Design] = dataclasses.field(default_factory=dict)

    def start(self) -> Run:
        """Return the run before its first step."""
        return start(**self.arguments)

    def marked(self, ledger: Ledger) -> Ledger:
        """Return the ledger with the covariances of its recipe, and with no factor marked as
        independent if the noise is ``pooled``, or slopes are at the mean of all sites.
        """
        recipe = recipe_in(self.record)
        if recipe is not None and recipe.robust:
            arguments = self.arguments
            return robust_ledger(ledger, arguments["model"], arguments["sites"], self.designs)
        return ledger.holding(dependent(ledger.entries)) if self.pooled else ledger


def federation_of(
    settings: Settings, ledger: Names | None = None, without: Collection[str] = ()
) -> Federated:
    """Return the federation that settings describe.

    Columns of the records are put in the order of names: of a ``ledger``'s coordinates, else of the
    prior's file, else of the first site that has names. A noise variance or dispersion is estimated
    without the records of the sites ``without``, whose tables need not exist.
    """
    kind = _kind(settings)
    intercept = _intercept(settings, kind, OF_SITES)
    key = seeded(settings["seed"])
    target = settings["model.target"]
    paths, gone = _paths(settings, without)
    given = bool(settings.table("prior", "sd"))
    names = next((own for path, own in (ledger or {}).items() if path != SPREAD), ())
    of_recipe = _of_recipe(settings, kind, paths, estimate=not given, without=without, names=names)
    if of_recipe is None:
        tables = read_sites(paths, target, intercept)
        recipe = None
        data = {site: table.data for site, table in tables.items()}
        _check_labels(tables, intercept and kind == "function")
        options = settings.table("model", "kind", "target", "intercept", "personal")
        model = specification.make_model(kind, options, data, folder=settings.folder)
    else:
        tables = of_recipe.tables
        recipe = of_recipe.recipe
        target = recipe.target
        model = of_recipe.model
        _check_recipe(settings, recipe, given)
    if recipe is None or given:
        prior = _prior(settings, model, key)
    else:
        prior = _of_units(recipe, next(iter(tables.values())).names)
    own: Any = {"names": names, "target": target, "personal": settings["model.personal"]}
    job = arranged(tables, model, prior, recipe, given=given, **own)
    schedule = settings.table("schedule", "kind", "steps", "tolerance")
    sites = sorted({*paths, *gone})
    arguments = {
        "sites": job.data | dict.fromkeys(gone),
        "model": model,
        "prior": job.prior,
        "schedule": specification.make_schedule(settings["schedule.kind"], schedule, sites),
        "update": specification.make_update(settings.table("update")),
        "weights": settings["weights"],
        "personal": job.personal,
        "tolerance": settings["schedule.tolerance"],
        "key": key,
    }
    steps = settings["schedule.steps"]
    if of_recipe is None:
        notes = (*job.notes, *_of_noise(settings, kind))
        return Federated(arguments, steps, notes, {}, pooled=False)
    record = as_provenance(job.recipe, of_recipe.facts)
    notes = (*job.notes, *of_recipe.notes)
    return Federated(arguments, steps, notes, record, of_recipe.pooled, of_recipe.designs)


def _paths(settings: Settings, without: Collection[str]) -> tuple[dict[str, Path], set[str]]:
    """Return the sites' files, and the sites ``without`` which do not need one, unless all do."""
    named = [(name or path.stem, path) for name, path in map(split_name, settings.files)]
    names = [name for name, _ in named] + [*(settings["sites"] or {})] * bool(named)
    for name in names:
        if names.count(name) > 1:
            raise twice("tables", name)
    given = dict(named) or settings.need("sites")
    paths = {site: Path(path) for site, path in {**given, **(settings["sites"] or {})}.items()}
    gone = {site for site in without if site not in paths or not paths[site].exists()}
    gone = gone if {*paths} - gone else set[str]()
    return {site: path for site, path in paths.items() if site not in gone}, gone


def _check_labels(tables: Mapping[str, Table], needed: bool) -> None:
    unlabelled = [site for site, table in tables.items() if table.y is None]
    if needed and unlabelled:
        raise StructureError(
            found=f"model.intercept = true, and no target at {some(unlabelled)}",
            expected="inputs x and a target y at every site",
        )


def _check_recipe(settings: Settings, recipe: Recipe, given: bool) -> None:
    if given and settings["prior.sd"]:
        raise conflict("--prior-sd", "another prior")
    if settings["model.personal"] not in (None, False):
        if recipe.own:
            raise conflict("--own", "--personal")
        if recipe.robust:
            raise conflict(
                "--cluster or --weights sampling", "--personal, whose sites are clusters"
            )


def _kind(settings: Settings, usual: str | None = None) -> str:
    """Return the name of the model, from flags or from the recipe of the file after ``--like``."""
    like = settings.path("data.like")
    if like is not None and settings["model.kind"] is None:
        return specification.full_name(recipe_of(like).model)
    return specification.full_name(usual or settings.need("model.kind"))


def _of_recipe(
    settings: Settings,
    kind: str,
    paths: Mapping[str, Path],
    *,
    estimate: bool,
    without: Collection[str] = (),
    names: tuple[str, ...] = (),
) -> Sites | None:
    """Return a regression's records if all files are tables; None for arrays and other models."""
    tabular = all(path.suffix.lower() not in (".npz", ".npy") for path in paths.values())
    if kind in specification.REGRESSIONS and tabular:
        others = settings.table("model", *OF_REGRESSIONS)
        specification.check_keys(others, [], "model")
        options: Any = {"estimate": estimate, "names": names}
        return records_of_sites(settings, paths, without=without, **options)
    of_tables = options_in("recipe", "reading") | {"data.drop_missing", "tables"}
    of_tables -= {"model.dispersion"}  # also an option of the model
    given = [settings.flag(place) for place in settings.values if place in of_tables]
    if given or kind in specification.OF_TABLES:
        raise UsageError(
            found=f"{given[0] if given else 'arrays'} with model {kind}",
            expected="a regression whose records are tables with a header",
            fix="Leave it out; a network takes all columns but the target, as numbers.",
        )
    if kind.removesuffix("-regression") in DISPERSED and settings["model.dispersion"] is None:
        raise UsageError(
            found=f"arrays with model {kind}, and no dispersion",
            expected="a known one, as it is estimated of tables alone",
            fix="Pass --dispersion V, or save the records as .csv files with a header.",
        )
    return None


def _intercept(settings: Settings, kind: str, kinds: Mapping[Any, Any]) -> bool:
    """Return whether inputs get a column of ones; a UsageError if the model does not accept it."""
    one_of(kinds, kind, "model.kind")
    if settings["model.intercept"] and kind not in WITH_INTERCEPT:
        raise UsageError(
            found=f"model.intercept = true with model.kind = {kind!r}",
            expected="a regression or a function: layers have biases",
        )
    return bool(settings["model.intercept"])


def _of_noise(settings: Settings, kind: str) -> list[str]:
    """Return a note on the noise of a linear model of arrays, if none was given."""
    linear = kind == "linear-regression" and settings["model.noise_variance"] is None
    return [NOISE_OF_ONE] if linear else []


def _prior(settings: Settings, model: models.Model, key: KeyArray) -> Distribution:
    path = settings.path("prior.file")
    options = settings.table("prior", "file")
    if path is None:
        return specification.make_prior(options, model, key)
    if options:
        raise conflict("prior.file", f"prior.{next(iter(options))}")
    return files.read_prior(path)[0]


def _of_units(recipe: Recipe, names: tuple[str, ...]) -> Any:
    """Return the prior that a recipe describes by standard deviations."""
    if recipe.prior is not None:
        raise incomplete("--like of a fit with a --prior", "that prior's file (--prior)")
    return prior_of(names, recipe, None)


class Problem(NamedTuple):
    """A ``model`` of a ``kind``, its ``prior``, and its ``data`` (x, y).

    ``names`` are those of the columns of x.
    """

    kind: str
    model: Any
    prior: Any
    data: tuple[np.ndarray, np.ndarray]
    names: tuple[str, ...]
    notes: tuple[str, ...]
    record: dict[str, str]


def problem_of(settings: Settings) -> Problem:
    """Return the model that the option group ``network`` describes, and its records."""
    path = settings.single("data.file")
    kind = _kind(settings, settings["model.kind"] or "network")
    intercept = _intercept(settings, kind, OF_ONE_TABLE)
    sites = _of_recipe(settings, kind, {path.stem: path}, estimate=False)
    if sites is not None:
        return _regression(settings, kind, sites)
    target = settings["model.target"]
    labels = kind == "network" and settings["model.likelihood"] != "gaussian"
    (table,) = read_sites({path.stem: path}, target, intercept, texts=labels).values()
    if table.y is None:
        raise StructureError(
            found=f"data '{path}' without labels",
            expected="x and y, or a column that model.target names",
        )
    options = settings.table("model", "kind", "target", "intercept")
    needed = kind != "network"
    variance = settings.need("prior.variance") if needed else settings["prior.variance"]
    model, prior = specification.make_model_and_prior(kind, options, variance, *table.data)
    notes = _of_noise(settings, kind)
    record = {}
    if kind != "network":
        notes = [*oddities([table.x], table.names), *notes]
    if table.names:
        record = provenance.of_target(clean(target or TARGET), table.classes)
        notes += [provenance.named(table.classes)] if table.classes else []
    return Problem(kind, model, prior, table.data, table.names, tuple(notes), record)


def _regression(settings: Settings, kind: str, sites: Sites) -> Problem:
    (table,) = sites.tables.values()
    recipe = sites.recipe
    if recipe.robust:
        raise UsageError(
            found="--cluster or --weights sampling of a posterior that is sampled or pursued",
            expected="fit or federate, which have sandwich covariances",
        )
    known = settings["prior.sd"] or settings["data.like"]
    variance = settings["prior.variance"] if known else settings.need("prior.variance")
    found = f"{settings.flag('prior.variance')} of several numbers for a regression"
    UsageError.check((isinstance(variance, list), found, "one number, of each coefficient"))
    if variance is not None:
        recipe = dataclasses.replace(recipe, prior_sd={"": variance**0.5})
    prior = _of_units(recipe, table.names)
    notes = (*sites.notes, *oddities([table.inputs], table.names))
    record = as_provenance(recipe, sites.facts)
    return Problem(kind, sites.model, prior, table.data, table.names, notes, record)
