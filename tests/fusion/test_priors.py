"""Products of sites that started from priors which differ."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity import (
    Beta,
    Dirichlet,
    Gamma,
    Gaussian,
    Ledger,
    NormalWishart,
    Plate,
    Product,
    forget,
    fuse,
)
from posterity.arrays.tree import leaves
from posterity.errors import ParameterError
from posterity.families import stack
from posterity.fusion.alignment import Alignment
from posterity.fusion.combine import add
from posterity.fusion.plan import Plan
from posterity.fusion.reading import read_sites
from tests.fusion.made import conjugate_site, gamma_ledger

pytestmark = pytest.mark.filterwarnings("ignore:.* are known from fewer records:UserWarning")

SEEDS = st.integers(0, 10**6)
KINDS: dict[str, Any] = {"counts": Dirichlet, "sticks": Beta}
IGNORED = "ignore:priors differ"


def wishart(rng: np.random.Generator, components: int) -> NormalWishart:
    """One prior for all components."""
    root = rng.normal(size=(2, 2))
    one = NormalWishart.from_standard(
        3 * rng.normal(size=2), rng.uniform(0.01, 2), root @ root.T + np.eye(2), rng.uniform(3, 9)
    )
    return one[None][np.zeros(components, int)]


def start(rng: np.random.Generator, components: int, kind: Any) -> Plate:
    """A prior of any concentration."""
    return Plate(wishart(rng, components), kind.exchangeable(rng.uniform(0.2, 9), components))


def learnt(name: str, prior: Plate, data: list[np.ndarray]) -> Ledger:
    """The exact posterior from this prior."""
    return conjugate_site(name, prior.weights, data, prior.members)  # type: ignore[arg-type]


def close(one: Any, other: Any, digits: float = 1e-12) -> None:
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=digits, atol=digits)


@pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning")  # of a few records a site
@settings(max_examples=20)
@given(seed=SEEDS, kind=st.sampled_from(sorted(KINDS)))
def test_a_product_from_a_given_prior_is_the_pooled_posterior(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    data = [[rng.normal(5 * k, 1.0, (rng.integers(2, 20), 2)) for k in range(4)] for _ in range(3)]
    priors = [start(rng, 4, KINDS[kind]) for _ in data]
    sites = [learnt(f"s{j}", *pair) for j, pair in enumerate(zip(priors, data, strict=True))]
    common = start(rng, 4, KINDS[kind])
    pooled = learnt("all", common, [np.concatenate(c) for c in zip(*data, strict=True)])
    fused = fuse(sites, rule="product", matching="identity", prior=common)
    close(fused.posterior, pooled.posterior)
    assert fused.ledger is not None and fused.ledger.prior.members == common.members  # type: ignore[attr-defined]
    assert fused.rebased == ("s0", "s1", "s2")
    # Whom one forgets was never seen, to the last bit: the prior was chosen without them.
    rest = fuse(sites[:2], rule="product", matching="identity", prior=common)
    assert fused.ledger.forget("s2").posterior == rest.posterior


@pytest.mark.parametrize("seed", range(3))
def test_sites_may_hold_different_components(seed: int) -> None:
    rng, centres = np.random.default_rng(seed), 12.0 * np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    held = [[0, 1, 2], [3, 1], [2, 3, 0, 1], [0, 3]]
    data = [[rng.normal(centres[k], 1.0, (rng.integers(30, 60), 2)) for k in ks] for ks in held]
    sites = [
        learnt(f"s{j}", start(rng, len(x), Dirichlet), [x[i] for i in rng.permutation(len(x))])
        for j, x in enumerate(data)
    ]
    common = start(rng, 4, Dirichlet)
    whole = [
        np.concatenate([x[ks.index(k)] for x, ks in zip(data, held, strict=True) if k in ks])
        for k in range(4)
    ]
    fused: Any = fuse(sites, rule="product", prior=common).posterior
    pooled: Any = learnt("all", common, whole).posterior
    assert fused.size == 4
    one, other = (np.argsort(q.members.mean @ [1.0, 2.0]) for q in (fused, pooled))
    close(fused.members[one], pooled.members[other], 1e-9)
    close(fused.weights.concentration_minus_one[one], pooled.weights.concentration_minus_one[other])


@settings(max_examples=20)
@given(seed=SEEDS, kind=st.sampled_from(sorted(KINDS)))
@pytest.mark.filterwarnings(IGNORED)
def test_the_default_is_the_average_and_as_sure_as_one_prior(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    data = [[rng.normal(5 * k, 1.0, (9, 2)) for k in range(2)] for _ in range(3)]
    priors = [start(rng, 2, KINDS[kind]) for _ in data]
    sites = [learnt(f"s{j}", *pair) for j, pair in enumerate(zip(priors, data, strict=True))]
    fused = fuse(sites, rule="product", matching="identity")
    assert fused.ledger is not None
    prior: Any = fused.ledger.prior
    average = np.mean([p.members.natural_parameters for p in priors], 0)
    close(prior.members.natural_parameters, average)
    close(prior.weights.total(prior.weights), np.mean([p.weights.total(p.weights) for p in priors]))  # type: ignore[union-attr]
    # With that prior given, the same to the last bit.
    assert fuse(sites, rule="product", matching="identity", prior=prior).posterior == (
        fused.posterior
    )


def test_centres_and_scales_average_as_the_moments_of_pooled_data_do() -> None:
    """Of priors made as scikit-learn does, from means and covariances of sites of one size."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(5, 40, 2)) + 4 * rng.normal(size=(5, 1, 2))
    sites = []
    for j, x in enumerate(data):
        inverse = np.cov(x.T)
        prior = NormalWishart.from_inverse_scale(x.mean(0), 1.0, inverse, 2.0)
        sites.append(Ledger.of_site(f"s{j}", prior=prior, posterior=prior + prior))
    with pytest.warns(UserWarning, match=r"those of \['s0', 's1', 's2'\] and 2 more"):
        fused = fuse(sites, rule="product")
    assert fused.ledger is not None and len(fused.rebased) == 5
    prior: Any = fused.ledger.prior
    pooled = data.reshape(-1, 2)
    close(prior.mean, pooled.mean(0))
    whole = np.cov(pooled.T)
    assert np.linalg.norm(prior.inverse_scale - whole) < np.linalg.norm(whole) / 40  # up to 1/n
    close([prior.mean_precision, prior.degrees_of_freedom], [1.0, 2.0])


@pytest.mark.filterwarnings(IGNORED)
@pytest.mark.parametrize("budget", [None, 2**20])
def test_forgetting_is_exact_only_of_a_prior_that_was_given(budget: int | None) -> None:
    """An average of priors holds that of the site that leaves."""
    sites = [
        gamma_ledger(name, shape, rate)
        for name, shape, rate in [("a", 1.0, 2.0), ("b", 2.0, 3.0), ("c", 9.0, 4.0)]
    ]
    for prior in (None, Gamma.from_standard(1.0, 1.0)):
        ledger = fuse(sites, rule="product", prior=prior, budget=budget).ledger
        assert ledger is not None
        assert forget(ledger, "c").exact is (prior is not None)
        others = fuse(sites[:2], rule="product", prior=prior, budget=budget).posterior
        assert (ledger.forget("c").posterior == others) is (prior is not None)


@pytest.mark.parametrize("budget", [None, 2**20])
def test_an_average_of_much_weight_has_the_prior_of_its_site(budget: int | None) -> None:
    rng = np.random.default_rng(0)
    data = [rng.normal(9 * k, 1.0, (100, 2)) for k in range(2)]
    sites = {
        name: conjugate_site(name, Dirichlet.exchangeable(total, 2), data)
        for name, total in (("a", 20.0), ("b", 0.2))
    }
    fused: Any = fuse(sites, weights={"a": 1e6, "b": 1.0}, budget=budget).posterior
    alone: Any = sites["a"].posterior
    np.testing.assert_allclose(
        fused.weights.concentration_minus_one, alone.weights.concentration_minus_one, atol=1e-3
    )


@pytest.mark.parametrize("budget", [None, 2**20])
def test_priors_that_differ_by_rounding_are_one(budget: int | None) -> None:
    gain = Gaussian.from_standard([1.0, 2.0], np.eye(2))
    priors = [Gaussian.from_standard([1.0, zero], np.eye(2)) for zero in (0.0, 1e-17)]
    sites = [
        Ledger.of_site(name, prior=prior, posterior=prior + gain * share)
        for name, prior, share in zip("ab", priors, (1.0, 2.0), strict=True)
    ]
    assert not fuse(sites, rule="product", budget=budget).rebased


@pytest.mark.filterwarnings(IGNORED)
def test_a_tree_is_one_fusion_under_a_given_prior_or_of_regions_of_one_size() -> None:
    rates = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 9.0}
    a, b, c, d = (gamma_ledger(name, 3.0, rate) for name, rate in rates.items())

    def tree(*regions: Any, prior: Any = None) -> Any:
        made: Any = [fuse(region, rule="product", prior=prior).ledger for region in regions]
        return fuse(made, rule="product", prior=prior).posterior

    given, every = Gamma.from_standard(1.0, 1.0), fuse([a, b, c, d], rule="product").posterior
    close(tree([a, b], [c, d]), every)
    uneven = tree([a, b, c], [d, gamma_ledger("e", 5.0, 9.0)], prior=given)
    five = fuse([a, b, c, d, gamma_ledger("e", 5.0, 9.0)], rule="product", prior=given)
    assert uneven == five.posterior


@pytest.mark.parametrize("budget", [None, 2**20])
def test_what_differs_is_named(budget: int | None) -> None:
    rng = np.random.default_rng(0)
    data = [[rng.normal(12 * k, 1.0, (30, 2)) for k in range(size)] for size in (2, 3)]
    one = wishart(rng, 1)[0]
    sites = [
        learnt(name, Plate(stack([one] * len(x)), Dirichlet.from_standard(np.ones(len(x)))), x)
        for name, x in zip("ab", data, strict=True)
    ]
    with pytest.warns(UserWarning, match=r"^priors over mixing weights differ: .* \['a', 'b'\]"):
        fuse(sites, rule="product", budget=budget)


CALLER = """
import warnings
from posterity import Gamma, Ledger, fuse
sites = []
for name, rate in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
    prior = Gamma.from_standard(1.0, rate)
    sites.append(Ledger.of_site(name, prior=prior, posterior=prior + Gamma(2.3, 1.1)))
for budget in (None, 2**20):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        fuse(sites, rule="product", budget=budget)
    print([warning.filename for warning in heard])
"""


def test_warnings_point_at_who_fuses() -> None:
    """In a process of its own: the type checker of the tests puts calls between ours."""
    done = subprocess.run([sys.executable, "-c", CALLER], capture_output=True, text=True)
    assert done.stdout.split("\n") == [str(["<string>"] * 2)] * 2 + [""], done.stderr


def test_only_blocks_whose_priors_differ_are_averaged() -> None:
    one, other = Gamma.from_standard(2.0, 1.0), Gamma.from_standard(5.0, 3.0)
    sites = [
        Ledger.of_site(name, prior=prior, posterior=prior + Product(x=gain, y=gain))
        for name, prior, gain in [
            ("a", Product(x=one, y=one), Gamma(3.0, 2.0)),
            ("b", Product(x=one, y=other), Gamma(7.0, 1.0)),
        ]
    ]
    with pytest.warns(UserWarning, match=r"'a', 'b'\] are not the common one"):
        fused = fuse(sites, rule="product")
    assert fused.ledger is not None
    assert fused.ledger.prior == Product(x=one, y=Gamma.from_standard(3.5, 2.0))
    assert fused.posterior == fused.ledger.prior + Product(x=Gamma(10.0, 3.0), y=Gamma(10.0, 3.0))


def test_halves_of_a_component_at_one_site_add_up() -> None:
    rng = np.random.default_rng(0)
    data = [rng.normal(9 * k, 1.0, (30, 2)) for k in range(2)]
    prior = start(rng, 2, Dirichlet)
    thirds = [*np.split(data[0], 2), data[1]]
    sites = {
        "a": learnt("a", start(rng, 3, Dirichlet), thirds),
        "b": learnt("b", start(rng, 2, Dirichlet), data),
    }
    blocks = read_sites(sites, Plan()).blocks
    together = Alignment({"a": np.array([0, 0, 1]), "b": np.array([0, 1])}, 2, 0.0, ())
    ledger, _ = add(sites["a"].posterior, list(sites), blocks, {"": together}, prior)
    close(ledger.posterior, learnt("all", prior, [np.tile(x, (2, 1)) for x in data]).posterior)


def test_bare_posteriors_started_from_the_prior_that_is_given() -> None:
    prior = Gamma.from_standard(1.0, 2.0)
    sites = {"a": gamma_ledger("a", 2.0), "b": Gamma.from_standard(3.0, 2.5)}
    fused = fuse(sites, rule="product", prior=prior)
    # Of a's own prior, with rate 1, nothing is left.
    np.testing.assert_allclose(fused.posterior.rate, 2.0 + 2.0 + 0.5)  # type: ignore[attr-defined]
    assert fused.rebased == ("a",)


def test_entries_go_into_a_ledger_with_another_prior() -> None:
    north, south = gamma_ledger("north", 4.0), gamma_ledger("south", 6.0, rate=3.0)
    prior = Gamma.from_standard(2.0, 1.0)
    both = Ledger(prior, north.entries) | Ledger(prior, south.entries)
    assert both.posterior == fuse([north, south], rule="product", prior=prior).posterior


def test_contributions_that_another_prior_does_not_carry_are_refused() -> None:
    """Approximations may be less sure than their prior, which conjugate posteriors never are."""

    def gaussian(variance: float) -> Gaussian:
        return Gaussian.from_standard([0.0], [[variance]])

    sites = [
        Ledger.of_site(name, prior=gaussian(1.0), posterior=gaussian(variance))
        for name, variance in [("a", 2.0), ("b", 2.1)]
    ]
    with pytest.raises(ParameterError, match=r"contributions of \['a', 'b'\] beside another prior"):
        fuse(sites, rule="product", prior=gaussian(10.0))
