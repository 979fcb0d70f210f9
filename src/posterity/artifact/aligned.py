"""Posteriors and ledgers of several places, their coordinates in one order by name."""

from collections.abc import Mapping
from typing import Any

from posterity.artifact import provenance
from posterity.artifact.vocabulary import is_topics, one_vocabulary
from posterity.errors import StructureError
from posterity.families import Distribution
from posterity.families.names import Names, in_order, joined, names_of, some, with_names
from posterity.ledger import Ledger


def _law(value: Any) -> Distribution | None:
    """A posterior, or a ledger's prior; None for any other value."""
    law = value.prior if isinstance(value, Ledger) else value
    return law if isinstance(law, Distribution) else None


def names_in(value: Any) -> dict[str, tuple[str, ...]]:
    """All names in a posterior, or of a ledger's prior, by path; of other values none."""
    law = _law(value)
    return {} if law is None else names_of(law)


def listed(names: Names) -> tuple[str, ...]:
    """All names, each once, in the order in which they first come."""
    return tuple(dict.fromkeys(name for path in sorted(names) for name in names[path]))


def labels_in(value: Any, path: str = "") -> dict[str, tuple[str, ...]]:
    """The names of the members of plates, by path."""
    if (law := _law(value)) is None:
        return {}
    labels = {path: law.names} if law.is_plate and law.names else {}
    for name, part in law.named_parts().items():
        labels |= labels_in(part, joined(path, name))
    return labels


def coordinates_in(value: Any) -> dict[str, tuple[str, ...]]:
    """The other names: of coordinates, which mean the same at every site."""
    labels = labels_in(value)
    return {path: names for path, names in names_in(value).items() if path not in labels}


def named(value: Any, names: Names) -> Any:
    """A posterior or ledger under these names; other values as they are. Nothing is checked."""
    if isinstance(value, Ledger):
        return value._under(with_names(value.prior, names))
    return with_names(value, names) if isinstance(value, Distribution) else value


def ordered(value: Any, wanted: Names, place: str, of: str) -> Any:
    """A posterior or ledger with its coordinates in the order that is ``wanted``, exactly; a
    StructureError if they have other names; topics over other words say what to do.
    """
    if not wanted or not (own := names_in(value)):
        return value
    words = own.get("members", ()), wanted.get("members", ())
    if is_topics(value) and all(words) and set(words[0]) != set(words[1]):
        odd = some(sorted(set(words[0]) ^ set(words[1])))
        raise StructureError(
            found=f"other words at {place}: not in both are {odd}",
            expected=f"the words of {of}, in any order",
            fix="Put all over one vocabulary first: posterity.artifact.one_vocabulary.",
        )
    if isinstance(value, Ledger):
        return value.in_order(wanted, place, of)
    return in_order(value, wanted, place, of)


def aligned(posteriors: Mapping[str, Any]) -> tuple[dict[str, Any], Names]:
    """All in the order of the first that names coordinates, part by part, and these names.

    Topics are all put over the union of their words
    (:func:`~posterity.artifact.vocabulary.one_vocabulary`) if all name them. Members of plates stay
    in the order that they have.

    Raises:
        StructureError: that names one with other names, and the first.
    """
    laws = dict(posteriors)
    if not any(map(names_in, laws.values())):
        return laws, {}
    names = {place: coordinates_in(value) for place, value in posteriors.items()}
    if laws and all(is_topics(q) and names[place].get("members") for place, q in laws.items()):
        laws, union = one_vocabulary(laws)
        return laws, {"members": union}
    wanted, first = {}, ""
    for place, own in names.items():  # part by part: a site may name some, another site others
        first = first or (place if own else "")
        wanted = {**own, **wanted}
    labels = {place: labels_in(value) for place, value in laws.items()}
    for place, own in names.items():
        if own:
            laws[place] = ordered(named(laws[place], own), wanted, repr(place), repr(first))
    return {p: named(q, {**names_in(q), **labels[p]}) for p, q in laws.items()}, wanted


def unnamed_parts(value: Any) -> frozenset[str]:
    """The paths of the parts of a posterior, or of a ledger's prior, that have no names."""

    def paths(law: Any, path: str) -> set[str]:
        parts = law.named_parts().items() if isinstance(law, Distribution) else ()
        return {path}.union(*(paths(part, joined(path, name)) for name, part in parts))

    return frozenset(paths(_law(value), "") - set(names_in(value)))


def unnamed(posteriors: Mapping[str, Any], names: Names) -> list[str]:
    """A line on those that name no coordinates, whose order had to be taken for the others'."""
    called = {
        place: () if set(names) & unnamed_parts(value) else listed(names)
        for place, value in posteriors.items()
    }
    return provenance.unnamed(called, listed(names))
