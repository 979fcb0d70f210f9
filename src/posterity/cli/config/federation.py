"""A federation described in a TOML file: who takes part, with which model, in which order."""

import dataclasses
import functools
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
from posterity.cli.config.site_files import read_site
from posterity.cli.config.toml_table import NUMBER, Table
from posterity.errors import ArtifactError, PosterityError, StructureError, UsageError
from posterity.families import ExponentialFamily
from posterity.federation.exact import REACH
from posterity.federation.federate import start
from posterity.federation.gossip import Gossip
from posterity.federation.run import Run
from posterity.federation.schedules import Asynchronous, Schedule, Sequential, Synchronous
from posterity.graphs import topology, walks
from posterity.graphs.walks import MetropolisHastings, NonBacktracking, Walk
from posterity.inference.estimators import ESTIMATORS
from posterity.inference.update import LocalUpdate
from posterity.ledger import Ledger
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
FAMILIES: dict[str, type[ExponentialFamily]] = {
    family.__name__: family
    for family in (
        families.Beta,
        families.Categorical,
        families.DiagonalGaussian,
        families.Dirichlet,
        families.Gamma,
        families.Gaussian,
        families.NormalGamma,
        families.NormalWishart,
        families.Wishart,
    )
}
GRAPHS: dict[str, Callable[..., Any]] = {
    "complete": topology.complete,
    "ring": topology.ring,
    "star": topology.star,
}
WALKS: dict[str, Callable[..., Walk]] = {
    "metropolis-hastings": MetropolisHastings,
    "non-backtracking": NonBacktracking,
    "weighted": walks.WeightedMetropolisHastings,
}


@dataclasses.dataclass(frozen=True)
class Config:
    """A federation ready to start, and where to keep what comes of it.

    ``inputs`` are all files that it was read from.
    """

    start: Callable[[], Run]
    inputs: tuple[Path, ...]
    steps: int
    output: Path
    checkpoint: Path
    every: int
    history: Path | None

    @property
    def outputs(self) -> tuple[Path, ...]:
        """All files that it is written to."""
        return (self.output, self.checkpoint, *([self.history] if self.history else []))


def load_config(path: Path) -> Config:
    """Read a TOML file; paths in it are relative to its folder. See ``docs/federate.md``.

    Raises:
        UsageError: if it is no TOML, or says something that makes no sense.
        ArtifactError: if it, or a file that it names, cannot be read.
    """
    try:
        table = Table(tomllib.loads(path.read_text(encoding="utf-8")), "")
    except (OSError, ValueError) as error:
        kind = ArtifactError if isinstance(error, OSError) else UsageError
        raise kind(
            found=f"configuration {str(path)!r} that cannot be read ({error})",
            expected="a TOML file",
            fix="Mend the path or the line.",
        ) from error
    try:
        config = _config(table, path)
        table.finish()
    except PosterityError as error:
        raise error.at(f"configuration {str(path)!r}") from error
    return config


def _config(table: Table, path: Path) -> Config:
    folder = path.parent
    files = {site: folder / name for site, name in table.table("sites").all_of(str).items()}
    sites = {site: read_site(file) for site, file in files.items()}
    key = _called(jax.random.key, {"seed": table.take("seed", int, 0)}, "seed")
    about, before = table.table("model"), table.table("prior")
    model, prior = _model_and_prior(about, before, folder, sites, key)
    schedule, steps = _schedule(table.table("schedule"), sorted(sites))
    update = _update(table.table("update", {}))
    reach = float(table.take("reach", NUMBER, REACH))
    weights = {s: float(w) for s, w in table.table("weights", {}).all_of(NUMBER).items()}
    output = table.table("output")
    ledger, history = output.take("ledger", str), output.take("history", str, None)
    return Config(
        start=lambda: start(
            sites,
            model,
            prior,
            schedule=schedule,
            update=update,
            weights=weights,
            reach=reach,
            key=key,
        ),
        inputs=(
            path,
            *files.values(),
            *([folder / before.values["file"]] if "file" in before.values else []),
        ),
        steps=steps,
        output=folder / ledger,
        checkpoint=folder / output.take("checkpoint", str, f"{ledger}.checkpoint"),
        every=output.count("every", 10),
        history=None if history is None else folder / history,
    )


def _model_and_prior(
    about: Table, prior: Table, folder: Path, sites: Mapping[str, Any], key: jax.Array
) -> tuple[Model, ExponentialFamily]:
    kind = about.choice("kind", {**MODELS, "function": None, "network": None})
    if kind == "network":
        net = _network(about, sites, key)
        return net, net.prior(variance=prior.positive("variance", 1.0), key=key)
    if kind == "function":
        return FunctionModel(_function(about.take("function", str), folder)), _prior(prior, folder)
    return _called(MODELS[kind], about.rest(), kind), _prior(prior, folder)


def _network(about: Table, sites: Mapping[str, Any], key: jax.Array) -> NeuralNetwork:
    """A perceptron with tanh units; its initial weights only give the shapes."""
    x = next((data[0] for data in sites.values() if isinstance(data, tuple)), np.zeros((0, 1)))
    if x.ndim != 2:
        raise StructureError(
            found=f"inputs x of shape {x.shape}",
            expected="one row a record, as the layers of a network of this kind need",
            fix="Save x of shape (n, d).",
        )
    perceptron = eqx.nn.MLP(
        x.shape[1],
        about.count("outputs", 1),
        about.count("width", 16),
        about.count("depth", 1, least=0),
        activation=jax.numpy.tanh,
        key=key,
    )
    options = {"likelihood": about.take("likelihood", str), **about.rest()}
    make = functools.partial(NeuralNetwork.from_equinox, perceptron)
    return _called(make, options, "network")


def _function(name: str, folder: Path) -> Callable[[Any, Any], Any]:
    """``module:attribute``, where the module may lie beside the configuration."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(folder.resolve()))
    try:
        function = getattr(importlib.import_module(module), attribute)
        if not callable(function):
            raise TypeError(f"a {type(function).__name__}")
        return function
    except (Exception, SystemExit) as error:  # whatever the module does while it is imported
        raise UsageError(
            found=f"function {name!r} that cannot be imported ({type(error).__name__}: {error})",
            expected="'module:function', the log likelihood of a batch",
            fix="Put the module beside the configuration, or install it.",
        ) from error
    finally:
        sys.path.pop(0)


def _prior(about: Table, folder: Path) -> ExponentialFamily:
    file = about.take("file", str, None)
    if file is not None:
        found = load(folder / file)
        prior = found.prior if isinstance(found, Ledger) else found
        if not isinstance(prior, ExponentialFamily):
            raise StructureError(
                found=f"a {type(prior).__name__} in {file!r}",
                expected="a posterior of one family, or a ledger, whose prior is taken",
                fix="Name another file.",
            )
        return prior
    name = about.choice("family", FAMILIES)
    make = lambda **values: FAMILIES[name].from_standard(
        **{key: np.asarray(value, float) for key, value in values.items()}
    )
    return _called(make, about.rest(), name)


def _schedule(about: Table, sites: list[str]) -> tuple[Schedule, int]:
    kinds = ("gossip", "sequential", "synchronous", "asynchronous")
    kind = about.choice("kind", dict.fromkeys(kinds), "sequential")
    steps = about.count("steps", least=0)
    if kind == "gossip":
        return _gossip(about, sites), steps
    plain = {"sequential": Sequential, "synchronous": Synchronous, "asynchronous": Asynchronous}
    return _called(plain[kind], about.rest(), kind), steps


def _gossip(about: Table, sites: list[str]) -> Gossip:
    links = about.take("links", list, None)
    if links is None:
        graph = GRAPHS[about.choice("graph", GRAPHS)](sites)
    else:
        graph = networkx.Graph()
        graph.add_nodes_from(sites)
        graph.add_edges_from(_pairs(links))
    walk = about.choice("walk", WALKS, "metropolis-hastings")
    options = [about.table("weights").all_of(NUMBER)] if walk == "weighted" else []
    return Gossip(graph, walk=WALKS[walk](*options), start=about.take("start", str, None))


def _pairs(links: list[Any]) -> list[Any]:
    for link in links:
        if not (isinstance(link, list) and [type(end) for end in link] == [str, str]):
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
    counts = {k: about.count(k) for k in ("steps", "batch_size") if k in about.values}
    estimator = None if name is None else _called(ESTIMATORS[name], options, name)
    return _called(LocalUpdate, {"estimator": estimator, **counts, **about.rest()}, "update")


def _called(make: Any, options: Mapping[str, Any], name: str) -> Any:
    """``make(**options)``, whose complaints become ones about the configuration."""
    try:
        return make(**options)
    except PosterityError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            found=f"options {sorted(options)} for {name} ({error})",
            expected="the options that it takes, of the right type",
            fix="See docs/federate.md.",
        ) from error
