"""Objectives and their maximisation: a component's entropy and tempered ratio, and the ELBO.

Objectives are means over draws that are smooth functions of fixed noise, so that they can be
maximised to full precision (giordano2024). The target is evaluated by compiled programs of one
batch of events each; what is left of a gradient has a closed form. Results may not be finite, which
callers check: a pursuit makes NumPy silent about them, once.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.special
from jaxtyping import Bool, Float, PyTree

from posterity.arrays import keys
from posterity.arrays.search import lbfgs
from posterity.arrays.tree import taken
from posterity.arrays.typing import KeyArray, Real
from posterity.families.gaussian_forms import GaussianForm
from posterity.inference.modes import in_batches
from posterity.pursuit.target import Target
from posterity.runtime.programs import jitted

BATCH = 128
"""Number of events per call of a program, so that each is compiled for one size."""
NEAR = np.outer([1, -1], 2.0 ** np.array([-50, -48, -46])).reshape(-1, 1, 1)
"""Relative distances of events whose log densities hardly differ."""

Look = Callable[[np.ndarray], tuple[Any, np.ndarray]]
"""An evaluation of an objective: its value and gradient at a point (..., d)."""


class Components(NamedTuple):
    """The mixture ``q_t`` as ``K`` stacked slots. Log weights are normalised, and minus infinity
    for empty slots.
    """

    parameters: Any
    log_weights: Float[Any, " k"]


class Ratio(NamedTuple):
    """The ratio ``log L/q_t`` with a floor, ``log L - logaddexp(log q_t, floor)`` in nats. Without
    it the ratio grows without bound far from the mixture, and components collapse to a point or
    diverge. For an empty mixture ``q`` is None and the ratio is ``log L``.
    """

    q: Components | None
    floor: float


@jitted
def values(target: Target, z: PyTree) -> Float[jax.Array, " n"]:
    """Return ``log L`` at events (n, ...)."""
    return jax.vmap(target.log_density)(z)


def resolved(
    target: Target, z: Float[np.ndarray, "n d"], *, rough: float = 0.1
) -> Bool[np.ndarray, " n"]:
    """Return whether ``log L`` at events is free of rounding errors above ``rough`` nats, as it
    hardly differs where events differ in their last digits. Those of ``gammaln`` at 1e14 are not.
    """
    near = batched(values, (target,), (z * (1 + NEAR)).reshape(-1, z.shape[1]))
    return np.ptp(near.reshape(len(NEAR), -1), axis=0) <= rough


@jitted
def values_and_slopes(target: Target, z: Real) -> tuple[Float[jax.Array, " n"], Any]:
    """Return ``log L`` and its gradients at events (n, d)."""
    return jax.vmap(jax.value_and_grad(target.log_density))(z)


def densities(
    form: GaussianForm, parameters: PyTree, z: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, "n k"]:
    """Return ``log h_k`` of all components at events."""
    slots = range(len(parameters[0]))
    return np.stack([form.log_prob(taken(parameters, slot), z) for slot in slots], 1)


def batched(program: Callable[..., Any], arguments: tuple[Any, ...], rows: PyTree) -> Any:
    """Return ``program(*arguments, rows)`` for rows (n, ...), in batches, as NumPy arrays."""
    return in_batches(functools.partial(program, *arguments), rows, BATCH)


def drawn(form: GaussianForm, own: PyTree, noise: Any, v: Float[Any, " p"] | None = None) -> Any:
    """Return draws (n, d) of one component, moved by ``v``."""
    return form.draw(own if v is None else form.move(own, v), noise)


def mixture(
    form: GaussianForm,
    v: Float[np.ndarray, "k p1"],
    start: Components,
    shares: Float[np.ndarray, " n"],
    z: Float[np.ndarray, "n d"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n d"], Float[np.ndarray, "k p1"]]:
    """Return ``log q`` of a mixture moved by ``v``, and the gradients of its sum weighted by
    ``shares`` in the events and in ``v``.
    """
    logits = start.log_weights + v[:, -1]
    weights = scipy.special.softmax(logits)
    total = np.zeros(v.shape)
    used = np.flatnonzero(weights).tolist()
    slopes = np.zeros(z.shape)
    starts = [taken(start.parameters, slot) for slot in used]
    laws = [form.move(own, v[slot, :-1]) for own, slot in zip(starts, used, strict=True)]
    logs = np.stack([form.log_prob(law, z) for law in laws]) + np.log(weights[used])[:, None]
    log_q: Any = scipy.special.logsumexp(logs, axis=0)
    for slot, own, law, each in zip(used, starts, laws, np.exp(logs - log_q), strict=True):
        # Events where a component has no share are left out: products of zero and infinity are NaN.
        away = form.standardised(law, (z - law[0]) * (each > 0)[:, None])
        pull = (shares * each)[:, None] * form.pulled(law, away)
        slopes -= pull
        rest = shares @ each
        total[slot, :-1] = form.pull(own, v[slot, :-1], away, pull)
        total[slot, :-1] -= rest * form.widening
        total[slot, -1] = rest - weights[slot] * shares.sum()
    return log_q, slopes, total


def mixed(
    form: GaussianForm, ratio: Ratio, z: Float[np.ndarray, "n d"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n d"]]:
    """Return the values that a ratio subtracts from ``log L`` at events, and their gradients."""
    if ratio.q is None:
        return np.zeros(len(z)), np.zeros(z.shape)
    still = np.zeros((len(ratio.q.log_weights), form.moves + 1))
    logs, slopes, _ = mixture(form, still, ratio.q, np.ones(len(z)), z)
    values = np.logaddexp(logs, ratio.floor)
    return values, slopes * np.exp(logs - values)[:, None]


class Optimum(NamedTuple):
    """The end of a maximisation, and the number of gradients."""

    v: Float[np.ndarray, "..."]
    evaluations: int


def component(
    form: GaussianForm,
    noise: Any,
    target: Target,
    start: PyTree,
    ratio: Ratio,
    lam: float,
) -> Look:
    """Return the objective ``H[h] + λ E_h[log L/q_t]`` in nats as a function of moves (p,), over
    draws from this noise (egorov2019).
    """

    def look(v: np.ndarray) -> tuple[Any, np.ndarray]:
        z = drawn(form, start, noise, v)
        log_l, up = batched(values_and_slopes, (target,), z)
        taken, down = mixed(form, ratio, z)
        entropy = form.entropy(form.move(start, v))
        pull = form.pull(start, v, noise, (up - down) * (lam / len(z)))
        return entropy + lam * (log_l - taken).mean(), form.widening + pull

    return look


def joint(form: GaussianForm, noise: Any, target: Target, start: Components) -> Look:
    """Return the ELBO as a function of moves of all components and log weights (K, p + 1), with
    the same number of draws for each component.

    The part of the gradient from the mixture's density at constant draws is zero on average, and
    pure noise at the optimum (roeder2017). Its first-order term at the start is subtracted from the
    value; otherwise the few draws would not make the target itself the optimum.
    """
    used = np.flatnonzero(np.isfinite(start.log_weights)).tolist()
    first: list[np.ndarray] = []

    def look(v: np.ndarray) -> tuple[Any, np.ndarray]:
        own = [(v[slot, :-1], taken(start.parameters, slot)) for slot in used]
        z = np.concatenate([drawn(form, law, noise, moves) for moves, law in own])
        log_l, up = batched(values_and_slopes, (target,), z)
        weights = scipy.special.softmax(start.log_weights + v[:, -1])
        shares = np.repeat(weights[used] / len(noise), len(noise))
        logs, down, density = mixture(form, v, start, shares, z)
        if not first:
            first.append(density)
        slope = first[0] - density
        gaps = np.zeros(len(weights))
        gaps[used] = (log_l - logs).reshape(len(used), -1).mean(1)
        value = weights @ gaps
        slope[:, -1] += weights * (gaps - value)
        slopes = np.split(up * shares[:, None] - down, len(used))
        for slot, (moves, law), rows in zip(used, own, slopes, strict=True):
            slope[slot, :-1] += form.pull(law, moves, noise, rows)
        return value + (first[0] * v).sum(), slope

    return look


def maximised(look: Look, v: Float[np.ndarray, "..."], *, most: int = 300) -> Optimum:
    """Maximise an objective by L-BFGS from ``v``."""

    def least(flat: np.ndarray) -> tuple[Any, np.ndarray]:
        value, slope = look(flat.reshape(v.shape))
        return -value, -slope.ravel()

    top, _, evaluations = lbfgs(least, v.ravel(), most=most)
    return Optimum(top.reshape(v.shape), evaluations)


def noise(form: GaussianForm, key: KeyArray, number: int) -> Float[np.ndarray, "n d"]:
    """Draw noise for ``number`` draws."""
    return keys.of_numpy(key).standard_normal((number, form.size))
