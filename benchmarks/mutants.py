"""Defects of the engine, each an edit of its source that a quick test has to see.

    python -m benchmarks.mutants FOLDER             # all, in a copy of the repository there
    python -m benchmarks.mutants FOLDER NAME...     # these

``mutants.toml`` lists them. The gross ones have to be seen by a run of :mod:`benchmarks.faults`
too, or of its star: that of the seed beside them. Mutants that replace a class of a run are in
those two modules.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from experiments import provenance

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "mutants.json"
MUTANTS: dict[str, dict[str, Any]] = {
    mutant["name"]: mutant
    for mutant in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutant"]
}
"""By name: ``edits`` (a file, a text that is in it once, and what replaces it), the ``test`` that
has to fail, and perhaps ``world`` and ``seed`` of a run that has to break a promise."""
COPIED = ("src", "tests", "benchmarks", "docs", "pyproject.toml")
FAILED = 1
"""The exit code of pytest where a test failed, and not its collection."""
RUN = """
import sys
from benchmarks import faults, faults_star
world = faults_star.Star if sys.argv[1] == "star" else faults.World
found = faults.caught(world.usual, 1, int(sys.argv[2]), world)
print(found[1] if found else "")
"""


def tried(folder: Path, mutant: dict[str, Any]) -> dict[str, Any]:
    """What sees a defect in a copy of the repository: the test, and the promise that a run breaks;
    the copy is then as it was.
    """
    files = [folder / edit["file"] for edit in mutant["edits"]]
    kept = {file: file.read_text() for file in files}
    try:
        for file, edit in zip(files, mutant["edits"], strict=True):
            file.write_text(file.read_text().replace(edit["before"], edit["after"]))
        quiet = ("-q", "-x", "-m", "", "-W", "ignore", "-p", "no:cacheprovider")
        ended = _python(folder, "-m", "pytest", "-n", "0", *quiet, mutant["test"]).returncode
        found: dict[str, Any] = {"test": mutant["test"] if ended == FAILED else None}
        if "world" in mutant:
            world, seed = mutant["world"], mutant["seed"]
            *_, said = ["", *_python(folder, "-c", RUN, world, str(seed)).stdout.splitlines()]
            found |= {"world": world, "seed": seed, "violation": said or None}
        return found
    finally:
        for file, text in kept.items():
            file.write_text(text)


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(folder / part) for part in ("src", "", "tests"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    line = [sys.executable, *arguments]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)


def main() -> None:
    """Try mutants in a copy of the repository, and write what sees each; exit with 1 if one is not
    seen.
    """
    folder, names = Path(sys.argv[1]), sys.argv[2:] or [*MUTANTS]
    folder.mkdir(parents=True)
    for part in COPIED:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names:
        result[name] = tried(folder, MUTANTS[name])
        print(f"{name}: {result[name]}", flush=True)
    result[provenance.KEY] = provenance.made_with()
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    unseen = [name for name in names if None in result[name].values()]
    print(f"{len(names)} mutants; not seen: {unseen or 'none'}")
    sys.exit(bool(unseen))


if __name__ == "__main__":
    main()
