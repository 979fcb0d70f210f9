"""Time and peak memory of `posterity.fuse` on more sites than memory holds.

Run `python -m benchmarks.stream --help`; what is measured is in benchmarks/README.md. Each point is
measured by a process of its own: JSON in as the argument, JSON out.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import session
from benchmarks.launch import Effort, launch
from benchmarks.measure import answer, peak
from benchmarks.problems import Shape, draw, factors, normal_wishart
from experiments import provenance
from posterity import Plate, fuse
from posterity.arrays.tree import map_leaves
from posterity.artifact import container
from posterity.artifact.manifest import metadata_of, of_arrays
from posterity.artifact.tree import encode

CHUNK = 5000  # sites that are made at a time
BUDGET = 512 * 2**20


class Source:
    """All sites, a batch at a time; the CPU seconds that making them takes are counted apart."""

    def __init__(self, shape: Shape, seed: int):
        self.shape, self.seed, self.seconds = shape, seed, 0.0
        rng = np.random.default_rng(seed)
        spread = 4.0 * shape.globals_ ** (1 / shape.dimension)
        self.means = spread * rng.normal(size=(shape.globals_, shape.dimension))
        self.factors = factors(rng, shape)

    def __iter__(self) -> Iterator[Plate]:
        for start in range(0, self.shape.sites, CHUNK):
            before = time.process_time()
            batch = self.batch(start)
            self.seconds += time.process_time() - before
            yield batch

    def batch(self, start: int) -> Plate:
        rng = np.random.default_rng([self.seed, start])
        sites, size = min(CHUNK, self.shape.sites - start), self.shape.components
        every = np.broadcast_to(np.arange(self.shape.globals_), (sites, self.shape.globals_))
        pick = rng.permuted(every, axis=1)[:, :size].ravel()
        members = normal_wishart(rng, self.means[pick], self.factors[pick])
        return Plate(map_leaves(lambda leaf: leaf.reshape(sites, size, *leaf.shape[1:]), members))


def batches(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    fuse(draw(Shape(shape.family, 3, 3, shape.dimension), seed), budget=BUDGET)
    source, found = Source(shape, seed), []
    measured = peak(lambda: found.append(fuse(iter(source), budget=BUDGET)))
    measured["cpu_s"] -= source.seconds
    return {**measured, "making_s": source.seconds, **told(found[0])}


def beside_memory(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    sites = [one for batch in Source(shape, seed) for one in apart(batch)]
    found: list[Any] = []
    memory = peak(lambda: found.append(fuse(sites, matching="evidence")))
    stream = peak(lambda: found.append(fuse(sites, budget=BUDGET)))
    here, there = found[0].cost, found[1].cost
    return {
        "memory": {**memory, **told(found[0])},
        "stream": {**stream, **told(found[1])},
        "cost_off": there / here - 1,
    }


def of_files(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    found: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        index = 0
        for batch in Source(shape, seed):
            for one in apart(batch):
                write(one, Path(folder) / f"site-{index:07d}.safetensors")
                index += 1
        measured = peak(lambda: found.append(fuse(folder, budget=BUDGET)))
        size = sum(entry.stat().st_size for entry in os.scandir(folder))
    return {**measured, "bytes": size, **told(found[0])}


def told(fusion: Any) -> dict[str, Any]:
    return {"found": fusion.components, "cost": fusion.cost}


def apart(batch: Plate) -> list[Plate]:
    """The sites of a batch, each its own object."""
    return [batch[index] for index in range(batch.batch_shape[0])]


def write(plate: Plate, path: Path) -> None:
    """As `posterity.save` does, but not forced to disk, which a million files would wait for."""
    arrays: dict[str, np.ndarray] = {}
    tree = encode(plate, "", arrays)
    specs = {name: container.Spec(a.dtype.name, a.shape) for name, a in arrays.items()}
    with path.open("wb") as file:
        file.write(container.write_header(specs, metadata_of(tree, of_arrays(arrays), {})))
        for name in container.in_file_order(specs):
            file.write(container.as_bytes(arrays[name]))


OUTPUT = Path(__file__).parent / "results" / "stream.json"
SITES = (25_000, 50_000, 100_000, 200_000)
MILLION, FILES, BESIDE = 1_000_000, 100_000, 10_000
COMPONENTS, DIMENSION = 20, 5
SECONDS, BYTES, OFF = 60.0, 8e8, 1e-3


def run(effort: Effort, share: int, output: Path) -> dict[str, Any]:
    """Every point, with sizes divided by ``share``; what there is is written after each."""
    result: dict[str, Any] = {
        "settings": {
            provenance.KEY: provenance.made_with(),
            "source_sha256": session.source(),
            "load_at_start": session.load(),
        }
    }
    result["beside_memory"] = point("memory", BESIDE // share, effort)
    result["batches"] = []
    for sites in (*SITES, MILLION):
        result["batches"].append(point("batches", sites // share, effort))
        session.write(output, result)
    result["files"] = point("files", FILES // share, effort)
    result["settings"]["load_at_end"] = session.load()
    result["goals"] = goals(result)
    session.write(output, result)
    return result


def point(kind: str, sites: int, effort: Effort) -> dict[str, Any]:
    """One process, and a line on the terminal."""
    shape = Shape("NormalWishart", sites, COMPONENTS, DIMENSION)
    found = launch(kind, shape, effort, module="benchmarks.stream")
    ours = found.get("stream", found)
    seconds = f"{ours['cpu_s']:8.2f} s CPU" if "cpu_s" in ours else found["status"]
    memory = f"{ours.get('peak_bytes', 0) / 1e6:6.0f} MB"
    print(f"{kind:8} {sites:9} sites {seconds} {memory}", flush=True)
    return found


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    large = result["batches"][-1]
    rows = [
        (f"{large['sites']} sites, seconds of CPU time", large.get("cpu_s"), SECONDS),
        (f"{large['sites']} sites, bytes", large.get("peak_bytes"), BYTES),
        ("cost beside that in memory", abs(result["beside_memory"]["cost_off"]), OFF),
    ]
    return session.at_most(rows)


def main(arguments: list[str] | None = None) -> None:
    chosen = session.command_line(__doc__, OUTPUT, "a hundredth of the sizes").parse_args(arguments)
    effort = Effort(runs=1, budget=0.0, limit=chosen.limit)
    result = run(effort, 100 if chosen.quick else 1, chosen.output)
    session.tell(result["goals"])


if __name__ == "__main__" and not answer(
    Shape, {"batches": batches, "memory": beside_memory, "files": of_files}
):
    main()
