"""What holds of the source as a whole: sizes of files and functions, and reasons of numbers."""

import ast

import pytest

from tests.constants import PAGE, SOURCE, numbers, page

LONG_FILES: set[str] = {
    "distillation/distill.py",
    "distillation/sampling/langevin.py",
    "engine/agreement.py",
    "engine/machine.py",
    "engine/running.py",
    "inference/descent.py",
    "inference/estimators.py",
    "inference/update.py",
}
"""Files of more than 400 lines; none may be added."""
LONG_FUNCTIONS: set[str] = set()
"""Functions of more than 60 statements; none may be added."""
WITHOUT_REASONS = {"distillation", "federation", "fusion", "inference", "pursuit"}
"""Packages in which a number may still lack a reason."""


def statements(function: ast.AST) -> int:
    """Count the statements of a function, without strings and those of functions within."""
    total = 0
    for node in ast.iter_child_nodes(function):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        total += isinstance(node, ast.stmt) and not text
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            total += statements(node)
    return total


def long_functions(text: str) -> set[str]:
    """Return the names of the functions of a module that have more than 60 statements."""
    nodes = ast.walk(ast.parse(text))
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {own.name for own in functions if statements(own) > 60}


def test_no_file_is_longer_than_400_lines():
    texts = {str(p.relative_to(SOURCE)): p.read_text() for p in SOURCE.rglob("*.py")}
    found = {name for name, text in texts.items() if len(text.splitlines()) > 400}
    assert found == LONG_FILES, "split new ones; take the names of mended ones from the list"


def test_no_function_has_more_than_60_statements():
    texts = {str(p.relative_to(SOURCE)): p.read_text() for p in SOURCE.rglob("*.py")}
    found = {f"{file}:{name}" for file, text in texts.items() for name in long_functions(text)}
    assert found == LONG_FUNCTIONS, "split new ones; take the names of mended ones from the list"


def test_statements_are_counted_without_those_of_functions_within():
    inner = "\n".join(["    def inner():", *["        x = 1"] * 80])
    assert long_functions(f"def outer():\n{inner}") == {"inner"}
    branches = "\n".join(["    if x:", *["        x = 1"] * 60])
    assert long_functions(f"def outer(x):\n{branches}") == {"outer"}


def test_the_page_of_numbers_is_up_to_date():
    assert PAGE.read_text() == page(), "python -m tests.constants > docs/numbers.md"


@pytest.mark.parametrize("own", numbers(), ids=lambda own: f"{own.module}.{own.name}")
def test_a_number_has_a_reason(own):
    if own.room not in WITHOUT_REASONS:
        assert own.reason
