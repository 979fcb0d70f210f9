"""Reading and writing of files by commands; each file is read once."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posterity.artifact import Inspection, Posterior, inspect, save
from posterity.errors import ArtifactError, StructureError, UsageError
from posterity.families import Distribution, ExponentialFamily
from posterity.ledger import Ledger
from posterity.runtime.files import named
from posterity.tabular.sites import read_any
from posterity.version import __version__


def read(path: Path) -> tuple[Posterior, Inspection]:
    """Return the posterior in a file and its inspection; errors as of :func:`posterity.load`."""
    value, about = read_any(path)
    if not isinstance(value, Distribution | Ledger):
        student = "A student only predicts: compare what posterity predict says of the same inputs."
        fix = student if about.kind == "Student" else "See what is in it: posterity inspect FILE."
        raise _other(about.kind, path, "a posterior or a ledger", fix)
    return value, about


def _other(kind: str, path: Path, expected: str, fix: str) -> StructureError:
    return StructureError(found=f"a {kind} in '{path}'", expected=expected, fix=fix)


def read_ledger(path: Path) -> tuple[Ledger, Inspection]:
    """Return the ledger in a file; a StructureError if the file holds something else."""
    ledger, about = read(path)
    if not isinstance(ledger, Ledger):
        expected = "a ledger, which has each site's factor"
        fix = "Use the ledger that the posterior was made of."
        raise _other(about.kind, path, expected, fix)
    return ledger, about


def read_prior(path: Path) -> tuple[ExponentialFamily, Inspection]:
    """Return a posterior to use as a prior, or a ledger's prior."""
    value, about = read(path)
    prior = value.prior if isinstance(value, Ledger) else value
    if not isinstance(prior, ExponentialFamily):
        expected = "a posterior of one family, or a ledger, whose prior is taken"
        raise _other(type(prior).__name__, path, expected, "Name another file.")
    return prior, about


def write(posterior: Any, path: Path, verb: str, provenance: Mapping[str, str]) -> dict[str, str]:
    """Save the result of ``posterity VERB``; return its path, digest and kind."""
    save(posterior, path, provenance={"made by": f"posterity {__version__} {verb}", **provenance})
    about = inspect(path)
    return {"output": about.path, "kind": about.kind, "digest": about.digest}


def no_likelihood(path: Path | str) -> UsageError:
    """Return the error for a network whose single output is ambiguous."""
    return UsageError(
        found=f"a network with one output in '{path}', without --likelihood",
        expected="bernoulli for labels in {0, 1}, or gaussian (with its --noise-variance)",
    )


def check_outputs(outputs: Sequence[Path], inputs: Sequence[Path | str]) -> None:
    """Raise unless outputs are distinct, not inputs, and in folders that exist."""
    for index, output in enumerate(outputs):
        if not output.parent.is_dir() or (output.exists() and not output.is_file()):
            what = "which is not a file" if output.exists() else "in a folder that does not exist"
            raise ArtifactError(
                found=f"output '{output}', {what}", expected="a file in a folder that exists"
            )
        read = [named(file)[1] for file in inputs]
        for files, what in ((read, "one of the inputs"), (outputs[:index], "another output")):
            if any(_same(output, file) for file in files):
                raise UsageError(
                    found=f"output '{output}', which is {what}",
                    expected="a different file for each output, and none of the inputs",
                )


def check_ending(output: Path, formats: Sequence[str]) -> None:
    """Raise a UsageError unless an output's ending names one of these formats."""
    if output.suffix.lower() not in formats:
        raise UsageError(
            found=f"output '{output}', whose extension is not a known format",
            expected=f"a path that ends in {', '.join(formats[:-1])} or {formats[-1]}",
        )


def _same(a: Path, b: Path | str) -> bool:
    if a.exists():
        return os.path.exists(b) and a.samefile(b)
    linked = a.is_symlink() or os.path.islink(b)
    return (linked or a.name == os.path.basename(b)) and a.resolve() == Path(b).resolve()
