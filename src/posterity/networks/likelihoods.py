"""What the outputs of a network say of what was observed."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from posterity.arguments import one_of
from posterity.arrays.typing import Real
from posterity.families.gaussian import LOG_2PI

OUTPUTS = {
    "bernoulli": "one logit an input",
    "categorical": "K logits an input",
    "gaussian": "outputs shaped as y",
}
"""What a network has to give, by likelihood."""
LIKELIHOOD = one_of(*OUTPUTS)


def log_likelihood(
    outputs: Float[Real, "n ..."], y: Any, kind: str, noise_variance: float = 1.0
) -> Float[Real, " n"]:
    """``log p(y | outputs)`` of each record, in nats.

    ``"bernoulli"``: outputs (n,) are logits of ``y`` in {0, 1}; ``"categorical"``: outputs (n, K)
    are logits of ``y`` in {0, …, K - 1}; ``"gaussian"``: outputs shaped as ``y`` are means.
    """
    if kind == "bernoulli":
        outputs = outputs.reshape(len(outputs))
        return -jnp.logaddexp(0.0, jnp.where(jnp.asarray(y) > 0, -outputs, outputs))
    if kind == "categorical":
        log_probabilities = jax.nn.log_softmax(outputs)
        labels = jnp.asarray(y, int)[:, None]
        return jnp.take_along_axis(log_probabilities, labels, -1)[:, 0]
    residual = ((y - outputs.reshape(y.shape)) ** 2).reshape(y.shape[0], -1)
    each = residual / noise_variance + math.log(noise_variance) + LOG_2PI
    return -each.sum(-1) / 2
