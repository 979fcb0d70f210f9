"""BFI and posterity on the same tables: `R_LIBS=FOLDER python -m experiments.bfi.run`.

Writes `results/expected.json`. BFI is run by R from where it is installed, and its data sets are
read from there; nothing of it is kept.
"""

import csv
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

import posterity
from experiments import harness
from experiments.data import heart_disease
from experiments.heart.preparation import SITES, design
from posterity import Ledger, federate
from posterity.families import Gaussian
from posterity.tabular import Recipe
from posterity.tabular import fit as fit_table
from posterity.tabular.one_shot import expected_distance
from posterity.tabular.sites import sites_in

PLACE = harness.Place.of(__file__)
SCRIPT = Path(__file__).parent / "centres.R"
LAMBDA = 0.01  # the precision of every coefficient's prior, BFI's own choice in its examples
Tables = Mapping[str, np.ndarray]
"""By centre its records: the target (of survival time and event), then the columns."""


def missing() -> str | None:
    """Why BFI cannot be run here; None where it can."""
    if shutil.which("Rscript") is None:
        return "R is not installed"
    asked = ["Rscript", "-e", "quit(status = !requireNamespace('BFI', quietly = TRUE))"]
    found = subprocess.run(asked, capture_output=True, check=False)
    return "R has no package BFI (R_LIBS names its folder)" if found.returncode else None


def own_tables() -> dict[str, dict[str, np.ndarray]]:
    """BFI's data sets, by name and column."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["Rscript", SCRIPT, folder, "data"], check=True, capture_output=True)
        tables = {}
        for name in ("trauma", "Nurses"):
            with (Path(folder) / f"{name}.csv").open() as file:
                header, *rows = csv.reader(file)
            tables[name] = dict(zip(header, np.array(rows, float).T, strict=True))
        return tables


def bfi(tables: Tables, family: str, *, stratified: bool = False) -> dict[str, Any]:
    """BFI's estimates, as Gaussians: ``centre1``, ..., ``bfi``, ``pooled``; and its seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder, targets = Path(name), 2 if family == "survival" else 1
        for place, own in enumerate(tables.values()):
            head = ["time", "event"][:targets] if targets > 1 else ["y"]
            head += [f"x{j}" for j in range(1, own.shape[1] - targets + 1)]
            _put(folder / f"{place:02}.csv", head, own)
        order = ["Rscript", SCRIPT, folder, family, str(LAMBDA), str(stratified).upper()]
        subprocess.run(order, check=True, capture_output=True)
        found: dict[str, Any] = {"seconds": float((folder / "seconds.out").read_text())}
        for path in folder.glob("*.out"):
            if path.name != "seconds.out":
                values = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
                inverse = np.linalg.inv(values[:, 1:])
                found[path.stem] = Gaussian.from_standard(values[:, 0], inverse)
        return found


def _put(path: Path, head: list[str], rows: np.ndarray) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows.tolist()])


def ours(tables: Tables, model: str) -> dict[str, Any]:
    """Posterity's pooled fit, its product of the centres' fits, and its federation."""
    columns = tuple(f"x{j}" for j in range(1, next(iter(tables.values())).shape[1]))
    more: dict[str, Any] = {}
    if model == "survival":
        columns, more = columns[:-1], {"event": "event"}
    head = ["time", "event"] if more else ["y"]
    recipe = Recipe(model, head[0], columns, prior_sd={"": LAMBDA**-0.5}, **more)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is warned of is in the statuses
        path = Path(name) / "t.csv"
        start, fits = time.perf_counter(), []
        for centre, own in tables.items():
            _put(path, [*head, *columns], own)
            fits.append(fit_table(path, recipe, centre))
        fusion = posterity.fuse([own.ledger for own in fits])
        seconds = time.perf_counter() - start
        _put(path, [*head, *columns], np.concatenate(list(tables.values())))
        pooled = fit_table(path, recipe, "all")
    start = time.perf_counter()
    run = federated(tables, model, pooled.ledger.prior, pooled.noise_variance, tolerance=1e-8)
    facts = {c: sites_in(own.provenance)[c] for c, own in zip(tables, fits, strict=True)}
    assert fusion.ledger is not None, "ledgers of one prior are added up"
    return {
        "expected": expected_distance(fusion.ledger, facts).distance,
        "one shot": fusion.posterior,
        "pooled": pooled.ledger.posterior,
        "federated": run.posterior,
        "status": run.status.state,
        "seconds": {"one shot": seconds, "federated": time.perf_counter() - start},
    }


def federated(
    tables: Tables, model: str, prior: Any, noise: float | None = None, **options: Any
) -> Any:
    kinds: dict[str, Any] = {
        "linear": posterity.models.LinearRegression(noise or 1.0),
        "logistic": posterity.models.LogisticRegression(),
        "survival": posterity.models.PoissonRegression(exposure=True),
    }
    sites, survival = {}, model == "survival"
    for centre, own in tables.items():
        y = own[:, 1::-1] if survival else own[:, 0]  # of survival events, and time at risk
        x = own[:, 2 if survival else 1 :]
        sites[centre] = (np.column_stack([np.ones(len(x)), x]), y)
    return federate(sites, kinds[model], prior, **options)


def off(found: Any, truth: Any) -> dict[str, float]:
    """How far a Gaussian is from another: nats, and the farthest mean in standard deviations."""
    sd = np.sqrt(truth.marginal_variance)
    return {
        "nats": float(found.kl(truth)),
        "mean, sd": float(np.abs((found.mean - truth.mean) / sd).max()),
    }


def wide(size: int) -> Gaussian:
    """The prior of so many coefficients."""
    return Gaussian.from_standard(np.zeros(size), np.eye(size) / LAMBDA)


def product(theirs: Mapping[str, Any]) -> Gaussian:
    """Posterity's product of the centres' estimates that BFI found."""
    centres = sorted(name for name in theirs if name.startswith("centre"))
    prior = wide(len(theirs["pooled"].mean))
    made = [Ledger.of_site(n, prior=prior, posterior=theirs[n]) for n in centres]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of centres that contradict each other
        fused: Any = posterity.fuse(made).posterior
    return fused


def compared(tables: Tables, model: str) -> dict[str, Any]:
    theirs = bfi(tables, {"linear": "gaussian", "logistic": "binomial"}.get(model, model))
    mine, whole = ours(tables, model), theirs["bfi"]
    first = list(range(len(mine["pooled"].mean)))  # of linear regression theirs have the noise, too
    shot, theirs_pooled = (_turned(theirs[name], first) for name in ("bfi", "pooled"))
    if model == "survival":  # whose baseline is last there, and first here
        last = [*first[1:], 0]
        mine |= {k: _turned(mine[k], last) for k in ("one shot", "pooled", "federated")}
    pooled, same = mine["pooled"], product(theirs)
    return {
        "records": {centre: len(own) for centre, own in tables.items()},
        "one rule: largest relative difference": float(np.abs(same.mean / whole.mean - 1).max()),
        "BFI, one shot": off(shot, pooled),
        "BFI, one shot, from BFI's own pooled fit": off(shot, theirs_pooled),
        "posterity, one shot": off(mine["one shot"], pooled)
        | {"nats as fuse expects them": mine["expected"]},
        "posterity, federated": off(mine["federated"], pooled) | {"status": mine["status"]},
        "seconds": {"BFI, one shot": theirs["seconds"], **mine["seconds"]},
    }


def _turned(q: Any, order: list[int]) -> Gaussian:
    return Gaussian.from_standard(q.mean[order], q.covariance[np.ix_(order, order)])


def examples() -> dict[str, tuple[Tables, str]]:
    """BFI's two data sets, as its vignette has the first, and survival in three centres."""
    tables_of_bfi = own_tables()
    trauma = tables_of_bfi["trauma"]
    scaled = {name: (own - own.mean()) / own.std(ddof=1) for name, own in trauma.items()}
    names = ("age", "ISS", "GCS")
    rows = np.column_stack([trauma["mortality"], trauma["sex"], *(scaled[n] for n in names)])
    tables = {f"hospital {h:g}": rows[trauma["hospital"] == h] for h in (1, 2, 3)}
    rng, lives = np.random.default_rng(0), {}
    for centre in ("one", "two", "three"):
        x = rng.normal(size=(80, 2))
        life = rng.exponential(size=80) / np.exp(x @ [0.6, -0.4] - 1.0)
        end = rng.uniform(0, 8, 80)
        lives[centre] = np.column_stack([np.minimum(life, end), life <= end, x]).astype(float)
    nurses = tables_of_bfi["Nurses"]
    names = ("stress", "age", "gender", "experien", "wardtype")
    rows = np.column_stack([nurses[name] for name in names])
    sizes = {f"hospitals of size {size}": rows[nurses["hospsize"] == size] for size in range(3)}
    return {
        "trauma": (tables, "logistic"),
        "nurses": (sizes, "linear"),
        "survival": (lives, "survival"),
    }


def heart() -> Tables:
    """The four hospitals of the heart disease data: the label, age, sex and chest pain."""
    data = heart_disease()
    x = design(data.X, data.feature_names)[:, 1:6]
    rows = np.column_stack([data.y, x])
    return {site: rows[data.center == place] for place, site in enumerate(SITES)}


def own_intercepts(tables: Tables) -> dict[str, Any]:
    """Centres that differ in their intercept: BFI's `stratified`, and `personal=`.

    The pooled fit of BFI's model has a column of ones for each centre in place of the intercept.
    """
    ones, sites = np.eye(len(tables)), {}
    for place, (centre, own) in enumerate(tables.items()):
        x = np.column_stack([np.tile(ones[place], (len(own), 1)), own[:, 1:]])
        sites[centre] = x, own[:, 0]
    size = x.shape[1]
    model, prior = posterity.models.LogisticRegression(), wide(size)
    options: dict[str, Any] = {"tolerance": 1e-8}
    every = tuple(np.concatenate(own) for own in zip(*sites.values(), strict=True))
    pooled: Any = federate({"all": every}, model, prior, **options).posterior
    theirs = bfi(tables, "binomial", stratified=True)["bfi"]
    own = federate(sites, model, prior, **options)
    population: Any = federated(tables, "logistic", wide(size - 3), personal=[0])
    slopes: Any = population.posterior.coefficients
    return {
        "BFI, stratified": off(theirs, pooled),
        "posterity, federated, a column of ones a centre": off(own.posterior, pooled)
        | {"status": own.status.state},
        "posterity, federated, personal intercepts": {
            "slopes": slopes.mean[1:].tolist(),
            "sd": np.sqrt(slopes.marginal_variance[1:]).tolist(),
            "spread of intercepts": float(np.exp(population.posterior.log_spread.mean[0])),
            "status": population.status.state,
        },
        "slopes of the pooled fit": pooled.mean[len(tables) :].tolist(),
    }


def failing(kind: str) -> Tables:
    """Three centres, of which the third has no record of a category, one class, or 8 patients."""
    rng, tables = np.random.default_rng(1), {}
    for centre in ("one", "two", "three"):
        count = 8 if centre == "three" and kind == "8 patients" else 120
        x = np.column_stack([rng.normal(size=count), rng.random(count) < 0.3])
        y = rng.random(count) < expit(-0.7 + x @ [0.8, 0.6])
        if centre == "three" and kind == "no event in a category":
            y &= x[:, 1] == 0
        if centre == "three" and kind == "a centre without a category":
            x[:, 1] = 0
        if centre == "three" and kind == "one class":
            y[:] = False
        tables[centre] = np.column_stack([y, x]).astype(float)
    return tables


FAILING = ("a centre without a category", "no event in a category", "one class", "8 patients")


def run(place: harness.Place = PLACE) -> None:
    if why := missing():
        raise SystemExit(f"nothing was run: {why}")
    found = {name: compared(*case) for name, case in examples().items()}
    found["heart"] = compared(heart(), "logistic")
    found["heart, intercepts of their own"] = own_intercepts(heart())
    found |= {kind: compared(failing(kind), "logistic") for kind in FAILING}
    place.write("expected", found)


if __name__ == "__main__":
    harness.command(run)
