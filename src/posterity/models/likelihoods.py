"""Likelihoods of observations given a network's outputs."""

from typing import Any

from posterity.arguments import one_of
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Float, Number, Real
from posterity.errors import StructureError
from posterity.families.gaussian import LOG_2PI
from posterity.families.layers import Layers
from posterity.runtime.lazy import jax, jnp

OUTPUTS = {
    "bernoulli": "one logit an input",
    "categorical": "K logits an input",
    "gaussian": "outputs shaped as y",
}
"""Required outputs of a network, by likelihood."""
LIKELIHOOD = one_of(*OUTPUTS)


def check_outputs(layers: Layers, kind: str) -> None:
    """Raise a StructureError for a categorical likelihood with one output, or a Bernoulli
    likelihood with several.
    """
    single = layers.outputs == 1
    if (kind == "categorical" and single) or (kind == "bernoulli" and not single):
        raise StructureError(
            found=f"{layers.outputs} output{'' if single else 's'} of {layers.summary}",
            expected=f"{OUTPUTS[kind]}, as the {kind} likelihood needs"
            + (", of two classes at least" if single else ""),
        )


def log_likelihood(
    outputs: Float[Real, "n ..."], y: Any, kind: str, noise_variance: Number = 1.0
) -> Float[Real, " n"]:
    """Return ``log p(y | outputs)`` of each record, in nats.

    ``"bernoulli"``: outputs (n,) are logits of ``y`` in {0, 1}; ``"categorical"``: outputs (n, K)
    are logits of ``y`` in {0, ..., K - 1}; ``"gaussian"``: outputs shaped as ``y`` are means.
    """
    if kind == "bernoulli":
        outputs = outputs.reshape(len(outputs))
        return -jnp.logaddexp(0.0, jnp.where(jnp.asarray(y) > 0, -outputs, outputs))
    if kind == "categorical":
        log_probabilities = jax.nn.log_softmax(outputs)
        labels = jnp.asarray(y, int)[:, None]
        return jnp.take_along_axis(log_probabilities, labels, -1)[:, 0]
    np_ = namespace(noise_variance).np
    residual = (y - outputs.reshape(y.shape)).reshape(y.shape[0], -1)
    # A square over a variance has a derivative with its square, which overflows in float32.
    each = (residual / np_.sqrt(noise_variance)) ** 2 + np_.log(noise_variance) + LOG_2PI
    return -each.sum(-1) / 2
