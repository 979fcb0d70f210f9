"""Gaussian posteriors of a user's own likelihoods: a sum over nodes that do not change.

Noise that is drawn once makes the free energy a function that can be computed, searched along and
minimised to the last digit, in place of one that is only seen through noise (giordano2024).
"""

from typing import Any, ClassVar

import numpy as np

from posterity.arguments import at_least
from posterity.arrays.tree import static
from posterity.arrays.typing import Float, Real
from posterity.families import ExponentialFamily
from posterity.inference.estimators import NODES_LIMIT, Evaluator, Expectation, Flag
from posterity.inference.joint import joint_mean, pieces, unwhitened
from posterity.inference.predictors import Seen, nodes_for, predictors_of, seen
from posterity.inference.step import dtype_of
from posterity.lazy import jax, jnp
from posterity.models import Model, Records
from posterity.models.cubature import normal_pairs


class Cubature(Evaluator):
    """Gaussians, and Products of them: the mean over fixed nodes, by gradients alone.

    Nodes are a quasi-random normal sample in pairs that mirror each other, of unit covariance: the
    sum is exact for log likelihoods of third order. No Hessian is formed, and kinks do no harm;
    where there are jumps alone, and no slope anywhere, the expectation is NaN.
    There are at least four nodes a coordinate, without which a full covariance would fit the nodes.

    Source: giordano2024.
    """

    nodes: int = static(default=128)
    most: int = static(default=NODES_LIMIT)
    """Nodes that it may be refined to."""

    fitting: ClassVar[str] = "differentiable log likelihoods under Gaussians, or Products of them"

    def __post_init__(self) -> None:
        at_least(8).check(nodes=self.nodes)

    def _serves(self, q: ExponentialFamily) -> bool:
        return all(part.gaussian and part.batch_shape == () for part in q.parts())

    def evaluate(
        self, model: Model, q: ExponentialFamily, records: Records, *, otherwise: Flag = False
    ) -> Expectation:
        """The mean over nodes, and its natural gradient; or over as many others."""
        if (through := self._through(model, q, records, otherwise)) is not None:
            return through.expectation(q)
        return self._seen(model, q, records, otherwise)[0]

    def curved(
        self, model: Model, q: ExponentialFamily, records: Records
    ) -> tuple[Expectation, Float[Real, "d d"]]:
        """By Stein's lemma, ``S⁻ᵀ E[∇_ε f εᵀ] S⁻¹``, at the nodes of the slope, kinks or not.

        Exact for log likelihoods of third order, as the slope is.
        """
        if (through := self._through(model, q, records, False)) is not None:
            return through.expectation(q), through.curvature()
        expected, noise, slopes = self._seen(model, q, records, False)
        moments = slopes.T @ noise / len(noise)
        half = unwhitened(q, (moments + moments.T) / 2)
        return expected, -unwhitened(q, half.T)

    def _through(
        self, model: Model, q: ExponentialFamily, records: Records, otherwise: Flag
    ) -> Seen | None:
        """By the predictors of each record, where it has few."""
        predictors = predictors_of(model, q, records)
        if predictors is None:
            return None
        jax.eval_shape(model.total, q.join_event(pieces(q, joint_mean(q))), records)  # is checked
        nodes = nodes_for(predictors.number, self.nodes, otherwise, dtype_of(q))
        return seen(predictors, q, records, *nodes)

    def _seen(
        self, model: Model, q: ExponentialFamily, records: Records, otherwise: Flag
    ) -> tuple[Expectation, Any, Any]:
        """What nodes say of the expectation, and ``ε`` and ``∇_ε f`` at each, all (m, d)."""
        parts: Any = q.parts()
        sizes = [part.own_size for part in parts]
        pairs = self.number(sum(sizes)) // 2
        nodes, others = (normal_pairs(sum(sizes), pairs, seed) for seed in (0, 1))
        nodes = jnp.where(otherwise, others, nodes)
        noise = jnp.split(nodes, np.cumsum(sizes)[:-1], axis=1)

        def value(noise: list[Any]) -> Any:
            events = [part.at_noise(own) for part, own in zip(parts, noise, strict=True)]
            return model.total(q.join_event(events), records)

        # Each value of a joint model is an optimum of its own, found by factorisations, which
        # side by side can wait for each other for ever in the threads of XLA.
        every_node = jax.lax.map if model.joint else lambda each, nodes: jax.vmap(each)(nodes)
        values, slopes = every_node(jax.value_and_grad(value), noise)
        every = zip(parts, noise, slopes, strict=True)
        factors = [part.from_slopes(own, slope) for part, own, slope in every]
        # Jumps have no slope: nodes on their sides differ, and nothing would follow from it.
        flat = (values.std() > 0) & jnp.stack([(slope == 0).all() for slope in slopes]).all()
        values = jnp.where(flat, jnp.nan, values)
        joined = jnp.concatenate(slopes, 1)
        return Expectation(values.mean(), q.rebuild(factors)), nodes, joined

    def number(self, size: int) -> int:
        """Nodes for ``size`` coordinates: more where they have more to span."""
        return 2 * (self.nodes // 2) * -(-size // 32)

    def finer(self) -> "Cubature | None":
        """Four times as many."""
        return None if 4 * self.nodes > self.most else Cubature(4 * self.nodes, self.most)
