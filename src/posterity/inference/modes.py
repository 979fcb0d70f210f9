"""Modes of a log density: climbs from draws of a law, and which of their ends are one mode.

Where a mixture explains the density, nothing is missing: draws of a law at which the density is far
higher than the mixture's are climbed from, all at a time, and ends within half a deviation of a
mode are that mode. What no draw led to is not known, and is said (:func:`unsearched`).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from posterity.arrays.search import lbfgs
from posterity.arrays.tree import taken
from posterity.arrays.typing import Bool, Float, PyTree
from posterity.runtime.lazy import jax


@dataclasses.dataclass(frozen=True)
class Rule:
    """What counts as a mode that is known."""

    explained: float = 10.0
    """A draw is explained if the density there is at most so many times the mixture's: modes of a
    tenth of the mass at that place are found, and a mixture need not fit to be enough."""
    near: float = 0.5
    """Distance, in standard deviations of a mode, within which a climb ended at that mode."""
    wider: float = 3.0
    """Factor by which draws about known modes, and of a law, are wider than these, to lead out."""
    dense: int = 500
    """Most coordinates whose full curvature is computed, which takes as many gradients."""
    chance: float = 0.05
    """Probability that all draws missed a mode that counts as searched for (hanley1983)."""

    def explains(
        self, mixture: Float[np.ndarray, "*n"], logs: Float[np.ndarray, "*n"]
    ) -> Bool[np.ndarray, "*n"]:
        """Return where a log density is explained by that of the mixture, both in nats."""
        return logs <= mixture + math.log(self.explained)

    def unseen(self, draws: int, blank: float = 0.0) -> float:
        """Return the upper bound on the share of a law's draws that lead to a mode which none of
        ``draws`` met, plus the share at which nothing was known, ``blank``.

        Source: hanley1983.

        >>> round(Rule().unseen(300), 4)
        0.0099
        """
        return 1 - (1 - blank) * self.chance ** (1 / draws) if draws else 1.0


RULE = Rule()


class Mode(NamedTuple):
    """A mode: minus the log density there in nats, its place (d,), and a factor of the covariance
    by Laplace's approximation, triangular (d, d) or diagonal (d,).
    """

    energy: float
    at: Float[np.ndarray, " d"]
    factor: Float[np.ndarray, "d *d"]

    @property
    def deviations(self) -> Float[np.ndarray, " d"]:
        """The standard deviation of each coordinate, given all others."""
        if self.factor.ndim == 1:
            return self.factor
        return 1 / np.linalg.norm(self.whitened(np.eye(len(self.at))), axis=1)

    @property
    def mass(self) -> float:
        """The logarithm of the mass by Laplace's approximation, up to a constant of ``d``."""
        widths = np.diagonal(self.factor) if self.factor.ndim == 2 else self.factor
        with np.errstate(divide="ignore"):  # at a pole, which is no mode
            return float(np.log(widths).sum()) - self.energy

    def whitened(self, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return steps in standard deviations of the mode."""
        if self.factor.ndim == 1:
            return rows / self.factor
        return scipy.linalg.solve_triangular(self.factor, rows.T, lower=True).T

    def squares(self, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return squared distances of points in standard deviations of the mode."""
        return (self.whitened(rows - self.at) ** 2).sum(1)

    def near(self, at: Float[np.ndarray, " d"]) -> bool:
        """Return whether a point is the same mode."""
        return bool(self.squares(at[None])[0] < RULE.near**2)


class Ends(NamedTuple):
    """Where climbs ended: places (n, d), minus the log density there (n,), and the evaluations."""

    at: Float[np.ndarray, "n d"]
    energies: Float[np.ndarray, " n"]
    evaluations: int

    def among(self, usable: Bool[np.ndarray, " n"]) -> "Ends":
        """Return the ends with an infinite energy, as of no mode, at all others than these."""
        return self._replace(energies=np.where(usable, self.energies, np.inf))


def climbs(
    look: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    begin: Float[np.ndarray, "n d"],
    unit: Float[np.ndarray, "d *d"],
    *,
    most: int,
    gain: float = 1e-10,
) -> Ends:
    """Climb a log density from all points at once, by L-BFGS in coordinates of the size ``unit``
    (d,), or of which it is the matrix (d, d).

    ``look`` returns minus the log density (n,) and its slopes (n, d) at points (n, d); ``most`` is
    the number of evaluations of each climb, and ``gain`` the relative gain at which it ends.
    """

    def place(v: np.ndarray) -> np.ndarray:
        return begin + (v @ unit.T if unit.ndim == 2 else v * unit)

    def least(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        energies, slopes = look(place(v))
        return energies, slopes @ unit if unit.ndim == 2 else slopes * unit

    moves, energies, looks = lbfgs(least, np.zeros_like(begin), most=most, gain=gain)
    return Ends(place(moves), np.asarray(energies), looks * len(begin))


def found(
    ends: Ends,
    factor: Callable[[np.ndarray], np.ndarray],
    known: Sequence[Mode] = (),
    *,
    most: float = math.inf,
) -> list[Mode]:
    """Return at most so many modes at which climbs ended, the highest first, without those that are
    ``known``. Of ends near each other the highest is the mode. ``factor`` returns that of the
    covariance at a place (:class:`Mode`).
    """
    modes: list[Mode] = []
    for place in np.argsort(ends.energies):
        at = ends.at[place]
        energy = float(ends.energies[place])
        if not math.isfinite(energy) or len(modes) >= most:
            break
        if not any(mode.near(at) for mode in (*known, *modes)):
            modes.append(Mode(energy, at, factor(at)))
    return modes


def in_batches(function: Callable[[Any], Any], rows: PyTree, size: int) -> Any:
    """Return a compiled function's results at rows (n, ...), as NumPy arrays: it is given ``size``
    rows at a time, so that it is compiled once for any number of them.
    """
    count = len(jax.tree.leaves(rows)[0])
    most = -(-count // size) * size
    padded = jax.tree.map(lambda leaf: np.resize(leaf, (most, *np.shape(leaf)[1:])), rows)
    starts = range(0, most, size)
    batches = [taken(padded, slice(at, at + size)) for at in starts]
    parts = [function(batch) for batch in batches]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *parts)


def unsearched(share: float, draws: int, law: str, known: str) -> str:
    """Return, in words, what a search did not show: ``share`` is that of :meth:`Rule.unseen`,
    ``law`` says whose draws were compared, ``known`` with what.
    """
    return (
        f"modes that less than {100 * share:.2g} % of the {law}'s draws lead to are beyond what "
        f"was searched ({draws} draws were compared with the {known}, and followed where "
        "unexplained), and may hold any mass: densities elsewhere tell nothing of them"
    )
