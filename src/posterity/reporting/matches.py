"""Strengths of matches by site and component."""

import enum

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.fusion.alignment import Alignment
from posterity.fusion.confidence import AMBIGUOUS

Array = np.ndarray


class Kind(enum.IntEnum):
    """Kind of a cell; the largest value applies if a site has several components in one cell."""

    ABSENT = enum.auto()
    ALONE = enum.auto()
    UNKNOWN = enum.auto()
    FIRM = enum.auto()
    LIKELY = enum.auto()
    AMBIGUOUS = enum.auto()


MEANING = {
    Kind.FIRM: "firm: 10 nats or more",
    Kind.LIKELY: "likely: 3 to 10 nats",
    Kind.AMBIGUOUS: "doubtful: below 3 nats",
    Kind.UNKNOWN: "matched; strength not known",
    Kind.ALONE: "no other site has it",
    Kind.ABSENT: "the site has none",
}
"""Descriptions of the kinds in the legend's order; nats are the cost of the next best match."""


def kinds_of(alignment: Alignment) -> Int[Array, "sites g"]:
    """Return the kind of each cell of a plate's matching, of sites (rows) by fused components.

    A fused component with a single holder has no match. Its strength is shown where it is known,
    since it measures how certain it is that no other site has the component.
    """
    labels = list(alignment.matching.values())
    site = np.repeat(np.arange(len(labels)), list(map(len, labels)))
    label = np.concatenate(labels)
    margins = [np.asarray(alignment.margins[name], float) for name in alignment.matching]
    used = label >= 0
    kinds = np.full((len(labels), alignment.components), Kind.ABSENT, dtype=np.int8)
    np.maximum.at(kinds, (site[used], label[used]), _kind(np.concatenate(margins)[used]))
    alone = (kinds > Kind.ABSENT).sum(0) == 1
    kinds[:, alone] = np.where(kinds == Kind.UNKNOWN, Kind.ALONE, kinds)[:, alone]
    return kinds


def _kind(margin: Float[Array, " n"], firm: float = 10.0) -> Int[Array, " n"]:
    """Return kinds by the cost of the next best match, in nats; ``firm`` is 22,000 to 1."""
    weak = np.where(margin < AMBIGUOUS, Kind.AMBIGUOUS, Kind.LIKELY)
    known = np.where(margin >= firm, Kind.FIRM, weak)
    return np.where(np.isnan(margin), Kind.UNKNOWN, known)
