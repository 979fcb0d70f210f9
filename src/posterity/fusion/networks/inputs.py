"""Inputs without data: mixtures of what first layers look at, as large as posteriors say.

A weight's posterior gains precision ``Σ_n δ_n² x_n²`` where a bias gains ``Σ_n δ_n²`` (the same
slopes ``δ`` of the log likelihood): their ratio is the mean square of an input, in the units of the
data. So random inputs vary in the directions of the incoming weights, and each is of its own size.
Units count by how far their outgoing weights stand out: one that a horseshoe switched off gained
precision from its scale and none from data, as much at the bias as at any input.
"""

from collections.abc import Sequence

import numpy as np

from posterity.arrays.typing import Float
from posterity.errors import UsageError
from posterity.families.layers import Conv, Dense, Layers
from posterity.fusion.networks.locals import Local
from posterity.fusion.networks.options import Options

Array = np.ndarray
DENSE, IMAGES = 3000, 600
"""Random inputs unless a number is asked for: an image is seen at many places."""
SEED = 0
AT_ONCE = 100
"""Images that are drawn together, which bounds memory."""


def pair_of_inputs(locals_: Sequence[Local], options: Options) -> tuple[Array, Array]:
    """Inputs (n, *image) for a refit, and others for the predictive KL.

    Raises:
        UsageError: examples of another shape than the networks take.
    """
    layers = locals_[0].layers
    if options.inputs is not None:
        examples = np.asarray(options.inputs, float)
        if examples[0].size != layers.inputs:
            raise UsageError(
                found=f"inputs of shape {examples.shape}",
                expected=f"examples of shape {layers.image}",
                fix="Pass an array (n, *image).",
            )
        examples = examples.reshape(len(examples), *layers.image)
        return examples[::2], examples[1::2]
    n = options.samples or (DENSE if isinstance(layers[0], Dense) else IMAGES)
    drawn = random_inputs(locals_, 2 * n, np.random.default_rng(SEED), options.nonnegative)
    return drawn[:n], drawn[n:]


def random_inputs(
    locals_: Sequence[Local], n: int, rng: np.random.Generator, nonnegative: bool = False
) -> Float[Array, "n ..."]:
    """Random linear combinations of the incoming means of all sites' first layers."""
    layers = locals_[0].layers
    kernels = np.concatenate([local.incoming(0)[0] for local in locals_], axis=2)
    drawn = _images(layers, kernels, n, rng)
    if nonnegative:
        drawn = np.maximum(drawn, 0.0)
    squares = (drawn**2).mean(tuple(range(drawn.ndim - 1)))
    wanted = mean_squares(locals_)
    if wanted is None:  # nothing says how large inputs are: preactivations are of order one
        place = np.sqrt((kernels**2).sum((0, 1)).mean() * max(squares.mean(), 1e-300))
        return drawn / max(place, 1e-300)
    return drawn * np.sqrt(wanted / np.maximum(squares, 1e-300))


def mean_squares(locals_: Sequence[Local]) -> Float[Array, " inputs"] | None:
    """The mean square of each input, or channel of an image; None where posteriors do not say."""
    inputs, biases = np.zeros(locals_[0].layers.by_unit(0)[1]), 0.0
    for local in locals_:
        gained = local.gained()
        if gained is None or "bias" not in gained[0]:
            return None
        kernel = gained[0]["kernel"].reshape(local.layers.by_unit(0))
        # By how much squared outgoing weights of the units exceed their variances.
        squares = local.incoming(1)[0] ** 2
        surplus = np.maximum(squares - local.incoming(1, "variance")[0], 0).sum((0, 2))
        weight = surplus if surplus.any() else squares.sum((0, 2))
        inputs = inputs + np.maximum(kernel.mean(0), 0) @ weight
        biases += np.maximum(gained[0]["bias"], 0) @ weight
    return inputs / biases if biases > 0 and (inputs / biases > 0).any() else None


def _images(layers: Layers, kernels: Array, n: int, rng: np.random.Generator) -> Array:
    """Sums of incoming weights, of random sign and size; of patches, at every place."""
    first = layers[0]
    if not isinstance(first, Conv):
        return rng.standard_normal((n, kernels.shape[2])) @ kernels[0].T
    (height, width, channels), (high, wide) = layers.image, first.window
    images = []
    for start in range(0, n, AT_ONCE):
        some = min(AT_ONCE, n - start)
        padded = np.zeros((some, height + high - 1, width + wide - 1, channels))
        noise = rng.standard_normal((some, height, width, kernels.shape[2]))
        for place, kernel in enumerate(kernels):
            down, right = divmod(place, wide)
            padded[:, down : down + height, right : right + width] += noise @ kernel.T
        images.append(padded[:, high // 2 : high // 2 + height, wide // 2 : wide // 2 + width])
    return np.concatenate(images)
