"""Labels of components that need no search: from a matching that the user passes, or from names."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arrays.typing import Int
from posterity.errors import UsageError
from posterity.families.names import some
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import Block

Array = np.ndarray
NamedMembers = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Names of the members of plates, by site and path."""


def user_labels(
    matching: Mapping[str, Any], plates: Sequence[Block | BlockTable], components: int | None
) -> Int[Array, " n"]:
    """Return the labels of all sites, concatenated.

    Raise a UsageError unless there is one plate, each site has a label for each of its components,
    and labels are without gaps. Components of a site may share a label only if its prior is known.
    """
    if len(plates) != 1:
        raise UsageError(
            found=f"a matching by site for {len(plates)} plates",
            expected="posteriors with one plate",
        )
    (plate,) = plates
    if set(matching) != set(plate.names):
        raise _no_matching(
            f"a matching of sites {sorted(map(str, matching))}", f"one of {list(plate.names)}"
        )
    parts = []
    sites = zip(plate.names, plate.sizes.tolist(), plate.priors.exchangeable, strict=True)
    for name, size, known in sites:
        own = np.asarray(matching[name])
        whole = own.shape == (size,) and own.dtype.kind in "iu"
        kept = own[own >= 0] if whole else own
        if not whole or own.min() < -1 or (not known and len(np.unique(kept)) < len(kept)):
            twice = "" if known else ", none but -1 twice, as the prior is not known"
            raise _no_matching(
                f"labels {own.tolist()} of site {name!r}",
                f"{size} whole numbers from -1 on{twice}",
            )
        parts.append(own.astype(int))
    labels = np.concatenate(parts)
    groups = np.unique(labels[labels >= 0])
    if len(groups) == 0 or groups[-1] + 1 != len(groups) or components not in (None, len(groups)):
        raise _no_matching(
            f"labels {groups.tolist()}"
            + ("" if components is None else f" and components={components}"),
            "labels 0, 1, ... without a gap, and as many as components says",
        )
    return labels


def _no_matching(found: str, expected: str) -> UsageError:
    return UsageError(
        found=found,
        expected=expected,
        fix="Give what Fusion.matching of another fusion of these sites is: by site, the fused "
        "component of each local one, -1 for those left out.",
    )


def matching_by_name(
    labels: NamedMembers, sites: Sequence[str], plates: list[str]
) -> dict[str, Array] | None:
    """Match members of a plate that have one name, if every site names its members. Return None if
    no site does, or, with a warning, if only some sites do or there are several plates.
    """
    if not labels:
        return None
    path, *others = plates or [""]
    without = sorted(set(sites) - set(labels))
    if others or without or any(set(own) != {path} for own in labels.values()):
        why = f"there are none at {some(without)}" if without else f"there are plates {plates}"
        warn_of_names(why, stacklevel=5)
        return None
    union = dict.fromkeys(name for site in sorted(labels) for name in labels[site][path])
    place = {name: index for index, name in enumerate(union)}
    return {site: np.array([place[name] for name in own[path]]) for site, own in labels.items()}


def warn_of_names(why: str, stacklevel: int = 4) -> None:
    """Warn that members are not matched by their names."""
    warnings.warn(f"Names of members are not used, and lost: {why}.", stacklevel=stacklevel)


def names_of_components(
    labels: NamedMembers, path: str, matching: Mapping[str, Int[Array, " k"]]
) -> dict[str, tuple[str, ...]]:
    """Return the names of the fused components of a plate that was matched by name, by path."""
    names: dict[int, str] = {}
    for site, own in labels.items():
        names |= zip(matching[site].tolist(), own[path], strict=True)
    names.pop(-1, None)
    return {path: tuple(names[at] for at in sorted(names))}
