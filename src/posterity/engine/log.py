"""An append-only log: its Merkle tree, proofs of consistency, and checkpoints that others sign.

The tree and its proofs are those of rfc9162, section 2.1. A checkpoint states the length and root
of a log. It is a signed note (c2sp2023checkpoint), which other sites cosign after checking that it
continues what they signed before (c2sp2023cosignature). The holder of a checkpoint can later detect
whether the log was rewritten.
"""

import base64
import dataclasses
import hashlib
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from posterity.engine.refusal import Reason, Refusal, reading
from posterity.engine.signing import MOST_TAIL, PrivateKey, PublicKey, from_base64

Path = tuple[bytes, ...]
"""Hashes of subtrees that lead from one root to another."""

# --- the tree ------------------------------------------------------------------------------------


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of an entry, which differs from that of any subtree."""
    return hashlib.sha256(b"\x00" + entry).digest()


def _node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def _split(size: int) -> int:
    """Return the largest power of two below ``size``."""
    return 1 << (size - 1).bit_length() - 1


class Tree:
    """The Merkle tree of a log's entries, which stores only hashes.

    Hashes of complete subtrees are kept, so that an entry is added in constant time on average, and
    roots and proofs of any size up to the present one take logarithmic time.

    Source: rfc9162, section 2.1.
    """

    def __init__(self, entries: Iterable[bytes] = ()):
        self._levels: list[list[bytes]] = [[]]
        for entry in entries:
            self.append(entry)

    def __len__(self) -> int:
        return len(self._levels[0])

    def append(self, entry: bytes) -> None:
        """Add an entry at the end."""
        self._levels[0].append(leaf_hash(entry))
        height = 0
        while len(self._levels[height]) % 2 == 0:
            if height + 1 == len(self._levels):
                self._levels.append([])
            self._levels[height + 1].append(_node_hash(*self._levels[height][-2:]))
            height += 1

    def root(self, size: int | None = None) -> bytes:
        """Return the root of the first ``size`` entries, by default of all."""
        size = len(self) if size is None else size
        return self._hash(0, size) if size else hashlib.sha256().digest()

    def consistency(self, old: int) -> Path:
        """Return the proof that the log begins with its first ``old`` entries."""
        return () if old in (0, len(self)) else self._consistency(old, 0, len(self), True)

    def _hash(self, start: int, stop: int) -> bytes:
        """Return the hash of a subtree's entries; ``start`` is a multiple of its width."""
        size = stop - start
        height = size.bit_length() - 1
        if size == 1 << height:
            return self._levels[height][start >> height]
        middle = start + _split(size)
        return _node_hash(self._hash(start, middle), self._hash(middle, stop))

    def _consistency(self, old: int, start: int, stop: int, known: bool) -> Path:
        """Return the proof; ``known`` states that the verifier has the hash of all old entries."""
        if old == stop:
            return () if known else (self._hash(start, stop),)
        middle = start + _split(stop - start)
        if old <= middle:
            return (*self._consistency(old, start, middle, known), self._hash(middle, stop))
        return (*self._consistency(old, middle, stop, False), self._hash(start, middle))


def verify_consistency(
    old: int, old_root: bytes, size: int, root: bytes, path: Sequence[bytes]
) -> None:
    """Check that a log of ``size`` entries begins with the ``old`` ones whose root is known. Raises
    a Refusal if the path does not prove it, for example because an entry was rewritten.

    Source: rfc9162, section 2.1.4.
    """
    rest = list(path)
    try:
        old_node, node = _continued(old_root, old, size, rest) if old else (Tree().root(), root)
    except IndexError:
        old_node = node = b""
    if not 0 <= old <= size or rest or (old_node, node) != (old_root, root):
        found = f"a log of {size} entries that does not continue the one of {old}"
        raise _refused(found, "the entries known before, and others after them", "rewritten")


def _continued(known: bytes | None, old: int, size: int, path: list[bytes]) -> tuple[bytes, bytes]:
    """Return the roots of the first ``old`` entries and of all, from a path, which is consumed.
    ``known`` is the first root where it need not come from the path.
    """
    if old >= size:
        node = path.pop() if known is None else known
        return node, node
    middle = _split(size)
    other = path.pop()
    if old <= middle:
        old_node, node = _continued(known, old, middle, path)
        return old_node, _node_hash(node, other)
    old_node, node = _continued(None, old - middle, size - middle, path)
    return _node_hash(other, old_node), _node_hash(other, node)


def _refused(found: str, expected: str, reason: Reason) -> Refusal:
    fix = "Ask for another proof; where there is none, ask who keeps the log what was changed."
    return Refusal.of(found, expected, reason, fix)


# --- checkpoints ---------------------------------------------------------------------------------

SIGNATURE = 1
"""Type of key, in signed notes, of a log's keeper."""
COSIGNATURE = 4
"""Type of key, in signed notes, of a witness, who adds the time."""


@dataclasses.dataclass(frozen=True)
class TreeHead:
    """The size and root of the log that ``origin`` keeps, and signature lines by name and key ID.

    Source: c2sp2023checkpoint.
    """

    origin: str
    size: int
    root: bytes
    signatures: tuple[tuple[str, bytes], ...] = ()
    """Names, and four bytes of key ID followed by a signature."""

    @classmethod
    def of(cls, tree: Tree, origin: str, key: PrivateKey) -> Self:
        """Return the checkpoint of a log's present state, signed by its keeper's key."""
        checkpoint = cls(origin, len(tree), tree.root())
        signature = key.sign(checkpoint.body)
        return checkpoint._with(origin, key_id(origin, SIGNATURE, key.public) + signature)

    @property
    def body(self) -> bytes:
        """The text that is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n".encode()

    def to_bytes(self) -> bytes:
        """Return the signed note."""
        lines = (f"— {name} {base64.b64encode(raw).decode()}\n" for name, raw in self.signatures)
        return self.body + b"\n" + "".join(lines).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a checkpoint from :meth:`to_bytes`. Raises a Refusal if the bytes are no checkpoint,
        or have other lines than origin, size and root.
        """
        with reading("a checkpoint", "origin, size and root, and who signed them"):
            body, _, lines = content.decode().partition("\n\n")
            origin, size, root = body.split("\n")
            named = [line.split(" ") for line in lines.splitlines()]
            pairs = tuple((name, from_base64(raw, "a signature")) for _, name, raw in named)
            checkpoint = cls(origin, int(size), from_base64(root, "a root"), pairs)
            known = len(lines) <= MOST_TAIL and len(checkpoint.root) == 32
            if not known or not 0 <= checkpoint.size < 2**62 or checkpoint.to_bytes() != content:
                raise ValueError("another encoding of it")
            return checkpoint

    def begins(self, tree: Tree) -> bool:
        """Return whether a log begins with the entries of the checkpoint."""
        return self.size <= len(tree) and tree.root(self.size) == self.root

    def verify(self, *keys: PublicKey) -> None:
        """Check the signature of the log's keeper, by one of its keys; raises a Refusal if it is
        missing or false.
        """

        def by(key):
            return (self.origin, key_id(self.origin, SIGNATURE, key))

        signed = {(name, raw[:4]): raw[4:] for name, raw in self.signatures}
        if not any(key.verifies(signed.get(by(key), b""), self.body) for key in keys):
            found = f"a checkpoint of {self.origin!r} without a signature of it that holds"
            raise Refusal.of(found, "one that its keeper signed", "signature")

    def cosigned(self, name: str, key: PrivateKey, time: int) -> Self:
        """Return the checkpoint with the cosignature of a witness, at a time in seconds since 1970.
        A witness calls :func:`continues` before, with the last checkpoint that it cosigned.
        """
        signature = time.to_bytes(8, "big") + key.sign(self._stamped(time))
        return self._with(name, key_id(name, COSIGNATURE, key.public) + signature)

    def witnesses(self, keys: Mapping[str, PublicKey]) -> dict[str, int]:
        """Return the times of valid cosignatures by the holders of ``keys``, by name."""
        times = {}
        for name, raw in self.signatures:
            key = keys.get(name)
            time = int.from_bytes(raw[4:12], "big")
            if key is None or raw[:4] != key_id(name, COSIGNATURE, key):
                continue
            if key.verifies(raw[12:], self._stamped(time)):
                times[name] = time
        return times

    def _stamped(self, time: int) -> bytes:
        return f"cosignature/v1\ntime {time}\n".encode() + self.body

    def _with(self, name: str, raw: bytes) -> Self:
        others = (pair for pair in self.signatures if (pair[0], pair[1][:4]) != (name, raw[:4]))
        return dataclasses.replace(self, signatures=(*others, (name, raw)))


def key_name(*parts: str) -> str:
    """Return a name for notes, e.g. of federation and site, without spaces and plus signs."""
    return "/".join(urllib.parse.quote(part, safe="") for part in parts)


def key_id(name: str, kind: int, key: PublicKey) -> bytes:
    """Return the four bytes by which a note's signature line identifies a key."""
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + key.raw).digest()[:4]


def continues(old: TreeHead | None, new: TreeHead, path: Sequence[bytes], *keys: PublicKey) -> None:
    """Check that a checkpoint is signed by one of the keys, and that its log continues that of an
    older checkpoint.

    An auditor calls it with an earlier checkpoint, and a witness before each cosignature. Without
    an older one only the signature is checked. Raises a Refusal if the log is another one or was
    rewritten, or if the checkpoint is not signed.
    """
    new.verify(*keys)
    if old is None:
        return
    if old.origin != new.origin:
        raise _refused(f"a log of {new.origin!r}", f"that of {old.origin!r}", "membership")
    verify_consistency(old.size, old.root, new.size, new.root, path)
