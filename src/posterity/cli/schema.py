"""The options of commands, which ``data/commands.toml`` declares: each once, with its help."""

import dataclasses
import functools
import inspect
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.cli.kinds import FILE, FLAG, OUTPUT, Kind, kind_of


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
            annotation: Any = bool
            names[0] = f"{self.name}/--no-{self.name[2:]}"
        elif kind in (FILE, OUTPUT):
            annotation = Path
        else:
            annotation = list[str] if kind.many or kind.by_name else str
        if kind.choices:
            more["autocompletion"] = lambda: list(kind.choices)
        option = typer.Option(*names, help=text, **more)
        return parameter(self.place.replace(".", "__"), annotation | None, option)


def parameter(name: str, annotation: Any, info: Any, default: Any = None) -> inspect.Parameter:
    """A parameter of a command, as typer reads it."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=Annotated[annotation, info])


@functools.cache
def commands() -> Mapping[str, Any]:
    """Return what is declared, by the names of commands and of groups of options."""
    file = Path(__file__).with_name("data") / "commands.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


@functools.cache
def options_of(name: str) -> tuple[Option, ...]:
    """The options of a command, or of a group of options that several commands have."""
    table, options = commands()[name], list[Option]()
    for place, entry in (table.get("options", {}) if "files" in table else table).items():
        if entry == "*" and place not in commands()["shared"]:
            options += options_of(place)
            continue
        kind, *texts = commands()["shared"][place] if entry == "*" else entry
        default = texts.pop()["default"] if isinstance(texts[-1], dict) else None
        options.append(Option(place, kind_of(kind), *texts, default=default))
    return tuple(options)


def places_of(*names: str) -> set[str]:
    """The places of options."""
    return {option.place for name in names for option in options_of(name)}
