"""Plate: exchangeable copies of one family, the marker that labels mean nothing."""

from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
from jaxtyping import Float

from posterity.arrays.namespace import Real
from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.beta import Beta
from posterity.families.composite import Composite
from posterity.families.dirichlet import Dirichlet


class Plate(Composite):
    """``K`` exchangeable members, with or without a posterior over their mixing weights.

    ``members`` has batch shape ``(..., K)``. ``weights`` is a :class:`Dirichlet` over ``K``
    categories, or a :class:`Beta` with batch ``(..., K)``: the sticks of a truncated Dirichlet
    process (blei2006), in order. An event is ``(members' event, weights' event)``, the latter
    ``None`` without weights.

    >>> from posterity.families import DiagonalGaussian
    >>> q = Plate(DiagonalGaussian.from_standard(mean=[[0.0], [5.0]], variance=[[1.0], [1.0]]))
    >>> q.size
    2
    """

    members: ExponentialFamily
    weights: Dirichlet | Beta | None = eqx.field(default=None)

    def __check_init__(self) -> None:
        if not self.members.batch_shape:
            raise StructureError(
                found="members without a batch axis",
                expected="members of batch shape (..., K)",
                fix="Stack the members with posterity.families.stack.",
            )
        if self.weights is not None and _weight_count(self.weights) != self.size:
            raise StructureError(
                found=f"{self.size} members but weights over {_weight_count(self.weights)}",
                expected="one weight a member",
                fix="Give the weights the same number of categories as there are members.",
            )

    @classmethod
    def from_standard(
        cls, members: ExponentialFamily, weights: Dirichlet | Beta | None = None
    ) -> Self:
        """From the members and their weights."""
        return cls(members, weights)

    def standard_parameters(self) -> dict[str, Any]:
        """``members`` and ``weights``."""
        return {"members": self.members, "weights": self.weights}

    @property
    def size(self) -> int:
        """``K``."""
        return self.members.batch_shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The members', without ``K``."""
        return self.members.batch_shape[:-1]

    def parts(self) -> Sequence[ExponentialFamily]:
        """The members and, if there are any, the weights."""
        return [self.members] if self.weights is None else [self.members, self.weights]

    def rebuild(self, parts: Sequence[ExponentialFamily]) -> Self:
        """Other members, other weights."""
        return type(self)(*parts)  # pyright: ignore[reportArgumentType]

    def split_event(self, z: tuple[Any, Any]) -> Sequence[Any]:
        """Members' and weights' event."""
        return z[: len(self.parts())]

    def join_event(self, events: Sequence[Any]) -> tuple[Any, Any]:
        """Members' and weights' event."""
        return (events[0], events[1] if len(events) > 1 else None)

    def mean_weights(self) -> Float[Real, "*batch k"]:
        """Expected mixing weights; equal ones without a posterior over them."""
        xp = self.xp.np
        if isinstance(self.weights, Dirichlet):
            return self.weights.mean
        if isinstance(self.weights, Beta):
            stick, ones = self.weights.mean, xp.ones_like(self.weights.mean[..., :1])
            left = xp.cumprod(1 - stick[..., :-1], axis=-1)
            weights = stick * xp.concatenate([ones, left], axis=-1)
            return weights / weights.sum(-1, keepdims=True)
        return xp.full((*self.batch_shape, self.size), 1 / self.size)

    def predictive_log_prob(self, x: Float[Real, "n d"]) -> Float[Real, " n"]:
        """Log density, in nats, of new observations under the mixture of the members."""
        members = self.members.predictive_log_prob(x[:, None, :])  # pyright: ignore
        return self.xp.logsumexp(members + self.xp.np.log(self.mean_weights()))


def _weight_count(weights: Dirichlet | Beta) -> int:
    if isinstance(weights, Dirichlet):
        return weights.concentration_minus_one.shape[-1]
    return weights.batch_shape[-1]
