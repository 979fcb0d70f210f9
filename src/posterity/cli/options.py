"""What verbs can be asked: options, each declared once, said by a flag or in a TOML file.

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
from typing import Annotated, Any

import typer

from posterity import arguments
from posterity.arguments import Constraint
from posterity.cli.app import app, example
from posterity.cli.files import check_regular
from posterity.cli.streams import Json, present
from posterity.errors import ArtifactError, ConvergenceError, PosterityError, UsageError

ENDING = ".toml"
"""How the name of a configuration ends."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of values, and how a flag's text becomes one.

    ``many`` values are a list, to a flag with commas between them; those ``by_name`` a table, to a
    flag NAME=VALUE, repeated.
    """

    constraint: Constraint
    metavar: str = "VALUE"
    many: bool = False
    by_name: bool = False
    bare: bool = False
    text: bool = False
    real: bool = False
    of: "Kind | None" = None
    alternatives: "tuple[Kind, ...]" = ()
    choices: tuple[str, ...] = ()

    def parsed(self, texts: Sequence[str]) -> Any:
        """The value that a flag says, given once or several times."""
        from posterity.adapters.tables.reader import clean

        read = str if self.text else _value
        pairs = [text.rpartition("=") for text in texts]
        named = [(clean(name), read(value)) for name, equals, value in pairs if equals or self.bare]
        if self.by_name and (named or not self.alternatives):
            if len(dict(named)) < len(texts) or not (self.bare or all(dict(named))):
                raise ValueError(f"{self.metavar}, once a name")
            return dict(named)
        if self.many and texts[-1].lstrip().startswith("["):
            return _value(texts[-1])
        if self.many:
            parts = [read(part.strip()) for row in csv.reader(texts) for part in row]
            return parts if len(parts) > 1 else parts[0] if parts else ""
        return read(texts[-1])

    def check(self, place: str, said: Any) -> Any:
        """The value, a single one of many as a list; a UsageError if it is of another kind."""
        value: Any = said
        if self.bare and not isinstance(value, dict):
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
            return float(said) if self.real else value
        if isinstance(value, dict):
            return {name: self.of.check(f"{place}.{name}", one) for name, one in value.items()}
        return [self.of.check(f"{place}.{number}", one) for number, one in enumerate(value)]

    def allows(self, value: Any) -> bool:
        """Whether the value is of this kind."""
        try:
            self.check("", value)
        except UsageError:
            return False
        return True


def _value(text: str) -> Any:
    """A number, array or table as TOML writes it; other text as it is."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return float(text) if _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# --- kinds ---------------------------------------------------------------------------------------


def _of(constraint: Constraint, metavar: str = "VALUE", **how: Any) -> Kind:
    """Of plain numbers: True is none, as it is in Python."""
    holds = lambda value: not isinstance(value, bool) and constraint.holds(value)
    return Kind(dataclasses.replace(constraint, holds=holds), metavar, **how)


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
FILE = Kind(
    Constraint(
        "the path of a file, as a string", lambda value: isinstance(value, str) and bool(value)
    ),
    "FILE",
    text=True,
)
FLAG = Kind(arguments.FLAG)
COUNT, NATURAL = _of(arguments.COUNT, "N"), _of(arguments.NATURAL, "N")
POSITIVE = _of(arguments.POSITIVE, "X", real=True)
SHARE = _of(arguments.SHARE, "X", real=True)
SEED = _of(
    Constraint(
        "a whole number of 64 bits", lambda n: isinstance(n, Integral) and -(2**63) <= n < 2**63
    ),
    "N",
)
WEIGHT = _of(
    Constraint("a number, at least 0", lambda x: isinstance(x, Real) and 0 <= float(x) < math.inf),
    "X",
    real=True,
)
NUMBER = _of(
    Constraint("a finite number", lambda x: isinstance(x, Real) and math.isfinite(float(x))),
    "X",
    real=True,
)
PAIR = dataclasses.replace(
    list_of(TEXT),
    constraint=Constraint("a pair", lambda value: isinstance(value, list) and len(value) == 2),
)
NAMES = list_of(dataclasses.replace(TEXT, metavar="NAME"))


def _numeric(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_numeric, value))
    return isinstance(value, Real) and not isinstance(value, bool)


NUMBERS = Kind(Constraint("a number, or lists of them", _numeric), "X,X", many=True)


# --- options -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Option:
    """One thing that a verb can be asked.

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
        """What typer makes the flag of."""
        names = [self.name, *([self.short] if self.short else [])]
        kind, known = self.kind, self.kind.choices
        told = self.help if self.default is None else f"{self.help} [default: {self.default}]"
        if kind is FLAG:
            annotation: Any = bool | None
            names[0] = f"{self.name}/--no-{self.name[2:]}"
            how: dict[str, Any] = {}
        else:
            several = kind.many or kind.by_name
            annotation = (Path if kind is FILE else list[str] if several else str) | None
            how = {"metavar": kind.metavar}
            if known:
                how["autocompletion"] = lambda: list(known)
        return inspect.Parameter(
            self.place.replace(".", "__"),
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[annotation, typer.Option(*names, help=told, **how)],
        )


@dataclasses.dataclass(frozen=True)
class Settings:
    """What was asked, by place; what was left out has its default, or is None.

    ``file`` is the configuration, if there is one; ``files`` are those named at the shell.
    """

    values: Mapping[str, Any]
    options: Sequence[Option]
    file: Path | None = None
    files: tuple[Path, ...] = ()

    @property
    def folder(self) -> Path:
        """Where modules that a configuration names may lie."""
        return Path() if self.file is None else self.file.parent

    def __getitem__(self, place: str) -> Any:
        if place in self.values:
            return self.values[place]
        return next(option.default for option in self.options if option.place == place)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Says of errors which configuration they are about."""
        try:
            yield
        except PosterityError as error:
            place = f"configuration {str(self.file)!r}" if self.file else "the options"
            raise error.at(place) from error

    def table(self, name: str, *but: str) -> dict[str, Any]:
        """What was said in a table, by key, without the keys ``but``."""
        start = f"{name}."
        return {
            place.removeprefix(start): value
            for place, value in self.values.items()
            if place.startswith(start) and place.removeprefix(start) not in but
        }

    def path(self, place: str) -> Path | None:
        """The file that an option names."""
        return None if self[place] is None else Path(self[place])

    def single(self, place: str) -> Path:
        """The one file that is named, at the shell or at this place; a UsageError otherwise."""
        named = [*self.files, *([Path(self[place])] if self[place] else [])]
        if len(named) != 1:
            raise UsageError(
                found=f"{len(named)} files where one is taken" if named else f"no {place}",
                expected="one file",
                fix="Name it as the argument.",
            )
        return Path(named[0])

    def need(self, place: str) -> Any:
        """What an option says; a UsageError if it says nothing."""
        if self[place] is None:
            option = next(option for option in self.options if option.place == place)
            raise UsageError(
                found=f"no {place}",
                expected="a value for it",
                fix=f"Give {option.name}, or {place} in a TOML file.",
            )
        return self[place]


def read(
    options: Sequence[Option],
    given: Mapping[str, Any],
    file: Path | None,
    files: Sequence[Path] = (),
) -> Settings:
    """What a file and the flags say; paths in a file are relative to its folder.

    Raises:
        UsageError: for a file that is no TOML or a value of another kind; it names the key.
        ArtifactError: if the file cannot be read.
    """
    known = {option.place: option for option in options}
    values: dict[str, Any] = {}
    if file is not None:
        try:
            for place, value in _flat(_table(file), known):
                kind = known[place].kind
                values[place] = _beside(file, kind, kind.check(place, value))
        except PosterityError as error:
            raise error.at(f"configuration {str(file)!r}") from error
    for place, value in given.items():
        option = known[place]
        if isinstance(value, bool):
            values[place] = value
        else:
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


def _table(file: Path) -> dict[str, Any]:
    check_regular(file)
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refusal = ArtifactError if isinstance(error, OSError) else UsageError
        raise refusal(
            found=f"text that cannot be read ({error})",
            expected="a TOML file",
            fix="Check the path and the line.",
        ) from error


def _flat(
    table: Mapping[str, Any], known: Mapping[str, Option], start: str = ""
) -> Iterable[tuple[str, Any]]:
    """Values by place; a UsageError for a place that nobody knows."""
    for key, value in table.items():
        place = f"{start}{key}"
        if place in known:
            yield place, value
        elif (
            isinstance(value, dict) and not start and any(p.startswith(f"{place}.") for p in known)
        ):
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
    if not kind.metavar.endswith("FILE"):
        return value
    if isinstance(value, dict):
        return {name: str(file.parent / path) for name, path in value.items()}
    if isinstance(value, list):
        return [str(file.parent / path) for path in value]
    return str(file.parent / value)


# --- commands ------------------------------------------------------------------------------------


def verb(
    *options: Option,
    files: str,
    report: Callable[[dict[str, Any]], Any],
    examples: Sequence[str],
    name: str | None = None,
) -> Callable[[Callable[[Settings], dict[str, Any]]], Any]:
    """Make a function of :class:`Settings` the command of its name, with these options.

    ``files`` is the help of its arguments, of which one that ends in ``.toml`` is the
    configuration; ``name`` is the command's, if it is another one than the function's. The exit
    code is 9 if the data that the function gives have a ``status`` that is not converged.
    """

    def register(function: Callable[[Settings], dict[str, Any]]) -> Any:
        @functools.wraps(function)
        def command(**given: Any) -> None:
            as_json, names = given.pop("as_json"), given.pop("files") or []
            configurations = [name for name in names if name.suffix == ENDING]
            if len(configurations) > 1:
                raise UsageError(
                    found=f"{len(configurations)} configurations",
                    expected="one",
                    fix="Leave one out.",
                )
            said = {
                place.replace("__", "."): value
                for place, value in given.items()
                if value is not None
            }
            file = configurations[0] if configurations else None
            others = [name for name in names if name.suffix != ENDING]
            converged = []

            def compute() -> dict[str, Any]:
                data = function(read(options, said, file, others))
                converged.append(data.get("status", {}).get("state", "converged") == "converged")
                return data

            present(compute, report, as_json)
            if not all(converged):
                raise typer.Exit(ConvergenceError.exit_code)

        argument = typer.Argument(metavar="FILE", help=files, show_default=False)
        parameters = [
            inspect.Parameter(
                "files",
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[list[Path] | None, argument],
            ),
            *(option.parameter for option in options),
            inspect.Parameter(
                "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json
            ),
        ]
        del command.__wrapped__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return app.command(name or function.__name__, epilog=example(*examples))(command)

    return register
