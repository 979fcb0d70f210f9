"""From TOML to the tables of the schema; every mistake is named by where it stands."""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from posterity.cli.config.schema import Federation, Table, msgspec
from posterity.cli.files import check_regular
from posterity.errors import ArtifactError, PosterityError, UsageError

T = TypeVar("T", bound=Table)
WORDS = {
    "array": "an array",
    "float": "a number",
    "int": "a whole number",
    "object": "a table",
    "str": "a string",
}
"""For msgspec's names of types."""


def read(path: Path, kind: type[T] = Federation) -> T:
    """The configuration in a file, of this ``kind``.

    Raises:
        UsageError: if it is no TOML, or says what none may say.
        ArtifactError: if it cannot be read.
    """
    check_regular(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refusal = ArtifactError if isinstance(error, OSError) else UsageError
        raise refusal(
            found=f"text that cannot be read ({error})",
            expected="a TOML file",
            fix="Mend the path or the line.",
        ) from error
    return convert(table, kind)


def convert(table: dict[str, Any], kind: type[T], *name: str) -> T:
    """The table called ``name``, checked.

    Raises:
        UsageError: that names the key, if it is not of this ``kind``.
    """
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        keys, value = _follow(path, table, kind)
        found, expected = _explain(message, ".".join([*name, *keys]), value)
        fix = f"See {kind.page} for a complete file."
        raise UsageError(found=found, expected=expected, fix=fix) from error


def _follow(path: str, value: Any, kind: type[Table]) -> tuple[list[str], Any]:
    """The keys on msgspec's path, as in ``.links[0]`` or ``.weights[...]``, and what is there."""
    keys, table = [], value
    for key in re.findall(r"\.{3}|\w+", path):
        if key == "...":
            key, value = _refused(value, table, kind)
        else:
            value = value[int(key) if isinstance(value, list) else key]
        keys.append(key)
    return keys, value


def _refused(entries: dict[str, Any], table: dict[str, Any], kind: type[Table]) -> tuple[str, Any]:
    """The entry at fault, which msgspec does not name: it goes last before the complaint."""
    complaint, entry = _complaint(table, kind), ("", None)
    while _complaint(table, kind) == complaint:
        entry = entries.popitem()
    return entry


def _complaint(table: dict[str, Any], kind: type[Table]) -> str:
    try:
        msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _explain(message: str, place: str, value: Any) -> tuple[str, str]:
    """What was found, and what was expected."""
    if field := re.search("(unknown|required) field `(.*)`", message):
        key = f"{place}.{field[2]}".removeprefix(".")
        if field[1] == "required":
            return f"no {key}", "a value for it"
        return f"{key}, of which nothing is known", "a key that there is, spelt as it is"
    plain = re.sub("`|Expected |, got.*", "", message)
    return f"{place} = {value!r}", re.sub(r"\w+", lambda w: WORDS.get(w[0], w[0]), plain)


def one_of(choices: Mapping[str, Any], name: Any, place: str) -> Any:
    """The choice of this name; a UsageError if there is none, naming its ``place``."""
    if not isinstance(name, str) or name not in choices:
        raise UsageError(
            found=f"no {place}" if name is None else f"{place} = {name!r}",
            expected=f"one of {list(choices)}",
            fix="Mend this value.",
        )
    return choices[name]


def made(
    make: Callable[..., Any], options: Mapping[str, Any], table: str, page: str = Table.page
) -> Any:
    """``make(**options)``, whose complaints become ones about a table of the configuration."""
    try:
        return make(**options)
    except PosterityError as error:
        raise error.at(f"table [{table}]") from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise UsageError(
            found=f"{sorted(options)} in table [{table}] ({error})",
            expected="the options that it takes, of the right type",
            fix=f"See {page}.",
        ) from error
