"""An architecture as data: a name that sender and receiver registered, options, named parameters.

Layers of networks are data too: each is a dataclass of its own.
"""

import contextlib
import copy
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from posterity.arrays.leaves import as_leaf
from posterity.arrays.tree import identical
from posterity.artifact.registry import enrol_data
from posterity.errors import ArtifactError, UsageError
from posterity.families.layers import Conv, Dense, Layers

_BUILDERS: dict[str, Callable[..., Any]] = {}


def register_architecture(name: str, build: Callable[..., Any]) -> Callable[..., Any]:
    """Register the function ``build(parameters, **options)`` for artifacts with architectures of
    this name. Raises an ArtifactError if another function already has the name.
    """
    if _BUILDERS.setdefault(name, build) is not build:
        raise ArtifactError(
            found=f"a second architecture named {name!r}", expected="a name for each function"
        )
    return build


@dataclasses.dataclass(frozen=True, eq=False)
class Architecture:
    """A description of a network, or another function, that is built where its name is registered.

    ``options`` are JSON (numbers, texts, lists, and dictionaries of these). ``parameters`` are
    arrays of floats in dictionaries, which may nest.

    >>> import numpy as np
    >>> line = register_architecture("line", lambda p, power: lambda x: p["slope"] * x**power)
    >>> square = Architecture("line", {"power": 2}, {"slope": np.array(3.0)})
    >>> float(square.build()(2.0))
    12.0

    Raises:
        ArtifactError: if the name is not registered here.
        UsageError: if the options are no JSON.
        ParameterError: if parameters are no real numbers.
    """

    name: str
    options: Mapping[str, Any]
    parameters: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.name not in _BUILDERS:
            found = f"an architecture {self.name!r} that this installation does not know"
            known = f"one of {sorted(_BUILDERS)}"
            fix = "Import the package that registers it."
            raise ArtifactError(found=found, expected=known, fix=fix)
        options = None
        with contextlib.suppress(TypeError, ValueError):
            options = json.loads(json.dumps(dict(self.options), allow_nan=False))
        if options is None or options != _with_lists(self.options):
            raise UsageError(
                found=f"options {self.options!r} of architecture {self.name!r}",
                expected="numbers, texts, lists, and dictionaries of these by name",
            )
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "parameters", _owned(dict(self.parameters)))

    def build(self) -> Any:
        """Build the registered network or function, with these parameters and options."""
        return self.made(self.name, self.parameters, self.options)

    @staticmethod
    def made(name: str, parameters: Any, options: Mapping[str, Any]) -> Any:
        """Build the network or function of a name; its parameters may be traced."""
        return _BUILDERS[name](parameters, **copy.deepcopy(dict(options)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Architecture):
            return False
        described = (self.name, self.options) == (other.name, other.options)
        return described and identical(self.parameters, other.parameters)

    __hash__ = None  # type: ignore[assignment]  # equal by content, and the content is arrays


def _with_lists(options: Any) -> Any:
    """Return options with lists in place of tuples."""
    if isinstance(options, Mapping):
        return {name: _with_lists(child) for name, child in options.items()}
    return [*map(_with_lists, options)] if isinstance(options, list | tuple) else options


def _owned(parameters: Any) -> Any:
    if isinstance(parameters, Mapping):
        return {name: _owned(child) for name, child in parameters.items()}
    return as_leaf(parameters)


enrol_data(Architecture, arrays=["parameters"])
for _layer in (Dense, Conv, Layers):
    enrol_data(_layer)
