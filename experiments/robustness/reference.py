"""The Gaussian of least free energy by an optimiser of its own: nothing of posterity's inference.

``m`` and a triangular root of the covariance are moved by SciPy's BFGS, with expectations by
Gauss-Hermite nodes, those of absolute errors in closed form; for logistic regression in coordinates
in which the posterior is round, with the logistic function as a mixture of probits, which is exact
however wide a predictor spreads.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from scipy.special import expit, ndtr

from experiments.robustness.problems import Problem, laplace
from posterity.families import DiagonalGaussian
from posterity.models import LogisticRegression

Array = np.ndarray
Gap = Callable[[Any], float]  # how many nats a posterior's free energy is above the least

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
PLACES = np.linspace(-38, 38, 161)
DENSITY = expit(PLACES) * expit(-PLACES) * (PLACES[1] - PLACES[0])
"""The logistic distribution as a sum: its function is that of a mixture of steps."""


def gap_of(problem: Problem) -> Gap:
    if isinstance(problem.model, LogisticRegression):
        return _logistic(problem)
    return _users(problem)


def _logistic(problem: Problem) -> Gap:
    (x, y), prior = problem.pooled, problem.prior
    diagonal = problem.kind.endswith("diagonal")
    precision = np.diag(prior.precision) if diagonal else prior.precision
    sign = np.where(y > 0, 1.0, -1.0)
    centre, root = _mode(x, sign, precision, diagonal)
    law = root.T @ precision @ root, -np.linalg.solve(root, centre)
    free = functools.partial(_free_energy, x @ root, x @ centre, sign, *law, diagonal)
    least, _ = _minimised(free, _start(x.shape[1], diagonal))

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
    x: Array,
    offset: Array,
    sign: Array,
    precision: Array,
    prior_mean: Array,
    diagonal: bool,
    packed: Array,
) -> tuple[float, Array]:
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
    below = ndtr(away / deviation[:, None])
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


def _users(problem: Problem) -> Gap:
    """BFGS from most probable parameters, and from the posterior that is judged.

    Each search has coordinates in which its start is round, so raw columns do no harm.
    """
    (x, y), prior, size = problem.pooled, problem.prior, problem.prior.own_size
    diagonal = isinstance(prior, DiagonalGaussian)
    total = 16  # few lengths, so that little is compiled
    while total < len(y):
        total *= 4
    weights = (np.arange(total) < len(y)).astype(float)
    x, y = (np.concatenate([a, np.repeat(a[:1], total - len(a), axis=0)]) for a in (x, y))
    precision = np.diag(prior.precision) if diagonal else np.asarray(prior.precision)
    law = x, y, weights, np.asarray(prior.mean), precision
    posterior, free, fine = _programs(problem.model, size, diagonal)

    def energy(packed: Array, place: Any, program: Any = free) -> tuple[float, Array]:
        with jax.enable_x64(True):
            value, slope = map(np.asarray, program(jnp.asarray(packed), place, law))
        finite = np.isfinite(value) and (program is fine or np.isfinite(slope).all())
        return (float(value), slope) if finite else (1e30, np.zeros_like(packed))

    def searched(centre: Array, root: Array, scale: Array) -> tuple[float, float]:
        """The least from here, by as many nodes as a search can afford and by more."""
        place = centre, root, scale
        ends = _minimised(lambda packed: energy(packed, place), _start(size, diagonal))
        return ends[0], energy(ends[1], place, fine)[0]

    deviation = np.sqrt(np.diag(np.linalg.inv(precision)))
    rng = np.random.default_rng(0)
    places = [law[3], *(law[3] + rng.normal(size=(4, size)) * deviation * [[1], [1], [0.1], [0.1]])]
    found = {}
    for place in places:
        mode, bend = _climbed(posterior, place, law)
        key = tuple(np.round(mode, 6))
        if bend is not None and key not in found:
            root = np.linalg.cholesky(np.linalg.inv((bend + bend.T) / 2))
            found[key] = searched(mode, root, 1 / np.sqrt(np.diag(bend)))

    def gap(q: Any) -> float:
        covariance = np.diag(1 / q.precision) if diagonal else np.asarray(q.covariance)
        root = np.linalg.cholesky((covariance + covariance.T) / 2)
        place = np.asarray(q.mean), root, np.sqrt(np.diag(covariance))
        ends = [*found.values(), searched(*place)]
        return energy(_start(size, diagonal), place, fine)[0] - min(end[1] for end in ends)

    return gap


def _climbed(posterior: Any, z: Array, law: Any) -> tuple[Array, Array | None]:
    """The most probable parameter from ``z``, and the curvature there; None where it is no peak."""

    def at(z: Array) -> Any:
        with jax.enable_x64(True):
            return [np.asarray(part) for part in posterior(jnp.asarray(z), *law)]

    value, slope, bend = at(z)
    damping = 1e-3
    for _ in range(300):
        if not all(np.isfinite(part).all() for part in (value, slope, bend)):
            return z, None
        scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(bend)), 1e-300))
        values, vectors = np.linalg.eigh(scale[:, None] * bend * scale)
        step = -scale * (vectors @ ((vectors.T @ (scale * slope)) / (np.abs(values) + damping)))
        if -slope @ step < 1e-14 * (1 + abs(value)):
            break
        there = at(z + step)
        if np.isfinite(there[0]) and there[0] <= value:
            z, (value, slope, bend), damping = z + step, there, damping / 5
        elif (damping := damping * 5) > 1e12:
            break
    return z, bend if np.linalg.eigvalsh(scale[:, None] * bend * scale)[0] > 1e-9 else None


@functools.cache
def _programs(function: Any, size: int, diagonal: bool) -> tuple[Any, Any, Any]:
    """Minus the log posterior and its derivatives; the free energy by few and by many nodes."""

    def minus_log(z: Any, x: Any, y: Any, weights: Any, mean: Any, precision: Any) -> Any:
        away = z - mean
        return away @ precision @ away / 2 - (weights * function(z, (x, y))).sum()

    def free(nodes: int) -> Any:
        line, chances = np.polynomial.hermite_e.hermegauss(nodes)
        noise = np.array(list(itertools.product(line, repeat=size)))
        chance = np.prod(list(itertools.product(chances / chances.sum(), repeat=size)), axis=1)

        def energy(packed: Any, place: Any, law: Any) -> Any:
            (centre, root, scale), (x, y, weights, prior_mean, precision) = place, law
            mean = centre + root @ packed[:size]
            if diagonal:
                own, logs = jnp.diag(scale * jnp.exp(packed[size:])), packed[size:]
            else:
                lower = jnp.zeros((size, size)).at[np.tril_indices(size)].set(packed[size:])
                logs, each = jnp.diag(lower), np.arange(size)
                own = root @ lower.at[each, each].set(jnp.exp(logs))
            if function is laplace:  # sums over nodes have kinks
                expected = -weights @ _absolute(y - x @ mean, jnp.linalg.norm(x @ own, axis=1))
            else:
                of_all = lambda z: (weights * function(z, (x, y))).sum()
                values = jax.lax.map(of_all, mean + noise @ own.T, batch_size=256)
                # Naive code rounds to log 0 far out, as at nine deviations.
                known = jnp.isfinite(values) | (chance > 1e-12)
                expected = chance @ jnp.where(known, values, 0.0)
            away = mean - prior_mean
            spread = (away @ precision @ away + jnp.trace(own.T @ precision @ own)) / 2
            volume = jnp.log(jnp.abs(jnp.diag(jnp.diag(scale) if diagonal else root))).sum()
            return spread - expected - logs.sum() - volume

        return jax.jit(jax.value_and_grad(energy))

    value = jax.value_and_grad(minus_log)
    bend = jax.hessian(minus_log)
    posterior = jax.jit(lambda z, *law: (*value(z, *law), bend(z, *law)))
    few, many = {1: (40, 80), 2: (15, 31), 3: (7, 15), 4: (5, 9)}[size]
    return posterior, free(few), free(many)


def _absolute(mean: Any, deviation: Any) -> Any:
    """The mean absolute value of a normal."""
    away = mean / deviation
    bell = jnp.exp(-(away**2) / 2) * np.sqrt(2 / np.pi)
    return mean * jax.scipy.special.erf(away / np.sqrt(2)) + deviation * bell


def _start(size: int, diagonal: bool) -> Array:
    """Packed: mean zero, and the identity as a root of the covariance."""
    return np.zeros(2 * size if diagonal else size + size * (size + 1) // 2)


def _minimised(free: Any, start: Array) -> tuple[float, Array]:
    least, options = np.inf, {"gtol": 1e-8, "maxiter": 3000}
    for _ in range(3):  # a fresh estimate of the curvature where the last search ended
        found = scipy.optimize.minimize(free, start, jac=True, method="BFGS", options=options)
        gained, start = least - float(found.fun), found.x
        least = min(least, float(found.fun))
        if gained < 1e-9:
            break
    return least, start


def _packed(root: Array) -> Array:
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
