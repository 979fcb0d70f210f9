"""The Gaussian of least free energy by an optimiser of its own: nothing of posterity's inference.

``m`` and a triangular root of the covariance are moved by SciPy's BFGS, with expectations by
Gauss-Hermite nodes; for logistic regression in coordinates in which the posterior is round, with
the logistic function as a mixture of probits, which is exact however wide a predictor spreads.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from experiments.robustness.problems import NAIVE, Problem

Array = NDArray[np.float64]
Gap = Callable[[Any], float]
"""How many nats a posterior's free energy is above the least."""

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
PLACES = np.linspace(-38, 38, 161)
DENSITY = expit(PLACES) * expit(-PLACES) * (PLACES[1] - PLACES[0])
"""The logistic distribution as a sum: its function is that of a mixture of steps."""


def gap_of(problem: Problem) -> Gap:
    """What measures posteriors of this problem."""
    if problem.kind in NAIVE:
        return _naive(problem)
    return _logistic(problem)


# --- logistic regression ----------------------------------------------------------------------


def _logistic(problem: Problem) -> Gap:
    (x, y), prior = problem.pooled, problem.prior
    diagonal = problem.kind.endswith("diagonal")
    precision = np.diag(prior.precision) if diagonal else prior.precision
    sign = np.where(y > 0, 1.0, -1.0)
    centre, root = _mode(x, sign, precision, diagonal)
    free = functools.partial(
        _free_energy, x @ root, x @ centre, sign, root.T @ precision @ root,
        -np.linalg.solve(root, centre), diagonal,
    )  # fmt: skip
    size = x.shape[1]
    start = np.zeros(2 * size if diagonal else size + size * (size + 1) // 2)
    least = _minimised(free, start)

    def gap(q: Any) -> float:
        mean = np.linalg.solve(root, q.mean - centre)
        if diagonal:
            packed = np.log(q.precision**-0.5 / np.diag(root))
        else:
            inverse = root.T @ q.precision @ root
            packed = _packed(np.linalg.cholesky(np.linalg.inv((inverse + inverse.T) / 2)))
        return free(np.concatenate([mean, packed]))[0] - least

    return gap


def _mode(x: Array, sign: Array, precision: Array, diagonal: bool) -> tuple[Array, Array]:
    """The most probable parameter, and a root of the inverse curvature there."""
    centre = np.zeros(x.shape[1])
    height = lambda m: np.logaddexp(0, -sign * (x @ m)).sum() + m @ precision @ m / 2
    for _ in range(500):
        wrong = expit(-sign * (x @ centre))
        slope = x.T @ (sign * wrong) - precision @ centre
        curvature = (x.T * (wrong * (1 - wrong))) @ x + precision
        scale = 1 / np.sqrt(np.diag(curvature))
        scaled = scale[:, None] * curvature * scale
        step, length = scale * np.linalg.solve(scaled, scale * slope), 1.0
        if slope @ step < 1e-16:
            break
        while height(centre + length * step) > height(centre) and length > 1e-12:
            length /= 2
        centre = centre + length * step
    if diagonal:
        return centre, np.diag(scale)
    return centre, scale[:, None] * np.linalg.inv(np.linalg.cholesky(scaled)).T


def _free_energy(
    x: Array, offset: Array, sign: Array, precision: Array, prior_mean: Array, diagonal: bool,
    packed: Array,
) -> tuple[float, Array]:  # fmt: skip
    """Of the parameter ``centre + root u``, with ``u`` Gaussian; and its gradient."""
    size = x.shape[1]
    mean = packed[:size]
    root = np.diag(np.exp(packed[size:])) if diagonal else _unpacked(packed[size:], size)
    along, away = x @ root, mean - prior_mean
    value, slope, bend = _expected(offset + x @ mean, np.sqrt((along**2).sum(1)), sign)
    energy = -value.sum() + (away @ precision @ away + np.trace(root.T @ precision @ root)) / 2
    moved = -(x.T * bend) @ along + precision @ root
    by_root = np.diag(moved) * np.diag(root) - 1 if diagonal else _slopes(moved, root)
    gradient = np.concatenate([-x.T @ slope + precision @ away, by_root])
    return energy - np.log(np.diag(root)).sum(), gradient


def _expected(mean: Array, deviation: Array, sign: Array) -> tuple[Array, Array, Array]:
    """``E[log σ(± f)]`` and its derivatives: in the mean, and twice that in the variance."""
    wrong, deviation = -sign * mean, np.maximum(deviation, 1e-9)
    away = wrong[:, None] - PLACES
    below, density = ndtr(away / deviation[:, None]), None
    density = np.exp(-((away / deviation[:, None]) ** 2) / 2) / np.sqrt(2 * np.pi)
    wide = (
        (away * below + deviation[:, None] * density) @ DENSITY,
        below @ DENSITY,
        density / deviation[:, None] @ DENSITY,
    )
    there = wrong[:, None] + deviation[:, None] * NODES
    near = np.logaddexp(0, there), expit(there), expit(there) * expit(-there)
    narrow = (part @ WEIGHTS for part in near)
    value, slope, bend = (np.where(deviation < 1, n, w) for n, w in zip(narrow, wide, strict=True))
    return -value, sign * slope, -bend


# --- what users write -------------------------------------------------------------------------


def _naive(problem: Problem) -> Gap:
    (x, y), size = problem.pooled, problem.prior.own_size
    total = 1 << (len(y) - 1).bit_length()  # few lengths, so that little is compiled
    weights = (np.arange(total) < len(y)).astype(float)
    x, y = (np.concatenate([a, np.repeat(a[:1], total - len(a), axis=0)]) for a in (x, y))
    compiled = _compiled(problem.kind, size)
    variance = 1 / problem.prior.precision[0, 0]

    def free(packed: Array) -> tuple[float, Array]:
        with jax.enable_x64(True):
            value, slope = compiled(jnp.asarray(packed), x, y, weights, variance)
        finite = np.isfinite(value) and np.isfinite(slope).all()
        return (float(value), np.asarray(slope)) if finite else (1e30, np.zeros_like(packed))

    starts = ([np.zeros(size), _packed(np.eye(size) * np.exp(s))] for s in (-4.0, -2.0, -1.0))
    least = min(_minimised(free, np.concatenate(start)) for start in starts)
    return lambda q: (
        free(np.concatenate([q.mean, _packed(np.linalg.cholesky(q.covariance))]))[0] - least
    )


@functools.cache
def _compiled(kind: str, size: int) -> Any:
    function, nodes = NAIVE[kind][0], {2: 15, 3: 9, 4: 7}[size]
    line, chances = np.polynomial.hermite_e.hermegauss(nodes)
    noise = np.array(list(itertools.product(line, repeat=size)))
    chance = np.prod(list(itertools.product(chances / chances.sum(), repeat=size)), axis=1)

    def free(packed: Any, x: Any, y: Any, weights: Any, variance: Any) -> Any:
        lower = jnp.zeros((size, size)).at[np.tril_indices(size)].set(packed[size:])
        each = np.arange(size)
        root = lower.at[each, each].set(jnp.exp(jnp.diag(lower)))
        z = packed[:size] + noise @ root.T
        values = jax.vmap(lambda z: (weights * function(z, (x, y))).sum())(z)
        spread = ((packed[:size] ** 2).sum() + (root**2).sum()) / variance / 2
        return spread - chance @ values - jnp.log(jnp.diag(root)).sum()

    return jax.jit(jax.value_and_grad(free))


# --- both -------------------------------------------------------------------------------------


def _minimised(free: Any, start: Array) -> float:
    least, options = np.inf, {"gtol": 1e-8, "maxiter": 3000}
    for _ in range(3):  # a fresh estimate of the curvature where the last search ended
        found = scipy.optimize.minimize(free, start, jac=True, method="BFGS", options=options)
        least, start = min(least, float(found.fun)), found.x
    return least


def _packed(root: Array) -> Array:
    """The lower triangle, logarithms on its diagonal."""
    root = root.copy()
    np.fill_diagonal(root, np.log(np.diag(root)))
    return root[np.tril_indices(len(root))]


def _unpacked(packed: Array, size: int) -> Array:
    root = np.zeros((size, size))
    root[np.tril_indices(size)] = packed
    np.fill_diagonal(root, np.exp(np.diag(root)))
    return root


def _slopes(moved: Array, root: Array) -> Array:
    moved = np.tril(moved)
    np.fill_diagonal(moved, np.diag(moved) * np.diag(root) - 1)
    return moved[np.tril_indices(len(root))]
