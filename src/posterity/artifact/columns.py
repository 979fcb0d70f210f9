"""Names of a posterior's coefficients, or words: kept in its file's provenance, compared first.

Who fits a regression names the columns of the inputs; a coefficient goes by its column's name.
Coordinates of a Gaussian can be put in another order exactly, so files whose columns are permuted
fit together; files with other columns do not.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from posterity.artifact.container import altered
from posterity.errors import ArtifactError, StructureError
from posterity.families import Product
from posterity.families.gaussian import AnyGaussian
from posterity.ledger import Ledger

KEY = "columns"
"""Of the provenance, under which a file holds the names: a list in JSON."""
PERSONAL = "personal"
"""The same, of those of the coefficients that each site has its own of."""
SPREAD = "log_spread"
"""The block whose coordinates go by these names: how far sites differ."""
MOST_CHARACTERS = 200
"""Of a name."""
MOST_NAMES = 10
"""Names that an error repeats."""


class Names(tuple[str, ...]):
    """Of coefficients; those of each site's own again, in the order of their spreads."""

    personal: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str], personal: Sequence[str] = ()) -> Self:
        """Both, the latter some of the former, or none."""
        made = cls(names)
        made.personal = tuple(personal)
        return made


def personal_of(names: Sequence[str]) -> tuple[str, ...]:
    """Of the coefficients that each site has its own of; none if it is not said."""
    return names.personal if isinstance(names, Names) else ()


def as_provenance(names: Sequence[str]) -> dict[str, str]:
    """What to save beside a posterior whose coefficients have these names; nothing if none.

    >>> as_provenance(Names.of(["age", "dose"], ["dose"]))
    {'columns': '["age","dose"]', 'personal': '["dose"]'}
    """
    told = {KEY: names, PERSONAL: personal_of(names)}
    return {
        key: json.dumps(list(these), separators=(",", ":")) for key, these in told.items() if these
    }


def columns_of(posterior: Any, provenance: Mapping[str, str]) -> Names:
    """The names of the coefficients of what a file holds; empty if it names none.

    Raises:
        ArtifactError: if they are no distinct names, or not as many as there are coefficients.
    """
    if KEY not in provenance:
        return Names()
    names = _listed(provenance, KEY)
    if not has_coefficients(posterior, len(names)) and not has_words(posterior, len(names)):
        family = posterior.prior if isinstance(posterior, Ledger) else posterior
        raise ArtifactError(
            found=f"{len(names)} names of columns beside {family!r}",
            expected="a name for each coefficient of a Gaussian, or word of topics",
            fix="Save it again with the names of its own columns.",
        )
    personal = _listed(provenance, PERSONAL) if PERSONAL in provenance else []
    if set(personal) - set(names) or (
        personal and not has_coefficients(posterior, len(personal), SPREAD)
    ):
        raise altered(f"personal {some(personal)}, which are no coefficients that have a spread")
    return Names.of(names, personal)


def inputs_of(provenance: Mapping[str, str], count: int) -> Names:
    """The names of the columns of a network's inputs; empty if its file names none.

    Raises:
        ArtifactError: if they are no distinct names, or not as many as there are inputs.
    """
    if KEY not in provenance:
        return Names()
    names = _listed(provenance, KEY)
    if len(names) != count:
        raise altered(f"{len(names)} names of columns beside a network of {count} inputs")
    return Names.of(names)


def _listed(provenance: Mapping[str, str], key: str) -> list[str]:
    try:
        names = json.loads(provenance[key])
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or unfit_names(names):
        raise altered(f"{key} {provenance[key][:MOST_CHARACTERS]}, which are no distinct names")
    return names


def unfit_names(names: Sequence[Any]) -> str:
    """Why these cannot be the names of columns; empty if they can."""
    if not all(isinstance(name, str) for name in names):
        return "one is no text"
    if not all(names):
        return "one is empty"
    if long := [name for name in names if len(name) > MOST_CHARACTERS]:
        return f"one has {len(long[0])} characters of {MOST_CHARACTERS}"
    twice = [name for name, count in Counter(names).items() if count > 1]
    return f"{some(twice)} come twice" if twice else ""


def gaussians(family: Any, path: str = "") -> Iterator[tuple[str, AnyGaussian]]:
    """The Gaussian, or the Gaussian blocks of a product, with where they are."""
    if isinstance(family, Product):
        for name, block in family.blocks.items():
            yield from gaussians(block, f"{path}/{name}".removeprefix("/"))
    elif isinstance(family, AnyGaussian) and not family.batch_shape:
        yield path, family


def has_coefficients(posterior: Any, count: int, block: str = "") -> bool:
    """Whether a posterior or ledger has a Gaussian of so many dimensions, or such a block."""
    family = posterior.prior if isinstance(posterior, Ledger) else posterior
    return any(q.own_size == count and block in ("", path) for path, q in gaussians(family))


def has_words(posterior: Any, count: int) -> bool:
    """Whether a posterior or ledger has topics over so many words."""
    from posterity.artifact.vocabulary import is_topics, vocabulary_size

    return is_topics(posterior) and vocabulary_size(posterior) == count


# --- in one order ------------------------------------------------------------------------------


def order(names: Sequence[str], wanted: Sequence[str], place: str, of: str) -> list[int]:
    """Where among the ``names``, found at a ``place``, those that are ``wanted`` stand.

    Raises:
        StructureError: if they are other names; it says which are missing and which unknown.
    """
    position = {name: index for index, name in enumerate(names)}
    missing = [name for name in wanted if name not in position]
    known = set(wanted)
    unknown = [name for name in names if name not in known]
    if missing or unknown:
        told = ((missing, "missing"), (unknown, "unknown"))
        wrong = ", ".join(f"{some(these)} {how}" for these, how in told if these)
        raise StructureError(
            found=f"columns that do not fit at {place}: {wrong}",
            expected=f"the columns of {of}, in any order: {some(wanted)}",
            fix="Give what means the same one name everywhere, and leave out what others lack.",
        )
    return [position[name] for name in wanted]


def in_order(
    posterior: Any, names: Sequence[str], wanted: Sequence[str], place: str, of: str
) -> Any:
    """The posterior, or ledger, with its coefficients in the order that is ``wanted``, exactly.

    So are the spreads of those that each site has its own of, which have to be the same.
    Where either has no names there is nothing to compare. Errors as of :func:`order`.

    >>> from posterity.families import Gaussian
    >>> q = Gaussian.from_standard([1.0, 2.0], [[1.0, 0.5], [0.5, 4.0]])
    >>> in_order(q, ["a", "b"], ["b", "a"], "here", "there").mean
    array([2., 1.])
    """
    if not names or not wanted:
        return posterior
    if has_words(posterior, len(names)) and set(names) != set(wanted):
        raise StructureError(
            found=f"other words at {place}: not in both are "
            f"{some(sorted(set(names) ^ set(wanted)))}",
            expected=f"the words of {of}, in any order",
            fix="Put all over one vocabulary first: posterity.artifact.one_vocabulary.",
        )
    places = order(names, wanted, place, of)
    apart = "that differ between sites"
    own = order(
        personal_of(names), personal_of(wanted), f"{place}, of those {apart}", f"{of} {apart}"
    )
    if places == sorted(places) and own == sorted(own):
        return posterior
    labels, spread = np.argsort(places), np.argsort(own)  # where each coefficient goes
    if has_words(posterior, len(names)):
        from posterity.artifact.vocabulary import with_vocabulary

        return with_vocabulary(posterior, names, wanted)
    moved = lambda family: _relabelled(family, labels, spread)
    if not isinstance(posterior, Ledger):
        return moved(posterior)
    entries = {
        site: entry if entry.factor is None else entry._replace(factor=moved(entry.factor))
        for site, entry in posterior.entries.items()
    }
    return Ledger(moved(posterior.prior), entries)


def aligned(
    posteriors: Mapping[str, Any], columns: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any], Names]:
    """All in the order of the first that names its coefficients, and these names.

    Topics are all put over the union of their words
    (:func:`~posterity.artifact.vocabulary.one_vocabulary`) if all name them.

    Raises:
        StructureError: that names one with other columns, and the first.
    """
    named = all(columns[place] for place in posteriors)
    if posteriors and named and all(has_words(q, len(columns[p])) for p, q in posteriors.items()):
        from posterity.artifact.vocabulary import one_vocabulary

        both, union = one_vocabulary(posteriors, columns)
        return both, Names.of(union)
    first = next((place for place in columns if columns[place]), "")
    wanted = Names.of(columns.get(first, ()), personal_of(columns.get(first, ())))
    found = {
        place: in_order(q, columns[place], wanted, repr(place), repr(first))
        for place, q in posteriors.items()
    }
    return found, wanted


def unnamed(columns: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """A line on those that name no columns, whose order had to be taken for that of the others."""
    bare = [place for place in columns if not columns[place]]
    if not bare or len(names) < 2:
        return []
    return [f"no names of columns at {some(bare)}: theirs are taken to be {some(names)}"]


def _relabelled(family: Any, labels: np.ndarray, spread: np.ndarray, block: str = "") -> Any:
    if isinstance(family, Product):
        parts = zip(family.blocks, family.parts(), strict=True)
        return family.rebuild([_relabelled(part, labels, spread, name) for name, part in parts])
    labels = spread if block == SPREAD and len(spread) else labels
    coefficients = has_coefficients(family, len(labels))
    return family.relabel(labels, len(labels)) if coefficients else family


def some(names: Sequence[str]) -> str:
    """The first few names, as an error repeats them."""
    more = len(names) - MOST_NAMES
    return f"{list(names[:MOST_NAMES])}" + (f" and {more} more" if more > 0 else "")
