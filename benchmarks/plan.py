"""What is measured: series that vary one factor, the comparison, and the large problem."""

from __future__ import annotations

import dataclasses

from benchmarks.launch import Effort
from benchmarks.problems import Shape


@dataclasses.dataclass(frozen=True)
class Series:
    """One factor (a field of `Shape`) varied around a base point."""

    factor: str
    base: Shape
    values: tuple[int, ...]

    @property
    def name(self) -> str:
        """For example `sites, NormalWishart`."""
        return f"{self.factor}, {self.base.family}"

    @property
    def shapes(self) -> list[Shape]:
        """The points."""
        return [dataclasses.replace(self.base, **{self.factor: value}) for value in self.values]


@dataclasses.dataclass(frozen=True)
class Plan:
    """All series, the shapes and seeds of the comparison, and the large problem."""

    series: tuple[Series, ...]
    compared: tuple[Shape, ...]
    seeds: int
    large: Shape
    effort: Effort


FULL, DIAGONAL = Shape("NormalWishart", 20, 10, 5), Shape("DiagonalGaussian", 20, 10, 20)
SITES = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
COMPONENTS = (3, 5, 10, 20, 50, 100, 200)


def full(limit: int, threads: int) -> Plan:
    """The whole benchmark."""
    return Plan(
        series=(
            Series("sites", FULL, SITES),
            Series("sites", DIAGONAL, SITES),
            Series("components", FULL, COMPONENTS),
            Series("components", DIAGONAL, COMPONENTS),
            Series("dimension", FULL, (2, 3, 5, 10, 20, 30, 50)),
            Series("dimension", DIAGONAL, (2, 5, 10, 20, 50, 100, 200, 500, 1000)),
        ),
        compared=tuple(Shape("NormalWishart", *size, 2) for size in ((10, 3), (10, 10), (20, 10))),
        seeds=3,
        large=Shape("NormalWishart", 1000, 50, 10),
        effort=Effort(runs=5, budget=6.0, limit=limit, threads=threads),
    )


def quick(limit: int, threads: int) -> Plan:
    """A few small points: that everything runs, not how fast."""
    return Plan(
        series=(Series("sites", dataclasses.replace(FULL, dimension=2), (3, 6, 12)),),
        compared=(Shape("NormalWishart", 2, 2, 2),),
        seeds=1,
        large=Shape("NormalWishart", 20, 5, 3),
        effort=Effort(runs=2, budget=0.5, limit=limit, threads=threads),
    )
