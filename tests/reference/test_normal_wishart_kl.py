"""KL of Normal-Wisharts against the textbook formula, written from standard parameters."""

import numpy as np
import pytest
from scipy.special import digamma, multigammaln

from posterity.families import NormalWishart
from tests.laws.table import some


def multidigamma(a: float, dimension: int) -> float:
    return float(digamma(a - np.arange(dimension) / 2).sum())


def textbook_kl(p: NormalWishart, q: NormalWishart) -> float:
    """The Gaussian's part given the precision, averaged, plus the Wishart's part."""
    zero, one = p.standard_parameters(), q.standard_parameters()
    d = p.own_size
    k0, k1 = zero["mean_precision"], one["mean_precision"]
    n0, n1 = zero["degrees_of_freedom"], one["degrees_of_freedom"]
    gap = zero["mean"] - one["mean"]
    ratio = np.linalg.solve(one["scale"], zero["scale"])
    means = d * (np.log(k0 / k1) - 1 + k1 / k0) + k1 * n0 * gap @ zero["scale"] @ gap
    return float(
        means / 2
        - n1 / 2 * np.linalg.slogdet(ratio)[1]
        + n0 / 2 * (np.trace(ratio) - d)
        + multigammaln(n1 / 2, d)
        - multigammaln(n0 / 2, d)
        + (n0 - n1) / 2 * multidigamma(n0 / 2, d)
    )


@pytest.mark.parametrize("size", [1, 2, 12])
@pytest.mark.parametrize("seed", range(5))
def test_kl_is_the_textbooks(size: int, seed: int) -> None:
    p, q = some("NormalWishart", count=2, size=size, seed=seed)
    assert p.kl(q) == pytest.approx(textbook_kl(p, q), rel=1e-11)
    assert q.kl(p) == pytest.approx(textbook_kl(q, p), rel=1e-11)


@pytest.mark.parametrize("seed", range(5))
def test_kl_of_a_normal_gamma_is_the_sum_over_coordinates(seed: int) -> None:
    p, q = some("NormalGamma", count=2, size=3, seed=seed)
    expected = [textbook_kl(p.coordinatewise[i], q.coordinatewise[i]) for i in range(3)]
    assert p.kl(q) == pytest.approx(sum(expected), rel=1e-11)
