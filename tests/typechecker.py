"""The library with its annotations checked while the tests run: beartype and jaxtyping.

Every function and dataclass of a package is decorated as its modules are imported. jaxtyping has a
hook of its own, whose wrapper binds a signature and checks arguments twice, a call: in tests that
call much that is small, most of their time. Here what a call needs is made at its first one, and
names of arrays' axes are kept only where there are arrays.
"""

import ast
import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, Self, get_args, get_type_hints

from beartype import BeartypeConf, beartype
from jaxtyping import jaxtyped

NAME = "_checked_by_the_tests"
UNCHECKED = ("posterity.tabular.estimators",)
"""Modules whose callers may pass anything: scikit-learn's estimators refuse it in ``fit``."""
CHECKS = BeartypeConf(violation_type=TypeError)


def install(package: str) -> None:
    """Check the modules of a package that are imported from now on.

    Raises:
        RuntimeError: if some of it has been imported, and would go unchecked.
    """
    if package in sys.modules:
        raise RuntimeError(f"{package} was imported before its annotations could be checked.")
    sys.meta_path.insert(0, _Finder(package))


def check(function: Any) -> Any:
    """A function that checks its arguments and its result; of a dataclass, what makes it."""
    if isinstance(function, type):
        if is_dataclass(function) and not hasattr(function.__init__, NAME):
            function.__init__ = check(function.__init__)
        return function
    if not function.__annotations__:
        return function
    made: list[Any] = []

    def checked(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if not made:
            made.append(_made(function))
        has_arrays, call = made[0]
        if not has_arrays:
            return call(*args, **kwargs)
        with jaxtyped("context"):
            return call(*args, **kwargs)

    # As if of beartype: where the library tells functions apart it looks through its wrappers.
    own = globals() | {"__name__": "beartype"}
    checked = types.FunctionType(checked.__code__, own, None, None, checked.__closure__)
    setattr(checked, NAME, True)
    return functools.update_wrapper(checked, function)


def _made(function: Any) -> tuple[bool, Callable[..., Any]]:
    """Whether there are arrays, whose axes have names in one call, and the checking function."""
    hints = {name: _known(function, name) for name in function.__annotations__}
    function.__annotations__ = hints
    arrays = any(_is_array(part) for hint in hints.values() for part in _parts(hint))
    return arrays, beartype(function, conf=CHECKS)


def _known(function: Any, name: str) -> Any:
    """An annotation without names in quotes; anything where one is known to type checkers only.

    Neither has beartype a meaning for ``Self`` outside a class that it decorates.
    """
    hint = function.__annotations__[name]
    alone = lambda: None
    alone.__annotations__ = {name: hint}
    try:
        hint = get_type_hints(alone, function.__globals__, include_extras=True)[name]
    except NameError:
        return Any
    return Any if any(part is Self for part in _parts(hint)) else hint


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in hint if isinstance(hint, list) else get_args(hint):
        yield from _parts(part)


def _is_array(hint: Any) -> bool:
    return getattr(hint, "__module__", "").partition(".")[0] == "jaxtyping"


class _Decorate(ast.NodeTransformer):
    """``check`` nearest to functions, for what others make of them keeps no annotations; and
    farthest from classes, which are to be dataclasses already.
    """

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        found = ast.ImportFrom(__name__, [ast.alias("check", NAME)], 0)
        start = 0
        while start < len(node.body) and _comes_first(node.body[start]):
            start += 1
        node.body.insert(start, found)
        return ast.fix_missing_locations(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.decorator_list.append(ast.copy_location(ast.Name(NAME, ast.Load()), node))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        node.decorator_list.insert(0, ast.copy_location(ast.Name(NAME, ast.Load()), node))
        return node


def _comes_first(node: ast.stmt) -> bool:
    """A module's docstring, or an import from the future."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        # read anew: compiled files that are kept belong to the library without checks
        path = self.get_filename(fullname)
        tree = _Decorate().visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != self.package or name.startswith(UNCHECKED):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
