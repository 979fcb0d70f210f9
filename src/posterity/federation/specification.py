"""Construction of models, priors, schedules and updates from names and options in configurations.

Every function takes plain values, as in TOML or JSON. Errors name the place of an invalid value
(``model.kind``). A :class:`NamedModel` is what a file that is sent may say of a model: nothing in
it is an import path.
"""

import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posterity import families, graphs, models
from posterity.arguments import FINITE, NATURAL, POSITIVE, Constraint
from posterity.arrays.keys import of_jax
from posterity.arrays.typing import KeyArray
from posterity.errors import PosterityError, UsageError
from posterity.families import ExponentialFamily, Gaussian
from posterity.families.layers import Layers
from posterity.federation.gossip import Gossip
from posterity.federation.schedules import Asynchronous, Schedule, Sequential, Synchronous
from posterity.inference.update import ESTIMATORS, LocalUpdate

Options = Mapping[str, Any]
MODELS: dict[str, Callable[..., Any]] = {
    "beta-bernoulli": models.BetaBernoulli,
    "beta-exponential": models.BetaExponential,
    "dirichlet-categorical": models.DirichletCategorical,
    "gamma-poisson": models.GammaPoisson,
    "gaussian-mean": models.GaussianMean,
    "gaussian-mean-covariance": models.GaussianMeanCovariance,
    "linear-regression": models.LinearRegression,
    "logistic-regression": models.LogisticRegression,
    "poisson-regression": models.PoissonRegression,
    "negative-binomial-regression": models.NegativeBinomialRegression,
    "gamma-regression": models.GammaRegression,
    "multinomial-regression": models.MultinomialRegression,
    "ordinal-regression": functools.partial(models.LogisticRegression),
    "proportional-odds-regression": models.ProportionalOdds,
    "survival-regression": functools.partial(models.PoissonRegression, exposure=True),
}
REGRESSIONS = tuple(name for name in MODELS if name.endswith("-regression"))
OF_TABLES = tuple(
    f"{kind}-regression" for kind in ("ordinal", "proportional-odds", "multinomial", "survival")
)
"""Regressions whose records are derived from a table's: labels of whether a level was exceeded,
columns repeated for each class, counts of events in a time at risk."""
FAMILIES = {name: law for name, law in families.exported().items() if getattr(law, "standard", 0)}
"""Families by name whose standard parameters are numbers."""
SCHEDULES: dict[str, Callable[..., Any]] = {
    "sequential": Sequential,
    "synchronous": Synchronous,
    "asynchronous": Asynchronous,
}
GRAPHS = {"complete": graphs.complete, "ring": graphs.ring, "star": graphs.star}
WALKS: dict[str, Callable[..., Any]] = {
    "metropolis-hastings": graphs.MetropolisHastings,
    "non-backtracking": graphs.NonBacktracking,
}
GROUP = "posterity.models"
"""Group of the entry points by which installed packages provide models: each is a callable that is
called with the model's options."""
PLAIN = Constraint(
    "a number, a text or a boolean",
    lambda value: isinstance(value, str | bool) or FINITE.allows(value),
)
"""Options of a model in terms."""
HIDDEN_UNITS = (50,)
"""Default hidden units of a network."""


def full_name(kind: str) -> str:
    """Return the full name of a model; ``linear`` stands for ``linear-regression``, for example."""
    return f"{kind}-regression" if f"{kind}-regression" in REGRESSIONS else kind


def one_of(choices: Mapping[str, Any], name: Any, place: str) -> Any:
    """Return the choice of this name. Raises UsageError with the ``place`` if there is none."""
    if not isinstance(name, str) or name not in choices:
        found = f"no {place}" if name is None else f"{place} = {name!r}"
        raise UsageError(found=found, expected=f"one of {list(choices)}")
    return choices[name]


def build(make: Callable[..., Any], options: Options, place: str) -> Any:
    """Return ``make(**options)``; convert its errors to a PosterityError about table ``place``."""
    try:
        return make(**options)
    except PosterityError as error:
        raise error.at(f"table [{place}]") from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise UsageError(
            found=f"{sorted(options)} in table [{place}] ({error})",
            expected="the options that it takes, of the right type",
        ) from error


# --- models in terms that are sent ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """A model as data: a name of :data:`MODELS`, or an entry point of group :data:`GROUP` in a
    ``package`` of exactly this ``version``, with its options.

    Making one imports nothing. Raises a UsageError if a name of posterity is unknown, if a package
    comes without its version or the other way round, or if an option is not plain.
    """

    kind: str
    options: Options = dataclasses.field(default_factory=dict)
    package: str | None = None
    version: str | None = None

    def __post_init__(self) -> None:
        PLAIN.check(**{f"model.options.{name}": value for name, value in self.options.items()})
        if (self.package is None) != (self.version is None):
            raise UsageError(
                found=f"model.package = {self.package!r} and model.version = {self.version!r}",
                expected="both, or neither for a model of posterity",
            )
        if self.package is None:
            one_of(MODELS, full_name(self.kind), "model.kind")

    def __str__(self) -> str:
        options = f" with {dict(self.options)}" * bool(self.options)
        of = "posterity" if self.package is None else f"package {self.package} {self.version}"
        return f"{self.kind!r} of {of}{options}"

    def may_load(self, allow: Mapping[str, str]) -> bool:
        """Return whether it is of posterity, or of a package at a version in ``allow``."""
        return self.package is None or allow.get(self.package) == self.version

    def make(self, allow: Mapping[str, str]) -> Any:
        """Return the model. Nothing of a package is imported before its name and version were
        found in ``allow``, and its version is the installed one. Raises a UsageError otherwise, or
        if the package has no such model or the model refuses the options.
        """
        if self.package is None:
            return build(MODELS[full_name(self.kind)], self.options, "model.options")
        if not self.may_load(allow):
            raise UsageError(
                found=f"the model {self}, which is not allowed here",
                expected="a model of posterity, or of a package that this site's own site.toml "
                "allows by name and version",
                fix="If you trust that package, write into site.toml: [models] and, on the next "
                f'line, allow = {{ "{self.package}" = "{self.version}" }}',
            )
        return build(self._loaded(), self.options, "model.options")

    def _loaded(self) -> Callable[..., Any]:
        try:
            installed = importlib.metadata.distribution(str(self.package))
        except (importlib.metadata.PackageNotFoundError, ValueError):
            installed = None
        if installed is None or installed.version != self.version:
            has = "that is not here" if installed is None else f"in version {installed.version!r}"
            raise UsageError(
                found=f"package {self.package!r} {has}",
                expected=f"{self.package!r}, version {self.version!r}, as the terms say",
                fix=f"Run: pip install '{self.package}=={self.version}'",
            )
        points = {each.name: each for each in installed.entry_points.select(group=GROUP)}
        point = one_of(points, self.kind, "model.kind")
        return imported(point.value, f"entry point {self.kind!r} of {self.package!r}")


# --- models and priors of a federation -----------------------------------------------------------


def make_model(kind: str, options: Options, data: Mapping[str, Any], *, folder: Path) -> Any:
    """Return a model of :data:`MODELS`, a ``function`` (``module:function``) or a ``network``.
    ``data`` are the records by site, which determine the size of a network's first layer. Modules
    are also searched in ``folder``.
    """
    network = functools.partial(_perceptron, data)
    kinds = MODELS | {"function": functools.partial(_function, folder), "network": network}
    return build(one_of(kinds, kind, "model.kind"), options, "model")


def make_prior(options: Options, model: Any, key: KeyArray) -> ExponentialFamily:
    """Return a ``family`` with its standard parameters, or a network's with independent weights."""
    if isinstance(model, models.NeuralNetwork):
        check_keys(options, ["variance"], "prior")
        variance = options.get("variance", 1.0)
        POSITIVE.check(**{"prior.variance": variance})
        return model.prior(variance=float(variance), key=of_jax(key))
    options = dict(options)
    name = options.pop("family", None)
    family = one_of(FAMILIES, name, "prior.family")
    check_keys(options, list(inspect.signature(family.from_standard).parameters), "prior")

    def standard(**values: Any) -> ExponentialFamily:
        return family.from_standard(**{k: np.asarray(v, float) for k, v in values.items()})

    return build(standard, options, "prior")


def check_keys(options: Options, known: Sequence[str], place: str) -> None:
    """Raise a UsageError if the table ``place`` has an unknown option."""
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UsageError(
            found=f"{place}.{unknown[0]}, which is unknown",
            expected=f"one of {list(known)}",
        )


def _perceptron(
    data: Mapping[str, Any], *, outputs: int = 1, width: int = 16, depth: int = 1, **options: Any
) -> models.NeuralNetwork:
    """Return a perceptron with tanh units, for the inputs of the first site that has any."""
    NATURAL.check(**{"model.width": width, "model.depth": depth, "model.outputs": outputs})
    x = next((own[0] for own in data.values() if isinstance(own, tuple)), np.zeros((0, 1)))
    sizes = (math.prod(x.shape[1:]), *[width] * depth, outputs)
    return models.NeuralNetwork.of_layers(Layers.dense(*sizes, activation="tanh"), **options)


def _function(folder: Path, *, function: str) -> models.FunctionModel:
    sys.path.insert(0, str(folder.resolve()))
    try:
        return models.FunctionModel(imported(function, "model.function"))
    finally:
        sys.path.pop(0)


def imported(path: str, place: str) -> Callable[..., Any]:
    """Return the class or function of an import path, ``package.module:name``. Raises UsageError
    with the ``place`` of the path if there is none.
    """
    module, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)
        if not callable(made):
            raise TypeError(f"a {type(made).__name__}")
    except (Exception, SystemExit) as error:  # importing a module may raise any error
        raise UsageError(
            found=f"{place} = {path!r}, which cannot be imported ({error!r})",
            expected="'package.module:name' of a class or function",
            fix="Install its package at every site, or put the module beside the configuration.",
        ) from error
    return made


# --- a model of one table, and its prior ---------------------------------------------------------


def make_model_and_prior(
    kind: str, options: Options, variance: Any, x: np.ndarray, y: np.ndarray
) -> tuple[Any, Any]:
    """Return a ``network`` of dense layers or a regression, for inputs ``x`` (n, ...) and labels
    ``y`` (n, ...), and its prior of independent Gaussians of mean zero. ``variance`` is that of a
    coefficient; for a network one for all weights, or one per layer.
    """
    kinds = {"network": _network} | {name: _regression for name in REGRESSIONS}
    return one_of(kinds, kind, "model.kind")(kind, options, variance, x, y)


def _network(
    kind: str, options: Options, variance: Any, x: np.ndarray, y: np.ndarray
) -> tuple[Any, Any]:
    likelihood = options.get("likelihood") or "categorical"
    classes = options.get("classes")
    noise = options.get("noise_variance")
    learned = options.get("noise")
    if likelihood != "gaussian":
        check_noise(False, learned if noise is None else noise)
    UsageError.check(
        (
            classes is not None and likelihood != "categorical",
            f"model.classes = {classes} beside the likelihood {likelihood!r}",
            "a categorical likelihood, or no number of classes",
        ),
        (
            noise is not None and learned is not None,
            f"model.noise_variance = {noise} beside model.noise = {learned!r}",
            "a variance that is known, or how one that is not is learned",
        ),
    )
    if likelihood == "categorical":
        known = y.dtype.kind in "biuf" and y.size and np.isfinite(y).all()
        if known and classes is None:
            check_classes(y)
        outputs = classes or (max(int(y.max()) + 1, 2) if known else 2)
    else:
        outputs = y.shape[1] if likelihood == "gaussian" and y.ndim == 2 else 1
    sizes = (math.prod(x.shape[1:]), *options.get("hidden", HIDDEN_UNITS), outputs)
    shape = {name: options[name] for name in ("activation",) if name in options}
    layers = build(functools.partial(Layers.dense, *sizes), shape, "model")
    if likelihood == "gaussian" and noise is None:
        make = models.NeuralNetwork.regression
        rest = {"y": y, "noise": learned or "constant"}
    else:
        known = {} if noise is None else {"noise_variance": noise}
        make = models.NeuralNetwork.of_layers
        rest = {"likelihood": likelihood, **known}
    model = build(functools.partial(make, layers), rest, "model")
    variances = tuple(variance) if isinstance(variance, list) else variance
    from posterity.networks import GaussianPrior

    prior = build(lambda: GaussianPrior(variance=variances).network(model.layers), {}, "prior")
    return model, prior


def check_classes(y: np.ndarray) -> None:
    """Raise a UsageError for finite targets that do not number classes from 0."""
    wrong = y[(y < 0) | (y % 1 != 0) | (y >= max(y.size, 2))]
    if wrong.size:
        raise UsageError(
            found=f"{wrong.flat[0]:g} among {y.size} targets of a network for classes",
            expected="classes numbered from 0, or named by texts; or --likelihood gaussian, if "
            "the target is a number, as a price or a count",
        )


def _regression(
    kind: str, options: Options, variance: Any, x: np.ndarray, y: np.ndarray
) -> tuple[Any, Any]:
    check_keys(options, ["noise_variance", "dispersion"], "model")
    if not isinstance(variance, float):
        raise UsageError(
            found=f"prior.variance = {variance}",
            expected="that of a coefficient before any data, as 1.0 for columns of scale one",
        )
    size = math.prod(x.shape[1:])
    prior = Gaussian.from_standard(np.zeros(size), variance * np.eye(size))
    return build(MODELS[kind], options, "model"), prior


def check_noise(gaussian: bool, noise: float | None) -> None:
    """Raise a UsageError unless a noise variance is given exactly for Gaussian likelihoods."""
    if gaussian != (noise is not None):
        raise UsageError(
            found="no noise variance" if gaussian else f"a noise variance {noise} of labels",
            expected="the variance of what is observed about a mean, and of that alone",
        )


# --- schedules and local updates -----------------------------------------------------------------


def make_schedule(kind: str, options: Options, sites: Sequence[str]) -> Schedule:
    """Return a schedule of :data:`SCHEDULES`, or ``gossip`` over a ``graph`` or ``links``."""
    kinds = SCHEDULES | {"gossip": functools.partial(_gossip, sites)}
    return build(one_of(kinds, kind, "schedule.kind"), options, "schedule")


def _gossip(
    sites: Sequence[str],
    *,
    graph: str | None = None,
    links: Sequence[Sequence[str]] = (),
    walk: str = "metropolis-hastings",
    start: str | None = None,
    **options: Any,
) -> Gossip:
    if (graph is None) == (not links):
        raise UsageError(
            found=f"schedule.graph = {graph!r} and {len(links)} links",
            expected=f"a graph, one of {list(GRAPHS)}, or links as pairs of sites",
        )
    import networkx

    linked = networkx.Graph([(one, other) for one, other in links])
    linked.add_nodes_from(sites)
    network = linked if graph is None else one_of(GRAPHS, graph, "schedule.graph")(sites)
    route = one_of(WALKS, walk, "schedule.walk")(**options)
    return Gossip(network, walk=route, start=start)


def make_update(options: Options) -> LocalUpdate | None:
    """Return a :class:`LocalUpdate` with an ``estimator`` by name and its ``samples``; None without
    options, which selects the default update of the model.
    """
    if not options:
        return None
    options = dict(options)
    samples = {name: options.pop(name) for name in ("samples",) if name in options}
    if samples or "estimator" in options:
        kind = one_of(ESTIMATORS, options.pop("estimator", None), "update.estimator")
        options["estimator"] = build(kind, samples, "update")
    return build(LocalUpdate, options, "update")
