"""The result of fusing posteriors."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.families.names import family_of, is_quick
from posterity.fusion.alignment import Alignment
from posterity.fusion.check import of_matching
from posterity.fusion.doubts import Doubt
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Rule
from posterity.fusion.scale import Scale, scales_of
from posterity.ledger import Ledger
from posterity.runtime.text import clean, cut
from posterity.status import Status

if TYPE_CHECKING:
    from posterity.inference.random_effects import Effects

LEFT = 1e-3  # Nats by which moving one component may still shorten the description


@dataclasses.dataclass(frozen=True)
class Fusion:
    """The result of :func:`posterity.fuse`.

    Attributes:
        posterior: the fused posterior, of the sites' family.
        ledger: with ``rule="product"``, the prior and one aligned factor per site, from which a
            site can be forgotten; for networks under either rule, if priors are known; else None.
        plates: for each plate (by the path of its block, ``""`` for the whole posterior) the
            matching, its cost and the trace of the objective.
        rule: rule by which matched components were combined.
        why: reason for that rule, in words.
        doubts: reasons not to rely on the result, each with advice: ambiguous matches, and sites
            that contradict each other, are uninformative or may have the same data.
        divergence: direction of KL that was used.
        rebased: with ``rule="product"``, the sites whose prior differed from the common one,
            ``ledger.prior``.
    """

    posterior: ExponentialFamily
    ledger: Ledger | None
    plates: dict[str, Alignment]
    rule: Rule
    divergence: Divergence
    rebased: tuple[str, ...] = ()
    why: str = ""
    doubts: tuple[Doubt, ...] = ()
    sampling: Callable[[], dict[str, Scale]] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )
    """Function that computes :attr:`scales`; internal."""
    effects: "Effects | None" = dataclasses.field(default=None, repr=False, compare=False)
    """The :attr:`population`, if it is known already; internal."""

    def __repr__(self) -> str:
        """Return one line with the rule, the number of components and the cost; never raise."""
        try:
            parts = [family_of(self.posterior), f"{self.rule} {self.why}".strip()]
            for path, plate in self.plates.items():
                count = f"{plate.components} components of {len(plate.matching)} sites"
                parts.append(f"{path}: " * bool(path) + f"{count}, cost {plate.cost:.3g}")
                if is_quick(self.posterior.dimension, len(plate.matching)):
                    parts.append(str(self.scales[path]))  # slow for larger ones
            return cut(f"{type(self).__name__}({'; '.join(map(clean, parts))})")
        except Exception:
            return f"{type(self).__name__}(?)"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The :attr:`doubts`, a line each."""
        return tuple(map(str, self.doubts))

    @property
    def plate(self) -> Alignment:
        """The matching of the only plate; raises a UsageError unless there is exactly one."""
        if len(self.plates) != 1:
            raise UsageError(
                found=f"{len(self.plates)} plates {sorted(self.plates)}",
                expected="one plate: of several .plates[name]; posteriors without components, as "
                "of a regression, have none, and nothing was matched",
            )
        return next(iter(self.plates.values()))

    @property
    def population(self) -> "Effects":
        """Of a fusion with ``personal``, the population that sites' coefficients vary about: its
        means, spreads and intervals, and the law of each site and of a new one. A UsageError for
        other fusions.
        """
        from posterity.inference.federated_effects import effects_of

        return self.effects or effects_of(self.ledger)

    @property
    def matching(self) -> Mapping[str, Int[np.ndarray, " k"]]:
        """For each site, the fused component of each local one; -1 for components that were left
        out, such as those without data.
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
        """Mean divergence between matched components and their fused ones, in nats; None if
        nothing was matched.
        """
        return self.scale.residual

    @property
    def scale(self) -> Scale:
        """The residual and its expectation under sampling alone (:class:`.scale.Scale`)."""
        plate = self.plate
        return self.scales[next(path for path, one in self.plates.items() if one is plate)]

    @functools.cached_property
    def scales(self) -> dict[str, Scale]:
        """The :attr:`scale` of each plate, by path."""
        return self.sampling() if self.sampling else scales_of({}, self.plates, self.divergence)

    @property
    def margins(self) -> dict[str, Float[np.ndarray, " k"]]:
        """Nats by which each match is better than the next best; see :attr:`Alignment.margins`."""
        return self.plate.margins

    @property
    def components_evidence(self) -> dict[int, float]:
        """For each number of components, the nats by which the best matching that was tried is
        worse than the chosen one; see :attr:`Alignment.components_evidence`.
        """
        return self.plate.components_evidence

    @property
    def absorbed(self) -> dict[str, tuple[int, ...]]:
        """For each site, the local components that were merged into another one of the site."""
        return self.plate.absorbed

    @property
    def trace(self) -> tuple[float, ...]:
        """Objective of the matching, in nats, after each accepted change; it never rises. Of sites
        that were matched in passes, that of their sample.
        """
        return self.plate.trace

    @functools.cached_property
    def status(self) -> Status:
        """The status of the matching: converged if each match and each number of components is
        3 nats better than the next best, or if nothing had to be matched.

        ``left`` is the number of nats by which moving one component, or another number of
        components that was tried, would shorten the description; infinite if that is unknown. The
        reasons are the doubts about the matching, plate by plate.
        """
        left = max((plate.left for plate in self.plates.values()), default=0.0)
        reasons = [
            own.finding
            for path, plate in self.plates.items()
            for own in of_matching(plate, f" in block {path!r}" * bool(path))
        ]
        return Status.of(left, LEFT, tuple(reasons))
