"""Resident memory of this process; imports next to nothing, for processes that are timed whole."""

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def highest() -> int:
    """The high-water mark of the resident set, in bytes.

    Linux carries `ru_maxrss` over from the parent through exec, `VmHWM` not.
    """
    if sys.platform.startswith("linux"):
        return resident("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident(field: str) -> int:
    """Bytes that Linux reports in a field of the status: `VmRSS` now, `VmHWM` at most."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
