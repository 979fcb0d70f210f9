"""What is measured: series that vary one factor, peers, and problems with a goal."""

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
        return [dataclasses.replace(self.base, **{self.factor: value}) for value in self.values]


@dataclasses.dataclass(frozen=True)
class Compared:
    """A peer, a kind of `benchmarks.point`, on one shape; with a goal for the ratio or none."""

    peer: str
    shape: Shape
    seeds: int
    goal: float | None = None


@dataclasses.dataclass(frozen=True)
class Target:
    """A problem to be fused in so many seconds, in so many times the memory of its input."""

    shape: Shape
    seconds: float
    memory: float | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """The peers, the problems with a goal, the command's files, and all series.

    `ladder` ends where `top` says how long it may take; `steepest` is its exponent's goal.
    """

    compared: tuple[Compared, ...]
    targets: tuple[Target, ...]
    ladder: Series
    top: Target
    command: Target
    series: tuple[Series, ...]
    effort: Effort
    steepest: float = 1.5


FULL, DIAGONAL = Shape("NormalWishart", 20, 10, 5), Shape("DiagonalGaussian", 20, 10, 20)
SITES = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
COMPONENTS = (3, 5, 10, 20, 50, 100, 200)
FILES = Target(Shape("NormalWishart", 6, 5, 2), 0.6)


def small(sites: int, components: int) -> Shape:
    """A problem of the size that the peers were published with."""
    return Shape("NormalWishart", sites, components, 2)


def full(limit: int, threads: int) -> Plan:
    return Plan(
        compared=(
            Compared("klfusion-40", small(10, 10), 1, goal=4000.0),
            Compared("klfusion", small(10, 10), 3, goal=1000.0),
            Compared("spahm", small(10, 10), 3, goal=4.0),
            Compared("klfusion", small(10, 3), 3),
            Compared("klfusion", small(20, 10), 1),
            Compared("spahm", small(100, 20), 1),
        ),
        targets=(
            Target(Shape("NormalWishart", 1000, 50, 10), 1.0),
            Target(Shape("NormalWishart", 10_000, 20, 5), 0.7),
        ),
        ladder=Series("components", FULL, (50, 100, 200, 400)),
        top=Target(dataclasses.replace(FULL, components=400), 1.0, memory=15.0),
        command=FILES,
        series=(
            Series("sites", FULL, SITES),
            Series("sites", DIAGONAL, SITES),
            Series("components", FULL, COMPONENTS),
            Series("components", DIAGONAL, COMPONENTS),
            Series("dimension", FULL, (2, 3, 5, 10, 20, 30, 50)),
            Series("dimension", DIAGONAL, (2, 5, 10, 20, 50, 100, 200, 500, 1000)),
        ),
        effort=Effort(runs=5, budget=6.0, limit=limit, threads=threads),
    )


def quick(limit: int, threads: int) -> Plan:
    """A few small points: that everything runs, not how fast."""
    base = dataclasses.replace(FULL, sites=3, dimension=2)
    return Plan(
        compared=(
            Compared("klfusion", small(2, 2), 1, goal=600.0),
            Compared("spahm", small(2, 2), 1, goal=3.0),
        ),
        targets=(Target(Shape("NormalWishart", 20, 5, 3), 1.0),),
        ladder=Series("components", base, (2, 4)),
        top=Target(dataclasses.replace(base, components=4), 1.5, memory=30.0),
        command=dataclasses.replace(FILES, shape=small(2, 2)),
        series=(Series("sites", dataclasses.replace(FULL, dimension=2), (3, 6)),),
        effort=Effort(runs=2, budget=0.5, limit=limit, threads=threads),
    )
