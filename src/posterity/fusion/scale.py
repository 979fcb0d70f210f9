"""The scale of a residual: the one that sampling alone would give.

Sites that saw different records of one truth do not find the same posterior. How far apart theirs
lie then is no matter of taste: posteriors say how uncertain they are. Of ``n`` matched components
that are one, site ``l`` adds a factor ``s_l`` to the prior; given the truth ``θ``, factors are
independent draws whose law the family knows, and what is known of ``θ`` is the prior and all
factors together. So the expected cost is an average over ``θ`` and over factors anew
(rubin1984). If truths come from the prior, its mean is exactly that of the cost, by the law of
total expectation.

For Gaussians ``N(m_l, Λ_l⁻¹)``, of prior ``N(m_0, Λ_0⁻¹)`` and ``A_l = Λ_l - Λ_0``, it has a closed
form under reverse KL, whose centroid has precision ``Λ̄``, the mean of all, and ``S``, their sum:

    2 E[cost] = Σ log|Λ̄| - log|Λ_l|  +  Σ tr(Λ_l⁻¹ A_l) - tr(S⁻¹ Σ A_l)  +  E_θ[bias].

Under a flat prior it is ``d (n - 1)`` beside the first sum, which is zero for sites with as much
data as each other: half a nat a dimension and site, but one. The bias is what one prior takes from
sites with little data and not from others, zero as well if they have as much.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.families import DiagonalGaussian, ExponentialFamily, Gaussian
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import Block
from posterity.fusion.geometry import Divergence

Array = np.ndarray
Rng = np.random.Generator
DRAWS = 400  # Draws of all factors of a group, where there is no closed form
MOST_NUMBERS = 2**25  # Numbers that may be drawn; beyond, the scale is not looked for
MANY = 2.0  # Standard deviations within which a cost is as sampling would have it


@dataclasses.dataclass(frozen=True)
class Scale:
    """A residual beside what sampling alone would give, in nats a component.

    ``residual`` is the mean divergence between each of the ``matched`` local components and its
    fused one; ``expected`` is the same if these are one and sites are independent, ``spread`` its
    standard deviation then; ``why`` says what is missing where there is no expectation (None).
    """

    residual: float | None
    expected: float | None
    spread: float | None
    matched: int
    why: str = ""

    @property
    def deviations(self) -> float | None:
        """Standard deviations by which the residual is above what sampling would give."""
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
    """The scale of each plate, by its path; residuals alone of plates without a block."""
    return {path: _scale(blocks.get(path), own, divergence) for path, own in aligned.items()}


def _scale(block: Block | BlockTable | None, alignment: Alignment, divergence: Any) -> Scale:
    labels = alignment.labels
    rows = labels >= 0  # those that are matched with others, and not absorbed
    if alignment.into:
        rows &= np.concatenate([own == np.arange(len(own)) for own in alignment.into.values()])
    rows &= (np.bincount(labels[rows], minlength=alignment.components) > 1)[labels]
    count = int(rows.sum())
    residual = float(alignment.cost) / count if count else None
    unknown = lambda why: Scale(residual, None, None, count, why)
    if block is None:
        return unknown("what the sites said was not kept")
    if not count:
        return unknown("nothing was matched")
    if not isinstance(divergence, Divergence):
        return unknown(f"only KL has one, and this is {divergence.value}")
    if not isinstance(block, Block):
        return unknown("there are too many sites: they were matched in passes")
    if (block.priors.own < 0).any():
        return unknown("the sites' priors are not known")
    prior: Any = block.priors.laws[0]
    prior = prior[0] if prior.batch_shape else prior
    for other in block.priors.laws:
        pair = prior.natural_parameters, other.natural_parameters
        if prior.outline() != other.outline() or not np.allclose(*pair, rtol=1e-9, atol=0.0):
            return unknown("the sites' priors differ")
    members = Absorbing.of(block, alignment.into).members
    closed = prior.gaussian and divergence is Divergence.REVERSE
    if DRAWS * members.dimension * count > MOST_NUMBERS and not closed:
        return unknown("there is too much to draw")
    total, variance, rng = 0.0, 0.0, np.random.default_rng(0)
    try:
        with np.errstate(all="ignore"):
            for g in np.unique(labels[rows]):
                mean, spread = expected_cost(prior, members[rows & (labels == g)], divergence, rng)
                total, variance = total + mean, variance + spread
    except _NoLaw as error:
        return unknown(str(error))
    if not np.isfinite([total, variance]).all() or total <= 0:
        return unknown("some site contributed less than nothing to a component")
    return Scale(residual, total / count, float(np.sqrt(variance)) / count, count)


class _NoLaw(Exception):
    """A family does not say how its factors are drawn."""


def expected_cost(
    prior: ExponentialFamily, members: ExponentialFamily, divergence: Divergence, rng: Rng
) -> tuple[float, float]:
    """Expected cost in nats of members (n,) that are one, and its variance, by sampling alone.

    All started from ``prior``; the members are what is known of the truth. A law over one number
    that does not say how factors scatter is taken for the Gaussian of its mean and variance, which
    it is to leading order.
    """
    if blocks := prior.independent_blocks():  # whose divergences add up
        inner = members.independent_blocks()
        costs = [expected_cost(own, inner[n], divergence, rng) for n, own in blocks.items()]
        return sum(mean for mean, _ in costs), sum(variance for _, variance in costs)
    if prior.gaussian and divergence is Divergence.REVERSE:
        return _gaussians(prior, members)
    factors = members - prior
    pooled = prior + _summed(factors)
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


def _summed(factors: Any) -> Any:
    """One factor of a batch (n,)."""
    return factors[0].with_natural_parameters(factors.natural_parameters.sum(0))


def _gaussians(prior: Any, members: Any) -> tuple[float, float]:
    """In closed form; twice the cost is about chi-squared but for its first sum."""
    if prior.diagonal:  # a batch of laws of one number each
        one = lambda q: Gaussian(q.precision_mean[..., None], q.precision[..., None, None])
        batch = [_expected(one(prior)[k], one(members)[:, k]) for k in range(prior.own_size)]
        constant, quadratic = np.sum(batch, axis=0)
    else:
        constant, quadratic = _expected(prior, members)
    return float(constant + quadratic) / 2, float(quadratic) / 2


def _expected(prior: Any, members: Any) -> tuple[float, float]:
    """Twice the expected cost: the constant of unequal precisions, and the quadratic rest."""
    full = lambda q: q.precision[..., None] * np.eye(q.own_size) if q.diagonal else q.precision
    precisions, logdet = full(members), lambda matrix: np.linalg.slogdet(matrix)[1]
    added, total = precisions - full(prior), precisions.sum(0)
    more = added.sum(0)
    constant = len(precisions) * logdet(total / len(precisions)) - logdet(precisions).sum()
    inverse, shared = np.linalg.inv(precisions), np.linalg.solve(total, more)
    spread = np.trace(inverse @ added, axis1=-2, axis2=-1).sum() - np.trace(shared)
    bend = (added @ inverse @ added).sum(0) - more @ shared
    truth = _summed(members - prior) + prior
    away = truth.mean - prior.mean
    bias = np.trace(bend @ np.linalg.inv(full(truth))) + away @ bend @ away
    return float(constant), float(spread + bias)
