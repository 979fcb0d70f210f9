"""What is fused depends on contents alone: not on order, nor on names, to the last bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    Ledger,
    NormalGamma,
    NormalWishart,
    Plate,
    Product,
    fuse,
)
from posterity.arrays.canonical import canonical_mean, canonical_order, canonical_sums

pytestmark = [
    pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning"),
    pytest.mark.filterwarnings("ignore::posterity.errors.IdentificationWarning"),
    pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning"),
]

CENTRES = 4.0 * np.random.default_rng(3).normal(size=(5, 2))
WEIGHTS = [None, Dirichlet, Beta]


def wishart(rng: np.random.Generator, rows: np.ndarray) -> tuple[Any, Any]:
    """A prior of the site's own, and posteriors of what it saw."""
    prior = NormalWishart.from_standard(
        rng.normal(size=(1, 2)), 0.3 * np.ones(1), np.eye(2)[None], rng.uniform(3, 5, 1)
    )
    n, x = rng.uniform(20, 90, len(rows)), CENTRES[rows] + 0.3 * rng.normal(size=(len(rows), 2))
    scatter = n[:, None, None] * (x[:, :, None] * x[:, None, :] + np.eye(2))
    factor = NormalWishart(n, n, n[:, None] * x, scatter)
    prior = prior[np.zeros(len(rows), int)]
    return prior, prior + factor


def gammas(rng: np.random.Generator, rows: np.ndarray) -> tuple[Any, Any]:
    """The same on another scale, without mixing weights."""
    n = rng.uniform(20, 90, (len(rows), 1))
    x = 1e3 * CENTRES[rows, :1] + rng.normal(size=(len(rows), 1))
    wide, rate = np.ones((len(rows), 1)), rng.uniform(1, 2, 1)
    prior = NormalGamma.from_standard(rate * wide, 0.1 * wide, rate * wide, wide)
    return prior, prior + NormalGamma(n, n, n * x, n * (x**2 + 1))


def mixing(rng: np.random.Generator, kind: Any, size: int) -> tuple[Any, Any]:
    """A prior over mixing weights and what counts make of it."""
    if kind is None:
        return None, None
    prior = kind.exchangeable(rng.uniform(0.5, 2), size)
    return prior, prior + kind.of_counts(rng.uniform(10, 50, size))


def sites(seed: int, kind: Any) -> dict[str, Ledger]:
    """Sites with two plates and a block, and priors of their own."""
    rng, out = np.random.default_rng(seed), {}
    for name in "abcd"[: rng.integers(3, 5)]:
        rows, others = (rng.choice(5, rng.integers(2, 4), replace=False) for _ in range(2))
        (first, one), (second, two) = wishart(rng, rows), gammas(rng, others)
        before, after = mixing(rng, kind, len(rows))
        location = Gaussian.from_standard(rng.normal(size=2), np.eye(2) / rng.uniform(1, 9))
        rate = Gamma.from_standard(*rng.uniform(1, 9, 2))
        out[name] = Ledger.of_site(
            name,
            prior=Product(x=Plate(first, before), y=Plate(second), z=Product(l=location, r=rate)),
            posterior=Product(
                x=Plate(one, after),
                y=Plate(two),
                z=Product(l=location + location, r=rate + rate),
            ),
        )
    return out


def shuffled(plate: Plate, order: np.ndarray, prior: Any) -> Plate:
    """The same components in another order."""
    weights: Any = plate.weights
    if isinstance(weights, Dirichlet):
        weights = Dirichlet(weights.concentration_minus_one[order])
    elif weights is not None:
        weights = prior.weights + Beta.of_counts(weights.a_minus_one[order])
    return Plate(plate.members[order], weights)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["barycenter", "product"])
@settings(max_examples=4)
@given(
    seed=st.integers(0, 10**6),
    divergence=st.sampled_from(["reverse", "forward"]),
    kind=st.sampled_from(WEIGHTS),
)
@pytest.mark.filterwarnings("ignore:priors differ")
def test_order_and_names_leave_no_trace(rule: str, seed: int, divergence: str, kind: Any) -> None:
    rng, original = np.random.default_rng(seed), sites(seed, kind)
    names = dict(zip(original, rng.permutation(["w", "c", "b", "m"]).tolist(), strict=False))
    orders: dict[str, dict[str, np.ndarray]] = {}
    other = {}
    for site in rng.permutation(list(original)).tolist():
        prior: Any = original[site].prior
        q: Any = original[site].posterior
        own = orders[site] = {path: rng.permutation(q.blocks[path].size) for path in "xy"}
        moved = {path: shuffled(q.blocks[path], own[path], prior.blocks[path]) for path in "xy"}
        again = Product(q.blocks, **moved)
        other[names[site]] = Ledger.of_site(names[site], prior=prior, posterior=again)
    weights = {site: 1 + rng.random() for site in original} if rule == "barycenter" else None
    renamed = weights and {names[site]: weight for site, weight in weights.items()}
    one = fuse(original, rule=rule, divergence=divergence, weights=weights)
    two = fuse(other, rule=rule, divergence=divergence, weights=renamed)
    assert one.posterior == two.posterior
    for path, plate in one.plates.items():
        theirs = two.plates[path]
        assert plate.cost == theirs.cost and plate.trace == theirs.trace
        for site, order in orders.items():
            assert (plate.matching[site][order[path]] == theirs.matching[names[site]]).all()


@settings(max_examples=6)
@given(seed=st.integers(0, 10**6), divergence=st.sampled_from(["reverse", "forward"]))
def test_nor_does_the_order_of_sites_where_labels_are_kept(seed: int, divergence: str) -> None:
    rng = np.random.default_rng(seed)
    plates = [Plate(wishart(rng, np.arange(5))[1]) for _ in range(7)]
    one, two = (
        fuse([plates[j] for j in order], matching="identity", divergence=divergence)
        for order in (range(7), rng.permutation(7))
    )
    assert one.posterior == two.posterior and one.cost == two.cost


@given(seed=st.integers(0, 10**6), rows=st.integers(0, 30), size=st.integers(1, 4))
def test_sums_do_not_depend_on_the_order_of_terms(seed: int, rows: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    x, labels = 10.0 ** rng.integers(-9, 9, (rows, 3)), rng.integers(0, size, rows)
    x *= rng.integers(-9, 9, (rows, 3))
    order = rng.permutation(rows)
    sums = canonical_sums(x, labels, size)
    assert (sums == canonical_sums(x[order], labels[order], size)).all()
    expected = np.zeros((size, 3))
    np.add.at(expected, labels, x)
    np.testing.assert_allclose(sums, expected, rtol=1e-9, atol=1e-6)
    if rows:
        assert (canonical_mean(x) == canonical_mean(x[order])).all()


def test_rows_that_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "posterity.arrays.canonical.content_hashes", lambda rows: np.zeros(len(rows), np.uint64)
    )
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    order = rng.permutation(40)
    mine, theirs = (canonical_order(x[o], labels[o]) for o in (np.arange(40), order))
    assert (x[mine] == x[order][theirs]).all()
    assert (np.diff(labels[mine]) >= 0).all()


def test_equal_components_of_other_weights_leave_no_trace_of_their_order() -> None:
    def site(*rows: tuple[float, float]) -> Plate:
        mean, weight = np.array(rows).T
        members = DiagonalGaussian.from_standard(mean[:, None], np.ones((len(rows), 1)))
        return Plate(members, Dirichlet.from_standard(weight))

    rows = [(0.0, 11.0), (0.0, 91.0), (4.0, 51.0)]
    swapped = [rows[1], rows[0], rows[2]]
    one = fuse([site(*rows), site(*rows), site(*rows)]).posterior
    assert fuse([site(*swapped), site(*rows), site(*swapped)]).posterior == one
