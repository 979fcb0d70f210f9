"""A matching that the user gives, in place of one that is found."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arrays.typing import Int
from posterity.errors import UsageError
from posterity.families.names import some
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import Block

FIX = (
    "Give what Fusion.matching of another fusion of these sites is: by site, the fused component "
    "of each local one, -1 for those left out."
)


def given_labels(
    matching: Mapping[str, Any], plates: Sequence[Block | BlockTable], components: int | None
) -> Int[np.ndarray, " n"]:
    """The labels of all sites in a row.

    Raises:
        UsageError: unless there is one plate, and for each site a label for each of its components,
            no two the same, which together leave out no fused one.
    """
    if len(plates) != 1:
        raise UsageError(
            found=f"a matching by site for {len(plates)} plates",
            expected="posteriors with one plate",
            fix="Leave matching out, or choose one by name.",
        )
    (plate,) = plates
    if set(matching) != set(plate.names):
        raise UsageError(
            found=f"a matching of sites {sorted(map(str, matching))}",
            expected=f"one of {list(plate.names)}",
            fix=FIX,
        )
    pairs = zip(plate.names, plate.sizes.tolist(), strict=True)
    labels = np.concatenate([_of_site(name, matching[name], size) for name, size in pairs])
    held = np.unique(labels[labels >= 0])
    if len(held) == 0 or held[-1] + 1 != len(held) or components not in (None, len(held)):
        raise UsageError(
            found=f"labels {held.tolist()}"
            + ("" if components is None else f" and components={components}"),
            expected="labels 0, 1, ... without a gap, and as many as components says",
            fix=FIX,
        )
    return labels


def matching_by_name(
    labels: Mapping[str, Mapping[str, tuple[str, ...]]], sites: Sequence[str], plates: list[str]
) -> dict[str, np.ndarray] | None:
    """The matching of a plate whose members have names (``labels``, by path) at every site.

    Members of one name are one; a site may lack some. None where nobody names any.

    Warns:
        UserWarning: where names tell no matching: some sites give none, or there are more plates.
    """
    if not labels:
        return None
    (path, *others), bare = plates or [""], sorted(set(sites) - set(labels))
    if others or bare or any(set(own) != {path} for own in labels.values()):
        told = f"there are none at {some(bare)}" if bare else f"there are plates {plates}"
        warn_of_names(told, stacklevel=6)
        return None
    union = dict.fromkeys(name for site in sorted(labels) for name in labels[site][path])
    place = {name: index for index, name in enumerate(union)}
    return {site: np.array([place[name] for name in own[path]]) for site, own in labels.items()}


def warn_of_names(why: str, stacklevel: int = 5) -> None:
    """That members are not matched by their names."""
    warnings.warn(f"Names of members are not used, and lost: {why}.", stacklevel=stacklevel)


def names_of_components(
    labels: Mapping[str, Mapping[str, tuple[str, ...]]],
    path: str,
    matching: Mapping[str, Int[np.ndarray, " k"]],
) -> dict[str, tuple[str, ...]]:
    """The names of the fused components of such a plate, in their order, by path."""
    found: dict[int, str] = {}
    for site, own in labels.items():
        found |= zip(matching[site].tolist(), own[path], strict=True)
    found.pop(-1, None)
    return {path: tuple(found[at] for at in sorted(found))}


def _of_site(name: str, labels: Any, size: int) -> Int[np.ndarray, " k"]:
    found = np.asarray(labels)
    whole = found.shape == (size,) and found.dtype.kind in "iu"
    kept = found[found >= 0] if whole else found
    if not whole or found.min() < -1 or len(np.unique(kept)) < len(kept):
        raise UsageError(
            found=f"labels {found.tolist()} of site {name!r}",
            expected=f"{size} whole numbers from -1 on, none but -1 twice",
            fix=FIX,
        )
    return found.astype(int)
