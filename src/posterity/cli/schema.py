"""Options of commands, each declared once in ``data/commands.toml`` with its help.

Kinds of values accept and refuse the same in a flag and in a TOML file.
"""

import contextlib
import csv
import dataclasses
import functools
import inspect
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity import arguments
from posterity.arguments import Constraint
from posterity.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of values, and the conversion of a flag's text to one.

    ``many`` values are a list; a flag has commas between them. Values ``by_name`` are a table; a
    flag NAME=VALUE is repeated, and ``nameless`` allows one without a name. For paths, ``written``
    tells whether the file is an output. ``fix`` is the advice in the error.
    """

    constraint: Constraint
    metavar: str = "VALUE"
    many: bool = False
    by_name: bool = False
    nameless: bool = False
    text: bool = False
    real: bool = False
    written: bool | None = None
    of: "Kind | None" = None
    alternatives: "tuple[Kind, ...]" = ()
    choices: tuple[str, ...] = ()
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fix: str = 'See --help; the page "Command line" has a complete file.'

    def parsed(self, texts: Sequence[str]) -> Any:
        """Return the value of a flag that occurs once or several times; a ValueError if invalid."""
        read = str if self.text else _value
        if self.by_name and not (self.of and self.of.many):  # whose values may have commas
            texts = [part for text in texts for part in _parts(text, self.text)]
        # A table may hold equals signs.
        pairs = (text.partition("=") if self.of is TABLE else _pair(text) for text in texts)
        pairs = (pair for pair in pairs if pair[1] or self.nameless)
        named = [(name, read(value)) for name, _, value in pairs]
        if self.by_name and (named or not self.alternatives):
            from posterity.tabular.tables.reader import clean

            own = {clean(name): value for name, value in named}
            if len(own) < len(texts) or not (self.nameless or all(own)):
                raise ValueError(f"{self.metavar}, once a name")
            return own
        listed = self.many and any(text.lstrip().startswith("[") for text in texts)
        if listed or not self.many:
            if len(texts) > 1:
                raise ValueError(f"{self.metavar}, once")
            return _value(texts[0]) if listed else read(texts[0])
        try:
            parts = [read(part.strip()) for row in csv.reader(texts) for part in row]
        except csv.Error as error:  # a carriage return
            raise ValueError(f"{self.metavar}, on one line") from error
        return parts if len(parts) > 1 else parts[0] if parts else ""

    def check(self, place: str, value: Any) -> Any:
        """Return the value, a single one of many as a list; a UsageError for another kind."""
        if self.nameless and not isinstance(value, dict):
            value = {"": value}
        if self.many and self.of is not None and not isinstance(value, list | dict):
            value = [value]
        if not self.constraint.allows(value):
            known = self.others.get(str(value).lower())
            raise UsageError(
                found=f"{place} = {value!r}",
                expected=self.constraint.expected,
                fix=self.fix if known is None else f"Pass {place} {known}.",
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
        """Return whether a value is of this kind."""
        try:
            self.check("", value)
        except UsageError:
            return False
        return True

    def paths(self, value: Any) -> list[Path]:
        """Return the paths in a value; none unless it is of paths."""
        paths = list[Path]()
        self.moved(value, lambda text: paths.append(Path(text)))
        return paths

    def moved(self, value: Any, move: Callable[[str], Any]) -> Any:
        """Return a value with each path replaced by the function ``move`` of its text."""
        if isinstance(value, dict) and self.of:
            return {name: self.of.moved(path, move) for name, path in value.items()}
        if isinstance(value, list) and self.of:
            return [self.of.moved(path, move) for path in value]
        return value if self.written is None or value is None else move(str(value))


def _pair(text: str) -> tuple[str, str, str]:
    """Split at the last equals sign, except for those that end a base64 text."""
    bare = text.rstrip("=")
    name, sign, value = bare.rpartition("=")
    return (name, sign, value + text[len(bare) :]) if sign else text.rpartition("=")


def _parts(text: str, texts: bool) -> list[str]:
    """Split ``age=3,bmi=1`` at its commas, if each part is a name and a number, or a text."""
    parts = text.split(",")
    pairs = map(_pair, parts)
    named = (name and (texts or type(_value(value)) in (int, float)) for name, _, value in pairs)
    return parts if all(named) else [text]


def _inner(place: str, name: str | int) -> str:
    """Return the place of one of several values: ``--scale age``, in a file ``data.scale.age``."""
    if not place.startswith("--"):
        return f"{place}.{name}" if name != "" else place
    return f"{place} {name}" if name and isinstance(name, str) else place


def _value(text: str) -> Any:
    """Return a number, array or table from TOML; other text unchanged."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        with contextlib.suppress(ValueError):
            if math.isfinite(value := float(text)):
                return value
        return text


def _number(constraint: Constraint, metavar: str = "X") -> Kind:
    return Kind(constraint, metavar, real=metavar == "X")


def _text(expected: str, metavar: str, **more: Any) -> Kind:
    """Return a kind of texts; only those of the kind TEXT may be empty."""

    def holds(value):
        return isinstance(value, str) and bool(value or metavar == "TEXT")

    return Kind(Constraint(expected, holds), metavar, text=True, **more)


def words(*choices: str) -> Kind:
    """Return the kind of value that is one of these words."""
    metavar = f"[{'|'.join(choices)}]"
    return Kind(arguments.one_of(*choices), metavar, text=True, choices=choices)


TABLE = Kind(arguments.instance("a table", dict), "{...}")
TEXT = _text("a string", "TEXT")
NAME = _text("a name", "NAME")
CODE = _text("code, as module:name", "MODULE:NAME")
"""What is imported and called, and so is never taken from a file alone."""
FILE = _text("the path of a file, as a string", "FILE", written=False)
OUTPUT = dataclasses.replace(FILE, written=True)
_TABLES = (".csv", ".dta", ".json", ".npy", ".npz", ".parquet", ".sav", ".toml", ".tsv", ".xlsx")


def _IS_POSTERIOR(value):
    return OUTPUT.allows(value) and not value.lower().endswith(_TABLES)


POSTERIOR = dataclasses.replace(
    OUTPUT,
    constraint=Constraint(f"a path that does not end in {', '.join(_TABLES)}", _IS_POSTERIOR),
    fix="Choose another output, such as FILE.safetensors.",
)
FLAG = Kind(arguments.FLAG)
COUNT = _number(arguments.COUNT, "N")
NATURAL = _number(arguments.NATURAL, "N")
POSITIVE = _number(arguments.POSITIVE)
SHARE = _number(arguments.SHARE)
_IS_SEED = arguments.number_of(Integral, lambda n: -(2**63) <= n < 2**63)
SEED = _number(Constraint("a whole number of 64 bits", _IS_SEED), "N")
_IS_WEIGHT = arguments.number_of(Real, lambda x: 0 <= float(x) < math.inf)
WEIGHT = _number(Constraint("a number, at least 0", _IS_WEIGHT))
NUMBER = _number(arguments.FINITE)
OTHER_NAMES = {
    **dict.fromkeys(("cox", "coxph", "ph", "exponential"), "survival"),
    **dict.fromkeys(("weibull", "gompertz"), "survival --hazard weibull (or gompertz)"),
    **dict.fromkeys(("ols", "lm", "gaussian", "normal", "regression"), "linear"),
    **dict.fromkeys(("logit", "binomial", "binary", "glm"), "logistic"),
    **dict.fromkeys(("multinom", "mnlogit", "softmax", "categorical"), "multinomial"),
    **dict.fromkeys(("polr", "clm", "ologit", "ordered"), "proportional-odds"),
    **dict.fromkeys(("cratio", "continuation-ratio"), "ordinal"),
    **dict.fromkeys(("count", "counts", "loglinear"), "poisson"),
    **dict.fromkeys(("nb", "negbin", "nbinom", "negative_binomial"), "negative-binomial"),
}
"""Models by names that other programs have for them."""
MODELS = (
    *("linear", "logistic", "ordinal", "proportional-odds", "multinomial", "poisson"),
    *("negative-binomial", "gamma", "survival"),
)
_LONG = (f"{name}-regression" for name in MODELS)
REGRESSION = dataclasses.replace(
    words(*MODELS, *_LONG),
    metavar=f"[{'|'.join(MODELS)}]",
    choices=MODELS,
    others=OTHER_NAMES,
)
"""Models by their short names, and by those that other verbs have."""


def _IS_OURS(value: Any) -> bool:
    return TEXT.allows(value) and value.lower() not in OTHER_NAMES


MODEL = dataclasses.replace(
    TEXT,
    constraint=Constraint("a name that posterity has for a model", _IS_OURS),
    others=OTHER_NAMES,
)
"""Regressions and other models, which are looked up later."""


def _numeric(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_numeric, value))
    return isinstance(value, Real) and not isinstance(value, bool)


NUMBERS = Kind(Constraint("a number, or lists of them", _numeric), "X,X", many=True)

_NAMED = {name.lower(): kind for name, kind in list(globals().items()) if isinstance(kind, Kind)}


def kind_of(declared: str | list[Any]) -> Kind:
    """Return the declared kind.

    A declaration is the name of a kind in this module, words between bars, or a list: ``["either",
    KIND, ...]``, ``["list", KIND]``, ``["by NAME", KIND]``; ``["nameless", KIND]``, by name or
    without; ``["shown", TEXT]``, a text that the library checks, shown as TEXT in help.

    >>> kind_of("a|b").choices, kind_of(["by SITE", "count"]).metavar
    (('a', 'b'), 'SITE=N')
    """
    if isinstance(declared, str):
        return _NAMED[declared] if declared in _NAMED else words(*declared.split("|"))
    made, *inner = declared
    if made == "shown":
        return dataclasses.replace(TEXT, metavar=inner[0])
    kinds = tuple(kind_of(one) for one in inner)
    first = kinds[0]
    if made == "either":
        expected = ", or ".join(kind.constraint.expected for kind in kinds)

        def holds(value):
            return any(kind.allows(value) for kind in kinds)

        several: Any = {n: any(getattr(k, n) for k in kinds) for n in ("many", "by_name")}
        return Kind(Constraint(expected, holds), first.metavar, alternatives=kinds, **several)
    shared: Any = {"text": first.text, "written": first.written, "of": first}
    if made == "list":
        several = arguments.instance("a list", list)
        return Kind(several, f"{first.metavar},{first.metavar}", many=True, **shared)
    name = made.removeprefix("by ")
    nameless = made == "nameless"
    metavar = f"{'NAME' if nameless else name}={first.metavar}"
    return Kind(TABLE.constraint, metavar, by_name=True, nameless=nameless, **shared)


def _IS_PAIR(value):
    return isinstance(value, list) and len(value) == 2


_NAMED["pair"] = dataclasses.replace(
    kind_of(["list", "text"]), constraint=Constraint("a pair", _IS_PAIR)
)
_NAMED["names"] = kind_of(["list", ["shown", "NAME"]])


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a verb.

    ``place`` is its position in the file; ``flag`` is by default ``--KEY``.
    """

    place: str
    kind: Kind
    help: str
    flag: str = ""
    short: str = ""
    default: Any = None

    @property
    def key(self) -> str:
        """Key of its value in its table."""
        return self.place.rpartition(".")[2]

    @property
    def name(self) -> str:
        """Name of its flag."""
        return self.flag or f"--{self.key.replace('_', '-')}"

    @property
    def parameter(self) -> inspect.Parameter:
        """Parameter from which typer makes the flag."""
        names = [self.name, *([self.short] if self.short else [])]
        kind = self.kind
        text = self.help if self.default is None else f"{self.help} [default: {self.default}]"
        more: dict[str, Any] = {"metavar": kind.metavar}
        annotation: Any = list[Path] if kind in (FILE, OUTPUT) else list[str]
        if kind is FLAG:
            more = {}
            annotation = bool
            names[0] = f"{self.name}/--no-{self.name[2:]}"
        if kind.choices:
            more["autocompletion"] = lambda: list(kind.choices)
        option = typer.Option(*names, help=text, **more)
        return parameter(self.place.replace(".", "__"), annotation | None, option)


def parameter(name: str, annotation: Any, info: Any, default: Any = None) -> inspect.Parameter:
    """Return a parameter of a command, in the form that typer reads."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=Annotated[annotation, info])


@functools.cache
def commands() -> Mapping[str, Any]:
    """Return the declarations by names of commands and of option groups."""
    file = Path(__file__).with_name("data") / "commands.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


@functools.cache
def options_of(name: str) -> tuple[Option, ...]:
    """Return the options of a command, or of an option group that several commands share."""
    table = commands()[name]
    options = list[Option]()
    for place, entry in (table.get("options", {}) if "files" in table else table).items():
        if entry == "*" and place not in commands()["shared"]:
            options += options_of(place)
            continue
        kind, *texts = commands()["shared"][place] if entry == "*" else entry
        default = texts.pop()["default"] if isinstance(texts[-1], dict) else None
        options.append(Option(place, kind_of(kind), *texts, default=default))
    return tuple(options)


def places_of(*names: str) -> set[str]:
    """Return the places of options."""
    return {option.place for name in names for option in options_of(name)}


@functools.cache
def flags() -> dict[str, Kind]:
    """Return the kinds of all commands' options by the names of their flags."""
    names = [name for name, own in commands().items() if "files" in own]
    return {option.name: option.kind for name in names for option in options_of(name)}
