"""Entries of ledgers: versioned factors of sites, with their checks and the merge of two copies."""

import operator
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.leaves import frozen
from posterity.arrays.stacks import blocks, columns, rows
from posterity.arrays.typing import Shape
from posterity.errors import LedgerError, PosterityError
from posterity.families import ExponentialFamily, at_rest
from posterity.families.checks import check_finite, check_same_structure
from posterity.families.names import some

SAME_SHAPE = str.maketrans(
    # Cyrillic, small and capital; Greek, small and capital
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406\u0408\u0405"
    "\u03bf\u03bd\u03c1\u03b9\u03ba\u03c5"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7",
    "aeopcyxijsABEKMHOPCTXIJSovpikuABEZHIKMNOPTYX",
)
"""Translation of Cyrillic and Greek letters to the Latin letters of the same shape."""
SURROGATE = re.compile("[\ud800-\udfff]")
"""Surrogate code points, which UTF-8 cannot encode."""


class Entry(NamedTuple):
    """The latest version of one site: a factor, or ``None`` (a tombstone) if it was forgotten.

    Entries of one site are ordered by epoch. Within an epoch, a tombstone ranks above every
    factor, and a higher sequence number above a lower one. A forgotten site can therefore return
    only in a new epoch, and not by a replayed or delayed message.

    An *independent* factor was computed from the site's own data only, as conjugate factors and
    separately trained posteriors are. A factor that was fitted jointly with others is not.
    Forgetting a site is exact if the remaining factors are independent.
    """

    epoch: int
    sequence: int
    factor: ExponentialFamily | None
    independent: bool = False

    @property
    def rank(self) -> tuple[int, bool, int]:
        """The key by which entries of one site are compared; a merge keeps the higher one."""
        return (self.epoch, self.factor is None, self.sequence)


def with_factors(
    entries: Mapping[str, Entry], change: Callable[[str, Any], Any]
) -> dict[str, Entry]:
    """Return the entries with ``change(site, factor)`` in place of each factor."""
    changed = dict(entries)
    for site, entry in entries.items():
        factor = None if entry.factor is None else change(site, entry.factor)
        if factor is not entry.factor:
            changed[site] = entry._replace(factor=factor)
    return changed


def dependent(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries with none marked as independent, as where one estimate from the data of
    several sites, such as a noise variance, entered every factor.
    """
    return {site: entry._replace(independent=False) for site, entry in entries.items()}


def merge_entries(mine: Mapping[str, Entry], theirs: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return each site's highest entry, sorted by name. Raises LedgerError if one version of a site
    has two contents.
    """
    merged = dict(mine)
    for site, entry in theirs.items():
        merged[site] = _join(site, merged[site], entry) if site in merged else entry
    return {site: merged[site] for site in sorted(merged)}


def _join(site: str, mine: Entry, theirs: Entry) -> Entry:
    if mine.rank == theirs.rank and mine != theirs:
        raise LedgerError(
            found=f"two different factors of site {site!r} at epoch {mine.epoch}, "
            f"sequence {mine.sequence}",
            expected="one content for one version",
        )
    return max(mine, theirs, key=lambda entry: entry.rank)


def by_site(entries: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """Return the entries sorted by name, read-only."""
    return MappingProxyType({site: entries[site] for site in sorted(entries)})


def check_names(names: Iterable[str], held: Iterable[str] = ()) -> None:
    """Raise a LedgerError if a name is no text, is invisible, or looks like one of the others or of
    ``held``.

    Names look alike if they share one of their :func:`looks`.
    """
    seen = {look: name for name in held for look in looks(name)}
    for name in names:
        text = isinstance(name, str) and all(looks(name))
        if not text or (not name.isascii() and SURROGATE.search(name)):
            raise LedgerError(
                found=f"a site called {name!a}",
                expected="a name with a character that can be seen, and none that UTF-8 lacks",
            )
        for look in looks(name):
            other = seen.setdefault(look, name)
            if other != name:
                raise LedgerError(
                    found=f"sites {other!a} and {name!a}, whose names look alike",
                    expected="names that cannot be mistaken for each other",
                )


def looks(name: str) -> frozenset[str]:
    """Return the appearances of a name, of which names that look alike share one.

    In each, compatibility characters and spaces are normalised (NFKC), capitals are small, and
    Cyrillic and Greek letters are replaced by the Latin ones of the same shape: in one before
    capitals are made small, in the other after, since a letter may look like a Latin one only as a
    capital.

    >>> looks("north ") == looks("n\u043erth") == looks("North")
    True
    """
    if name.isascii():
        return frozenset([" ".join(name.lower().split())])
    name = unicodedata.normalize("NFKC", name)
    name = " ".join("".join(c for c in name if unicodedata.category(c) != "Cf").split())
    shaped = name.translate(SAME_SHAPE)
    return frozenset([shaped.lower(), name.lower().translate(SAME_SHAPE)])


def checked(site: str, entry: Entry) -> Entry:
    """Return the entry with int version and bool flag; raise LedgerError if they are not so."""
    epoch, sequence, factor, independent = entry
    flag = isinstance(independent, bool | np.bool_)
    if not (flag and _is_count(epoch) and _is_count(sequence) and isinstance(site, str)):
        raise LedgerError(
            found=f"epoch {epoch!r}, sequence {sequence!r} and independent={independent!r} of "
            f"site {site!r}",
            expected="a site by name, whole numbers from 0 to 2**63 - 1, and True or False",
        )
    return Entry(int(epoch), int(sequence), factor, bool(independent))


def among(sites: Collection[str], independent: Any) -> frozenset[str]:
    """Return the sites whose factors are independent: all, none, or a collection of these. Raises a
    LedgerError for anything else.
    """
    if isinstance(independent, bool | np.bool_):
        return frozenset(sites if independent else ())
    alone = frozenset(independent if isinstance(independent, Collection) else (independent,))
    if not alone.issubset(sites):
        raise LedgerError(
            found=f"independent={independent!r} for {some(list(sites))}",
            expected="True, False, or a collection of these sites",
        )
    return alone


def _is_count(value: Any) -> bool:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and 0 <= int(value) < 2**63


def all_at_rest(prior: ExponentialFamily, factors: Mapping[str, Any]) -> list[Any]:
    """Return the factors at rest, converted together. Raises ParameterError or StructureError for
    the first factor that is not finite, or not like the prior.
    """
    try:
        own = columns(prior, [*factors.values()])
        pairs = zip(columns(prior, [prior]), own, strict=True)
        rested = [_column_at_rest(like.shape, column) for (like,), column in pairs]
        same = all(map(operator.is_, own, rested))
        return [*factors.values()] if same else rows(prior, rested)
    except ValueError:
        for site, factor in factors.items():
            check_same_structure(prior, factor, f"the factor of site {site!r}")
            check_finite(factor, f"the factor of site {site!r}")
        return [at_rest(factor) for factor in factors.values()]


def _column_at_rest(shape: Shape, column: Sequence[Any]) -> Sequence[Any]:
    """Return one leaf of all factors at rest, itself if all already are. Raises ValueError unless
    they are finite numbers of this shape.
    """
    rested = []
    same = True
    for part, block in blocks(column):
        if block.shape[1:] != shape or block.dtype.kind != "f" or not np.isfinite(block).all():
            raise ValueError("a leaf that is not finite, or of another shape")
        signed = np.signbit(block[block == 0]).any()
        rested_already = (
            type(leaf) is np.ndarray and leaf.dtype == np.float64 and not leaf.flags.writeable
            for leaf in part
        )
        if not signed and all(rested_already):
            rested += part
        else:  # adding 0 turns -0 into 0
            same = False
            block = block.astype(np.float64) + 0.0
            rested += [frozen(block[index, ...].copy()) for index in range(len(block))]
    return column if same else rested


def stale(site: str, entry: Entry, held: Entry) -> PosterityError:
    """Return the error for an entry that does not rank above the ledger's current one."""
    state = "forgotten" if held.factor is None else "held"
    return LedgerError(
        found=f"epoch {entry.epoch}, sequence {entry.sequence} of site {site!r}",
        expected=f"a version above the one {state}: epoch {held.epoch}, sequence {held.sequence}",
        fix=f"To let the site rejoin, pass epoch={held.epoch + 1}."
        if held.factor is None
        else "Drop the message if it is a replay; else raise the sequence number.",
    )
