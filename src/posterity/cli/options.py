"""Options of verbs, each declared once and set by a flag or in a TOML file.

An :class:`Option` has a place in the file (``model.target``: key ``target`` of table ``[model]``)
and a flag (``--target``). Both are read by its :class:`Kind`, so that they take the same values
and refuse the same ones. A flag goes before the file.
"""

import contextlib
import csv
import dataclasses
import functools
import inspect
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from posterity import arguments
from posterity.arguments import Constraint
from posterity.cli.app import app, example
from posterity.cli.files import check_regular
from posterity.cli.streams import JSON, LOG, LogFormat, present
from posterity.errors import ArtifactError, ConvergenceError, PosterityError, UsageError

ENDING = ".toml"
"""The ending of the names of configurations."""
More = ParamSpec("More")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of values, and how a flag's text becomes one.

    ``many`` values are a list, to a flag with commas between them; those ``by_name`` a table, to a
    flag NAME=VALUE, repeated, of which ``nameless`` lets one go without its name.
    """

    constraint: Constraint
    metavar: str = "VALUE"
    many: bool = False
    by_name: bool = False
    nameless: bool = False
    text: bool = False
    real: bool = False
    of: "Kind | None" = None
    alternatives: "tuple[Kind, ...]" = ()
    choices: tuple[str, ...] = ()

    def parsed(self, texts: Sequence[str]) -> Any:
        """The value of a flag that comes once or several times; a ValueError if it has none."""
        from posterity.adapters.tables.reader import clean

        read = str if self.text else _value
        table = self.of is TABLE  # which may hold equals signs
        pairs = (text.partition("=") if table else _pair(text) for text in texts)
        pairs = (pair for pair in pairs if pair[1] or self.nameless)
        named = [(clean(name), read(value)) for name, _, value in pairs]
        if self.by_name and (named or not self.alternatives):
            if len(dict(named)) < len(texts) or not (self.nameless or all(dict(named))):
                raise ValueError(f"{self.metavar}, once a name")
            return dict(named)
        if self.many and texts[-1].lstrip().startswith("["):
            return _value(texts[-1])
        if self.many:
            try:
                parts = [read(part.strip()) for row in csv.reader(texts) for part in row]
            except csv.Error as error:  # a carriage return
                raise ValueError(f"{self.metavar}, on one line") from error
            return parts if len(parts) > 1 else parts[0] if parts else ""
        return read(texts[-1])

    def check(self, place: str, value: Any) -> Any:
        """The value, a single one of many as a list; a UsageError if it is of another kind."""
        if self.nameless and not isinstance(value, dict):
            value = {"": value}
        if self.many and self.of is not None and not isinstance(value, list | dict):
            value = [value]
        if not self.constraint.allows(value):
            raise UsageError(
                found=f"{place} = {value!r}",
                expected=self.constraint.expected,
                fix="See --help for what it is, and docs/cli.md for a complete file.",
            )
        for kind in self.alternatives:
            if kind.allows(value):
                return kind.check(place, value)
        if self.of is None:
            return float(value) if self.real else value  # pyright: ignore[reportArgumentType]
        if isinstance(value, dict):
            return {name: self.of.check(_inner(place, name), part) for name, part in value.items()}
        return [self.of.check(_inner(place, n), part) for n, part in enumerate(value)]

    def allows(self, value: Any) -> bool:
        """True for a value of this kind."""
        try:
            self.check("", value)
        except UsageError:
            return False
        return True


def _pair(text: str) -> tuple[str, str, str]:
    """A name and a value, apart at the last equals sign, but for those that end a base64 text."""
    bare = text.rstrip("=")
    name, sign, value = bare.rpartition("=")
    return (name, sign, value + text[len(bare) :]) if sign else text.rpartition("=")


def _inner(place: str, name: str | int) -> str:
    """The place of one of several values: ``--scale age``, or ``data.scale.age`` in a file."""
    if not place.startswith("--"):
        return f"{place}.{name}" if name != "" else place
    return f"{place} {name}" if name and isinstance(name, str) else place


def _value(text: str) -> Any:
    """A number, array or table as TOML writes it; other text as it is."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        with contextlib.suppress(ValueError):
            if math.isfinite(value := float(text)):
                return value
        return text


# --- kinds ---------------------------------------------------------------------------------------


def _number(constraint: Constraint, metavar: str = "X", real: bool = True) -> Kind:
    return Kind(constraint, metavar, real=real)


def words(*choices: str) -> Kind:
    """One of these words."""
    metavar = f"[{'|'.join(choices)}]"
    return Kind(arguments.one_of(*choices), metavar, text=True, choices=choices)


def list_of(kind: Kind) -> Kind:
    """Several values of a kind."""
    holds = Constraint("a list", lambda value: isinstance(value, list))
    return Kind(holds, f"{kind.metavar},{kind.metavar}", many=True, text=kind.text, of=kind)


def by_name(kind: Kind, name: str = "NAME") -> Kind:
    """A table of values of a kind."""
    return Kind(TABLE.constraint, f"{name}={kind.metavar}", by_name=True, text=kind.text, of=kind)


def either(*kinds: Kind) -> Kind:
    """A value of one of these kinds."""
    expected = ", or ".join(kind.constraint.expected for kind in kinds)
    holds = lambda value: any(kind.allows(value) for kind in kinds)
    return Kind(
        Constraint(expected, holds),
        kinds[0].metavar,
        many=any(kind.many for kind in kinds),
        by_name=any(kind.by_name for kind in kinds),
        alternatives=kinds,
    )


TABLE = Kind(Constraint("a table", lambda value: isinstance(value, dict)), "{...}")
TEXT = Kind(Constraint("a string", lambda value: isinstance(value, str)), "TEXT", text=True)
_IS_NAME = lambda value: isinstance(value, str) and bool(value)
NAME = Kind(Constraint("a name", _IS_NAME), "NAME", text=True)
FILE = Kind(Constraint("the path of a file, as a string", _IS_NAME), "FILE", text=True)
FLAG = Kind(arguments.FLAG)
COUNT = _number(arguments.COUNT, "N", real=False)
NATURAL = _number(arguments.NATURAL, "N", real=False)
POSITIVE, SHARE = _number(arguments.POSITIVE), _number(arguments.SHARE)
_IS_SEED = arguments.number_of(Integral, lambda n: -(2**63) <= n < 2**63)
SEED = _number(Constraint("a whole number of 64 bits", _IS_SEED), "N", real=False)
_IS_WEIGHT = arguments.number_of(Real, lambda x: 0 <= float(x) < math.inf)
WEIGHT = _number(Constraint("a number, at least 0", _IS_WEIGHT))
_IS_FINITE = arguments.number_of(Real, lambda x: math.isfinite(float(x)))
NUMBER = _number(Constraint("a finite number", _IS_FINITE))
_IS_PAIR = lambda value: isinstance(value, list) and len(value) == 2
PAIR = dataclasses.replace(list_of(TEXT), constraint=Constraint("a pair", _IS_PAIR))
NAMES = list_of(dataclasses.replace(TEXT, metavar="NAME"))


def _numeric(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_numeric, value))
    return isinstance(value, Real) and not isinstance(value, bool)


NUMBERS = Kind(Constraint("a number, or lists of them", _numeric), "X,X", many=True)


# --- options -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a verb.

    ``place`` is where it stands in the file; ``flag`` is ``--KEY`` if left out.
    """

    place: str
    kind: Kind
    help: str
    flag: str = ""
    short: str = ""
    default: Any = None

    @property
    def key(self) -> str:
        """The name of its value in its table."""
        return self.place.rpartition(".")[2]

    @property
    def name(self) -> str:
        """The name of its flag."""
        return self.flag or f"--{self.key.replace('_', '-')}"

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter that typer makes the flag of."""
        names = [self.name, *([self.short] if self.short else [])]
        kind = self.kind
        text = self.help if self.default is None else f"{self.help} [default: {self.default}]"
        more: dict[str, Any] = {} if kind is FLAG else {"metavar": kind.metavar}
        if kind is FLAG:
            annotation: Any = bool | None
            names[0] = f"{self.name}/--no-{self.name[2:]}"
        else:
            several = kind.many or kind.by_name
            annotation = (Path if kind is FILE else list[str] if several else str) | None
        if kind.choices:
            more["autocompletion"] = lambda: list(kind.choices)
        option = typer.Option(*names, help=text, **more)
        return _parameter(self.place.replace(".", "__"), annotation, option)


def _parameter(name: str, annotation: Any, info: Any, default: Any = None) -> inspect.Parameter:
    """A parameter of a command, as typer reads it."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=Annotated[annotation, info])


@dataclasses.dataclass(frozen=True)
class Settings:
    """The values of a verb's options, by place: the default, or None, of what was left out.

    ``file`` is the configuration, if there is one; ``files`` are those named at the shell.
    """

    values: Mapping[str, Any]
    options: Sequence[Option]
    file: Path | None = None
    files: tuple[Path, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder in which modules that a configuration names may lie."""
        return Path() if self.file is None else self.file.parent

    def __getitem__(self, place: str) -> Any:
        if place in self.values:
            return self.values[place]
        return self._option(place).default

    def _option(self, place: str) -> Option:
        return next(option for option in self.options if option.place == place)

    def has(self, place: str) -> bool:
        """True if the verb has an option at this place."""
        return any(option.place == place for option in self.options)

    def flag(self, place: str) -> str:
        """The name of an option's flag."""
        return self._option(place).name

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Errors within say which configuration they are about."""
        try:
            yield
        except PosterityError as error:
            place = f"configuration {str(self.file)!r}" if self.file else "the options"
            raise error.at(place) from error

    @property
    def output(self) -> Path:
        """The file that the result is written to; a UsageError if none is named."""
        return Path(self.need("output.file"))

    @property
    def checkpoint(self) -> Path:
        """The file that a run is kept in until its result is written."""
        return self.path("output.checkpoint") or Path(f"{self.output}.checkpoint")

    def table(self, name: str, *but: str) -> dict[str, Any]:
        """The values of a table, by key, without the keys ``but``."""
        start = f"{name}."
        return {
            place.removeprefix(start): value
            for place, value in self.values.items()
            if place.startswith(start) and place.removeprefix(start) not in but
        }

    def path(self, place: str) -> Path | None:
        """The file that an option names."""
        return None if self[place] is None else Path(self[place])

    def arguments(self, *what: str) -> tuple[Path, ...]:
        """The files that are named at the shell, one for each of ``what``; a UsageError else."""
        if len(self.files) != len(what):
            raise UsageError(
                found=f"{len(self.files)} arguments",
                expected=" and ".join(what),
                fix="Name them in this order: see --help.",
            )
        return self.files

    def single(self, place: str) -> Path:
        """The one file that is named, at the shell or at this place; a UsageError otherwise."""
        named = [*self.files, *([Path(self[place])] if self[place] else [])]
        if len(named) != 1:
            raise UsageError(
                found=f"{len(named)} files where one is taken" if named else f"no {place}",
                expected="one file",
                fix="Name it as the argument, and all else by options: see --help.",
            )
        return Path(named[0])

    def need(self, place: str) -> Any:
        """The value of an option; a UsageError if it has none."""
        if self[place] is None:
            raise UsageError(
                found=f"no {place}",
                expected="a value for it",
                fix=f"Give {self._option(place).name}, or {place} in a TOML file.",
            )
        return self[place]


def conflict(option: str, other: str) -> UsageError:
    """The error for two options of which one is enough."""
    return UsageError(
        found=f"{option} beside {other}",
        expected="one of both",
        fix=f"Leave {option} out, or {other}.",
    )


def incomplete(option: str, other: str) -> UsageError:
    """The error for an option that says nothing without another one."""
    return UsageError(
        found=f"{option} without {other}",
        expected="both, or neither",
        fix=f"Give {other} too, or leave {option} out.",
    )


def about_settings(
    function: Callable[Concatenate[Settings, More], Result],
) -> Callable[Concatenate[Settings, More], Result]:
    """A decorator: errors of a function of settings say which configuration they are about."""

    @functools.wraps(function)
    def call(settings: Settings, *args: More.args, **keywords: More.kwargs) -> Result:
        with settings.named():
            return function(settings, *args, **keywords)

    return call


def read(
    options: Sequence[Option],
    flags: Mapping[str, Any],
    file: Path | None,
    files: Sequence[Path] = (),
) -> Settings:
    """The values that a file and the flags set; paths in a file are relative to its folder.

    Raises:
        UsageError: for a file that is no TOML or a value of another kind; it names the key.
        ArtifactError: if the file cannot be read.
    """
    known = {option.place: option for option in options}
    values: dict[str, Any] = {}
    if file is not None:
        try:
            check_regular(file)
            for place, value in _flat(tomllib.loads(file.read_text(encoding="utf-8")), known):
                kind = known[place].kind
                values[place] = _beside(file, kind, kind.check(place, value))
        except PosterityError as error:
            raise error.at(f"configuration {str(file)!r}") from error
        except (OSError, ValueError, RecursionError) as error:
            refusal = ArtifactError if isinstance(error, OSError) else UsageError
            raise refusal(
                found=f"configuration {str(file)!r} that cannot be read ({error})",
                expected="a TOML file",
                fix="Check the path and the line.",
            ) from error
    for place, value in flags.items():
        option = known[place]
        if isinstance(value, bool):
            values[place] = value
            continue
        texts = [str(one) for one in (value if isinstance(value, list) else [value])]
        try:
            parsed = option.kind.parsed(texts)
        except ValueError as error:
            raise UsageError(
                found=" ".join(f"{option.name} {text}" for text in texts),
                expected=str(error),
                fix=f"Write for example {option.name} {option.kind.metavar}.",
            ) from error
        values[place] = option.kind.check(option.name, parsed)
    return Settings(values, options, file, tuple(files))


def _flat(
    table: Mapping[str, Any], known: Mapping[str, Option], start: str = ""
) -> Iterable[tuple[str, Any]]:
    """Values by place; a UsageError for a place that no option has."""
    for key, value in table.items():
        place = f"{start}{key}"
        if place in known:
            yield place, value
        elif isinstance(value, dict) and any(p.startswith(f"{place}.") for p in known):
            yield from _flat(value, known, f"{place}.")
        else:
            keys = [p.removeprefix(start) for p in known if p.startswith(start)]
            there = sorted({key.partition(".")[0] for key in keys})
            raise UsageError(
                found=f"{place}, of which nothing is known",
                expected=f"one of {', '.join(there)}",
                fix="Leave it out, or spell it as it is.",
            )


def _beside(file: Path, kind: Kind, value: Any) -> Any:
    """Paths in a file, of which those that are relative start in its folder."""
    if isinstance(value, dict) and kind.of:
        return {name: _beside(file, kind.of, path) for name, path in value.items()}
    if isinstance(value, list) and kind.of:
        return [_beside(file, kind.of, path) for path in value]
    return str(file.parent / str(value)) if kind is FILE else value


# --- commands ------------------------------------------------------------------------------------


def verb(
    *options: Option,
    files: str,
    report: Callable[[dict[str, Any]], Any],
    examples: Sequence[str],
    name: str | None = None,
    of: typer.Typer = app,
) -> Callable[[Callable[[Settings], dict[str, Any]]], Any]:
    """Make a function of :class:`Settings` the command of its name, with these options.

    ``files`` is the help of its arguments, of which one that ends in ``.toml`` is the
    configuration; ``name`` is the command's, if it is another one than the function's, and ``of``
    what it is a command of. The exit code is 9 if the data that the function gives have a
    ``status`` that is not converged.
    """

    def register(function: Callable[[Settings], dict[str, Any]]) -> Any:
        @functools.wraps(function)
        def command(
            files: list[Path] | None, as_json: bool, log_format: LogFormat, **values: Any
        ) -> None:
            names = files or []
            configurations = [name for name in names if name.suffix == ENDING]
            if len(configurations) > 1:
                raise UsageError(
                    found=f"{len(configurations)} configurations",
                    expected="one",
                    fix="Leave one out.",
                )
            asked = {name: value for name, value in values.items() if value is not None}
            flags = {name.replace("__", "."): value for name, value in asked.items()}
            others = [name for name in names if name.suffix != ENDING]
            file = configurations[0] if configurations else None
            compute = lambda: function(read(options, flags, file, others))
            data = present(compute, report, as_json, log_format)
            if data.get("status", {}).get("state", "converged") != "converged":
                raise typer.Exit(ConvergenceError.exit_code)

        argument = typer.Argument(metavar="FILE", help=files, show_default=False)
        parameters = [
            _parameter("files", list[Path] | None, argument),
            *(option.parameter for option in options),
            _parameter("as_json", bool, JSON, False),
            _parameter("log_format", LogFormat, LOG, LogFormat.text),
        ]
        del command.__wrapped__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return of.command(name or function.__name__, epilog=example(*examples))(command)

    return register
