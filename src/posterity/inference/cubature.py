"""Cubature: expectations of user-defined likelihoods under Gaussians by sums over fixed nodes.

With fixed nodes the free energy is a deterministic function that can be minimised (giordano2024).

If a likelihood depends on ``z`` through a few linear predictors per record
(:class:`~posterity.models.FunctionModel` with ``predictors``), these are Gaussian under a Gaussian.
An expectation over hundreds of parameters then becomes one over the predictors, exact up to the
error of a sum that converges exponentially. Where a model says no predictors, its few parameters
take their place; sums over many parameters are over scattered nodes.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from posterity.arrays.linear_algebra import symmetric
from posterity.errors import StructureError
from posterity.families import ExponentialFamily
from posterity.inference.descent import dtype_of
from posterity.inference.estimators import (
    BLOCK,
    Curved,
    Expectation,
    Flag,
    Nodal,
    of_half,
    over_records,
)
from posterity.inference.joint import (
    event_of,
    is_gaussian,
    joint_mean,
    pieces,
    slope_in_mean,
    unwhitened,
    whitened,
)
from posterity.models import FunctionModel, Model, Records
from posterity.models.nodes import AXES, hermite_grid, normal_nodes, normal_pairs
from posterity.runtime.lazy import jax, jnp

MOST = 16
"""Largest number of predictors per record, or of parameters where none are said, for sums over them
with grids, tails and, up to three, a comparison of values with slopes."""
ENTRIES = 2**13
"""Largest array size: nodes of a block times records times predictors."""
NONE = 1e-20
"""Probability up to which a node of a grid is left out; together these have 1e-17 at most. So
expectations of ``exp(s u)``, with ``u`` in deviations of a predictor, are too small from ``s = 7``
(2 %) and half at ``s = 9``."""
SHELLS = {1: (10.0, 12.0), 2: (10.0, 12.0), 3: (8.0, 10.0, 12.0)}
"""Radii, in deviations, of nodes of tiny probability beyond those of a grid, by its dimension:
:attr:`~posterity.inference.estimators.Expectation.tail` is what they would add. It matters for
``exp(9 u)``, or for a log likelihood without an expectation."""
BEYOND_SCATTERED = 6.0, 8.0, 10.0, 12.0
"""The same beyond scattered nodes."""
ANGLE = math.atan((math.sqrt(5) - 1) / 2)
"""Angle by which grids are turned in each plane, so that no row of nodes is along an axis, a
diagonal or a small slope: its tangent is the inverse of the golden ratio."""
JUMPS = 0.1
"""Difference in nats between gradients from values and from slopes above which a likelihood counts
as having jumps; where it has none, kinks included, the difference is smaller."""


class Seen(NamedTuple):
    """The sums over nodes for each record, whose predictors are ``rows`` (n, p, d) times ``z``.

    ``slopes`` (n, p) and ``curvatures`` (n, p, p) are the expected first derivative of the log
    likelihood in its predictors and minus the second one, both times the record's weight.
    """

    value: Any
    rows: Any
    slopes: Any
    curvatures: Any
    tail: Any
    sloped: Any
    """Nonzero if any derivative at a node differs from zero."""
    varied: Any
    """Nonzero if values at nodes differ."""

    def curved(self, q: ExponentialFamily) -> Curved:
        """Return the sum over records with its derivatives."""
        slope = jnp.einsum("np,npd->d", self.slopes, self.rows)
        parts: Any = q.parts()
        factors = []
        for part, own, along in zip(parts, pieces(q, self.rows), pieces(q, slope), strict=True):
            flat = own.reshape(-1, part.own_size)
            bent = self._bent(own)
            precision = (flat * bent).sum(0) if part.diagonal else symmetric(flat.T @ bent)
            factors.append(part.at_mean(along, precision))
        curvature = self.rows.reshape(-1, self.rows.shape[-1]).T @ self._bent(self.rows)
        return Curved(Expectation(self.value, q.rebuild(factors), self.tail), slope, curvature)

    def _bent(self, rows: Any) -> Any:
        return jnp.einsum("npq,nqd->npd", self.curvatures, rows).reshape(-1, rows.shape[-1])


class Along(NamedTuple):
    """A sum of functions of linear predictors: ``function`` returns values (n,) at predictors
    (n, p), which are ``middle`` at the mean of a Gaussian and have the derivatives ``rows``.
    """

    function: Callable[[Any], Any]
    middle: Any
    rows: Any
    weights: Any


def along(model: Model, q: ExponentialFamily, records: Records) -> Along:
    """Return the log likelihoods of records as functions of the predictors that a model says; if
    it says none, their sum as a function of all parameters.
    """
    mean = jnp.asarray(joint_mean(q))
    if not predictors_said(model, q, records):
        each = jnp.eye(len(mean), dtype=mean.dtype)[None]
        one = jnp.ones(1, mean.dtype)
        return Along(lambda f: model.total(event_of(q, f[0]), records)[None], mean[None], each, one)
    data = jax.tree.map(jnp.asarray, records.data)
    said: Any = model

    def rows(record: Any) -> Any:
        alone = jax.tree.map(lambda leaf: leaf[None], record)
        return jax.jacrev(lambda z: said.predictors(event_of(q, z), alone)[0])(mean)

    middle = said.predictors(event_of(q, mean), data)
    return Along(
        lambda f: said.function(f, data), middle, jax.vmap(rows)(data), jnp.asarray(records.weights)
    )


def predictors_said(model: Model, q: ExponentialFamily, records: Records) -> int:
    """Return the number of predictors that a model says a record has; 0 if it says none, or so many
    that sums over all parameters are better.
    """
    if not isinstance(model, FunctionModel) or model.predictors is None:
        return 0
    event = event_of(q, jnp.asarray(joint_mean(q)))
    shape = jnp.shape(jax.eval_shape(model.predictors, event, records.data))
    if len(shape) != 2 or shape[0] != records.size:
        raise StructureError(
            found=f"predictors of shape {shape} for {records.size} records",
            expected="p numbers a record: shape (n, p)",
        )
    number = shape[1]
    fewer = number < q.event_size or number in AXES  # a grid is better than scattered nodes
    return number if number <= MOST and fewer else 0


def seen(
    sums: Along,
    q: ExponentialFamily,
    nodes: Any,
    chances: Any,
    by_values: bool,
    *,
    negligible: float = 1e-6,
) -> tuple[Seen, Seen | None]:
    """Return sums over standard normal ``nodes`` (m, p), transformed to predictors of each record.

    The first result has the exact derivatives of that sum in means and covariances of predictors,
    and what further nodes in the tails (:func:`shells`) would add to the sum of absolute values.
    The second, only if ``by_values``, has derivatives from values by Stein's lemma, which include
    the effect of jumps. Up to the probability ``negligible`` of a node, at five deviations, a log
    likelihood may be non-finite there.
    """
    size, number = sums.middle.shape
    half = whitened(q, sums.rows)
    root, inverse = _roots(jnp.einsum("npd,nqd->npq", half, half))

    def values_at(own: Any) -> Any:
        values, slopes = jax.vjp(sums.function, sums.middle + jnp.einsum("npq,q->np", root, own))
        return values, jnp.einsum("np,npq->nq", slopes(jnp.ones_like(values))[0], root)

    def add(total: Any, some: Any) -> tuple[Any, None]:
        own, mass, far = some
        values, slopes = jax.vmap(values_at)(own)
        finite = jnp.isfinite(values)
        # Values that are not finite at nodes of negligible probability are left out.
        known = finite & jnp.isfinite(slopes).all(-1) | (mass[:, None] > negligible)
        known &= (mass[:, None] > 0) & (sums.weights != 0)
        tails = far @ jnp.abs(jnp.where(finite, values, 0.0))
        values = jnp.where(known, values, 0.0)
        squares = mass[:, None] * values**2
        values = mass[:, None] * values
        slopes = mass[:, None, None] * jnp.where(known[..., None], slopes, 0.0)
        new = [values.sum(0), squares.sum(0), tails]
        new += [slopes.sum(0), jnp.einsum("mnp,mq->npq", slopes, own)]
        if by_values:
            swell = own[:, :, None] * own[:, None, :] - jnp.eye(number)
            new += [values.T @ own, jnp.einsum("mn,mpq->npq", values, swell)]
        return jax.tree.map(jnp.add, total, new), None

    outer, theirs = shells(number)
    turns = min(len(nodes), -(-len(nodes) * size * number // ENTRIES))
    lacking = -(len(nodes) + len(outer)) % turns
    each = (
        jnp.concatenate([nodes, outer, np.zeros((lacking, number))]),
        jnp.pad(chances, (0, len(outer) + lacking)),
        jnp.pad(theirs, (len(nodes), lacking)),
    )
    zero = jnp.zeros((size, number, number), sums.middle.dtype)
    both = [zero[:, 0], zero]
    start = [zero[:, 0, 0]] * 3 + both * (2 if by_values else 1)
    parts = [own.astype(zero.dtype).reshape(turns, -1, *own.shape[1:]) for own in each]
    found, _ = jax.lax.scan(add, start, tuple(parts))
    value, squares, tails, slope, bend, *of_values = found
    sloped = 1.0 - ((slope == 0).all() & (bend == 0).all())
    varied = 1.0 * (squares - value**2 > 1e-12 * (1 + squares)).any()
    weights = sums.weights

    def known(slope: Any, inner: Any) -> Seen:
        slope = weights[:, None] * jnp.einsum("nqp,nq->np", inverse, slope)
        inner = jnp.tril(inner) + jnp.swapaxes(jnp.tril(inner, -1), -1, -2)
        curved = -jnp.einsum("nqp,nqr,nrs->nps", inverse, inner, inverse)
        curved = weights[:, None, None] * curved
        return Seen(weights @ value, sums.rows, slope, curved, weights @ tails, sloped, varied)

    return known(slope, bend), known(*of_values) if by_values else None


def _roots(covariances: Any) -> tuple[Any, Any]:
    """Return lower triangular roots of covariances (n, p, p) and their inverses, by loops.

    Entries of linearly dependent predictors are zero, and so are the derivatives there.
    """
    size = covariances.shape[-1]
    rest = covariances
    columns = []
    inverse = jnp.zeros_like(covariances)
    for j in range(size):
        pivot = rest[:, j, j, None]
        varies = pivot > 1e-12 * covariances[:, j, j, None]
        scale = jnp.where(varies, 1 / jnp.sqrt(jnp.where(varies, pivot, 1.0)), 0.0)
        columns.append(jnp.where(np.arange(size) >= j, rest[:, j] * scale, 0.0))
        rest = rest - columns[j][:, :, None] * columns[j][:, None, :]
        before = jnp.stack(columns, -1)[:, j, :, None] * inverse[:, : j + 1]
        inverse = inverse.at[:, j].set((np.eye(size)[j] - before.sum(1)) * scale)
    return jnp.stack(columns, -1), inverse


def nodes_for(number: int, budget: int, otherwise: Any, dtype: Any) -> tuple[Any, Any]:
    """Return standard normal nodes (m, number) and probabilities; ``otherwise``, other nodes. There
    are more than ``budget`` scattered nodes.
    """
    if number == 1:
        nodes, chances = normal_nodes(max(budget // 2, 8), dtype)
        return nodes[:, None], of_half(jnp.asarray(chances), otherwise)
    if number in AXES:
        count = round(AXES[number] * (budget / 128) ** (1 / number))
        (nodes, chances), (others, their_chances) = grids(number, count)
        return jnp.where(otherwise, others, nodes), jnp.where(otherwise, their_chances, chances)
    nodes = scattered(number, 2 * budget, otherwise)
    return nodes, jnp.full(len(nodes), 1 / len(nodes), dtype)


def scattered(number: int, pairs: int, otherwise: Any) -> Any:
    """Return antithetic pairs of standard normal nodes (2 pairs, number), all equally probable."""
    nodes, others = (normal_pairs(number, pairs, seed) for seed in (0, 1))
    return jnp.where(otherwise, others, nodes)


@functools.cache
def shells(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (m, number) beyond those of sums, along the axes and for grids the diagonals,
    and their probabilities by the trapezoidal rule.
    """
    radii = SHELLS.get(number, BEYOND_SCATTERED)
    if number in SHELLS:
        along = np.array([v for v in itertools.product((-1, 0, 1), repeat=number) if any(v)])
    else:
        along = np.concatenate([np.eye(number), -np.eye(number)])
    along = along / np.linalg.norm(along, axis=1, keepdims=True)
    nodes = np.concatenate([radius * along for radius in radii])
    density = np.exp(-np.square(radii) / 2) / math.sqrt(2 * math.pi)
    return nodes, np.repeat((radii[1] - radii[0]) * density, len(along))


@functools.cache
def grids(number: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return Gauss-Hermite grids of ``count`` nodes per axis and of two fewer, equally long.

    They are turned by opposite angles. A kink across an axis, as of an absolute error, meets whole
    rows of an upright grid at once; errors of slopes are four to eight times larger there.
    """
    grids = []
    for angle, axis in ((ANGLE, count), (-ANGLE, count - 2)):
        nodes, chances = hermite_grid(number, axis)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        nodes = nodes[chances > NONE]
        chances = chances[chances > NONE]
        for plane in itertools.combinations(range(number), 2):
            nodes[:, plane] = nodes[:, plane] @ turn
        grids.append((nodes, chances))
    size = max(len(chances) for _, chances in grids)

    def lacking(nodes):
        return (0, size - len(nodes))

    return [(np.pad(n, (lacking(n), (0, 0))), np.pad(p, lacking(n))) for n, p in grids]


class Cubature(Nodal):
    """Gaussians, and Products of them: the mean over fixed nodes, from gradients only.

    Nodes are an antithetic quasi-random normal sample of unit covariance, so the sum is exact for
    polynomials of degree three. No Hessian is formed, so kinks are allowed; on grids, with two or
    three predictors, they take thousands of nodes. Slopes do not contain jumps: with grids (few
    predictors per record) these are detected from values; with scattered nodes the expectation of a
    piecewise constant log likelihood is NaN. There are at least four nodes per coordinate; with
    fewer, a full covariance would overfit the nodes.

    Source: giordano2024.
    """

    fitting: ClassVar[str] = "differentiable log likelihoods under Gaussians, or Products of them"

    def _serves(self, q: ExponentialFamily) -> bool:
        return is_gaussian(q)

    def evaluate(
        self, model: Model, q: ExponentialFamily, records: Records, *, otherwise: Flag = False
    ) -> Expectation:
        return self.curved(model, q, records, otherwise=otherwise).expected

    def curved(
        self, model: Model, q: ExponentialFamily, records: Records, *, otherwise: Flag = False
    ) -> Curved:
        """Return the expectation with the curvature by Stein's lemma, ``S⁻ᵀ E[∇_ε f εᵀ] S⁻¹``, at
        the nodes of the slope, also for functions with kinks.

        It is exact for polynomials of degree three, as the slope is.
        """
        # A compiled program leaves out the curvature where nobody asks for it.
        number = predictors_said(model, q, records)
        if not number and q.event_size <= MOST and not model.joint:
            number = q.event_size
        if not number:
            expected, noise, slopes = self._seen(model, q, records, otherwise)
            moments = slopes.T @ noise / len(noise)
            half = unwhitened(q, symmetric(moments))
            return Curved(expected, slope_in_mean(q, expected.gradient), -unwhitened(q, half.T))
        jax.eval_shape(model.total, event_of(q, joint_mean(q)), records)  # checks what it returns
        compares = otherwise is not False and number in (1, *AXES)
        nodes = nodes_for(number, self.nodes, otherwise, dtype_of(q))

        def of_block(block: Records) -> Any:
            by_slopes, by_values = seen(along(model, q, block), q, *nodes, compares)
            one = other = by_slopes.curved(q)
            if by_values is not None:
                other = jax.lax.cond(otherwise, lambda: by_values.curved(q), lambda: one)
            return one, other, by_slopes.sloped, by_slopes.varied

        # Each block adds a matrix of all parameters.
        found, other, *known = over_records(of_block, records, max(BLOCK, q.event_size))
        if compares:  # the two are the same unless ``otherwise``
            apart = other.expected.gradient - found.expected.gradient
            jumps = q.squared_length(apart) / 4 > JUMPS
            found = jax.tree.map(lambda yes, no: jnp.where(jumps, yes, no), other, found)
        value = _unless_flat(found.expected.value, *known)
        return found._replace(expected=found.expected._replace(value=value))

    def _seen(
        self, model: Model, q: ExponentialFamily, records: Records, otherwise: Flag
    ) -> tuple[Expectation, Any, Any]:
        """Return the expectation by sums over all parameters, nodes ``ε`` and ``∇_ε f`` (m, d)."""
        parts: Any = q.parts()
        size = q.event_size
        nodes = scattered(size, self.nodes // 2 * -(-size // 32), otherwise)
        noise = pieces(q, nodes)

        def value(noise: list[Any], records: Records) -> Any:
            events = [part.at_noise(own) for part, own in zip(parts, noise, strict=True)]
            return model.total(q.join_event(events), records)

        def at_nodes(records: Records) -> Any:
            every = jax.value_and_grad(lambda own: value(own, records))
            # Each value of a joint model is itself an optimum, found by an iterative search.
            return jax.lax.map(every, noise) if model.joint else jax.vmap(every)(noise)

        values, slopes = at_nodes(records) if model.joint else over_records(at_nodes, records)
        every = zip(parts, noise, slopes, strict=True)
        factors = [part.from_slopes(own, slope) for part, own, slope in every]
        sloped = 1.0 - jnp.stack([(slope == 0).all() for slope in slopes]).all()
        expected = _unless_flat(values.mean(), sloped, 1.0 * (values.std() > 0))
        return Expectation(expected, q.rebuild(factors)), nodes, jnp.concatenate(slopes, 1)


def _unless_flat(value: Any, sloped: Any, varied: Any) -> Any:
    """Return NaN if values at nodes differ although all derivatives are zero: a piecewise constant
    log likelihood, whose jumps would have no effect.
    """
    return jnp.where((sloped == 0) & (varied > 0), jnp.nan, value)
