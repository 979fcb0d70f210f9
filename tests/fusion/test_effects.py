"""Sites whose components differ by more than these do in themselves."""

import itertools

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from posterity import fuse
from posterity.families import NormalWishart, Plate
from posterity.fusion.check import of_matching
from posterity.fusion.doubts import Kind
from posterity.fusion.effects import Effects, Trait

RECORDS = 80
VAGUE = 0.01


def site(rng, means):
    """A plate of Normal-Wisharts that know their means from so many records of unit variance."""
    draws = [mean + rng.normal(size=(RECORDS, len(mean))) for mean in means]
    scatters = [(x - x.mean(0)).T @ (x - x.mean(0)) + np.eye(x.shape[1]) for x in draws]
    counts = np.full(len(draws), RECORDS + VAGUE)
    middles = np.array([x.mean(0) for x in draws])
    law = NormalWishart.from_inverse_scale(middles, counts, np.array(scatters), counts + 2)
    return Plate(law)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sites", [2, 3, 8])
def test_sites_that_share_nothing_keep_what_they_have(sites):
    rng = np.random.default_rng(sites)
    posteriors = {f"{j}": site(rng, 20 * rng.normal(size=(3, 2))) for j in range(sites)}
    assert fuse(posteriors).components == 3 * sites


@pytest.mark.filterwarnings("ignore")
def test_components_that_sites_share_are_found_though_these_differ_more_than_clusters_are_wide():
    rng, size, shared, own = np.random.default_rng(3), 8, 6, 4
    centres = 12 * rng.normal(size=(shared + 2 * own, size))
    first = np.arange(shared + own)
    second = rng.permutation(np.concatenate([np.arange(shared), shared + own + np.arange(own)]))
    moved = lambda which: centres[which] + 2 * rng.normal(size=(len(which), size))
    fused = fuse({"a": site(rng, moved(first)), "b": site(rng, moved(second))})
    assert fused.components == shared + 2 * own
    pairs = {g: fused.matching["a"][k] for k, g in enumerate(first)}
    for k, g in enumerate(second):
        assert (fused.matching["b"][k] == pairs.get(g, -1)) == (g < shared)
    (plate,) = fused.plates.values()
    margins = np.concatenate(list(plate.margins.values()))
    assert (margins > 0).all()
    assert any(own.kind is Kind.FAR for own in of_matching(plate))


def test_evidence_of_a_group_is_the_density_of_its_points_as_copies_over_that_as_strangers():
    rng, share, count = np.random.default_rng(0), 0.3, 4
    trait = Trait(rng.normal(size=(9, 2)))
    points, total = trait.points[:count], trait.variance
    within = share * total * np.eye(count) + (1 - share) * total
    log = lambda covariance: sum(
        multivariate_normal(cov=covariance).logpdf(column) for column in points.T
    )
    expected = log(within) - log(total * np.eye(count))
    middle, square = (points.sum(0) ** 2).sum(), (points**2).sum()
    assert trait.evidence(share, count, middle, square) == pytest.approx(expected)
    assert trait.evidence(share, 1, square, square) == pytest.approx(0)
    assert trait.evidence(1.0, count, middle, square) == pytest.approx(0)


def test_a_margin_is_of_one_component_whatever_else_its_site_could_gain():
    """Against all ways of a site to be matched, where others of the site could be matched too."""
    rng, starts = np.random.default_rng(1), np.array([0, 3, 6])
    trait = Trait(np.repeat(rng.normal(size=(3, 2)), 2, axis=0)[[0, 2, 4, 1, 3, 5]])
    effects = Effects(starts, np.array([0, 1, 2, 0, 3, 4]), (trait,), (0.05,))
    gains, _ = effects.gains(1)
    ways = [
        own
        for own in itertools.product(range(-1, 3), repeat=3)
        if len({at for at in own if at >= 0}) == sum(at >= 0 for at in own)
    ]
    worth = [sum(gains[k, at] for k, at in enumerate(own) if at >= 0) for own in ways]
    for k, here in enumerate([0, -1, -1]):
        at = np.array([own[k] == here for own in ways])
        expected = np.array(worth)[at].max() - np.array(worth)[~at].max()
        assert effects.margins[3 + k] == pytest.approx(expected)
