"""Warnings of sites that contradict each other, say nothing, differ too much, or may be one."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from posterity import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    Ledger,
    NormalWishart,
    Plate,
    Product,
    fuse,
)
from posterity.errors import FusionWarning
from posterity.families import stack
from posterity.families.formulas import BETA, NORMAL
from posterity.families.marginals import Closed
from posterity.fusion import alignment, judged_passes
from posterity.fusion.deviations import apart, deviate, jointly, nats
from posterity.fusion.doubts import Kind
from posterity.fusion.other_components import of_presence
from tests.fusion import made

pytestmark = pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning")


def regression(seed: int, slopes: Any, count: int = 60) -> Gaussian:
    """The likelihood of a linear regression on raw columns, as a factor."""
    rng = np.random.default_rng(seed)
    x = np.hstack([np.ones((count, 1)), 1000 + 3 * rng.normal(size=(count, 2))])
    y = x @ np.asarray(slopes) + rng.normal(size=count)
    return Gaussian(x.T @ y, x.T @ x)


def ledgers(*factors: Gaussian) -> dict[str, Ledger]:
    prior = Gaussian.from_standard(np.zeros(3), 1e6 * np.eye(3))
    return {
        f"site {k}": Ledger.of_site(f"site {k}", prior=prior, posterior=prior + factor)
        for k, factor in enumerate(factors)
    }


def test_sites_of_one_truth_are_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    fused = fuse(ledgers(*(regression(k, [3.0, 1.0, -2.0]) for k in range(6))))
    assert not fused.warnings and not recwarn.list


def test_a_site_whose_coefficients_are_far_from_the_others_is_named_once() -> None:
    factors = [regression(k, [3.0, 1.0, -2.0]) for k in range(5)]
    with pytest.warns(FusionWarning, match="'site 5' contradicts.*personal=True") as heard:
        fused = fuse(ledgers(*factors, regression(5, [3.0, 1.0, 2.0])))
    assert [str(w.message) for w in heard] == list(fused.warnings)


@pytest.mark.parametrize(
    ("apart", "where"), [([0.0, 0, 0], None), ([1.0, 1.0, 1.0], " in "), ([0, 2.0, 0], " in 1 ")]
)
def test_many_sites_that_differ_though_none_contradicts_the_others_are_seen(
    apart: list[float], where: str | None
) -> None:
    rng, sites = np.random.default_rng(1), []
    for slopes in [3.0, 1.0, -2.0] + 0.1 * rng.normal(size=(30, 3)) * apart:
        x = rng.normal(size=(100, 3))
        y = x @ slopes + rng.normal(size=100)
        sites.append(Gaussian(x.T @ y, x.T @ x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fused = fuse(ledgers(*sites))
    assert [own.kind for own in fused.doubts] == [Kind.DIFFERENCE] * bool(where)
    assert all(f"{where}" in own.finding for own in fused.doubts)


def test_a_contradiction_that_no_coefficient_shows_alone_is_seen() -> None:
    """An intercept far from all records hides a shift of half a deviation of the noise."""
    factors = [regression(k, [3.0, 1.0, -2.0], 400) for k in range(3)]
    sites = ledgers(*factors, regression(3, [3.6, 1.0, -2.0], 400))
    away = [apart(a.marginals()[0], b.marginals()[0]).max() for a, b in _pairs(sites)]
    assert max(away) < 6
    with pytest.warns(FusionWarning, match="'site 3'.*everything together"):
        fuse(sites)


@pytest.mark.parametrize("seed", range(3))
def test_a_prior_far_from_all_records_is_no_contradiction(seed: int) -> None:
    """It inflates the variances of sites with few records the most, and those of all a little."""
    rng, base = np.random.default_rng(seed), Dirichlet.from_standard(np.ones(1))
    data = [rng.normal(30.0, 1.0, (count, 2)) for count in (20, 40, 400, 30)]
    sites = [made.conjugate_site(f"site {k}", base, [x]) for k, x in enumerate(data)]
    assert not fuse(sites, components=1).warnings
    assert fuse(sites).components == 1
    data[1] += [3.0, 0.0]  # ten standard errors
    sites = [made.conjugate_site(f"site {k}", base, [x]) for k, x in enumerate(data)]
    with pytest.warns(FusionWarning, match="contradicts"):
        fuse(sites, components=1)


def test_components_that_only_their_priors_hold_apart_may_be_one() -> None:
    rng, base, sites = np.random.default_rng(0), Dirichlet.from_standard(np.ones(1)), []
    for k, sure in enumerate((0.001, 10.0, 0.001, 10.0)):
        far = NormalWishart.from_inverse_scale(
            np.full((1, 2), 30.0), np.full(1, sure), 4 * np.eye(2)[None], np.full(1, 4.0)
        )
        data = [rng.normal(size=(50, 2))]
        sites.append(made.conjugate_site(f"site {k}", base, data, far))
    with pytest.warns(FusionWarning, match="may be one"):
        assert fuse(sites).components == 2


def _pairs(sites: dict[str, Ledger]) -> Any:
    whole = fuse(sites).ledger
    assert whole is not None
    return [(own.posterior, whole.cavity(name)) for name, own in sites.items()]


def test_rates_shares_and_categories_that_differ_are_seen() -> None:
    def sites(prior: Any, *factors: Any) -> dict[str, Ledger]:
        return {
            str(k): Ledger.of_site(str(k), prior=prior, posterior=prior + f)
            for k, f in enumerate(factors)
        }

    gamma, beta = Gamma.from_standard(1.0, 1.0), Beta.from_standard(1.0, 1.0)
    apart_ = [
        sites(gamma, Gamma(100.0, 100.0), Gamma(108.0, 100.0), Gamma(200.0, 100.0)),
        sites(beta, Beta(50.0, 50.0), Beta(45.0, 55.0), Beta(95.0, 5.0)),
        sites(Dirichlet.from_standard(np.ones(3)), Dirichlet([60.0, 30.0, 10.0]),
              Dirichlet([55.0, 33.0, 12.0]), Dirichlet([3.0, 7.0, 90.0])),
    ]  # fmt: skip
    for own in apart_:
        with pytest.warns(FusionWarning, match="'2'.*contradicts"):
            fuse(own)
        two = dict(list(own.items())[:2])
        assert not fuse(two).warnings
    # None of a hundred where one in twenty is expected is no contradiction.
    rare = sites(beta, Beta(0.0, 100.0), Beta(2500.0, 47500.0))
    assert not fuse(rare).warnings


def test_equal_counts_of_many_small_sites_are_no_copies() -> None:
    prior = Gamma.from_standard(1.0, 1.0)
    made = lambda *numbers: {
        str(k): Ledger.of_site(str(k), prior=prior, posterior=prior + Gamma(*own))
        for k, own in enumerate(numbers)
    }
    assert not fuse(made((3.0, 10.0), (3.0, 10.0), (5.0, 10.0), (4.0, 10.0))).warnings
    for copied in ((3.0, 10.7), (5e5, 6e5)):  # an exposure, or a count, that no two share
        with pytest.warns(FusionWarning, match="hold the same posterior"):
            fuse(made(copied, copied))


def test_a_site_whose_posterior_is_its_prior_says_nothing() -> None:
    sites = ledgers(*(regression(k, [3.0, 1.0, -2.0]) for k in range(3)), Gaussian(
        np.zeros(3), np.zeros((3, 3))))  # fmt: skip
    with pytest.warns(FusionWarning, match="'site 3' says nothing"):
        fused = fuse(sites)
    assert len(fused.warnings) == 1


def test_clusters_that_a_site_moved_are_warned_of() -> None:
    rng, base = np.random.default_rng(0), Dirichlet.from_standard(np.ones(2) / 2)
    site = lambda name, shift: made.conjugate_site(
        name, base, [rng.normal(size=(200, 2)) + shift, rng.normal(size=(200, 2)) + 12]
    )
    fused = fuse([site("a", 0.0), site("b", 0.0), site("c", 0.0)])
    assert fused.components == 2 and not fused.warnings
    with pytest.warns(FusionWarning, match="'c'.*contradicts.*component"):
        moved = fuse([site("a", 0.0), site("b", 0.0), site("c", 0.8)])
    assert moved.components == 2


def test_deviations_between_laws_are_those_of_their_difference() -> None:
    normal = lambda *of: Closed(NORMAL, tuple(np.array([one]) for one in of))
    np.testing.assert_allclose(apart(normal(0.0, 3.0), normal(20.0, 4.0)), [4.0], rtol=1e-6)
    # A law that is certain leaves the other's own tail.
    beta = Closed(BETA, (np.array([1.0]), np.array([101.0])))
    tail = stats.norm.isf(stats.beta(1, 101).sf(0.05))
    np.testing.assert_allclose(apart(beta, normal(0.05, 1e-9)), [abs(tail)], rtol=1e-6)


def test_joint_deviations_are_those_of_a_chi_squared() -> None:
    rng = np.random.default_rng(2)
    a, b = (np.cov(rng.normal(size=(4, 9))) for _ in range(2))
    gap = np.array([4.0, -3.0, 2.0, 3.0])
    one, other = Gaussian.from_standard(gap, a), Gaussian.from_standard(np.zeros(4), b)
    chi = gap @ np.linalg.solve(a + b, gap)
    expected = stats.norm.isf(stats.chi2(4).sf(chi) / 2)
    found = deviate(nats(jointly(one[None], other[None]), 4))
    np.testing.assert_allclose(found, [expected], rtol=1e-6)


def test_covariances_of_fewer_records_than_dimensions_are_warned_of() -> None:
    rng, size = np.random.default_rng(3), 8
    prior = NormalWishart.from_inverse_scale(np.zeros(size), 0.01, 10 * np.eye(size), 10.0)

    def site(name: str, count: int) -> Ledger:
        x = rng.normal(size=(count, size))
        n = float(count)
        whole = prior + NormalWishart(n, n, x.sum(0), x.T @ x)
        alone = lambda law: Plate(stack([law]))
        return Ledger.of_site(name, prior=alone(prior), posterior=alone(whole))

    with pytest.warns(FusionWarning, match="3 of 3 components are known from fewer records"):
        fuse([site("a", 4), site("b", 5), site("c", 6)])
    assert not any("fewer" in line for line in fuse([site("a", 40), site("b", 50)]).warnings)


def of_few_records(seed: int) -> dict[str, Ledger]:
    """A component of many records, and at either site one of six: the same, and another one."""
    rng, start, names = np.random.default_rng(seed), Beta.from_standard(1.0, 1.0), range(20)
    prior = Product({f"x{n}": start for n in names})

    def site(name: str, **records: int) -> Ledger:
        laws, base = [], Dirichlet.from_standard(np.full(len(records), 0.5))
        for group, count in records.items():
            shares = np.where(np.arange(20) % 2 == (group == "odd"), 0.7, 0.3)
            ones = rng.binomial(count, shares).astype(float)
            laws.append(Product({f"x{n}": start + Beta(ones[n], count - ones[n]) for n in names}))
        counts = Dirichlet(base.concentration_minus_one + np.array([*records.values()], float))
        before, after = Plate(stack([prior] * len(laws)), base), Plate(stack(laws), counts)
        return Ledger.of_site(name, prior=before, posterior=after)

    return {"a": site("a", odd=400, even=6), "b": site("b", odd=6)}


@pytest.mark.filterwarnings("ignore")
def test_components_of_few_records_that_are_matched_with_each_other_are_named() -> None:
    sites = of_few_records(6)
    fused = fuse(sites)
    assert fused.matching["b"][0] == fused.matching["a"][1]
    (own,) = [own for own in fused.doubts if own.kind is Kind.OTHER]
    assert (own.site, own.component) == ("b", 1) and own.nats > 3
    other = {**fused.matching, "b": fused.matching["a"][:1]}
    assert fuse(sites, matching=other).matching["b"] == fused.matching["a"][0]


@pytest.mark.parametrize("seed", range(6))
def test_a_component_of_few_records_is_matched_with_one_of_many(seed: int) -> None:
    fused = fuse(of_few_records(seed))
    assert fused.matching["b"][0] == fused.matching["a"][0] and not fused.doubts


@pytest.mark.filterwarnings("ignore")
def test_a_site_that_is_less_sure_than_its_prior_is_named() -> None:
    sites = ledgers(*(regression(k, [3.0, 1.0, -2.0]) for k in range(4)))
    exchanged = {
        name: Ledger.of_site(name, prior=own.total, posterior=own.prior)
        for name, own in sites.items()
    }
    for some, line in (
        (exchanged, "'site 0' (and 3 more)"),
        ({**sites, **{"site 0": exchanged["site 0"]}}, "'site 0'"),
    ):
        assert f"site {line} is less sure than its prior" in fuse(some).warnings[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("budget", [None, 2000])
@pytest.mark.parametrize(
    ("prior", "learnt"),
    [
        (Beta.from_standard(1.0, 1.0), Beta(30.0, 20.0)),
        (Gamma.from_standard(1.0, 1.0), Gamma(30.0, 20.0)),
        (Dirichlet.from_standard(np.ones(3)), Dirichlet(np.array([9.0, 8.0, 7.0]))),
    ],
)
def test_an_exchanged_ledger_of_counts_is_named(
    prior: Any, learnt: Any, budget: int | None
) -> None:
    own, names = prior + learnt, [f"s{j}" for j in range(40)]
    sites = {n: Ledger.of_site(n, prior=prior, posterior=own) for n in names}
    assert not any("less sure" in line for line in fuse(sites, budget=budget).warnings)
    sites["s2"] = Ledger.of_site("s2", prior=own, posterior=prior)
    lines = fuse(sites, prior=prior, budget=budget).warnings
    assert any("site 's2' is less sure than its prior" in line for line in lines)
    assert not any("says nothing" in line for line in lines)


@pytest.mark.filterwarnings("ignore")
def test_lines_about_some_sites_say_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "LEAST", 20)
    rng = np.random.default_rng(0)
    own = [[[0.0, 0.0], [100.0 if j < 12 else -90.0 * j, 2.0 * (j == 5)]] for j in range(40)]
    laws = [
        DiagonalGaussian.from_standard(mean + 0.1 * rng.normal(size=(2, 2)), np.full((2, 2), 0.01))
        for mean in np.array(own)
    ]
    sites = {f"s{j:02}": Plate(law) for j, law in enumerate(laws)}
    fused = fuse(sites, budget=2000)
    (plate,) = fused.plates.values()
    assert isinstance(plate.confidence, judged_passes.PassConfidence)
    examined = len(plate.confidence.examined())
    assert 3 <= examined <= 10  # of two components each, about as many as the sample
    assert any(f"(of 40 sites {examined} were examined)" in line for line in fused.warnings)


# --- the check ------------------------------------------------------------------------------------


def normals(
    rng: np.random.Generator, held: Any, shift: float = 0.0, records: int = 60
) -> dict[str, Ledger]:
    """Ledgers of normal records about clusters in the plane, those of the last site shifted along
    the first column by so many deviations of a record.
    """
    corners = [[0, 0], [1, 0], [0, 1], [1, 1], [2, 1], [1, 2], [2, 2], [2, 0], [0, 2], [3, 0]]
    centres = 12.0 * np.array(corners)
    sites = {}
    for k, own in enumerate(held):
        step = shift * (k == len(held) - 1) * np.array([1.0, 0.0])
        base = Dirichlet.from_standard(np.ones(len(own)) / len(own))
        data = [centres[g] + step + rng.normal(size=(records, 2)) for g in own]
        prior = NormalWishart.from_inverse_scale(
            np.zeros((len(own), 2)), np.full(len(own), 1e-3),
            np.stack([np.eye(2)] * len(own)), np.full(len(own), 4.0),
        )  # fmt: skip
        sites[f"site {k}"] = made.conjugate_site(f"site {k}", base, data, prior)
    return sites


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_right_fusions_are_doubted_no_more_often_than_the_level_says() -> None:
    doubted = 0
    for seed in range(150):
        rng = np.random.default_rng([11, seed])
        held = [rng.permutation(4)[: rng.integers(2, 5)].tolist() for _ in range(5)]
        fused = fuse(normals(rng, held), level=0.05)
        assert fused.components == len({g for own in held for g in own})
        doubted += any(not own.kind.of_matching for own in fused.doubts)
    # Six kinds of doubt about what sites say, of which few are ever near.
    assert doubted <= 150 * 2 * 0.05 + 3 * np.sqrt(150 * 0.1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("shift", "least"), [(0.7, 0.8), (1.0, 1.0)])
def test_a_shifted_site_is_doubted(shift: float, least: float) -> None:
    found = 0
    for seed in range(20):
        doubts = fuse(normals(np.random.default_rng(seed), [[0, 1, 2]] * 4, shift)).doubts
        found += any(own.kind is Kind.CONTRADICTION and own.site == "site 3" for own in doubts)
    assert found >= 20 * least


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), shift=st.sampled_from([0.0, 1.0]))
def test_doubts_do_not_depend_on_the_order_of_sites(seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    sites = normals(rng, [[0, 1], [1, 2, 3], [0, 3], [2, 1]], shift)
    assert fuse(sites).doubts == fuse(dict(reversed(sites.items()))).doubts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("times", "offset"),
    [
        ([[0.0, 1.0], [1.0, 0.0]], [0.0, 300.0]),  # columns exchanged, one of them far from zero
        ([[1.0, 0.0], [0.0, 1.0]], [0.0, 273.15]),
        ([[18.0, 0.0], [0.0, 1.0]], [0.0, 0.0]),
    ],
)
def test_a_site_with_other_columns_or_units_is_noticed(times: Any, offset: Any) -> None:
    sites = normals(np.random.default_rng(0), [[0, 1, 2, 3]] * 6)
    rng = np.random.default_rng(1)
    centres = 12.0 * np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    data = [(centre + rng.normal(size=(60, 2))) @ times + offset for centre in centres]
    base = Dirichlet.from_standard(np.ones(4) / 4)
    prior = NormalWishart.from_inverse_scale(
        np.zeros((4, 2)), np.full(4, 1e-3), np.stack([np.eye(2)] * 4), np.full(4, 4.0)
    )
    sites["site 5"] = made.conjugate_site("site 5", base, data, prior)
    (own,) = [own for own in fuse(sites).doubts if not own.kind.of_matching]
    assert own.kind is Kind.STRANGER and own.site == "site 5"


@pytest.mark.filterwarnings("ignore")
def test_a_site_of_three_that_shares_nothing_is_noticed() -> None:
    """As in other units, or shifted."""
    sites = normals(np.random.default_rng(3), [[0, 1, 2], [0, 1, 2], [3, 4, 5]])
    (own,) = [own for own in fuse(sites).doubts if not own.kind.of_matching]
    assert own.kind is Kind.STRANGER and own.site == "site 2"


@pytest.mark.filterwarnings("ignore")
def test_two_sites_may_share_nothing_unless_they_have_many() -> None:
    """Of two it is not known which is in other units, or shifted."""
    assert not fuse(normals(np.random.default_rng(3), [[0, 1], [2, 3]])).doubts
    many = [0, 1, 2, 3, 4], [5, 6, 7, 8, 9]
    (own,) = fuse(normals(np.random.default_rng(3), many)).doubts
    assert own.kind is Kind.APART and own.site is None


def test_nothing_is_warned_of_on_demand(recwarn: pytest.WarningsRecorder) -> None:
    sites = normals(np.random.default_rng(0), [[0, 1, 2]] * 4, 1.0)
    assert fuse(sites, warn=False).doubts and not recwarn.list
    assert len(fuse(sites).doubts) == len(recwarn.list)


def test_what_a_site_has_by_chance_is_a_sum_over_patterns() -> None:
    has = np.array([[1, 1, 0, 0, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0]])
    holders, sites = has.sum(0), len(has)
    found = of_presence(has.astype(bool), holders, sites)
    for site, own in enumerate(has):
        others = holders - own
        shares = (others[others > 0] + 0.5) / sites
        patterns = itertools.product([0, 1], repeat=len(shares))
        few = sum(
            np.prod([p if one else 1 - p for p, one in zip(shares, each, strict=True)])
            for each in patterns
            if sum(each) <= own[others > 0].sum()
        )
        alone = int(own[others == 0].sum())
        rate = ((holders == 1).sum() - alone + 0.5) / (sites - 1)
        product = few * stats.poisson(rate).sf(alone - 1)
        np.testing.assert_allclose(found[site], -np.log(product * (1 - np.log(product))), atol=1e-9)


def test_a_shifted_site_of_eight_is_noticed() -> None:
    """It shares nothing, while the others have the same three components."""
    sites = normals(np.random.default_rng(0), [[0, 1, 2]] * 7 + [[3, 4, 5]])
    named = [own.site for own in fuse(sites).doubts if own.kind is Kind.STRANGER]
    assert named == [[*sites][-1]]
