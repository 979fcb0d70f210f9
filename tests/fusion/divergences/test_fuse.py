"""``fuse`` under other divergences: what it finds, what stays, and what it refuses."""

from typing import Any

import numpy as np
import pytest

from posterity import DiagonalGaussian, Dirichlet, Gamma, Plate, Product, fuse
from posterity.errors import UsageError
from posterity.families import stack
from posterity.fusion import barycenter
from posterity.fusion.divergences import Jeffreys, Renyi
from tests.fusion.made import conjugate_site, plate, site_plates, wishart_prior

pytestmark = [
    pytest.mark.filterwarnings("ignore:The matching.* is uncertain:UserWarning"),
    pytest.mark.filterwarnings("ignore:fused component:UserWarning"),
]

OBJECTS = {"jeffreys": Jeffreys(), "renyi": Renyi(0.5)}
others = pytest.mark.parametrize("name", list(OBJECTS))


def same(one: Any, other: Any) -> bool:
    return bool((one.natural_parameters == other.natural_parameters).all())


@others
def test_well_separated_components_are_found(name: str) -> None:
    sites = site_plates(0, count=3)
    default, fused = fuse(sites), fuse(sites, divergence=name)
    assert fused.components == default.components
    assert all((fused.matching[s] == default.matching[s]).all() for s in sites)
    assert fused.divergence == OBJECTS[name]
    assert not same(fused.posterior, default.posterior)
    # What the fused members are: the barycentres of what was matched.
    labels = np.concatenate([fused.matching[s] for s in sites])
    members = np.concatenate([q.members.natural_parameters for q in sites.values()])
    members = next(iter(sites.values())).members.with_natural_parameters(members)
    expected = barycenter(members, labels, name)
    np.testing.assert_allclose(
        fused.posterior.members.natural_parameters, expected.natural_parameters, rtol=1e-6
    )
    cost = fused.divergence.between(expected[labels], members).sum()
    np.testing.assert_allclose([fused.cost, fused.trace[-1]], cost, rtol=1e-6)


@others
def test_no_order_shows(name: str) -> None:
    sites = site_plates(3, count=2)
    rng, turned = np.random.default_rng(0), {}
    for site in reversed(sites):
        order = rng.permutation(sites[site].size)
        weights = Dirichlet(sites[site].weights.concentration_minus_one[order])
        turned[site] = Plate(sites[site].members[order], weights)
    one, other = fuse(sites, divergence=name), fuse(turned, divergence=name)
    assert same(one.posterior, other.posterior) and one.cost == other.cost


@others
def test_the_number_can_be_given(name: str) -> None:
    fused = fuse(site_plates(2, count=3, spread=1.0), divergence=name, components=6)
    assert fused.components == 6 and fused.trace[-1] == fused.cost
    for labels in fused.matching.values():
        assert len(set(labels.tolist())) == len(labels)


@others
def test_the_summed_divergence_falls(name: str) -> None:
    """Wide and sharp components, for which it does not end where the evidence began."""
    rng = np.random.default_rng(23)
    draws = [(rng.normal(size=(3, 2)), np.exp(2 * rng.normal(size=(3, 2)))) for _ in range(4)]
    sites = [Plate(DiagonalGaussian.from_standard(mean, variance)) for mean, variance in draws]
    fused = fuse(sites, divergence=name, components=4)
    assert len(fused.trace) > 1 and (np.diff(fused.trace) < 0).all()
    assert fused.trace[-1] == fused.cost


def test_order_one_is_the_default_to_the_last_bit() -> None:
    sites = site_plates(1)
    one, default = fuse(sites, divergence=Renyi(1.0)), fuse(sites)
    assert same(one.posterior, default.posterior) and one.divergence == default.divergence


@pytest.mark.parametrize("name", ["jeffreys", "renyi:0.3"])
def test_every_block_is_averaged_by_it(name: str) -> None:
    def site(seed: int) -> Product:
        rng = np.random.default_rng(seed)
        topics = Dirichlet.from_standard(rng.gamma(2.0, size=(2, 3)) * 20)
        return Product(topics=Plate(topics), rate=Gamma.from_standard(2.0 + seed, 3.0))

    sites = [site(0), site(1)]
    fused = fuse(sites, divergence=name)
    rates = stack([s.rate for s in sites])
    expected = barycenter(rates, np.zeros(2, int), name)[0]
    assert same(fused.posterior.rate, expected)  # type: ignore[attr-defined]


@others
def test_products_take_the_matching_and_the_sum_stays(name: str) -> None:
    rng = np.random.default_rng(0)
    base = Dirichlet.from_standard(np.ones(2))
    data = {s: [rng.normal(size=(40, 2)), 9 + rng.normal(size=(30, 2))] for s in "abc"}
    sites = [conjugate_site(s, base, clusters, wishart_prior(2)) for s, clusters in data.items()]
    one, other = (fuse(sites, rule="product", divergence=d) for d in (name, "reverse"))
    assert same(one.posterior, other.posterior) and one.ledger is not None


def test_what_it_cannot_do_is_said() -> None:
    sites = [plate(0.0, 5.0), plate(5.1, 0.1)]
    with pytest.raises(UsageError, match="an eighth"):
        fuse(sites, divergence="jeffreys", budget=100)
    with pytest.raises(UsageError, match="problem"):
        fuse(sites, divergence="renyi", matching="kl-fusion")
    for gone in ("hellinger", "wasserstein", "optimal-transport"):
        with pytest.raises(UsageError, match=r"\['reverse', 'forward', 'jeffreys', 'renyi'\]"):
            fuse(sites, divergence=gone)
    with pytest.raises(UsageError, match="above 0"):
        fuse(sites, divergence="renyi:2")
