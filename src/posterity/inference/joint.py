"""The means of Gaussian parts as one vector, which parts that are independent hold apart.

A diagonal Gaussian, or a Product of Gaussians, knows nothing of how means hang together. Slopes
and curvatures in all means at once do, whatever the covariances.
"""

from typing import Any

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Float, Real
from posterity.families import ExponentialFamily


def is_joint(q: ExponentialFamily) -> bool:
    """Return whether a law is made of Gaussians that hold some coordinates apart."""
    parts: Any = q.parts()
    if not all(part.gaussian and part.batch_shape == () for part in parts):
        return False
    return (len(parts) > 1 or parts[0].diagonal) and q.event_size > 1


def joint_mean(q: ExponentialFamily) -> Float[Real, " d"]:
    """The means of its parts, one after the other."""
    return _lined_up([part.mean for part in _parts(q)])


def moved_to(q: ExponentialFamily, mean: Float[Real, " d"]) -> Any:
    """Return the law with other means, and the covariances that it has."""
    pairs = zip(_parts(q), pieces(q, mean), strict=True)
    return q.rebuild(
        [
            part._with(precision_mean=part.times_precision(own), precision=part.precision)
            for part, own in pairs
        ]
    )


def slope_in_mean(q: ExponentialFamily, factor: ExponentialFamily) -> Float[Real, " d"]:
    """The slope, in the means of ``q``, of a function that has this natural gradient there."""
    pairs = zip(_parts(q), _parts(factor), strict=True)
    return _lined_up([own.precision_mean - own.times_precision(part.mean) for part, own in pairs])


def times_precision(q: ExponentialFamily, vector: Float[Real, "*n d"]) -> Float[Real, "*n d"]:
    """``Λ v``, part by part; or of each row of a matrix."""
    pairs = zip(_parts(q), pieces(q, vector), strict=True)
    return _lined_up([part.times_precision(own) for part, own in pairs])


def unwhitened(q: ExponentialFamily, slopes: Float[Real, "n d"]) -> Float[Real, "n d"]:
    """Slopes in standard normal noise, of which events are made, as slopes in events; by row."""
    pairs = zip(_parts(q), pieces(q, slopes), strict=True)
    return _lined_up([part.unwhitened(own) for part, own in pairs])


def whitened(q: ExponentialFamily, rows: Float[Real, "*n d"]) -> Float[Real, "*n d"]:
    """``Sᵀ x`` of each row ``x``, whose products are the covariances of ``x · z``."""
    pairs = zip(_parts(q), pieces(q, rows), strict=True)
    return _lined_up([part.whitened(own) for part, own in pairs])


def precision_matrix(q: ExponentialFamily) -> Float[np.ndarray, "d d"]:
    """``Λ``, block by block along the diagonal."""
    return times_precision(q, np.eye(q.event_size))


def pieces(q: ExponentialFamily, vector: Float[Real, "*n d"]) -> list[Any]:
    """The piece of a vector, or of the columns of a matrix, that belongs to each part."""
    ends = np.cumsum([part.own_size for part in _parts(q)])
    return namespace(vector).np.split(vector, ends[:-1], axis=-1)


def _parts(q: ExponentialFamily) -> Any:
    return q.parts()


def _lined_up(vectors: list[Any]) -> Any:
    return vectors[0] if len(vectors) == 1 else namespace(*vectors).np.concatenate(vectors, -1)
