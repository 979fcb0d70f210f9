"""What a file's provenance says of its parameters: names of a network's inputs, as JSON, and more.

A distribution can name its own coordinates (:mod:`posterity.families.names`). The inputs of a
network are no coordinates of the distribution over its weights, so the file names them here.
"""

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posterity.artifact.container import altered
from posterity.families.names import some, unfit
from posterity.runtime.text import cut

COLUMNS, TARGET, CLASSES = "columns", "target", "classes"
"""The keys for the names of columns, a list in JSON; the name of the column that is predicted; and
the texts that its labels 0, 1, ... stand for, a list in JSON."""

READERS = {"recipe": "posterity.tabular.reconcile"}
"""By key of a provenance that says what a file's parameters mean, the module that reads it."""

PERSONAL = "personal"
"""Where a file's provenance has the argument ``personal`` of its fusion."""


def reader_of(provenances: Iterable[Mapping[str, str]]) -> Any:
    """Return the module that compares what these files say of their parameters, imported at its
    first use; None if they say nothing. It has ``reconciled``, which puts the contents of several
    files into one form, and ``check_same``, which refuses files that need this.
    """
    keys = {key for own in provenances for key in READERS.keys() & own.keys()}
    return importlib.import_module(READERS[min(keys)]) if keys else None


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
    names = _names(provenance, COLUMNS)
    if names and len(names) != count:
        raise altered(f"{len(names)} names of columns beside a network of {count} inputs")
    return names


def of_target(name: str, classes: Sequence[str]) -> dict[str, str]:
    """Return the provenance of a network that predicts a column, with these texts if any.

    >>> of_target("ill", ["no", "yes"])
    {'target': 'ill', 'classes': '["no","yes"]'}
    """
    texts = json.dumps(list(classes), separators=(",", ":"))
    return {TARGET: name} | ({CLASSES: texts} if classes else {})


def classes_of(provenance: Mapping[str, str]) -> tuple[str, ...]:
    """Return the texts that labels stand for, or an empty tuple; an ArtifactError unless they are
    distinct names.
    """
    return _names(provenance, CLASSES)


def _names(provenance: Mapping[str, str], key: str) -> tuple[str, ...]:
    if key not in provenance:
        return ()
    try:
        names = json.loads(provenance[key])
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or unfit(names):
        raise altered(f"{key} {cut(provenance[key])}, which are no distinct names")
    return tuple(names)


def named(classes: Sequence[str]) -> str:
    """Return a line on the classes that labels stand for.

    >>> named(["no", "yes"])
    "labels: 0 is 'no', 1 is 'yes'"
    """
    return f"labels: {', '.join(f'{place} is {text!r}' for place, text in enumerate(classes))}"


def unnamed(columns: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """Return a line on sites without names of columns, whose order is taken from the others."""
    nameless = [place for place in columns if not columns[place]]
    if not nameless or len(names) < 2:
        return []
    return [f"no names of columns at {some(nameless)}: theirs are taken to be {some(names)}"]
