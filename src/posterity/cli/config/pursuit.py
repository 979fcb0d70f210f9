"""A pursuit described in a TOML file: data, model and prior, and how the mixture grows."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar, Literal

import posterity.cli.config.schema as schema
from posterity.cli.config.distillation import MODELS, Data, Model, Prior, records
from posterity.cli.config.schema import Count, Positive, Seed, msgspec
from posterity.cli.config.toml import made, one_of, read
from posterity.errors import PosterityError, UsageError
from posterity.pursuit import Best, Fixed, Flatness, Joint, LambdaSchedule, Schedule
from posterity.pursuit.schedules import SEVERAL

PAGE = "docs/pursue.md"
PARTIAL = ".partial"
"""Before the ending of the output's name: what an interrupted pursuit had found."""
POLISH = {"each": "each", "end": "end", "none": None}


class Table(schema.Table):
    """A table of a pursuit."""

    page: ClassVar[str] = PAGE


class Pursuit(Table):
    """As :func:`posterity.pursue`; ``base`` is a kind of component, ``batch_size`` the joint's."""

    base: Literal["diagonal", "full", "low-rank"] = "diagonal"
    components: Count | None = None
    schedule: str | Positive | dict[str, Any] | None = None
    weights: Literal["corrective", "line", "harmonic"] | None = None
    polish: str = "each"
    batch_size: Count | None = None
    attempts: Count | None = None
    finalists: Count | None = None
    samples: Count | None = None
    nodes: Count | None = None
    iterations: Count | None = None


class Output(Table):
    """Paths of what is written."""

    posterior: str
    plot: str | None = None


class Config(Table):
    """The whole file."""

    data: Data
    output: Output
    model: Model = msgspec.field(default_factory=Model)
    prior: Prior = msgspec.field(default_factory=Prior)
    pursuit: Pursuit = msgspec.field(default_factory=Pursuit)
    seed: Seed = 0


@dataclasses.dataclass(frozen=True)
class Job:
    """A target, how its posterior is pursued, and the files about both.

    ``options`` are those of :func:`posterity.pursue` but for its key; ``about`` is what is to be
    told of the target, by key.
    """

    target: Joint
    base: Literal["diagonal", "full", "low-rank"]
    options: dict[str, Any]
    seed: int
    reads: tuple[Path, ...]
    output: Path
    plot: Path | None
    columns: tuple[str, ...]
    notes: tuple[str, ...]
    about: dict[str, str]

    @property
    def partial(self) -> Path:
        """Where an interrupted pursuit leaves what it found."""
        return self.output.with_name(f"{self.output.stem}{PARTIAL}{self.output.suffix}")

    @property
    def outputs(self) -> list[Path]:
        """All files that it may write."""
        return [file for file in (self.output, self.partial, self.plot) if file]


_made = functools.partial(made, page=PAGE)


def load_job(path: Path) -> Job:
    """Read a TOML file; paths in it are relative to its folder. See ``docs/pursue.md``.

    Raises:
        UsageError: if it is no TOML, or says something that makes no sense.
        ArtifactError: if it, or a file that it names, cannot be read.
        StructureError, ParameterError: for data that the model cannot take.
    """
    try:
        return _job(read(path, Config), path)
    except PosterityError as error:
        raise error.at(f"configuration {str(path)!r}") from error


def _job(about: Config, path: Path) -> Job:
    folder, kind, how = path.parent, about.model, about.pursuit
    data = folder / about.data.file
    x, y, names, notes = records(kind, data)
    model, prior = one_of(MODELS, kind.kind, "model.kind")(kind, about.prior, x, y)
    joint = functools.partial(Joint, model, prior, (x, y))
    options = how.given("base", "batch_size", "schedule", "polish")
    options["polish"] = one_of(POLISH, how.polish, "pursuit.polish")
    if how.schedule is not None:
        options["schedule"] = _lambdas(how.schedule)
    return Job(
        target=_made(joint, {"batch_size": how.batch_size}, "pursuit"),
        base=how.base,
        options=options,
        seed=about.seed,
        reads=(path, data),
        output=folder / about.output.posterior,
        plot=None if about.output.plot is None else folder / about.output.plot,
        columns=names,
        notes=notes,
        about={"model": kind.kind, "records": str(len(x)), "base": how.base},
    )


# --- λ --------------------------------------------------------------------------------------------


def _best(*, values: list[Any] | None = None) -> Best:
    return Best() if values is None else Best(tuple(values))


def _schedule(*, values: list[Any]) -> Schedule:
    """Of the first component, the second …, and the last of them for all that follow."""
    if not SEVERAL.allows(values):
        raise UsageError(
            found=f"values = {values}",
            expected="a positive number for each component, the last for all that follow",
            fix="Write for example values = [1.0, 0.8, 0.5].",
        )
    return Schedule(lambda number: values[min(number, len(values)) - 1])


SCHEDULES = {"best": _best, "fixed": Fixed, "schedule": _schedule, "flatness": Flatness}


def _lambdas(given: str | float | dict[str, Any]) -> LambdaSchedule:
    """A rule by its name, with its options in a table; a number is a λ that stays."""
    place = "pursuit.schedule"
    if isinstance(given, float | int):
        return Fixed(given)
    options = dict(given) if isinstance(given, dict) else {"kind": given}
    make = one_of(SCHEDULES, options.pop("kind", None), f"{place}.kind")
    return _made(make, options, place)
