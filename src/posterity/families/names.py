"""Names of coordinates, by which laws are aligned, and the one-line description of a law.

Names are not parameters and not leaves of the pytree, so a transformation of JAX returns a law
without names; arithmetic, indexing, files and the verbs keep them. Each law has the names of its
own coordinates: a Gaussian of its entries, a Dirichlet of its categories, and a :class:`Plate` of
its members, while the coordinates of each member have the names of ``plate.members``. A law that
consists of parts has no names besides theirs.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, TypeVar

import numpy as np

from posterity.arrays.tree import LABEL, field_names, labelled
from posterity.arrays.typing import PyTree, Shape
from posterity.errors import StructureError
from posterity.runtime.text import SHOWN, cut, listed, short_name

Law = TypeVar("Law", bound=Any)
Names = Mapping[str, tuple[str, ...]]
"""Names of coordinates by the path of the part; ``""`` is the path of the law itself."""


def joined(path: str, name: str) -> str:
    """Return the path of a part; slashes and empty names are escaped."""
    name = name.replace("%", "%25").replace("/", "%2F") or "%"
    return f"{path}/{name}" if path else name


def parts_of(law: PyTree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the law itself and all its parts, each with its path."""
    yield path, law
    for name, part in law.named_parts().items():
        yield from parts_of(part, joined(path, name))


def names_of(law: PyTree, path: str = "") -> dict[str, tuple[str, ...]]:
    """Return all names in a law by path; an empty dictionary if it has none.

    >>> from posterity.families import Gamma, Gaussian, Product
    >>> effect = Gaussian.from_standard([1.0, 2.0], [[1.0, 0.0], [0.0, 1.0]])
    >>> names_of(Product(effect=effect.named(["age", "dose"]), noise=Gamma(1.0, 1.0)))
    {'effect': ('age', 'dose')}
    """
    parts = ((place, part.__dict__.get(LABEL, ())) for place, part in parts_of(law, path))
    return {place: own for place, own in parts if own}


def has_names(law: PyTree) -> bool:
    """Return whether the law or one of its parts has names."""
    return LABEL in law.__dict__ or any(map(has_names, law.named_parts().values()))


def with_names(law: Law, names: Names, path: str = "") -> Law:
    """Return the law and its parts under these names, unchecked."""
    parts = law.named_parts().items()
    inner = {name: with_names(part, names, joined(path, name)) for name, part in parts}
    return _named(rebuilt(law, inner), names.get(path, ()))


def checked_tree(law: PyTree, names: Any, path: str = "") -> dict[str, tuple[str, ...]]:
    """Return names by path, from a list or a tree of dictionaries by part or path.

    Raises:
        StructureError: if a part does not exist, or names do not fit its coordinates.
    """
    result = {}
    parts = law.named_parts()
    if not isinstance(names, Mapping) and law.named_size is None and len(parts) == 1:
        names = {next(iter(parts)): names}  # as a mixture's are those of its components
    if not isinstance(names, Mapping):
        return {path: checked(names, law.named_size, law)}
    for key, own in names.items():
        if key == "":
            result[path] = checked(own, law.named_size, law)
            continue
        head = key
        rest = ""
        if key not in parts and isinstance(key, str):  # names of blocks may hold a slash
            head, _, rest = key.partition("/")
        if head not in parts:
            raise StructureError(
                found=f"names for {key!r} of {law!r}",
                expected=f"names by part, of {list(parts)}" if parts else "a list of names",
            )
        result |= checked_tree(parts[head], {rest: own} if rest else own, joined(path, head))
    return result


def rebuilt(law: Law, parts: Mapping[str, Any]) -> Law:
    """Return the law with other parts of the same shapes, unchecked; itself if none changes."""
    old = law.named_parts()
    if all(old[name] is part for name, part in parts.items()):
        return law
    children = [
        {**child, **parts} if isinstance(child, Mapping) else parts.get(name, child)
        for name, child in zip(field_names(type(law)), law.children(), strict=True)
    ]
    return labelled(type(law).of_children(children, law.kept()), law.__dict__.get(LABEL, ()))


def _named(law: Law, names: tuple[str, ...]) -> Law:
    if law.__dict__.get(LABEL, ()) == names:
        return law
    return labelled(type(law).of_children(law.children(), law.kept()), names)


def unfit(names: Any, most: int = 200) -> str:
    """Return why these cannot be names, of at ``most`` so many characters; an empty text if they
    can.
    """
    if isinstance(names, str | Set) or not isinstance(names, Iterable):
        return f"{names!r} is no list of names"
    names = list(names)
    if not all(isinstance(name, str) for name in names):
        return f"one is no text: {next(n for n in names if not isinstance(n, str))!r}"
    if not all(names):
        return "one is empty"
    long = [name for name in names if len(name) > most]
    if long:
        return f"one has {len(long[0])} characters of {most}"
    twice = [name for name, count in Counter(names).items() if count > 1]
    return f"{some(twice)} come twice" if twice else ""


def checked(names: Any, size: int | None, law: PyTree) -> tuple[str, ...]:
    """Return the names as a tuple.

    Raises:
        StructureError: if they are not as many distinct texts as the law has coordinates.
    """
    names = list(names) if isinstance(names, Iterator) else names
    wrong = unfit(names)
    if wrong or len(names) != size:
        found = f"names for {law!r}: {wrong or f'{len(names)} names'}"
        expected = f"{size} different texts, one a coordinate"
        if size is None:
            expected = f"names by part, of {list(law.named_parts())}"
        raise StructureError(found=found, expected=expected)
    return tuple(map(str, names))


def entry_names(name: str, shape: Shape, words: Sequence[Any] = ()) -> tuple[str, ...]:
    """Return a name for each entry of an array, such as ``beta[0]`` or ``m[1,2]``, in order.

    ``words`` are labels along each axis, if there are any: ``beta[age]``.

    >>> entry_names("m", (2, 1))
    ('m[0,0]', 'm[1,0]')
    """
    if not shape:
        return (name,)
    axes = [list(map(str, own)) for own in words] or [list(map(str, range(n))) for n in shape]
    return tuple(f"{name}[{','.join(place)}]" for place in itertools.product(*axes))


# --- in one order --------------------------------------------------------------------------------


def order(names: Sequence[str], wanted: Sequence[str], place: str, of: str) -> list[int]:
    """Return positions of the ``wanted`` names among the ``names`` of a ``place``.

    Raises:
        StructureError: if the names differ; it lists those that are missing and unknown.
    """
    position = {name: index for index, name in enumerate(names)}
    known = set(wanted)
    missing = [name for name in wanted if name not in position]
    unknown = [name for name in names if name not in known]
    if missing or unknown:
        shown = ((missing, "missing"), (unknown, "unknown"))
        wrong = ", ".join(f"{some(these)} {how}" for these, how in shown if these)
        raise StructureError(
            found=f"names that do not fit at {place}: {wrong}",
            expected=f"those of {of}, in any order: {some(wanted)}",
        )
    return [position[name] for name in wanted]


def in_order(law: Law, wanted: Names, place: str, of: str, path: str = "") -> Law:
    """Return the law with the coordinates of all parts in the ``wanted`` order, exactly.

    Parts without names, or for which no names are wanted, keep their order and take the wanted
    names.

    Raises:
        StructureError: for other names, or where a law cannot be put in another order.

    >>> from posterity.families import Gaussian
    >>> q = Gaussian.from_standard([1.0, 2.0], [[1.0, 0.5], [0.5, 4.0]]).named(["a", "b"])
    >>> in_order(q, {"": ("b", "a")}, "here", "there").mean
    array([2., 1.])
    """
    every = law.named_parts().items()
    parts = {n: in_order(part, wanted, place, of, joined(path, n)) for n, part in every}
    moved = rebuilt(law, parts)
    own = law.__dict__.get(LABEL, ())
    asked = wanted.get(path, ())
    if own and asked and own != asked:
        where = f"{place}, {path}" if path else place
        moved = moved.reordered(np.array(order(own, asked, where, of), dtype=int))
    return _named(moved, asked or own)


def not_reordered(law: PyTree, places: Any) -> StructureError:
    """Return the error for a law whose coordinates cannot be permuted."""
    return StructureError(
        found=f"coordinates of {law!r} in another order ({list(map(int, places))})",
        expected="those of a law whose coordinates can change places",
    )


def alike(first: Any, second: Any) -> tuple[Any, Any]:
    """Return both laws with the names of either, the second in the order of the first.

    Raises:
        StructureError: if their names differ.
    """
    mine = names_of(first)
    theirs = names_of(second)
    if mine == theirs:
        return first, second
    wanted = {**theirs, **mine}
    place = f"{second!r}"
    of = f"{first!r}"
    return in_order(first, wanted, of, place), in_order(second, wanted, place, of)


def some(names: Sequence[str], most: int = 10) -> str:
    """Return the first few names, for an error."""
    more = len(names) - most
    return f"{list(names[:most])}" + (f" and {more} more" if more > 0 else "")


# --- what a law is, in one line -------------------------------------------------------------------


def described(law: PyTree) -> str:
    """Return one line of fewer than 200 characters that describes a law; never raise an error."""
    try:
        with np.errstate(all="ignore"):
            return cut(law._described(True))
    except Exception:  # of tracers, of what is half built: a description is no place to fail
        return cut(family_of(law))


def family_of(law: PyTree) -> str:
    """Describe a law without its numbers; never raise an error."""
    try:
        return law._described(numbers=False)
    except Exception:
        return type(law).__name__


def is_quick(numbers: int, size: int, *, most: int = 10_000, largest: int = 64) -> bool:
    """Return whether it takes no time that is felt to read so many ``numbers``, at ``most`` 10,000,
    and to invert a matrix of this ``size``, or to add so many sites: the ``largest`` is of 64.
    """
    return numbers <= most and size <= largest


def posterior_line(prior: Any, sites: Collection[str], total: Callable[[], Any]) -> str:
    """Describe the posterior of some sites, or its family alone if the sum would take long."""
    if not is_quick(prior.dimension, len(sites)):
        return family_of(prior)
    return described(with_names(total(), names_of(prior)))


def described_leaf(law: PyTree, numbers: bool) -> str:
    """Describe a law without parts: its dimension, its batch and its first numbers."""
    kinds = getattr(law, "coordinates", None)  # one number has no axis
    sized = kinds is None or any(coordinate.axes for coordinate in kinds.values())
    own = [f"d={law.named_size}"] if sized and law.named_size is not None else []
    own += batch(law)
    if numbers and not law.batch_shape:
        own += _numbers(law)
    return called(law, own)


def called(law: PyTree, own: list[str]) -> str:
    """Return the name of a law's class, with a description in parentheses if there is one."""
    return f"{type(law).__name__}({', '.join(own)})" if own else type(law).__name__


def batch(law: PyTree) -> list[str]:
    """Return the batch shape as text in a list, which is empty if there is none."""
    return [f"batch={tuple(law.batch_shape)}"] if law.batch_shape else []


def copies(law: PyTree, members: PyTree) -> str:
    """Describe the number of members and their family, without their own batch."""
    names = law.__dict__.get(LABEL, ())
    kind = members[(0,) * len(members.batch_shape)]._described(numbers=False)
    return f"{law.size} x {kind}" + (f" {listed(names)}" if names else "")


def few(values: np.ndarray) -> str:
    """Return the first few of some numbers as text."""
    more = " ..." if len(values) > SHOWN else ""
    return " ".join(f"{value:.2g}" for value in values[:SHOWN]) + more


def _numbers(law: PyTree) -> list[str]:
    """Return means and standard deviations of the first few coordinates, if they are cheap."""
    moments = law._first_moments()
    if moments is None:
        return []
    mean, sd, size = moments
    if not np.isfinite(mean[:SHOWN]).all() or not (sd[:SHOWN] >= 0).all():
        return ["improper"] if np.isnan(sd[:SHOWN]).any() else []
    names = law.__dict__.get(LABEL, ())
    labels = law.labels(names) if names else ()
    shown = [f"{m:.3g} ± {s:.2g}" for m, s in zip(mean[:SHOWN], sd[:SHOWN], strict=True)]
    shown = [f"{short_name(n)}={line}" for n, line in zip(labels, shown, strict=False)] or shown
    return [*shown, f"{size - SHOWN} more"] if size > SHOWN else shown
