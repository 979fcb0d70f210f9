"""Values of a command's options, from flags or a TOML file.

An :class:`Option` has a place in the file (``model.target``: key ``target`` of table ``[model]``)
and a flag (``--target``), which overrides the file. Both are read by its kind.
"""

import contextlib
import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posterity.cli.schema import CODE, FLAG, Option, options_of
from posterity.errors import UsageError, within

ENDING = ".toml"
"""File name extension of configurations."""
MOST_BYTES = 2**24
"""Largest configuration that is read. Terms that list every link of 1,024 members have 13 MB."""
MOST_DEPTH = 32
"""Largest number of parts of a key, and of tables within each other. tomllib takes memory that is
quadratic in the parts of a key: of 20,000 in a file of 40 kB, 2.3 GB."""
_BESIDE_DOTS = re.compile(
    r"""#[^\n]*|\"{3}(?:\\.|[^\\])*?(?:\"{3,5}|\Z)|'{3}.*?(?:'{3,5}|\Z)"""
    r"""|"(?:\\.|[^"\\\n])*"?|'[^'\n]*'?|[\w \t+-]+""",
    re.DOTALL,
)
"""Comments, texts, names, numbers and spaces: without them only the dots of a key are adjacent."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Values of a verb's options, by place; omitted ones have their default or None.

    ``file`` is the configuration, if there is one; ``files`` are the command line's file arguments.
    """

    values: Mapping[str, Any]
    options: Mapping[str, Option]
    file: Path | None = None
    files: tuple[Path, ...] = ()
    as_json: bool = False

    @property
    def folder(self) -> Path:
        """Folder of modules that a configuration may name."""
        return Path() if self.file is None else self.file.parent

    def __getitem__(self, place: str) -> Any:
        return self.values[place] if place in self.values else self.options[place].default

    def has(self, place: str) -> bool:
        """Return whether the verb has an option at this place."""
        return place in self.options

    def flag(self, place: str) -> str:
        """Return the name of an option's flag."""
        return self.options[place].name

    def named(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that names the configuration, if any, in errors of its block."""
        if self.file is None:
            return contextlib.nullcontext()
        return within(f"configuration '{self.file}'")

    @property
    def output(self) -> Path:
        """Return the file that the result is written to; a UsageError if none is named."""
        return Path(self.need("output.file"))

    @property
    def checkpoint(self) -> Path:
        """Return the file that holds a run until its result is written."""
        return self.path("output.checkpoint") or Path(f"{self.output}.checkpoint")

    def _paths(self, written: bool) -> list[Path]:
        kinds = ((place, o.kind) for place, o in self.options.items() if o.kind.written is written)
        return [path for place, kind in kinds for path in kind.paths(self.values.get(place))]

    @property
    def inputs(self) -> list[Path]:
        """Return all named files that are not outputs."""
        return [*self.files, *([self.file] if self.file else []), *self._paths(written=False)]

    def check_outputs(self, *inputs: Path | str) -> None:
        """Check, before any work, that folders exist, and no output is repeated or an input.

        Inputs are all named files, and those given here.
        """
        if self.has("output.file"):
            self.need("output.file")
        outputs = self._paths(written=True)
        if self.has("output.checkpoint") and self["output.checkpoint"] is None:
            outputs.append(self.checkpoint)
        from posterity.cli import files  # imports NumPy

        files.check_outputs(outputs, [*self.inputs, *inputs])

    def table(self, name: str, *but: str) -> dict[str, Any]:
        """Return the values of a table, by key, without the keys ``but``."""
        inside = {p.removeprefix(f"{name}."): p for p in self.values if p.startswith(f"{name}.")}
        return {key: self.values[place] for key, place in inside.items() if key not in but}

    def path(self, place: str) -> Path | None:
        """Return the file that an option names."""
        return None if self[place] is None else Path(self[place])

    def arguments(self, *what: str) -> tuple[Path, ...]:
        """Return the command line's files, one for each of ``what``; a UsageError otherwise."""
        if len(self.files) != len(what):
            found, expected = f"{len(self.files)} arguments", " and ".join(what)
            raise UsageError(found=found, expected=expected, fix="See --help.")
        return self.files

    def single(self, place: str) -> Path:
        """Return the one file on the command line or at this place; a UsageError otherwise."""
        named = [*self.files, *([Path(self[place])] if self[place] else [])]
        if len(named) != 1:
            found = f"the files {', '.join(map(str, named))}" if named else f"no {place}"
            raise UsageError(found=found, expected="one file; all else is passed by options")
        return named[0]

    def need(self, place: str) -> Any:
        """Return the value of an option; a UsageError if it has none."""
        if self[place] is None:
            raise UsageError(
                found=f"no {place}",
                expected="a value for it",
                fix=f"Pass {self.flag(place)}, or set {place} in a TOML file.",
            )
        return self[place]


def conflict(option: str, other: str) -> UsageError:
    """Return the error for two options that exclude each other."""
    return UsageError(found=f"both {option} and {other}", expected="one of them")


def unwanted(option: str, where: str, expected: str, otherwise: str = "") -> UsageError:
    """Return the error for an option, with or without its value, or for several flags, that would
    have no effect; ``otherwise`` is another way than to leave it out.
    """
    words = option.split()
    flags = words if all(word.startswith("--") for word in words) else words[:1]
    fix = f"Leave {' and '.join(flags)} out{otherwise}."
    return UsageError(found=f"{option} {where}", expected=expected, fix=fix)


def incomplete(option: str, other: str) -> UsageError:
    """Return the error for an option that needs another one."""
    return UsageError(found=f"{option} without {other}", expected="both, or neither")


def read(
    command: str,
    flags: Mapping[str, Any],
    file: Path | None,
    files: Sequence[Path] = (),
    as_json: bool = False,
) -> Settings:
    """Return the values of a command's, or an option group's, options from a file and flags.

    Paths in a file are relative to its folder.

    Raises:
        UsageError: for invalid TOML or a value of the wrong kind; it names the key.
        ArtifactError: if the file cannot be read.
    """
    from posterity.runtime.files import check_regular

    known = {option.place: option for option in options_of(command)}
    values: dict[str, Any] = {}
    if file is not None:
        with within(f"configuration '{file}'"):
            check_regular(file)
            for place, value in _flat(_document(file), known):
                kind = known[place].kind
                if kind is CODE and value not in flags.get(place, ()):
                    raise UsageError(
                        found=f"{place} = {value!r}, which would run code that a file names",
                        expected="code that is named on the command line",
                        fix=f"Read that code; if you trust it, pass {known[place].name} {value}",
                    )

                def beside(path):
                    return str(file.parent / path)

                values[place] = kind.moved(kind.check(place, value), beside)
    flags_of_all = {name for one in known.values() for name in (one.name, one.short) if name}
    for place, value in flags.items():
        option = known[place]
        if isinstance(value, bool):
            values[place] = value
            continue
        texts = [str(one) for one in (value if isinstance(value, list) else [value])]
        others = flags_of_all.intersection(texts)
        if others:
            every = FLAG in option.kind.alternatives
            raise UsageError(
                found=f"{option.name} {others.pop()}, an option instead of a value,",
                expected=f"{option.name} NAME,NAME, or {option.name} true for all"
                if every
                else f"{option.name} {option.kind.metavar}",
            )
        try:
            parsed = option.kind.parsed(texts)
        except ValueError as error:
            raise UsageError(
                found=" ".join(f"{option.name} {text}" for text in texts), expected=str(error)
            ) from error
        values[place] = option.kind.check(option.name, parsed)
    return Settings(values, known, file, tuple(files), as_json)


def _document(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file; a UsageError if it is none, too large or too deep."""
    try:
        return _parsed(file)
    except (ValueError, RecursionError) as error:
        raise UsageError(found=f"what cannot be read ({error})", expected="TOML") from error


def _parsed(file: Path) -> dict[str, Any]:
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{size:,} bytes, of at most {MOST_BYTES:,}")
    text = file.read_text(encoding="utf-8")
    if "." * MOST_DEPTH in _BESIDE_DOTS.sub("", text):
        raise ValueError(f"a key of more than {MOST_DEPTH} parts")
    document = tomllib.loads(text)
    level: list[Any] = [document]
    for _ in range(MOST_DEPTH):
        tables = [list(each.values()) if isinstance(each, dict) else each for each in level]
        level = [child for each in tables if isinstance(each, list) for child in each]
    if level:
        raise ValueError(f"tables or arrays within each other, more than {MOST_DEPTH}")
    return document


def unknown(found: str, known: Iterable[str]) -> UsageError:
    """Return the error for a key that is no option."""
    return UsageError(found=f"{found}, which is unknown", expected=f"one of {', '.join(known)}")


def _flat(
    table: Mapping[str, Any], known: Mapping[str, Option], start: str = ""
) -> Iterable[tuple[str, Any]]:
    """Yield values by place, where keys may be written as flags are, with dashes; a UsageError for
    a place that is no option.
    """
    for key, value in table.items():
        place = f"{start}{key.replace('-', '_')}"
        if place in known:
            yield place, value
        elif isinstance(value, dict) and any(p.startswith(f"{place}.") for p in known):
            yield from _flat(value, known, f"{place}.")
        else:
            keys = [p.removeprefix(start) for p in known if p.startswith(start)]
            raise unknown(place, sorted({key.partition(".")[0] for key in keys}))
