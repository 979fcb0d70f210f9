"""Table 2, figures 1 and 5 of the paper: `python -m experiments.klfusion.networks.run`.

Five sites with other shares of MNIST's digits each train a Bayesian network; the networks are fused
in several ways. Writes `networks.json`, `networks-figure1.png` and `networks-figure5.png` into the
results of this experiment. Local posteriors and what was measured of each partition are kept under
the cache folder: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import harness
from experiments.data import Digits, font_digits, mnist
from experiments.klfusion.networks import figures
from experiments.klfusion.networks.evaluate import PARTS, Effort, Rows, Trial
from experiments.klfusion.networks.local_fits import DEFAULT_CACHE, Case, local_fits
from experiments.klfusion.networks.studies import MAIN, Study, studies
from experiments.klfusion.networks.summary import summarise

RESULTS = Path(__file__).parents[1] / "results"
OURS = ("fused", "capped", "rounds", "options")
"""Parts that change with the library: `--again` measures them anew."""


def run(
    chosen: Mapping[str, Study],
    digits: Digits,
    strange: tuple[Any, Any],
    *,
    cache: Path,
    results: Path,
    effort: Effort,
    again: Sequence[str] = (),
    report: bool = False,
) -> dict[str, Any]:
    """Train, measure, judge, draw and write; returns what `networks.json` holds.

    With ``report`` nothing new is measured: what the cache has is judged.
    """
    start = time.process_time()
    measured = {}
    for name, study in chosen.items():
        for number in range(study.partitions):
            trial = _Lazy(replace(study.case, number=number), digits, strange, effort, cache)
            parts = study.parts + (study.rarely if number < study.rare else ())
            rows = {}
            for part in parts:
                if not report or trial.path(part).exists():
                    rows |= trial.measured(part, rows, anew=part in again)
            if not rows:
                continue
            measured.setdefault(name, []).append(rows)
            print(f"{name}: partition {number + 1} of {study.partitions}", flush=True)
    summary = summarise(measured)
    if not report:
        summary["CPU minutes of this run"] = round((time.process_time() - start) / 60, 1)
    harness.write(results, "networks", summary)
    first = _Lazy(chosen[MAIN].case, digits, strange, effort, cache).trial
    figures.figure1(first, results)
    figures.figure5(measured[MAIN], results)
    return summary


class _Lazy:
    """A partition whose sites are trained, or read, only if something of it is not yet measured."""

    def __init__(
        self, case: Case, digits: Digits, strange: tuple[Any, Any], effort: Effort, cache: Path
    ):
        self.case, self.digits, self.strange = case, digits, strange
        self.effort, self.cache = effort, cache
        self._trial: Trial | None = None

    @property
    def trial(self) -> Trial:
        if self._trial is None:
            sites = local_fits(self.cache, self.case, self.digits)
            self._trial = Trial(self.case, sites, self.digits, *self.strange, self.effort)
        return self._trial

    def path(self, part: str) -> Path:
        return self.cache / self.case.name / f"{part.replace(' ', '-')}.json"

    def measured(self, part: str, known: Rows, *, anew: bool = False) -> Rows:
        path = self.path(part)
        if path.exists() and not anew:
            return json.loads(path.read_text())
        with warnings.catch_warnings():
            # A width that does not meet the tolerance stands in the results.
            warnings.filterwarnings("ignore", message="widths .* still predict")
            rows = PARTS[part](self.trial, known)
        harness.replace(path, json.dumps(rows, indent=1) + "\n")
        return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, DEFAULT_CACHE)
    parser.add_argument("--partitions", type=int, default=10, help="of the main study")
    parser.add_argument("--others", type=int, default=2, help="about as many of each other study")
    parser.add_argument("--rare", type=int, default=3, help="of these, with what takes long")
    parser.add_argument("--studies", nargs="+", help="names of some of them; the main one is")
    parser.add_argument("--again", action="store_true", help="measure fusing anew")
    own = parser.parse_args(arguments)
    chosen = studies(own.partitions, own.others, own.rare)
    chosen = {n: s for n, s in chosen.items() if not own.studies or n in [MAIN, *own.studies]}
    fonts = font_digits()
    summary = run(
        chosen,
        mnist(),
        (fonts.x, fonts.y),
        cache=own.cache,
        results=own.results,
        effort=Effort(),
        again=OURS if own.again else (),
        report=own.only_kept,
    )
    print(json.dumps(summary["goals"], indent=1))


if __name__ == "__main__":
    main()
