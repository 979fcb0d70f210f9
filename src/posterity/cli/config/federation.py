"""A federation described in a TOML file: who takes part, with which model, in which order."""

import dataclasses
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import networkx
import numpy as np

import posterity.cli.config.schema as schema
from posterity import families, federation, graphs, models
from posterity.artifact.aligned import names_in, ordered
from posterity.cli import files
from posterity.cli.config.columns import in_one_order, read_tables
from posterity.cli.config.site_files import clean
from posterity.cli.config.toml import convert, made, one_of, read
from posterity.errors import PosterityError, StructureError, UsageError
from posterity.families import ExponentialFamily
from posterity.families.names import Names, some
from posterity.federation.federate import start
from posterity.federation.tables import SPREAD, by_column, columns_of, with_columns
from posterity.inference.choice import ESTIMATORS
from posterity.inference.update import LocalUpdate

MODELS: dict[str, Callable[..., Any]] = {
    "beta-bernoulli": models.BetaBernoulli,
    "beta-exponential": models.BetaExponential,
    "dirichlet-categorical": models.DirichletCategorical,
    "gamma-poisson": models.GammaPoisson,
    "gaussian-mean": models.GaussianMean,
    "gaussian-mean-covariance": models.GaussianMeanCovariance,
    "linear-regression": models.LinearRegression,
    "logistic-regression": models.LogisticRegression,
}
WITH_INTERCEPT = ("function", "linear-regression", "logistic-regression")
FAMILIES = {name: law for name, law in families.exported().items() if getattr(law, "standard", 0)}
"""Those whose standard parameters are numbers."""
SCHEDULES: dict[str, Callable[..., Any]] = {
    "sequential": federation.Sequential,
    "synchronous": federation.Synchronous,
    "asynchronous": federation.Asynchronous,
}
GRAPHS = {"complete": graphs.complete, "ring": graphs.ring, "star": graphs.star}
WALKS: dict[str, Callable[..., Any]] = {
    "metropolis-hastings": graphs.MetropolisHastings,
    "non-backtracking": graphs.NonBacktracking,
    "weighted": graphs.WeightedMetropolisHastings,
}


@dataclasses.dataclass(frozen=True)
class Config:
    """A federation ready to start, the files that it was read from, and those it will write.

    ``notes`` are what a user should know of the records.
    """

    start: Callable[[], federation.Run]
    inputs: tuple[Path, ...]
    steps: int | None
    until: float | None
    output: Path
    checkpoint: Path
    history: Path | None
    notes: tuple[str, ...]

    @property
    def outputs(self) -> list[Path]:
        """All files that it writes."""
        return [file for file in (self.output, self.checkpoint, self.history) if file]


def load_config(path: Path, names: Names | None = None) -> Config:
    """Read a TOML file; paths in it are relative to its folder. See ``docs/federate.md``.

    The records' columns are put in the order of the ``names`` of a ledger's coordinates, of the
    prior's file, or of the first site that has names, whichever there is first.

    Raises:
        UsageError: if it is no TOML, or says something that makes no sense.
        ArtifactError: if it, or a file that it names, cannot be read.
        StructureError: if sites have columns of other names.
    """
    try:
        return _config(read(path), path, names or {})
    except PosterityError as error:
        raise error.at(f"configuration {str(path)!r}") from error


def _config(about: schema.Federation, path: Path, wanted: Names) -> Config:
    folder, output, kind = path.parent, about.output, about.model
    _check_intercept(kind)
    target = kind.target and clean(kind.target)
    paths = {site: folder / name for site, name in about.sites.items()}
    tables = read_tables(paths, target, kind.intercept)
    bare = [site for site, table in tables.items() if table.y is None]
    if kind.intercept and kind.kind == "function" and bare:
        raise StructureError(
            found=f"model.intercept = true, and no target at {some(bare)}",
            expected="x and y, of which x gets a column of ones",
            fix="Leave model.intercept out, or name the target in model.target.",
        )
    key = jax.random.key(about.seed)
    model = _model(kind, folder, {site: table.data for site, table in tables.items()}, key)
    prior, inputs = _prior(about.prior, model, folder, key)
    regression = isinstance(model, models.LinearRegression | models.LogisticRegression)
    named = next((own for path, own in wanted.items() if path != SPREAD), ())
    columns = in_one_order(tables, named or columns_of(prior), target, regression)
    _check_dimension(prior, columns.names, regression)
    order = dict.fromkeys(by_column(prior, len(columns.names)), columns.names)
    prior = with_columns(ordered(prior, order, "the prior", "the records"), columns.names)
    personal = _personal(kind.personal, columns.names)
    if SPREAD in names_in(prior):
        own = {SPREAD: tuple(_called(personal, columns.names))}
        prior = ordered(prior, own, "the prior", "model.personal")
    options = {
        "schedule": _schedule(about.schedule, sorted(paths)),
        "update": _update(about.update),
        "key": key,
        "personal": personal,
        "tolerance": about.schedule.until,
        **about.given("sites", "model", "prior", "schedule", "output", "update", "seed"),
    }
    return Config(
        start=lambda: start(columns.data, model, prior, **options),
        inputs=(path, *paths.values(), *inputs),
        steps=about.schedule.steps,
        until=about.schedule.until,
        output=folder / output.ledger,
        checkpoint=folder / (output.checkpoint or f"{output.ledger}.checkpoint"),
        history=None if output.history is None else folder / output.history,
        notes=columns.notes,
    )


def _check_intercept(about: schema.Model) -> None:
    if about.intercept and about.kind not in WITH_INTERCEPT:
        raise UsageError(
            found=f"model.intercept = true beside model.kind = {about.kind!r}",
            expected=f"one of {list(WITH_INTERCEPT)}, which see a column of ones",
            fix="Leave model.intercept out.",
        )


def _check_dimension(prior: ExponentialFamily, names: Sequence[str], regression: bool) -> None:
    """The same the library checks, but it does not know the columns' names."""
    size = getattr(prior, "own_size", 0)
    if regression and names and size != len(names) and not by_column(prior, len(names)):
        raise StructureError(
            found=f"a prior of {size} dimensions for {len(names)} columns {some(names)}",
            expected="a coefficient for each column, in this order",
            fix="Give the prior as many dimensions; set model.target if one is no input.",
        )


# --- model and prior -----------------------------------------------------------------------------


def _model(about: schema.Model, folder: Path, sites: Mapping[str, Any], key: jax.Array) -> Any:
    network = functools.partial(_network, sites, key)
    kinds = MODELS | {"function": functools.partial(_function, folder), "network": network}
    options = about.given("kind", "target", "intercept", "personal")
    return made(one_of(kinds, about.kind, "model.kind"), options, "model")


def _personal(about: Any, names: Sequence[str]) -> Any:
    """As :func:`posterity.federate` takes it, columns by their numbers: in TOML by name, or so."""
    if about is None or isinstance(about, bool):
        return bool(about)
    places = [_place(clean(str(column)), names) for column in about]
    if len(set(places)) < len(places):
        raise UsageError(
            found=f"model.personal with a column named twice: {some(list(map(str, about)))}",
            expected="each column once, by its name or its number",
            fix="Leave one out.",
        )
    return dict(zip(places, about.values(), strict=True)) if isinstance(about, dict) else places


def _called(personal: Any, names: Sequence[str]) -> list[str]:
    """The columns that differ between sites, in the order of their spreads."""
    if isinstance(personal, bool):
        return list(names) if personal else []
    return [name for place, name in enumerate(names) if place in personal]


def _place(column: str, names: Sequence[str]) -> int:
    if column in names:
        return list(names).index(column)
    if column.isdecimal():
        return int(column)
    raise UsageError(
        found=f"model.personal for a column {column!r}",
        expected=f"columns among {some(names)}, or their numbers, from 0",
        fix="Name them as the tables do.",
    )


def _network(
    sites: Mapping[str, Any], key: jax.Array, *, outputs: int = 1, width: int = 16, depth: int = 1,
    **options: Any,
) -> models.NeuralNetwork:  # fmt: skip
    """A perceptron with tanh units; its initial weights only give the shapes."""
    x = next((data[0] for data in sites.values() if isinstance(data, tuple)), np.zeros((0, 1)))
    if x.ndim != 2:
        raise StructureError(
            found=f"inputs x of shape {x.shape}",
            expected="one row a record, as the layers of a network of this kind need",
            fix="Save x of shape (n, d).",
        )
    tanh = jax.numpy.tanh
    perceptron = eqx.nn.MLP(x.shape[1], outputs, width, depth, activation=tanh, key=key)
    return models.NeuralNetwork.from_equinox(perceptron, **options)


def _function(folder: Path, *, function: str) -> models.FunctionModel:
    """Of ``module:attribute``, where the module may lie beside the configuration."""
    module, _, attribute = function.partition(":")
    sys.path.insert(0, str(folder.resolve()))
    try:
        found = getattr(importlib.import_module(module), attribute)
        if not callable(found):
            raise TypeError(f"a {type(found).__name__}")
        return models.FunctionModel(found)
    except (Exception, SystemExit) as error:  # whatever the module does while it is imported
        raise UsageError(
            found=f"function {function!r} that cannot be imported ({error!r})",
            expected="'module:function', the log likelihood of a batch",
            fix="Put the module beside the configuration, or install it.",
        ) from error
    finally:
        sys.path.pop(0)


def _prior(
    about: dict[str, Any], model: Any, folder: Path, key: jax.Array
) -> tuple[ExponentialFamily, list[Path]]:
    """The prior, and the file that it was read from, if any."""
    if isinstance(model, models.NeuralNetwork):
        table = schema.table(variance=schema.Positive)
        variance = convert({"variance": 1.0, **about}, table, "prior").variance
        return model.prior(variance=variance, key=key), []
    if "file" in about:
        file = folder / convert(about, schema.table(file=str), "prior").file
        return files.read_prior(file)[0], [file]
    family = one_of(FAMILIES, about.get("family"), "prior.family")
    names = inspect.signature(family.from_standard).parameters
    table = schema.table(family=str, **dict.fromkeys(names, schema.Numbers))
    make = lambda **values: family.from_standard(
        **{name: np.asarray(value, float) for name, value in values.items()}
    )
    return made(make, convert(about, table, "prior").given("family"), "prior"), []


# --- who updates when, and how -------------------------------------------------------------------


def _schedule(about: schema.Schedule, sites: list[str]) -> federation.Schedule:
    kinds = SCHEDULES | {"gossip": functools.partial(_gossip, sites)}
    make = one_of(kinds, about.kind, "schedule.kind")
    return made(make, about.given("kind", "steps", "until"), "schedule")


def _gossip(
    sites: list[str], *, graph: str | None = None, links: Sequence[tuple[str, str]] = (),
    walk: str = "metropolis-hastings", start: str | None = None, **options: Any,
) -> federation.Gossip:  # fmt: skip
    if (graph is None) == (not links):
        raise UsageError(
            found=f"schedule.graph = {graph!r} and {len(links)} links",
            expected="a graph by its name, or links",
            fix=f"Name one of {list(GRAPHS)}, or list pairs of sites.",
        )
    linked = networkx.Graph(links)
    linked.add_nodes_from(sites)
    network = linked if graph is None else one_of(GRAPHS, graph, "schedule.graph")(sites)
    route = one_of(WALKS, walk, "schedule.walk")(**options)
    return federation.Gossip(network, walk=route, start=start)


def _update(about: schema.Update) -> LocalUpdate:
    options = about.given()
    if {"estimator", "samples"} & set(options):
        kind = one_of(ESTIMATORS, about.estimator, "update.estimator")
        samples = {key: options.pop(key) for key in ("samples",) if key in options}
        options["estimator"] = made(kind, samples, "update")
    return made(LocalUpdate, options, "update")
