"""A wheel, installed into an empty environment away from the repository: `make test-wheel`."""

import csv
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_docs import STRANGERS, run_page

ROOT = Path(__file__).parents[2]
WRITTEN = {"fused.safetensors", "matching.html", "report.json"} | {
    f"site-{letter}.safetensors" for letter in "abcdef"
}
# Building and installing fetch packages, which takes minutes where none is cached.
pytestmark = [pytest.mark.wheel, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(Path(sys.executable), "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def run(*command: str | Path, folder: Path | None = None) -> str:
    """What the command prints, run in ``folder`` without this environment's paths."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    source = ROOT / "src"
    code = [p for ending in ("*.py", "*.css", "*.js", "py.typed") for p in source.rglob(ending)]
    data = (source / "posterity/cli/data").iterdir()
    package = {str(p.relative_to(source)) for p in (*code, *data)}
    assert {name for name in names if ".dist-info/" not in name} == package


@pytest.fixture(scope="module")
def bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and what README's page names."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, with_pip=True)
    run(folder / "bin/python", "-m", "pip", "install", f"posterity[demo] @ {wheel.as_uri()}")
    return folder / "bin"


def test_installed_wheel_runs_the_demo(bin: Path, tmp_path: Path) -> None:
    printed = run(bin / "posterity", "demo", "--output", "found", folder=tmp_path)
    assert "mutual information" in printed
    assert {path.name for path in (tmp_path / "found").iterdir()} == WRITTEN


COMMANDS = """
fit alfa.csv --target ill --model logistic --without id --category smoker=no,ex,yes
    --center age=60 --scale age=10 --center ldl=130 --unit ldl=mg/dL --drop-missing
    -o alfa.safetensors
fit bravo.csv --like alfa.safetensors --unit ldl=mmol/L --convert ldl=38.67 --category ill=no,yes
    -o bravo.safetensors
fit charlie.csv --like alfa.safetensors -o charlie.safetensors
fit delta.csv --like alfa.safetensors -o delta.safetensors
fuse alfa.safetensors bravo.safetensors charlie.safetensors delta.safetensors -o fused.safetensors
federate --like alfa.safetensors --drop-missing --site alfa=alfa.csv --site bravo=bravo.csv
    --site charlie=charlie.csv --site delta=delta.csv
    --table bravo={convert={ldl=38.67},category={ill=["no","yes"]}} -o all.safetensors
predict all.safetensors new.csv -o predictions.csv
evaluate all.safetensors bravo.csv --convert ldl=38.67 --category ill=no,yes --json
"""
"""Of an analyst who has four hospitals' tables and a shell."""


def test_four_ugly_tables_lead_to_the_predictions_of_the_pooled_fit(
    bin: Path, tmp_path: Path
) -> None:
    """Units, labels, delimiters, gaps, one class, eight records: eight commands, none in vain."""
    x, y = ugly_tables(tmp_path)
    printed = []
    for line in COMMANDS.replace("\n    ", " ").strip().splitlines():
        done = subprocess.run([bin / "posterity", *line.split()], cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, f"{line}\n{done.stderr.decode()}"
        printed.append(done.stdout.decode() + done.stderr.decode())
    assert len(printed) == 8
    said = " ".join(printed[4].split())
    assert "likelihoods of charlie, delta are not nearly" in said and "federate" in said
    with open(tmp_path / "predictions.csv", newline="") as file:
        p = np.array([float(row["p"]) for row in csv.DictReader(file)])
    np.testing.assert_allclose(p, pooled(x, y, design(*NEW)), rtol=0.02)
    assert json.loads(printed[7])["all"]["log_score"] > np.log(0.5)


NEW = (
    np.array([45.0, 60.0, 60.0, 75.0]),
    np.array([100.0, 130.0, 130.0, 180.0]),
    np.array(["no", "no", "yes", "ex"]),
)
"""Ages, LDL in mg/dL and smoking of those that are predicted."""


def design(age: np.ndarray, ldl: np.ndarray, smoker: np.ndarray) -> np.ndarray:
    levels = [smoker == "ex", smoker == "yes"]
    return np.column_stack([np.ones(len(age)), (age - 60) / 10, ldl - 130, *levels])


def ugly_tables(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write four tables as hospitals have them, and what is new; all their whole records."""
    rng = np.random.default_rng(5)
    kept = []

    def records(count: int, levels: tuple[str, ...] = ("no", "ex", "yes")) -> list[np.ndarray]:
        age, ldl = rng.normal(62, 9, count).round(), rng.normal(130, 25, count).round(1)
        smoker = rng.choice(levels, count)
        odds = -1 + 0.06 * (age - 62) + 0.01 * (ldl - 130) + 0.6 * (smoker == "yes")
        return [age, ldl, smoker, 1 * (rng.random(count) < 1 / (1 + np.exp(-odds)))]

    def write(name: str, header: str, *columns: Any, delimiter: str = ",", **how: Any) -> None:
        with open(folder / name, "w", newline="", **how) as file:
            table = csv.writer(file, delimiter=delimiter)
            table.writerow(header.split())
            table.writerows(zip(*columns, strict=True))

    age, ldl, smoker, ill = records(240)
    gap = rng.random(240) < 0.05
    kept.append([own[~gap] for own in (age, ldl, smoker, ill)])
    gappy = np.where(gap, "", ldl.astype(str))
    write("alfa.csv", "id age ldl smoker ill", range(240), age.astype(int), gappy, smoker, ill)
    age, ldl, smoker, ill = records(180)
    mmol = (ldl / 38.67).round(2)
    kept.append([age, mmol * 38.67, smoker, ill])
    commas, texts = [str(one).replace(".", ",") for one in mmol], np.where(ill == 1, "yes", "no")
    write(
        "bravo.csv", "ill smoker ldl age", texts, smoker, commas, age.astype(int),
        delimiter=";", encoding="utf-8-sig",
    )  # fmt: skip
    healthy = records(90)
    healthy = [own[healthy[3] == 0] for own in healthy]
    for name, own in {"charlie": healthy, "delta": records(8, ("no", "yes"))}.items():
        kept.append(own)
        write(f"{name}.csv", "age ldl smoker ill", own[0].astype(int), *own[1:])
    write("new.csv", "age ldl smoker", *NEW)
    *inputs, y = (np.concatenate(own) for own in zip(*kept, strict=True))
    return design(*inputs), y


def pooled(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Probabilities (n,) under the posterior of all records, by importance sampling at the mode."""
    sd = np.array([1000.0, *[10.0] * (x.shape[1] - 1)])
    log_density = lambda z: (
        -np.logaddexp(0, x @ z.T * (1 - 2 * y[:, None])).sum(0) - (((z / sd) ** 2).sum(1) / 2)
    )
    z = np.zeros(x.shape[1])
    for _ in range(30):  # Newton's method
        p = 1 / (1 + np.exp(-x @ z))
        precision = (x.T * p * (1 - p)) @ x + np.diag(sd**-2)
        z += np.linalg.solve(precision, x.T @ (y - p) - z / sd**2)
    noise = np.random.default_rng(1).normal(size=(20_000, len(z)))
    draws = z + noise @ np.linalg.inv(np.linalg.cholesky(precision))
    log_weights = log_density(draws) + (noise**2).sum(1) / 2
    weights = np.exp(log_weights - log_weights.max())
    return weights @ (1 / (1 + np.exp(-draws @ new.T))) / weights.sum()


HIDING = """\
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def hidden(extras: set[str]) -> set[str]:
    """Modules of this environment that ``posterity[extras]`` does not bring."""
    brought, wanted = set[str](), [("posterity", extras)]
    while wanted:
        name, more = wanted.pop()
        brought.add(canonicalize_name(name))
        for requirement in map(Requirement, metadata.requires(name) or ()):
            marker, new = requirement.marker, canonicalize_name(requirement.name) not in brought
            of = marker is None or any(marker.evaluate({"extra": one}) for one in ("", *more))
            if of and (new or requirement.extras):
                wanted.append((requirement.name, requirement.extras))
    brought |= {"pip", "setuptools"}
    modules = metadata.packages_distributions()
    return {name for name, own in modules.items() if not brought & set(map(canonicalize_name, own))}


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.mark.parametrize("name", STRANGERS)
def test_a_page_runs_as_a_stranger_installs(name: str, unpacked: Path, tmp_path: Path) -> None:
    """From a wheel, with the extras that the page names and no others, twice in one folder."""
    page = (ROOT / name).read_text(encoding="utf-8")
    extras = set(",".join(re.findall(r"pip install '[^'\[]*\[([\w,]+)\]'", page)).split(","))
    elsewhere, hiding = tmp_path / "elsewhere", tmp_path / "hiding"
    elsewhere.mkdir()
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(HIDING.format(hidden=hidden(extras)))
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, (hiding, unpacked))),
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),  # as the second run's are the same
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for _ in range(2):
        run_page(name, page, elsewhere, **environment)
