"""Components without a location are grouped by the evidence of their pooled records."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

from posterity import Beta, Dirichlet, Gamma, Ledger, Plate, Product, fuse
from posterity.fusion.absorb import Pairs

Rng = np.random.Generator
SITES, CLUSTERS, COLUMNS = 6, 4, 8


def bernoulli(rng: Rng) -> tuple[Any, Callable[[int, int], Any]]:
    """A prior of shares, and what so many records of a cluster add to it."""
    shares = rng.beta(0.5, 0.5, (CLUSTERS, COLUMNS)).clip(0.03, 0.97)

    def factor(cluster: int, records: int) -> Any:
        ones = rng.binomial(records, shares[cluster]).astype(float)
        return Product({f"x{k}": Beta(n, records - n) for k, n in enumerate(ones)})

    return Product({f"x{k}": Beta.from_standard(1.0, 1.0) for k in range(COLUMNS)}), factor


def rates(rng: Rng) -> tuple[Any, Callable[[int, int], Any]]:
    truth = np.exp(rng.normal(1.0, 1.0, (CLUSTERS, COLUMNS)))

    def factor(cluster: int, records: int) -> Any:
        counts = rng.poisson(records * truth[cluster]).astype(float)
        return Product({f"x{k}": Gamma(n, float(records)) for k, n in enumerate(counts)})

    return Product({f"x{k}": Gamma.from_standard(0.5, 0.1) for k in range(COLUMNS)}), factor


def categories(rng: Rng) -> tuple[Any, Callable[[int, int], Any]]:
    tables = rng.dirichlet(np.full(5, 0.5), (CLUSTERS, COLUMNS))

    def factor(cluster: int, records: int) -> Any:
        rows = [rng.multinomial(records, table).astype(float) for table in tables[cluster]]
        return Product({f"x{k}": Dirichlet(row) for k, row in enumerate(rows)})

    ones = Dirichlet.from_standard(np.ones(5))
    return Product({f"x{k}": ones for k in range(COLUMNS)}), factor


def ledger(name: str, prior: Any, factors: list[Any], counts: list[float]) -> Ledger:
    """What a site that knows which record is whose has learnt."""
    weights = Dirichlet.from_standard(np.ones(len(factors)))
    natural = prior.natural_parameters
    start = prior[None].with_natural_parameters(np.tile(natural, (len(factors), 1)))
    whole = np.array([natural + factor.natural_parameters for factor in factors])
    after = Dirichlet(weights.concentration_minus_one + counts)
    posterior = Plate(prior[None].with_natural_parameters(whole), after)
    return Ledger.of_site(name, prior=Plate(start, weights), posterior=posterior)


@pytest.mark.parametrize("most", [60, 20000])
@pytest.mark.parametrize("make", [bernoulli, rates, categories])
def test_clusters_of_few_and_of_many_records_are_found(make: Any, most: int) -> None:
    rng = np.random.default_rng(most)
    prior, factor = make(rng)
    sites, labels = {}, {}
    for site in range(SITES):
        own = rng.permutation(CLUSTERS)[: int(rng.integers(2, CLUSTERS + 1))].tolist()
        counts = np.exp(rng.uniform(np.log(20), np.log(most), len(own))).astype(int).tolist()
        factors = [factor(g, n) for g, n in zip(own, counts, strict=True)]
        sites[f"{site}"], labels[f"{site}"] = ledger(f"{site}", prior, factors, counts), own
    fused = fuse(sites)
    pairs = {
        (g, k)
        for n, own in labels.items()
        for g, k in zip(own, fused.matching[n].tolist(), strict=True)
    }
    assert len(pairs) == fused.components == CLUSTERS
    assert not fused.warnings
    # Evidence is that of a clustering of whole sites: no component gains by going elsewhere.
    assert min(margins.min() for margins in fused.margins.values()) > 3


def test_the_variance_between_sites_that_differ_is_found_and_their_components_are_one() -> None:
    """Rates differ by a tenth from site to site, which thousands of records show."""
    rng, sites = np.random.default_rng(0), {}
    truth = np.array([[2.0, 8.0, 1.0, 4.0], [8.0, 2.0, 4.0, 1.0]])
    prior = Product({f"x{k}": Gamma.from_standard(0.5, 0.1) for k in range(4)})
    for site in range(SITES):
        factors = []
        for own in truth * np.exp(0.1 * rng.normal(size=truth.shape)):
            counts = rng.poisson(3000 * own).astype(float)
            factors.append(Product({f"x{k}": Gamma(n, 3000.0) for k, n in enumerate(counts)}))
        sites[f"{site}"] = ledger(f"{site}", prior, factors, [3000.0, 3000.0])
    with pytest.warns(UserWarning, match="contradicts|differ"):
        fused = fuse(sites)
    assert fused.components == 2


def test_entropy_of_records_is_that_of_all_that_there_can_be() -> None:
    """Two columns of symbols have so few kinds of records that all can be gone through."""
    one, two = [[0.7, 0.3], [0.2, 0.5, 0.3]], [[0.4, 0.6], [0.3, 0.3, 0.4]]
    law = lambda table, n: Product(
        {f"x{k}": Dirichlet(n * np.array(row)) for k, row in enumerate(table)}
    )
    laws = [law(one, 5000.0), law(two, 3000.0)]
    stacked = laws[0][None].with_natural_parameters(
        np.array([own.natural_parameters for own in laws])
    )
    rows = np.zeros(1, int)
    pairs = Pairs(stacked, stacked.natural_parameters, rows, rows + 1)
    found = pairs.left_open((np.array([5000.0]), np.array([3000.0])), rows)
    expected, shares = 0.0, np.array([5000.0, 3000.0]) / 8000
    for x in range(2):
        for y in range(3):
            both = shares * [table[0][x] * table[1][y] for table in (one, two)]
            expected += 8000 * both.sum() * scipy.special.entr(both / both.sum()).sum()
    assert found == pytest.approx(expected, rel=0.03)
