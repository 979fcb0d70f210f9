"""A file holds a posterior to the last bit, or says why it does not; it is never half written."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from posterity import artifact
from posterity.errors import ArtifactError, ParameterError, PosterityError
from posterity.families import DiagonalGaussian, Gamma, Gaussian, Mixture, Product
from posterity.ledger import Ledger
from tests.laws.table import TABLE, cast, identical, laws, members, some, to_jax

PRIOR = Product(noise=Gamma.from_standard(1.0, 2.0), w=DiagonalGaussian(np.zeros(3), np.ones(3)))
NAMES = ["north", "a/b", "a%2Fb", " spaced name ", "naïve-Ωμέγα-医院", "", ".", "..", "\ud800",
         "type", "blocks", "rate", "__metadata__", "new\nline", "prior"]  # fmt: skip


def ledger_of(names: list[str]) -> Ledger:
    held = Ledger(PRIOR)
    for n, name in enumerate(names):
        held = held.update(name, (0.1 * n + 0.3) * PRIOR, epoch=n)
    return held


def same(left: Any, right: Any) -> bool:
    return left == right if isinstance(left, Ledger) else identical(left, right)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "posterior.safetensors"


@pytest.fixture(scope="module")
def content(tmp_path_factory: Any) -> bytes:
    """The bytes of one saved ledger."""
    path = tmp_path_factory.mktemp("content") / "ledger"
    artifact.save(ledger_of(["north", "south"]).forget("south"), path, provenance={"by": "us"})
    return path.read_bytes()


# --- round trips -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", TABLE)
@laws
@given(data=st.data())
def test_families_come_back_to_the_bit(
    tmp_path_factory: Any, name: str, dtype: type, data: st.DataObject
) -> None:
    (member,) = data.draw(members(name))
    member, path = cast(member, dtype), tmp_path_factory.mktemp("families") / "file"
    artifact.save(member, path)
    loaded = artifact.load(path)
    assert type(loaded) is type(member)
    assert identical(loaded, member)
    assert artifact.digest(loaded) == artifact.digest(member)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(loaded))
    assert np.all(loaded.is_proper())


@pytest.mark.parametrize("name", TABLE)
def test_jax_leaves_are_saved_as_numpys(path: Path, name: str) -> None:
    (member,) = some(name, batch=(2,))
    with jax.enable_x64(True):
        artifact.save(to_jax(member), path)
        assert artifact.digest(to_jax(member)) == artifact.digest(member)
    assert identical(artifact.load(path), member)
    narrow = to_jax(cast(member, np.float32))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(narrow))
    artifact.save(narrow, path)
    assert identical(artifact.load(path), cast(member, np.float32))


@pytest.mark.parametrize("name", [n for n in TABLE if n != "Mixture"])
def test_ledgers_come_back_to_the_bit(path: Path, name: str) -> None:
    prior, one, two = some(name, count=3)
    held = Ledger(prior).update("one", one - prior).update("two", two - one, epoch=3, sequence=7)
    held = held.update("three", one).forget("three")
    artifact.save(held, path)
    loaded = artifact.load(path)
    assert isinstance(loaded, Ledger)
    assert loaded == held
    assert loaded.forgotten == ("three",)
    assert loaded.entries["two"].rank == (3, False, 7)
    assert identical(loaded.posterior, held.posterior)
    assert loaded | held == held


def test_the_layout_in_memory_does_not_matter(path: Path) -> None:
    """Slices, transposes and Fortran order give the bytes that a plain copy gives."""
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(6, 4))
    odd = DiagonalGaussian(wide[::2, ::-1], np.asfortranarray(np.exp(wide))[::2, ::-1])
    plain = jax.tree.map(np.copy, odd)
    artifact.save(odd, path)
    assert identical(artifact.load(path), plain)
    assert artifact.digest(odd) == artifact.digest(plain)


def test_sites_and_blocks_may_have_any_name(path: Path) -> None:
    held = ledger_of(NAMES)
    artifact.save(held, path)
    loaded = artifact.load(path)
    assert loaded == held
    assert artifact.inspect(path).sites == tuple(sorted(NAMES))
    blocks = Product({name: Gamma(1.0 * n, 2.0 * n + 1) for n, name in enumerate(NAMES)})
    artifact.save(blocks, path)
    assert identical(artifact.load(path), blocks)


@given(names=st.lists(st.text(max_size=8), min_size=1, max_size=4, unique=True))
def test_sites_may_have_random_names(tmp_path_factory: Any, names: list[str]) -> None:
    path = tmp_path_factory.mktemp("names") / "file"
    held = ledger_of(names)
    artifact.save(held, path)
    assert artifact.load(path) == held


def test_equal_contents_give_equal_bytes(path: Path, tmp_path: Path) -> None:
    one = Ledger(PRIOR).update("north", 2.0 * PRIOR).update("south", 3.0 * PRIOR)
    two = Ledger(PRIOR).update("south", 3.0 * PRIOR).update("north", 2.0 * PRIOR)
    artifact.save(one, path, provenance={"a": "1", "b": "2"})
    artifact.save(two, tmp_path / "two", provenance={"b": "2", "a": "1"})
    assert path.read_bytes() == (tmp_path / "two").read_bytes()
    assert artifact.digest(one) == artifact.digest(two)
    artifact.save(artifact.load(path), tmp_path / "again", provenance={"a": "1", "b": "2"})
    assert path.read_bytes() == (tmp_path / "again").read_bytes()


@pytest.mark.parametrize("name", TABLE)
def test_digests_tell_members_apart(name: str) -> None:
    p, q = some(name, count=2)
    assert artifact.digest(p) != artifact.digest(q)
    assert artifact.digest(p) != artifact.digest(cast(p, np.float32))
    nudged = jax.tree.map(lambda leaf: np.nextafter(leaf, np.inf), p)
    assert artifact.digest(p) != artifact.digest(nudged)


def test_provenance_is_kept_and_inspected(path: Path) -> None:
    provenance = {"site": "médecins / 東京", "data": "digits", "seed": "7"}
    held = ledger_of(["north", "south"])
    artifact.save(held, path, provenance=provenance)
    found = artifact.inspect(path)
    assert found.provenance == provenance
    assert (found.kind, found.format) == ("Ledger", artifact.FORMAT_VERSION)
    assert found.sites == ("north", "south")
    assert found.bytes == len(path.read_bytes())
    assert found.arrays["sites/north/blocks/noise/rate"] == ("float64", ())
    assert found.arrays["prior/blocks/w/precision"] == ("float64", (3,))
    assert len(found.digest) == 64
    assert artifact.load(path) == held


def test_the_file_is_plain_safetensors(path: Path) -> None:
    artifact.save(Gaussian.from_standard(np.zeros(2), np.eye(2)), path)
    arrays = safetensors.numpy.load_file(path)
    assert sorted(arrays) == ["precision", "precision_mean"]


def test_own_families_must_be_registered(path: Path) -> None:
    class Own(Gamma):
        """A family of one's own."""

    with pytest.raises(ArtifactError, match="Own"):
        artifact.save(Own(1.0, 2.0), path)
    assert not path.exists()
    try:
        assert artifact.register(Own) is Own
        assert artifact.register(Own) is Own
        artifact.save(Own(1.0, 2.0), path)
        assert type(artifact.load(path)) is Own

        class Other(Gamma):
            """Another family of the same name."""

        Other.__name__ = "Own"
        with pytest.raises(ArtifactError, match="second family named 'Own'"):
            artifact.register(Other)
    finally:
        del artifact._REGISTRY["Own"]
    with pytest.raises(ArtifactError, match="family 'Own' that this installation does not know"):
        artifact.load(path)


class Stranger(eqx.Module):
    """A module that is no family."""

    rate: np.ndarray


def test_only_posteriors_can_be_saved(path: Path) -> None:
    """Even deep inside one: what has no place in the registry is named."""
    inside = eqx.tree_at(lambda q: q.blocks["noise"], PRIOR, Stranger(np.ones(1)))
    inexact = eqx.tree_at(lambda q: q.blocks["noise"].rate, PRIOR, "two")
    for thing, name in [(inside, "Stranger"), (inexact, "str")]:
        with pytest.raises(ArtifactError, match=name):
            artifact.save(thing, path)
        with pytest.raises(ArtifactError, match=name):
            artifact.digest(thing)
    assert not path.exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_before_writing(path: Path, value: float) -> None:
    artifact.save(Gamma(1.0, 2.0), path)
    before = path.read_bytes()
    spoilt = {
        "'rate'": Gamma(1.0, value),
        "'blocks/noise/rate'": Product({**PRIOR.blocks, "noise": Gamma(1.0, value)}),
        "'log_weights'": Mixture(np.array([0.0, value]), Gamma([1.0] * 2, [1.0] * 2)),
    }
    for place, posterior in spoilt.items():
        with pytest.raises(ParameterError, match=f"{place}.* was to be saved"):
            artifact.save(posterior, path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


# --- files that are not what they should be ----------------------------------------------------


def verdict(path: Path, content: bytes) -> Any:
    """What loading these bytes gives: a posterior, or None where it refuses as it should."""
    path.write_bytes(content)
    try:
        loaded = artifact.load(path)
    except PosterityError as error:
        assert error.found and error.expected and error.fix
        with pytest.raises(PosterityError):
            artifact.inspect(path)
        return None
    return loaded


def test_a_missing_file(tmp_path: Path) -> None:
    for reader in (artifact.load, artifact.inspect):
        with pytest.raises(ArtifactError, match="no-such-file"):
            reader(tmp_path / "no-such-file")
        with pytest.raises(ArtifactError):
            reader(tmp_path)
        with pytest.raises(ArtifactError):
            reader(str(tmp_path / "no-such-folder" / "file"))


def test_truncated_files(path: Path, content: bytes) -> None:
    lengths = {*range(0, len(content), 13), *range(17), len(content) - 1}
    assert all(verdict(path, content[:length]) is None for length in lengths)


def test_files_with_something_behind(path: Path, content: bytes) -> None:
    for extra in (b"\0", b"x" * 8, content):
        assert verdict(path, content + extra) is None


@given(data=st.data())
def test_flipped_bits_are_never_a_wrong_posterior(
    tmp_path_factory: Any, content: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("flips") / "file"
    altered = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        altered[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    loaded = verdict(path, bytes(altered))
    # A flip may be undone by another, or hit the padding of the header.
    assert loaded is None or loaded == ledger_of(["north", "south"]).forget("south")


def test_every_single_byte_of_the_arrays_is_watched(path: Path, content: bytes) -> None:
    (header,) = struct.unpack("<Q", content[:8])
    for at in range(8 + header, len(content)):
        assert verdict(path, content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]) is None


@given(junk=st.binary(max_size=200), header=st.booleans())
def test_random_bytes(tmp_path_factory: Any, junk: bytes, header: bool) -> None:
    path = tmp_path_factory.mktemp("junk") / "file"
    assert verdict(path, struct.pack("<Q", len(junk)) * header + junk) is None


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**62, 2**64 - 1])
def test_absurd_lengths_of_the_header(path: Path, content: bytes, length: int) -> None:
    assert verdict(path, struct.pack("<Q", length) + content[8:]) is None


def test_foreign_safetensors(path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        safetensors.numpy.save_file({"weight": np.ones(3)}, path, metadata)
        with pytest.raises(ArtifactError, match="without posterity's manifest"):
            artifact.load(path)
        with pytest.raises(ArtifactError, match="without posterity's manifest"):
            artifact.inspect(path)


def crafted(path: Path, change: Callable[[dict[str, Any]], Any], arrays: Any = None) -> Path:
    """A file whose manifest was changed by one who knows the format: the digest fits."""
    arrays = {"shape_minus_one": np.array(1.0), "rate": np.array(2.0)} if arrays is None else arrays
    fields = {"shape_minus_one": "array", "rate": "array"}
    manifest: Any = {"format": 1, "provenance": {}, "tree": {"type": "Gamma", "fields": fields}}
    manifest = change(manifest) or manifest
    manifest["digest"] = artifact._digest(manifest, arrays)
    metadata = {"posterity": json.dumps(manifest, sort_keys=True)}
    safetensors.numpy.save_file(arrays, path, metadata)
    return path


def test_the_crafted_file_is_sound_where_nothing_was_changed(path: Path) -> None:
    assert identical(artifact.load(crafted(path, lambda m: None)), Gamma(1.0, 2.0))


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5])
def test_unknown_format_versions(path: Path, version: Any) -> None:
    crafted(path, lambda m: m.update(format=version))
    for reader in (artifact.load, artifact.inspect):
        with pytest.raises(ArtifactError, match=r"format version .* expected format version 1"):
            reader(path)


def test_unknown_families(path: Path) -> None:
    crafted(path, lambda m: m["tree"].update(type="os.system"))
    with pytest.raises(ArtifactError, match=r"family 'os.system' .* expected one of \['Beta'"):
        artifact.load(path)


GAMMA = {"type": "Gamma", "fields": {"shape_minus_one": "array", "rate": "array"}}
CRAFTED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no tree": lambda m: m.pop("tree") and None,
    "no provenance": lambda m: m.pop("provenance") and None,
    "a tree of text": lambda m: m.update(tree="array"),
    "a tree of nothing": lambda m: m.update(tree=None),
    "a list": lambda m: m.update(tree=[]),
    "a type that is no name": lambda m: m["tree"].update(type=["Gamma"]),
    "a bare dictionary": lambda m: m.update(tree={"type": "dict", "items": {}}),
    "no fields": lambda m: m["tree"].pop("fields") and None,
    "a missing field": lambda m: m["tree"]["fields"].pop("rate") and None,
    "a strange field": lambda m: m["tree"]["fields"].update(scale="array"),
    "a field of nothing": lambda m: m["tree"]["fields"].update(rate=None),
    "a field of numbers": lambda m: m["tree"]["fields"].update(rate=3),
    "an array too few": lambda m: m["tree"]["fields"].update(rate=GAMMA),
    "a plate of arrays": lambda m: m.update(
        tree={"type": "Plate", "fields": {"members": "array", "weights": None}}
    ),
    "a mixture of gammas": lambda m: m.update(
        tree={"type": "Mixture", "fields": {"log_weights": "array", "components": GAMMA}}
    ),
    "a ledger without entries": lambda m: m.update(tree={"type": "Ledger", "prior": GAMMA}),
    "a ledger of lists": lambda m: m.update(tree={"type": "Ledger", "prior": GAMMA, "entries": []}),
    "an infinite epoch": lambda m: m.update(
        tree={
            "type": "Ledger",
            "prior": None,
            "entries": {"a": {"epoch": float("inf"), "sequence": 0, "factor": None}},
        }
    ),
}


@pytest.mark.parametrize("change", CRAFTED.values(), ids=CRAFTED)
def test_crafted_manifests(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Whatever the digest says: no other exception, and nothing that is no posterior."""
    crafted(path, change)
    with pytest.raises(PosterityError):
        artifact.load(path)
    try:
        artifact.inspect(path)
    except ArtifactError as error:
        assert os.fspath(path) in str(error)


@pytest.mark.parametrize("depth", [300, 900, 1200, 50_000])
def test_towers_of_brackets(path: Path, depth: int) -> None:
    for opened, closed in [("[", "]"), ('{"a":', "}")]:
        tree = opened * depth + "1" + closed * depth
        text = f'{{"format": 1, "digest": "", "provenance": {{}}, "tree": {tree}}}'
        safetensors.numpy.save_file({"rate": np.ones(1)}, path, {"posterity": text})
        for reader in (artifact.load, artifact.inspect):
            with pytest.raises(ArtifactError):
                reader(path)


def test_crafted_arrays(path: Path) -> None:
    for arrays, error in [
        ({"shape_minus_one": np.array(1.0), "rate": np.array(np.nan)}, ParameterError),
        ({"shape_minus_one": np.array(1.0), "rate": np.ones(2)}, PosterityError),
        ({"shape_minus_one": np.array(1.0)}, ArtifactError),
        ({"shape_minus_one": np.array(1.0), "rate": np.array(1.0), "x": np.ones(1)}, ArtifactError),
    ]:
        crafted(path, lambda m: None, arrays)
        with pytest.raises(error, match=r"posterior\.safetensors"):
            artifact.load(path)


def test_crafted_ledgers_must_hold_one_family(path: Path) -> None:
    arrays = {
        "prior/shape_minus_one": np.array(1.0),
        "prior/rate": np.array(1.0),
        "sites/a/a_minus_one": np.array(1.0),
        "sites/a/b_minus_one": np.array(1.0),
    }
    factor = {"type": "Beta", "fields": {"a_minus_one": "array", "b_minus_one": "array"}}
    entries = {"a": {"epoch": 0, "sequence": 0, "factor": factor}}
    tree = {"type": "Ledger", "prior": GAMMA, "entries": entries}
    crafted(path, lambda m: m.update(tree=tree), arrays)
    with pytest.raises(PosterityError, match="factor of site 'a'"):
        artifact.load(path)


# --- writing -----------------------------------------------------------------------------------


def test_unwritable_outputs_change_nothing(tmp_path: Path) -> None:
    q = Gamma(1.0, 2.0)
    kept = tmp_path / "file"
    artifact.save(q, kept)
    (tmp_path / "folder").mkdir()
    before = kept.read_bytes()
    for bad in (
        tmp_path / "no-such-folder" / "file",
        kept / "below-a-file",
        tmp_path / "folder",
        tmp_path / ("x" * 300),
        tmp_path / "nul\0",
    ):
        with pytest.raises(ArtifactError, match="cannot be written"):
            artifact.save(2.0 * q, bad)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
    assert kept.read_bytes() == before


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_failing_disk_leaves_the_old_file(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact.save(Gamma(1.0, 2.0), path)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(ArtifactError, match="No space left on device"):
        artifact.save(Gamma(3.0, 4.0), path)
    monkeypatch.undo()
    assert identical(artifact.load(path), Gamma(1.0, 2.0))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_interrupt_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact.save(Gamma(1.0, 2.0), path)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        artifact.save(Gamma(3.0, 4.0), path)
    monkeypatch.undo()
    assert identical(artifact.load(path), Gamma(1.0, 2.0))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_who_reads_the_old_file_reads_it_to_the_end(path: Path) -> None:
    """Saving never writes into a file that others may have open: it puts another in its place."""
    artifact.save(Gamma(1.0, 2.0), path)
    before = path.read_bytes()
    with path.open("rb") as reader:
        start = reader.read(10)
        artifact.save(Gamma(3.0, 4.0), path)
        assert start + reader.read() == before
    assert path.read_bytes() != before


def test_saving_replaces_what_was_there_and_respects_the_umask(path: Path) -> None:
    path.write_bytes(b"something else, and longer than what comes" * 100)
    before = os.umask(0o027)
    try:
        artifact.save(Gamma(1.0, 2.0), path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    assert identical(artifact.load(path), Gamma(1.0, 2.0))


WRITER = """
import sys, numpy as np
from posterity import artifact
from posterity.families import DiagonalGaussian
print("ready", flush=True)
n = 0
while True:
    n += 1
    artifact.save(DiagonalGaussian(np.full(200_000, float(n)), np.ones(200_000)), sys.argv[1])
"""


def test_kill_in_the_middle_of_saving(tmp_path: Path) -> None:
    """The file is always one whole version: killed writers leave the old one or the new one."""
    path = tmp_path / "file"
    artifact.save(DiagonalGaussian(np.zeros(200_000), np.ones(200_000)), path)
    caught_in_the_act = 0
    for delay in (0.0, 0.003, 0.011, 0.029):
        command = [sys.executable, "-c", WRITER, os.fspath(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            # Wait until it is at work, then some more, so that the blow falls anywhere.
            until = time.monotonic() + 60
            while not (at_work := list(tmp_path.glob(".file.*"))) and time.monotonic() < until:
                pass
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
            assert writer.wait() == -signal.SIGKILL
        assert at_work, "the writer never wrote"
        caught_in_the_act += len(list(tmp_path.glob(".file.*")))
        loaded = artifact.load(path)
        assert isinstance(loaded, DiagonalGaussian)
        assert len(np.unique(loaded.precision_mean)) == 1
        for left in tmp_path.glob(".file.*"):
            left.unlink()
    assert caught_in_the_act, "no kill fell into a write"
