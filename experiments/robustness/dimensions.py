"""How far apart clusters have to be, by dimension: `python -m experiments.robustness.dimensions`.

Sites hold exact posteriors of full covariances and means. Three clusters are equally far from each
other; by the least distance is meant the one from which on all of five seeds come out right.
Writes `results/dimensions.json`.
"""

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import CACHES, command, kept, write
from experiments.robustness.situations import ledger, repeated, total, wisharts
from posterity import Plate, fuse

Array = np.ndarray
RESULTS = Path(__file__).parent / "results"
LAYOUTS = {
    "nine single components of three": [[k % 3] for k in range(9)],
    "two sites, one of three shared": [[0, 1], [1, 2]],
    "four sites with two of three": [[0, 1], [1, 2], [2, 0], [0, 1]],
}
CELLS = ((2, 50), (5, 50), (5, 500), (10, 50), (10, 500), (20, 100), (20, 1000), (50, 1000))
"""Dimensions, and records of each cluster at each site."""
DISTANCES = (3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 24.0)
SEEDS, GOAL = 5, 4.0


def centres(rng: np.random.Generator, size: int, apart: float) -> Array:
    """Three places (3, size) that are ``apart`` from each other."""
    turned = np.linalg.qr(rng.normal(size=(size, size)))[0]
    if size >= 3:
        return turned[:3] * apart / np.sqrt(2)
    angles = np.arange(3) * 2 * np.pi / 3
    return apart / np.sqrt(3) * np.stack([np.cos(angles), np.sin(angles)], axis=1) @ turned


def right(layout: str, size: int, records: int, apart: float, seed: int) -> bool:
    """Whether the default finds the three clusters, and what belongs to which."""
    rng, held = np.random.default_rng([seed, size, records]), LAYOUTS[layout]
    places, (prior, factor) = centres(rng, size, apart), wisharts(size, np.ones(size))
    sites = {}
    for number, own in enumerate(held):
        data = [places[g] + rng.normal(size=(records, size)) for g in own]
        law = Plate(total(prior, [factor(x) for x in data]))
        name = f"site {number}"
        sites[name] = ledger(name, Plate(repeated(prior, len(own))), law)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # matches that hang on little are what is looked for
        fused = fuse(sites)
    truth = [g for own in held for g in own]
    pairs = set(zip(truth, np.concatenate([*fused.matching.values()]).tolist(), strict=True))
    return len(pairs) == fused.components == 3


def least(layout: str, size: int, records: int, seeds: int) -> float | None:
    """The distance from which on all seeds are right; None if there is none."""
    found = None
    for apart in reversed(DISTANCES):
        if not all(right(layout, size, records, apart, seed) for seed in range(seeds)):
            break
        found = apart
    return found


def run(
    *,
    results: Path = RESULTS,
    cache: Path = CACHES / "dimensions",
    only_kept: bool = False,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure what is not kept yet, and write all down."""
    seeds, table = 1 if quick else SEEDS, {}
    for layout in LAYOUTS:
        table[layout] = {}
        for size, records in CELLS:
            make = functools.partial(least, layout, size, records, seeds)
            name = f"{layout.replace(' ', '-')}-{size}-{records}-{seeds}"
            found = kept(cache, name, None if only_kept else make)
            table[layout][f"d = {size}, n = {records}"] = found
        print(layout, table[layout], flush=True)
    worst = [own[cell] or np.inf for own in table.values() for cell in own]
    goal = f"clusters {GOAL:g} deviations apart are found in all cells"
    goals = [{"goal": goal, "measured": max(worst), "met": max(worst) <= GOAL}]
    document = {"goals": goals, "least": table}
    write(results, "dimensions", document)
    return document


if __name__ == "__main__":
    command(run)
