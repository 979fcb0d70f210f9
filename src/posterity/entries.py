"""Entries of ledgers: versions of sites' factors, checked, at rest, and how two copies join."""

import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.leaves import frozen
from posterity.arrays.stacks import blocks, columns, rows
from posterity.checks import check_finite, check_same_structure
from posterity.errors import LedgerError, PosterityError
from posterity.families import ExponentialFamily, at_rest

SAME_SHAPE = str.maketrans(
    # Cyrillic, small and capital; Greek, small and capital
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406\u0408\u0405"
    "\u03bf\u03bd\u03c1\u03b9\u03ba\u03c5"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7",
    "aeopcyxijsABEKMHOPCTXIJSovpikuABEZHIKMNOPTYX",
)
"""Cyrillic and Greek letters, and the Latin ones of the same shape."""
SURROGATE = re.compile("[\ud800-\udfff]")
"""Halves of characters, which no file can hold."""


class Entry(NamedTuple):
    """The last version of one site: a factor, or ``None`` if it was forgotten.

    Entries of one site are ordered by epoch; within an epoch forgetting beats every factor,
    and a later sequence number beats an earlier one. A forgotten site therefore comes back
    only in a new epoch, never by a message that was replayed or overtaken.

    An *independent* factor was found from the site's own data alone, as conjugate factors and
    posteriors trained apart are; one that was fitted in the company of others' factors was not.
    Forgetting a site is exact if the factors that stay are independent.
    """

    epoch: int
    sequence: int
    factor: ExponentialFamily | None
    independent: bool = False

    @property
    def rank(self) -> tuple[int, bool, int]:
        """The rank by which one of two entries of a site wins: the higher."""
        return (self.epoch, self.factor is None, self.sequence)


def with_factors(
    entries: Mapping[str, Entry], change: Callable[[str, Any], Any]
) -> dict[str, Entry]:
    """The same versions with other factors: ``change(site, factor)``, where there is one."""
    changed = dict(entries)
    for site, entry in entries.items():
        factor = None if entry.factor is None else change(site, entry.factor)
        if factor is not entry.factor:
            changed[site] = entry._replace(factor=factor)
    return changed


def merge_entries(mine: Mapping[str, Entry], theirs: Mapping[str, Entry]) -> dict[str, Entry]:
    """Each site's highest entry, by sorted name; a LedgerError if one version of a site has two
    contents.
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
            fix="Find which copy is genuine; the site must raise its sequence with each change.",
        )
    return max(mine, theirs, key=lambda entry: entry.rank)


def by_site(entries: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """The entries sorted by name, read-only."""
    return MappingProxyType({site: entries[site] for site in sorted(entries)})


def check_names(names: Iterable[str], held: Iterable[str] = ()) -> None:
    """Raise a LedgerError if a name cannot be seen, or looks like another, or one that is ``held``.

    Names look alike if they are equal once compatibility characters and spaces are normalised
    (NFKC) and Cyrillic and Greek letters are replaced by the Latin ones of the same shape.
    """
    seen = {appearance(name): name for name in held}
    for name in names:
        if not appearance(name) or (not name.isascii() and SURROGATE.search(name)):
            raise LedgerError(
                found=f"a site called {name!a}",
                expected="a name with a character that can be seen, and none that UTF-8 lacks",
                fix="Give the site a name, as by posterity fit --site NAME.",
            )
        if (other := seen.setdefault(appearance(name), name)) != name:
            raise LedgerError(
                found=f"sites {other!a} and {name!a}, whose names look alike",
                expected="names that cannot be mistaken for each other",
                fix="Rename one of them, or give both the same name if they are one site.",
            )


def appearance(name: str) -> str:
    """The appearance of a name: equal for names that can be mistaken for each other.

    >>> appearance("north ") == appearance("n\u043erth") != appearance("North")
    True
    """
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name).translate(SAME_SHAPE)
        name = "".join(c for c in name if unicodedata.category(c) != "Cf")
    return " ".join(name.split())


def checked(site: str, entry: Entry) -> Entry:
    """The entry, its version whole numbers and its flag true or false."""
    epoch, sequence, factor, independent = entry
    flag = isinstance(independent, bool | np.bool_)
    if not (flag and _is_count(epoch) and _is_count(sequence) and isinstance(site, str)):
        raise LedgerError(
            found=f"epoch {epoch!r}, sequence {sequence!r} and independent={independent!r} of "
            f"site {site!r}",
            expected="a site by name, whole numbers from 0 to 2**63 - 1, and True or False",
            fix="Leave them out to count up from what the ledger holds.",
        )
    return Entry(int(epoch), int(sequence), factor, bool(independent))


def _is_count(value: Any) -> bool:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and 0 <= int(value) < 2**63


def all_at_rest(prior: ExponentialFamily, factors: Mapping[str, Any]) -> list[Any]:
    """The factors at rest, all at once where they are as they should be; a ParameterError or
    StructureError as of the first that is not finite, or not like the prior.
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


def _column_at_rest(shape: tuple[int, ...], column: Sequence[Any]) -> Sequence[Any]:
    """One leaf of all factors, itself where all are at rest; ValueError unless they are finite
    numbers of this shape.
    """
    rested, same = [], True
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
    """The error of an entry that does not rank above the one held."""
    state = "forgotten" if held.factor is None else "held"
    return LedgerError(
        found=f"epoch {entry.epoch}, sequence {entry.sequence} of site {site!r}",
        expected=f"a version above the one {state}: epoch {held.epoch}, sequence {held.sequence}",
        fix=f"To let the site rejoin, pass epoch={held.epoch + 1}."
        if held.factor is None
        else "Drop the message if it is a replay; else raise the sequence number.",
    )
