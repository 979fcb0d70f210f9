"""``posterity demo --full``: four hospitals, from their tables to a network that others can run.

Each step is a command and the same in Python. The commands that are printed are those that are run;
a test runs the Python and compares the files.
"""

import csv
import gzip
import importlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from posterity.errors import MissingExtraError, PosterityError, UsageError

HOSPITALS = ("cleveland", "hungary", "switzerland", "long-beach")
"""In the order of the column ``center`` of the published table."""
WORDS = {
    "sex": {"0": "female", "1": "male"},
    "cp": {"1": "typical", "2": "atypical", "3": "other", "4": "asymptomatic"},
    "exang": {"0": "no", "1": "yes"},
}
"""Codes of the published table by column."""
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
"""Files that commands never replace, or go on from."""
FEDERATION = (
    "[sites]\n"
    + "".join(f'{name} = "{name}.csv"\n' for name in HOSPITALS)
    + """
[data]
like = "cleveland.safetensors"
drop_missing = true

[output]
file = "heart.safetensors"
"""
)
SETUP = """\
from pathlib import Path

import jax
import numpy as np

import posterity
from posterity.adapters.onnx import to_onnx
from posterity.distillation import Perturbed
from posterity.fitting import Reading, Recipe, fit, recipe_in
from posterity.fitting.design import design
from posterity.fitting.fit import records_of
from posterity.fitting.predict import predict
from posterity.models import LogisticRegression
from posterity.networks import Layers, train

complete = Reading(drop_missing=True)
hospitals = ["cleveland", "hungary", "switzerland", "long-beach"]


def save_fit(found, path):
    posterity.save(found.ledger, path, provenance=found.provenance)


def records(name, recipe):
    return design(records_of(Path(f"{name}.csv"), complete)[0], recipe, complete)
"""
"""The first lines of the Python of all steps."""


class Step(NamedTuple):
    """A step: what it does, the command without its first word, and the same in Python.

    Where there is no command, networks being trained in Python alone, it is the Python that runs.
    """

    title: str
    command: str
    python: str

    def run(self, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run it in a process of its own in ``folder``; what it prints comes in one text."""
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


def _fits(name: str, model: str, flags: str, python: str) -> Step:
    """A hospital's own fit of a table."""
    where, what = name.removesuffix("-transplants").title().replace("-", " "), model
    return Step(
        f"{where} fits {what} to its own patients",
        f"fit {name}.csv {flags} -o {name}.safetensors",
        f'{python}\nsave_fit(found, "{name}.safetensors")',
    )


def _fit_like(name: str) -> Step:
    return _fits(
        name,
        "the same model",
        "--like cleveland.safetensors --drop-missing",
        f'found = fit("{name}.csv", recipe, reading=complete)',
    )


def _follow_like(name: str) -> Step:
    return _fits(
        f"{name}-transplants",
        "the same survival model",
        "--like cleveland-transplants.safetensors",
        f'found = fit("{name}-transplants.csv", survival)',
    )


_FILES = " ".join(f"{name}.safetensors" for name in HOSPITALS)
_TRANSPLANTS = " ".join(f"{name}-transplants.safetensors" for name in HOSPITALS)
_NETWORKS = " ".join(f"{name}-network.safetensors" for name in HOSPITALS)

STEPS = (
    _fits(
        "cleveland",
        "a logistic model",
        "--target disease --model logistic --category disease=no,yes --category sex=female,male "
        "--category exercise_angina=no,yes "
        "--category chest_pain=asymptomatic,typical,atypical,other --center age=55 --scale age=10 "
        "--center max_heart_rate=140 --scale max_heart_rate=25",
        'levels = {"disease": ("no", "yes"), "sex": ("female", "male")}\n'
        'levels["exercise_angina"] = ("no", "yes")\n'
        'levels["chest_pain"] = ("asymptomatic", "typical", "atypical", "other")\n'
        'center, scale = {"age": 55, "max_heart_rate": 140}, {"age": 10, "max_heart_rate": 25}\n'
        'recipe = Recipe("logistic", "disease", categories=levels, center=center, scale=scale)\n'
        'found = fit("cleveland.csv", recipe, reading=complete)\n'
        "recipe = found.recipe",
    ),
    *map(_fit_like, HOSPITALS[1:]),
    Step(
        "The four files are fused, and fuse says whether one shot will do",
        f"fuse {_FILES} -o fused.safetensors",
        'fused = posterity.fuse([f"{name}.safetensors" for name in hospitals])\n'
        'posterity.save(fused.ledger, "fused.safetensors")',
    ),
    Step(
        "It may not: so they federate, by local steps on the same tables",
        f"federate {CONFIGURATION}",
        "tables = {name: records(name, recipe)[:2] for name in hospitals}\n"
        "run = posterity.federate(tables, LogisticRegression(), fused.ledger.prior)\n"
        'posterity.save(run.ledger, "heart.safetensors")',
    ),
    Step(
        "How far one shot was",
        "diff fused.safetensors heart.safetensors",
        "print(run.posterior.kl(fused.posterior))",
    ),
    Step(
        "The federated posterior is scored on Hungary's patients, whom it has seen",
        "evaluate heart.safetensors hungary.csv",
        'print(predict(run.posterior, recipe, records("hungary", recipe))["p"].mean())',
    ),
    Step(
        "Long Beach withdraws: the others refine what is left, and a receipt says how far it is",
        f"forget heart.safetensors --site long-beach --config {CONFIGURATION} "
        "-o without-long-beach.safetensors --receipt receipt.json",
        'done = posterity.forget(run, "long-beach")\n'
        'posterity.save(done.ledger, "without-long-beach.safetensors")\n'
        'done.receipt.save("receipt-of-long-beach.json")',
    ),
    Step(
        "Whoever has the receipt and both files can check it",
        "verify receipt.json heart.safetensors without-long-beach.safetensors",
        "assert posterity.verify(done.receipt, run.ledger, done.ledger).passed",
    ),
    _fits(
        "cleveland-transplants",
        "a survival model",
        "--target years --event died --model survival --hazard weibull --center age=45 "
        "--scale age=10",
        'units = dict(center={"age": 45}, scale={"age": 10})\n'
        'survival = Recipe("survival", "years", event="died", hazard="weibull", **units)\n'
        'found = fit("cleveland-transplants.csv", survival)\n'
        "survival = found.recipe",
    ),
    *map(_follow_like, HOSPITALS[1:]),
    Step(
        "The survival models are fused",
        f"fuse {_TRANSPLANTS} -o transplants.safetensors",
        'parts = [f"{name}-transplants.safetensors" for name in hospitals]\n'
        "lives = posterity.fuse(parts).ledger\n"
        'posterity.save(lives, "transplants.safetensors")',
    ),
    Step(
        "The chance to live for a month, a year and three years, with intervals",
        "predict transplants.safetensors cleveland-transplants.csv --times 0.0833,1,3 "
        "-o survival.csv",
        'own = records("cleveland-transplants", survival)\n'
        'print(predict(lives.posterior, survival, own, times=(0.0833, 1, 3))["survival_1"])',
    ),
    Step(
        "Each hospital trains a network: in Python alone, the command line has no training of them",
        "",
        'recipe = recipe_in(posterity.inspect("cleveland.safetensors").provenance)\n'
        "for name in hospitals:\n"
        "    x, y = records(name, recipe)[:2]\n"
        "    trained = train(Layers.dense(8, 16, 2), (x[:, 1:], y), key=jax.random.key(0))\n"
        '    posterity.save(trained.ledger(name), f"{name}-network.safetensors")\n'
        'np.save("inputs.npy", records("cleveland", recipe).x[:, 1:])',
    ),
    Step(
        "The networks are fused: their hidden units are matched",
        f"fuse {_NETWORKS} -o network.safetensors",
        'networks = posterity.fuse([f"{name}-network.safetensors" for name in hospitals])\n'
        'posterity.save(networks.ledger, "network.safetensors")',
    ),
    Step(
        "A student learns what the fused network predicts and how unsure it is",
        "distill network.safetensors --inputs inputs.npy --noise 0.2 --split --steps 4000 "
        "-o student.safetensors",
        'inputs = Perturbed(np.load("inputs.npy"), 0.2)\n'
        'teacher = "network.safetensors"\n'
        "learned = posterity.distill(teacher, inputs=inputs, split=True, steps=4000)\n"
        'posterity.save(learned.student, "student.safetensors")',
    ),
    Step(
        "The student as ONNX, for any runtime",
        "export student.safetensors -o student.onnx",
        'to_onnx(learned.student, "student.onnx")',
    ),
    Step(
        "A page for people: open report.html in a browser",
        "report receipt.json heart.safetensors without-long-beach.safetensors -o report.html",
        'ledgers = "heart.safetensors", "without-long-beach.safetensors"\n'
        'posterity.report("receipt-of-long-beach.json", *ledgers, path="report.html")',
    ),
)


def write_tables(folder: Path) -> None:
    """The hospitals' tables as CSV files, and the configuration of their federation.

    Those of heart disease are of the four hospitals [janosi1989]. Those of transplants are the 69
    patients of one study of survival, whom statsmodels has [miller1976], dealt out in turn as if
    there had been four.

    Raises:
        MissingExtraError: if statsmodels is not installed.
    """
    try:
        from statsmodels.datasets import heart
    except ImportError as error:
        raise MissingExtraError.of("statsmodels", "demo") from error

    transplants: Any = heart.load_pandas().data
    published = Path(__file__).parent / "data" / "heart_disease.csv.gz"
    with gzip.open(published, "rt", newline="") as file:
        patients = list(csv.DictReader(file))
    for number, hospital in enumerate(HOSPITALS):
        own = [patient for patient in patients if patient["center"] == str(number)]
        rows = [[*map(_cell, COLUMNS.values(), [p] * len(COLUMNS)), _diseased(p)] for p in own]
        _write(folder / f"{hospital}.csv", [*COLUMNS, "disease"], rows)
        followed = transplants.iloc[number :: len(HOSPITALS)]
        lives = zip(followed["survival"], followed["censors"], followed["age"], strict=True)
        rows = [[round(days / 365.25, 4), int(died), age] for days, died, age in lives]
        _write(folder / f"{hospital}-transplants.csv", ["years", "died", "age"], rows)
    (folder / CONFIGURATION).write_text(FEDERATION, encoding="utf-8")


def _check_own(folder: Path) -> None:
    """Raise a UsageError if files of somebody else would be replaced, such as their receipt."""
    configuration = folder / CONFIGURATION
    if configuration.is_file() and configuration.read_text(encoding="utf-8") == FEDERATION:
        return
    for name in (*STAYING, CONFIGURATION, *(f"{hospital}.csv" for hospital in HOSPITALS)):
        if (folder / name).exists():
            raise UsageError(
                found=f"{name} in folder {str(folder)!r}, which no earlier run wrote",
                expected="a folder that is new, or of an earlier run",
                fix="Choose another by --output.",
            )


def _cell(column: str, patient: dict[str, str]) -> str:
    """A number without the zeros behind its point, or the word for a code; empty if missing."""
    value = patient[column].removesuffix(".0")
    return WORDS[column].get(value, "") if column in WORDS else value


def _diseased(patient: dict[str, str]) -> str:
    return "yes" if float(patient["num"]) > 0 else "no"


def _write(path: Path, names: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])


def tell(folder: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Go through all steps in ``folder``; ``say`` is called with what there is to be read.

    Returns:
        Of each step its title, command, Python, what it printed, and seconds.

    Raises:
        MissingExtraError: if a package is missing that a step needs.
        UsageError: if the folder holds files of the same names that are not of an earlier run.
        PosterityError: if a step fails.
    """
    try:
        importlib.import_module("onnx")
    except ImportError as error:
        raise MissingExtraError.of("onnx", "demo") from error
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
                fix="Read what the step printed; run it by itself in the folder.",
            )
        seconds = round(time.monotonic() - began, 2)
        done.append({**step._asdict(), "printed": result.stdout, "seconds": seconds})
    return done
