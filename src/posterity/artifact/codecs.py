"""Ledgers and supports of events in files.

A ledger is stored as its prior, all factors as one stack, and a column per part of a version.
"""

import operator
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.stacks import columns, stacked, unstacked
from posterity.artifact.container import altered
from posterity.artifact.manifest import digest
from posterity.artifact.registry import check_names, enrol
from posterity.entries import Entry
from posterity.errors import ArtifactError
from posterity.families import ExponentialFamily, at_rest, supports
from posterity.families.unconstrained import Supports
from posterity.ledger import Ledger

COLUMNS = {"sites": str, "epochs": int, "sequences": int, "forgotten": bool, "independent": bool}


class SiteVersion(NamedTuple):
    """The version of a site in a ledger; it has a factor unless it was forgotten."""

    epoch: int
    sequence: int
    forgotten: bool
    independent: bool


def columns_of(fields: dict[str, Any]) -> list[list[Any]]:
    """Return names, epochs, sequences, and flags for forgotten and independent, all checked."""
    check_names("Ledger", fields, ["prior", "prior_digest", "factors", *COLUMNS])
    checked: list[list[Any]] = []
    for name, kind in COLUMNS.items():
        column = fields[name]
        sound = isinstance(column, list) and all(type(value) is kind for value in column)
        if not sound or len(column) != len(fields["sites"]) or (kind is int and min([0, *column])):
            raise altered(f"a ledger with the {name} {column!r}")
        checked.append(column)
    if any(map(operator.ge, checked[0], checked[0][1:])):
        raise altered("a ledger of sites that come twice, or out of order")
    return checked


def _ledger_fields(ledger: Ledger) -> dict[str, Any]:
    entries = ledger.entries.values()
    factors = [entry.factor for entry in entries if entry.factor is not None]
    return {
        "prior": ledger.prior,
        "prior_digest": digest(ledger.prior),
        "factors": stacked(ledger.prior, factors) if factors else None,
        "sites": list(ledger.entries),
        "epochs": [entry.epoch for entry in entries],
        "sequences": [entry.sequence for entry in entries],
        "forgotten": [entry.factor is None for entry in entries],
        "independent": [entry.independent for entry in entries],
    }


def _ledger(fields: dict[str, Any]) -> Ledger:
    ledger = _sound_ledger(fields)
    sites, epochs, sequences, forgotten, independent = (fields[name] for name in COLUMNS)
    factors = fields["factors"]
    # Checked as a whole, and at rest: each row is a factor as the ledger keeps it.
    row = iter(() if factors is None else unstacked(at_rest(factors)))
    kept = [None if gone else next(row) for gone in forgotten]
    entries = map(Entry, epochs, sequences, kept, independent)
    return ledger._with(dict(zip(sites, entries, strict=True)))


def _sound_ledger(fields: dict[str, Any]) -> Ledger:
    """Return the ledger without its sites, which are checked."""
    columns_of(fields)
    prior = fields["prior"]
    factors = fields["factors"]
    if not isinstance(prior, ExponentialFamily):
        raise altered(f"a ledger with a prior that is a {type(prior).__name__}")
    if fields["prior_digest"] != digest(prior):
        raise altered(f"a ledger with the digest {fields['prior_digest']!r} of another prior")
    count = fields["forgotten"].count(False)
    pairs = [] if factors is None else columns(prior, [prior, factors])
    for like, stack in pairs:
        kinds = {like.dtype, stack.dtype}
        if stack.shape != (count, *like.shape) or kinds != {np.dtype(np.float64)}:
            raise altered(
                f"factors of shape {stack.shape} and {kinds} for {count} sites that contribute"
            )
    if (factors is None) != (count == 0):
        raise altered(f"{count} sites that contribute, and factors {factors!r}")
    return Ledger(prior)


enrol(Ledger, _ledger_fields, _ledger, _sound_ledger)


# --- supports of events ---------------------------------------------------------------------------

KINDS = {
    kind.__name__: kind
    for kind in vars(supports).values()
    if isinstance(kind, type) and issubclass(kind, supports.Continuous) and kind.axes is not None
    if not kind.__abstractmethods__
}


def _encoded(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {"names": list(tree), "parts": [_encoded(part) for part in tree.values()]}
    if isinstance(tree, tuple):
        return {"parts": [_encoded(part) for part in tree]}
    if type(tree) is not KINDS.get(type(tree).__name__):
        raise ArtifactError(found=f"a support {tree!r}", expected=f"one of {sorted(KINDS)}")
    return {"kind": type(tree).__name__, "shape": list(tree.shape)}


def _supports(fields: dict[str, Any]) -> Supports:
    check_names("Supports", fields, ["tree"])
    return Supports(_decoded(fields["tree"]))


def _decoded(node: Any) -> Any:
    if "kind" in node:
        if not all(type(axis) is int and axis > 0 for axis in node["shape"]):
            raise ValueError(f"a shape {node['shape']}")
        return KINDS[node["kind"]](tuple(node["shape"]))
    parts = tuple(_decoded(part) for part in node["parts"])
    return dict(zip(node["names"], parts, strict=True)) if "names" in node else parts


enrol(Supports, lambda value: {"tree": _encoded(value.tree)}, _supports)
