"""Densities that one Gaussian does not fit: `python -m experiments.pursuit.densities`."""

import dataclasses
import functools
import math
import statistics
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
LEAST = 100_000  # evaluations that peers have, however few ours took: theirs are spent in advance
ENOUGH = 0.01
KINDS = ("reverse", "forward")


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is run: ``once`` are methods that are run last, ``evaluations`` those of peers (as
    many as ours took at most, where not given), ``draws`` those of each of NUTS's eight chains.
    """

    targets: tuple[str, ...] = tuple(TARGETS)
    components: int = 6
    seeds: int = 5
    methods: tuple[str, ...] = (OURS, PLAIN, *peers.PEERS, JOINT)
    once: tuple[str, ...] = (GREEDY, PLAINEST, REFERENCE)
    evaluations: int | None = None
    draws: int = 1000


QUICK = Effort(
    targets=("two far modes",),
    components=2,
    seeds=1,
    methods=(OURS, PLAIN, "boosting VI, line search"),
    evaluations=4000,
    draws=50,
    once=(),
)


def ours(target: Target, *, components: int, seed: int, **options: Any) -> Found:
    """By the verb, from the base law that everyone has."""
    zero, variance = np.zeros(target.size), np.full(target.size, target.reach**2)
    base = DiagonalGaussian.from_standard(zero, variance)
    found = posterity.pursue(
        target.log_density, base, components=components, key=jax.random.key(seed), **options
    )
    return Found(gaussians(found.posterior), int(found.trace[-1].evaluations))


def gaussians(mixture: Any) -> Gaussians:
    parts = mixture.components.standard_parameters()
    return Gaussians.of(mixture.weights, parts["mean"], np.sqrt(np.asarray(parts["variance"])))


def run_method(name: str, target: Target, evaluations: int, effort: Effort) -> list[dict[str, Any]]:
    """A method's divergences and mixtures, one row a seed."""
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
    return [
        {
            **dataclasses.asdict(divergence(target, one.law)),
            "evaluations": one.evaluations,
            **{part: values.tolist() for part, values in vars(one.law).items()},
        }
        for one in found
    ]


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
        rows = harness.kept(cache, "densities", None if only_kept else make, *parts)
        if rows is None:
            continue
        table[name] = rows
        if name == OURS and not effort.evaluations:
            budget = max(int(np.median([row["evaluations"] for row in rows])), LEAST)
        print(f"{target.name:22} {name:32}", *(of(rows, kind) for kind in KINDS), flush=True)
    return table


def of(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Any]:
    """Least, median and largest over seeds, in nats; what is infinite is said in words."""
    three = peers.spread([row[kind] for row in rows])
    known = [harness.rounded(v, 3) if math.isfinite(v) else "infinite" for v in three]
    return dict(zip(("least", "median", "largest"), known, strict=True))


def report(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    change = harness.rounded(max(row["change"] for row in rows), 1)
    return {
        "KL(q, p)": of(rows, "reverse"),
        "KL(p, q)": of(rows, "forward"),
        "change of either with half the points": change,
        "evaluations": int(np.median([row["evaluations"] for row in rows])),
        "seeds": len(rows),
    }


def median(rows: Sequence[Mapping[str, Any]]) -> float:
    """Of KL(q ‖ p) over seeds."""
    return statistics.median(row["reverse"] for row in rows)


def goals(name: str, components: int, table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lower than every boosting peer; near nothing where that can be."""
    own, text = median(table[OURS]), f"{name}, {components} components: KL(q, p) of pursue"
    nearest = min((median(table[p]) for p in peers.PEERS if p in table), default=math.nan)
    worst = max(row["reverse"] for row in table[OURS])
    rounded = lambda value: harness.rounded(value, 3)
    below = {
        "goal": f"{text} below that of every boosting peer, medians",
        "pursue": rounded(own),
        "best of the peers": rounded(nearest),
        "met": own < nearest,
    }
    near = {
        "goal": f"{text} at most {ENOUGH} nats, median",
        "pursue": rounded(own),
        "worst seed": rounded(worst),
        "met": own <= ENOUGH,
    }
    return [below, near] if name in NEAR else [below]


def run(
    targets: tuple[str, ...] = tuple(TARGETS),
    /,
    *,
    results: Path = RESULTS,
    cache: Path = CACHE,
    seeds: int = 5,
    narrow: bool = False,
    only_kept: bool = False,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure, judge, draw and write; returns what `densities.json` holds.

    It is written whenever a target is done. A ``narrow`` run has no reference and no variants.
    """
    effort = QUICK if quick else Effort(targets=targets, seeds=seeds)
    effort = dataclasses.replace(effort, once=()) if narrow else effort
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
    title = f"{effort.components} components"
    for these in (effort, dataclasses.replace(effort, methods=effort.once)):
        for name in effort.targets:
            target = TARGETS[name]()
            table = one_target(target, these, cache, only_kept=only_kept)
            if not table:
                continue
            first = {"prototype, six components": PROTOTYPE.get(name, "none"), title: {}}
            column = tables.setdefault(name, first)[title]
            column |= {method: report(rows) for method, rows in table.items()}
            if OURS in table:
                drawn[name] = (target, table)
                # one is judged beside all, or not at all
                if set(these.methods) <= table.keys():
                    judged += goals(name, effort.components, table)
            found["goals met"] = [sum(own["met"] for own in judged), len(judged)]
            harness.write(results, "densities", found)
    found["not run"] = [
        f"{name}, {method}"
        for name in effort.targets
        for method in effort.methods
        if method not in tables.get(name, {}).get(title, {})
    ]
    harness.write(results, "densities", found)
    pictures.densities(drawn, results / "densities.png", OURS, list(peers.PEERS), median)
    return found


if __name__ == "__main__":
    harness.command(run, targets=TARGETS)
