"""What is run: partitions, how their sites train, and what is measured on each."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.klfusion.networks.local_fits import HORSESHOE, PLAIN, TEMPERED, Case

MAIN = "main: Gaussian, KL x 0.1, Dirichlet(0.8)"
HORSESHOE_ROW = "horseshoe, KL x 0.1, Dirichlet(0.8)"
POOLED_STUDY = "pooled"
LESS = 2000
"""Steps of a site where more is not needed to compare methods."""


@dataclass(frozen=True)
class Study:
    """Partitions of one kind.

    Attributes:
        case: the first partition; the others have the numbers that follow.
        partitions: how many.
        parts: keys of :data:`~experiments.klfusion.networks.evaluate.PARTS`.
        rarely: parts that only the first so many partitions have, for they take long.
    """

    case: Case
    partitions: int
    parts: tuple[str, ...]
    rarely: tuple[str, ...] = ()
    rare: int = 3


USUAL = ("locals", "together", "fused")
SHORT = ("together", "fused", "options")


def studies(main: int = 10, others: int = 2, rare: int = 3, sites: int = 20) -> dict[str, Study]:
    """By name; ``main`` partitions for table 2, about ``others`` for what stands beside it.

    Of the main study's, the first ``rare`` also have rounds, other options and other averages.
    """
    few = max(1, others // 2)
    widths = (100, 125, 150, 175, 200)
    rarely = ("rounds", "options", "averages", "published")
    found = {
        MAIN: Study(Case(), main, (*USUAL, "capped"), rarely, rare),
        POOLED_STUDY: Study(Case(sites=1), 1, ("pooled",)),
        HORSESHOE_ROW: Study(
            Case(setting=HORSESHOE, steps=LESS), others, ("locals", "together", "fused")
        ),
        "Gaussian, full KL, Dirichlet(0.8)": Study(Case(setting=PLAIN, steps=LESS), few, SHORT),
        f"{sites} sites": Study(Case(sites=sites, steps=LESS // 2), few, SHORT),
        "widths 100 to 200": Study(Case(widths=widths, steps=LESS), few, SHORT),
    }
    for concentration in (0.1, 100.0):
        for setting, number in ((TEMPERED, others), (PLAIN, few), (HORSESHOE, few)):
            name = "Gaussian, full KL" if setting == PLAIN else setting
            case = Case(concentration, setting=setting, steps=LESS)
            found[f"{name}, Dirichlet({concentration:g})"] = Study(case, number, SHORT)
    return found
