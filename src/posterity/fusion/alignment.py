"""Which component of which site is which fused one, for one plate."""

import dataclasses

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.errors import UsageError
from posterity.fusion.blocks import Plates
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching, content_keys, match

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Alignment:
    """The matching of one plate.

    ``matching`` has, by site, the fused component of each local one, -1 where the local one
    held no data; ``cost`` is the summed divergence to the centroids in nats, ``trace`` the
    objective after each accepted change.
    """

    matching: dict[str, Int[Array, " k"]]
    components: int
    cost: float
    trace: list[float]

    @property
    def labels(self) -> Int[Array, " n"]:
        """The matching of all sites in a row."""
        return np.concatenate(list(self.matching.values()))


def align(
    plates: Plates,
    matching: Matching,
    divergence: Divergence,
    components: int | None,
    importance: Float[Array, " sites"],
) -> Alignment:
    """Match the components of all sites' plates, and number them by weight.

    Raises:
        UsageError: a site without data, or a number of components that cannot be.
    """
    identity = matching is Matching.IDENTITY
    used = np.ones(len(plates.site), bool) if identity else plates.used
    starts = np.cumsum([0, *_held(plates, used)])
    found, how = match(plates.members[used], starts, matching, divergence, components)
    labels = np.full(len(used), -1)
    labels[used] = found if identity else _by_weight(plates, used, found, importance)
    return Alignment(
        matching=plates.by_site(labels),
        components=int(found.max()) + 1,
        cost=how.clustering.misfit,
        trace=how.trace,
    )


def _held(plates: Plates, used: Array) -> Int[Array, " sites"]:
    """How many of the components that are used each site has, which is at least one."""
    held = np.bincount(plates.site[used], minlength=len(plates.names))
    if (held == 0).any():
        empty = [plates.names[index] for index in np.flatnonzero(held == 0)]
        raise UsageError(
            found=f"no component with at least one observation at {empty}{plates.place}",
            expected="at least one component that has seen data at every site",
            fix="Leave the site out, or check its fit.",
        )
    return held


def _by_weight(plates: Plates, used: Array, labels: Array, importance: Array) -> Array:
    """Numbered so that the heaviest component comes first; ties by content."""
    weight, content = np.zeros(labels.max() + 1), np.full(labels.max() + 1, b"", dtype=object)
    np.add.at(weight, labels, (importance[plates.site] * plates.counts)[used])
    for label, key in zip(labels, content_keys(plates.members[used]), strict=True):
        content[label] = max(content[label], key)
    order = sorted(range(len(weight)), key=lambda g: (-round(weight[g], 9), content[g]))
    rank = np.empty(len(order), dtype=int)
    rank[order] = np.arange(len(order))
    return rank[labels]
