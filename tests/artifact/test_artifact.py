"""A file holds a posterior to the last bit, or ``save`` says why it does not."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from posterity import artifact
from posterity.arrays.tree import Node, leaves
from posterity.artifact import registry, tree
from posterity.entries import looks
from posterity.errors import ArtifactError, ParameterError, StructureError
from posterity.families import DiagonalGaussian, Gamma, Gaussian, Mixture, Plate, Product
from posterity.ledger import Ledger
from tests.laws.table import NAMES as FAMILIES
from tests.laws.table import TABLE, cast, identical, laws, members, some, to_jax

PRIOR = Product(noise=Gamma.from_standard(1.0, 2.0), w=DiagonalGaussian(np.zeros(3), np.ones(3)))
SITES = ["north", "a/b", "a%2Fb", " spaced name ", "naïve-Ωμέγα-医院", ".", "..", "type", "blocks",
         "rate", "__metadata__", "new\nline", "prior"]  # fmt: skip
NAMES = [*SITES, "", "\ud800"]
"""Of blocks, which nobody has to tell apart."""


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


@pytest.mark.parametrize("name", FAMILIES)
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
    held = ledger_of(SITES)
    artifact.save(held, path)
    loaded = artifact.load(path)
    assert loaded == held
    assert list(artifact.inspect(path).sites) == sorted(SITES)
    blocks = Product({name: Gamma(1.0 * n, 2.0 * n + 1) for n, name in enumerate(NAMES)})
    artifact.save(blocks, path)
    assert identical(artifact.load(path), blocks)


VISIBLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda name: all(looks(name))
)


def are_told_apart(names: list[str]) -> bool:
    return len(frozenset().union(*map(looks, names))) == sum(len(looks(name)) for name in names)


@given(names=st.lists(VISIBLE, min_size=1, max_size=4).filter(are_told_apart))
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
    assert found.sites == {"north": (0, 0, False, False), "south": (1, 0, False, False)}
    assert found.prior_digest == artifact.digest(PRIOR)
    assert found.bytes == len(path.read_bytes())
    assert found.arrays["factors/blocks/noise/rate"] == ("float64", (2,))
    assert found.arrays["prior/blocks/w/precision"] == ("float64", (3,))
    assert len(found.digest) == 64
    assert artifact.open_artifact(path) == (held, found)
    gone = held.forget("north")
    artifact.save(gone, path)
    assert artifact.inspect(path).sites["north"] == (0, 0, True, False)
    assert artifact.inspect(path).arrays["factors/blocks/noise/rate"] == ("float64", (1,))
    artifact.save(gone.forget("south"), path)
    assert not [name for name in artifact.inspect(path).arrays if name.startswith("factors")]
    assert artifact.load(path) == gone.forget("south")


def test_the_file_is_plain_safetensors(path: Path) -> None:
    """Of its own package, to the bit, each array aligned."""
    held = {"a": np.arange(3, dtype=np.int8), "b": np.eye(2, dtype=np.float32), "c": np.array(0.1)}
    artifact.save(held, path)
    arrays = safetensors.numpy.load_file(path)
    assert {n: a.dtype for n, a in arrays.items()} == {n: a.dtype for n, a in held.items()}
    assert all(np.array_equal(arrays[name], held[name]) for name in held)
    assert all(array.flags.aligned for array in artifact.load(path).values())


def memory(array: Any) -> Any:
    return memory(array.base) if isinstance(array, np.ndarray) else array


def test_loaded_arrays_cannot_be_written_to_and_share_one_buffer(path: Path) -> None:
    artifact.save(ledger_of(["north", "south"]), path)
    held = artifact.load(path)
    found = leaves([held.prior, *(held.factor(site) for site in held.sites)])
    assert not any(leaf.flags.writeable for leaf in found)
    assert len({id(memory(leaf)) for leaf in found}) == 1
    with pytest.raises(ValueError, match="read-only"):
        held.factor("north").blocks["w"].precision[0] = 1.0


# --- what else files hold ------------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "number": 7,
    "fraction": 0.1,
    "small": -(2**63),
    "yes": True,
    "nothing": None,
    "text": "naïve-Ωμέγα-\ud800/\n",
    "pair": (1, 2.5),
    "list": [1, "two", None, [3.0, False], {"four": (4,)}],
    "empty": [],
    "none": {},
    "a/b": {"__metadata__": "x", "": [()], "type": "array"},
    "bytes": np.arange(256, dtype=np.uint8),
    "walk": np.array([[-1, 2], [3, 4]], dtype=np.int32),
    "steps": np.array([2**63 - 1, -(2**63)]),
    "flags": np.array([True, False]),
    "single": np.float32([0.1]),
    "half": np.float16([0.1, 65504.0]),
    "brain": np.array([0.1, -3e38, 2.0**-133], ml_dtypes.bfloat16),
    "__metadata__": np.array(3),
    "mixture": Mixture(np.zeros(2), Gamma([1.0] * 2, [1.0] * 2)),
    "ledger": ledger_of(["north", "south"]),
    "several": [PRIOR, {"rate": Gamma(1.0, 2.0)}],
}


def same_value(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray | Node):
        return identical(left, right) and type(left) is type(right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_value(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and all(map(same_value, left, right))
    return type(left) is type(right) and left == right


def test_dictionaries_of_values_come_back_as_they_were(path: Path) -> None:
    artifact.save(VALUES, path)
    loaded = artifact.load(path)
    assert same_value(loaded, VALUES)
    assert {n: a.dtype for n, a in loaded.items() if isinstance(a, np.ndarray)} == {
        n: a.dtype for n, a in VALUES.items() if isinstance(a, np.ndarray)
    }
    assert artifact.inspect(path).kind == "dict"
    before = path.read_bytes()
    artifact.save(dict(reversed(loaded.items())), path)
    assert path.read_bytes() == before


def test_nodes_of_one_s_own_must_be_registered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Gamma):
        """A family of one's own."""

    class State(Node):
        """A node that is no law."""

        step: int
        posterior: Gamma

    held = State(3, Own(1.0, 2.0))
    with pytest.raises(ArtifactError, match="State"):
        artifact.save(held, path)
    monkeypatch.setattr(registry, "CODECS", codecs := dict(registry.CODECS))
    monkeypatch.setattr(tree, "CODECS", codecs)
    assert artifact.register(Own) is Own
    assert artifact.register(Own) is Own
    artifact.register(State)
    artifact.save(held, path)
    loaded = artifact.load(path)
    assert (type(loaded), loaded.step, type(loaded.posterior)) == (State, 3, Own)
    for name in ("Own", "Ledger", "dict", "array"):
        other = type(name, (Gamma,), {})
        with pytest.raises(ArtifactError, match=f"second family named '{name}'"):
            artifact.register(other)
    monkeypatch.undo()
    assert artifact.inspect(path).kind == "State"
    with pytest.raises(ArtifactError, match=r"'(Own|State)' that is not registered here"):
        artifact.load(path)


# --- what is not saved ---------------------------------------------------------------------------


class Stranger(Node):
    """A node that nobody registered."""

    rate: np.ndarray


def spoilt(**blocks: Any) -> Product:
    """A product whose blocks nobody checked."""
    return Product.of_children([{**PRIOR.blocks, **blocks}])


def batched(size: int) -> Gamma:
    return Gamma(np.ones(size), np.ones(size))


UNFIT: dict[str, tuple[Any, str]] = {
    "nothing": (None, "None"),
    "an array": (np.ones(3), "ndarray"),
    "a number": (3.0, "float"),
    "a list": ([PRIOR], "list"),
    "a tuple": ((PRIOR,), "tuple"),
    "a stranger": (Stranger(np.ones(1)), "Stranger"),
    "a stranger inside": (spoilt(noise=Stranger(np.ones(1))), "Stranger"),
    "a function": ({"f": print}, "builtin_function_or_method"),
    "text for a parameter": (Gamma.of_children(["two", "one"]), "str for .* of a Gamma"),
    "a number for a parameter": (Gamma.of_children([1, 2]), "int for .* of a Gamma"),
    "whole numbers": (Gamma.of_children([np.array(1), np.array(2)]), "array of int64"),
    "half precision": (Gamma.of_children([np.float16(1), np.float16(2)]), "array of float16"),
    "complex numbers": ({"z": np.array([1j])}, "type complex128"),
    "dates": ({"day": np.array("2026-11-21", "M8[D]")}, r"type datetime64\[D\]"),
    "objects": ({"o": np.array([None])}, "type object"),
    "no members": (Plate(batched(0)), r"of shape \[0\]"),
    "no batch": (batched(0), r"of shape \[0\]"),
    "an empty array": ({"x": np.ones((3, 0))}, r"of shape \[3, 0\]"),
    "many axes": ({"x": np.ones((1,) * 33)}, "at most 32 axes"),
    "wide weights": (Mixture.of_children([np.zeros((1, 2)), batched(2)]), r"shape \(1, 2\)"),
    "a batch that does not fit": (Gamma.of_children([np.ones(2), np.ones(3)]), "of shapes"),
    "asymmetry": (Gaussian.of_children([np.zeros(2), np.arange(4.0).reshape(2, 2)]), "asymmetric"),
    "wide numbers": ({"n": 2**63}, "beyond 64 bits at 'n'"),
    "wide numbers in a list": ({"n": [1, -(2**63) - 1]}, "beyond 64 bits at 'n'"),
    "names of numbers": ({1: 2}, r"the keys \[1\]"),
    "NaN": (Gamma(1.0, np.nan), "nan at 'rate'"),
    "NaN in two bytes": ({"w": np.array([1, np.nan], ml_dtypes.bfloat16)}, "nan at .w. .1 such"),
    "NaN inside": (spoilt(noise=Gamma(1.0, np.nan)), "at 'blocks/noise/rate'"),
    "infinity": (Mixture(np.array([0.0, np.inf]), batched(2)), "inf at 'log_weights'"),
    "NaN as a number": ({"x": [0.0, float("nan")]}, "nan"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_what_could_not_be_loaded_is_not_saved(path: Path, case: str) -> None:
    value, said = UNFIT[case]
    artifact.save(Gamma(1.0, 2.0), path)
    before = path.read_bytes()
    with pytest.raises((ArtifactError, ParameterError, StructureError), match=said) as caught:
        artifact.save(value, path)
    assert "what was to be saved" in caught.value.found
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_provenance_is_text(path: Path) -> None:
    unchecked = inspect.unwrap(artifact.save)  # as it is without the tests' checks of types
    for provenance in ({"n": 1}, {1: "n"}, {"x": None}):
        with pytest.raises(ArtifactError, match="text by key"):
            unchecked(PRIOR, path, provenance=provenance)
    with pytest.raises(ArtifactError, match=r"a header of .* bytes in what was to be saved"):
        artifact.save(PRIOR, path, provenance={"log": "x" * 2**25})
    assert not path.exists()


def test_reading_and_writing_files_needs_no_jax() -> None:
    code = "import sys, posterity.artifact, posterity.ledger; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
