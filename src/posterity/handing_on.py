"""A test of whether a forgotten site's factor was transferred to other sites' factors.

Honest refinements change a factor little, and rarely in the direction of the forgotten one. In
2,400 simulated gains of sites in regressions, converged or after one pass, these bounds give no
false positive. Of forgeries together with honest refinements they detect nine in ten if the whole
factor was transferred to one site, and half if half of it was. Lengths and angles are those of the
Fisher metric at the posterior before. The component along a site's own earlier factor is removed
first, since factors of similar sites have similar directions.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.tree_sums import TreeSum
from posterity.families import ExponentialFamily
from posterity.ledger import Ledger

LEAST = 1e-9
"""Length, in sqrt(nats), up to which a factor is ignored."""
BESIDE, NEAR = 0.1, 0.05
"""Largest relative residual of a gain from a multiple of the lost factor (or of one parameter of
it), and largest difference of that multiple from one."""
LESS_BESIDE, SHARE = 0.03, 0.3
"""Largest relative residual for other multiples, and the smallest such multiple."""
PURE, TRACE = 1e-3, 0.01
"""The same two bounds for gains that are almost exact multiples, and for sites without a factor."""
WHOLE = 0.01
"""Both bounds in fewer than ``FEW`` dimensions, where directions are often similar."""
FEW = 4


def handed_on(leavers: Sequence[str], before: Ledger, after: Ledger) -> bool:
    """Return whether a site, or all together, gained the factor of a forgotten site, or of all.

    Detects the whole factor, a single parameter of it (the precision or the precision_mean, for
    example), and multiples of these, also negative ones or with permuted components of a plate.
    """
    zero, metric = before.prior.zero(), _Metric(before)
    of = lambda ledger, site: ledger.factor(site) if site in ledger.sites else zero
    old, new = ([of(ledger, site) for site in after.sites] for ledger in (before, after))
    lost = [of(before, site) for site in leavers]
    parts = [part for factor in [*lost, _sum(lost)] for part in _parts(factor)]
    known = [part for part in parts if metric.length(part) > LEAST]
    changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    if not known or not changed:
        return False
    own, gains = [a for a, _ in changed], [b - a for a, b in changed]
    gains.append(_sum([*(b for _, b in changed), *(a * -1.0 for a in own)]))
    joined = [not np.any(a.natural_parameters) for a in own]
    rows = zip([*own, _sum(own)], gains, [*joined, any(joined)], strict=True)
    return any(
        _is_handed_on(metric, own, gain, joins, lost)
        for own, gain, joins in rows
        for part in known
        for lost in (part, _in_order_of(part, gain))
    )


def _is_handed_on(metric: "_Metric", own: Any, gain: Any, joined: bool, lost: Any) -> bool:
    """Return whether the gain of a site with earlier factor ``own`` is a multiple of ``lost``."""
    if gain.dimension >= FEW:
        apart = metric.apart(lost, own)
        if metric.length(apart) > PURE * metric.length(lost):
            multiple, rest = metric.projected(metric.apart(gain, own), apart)
            size, pure = abs(multiple), rest <= PURE
            share = rest <= LESS_BESIDE and size >= SHARE
            whole = rest <= BESIDE and abs(size - 1) <= NEAR
            return (pure and size >= TRACE) or (not joined and (share or whole))
    multiple, rest = metric.projected(gain, lost)
    return rest <= (PURE if joined else WHOLE) and abs(abs(multiple) - 1) <= WHOLE


class _Metric:
    """The Fisher metric at the posterior of a ledger, or at its prior if that is improper."""

    def __init__(self, ledger: Ledger):
        total = ledger.total
        self.at: Any = total if np.all(total.is_proper()) else ledger.prior

    def length(self, step: ExponentialFamily) -> float:
        """Return the length of a step, in sqrt(nats)."""
        with np.errstate(all="ignore"):
            return float(np.sqrt(self.at.squared_length(step)))

    def inner(self, one: Any, other: Any) -> float:
        """Return the inner product, by polarization after scaling both to unit length."""
        lengths = self.length(one), self.length(other)
        if not min(lengths) > 0:
            return 0.0
        one, other = one / lengths[0], other / lengths[1]
        cosine = (self.length(one + other) ** 2 - self.length(one - other) ** 2) / 4
        return cosine * lengths[0] * lengths[1]

    def apart(self, factor: Any, own: Any) -> Any:
        """Return the factor without its component along a site's own factor."""
        squared = self.length(own) ** 2
        return factor - own * (self.inner(own, factor) / squared) if squared > 0 else factor

    def projected(self, gain: Any, lost: Any) -> tuple[float, float]:
        """Return the multiple of ``lost`` nearest to the gain, and the relative residual."""
        if not self.length(gain) > LEAST:
            return 0.0, 1.0
        multiple = self.inner(gain, lost) / self.length(lost) ** 2
        return multiple, self.length(gain - lost * multiple) / self.length(gain)


def _in_order_of(lost: Any, gain: Any) -> Any:
    """Return the factor with the components of its plates permuted to match those of a gain."""
    if lost.is_plate and not lost.batch_shape:
        rows = [
            np.concatenate([np.reshape(leaf, (law.size, -1)) for leaf in leaves(law)], axis=1)
            for law in (lost, gain)
        ]
        scale = np.maximum(np.abs(rows[0]).max(axis=0), np.finfo(float).tiny)
        _, places = linear_sum_assignment((rows[1] / scale) @ (rows[0] / scale).T, maximize=True)
        return map_leaves(lambda leaf: np.asarray(leaf)[places], lost)
    if lost.composed and not lost.is_plate:
        parts = zip(lost.parts(), gain.parts(), strict=True)
        return lost.rebuild([_in_order_of(*part) for part in parts])
    return lost


def _sum(factors: Sequence[Any]) -> Any:
    """Return the exact sum, so that no gain is hidden by rounding."""
    return TreeSum.of(factors).value


def _parts(factor: Any) -> Iterator[Any]:
    """Yield the factor, and each of its parameters with all others set to zero."""
    yield factor
    own = leaves(factor)
    zeros = [np.zeros_like(leaf) for leaf in own]
    for place in range(len(own) if len(own) > 1 else 0):
        alone = iter([*zeros[:place], own[place], *zeros[place + 1 :]])
        yield map_leaves(lambda _, alone=alone: next(alone), factor)
