"""The check of a fusion of sites that differ.

Copies, and sites that say nothing, are looked for as in every fusion, and so are contradictions
between sites in coefficients that all share. In those that differ a site contradicts the others if
its estimates have too little chance under the population that is learnt from these (presanis2013).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from posterity.families import Gaussian
from posterity.fusion.blocks import Block, side_by_side
from posterity.fusion.counting import counted_twice
from posterity.fusion.deviations import deviate
from posterity.fusion.doubts import Doubt, Kind, doubt, more
from posterity.fusion.groups import Groups, different
from posterity.fusion.silence import say_nothing
from posterity.fusion.sites import Site, Sites
from posterity.inference.expectation_propagation import Normal
from posterity.inference.population import BLOCKS, variances
from posterity.inference.random_effects import Effects, RandomEffects


def doubts(
    sites: Sites, prior: Gaussian, effects: Effects, level: float, wider: Sequence[str]
) -> Iterator[Doubt]:
    """Yield doubts about sites whose coefficients differ.

    Args:
        sites: to which the sites' posteriors are added.
        prior: that of the population's coefficients.
        effects: the population, with the messages of all sites.
        level: chance that sites of one truth are doubted, for each kind of doubt.
        wider: sites whose posterior was wider than their prior, where it is ignored.
    """
    if wider:
        yield doubt(Kind.WIDER, site=wider[0], more=more(len(wider) - 1))
    before = Normal.of(prior)
    start: Any = before.law
    for site, message in effects.messages.items():
        law: Any = before.plus(message).law
        if law.is_proper():
            sites.loaded[site] = Site(law, start)
    sites.names = [*sites.loaded]
    sites.blocks |= _laid(sites.loaded) if sites.loaded else {}
    sites.ledgers.update(sites.names)  # so that all pairs are counted
    with np.errstate(all="ignore"):
        twice = counted_twice(sites, level)
        if twice is not None:
            yield twice.doubt
        others = {site: law for site, law in sites.loaded.items() if site not in wider}
        yield from say_nothing(_laid(others), True) if others else ()
        yield from _farthest(effects, level)
        shared = np.setdiff1d(np.arange(len(effects.names)), effects.own)
        if len(shared) and len(sites.names) > 1:
            names = tuple(effects.names[place] for place in shared)
            common = {
                site: Site(_marginal(law.posterior, shared), _marginal(start, shared))
                for site, law in sites.loaded.items()
            }
            yield from different(Groups(_laid(common)[""], None), names, level)


def _laid(sites: Mapping[str, Site]) -> dict[str, Block]:
    posteriors, priors, *_ = map(list, zip(*sites.values(), strict=True))
    return side_by_side([*sites], posteriors, priors)


def _marginal(law: Any, places: np.ndarray) -> Gaussian:
    return Gaussian.from_standard(law.mean[places], law.covariance[np.ix_(places, places)])


def _farthest(effects: Effects, level: float) -> Iterator[Doubt]:
    """Yield a doubt about the site that is farthest from the population of all, if those of its
    coefficients that differ have less than the chance ``level`` under that of the others, corrected
    for the numbers of sites and coefficients.
    """
    chances = np.array([_chances(effects, site, effects) for site in effects.sites])[:, effects.own]
    place = np.unravel_index(np.nan_to_num(chances).argmin(), chances.shape)[0]
    site = effects.sites[place]
    nats = -np.nan_to_num(_chances(effects, site, _without(effects, site))[effects.own])
    worst = int(nats.argmax())
    evidence = float(nats[worst] - np.log(chances.size))
    if evidence > -np.log(level):
        facts: Any = {"about": effects.personal[worst], "where": ""}
        yield doubt(Kind.CONTRADICTION, evidence, site, sigmas=float(deviate(nats[worst])), **facts)


def _without(effects: Effects, name: str) -> Effects:
    """Return the population of the other sites under the prior of the spreads that all have: as few
    others may be alike by chance, they alone do not tell how far sites differ. A quarter as many
    draws, where spreads need them, tell a mean and a deviation.
    """
    log_spread = effects.spreads_before.law.named(effects.personal)
    common: Any = effects.prior.blocks[BLOCKS[0]]
    prior = RandomEffects(coefficients=common, log_spread=log_spread)
    rest = {site: own for site, own in effects.messages.items() if site != name}
    return Effects(prior, rest, effects.pairs // 4)


def _chances(effects: Effects, site: str, others: Effects) -> np.ndarray:
    """Return the log chances (d,) that estimates of a site are as far, on either side, from what a
    population of ``others`` predicts of them; NaN for those that the site lacks.
    """
    estimates, errors = effects.alone(site)
    at = others.nodes
    between = variances(at.log_spread, others.own, len(others.names))
    within = np.diagonal(at.covariance, axis1=1, axis2=2)
    away = (estimates - at.mean) / np.sqrt(within + between + errors**2)
    sides = [
        scipy.special.logsumexp(scipy.special.log_ndtr(side), axis=0, b=at.weights[:, None])
        for side in (away, -away)
    ]
    return np.log(2) + np.minimum(*sides)
