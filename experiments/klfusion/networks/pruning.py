"""Units of all sites side by side, the weak ones left out, and outgoing weights fitted anew.

What fusion is to be measured against: it needs no matching at all. For one hidden layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from experiments.data import Array
from posterity.families import Network
from posterity.families.layers import Layers

INPUTS, RIDGE, ALIVE = 4000, 1e-3, 2.0


class Units(NamedTuple):
    """A network with one hidden layer of rectified units.

    Attributes:
        incoming: (units, inputs).
        bias: (units,).
        outgoing: (units, classes).
        output_bias: (classes,).
    """

    incoming: Array
    bias: Array
    outgoing: Array
    output_bias: Array

    def hidden(self, x: Array) -> Array:
        """(n, units) what the units say of inputs (n, inputs)."""
        return np.maximum(x @ self.incoming.T + self.bias, 0)

    def logits(self, x: Array) -> Array:
        """(n, classes)."""
        return self.hidden(x) @ self.outgoing + self.output_bias

    def chosen(self, which: Array) -> Units:
        """The same with some of the units only."""
        return Units(self.incoming[which], self.bias[which], self.outgoing[which], self.output_bias)

    def network(self) -> Network:
        """With variances next to nothing: of a network whose means alone are looked at."""
        (classes,) = self.output_bias.shape
        units, inputs = self.incoming.shape
        layers = Layers.dense(inputs, units, classes)
        arrays = [
            {"bias": self.bias, "kernel": self.incoming.T},
            {"bias": self.output_bias, "kernel": self.outgoing},
        ]
        return Network.from_standard(layers.ravel(arrays), np.full(layers.size, 1e-6), layers)


def side_by_side(sites: Sequence[Network], weights: Array) -> tuple[Units, Array]:
    """The concatenation, outgoing weights by class over the number of sites; and who is alive.

    Alive (units,) is who has an outgoing weight two standard deviations from zero.
    """
    means = [site.layers.unravel(site.mean) for site in sites]
    spreads = [site.layers.unravel(site.variance)[1]["kernel"] for site in sites]
    share = weights / len(sites)
    outgoing = [own * m[1]["kernel"] for m, own in zip(means, share, strict=True)]
    units = Units(
        np.concatenate([m[0]["kernel"].T for m in means]),
        np.concatenate([m[0]["bias"] for m in means]),
        np.concatenate(outgoing),
        np.sum([own * m[1]["bias"] for m, own in zip(means, share, strict=True)], axis=0),
    )
    signal = [abs(m[1]["kernel"]) / np.sqrt(v) for m, v in zip(means, spreads, strict=True)]
    return units, np.concatenate([s.max(1) >= ALIVE for s in signal])


def pruned(
    sites: Sequence[Network], weights: Array, width: int, rng: Generator
) -> tuple[Network, Network]:
    """The ``width`` units that move the logits most on random inputs; as they are, and refitted.

    Refitted outgoing weights are the ridge regression of the whole concatenation's logits on the
    kept units, over random inputs: no data.
    """
    whole, alive = side_by_side(sites, weights)
    whole = whole.chosen(alive)
    x = random_inputs(whole, INPUTS, rng)
    moved = whole.hidden(x).var(0) * (whole.outgoing**2).sum(1)
    kept = whole.chosen(np.argsort(-moved)[:width])
    return kept.network(), refitted(kept, x, whole.logits(x)).network()


def random_inputs(units: Units, number: int, rng: Generator) -> Array:
    """Random sums of the units' incoming weights, so of patterns that they look for.

    Their lengths are spread about that at which a unit's bias and what comes in are of one size.
    """
    length = np.linalg.norm(units.incoming, axis=1)
    patterns = units.incoming / length[:, None]
    x = rng.normal(size=(number, len(patterns))) @ patterns
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    typical = SCALE * np.median(abs(units.bias) / length)
    return x * typical * np.exp(rng.normal(size=(number, 1)))


SCALE = 10.0


def refitted(units: Units, x: Array, target: Array) -> Units:
    """The same units, outgoing weights (ridge) and output bias fitted to logits (n, classes)."""
    hidden = units.hidden(x)
    middle, level = hidden.mean(0), target.mean(0)
    centred = hidden - middle
    gram = centred.T @ centred
    gram[np.diag_indices_from(gram)] += RIDGE * np.trace(gram) / len(gram)
    outgoing = np.linalg.solve(gram, centred.T @ (target - level))
    return Units(units.incoming, units.bias, outgoing, level - middle @ outgoing)
