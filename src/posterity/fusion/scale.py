"""The scale of a residual: its expectation under sampling alone.

Sites with different records of one truth have different posteriors. Their uncertainties determine
how far apart these should be. If ``n`` matched components are one, site ``l`` adds a factor ``s_l``
to the prior. Given the truth ``θ``, the factors are independent draws, whose law depends on the
family. The posterior of ``θ`` is the prior plus all factors. The expected cost is the average over
``θ`` and over newly drawn factors (rubin1984). If truths are draws from the prior, its mean is
exactly the mean of the cost, by the law of total expectation.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.families import DiagonalGaussian, ExponentialFamily
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import Block
from posterity.fusion.geometry import Divergence

Array = np.ndarray
Rng = np.random.Generator
DRAWS = 400  # Draws of all factors of a group
MOST_NUMBERS = 2**25  # Largest number of floats to draw; beyond it no scale is computed
MANY = 2.0  # Standard deviations up to which a cost agrees with sampling alone


@dataclasses.dataclass(frozen=True)
class Scale:
    """A residual and its expectation under sampling alone, in nats per component.

    ``residual`` is the mean divergence between each of the ``matched`` local components and its
    fused one; ``expected`` is its expectation if matched components are one and sites independent,
    and ``spread`` its standard deviation; if these are None, ``why`` has the reason.
    """

    residual: float | None
    expected: float | None
    spread: float | None
    matched: int
    why: str = ""

    @property
    def deviations(self) -> float | None:
        """Standard deviations by which the residual exceeds its expectation."""
        if self.residual is None or self.expected is None or not self.spread:
            return None
        return (self.residual - self.expected) / self.spread

    def __str__(self) -> str:
        if self.residual is None:
            return "nothing was matched"
        nats = f"{self.residual:.2g} nats a component"
        if self.expected is None:
            return f"{nats}; no scale: {self.why}"
        sampling = f"sampling alone would give ({self.expected:.2g} ± {self.spread:.1g})"
        above = self.deviations or 0.0
        if abs(above) <= MANY:
            return f"{nats}: as {sampling}"
        return f"{nats}: {self.residual / self.expected:.2g} times what {sampling}"


def scales_of(
    blocks: Mapping[str, Block | BlockTable], aligned: Mapping[str, Alignment], divergence: Any
) -> dict[str, Scale]:
    """Return the scale of each plate, by path; for plates without a block, the residual alone."""
    return {path: _scale(blocks.get(path), own, divergence) for path, own in aligned.items()}


def _scale(block: Block | BlockTable | None, alignment: Alignment, divergence: Any) -> Scale:
    labels = alignment.labels
    rows = labels >= 0  # components that are matched with others, and not absorbed
    if alignment.into is not None:
        rows &= alignment.into == np.arange(len(labels))
    rows &= (np.bincount(labels[rows], minlength=alignment.components) > 1)[labels]
    count = int(rows.sum())
    residual = float(alignment.cost) / count if count else None

    def unknown(why):
        return Scale(residual, None, None, count, why)

    if block is None:
        return unknown("what the sites said was not kept")
    if not count:
        return unknown("nothing was matched")
    if not isinstance(block, Block):
        return unknown("there are too many sites: they were matched in passes")
    if (block.priors.own < 0).any():
        return unknown("the sites' priors are not known")
    if block.priors.differ:
        return unknown("the priors differ")
    prior = block.priors.laws[0]
    members = Absorbing.of(block, alignment.into).members
    if DRAWS * members.dimension * count > MOST_NUMBERS:
        return unknown("there is too much to draw")
    total = 0.0
    variance = 0.0
    rng = np.random.default_rng(0)
    try:
        with np.errstate(all="ignore"):
            for g in np.unique(labels[rows]):
                mean, spread = expected_cost(prior, members[rows & (labels == g)], divergence, rng)
                total = total + mean
                variance = variance + spread
    except _NoLaw as error:
        return unknown(str(error))
    if not np.isfinite([total, variance]).all() or total <= 0:
        return unknown("some site contributed less than nothing to a component")
    return Scale(residual, total / count, float(np.sqrt(variance)) / count, count)


class _NoLaw(Exception):
    """The law of a family's factors is not known."""


def expected_cost(
    prior: ExponentialFamily, members: ExponentialFamily, divergence: Divergence, rng: Rng
) -> tuple[float, float]:
    """Return the expected cost, in nats, of members (n,) that are one, and its variance.

    All members have the prior ``prior``, and all together are the data on the truth. If the law of
    the factors is unknown for a family over one number, the Gaussian with its mean and variance is
    used, which is correct to leading order.
    """
    if blocks := prior.independent_blocks():  # their divergences add up
        inner = members.independent_blocks()
        costs = [expected_cost(own, inner[n], divergence, rng) for n, own in blocks.items()]
        return sum(mean for mean, _ in costs), sum(variance for _, variance in costs)
    factors = members - prior
    pooled = prior + prior.with_natural_parameters(factors.natural_parameters.sum(0))
    if not np.all(pooled.is_proper()):
        return np.nan, np.nan
    drawn = prior.resampled(rng, factors, pooled, DRAWS)
    if drawn is None:
        if prior.event_shape != () or prior.quantities != ("",):
            raise _NoLaw(f"a {type(prior).__name__} does not say what was observed")
        pairs = [law.marginals()[0] for law in (prior, members)]
        start, known = (DiagonalGaussian.from_standard(own.mean, own.sd**2) for own in pairs)
        return expected_cost(start, known, divergence, rng)
    middle = divergence.family(drawn, divergence.coordinates(drawn).mean(1, keepdims=True))
    costs = divergence.between(middle, drawn).sum(-1)
    return float(costs.mean()), float(costs.var(ddof=1))
