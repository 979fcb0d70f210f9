"""Sites that say nothing, or less than their prior, or too little for a full covariance."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from posterity.families import Gamma, NormalWishart
from posterity.fusion.blocks import Block
from posterity.fusion.doubts import Doubt, Kind, doubt, more

Array = np.ndarray
NOTHING = 0.1
"""Nats between a site's posterior and its prior below which it says nothing: records that change
odds by a tenth are none."""


def say_nothing(blocks: Mapping[str, Block], every: bool) -> Iterator[Doubt]:
    """Yield doubts about sites whose posterior is less sure than their prior in a block, or the
    same in all, if these are ``every`` block.
    """
    names: Any = next((block.names for block in blocks.values()), ())
    if not all(block.priors.exchangeable.all() for block in blocks.values()):
        return
    learnt = np.zeros(len(names))
    lost = np.zeros(len(names))
    for block in blocks.values():
        heaviest = np.lexsort((-block.counts, block.site))[np.cumsum(block.sizes) - block.sizes]
        told = block.members.kl(block.priors.at(block.site))
        learnt = learnt + np.bincount(block.site, told, len(names))
        lost = np.fmax(lost, _lost(block.members[heaviest], block.priors.at(block.site[heaviest])))
    by_name = np.argsort(np.array(names, str), kind="stable")
    less = by_name[lost[by_name] > NOTHING]
    if len(less):
        yield doubt(Kind.LESS, float(lost[less[0]]), names[less[0]], more=more(len(less) - 1))
    quiet = by_name[((learnt < NOTHING) & (lost <= NOTHING))[by_name]]
    if every and len(quiet):
        least = float(learnt[quiet[0]])
        yield doubt(Kind.NOTHING, least, names[quiet[0]], more=more(len(quiet) - 1))


def _lost(own: Any, prior: Any) -> Any:
    """Return how much less sure laws are than their priors, in nats: the entropy that Gaussians
    gained, or half the log ratio of numbers that no records of a conjugate likelihood reduce; of
    several blocks the most. Zero for families without such a number.
    """
    if own.gaussian:
        return own.entropy() - prior.entropy()
    parts = own.independent_blocks()
    if parts:
        others = prior.independent_blocks()
        return np.max([_lost(part, others[name]) for name, part in parts.items()], axis=0)
    if isinstance(own, Gamma):
        return np.log(prior.shape / own.shape) / 2
    before = prior.observations()
    return np.zeros(own.batch_shape) if before is None else np.log(before / own.observations()) / 2


def few_records(block: Block) -> Iterator[Doubt]:
    """Yield a doubt if more than half of the covariances have fewer records than dimensions."""
    members: Any = block.members
    if not isinstance(members, NormalWishart):
        return
    before = 0.0
    if block.priors.exchangeable.all():
        before = block.priors.at(block.site).observations()
    few = int((members.observations() - before < members.own_size)[block.used].sum())
    matched = int(block.used.sum())
    if 2 * few > matched:
        facts: Any = {"count": few, "matched": matched, "size": members.own_size}
        yield doubt(Kind.FEW, place=block.place, **facts)
