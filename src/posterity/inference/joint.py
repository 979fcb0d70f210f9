"""Joint functions of the means of independent Gaussian parts, concatenated in one vector.

A diagonal Gaussian, or a Product of Gaussians, has no covariances between its parts. Slopes and
curvatures in all means jointly contain their dependence.
"""

import operator
from typing import Any

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Float, Real
from posterity.families import ExponentialFamily


def is_gaussian(q: ExponentialFamily) -> bool:
    """Return whether a distribution is an unbatched Gaussian or a Product of such Gaussians."""
    return all(part.gaussian and part.batch_shape == () for part in _parts(q))


def is_joint(q: ExponentialFamily) -> bool:
    """Return whether a distribution consists of Gaussians with some independent coordinates."""
    parts = _parts(q)
    apart = len(parts) > 1 or parts[0].diagonal
    return is_gaussian(q) and apart and q.event_size > 1


def joint_mean(q: ExponentialFamily) -> Float[Real, " d"]:
    """Return the concatenated means of the parts."""
    return _lined_up([part.mean for part in _parts(q)])


def moved_to(q: ExponentialFamily, mean: Float[Real, " d"]) -> Any:
    """Return the distribution with other means and the same covariances."""
    pairs = zip(_parts(q), pieces(q, mean), strict=True)
    return q.rebuild(
        [
            part._with(precision_mean=part.times_precision(own), precision=part.precision)
            for part, own in pairs
        ]
    )


def event_of(q: ExponentialFamily, vector: Float[Real, " d"]) -> Any:
    """Return the event of these coordinates, those of all parts in one vector."""
    return q.join_event(pieces(q, vector))


def aside(q: ExponentialFamily, noise: Float[Real, " d"]) -> Any:
    """Return the distribution with its mean moved to the event of this standard normal noise."""
    pairs = zip(_parts(q), pieces(q, noise), strict=True)
    return q.rebuild([part.translate(part.at_noise(own) - part.mean) for part, own in pairs])


def slope_in_mean(q: ExponentialFamily, factor: ExponentialFamily) -> Float[Real, " d"]:
    """Return the slope in the means of ``q`` of a function with natural gradient ``factor``."""
    pairs = zip(_parts(q), _parts(factor), strict=True)
    return _lined_up([own.precision_mean - own.times_precision(part.mean) for part, own in pairs])


def times_precision(q: ExponentialFamily, vector: Float[Real, "*n d"]) -> Float[Real, "*n d"]:
    """Return ``Λ v`` with the precision ``Λ`` of ``q``, also for each row of a matrix."""
    return _by_part("times_precision", q, vector)


def unwhitened(q: ExponentialFamily, slopes: Float[Real, "n d"]) -> Float[Real, "n d"]:
    """Convert slopes in the standard normal noise of events to slopes in events, by row."""
    return _by_part("unwhitened", q, slopes)


def whitened(q: ExponentialFamily, rows: Float[Real, "*n d"]) -> Float[Real, "*n d"]:
    """Return ``Sᵀ x`` for each row ``x``; their inner products are the covariances of ``x · z``."""
    return _by_part("whitened", q, rows)


def precision_matrix(q: ExponentialFamily) -> Float[np.ndarray, "d d"]:
    """Return the precision ``Λ``, a block-diagonal matrix."""
    return times_precision(q, np.eye(q.event_size))


def pieces(q: ExponentialFamily, vector: Float[Real, "*n d"]) -> list[Any]:
    """Split a vector, or the columns of a matrix, by part."""
    ends = np.cumsum([part.own_size for part in _parts(q)])
    return namespace(vector).np.split(vector, ends[:-1], axis=-1)


def _parts(q: ExponentialFamily) -> Any:
    return q.parts()


def _by_part(method: str, q: ExponentialFamily, rows: Any) -> Any:
    pairs = zip(_parts(q), pieces(q, rows), strict=True)
    return _lined_up([operator.methodcaller(method, own)(part) for part, own in pairs])


def _lined_up(vectors: list[Any]) -> Any:
    return vectors[0] if len(vectors) == 1 else namespace(*vectors).np.concatenate(vectors, -1)
