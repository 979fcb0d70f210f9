"""Putting coordinates that have names in one order: exact, and its own inverse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import posterity
from posterity.arrays.tree import identical
from posterity.artifact import provenance as provenances
from posterity.artifact.aligned import aligned, listed, names_in, ordered
from posterity.artifact.tree import decode, encode
from posterity.errors import ArtifactError, LedgerError, StructureError
from posterity.families import DiagonalGaussian, Dirichlet, Gamma, Gaussian, Plate, Product
from posterity.families.checks import check_adds
from posterity.fusion.diff import diff
from posterity.ledger import Ledger

pytestmark = [
    pytest.mark.filterwarnings("ignore::posterity.errors.IdentificationWarning"),
    pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning"),
]

NAMES = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6, unique=True)


@st.composite
def permuted(draw):
    """Names, the same ones in another order, and a seed."""
    names = draw(NAMES)
    return names, draw(st.permutations(names)), draw(st.integers(0, 2**32 - 1))


def posteriors(names, seed):
    """One of each kind that has coefficients, and one that has others too."""
    size, rng = len(names), np.random.default_rng(seed)
    mean, root = rng.normal(size=size), rng.normal(size=(size, size))
    full = Gaussian.from_standard(mean, root @ root.T + np.eye(size)).named(names)
    diagonal = DiagonalGaussian.from_standard(mean, rng.uniform(1, 2, size)).named(names)
    noise = Gamma.from_standard(2.0, 1.0)
    several = Product(weights=full, noise=noise, deep=Product(q=diagonal, noise=noise))
    ledger = Ledger(full).update("a", 0.5 * full).update("b", full, independent=True).forget("a")
    return full, diagonal, several, ledger


def everywhere(q, names):
    """These names wherever it has some."""
    return dict.fromkeys(names_in(q), tuple(names))


@settings(max_examples=12)
@given(permuted())
def test_coefficients_move_with_their_names_and_back(case):
    names, wanted, seed = case
    full, diagonal, several, ledger = posteriors(names, seed)
    places = [names.index(name) for name in wanted]
    for q in (full, diagonal, several, ledger):
        moved = ordered(q, everywhere(q, wanted), "here", "there")
        assert names_in(moved) == everywhere(q, wanted)
        back = ordered(moved, names_in(q), "here", "there")
        assert back == q if isinstance(q, Ledger) else identical(back, q)
    moved = ordered(full, {"": tuple(wanted)}, "here", "there")
    assert np.array_equal(moved.precision, full.precision[np.ix_(places, places)])
    assert np.array_equal(moved.precision_mean, full.precision_mean[places])
    blocks = ordered(several, everywhere(several, wanted), "here", "there")
    assert identical(blocks.weights, moved) and identical(blocks.noise, several.noise)
    assert np.array_equal(blocks.deep.q.precision, diagonal.precision[places])
    turned = ordered(ledger, {"": tuple(wanted)}, "here", "there")
    assert turned.forgotten == ("a",) and turned.independent
    assert identical(turned.prior, moved) and turned.factor("b").names == tuple(wanted)


@settings(max_examples=12)
@given(permuted())
def test_arithmetic_and_ledgers_put_names_in_one_order(case):
    names, wanted, seed = case
    full = posteriors(names, seed)[0]
    turned = ordered(full, {"": tuple(wanted)}, "here", "there")
    assert identical(full + turned, full + full) and (full + turned).names == tuple(names)
    assert abs(float(full.kl(turned))) < 1e-9
    assert (full.reordered(np.arange(len(names))) + full).names == tuple(names)
    one = Ledger(full).update("a", full)
    assert identical(one.update("b", turned).posterior, one.update("b", full).posterior)
    assert identical((one | Ledger(turned).update("b", turned)).posterior, 3 * full)
    assert Ledger(full.reordered(np.arange(len(names)))).update("b", turned).names == tuple(wanted)


def test_ledgers_of_other_names_do_not_merge():
    q = DiagonalGaussian.from_standard([1.0, 2.0], [1.0, 1.0]).named(["u", "v"])
    with pytest.raises(StructureError, match="'w'"):
        Ledger(q) | Ledger(q.named(["u", "w"]))
    with pytest.raises(StructureError, match="factor of site 'a'"):
        Ledger(q).update("a", q.named(["u", "w"]))
    with pytest.raises(LedgerError, match="different priors"):
        Ledger(q) | Ledger(2 * q.named(["v", "u"]))


@given(permuted(), st.text(min_size=6, max_size=8))
def test_other_names_are_told_apart(case, other):
    names, wanted, seed = case
    with pytest.raises(StructureError) as raised:
        ordered(posteriors(names, seed)[0], {"": (*wanted[1:], other)}, "here", "there")
    assert f"{[wanted[0]]} unknown" in raised.value.found
    assert f"{[other]} missing" in raised.value.found


def test_who_names_nothing_is_left_as_it_is():
    q = DiagonalGaussian.from_standard([1.0, 2.0], [1.0, 1.0])
    found, names = aligned({"a": q, "b": q.named(["u", "v"]), "c": q.named(["v", "u"])})
    assert names == {"": ("u", "v")} and listed(names) == ("u", "v")
    assert [p.mean.tolist() for p in found.values()] == [[1, 2], [1, 2], [2, 1]]


# --- members of plates ---------------------------------------------------------------------------


def classes(*names, offset=0.0):
    """A member a class, at the place that its name says."""
    means = np.array([[float(ord(name)), offset] for name in names])
    members = DiagonalGaussian.from_standard(means, np.ones(means.shape)).named(["x", "y"])
    return Plate(members, Dirichlet.from_standard(np.full(len(names), 10.0))).named(list(names))


def test_members_that_have_names_are_matched_by_them():
    # Their places say otherwise: c and a have come near to each other's.
    far = classes("c", "a", "d")
    far = Plate(far.members.translate(np.array([2.0, 0.0])), far.weights).named(["a", "c", "d"])
    fused = posterity.fuse({"p": classes("a", "b", "c"), "q": far})
    names = fused.posterior.names
    assert set(names) == set("abcd")
    assert fused.posterior.members.names == ("x", "y")
    found = {site: [names[label] for label in labels] for site, labels in fused.matching.items()}
    assert found == {"p": ["a", "b", "c"], "q": ["a", "c", "d"]}
    place = names.index("b")  # of which there is one alone
    assert fused.posterior.members.mean[place].tolist() == [98.0, 0.0]
    with pytest.warns(UserWarning, match=r"none at \['q'\]"):
        fused = posterity.fuse({"p": classes("a", "b"), "q": Plate(far.members, far.weights)})
    assert fused.posterior.names == ()


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [[], ["u"], ["u", "u"], ["u", 2], ["u", ""], "uv", None])
def test_names_in_a_file_that_are_none(names):
    arrays = {}
    node = encode(DiagonalGaussian.from_standard([1.0, 2.0], [4.0, 4.0]), "", arrays)
    with pytest.raises((ArtifactError, StructureError), match="names"):
        decode({**node, "names": names}, arrays)


def test_names_beside_what_has_no_coordinates():
    arrays = {}
    with pytest.raises(ArtifactError, match="names"):
        decode({**encode({"x": np.ones(2)}, "", arrays), "names": ["u", "v"]}, arrays)


@given(NAMES, st.integers(1, 6))
def test_names_of_inputs_survive_provenance(names, size):
    provenance = provenances.as_provenance(names)
    if size == len(names):
        assert provenances.inputs_of(provenance, size) == tuple(names)
    else:
        with pytest.raises(ArtifactError):
            provenances.inputs_of(provenance, size)
    assert provenances.as_provenance(()) == {} and provenances.inputs_of({}, size) == ()


def test_diff_goes_by_name_and_says_which_means_moved():
    q = DiagonalGaussian.from_standard([1.0, 2.0], [4.0, 1.0]).named(["u", "v"])
    p = DiagonalGaussian.from_standard([2.0, 7.0], [1.0, 4.0]).named(["v", "u"])
    found = diff(q, p)
    assert found.blocks[0].shifts == {"u": 3.0, "v": 0.0}
    assert found.kl.ab == pytest.approx(36 / 8)


@pytest.mark.parametrize("budget", [None, 2**27])
def test_a_site_without_names_is_warned_of(budget):
    q = DiagonalGaussian.from_standard([1.0, 2.0], [1.0, 1.0])
    sites = {"a": q, "b": q.named(["u", "v"]), "c": (2 * q).named(["u", "v"])}
    with pytest.warns(UserWarning, match=r"no names of columns at \['a'\]"):
        fused = posterity.fuse(sites, budget=budget)
    assert fused.posterior.names == ("u", "v")


# --- part by part, and without names -------------------------------------------------------------


def blocks(names, values, named_e=True):
    """A Product of one Gaussian with names and one that may have some, at values by name."""
    e = DiagonalGaussian.from_standard([0.0], [1.0])
    f = DiagonalGaussian.from_standard(values, np.ones(len(values)))
    return Product(e=e.named(["w"]) if named_e else e, f=f.named(names) if names else f)


def test_names_are_collected_part_by_part():
    prior = blocks(None, [0.0, 0.0])
    a, b = blocks(["u", "v"], [5.0, 1.0]), blocks(["v", "u"], [3.0, 7.0])
    one, other = Ledger(prior).update("a", a), Ledger(prior).update("b", b)
    for ledger in (one | other, Ledger(prior).extend({"a": a, "b": b})):
        assert ledger.names == {"e": ("w",), "f": ("u", "v")}
        np.testing.assert_allclose(ledger.posterior.f.mean * 3, [12.0, 4.0])
    with pytest.warns(UserWarning, match=r"at \['the prior'\]"):
        fused = posterity.fuse({"a": one, "b": other}, rule="product", prior=prior)
    np.testing.assert_allclose(fused.posterior.f.mean * 3, [12.0, 4.0])
    with pytest.warns(UserWarning, match=r"\['c'\]"):
        fused = posterity.fuse({"c": prior, "a": a, "b": b})
    assert fused.posterior.f.names == ("u", "v")
    np.testing.assert_allclose(fused.posterior.f.mean, [12 / 3, 4 / 3])


def test_names_that_come_late_are_warned_of():
    q = DiagonalGaussian.from_standard([1.0, 2.0], [1.0, 1.0])
    held = Ledger(q).update("a", q)
    with pytest.warns(UserWarning, match=r"factors of \['a'\] came without names"):
        assert held.update("b", q.named(["u", "v"])).names == ("u", "v")
    with pytest.warns(UserWarning, match="this ledger came without names"):
        assert (held | Ledger(q.named(["u", "v"]))).names == ("u", "v")


def test_labelled_members_by_every_matching():
    a, b = classes("a", "c"), classes("c", "a")
    swapped = Plate(b.members, b.weights).named(["a", "c"])  # each says what the other is
    fused = posterity.fuse({"p": a, "q": swapped}, matching="identity")
    assert set(fused.posterior.names) == {"a", "c"}
    np.testing.assert_allclose(fused.posterior.members.mean[:, 0], [98.0, 98.0])
    turned = posterity.fuse({"p": a, "q": b}, matching="identity").posterior
    place = turned.names.index("c")
    assert turned.members.mean[place, 0] == 99.0
    with pytest.warns(UserWarning, match="not used, and lost"):
        found = posterity.fuse({"p": a, "q": b}, matching="hungarian")
    assert found.posterior.names == ()
    assert diff(a, b).kl == (0.0, 0.0)
    assert diff(a, swapped).kl.ab > 1.0


@pytest.mark.filterwarnings("ignore")
def test_laws_that_do_not_add_say_what_does():
    q = DiagonalGaussian.from_standard([[0.0], [5.0]], [[1.0], [1.0]])
    mixed = posterity.Mixture.from_standard([1.0, 1.0], q)
    mapped = posterity.Transformed.onto(Gamma.from_standard(1.0, 1.0), q[0])
    for law, way in ((mixed, "collapse"), (mapped, r"\.law")):
        with pytest.raises(StructureError, match=way):
            posterity.fuse({"a": law, "b": law})
        with pytest.raises(StructureError, match=way):
            check_adds(law, "the prior")  # of a ledger
    with pytest.raises(StructureError, match="second posterior"):
        diff(q[0], mapped)


def test_a_mixture_s_divergence_goes_by_name():
    import jax

    q = DiagonalGaussian.from_standard([[0.0, 9.0], [5.0, 1.0]], np.ones((2, 2)))
    mixed = posterity.Mixture.from_standard([1.0, 1.0], q.named(["u", "v"]))
    turned = ordered(mixed, {"components": ("v", "u")}, "here", "there")
    found = mixed.kl(turned, key=jax.random.key(0))
    assert abs(float(found.value)) < 1e-6


def test_blocks_with_slashes_and_sets_of_names():
    q = DiagonalGaussian.from_standard([1.0, 2.0], [1.0, 1.0])
    both = Product({"a/b": q.named(["u", "v"]), "a": Product({"b": q.named(["x", "y"])})})
    assert len(both.names) == 2 and set(both.names.values()) == {("u", "v"), ("x", "y")}
    assert ordered(both, both.names, "here", "there").names == both.names
    with pytest.raises(StructureError, match="no list of names"):
        q.named({"u", "v"})
