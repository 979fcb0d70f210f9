"""``posterity diff``: divergence between two files."""

import math
from typing import Any

from posterity.artifact.aligned import aligned, listed, unnamed
from posterity.cli import files
from posterity.cli.options import Settings
from posterity.cli.report import Group, filled, first, group, short, table
from posterity.cli.streams import Data, verb
from posterity.fusion.diff import BlockDiff, Divergences
from posterity.fusion.diff import diff as compared
from posterity.ledger import Ledger
from posterity.tabular.reconcile import comparable


def _block(block: BlockDiff) -> Data:
    data: Data = {"family": block.family, **_both(block.kl)}
    plate = block.plate
    if plate is not None:

        def alone(weights):
            return [{"component": k, "expected_weight": weight} for k, weight in weights.items()]

        data |= {
            "components": [{"a": pair.a, "b": pair.b, **_both(pair.kl)} for pair in plate.pairs],
            "weights": plate.weights and _both(plate.weights),
            "only_in_a": alone(plate.only_in_a),
            "only_in_b": alone(plate.only_in_b),
        }
    return data if block.shifts is None else data | {"shifts": block.shifts}


def _both(kl: Divergences) -> Data:
    return {"kl_ab": kl.ab, "kl_ba": kl.ba}


def _report(data: Data) -> Group:
    rows = table("block", "in a", "in b", "KL(a || b)", "KL(b || a)")
    for path, block in data["blocks"].items():
        filled(rows, [[path or block["family"], "", "", *_cells(block)]])
        first(_plate_rows(block), rows, lambda row: ["", *row])
    rows.add_section()
    last = {"total, in nats": data, "standard error": data["standard_errors"]}
    filled(rows, ([name, "", "", *_cells(own)] for name, own in last.items() if own))
    sites = [(name, data[f"sites_{name}"]) for name in "ab" if data[f"sites_{name}"] is not None]
    lines = [f"sites of {name}: {', '.join(own) or 'none'}" for name, own in sites]
    lines += [
        f"means{f' of {path}' if path else ''} from a to b, in sd of a: {_farthest(shifts)}"
        for path, block in data["blocks"].items()
        if (shifts := block.get("shifts"))
    ]
    return group(rows, *lines)


def _farthest(shifts: dict[str, float | None], count: int = 5) -> str:
    """Return the coordinates whose means moved most, in standard deviations of a; as many as fit
    on a line.
    """

    def far(name):
        return -math.inf if shifts[name] is None else -abs(shifts[name] or 0.0)

    most = sorted(shifts, key=far)[:count]
    more = f", and {len(shifts) - len(most)} more" if len(shifts) > len(most) else ""
    return ", ".join(f"{name} {short(shifts[name])}" for name in most) + more


def _plate_rows(block: Data) -> list[list[Any]]:
    """Return the weights, components without a partner, and pairs: those that differ most first."""
    rows = [["weights", "weights", *_cells(block["weights"])]] if block.get("weights") else []
    for only in ("only_in_a", "only_in_b"):
        for lone in block.get(only, []):
            name = f"{lone['component']} (weight {short(lone['expected_weight'])})"
            pair = [name, None] if only == "only_in_a" else [None, name]
            rows.append([*pair, only.replace("_", " ")])

    def size(pair: Data) -> float:  # an overflowed divergence counts as infinite
        return sum(math.inf if pair[k] is None else pair[k] for k in ("kl_ab", "kl_ba"))

    pairs = sorted(block.get("components", []), key=size, reverse=True)
    return rows + [[one["a"], one["b"], *_cells(one)] for one in pairs]


def _cells(data: Data) -> tuple[str, str]:
    return short(data["kl_ab"]), short(data["kl_ba"])


@verb(_report)
def diff(settings: Settings) -> Data:
    """Compare two files: KL divergence in nats, block by block, with components matched."""
    paths = settings.arguments("a posterior or ledger", "another one of the same model")
    read = {name: files.read(path) for name, path in zip("ab", paths, strict=True)}
    opened = {name: value for name, (value, _) in read.items()}
    moved, notes = comparable(opened, {name: about.provenance for name, (_, about) in read.items()})
    both, names = aligned(moved)
    result = compared(both["a"], both["b"])
    sites = {k: v.sites if isinstance(v, Ledger) else None for k, v in opened.items()}
    return {
        **_both(result.kl),
        "standard_errors": result.standard_errors and _both(result.standard_errors),
        "blocks": {block.path: _block(block) for block in result.blocks},
        "sites_a": sites["a"],
        "sites_b": sites["b"],
        "columns": listed(names),
        "notes": [*notes, *unnamed(moved, names)],
    }
