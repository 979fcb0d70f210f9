"""Local posteriors of networks, trained once and kept on disk, one file a site.

All that is compared starts from the same local posteriors, and these take most of the time. A run
that was stopped goes on where it was; one process may fill a cache while another reads it.
`python -m experiments.klfusion.networks.local_fits --help`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

import posterity
from experiments.data import Digits, Images, Integers, mnist
from experiments.klfusion.networks.partitions import partition
from posterity.errors import ConvergenceWarning
from posterity.ledger import Ledger
from posterity.networks import GaussianPrior, Horseshoe, Layers, train
from posterity.networks.priors import Prior

DEFAULT_CACHE = Path(tempfile.gettempdir()) / "posterity-klfusion-networks"
TEMPERED, PLAIN, HORSESHOE = "Gaussian, KL x 0.1", "Gaussian", "horseshoe, KL x 0.1"


@dataclass(frozen=True)
class Setting:
    """How a site trains."""

    prior: Prior
    temperature: float
    learning_rate: float


GAUSSIAN = GaussianPrior(variance=(0.01, 0.09))
SETTINGS = {
    TEMPERED: Setting(GAUSSIAN, 0.1, 5e-3),
    PLAIN: Setting(GAUSSIAN, 1.0, 5e-3),
    HORSESHOE: Setting(Horseshoe(), 0.1, 1e-2),
}


@dataclass(frozen=True)
class Case:
    """One partition and how its sites train.

    Attributes:
        concentration: of the Dirichlet that deals classes to sites.
        number: which partition; with concentration and sites, the seed.
        sites: how many; 1 is the pooled fit.
        setting: a key of :data:`SETTINGS`.
        widths: hidden units, the sites in turn.
        steps: of training a site.
    """

    concentration: float = 0.8
    number: int = 0
    sites: int = 5
    setting: str = TEMPERED
    widths: tuple[int, ...] = (150,)
    steps: int = 4000

    @property
    def name(self) -> str:
        """Of its folder in the cache."""
        words = [*self.setting.replace(",", "").split(), f"dirichlet{self.concentration:g}"]
        widths = "-".join(map(str, self.widths))
        words += [f"sites{self.sites}", f"widths{widths}", f"steps{self.steps}", str(self.number)]
        return "-".join(words)

    def rows(self, labels: Integers, least: int = 50) -> list[Integers]:
        """The training images of each site."""
        if self.sites == 1:
            return [np.arange(len(labels))]
        seed = (self.number, self.sites, round(1000 * self.concentration))
        rng = np.random.default_rng(seed)
        return partition(labels, self.sites, self.concentration, rng, least)

    def layers(self, site: int, inputs: int, classes: int) -> Layers:
        """Of the network that a site trains."""
        return Layers.dense(inputs, self.widths[site % len(self.widths)], classes)


def local_fit(case: Case, site: int, x: Images, y: Integers, classes: int) -> Ledger:
    """The posterior of one site, as its ledger, from its own images (n, ...) and labels."""
    setting = SETTINGS[case.setting]
    x = x.reshape(len(x), -1)
    with warnings.catch_warnings():
        # As many steps as were asked for: what is compared was all trained alike.
        warnings.simplefilter("ignore", ConvergenceWarning)
        trained = train(
            case.layers(site, x.shape[1], classes),
            (x, y),
            key=jax.random.fold_in(jax.random.key(case.number), site),
            prior=setting.prior,
            temperature=setting.temperature,
            learning_rate=setting.learning_rate,
            steps=case.steps,
        )
    return trained.ledger(f"site {site}")


def local_fits(cache: Path, case: Case, digits: Digits) -> dict[str, Ledger]:
    """Ledgers of all sites of a case by name, from the cache where they are there."""
    classes = int(digits.y_train.max()) + 1
    for site, rows in enumerate(case.rows(digits.y_train)):
        path = _path(cache, case, site)
        if not path.exists():
            start = time.process_time()
            ledger = local_fit(case, site, digits.x_train[rows], digits.y_train[rows], classes)
            _save(ledger, path)
            seconds = time.process_time() - start
            print(f"{case.name}: site {site}, {len(rows)} images, {seconds:.0f} CPU s", flush=True)
    paths = [_path(cache, case, site) for site in range(case.sites)]
    return {f"site {site}": posterity.load(path) for site, path in enumerate(paths)}


def _path(cache: Path, case: Case, site: int) -> Path:
    return cache / case.name / f"site{site}.safetensors"


def _save(ledger: Ledger, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial.safetensors")
    posterity.save(ledger, partial)
    partial.replace(path)


def fill(cache: Path, cases: Iterable[Case], digits: Digits) -> None:
    """Train what is missing."""
    for case in cases:
        local_fits(cache, case, digits)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fills the cache of one setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder of the fits")
    parser.add_argument("--setting", choices=tuple(SETTINGS), default=TEMPERED)
    parser.add_argument("--concentration", type=float, default=0.8)
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--widths", type=int, nargs="+", default=[150])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--partitions", type=int, nargs=2, default=[0, 10], help="from, up to")
    own = parser.parse_args(arguments)
    kinds = (own.sites, own.setting, tuple(own.widths), own.steps)
    cases = [Case(own.concentration, number, *kinds) for number in range(*own.partitions)]
    fill(own.cache, cases, mnist())


if __name__ == "__main__":
    main()
