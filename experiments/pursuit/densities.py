"""Densities that one Gaussian does not fit: `python -m experiments.pursuit.densities`."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import posterity
from experiments import harness
from experiments.pursuit import CACHE, RESULTS, peers, pictures
from experiments.pursuit.peers import Found
from experiments.pursuit.quadrature import Gaussians, divergence
from experiments.pursuit.targets import NEAR, TARGETS, Target
from posterity.errors import ConvergenceWarning
from posterity.families import DiagonalGaussian
from posterity.pursuit import Fixed

PROTOTYPE = {
    "four modes, 1-d": {"plain VI": 1.17, "λ = 1": 0.23, "λ by ELBO": 0.083, "polished": 1e-4},
    "two far modes": {"plain VI": 682, "λ = 1": 0.011, "λ by ELBO": 0.005, "polished": 0.002},
    "ring of six": {"plain VI": 6.0, "λ = 1": 0.10, "λ by ELBO": 0.09, "polished": 3e-4},
    "banana": {"plain VI": 52, "λ = 1": 0.48, "λ by ELBO": 0.32, "polished": 0.08},
}
"""KL(q ‖ p), medians, six components, of a prototype on targets of these names, whose constants
were others. The slides print no numbers."""

OURS = "pursue"
PLAIN, JOINT, REFERENCE = "plain VI", "joint mixture VI", "NUTS and EM"
GREEDY, PLAINEST = "pursue, not polished", "pursue, λ = 1, not polished"
OPTIONS: dict[str, dict[str, Any]] = {
    OURS: {},
    GREEDY: {"polish": None},
    PLAINEST: {"polish": None, "schedule": Fixed(1.0)},
}
"""What is asked of `posterity.pursue` beside its defaults."""
LEAST = 100_000
"""Evaluations that peers have, however few ours took: theirs are spent in advance."""
ENOUGH = 0.01


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is run."""

    targets: tuple[str, ...] = tuple(TARGETS)
    components: int = 6
    seeds: int = 5
    methods: tuple[str, ...] = (OURS, PLAIN, *peers.PEERS, JOINT)
    once: tuple[str, ...] = (GREEDY, PLAINEST, REFERENCE)
    """Methods that are run last."""
    evaluations: int | None = None
    """Of peers: as many as ours took at most, where not given."""
    draws: int = 1000
    """Of each of the eight chains of NUTS."""


FULL = Effort()
QUICK = Effort(
    targets=("two far modes",),
    components=2,
    seeds=1,
    methods=(OURS, PLAIN, "boosting VI, line search"),
    evaluations=4000,
    draws=50,
    once=(),
)


# --- ours ------------------------------------------------------------------------------------


def ours(target: Target, *, components: int, seed: int, **options: Any) -> Found:
    """By the verb, from the base law that everyone has."""
    zero, variance = np.zeros(target.size), np.full(target.size, target.reach**2)
    base = DiagonalGaussian.from_standard(zero, variance)
    found = posterity.pursue(
        target.log_density, base, components=components, key=jax.random.key(seed), **options
    )
    return Found(gaussians(found.posterior), evaluations(found))


def gaussians(mixture: Any) -> Gaussians:
    """A Mixture of the library as numbers."""
    parts = mixture.components.standard_parameters()
    mean = np.asarray(parts["mean"], np.float64)
    roots = np.sqrt(np.asarray(parts["variance"], np.float64))
    return Gaussians.of(np.asarray(mixture.weights, np.float64), mean, roots)


def evaluations(found: Any) -> int:
    """Gradients of the log density, of the whole run."""
    return int(found.trace[-1].evaluations)


# --- everyone --------------------------------------------------------------------------------


def measured(target: Target, found: Sequence[Found]) -> list[dict[str, Any]]:
    """One row a seed."""
    rows = []
    for one in found:
        own = divergence(target, one.law)
        rows.append(
            {
                "reverse": own.reverse,
                "forward": own.forward,
                "change": own.change,
                "evaluations": one.evaluations,
                "weights": one.law.weights.tolist(),
                "means": one.law.means.tolist(),
                "factors": one.law.factors.tolist(),
            }
        )
    return rows


def run_method(name: str, target: Target, evaluations: int, effort: Effort) -> list[dict[str, Any]]:
    """All seeds of a method."""
    seeds, components = range(effort.seeds), effort.components
    budget = {"evaluations": evaluations, "seeds": seeds}
    if name in OPTIONS:
        few = seeds if name == OURS else range(min(effort.seeds, 3))
        options = OPTIONS[name]
        found = [ours(target, components=components, seed=seed, **options) for seed in few]
    elif name == PLAIN:
        found = peers.joint(target, components=1, batch=16, **budget)
    elif name == JOINT:
        found = peers.joint(target, components=components, **budget)
    elif name == REFERENCE:
        found = [peers.nuts(target, components=components, seed=0, draws=effort.draws)]
    else:
        found = peers.boost(target, peers.PEERS[name], components=components, **budget)
    return measured(target, found)


def one_target(
    target: Target, effort: Effort, cache: Path, *, only_kept: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """Rows of each method; ours first, for its evaluations are everyone's budget."""
    table: dict[str, list[dict[str, Any]]] = {}
    budget = effort.evaluations or 0
    for name in effort.methods:
        make = functools.partial(run_method, name, target, budget, effort)
        parts = [target.name, effort.components, name, effort.seeds]
        if name not in (*OPTIONS, REFERENCE):
            parts.append(budget)
        make = None if only_kept else make
        rows = harness.kept(cache, "densities", make, *parts)
        if rows is None:
            continue
        table[name] = rows
        if name == OURS and not effort.evaluations:
            took = int(np.median([row["evaluations"] for row in table[name]]))
            budget = max(took, LEAST)
        print(f"{target.name:22} {name:32}", line(table[name]), flush=True)
    return table


def line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of one method, for the terminal."""
    reverse = peers.spread([row["reverse"] for row in rows])
    forward = statistics.median(row["forward"] for row in rows)
    return f"{reverse[1]:9.2g} [{reverse[0]:.2g}, {reverse[2]:.2g}]  forward {forward:.2g}"


def report(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median, least and largest over seeds; what is infinite is said in words."""
    return {
        "KL(q, p)": three([row["reverse"] for row in rows]),
        "KL(p, q)": three([row["forward"] for row in rows]),
        "change of either with half the points": harness.rounded(
            max(row["change"] for row in rows), 1
        ),
        "evaluations": int(np.median([row["evaluations"] for row in rows])),
        "seeds": len(rows),
    }


def three(values: Sequence[float]) -> dict[str, Any]:
    """In nats."""
    names = ("least", "median", "largest")
    return {
        name: harness.rounded(value, 3) if math.isfinite(value) else "infinite"
        for name, value in zip(names, peers.spread(values), strict=True)
    }


def median(rows: Sequence[Mapping[str, Any]]) -> float:
    """Of KL(q ‖ p) over seeds."""
    return statistics.median(row["reverse"] for row in rows)


def goals(name: str, components: int, table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lower than every boosting peer; near nothing where that can be."""
    own = median(table[OURS])
    boosting = {peer: median(table[peer]) for peer in peers.PEERS if peer in table}
    text = f"{name}, {components} components"
    nearest = min(boosting.values(), default=math.nan)
    found = [
        {
            "goal": f"{text}: KL(q, p) of pursue below that of every boosting peer, medians",
            "pursue": harness.rounded(own, 3),
            "best of the peers": harness.rounded(nearest, 3),
            "met": own < nearest,
        }
    ]
    if name in NEAR:
        worst = max(row["reverse"] for row in table[OURS])
        found.append(
            {
                "goal": f"{text}: KL(q, p) of pursue at most {ENOUGH} nats, median",
                "pursue": harness.rounded(own, 3),
                "worst seed": harness.rounded(worst, 3),
                "met": own <= ENOUGH,
            }
        )
    return found


def run(
    effort: Effort, results: Path = RESULTS, cache: Path = CACHE, *, only_kept: bool = False
) -> dict[str, Any]:
    """Measure, judge, draw and write; returns what `densities.json` holds.

    It is written whenever a target is done; ``only_kept`` writes down what was run before.
    """
    tables: dict[str, Any] = {}
    drawn: dict[str, Any] = {}
    judged: list[dict[str, Any]] = []
    found: dict[str, Any] = {
        "paper": "the slides print no numbers",
        "problem": "components are Gaussians with independent coordinates; the base law is "
        "N(0, reach²), from which searches start; nats; KL by quadrature in double precision",
        "budget": "gradients of the log density; peers have as many as the median run of pursue "
        f"took, and at least {LEAST}",
        "seeds": f"0 to {effort.seeds - 1}; not polished 0 to 2; NUTS 0",
        "spread": "least and largest over seeds",
        "effort": dataclasses.asdict(effort),
        "goals met": [],
        "goals": judged,
        "targets": tables,
        "made with": harness.versions(),
    }
    last = dataclasses.replace(effort, methods=effort.once)
    components = effort.components
    for these in (effort, last):
        for name in effort.targets:
            target = TARGETS[name]()
            table = one_target(target, these, cache, only_kept=only_kept)
            if not table:
                continue
            own = tables.setdefault(
                name, {"prototype, six components": PROTOTYPE.get(name, "none")}
            )
            column = own.setdefault(f"{components} components", {})
            column |= {method: report(rows) for method, rows in table.items()}
            # one is judged beside all, or not at all
            if set(these.methods) <= table.keys() and OURS in table:
                judged += goals(name, components, table)
            if OURS in table:
                drawn[name] = (target, table)
            found["goals met"] = [sum(own["met"] for own in judged), len(judged)]
            harness.write(results, "densities", found)
    found["not run"] = [
        f"{name}, {method}"
        for name in effort.targets
        for method in effort.methods
        if method not in tables.get(name, {}).get(f"{components} components", {})
    ]
    harness.write(results, "densities", found)
    pictures.densities(drawn, results / "densities.png", OURS, list(peers.PEERS), median)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, CACHE)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help="names; all by default")
    parser.add_argument("--seeds", type=int, default=None, help="how many")
    parser.add_argument("--narrow", action="store_true", help="no reference and no variants")
    chosen = parser.parse_args(arguments)
    # what has not converged is judged by its divergence
    warnings.simplefilter("ignore", ConvergenceWarning)
    effort = QUICK if chosen.quick else dataclasses.replace(FULL, targets=tuple(chosen.targets))
    effort = dataclasses.replace(
        effort,
        seeds=chosen.seeds or effort.seeds,
        once=() if chosen.narrow else effort.once,
    )
    found = run(effort, chosen.results, chosen.cache, only_kept=chosen.only_kept)
    for goal in found["goals"]:
        rest = {name: value for name, value in goal.items() if name not in ("goal", "met")}
        print("met     " if goal["met"] else "not met ", goal["goal"], rest)


if __name__ == "__main__":
    main()
