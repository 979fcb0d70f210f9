"""What results were made with, and whether the code that they depend on has changed since.

``python -m experiments.provenance`` lists all results files of experiments and benchmarks: the
commit whose code was measured, and how many of the files that the run imports differ from it. A
file without a record of its commit counts as made by the commit that last changed it, by all
modules of its folder.
"""

import ast
import functools
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import posterity
from experiments.data import REPOSITORY

ROOTS = {
    "posterity": REPOSITORY / "src",
    "experiments": REPOSITORY,
    "benchmarks": REPOSITORY,
}
"""Packages whose code results depend on, and where they are."""
KEY = "made with"


def git(*words: str) -> str | None:
    """Return what git says; None where it fails, as without a repository or with a part of one."""
    command = ["git", "-C", str(REPOSITORY), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def versions(*packages: str) -> dict[str, str]:
    """Return versions of Python, posterity, and the libraries that its numbers come from."""
    found = {name: metadata.version(name) for name in ("jax", "numpy", "scipy", *packages)}
    return {"python": platform.python_version(), "posterity": posterity.__version__, **found}


def made_with() -> dict[str, Any]:
    """Return the record of this process: module, commit, whether code was changed since, day,
    processor, CPU seconds of it and of processes that have ended, versions.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "module": None if spec is None else spec.name,
        "commit": git("rev-parse", "--short=12", "HEAD"),
        "changed since": bool(git("status", "--porcelain", "--", "src", "experiments/*.py")),
        "day": time.strftime("%Y-%m-%d"),
        "processor": processor(),
        "CPU seconds": round(sum(own.ru_utime + own.ru_stime for own in used)),
        "versions": versions(),
    }


def processor() -> str:
    """Return the name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    names = (line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line)
    return next(names, platform.processor() or platform.machine())


# --- files that a module depends on --------------------------------------------------------------


def file_of(module: str) -> Path | None:
    """Return the file of a module of the repository; None for a name that is no module of it."""
    root = ROOTS.get(module.partition(".")[0])
    if root is None:
        return None
    place = root.joinpath(*module.split("."))
    candidates = (place.with_suffix(".py"), place / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def home(package: str, name: str) -> str:
    """Return the module in which a name that is imported from a package is made."""
    if file_of(f"{package}.{name}") is not None:
        return f"{package}.{name}"
    path = file_of(package)
    if path is not None and path.name == "__init__.py":
        for node in ast.walk(tree_of(path)):
            named = isinstance(node, ast.ImportFrom) and node.module is not None
            if named and any((own.asname or own.name) == name for own in node.names):
                return home(node.module, name)
    return package


@functools.cache
def imported(path: Path) -> list[str]:
    """Return the modules of the repository that a file imports, also those that it names lazily."""
    found: list[str] = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [own.name for own in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [home(node.module, own.name) for own in node.names]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "posterity":
            found.append(home("posterity", node.attr))
    return [*dict.fromkeys(found)]


@functools.cache
def sources(module: str) -> frozenset[Path]:
    """Return all files of the repository that a module is made of, its own among them.

    >>> any(path.name == "criterion.py" for path in sources("experiments.klfusion.gmm"))
    True
    """
    found: set[Path] = set()
    ahead = [module]
    while ahead:
        path = file_of(ahead.pop())
        if path is None or path in found:
            continue
        found.add(path)
        if path.name != "__init__.py":
            ahead += imported(path)
    return frozenset(found)


# --- results -------------------------------------------------------------------------------------


class Age(NamedTuple):
    """A results file, the commits and days of its code, and the files that have changed since;
    None if that cannot be told.
    """

    file: Path
    commits: tuple[str, ...]
    days: tuple[str, ...]
    changed: tuple[str, ...] | None

    def __str__(self) -> str:
        """Say it in words."""
        words = f"of {', '.join(self.commits)} ({', '.join(self.days)})"
        if self.changed is None:
            return f"{words}; whether code has changed since is not known"
        if not self.changed:
            return f"{words}, as the code is"
        return f"{words}; {len(self.changed)} files that it depends on have changed since"


def records_of(document: Any) -> list[Mapping[str, Any]]:
    """Return the records in a results file, one for each part that was measured by itself."""
    if not isinstance(document, Mapping):
        return []
    found = document.get(KEY)
    own = [found] if isinstance(found, Mapping) and found.get("commit") else []
    return own + [each for part in document.values() for each in records_of(part)]


def age(file: Path) -> Age:
    """Return how old a results file is."""
    records = records_of(json.loads(file.read_text(encoding="utf-8")))
    if not records:
        commit = git("log", "-1", "--format=%h", "--", str(file))
        day = git("log", "-1", "--format=%as", "--", str(file))
        records = [{"commit": commit or "no commit", "day": day or "no day"}]
    changed: set[str] = set()
    known = True
    for record in records:
        modules = [record["module"]] if record.get("module") else _modules_of(file)
        parts = {str(path.relative_to(REPOSITORY)) for own in modules for path in sources(own)}
        apart = git("diff", "--name-only", record["commit"])
        known = known and apart is not None
        changed |= parts & set((apart or "").splitlines())
    commits = dict.fromkeys(own["commit"][:9] for own in records)
    days = dict.fromkeys(own["day"] for own in records)
    return Age(file, (*commits,), (*days,), tuple(sorted(changed)) if known else None)


def _modules_of(file: Path) -> list[str]:
    """Return the modules that may have written a file: those of its name, or all of its folder."""
    folder = file.parents[1]
    paths = [path for path in sorted(folder.rglob("*.py")) if path.name != "__init__.py"]
    same = [path for path in paths if path.stem == file.stem]
    names = [path.relative_to(REPOSITORY).with_suffix("") for path in same or paths]
    return [".".join(name.parts) for name in names]


def ages() -> list[Age]:
    """Return how old all results files are."""
    places = ("benchmarks/results/*.json", "experiments/*/results/*.json")
    return [age(file) for place in places for file in sorted(REPOSITORY.glob(place))]


def main() -> None:
    """Print the list."""
    for own in ages():
        print(f"{own.file.relative_to(REPOSITORY)!s:50} {own}")


if __name__ == "__main__":
    main()
