"""Draws of exchangeable components, whose labels a sampler may switch, put in one order.

Each draw's components are assigned to the members of a reference at the least total of minus log
normal densities; the reference is then the moments of the draws so ordered (stephens2000), until no
draw changes.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy

from posterity.adapters.samples.laws import standard
from posterity.adapters.samples.variables import Variable
from posterity.errors import StructureError
from posterity.families.names import some

Array = np.ndarray


def members_of(variables: Sequence[Variable], names: Sequence[str]) -> list[list[Variable]]:
    """Return the variables of each member, from variables (chains, n, K, ...) of K components, in
    which the coordinates of a member have these names.

    Raises a StructureError if variables have no such common axis, or components overlap, so that no
    order of their labels is the one, and a ParameterError for coordinates that do not vary.
    """
    sizes = {own.shape[:1] for own in variables}
    if len(sizes) != 1 or min(sizes)[:1] < (2,):
        shapes = [(own.name, own.shape) for own in variables]
        raise StructureError(
            found=f"variables {some(list(map(str, shapes)))} for a plate",
            expected="variables whose first axis is that of two components at least",
        )
    count = variables[0].shape[0]
    chains, length = variables[0].values.shape[:2]
    joined = [own.values.reshape(chains * length, count, -1) for own in variables]
    order = _ordered(standard(np.concatenate(joined, axis=-1), names).units)
    members: list[list[Variable]] = [[] for _ in range(count)]
    for own, values in zip(variables, joined, strict=True):
        sorted_ = np.take_along_axis(values, order[:, :, None], axis=1)
        inner = sorted_.reshape(chains, length, count, *own.shape[1:])
        size = values.shape[-1]
        for place, member in enumerate(members):
            labels = own.labels[place * size : (place + 1) * size]
            support = type(own.support)(own.shape[1:])
            parts = {"values": inner[:, :, place], "labels": labels, "support": support}
            member.append(dataclasses.replace(own, **parts))
    return members


def _ordered(units: Array, *, rounds: int = 30, apart: float = 2.0) -> Array:
    """Return for each draw (m, K, p) the component (m, K) of each member of the reference.

    Args:
        units: draws of all coordinates, standardised.
        rounds: most passes over the draws.
        apart: least distance of two members in their deviations, below which they overlap.
    """
    mean = units[0]
    variance = np.full(mean.shape, 0.1)
    order = np.full(units.shape[:2], -1)
    for _ in range(rounds):
        away = units[:, :, None] - mean
        costs = (away**2 / variance + np.log(variance)).sum(-1)  # of component and member
        before = order
        order = np.array([scipy.optimize.linear_sum_assignment(own.T)[1] for own in costs])
        placed = np.take_along_axis(units, order[:, :, None], axis=1)
        mean = placed.mean(0)
        variance = np.maximum(placed.var(0), np.finfo(np.float32).eps)
        if (order == before).all():
            break
    gap = (mean[:, None] - mean) ** 2 / (variance[:, None] + variance) * 2
    distance = np.sqrt(gap.sum(-1)) + np.where(np.eye(len(mean)) > 0, np.inf, 0.0)
    if distance.min() < apart:
        one, other = np.unravel_index(int(np.argmin(distance)), distance.shape)
        raise StructureError(
            found=f"components {one} and {other} that are {distance.min():.2g} deviations apart",
            expected=f"fewer components, that draws tell apart by {apart:g} deviations at least",
        )
    return order
