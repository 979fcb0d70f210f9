"""Reported over true distance: `python -m experiments.forgetting.run`.

Goes on where an earlier run ended (`results/leavers.jsonl`), and writes `results/expected.json`.
"""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.forgetting.cases import CASES, LEAVER, NOISY, SETTINGS, Case
from experiments.robustness.problems import Problem
from experiments.robustness.reference import gap_of
from posterity import federate, forget
from posterity.errors import ParameterError
from posterity.families import DiagonalGaussian
from posterity.federation import Run, certify

RESULTS = Path(__file__).parent / "results"
SWEEPS = (0, 1, 2, 5, None)  # passes of refinement; None for as many as it takes, the default
ENOUGH = 1e-11  # nats that may be left to change in what was trained anew
SMALL = 1e-8  # nats: less of a distance is rounding of those who are compared
QUANTILES = {"least": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "largest": 1.0}


def measured(case: Case) -> dict[str, Any]:
    """True and reported distances of one leaver, by number of sweeps.

    Those who stay are federated anew from nothing, and without noise where the others had it.
    """
    steps = case.rounds and case.rounds * case.schedule.round(len(case.sites))
    options = {"schedule": case.schedule, "steps": steps, **case.options}
    anew: Any = {} if case.kind == NOISY else case.options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is warned of is in the statuses
        never = federate(case.rest, case.model, case.prior, tolerance=ENOUGH, **anew)
        trained = federate(case.sites, case.model, case.prior, **options)
    told = {
        "anew": {"status": never.status.state, "nats left": never.status.left},
        "nats above the least of BFGS": _gap(case, never),
        "before": float(trained.posterior.kl(never.posterior)),
    }
    return told | {"sweeps": [_forgotten(trained, never, sweeps) for sweeps in SWEEPS]}


def _gap(case: Case, run: Run) -> float | None:
    """Of logistic regression, by an optimiser that shares nothing with posterity."""
    if case.kind not in SETTINGS:
        return None
    family = "diagonal" if isinstance(case.prior, DiagonalGaussian) else "full"
    problem = Problem(f"logistic, {family}", case.model, case.rest, case.prior, {})
    return gap_of(problem)(run.posterior)


def _forgotten(trained: Run, never: Run, sweeps: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"sweeps": sweeps, "allow_unconverged": True}
    if not trained.exact:
        options["rehearse"] = True
    try:
        done, restart = forget(trained, LEAVER, **options), False
    except ParameterError:  # the subtraction left no distribution
        done, restart = forget(trained, LEAVER, **options, restart=True), True
    assert done.run is not None
    return {
        "sweeps": sweeps,
        "restart": restart,
        "true": float(done.ledger.posterior.kl(never.posterior)),
        "reported": done.distance,
        "certificate": certify(done.run).distance,
        "converged": done.run.status.converged,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Quantiles of reported over true, by number of sweeps; what noise blurs apart."""
    exact = [row for row in rows if row["kind"] != NOISY]
    at = lambda sweeps: [r for row in exact for r in row["sweeps"] if r["sweeps"] == sweeps]
    most = lambda numbers: max((n for n in numbers if n is not None), default=None)
    named = {"default" if s is None else f"{s} sweeps": at(s) for s in SWEEPS}
    noisy = [r for row in rows if row["kind"] == NOISY for r in row["sweeps"]]
    above = "nats above the least of BFGS"
    return {
        "seeds": "0, 1, 2, ... of each kind",
        "leavers": len(exact),
        "trained anew, nats left, at most": most(r["anew"]["nats left"] for r in exact),
        f"trained anew, {above}, at most": most(row[above] for row in exact),
        "reported over true": {name: ratios(own, "reported") for name, own in named.items()},
        "certificate over true": {name: ratios(own, "certificate") for name, own in named.items()},
        "nats left by default, at most": most(r["true"] for r in at(None)),
        "by draws, reported over true": ratios(noisy, "reported"),
    }


def ratios(rows: Iterable[dict[str, Any]], what: str) -> dict[str, Any]:
    """Of ``what`` to true; where the truth is rounding, only how large ``what`` is."""
    rows = list(rows)
    known = [row for row in rows if row[what] is not None]
    large = [row for row in known if row["true"] > SMALL]
    small = [row[what] for row in known if row["true"] <= SMALL]
    found = np.array([row[what] / row["true"] for row in large])
    return {
        **{
            name: harness.rounded(np.quantile(found, q), 3)
            for name, q in QUANTILES.items()
            if large
        },
        "distances": len(large),
        "unknown": len(rows) - len(known),
        f"true below {SMALL:g}": {"distances": len(small), "at most": max(small, default=None)},
    }


def run(
    *, results: Path = RESULTS, most: int | None = None, kinds: tuple[str, ...] = tuple(CASES)
) -> dict[str, Any]:
    """All cases, or ``most`` of each kind; those that are in the file already are not run again."""
    counts = {kind: CASES[kind][1] if most is None else min(CASES[kind][1], most) for kind in kinds}
    keys = [(kind, seed) for kind, count in counts.items() for seed in range(count)]
    measure = lambda kind, seed: measured(CASES[kind][0](kind, seed))
    found = summary(harness.rows(results / "leavers.jsonl", ("kind", "seed"), keys, measure))
    harness.write(results, "expected", found)
    return found


if __name__ == "__main__":
    harness.command(run, kinds=CASES)
