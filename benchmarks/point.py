"""One point of a benchmark, in a process of its own: JSON in as the argument, JSON out."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.measure import answer, peak, timings
from benchmarks.problems import Shape, draw
from posterity import Plate, fuse
from posterity.arrays.tree import leaves

LONG = 20.0  # a first call of more CPU seconds than this is the only one
SHORT = 0.5
"""Seconds that short calls are repeated for: a median of a few of some milliseconds scatters."""


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


def klfusion_point(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Beside KL-fusion, with as many components as there are."""
    return beside(peers.klfusion, shape, shape.globals_, seed, runs=runs, budget=budget)


def klfusion_40_point(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Beside KL-fusion when the number is not known: it may use forty."""
    return beside(peers.klfusion, shape, 40, seed, runs=runs, budget=budget)


def spahm_point(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Beside SPAHM, which matches means only."""
    return beside(peers.match_means, shape, seed, runs=runs, budget=budget)


def beside(
    peer: Callable[..., tuple[str, peers.Call]], shape: Shape, *arguments: int, **effort: Any
) -> dict[str, Any]:
    """`fuse` and a peer on the same inputs in one process, each after a warm-up."""
    warm_up(shape)
    sites = draw(shape, arguments[-1])
    peer(draw(dataclasses.replace(shape, sites=2, components=2), 0), *arguments)[1]()
    code, call = peer(sites, *arguments)
    found: list[int] = []
    fuse(sites)
    ours = timings(lambda: found.append(fuse(sites).components), least=SHORT, **effort)
    theirs = timings(lambda: found.append(call()), least=SHORT, **effort)
    return {
        "posterity": {**ours, "found": found[0]},
        "peer": {**theirs, "found": found[-1], "code": code},
        "globals": shape.globals_,
    }


def warm_up(shape: Shape) -> None:
    """Two calls on three sites of three components: imports, caches, the allocator."""
    for seed in range(2):
        fuse(draw(dataclasses.replace(shape, sites=3, components=3), seed))


def input_bytes(sites: list[Plate]) -> int:
    """Bytes of all natural parameters, as passed."""
    return sum(np.asarray(leaf).nbytes for leaf in leaves(sites))


KINDS = {
    "growth": growth_point,
    "klfusion": klfusion_point,
    "klfusion-40": klfusion_40_point,
    "spahm": spahm_point,
}


if __name__ == "__main__":
    answer(Shape, KINDS)
