"""Time and memory of a call, inside the process that makes it."""

import ctypes
import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.resident import highest, resident

REFS = Path("/proc/self/clear_refs")
SHORT = 0.05
"""Seconds of a call below which its CPU seconds may be miscounted."""


def timings(
    call: Callable[[], Any], *, runs: int, budget: float, least: float = 0.0
) -> dict[str, Any]:
    """Median wall and CPU seconds of up to `runs` calls, as many as fit into `budget` seconds; of
    short calls, as many more as take the `least` number of seconds together. CPU seconds of calls
    shorter than `SHORT` are their mean, since some systems count them by the tick.
    """
    wall, cpu = [], []
    while not wall or (
        (len(wall) < runs or sum(wall) < least) and sum(wall) + median(wall) < budget
    ):
        before, before_cpu = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - before)
        cpu.append(time.process_time() - before_cpu)
    usual = fmean if median(wall) < SHORT else median
    return {"wall_s": median(wall), "cpu_s": usual(cpu), "runs": len(wall)}


def peak(call: Callable[[], Any]) -> dict[str, Any]:
    """Wall, CPU and the rise of the resident set during one call, above what was there before."""
    base = _baseline()
    seconds = timings(call, runs=1, budget=0.0)
    return {**seconds, "baseline_bytes": base, "peak_bytes": max(highest() - base, 0)}


def _baseline() -> int:
    """Resident bytes with the inputs built, what building them needed handed back."""
    gc.collect()
    if not sys.platform.startswith("linux"):
        return highest()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
    REFS.write_text("5")  # the high-water mark starts again from here
    return resident("VmRSS")


def answer(size: type, kinds: Mapping[str, Callable[..., Any]]) -> bool:
    """Do the task that the process was started for, within its CPU seconds, and print JSON.

    Returns whether it was started for one: its argument is then JSON.
    """
    if not sys.argv[1:] or not sys.argv[1].startswith("{"):
        return False
    task = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (task["limit"], task["limit"] + 1))
    kind = kinds[task["kind"]]
    print(json.dumps(kind(size(**task["shape"]), task["seed"], task["runs"], task["budget"])))
    return True
