"""``posterity inspect``: what is in a file."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.report.numbers import number
from posterity.cli.streams import Json, present
from posterity.errors import ParameterError


@app.command(epilog=example("posterity inspect both.safetensors"))
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by posterity.")],
    as_json: Json = False,
) -> None:
    """Check a file and say what is in it."""
    present(lambda: _inspect(file), "inspect", as_json)


def _inspect(file: Path) -> dict[str, Any]:
    from posterity.artifact import digest
    from posterity.ledger import Ledger

    posterior, found = files.read(file)
    facts = ("path", "kind", "format", "bytes", "digest", "provenance")
    data = {name: getattr(found, name) for name in facts}
    if isinstance(posterior, Ledger):
        data |= {"prior_digest": digest(posterior.prior), "sites": _sites(posterior)}
        posterior = posterior.total  # be it proper or not
    return data | {"proper": _is_proper(posterior), "family": _outline(posterior)}


def _sites(ledger: Any) -> dict[str, Any]:
    return {
        site: {"epoch": entry.epoch, "sequence": entry.sequence, "forgotten": entry.factor is None}
        for site, entry in ledger.entries.items()
    }


def _is_proper(family: Any) -> bool:
    from posterity.checks import check_proper

    try:
        check_proper(family, "")
    except ParameterError:
        return False
    return True


def _outline(value: Any) -> Any:
    """A family as a tree: its type, the shapes of its parameters, what is in its blocks."""
    import numpy as np

    if value is None or isinstance(value, Mapping):
        return value and {name: _outline(child) for name, child in value.items()}
    if not dataclasses.is_dataclass(value):
        return list(np.shape(value))
    fields = {f.name: _outline(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"type": type(value).__name__, **_summary(value), "parameters": fields}


def _summary(value: Any) -> dict[str, Any]:
    from posterity.families import ExponentialFamily, Plate

    if isinstance(value, Plate) and not value.batch_shape:
        size, weights = value.size, None if value.weights is None else value.mean_weights()
    elif isinstance(value, ExponentialFamily):
        return {"batch": list(value.batch_shape)} if value.batch_shape else {}
    else:
        size, weights = len(value.log_weights), value.weights
    told = {} if weights is None else {"expected_weights": list(map(number, weights))}
    return {"components": size, **told}
