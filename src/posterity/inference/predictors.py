"""Linear predictors of a user-defined likelihood, detected in its JAX program.

Most likelihoods depend on ``z`` through a few affine functions per record: the log odds of a
logistic regression, a mean and a log scale, the logits of a few classes.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from posterity.families import ExponentialFamily
from posterity.inference.joint import event_of
from posterity.models import Model, Records
from posterity.models.nodes import AXES
from posterity.runtime.lazy import jax, jnp

MOST = 16
"""Largest number of predictors per record for sums over predictors instead of all parameters."""
CALLS = ("pjit", "jit", "closed_call", "core_call")
"""Primitives that call a program, which is inlined."""
CONTRACTIONS = ("dot_general", "reduce_sum")
SHAPES = (
    *("reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "slice", "rev"),
    *("split", "dynamic_slice", "gather", "copy", "copy_p", "convert_element_type"),
)
"""Primitives that rearrange or convert the entries of their first argument."""
Step = tuple[Any, tuple[int, ...], tuple[int, ...]]
"""An equation of a JAX program, with the indices of its arguments and results."""


@dataclasses.dataclass(frozen=True)
class Predictors:
    """A record's log likelihood as a function of ``number`` affine functions of ``z``."""

    number: int
    steps: Sequence[Step]
    constants: dict[int, Any]
    """Values of constants by index."""
    inputs: Sequence[int]
    """Indices of the inputs: ``z`` as one vector, then the arrays of the record."""
    result: int
    cut: Sequence[tuple[int, tuple[int, ...]]]
    """Index and shape of the values that are affine in ``z`` and used by non-affine steps, without
    those that follow from others."""

    def linear(self, z: Any, record: Sequence[Any]) -> Any:
        """Return the predictors (p,) of a record at ``z`` (d,)."""
        known = self._run({self.inputs[0]: z}, record, {own for own, _ in self.cut})
        return jnp.concatenate([jnp.ravel(known[own]) for own, _ in self.cut])

    def log_likelihood(self, predictors: Any, record: Sequence[Any]) -> Any:
        """Return the record's log likelihood from its predictors (p,)."""
        given = {}
        start = 0
        for own, shape in self.cut:
            size = math.prod(shape)
            given[own] = predictors[start : start + size].reshape(shape)
            start += size
        return self._run(given, record, {self.result})[self.result]

    def _run(self, given: dict[int, Any], record: Any, wanted: set[int]) -> Any:
        """Run the steps from what is given to what is wanted, and return values by index."""
        known = {**self.constants, **dict(zip(self.inputs[1:], record, strict=True)), **given}
        for equation, arguments, results in _needed(self.steps, wanted, set(known)):
            known.update(
                zip(results, results_of(equation, [known[a] for a in arguments]), strict=True)
            )
        return known


def results_of(equation: Any, arguments: Sequence[Any]) -> list[Any]:
    """Return the results of an equation of a JAX program at these values of its arguments."""
    bound: Any = equation.primitive.get_bind_params(equation.params)
    functions, options = bound if isinstance(bound, tuple) else ((), bound)  # JAX < 0.9
    found = equation.primitive.bind(*functions, *arguments, **options)
    return found if equation.primitive.multiple_results else [found]


def predictors_of(model: Model, q: ExponentialFamily, records: Records) -> Predictors | None:
    """Return the predictors of a record's log likelihood; None if there are none or too many."""
    if model.joint:
        return None
    leaves, tree = jax.tree.flatten(records.data)

    def alone(z: Any, *record: Any) -> Any:
        one = jax.tree.unflatten(tree, [leaf[None] for leaf in record])
        (value,) = model.log_likelihood(event_of(q, z), one)
        return value

    like = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    z = jax.ShapeDtypeStruct((q.event_size,), q.natural_parameters.dtype)
    try:
        traced = jax.make_jaxpr(alone)(z, *like)
    except Exception:  # a user's function may raise any error, and will raise it again later
        return None
    steps: list[Step] = []
    numbers = Numbers()
    inputs = [numbers.new(variable.aval.shape) for variable in traced.jaxpr.invars]
    (result,) = written_out(traced, inputs, numbers, steps)
    cut = _cut(steps, inputs[0], result, numbers.shapes)
    number = sum(math.prod(shape) for _, shape in cut)
    fewer = number < q.event_size or number in AXES  # a grid is better than scattered nodes
    if not (0 < number <= MOST and fewer):
        return None
    return Predictors(number, steps, numbers.constants, inputs, result, cut)


class Numbers:
    """Shapes of values by index, the values of constants, and the results of known steps."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.constants: dict[int, Any] = {}
        self.found: dict[Any, list[int]] = {}

    def new(self, shape: tuple[int, ...]) -> int:
        """Return the number of a new array of this shape."""
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def constant(self, value: Any) -> int:
        """Return the number of a new array that is this value in every call."""
        own = self.new(jnp.shape(value))
        self.constants[own] = value
        return own


def written_out(
    traced: Any, inputs: Sequence[int], numbers: Numbers, steps: list[Step]
) -> list[int]:
    """Append a program's steps to ``steps`` and return the indices of its results."""
    from jax.extend.core import Literal

    jaxpr = traced.jaxpr
    own: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))
    for variable, value in zip(jaxpr.constvars, traced.consts, strict=True):
        own[variable] = numbers.constant(value)

    def read(atom: Any) -> int:
        return numbers.constant(atom.val) if isinstance(atom, Literal) else own[atom]

    for equation in jaxpr.eqns:
        arguments = tuple(read(atom) for atom in equation.invars)
        same = equation.primitive.name, arguments, str(equation.params)
        if equation.primitive.name in CALLS:
            results = written_out(equation.params["jaxpr"], arguments, numbers, steps)
        elif same in numbers.found:  # equal expressions are one predictor
            results = numbers.found[same]
        else:
            results = [numbers.new(variable.aval.shape) for variable in equation.outvars]
            steps.append((equation, arguments, tuple(results)))
            numbers.found[same] = results
        own.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _cut(
    steps: Sequence[Step], z: int, result: int, shapes: Sequence[tuple[int, ...]]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the affine functions of ``z`` used by non-affine steps.

    A function of others, such as a multiple or a difference, is not a separate predictor.
    """
    affine = {z}
    predictors = set[int]()
    curved = set[int]()
    used = set[int]()
    alike: dict[int, int] = {}
    for equation, arguments, results in _needed(steps, {result}, set()):
        own = affine & {*arguments}
        bent = bool(curved & {*arguments})
        if own and not bent and _is_affine(equation, arguments, affine, predictors):
            affine.update(results)
            if equation.primitive.name in CONTRACTIONS or own & predictors:
                predictors.update(results)
            source = min(own)
            if len(own) == 1 and math.prod(shapes[source]) <= math.prod(shapes[results[0]]):
                alike[results[0]] = alike.get(source, source)
        elif own or bent:
            curved.update(results)
            used.update(own)
    used |= affine & {result}
    used = {alike.get(own, own) for own in used}
    for own in sorted(used - {z}, reverse=True):
        others = used - {own}
        alone = _needed(steps, {own}, others)
        if z in others or not any(z in arguments for _, arguments, _ in alone):
            used = others
    return [(own, shapes[own]) for own in sorted(used)]


def _is_affine(equation: Any, arguments: Sequence[int], affine: set, predictors: set) -> bool:
    """Return whether a step's result is affine, and is best computed as part of predictors."""
    name = equation.primitive.name
    own = [a in affine for a in arguments]
    known = bool(predictors & {*arguments})
    if name in ("add", "sub", "add_any"):
        return len(affine & {*arguments}) > 1 or not known
    if known and name not in CONTRACTIONS:
        return False
    if name in (*CONTRACTIONS, "mul"):
        return sum(own) == 1
    if name in ("div", *SHAPES):
        floats = all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in equation.outvars)
        return own[0] and not any(own[1:]) and floats
    return name in ("neg", "concatenate")


def _needed(steps: Sequence[Step], wanted: set[int], known: set[int]) -> list[Step]:
    """Return the steps that are needed for the ``wanted`` results that are not ``known``."""
    chosen = []
    open_ = wanted - known
    for step in reversed(steps):
        if open_ & set(step[2]):
            chosen.append(step)
            open_ = (open_ - set(step[2])) | (set(step[1]) - known)
    return chosen[::-1]
