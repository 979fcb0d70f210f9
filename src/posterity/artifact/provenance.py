"""The names of a network's inputs in a file's provenance, as JSON.

A distribution can name its own coordinates (:mod:`posterity.families.names`). The inputs of a
network are no coordinates of the distribution over its weights, so the file names them here.
"""

import json
from collections.abc import Mapping, Sequence

from posterity.artifact.container import altered
from posterity.families.names import MOST_CHARACTERS, some, unfit

COLUMNS = "columns"
"""The key for the names of columns, a list in JSON."""


def as_provenance(names: Sequence[str]) -> dict[str, str]:
    """Return the provenance of a network with these input columns; empty if they have no names.

    >>> as_provenance(["age", "dose"])
    {'columns': '["age","dose"]'}
    """
    return {COLUMNS: json.dumps(list(names), separators=(",", ":"))} if names else {}


def inputs_of(provenance: Mapping[str, str], count: int) -> tuple[str, ...]:
    """Return the names of a network's input columns, or an empty tuple if its file has none. Raises
    an ArtifactError if they are not distinct names, or not as many as the inputs.
    """
    if COLUMNS not in provenance:
        return ()
    try:
        names = json.loads(provenance[COLUMNS])
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or unfit(names):
        text = provenance[COLUMNS][:MOST_CHARACTERS]
        raise altered(f"{COLUMNS} {text}, which are no distinct names")
    if len(names) != count:
        raise altered(f"{len(names)} names of columns beside a network of {count} inputs")
    return tuple(names)


def unnamed(columns: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """Return a line on sites without names of columns, whose order is taken from the others."""
    nameless = [place for place in columns if not columns[place]]
    if not nameless or len(names) < 2:
        return []
    return [f"no names of columns at {some(nameless)}: theirs are taken to be {some(names)}"]
