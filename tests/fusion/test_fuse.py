"""The verb: its laws, its rules, and what it refuses."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    ExponentialFamily,
    Gamma,
    Gaussian,
    Ledger,
    Mixture,
    NormalWishart,
    Plate,
    PosterityError,
    Product,
    fuse,
    save,
)
from posterity.arrays.tree import identical
from posterity.errors import ArtifactError, ParameterError, StructureError, UsageError
from posterity.families import concatenate, stack
from posterity.fusion.rules import barycenter
from tests.laws.table import NAMES, TABLE, laws


def sites(seed: int, count: int = 4, weighted: bool = True, spread: float = 6.0) -> dict[str, Any]:
    """Sites that share some of six well-separated components, in any order."""
    rng = np.random.default_rng(seed)
    means, out = spread * rng.normal(size=(6, 2)), {}
    for j in range(count):
        size = int(rng.integers(2, 6))
        rows = rng.choice(6, size, replace=False)
        n = rng.integers(50, 200, size).astype(float)
        wishart = np.stack([np.cov(rng.normal(size=(2, 40))) for _ in rows])
        members = NormalWishart.from_inverse_scale(
            means[rows] + 0.1 * rng.normal(size=(size, 2)), n, wishart * n[:, None, None], n + 3
        )
        out[f"site {j}"] = Plate(members, Dirichlet.from_standard(n + 1) if weighted else None)
    return out


# --- laws ----------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    matching=st.sampled_from(["evidence", "kl-fusion"]),
    divergence=st.sampled_from(["reverse", "forward"]),
)
def test_order_of_sites_and_components_does_not_matter(
    seed: int, matching: Any, divergence: Any
) -> None:
    rng, original = np.random.default_rng(seed), sites(seed, spread=1.0)
    names, shuffles, shuffled = list(rng.permutation(list(original))), {}, {}
    for name in names:
        shuffles[name] = rng.permutation(original[name].size)
        plate = original[name]
        weights = Dirichlet(plate.weights.concentration_minus_one[shuffles[name]])
        shuffled[name] = Plate(plate.members[shuffles[name]], weights)
    one = fuse(original, matching=matching, divergence=divergence)
    # New names, so that sorting by name does not undo the shuffle.
    renamed = {name: f"{rank:02d}" for rank, name in enumerate(names)}
    other = fuse(
        {renamed[name]: plate for name, plate in shuffled.items()},
        matching=matching,
        divergence=divergence,
    )
    for name in names:
        assert (one.matching[name][shuffles[name]] == other.matching[renamed[name]]).all()
    assert one.cost == other.cost and one.trace == other.trace
    pairs = zip(jax.tree.leaves(one.posterior), jax.tree.leaves(other.posterior), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_order_of_sites_does_not_matter_beyond_the_sample() -> None:
    rng = np.random.default_rng(0)
    centres = 3.0 * rng.normal(size=(9, 2))
    plates = [
        Plate(
            DiagonalGaussian.from_standard(
                centres[rng.choice(9, 4, replace=False)] + rng.normal(size=(4, 2)),
                np.full((4, 2), 0.05),
            )
        )
        for _ in range(120)
    ]
    order = rng.permutation(120)
    one, other = fuse(plates), fuse([plates[j] for j in order])
    assert one.cost == other.cost and one.trace == other.trace and len(one.trace) >= 1
    for new, old in enumerate(order):
        same = one.matching[f"site-{old:04d}"] == other.matching[f"site-{new:04d}"]
        assert same.all()


@pytest.mark.parametrize("sites", [40, 12])
def test_sharper_components_are_not_merged(sites: int) -> None:
    """The better components are separated, the surer their number."""
    rng = np.random.default_rng(0)
    rows = [rng.choice(6, 3, replace=False) for _ in range(sites)]
    found = []
    for deviation in 10.0 ** -np.arange(2, 7):
        noise = deviation * rng.normal(size=(sites, 3))
        plates = [
            Plate(
                DiagonalGaussian.from_standard(
                    (row + shift)[:, None], np.full((3, 1), deviation**2)
                )
            )
            for row, shift in zip(rows, noise, strict=True)
        ]
        found.append(fuse(plates).components)
    assert found == [6] * 5


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), matching=st.sampled_from(["evidence", "kl-fusion"]))
def test_a_site_keeps_its_components_apart_and_the_objective_never_rises(
    seed: int, matching: Any
) -> None:
    original = sites(seed, spread=0.5)
    fused = fuse(original, matching=matching)
    for name, labels in fused.matching.items():
        assert len(labels) == original[name].size == len(set(labels.tolist()))
    assert (np.diff(fused.trace) < 0).all()
    used = np.unique(np.concatenate(list(fused.matching.values())))
    assert (used == np.arange(fused.components)).all()
    assert fuse(original, matching=matching).trace == fused.trace


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
def test_finds_components_that_are_plain_to_see(divergence: Any) -> None:
    original = sites(3, count=8)
    truth = np.unique(
        np.concatenate([np.round(p.members.mean, 0) for p in original.values()]), axis=0
    )
    fused = fuse(original, divergence=divergence)
    assert fused.components == 6 <= len(truth)
    for name, labels in fused.matching.items():
        near = fused.posterior.members.mean[labels]  # type: ignore[attr-defined]
        assert np.abs(near - original[name].members.mean).max() < 1.0


@pytest.mark.parametrize("components", [5, 6, 9, 14])
def test_the_number_of_components_can_be_given(components: int) -> None:
    original = sites(5, count=3)
    total = sum(p.size for p in original.values())
    largest = max(p.size for p in original.values())
    wanted = min(max(components, largest), total)
    fused = fuse(original, components=wanted)
    assert fused.components == wanted == fused.posterior.size  # type: ignore[attr-defined]


def test_a_site_with_more_components_than_all_others_is_served() -> None:
    few = {f"s{j}": Plate(_points([0.0, 10.0])) for j in range(3)}
    fused = fuse({**few, "rich": Plate(_points(np.arange(9) * 10.0))})
    assert fused.components == 9
    with pytest.raises(UsageError, match="between 9 and 15"):
        fuse({**few, "rich": Plate(_points(np.arange(9) * 10.0))}, components=4)


# --- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith(("Plate", "Product-"))])
@laws
@given(seed=st.integers(0, 2**32 - 1))
def test_barycentre_of_known_blocks_is_the_average(name: str, divergence: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    posteriors = [TABLE[name].draw(rng, (), 2) for _ in range(3)]
    fused = fuse(posteriors, divergence=divergence).posterior
    attribute = "natural_parameters" if divergence == "reverse" else "mean_parameters"
    mean = np.mean([getattr(q, attribute) for q in posteriors], 0)
    np.testing.assert_allclose(getattr(fused, attribute), mean, rtol=1e-7, atol=1e-9)


def test_relaxed_weights_enter_the_barycentre() -> None:
    q = Gamma.from_standard(shape=[2.0, 4.0, 8.0], rate=[1.0, 3.0, 5.0])
    plan = np.array([[1.0, 0.0], [0.25, 0.75], [0.5, 0.5]])
    mean = barycenter(q, plan)
    np.testing.assert_allclose(mean.rate, [(1 + 0.75 + 2.5) / 1.75, (2.25 + 2.5) / 1.25])
    weighted = barycenter(q, np.array([0, 0, 1]), weights=np.array([1.0, 3.0, 9.0]))
    np.testing.assert_allclose(weighted.rate, [(1.0 + 9.0) / 4, 5.0])


def test_weights_of_sites() -> None:
    a, b = Gamma.from_standard(2.0, 1.0), Gamma.from_standard(4.0, 5.0)
    fused = fuse({"a": a, "b": b}, weights={"a": 3.0, "b": 1.0})
    np.testing.assert_allclose(fused.posterior.rate, 2.0)  # type: ignore[attr-defined]


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), sticks=st.booleans())
def test_product_is_the_posterior_of_the_pooled_counts(seed: int, sticks: bool) -> None:
    """Known correspondence, conjugate: the prior counted once, to 1e-12."""
    rng = np.random.default_rng(seed)
    prior = NormalWishart.from_standard(
        np.zeros((4, 2)), np.ones(4), np.stack([np.eye(2)] * 4), np.full(4, 4.0)
    )
    base: Any = Dirichlet.from_standard(np.full(4, 0.5))
    if sticks:
        base = Beta.from_standard(np.ones(4), np.full(4, 2.0))
    data = [[rng.normal(5 * k, 1.0, (rng.integers(2, 20), 2)) for k in range(4)] for _ in range(3)]
    ledgers = [_site(f"s{j}", prior, base, clusters) for j, clusters in enumerate(data)]
    pooled = _site("all", prior, base, [np.concatenate(c) for c in zip(*data, strict=True)])
    fused = fuse(ledgers, rule="product", matching="identity")
    pairs = zip(jax.tree.leaves(fused.posterior), jax.tree.leaves(pooled.posterior), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def _site(name: str, prior: Any, base: Any, clusters: list[np.ndarray]) -> Ledger:
    n = np.array([len(x) for x in clusters], float)
    total = np.stack([x.sum(0) for x in clusters])
    scatter = np.stack([x.T @ x for x in clusters])
    members = NormalWishart(
        prior.mean_precision + n,
        prior.degrees + n,
        prior.precision_mean + total,
        prior.scatter + scatter,
    )
    if isinstance(base, Beta):
        later = n[::-1].cumsum()[::-1] - n
        weights: Any = Beta(base.a_minus_one + n, base.b_minus_one + later)
    else:
        weights = Dirichlet(base.concentration_minus_one + n)
    return Ledger.of_site(name, prior=Plate(prior, base), posterior=Plate(members, weights))


def test_a_product_can_forget_what_it_fused() -> None:
    rng = np.random.default_rng(0)
    prior = NormalWishart.from_standard(
        np.zeros((3, 2)), np.ones(3), np.stack([np.eye(2)] * 3), np.full(3, 4.0)
    )
    base = Dirichlet.from_standard(np.full(3, 0.5))
    ledgers = [
        _site(f"s{j}", prior, base, [rng.normal(9 * k, 1.0, (30, 2)) for k in rng.permutation(3)])
        for j in range(3)
    ]
    fused = fuse(ledgers, rule="product")
    assert fused.ledger is not None and fused.ledger.sites == ("s0", "s1", "s2")
    assert identical(fused.ledger.posterior, fused.posterior)
    without = fused.ledger.forget("s1").posterior
    again = fuse([ledgers[0], ledgers[2]], rule="product").posterior
    order = np.argsort(without.members.mean[:, 0])  # type: ignore[attr-defined]
    other = np.argsort(again.members.mean[:, 0])  # type: ignore[attr-defined]
    np.testing.assert_allclose(
        without.members.scatter[order],
        again.members.scatter[other],
        rtol=1e-9,  # type: ignore[attr-defined]
    )


def test_unused_components_match_nothing() -> None:
    prior = NormalWishart.from_standard(
        np.zeros((3, 2)), np.ones(3), np.stack([np.eye(2)] * 3), np.full(3, 4.0)
    )
    base = Dirichlet.from_standard(np.full(3, 0.5))
    rng = np.random.default_rng(0)
    empty = np.zeros((0, 2))
    ledgers = [
        _site("a", prior, base, [rng.normal(0, 1, (30, 2)), empty, rng.normal(9, 1, (30, 2))]),
        _site("b", prior, base, [empty, rng.normal(0, 1, (30, 2)), empty]),
    ]
    fused = fuse(ledgers)
    assert fused.components == 2
    assert fused.matching["a"][1] == -1 and (fused.matching["b"][[0, 2]] == -1).all()
    assert fused.matching["a"][0] == fused.matching["b"][1]


def test_hungarian_matches_permutations() -> None:
    rng = np.random.default_rng(0)
    orders = [rng.permutation(7) for _ in range(5)]
    plates = {f"s{j}": Plate(_points(10.0 * order)) for j, order in enumerate(orders)}
    fused = fuse(plates, matching="hungarian")
    assert fused.components == 7
    first = fused.matching["s0"][np.argsort(orders[0])]
    for j, order in enumerate(orders):
        assert (fused.matching[f"s{j}"][np.argsort(order)] == first).all()


def test_products_of_plates_and_blocks() -> None:
    def site(seed: int) -> Product:
        return Product(noise=Gamma.from_standard(2.0 + seed, 1.0), topics=sites(seed)["site 0"])

    fused = fuse({"a": site(0), "b": site(1)})
    assert set(fused.plates) == {"topics"} and isinstance(fused.posterior, Product)
    np.testing.assert_allclose(fused.posterior.blocks["noise"].shape, 2.5)  # type: ignore[attr-defined]


def test_files_and_ledgers_and_families_are_one(tmp_path: Path) -> None:
    original = sites(2)
    for name, plate in original.items():
        save(plate, tmp_path / f"{name}.safetensors")
    read = fuse([tmp_path / f"{name}.safetensors" for name in original])
    assert set(read.matching) == set(original)
    assert identical(read.posterior, fuse(original).posterior)


def test_a_thousand_components_go_beyond_the_sample_that_is_compared_in_pairs() -> None:
    rng = np.random.default_rng(0)
    centres = 20.0 * rng.normal(size=(30, 3))
    plates, truth = {}, {}
    for j in range(120):
        rows = rng.choice(30, 10, replace=False)
        mean = centres[rows] + 0.1 * rng.normal(size=(10, 3))
        plates[f"{j:03d}"] = Plate(DiagonalGaussian.from_standard(mean, np.full(mean.shape, 0.01)))
        truth[f"{j:03d}"] = rows
    fused = fuse(plates)
    assert fused.components == 30
    seen: dict[int, set[int]] = {}
    for name, labels in fused.matching.items():
        for true, label in zip(truth[name], labels, strict=True):
            seen.setdefault(int(true), set()).add(int(label))
    assert all(len(labels) == 1 for labels in seen.values())


# --- what it refuses -----------------------------------------------------------------------------


def _points(means: Any) -> DiagonalGaussian:
    mean = np.asarray(means, float)[:, None]
    return DiagonalGaussian.from_standard(mean, np.full(mean.shape, 0.01))


def _plate(*means: float) -> Plate:
    return Plate(_points(means))


NAN = Plate(DiagonalGaussian(np.array([[np.nan]]), np.array([[1.0]])))
IMPROPER = Plate(DiagonalGaussian(np.array([[1.0]]), np.array([[-1.0]])))
WIDE = Plate(DiagonalGaussian.from_standard(np.zeros((2, 3)), np.ones((2, 3))))
FULL = Plate(Gaussian.from_standard(np.zeros((2, 1)), np.ones((2, 1, 1))))
MIX = Mixture.from_standard([1.0], _points([0.0]))


@pytest.mark.parametrize(
    ("posteriors", "arguments", "error", "message"),
    [
        ([], {}, UsageError, "0 sites"),
        ([_plate(0.0)], {}, UsageError, "1 site"),
        (_plate(0.0), {}, UsageError, "1 site"),
        ({"a": _plate(0.0), "b": NAN}, {}, ParameterError, "nan.*site 'b'"),
        ({"a": _plate(0.0), "b": IMPROPER}, {}, ParameterError, "improper.*site 'b'"),
        ([_plate(0.0), WIDE], {}, StructureError, "site-0001"),
        ([_plate(0.0), FULL], {}, StructureError, "Gaussian"),
        ([_plate(0.0), MIX], {}, StructureError, "Plate"),
        (MIX, {}, StructureError, "Plate"),
        ([_points([0.0]), _points([1.0])], {}, StructureError, "batch"),
        ([_plate(0.0), "nowhere.safetensors"], {}, ArtifactError, "cannot be read"),
        ([_plate(0.0), _plate(1.0)], {"rule": "sum"}, UsageError, "barycenter"),
        ([_plate(0.0), _plate(1.0)], {"divergence": "both"}, UsageError, "reverse"),
        ([_plate(0.0), _plate(1.0)], {"matching": "best"}, UsageError, "evidence"),
        ([_plate(0.0), _plate(1.0)], {"rule": "product"}, UsageError, "no prior"),
        ([_plate(0.0), _plate(1.0)], {"components": 0}, UsageError, "between 1 and 2"),
        ([_plate(0.0), _plate(1.0)], {"components": 3}, UsageError, "between 1 and 2"),
        ([_plate(0.0), _plate(1.0, 2.0)], {"matching": "hungarian"}, UsageError, "same number"),
        ([_plate(0.0), _plate(1.0)], {"weights": {"a": 1.0}}, UsageError, "weights"),
        (
            {"a": _plate(0.0), "b": _plate(1.0)},
            {"weights": {"a": 1.0, "b": -1.0}},
            UsageError,
            "positive",
        ),
        ([Gamma.from_standard(1.0, 1.0)] * 2, {"components": 2}, UsageError, "Plate"),
    ],
)
def test_bad_input(
    posteriors: Any, arguments: dict[str, Any], error: type[PosterityError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        fuse(posteriors, **arguments)
    assert caught.value.found and caught.value.expected and caught.value.fix


def _ledger(site: str, shape: float, rate: float = 1.0) -> Ledger:
    prior = Gamma.from_standard(1.0, rate)
    return Ledger.of_site(site, prior=prior, posterior=Gamma.from_standard(shape, rate + 2.0))


@pytest.mark.parametrize(
    ("ledgers", "arguments", "error", "message"),
    [
        ([_ledger("a", 2.0), _ledger("a", 3.0)], {}, UsageError, "two posteriors of site 'a'"),
        (
            [_ledger("a", 2.0) | _ledger("b", 4.0), _ledger("b", 4.0)],
            {"rule": "product"},
            UsageError,
            "data of site 'b'",
        ),
        (
            [_ledger("a", 2.0), _ledger("b", 2.0, 3.0)],
            {"rule": "product"},
            StructureError,
            "different priors",
        ),
        (
            [_ledger("a", 2.0), _ledger("b", 3.0)],
            {"rule": "product", "weights": {"a": 1.0, "b": 1.0}},
            UsageError,
            "weights",
        ),
        (
            [_ledger("a", 2.0), _ledger("b", 3.0)],
            {"rule": "product", "prior": Beta.from_standard(1.0, 1.0)},
            StructureError,
            "prior Beta",
        ),
    ],
)
def test_bad_ledgers(
    ledgers: Any, arguments: dict[str, Any], error: type[PosterityError], message: str
) -> None:
    with pytest.raises(error, match=message):
        fuse(ledgers, **arguments)


def test_the_same_bare_posterior_twice_is_refused_as_a_product() -> None:
    q, prior = Gamma.from_standard(3.0, 2.0), Gamma.from_standard(1.0, 1.0)
    with pytest.raises(UsageError, match="the same posterior in both"):
        fuse([q, q], rule="product", prior=prior)
    with pytest.warns(UserWarning, match="sites 'a' and 'b' hold the same posterior"):
        twins = fuse([_ledger("a", 2.0), _ledger("b", 2.0)], rule="product")  # it does happen
    np.testing.assert_allclose(twins.posterior.shape, 3.0)  # type: ignore[attr-defined]


def test_a_ledgers_own_prior_comes_before_the_argument() -> None:
    fused = fuse(
        {"a": _ledger("a", 2.0), "b": Gamma.from_standard(3.0, 3.0)},
        rule="product",
        prior=Gamma.from_standard(1.0, 1.0),
    )
    np.testing.assert_allclose(fused.posterior.rate, 1.0 + 2.0 + 2.0)  # type: ignore[attr-defined]
    with pytest.raises(StructureError, match="different priors"):
        fuse(
            {"a": _ledger("a", 2.0), "b": Gamma.from_standard(3.0, 3.0)},
            rule="product",
            prior=Gamma.from_standard(1.0, 2.0),
        )


def test_priors_over_mixing_weights_must_be_exchangeable_and_shared() -> None:
    rng = np.random.default_rng(0)
    prior = NormalWishart.from_standard(
        np.zeros((2, 2)), np.ones(2), np.stack([np.eye(2)] * 2), np.full(2, 4.0)
    )
    data = [rng.normal(9 * k, 1.0, (30, 2)) for k in range(2)]

    def site(name: str, weights: Any) -> Ledger:
        return _site(name, prior, weights, [x + 0.1 * (name == "b") for x in data])

    def dirichlet(*alpha: float) -> Dirichlet:
        return Dirichlet.from_standard(np.array(alpha))

    with pytest.raises(StructureError, match="tells components apart"):
        fuse([site("a", dirichlet(5.0, 1.0)), site("b", dirichlet(5.0, 1.0))], rule="product")
    with pytest.raises(StructureError, match="prior concentrations 1 at 'a' and 8 at 'b'"):
        fuse([site("a", dirichlet(0.5, 0.5)), site("b", dirichlet(4.0, 4.0))], rule="product")
    odd = Beta.from_standard(np.full(2, 2.0), np.full(2, 3.0))
    with pytest.raises(StructureError, match="tells components apart"):
        fuse([site("a", odd), site("b", odd)], rule="product")


@pytest.mark.parametrize("family", [DiagonalGaussian, Gaussian])
def test_forward_barycentres_keep_their_digits_far_from_the_origin(family: Any) -> None:
    spread = 1e-4 * np.eye(1) if family is Gaussian else np.full(1, 1e-4)
    near = fuse(
        [family.from_standard(np.array([m]), spread) for m in (0.0, 5.0)], divergence="forward"
    )
    far = fuse(
        [family.from_standard(np.array([1e6 + m]), spread) for m in (0.0, 5.0)],
        divergence="forward",
    )
    np.testing.assert_allclose(far.posterior.precision, near.posterior.precision, rtol=1e-6)  # type: ignore[attr-defined]


def test_more_components_than_the_sample_holds() -> None:
    rng = np.random.default_rng(0)
    plates = [Plate(_points(10.0 * rng.integers(0, 5, 1) + rng.normal(size=1))) for _ in range(400)]
    assert fuse(plates, components=330).components == 330


def test_blocks_may_bear_any_name() -> None:
    def site(shift: float) -> Product:
        inner = Product(b=_plate(3.0 + shift, 40.0), location=Gamma.from_standard(2.0, 1.0))
        return Product({"a/b": _plate(7.0, 90.0 + shift), "a": inner})

    fused = fuse({"one": site(0.0), "two": site(0.1)})
    assert set(fused.plates) == {"a%2Fb", "a/b"}
    means = fused.posterior.blocks["a/b"].members.mean[:, 0]  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.sort(means), [7.0, 90.05])


def test_priors_of_plates_must_be_exchangeable_and_shared() -> None:
    members = _points([0.0, 1.0])
    uneven, even = Plate(members), Plate(concatenate([members[:1], members[:1]]))
    sharp = Plate(_points([0.0, 5.0]) * 2.0)
    other = Plate(_points([0.1, 5.0]) * 2.0)
    with pytest.raises(StructureError, match="exchangeable"):
        fuse([sharp, other], rule="product", prior=uneven)
    with pytest.raises(StructureError, match="Plate"):
        fuse([sharp, other], rule="product", prior=members[0])
    fused = fuse([sharp, other], rule="product", prior=even)
    assert fused.components == 2


def test_one_posterior_given_twice_has_itself_as_barycentre() -> None:
    q: ExponentialFamily = stack([Gamma.from_standard(2.0, 3.0)])[0]
    assert identical(fuse({"a": q, "b": q}).posterior, q)
