"""What a configuration may say: its tables, and of each the keys with their types and ranges.

Keys that are None when left out have a default of the library's. Which keys go with which
``kind`` the classes say that these name; which ``[prior]`` may have depends on the model.
"""

import sys
from typing import Annotated, Any, ClassVar

from posterity.errors import MissingExtraError

try:
    import msgspec
except ImportError as error:
    raise MissingExtraError.of("msgspec", "cli") from error
from msgspec import Meta

Natural = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Weight = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Share = Annotated[float, Meta(gt=0, le=1)]
Numbers = float | list[Any]
"""A number, or lists of them, nested at will."""


class Table(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A table of the file, in which no other keys may stand."""

    page: ClassVar[str] = "docs/federate.md"
    """Where a complete file is shown."""

    def given(self, *but: str) -> dict[str, Any]:
        """What the file says, without the keys ``but``."""
        items = msgspec.structs.asdict(self).items()
        return {key: value for key, value in items if value is not None and key not in but}


class Model(Table):
    """One of :mod:`posterity.models`, a ``function`` or a ``network``.

    ``target`` is the column that it predicts; an ``intercept`` is a column of ones in front.
    """

    kind: str
    target: str | None = None
    intercept: bool = False
    function: str | None = None
    categories: Count | None = None
    covariance: list[list[float]] | None = None
    noise_variance: Positive | None = None
    personal: bool | list[str | Natural] | dict[str, Positive] | None = None
    likelihood: str | None = None
    outputs: Count | None = None
    width: Count | None = None
    depth: Natural | None = None


def table(**keys: Any) -> Any:
    """A table of these keys and their types, all of which must be there."""
    return msgspec.defstruct("Table", list(keys.items()), bases=(Table,), kw_only=True)


class Schedule(Table):
    """One of the schedules of :mod:`posterity.federation`; ``weights`` are its walk's."""

    steps: Natural | None = None
    until: Positive | None = None
    kind: str = "sequential"
    damping: Share | None = None
    speeds: dict[str, Positive] | None = None
    graph: str | None = None
    links: list[tuple[str, str]] | None = None
    walk: str | None = None
    weights: dict[str, Positive] | None = None
    start: str | None = None


class Update(Table):
    """As :class:`posterity.LocalUpdate`; ``samples`` are its estimator's."""

    estimator: str | None = None
    samples: Count | None = None
    steps: Count | None = None
    rate: Share | None = None
    temperature: Positive | None = None
    domain: str | None = None
    batch_size: Count | None = None
    trust: Positive | None = None
    dtype: str | None = None


class Output(Table):
    """Paths of what is written, and the steps between two checkpoints."""

    ledger: str
    checkpoint: str | None = None
    history: str | None = None


class Federation(Table):
    """The whole file."""

    sites: dict[str, str]
    model: Model
    prior: dict[str, Any]
    output: Output
    schedule: Schedule = msgspec.field(default_factory=Schedule)
    update: Update = msgspec.field(default_factory=Update)
    weights: dict[str, Weight] | None = None
    seed: Seed = 0
