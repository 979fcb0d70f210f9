"""Draws from a density close to a standard normal one: Hamiltonian Monte Carlo (neal2011)."""

from collections.abc import Callable

import numpy as np

from posterity.arrays.typing import Float

Places = Float[np.ndarray, "m p"]


def moved(
    loss: Callable[[Places], tuple[Float[np.ndarray, " m"], Places]],
    places: Places,
    *,
    turns: int = 20,
    last: int = 8,
    steps: int = 4,
    step: float = 0.4,
    seed: int = 0,
) -> Places:
    """Return equally likely draws (last * m, p): ``places`` that are moved side by side.

    Args:
        loss: function that returns minus the log density in nats, and its slopes, at places.
        places: starts, draws of about the same law.
        turns: number of trajectories, each with a new momentum.
        last: number of trajectories at the end, whose ends are the draws; those before forget that
            the starts were draws of another law.
        steps: leapfrog steps of a trajectory, which with ``step`` takes about a quarter of a period
            of a standard normal law, so that its end knows little of its start.
        step: length of a leapfrog step, of which in a hundred dimensions most are accepted.
        seed: seed of momenta and acceptance.
    """
    rng = np.random.default_rng(seed)
    value, slope = loss(places)
    kept = []
    for _ in range(turns):
        start = rng.normal(size=places.shape)
        momentum = start - step / 2 * slope
        ends = places
        end_value = value
        end_slope = slope
        for _ in range(steps):
            ends = ends + step * momentum
            end_value, end_slope = loss(ends)
            momentum = momentum - step * end_slope
        momentum = momentum + step / 2 * end_slope
        gain = value - end_value + ((start**2).sum(1) - (momentum**2).sum(1)) / 2
        taken = np.log(rng.uniform(size=len(places))) < gain
        places = np.where(taken[:, None], ends, places)
        value = np.where(taken, end_value, value)
        slope = np.where(taken[:, None], end_slope, slope)
        kept.append(places)
    return np.concatenate(kept[-last:])
