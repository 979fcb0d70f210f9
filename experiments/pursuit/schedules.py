"""What rules of λ gain, and what they cost: `python -m experiments.pursuit.schedules`."""

import dataclasses
import functools
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posterity
from experiments import harness
from experiments.pursuit import PLACE, modes
from experiments.pursuit.densities import ours
from experiments.pursuit.targets import TARGETS, divergence
from posterity.errors import ConvergenceWarning
from posterity.families import Gaussian
from posterity.pursuit import Best, Fixed, Flatness, LambdaSchedule, Schedule


def falling(t: int) -> float:
    """λ of component ``t``: 1.7 for the second, half as far from 0.5 with each further one."""
    return 0.5 + 1.2 * 0.5 ** (t - 2)


RULES: dict[str, LambdaSchedule] = {
    "fixed, λ = 1": Fixed(1.0),
    "falling, 1.7 to 0.5": Schedule(falling),
    "flatness (the slides' heuristic)": Flatness(),
    "best of 0.5, 1 and 1.7 (the default)": Best(),
}


DRAWS = 40_000


def eight_schools(z: Any) -> Any:
    """Log posterior of the effects of eight schools (rubin1981), which are ``μ + τ`` times ``z``:
    ``z`` are eight effects, the mean ``μ``, and the logarithm of ``τ``.
    """
    gain = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    error = jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    effects = z[:8]
    mean = z[8]
    spread = jnp.exp(z[9])
    data = (((gain - effects) / error) ** 2).sum()
    between = (((effects - mean) / spread) ** 2).sum() + 16 * z[9]
    prior = (mean / 10) ** 2 / 2 + spread / 20 - z[9]  # τ is exponential with mean 20
    return -(data + between) / 2 - prior


def twin_features(z: Any) -> Any:
    """Log posterior of a regression in which either of two equal columns may have the coefficient:
    Student's priors with half a degree of freedom, which leave two modes.
    """
    residual = 20 * ((z[0] + z[1] - 3) ** 2)
    return -residual / 2 - 0.75 * jnp.log1p((z / 0.1) ** 2 * 2).sum()


def three_modes(z: Any) -> Any:
    """Log density of round Gaussians of unequal weights in ten dimensions, six deviations apart."""
    return modes.log_density(*modes.three(10, 0), z)


FURTHER = {
    "three modes, 10-d": (three_modes, Gaussian.from_standard(np.zeros(10), 9 * np.eye(10))),
    "eight schools, 10-d": (
        eight_schools,
        Gaussian.from_standard(np.r_[np.zeros(9), 1.0], np.diag(np.r_[np.full(9, 400.0), 4.0])),
    ),
    "twin features, 2-d": (twin_features, Gaussian.from_standard(np.zeros(2), 25 * np.eye(2))),
}
"""Log densities, and bases, of which the divergence from the best mixture is measured."""
POLISHED = {"polished after each component": "each", "not polished": None}


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is run."""

    targets: tuple[str, ...] = tuple(TARGETS)
    components: int = 6
    seeds: int = 5


def rows_of_further(name: str, rule: str, polish: str | None, effort: Effort) -> list[dict]:
    """Return the evidence lower bound in nats, up to a constant, and the costs of each seed."""
    log_density, base = FURTHER[name]
    rows = []
    for seed in range(effort.seeds):
        begun = time.process_time()
        options: dict[str, Any] = {"schedule": RULES[rule], "polish": polish}
        options |= {"key": jax.random.key(seed), "components": effort.components}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found: Any = posterity.pursue(log_density, base, **options)
        seconds = time.process_time() - begun
        with jax.enable_x64(True):
            z = found.posterior.sample(jax.random.key(1000), (DRAWS,))
            gains = jax.vmap(log_density)(z) - found.posterior.log_prob(z)
        count = int(found.trace[-1].evaluations)
        rows.append({"bound": float(gains.mean()), "evaluations": count, "CPU s": seconds})
    return rows


def rows_of(target_name: str, rule: str, polish: str | None, effort: Effort) -> list[dict]:
    """Return KL(q, p) in nats, evaluations and CPU seconds of each seed."""
    target = TARGETS[target_name]()
    rows = []
    for seed in range(effort.seeds):
        begun = time.process_time()
        options: dict[str, Any] = {"schedule": RULES[rule], "polish": polish}
        found = ours(target, components=effort.components, seed=seed, **options)
        seconds = time.process_time() - begun
        reverse = divergence(target, found.law).reverse
        rows.append({"nats": reverse, "evaluations": found.evaluations, "CPU s": seconds})
    return rows


def report(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the least, median and largest divergence, and the medians of costs."""
    nats = [row["nats"] for row in rows]
    three = min(nats), statistics.median(nats), max(nats)
    return {
        "nats, least, median, largest": [harness.rounded(value, 3) for value in three],
        "evaluations": int(statistics.median(row["evaluations"] for row in rows)),
        "CPU s": harness.rounded(statistics.median(row["CPU s"] for row in rows), 2),
    }


def best_of(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, int]]:
    """Return for how many targets each rule has the least median divergence, or is within a tenth
    of it or a thousandth of a nat.
    """
    counts: dict[str, dict[str, int]] = {}
    for table in tables.values():
        for way, column in table.items():
            medians = {rule: own["nats, least, median, largest"][1] for rule, own in column.items()}
            least = min(medians.values())
            counts.setdefault(way, dict.fromkeys(RULES, 0))
            for rule, nats in medians.items():
                counts[way][rule] += nats <= max(1.1 * least, least + 1e-3)
    return counts


def run(
    targets: tuple[str, ...] = tuple(TARGETS),
    /,
    place: harness.Place = PLACE,
    *,
    seeds: int = 5,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure and write, whenever a target is done; what `schedules.json` holds."""
    effort = Effort(("two far modes",), 2, 1) if quick else Effort(targets=targets, seeds=seeds)
    tables: dict[str, Any] = {}
    names = effort.targets if quick else (*effort.targets, *FURTHER)
    found: dict[str, Any] = {
        "paper": "the slides print no numbers",
        "problem": "components are Gaussians, with independent coordinates but of the last three; "
        "KL(q, p) in nats, of the last three less that of the best mixture of all, by draws",
        "seeds": f"0 to {effort.seeds - 1}",
        "effort": dataclasses.asdict(effort),
        "targets": tables,
    }
    for name in names:
        table: dict[str, Any] = {way: {} for way in POLISHED}
        each: dict[str, Any] = {}
        for way, polish in POLISHED.items():
            for rule in RULES:
                parts = [name, rule, way, effort.components, effort.seeds]
                measure = rows_of_further if name in FURTHER else rows_of
                make = functools.partial(measure, name, rule, polish, effort)
                rows = place.kept("schedules", make, *parts)
                if rows is not None:
                    each[way, rule] = rows
        if name in FURTHER:
            highest = max(row["bound"] for rows in each.values() for row in rows)
            each = {
                key: [row | {"nats": highest - row["bound"]} for row in rows]
                for key, rows in each.items()
            }
        for (way, rule), rows in each.items():
            table[way][rule] = report(rows)
            print(f"{name:22} {way:30} {rule:38}", table[way][rule], flush=True)
        tables[name] = table
        found["targets on which a rule is best, or within a tenth"] = best_of(tables)
        place.write("schedules", found)
    return found


if __name__ == "__main__":
    harness.command(run, targets=TARGETS)
