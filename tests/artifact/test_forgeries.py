"""No file is accepted for what it is not, whatever its digests say; none crashes."""

import gc
import json
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from posterity import artifact
from posterity.entries import Entry
from posterity.errors import ArtifactError
from posterity.families import DiagonalGaussian, Gamma
from posterity.ledger import Ledger
from tests.artifact.forging import Forgery, array_node, canonical, gamma, ledger, node, raw, sha256
from tests.laws.table import identical

GAMMA_LEDGER = Ledger(
    Gamma(1.0, 2.0),
    {
        "a": Entry(0, 4, Gamma(5.0, 6.0), True),
        "b": Entry(1, 0, None),
        "c": Entry(2, 0, Gamma(7.0, 8.0)),
    },
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "posterior.safetensors"


@pytest.fixture(scope="module")
def content(tmp_path_factory: Any) -> bytes:
    """The bytes of a saved ledger."""
    path = tmp_path_factory.mktemp("content") / "ledger"
    artifact.save(GAMMA_LEDGER, path, provenance={"by": "us"})
    return path.read_bytes()


def refusal(path: Path, reader: Callable[[Path], Any] = artifact.load) -> str:
    """What is said of a file that is not read, which names it."""
    with pytest.raises(ArtifactError) as caught:
        reader(path)
    error = caught.value
    assert error.found and error.expected and repr(os.fspath(path)) in error.found
    return str(error)


def verdict(path: Path, content: bytes) -> Any:
    """What these bytes hold, None if nothing; inspecting comes to the same verdict."""
    path.write_bytes(content)
    try:
        loaded = artifact.load(path)
    except ArtifactError:
        refusal(path, artifact.inspect)
        return None
    assert artifact.inspect(path).bytes == len(content)
    return loaded


def test_forgeries_in_which_nothing_was_changed_are_sound(path: Path) -> None:
    assert identical(artifact.load(gamma().write(path)), Gamma(1.0, 2.0))
    loaded, found = artifact.open_artifact(ledger().write(path))
    assert loaded == GAMMA_LEDGER
    assert found == artifact.inspect(path)
    assert found.prior_digest == artifact.digest(GAMMA_LEDGER.prior)
    assert artifact.digest(loaded) == artifact.digest(GAMMA_LEDGER)


# --- what was altered, and no digest made anew ---------------------------------------------------


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
    # A flip may be undone by another, or hit the padding of the header.
    assert verdict(path, bytes(altered)) in (None, GAMMA_LEDGER)


@given(data=st.data())
def test_cut_copied_and_moved_bytes_are_never_a_wrong_posterior(
    tmp_path_factory: Any, content: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("moves") / "file"
    a, b, c, d = (data.draw(st.integers(0, len(content))) for _ in range(4))
    altered = content[:a] + content[b:c] + data.draw(st.binary(max_size=9)) + content[d:]
    assert verdict(path, altered) in (None, GAMMA_LEDGER)


def test_every_single_byte_of_the_arrays_is_watched(path: Path, content: bytes) -> None:
    header = int.from_bytes(content[:8], "little")
    for at in range(8 + header, len(content)):
        assert verdict(path, content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]) is None


@given(junk=st.binary(max_size=200), header=st.booleans())
def test_random_bytes(tmp_path_factory: Any, junk: bytes, header: bool) -> None:
    path = tmp_path_factory.mktemp("junk") / "file"
    assert verdict(path, len(junk).to_bytes(8, "little") * header + junk) is None


# --- what no file is -----------------------------------------------------------------------------


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    """A pipe without a writer does not hang, nor is a device read without end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    names = ["pipe", "link", ".", "missing", "no/folder", "nul\0", "/dev/zero", "/dev/null"]
    for name in names:
        for reader in (artifact.load, artifact.inspect, artifact.open_artifact):
            assert "cannot be read" in refusal(tmp_path / name, reader)


HUGE = 400_000_000
"""Numbers in 3.2 GB."""


@pytest.fixture
def settled() -> Iterator[None]:
    """What the process holds already is not looked through at each collection."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def without_reading(path: Path) -> str:
    """The refusal of a large file, which takes neither time nor memory."""
    for reader in (artifact.inspect, artifact.load):
        gc.collect()
        tracemalloc.start()
        before = time.process_time()
        said = refusal(path, reader)
        took, (_, peak) = time.process_time() - before, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert took < 1.0 and peak < 50e6
    return said


@pytest.mark.usefixtures("settled")
def test_sparse_files_are_refused_unread(path: Path, content: bytes) -> None:
    size = 8 + int.from_bytes(content[:8], "little")
    header = content[8:size].decode()
    # More than the header speaks of.
    path.write_bytes(content)
    os.truncate(path, 8 * HUGE)
    assert f"{8 * HUGE} bytes where the header speaks of" in without_reading(path)
    # As much as the header speaks of, whose manifest does not.
    entry = json.loads(header)["factors/rate"]
    first, last = entry["data_offsets"]
    larger = header.replace(
        json.dumps(entry, separators=(",", ":")),
        json.dumps({**entry, "shape": [HUGE], "data_offsets": [first, first + 8 * HUGE]}),
    )
    larger = larger.replace(f"[{last},", f"[{first + 8 * HUGE},").strip()
    entries = json.loads(larger)
    shift = first + 8 * HUGE - last
    for name, other in entries.items():
        if name not in ("__metadata__", "factors/rate") and other["data_offsets"][0] >= first:
            low, high = other["data_offsets"]
            other["data_offsets"] = [low + shift * (low != first + 8 * HUGE), high + shift]
    raw(path, json.dumps(entries), b"")
    os.truncate(path, path.stat().st_size + len(content) - size + shift)
    assert "describes otherwise: ['factors/rate']" in without_reading(path)
    # An array that nobody asked for, behind the others; the digest of the header fits.
    forged = gamma()
    entries = {
        "rate": {"dtype": "F64", "shape": [], "data_offsets": [0, 8]},
        "shape_minus_one": {"dtype": "F64", "shape": [], "data_offsets": [8, 16]},
        "x": {"dtype": "F64", "shape": [HUGE], "data_offsets": [16, 16 + 8 * HUGE]},
    }
    forged.write_raw(path, entries, np.array([2.0, 1.0]).tobytes())
    os.truncate(path, path.stat().st_size + 8 * HUGE)
    assert "describes otherwise: ['x']" in without_reading(path)
    # Nothing at all, or a header without end.
    for start in (b"", b"\xff" * 8 + b"{", (2**31).to_bytes(8, "little") + b"{"):
        path.write_bytes(start)
        os.truncate(path, 8 * HUGE)
        without_reading(path)
    path.write_bytes((2**25).to_bytes(8, "little") + b"{")
    os.truncate(path, 8 * HUGE)
    assert "no text" in without_reading(path)


@pytest.mark.parametrize("length", [0, 1, 2**25 + 1, 2**31, 2**62, 2**64 - 1])
def test_absurd_lengths_of_the_header(path: Path, content: bytes, length: int) -> None:
    assert verdict(path, length.to_bytes(8, "little") + content[8:]) is None


def test_foreign_safetensors(path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        safetensors.numpy.save_file({"weight": np.ones(3)}, path, metadata)
        for reader in (artifact.load, artifact.inspect):
            assert "without posterity's manifest" in refusal(path, reader)


# --- headers of one's own ------------------------------------------------------------------------

RATE = {"dtype": "F64", "shape": [], "data_offsets": [0, 8]}
SHAPE = {"dtype": "F64", "shape": [], "data_offsets": [8, 16]}
HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "an empty array of a large shape": ({"shape": [10**9, 0], "data_offsets": [8, 8]}, "1000000"),
    "a larger one": ({"shape": [10**12, 0], "data_offsets": [8, 8]}, "each of length one or more"),
    "a shape that overflows": ({"shape": [2**32, 2**32]}, "not its size"),
    "a shape beyond whole numbers": ({"shape": [2**64]}, "of shape"),
    "a shape of floats": ({"shape": [1.0]}, "of shape"),
    "a shape of flags": ({"shape": [True]}, "of shape"),
    "a negative shape": ({"shape": [-1, -1]}, "of shape"),
    "a shape of no list": ({"shape": 1}, "of shape"),
    "too many axes": ({"shape": [1] * 33}, "at most 32 axes"),
    "more numbers than bytes": ({"shape": [2]}, "not its size"),
    "fewer numbers than bytes": ({"dtype": "F32"}, "not its size"),
    "a hole": ({"data_offsets": [16, 24]}, "not its place"),
    "an overlap": ({"data_offsets": [0, 8]}, "not its place"),
    "an end before the start": ({"data_offsets": [8, 0]}, "not its"),
    "one offset": ({"data_offsets": [8]}, "described as nothing"),
    "offsets of floats": ({"data_offsets": [8.0, 16.0]}, "described as nothing"),
    "half precision": ({"dtype": "F16", "shape": [4]}, "otherwise: ['shape_minus_one']"),
    "a quarter precision": ({"dtype": "F8_E4M3", "shape": [8]}, "type F8_E4M3"),
    "a type of numbers": ({"dtype": 64}, "type 64"),
    "something more": ({"comment": "x"}, "nothing that safetensors knows"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_lie(path: Path, case: str) -> None:
    change, said = HEADERS[case]
    entries = {"rate": RATE, "shape_minus_one": {**SHAPE, **change}}
    gamma().write_raw(path, entries, np.array([2.0, 1.0]).tobytes())
    for reader in (artifact.load, artifact.inspect):
        assert said in refusal(path, reader)


def test_headers_that_are_no_json_of_their_own(path: Path) -> None:
    good = json.dumps({"__metadata__": gamma().all_metadata(), "rate": RATE})
    both = good[:-1] + ', "shape_minus_one": ' + json.dumps(SHAPE) + "}"
    data = np.array([2.0, 1.0]).tobytes()
    assert identical(artifact.load(raw(path, both, data)), Gamma(1.0, 2.0))
    for header, said in [
        (both[:-1] + ', "rate": ' + json.dumps(RATE) + "}", "'rate' comes twice"),
        (both.replace("[8, 16]", "[8, NaN]"), "NaN is not a JSON number"),
        (both.replace("[8, 16]", "[8, 1e1]"), "described as nothing"),
        (both.replace('"__metadata__": {', '"__metadata__": {"n": 1, '), "not text by key"),
        (both.replace('"__metadata__": {', '"__metadata__": {"note": "x", '), "metadata ['note']"),
        (both + "x", "header that cannot be read"),
        ("{" + "[" * 100_000, "header that cannot be read"),
        ("{" + '"a":[' * 100_000, "header that cannot be read"),
        (" " + both, "not a safetensors file"),
    ]:
        for reader in (artifact.load, artifact.inspect):
            assert said in refusal(raw(path, header, data), reader)
    path.write_bytes(len(both).to_bytes(8, "little") + both[:-2].encode() + b"\xff}" + data)
    assert "decode byte" in refusal(path)


# --- manifests of one's own, whose digests fit ---------------------------------------------------

Change = Callable[[Forgery], Any]


def to_float16(forged: Forgery) -> None:
    put(forged, "rate", np.array(2.0, np.float16))


def put(forged: Forgery, name: str, array: np.ndarray) -> None:
    """Another array, in the tree and in the file."""
    forged.arrays[name] = array
    inner = forged.tree
    *way, last = name.split("/")
    for part in way:
        inner = inner["fields"][part]
    inner["fields"][last] = array_node(array)


def become(forged: Forgery, other: dict[str, Any], **arrays: np.ndarray) -> None:
    forged.tree, forged.arrays = other, {n.replace("__", "/"): a for n, a in arrays.items()}


def plate(forged: Forgery) -> None:
    empty = np.ones((0,))
    become(forged, node("Plate", members=node("Gamma", shape_minus_one=empty, rate=empty)),
           members__shape_minus_one=empty, members__rate=empty)  # fmt: skip
    forged.fields["weights"] = None


def mixture(forged: Forgery) -> None:
    weights, two = np.zeros((1, 2)), np.ones((1, 2))
    components = node("Gamma", shape_minus_one=two, rate=two)
    become(forged, node("Mixture", log_weights=weights, components=components),
           log_weights=weights, components__shape_minus_one=two, components__rate=two)  # fmt: skip


def asymmetric(forged: Forgery) -> None:
    mean, precision = np.zeros(2), np.array([[1.0, 0.5], [0.0, 1.0]])
    become(forged, node("Gaussian", precision_mean=mean, precision=precision),
           precision_mean=mean, precision=precision)  # fmt: skip


MANIFESTS: dict[str, tuple[Change, str]] = {
    "format 1": (lambda f: f.manifest.update(format=1), "expected format version 2"),
    "format 3": (lambda f: f.manifest.update(format=3), "format version 3"),
    "format true": (lambda f: f.manifest.update(format=True), "format version True"),
    "format 2.0": (lambda f: f.manifest.update(format=2.0), "format version 2.0"),
    "no format": (lambda f: f.manifest.update(format=...), "format version None"),
    "no tree": (lambda f: f.manifest.update(tree=...), "a manifest of ['data', 'format', 'prov"),
    "no provenance": (lambda f: f.manifest.update(provenance=...), "a manifest of"),
    "no digest of the arrays": (lambda f: f.manifest.update(data=...), "a manifest of"),
    "a digest of other arrays": (lambda f: f.manifest.update(data="0" * 64), "match their digest"),
    "one more key": (lambda f: f.manifest.update(comment="x"), "'comment'"),
    "numbers as provenance": (lambda f: f.manifest.update(provenance={"n": 1}), "{'n': 1}"),
    "provenance of no keys": (lambda f: f.manifest.update(provenance=[]), "provenance []"),
    "more metadata": (lambda f: f.metadata.update(note="x"), "unknown metadata ['note']"),
    "another digest": (lambda f: f.metadata.update(sha256=""), "manifest that was altered"),
    "a tree of text": (lambda f: f.manifest.update(tree="array"), "without a posterior"),
    "a tree of nothing": (lambda f: f.manifest.update(tree=None), "without a posterior"),
    "a list": (lambda f: f.manifest.update(tree=[]), "without a posterior"),
    "an array": (lambda f: f.manifest.update(tree=array_node(np.ones(1))), "without a posterior"),
    "a tuple": (lambda f: f.manifest.update(tree=node("tuple", items=[])), "without a posterior"),
    "an unknown family": (lambda f: f.tree.update(type="os.system"), "family 'os.system'"),
    "a type that is no name": (lambda f: f.tree.update(type=["Gamma"]), "a node ''"),
    "an abstract type": (lambda f: f.tree.update(type="ExponentialFamily"), "family 'Exponential"),
    "one more key in a node": (lambda f: f.tree.update(note=1), "keys ['fields', 'note', 'type']"),
    "one more key of an array": (
        lambda f: f.fields["rate"].update(note=1), "a node 'rate' with the keys"
    ),
    "no fields": (lambda f: f.tree.pop("fields"), "a node '' with the keys ['type']"),
    "fields in a list": (lambda f: f.tree.update(fields=[]), "a node ''"),
    "a missing field": (lambda f: f.fields.pop("rate"), "['rate']"),
    "a strange field": (lambda f: put(f, "scale", np.array(1.0)), "a Gamma of ['rate', 'scale'"),
    "a field of nothing": (
        lambda f: (f.arrays.pop("rate"), f.fields.update(rate=None)), "dtype object"
    ),
    "a field of a number": (
        lambda f: (f.arrays.pop("rate"), f.fields.update(rate=3)), "int for rate"
    ),
    "an array that is not there": (lambda f: f.arrays.pop("rate"), "otherwise: ['rate']"),
    "an array too many": (lambda f: f.arrays.update(x=np.ones(1)), "otherwise: ['x']"),
    "another shape": (lambda f: f.arrays.update(rate=np.ones(2)), "otherwise: ['rate']"),
    "another type": (lambda f: f.arrays.update(rate=np.array(2)), "otherwise: ['rate']"),
    "a shape of floats": (lambda f: f.fields["rate"].update(shape=[1.0]), "shape [1.0]"),
    "whole numbers": (lambda f: put(f, "rate", np.array(2)), "array of int64 for rate of a Gamma"),
    "half precision": (to_float16, "array of float16 for rate of a Gamma"),
    "NaN": (lambda f: put(f, "rate", np.array(np.nan)), "nan at 'rate' (1 such values)"),
    "infinity": (lambda f: put(f, "rate", np.array(-np.inf)), "-inf at 'rate'"),
    "shapes that do not fit": (lambda f: put(f, "rate", np.ones(2)), "parameters of shapes"),
    "a plate of no members": (plate, "of shape [0]"),
    "weights of two axes": (mixture, "weights of shape (1, 2)"),
    "an asymmetric precision": (asymmetric, "an asymmetric precision"),
    "an architecture nobody knows": (
        lambda f: become(
            f, node("Architecture", name="os", options=node("dict"), parameters=node("dict"))
        ),
        "an architecture 'os' that this installation does not know",
    ),
    "a whole number of 64 bits": (
        lambda f: become(f, node("dict", n=2**63)), "a whole number beyond 64 bits at 'n'"
    ),
    "infinity as a number": (
        lambda f: become(f, node("dict", x=[0.5, float("inf")])), "Infinity is not a JSON number"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MANIFESTS)
def test_manifests_that_lie(path: Path, case: str) -> None:
    """Whatever the digests say; what inspecting can see without building, it refuses too."""
    change, said = MANIFESTS[case]
    forged = gamma()
    change(forged)
    assert said in refusal(forged.write(path))
    try:
        assert artifact.inspect(path).kind == forged.tree["type"]
    except ArtifactError as error:
        assert said in str(error)


def test_manifests_that_say_something_twice(path: Path) -> None:
    text = gamma().text()
    for once, twice in [
        ('"format": 2', '"format": 2, "format": 2'),
        ('"type": "Gamma"', '"type": "Beta", "type": "Gamma"'),
        ('"provenance": {}', '"provenance": {"a": "1", "a": "2"}'),
    ]:
        changed = text.replace(once, twice)
        metadata = {"posterity": changed, "sha256": sha256(changed.encode())}
        safetensors.numpy.save_file(gamma().arrays, path, metadata)
        for reader in (artifact.load, artifact.inspect):
            assert "comes twice" in refusal(path, reader)


@pytest.mark.parametrize("depth", [300, 900, 1200, 50_000])
def test_towers_of_brackets(path: Path, depth: int) -> None:
    head, tail = gamma().text().split('{"type": "Gamma"')
    inner, rest = tail.split("}}, ")
    for opened, closed in [("[", "]"), ('{"a":', "}"), ('{"type":"dict","fields":{"a":', "}}")]:
        tower = opened * depth + '{"type": "Gamma"' + inner + "}}" + closed * depth
        text = f"{head}{tower}, {rest}"
        metadata = {"posterity": text, "sha256": sha256(text.encode())}
        safetensors.numpy.save_file(gamma().arrays, path, metadata)
        for reader in (artifact.load, artifact.inspect):
            refusal(path, reader)


def to_beta(forged: Forgery) -> None:
    """The factors of another family than the prior."""
    forged.fields["factors"] = node("Beta")
    for old, new in (("shape_minus_one", "a_minus_one"), ("rate", "b_minus_one")):
        put(forged, f"factors/{new}", forged.arrays.pop(f"factors/{old}"))


def without_factors(forged: Forgery) -> None:
    forged.fields["factors"] = None
    forged.arrays = {n: a for n, a in forged.arrays.items() if n.startswith("prior")}


def single(part: str) -> Change:
    def change(forged: Forgery) -> None:
        for name in [name for name in forged.arrays if name.startswith(part)]:
            put(forged, name, forged.arrays[name].astype(np.float32))

    return change


LEDGERS: dict[str, tuple[Change, str]] = {
    "a flag of text": (
        lambda f: f.fields.update(independent=["no", False, False]),
        "independent ['no'"),
    "a flag of numbers": (lambda f: f.fields.update(forgotten=[0, 1, 0]), "forgotten [0, 1, 0]"),
    "flags of nothing": (lambda f: f.fields.update(independent=None), "independent None"),
    "an epoch that is true": (lambda f: f.fields.update(epochs=[True, 1, 2]), "epochs [True"),
    "an epoch of a float": (lambda f: f.fields.update(epochs=[0.0, 1, 2]), "epochs [0.0"),
    "a negative epoch": (lambda f: f.fields.update(epochs=[-1, 1, 2]), "epochs [-1"),
    "an epoch too large": (lambda f: f.fields.update(epochs=[2**63, 1, 2]), "64 bits"),
    "an epoch of text": (lambda f: f.fields.update(epochs=["0", 1, 2]), "epochs ['0'"),
    "a negative sequence": (lambda f: f.fields.update(sequences=[0, 0, -3]), "sequences [0, 0, -3"),
    "a sequence of a float": (
        lambda f: f.fields.update(sequences=[0, 0, 1e3]),
        "sequences [0, 0, 1000"),
    "an epoch too few": (lambda f: f.fields.update(epochs=[0, 1]), "epochs [0, 1]"),
    "a flag too many": (lambda f: f.fields.update(independent=[False] * 4), "independent [False"),
    "sites by number": (lambda f: f.fields.update(sites=[1, 2, 3]), "sites [1, 2, 3]"),
    "a site twice": (lambda f: f.fields.update(sites=["a", "a", "c"]), "twice, or out of order"),
    "sites out of order": (lambda f: f.fields.update(sites=["b", "a", "c"]), "out of order"),
    "a column that is missing": (lambda f: f.fields.pop("epochs"), "a Ledger of ["),
    "a column too many": (lambda f: f.fields.update(notes=["", "", ""]), "'notes'"),
    "another prior's digest": (lambda f: f.fields.update(prior_digest="0" * 64), "another prior"),
    "a digest of nothing": (lambda f: f.fields.update(prior_digest=None), "digest None of another"),
    "factors of another family": (to_beta, "that do not fit together"),
    "a factor too few": (lambda f: f.fields.update(forgotten=[False] * 3), "for 3 sites that cont"),
    "a factor too many": (lambda f: f.fields.update(forgotten=[True] * 3), "for 0 sites that cont"),
    "no factors at all": (without_factors, "2 sites that contribute, and factors None"),
    "factors in single precision": (single("factors"), "dtype('<f4')"),
    "NaN in a factor": (
        lambda f: put(f, "factors/rate", np.array([6.0, np.nan])), "nan at 'factors/rate'"
    ),
    "an improper prior": (
        lambda f: (put(f, "prior/rate", np.array(-2.0)), f.fields.update(prior_digest=digest(f))),
        "improper Gamma in the prior",
    ),
}  # fmt: skip


def digest(forged: Forgery) -> str:
    """That of the ledger's prior."""
    rate, shape = forged.arrays["prior/rate"], forged.arrays["prior/shape_minus_one"]
    data = sha256(rate.tobytes() + shape.tobytes())
    return canonical({"format": 2, "tree": forged.fields["prior"], "data": data})


@pytest.mark.parametrize("case", LEDGERS)
def test_ledgers_that_lie(path: Path, case: str) -> None:
    change, said = LEDGERS[case]
    forged = ledger()
    change(forged)
    assert said in refusal(forged.write(path))
    assert said in refusal(path, artifact.open_artifact)
    try:
        assert list(artifact.inspect(path).sites) == forged.fields["sites"]
    except ArtifactError as error:
        assert said in str(error)


def test_a_prior_in_single_precision(path: Path) -> None:
    """What a ledger would widen is not what the file says."""
    forged = ledger()
    single("prior")(forged)
    forged.fields["prior_digest"] = digest(forged)
    assert "dtype('<f4')" in refusal(forged.write(path))


# --- anything in the manifest, with digests that fit ---------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**65) | st.floats(allow_nan=False)
    | st.text(max_size=3) | st.sampled_from(["array", "Gamma", "Beta", "dict", "tuple", "Ledger"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3) | st.sampled_from(["type", "fields"]), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Everything in a document, each with what it is in."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = [(value, key) for key, _ in items]
    for key in [key for _, key in found]:
        found += places(value[key]) if isinstance(value[key], dict | list) else []
    return found


@given(data=st.data())
def test_what_is_accepted_is_what_the_file_says(tmp_path_factory: Any, data: st.DataObject) -> None:
    """Whatever was changed in the manifest, and in how many places: nothing else comes of it."""
    forged = ledger()
    for _ in range(data.draw(st.integers(1, 3))):
        if not (found := places(forged.tree)):
            break
        container, key = data.draw(st.sampled_from(found))
        change = data.draw(st.sampled_from(["replace", "remove", "copy", "swap"]))
        other, name = data.draw(st.sampled_from(found))
        if change == "remove":
            del container[key]
        elif change == "replace":
            container[key] = data.draw(JSON)
        elif change == "copy":
            container[key] = json.loads(json.dumps(other[name]))
        elif type(container) is type(other) is list:
            container[key], other[name] = other[name], container[key]
    path = forged.write(tmp_path_factory.mktemp("manifests") / "file")
    try:
        loaded = artifact.load(path)
    except ArtifactError:
        return
    document = json.loads(forged.text())
    said = {key: document[key] for key in ("format", "tree", "data")}
    assert artifact.digest(loaded) == canonical(said)


def test_large_files_take_memory_once(path: Path) -> None:
    size = 1_000_000
    artifact.save(DiagonalGaussian(np.arange(1.0, size + 1), np.ones(size)), path)
    tracemalloc.start()
    loaded = artifact.load(path)
    assert tracemalloc.get_traced_memory()[1] < 1.05 * 16 * size
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    artifact.save(loaded, path)
    artifact.inspect(path)
    assert tracemalloc.get_traced_memory()[1] - before < 0.15 * 16 * size
    tracemalloc.stop()


def test_a_sparse_file_is_checked_before_it_takes_memory(path: Path) -> None:
    """Digests are of what it says, and its arrays are a hole."""
    size = 2**22
    artifact.save(DiagonalGaussian(np.arange(1.0, size + 1), np.ones(size)), path)
    whole = path.stat().st_size
    os.truncate(path, whole - 16 * size)
    os.truncate(path, whole)
    tracemalloc.start()
    with pytest.raises(ArtifactError, match="digest"):
        artifact.load(path)
    assert tracemalloc.get_traced_memory()[1] < 2e7
    tracemalloc.stop()
