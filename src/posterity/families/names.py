"""Names of coordinates: labels that travel with a law, by which laws are put in one order.

A name is no parameter. It is no part of the tree that JAX knows, so a transformation of JAX gives
a law without names; arithmetic, indexing, files and the verbs keep them. Each law has the names of
its own coordinates: a Gaussian of its entries, a Dirichlet of its categories, a :class:`Plate` of
its members, whose own coordinates go by the names of ``plate.members``. What is made of parts has
none beside theirs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

import numpy as np

from posterity.arrays.tree import LABEL, field_names, labelled
from posterity.arrays.typing import PyTree
from posterity.errors import StructureError

Law = TypeVar("Law", bound=Any)
Names = Mapping[str, tuple[str, ...]]
"""By path of the part (``""`` is the law itself), the names of its coordinates."""

MOST_CHARACTERS = 200
"""Characters of a name, at most."""
MOST_NAMES = 10
"""Names that an error repeats."""


def parts_of(law: PyTree) -> dict[str, Any]:
    """The parts of a law whose coordinates have names of their own: see ``named_parts``."""
    return law.named_parts()


def joined(path: str, name: str) -> str:
    """The path of a part, in whose name a slash is no level, nor is an empty one none."""
    name = name.replace("%", "%25").replace("/", "%2F") or "%"
    return f"{path}/{name}" if path else name


def names_of(law: PyTree, path: str = "") -> dict[str, tuple[str, ...]]:
    """All names in a law, by path; empty if it has none.

    >>> from posterity.families import Gamma, Gaussian, Product
    >>> effect = Gaussian.from_standard([1.0, 2.0], [[1.0, 0.0], [0.0, 1.0]])
    >>> names_of(Product(effect=effect.named(["age", "dose"]), noise=Gamma(1.0, 1.0)))
    {'effect': ('age', 'dose')}
    """
    result = {path: own} if (own := law.__dict__.get(LABEL, ())) else {}
    for name, part in parts_of(law).items():
        result |= names_of(part, joined(path, name))
    return result


def with_names(law: Law, names: Names, path: str = "") -> Law:
    """The same numbers under these names, those of all parts; nothing is checked."""
    inner = {
        name: with_names(part, names, joined(path, name)) for name, part in parts_of(law).items()
    }
    changed = rebuilt(law, inner)
    if changed.__dict__.get(LABEL, ()) == names.get(path, ()):
        return changed
    return labelled(_copied(changed), names.get(path, ()))


def checked_tree(law: PyTree, names: Any, path: str = "") -> dict[str, tuple[str, ...]]:
    """Names by path, from a list, or a tree of dictionaries by part or by path."""
    result, parts = {}, parts_of(law)
    if not isinstance(names, Mapping) and law.named_size is None and len(parts) == 1:
        names = {next(iter(parts)): names}  # as a mixture's are those of its components
    if not isinstance(names, Mapping):
        return {path: checked(names, law.named_size, law)}
    for key, own in names.items():
        # Names of blocks are free text, which may hold a slash.
        head, _, rest = (
            (key, "", "") if key in parts or not isinstance(key, str) else key.partition("/")
        )
        if key == "":
            result[path] = checked(own, law.named_size, law)
            continue
        if head not in parts:
            raise StructureError(
                found=f"names for {key!r} of {law!r}",
                expected=f"names by part, of {list(parts)}" if parts else "a list of names",
                fix="Name parts that the law has.",
            )
        inner = joined(path, head)
        result |= checked_tree(parts[head], {rest: own} if rest else own, inner)
    return result


def rebuilt(law: Law, parts: Mapping[str, Any]) -> Law:
    """With other parts of the same shapes, unchecked; itself if they are the ones it has."""
    old = parts_of(law)
    if all(old[name] is part for name, part in parts.items()):
        return law
    fields = zip(field_names(type(law)), law.children(), strict=True)
    children = [
        {n: parts.get(n, part) for n, part in child.items()}
        if isinstance(child, Mapping)
        else parts.get(name, child)
        for name, child in fields
    ]
    return labelled(type(law).of_children(children, law.kept()), law.__dict__.get(LABEL, ()))


def _copied(law: Law) -> Law:
    return type(law).of_children(law.children(), law.kept())


def unfit(names: Any) -> str:
    """Why these cannot be names; empty if they can."""
    if isinstance(names, str | Set):
        return "one text, no list of names" if isinstance(names, str) else "a set, in no order"
    names = list(names)
    if not all(isinstance(name, str) for name in names):
        return f"one is no text: {next(n for n in names if not isinstance(n, str))!r}"
    if not all(names):
        return "one is empty"
    if long := [name for name in names if len(name) > MOST_CHARACTERS]:
        return f"one has {len(long[0])} characters of {MOST_CHARACTERS}"
    twice = [name for name, count in Counter(names).items() if count > 1]
    return f"{some(twice)} come twice" if twice else ""


def checked(names: Any, size: int | None, law: PyTree) -> tuple[str, ...]:
    """The names, as many distinct texts as the law has coordinates.

    Raises:
        StructureError: if they are not.
    """
    what = f"names for {law!r}"
    if size is None:
        raise StructureError(
            found=f"a list of {what}",
            expected=f"names by part, of {list(parts_of(law))}",
            fix="Pass a dictionary: a product's blocks have coordinates, the product has none.",
        )
    if isinstance(names, Iterable) and not isinstance(names, str | Set):
        names = list(names)
    wrong = unfit(names) if isinstance(names, list | str | Set) else f"{names!r} is no list"
    if not wrong and len(names) != size:
        wrong = f"{len(names)} names"
    if wrong:
        raise StructureError(
            found=f"{what}: {wrong}",
            expected=f"{size} different texts, one a coordinate",
            fix="Name them in the order in which the law has them.",
        )
    return tuple(map(str, names))


def entry_names(name: str, shape: tuple[int, ...], words: Sequence[Any] = ()) -> tuple[str, ...]:
    """A name for each entry of an array, ``beta[0]``, ``m[1,2]``, in order; of a number its own.

    ``words`` are those of each axis, if it has any: ``beta[age]``.

    >>> entry_names("m", (2, 1))
    ('m[0,0]', 'm[1,0]')
    """
    if not shape:
        return (name,)
    axes = [list(map(str, own)) for own in words] or [list(map(str, range(n))) for n in shape]
    return tuple(
        f"{name}[{','.join(axis[i] for axis, i in zip(axes, place, strict=True))}]"
        for place in np.ndindex(*shape)
    )


# --- in one order --------------------------------------------------------------------------------


def order(names: Sequence[str], wanted: Sequence[str], place: str, of: str) -> list[int]:
    """Positions of the ``wanted`` names among the ``names`` of a ``place``.

    Raises:
        StructureError: if they are other names; it says which are missing and which unknown.
    """
    position = {name: index for index, name in enumerate(names)}
    missing = [name for name in wanted if name not in position]
    known = set(wanted)
    unknown = [name for name in names if name not in known]
    if missing or unknown:
        shown = ((missing, "missing"), (unknown, "unknown"))
        wrong = ", ".join(f"{some(these)} {how}" for these, how in shown if these)
        raise StructureError(
            found=f"names that do not fit at {place}: {wrong}",
            expected=f"those of {of}, in any order: {some(wanted)}",
            fix="Give what means the same one name everywhere, and leave out what others lack.",
        )
    return [position[name] for name in wanted]


def in_order(law: Law, wanted: Names, place: str, of: str, path: str = "") -> Law:
    """The law with the coordinates of all parts in the order that is ``wanted``, exactly.

    Parts that have no names, or of which none are wanted, stay as they are; they take the names
    that are wanted.

    Raises:
        StructureError: for other names, or where a law cannot be put in another order.

    >>> from posterity.families import Gaussian
    >>> q = Gaussian.from_standard([1.0, 2.0], [[1.0, 0.5], [0.5, 4.0]]).named(["a", "b"])
    >>> in_order(q, {"": ("b", "a")}, "here", "there").mean
    array([2., 1.])
    """
    parts = {
        name: in_order(part, wanted, place, of, joined(path, name))
        for name, part in parts_of(law).items()
    }
    moved, own, asked = rebuilt(law, parts), law.__dict__.get(LABEL, ()), wanted.get(path, ())
    if not asked or own == asked:
        return moved
    if own:
        where = f"{place}, {path}" if path else place
        moved = moved.reordered(np.array(order(own, asked, where, of), dtype=int))
    return labelled(_copied(moved), asked)


def not_reordered(law: PyTree, places: Any) -> StructureError:
    """For a law whose coordinates cannot change places."""
    return StructureError(
        found=f"coordinates of {law!r} in another order ({list(map(int, places))})",
        expected="those of a law whose coordinates can change places",
        fix="Make it anew with its coordinates in the order of the others.",
    )


def alike(first: Any, second: Any) -> tuple[Any, Any]:
    """Both under the names that either has, the second in the order of the first.

    Raises:
        StructureError: if their names differ.
    """
    mine, theirs = names_of(first), names_of(second)
    if mine == theirs:
        return first, second
    wanted = {**theirs, **mine}
    place, of = f"{second!r}", f"{first!r}"
    return in_order(first, wanted, of, place), in_order(second, wanted, place, of)


def some(names: Sequence[str]) -> str:
    """The first few names, as an error repeats them."""
    more = len(names) - MOST_NAMES
    return f"{list(names[:MOST_NAMES])}" + (f" and {more} more" if more > 0 else "")
