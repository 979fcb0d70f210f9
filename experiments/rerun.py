"""Measure anew what is older than the code: ``python -m experiments.rerun --minutes 150``.

Goes through :data:`RUNS`, the short ones first, several at a time, each in a process of its own
that begins from nothing and keeps its parts under ``.cache/rerun`` by the contents of the code
that it depends on. What was stopped goes on where it was; a results file is replaced when its run
has ended, and with it the tables of READMEs. Benchmarks are not among them: they want the machine
alone.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from experiments import harness, pages, provenance
from experiments.data import REPOSITORY

CACHE = harness.CACHES / "rerun"
RUNS = {
    "continual/unseen": "continual.run --seeds 0 1 2 3 4",
    "pursuit/schedules": "pursuit.schedules",
    "privacy/expected": "privacy.run",
    "personal/one_shot": "personal.one_shot",
    "personal/expected": "personal.__main__",
    "pursuit/two_modes": "pursuit.two_modes",
    "forgetting/expected": "forgetting.run",
    "bfi/expected": "bfi.run",
    "robustness/situations": "robustness.situations --first 6000",
    "robustness/mixtures": "robustness.mixtures",
    "robustness/dimensions": "robustness.dimensions",
    "klfusion/margins": "klfusion.margins",
    "dark_knowledge/doubt": "dark_knowledge.doubt",
    "dark_knowledge/worth": "dark_knowledge.worth",
    "dark_knowledge/pipeline": "dark_knowledge.pipeline",
    "dark_knowledge/mnist": "dark_knowledge.mnist",
    "dark_knowledge/toy1d": "dark_knowledge.toy1d",
    "dark_knowledge/toy2d": "dark_knowledge.toy2d",
    "heart/expected": "heart.run",
    "gfvl/expected": "gfvl.run",
    "klfusion/topics": "klfusion.topics",
    "klfusion/mocap": "klfusion.mocap",
    "klfusion/networks": "klfusion.networks.run",
    "klfusion/apart": "klfusion.networks.apart",
    "klfusion/deep": "klfusion.networks.deep",
    "pursuit/densities": "pursuit.densities",
    "pursuit/incremental": "pursuit.incremental",
    "pursuit/modes": "pursuit.modes",
    "klfusion/expected": "klfusion.gmm",
    "robustness/unfinished": "robustness.unfinished",
    "robustness/processors": "robustness.processors",
    "pursuit/gym": "pursuit.gym",
    "robustness/users": "robustness.run --group users --count 2000",
    "robustness/expected": "robustness.run --count 300",
    "dark_knowledge/mnist-paper": "dark_knowledge.mnist --paper --seeds 0 1 2 3 4",
    "dark_knowledge/regression": "dark_knowledge.regression",
}
"""Commands by the results file that each writes, the short ones first."""


class Run(NamedTuple):
    """A results file of ``RUNS`` and the command, with its arguments, that writes it."""

    name: str
    command: str

    @property
    def module(self) -> str:
        """Return the module that is run."""
        return f"experiments.{self.command.split()[0]}"

    @property
    def file(self) -> Path:
        """Return the results file."""
        folder, _, stem = self.name.partition("/")
        return REPOSITORY / "experiments" / folder / "results" / f"{stem}.json"

    @property
    def folder(self) -> Path:
        """Return where its parts are kept: by the code that it depends on and by its arguments."""
        digest = hashlib.sha256(self.command.encode())
        for path in sorted(provenance.sources(self.module)):
            digest.update(path.read_bytes())
        return CACHE / f"{self.name.replace('/', '-')}-{digest.hexdigest()[:12]}"

    def arguments(self) -> list[str]:
        """Return the command line: results, and parts if the module keeps any, in its folder."""
        words = [sys.executable, "-m", self.module]
        helped = subprocess.run([*words, "--help"], capture_output=True, text=True, check=True)
        words += self.command.split()[1:]
        words += ["--results", str(self.folder / "results")]
        if "--cache" in helped.stdout:
            words += ["--cache", str(self.folder / "parts")]
        return words

    def measure(self, end: float) -> str:
        """Run until it has ended or until ``end`` of the monotonic clock; return what happened."""
        left = end - time.monotonic()
        if left <= 0:
            return "not begun: no time is left"
        self.folder.mkdir(parents=True, exist_ok=True)
        alone = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder)}
        with (self.folder / "log.txt").open("a") as log:
            try:
                ended = subprocess.run(
                    self.arguments(), stdout=log, stderr=log, env=alone, timeout=left
                )
            except subprocess.TimeoutExpired:
                return "stopped: no time is left; its parts are kept"
        if ended.returncode:
            return f"failed; see {log.name}"
        shutil.copytree(self.folder / "results", self.file.parent, dirs_exist_ok=True)
        return "written"


def old(only: tuple[str, ...]) -> Iterator[Run]:
    """Yield the runs whose results are older than their code, those whose names have such words."""
    for name, command in RUNS.items():
        run = Run(name, command)
        asked = not only or any(word in name for word in only)
        if asked and not (run.file.exists() and provenance.age(run.file).changed == ()):
            yield run


def run(*, workers: int = 2, minutes: float = 1e6, only: tuple[str, ...] = ()) -> None:
    """Measure, ``workers`` at a time, for so many minutes, and print what became of each."""
    end = time.monotonic() + 60 * minutes
    with ThreadPoolExecutor(workers) as pool:
        waiting = {own.name: pool.submit(own.measure, end) for own in old(only)}
        for name, outcome in waiting.items():
            print(name, outcome.result(), flush=True)
            pages.run()


if __name__ == "__main__":
    harness.command(run)
