"""How often matches of a given margin are wrong: the table in `docs/fuse.md`.

Sites have exact conjugate posteriors of their own clusters, drawn from a set that all share, about
centres that a site shifts. A match is wrong if its fused component is not the one that stands for
its cluster, in the best pairing of the two. `python -m experiments.klfusion.margins` prints it.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import posterity
from experiments.klfusion.generate import Array
from posterity.errors import IdentificationWarning

SHIFTS = (0.0, 0.3, 1.0)
EDGES = (-np.inf, 1.0, 3.0, 10.0, 30.0, np.inf)


class Outcome(NamedTuple):
    """By match its margin and whether it is wrong; the runner-up number's nats, and the error."""

    margins: Array
    wrong: NDArray[np.bool_]
    runner_up: float
    number_wrong: bool


def site(rng: Generator, centres: Array, deviations: Array, shift: float) -> posterity.Plate:
    """Normal-Wisharts of clusters of 20 to 200 records each, after a vague prior."""
    count, dim = centres.shape
    n = rng.integers(20, 200, count).astype(float)
    centres = centres + shift * deviations * rng.normal(size=centres.shape)
    noise = [s * rng.normal(size=(int(k), dim)) for s, k in zip(deviations, n, strict=True)]
    data = [centre + x for centre, x in zip(centres, noise, strict=True)]
    totals = np.stack([x.sum(0) for x in data])
    scatter = np.stack([np.eye(dim) + x.T @ x for x in data])
    return posterity.Plate(posterity.NormalWishart(0.01 + n, dim + 2 + n, totals, scatter))


def outcome(seed: int, shift: float) -> Outcome:
    """One problem: 3 to 20 sites, 3 to 12 clusters in 2 or 5 dimensions, near or far."""
    rng = np.random.default_rng(seed)
    dim, sites, total = (int(rng.choice(c)) for c in ((2, 5), (3, 5, 10, 20), (3, 6, 12)))
    centres = rng.choice((0.5, 1.0, 2.0, 4.0)) * rng.normal(size=(total, dim))
    deviations = np.exp(0.4 * rng.normal(size=(total, dim)))
    size = max(2, round(total * rng.uniform(0.4, 0.9)))
    rows = [rng.choice(total, size, replace=False) for _ in range(sites)]
    fused = posterity.fuse([site(rng, centres[r], deviations[r], shift) for r in rows])
    evidence, truth = fused.components_evidence, np.concatenate(rows)
    others = [nats for number, nats in evidence.items() if number != fused.components]
    wrong = _wrong(np.concatenate(list(fused.matching.values())), truth)
    margins = np.concatenate(list(fused.margins.values()))
    number = len(np.unique(truth))
    return Outcome(margins, wrong, min(others, default=np.inf), fused.components != number)


def _wrong(labels: NDArray[np.int_], truth: NDArray[np.int_]) -> NDArray[np.bool_]:
    table = np.zeros((labels.max() + 1, truth.max() + 1))
    np.add.at(table, (labels, truth), 1)
    stands_for = np.full(len(table), -1)
    fused, true = linear_sum_assignment(-table)
    stands_for[fused] = true
    return stands_for[labels] != truth


def row(name: str, nats: Array, wrong: NDArray[Any]) -> str:
    """The share that is wrong, and of how many, between the edges."""
    cells = []
    for low, high in itertools.pairwise(EDGES):
        inside = (nats >= low) & (nats < high)
        share = f"{wrong[inside].mean():.4f}" if inside.any() else "-"
        cells.append(f"{share} ({inside.sum()})")
    return f"{name:28} " + "  ".join(f"{cell:>16}" for cell in cells)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=150, help="for each shift")
    problems = range(parser.parse_args().problems)
    warnings.simplefilter("ignore", IdentificationWarning)
    print(row("nats: <1 1-3 3-10 10-30 >30", np.zeros(0), np.zeros(0)))
    found = {shift: [outcome(seed, shift) for seed in problems] for shift in SHIFTS}
    for shift, outcomes in found.items():
        margins, wrong = (np.concatenate([o[k] for o in outcomes]) for k in (0, 1))
        print(row(f"matches, shift {shift}", margins, wrong))
    right = [o for outcomes in found.values() for o in outcomes if not o.number_wrong]
    margins, wrong = (np.concatenate([o[k] for o in right]) for k in (0, 1))
    print(row("matches, number right", margins, wrong))
    for shift, outcomes in found.items():
        nats, wrong = (np.array([o[k] for o in outcomes]) for k in (2, 3))
        print(row(f"number, shift {shift}", nats, wrong))


if __name__ == "__main__":
    main()
