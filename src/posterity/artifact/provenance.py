"""The names of a network's inputs in a file's provenance, as JSON.

A law's own coordinates have names themselves (:mod:`posterity.families.names`); the inputs of a
network are no coordinates of the law over its weights, so the file names them here.
"""

import json
from collections.abc import Mapping, Sequence

from posterity.artifact.container import altered
from posterity.families.names import MOST_CHARACTERS, some, unfit

COLUMNS = "columns"
"""The key of the names of columns: a list in JSON."""


def as_provenance(names: Sequence[str]) -> dict[str, str]:
    """The provenance of a network that takes these columns; empty if they have no names.

    >>> as_provenance(["age", "dose"])
    {'columns': '["age","dose"]'}
    """
    return {COLUMNS: json.dumps(list(names), separators=(",", ":"))} if names else {}


def inputs_of(provenance: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The names of the columns of a network's inputs; empty if its file names none; an
    ArtifactError if they are no distinct names, or not as many as there are inputs.
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
    """A line on those that name no columns, whose order had to be taken for that of the others."""
    nameless = [place for place in columns if not columns[place]]
    if not nameless or len(names) < 2:
        return []
    return [f"no names of columns at {some(nameless)}: theirs are taken to be {some(names)}"]
