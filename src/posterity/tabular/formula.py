"""Formulas in the syntax of R and statsmodels, converted to terms that are data.

``formulaic`` parses them (``~``, ``+``, ``-``, ``*``, ``:``, ``^``, parentheses). Functions of a
column are those of :data:`FUNCTIONS`. No code runs: calls are parsed to a tree of names and
numbers, and anything else is refused. Terms that depend on a site's data, such as spline knots at
quantiles, are refused too, because sites would fit different models.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.adapters.shared import library
from posterity.errors import UsageError
from posterity.runtime.text import typed
from posterity.tabular.options import COUNTS, DEGREES, FUNCTIONS, POWERS, Term
from posterity.tabular.recipe import Recipe

CUBIC = 3
"""Degree of splines by default, as in R."""
SYNTAX = (
    "TARGET ~ TERM + TERM, on one line, of names: for all other columns leave --formula out "
    "(--target NAME); of random effects --cluster NAME within a site, --personal between sites"
)
"""What a formula that cannot be parsed should be."""
QUOTED = re.compile("`([^`]+)`")
"""Pattern of a column name with blanks or brackets, in the syntax of formulas."""


def with_formula(recipe: Recipe, formula: str) -> Recipe:
    """Return a recipe with the target, columns, terms and intercept of a formula.

    >>> with_formula(Recipe("linear"), "bp ~ age + log(dose)").terms
    ((('column', 'age'),), (('log', 'dose'),))
    """
    formulaic = library("formulaic.errors", extra="formulas")
    refused = formulaic.errors.FormulaicError
    try:
        parsed = formulaic.Formula(formula)
        left, right = ([_texts(term) for term in side] for side in (parsed.lhs, parsed.rhs))
    except (AttributeError, refused, SyntaxError, TypeError, ValueError) as error:
        why = "not two sides" if isinstance(error, AttributeError) else str(error)
        raise _refused(formula, f"({why.partition(chr(10))[0][:100]})", SYNTAX) from error
    trees = [_tree(formula, text) for texts in left for text in texts]
    if len(trees) != 1 or not isinstance(trees[0], ast.Name):
        wrong = " + ".join(":".join(texts) for texts in left)
        raise _refused(formula, f"of target {wrong!r}", "the name of one column")
    target = _name(trees[0])
    terms: list[Term] = []
    extra: dict[str, Any] = {}
    intercept = False
    for texts in right:
        if texts in (["1"], ["0"]):
            intercept = texts == ["1"]
        elif len(texts) == 1 and texts[0].startswith("offset("):
            own = _offset(formula, texts[0], recipe)
            twice = [key for key in own if key in extra or getattr(recipe, key)]
            if twice:
                raise _refused(formula, f"with a second {twice[0]}", "one column, their sum")
            extra |= own
        else:
            factors = [_factor(formula, text, recipe) for text in texts]
            terms.append(tuple(sorted(factors, key=lambda own: own[1])))  # b:a equals a:b
    columns = tuple(dict.fromkeys(factor[1] for term in terms for factor in term))
    changes = {"target": target, "columns": columns, "terms": tuple(terms), "intercept": intercept}
    return recipe.replaced(**changes, **extra)


def _refused(formula: str, found: str, expected: str) -> UsageError:
    return UsageError(
        found=f"formula {formula!r} {found}",
        expected=expected,
        fix=f"Functions of a column are {', '.join((*FUNCTIONS, 'C', 'I(x**2)', 'bs'))}; see the "
        "page on fit.",
    )


def _texts(term: Any) -> list[str]:
    """Return the factors of a term as text, with names between backticks."""
    named = [(factor.expr, factor.eval_method.value == "lookup") for factor in term.factors]
    return [f"`{text}`" if name else text for text, name in named]


def _tree(formula: str, text: str) -> Any:
    """Return a factor as the tree of its names, numbers and calls.

    A name between backticks is parsed as a string that begins with one, then converted to a name.
    """
    try:
        tree = ast.parse(QUOTED.sub(lambda found: repr(found[0]), text), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise _refused(formula, f"with {text!r}", "a column, or a function of one") from None
    return _Named().visit(tree)


class _Named(ast.NodeTransformer):
    """Transformer of texts between backticks to names."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        quoted = isinstance(node.value, str) and QUOTED.fullmatch(node.value)
        return ast.Name(quoted[1]) if quoted else node


def _name(node: Any) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _factor(formula: str, text: str, recipe: Recipe) -> tuple[Any, ...]:
    node = _tree(formula, text)
    name = _name(node)
    if name:
        return ("levels" if name in recipe.categories else "column", name)
    function, inner, numbers, options = _call(formula, text, node)
    column = _name(inner)
    function = "C" if function == "factor" else function
    if function in (*FUNCTIONS, "C", "I") and (numbers or options):
        levels = "; levels, the reference first, are those of --category" * (function == "C")
        raise _refused(formula, f"with {text!r}", f"{function} of a column alone{levels}")
    if function == "I" and isinstance(inner, ast.BinOp):
        column = _name(inner.left)
        power = _number(inner.right)
        if column and isinstance(inner.op, ast.Pow | ast.BitXor) and power in POWERS:
            _check_numbers(formula, text, column, recipe)
            return ("power", column, power)
    if not column or function not in (*FUNCTIONS, "C", "bs"):
        more = (
            ", which takes a site's own mean: say --center and --scale"
            if function in ("scale", "center", "standardize")
            else ""
        )
        raise _refused(formula, f"with {text!r}{more}", "a function of one column that is known")
    if function == "C":
        if column not in recipe.categories:
            raise UsageError(
                found=f"C({column}) in the formula, without its levels",
                expected=f"{typed('--category', f'{column}=A,B,...')}, at every site alike, "
                "the reference first",
            )
        return ("levels", column)
    _check_numbers(formula, text, column, recipe)
    if function == "bs":
        return ("spline", column, *_spline(formula, text, numbers, options))
    return (function, column)


def _check_numbers(formula: str, text: str, column: str, recipe: Recipe) -> None:
    if column in recipe.categories:
        raise _refused(formula, f"with {text!r} of a category", "a function of numbers")


def _call(formula: str, text: str, node: Any) -> tuple[str, Any, list[Any], dict[str, Any]]:
    """Return the function of a call, its first argument, other arguments, and keyword arguments."""
    if not isinstance(node, ast.Call) or not node.args:
        raise _refused(formula, f"with {text!r}", "a column, or a function of one")
    own = node.func
    numpy = isinstance(own, ast.Attribute) and _name(own.value) in ("np", "numpy")
    function = own.attr if numpy and isinstance(own, ast.Attribute) else _name(own)
    options = {str(word.arg): _number(word.value) for word in node.keywords}
    return function, node.args[0], [_number(one) for one in node.args[1:]], options


def _number(node: Any) -> Any:
    """Return a number or a tuple of numbers, else None."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    several = isinstance(value, list | tuple)
    numbers = value if several else [value]
    if not all(type(one) in (int, float) for one in numbers):
        return None
    return tuple(map(float, numbers)) if several else float(value)


def _offset(formula: str, text: str, recipe: Recipe) -> dict[str, str]:
    """Return an offset as the recipe's; the logarithm of a column is the exposure of counts."""
    _, inner, *more = _call(formula, text, _tree(formula, text))
    column = _name(inner)
    if column and not any(more):
        return {"offset": column}
    if isinstance(inner, ast.Call) and inner.args and recipe.model in COUNTS:
        function = _call(formula, text, inner)[0]
        if function == "log" and (column := _name(inner.args[0])):
            return {"exposure": column}
    raise _refused(formula, f"with {text!r}", "offset(COLUMN), or offset(log(COLUMN)) of counts")


def _spline(
    formula: str, text: str, numbers: list[Any], options: Mapping[str, Any]
) -> tuple[float, ...]:
    """Return the degree, lower and upper bound, and inner knots of a spline, none from data."""
    named: dict[str, Any] = {**({"df": numbers[0]} if numbers else {}), **options}
    unknown = named.keys() - {"df", "knots", "degree", "lower_bound", "upper_bound"}
    if unknown or None in named.values():
        raise _refused(formula, f"with {text!r}", "bs(x, knots=, degree=, lower_bound=, ...)")
    degree = int(named.get("degree", CUBIC))
    lower: Any = named.get("lower_bound")
    upper: Any = named.get("upper_bound")
    knots = named.get("knots")
    if isinstance(knots, float):
        knots = (knots,)
    if lower is None or upper is None or (knots is None and "df" not in named):
        raise UsageError(
            found=f"{text} in the formula, whose knots would depend on a site's own data",
            expected="bounds and knots that are the same at every site",
            fix="For example write bs(age, knots=[50, 65], lower_bound=18, upper_bound=100), or "
            "df=5 in place of knots, which are then equally spaced.",
        )
    inner = 0
    if knots is None:
        inner = int(named["df"]) - degree
        knots = tuple(np.linspace(lower, upper, max(inner, 0) + 2)[1:-1].tolist())
    between = lower < upper and all(lower < k < upper for k in knots)
    if not (degree in DEGREES and inner >= 0 and between):
        expected = "knots between its bounds, a degree from 1 to 5, and df of the degree or more"
        raise _refused(formula, f"with {text!r}", expected)
    return (float(degree), lower, upper, *sorted(knots))
