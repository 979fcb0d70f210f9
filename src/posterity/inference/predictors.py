"""Linear predictors in a user's own log likelihood, found in the program that JAX traces of it.

Most likelihoods see ``z`` through a few linear predictors a record: the log odds of a logistic
regression, a mean and a log scale, the logits of a few classes. Under a Gaussian these are Gaussian
too, so an expectation over hundreds of parameters is one over as many dimensions as there are
predictors, exact but for a sum that converges exponentially.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.linear_algebra import symmetric
from posterity.families import ExponentialFamily
from posterity.inference.estimators import Expectation
from posterity.inference.joint import joint_mean, pieces, whitened
from posterity.lazy import jax, jnp
from posterity.models import Model, Records
from posterity.models.cubature import hermite, normal_nodes, normal_pairs

MOST = 16
"""The most predictors of a record for which a sum over these replaces one over all parameters."""
AXES = {2: 20, 3: 10}
"""Gauss-Hermite nodes an axis of a grid, where it is still small; beyond, quasi-random pairs."""
ENTRIES = 2**21
"""Numbers held at a time, of some nodes and all records."""
FAR = 1e-9
"""Chance of a node, at six deviations, below which naive code may overflow."""
CALLS = ("pjit", "jit", "closed_call", "core_call")
"""Steps of a program that are programs themselves, and may as well be written out."""
SHAPES = (
    *("reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "slice", "rev"),
    *("split", "dynamic_slice", "gather", "copy", "copy_p", "convert_element_type"),
)
"""Steps of one affine argument, the first, that move numbers about."""
Step = tuple[Any, tuple[int, ...], tuple[int, ...]]
"""An equation of a program, and the numbers of its arguments and results."""


@dataclasses.dataclass(frozen=True)
class Predictors:
    """A record's log likelihood as a function of ``number`` affine functions of ``z``."""

    number: int
    steps: Sequence[Step]
    constants: dict[int, Any]
    """By number of an argument, as are ``inputs``: ``z`` as one vector, then the record."""
    inputs: Sequence[int]
    result: int
    cut: Sequence[tuple[int, tuple[int, ...]]]
    """Number and shape of the arguments that are affine in ``z``, and used by what is not."""
    affine: frozenset[int]

    def linear(self, z: Any, record: Sequence[Any]) -> Any:
        """The predictors (p,) of a record at ``z`` (d,)."""
        known = self._run({self.inputs[0]: z}, record, {own for own, _ in self.cut}, True)
        return jnp.concatenate([jnp.ravel(known[own]) for own, _ in self.cut])

    def log_likelihood(self, predictors: Any, record: Sequence[Any]) -> Any:
        """The record's log likelihood given its predictors (p,)."""
        given, start = {}, 0
        for own, shape in self.cut:
            size = math.prod(shape)
            given[own] = predictors[start : start + size].reshape(shape)
            start += size
        return self._run(given, record, {self.result}, False)[self.result]

    def _run(self, given: dict[int, Any], record: Any, wanted: set[int], affine: bool) -> Any:
        """Either the steps that are affine, or all others."""
        known = {**self.constants, **dict(zip(self.inputs[1:], record, strict=True)), **given}
        for equation, arguments, results in _needed(self.steps, wanted, set(known)):
            assert affine or not set(results) & self.affine, "the cut is between them"
            bound: Any = equation.primitive.get_bind_params(equation.params)
            functions, options = bound if isinstance(bound, tuple) else ((), bound)  # JAX < 0.9
            found = equation.primitive.bind(*functions, *(known[a] for a in arguments), **options)
            several = equation.primitive.multiple_results
            known.update(zip(results, found if several else [found], strict=True))
        return known


def predictors_of(model: Model, q: ExponentialFamily, records: Records) -> Predictors | None:
    """The few predictors through which a record sees ``z``; None if there are none, or too many."""
    if model.joint:
        return None
    leaves, tree = jax.tree.flatten(records.data)

    def alone(z: Any, *record: Any) -> Any:
        one = jax.tree.unflatten(tree, [leaf[None] for leaf in record])
        (value,) = model.log_likelihood(q.join_event(pieces(q, z)), one)
        return value

    like = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    z = jax.ShapeDtypeStruct((q.event_size,), q.natural_parameters.dtype)
    try:
        traced = jax.make_jaxpr(alone)(z, *like)
    except Exception:  # a user's function raises what it likes, and will do so again as a whole
        return None
    steps: list[Step] = []
    numbers = _Numbers()
    inputs = [numbers.new(variable.aval.shape) for variable in traced.jaxpr.invars]
    (result,) = _written_out(traced, inputs, numbers, steps)
    cut, affine = _cut(steps, inputs[0], result, numbers.shapes)
    number = sum(math.prod(shape) for _, shape in cut)
    if not 0 < number <= min(MOST, q.event_size - 1):
        return None
    return Predictors(number, steps, numbers.constants, inputs, result, cut, frozenset(affine))


class Seen(NamedTuple):
    """What sums over nodes say of all records, whose predictors are ``rows`` (n, p, d) times ``z``.

    ``slopes`` (n, p) and ``curvatures`` (n, p, p) are the expected derivative of the log likelihood
    in its predictors, and minus the second, both times the record's weight.
    """

    value: Any
    rows: Any
    slopes: Any
    curvatures: Any

    def expectation(self, q: ExponentialFamily) -> Expectation:
        """The sum over records, and its natural gradient."""
        slope = jnp.einsum("np,npd->d", self.slopes, self.rows)
        parts: Any = q.parts()
        factors = []
        for part, own, along in zip(parts, pieces(q, self.rows), pieces(q, slope), strict=True):
            flat, bent = own.reshape(-1, part.own_size), self._bent(own)
            precision = (flat * bent).sum(0) if part.diagonal else symmetric(flat.T @ bent)
            factors.append(part.at_mean(along, precision))
        return Expectation(self.value, q.rebuild(factors))

    def curvature(self) -> Any:
        """Minus the second derivative of the sum in the means (d, d)."""
        return self.rows.reshape(-1, self.rows.shape[-1]).T @ self._bent(self.rows)

    def _bent(self, rows: Any) -> Any:
        return jnp.einsum("npq,nqd->npd", self.curvatures, rows).reshape(-1, rows.shape[-1])


def seen(
    predictors: Predictors, q: ExponentialFamily, records: Records, nodes: Any, chances: Any
) -> Seen:
    """Sums over standard normal ``nodes`` (m, p), made predictors of each record.

    Exact derivatives of that sum, in means and covariances of the predictors.
    """
    data = [jnp.asarray(leaf) for leaf in jax.tree.leaves(records.data)]
    mean, number = jnp.asarray(joint_mean(q)), predictors.number
    each = lambda function: jax.vmap(lambda *record: function(mean, record))
    middle, rows = each(predictors.linear)(*data), each(jax.jacrev(predictors.linear))(*data)
    half = whitened(q, rows)
    root, inverse = _roots(jnp.einsum("npd,nqd->npq", half, half))
    of_record = jax.value_and_grad(lambda own, *record: predictors.log_likelihood(own, record))
    of_all = jax.vmap(of_record)

    def add(sums: Any, some: Any) -> tuple[Any, None]:
        own, mass = some
        at = middle + jnp.einsum("npq,mq->mnp", root, own)
        values, slopes = jax.vmap(lambda each: of_all(each, *data))(at)
        # What cannot be computed so far out that nothing is likely to be there is left out.
        known = jnp.isfinite(values) & jnp.isfinite(slopes).all(-1) | (mass[:, None] > FAR)
        known &= (mass[:, None] > 0) & (records.weights != 0)
        values = jnp.where(known, values, 0.0)
        slopes = jnp.where(known[..., None], slopes, 0.0)
        value, slope, bend, least, most, steep = sums
        return (
            value + mass @ values,
            slope + jnp.einsum("m,mnp->np", mass, slopes),
            bend + jnp.einsum("m,mnp,mq->npq", mass, slopes, own),
            jnp.minimum(least, jnp.where(known, values, jnp.inf).min()),
            jnp.maximum(most, jnp.where(known, values, -jnp.inf).max()),
            jnp.maximum(steep, jnp.abs(slopes).max()),
        ), None

    size = len(middle)
    some = max(1, min(len(nodes), ENTRIES // max(size * number, 1)))
    lacking = -len(nodes) % some
    nodes = jnp.pad(nodes, ((0, lacking), (0, 0))).reshape(-1, some, number)
    chances = jnp.pad(chances, (0, lacking)).reshape(-1, some)
    none = jnp.zeros((), mean.dtype)
    shapes = (size,), (size, number), (size, number, number)
    zeros = tuple(jnp.zeros(shape, mean.dtype) for shape in shapes)
    start = (*zeros, none + jnp.inf, none - jnp.inf, none)
    (value, slope, bend, least, most, steep), _ = jax.lax.scan(add, start, (nodes, chances))
    # Jumps have no slope: nodes on their sides differ, and nothing would follow from it.
    value = jnp.where((most > least) & (steep == 0), jnp.nan, value)
    inner = jnp.einsum("npq,npr->nqr", root, bend)
    inner = jnp.tril(inner) + jnp.swapaxes(jnp.tril(inner, -1), -1, -2)
    curvature = -jnp.einsum("nqp,nqr,nrs->nps", inverse, inner, inverse)
    weights = records.weights
    return Seen(weights @ value, rows, weights[:, None] * slope, weights[:, None, None] * curvature)


def _roots(covariances: Any) -> tuple[Any, Any]:
    """Lower triangular roots of covariances (n, p, p) and their inverses, written out.

    Zero where a predictor does not vary beside those before it: so is its derivative then.
    """
    size = covariances.shape[-1]
    none = jnp.zeros_like(covariances[:, 0, 0])
    root = [[none] * size for _ in range(size)]
    inverse = [[none] * size for _ in range(size)]
    for j in range(size):
        for i in range(j, size):
            rest = covariances[:, i, j] - sum((root[i][k] * root[j][k] for k in range(j)), none)
            if i == j:
                varies = rest > 1e-12 * covariances[:, j, j]
                root[j][j] = jnp.sqrt(jnp.where(varies, rest, 0.0))
                inverse[j][j] = jnp.where(varies, 1 / jnp.where(varies, root[j][j], 1.0), 0.0)
            else:
                root[i][j] = rest * inverse[j][j]
    for i in range(size):
        for j in range(i):
            along = sum((root[i][k] * inverse[k][j] for k in range(j, i)), none)
            inverse[i][j] = -along * inverse[i][i]
    stacked = lambda rows: jnp.stack([jnp.stack(row, -1) for row in rows], -2)
    return stacked(root), stacked(inverse)


def nodes_for(number: int, budget: int, otherwise: Any, dtype: Any) -> tuple[Any, Any]:
    """Standard normal nodes (m, number) and chances; ``otherwise`` by others, which differ more."""
    if number == 1:
        nodes, chances = normal_nodes(max(budget // 2, 8), dtype)
        half = jnp.where(jnp.arange(len(chances)) % 2 == 0, chances, 0.0)
        return nodes[:, None], jnp.where(otherwise, half / half.sum(), chances)
    if number in AXES:
        count = round(AXES[number] * (budget / 128) ** (1 / number))
        both = [_grid(number, count, count - fewer) for fewer in (0, 2)]
        (nodes, chances), (others, their_chances) = both
        return jnp.where(otherwise, others, nodes), jnp.where(otherwise, their_chances, chances)
    both = [normal_pairs(number, 2 * budget, seed) for seed in (0, 1)]
    return jnp.where(otherwise, both[1], both[0]), jnp.full(4 * budget, 1 / (4 * budget), dtype)


def _grid(number: int, size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Hermite nodes, ``count`` an axis; with as many of no chance as ``size`` an axis has."""
    points, weights = (np.pad(part, (0, size - count)) for part in hermite(count))
    index = np.array(list(itertools.product(range(size), repeat=number)))
    return points[index], weights[index].prod(-1)


class _Numbers:
    """Shapes of arguments and results by number, the values of constants, and what was found."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.constants: dict[int, Any] = {}
        self.found: dict[Any, list[int]] = {}

    def new(self, shape: tuple[int, ...]) -> int:
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def constant(self, value: Any) -> int:
        own = self.new(jnp.shape(value))
        self.constants[own] = value
        return own


def _written_out(
    traced: Any, inputs: Sequence[int], numbers: _Numbers, steps: list[Step]
) -> list[int]:
    """The numbers of a program's results, once its steps are among the ``steps``."""
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
            results = _written_out(equation.params["jaxpr"], arguments, numbers, steps)
        elif same in numbers.found:  # a predictor that is written twice is one
            results = numbers.found[same]
        else:
            results = [numbers.new(variable.aval.shape) for variable in equation.outvars]
            steps.append((equation, arguments, tuple(results)))
            numbers.found[same] = results
        own.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _cut(
    steps: Sequence[Step], z: int, result: int, shapes: Sequence[tuple[int, ...]]
) -> tuple[list[tuple[int, tuple[int, ...]]], set[int]]:
    """Where affine functions of ``z`` are used by what is not affine; and all that are affine.

    What is made of one predictor alone, as its multiple is, is no predictor of its own.
    """
    affine, predictors, curved, used = {z}, set(), set(), set()
    for equation, arguments, results in _needed(steps, {result}, set()):
        own = [a for a in arguments if a in affine]
        if not own and not any(a in curved for a in arguments):
            continue
        if own and not any(a in curved for a in arguments) and _is_affine(
            equation, arguments, affine, predictors
        ):  # fmt: skip
            affine.update(results)
            contracts = equation.primitive.name in ("dot_general", "reduce_sum")
            if contracts or any(a in predictors for a in own):
                predictors.update(results)
            continue
        curved.update(results)
        used.update(own)
    if result in affine:
        used.add(result)
    return [(own, shapes[own]) for own in sorted(used)], affine


def _is_affine(equation: Any, arguments: Sequence[int], affine: set, predictors: set) -> bool:
    """Whether a step keeps what is affine so, and is better taken before the predictors are."""
    name, own = equation.primitive.name, [a in affine for a in arguments]
    if name in ("add", "sub", "add_any"):
        several = len({a for a in arguments if a in affine}) > 1
        return several or not any(a in predictors for a in arguments)
    if name in ("dot_general", "reduce_sum"):
        return sum(own) == 1
    if any(a in predictors for a in arguments):
        return False
    if name == "mul":
        return sum(own) == 1
    if name in ("div", *SHAPES):
        floats = all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in equation.outvars)
        return own[0] and not any(own[1:]) and floats
    return name in ("neg", "concatenate")


def _needed(steps: Sequence[Step], wanted: set[int], known: set[int]) -> list[Step]:
    """Those that results that are wanted, and not known, are made by."""
    chosen, open_ = [], wanted - known
    for step in reversed(steps):
        if open_ & set(step[2]):
            chosen.append(step)
            open_ = (open_ - set(step[2])) | (set(step[1]) - known)
    return chosen[::-1]
