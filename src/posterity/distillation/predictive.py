"""What a teacher speaks of: which law its outputs are of, and for what data."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.arguments import POSITIVE
from posterity.errors import StructureError, UsageError
from posterity.models.likelihoods import LIKELIHOOD


@dataclasses.dataclass(frozen=True)
class Predictive:
    """How one draw of a model's parameters predicts: ``p(y | x, z)`` from its outputs.

    ``targets`` is the number of classes, 1 for labels in {0, 1}, or the number of values predicted.
    ``noise_variance`` is None where the outputs say it, or there is none.
    """

    likelihood: str
    targets: int
    noise_variance: float | None = None

    @classmethod
    def of(cls, model: Any, z: Any, x: Any) -> "Predictive":
        """Of a model, from the shapes that its outputs have for parameters and inputs.

        Raises:
            UsageError: for a model that does not predict.
            StructureError: for outputs that are not what the likelihood needs.
        """
        kind = getattr(model, "likelihood", None)
        if kind is None or not hasattr(model, "outputs"):
            raise UsageError(
                found=f"a {type(model).__name__}, which does not say what it predicts",
                expected="a model with a `likelihood` and a method `outputs(z, x)`",
                fix="Use NeuralNetwork or a regression model, or give FunctionModel its `predict` "
                "and `likelihood`.",
            )
        LIKELIHOOD.check(likelihood=kind)
        try:
            found = jax.eval_shape(model.outputs, z, x)
        except Exception as error:  # whatever the user's model raises
            raise StructureError(
                found=f"{type(error).__name__}: {error} for inputs of shape {np.shape(x)}",
                expected="a model that predicts for such inputs",
                fix="Check the inputs' shape, and that `outputs(z, x)` takes a batch of them.",
            ) from error
        shapes = jax.tree.map(lambda leaf: leaf.shape, found)
        own = getattr(model, "noise_variance", None) if kind == "gaussian" else None
        pair = isinstance(shapes, tuple) and len(shapes) == 2 and isinstance(shapes[0], tuple)
        shape = shapes[0] if pair else shapes
        axes = {"categorical": (2,), "bernoulli": (1, 2), "gaussian": (1, 2)}[kind]
        one = isinstance(shape, tuple) and all(isinstance(axis, int) for axis in shape)
        single = one and kind == "bernoulli" and shape[1:] not in ((), (1,))
        if (
            not one
            or len(shape) not in axes
            or single
            or pair != (kind == "gaussian" and own is None)
        ):
            raise StructureError(
                found=f"outputs of shape {shapes} for {len(x)} inputs",
                expected="logits (n, K) of classes, (n,) of labels in {0, 1}, or means (n,) or "
                "(n, k), beside their noise variances where the model knows none",
                fix="Mend what the model's `outputs` returns, or its likelihood.",
            )
        if own is not None:
            POSITIVE.check(noise_variance=own)
        return cls(kind, shape[1] if len(shape) == 2 else 1, own if own is None else float(own))


def in_columns(outputs: Any) -> Any:
    """Outputs (..., n, k), or the pair of them, whatever a model leaves out of its shape."""
    return jax.tree.map(lambda leaf: leaf[:, None] if jnp.ndim(leaf) == 1 else leaf, outputs)
