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
from experiments.pursuit import PLACE, peers
from experiments.pursuit.peers import Found
from experiments.pursuit.targets import NEAR, SIDES, TARGETS, Array, Gaussians, Target, divergence
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
    target: Target, effort: Effort, place: harness.Place
) -> dict[str, list[dict[str, Any]]]:
    """Rows of each method; ours first, for its evaluations are everyone's budget."""
    table: dict[str, list[dict[str, Any]]] = {}
    budget = effort.evaluations or 0
    for name in effort.methods:
        make = functools.partial(run_method, name, target, budget, effort)
        parts = [target.name, effort.components, name, effort.seeds]
        if name not in (*OPTIONS, REFERENCE):
            parts.append(budget)
        rows = place.kept("densities", make, *parts)
        if rows is None:
            continue
        table[name] = rows
        if name == OURS and not effort.evaluations:
            budget = max(int(np.median([row["evaluations"] for row in rows])), LEAST)
        print(f"{target.name:22} {name:32}", *(of(rows, kind) for kind in KINDS), flush=True)
    return table


def of(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Any]:
    """Least, median and largest over seeds, in nats; what is infinite is said in words."""
    values = [row[kind] for row in rows]
    three = min(values), statistics.median(values), max(values)
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


COLORS = ("#1d70b8", "#c1121f")
GREY = "#8d99a6"


def draw(drawn: Mapping[str, Any], path: Path) -> None:
    """A column a target; ours above, and the best of the boosting peers that ran below."""
    with harness.figure(path, 2, len(drawn), figsize=(2.7 * len(drawn), 5.6)) as axes:
        for column, (name, (target, table)) in zip(axes.T, drawn.items(), strict=True):
            ran = [peer for peer in peers.PEERS if peer in table]
            rows = [OURS, *([min(ran, key=lambda peer: median(table[peer]))] if ran else [])]
            for axis, method in zip(column, rows, strict=False):
                every = sorted(table[method], key=lambda row: row["reverse"])
                shown = every[(len(every) - 1) // 2]
                law = Gaussians.of(shown["weights"], shown["means"], shown["factors"])
                (line if target.size == 1 else plane)(axis, target, law)
                title = f"{name}\n{method}" if method == OURS else method
                axis.set_title(f"{title}\nKL {shown['reverse']:.2g}", fontsize=8)
                axis.tick_params(labelsize=6)


def line(axis: Any, target: Target, law: Gaussians) -> None:
    """Density over a line: the target grey, the mixture blue, its components thin."""
    x = np.linspace(-target.box, target.box, 801)[:, None]
    height = true(target, x)
    axis.fill_between(x[:, 0], height, color=GREY, alpha=0.45, linewidth=0)
    axis.plot(x, np.exp(law.log_density(x)), color=COLORS[0], linewidth=1.3)
    for weight, mean, root in zip(law.weights, law.means, law.factors, strict=True):
        own = Gaussians(np.ones(1), mean[None], root[None])
        axis.plot(x, weight * np.exp(own.log_density(x)), color=COLORS[1], linewidth=0.6)
    axis.set_ylim(0, 1.25 * height.max())


def plane(axis: Any, target: Target, law: Gaussians) -> None:
    """The target's density grey, that of the mixture in lines, its components as ellipses."""
    side = np.linspace(-target.box, target.box, 161)
    points = np.stack([own.ravel() for own in np.meshgrid(side, side)], 1)
    shape = (len(side), len(side))
    height = true(target, points).reshape(shape)
    axis.contourf(side, side, height, levels=9, cmap="Greys")
    levels = height.max() * np.array([0.02, 0.1, 0.3, 0.6])
    found = np.exp(law.log_density(points)).reshape(shape)
    axis.contour(side, side, found, levels=levels, colors=COLORS[0], linewidths=0.8)
    circle = np.stack([np.cos(u := np.linspace(0, 2 * np.pi, 80)), np.sin(u)])
    for weight, mean, root in zip(law.weights, law.means, law.factors, strict=True):
        edge = mean[:, None] + root @ circle
        axis.plot(*edge, color=COLORS[1], linewidth=0.4 + 1.2 * float(weight) ** 0.5)
    axis.set(xlim=(-target.box, target.box), ylim=(-target.box, target.box), aspect="equal")


def true(target: Target, points: Array) -> Array:
    return np.exp(target.log_densities(points) - target.log_normaliser(SIDES[target.size][0]))


def run(
    targets: tuple[str, ...] = tuple(TARGETS),
    /,
    place: harness.Place = PLACE,
    *,
    seeds: int = 5,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure, judge, draw and write, whenever a target is done; what `densities.json` holds."""
    effort = QUICK if quick else Effort(targets=targets, seeds=seeds)
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
    }
    title = f"{effort.components} components"
    for these in (effort, dataclasses.replace(effort, methods=effort.once)):
        for name in effort.targets:
            target = TARGETS[name]()
            table = one_target(target, these, place)
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
            place.write("densities", found)
    found["not run"] = [
        f"{name}, {method}"
        for name in effort.targets
        for method in effort.methods
        if method not in tables.get(name, {}).get(title, {})
    ]
    place.write("densities", found)
    draw(drawn, place.results / "densities.png")
    return found


if __name__ == "__main__":
    harness.command(run, targets=TARGETS)
