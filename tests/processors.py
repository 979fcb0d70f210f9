"""The quick tests as on other processors: `make test-processors`, or `-m tests.processors NAME...`.

Kernels of OpenBLAS, instructions of XLA and functions of NumPy are those of other processors, which
differ in the last bits of results; then there are numbers of threads, the compiler as users have
it, and other Pythons. A setting that this machine lacks instructions for is skipped by name.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / ".cache" / "processors"  # what the tests print, and the table as JSON
FAST = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1 --xla_llvm_disable_expensive_passes=true"
)
"""Compiling takes most of the tests' time (docs/decisions/0010)."""
# Names of instruction sets in NumPy from 2.4 on, and before.
AVX2, AVX512 = ("X86_V3", "AVX2", "FMA3"), ("X86_V4", "AVX512")
SSE4 = ("X86_V2", "SSE42")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A processor, and how it is imitated. An empty ``blas`` or ``isa`` leaves the machine's."""

    needs: tuple[str, ...] = ()  # beginnings of NumPy's names of what it takes, one of them
    blas: str = ""  # whose kernels OpenBLAS takes
    isa: str = ""  # the largest instruction set of XLA
    without: tuple[str, ...] = ()  # beginnings of NumPy's names of what it does without
    more: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def environment(self, flags: str) -> dict[str, str]:
        """Return the variables that differ from this machine's; ``flags`` are XLA's otherwise."""
        found = {"OPENBLAS_CORETYPE": self.blas} if self.blas else {}
        if self.isa:
            found["XLA_FLAGS"] = f"{flags} --xla_cpu_max_isa={self.isa}".strip()
        if off := [name for name in instructions()[1] if name.startswith(self.without)]:
            already = os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split()
            found["NPY_DISABLE_CPU_FEATURES"] = " ".join([*already, *off])
        return {**found, **self.more}

    @property
    def possible(self) -> bool:
        """True if this machine has what the setting needs."""
        return not self.needs or any(
            name.startswith(self.needs) for own in instructions() for name in own
        )


SETTINGS = {
    "this-machine": Setting(),
    "Prescott": Setting(SSE4, "Prescott", "SSE4_2", (*AVX2, *AVX512)),
    "Haswell": Setting(AVX2, "Haswell", "AVX2", AVX512),
    "Zen": Setting(AVX2, "Zen"),
    "SkylakeX": Setting(AVX512, "SkylakeX"),
    "NumPy-without-AVX512": Setting(AVX512, without=AVX512),
    "NumPy-without-AVX2": Setting(AVX2, without=(*AVX2, *AVX512)),
    "many-threads": Setting(more={"OPENBLAS_NUM_THREADS": "4"}),
    "users-flags": Setting(more={"XLA_FLAGS": ""}),
}


def instructions() -> tuple[list[str], list[str]]:
    """Return NumPy's names of instruction sets that it always takes, and that it found here."""
    import numpy as np

    told: Any = np.show_config(mode="dicts")
    simd = told["SIMD Extensions"]
    return simd.get("baseline", []), simd.get("found", [])


def flags() -> str:
    """Return XLA's flags for tests: an unknown one would end the process, so that there are none
    but for the release that they were tried with.
    """
    return FAST if importlib.metadata.version("jaxlib").startswith("0.10.") else ""


def pythons() -> list[str]:
    """Return the oldest and the newest Python that the package is for, but for this one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    here = "{}.{}".format(*sys.version_info)
    return [f"python{version}" for version in (named[0], named[-1]) if version != here]


def _runs(python: str) -> bool:
    """Tell whether there is such a Python; pyenv has commands that start none."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def commands(options: Sequence[str]) -> dict[str, tuple[list[str], dict[str, str]] | None]:
    """Return by name the command and the variables of each row; None where it cannot be here."""
    own = [sys.executable, "-m", "pytest", *options]
    found: Any = {
        name: (own, setting.environment(flags())) if setting.possible else None
        for name, setting in SETTINGS.items()
    }
    for name in pythons():
        make = ["make", "test", f"PYTHON={name}", f"PYTEST_FLAGS={' '.join(options)}"]
        found[name] = (make, {}) if _runs(name) else None
    return found


def tested(name: str, command: list[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Run the tests in one setting, and return what came out; a file has what they print."""
    log, began = RESULTS / f"{name}.txt", time.monotonic()
    with log.open("w") as file:
        environment = {**os.environ, **variables}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    text = log.read_text()
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    told = text.strip().splitlines()[-1:] if done.returncode in (0, 1) else ["ended early"]
    return {
        "variables": dict(variables),
        "passed": done.returncode == 0,
        "told": "".join(told).strip("= "),
        "failed": failed,
        "seconds": round(time.monotonic() - began),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests in all settings, or in those that are named; print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(SETTINGS)}, python3.x; all if none"
    )
    parser.add_argument("--options", default="", help="of pytest, in one word")
    given = parser.parse_args(arguments)
    rows, table = commands(given.options.split()), dict[str, Any]()
    if unknown := set(given.names) - set(rows):
        parser.error(f"no setting {', '.join(sorted(unknown))}; there are {', '.join(rows)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in given.names or rows:
        row = rows[name]
        table[name] = None if row is None else tested(name, *row)
        (RESULTS / "table.json").write_text(json.dumps(table, indent=1) + "\n")
        print(line(name, table[name]), flush=True)
    print("\nAll settings:", *(line(name, found) for name, found in table.items()), sep="\n")
    print(f"Variables, and what the tests printed: {RESULTS}")
    return int(any(found is not None and not found["passed"] for found in table.values()))


def line(name: str, found: Mapping[str, Any] | None) -> str:
    """Return a row of the table in words."""
    if found is None:
        return f"{name:24}skipped: this machine has no such instructions, or no such Python"
    failed = "".join(f"\n    {test}" for test in found["failed"])
    return f"{name:24}{'passed' if found['passed'] else 'FAILED'}: {found['told']}{failed}"


if __name__ == "__main__":
    sys.exit(main())
