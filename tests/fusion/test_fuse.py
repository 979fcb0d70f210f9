"""The verb: its laws and its rules; what it refuses is in test_refusals.py."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from posterity import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    Ledger,
    Plate,
    Product,
    fuse,
    save,
)
from posterity.arrays.tree import leaves
from posterity.errors import UsageError
from posterity.fusion import barycenter, search
from tests.fusion.made import conjugate_site, gamma_ledger, plate, points, site_plates
from tests.laws.table import NAMES, TABLE

pytestmark = [
    pytest.mark.filterwarnings("ignore::posterity.errors.IdentificationWarning"),
    pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning"),
    pytest.mark.filterwarnings("ignore:no component.* was matched:UserWarning"),
    pytest.mark.filterwarnings("ignore:.* are known from fewer records:UserWarning"),
]


def clusters(seed: int) -> Ledger:
    """One site's ledger over three clusters."""
    rng = np.random.default_rng(seed)
    data = [rng.normal(9 * k, 1.0, (30, 2)) for k in rng.permutation(3)]
    return conjugate_site(f"s{seed}", Dirichlet.from_standard(np.full(3, 0.5)), data)


@settings(max_examples=4)
@given(seed=st.integers(0, 10**6), divergence=st.sampled_from(["reverse", "forward"]))
def test_order_of_sites_and_components_does_not_matter_to_kl_fusion(
    seed: int, divergence: Any
) -> None:
    rng, original = np.random.default_rng(seed), site_plates(seed, spread=1.0)
    names, shuffles, shuffled = list(rng.permutation(list(original))), {}, {}
    for name in names:
        shuffles[name] = rng.permutation(original[name].size)
        held = original[name]
        weights = Dirichlet(held.weights.concentration_minus_one[shuffles[name]])
        shuffled[name] = Plate(held.members[shuffles[name]], weights)
    how: Any = dict(matching="kl-fusion", divergence=divergence)
    one = fuse(original, **how)
    # New names, so that sorting by name does not undo the shuffle.
    renamed = {name: f"{rank:02d}" for rank, name in enumerate(names)}
    other = fuse({renamed[name]: plate for name, plate in shuffled.items()}, **how)
    for name in names:
        assert (one.matching[name][shuffles[name]] == other.matching[renamed[name]]).all()
    assert one.cost == other.cost and one.trace == other.trace
    assert one.posterior == other.posterior


@pytest.mark.slow
def test_order_of_sites_does_not_matter_beyond_the_sample(monkeypatch: Any) -> None:
    monkeypatch.setattr(search, "SEED_COMPONENTS", 80)  # of 160: fewer than are matched as a whole
    rng = np.random.default_rng(1)
    centres = 3.0 * rng.normal(size=(9, 2))
    plates = [
        Plate(
            DiagonalGaussian.from_standard(
                centres[rng.choice(9, 4, replace=False)] + rng.normal(size=(4, 2)),
                np.full((4, 2), 0.05),
            )
        )
        for _ in range(40)
    ]
    order = rng.permutation(40)
    one, other = fuse(plates), fuse([plates[j] for j in order])
    assert one.cost == other.cost and one.trace == other.trace and len(one.trace) > 1
    assert one.posterior == other.posterior
    for new, old in enumerate(order):
        same = one.matching[f"site-{old:04d}"] == other.matching[f"site-{new:04d}"]
        assert same.all()


def test_many_groups_are_told_apart() -> None:
    """Of many groups many are opened twice, and dissolved together."""
    rng = np.random.default_rng(0)
    centres = 6.0 * rng.normal(size=(200, 2))
    plates = []
    for _ in range(20):
        own = centres[rng.choice(200, 150, replace=False)]
        own = own + 0.1 * rng.normal(size=own.shape)
        plates.append(Plate(DiagonalGaussian.from_standard(own, np.full(own.shape, 0.01))))
    assert fuse(plates, warn=False).plate.components == 200


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


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), matching=st.sampled_from(["evidence", "kl-fusion"]))
@example(seed=2, matching="evidence").via("three steps")
@example(seed=2, matching="kl-fusion").via("ten steps")
def test_a_site_keeps_its_components_apart_and_the_objective_never_rises(
    seed: int, matching: Any
) -> None:
    original = site_plates(seed, spread=0.5)
    fused = fuse(original, matching=matching)
    for name, labels in fused.matching.items():
        assert len(labels) == original[name].size == len(set(labels.tolist()))
    assert (np.diff(fused.trace) < 0).all() and (seed != 2 or len(fused.trace) > 2)
    used = np.unique(np.concatenate(list(fused.matching.values())))
    assert (used == np.arange(fused.components)).all()
    assert fuse(original, matching=matching).trace == fused.trace


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
def test_finds_components_that_are_plain_to_see(divergence: Any) -> None:
    original = site_plates(3, count=8)
    means = np.concatenate([p.members.mean for p in original.values()])
    near = (np.linalg.norm(means[:, None] - means, axis=-1) < 1.0).astype(int)
    assert (near @ near == near * near.sum(1)).all()  # clusters that nothing is between
    fused = fuse(original, divergence=divergence)
    assert fused.components == len(np.unique(near, axis=0))
    for name, labels in fused.matching.items():
        near = fused.posterior.members.mean[labels]  # type: ignore[attr-defined]
        assert np.abs(near - original[name].members.mean).max() < 1.0


@pytest.mark.parametrize("components", [5, 6, 9, 14])
def test_the_number_of_components_can_be_given(components: int) -> None:
    original = site_plates(5, count=3)
    total = sum(p.size for p in original.values())
    largest = max(p.size for p in original.values())
    wanted = min(max(components, largest), total)
    fused = fuse(original, components=wanted)
    assert fused.components == wanted == fused.posterior.size  # type: ignore[attr-defined]


UNLABELLED = ("Plate", "Product-", "Network", "HiddenMarkov")


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith(UNLABELLED)])
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32 - 1))
def test_barycentre_of_known_blocks_is_the_average(name: str, divergence: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    posteriors = [TABLE[name].draw(rng, (), 2) for _ in range(3)]
    fused = fuse(posteriors, divergence=divergence).posterior
    attribute = "natural_parameters" if divergence == "reverse" else "mean_parameters"
    mean = np.mean([getattr(q, attribute) for q in posteriors], 0)
    np.testing.assert_allclose(getattr(fused, attribute), mean, rtol=1e-7, atol=1e-9)


def test_weights_enter_the_barycentre() -> None:
    q = Gamma.from_standard(shape=[2.0, 4.0, 8.0], rate=[1.0, 3.0, 5.0])
    weighted = barycenter(q, np.array([0, 0, 1]), weights=np.array([1.0, 3.0, 9.0]))
    np.testing.assert_allclose(weighted.rate, [(1.0 + 9.0) / 4, 5.0])


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), sticks=st.booleans())
def test_product_is_the_posterior_of_the_pooled_counts(seed: int, sticks: bool) -> None:
    """Known correspondence, conjugate: the prior counted once, to 1e-12."""
    rng = np.random.default_rng(seed)
    base: Any = Dirichlet.from_standard(np.full(4, 0.5))
    if sticks:
        base = Beta.from_standard(np.ones(4), np.full(4, 2.0))
    data = [[rng.normal(5 * k, 1.0, (rng.integers(2, 20), 2)) for k in range(4)] for _ in range(3)]
    ledgers = [conjugate_site(f"s{j}", base, clusters) for j, clusters in enumerate(data)]
    pooled = conjugate_site("all", base, [np.concatenate(c) for c in zip(*data, strict=True)])
    fused = fuse(ledgers, rule="product", matching="identity")
    pairs = zip(leaves(fused.posterior), leaves(pooled.posterior), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_a_product_can_forget_what_it_fused() -> None:
    ledgers = [clusters(seed) for seed in range(3)]
    fused = fuse(ledgers, rule="product")
    assert fused.ledger is not None and fused.ledger.sites == ("s0", "s1", "s2")
    assert fused.ledger.posterior == fused.posterior
    without = fused.ledger.forget("s1").posterior
    again = fuse([ledgers[0], ledgers[2]], rule="product").posterior
    order = np.argsort(without.members.mean[:, 0])  # type: ignore[attr-defined]
    other = np.argsort(again.members.mean[:, 0])  # type: ignore[attr-defined]
    np.testing.assert_allclose(
        without.members.scatter[order],
        again.members.scatter[other],
        rtol=1e-9,  # type: ignore[attr-defined]
    )


def test_hungarian_matches_permutations() -> None:
    rng = np.random.default_rng(0)
    orders = [rng.permutation(7) for _ in range(5)]
    plates = {f"s{j}": Plate(points(10.0 * order)) for j, order in enumerate(orders)}
    fused = fuse(plates, matching="hungarian")
    assert fused.components == 7
    first = fused.matching["s0"][np.argsort(orders[0])]
    for j, order in enumerate(orders):
        assert (fused.matching[f"s{j}"][np.argsort(order)] == first).all()


def test_blocks_fuse_as_they_would_alone() -> None:
    a, b = clusters(2), clusters(3)
    noise = {"a": Gamma.from_standard(2.0, 1.0), "b": Gamma.from_standard(3.0, 4.0)}
    start = Gamma.from_standard(1.0, 0.5)
    whole = [
        Ledger.of_site(
            site,
            prior=Product(noise=start, inner=Product(topics=one.prior)),
            posterior=Product(noise=noise[site], inner=Product(topics=one.posterior)),
        )
        for site, one in zip("ab", (a, b), strict=True)
    ]
    for rule in ("barycenter", "product"):
        fused = fuse(whole, rule=rule)
        assert set(fused.plates) == {"inner/topics"} and isinstance(fused.posterior, Product)
        apart = [fuse({"a": a, "b": b}, rule=rule), fuse(noise, rule=rule, prior=start)]
        assert fused.posterior.blocks["inner"].blocks["topics"] == apart[0].posterior  # type: ignore[attr-defined]
        assert fused.posterior.blocks["noise"] == apart[1].posterior
    # Rows of a plate were found in the others' company; blocks alone are their sites' own.
    assert fused.ledger is not None and not fused.ledger.independent
    assert apart[1].ledger is not None and apart[1].ledger.independent


@pytest.mark.parametrize("how", [{}, {"budget": 10**7}, {"personal": True}])
@pytest.mark.parametrize("files", [False, True])
def test_a_factor_that_others_moved_stays_so(how: Any, files: bool, tmp_path: Any) -> None:
    prior = Gaussian.from_standard(np.zeros(2), 100 * np.eye(2))
    own = [Gaussian.from_standard(np.full(2, float(k)), np.eye(2)) for k in range(3)]
    sites: Any = [
        Ledger(prior).update("a", own[0] - prior, independent=False),
        *(Ledger.of_site(s, prior=prior, posterior=q) for s, q in zip("bc", own[1:], strict=True)),
    ]
    if files:
        for site, name in zip(sites, "abc", strict=True):
            save(site, tmp_path / f"{name}.safetensors")
        sites = [tmp_path / f"{name}.safetensors" for name in "abc"]
    ledger = fuse(sites, **how).ledger
    assert ledger is not None
    assert [entry.independent for entry in ledger.entries.values()] == [False, True, True]
    assert not ledger.forget("b").independent and ledger.forget("a").independent


@pytest.mark.parametrize("how", [{}, {"budget": 10**7}, {"personal": True}])
def test_a_fusion_remembers_whom_its_ledgers_forgot(how: Any) -> None:
    prior = Gaussian.from_standard(np.zeros(2), 100 * np.eye(2))
    own = {s: Gaussian.from_standard(np.full(2, k), np.eye(2)) for k, s in enumerate("abc")}
    a, b, c = (Ledger.of_site(s, prior=prior, posterior=q) for s, q in own.items())
    left = (a | b).forget("b")
    fused = fuse([left, c], **how).ledger
    assert fused is not None and fused.sites == ("a", "c") and fused.forgotten == ("b",)
    for several in ([left, b], [b, left], {"a": left, "b": own["b"]}):
        with pytest.raises(UsageError, match=r"factors of \['b'\], whom a ledger among them"):
            fuse(several, **(how if isinstance(several, list) else how | {"prior": prior}))
    again = left.update("b", prior.zero(), epoch=1, sequence=0)
    again = again.update("b", b.factor("b"), independent=True)
    only = again.forget("a").compact()
    back = fuse([left, only], **how).ledger
    assert back is not None and back.sites == ("a", "b") and not back.forgotten


@pytest.mark.parametrize("moved", [False, True])
def test_a_sum_of_factors_depends_on_what_its_parts_do(moved: bool) -> None:
    prior = Gaussian.from_standard(np.zeros(2), 100 * np.eye(2))
    own = {s: Gaussian.from_standard(np.full(2, k / 9), np.eye(2)) for k, s in enumerate("abc")}
    sites = [
        Ledger(prior).update(s, q - prior, independent=s != "a" or not moved)
        for s, q in own.items()
    ]
    with pytest.warns(UserWarning, match="one for all"):
        ledger = fuse(sites, budget=1).ledger
    assert ledger is not None
    assert ledger.independent is not moved


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


def test_a_ledgers_own_prior_comes_before_the_argument() -> None:
    fused = fuse(
        {"a": gamma_ledger("a", 2.0), "b": Gamma.from_standard(3.0, 3.0)},
        rule="product",
        prior=Gamma.from_standard(1.0, 1.0),
    )
    np.testing.assert_allclose(fused.posterior.rate, 1.0 + 2.0 + 2.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
@pytest.mark.parametrize("offset", [1e6, 1e8])
@pytest.mark.parametrize("family", [DiagonalGaussian, Gaussian])
def test_plates_of_products_keep_their_digits(family: Any, offset: float, divergence: Any) -> None:
    """Far from the origin and wrapped, components are matched as near it and bare."""

    def site(seed: int, offset: float, wrapped: bool) -> Plate:
        rng = np.random.default_rng(seed)
        size = int(rng.integers(3, 7))
        mean = centres[rng.choice(8, size, replace=False)] + 0.1 * rng.normal(size=(size, 2))
        spread = np.full((size, 2), 2.0**-6)
        if family is Gaussian:
            spread = spread[..., None] * np.eye(2)
        # Offsets are kept to a grid that float64 holds there, so that nothing is lost on entry.
        members = family.from_standard(np.round(mean * 2**20) / 2**20 + offset, spread)
        return Plate(Product(place=members) if wrapped else members)

    centres = 3.0 * np.random.default_rng(7).normal(size=(8, 2))
    near, far = (
        fuse([site(seed, *how) for seed in range(9)], divergence=divergence)
        for how in ((0.0, False), (offset, True))
    )
    assert near.components == far.components == 8
    pairs = {
        pair for s in near.matching for pair in zip(near.matching[s], far.matching[s], strict=True)
    }
    assert len(pairs) == 8  # the same partition, whatever the numbers
    np.testing.assert_allclose(far.cost, near.cost, rtol=1e-6 * offset / 1e6)


def test_more_components_than_the_sample_holds() -> None:
    rng = np.random.default_rng(0)
    plates = [Plate(points(10.0 * rng.integers(0, 5, 1) + rng.normal(size=1))) for _ in range(400)]
    assert fuse(plates, components=330).components == 330


def test_blocks_may_bear_any_name() -> None:
    def site(shift: float) -> Product:
        inner = Product(b=plate(3.0 + shift, 40.0), location=Gamma.from_standard(2.0, 1.0))
        return Product({"a/b": plate(7.0, 90.0 + shift), "a": inner})

    fused = fuse({"one": site(0.0), "two": site(0.1)})
    assert set(fused.plates) == {"a%2Fb", "a/b"}
    means = fused.posterior.blocks["a/b"].members.mean[:, 0]  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.sort(means), [7.0, 90.05])


def test_a_fusion_goes_to_another_process() -> None:
    fusion = fuse({f"s{k}": clusters(k) for k in range(3)})
    twin = pickle.loads(pickle.dumps(fusion))
    assert twin.posterior == fusion.posterior and repr(twin) == repr(fusion)
    assert (twin.cost, twin.residual, twin.scale) == (fusion.cost, fusion.residual, fusion.scale)
