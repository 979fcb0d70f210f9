"""Settings, which are chosen rather than computed: models, estimators, local rules, walks."""

import abc
import dataclasses

from posterity.arrays.tree import Node


class Setting(Node, abc.ABC):
    """Base of what is chosen, such as models and local rules: hashable, and shown in full."""

    def __hash__(self) -> int:
        return hash((type(self), self.kept()))

    def __repr__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        shown = (f"{n}={getattr(v, 'shape', v)!r}" for n, v in values.items())
        return f"{type(self).__name__}({', '.join(shown)})"
