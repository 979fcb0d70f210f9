"""What a change of the code changes in results: the same random calls before and after it.

    python -m benchmarks.compare run before.json --source ../before/src
    python -m benchmarks.compare run after.json
    python -m benchmarks.compare diff before.json after.json

``run`` makes calls of the verbs on quick problems from seeds and writes their arrays, texts and
warnings; ``--source`` is the folder that ``posterity`` is imported from, and ``--only`` takes the
calls whose names begin so. ``diff`` says which calls differ, by how much, and in which warnings.
"""

import argparse
import base64
import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Call = tuple[str, Callable[[], Any]]
Parts = Iterator[tuple[str, Any]]
SOURCE = Path(__file__).parents[1] / "src"
LONGEST = 4096
"""Largest number of entries of an array that is kept whole; of others a digest and a sample."""


# -- what a result consists of ---------------------------------------------------------------------


def parts(value: Any, path: str = "") -> Parts:
    """Yield the arrays and texts of a result by their path."""
    import jax

    from posterity import Ledger
    from posterity.families.distribution import Distribution

    if value is None or isinstance(value, str | bool):
        yield path, str(value)
    elif isinstance(value, Ledger):
        yield from parts(value.prior, f"{path}.prior")
        yield from parts(value.posterior, f"{path}.posterior")
        for site in value.sites:
            yield from parts(value.factor(site), f"{path}.factor({site})")
    elif isinstance(value, Distribution):
        for key, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            yield path + jax.tree_util.keystr(key), np.asarray(leaf)
    elif isinstance(value, Mapping):
        for name in value:
            yield from parts(value[name], f"{path}[{name}]")
    elif dataclasses.is_dataclass(value) and hasattr(value, "converged"):
        yield f"{path}.state", str(value.state)
        yield f"{path}.left", np.asarray(float(value.left))
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from parts(item, f"{path}[{index}]")
    else:
        yield path, np.asarray(value)


def of(result: Any, *names: str) -> dict[str, Any]:
    """Return the named attributes of a result."""
    return {name: getattr(result, name) for name in names}


def written(array: np.ndarray) -> dict[str, Any]:
    """Return an array as it is kept in the file."""
    if array.dtype == object or array.dtype.kind in "US":
        return {"text": str(array.tolist())}
    content = np.ascontiguousarray(array).tobytes()
    kept = {"digest": hashlib.sha256(content).hexdigest()[:16], "shape": list(array.shape)}
    numbers = array.astype(float).ravel()
    sample = numbers[:: max(1, -(-numbers.size // LONGEST))]
    return kept | {"numbers": base64.b64encode(sample.tobytes()).decode()}


def outcome(call: Callable[[], Any]) -> dict[str, Any]:
    """Make a call, and return its arrays, texts, warnings and error."""
    made: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.process_time()
        try:
            for path, part in parts(call()):
                made[path] = {"text": part} if isinstance(part, str) else written(part)
        except Exception as error:
            made["error"] = {"text": f"{type(error).__name__}: {error}"}
    told = [f"{one.category.__name__}: {one.message}" for one in caught]
    return {"parts": made, "warnings": sorted(told), "seconds": time.process_time() - start}


def first_of(name: str, *modules: str) -> Any:
    """Return an object from the first module that has it: modules may have moved."""
    for module in modules:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), name)
    raise ImportError(f"{name} is in none of {', '.join(modules)}")


# -- fuse ------------------------------------------------------------------------------------------


def members(family: str, rng: np.random.Generator, means: np.ndarray, counts: np.ndarray) -> Any:
    """Return components (k,) that know about their count of records around means (k, d)."""
    from posterity import families

    number, size = means.shape
    seen = means + rng.normal(size=means.shape) / np.sqrt(counts)[:, None]
    square = np.stack([np.cov(rng.normal(size=(size, int(n) + 2 * size))) for n in counts])
    square = square.reshape(number, size, size)
    match family:
        case "gaussian":
            return families.Gaussian.from_standard(seen, square / counts[:, None, None])
        case "diagonal":
            spread = square.diagonal(axis1=-2, axis2=-1) / counts[:, None]
            return families.DiagonalGaussian.from_standard(seen, spread)
        case "normal-wishart":
            degrees = counts + size + 1
            scale = square * degrees[:, None, None]
            return families.NormalWishart.from_inverse_scale(seen, counts, scale, degrees)
        case "normal-gamma":
            spread = (
                counts[:, None] * rng.chisquare(counts[:, None], seen.shape) / (2 * counts[:, None])
            )
            shape = np.broadcast_to(counts[:, None] / 2 + 1, seen.shape)
            strength = np.broadcast_to(counts[:, None], seen.shape)
            return families.NormalGamma.from_standard(seen, strength, shape, spread)
        case "dirichlet":
            shares = np.exp(means - means.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            rows = [rng.multinomial(int(50 * n), p) for n, p in zip(counts, shares, strict=True)]
            return families.Dirichlet.from_standard(0.5 + np.stack(rows))
        case "gamma":
            events = rng.poisson(np.exp(means[:, 0]) * counts)
            return families.Gamma.from_standard(shape=1.0 + events, rate=0.1 + counts)
        case "beta":
            hits = rng.binomial(counts.astype(int), 1 / (1 + np.exp(-means[:, 0])))
            return families.Beta.from_standard(1.0 + hits, 1.0 + counts - hits)
    raise ValueError(family)


FAMILIES = "normal-wishart", "diagonal", "gaussian", "normal-gamma", "dirichlet", "gamma", "beta"


def sites_of(family: str, seed: int, spread: float = 4.0) -> tuple[dict[str, Any], list[Any]]:
    """Return plates of three to eight sites, by name, and the true label of each component."""
    from posterity import Dirichlet, Plate

    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 4)) if family != "dirichlet" else 8
    total, count = int(rng.integers(3, 8)), int(rng.integers(3, 9))
    means = spread * rng.normal(size=(total, size))
    made, labels = {}, []
    for index in range(count):
        own = rng.permutation(total)[: int(rng.integers(2, total + 1))]
        counts = rng.integers(20, 400, len(own)).astype(float)
        weights = Dirichlet.from_standard(1.0 + counts) if seed % 2 else None
        made[f"site{index}"] = Plate(members(family, rng, means[own], counts), weights)
        labels.append(own)
    return made, labels


def fused(sites: Any, **options: Any) -> dict[str, Any]:
    """Return what a fusion says."""
    import posterity

    result = posterity.fuse(sites, **options)
    kept = of(result, "posterior", "ledger", "rule", "why", "warnings", "status", "rebased")
    for path, plate in result.plates.items():
        kept[f"plate {path}"] = {
            **{"cost": plate.cost, "trace": np.asarray(plate.trace, float)},
            "labels": [np.asarray(labels) for labels in plate.matching.values()],
        }
    return kept


def whole(family: str, seed: int, count: int = 4) -> dict[str, Any]:
    """Return ledgers of a few sites, without plates."""
    from posterity import Ledger

    rng = np.random.default_rng(seed)
    means = rng.normal(size=(1, 3)) + 0.2 * rng.normal(size=(count, 3))
    made = members(family, rng, means, rng.integers(20, 300, count).astype(float))
    prior = members(family, np.random.default_rng(0), np.zeros((1, 3)), np.full(1, 2.0))[0]
    names = [f"site{index}" for index in range(count)]
    return {
        name: Ledger.of_site(name, prior=prior, posterior=made[index])
        for index, name in enumerate(names)
    }


def network_sites(seed: int, *widths: int) -> dict[str, Any]:
    """Return ledgers of three networks of one truth, units in other orders."""
    from posterity import Ledger, Network
    from posterity.networks import Layers

    rng = np.random.default_rng(seed)
    layers, made = Layers.dense(*widths), {}
    truth = rng.normal(size=layers.size)
    prior = Network.prior(layers, 1.0)
    for index in range(3):
        mean = truth + 0.05 * rng.normal(size=layers.size)
        posterior = Network.from_standard(mean, rng.uniform(0.01, 0.1, layers.size), layers)
        for axis, width in enumerate(layers.widths):
            posterior = posterior.relabel(rng.permutation(width), width, axes=(axis,))
        name = f"site{index}"
        made[name] = Ledger.of_site(name, prior=prior, posterior=posterior)
    return made


def fusions() -> Iterator[Call]:
    """Yield calls of ``fuse``."""
    for seed in range(16):
        for family in FAMILIES:
            yield (
                f"fuse/{family}/{seed}",
                lambda f=family, s=seed: fused(sites_of(f, s)[0]),
            )
    for seed in range(3):
        for family in ("normal-wishart", "diagonal", "dirichlet"):
            for options in (
                {"matching": "kl-fusion", "components": 6},
                {"components": 4},
                {"divergence": "forward"},
                {"weights": {f"site{i}": 1.0 + i for i in range(8)}},
            ):
                said = ",".join(f"{key}={options[key]!s:.12}" for key in options)

                def call(f: str = family, s: int = seed, o: Any = options) -> Any:
                    sites = sites_of(f, 20 + s)[0]
                    own = {**o}
                    if "weights" in own:
                        own["weights"] = {name: own["weights"][name] for name in sites}
                    return fused(sites, **own)

                yield f"fuse/{family}/{said}/{seed}", call
    for seed in range(3):
        for spread in (0.6, 1.5):
            yield (
                f"fuse/close/{spread}/{seed}",
                lambda s=seed, w=spread: fused(sites_of("normal-wishart", 40 + s, w)[0]),
            )
        for method in ("hungarian", "identity"):
            yield f"fuse/{method}/{seed}", lambda s=seed, m=method: fused(alike(s), matching=m)
        yield f"fuse/prior/{seed}", lambda s=seed: with_prior(s)
        yield f"fuse/passes/{seed}", lambda s=seed: fused(alike(s, 30), budget=40_000)
        yield f"fuse/networks/{seed}", lambda s=seed: fused(network_sites(s, 3, 5, 2))
        yield f"fuse/deep/{seed}", lambda s=seed: fused(network_sites(s, 3, 4, 4, 1))
        yield f"fuse/hmm/{seed}", lambda s=seed: fused(hidden(s))
        for family in ("gaussian", "diagonal", "normal-wishart", "normal-gamma"):
            yield f"fuse/whole/{family}/{seed}", lambda f=family, s=seed: fused(whole(f, s))
        yield f"diff/{seed}", lambda s=seed: differences(s)


def alike(seed: int, count: int = 4) -> dict[str, Any]:
    """Return sites that have the same three components, in one order."""
    from posterity import Plate

    rng = np.random.default_rng(seed)
    means = 5.0 * rng.normal(size=(3, 2))
    family = members
    return {
        f"site{i}": Plate(family("normal-wishart", rng, means, rng.integers(20, 99, 3) + 0.0))
        for i in range(count)
    }


def with_prior(seed: int) -> Any:
    """Fuse plates with weights and a known prior."""
    from posterity import Dirichlet, NormalWishart, Plate

    sites = sites_of("normal-wishart", 2 * seed + 1)[0]
    dimension = np.shape(next(iter(sites.values())).members.mean)[-1]
    prior = Plate(
        NormalWishart.from_inverse_scale(
            np.zeros((1, dimension)),
            np.full(1, 1e-3),
            np.eye(dimension)[None],
            np.full(1, dimension + 1.0),
        ),
        Dirichlet.from_standard(np.ones(1)),
    )
    return fused(sites, prior=prior)


def hidden(seed: int) -> dict[str, Any]:
    """Return hidden Markov models of sites, with their states in other orders."""
    from posterity import Dirichlet, Plate
    from posterity.families import HiddenMarkov

    rng = np.random.default_rng(seed)
    means, made = 4.0 * rng.normal(size=(3, 2)), {}
    for index in range(3):
        order = rng.permutation(3)
        emissions = Plate(members("normal-wishart", rng, means[order], np.full(3, 80.0)))
        chances = 1.0 + 20 * rng.uniform(size=(3, 3))
        moves = Plate(Dirichlet.from_standard(chances + 60 * np.eye(3)))
        made[f"site{index}"] = HiddenMarkov(
            emissions=emissions, initial=Dirichlet.from_standard(np.ones(3)), transitions=moves
        )
    return made


def differences(seed: int) -> Any:
    """Compare two fused plates."""
    diff = first_of("diff", "posterity.fusion.diff", "posterity.fusion")
    result = diff(*list(alike(seed).values())[:2])
    return {"text": str(result)}


# -- federate, forget ------------------------------------------------------------------------------


def table(seed: int, kind: str, count: int, size: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return records (x, y) of a regression."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(count), rng.normal(size=(count, size - 1))])
    eta = x @ np.linspace(-0.6, 0.8, size)
    match kind:
        case "logistic":
            return x, (rng.uniform(size=count) < 1 / (1 + np.exp(-eta))).astype(float)
        case "poisson" | "negative-binomial":
            return x, rng.poisson(np.exp(eta)).astype(float)
        case "gamma":
            return x, np.exp(eta) * rng.gamma(4.0, 0.25, count)
        case "multinomial":
            return np.tile(x, 2), rng.integers(0, 3, count)
    return x, eta + 0.5 * rng.normal(size=count)


def federations() -> Iterator[Call]:
    """Yield calls of ``federate`` and ``forget``."""
    from posterity.federation import Asynchronous, Gossip, Sequential, Synchronous
    from posterity.graphs import complete, ring

    names = ["east", "north", "south", "west"]
    schedules: dict[str, Callable[[], Any]] = {
        "sequential": Sequential,
        "synchronous": Synchronous,
        "asynchronous": Asynchronous,
        "ring": lambda: Gossip(ring(names)),
        "complete": lambda: Gossip(complete(names)),
    }
    for seed in range(6):
        for name, schedule in schedules.items():
            for kind in ("coins", "counts", "mean", "linear", "logistic", "poisson"):
                if kind == "poisson" and (seed or name in ("ring", "complete")):
                    continue
                yield (
                    f"federate/{kind}/{name}/{seed}",
                    lambda k=kind, d=schedule, s=seed: federated(k, names, s, schedule=d()),
                )
        for kind in ("coins", "linear", "logistic"):
            yield f"forget/{kind}/{seed}", lambda k=kind, s=seed: forgotten(k, names, s)
        yield (
            f"federate/diagonal/{seed}",
            lambda s=seed: federated("logistic", names, s, diagonal=True),
        )
        yield f"federate/steps/{seed}", lambda s=seed: federated("logistic", names, s, steps=1)
        yield f"federate/own/{seed}", lambda s=seed: federated("logistic", names, s, own=[1])
        yield f"federate/function/{seed}", lambda s=seed: function(names, s)
    for kind in ("gamma", "negative-binomial", "multinomial"):
        yield f"federate/{kind}", lambda k=kind: federated(k, names, 0)
    yield (
        "federate/personal",
        lambda: federated("logistic", names, 0, personal=True, tolerance=0.3),
    )


def problem(kind: str, names: list[str], seed: int, diagonal: bool = False) -> Any:
    """Return sites, model and prior."""
    from posterity import Beta, DiagonalGaussian, Gamma, Gaussian, models

    rng = np.random.default_rng(seed)
    counts = {name: int(rng.integers(20, 80)) for name in names}
    match kind:
        case "coins":
            data: Any = {name: rng.integers(0, 2, n) for name, n in counts.items()}
            return data, models.BetaBernoulli(), Beta.from_standard(1.0, 1.0)
        case "counts":
            data = {name: rng.poisson(3.0, n) for name, n in counts.items()}
            return data, models.GammaPoisson(), Gamma.from_standard(1.0, 1.0)
        case "mean":
            data = {name: rng.normal(size=(n, 2)) for name, n in counts.items()}
            return (
                data,
                models.GaussianMean(np.eye(2)),
                Gaussian.from_standard(np.zeros(2), np.eye(2)),
            )
    size = 6 if kind == "multinomial" else 3
    law = Gaussian.from_standard(np.zeros(size), 4 * np.eye(size))
    if diagonal:
        law = DiagonalGaussian.from_standard(np.zeros(size), np.full(size, 4.0))
    model = {
        "linear": lambda: models.LinearRegression(0.25),
        "logistic": models.LogisticRegression,
        "poisson": models.PoissonRegression,
        "gamma": lambda: models.GammaRegression(0.25),
        "negative-binomial": lambda: models.NegativeBinomialRegression(0.25),
        "multinomial": lambda: models.MultinomialRegression(3),
    }[kind]()
    data = {n: table(100 * seed + i, kind, counts[n]) for i, n in enumerate(names)}
    return data, model, law


def federated(
    kind: str, names: list[str], seed: int, diagonal: bool = False, **options: Any
) -> Any:
    """Return what a federation says."""
    import jax

    import posterity

    data, model, prior = problem(kind, names, seed, diagonal)
    run = posterity.federate(data, model, prior, key=jax.random.key(seed), **options)
    steps = [str(one.reason) if hasattr(one, "reason") else type(one).__name__ for one in run.trace]
    return of(run, "posterior", "ledger", "status", "rule") | {"visits": len(steps)}


def function(names: list[str], seed: int) -> Any:
    """Federate a likelihood that is a function."""
    import jax.numpy as jnp

    import posterity

    data, _, prior = problem("logistic", names, seed)

    def likelihood(z: Any, batch: Any) -> Any:
        x, y = batch
        eta = x @ z
        return y * eta - jnp.logaddexp(0.0, eta)

    run = posterity.federate(data, likelihood, prior)
    return of(run, "posterior", "status")


def forgotten(kind: str, names: list[str], seed: int) -> Any:
    """Federate, and forget a site."""
    import posterity

    data, model, prior = problem(kind, names, seed)
    run = posterity.federate(data, model, prior, tolerance=1e-4)
    done = posterity.forget(run, names[1])
    proved = None
    if done.receipt is not None:
        proved = posterity.verify(done.receipt, run.ledger, done.ledger).passed
    return {**of(done, "ledger", "exact", "distance"), "proved": proved}


# -- pursue, distill, networks ---------------------------------------------------------------------


def pursuits() -> Iterator[Call]:
    """Yield calls of ``pursue``."""
    import jax
    import jax.numpy as jnp

    import posterity
    from posterity import DiagonalGaussian, Gaussian

    def hills(z: Any) -> Any:
        west = -((z[0] + 3) ** 2 + (z[1] - 1) ** 2) / 2
        return jnp.logaddexp(west, -8 * ((z[0] - 3) ** 2 + z[1] ** 2))

    def bent(z: Any) -> Any:
        return -(z[0] ** 2) / 8 - (z[1] - z[0] ** 2 / 4) ** 2

    def pursued(target: Any, base: Any, **options: Any) -> Any:
        result = posterity.pursue(target, base, key=jax.random.key(0), **options)
        return {"q": result.posterior, "status": result.status, "gap": result.elbo}

    base = DiagonalGaussian.from_standard(np.zeros(2), np.full(2, 9.0))
    full = Gaussian.from_standard(np.zeros(2), 9 * np.eye(2))
    quick = {"components": 3, "attempts": 16}
    yield "pursue/hills", lambda: pursued(hills, base)
    yield "pursue/bent/diagonal", lambda: pursued(bent, base, **quick)
    yield "pursue/bent/full", lambda: pursued(bent, full, **quick)


def distillations() -> Iterator[Call]:
    """Yield calls of ``distill`` and of the training and refinement of networks."""
    import jax

    import posterity
    from posterity.distillation import Langevin
    from posterity.inference import Refinement
    from posterity.models import NeuralNetwork
    from posterity.networks import Layers, predict, train

    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = (x[:, 0] > 0).astype(int)
    layers = Layers.dense(2, 4, 2)
    net = NeuralNetwork.of_layers(layers)

    def distilled(**options: Any) -> Any:
        short = {"climb": 200, "burn_in": 200, "thin": 5, "chains": 4}
        teacher = Langevin(net, net.prior(variance=1.0), (x, y), **short)
        result = posterity.distill(teacher, steps=200, key=jax.random.key(1), **options)
        return {"mean": result.student.predict(x).mean, "status": result.status}

    def trained() -> Any:
        done = train(layers, (x, y), key=jax.random.key(0), steps=200)
        chances = predict(done.posterior, x, key=jax.random.key(1))
        return {"q": done.posterior, "status": done.status, "chances": chances}

    def refined() -> Any:
        done = train(layers, (x, y), key=jax.random.key(0), steps=200)
        sites = {"a": (x[:30], y[:30]), "b": (x[30:], y[30:])}
        update = Refinement(steps=50)
        run = posterity.federate(sites, net, done.ledger("a"), update=update, steps=1)
        return of(run, "posterior", "status")

    yield "distill/plain", distilled
    yield "distill/split", lambda: distilled(split=True)
    yield "networks/train", trained
    yield "networks/refine", refined


# -- fit, adapters, report -------------------------------------------------------------------------


def fits() -> Iterator[Call]:
    """Yield calls of ``fit``, the adapters, summaries and reports."""
    kinds = ("linear", "logistic", "poisson", "gamma", "negative-binomial", "multinomial")
    for seed in range(4):
        for kind in kinds:
            yield f"fit/{kind}/{seed}", lambda k=kind, s=seed: fitted(k, s)
        for family in FAMILIES:
            yield f"summary/{family}/{seed}", lambda f=family, s=seed: summarised(f, s)
        for family in ("gaussian", "diagonal", "mixture"):
            yield f"samples/{family}/{seed}", lambda f=family, s=seed: sampled(f, s)
        yield f"sklearn/mixture/{seed}", lambda s=seed: mixture(s)
        yield f"sklearn/ridge/{seed}", lambda s=seed: ridge(s)
        yield f"report/ledger/{seed}", lambda s=seed: reported(s)
        yield f"report/fusion/{seed}", lambda s=seed: reported_fusion(s)


def fitted(kind: str, seed: int) -> Any:
    """Fit a table that is written for it, and predict its records."""
    fit = first_of("fit", "posterity.fitting", "posterity.tabular", "posterity.tabular.fitting")
    recipe = first_of(
        "Recipe", "posterity.fitting", "posterity.tabular", "posterity.artifact.recipe"
    )
    x, y = table(seed, kind, 60)
    x = x[:, 1:3]
    options: dict[str, Any] = {"linear": {"noise_variance": "estimate"}}.get(kind, {})
    if kind in ("gamma", "negative-binomial"):
        options = {"dispersion": "estimate"}
    if kind == "multinomial":
        options = {"categories": {"y": ("0", "1", "2")}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "north.csv")
        rows = [f"{a:.6f},{b:.6f},{c:.6g}" for (a, b), c in zip(x, y, strict=True)]
        path.write_text("\n".join(["a,b,y", *rows, ""]))
        made = fit(path, recipe(kind, "y", **options))
    return {"ledger": made.ledger, "spread": made.spread, "notes": list(made.notes)}


def summarised(family: str, seed: int) -> Any:
    """Return the rows of a summary."""
    summarise = first_of("summarise", "posterity.summary", "posterity.reporting.summary")
    rows = summarise(next(iter(sites_of(family, 60 + seed)[0].values()))).rows
    return [(row.name, row.mean, row.sd, row.low, row.high) for row in rows]


def sampled(family: str, seed: int) -> Any:
    """Fit a law to draws."""
    from posterity.adapters import from_samples

    rng = np.random.default_rng(seed)
    draws = rng.normal(size=(4, 500, 2)) + 3.0
    options: dict[str, Any] = {"components": 2} if family == "mixture" else {}
    made = from_samples(draws, family, **options)
    return {"law": made.posterior}


def mixture(seed: int) -> Any:
    """Take a mixture of scikit-learn's."""
    from sklearn.mixture import BayesianGaussianMixture

    from posterity.adapters.sklearn import to_ledger

    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(size=(60, 2)) + 4 * i for i in range(3)])
    model = BayesianGaussianMixture(n_components=4, random_state=seed, mean_precision_prior=0.1)
    return to_ledger(model.fit(x), "north")


def ridge(seed: int) -> Any:
    """Take a regression of scikit-learn's."""
    from sklearn.linear_model import BayesianRidge

    from posterity.adapters.sklearn import from_estimator

    x, y = table(seed, "linear", 60)
    return from_estimator(BayesianRidge().fit(x[:, 1:], y), x[:, 1:], y)


def reported(seed: int) -> Any:
    """Make the page of a ledger."""
    import posterity

    run = problem("linear", ["east", "west"], seed)
    ledger = posterity.federate(*run, steps=2).ledger
    return posterity.report(ledger).html


def reported_fusion(seed: int) -> Any:
    """Make the page of a fusion."""
    import posterity

    return posterity.report(posterity.fuse(alike(seed))).html


# -- the two commands ------------------------------------------------------------------------------


def calls() -> Iterator[Call]:
    """Yield all calls by name."""
    for kind in (fusions, federations, pursuits, distillations, fits):
        yield from kind()


def run(out: Path, only: str) -> None:
    """Make the calls, and write what came of them."""
    import posterity

    print(f"posterity of {Path(posterity.__file__).parent}", flush=True)
    made = {}
    for name, call in calls():
        if name.startswith(only):
            made[name] = outcome(call)
            if "error" in made[name]["parts"]:
                print(name, made[name]["parts"]["error"]["text"][:160], flush=True)
    out.write_text(json.dumps(made, indent=0))
    spent = sum(one["seconds"] for one in made.values())
    print(f"{len(made)} calls in {spent:.0f} CPU seconds")


def distance(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return how two versions of one part differ; empty where they do not."""
    if before.get("digest", before.get("text")) == after.get("digest", after.get("text")):
        return ""
    if "numbers" not in before or "numbers" not in after:
        said = [one.get("text", "numbers" if one else "nothing") for one in (before, after)]
        return f"{said[0][:100]!r} -> {said[1][:100]!r}"
    if before["shape"] != after["shape"]:
        return f"shape {before['shape']} -> {after['shape']}"
    one, other = (np.frombuffer(base64.b64decode(part["numbers"])) for part in (before, after))
    with np.errstate(all="ignore"):
        largest = np.maximum(np.abs(one), np.abs(other))
        relative = np.where(one == other, 0.0, np.abs(one - other) / largest)
    return f"by {np.nanmax(relative, initial=0.0):.2g} of its size"


def diff(before: Path, after: Path) -> int:
    """Print which calls differ; return the number of them."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    differing = 0
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in old or name not in new:
            lines = ["only " + ("before" if name in old else "after")]
        else:
            one, other = (file[name]["parts"] for file in (old, new))
            told = {path: distance(one.get(path, {}), other.get(path, {})) for path in one | other}
            lines = [f"{path}: {how}" for path, how in told.items() if how]
            gone, come = ([*file[name]["warnings"]] for file in (old, new))
            for line in list(gone):
                if line in come:
                    gone.remove(line)
                    come.remove(line)
            lines += [f"no longer warns: {line[:160]}" for line in gone]
            lines += [f"warns: {line[:160]}" for line in come]
        if lines:
            differing += 1
            print(name, *lines[:6], sep="\n  ")
    print(f"{differing} of {len(old | new)} calls differ")
    return differing


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("run")
    make.add_argument("out", type=Path)
    make.add_argument("--source", type=Path, default=SOURCE, help="where to import posterity from")
    make.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    make.add_argument("--only", default="", help="beginning of the names of the calls to make")
    both = commands.add_parser("diff")
    both.add_argument("before", type=Path)
    both.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "diff":
        return int(diff(given.before, given.after) > 0)
    if given.here:
        run(given.out, given.only)
        return 0
    command = [sys.executable, "-m", "benchmarks.compare", "run", str(given.out), "--here"]
    paths = [str(given.source.resolve()), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run([*command, "--only", given.only], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
