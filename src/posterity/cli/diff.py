"""``posterity diff``: how far two files are from each other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.report.numbers import number
from posterity.cli.streams import Json, present

if TYPE_CHECKING:
    from posterity.fusion.diff import BlockDiff, Divergences, PlateDiff


@app.command(epilog=example("posterity diff before.safetensors after.safetensors"))
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A posterior or ledger.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one of the same model.")],
    as_json: Json = False,
) -> None:
    """Compare two files: KL divergence in nats, block by block, components matched."""
    present(lambda: _diff(a, b), "diff", as_json)


def _diff(a: Path, b: Path) -> dict[str, Any]:
    from posterity.artifact.aligned import aligned, listed, unnamed
    from posterity.fusion.diff import diff

    given = {"a": files.read(a)[0], "b": files.read(b)[0]}
    both, names = aligned(given)
    found = diff(both["a"], both["b"])
    errors = found.standard_errors
    return {
        **_both(found.kl),
        "standard_errors": None if errors is None else _both(errors),
        "blocks": {block.path: _block(block) for block in found.blocks},
        "sites_a": None if found.sites_a is None else list(found.sites_a),
        "sites_b": None if found.sites_b is None else list(found.sites_b),
        "columns": list(listed(names)),
        "notes": unnamed(given, names),
    }


def _block(block: "BlockDiff") -> dict[str, Any]:
    plate = {} if block.plate is None else _plate(block.plate)
    shifts = {} if block.shifts is None else {
        "shifts": {name: number(value) for name, value in block.shifts.items()}
    }  # fmt: skip
    return {"family": block.family, **_both(block.kl), **plate, **shifts}


def _plate(plate: "PlateDiff") -> dict[str, Any]:
    return {
        "components": [{"a": pair.a, "b": pair.b, **_both(pair.kl)} for pair in plate.pairs],
        "weights": None if plate.weights is None else _both(plate.weights),
        "only_in_a": _alone(plate.only_in_a),
        "only_in_b": _alone(plate.only_in_b),
    }


def _alone(weights: dict[int, float]) -> list[dict[str, Any]]:
    return [{"component": k, "expected_weight": number(w)} for k, w in weights.items()]


def _both(kl: "Divergences") -> dict[str, float | None]:
    return {"kl_ab": number(kl.ab), "kl_ba": number(kl.ba)}
