"""All verbs on the tables of four hospitals: ``python -m examples.story [FOLDER]``.

They go from their tables to a network for use elsewhere. Each step is a command and the same in
Python, as ``story.toml`` lists them. The commands printed are those that run; a test runs the
Python and compares the files.
"""

import csv
import gzip
import os
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from posterity.adapters.shared import library
from posterity.errors import PosterityError, UsageError

DATA = Path(__file__).parent
HOSPITALS = ("cleveland", "hungary", "switzerland", "long-beach")
"""Names in the order of the column ``center`` of the published table."""
WORDS = {
    "sex": {"0": "female", "1": "male"},
    "cp": {"1": "typical", "2": "atypical", "3": "other", "4": "asymptomatic"},
    "exang": {"0": "no", "1": "yes"},
}
"""Words for the codes of the published table, by column."""
COLUMNS = {
    "age": "age",
    "sex": "sex",
    "chest_pain": "cp",
    "max_heart_rate": "thalach",
    "st_depression": "oldpeak",
    "exercise_angina": "exang",
}
"""Columns of the published table by their names in the CSV files."""
CONFIGURATION = "heart.toml"
STAYING = ("receipt.json", "heart.safetensors.checkpoint")
"""Files that commands never replace or continue from."""


class Step(NamedTuple):
    """A step: its description, its command without the first word, and the same in Python.

    Steps without a command, such as training networks, run the Python.
    """

    title: str
    command: str
    python: str

    def run(self, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run the step in a new process in ``folder``, with all output in one text."""
        call = [sys.executable, "-m", "posterity", *shlex.split(self.command)]
        if not self.command:
            call = [sys.executable, "-c", f"{SETUP}\n{self.python}"]
        width = str(shutil.get_terminal_size().columns)
        return subprocess.run(
            call,
            cwd=folder,
            env={"COLUMNS": width, **os.environ, "PYTHONSAFEPATH": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


_STORY = tomllib.loads((DATA / "story.toml").read_text(encoding="utf-8"))
STEPS = tuple(Step(**step) for step in _STORY["steps"])
SETUP, FEDERATION = _STORY["setup"], _STORY["federation"]
"""First lines of the Python of all steps; configuration of the federation."""


def write_tables(folder: Path) -> None:
    """Write the hospitals' tables as CSV files, and the configuration of their federation.

    The heart disease tables come from the four hospitals [janosi1989]. The transplant tables divide
    the 69 patients of one survival study, which statsmodels includes [miller1976], among four
    sites.
    """
    statsmodels = library("statsmodels.datasets", extra="demo")
    transplants: Any = statsmodels.datasets.heart.load_pandas().data
    with gzip.open(DATA / "heart_disease.csv.gz", "rt", newline="") as file:
        patients = list(csv.DictReader(file))
    for number, hospital in enumerate(HOSPITALS):
        own = [patient for patient in patients if patient["center"] == str(number)]
        pairs = ((p, "yes" if float(p["num"]) > 0 else "no") for p in own)
        rows = [[*(_cell(c, p) for c in COLUMNS.values()), d] for p, d in pairs]
        _write(folder / f"{hospital}.csv", [*COLUMNS, "disease"], rows)
        followed = transplants.iloc[number :: len(HOSPITALS)]
        lives = zip(followed["survival"], followed["censors"], followed["age"], strict=True)
        rows = [[round(days / 365.25, 4), int(died), age] for days, died, age in lives]
        _write(folder / f"{hospital}-transplants.csv", ["years", "died", "age"], rows)
    (folder / CONFIGURATION).write_text(FEDERATION, encoding="utf-8")


def _check_own(folder: Path) -> None:
    """Raise a UsageError if files of other origin would be replaced, such as a receipt."""
    configuration = folder / CONFIGURATION
    if configuration.is_file() and configuration.read_text(encoding="utf-8") == FEDERATION:
        return
    for name in (*STAYING, CONFIGURATION, *(f"{hospital}.csv" for hospital in HOSPITALS)):
        if (folder / name).exists():
            raise UsageError(
                found=f"{name} in folder {str(folder)!r}, which is not of an earlier run",
                expected="a folder that is new, or that an earlier run wrote",
                fix="Name another folder.",
            )


def _cell(column: str, patient: dict[str, str]) -> str:
    """Return a number without trailing zeros, or the word for a code; empty if missing."""
    value = patient[column].removesuffix(".0")
    return WORDS[column].get(value, "") if column in WORDS else value


def _write(path: Path, names: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])


def tell(folder: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Run all steps in ``folder``; ``say`` is called with the text to print.

    Returns:
        Of each step its title, command, Python, output, and seconds.
    """
    library("onnx", extra="demo")
    _check_own(folder)
    write_tables(folder)
    for earlier in STAYING:
        (folder / earlier).unlink(missing_ok=True)
    done = []
    for number, step in enumerate(STEPS, 1):
        say(f"\n── {number}/{len(STEPS)}  {step.title}\n")
        if step.command:
            say(f"$ posterity {step.command}")
        say("\n".join(f">>> {line}" for line in step.python.splitlines()) + "\n")
        began = time.monotonic()
        result = step.run(folder)
        say(result.stdout.rstrip())
        if result.returncode:
            raise PosterityError(
                found=f"exit code {result.returncode} of step {number}: {step.title}",
                expected="0",
                fix="Read what the step printed, or run it by itself in the folder.",
            )
        seconds = round(time.monotonic() - began, 2)
        done.append({**step._asdict(), "printed": result.stdout, "seconds": seconds})
    return done
