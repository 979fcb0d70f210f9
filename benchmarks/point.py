"""One point of a benchmark, in a process of its own: JSON in as the argument, JSON out."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from benchmarks.measure import answer, peak, timings
from benchmarks.problems import Shape, draw
from posterity import Plate, fuse

LONG = 20.0
"""A first call of more CPU seconds than this is the only one."""


def growth_point(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Time and peak memory of `fuse`, after a warm-up on a tiny problem of the same family."""
    warm_up(shape)
    sites = draw(shape, seed)
    found: list[int] = []
    call = lambda: found.append(fuse(sites).components)
    first = peak(call)
    seconds = timings(call, runs=runs, budget=budget) if first["cpu_s"] < LONG else {}
    sizes = {"input_bytes": input_bytes(sites), "globals": shape.globals_, "found": found[0]}
    return {**first, **seconds, **sizes}


def reference_point(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """`fuse` and the reference on the same inputs, one after the other."""
    import cvxpy  # noqa: F401  # its import is not part of the reference's time

    from benchmarks import reference

    warm_up(shape)
    sites = draw(shape, seed)
    fits = [reference.site_fit(plate) for plate in sites]
    found: list[int] = []
    fuse(sites)
    ours = timings(lambda: found.append(fuse(sites).components), runs=runs, budget=budget)
    call = lambda: found.append(reference.run(fits, shape.globals_, seed))
    theirs = timings(call, runs=1, budget=0.0)
    return {
        "posterity": {**ours, "found": found[0]},
        "reference": {**theirs, "found": found[-1], "allowed": reference.allowed(shape.globals_)},
        "globals": shape.globals_,
    }


def warm_up(shape: Shape) -> None:
    """Two calls on three sites of three components: imports, caches, the allocator."""
    for seed in range(2):
        fuse(draw(dataclasses.replace(shape, sites=3, components=3), seed))


def input_bytes(sites: list[Plate]) -> int:
    """Bytes of all natural parameters, as passed."""
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(sites))


KINDS = {"growth": growth_point, "reference": reference_point}


if __name__ == "__main__":
    answer(Shape, KINDS)
