"""The residual that sampling alone would give, against simulations of just that."""

import numpy as np
import pytest

from posterity import Ledger, fuse
from posterity.families import (
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    NormalGamma,
    NormalWishart,
    Plate,
    Wishart,
    stack,
)
from posterity.fusion import barycenter
from posterity.fusion.geometry import Divergence
from posterity.fusion.scale import DRAWS, expected_cost

pytestmark = pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning")


def gaussian_sites(rng, counts, size=2):
    """Records of unit noise in one truth, which comes from the prior."""
    noise = np.array([[1.0, 0.5], [0.5, 2.0]])[:size, :size]
    prior = Gaussian.from_standard(np.full(size, 5.0), 4 * np.eye(size))
    truth = rng.multivariate_normal(np.full(size, 5.0), 4 * np.eye(size))
    for count in counts:
        x = rng.multivariate_normal(truth, noise, count)
        precision = np.linalg.inv(noise)
        yield prior, Gaussian(precision @ x.sum(0), precision * count)


def diagonal_sites(rng, counts):
    prior = DiagonalGaussian.from_standard([0.0, 0.0, 0.0], [1.0, 9.0, 100.0])
    truth = rng.normal(0, [1.0, 3.0, 10.0])
    for count in counts:
        x = truth + rng.normal(size=(count, 3))
        yield prior, DiagonalGaussian(x.sum(0), np.full(3, float(count)))


def normal_gamma_sites(rng, counts):
    prior = NormalGamma.from_standard([1.0, 1.0], [0.5, 0.5], [6.0, 6.0], [6.0, 6.0])
    precision = rng.gamma(3.0, 1 / 3.0, 2)
    truth = 1 + rng.normal(size=2) / np.sqrt(0.5 * precision)
    for count in counts:
        x = truth + rng.normal(size=(count, 2)) / np.sqrt(precision)
        n = np.full(2, float(count))
        yield prior, NormalGamma(n, n, x.sum(0), (x**2).sum(0))


def normal_wishart_sites(rng, counts):
    from scipy import stats

    prior = NormalWishart.from_standard([0.0, 2.0], 0.5, np.eye(2) / 6, 6.0)
    precision = stats.wishart(6, np.eye(2) / 6).rvs(random_state=rng)
    cover = np.linalg.inv(precision)
    truth = rng.multivariate_normal([0.0, 2.0], cover / 0.5)
    for count in counts:
        x = rng.multivariate_normal(truth, cover, count)
        yield prior, NormalWishart(float(count), float(count), x.sum(0), x.T @ x)


def dirichlet_sites(rng, counts):
    prior = Dirichlet.from_standard([2.0, 2.0, 2.0, 2.0])
    truth = rng.dirichlet([2.0] * 4)
    for count in counts:
        yield prior, Dirichlet(rng.multinomial(count, truth).astype(float))


FAMILIES = {
    "Gaussian": gaussian_sites,
    "DiagonalGaussian": diagonal_sites,
    "NormalGamma": normal_gamma_sites,
    "NormalWishart": normal_wishart_sites,
    "Dirichlet": dirichlet_sites,
}


def fused(sites, divergence="reverse"):
    ledgers = {}
    for n, (prior, factor) in enumerate(sites):
        posterior = Plate(stack([prior + factor]))
        ledgers[f"s{n}"] = Ledger.of_site(f"s{n}", prior=Plate(stack([prior])), posterior=posterior)
    return fuse(ledgers, rule="barycenter", divergence=divergence, matching="identity")


def on_average(family, counts, divergence, runs):
    """Cost less expectation, and the spread that is expected of it, of many truths."""
    gaps, spreads = [], []
    for seed in range(runs):
        sites = list(FAMILIES[family](np.random.default_rng([seed, 5]), counts))
        prior, members = sites[0][0], stack([prior + factor for prior, factor in sites])
        rng = np.random.default_rng([seed, 6])
        expected, variance = expected_cost(prior, members, Divergence(divergence), rng)
        centre = barycenter(members, np.zeros(len(counts), int), Divergence(divergence),
                            np.ones(len(counts)))  # fmt: skip
        centres = stack([centre[0]] * len(counts))
        reverse = divergence == "reverse"
        cost = centres.kl(members) if reverse else members.kl(centres)
        gaps.append(float(np.sum(cost)) - expected)
        spreads.append(variance**0.5)
    return np.array(gaps), np.array(spreads)


@pytest.mark.parametrize(
    "counts", [(5, 20, 80, 10), pytest.param((30,) * 8, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_scale_is_what_simulations_give_on_average(family, counts):
    """Truths come from the prior: the mean of cost less expectation is zero."""
    gaps, spreads = on_average(family, counts, "reverse", 80)
    assert abs(gaps.mean()) < 4 * gaps.std(ddof=1) / np.sqrt(len(gaps))
    assert 0.6 < gaps.std() / spreads.mean() < 1.6


@pytest.mark.parametrize("family", ["Gaussian", "DiagonalGaussian", "NormalGamma"])
def test_so_it_is_under_forward_kl(family):
    gaps, spreads = on_average(family, (5, 20, 80), "forward", 30)
    assert abs(gaps.mean()) < 4 * gaps.std(ddof=1) / np.sqrt(len(gaps))
    assert 0.5 < gaps.std() / spreads.mean() < 2.0


def test_under_a_flat_prior_it_is_half_a_nat_a_dimension():
    rng = np.random.default_rng(0)
    prior = Gaussian.from_standard(np.zeros(3), 1e12 * np.eye(3))
    sites = [(prior, Gaussian(50 * rng.normal(size=3), 50 * np.eye(3))) for _ in range(4)]
    scale = fused(sites).scale
    assert scale.expected == pytest.approx(3 * 3 / 2 / 4, abs=4 * scale.spread / DRAWS**0.5)


def test_sites_that_differ_stand_out_and_copies_too():
    rng = np.random.default_rng(1)
    sites = list(gaussian_sites(rng, (50, 50, 50)))
    assert "as sampling alone would give" in str(fused(sites).scale)
    assert fused(sites).residual == fused(sites).scale.residual
    prior, factor = sites[0]
    other = Gaussian(factor.precision_mean + factor.precision @ np.full(2, 3.0), factor.precision)
    apart = fused([*sites, (prior, other)]).scale
    assert apart.deviations > 10 and "times what sampling alone" in str(apart)
    copies = fused([sites[0], sites[0], (prior, factor * (1 + 1e-9))]).scale
    assert copies.residual < 1e-9 and copies.deviations < -1


def test_it_holds_a_nats_worth_at_large_offsets():
    rng = np.random.default_rng(2)
    far = lambda: [
        (p.translate(np.full(2, 1e6)), None) for p, _ in normal_wishart_sites(rng, (9, 9))
    ]
    near = list(normal_wishart_sites(np.random.default_rng(3), (30, 30)))
    moved = [(far()[0][0], (p + f).translate(np.full(2, 1e6))) for p, f in near]
    moved = [(p, q - p) for p, q in moved]
    there, here = fused(moved).scale, fused(near).scale
    assert there.expected == pytest.approx(here.expected, rel=0.05)


def test_where_it_cannot_be_said_it_is_not():
    plate = Plate(DiagonalGaussian.from_standard([[0.0]], [[1.0]]))
    other = Plate(DiagonalGaussian.from_standard([[0.5]], [[1.0]]))
    bare = fuse({"a": plate, "b": other}, matching="identity")
    assert bare.scale.expected is None and "priors are not known" in str(bare.scale)
    assert bare.residual == pytest.approx(bare.cost / 2)
    words = Wishart.from_standard(np.eye(2), 5.0)
    unsaid = [(words, Wishart(n, np.eye(2))) for n in (3.0, 4.0)]
    assert "Wishart does not say" in fused(unsaid).scale.why
    streamed = fuse({"a": plate, "b": other}, matching="identity", budget=8)
    assert "matched in passes" in streamed.scale.why


def test_a_law_over_one_number_has_a_scale_to_leading_order():
    """Rates of Poisson counts: the mean cost of sites that saw one rate is what is expected."""
    rng, prior, costs, expected = np.random.default_rng(4), Gamma.from_standard(2.0, 1.0), [], []
    for _ in range(400):
        counts = rng.poisson(rng.gamma(2.0) * np.array([20.0, 30.0, 40.0]))
        members = prior + Gamma(counts.astype(float), np.array([20.0, 30.0, 40.0]))
        middle = members[0].with_natural_parameters(members.natural_parameters.mean(0))
        costs.append(float(middle.kl(members).sum()))
        expected.append(expected_cost(prior, members, Divergence.REVERSE, rng)[0])
    error = np.std(costs) / 20
    assert abs(np.mean(costs) - np.mean(expected)) < 4 * error + 0.1 * np.mean(expected)


def test_nothing_matched():
    far = {
        name: Plate(DiagonalGaussian.from_standard([[at]], [[1e-4]]))
        for name, at in (("a", 0.0), ("b", 1e3))
    }
    fusion = fuse(far, matching={"a": [0], "b": [1]})
    assert fusion.residual is None and str(fusion.scale) == "nothing was matched"
