"""Secure aggregation: all sites learn the sum of their factors, and none learns another's factor.

The scheme is that of bonawitz2017 for few sites: pairwise masks that cancel in the sum, and one
mask of each site's own. Each site sends four letters, which may be files. ``keys``: a new public
key. ``masked``: its masked factor. ``survivors``: the sites whose masked factors it has.
``opening``: its own mask, and its pairwise masks with sites that dropped out, once all survivors
have signed the same list. Letters are signed (in-toto statements); anyone can carry them, and
compute the sum.

Any ``least - 2`` sites that collude with each other and with the carriers of the letters learn at
most the sum of the others' factors, even if they lie. Own masks are not shared with others (by
Shamir's scheme), since enough colluders could combine the shares and learn everything. The sum is
therefore lost if a survivor does not send its opening. The scheme does not keep a site from sending
a false factor. Two sums over sets that differ by one site reveal that site's factor.
"""

import base64
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from posterity.arguments import POSITIVE, at_least
from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.tree_sums import TreeSum
from posterity.artifact.manifest import as_text, digest
from posterity.checks import check_finite, check_proper, check_same_structure
from posterity.engine.agreement import NAME
from posterity.engine.refusal import Refusal
from posterity.engine.signing import (
    Envelope,
    PrivateKey,
    PublicKey,
    Statement,
    from_base64,
    statement_of,
)
from posterity.entries import check_names
from posterity.errors import MissingExtraError, UsageError
from posterity.families import ExponentialFamily, at_rest
from posterity.files import write_file, writing

try:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise MissingExtraError.of("cryptography", "engine") from error

GRID = 2**64
"""Numbers are whole multiples of ``1/GRID``; those of magnitude 2⁻¹² or more are exact."""
MODULUS = 2**128
LARGEST = 2.0**50
Round = Literal["keys", "masked", "survivors", "opening"]
Letters = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The terms of an aggregation, the same at all sites: name, prior, members and bounds.

    ``least`` is the minimum number of sites whose sum is opened, by default all members. It is at
    least three, since of two sites each would learn the other's factor. ``most`` bounds each
    number's magnitude.
    """

    name: str
    prior: ExponentialFamily
    members: Mapping[str, PublicKey]
    least: int | None = None
    most: float = 2.0**40

    def __post_init__(self) -> None:
        NAME.check(name=self.name)
        check_proper(self.prior, "the prior")
        check_names(self.members)
        object.__setattr__(self, "prior", at_rest(self.prior))
        least = len(self.members) if self.least is None else self.least
        at_least(3).check(least=least)
        object.__setattr__(self, "least", int(least))
        POSITIVE.check(most=self.most)
        keys = set(self.members.values())
        if not self.most <= LARGEST or not least <= len(keys) == len(self.members) < 2**12:
            raise UsageError(
                found=f"{len(keys)} keys of {len(self.members)} members, least={least}, "
                f"most={self.most:g}",
                expected=f"a key each, `least` of 4,095 members at most, numbers up to {LARGEST:g}",
                fix="Pass one key for each member, or lower `least` or `most`.",
            )

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the whole plan; each letter contains it."""
        members = {site: str(key) for site, key in self.members.items()}
        document = {"name": self.name, "prior": digest(self.prior), "members": members}
        document |= {"least": self.least, "most": float(self.most)}
        return hashlib.sha256(as_text(document).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """The sum of the survivors' factors, which is exactly ``integers / GRID``."""

    prior: ExponentialFamily
    survivors: tuple[str, ...]
    dropped: tuple[str, ...]
    integers: tuple[int, ...]

    @property
    def factor(self) -> ExponentialFamily:
        """The sum, rounded once."""
        return TreeSum.of(self._layers).value

    @property
    def posterior(self) -> ExponentialFamily:
        """Prior and sum, rounded once. If the sites' numbers are on the grid, it equals bit for bit
        that of a :class:`posterity.Ledger` of the same factors.
        """
        return TreeSum.of([self.prior, *self._layers]).value

    @property
    def _layers(self) -> list[Any]:
        """Trees of floats with 53 bits each, whose exact sum is the factor."""
        rest, layers = list(self.integers), []
        while not layers or any(rest):
            top = [value / GRID for value in rest]  # integers, rounded to nearest
            rest = [value - int(part * GRID) for value, part in zip(rest, top, strict=True)]
            layers.append(_tree(self.prior, np.array(top)))
        return layers


class Participant:
    """A site's part in one aggregation. Its letters and secrets are kept in a folder of its own.

    Each method takes all letters received so far, in any order, and returns the site's next one.
    When called again, for example after a crash, it returns the same letter or raises a Refusal.
    Delete the folder once the sum is known. Raises a Refusal for another aggregation's folder.
    """

    def __init__(self, plan: Plan, site: str, key: PrivateKey, folder: str | os.PathLike[str]):
        if plan.members.get(site) != key.public:
            raise Refusal.of(f"a key that is not that of {site!r}", "its own", "membership")
        self.plan, self.site, self._key, self.folder = plan, site, key, Path(folder)
        with writing(self.folder):
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self.folder.chmod(0o700)
        self._secret = X25519PrivateKey.from_private_bytes(self._random("secret"))
        self.keys()

    def keys(self) -> bytes:
        """Return the first letter: a public key for this aggregation only."""
        return self._letter("keys", key=_text(self._secret.public_key().public_bytes_raw()))

    def masked(self, factor: ExponentialFamily, letters: Iterable[bytes]) -> bytes:
        """Return the second letter, for the sites whose keys came: the masked factor. Raises a
        ParameterError or StructureError if the factor is not finite or has another structure than
        the prior, and a Refusal if a number is too large or keys are fewer than the plan's least.
        """
        numbers = _integers(self.plan, factor)
        keys = {site: content["key"] for site, content in _read(self.plan, letters)["keys"].items()}
        own = _read(self.plan, [self.keys()])["keys"][self.site]["key"]
        if keys.setdefault(self.site, own) != own:
            raise Refusal.of(f"an old key of {self.site!r}", "that of this aggregation", "replay")
        self._enough(keys)
        numbers = numbers + _mask(self._random("own"), len(numbers))
        for peer in keys.keys() - {self.site}:
            sign = _sign(self.site, peer)
            numbers = numbers + sign * _mask(self._seed(peer, keys), len(numbers))
        raw = b"".join(int(number % MODULUS).to_bytes(16, "little") for number in numbers)
        return self._letter("masked", roster=keys, words=_text(raw))

    def survivors(self, letters: Iterable[bytes]) -> bytes:
        """Return the third letter: the sites whose masked factors came, and this site. From here
        on, other sites are left out even if their letters arrive later. Raises a Refusal if they
        are fewer than the plan's least, or masked with other keys than this site used.
        """
        mine = self._sent("masked")
        masked = {**_read(self.plan, letters)["masked"], self.site: mine}
        for site, content in masked.items():
            if content["roster"] != mine["roster"]:
                raise Refusal.of(f"other keys at {site!r}", f"those at {self.site!r}", "order")
        self._enough(masked)
        shas = {site: content["sha"] for site, content in masked.items()}
        return self._letter("survivors", masked=shas)

    def opening(self, letters: Iterable[bytes]) -> bytes:
        """Return the last letter: this site's own mask, and its masks with sites that dropped out.
        Raises a Refusal unless all survivors sent the same list.
        """
        mine, keys = self._sent("survivors")["masked"], self._sent("masked")["roster"]
        lists = {**_read(self.plan, letters)["survivors"], self.site: {"masked": mine}}
        for site in mine:
            if site not in lists or lists[site]["masked"] != mine:
                found = "another list of survivors" if site in lists else "no list of survivors"
                raise Refusal.of(f"{found} from {site!r}", "the same from all of them", "order")
        seeds = {peer: _text(self._seed(peer, keys)) for peer in keys.keys() - mine.keys()}
        return self._letter("opening", masked=mine, own=_text(self._random("own")), dropped=seeds)

    def _random(self, name: str) -> bytes:
        """Return 32 random bytes, drawn once and kept under a name."""
        if not (path := self.folder / name).exists():
            write_file(path, os.urandom(32))
        return path.read_bytes()

    def _letter(self, round: Round, **content: Any) -> bytes:
        """Return a letter that is durable before it is sent; only one per round is allowed."""
        predicate = {"site": self.site, "round": round, **content}
        statement = Statement("aggregation", {"plan": self.plan.digest}, predicate)
        letter, path = statement.signed(self._key).to_bytes(), self.folder / f"{round}.json"
        if not path.exists():
            write_file(path, letter)
        if path.read_bytes() != letter:
            found = f"another letter {round!r} of {self.site!r} in this aggregation"
            fix = "Begin another aggregation, in a folder of its own, with all members."
            raise Refusal.of(found, "one: two reveal what the masks hide", "replay", fix)
        return letter

    def _sent(self, round: Round) -> Mapping[str, Any]:
        path = self.folder / f"{round}.json"
        if not path.exists():
            raise Refusal.of(f"no letter {round!r} of {self.site!r} yet", "that one first", "order")
        return _read(self.plan, [path.read_bytes()])[round][self.site]

    def _enough(self, sites: Iterable[str]) -> None:
        there = set(sites)
        if len(there) < (self.plan.least or 0):
            absent = sorted(set(self.plan.members) - there)
            found = f"letters of {len(there)} sites, without {absent}"
            raise Refusal.of(found, f"at least {self.plan.least}", "order")

    def _seed(self, peer: str, keys: Mapping[str, str]) -> bytes:
        """Return the seed of the masks shared with a peer: X25519 (rfc7748), HKDF (rfc5869)."""
        theirs = X25519PublicKey.from_public_bytes(_raw(keys[peer]))
        pair = {"roster": dict(keys), "pair": sorted((self.site, peer)), "plan": self.plan.digest}
        try:
            shared = self._secret.exchange(theirs)
        except ValueError as error:  # a point of small order gives all the same secret
            raise Refusal.of(f"an invalid key of {peer!r}", "a key of X25519") from error
        info = b"posterity secure aggregation v1 " + as_text(pair).encode()
        return HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(shared)


def total(plan: Plan, letters: Iterable[bytes]) -> Aggregate:
    """Compute the sum from all letters; no secret is needed. Raises a Refusal if an opening of a
    survivor is missing, or the letters do not fit together.
    """
    content = _read(plan, letters)
    openings, masked = content["opening"], content["masked"]
    first = next(iter(openings.values()), {"masked": {}})["masked"]
    if len(first) < (plan.least or 0) or first.keys() - openings.keys():
        found = f"openings of {sorted(openings)}"
        raise Refusal.of(found, f"those of {sorted(first) or 'all survivors'}", "order")
    rosters = [masked[site]["roster"] for site in first if site in masked]
    whole = {site: masked[site]["sha"] for site in first if site in masked} == first
    lists = [openings[site]["masked"] for site in first]
    if not whole or any(each != first for each in lists) or any(r != rosters[0] for r in rosters):
        raise Refusal.of("masked factors other than those opened", "the ones signed for", "order")
    numbers: Any = 0
    gone = rosters[0].keys() - first.keys()
    for site in first:
        words, opened = _words(_raw(masked[site]["words"])), openings[site]
        if opened["dropped"].keys() != gone:
            found = f"masks of {site!r} with others"
            raise Refusal.of(found, f"those with {sorted(gone)}", "order")
        numbers = numbers + words - _mask(_raw(opened["own"]), len(words))
        for peer, seed in opened["dropped"].items():
            numbers = numbers - _sign(site, peer) * _mask(_raw(seed), len(words))
    half = MODULUS // 2
    integers = tuple(int((number + half) % MODULUS) - half for number in numbers)
    if max(map(abs, integers), default=0) > len(first) * plan.most * GRID:
        raise Refusal.of("a sum beyond its bound", "masks that cancel", "magnitude")
    return Aggregate(plan.prior, tuple(sorted(first)), tuple(sorted(gone)), integers)


def _integers(plan: Plan, factor: ExponentialFamily) -> Any:
    """Return the factor as multiples of ``1/GRID``, rounded to nearest, as Python's integers."""
    check_same_structure(plan.prior, factor, "the factor")
    check_finite(factor, "the factor")
    flat = np.concatenate([np.ravel(leaf) for leaf in leaves(at_rest(factor))])
    if np.abs(flat).max(initial=0.0) > plan.most:
        size = f"a natural parameter of magnitude {np.abs(flat).max():.3g}"
        raise Refusal.of(size, f"at most {plan.most:.3g}", "magnitude")
    return np.array([int(number) for number in np.rint(flat * GRID)], dtype=object)


def _tree(like: ExponentialFamily, flat: np.ndarray) -> Any:
    sizes = np.cumsum([np.size(leaf) for leaf in leaves(like)])[:-1]
    parts = iter(np.split(flat, sizes))
    return map_leaves(lambda leaf: next(parts).reshape(np.shape(leaf)), like)


def _sign(site: str, peer: str) -> int:
    return 1 if site < peer else -1


def _mask(seed: bytes, size: int) -> Any:
    """Return integers below ``MODULUS``: the key stream of ChaCha20 (rfc8439), for one use."""
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return _words(stream.update(bytes(16 * size)))


def _words(raw: bytes) -> Any:
    pairs = np.frombuffer(raw, "<u8").reshape(-1, 2).astype(object)
    return pairs[:, 0] + pairs[:, 1] * 2**64


def _read(plan: Plan, letters: Iterable[bytes]) -> Letters:
    """Return the contents of signed letters by round and site; a Refusal if two differ."""
    result: dict[str, dict[str, Any]] = {round: {} for round in get_args(Round)}
    for letter in letters:
        envelope = Envelope.from_bytes(letter)
        statement, signers = statement_of(envelope, "aggregation", plan.members)
        content, sha = dict(statement.predicate), hashlib.sha256(envelope.payload).hexdigest()
        site, round = content.pop("site", None), content.pop("round", None)
        if site not in signers or dict(statement.subjects) != {"plan": plan.digest}:
            raise Refusal.of(f"a letter of {site!r}", "one of a member, of this plan", "membership")
        try:
            sound = _is_sound(plan, round, content)
        except (TypeError, ValueError, AttributeError, Refusal):
            sound = False
        if not sound:
            raise Refusal.of(f"a letter {round!r} of {site!r} that cannot be read", "a valid one")
        if result[round].setdefault(site, {**content, "sha": sha})["sha"] != sha:
            raise Refusal.of(f"two letters {round!r} of {site!r}", "one", "replay")
    return result


def _is_sound(plan: Plan, round: Any, content: Mapping[str, Any]) -> bool:
    """Return whether a letter of a round has exactly the content that it should have."""
    is_key = lambda text: len(_raw(text)) == 32
    is_sha = lambda text: len(bytes.fromhex(text)) == 32
    of_members = lambda named: plan.members.keys() >= named.keys()
    every = lambda test, named: of_members(named) and all(map(test, named.values()))
    match round, content:
        case "keys", {"key": key, **more}:
            return is_key(key) and not more
        case "masked", {"roster": roster, "words": words, **more}:
            size = sum(np.size(leaf) for leaf in leaves(plan.prior))
            return every(is_key, roster) and len(_raw(words)) == 16 * size and not more
        case "survivors", {"masked": masked, **more}:
            return every(is_sha, masked) and not more
        case "opening", {"masked": masked, "own": own, "dropped": gone, **more}:
            return every(is_sha, masked) and is_key(own) and every(is_key, gone) and not more
    return False


def _raw(text: Any) -> bytes:
    return from_base64(text, "a text")


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
