"""A ledger in a file: the prior, all factors as one stack, and a column a number of a version."""

import operator
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.stacks import columns, stacked, unstacked
from posterity.artifact.manifest import digest
from posterity.artifact.registry import check_names, enrol
from posterity.entries import Entry
from posterity.errors import ArtifactError
from posterity.families import ExponentialFamily, at_rest
from posterity.ledger import Ledger

COLUMNS = {"sites": str, "epochs": int, "sequences": int, "forgotten": bool, "independent": bool}


class SiteVersion(NamedTuple):
    """The version of a site in a ledger; it has a factor unless it was forgotten."""

    epoch: int
    sequence: int
    forgotten: bool
    independent: bool


def columns_of(fields: dict[str, Any]) -> list[list[Any]]:
    """Names, epochs, sequences, and who was forgotten and who is independent; all are checked."""
    check_names("Ledger", fields, ["prior", "prior_digest", "factors", *COLUMNS])
    checked: list[list[Any]] = []
    for name, kind in COLUMNS.items():
        column = fields.get(name)
        if not isinstance(column, list):
            raise _unfit(f"{name} {column!r}", "a list")
        if wrong := [value for value in column if type(value) is not kind]:
            raise _unfit(f"{name} {wrong[:3]!r}", f"values of type {kind.__name__}")
        if kind is int and min(column, default=0) < 0:
            raise _unfit(f"{name} from {min(column)} on", "whole numbers, from 0 on")
        checked.append(column)
        if len(column) != len(checked[0]):
            raise _unfit(f"{len(column)} {name} for {len(checked[0])} sites", "one a site")
    if any(map(operator.ge, checked[0], checked[0][1:])):
        raise _unfit("sites that come twice, or out of order", "names, sorted")
    return checked


def _fields(ledger: Ledger) -> dict[str, Any]:
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


def _build(fields: dict[str, Any]) -> Ledger:
    ledger, (sites, epochs, sequences, forgotten, independent) = _check(fields)
    factors = fields["factors"]
    # Checked as a whole, and at rest: each row is a factor as the ledger keeps it.
    row = iter(() if factors is None else unstacked(at_rest(factors)))
    kept = [None if gone else next(row) for gone in forgotten]
    entries = map(Entry, epochs, sequences, kept, independent)
    return ledger._with(dict(zip(sites, entries, strict=True)))


def _check(fields: dict[str, Any]) -> tuple[Ledger, list[list[Any]]]:
    """The ledger without its sites, and their columns."""
    prior, factors, columns_of_sites = fields["prior"], fields["factors"], columns_of(fields)
    if not isinstance(prior, ExponentialFamily):
        raise _unfit(f"a prior that is a {type(prior).__name__}", "an exponential family")
    if fields["prior_digest"] != digest(prior):
        raise _unfit(f"the digest {fields['prior_digest']!r} of another prior", "that of its own")
    count = fields["forgotten"].count(False)
    try:
        pairs = [] if factors is None else columns(prior, [prior, factors])
    except ValueError as error:
        raise _unfit(f"factors {factors!r} under {prior!r}", "those of one family") from error
    for like, stack in pairs:
        if like.dtype != np.float64 or stack.dtype != np.float64:
            raise _unfit(f"numbers of {like.dtype} and {stack.dtype}", "float64, as ledgers hold")
        if stack.shape != (count, *like.shape):
            shape = f"factors of shape {stack.shape} for {count} sites that contribute"
            raise _unfit(shape, f"one a site, of shape {like.shape}")
    if (factors is None) != (count == 0):
        raise _unfit(f"{count} sites that contribute, and factors {factors!r}", "one a site")
    return Ledger(prior), columns_of_sites


def _unfit(found: str, expected: str) -> ArtifactError:
    return ArtifactError(
        found=f"{found} of a ledger",
        expected=expected,
        fix="Fetch the ledger again.",
    )


enrol(Ledger, _fields, _build, _check)
