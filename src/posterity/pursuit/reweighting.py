"""Importance sampling from a mixture to the target that it approximates."""

import dataclasses
from typing import Any

import jax
import numpy as np
import scipy.special
from jaxtyping import Float

from posterity.arguments import at_least
from posterity.errors import ParameterError
from posterity.families import Mixture
from posterity.pursuit.objectives import batched, values
from posterity.pursuit.target import as_target, traced_at
from posterity.runtime.tracing import as_found

RELIABLE = 0.7  # Shape of the weights' tail below which means converge at a useful rate


@dataclasses.dataclass(frozen=True)
class Weighted:
    """Draws ``z`` (n, ...) and their weights (n,), which sum to one. ``shape`` is that of the
    generalised Pareto distribution of the largest weights. From 0.7 on, neither means of weighted
    draws nor ``effective``, the relative effective sample size, are reliable. All are of draws
    from the mixture: a mode or a tail in which it has none is in no weight, and not detected.
    """

    z: Any
    weights: Float[np.ndarray, " n"]
    shape: float

    @property
    def effective(self) -> float:
        """The relative effective sample size, from 0 to 1."""
        return float(1 / (self.weights**2).sum() / len(self.weights))

    @property
    def reliable(self) -> bool:
        """True if means of the weighted draws are reliable (``shape < 0.7``) where the mixture is;
        of the target only if it covers that, of which the status of the pursuit tells.
        """
        return self.shape < RELIABLE

    def mean(self) -> Any:
        """Return the estimated mean of the target, shaped as one event."""
        return jax.tree.map(lambda leaf: np.tensordot(self.weights, leaf, 1), self.z)

    def variance(self) -> Any:
        """Return the estimated variances of the target's coordinates, shaped as one event."""

        def squares(leaf, mean):
            return np.tensordot(self.weights, (leaf - mean) ** 2, 1)

        return jax.tree.map(squares, self.z, self.mean())


@as_found()
def reweighted(
    posterior: Mixture, target: Any, *, key: jax.Array | None = None, draws: int = 10_000
) -> Weighted:
    """Draw from a mixture, with weights that correct moments to those of the target. The largest
    weights are replaced by quantiles of a generalised Pareto distribution fitted to them (PSIS).
    ``target`` is the log density that was pursued, or the ``Joint``; it is evaluated once at each
    of the ``draws``, at least 100. ``key`` is ``jax.random.key(0)`` by default. A log density that
    is finite at no draw, or infinite at one, is a ParameterError.

    Source: vehtari2024.

    >>> import jax.numpy as jnp
    >>> from posterity.families import DiagonalGaussian
    >>> wide = Mixture.from_standard([1.0], DiagonalGaussian.from_standard([[0.0]], [[2.0]]))
    >>> found = reweighted(wide, lambda z: -((z[0] - 0.5) ** 2) / 2)
    >>> found.reliable, round(float(found.mean()[0]), 1), round(float(found.variance()[0]), 1)
    (True, 0.5, 1.0)
    """
    at_least(100).check(draws=draws)
    key = jax.random.key(0) if key is None else key
    with jax.enable_x64(True):
        z = jax.tree.map(np.asarray, posterior.sample(key, (draws,)))
        event = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), z)
        target = traced_at(as_target(target), event, posterior)
        logs = batched(values, (target,), z) - np.asarray(posterior.log_prob(z))
    logs = np.where(np.isnan(logs), -np.inf, logs)
    if not np.isfinite(logs.max()):
        raise ParameterError(
            found="a log density that is finite at no draw, or infinite at one",
            expected="the target that the mixture approximates",
        )
    smooth, shape = _smoothed(logs - logs.max())
    return Weighted(z, scipy.special.softmax(smooth), shape)


def _smoothed(
    logs: Float[np.ndarray, " n"],
    *,
    flat: float = 0.1,  # Relative excess of the largest weight below which there is no tail to fit
) -> tuple[Float[np.ndarray, " n"], float]:
    """Return log weights, at most zero, with a smoothed upper tail, and the tail's shape."""
    count = int(min(len(logs) / 5, 3 * np.sqrt(len(logs))))
    order = np.argsort(logs)
    tail = order[-count:]
    cut = logs[order[-count - 1]]
    excess = np.exp(logs[tail]) - np.exp(cut)
    if not (np.isfinite(cut) and excess[0] > 0 and excess[-1] > flat * np.exp(cut)):
        return logs, 0.0 if np.isfinite(cut) else np.inf
    from scipy.stats import genpareto  # which takes a while to import

    unit = excess.mean()
    shape, _, scale = genpareto.fit(excess / unit, floc=0)
    ranks = (np.arange(count) + 0.5) / count
    smooth = np.array(logs)
    quantiles = np.exp(cut) + unit * genpareto.ppf(ranks, shape, 0, scale)
    smooth[tail] = np.minimum(np.log(quantiles), 0.0)
    return smooth, float(shape)
