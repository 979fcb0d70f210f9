"""Components that a site's own fit split are put together, and nothing else is."""

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import scipy.stats

import posterity
from posterity import Beta, Dirichlet, Ledger, NormalWishart, Plate, Product
from posterity.errors import ParameterError, UsageError
from posterity.fusion import rows
from posterity.fusion.absorb import entropy
from tests.fusion.made import conjugate_site

pytestmark = [
    pytest.mark.filterwarnings("ignore::posterity.errors.IdentificationWarning"),
    pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning"),
]

CENTRES = 8.0 * np.array([[0, 0], [1, 0], [0, 1], [1, 1.0]])


def prior(components, degrees=4.0):
    """Wide enough for all clusters."""
    ones, identity = np.ones(components), np.stack([np.eye(2)] * components)
    means = np.zeros((components, 2))
    return NormalWishart.from_standard(means, 0.01 * ones, identity, degrees * ones)


def site(name, parts, degrees=4.0):
    weights = Dirichlet.from_standard(np.ones(len(parts)) / len(parts))
    return conjugate_site(name, weights, parts, prior(len(parts), degrees))


def cut(x, share=0.5):
    """Responsibilities (n, 2) for a cluster as a fit splits it: about a line through it."""
    low = scipy.special.expit(3.0 * (np.quantile(x[:, 0], share) - x[:, 0]))
    return np.column_stack([low, 1 - low])


def drawn(seed, held, count=150):
    """By site, the data of each of its clusters."""
    rng = np.random.default_rng(seed)
    return {
        name: [CENTRES[k] + rng.normal(size=(count + 17 * k, 2)) for k in own]
        for name, own in held.items()
    }


HELD = {"a": [0, 1, 3], "b": [0, 1, 2], "c": [1, 2, 3], "d": [0, 3]}


def split_at(name, data, share=0.5):
    """All sites, the last cluster of one of which is in two, last."""
    *first, last = data[name]
    shares = scipy.linalg.block_diag(*(np.ones((len(x), 1)) for x in first), cut(last, share))
    split = fitted(name, np.concatenate(data[name]), shares)
    return {own: site(own, x) for own, x in data.items()} | {name: split}


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("name", ["a", "d"])
def test_halves_are_put_together(share, name):
    data = drawn(0, HELD)
    apart, whole = split_at(name, data, share), {own: site(own, x) for own, x in data.items()}
    assert posterity.fuse(apart, absorb=False).components == 5
    found, right = posterity.fuse(apart), posterity.fuse(whole)
    assert found.components == right.components == 4
    size = len(data[name])
    (part,) = found.absorbed[name]
    assert list(found.absorbed) == [name] and part in (size - 1, size)
    assert found.matching[name][size - 1] == found.matching[name][size]
    # The union is what the site would have learnt of the whole cluster, and counts once.
    for one, other in zip(found.posterior.parts(), right.posterior.parts(), strict=True):
        np.testing.assert_allclose(
            one.natural_parameters, other.natural_parameters, rtol=1e-9, atol=1e-9
        )
    assert found.cost == pytest.approx(right.cost)
    assert found.components_evidence == pytest.approx(right.components_evidence)
    margins = found.margins[name]
    assert np.isnan(margins[part]) and np.isfinite(np.delete(margins, part)).all()
    assert right.absorbed == {}


def test_a_product_counts_both_halves():
    data = drawn(0, HELD)
    found = posterity.fuse(split_at("a", data), rule="product").ledger
    right = posterity.fuse({n: site(n, x) for n, x in data.items()}, rule="product").ledger
    for one, other in ((found, right), (found.forget("a"), right.forget("a"))):
        np.testing.assert_allclose(
            one.posterior.members.natural_parameters,
            other.posterior.members.natural_parameters,
            rtol=1e-9,
            atol=1e-7,
        )
        assert one.posterior.weights.counts(one.prior.weights) == pytest.approx(
            other.posterior.weights.counts(other.prior.weights)
        )


def test_a_site_is_forgotten_as_if_never_seen():
    ledger = posterity.fuse(split_at("a", drawn(0, HELD)), rule="product").ledger
    without = Ledger(ledger.prior).extend(
        {name: ledger.factor(name) for name in "bcd"}, independent=False
    )
    left = ledger.forget("a").posterior.members.natural_parameters
    assert (left == without.posterior.members.natural_parameters).all()


def test_a_few_observations_are_absorbed_where_they_lie_within():
    data = drawn(0, HELD | {"a": [0, 1, 2, 3]})
    inside = CENTRES[0] + np.array([[0.7, -0.7]])
    outside = CENTRES[0] + np.array([[-7.0, -7.0]])
    for extra, parts in ((inside, (4,)), (outside, None)):
        sites = {name: site(name, x) for name, x in data.items()}
        everything = [*data["a"], np.tile(extra, (2, 1))]
        shares = scipy.linalg.block_diag(*(np.ones((len(x), 1)) for x in everything))
        shares[-2:, 0], shares[-2:, -1] = 0.1, 0.9
        sites["a"] = fitted("a", np.concatenate(everything), shares)
        found = posterity.fuse(sites)
        assert found.absorbed.get("a") == parts
        assert found.components == (4 if parts else 5)


@pytest.mark.parametrize("apart", [4.0, 6.0])
@pytest.mark.parametrize("count", [20, 200])
@pytest.mark.parametrize("others", ["both", "one", "merged"])
@pytest.mark.filterwarnings(
    "ignore::posterity.errors.FusionWarning"
)  # of one site alone, beside one merged of both
def test_two_clusters_stay_two(apart, count, others):
    rng = np.random.default_rng(int(apart))

    def two():
        near = np.array([apart, 0.0]) + rng.normal(size=(count, 2))
        return [rng.normal(size=(200, 2)), near]

    sites = {"a": site("a", two())}
    for name in "bcd":
        held = {"both": two(), "one": two()[:1], "merged": [np.concatenate(two())]}[others]
        sites[name] = site(name, [*held, CENTRES[2] * 3 + rng.normal(size=(100, 2))])
    assert posterity.fuse(sites).absorbed == {}


def fitted(name, x, responsibilities):
    """A site whose fit left open which of its records (n, 2) are of which component (n, K)."""
    n, size = responsibilities.sum(0), responsibilities.shape[1]
    scatter = np.einsum("nk,ni,nj->kij", responsibilities, x, x)
    members = prior(size) + NormalWishart(n, n, responsibilities.T @ x, scatter)
    base = Dirichlet.from_standard(np.ones(size) / size)
    start, weights = Plate(prior(size), base), Dirichlet.from_standard(1 / size + n)
    return Ledger.of_site(name, prior=start, posterior=Plate(members, weights))


def two_of(rng, apart, counts=(200, 80)):
    """Two clusters in the plane so far apart, and responsibilities by their own densities."""
    centres = np.array([[0.0, 0.0], [apart, 0.0]])
    x = np.concatenate([c + rng.normal(size=(n, 2)) for c, n in zip(centres, counts, strict=True)])
    log = np.log(counts) - ((x[:, None] - centres) ** 2).sum(-1) / 2
    return x, scipy.special.softmax(log, axis=1)


def test_what_several_fits_split_is_one_and_clusters_that_overlap_are_not():
    rng = np.random.default_rng(0)
    split, both = {}, {}
    for name in "abcd":
        one, far = rng.normal(size=(150, 2)), CENTRES[3] + rng.normal(size=(90, 2))
        low = scipy.special.expit(1.3 * one @ rng.normal(size=2))
        parts = np.zeros((240, 3))
        parts[:150, 0], parts[:150, 1], parts[150:, 2] = low, 1 - low, 1.0
        split[name] = fitted(name, np.concatenate([one, far]), parts)
        both[name] = fitted(name, *two_of(rng, 4.0))
    assert posterity.fuse(split, absorb=False).components > 2
    found = posterity.fuse(split)
    assert found.components == 2 and list(map(len, found.absorbed.values())) == [1] * 4
    again = posterity.fuse(dict(reversed(split.items())))
    for one, other in zip(found.posterior.parts(), again.posterior.parts(), strict=True):
        assert (one.natural_parameters == other.natural_parameters).all()
    passes = posterity.fuse(split, budget=4096)
    assert passes.absorbed == found.absorbed
    for one, other in zip(found.posterior.parts(), passes.posterior.parts(), strict=True):
        np.testing.assert_allclose(one.natural_parameters, other.natural_parameters, rtol=1e-9)
    apart = posterity.fuse(both)
    assert apart.components == 2 and apart.absorbed == {} and not apart.warnings


@pytest.mark.filterwarnings("ignore")
def test_what_is_as_likely_one_is_one_and_what_lies_further_apart_is_two():
    outcomes = []
    for apart in (2.0, 2.25, 2.5, 3.0):
        x, parts = two_of(np.random.default_rng(1), apart, (80, 30))
        if apart == 2.5:  # a site with as many components as are found
            x, parts = np.concatenate([x, x + CENTRES[2] * 3]), np.kron(np.eye(2), parts)
        sites = {"a": fitted("a", x, parts)}
        for name in "bc":
            x = np.random.default_rng(ord(name)).normal(size=(150, 2))
            sites[name] = fitted(
                name, np.concatenate([x, x + CENTRES[2] * 3]), np.eye(2)[[0] * 150 + [1] * 150]
            )
        fused = posterity.fuse(sites)
        outcomes.append("one" if fused.absorbed else "two")
    assert outcomes == sorted(outcomes) and {*outcomes} == {"one", "two"}


@pytest.mark.parametrize("diagonal", [False, True])
def test_entropy_of_responsibilities_is_that_of_many_draws(diagonal):
    rng, size = np.random.default_rng(2), 3
    counts, means = np.array([[120.0], [50.0]]), np.array([[[0.0, 0, 0]], [[1.5, 1.0, 0.5]]])
    spreads = np.stack([np.diag([1.0, 2.0, 0.5]), 0.5 * np.eye(size) + (0.0 if diagonal else 0.3)])
    x = np.concatenate(
        [
            rng.multivariate_normal(m[0], s, size=int(400 * n[0]))
            for n, m, s in zip(counts, means, spreads, strict=True)
        ]
    )
    log = np.stack(
        [
            scipy.special.digamma(n[0]) + scipy.stats.multivariate_normal(m[0], s).logpdf(x)
            for n, m, s in zip(counts, means, spreads, strict=True)
        ]
    )
    r = scipy.special.softmax(log, axis=0)
    of_draws = scipy.special.entr(r).sum() / 400
    weights = [
        scipy.special.digamma(n) - np.linalg.slogdet(s)[1] / 2
        for n, s in zip(counts, spreads, strict=True)
    ]
    roots = np.linalg.cholesky(spreads)[:, None]
    laws = zip(counts, weights, means, roots, strict=True)
    assert entropy(*laws) == pytest.approx([of_draws], rel=0.08)


def test_neither_order_nor_names_matter():
    sites = split_at("a", drawn(1, HELD))
    found = posterity.fuse(sites)
    renamed = {f"z{9 - i}": ledger for i, ledger in enumerate(sites.values())}
    again = posterity.fuse(dict(reversed(renamed.items())))
    assert list(again.absorbed) == ["z9"]
    for one, other in zip(found.posterior.parts(), again.posterior.parts(), strict=True):
        assert (one.natural_parameters == other.natural_parameters).all()


@pytest.mark.filterwarnings("ignore")
def test_in_passes_sites_in_any_order_are_judged_under_one_population(monkeypatch):
    """Fits of tight sites, and then of wide ones, are in different blocks of the table."""
    rng, sites = np.random.default_rng(0), {}
    monkeypatch.setattr(rows, "BLOCK", 2**13)
    centres = 4 * rng.normal(size=(4, 2))
    for j in range(160):
        own = centres[rng.permutation(4)[:3]]
        labels = np.repeat(range(3), rng.integers(5, 40, 3))
        x = own[labels] + (0.6 if j < 80 else 2.0) * rng.normal(size=(len(labels), 2))
        parts = (0.02 + np.eye(3)[labels]) * rng.uniform(0.9, 1.1, (len(labels), 3))
        sites[f"{j:03d}"] = fitted(f"{j:03d}", x, parts / parts.sum(1, keepdims=True))
    found = posterity.fuse(sites, budget=20000)
    mixed = [*sites][::-3] + [name for k, name in enumerate([*sites][::-1]) if k % 3]
    again = posterity.fuse({name: sites[name] for name in mixed}, budget=20000)
    assert found.absorbed and dict(found.absorbed) == dict(again.absorbed)


@pytest.mark.filterwarnings("ignore")
def test_sites_with_unlike_priors_or_missing_values_leave_others_as_they_are():
    data = split_at("b", drawn(0, HELD))
    # Another site's components started from several priors: it is left as it is.
    starts, posterior = data["a"].prior, data["a"].posterior
    means = np.random.default_rng(0).normal(size=(3, 2))
    other = NormalWishart.from_standard(
        means, 0.01 * np.ones(3), np.eye(2) + 0 * means[..., None], 4.0 * np.ones(3)
    )
    grown = other + posterior.members - starts.members
    unlike = Ledger.of_site(
        "a", prior=Plate(other, starts.weights), posterior=Plate(grown, posterior.weights)
    )
    for rule in ("barycenter", None):
        options = {} if rule is None else {"rule": rule}
        found = posterity.fuse(data | {"a": unlike}, **options)
        assert found.components == 4 and list(found.absorbed) == ["b"]
    shares = {name: shares_of(name, seed) for seed, name in enumerate("abc")}
    alone = posterity.fuse(shares).absorbed
    assert list(alone) == ["a", "b", "c"]
    with_gaps = posterity.fuse(shares | {"d": shares_of("d", 7, missing=0.3)}).absorbed
    assert {name: with_gaps.get(name) for name in "abc"} == dict(alone)


def shares_of(name, seed, missing=0.0):
    """A site whose fit split the second of two clusters of binary records, some of them missing."""
    rng = np.random.default_rng(seed)
    truth = np.array([[0.2, 0.3, 0.8, 0.5], [0.9, 0.8, 0.1, 0.2]])
    labels, x = np.repeat([0, 1], 150), rng.random((300, 4))
    x, seen = (x < truth[labels]).astype(float), rng.random((300, 4)) >= missing
    half, parts = rng.uniform(0.2, 0.8, 300), 0.05 + np.eye(2)[labels]
    parts = np.column_stack([parts[:, 0], parts[:, 1] * half, parts[:, 1] * (1 - half)])
    parts /= parts.sum(1, keepdims=True)
    ones, zeros = parts.T @ (x * seen), parts.T @ ((1 - x) * seen)
    start = Product({f"x{k}": Beta.from_standard(np.ones(3), np.ones(3)) for k in range(4)})
    learnt = Product({f"x{k}": Beta(ones[:, k], zeros[:, k]) for k in range(4)})
    base, n = Dirichlet.from_standard(np.ones(3)), parts.sum(0)
    after = Plate(start + learnt, Dirichlet(base.concentration_minus_one + n))
    return Ledger.of_site(name, prior=Plate(start, base), posterior=after)


def test_without_priors_or_counts_nothing_is_absorbed():
    ledgers = split_at("a", drawn(0, HELD))
    bare = {name: ledger.posterior for name, ledger in ledgers.items()}
    assert posterity.fuse(bare).absorbed == {}
    members = {name: Plate(q.members) for name, q in bare.items()}
    assert posterity.fuse(members, prior=Plate(prior(1))).absorbed == {}
    # A prior that is said makes it possible.
    base = Plate(prior(1), Dirichlet.from_standard([1.0]))
    assert list(posterity.fuse(bare, prior=base).absorbed) == ["a"]


@pytest.mark.parametrize(
    "options",
    [{"components": 4}, {"matching": "identity"}],
)
def test_what_cannot_absorb_says_so(options):
    with pytest.raises(UsageError, match="absorb= for"):
        posterity.fuse(split_at("a", drawn(0, HELD)), absorb=True, **options)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("scale", [[1.0, 1e9], [1e12, 1e12]])
def test_columns_far_out_of_scale_are_one_clear_error(scale):
    data = drawn(0, HELD)
    data["c"] = [x * scale for x in data["c"]]
    with pytest.raises(ParameterError, match="components of a usual size"):
        posterity.fuse({name: site(name, x) for name, x in data.items()})


@pytest.mark.parametrize(("apart", "count"), [(2.0, 300), (3.0, 4000)])
def test_what_labels_tell_apart_stays_apart_at_the_only_site_that_has_it(apart, count):
    rng, places = np.random.default_rng([count, 3]), np.array([[0.0, 0], [0, 12], [apart, 0]])
    sites = {
        f"s{n}": site(
            f"s{n}", [rng.normal(place, size=(count, 2)) for place in places[: 2 + (n < 1)]]
        )
        for n in range(5)
    }
    fused = posterity.fuse(sites)
    assert fused.components == 3 and not fused.absorbed
    first, *others = (labels[:2].tolist() for labels in fused.matching.values())
    assert all(labels == first for labels in others)
