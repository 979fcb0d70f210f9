"""More sites than memory holds: the same as in memory, however they come, or a clear refusal."""

import functools
import operator
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posterity
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
)
from posterity.arrays.tree import leaves
from posterity.artifact import checkpoint
from posterity.artifact.aligned import named
from posterity.errors import ArtifactError, LedgerError, ParameterError, UsageError
from posterity.families import stack
from posterity.families.names import with_names
from posterity.fusion import alignment, passes, reading
from posterity.fusion import rows as row_store
from posterity.fusion.block_table import BlockTable
from posterity.fusion.plan import Plan
from posterity.fusion.reading import read_sites
from tests.fusion.made import conjugate_site, gamma_ledger, plate, points, site_plates
from tests.fusion.test_absorb import HELD, drawn, split_at

pytestmark = [
    pytest.mark.filterwarnings("ignore::posterity.errors.IdentificationWarning"),
    pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning"),
]

LARGE = 10**8
TABLES = 100
"""Bytes of which an eighth suffices for no site: all are laid down as tables."""
PLAIN = Dirichlet.from_standard(np.ones(4))
PRIOR = Plate(DiagonalGaussian.from_standard([[0.0]], [[100.0]]))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """A few sites a block, so that small problems have many."""
    monkeypatch.setattr(row_store, "BLOCK", 4096)


def line(count: int, seed: int = 0, size: int = 3, of: int = 5) -> list[Plate]:
    """Sites that share some of a few components on a line."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        means = 10.0 * rng.permutation(of)[:size] + 0.1 * rng.normal(size=size)
        found.append(Plate(points(means)))
    return found


def conjugate(base: Any, count: int = 6, shifted: int = -1) -> list[Ledger]:
    """Ledgers of sites with three used components and one empty; one may have shifted records."""
    found = []
    for index in range(count):
        rng = np.random.default_rng(index)
        clusters = [12.0 * k for k in rng.permutation(5)[:3]]
        clusters = [k + 4.0 * (index == shifted) for k in clusters]
        data = [rng.normal(k, 1.0, (int(rng.integers(20, 60)), 2)) for k in clusters]
        found.append(conjugate_site(f"s{index:02d}", base, [*data, np.zeros((0, 2))]))
    return found


def partition(fusion: Any, path: str = "") -> list[list[int]]:
    """Who is with whom, however groups are numbered."""
    plates = fusion.plates[path]
    labels = [plates.matching[site] for site in sorted(plates.matching)]
    flat = np.concatenate(labels)
    first = {int(g): int(np.flatnonzero(flat == g)[0]) for g in set(flat.tolist())}
    return [[first[int(g)] if g >= 0 else -1 for g in own] for own in labels]


def rows(law: Any) -> np.ndarray:
    """The numbers of a posterior, components in the order of their first one."""
    if isinstance(law, Product):
        return np.concatenate([rows(block) for block in law.blocks.values()])
    if not isinstance(law, Plate):
        return np.ravel(law.natural_parameters)
    flat = law.members.natural_parameters
    if isinstance(law.weights, Dirichlet):
        flat = np.hstack([flat, law.weights.concentration[:, None]])
    return flat[np.lexsort(np.round(flat, 3).T)].ravel()


def identical(one: Any, other: Any) -> bool:
    """Equal to the last bit."""
    return one.posterior == other.posterior and one.cost == other.cost and one.trace == other.trace


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
@pytest.mark.parametrize(
    "sites",
    [
        site_plates(0, 6),
        site_plates(1, 6, weighted=False),
        line(40),
        [gamma_ledger(f"g{n}", 2.0 + n) for n in range(4)],
        [
            Product(noise=Gamma.from_standard(2.0 + n, 1.0), p=p, q=q)
            for n, (p, q) in enumerate(
                zip(site_plates(2, 5).values(), site_plates(3, 5, False).values(), strict=True)
            )
        ],
        conjugate(Beta.from_standard(np.ones(4), 2 * np.ones(4))),
        [Plate(q.members.translate(np.array([1e5]))) for q in line(10)],
    ],
    ids=["weights", "bare", "line", "no plate", "product", "sticks", "far"],
)
def test_a_stream_finds_what_is_found_in_memory(sites, divergence):
    options = {"divergence": divergence, "rule": "barycenter"}
    here, there = (fuse(sites, budget=b, **options) for b in (None, TABLES))
    assert here.plates.keys() == there.plates.keys()
    for path in here.plates:
        assert partition(here, path) == partition(there, path)
        assert there.plates[path].cost == pytest.approx(here.plates[path].cost, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(rows(there.posterior), rows(here.posterior), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"components": 7},
        {"matching": "hungarian"},
        {"matching": "identity"},
        {"weights": {f"site-{n:04d}": 1.0 + n for n in range(12)}},
        {"rule": "product", "prior": PRIOR},
    ],
    ids=lambda options: next(iter(options)) + str(next(iter(options.values())))[:8],
)
def test_and_so_it_does_with_every_option(options):
    sites = line(12, of=3)
    here, there = fuse(sites, **options), fuse(sites, budget=4000, **options)
    assert partition(here) == partition(there)
    np.testing.assert_allclose(rows(there.posterior), rows(here.posterior), rtol=1e-9)
    if here.ledger is not None:
        assert there.ledger is not None
        assert there.ledger.sites == here.ledger.sites
        assert there.ledger.entries["site-0003"].independent is False


def test_sites_that_differ_are_named_as_in_memory():
    sites, shifted = (
        {f"s{n:02d}": ledger for n, ledger in enumerate(conjugate(PLAIN, 16, own))}
        for own in (-1, 3)
    )
    told = lambda own: not own.kind.of_matching
    laws = {f"s{n:02d}": Gaussian.from_standard([n == 5, 0.0], 1e-4 * np.eye(2)) for n in range(40)}
    for own, word in ((shifted, "'s03' contradicts"), (laws, "'s05' contradicts"), (sites, "")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are in .doubts
            here, there, reverse = (
                [str(own) for own in fuse(posteriors, budget=budget).doubts if told(own)]
                for posteriors, budget in (
                    (own, None),
                    (own, 10_000),
                    (dict(reversed(own.items())), 10_000),
                )
            )
        assert len(here) == bool(word) and all(word in line for line in here)
        assert here == there == reverse


def test_unused_components_stay_out_of_the_stream():
    sites = conjugate(PLAIN)
    fused = fuse(sites, rule="product", budget=LARGE)
    assert all(labels[-1] == -1 for labels in fused.matching.values()) and fused.components == 5
    counts = sum(float(s.posterior.weights.concentration.sum()) - 4 for s in sites)
    weights = fused.ledger.posterior.weights
    assert float(weights.concentration.sum()) == pytest.approx(4 + counts)


def test_sites_that_take_an_eighth_of_the_budget_are_matched_in_memory():
    sites = line(12)
    size = sum(leaf.nbytes for site in sites for leaf in leaves(site))
    assert identical(fuse(sites, budget=8 * size), fuse(sites))
    assert fuse(sites, matching="kl-fusion", budget=8 * size).components == 5
    with pytest.raises(UsageError, match=r"kl-fusion.*an eighth"):
        fuse(sites, matching="kl-fusion", budget=8 * size - 8)


@pytest.mark.parametrize(
    ("options", "after"),
    [({}, 2), ({"divergence": "forward"}, 2), ({"components": 9}, 2)],
    ids=["chosen", "forward", "components"],
)
def test_a_stream_that_was_killed_goes_on_from_its_checkpoint(
    tmp_path, monkeypatch, options, after
):
    """To the last bit, without the passes that were made before."""
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    monkeypatch.setattr(alignment, "LEAST", 8)  # a sample so small that it grows
    sites = site_plates(12, 20, weighted=False, spread=0.3)
    options = {**options, "budget": TABLES, "checkpoint": tmp_path / "fusion.checkpoint"}
    made, kept, sweep, keep = [], [], passes.Passes.sweep, passes.Stages.keep

    def counted(self, *arguments, **more):
        made.append(None)
        return sweep(self, *arguments, **more)

    def killed(self, *arguments):
        keep(self, *arguments)
        kept.append(None)
        if len(kept) == after:
            raise MemoryError

    monkeypatch.setattr(passes.Passes, "sweep", counted)
    whole = fuse(sites, **options | {"checkpoint": tmp_path / "whole"})
    needed = len(made)
    with monkeypatch.context() as dying, pytest.raises(MemoryError):
        dying.setattr(passes.Stages, "keep", killed)
        fuse(sites, **options)
    made.clear()
    resumed = fuse(sites, **options)
    assert identical(resumed, whole) and len(made) < needed
    assert partition(resumed) == partition(whole)
    with pytest.raises(ArtifactError, match="other settings"):
        fuse(sites, **options | {"matching": "hungarian", "components": None})
    with pytest.raises(ArtifactError, match="other sites"):
        fuse(dict(list(sites.items())[1:]), **options)


def test_what_is_matched_in_memory_keeps_nothing(tmp_path):
    fuse(line(12), checkpoint=tmp_path / "nothing")
    assert not list(tmp_path.iterdir())


def test_a_file_of_something_else_is_no_checkpoint_in_memory_either(tmp_path):
    """The command removes its checkpoint at the end."""
    posterity.save(line(1)[0], other := tmp_path / "other")
    with pytest.raises(ArtifactError, match="no checkpoint of 'fuse'"):
        fuse(line(12), checkpoint=other)
    (torn := tmp_path / "torn").write_bytes(other.read_bytes()[:100])
    with pytest.raises(ArtifactError, match="bytes"):
        fuse(line(12), checkpoint=torn)


@pytest.mark.parametrize("size", [1, 7, 60])
def test_the_size_of_chunks_cannot_be_seen(size):
    sites = line(60)
    chunks = (stack(sites[n : n + size]) for n in range(0, 60, size))
    chunked, single = fuse(chunks, budget=TABLES), fuse(iter(sites), budget=TABLES)
    assert identical(chunked, single)
    assert all((chunked.matching[s] == single.matching[s]).all() for s in single.matching)


def test_nor_whether_rows_were_in_memory_or_in_a_file():
    sites = line(60)
    size = sum(leaf.nbytes for site in sites for leaf in leaves(site))
    assert identical(fuse(sites, budget=1), fuse(sites, budget=7 * size))


def test_the_posterior_does_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    sites = line(40)
    turned = [Plate(sites[n].members[rng.permutation(3)]) for n in rng.permutation(40)]
    assert fuse(sites, budget=TABLES).posterior == fuse(turned, budget=TABLES).posterior


def test_sites_of_all_sizes_with_one_that_outgrows_the_sample(monkeypatch):
    monkeypatch.setattr(alignment, "LEAST", 30)
    rng = np.random.default_rng(0)
    sites = [plate(*(10.0 * rng.permutation(4)[: rng.integers(1, 4)])) for _ in range(80)]
    sites.insert(70, plate(*(10.0 * np.arange(9))))
    fused = fuse(sites, budget=1)
    assert fused.components == 9
    assert len(set(fused.matching["site-0070"].tolist())) == 9


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3, 5])
def test_equal_components_are_as_many_groups_as_asked_for(number):
    """To the last bit: an assignment to the nearest centroid alone would leave some empty."""
    law = DiagonalGaussian.from_standard([[0.0], [9.0]], [[0.01], [0.01]])
    sites = [Plate(law)] * 2000
    assert fuse(sites, components=number, budget=10**5).components == number
    assert fuse(sites, components=number).components == number


def test_a_site_in_other_units_does_not_round_the_costs_of_others():
    def cost(units):
        rng = np.random.default_rng(0)
        centres = 3.0 * rng.normal(size=(3, 2))
        sites = []
        for scale in (1.0, 1.0, units, 1.0, 1.0, 1.0):
            means = scale * (centres + 0.1 * rng.normal(size=(3, 2)))
            variances = np.full((3, 2), 0.01 * scale**2)
            sites.append(Plate(DiagonalGaussian.from_standard(means, variances)))
        return fuse(sites, components=6, budget=1000, warn=False).plate.cost

    assert cost(1e6) == pytest.approx(cost(1e3), rel=1e-9)


def test_what_comes_late_and_fits_nowhere_opens_groups(monkeypatch):
    monkeypatch.setattr(alignment, "LEAST", 60)
    sites = [*line(300), *(plate(0.0, 502.0 + 0.1 * n, 902.0 + 0.1 * n) for n in range(6))]
    assert passes_of(sites).table.ranked(alignment.LEAST).max() < 300  # none is in the sample
    fused = fuse(sites, budget=1)
    assert fused.components == 7
    apart = {int(fused.matching[f"site-{n:04d}"][1]) for n in range(300, 306)}
    assert len(apart) == 1


def test_the_sample_grows_by_the_sites_that_fit_nowhere_alone():
    sites = [*line(300), *(plate(0.0, 502.0 + 0.1 * n) for n in range(6))]
    gone_through = passes_of(sites, 60)
    before = len(gone_through.sampled)
    result, found = gone_through.search(None)
    assert set(gone_through.sampled[before:]) == {*range(300, 306)}
    assert len(found.clustering.counts) == len(result.counts) == 6


def passes_of(sites: list[Plate], sample: int = 1000) -> passes.Passes:
    """The one plate of some sites, ready to be gone through."""
    plan = Plan(budget=TABLES)
    read = read_sites(sites, plan)
    table = read.blocks[""]
    assert isinstance(table, BlockTable)
    return passes.Passes(table, sample)


@pytest.fixture
def folder(made, tmp_path) -> Path:
    """Twelve sites' files, some of ledgers."""
    return Path(shutil.copytree(made, tmp_path / "sites"))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The same, made once."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("sites")
    for n, q in enumerate(line(12)):
        path = folder / f"s{n:02d}.safetensors"
        known = n % 3 == 0
        prior = Plate(stack([PRIOR.members[0]] * 3))
        site = Ledger.of_site(f"l{n:02d}", prior=prior, posterior=q) if known else q
        posterity.save(site, path, provenance={"by": "hand"} if rng.random() < 0.2 else {})
    return folder


def test_files_come_by_folder_pattern_or_list(folder):
    paths = sorted(folder.iterdir())
    expected = fuse(paths)
    found = [
        fuse(source, budget=TABLES)
        for source in (folder, str(folder / "*.safetensors"), iter(paths), paths)
    ]
    assert all(identical(one, found[0]) for one in found)
    for one in found:
        assert partition(one) == partition(expected)
        assert set(one.matching) == set(expected.matching)
        assert "l00" in one.matching
        np.testing.assert_allclose(rows(one.posterior), rows(expected.posterior), rtol=1e-9)


def test_a_product_of_files_knows_the_priors_of_ledgers(folder):
    fused = fuse(folder, rule="product", prior=PRIOR, budget=9000)
    expected = fuse(folder, rule="product", prior=PRIOR)
    assert fused.ledger is not None
    assert expected.ledger is not None
    assert fused.ledger.sites == expected.ledger.sites
    np.testing.assert_allclose(rows(fused.posterior), rows(expected.posterior), rtol=1e-9)


def test_a_folder_without_files_is_refused(tmp_path):
    for source in (tmp_path, tmp_path / "*.safetensors"):
        with pytest.raises(UsageError, match="no file that is meant"):
            fuse(source)
    for empty, count in ((iter([]), "0 sites"), (iter([plate(0.0)]), "1 site;")):
        with pytest.raises(UsageError, match=count):
            fuse(empty, budget=TABLES)


@pytest.mark.parametrize("at", [0, 7, 11])
@pytest.mark.parametrize("damage", ["flip", "cut", "foreign", "missing", "pipe"])
def test_a_damaged_file_is_named(folder, at, damage):
    path = sorted(folder.iterdir())[at]
    paths = sorted(folder.iterdir())
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "flip":
        content[-3] ^= 1
    if damage == "pipe":
        os.mkfifo(path)
    elif damage != "missing":
        path.write_bytes({"cut": content[:-8], "foreign": b"{}"}.get(damage, content))
    with pytest.raises(ArtifactError, match=path.name):
        fuse(paths, budget=TABLES)


def test_a_file_that_is_no_distribution_is_named(folder):
    bad = sorted(folder.iterdir())[8]
    posterity.save(Plate(DiagonalGaussian(np.ones((3, 1)), -np.ones((3, 1)))), bad)
    with pytest.raises(ParameterError, match=r"improper.*'s08'"):
        fuse(folder, budget=TABLES)


def test_two_files_of_one_name_are_refused(folder):
    (folder / "more").mkdir()
    copy = folder / "more" / "s01.safetensors"
    copy.write_bytes((folder / "s01.safetensors").read_bytes())
    with pytest.raises(UsageError, match="two posteriors of site 's01'"):
        fuse([folder, copy], budget=TABLES)


def broken(after: int, error: BaseException) -> Iterator[Plate]:
    """Sites that come to a sudden end."""
    yield from line(after)
    raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("gone")])
def test_what_the_iterator_raises_comes_through(error):
    with pytest.raises(type(error)):
        fuse(broken(50, error), budget=1)


def test_factors_beyond_the_budget_become_one():
    sites = line(60)
    with pytest.warns(UserWarning, match="one for all"):
        small = fuse(sites, rule="product", prior=PRIOR, budget=1000)
    large = fuse(sites, rule="product", prior=PRIOR, budget=LARGE)
    assert small.ledger is not None
    (name,) = small.ledger.sites
    assert name.startswith("60 sites ")
    np.testing.assert_allclose(rows(small.posterior), rows(large.posterior), rtol=1e-12)
    with pytest.raises(LedgerError, match="no factor of site 'site-0003'"):
        small.ledger.forget("site-0003")


@pytest.mark.parametrize(
    "base",
    [Dirichlet.from_standard(np.ones(4)), Beta.from_standard(np.ones(4), 2 * np.ones(4))],
    ids=["Dirichlet", "sticks"],
)
def test_a_tree_of_fusions_is_one_fusion_of_all(base):
    sites = conjugate(base, 12)
    regions = [fuse(sites[n : n + 4], rule="product", components=5).ledger for n in (0, 4, 8)]
    tree, flat = (
        fuse(regions, rule="product", components=5),
        fuse(sites, rule="product", components=5),
    )
    assert tree.ledger == flat.ledger
    assert tree.ledger is not None
    assert flat.ledger is not None
    assert tree.ledger.forget("s04").posterior == flat.ledger.forget("s04").posterior


def test_a_tree_in_a_stream_keeps_regions_apart():
    sites = conjugate(Dirichlet.from_standard(np.ones(4)), 8)
    regions = [fuse(sites[n : n + 4], rule="product", components=5).ledger for n in (0, 4)]
    tree = fuse(regions, rule="product", components=5, budget=4000)
    flat = fuse(sites, rule="product", components=5)
    np.testing.assert_allclose(rows(tree.posterior), rows(flat.posterior), rtol=1e-9)
    assert tree.ledger is not None
    assert tree.ledger.sites == ("s00+s01+s02+s03", "s04+s05+s06+s07")
    with pytest.raises(LedgerError, match="no factor of site 's04'"):
        tree.ledger.forget("s04")


def test_a_region_and_a_site_of_one_name_are_refused():
    sites = conjugate(Dirichlet.from_standard(np.ones(4)), 4)
    region = fuse(sites[:2], rule="product").ledger
    alone = {"region": region, "s00": sites[2]}
    with pytest.raises(UsageError, match="data of site 's00' in both"):
        fuse(alone, rule="product")


def test_regions_without_plates_keep_what_was_said_of_their_sites():
    regions = [gamma_ledger("a", 2.0) | gamma_ledger("b", 3.0), gamma_ledger("c", 4.0)]
    fused = fuse(regions, rule="product")
    assert fused.ledger is not None
    assert fused.ledger.sites == ("a", "b", "c")
    assert fused.ledger.independent


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
@pytest.mark.parametrize("weighted", [True, False])
def test_margins_and_evidence_are_those_of_memory(divergence, weighted):
    sites = site_plates(4, 9, weighted, spread=2.0)
    here, there = (fuse(sites, divergence=divergence, budget=b) for b in (None, TABLES))
    assert partition(here) == partition(there)
    for site in here.margins:
        np.testing.assert_allclose(there.margins[site], here.margins[site], atol=1e-6)
    assert {here.components + n for n in (-1, 0, 1, 2)} <= there.components_evidence.keys()
    assert there.components_evidence[here.components] == 0.0
    assert there.status.state == here.status.state
    assert there.status.reasons == here.status.reasons


@pytest.mark.parametrize("rule", ["barycenter", "product"])
def test_parts_are_absorbed_as_in_memory(rule):
    sites = split_at("a", drawn(0, HELD))
    here, there = (fuse(sites, rule=rule, budget=b) for b in (None, 8000))
    assert here.absorbed.keys() == {"a"}
    assert there.absorbed == here.absorbed
    assert partition(here) == partition(there)
    np.testing.assert_allclose(rows(there.posterior), rows(here.posterior), rtol=1e-9)
    assert np.isnan(there.margins["a"][list(there.absorbed["a"])]).all()
    assert fuse(sites, rule=rule, budget=8000, absorb=False).absorbed == {}


def test_names_of_members_match_sites_in_tables():
    names = [("a", "b", "c"), ("c", "a", "b"), ("b", "c", "d")]
    sites = [with_names(plate(*(10.0 * "abcd".index(n) for n in own)), {"": own}) for own in names]
    here, there = fuse(sites), fuse(sites, budget=TABLES)
    assert there.posterior.names == here.posterior.names == ("a", "b", "c", "d")
    np.testing.assert_allclose(there.posterior.members.mean, here.posterior.members.mean)


def heard(call: Any) -> tuple[Any, list[str]]:
    """What a call gives, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return call(), [str(warning.message) for warning in caught]


def test_names_of_some_sites_alone_keep_nothing_that_has_seen_no_data():
    """Before all have come, names might match components without data, too."""
    first, *rest = conjugate(PLAIN)
    sites = [named(first, {"": tuple("abcd")}), *rest]
    average = lambda b: heard(lambda: fuse(sites, budget=b, rule="barycenter"))
    (here, one), (there, other) = map(average, (None, TABLES))
    assert partition(here) == partition(there)
    assert all(labels[-1] == -1 for labels in there.matching.values())
    assert one[0] == other[0] and "Names of members are not used" in one[0]


def test_whoever_names_columns_first_the_others_are_warned_of(monkeypatch):
    monkeypatch.setattr(reading, "TOGETHER", 2)
    laws = [Gaussian.from_standard([0.0, 1.0 + n], np.eye(2)) for n in range(4)]
    sites = [*laws[:2], *(q.named(["x", "y"]) for q in laws[2:])]
    for order in (sites, sites[::-1]):
        (here, one), (there, other) = (
            heard(lambda b=b, order=order: fuse(order, budget=b)) for b in (None, TABLES)
        )
        assert one == other
        assert len(one) == 1 and "no names of columns at ['site-000" in one[0]
        assert here.posterior.names == there.posterior.names == ("x", "y")


def test_ledgers_of_many_sites_are_called_as_in_memory(tmp_path):
    many = functools.reduce(operator.or_, [gamma_ledger(f"r{n}", 2.0 + n) for n in range(9)])
    posterity.save(many, tmp_path / "many.safetensors")
    posterity.save(gamma_ledger("z", 4.0), tmp_path / "z.safetensors")
    weights = {"r0 to r8 (9 sites)": 1.0, "z": 3.0}
    here, there = (fuse(tmp_path, weights=weights, budget=b) for b in (None, TABLES))
    np.testing.assert_allclose(rows(there.posterior), rows(here.posterior))


def test_a_known_matching_serves_for_tables():
    sites = {"a": plate(0.0, 5.0), "b": plate(5.0, 0.0, 7.0)}
    known = {"a": np.array([0, 1]), "b": np.array([1, 0, -1])}
    here, there = (fuse(sites, matching=known, budget=b) for b in (None, TABLES))
    assert all((there.matching[site] == known[site]).all() for site in known)
    np.testing.assert_allclose(rows(there.posterior), rows(here.posterior))
    assert there.status.converged
