"""A schedule's state as JSON data, with the members of the family that it holds beside it."""

from typing import Any

from posterity.arrays.stacks import stacked, unstacked
from posterity.entries import Entry
from posterity.families import ExponentialFamily, at_rest
from posterity.federation.state import Map


class Members:
    """Members of a family that JSON data refer to: factors of a ledger by site, others by number.

    Each is kept once, however many maps hold it.
    """

    def __init__(self, entries: Map, stack: ExponentialFamily | None = None):
        self.others: list[Any] = [] if stack is None else unstacked(at_rest(stack))
        held = {site: entry.factor for site, entry in entries.items()}
        self.factors = {site: factor for site, factor in held.items() if factor is not None}
        self.known: dict[int, str | int] = {id(f): site for site, f in self.factors.items()}

    def stack(self, like: ExponentialFamily) -> ExponentialFamily | None:
        """Those that are no factors of the ledger, as one array a leaf; None if there are none."""
        return stacked(like, list(map(at_rest, self.others))) if self.others else None

    def packed(self, value: Any) -> Any:
        """Plain data as JSON data; each dictionary says of what kind it is."""
        if isinstance(value, ExponentialFamily):
            if id(value) not in self.known:
                self.known[id(value)] = len(self.others)
                self.others.append(value)
            return {"member": self.known[id(value)]}
        if isinstance(value, Entry):
            return {"entry": [self.packed(part) for part in value]}
        if isinstance(value, dict):
            return {"map": {name: self.packed(item) for name, item in value.items()}}
        return [self.packed(item) for item in value] if isinstance(value, list | tuple) else value

    def unpacked(self, value: Any) -> Any:
        """What was packed; an error of any kind if nothing was."""
        if isinstance(value, list):
            return [self.unpacked(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "map":
            return {name: self.unpacked(item) for name, item in content.items()}
        if kind == "entry":
            return Entry(*map(self.unpacked, content))
        return self.factors[content] if isinstance(content, str) else self.others[content]
