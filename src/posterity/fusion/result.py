"""The result of fusing posteriors."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.families.names import MOST_READ, MOST_SOLVED, family_of
from posterity.fusion.alignment import Alignment
from posterity.fusion.divergences import Discrepancy
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Rule
from posterity.fusion.scale import Scale, scales_of
from posterity.ledger import Ledger
from posterity.status import Status
from posterity.text import clean, cut, html

LEFT = 1e-3  # Nats by which putting one component elsewhere may still shorten the description


@dataclasses.dataclass(frozen=True)
class Fusion:
    """The result of :func:`posterity.fuse`.

    Attributes:
        posterior: the fused posterior, of the sites' family.
        ledger: with ``rule="product"``, the same as prior plus one aligned factor a site, so
            that a site can be taken out again; of networks under either rule, where priors are
            known; else None.
        plates: for each plate (by the path of its block, ``""`` for the whole posterior) the
            matching, its cost and the trace of the objective.
        rule: how matched components became one.
        why: the reason for that rule, in words.
        warnings: lines on what is doubtful, each with what to do: matches that hang on little,
            sites that contradict each other, say nothing or may hold the same data.
        divergence: the side on which KL was taken, or what was taken instead.
        rebased: with ``rule="product"``, the sites whose own prior was not the common one, which is
            ``ledger.prior``.
    """

    posterior: ExponentialFamily
    ledger: Ledger | None
    plates: dict[str, Alignment]
    rule: Rule
    divergence: Divergence | Discrepancy
    rebased: tuple[str, ...] = ()
    why: str = ""
    warnings: tuple[str, ...] = ()
    sampling: Callable[[], dict[str, Scale]] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )
    """Computes :attr:`scales`; not for users."""

    def __repr__(self) -> str:
        """One line: by which rule, how many components, at which cost; never an error."""
        try:
            parts = [family_of(self.posterior), f"{self.rule} {self.why}".strip()]
            for path, plate in self.plates.items():
                count = f"{plate.components} components of {len(plate.matching)} sites"
                parts.append(f"{path}: " * bool(path) + f"{count}, cost {plate.cost:.3g}")
                if self.posterior.dimension <= MOST_READ and len(plate.matching) <= MOST_SOLVED:
                    parts.append(str(self.scales[path]))  # of more it takes a while
            return cut(f"{type(self).__name__}({'; '.join(map(clean, parts))})")
        except Exception:
            return f"{type(self).__name__}(?)"

    def _repr_html_(self) -> str:
        return html(self, "fusion")

    @property
    def plate(self) -> Alignment:
        """The only plate; a UsageError if there are several, or none."""
        if len(self.plates) != 1:
            raise UsageError(
                found=f"{len(self.plates)} plates {sorted(self.plates)}",
                expected="one plate",
                fix="Look at .plates[name] instead.",
            )
        return next(iter(self.plates.values()))

    @property
    def matching(self) -> Mapping[str, Int[np.ndarray, " k"]]:
        """The matching: for each site, the fused component of each local one; -1 if it held no
        data.
        """
        return self.plate.matching

    @property
    def components(self) -> int:
        """Number of fused components."""
        return self.plate.components

    @property
    def cost(self) -> float:
        """Summed divergence of matched components to their centroid, in nats."""
        return self.plate.cost

    @property
    def residual(self) -> float | None:
        """Mean divergence of each matched component to its fused one, in nats, None if there is
        none.
        """
        return self.scale.residual

    @property
    def scale(self) -> Scale:
        """The residual beside what sampling alone would give (:mod:`posterity.fusion.scale`)."""
        plate = self.plate
        return self.scales[next(path for path, one in self.plates.items() if one is plate)]

    @functools.cached_property
    def scales(self) -> dict[str, Scale]:
        """The :attr:`scale` of each plate, by path."""
        return self.sampling() if self.sampling else scales_of({}, self.plates, self.divergence)

    @property
    def margins(self) -> dict[str, Float[np.ndarray, " k"]]:
        """The nats between each match and the next best, by site: see :attr:`Alignment.margins`."""
        return self.plate.margins

    @property
    def components_evidence(self) -> dict[int, float]:
        """The nats by which the best matching met is worse, by number of components: see
        :attr:`Alignment.components_evidence`.
        """
        return self.plate.components_evidence

    @property
    def absorbed(self) -> dict[str, tuple[int, ...]]:
        """The local components of each site that were part of another of its own."""
        return self.plate.absorbed

    @property
    def trace(self) -> tuple[float, ...]:
        """The objective of the matching, in nats, after each accepted change; it never rises."""
        return self.plate.trace

    @functools.cached_property
    def status(self) -> Status:
        """Converged where each match, and each number of components, is 3 nats better than the next
        best, or where nothing had to be matched.

        ``left`` is the number of nats by which the description would be shorter if one component
        were elsewhere, or with another number of components that was tried; infinite where that is
        not known. The reasons are those of :meth:`Alignment.reasons`, plate by plate.
        """
        left = max((plate.left for plate in self.plates.values()), default=0.0)
        reasons = [
            f"{path}: {reason}" if path else reason
            for path, plate in self.plates.items()
            for reason in plate.reasons()
        ]
        return Status.of(left, LEFT, tuple(reasons))
