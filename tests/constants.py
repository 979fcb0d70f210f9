"""The page of all numbers with a name in the source: ``python -m tests.constants`` prints it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "posterity"
PAGE = ROOT / "docs" / "numbers.md"
HEAD = """# Numbers

Every number that has a name in the source, by module, with its value and its reason. A number that
a user may want to change is an argument of a function, with its reason in the docstring, and not
here. `python -m tests.constants > docs/numbers.md` writes this page.
"""


class Number(NamedTuple):
    """A named number: its module, name, value as written, and the first sentence of its reason."""

    module: str
    name: str
    value: str
    reason: str

    @property
    def room(self) -> str:
        """The package of the module; empty for a module of the root."""
        return self.module.rpartition(".")[0].partition(".")[0]


def is_number(node: ast.expr) -> bool:
    """Return whether an expression is a number, or made of numbers alone."""
    match node:
        case ast.Constant(value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=one):
            return is_number(one)
        case ast.BinOp(left, _, right):
            return is_number(left) and is_number(right)
        case ast.Tuple(elts) | ast.List(elts) | ast.Call(args=elts):
            return bool(elts) and all(map(is_number, elts))
        case _:
            return False


def named(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the upper-case names of an assignment, each with its number."""
    if isinstance(target, ast.Tuple):
        each = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
        values = value.elts if isinstance(value, ast.Tuple) and each else [value] * 99
        for name, own in zip(target.elts, values, strict=False):
            yield from named(name, own)
    elif isinstance(target, ast.Name) and target.id.lstrip("_").isupper() and is_number(value):
        yield target.id, value


def reason(after: ast.stmt | None, node: ast.stmt, lines: list[str]) -> str:
    """Return the first sentence of the string below a number, or of its comment."""
    match after:
        case ast.Expr(ast.Constant(str(text))):
            pass
        case _:
            text = lines[(node.end_lineno or node.lineno) - 1].partition("#")[2]
    text = " ".join(text.split())
    first = re.split(r"(?<=[.;])\s+(?=[A-Z])", text)[0].rstrip(".")
    return re.sub(r":\w+:`~?([^`]*)`", r"`\1`", first.replace("``", "`")).replace("|", "\\|")


def numbers_in(body: list[ast.stmt], lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, value and reason of each named number of a module or class."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef):
            for name, value, why in numbers_in(node.body, lines):
                yield f"{node.name}.{name}", value, why
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            for name, value in named(target, node.value):  # pyright: ignore
                yield name, ast.unparse(value), reason(after, node, lines)


def numbers() -> list[Number]:
    """Return all named numbers of the source, sorted by module."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        made = numbers_in(ast.parse(text).body, text.splitlines())
        found += [Number(module, *own) for own in made]
    return found


def page() -> str:
    """Return the page: one table of all numbers."""
    rows = [f"| `{own.module}.{own.name}` | `{own.value}` | {own.reason} |" for own in numbers()]
    return "\n".join([HEAD, "| name | value | reason |", "| --- | --- | --- |", *rows]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
