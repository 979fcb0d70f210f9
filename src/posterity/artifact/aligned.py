"""Alignment of posteriors and ledgers: coordinates in one order by name, one vocabulary.

A word that a site has never seen has the concentration of the prior at that site, so its count is
zero. Topics over some words therefore extend exactly to more words, by extending the prior too. A
site's contribution, its expected counts, stays the same.
"""

import dataclasses
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arguments import POSITIVE
from posterity.artifact import provenance
from posterity.entries import with_factors
from posterity.errors import ParameterError, StructureError, within
from posterity.families import Distribution, Plate
from posterity.families.names import Names, in_order, names_of, parts_of, some, unfit, with_names
from posterity.ledger import Ledger

CONCENTRATION = dataclasses.replace(POSITIVE, error=ParameterError).or_none()
"""The condition on an argument ``unseen``."""


def _law(value: Any) -> Distribution | None:
    """Return a posterior, or a ledger's prior; None for any other value."""
    law = value.prior if isinstance(value, Ledger) else value
    return law if isinstance(law, Distribution) else None


def names_in(value: Any) -> dict[str, tuple[str, ...]]:
    """Return all names in a posterior or a ledger's prior, by path; empty for other values."""
    law = _law(value)
    return {} if law is None else names_of(law)


def listed(names: Names) -> tuple[str, ...]:
    """Return all distinct names in the order of their first occurrence."""
    return tuple(dict.fromkeys(name for path in sorted(names) for name in names[path]))


def labels_in(value: Any) -> dict[str, tuple[str, ...]]:
    """Return the names of the members of plates, by path."""
    law = _law(value)
    parts = () if law is None else parts_of(law)
    return {path: part.names for path, part in parts if part.is_plate and part.names}


def coordinates_in(value: Any) -> dict[str, tuple[str, ...]]:
    """Return the names of coordinates, which mean the same at every site, by path."""
    labels = labels_in(value)
    return {path: names for path, names in names_in(value).items() if path not in labels}


def named(value: Any, names: Names) -> Any:
    """Return a posterior or ledger with these names, unchecked; other values are unchanged."""
    if isinstance(value, Ledger):
        return value._under(with_names(value.prior, names))
    return with_names(value, names) if isinstance(value, Distribution) else value


def ordered(value: Any, wanted: Names, place: str, of: str) -> Any:
    """Return a posterior or ledger with its coordinates in the order ``wanted``, exactly. Raises a
    StructureError if their names differ; for topics it says how to extend the words.
    """
    if not wanted or not (own := names_in(value)):
        return value
    words = own.get("members", ()), wanted.get("members", ())
    if is_topics(value) and all(words) and set(words[0]) != set(words[1]):
        odd = some(sorted(set(words[0]) ^ set(words[1])))
        raise StructureError(
            found=f"other words at {place}: not in both are {odd}",
            expected=f"the words of {of}, in any order, as one_vocabulary puts them",
        )
    if isinstance(value, Ledger):
        return value.in_order(wanted, place, of)
    return in_order(value, wanted, place, of)


def aligned(posteriors: Mapping[str, Any]) -> tuple[dict[str, Any], Names]:
    """Return all in the order of the first that names coordinates, part by part, and these names.

    If all are topics with named words, they are put over the union of their words
    (:func:`~posterity.artifact.aligned.one_vocabulary`). Members of plates keep their order. Raises
    a StructureError that names one with other names, and the first.
    """
    laws = dict(posteriors)
    if not any(map(names_in, laws.values())):
        return laws, {}
    names = {place: coordinates_in(value) for place, value in posteriors.items()}
    if laws and all(is_topics(q) and names[place].get("members") for place, q in laws.items()):
        laws, union = one_vocabulary(laws)
        return laws, {"members": union}
    wanted = {}
    first = ""
    for place, own in names.items():  # sites may name different parts
        first = first or (place if own else "")
        wanted = {**own, **wanted}
    labels = {place: labels_in(value) for place, value in laws.items()}
    for place, own in names.items():
        if own:
            laws[place] = ordered(named(laws[place], own), wanted, repr(place), repr(first))
    return {p: named(q, {**names_in(q), **labels[p]}) for p, q in laws.items()}, wanted


def unnamed_parts(value: Any) -> frozenset[str]:
    """Return the paths of the parts of a posterior or a ledger's prior that have no names."""
    law = _law(value)
    paths = {""} if law is None else {path for path, _ in parts_of(law)}
    return frozenset(paths - set(names_in(value)))


def unnamed(posteriors: Mapping[str, Any], names: Names) -> list[str]:
    """Return a line on the posteriors without names, whose order is assumed to be the others'."""
    called = {
        place: () if set(names) & unnamed_parts(value) else listed(names)
        for place, value in posteriors.items()
    }
    return provenance.unnamed(called, listed(names))


# --- vocabularies --------------------------------------------------------------------------------


def is_topics(posterior: object) -> bool:
    """Return True for a plate of distributions over symbols (columns are words), or its ledger."""
    family = posterior.prior if isinstance(posterior, Ledger) else posterior
    return (
        isinstance(family, Distribution)
        and family.is_plate
        and family.members.emits_symbols  # pyright: ignore[reportAttributeAccessIssue]
        and not family.batch_shape
    )


def with_vocabulary(posterior: Any, wanted: Sequence[str], *, unseen: float | None = None) -> Any:
    """Return topics over other words, or the same words in another order, exactly.

    Args:
        posterior: a :class:`Plate` of :class:`Dirichlet`, or a :class:`Ledger` over one, whose
            categories have names.
        wanted: words of the result, which include all words of the posterior.
        unseen: concentration of new words; by default that of a ledger's prior, if it is symmetric.
            A posterior without ledger needs it for new words.

    Returns:
        The same over ``wanted``, under these names. A ledger's factors have no counts of new words.

    Raises:
        StructureError: if names do not fit, words would be lost, or words are new and the prior is
            not symmetric or not known.
        ParameterError: if the concentration is not positive.

    >>> from posterity.families import Dirichlet
    >>> topics = Plate(Dirichlet.from_standard([[9.0, 1.0], [1.0, 9.0]]).named(["ship", "moon"]))
    >>> with_vocabulary(topics, ["moon", "ship", "tea"], unseen=0.5).members.concentration
    array([[1. , 9. , 0.5],
           [9. , 1. , 0.5]])
    """
    words = words_of(posterior)
    why = unfit(wanted)
    if why:
        raise StructureError(
            found=f"the words that are wanted: {why}", expected="distinct words, none of them empty"
        )
    CONCENTRATION.check(unseen=unseen)
    if tuple(words) == tuple(wanted):
        return posterior
    places = {word: index for index, word in enumerate(wanted)}
    lost = [word for word in words if word not in places]
    if lost:
        raise StructureError(
            found=f"words that would be lost: {some(lost)}",
            expected="all words of the topics, as one_vocabulary does",
        )
    labels = np.array([places[word] for word in words], dtype=int)
    if not isinstance(posterior, Ledger):
        return _spread(posterior, labels, wanted, unseen)
    if len(wanted) > len(words) and unseen is None:
        prior: Any = posterior.prior
        values = np.asarray(prior.members.concentration)
        if not np.allclose(values, values.flat[0], rtol=1e-10, atol=0.0):
            raise StructureError(
                found="a prior that differs between words or topics",
                expected="one concentration of words, or that of new ones: one_vocabulary(unseen=)",
            )
        unseen = float(values.flat[0])

    def wider(factor):
        return factor.relabel(labels, len(wanted), (1,))

    prior = _spread(posterior.prior, labels, wanted, unseen)
    return Ledger(prior, with_factors(posterior.entries, lambda _, factor: wider(factor)))


def one_vocabulary(
    posteriors: Mapping[str, Any], *, unseen: float | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return all sites' topics over the union of their words, and these words.

    Args:
        posteriors: topics or ledgers over them, by site, whose categories have names.
        unseen: concentration of new words; see :func:`with_vocabulary`.

    Returns:
        The topics by site, ready to be fused, and the union. It is in the sites' order if all have
            the same words in the same order, and sorted otherwise.

    Warns: UserWarning: if a site shares no word with any other; its topics are then not matched.

    Raises:
        StructureError, ParameterError: as in :func:`with_vocabulary`, with the site.

    >>> from posterity.families import Dirichlet
    >>> a = Plate(Dirichlet.from_standard([[9.0, 1.0]]).named(["x", "y"]))
    >>> b = a.named({"members": ["y", "z"]})
    >>> both, union = one_vocabulary({"a": a, "b": b}, unseen=1.0)
    >>> union, both["b"].members.concentration
    (('x', 'y', 'z'), array([[1., 9., 1.]]))
    """
    words = _each(words_of, posteriors)
    if len(set(words.values())) == 1:
        union = next(iter(words.values()))
    else:
        union = tuple(sorted(set().union(*words.values())))
        sites = Counter(word for own in words.values() for word in own)
        strangers = [site for site, own in words.items() if all(sites[word] == 1 for word in own)]
        if strangers:
            text = f"{some(strangers)} share no word with any other site: nothing tells which of "
            text += "their topics are others'. Are words spelt, stemmed and cased alike?"
            warnings.warn(text, stacklevel=2)
    return over_words(posteriors, union, unseen), union


def over_words(
    posteriors: Mapping[str, Any], words: Sequence[str], unseen: float | None = None
) -> dict[str, Any]:
    """Put all sites' topics over these words by :func:`with_vocabulary`; errors name a site."""
    spread = functools.partial(with_vocabulary, wanted=words, unseen=unseen)
    return _each(spread, posteriors)


def _each(function: Callable[[Any], Any], posteriors: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function's value for each site's posterior; a StructureError names the site."""
    values = {}
    for site, posterior in posteriors.items():
        with within(f"site {site!r}"):
            values[site] = function(posterior)
    return values


def words_of(posterior: object) -> tuple[str, ...]:
    """Return the words of topics or of a ledger over them. Raises a StructureError if it is not
    topics, or if their words have no names.
    """
    family: Any = posterior.prior if isinstance(posterior, Ledger) else posterior
    words = family.members.names if is_topics(posterior) else ()
    if not words:
        raise StructureError(
            found=f"{posterior!r} without names of words",
            expected="topics, a Plate of Dirichlet or a Ledger over one, with a word for each "
            "category: topics.named({'members': words})",
        )
    return words


def _spread(plate: Any, labels: np.ndarray, words: Sequence[str], unseen: float | None) -> Plate:
    """Return topics over more words; the new ones have the concentration ``unseen``."""
    if len(words) > len(labels) and unseen is None:
        raise StructureError(
            found="new words for a posterior without its prior",
            expected="the ledger, or the concentration of new words: one_vocabulary(unseen=)",
        )
    # Without new words the concentration 1.0 is not used.
    members = plate.members.widened(labels, len(words), 1.0 if unseen is None else unseen)
    topics = Plate(members, plate.weights)
    return with_names(topics, {**names_of(plate), "members": tuple(words)})
