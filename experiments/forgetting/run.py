"""Reported over true distance: `python -m experiments.forgetting.run`.

Goes on where an earlier run ended (`results/leavers.jsonl`), and writes `results/expected.json`.
"""

from __future__ import annotations

import argparse
import json
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
SWEEPS = (0, 1, 2, 5, None)
"""Passes of refinement; None for as many as it takes, the default."""
ENOUGH = 1e-11
"""Nats that may be left to change in what was trained anew."""
SMALL = 1e-8
"""Nats: less of a distance is rounding of those who are compared."""
QUANTILES = {"least": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "largest": 1.0}


def measured(case: Case) -> dict[str, Any]:
    """True and reported distances of one leaver, by number of sweeps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is warned of is in the statuses
        trained, never = _trained(case), _anew(case)
    told = {
        "anew": {"status": never.status.state, "nats left": never.status.left},
        "nats above the least of BFGS": _gap(case, never),
        "before": float(trained.posterior.kl(never.posterior)),
    }
    return told | {"sweeps": [_forgotten(trained, never, sweeps) for sweeps in SWEEPS]}


def _trained(case: Case) -> Run:
    steps = None
    if case.rounds is not None:
        steps = case.rounds * case.schedule.round(len(case.sites))
    options = {"schedule": case.schedule, "steps": steps, **case.options}
    return federate(case.sites, case.model, case.prior, **options)


def _anew(case: Case) -> Run:
    """Those who stay, federated from nothing: for noisy ones without noise."""
    options = {} if case.kind == NOISY else case.options
    return federate(case.rest, case.model, case.prior, tolerance=ENOUGH, **options)


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


# --- statistics --------------------------------------------------------------------------------


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Quantiles of reported over true, by number of sweeps; what noise blurs apart."""
    exact = [row for row in rows if row["kind"] != NOISY]
    gaps = [row["nats above the least of BFGS"] for row in exact]
    return {
        "seeds": "0, 1, 2, ... of each kind",
        "leavers": len(exact),
        "trained anew, nats left, at most": max(
            (r["anew"]["nats left"] for r in exact), default=None
        ),
        "trained anew, nats above the least of BFGS, at most": max(
            (gap for gap in gaps if gap is not None), default=None
        ),
        "reported over true": {_named(s): ratios(_at(exact, s), "reported") for s in SWEEPS},
        "certificate over true": {_named(s): ratios(_at(exact, s), "certificate") for s in SWEEPS},
        "nats left by default, at most": max((r["true"] for r in _at(exact, None)), default=None),
        "by draws, reported over true": ratios(
            [r for row in rows if row["kind"] == NOISY for r in row["sweeps"]], "reported"
        ),
    }


def ratios(rows: Iterable[dict[str, Any]], what: str) -> dict[str, Any]:
    """Of ``what`` to true; where the truth is rounding, only how large ``what`` is."""
    rows = list(rows)
    known = [row for row in rows if row[what] is not None]
    large = [row for row in known if row["true"] > SMALL]
    small = [row[what] for row in known if row["true"] <= SMALL]
    found = np.array([row[what] / row["true"] for row in large])
    return {
        **{name: _short(np.quantile(found, q)) for name, q in QUANTILES.items() if large},
        "distances": len(large),
        "unknown": len(rows) - len(known),
        f"true below {SMALL:g}": {
            "distances": len(small),
            "at most": max(small, default=None),
        },
    }


def _at(rows: list[dict[str, Any]], sweeps: int | None) -> list[dict[str, Any]]:
    return [found for row in rows for found in row["sweeps"] if found["sweeps"] == sweeps]


def _named(sweeps: int | None) -> str:
    return "default" if sweeps is None else f"{sweeps} sweeps"


def _short(number: Any) -> float:
    return float(f"{float(number):.3g}")


def run(
    results: Path = RESULTS, kinds: Iterable[str] = tuple(CASES), most: int | None = None
) -> dict[str, Any]:
    """All cases, or ``most`` of each kind; those that are in the file already are not run again."""
    counts = {kind: CASES[kind][1] if most is None else min(CASES[kind][1], most) for kind in kinds}
    keys = [(kind, seed) for kind, count in counts.items() for seed in range(count)]
    measure = lambda kind, seed: measured(CASES[kind][0](kind, seed))
    found = summary(harness.rows(results / "leavers.jsonl", ("kind", "seed"), keys, measure))
    harness.write(results, "expected", found)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, help="seeds of each kind; all by default")
    print(json.dumps(run(most=parser.parse_args().most), indent=1))
