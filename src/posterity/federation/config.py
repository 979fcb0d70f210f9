"""A federation described in a TOML file: who takes part, with which model, in which order."""

import dataclasses
import importlib
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import networkx
import numpy as np

import posterity.families as families
import posterity.models as models
from posterity.artifact import load
from posterity.errors import PosterityError, UsageError
from posterity.families import ExponentialFamily
from posterity.federation import network, walks
from posterity.federation.estimators import ESTIMATORS
from posterity.federation.federate import start
from posterity.federation.gossip import Gossip
from posterity.federation.grid import REACH
from posterity.federation.run import Run
from posterity.federation.schedules import Asynchronous, Schedule, Sequential, Synchronous
from posterity.federation.update import LocalUpdate
from posterity.federation.walks import MetropolisHastings, NonBacktracking, Walk
from posterity.models import FunctionModel, Model, NeuralNetwork

MODELS: dict[str, Callable[..., Model]] = {
    "beta-bernoulli": models.BetaBernoulli,
    "beta-exponential": models.BetaExponential,
    "dirichlet-categorical": models.DirichletCategorical,
    "gamma-poisson": models.GammaPoisson,
    "gaussian-mean": models.GaussianMean,
    "gaussian-mean-covariance": models.GaussianMeanCovariance,
    "linear-regression": models.LinearRegression,
    "logistic-regression": models.LogisticRegression,
}
GRAPHS: dict[str, Callable[..., Any]] = {
    "complete": network.complete,
    "ring": network.ring,
    "star": network.star,
}
WALKS: dict[str, Callable[..., Walk]] = {
    "metropolis-hastings": MetropolisHastings,
    "non-backtracking": NonBacktracking,
    "weighted": walks.WeightedMetropolisHastings,
}


@dataclasses.dataclass(frozen=True)
class Config:
    """A federation ready to start, and where to keep what comes of it."""

    start: Callable[[], Run]
    steps: int
    output: Path
    checkpoint: Path
    every: int
    history: Path | None


def load_config(path: Path) -> Config:
    """Read a TOML file; paths in it are relative to its folder. See ``docs/federate.md``.

    Raises:
        UsageError: if it cannot be read, or says something that makes no sense.
    """
    try:
        table = Table(tomllib.loads(path.read_text(encoding="utf-8")), "")
    except (OSError, ValueError) as error:
        raise UsageError(
            found=f"configuration {str(path)!r} that cannot be read ({error})",
            expected="a TOML file",
            fix="Mend the path or the line.",
        ) from error
    try:
        config = _config(table, path.parent)
        table.finish()
    except PosterityError as error:
        raise error.at(f"configuration {str(path)!r}") from error
    return config


class Table:
    """A table of the file, from which every key must be taken."""

    def __init__(self, values: Mapping[str, Any], name: str):
        self.values, self.name, self.taken = dict(values), name, list[str]()
        self.tables: list[Table] = []

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
        """The value of ``key``; a UsageError if it is missing or of another type."""
        self.taken.append(key)
        value = self.values.get(key, default)
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        if value is ... or (key in self.values and wrong):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise UsageError(
                found=f"no {self._full(key)}" if value is ... else f"{self._full(key)} = {value!r}",
                expected=f"{self._full(key)}, a {' or '.join(k.__name__ for k in kinds)}",
                fix="See docs/federate.md for a complete file.",
            )
        return value

    def choice(self, key: str, choices: Mapping[str, Any], default: Any = ...) -> Any:
        """The value of ``key``, which must be one of ``choices``."""
        value: Any = self.take(key, str, default)
        if value is not None and value not in choices:
            raise UsageError(
                found=f"{self._full(key)} = {value!r}",
                expected=f"one of {list(choices)}",
                fix="Choose one of these.",
            )
        return value

    def table(self, key: str, default: Any = ...) -> "Table":
        """The table of this name."""
        self.tables.append(Table(self.take(key, dict, default), self._full(key)))
        return self.tables[-1]

    def rest(self) -> dict[str, Any]:
        """All that was not taken yet."""
        left = {key: value for key, value in self.values.items() if key not in self.taken}
        self.taken += list(left)
        return left

    def finish(self) -> None:
        """Raise a UsageError if there is a key that nobody took."""
        unknown = [self._full(key) for key in self.values if key not in self.taken]
        if unknown:
            raise UsageError(
                found=f"{', '.join(unknown)}, of which nothing is known",
                expected=f"keys among {sorted(set(self.taken))}",
                fix="Check the spelling, or remove them.",
            )
        for table in self.tables:
            table.finish()

    def _full(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key


def _config(table: Table, folder: Path) -> Config:
    files = table.table("sites")
    sites = {name: read_site(folder / str(file)) for name, file in files.rest().items()}
    seed = table.take("seed", int, 0)
    model, prior = _model_and_prior(table, folder, sites, seed)
    schedule, steps = _schedule(table.table("schedule"), sorted(sites))
    update = _update(table.table("update", {}))
    reach = float(table.take("reach", (int, float), REACH))
    weights = {name: float(w) for name, w in table.table("weights", {}).rest().items()}
    output = table.table("output")
    path = folder / output.take("ledger", str)
    default = f"{path.name}.checkpoint"
    history = output.take("history", str, None)
    return Config(
        start=lambda: start(
            sites,
            model,
            prior,
            schedule=schedule,
            update=update,
            weights=weights,
            reach=reach,
            key=jax.random.key(seed),
        ),
        steps=steps,
        output=path,
        checkpoint=path.parent / output.take("checkpoint", str, default),
        every=output.take("every", int, 10),
        history=None if history is None else folder / history,
    )


def read_site(path: Path) -> Any:
    """A site's records: an ``.npz`` with ``x`` or ``x`` and ``y``, or a ``.csv`` with a header.

    Of a table, the column ``y`` is the label and all others, in their order, are ``x``; one
    column alone is a vector.

    Raises:
        UsageError: if the file cannot be read or holds something else.
    """
    try:
        columns = _npz(path) if path.suffix == ".npz" else _csv(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            found=f"data {str(path)!r} that cannot be read ({error})",
            expected="an .npz file with x (and y), or a .csv file of numbers with a header",
            fix="Mend the path or the file.",
        ) from error
    if not {"x"} <= set(columns) <= {"x", "y"}:
        raise UsageError(
            found=f"arrays {sorted(columns)} in {str(path)!r}",
            expected="x, or x and y",
            fix="Save them by these names.",
        )
    return (columns["x"], columns["y"]) if "y" in columns else columns["x"]


def _npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(encoding="utf-8") as file:
        names = [name.strip() for name in file.readline().split(",")]
        values = np.loadtxt(file, delimiter=",", ndmin=2).reshape(-1, len(names))
    x = values[:, [index for index, name in enumerate(names) if name != "y"]]
    columns = {"x": x[:, 0] if x.shape[1] == 1 and "y" not in names else x}
    return columns | ({"y": values[:, names.index("y")]} if "y" in names else {})


def _model_and_prior(
    table: Table, folder: Path, sites: Mapping[str, Any], seed: int
) -> tuple[Model, ExponentialFamily]:
    about, prior = table.table("model"), table.table("prior")
    kind = about.choice("kind", {**MODELS, "function": None, "network": None})
    if kind == "network":
        net = _network(about, sites, seed)
        variance = float(prior.take("variance", (int, float), 1.0))
        return net, net.prior(variance=variance, key=jax.random.key(seed))
    if kind == "function":
        return FunctionModel(_function(about.take("function", str), folder)), _prior(prior, folder)
    return _made(MODELS[kind], about, kind), _prior(prior, folder)


def _network(about: Table, sites: Mapping[str, Any], seed: int) -> NeuralNetwork:
    """A perceptron with tanh units; its initial weights only give the shapes."""
    x = next((data[0] for data in sites.values() if isinstance(data, tuple)), np.zeros((0, 1)))
    perceptron = eqx.nn.MLP(
        x.shape[1],
        about.take("outputs", int, 1),
        about.take("width", int, 16),
        about.take("depth", int, 1),
        activation=jax.numpy.tanh,
        key=jax.random.key(seed),
    )
    likelihood = about.take("likelihood", str)
    return NeuralNetwork.from_equinox(perceptron, likelihood=likelihood, **about.rest())


def _function(name: str, folder: Path) -> Callable[[Any, Any], Any]:
    """``module:attribute``, where the module may lie beside the configuration."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(folder.resolve()))
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            found=f"function {name!r} that cannot be imported ({error})",
            expected="'module:function', the log likelihood of a batch",
            fix="Put the module beside the configuration, or install it.",
        ) from error
    finally:
        sys.path.pop(0)


def _prior(about: Table, folder: Path) -> ExponentialFamily:
    file = about.take("file", str, None)
    if file is not None:
        return load(folder / file)  # type: ignore[return-value]  # `start` checks what it is
    known = {name: getattr(families, name) for name in families.__all__ if name[0].isupper()}
    family = known[about.choice("family", known)]
    return _made(family.from_standard, about, family.__name__, np.asarray)


def _schedule(about: Table, sites: list[str]) -> tuple[Schedule, int]:
    kinds = ("gossip", "sequential", "synchronous", "asynchronous")
    kind = about.choice("kind", dict.fromkeys(kinds), "sequential")
    steps = about.take("steps", int)
    if kind == "gossip":
        return _gossip(about, sites), steps
    plain = {"sequential": Sequential, "synchronous": Synchronous, "asynchronous": Asynchronous}
    return _made(plain[kind], about, kind), steps


def _gossip(about: Table, sites: list[str]) -> Gossip:
    links = about.take("links", list, None)
    if links is None:
        graph = GRAPHS[about.choice("graph", GRAPHS)](sites)
    else:
        graph = networkx.Graph()
        graph.add_nodes_from(sites)
        graph.add_edges_from(_pairs(links))
    walk = about.choice("walk", WALKS, "metropolis-hastings")
    options = [about.table("weights").rest()] if walk == "weighted" else []
    return Gossip(graph, walk=WALKS[walk](*options), start=about.take("start", str, None))


def _pairs(links: list[Any]) -> list[Any]:
    for link in links:
        if not (isinstance(link, list) and len(link) == 2):
            raise UsageError(
                found=f"link {link!r}",
                expected="pairs of names of sites",
                fix='Write links = [["north", "south"], ["south", "west"]], for example.',
            )
    return links


def _update(about: Table) -> LocalUpdate:
    name = about.choice("estimator", ESTIMATORS, None)
    samples = about.take("samples", int, None)
    if name is None and samples is not None:
        raise UsageError(
            found="update.samples without update.estimator",
            expected="both, or neither",
            fix=f"Name an estimator, one of {list(ESTIMATORS)}.",
        )
    options = {} if samples is None else {"samples": samples}
    estimator = None if name is None else _called(ESTIMATORS[name], options, name)
    return _called(LocalUpdate, {"estimator": estimator, **about.rest()}, "update")


def _made(make: Any, about: Table, name: str, convert: Callable[[Any], Any] = lambda v: v) -> Any:
    return _called(make, {key: convert(value) for key, value in about.rest().items()}, name)


def _called(make: Any, options: Mapping[str, Any], name: str) -> Any:
    """``make(**options)``, whose complaints become ones about the configuration."""
    try:
        return make(**options)
    except PosterityError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(
            found=f"options {sorted(options)} for {name} ({error})",
            expected="the options that it takes, of the right type",
            fix="See docs/federate.md.",
        ) from error
