"""A free energy over means and factors of covariances, in which it is convex.

Where log likelihoods are concave functions of linear predictors, the free energy of a Gaussian is
convex in its mean and in a triangular root of its covariance (challis2013). Natural gradients
converge in a few steps where a posterior is narrow beside its likelihood's bends. Where classes are
told apart, or all counts are zero, the prior alone ends what the likelihood lets grow, and they go
to and fro; L-BFGS in these coordinates does not.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from posterity.arrays.search import lbfgs
from posterity.families import ExponentialFamily

MOST = 48
"""Coordinates up to which a whole triangle is searched."""
LOOKS = 600
"""Points that are looked at, at most."""
GAIN = 1e-13
"""Of the free energy: what a further step must promise."""


def convex_end(
    evaluate: Callable[[Any], Any], q: Any, cavity: Any, temperature: float
) -> ExponentialFamily:
    """The Gaussian, full or diagonal, of least free energy, from ``q`` on.

    ``evaluate(q)`` gives ``E_q[log likelihood]`` as ``value``, and ``∇_μ`` of it as ``gradient``.
    """
    size, full = q.event_size, (np.diag if q.diagonal else np.asarray)
    center, scale = q.mean, q.whitened(np.eye(size))
    precision = scale.T @ full(cavity.precision) @ scale
    linear = scale.T @ (cavity.precision_mean - full(cavity.precision) @ center)
    kept = np.diag_indices(size) if q.diagonal else np.tril_indices(size)

    def member(free: np.ndarray) -> tuple[Any, np.ndarray]:
        root = np.zeros((size, size))
        root[kept] = free[size:]
        inverse = np.linalg.inv(scale @ root)
        mean = center + scale @ free[:size]
        own = (inverse**2).sum(0) if q.diagonal else inverse.T @ inverse
        return type(q)._of(precision_mean=full(own) @ mean, precision=own), root

    def energy(free: np.ndarray) -> tuple[float, np.ndarray]:
        if not (free[size:][kept[0] == kept[1]] > 0).all():
            return np.inf, free
        there, root = member(free)
        expected = evaluate(there)
        factor, along = expected.gradient, free[:size]
        bend = scale.T @ full(factor.precision) @ scale
        slope = scale.T @ (factor.precision_mean - full(factor.precision) @ there.mean)
        logs = np.log(np.diagonal(root)).sum()
        pull = (precision * (root @ root.T)).sum() / 2 + along @ precision @ along / 2
        value = temperature * (pull - linear @ along - logs) - expected.value
        by_mean = temperature * (precision @ along - linear) - slope
        by_root = (temperature * precision + bend) @ root
        by_root[np.diag_indices(size)] -= temperature / np.diagonal(root)
        return float(value), np.concatenate([by_mean, by_root[kept]])

    start = np.concatenate([np.zeros(size), np.eye(size)[kept]])
    with np.errstate(all="ignore"):
        return member(lbfgs(energy, start, most=LOOKS, gain=GAIN)[0])[0]
