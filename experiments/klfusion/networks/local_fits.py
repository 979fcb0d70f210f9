"""Who has which images, and local posteriors of networks, trained once and kept on disk by site.

All that is compared starts from the same local posteriors, and these take most of the time. A run
that was stopped goes on where it was; one process may fill a cache while another reads it.
"""

import itertools
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import harness
from experiments.data import Digits, Images, Integers
from posterity.errors import ConvergenceWarning
from posterity.ledger import Ledger
from posterity.networks import GaussianPrior, Horseshoe, Layers, train
from posterity.networks.priors import Prior

CACHE = Path(tempfile.gettempdir()) / "posterity-klfusion-networks"
PLACE = harness.Place(Path(__file__).parents[1] / "results", CACHE)
TEMPERED, PLAIN, HORSESHOE = "Gaussian, KL x 0.1", "Gaussian", "horseshoe, KL x 0.1"
LEAST = 50  # images of the smallest site: partitions with a smaller one are drawn again


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


def partition(
    labels: Integers, sites: int, concentration: float, rng: np.random.Generator
) -> list[Integers]:
    """Rows of each site: the images of each class are dealt out in Dirichlet proportions.

    A concentration of .1 gives a site few classes, 100 all alike.
    """
    for _ in itertools.count():
        dealt: list[list[Integers]] = [[] for _ in range(sites)]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(sites, concentration))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(int)
            for site, own in zip(dealt, np.split(rows, cuts), strict=True):
                site.append(own)
        found = [np.sort(np.concatenate(own)) for own in dealt]
        if min(map(len, found)) >= LEAST:
            break
    return found


@dataclass(frozen=True)
class Case:
    """One partition and how its sites train."""

    concentration: float = 0.8  # of the Dirichlet that deals classes to sites
    number: int = 0  # which partition; with concentration and sites, the seed
    sites: int = 5  # how many; 1 is the pooled fit
    setting: str = TEMPERED  # a key of :data:`SETTINGS`
    widths: tuple[int, ...] = (150,)  # hidden units, the sites in turn
    steps: int = 4000  # of training a site

    @property
    def name(self) -> str:
        words = [*self.setting.replace(",", "").split(), f"dirichlet{self.concentration:g}"]
        widths = "-".join(map(str, self.widths))
        words += [f"sites{self.sites}", f"widths{widths}", f"steps{self.steps}", str(self.number)]
        return "-".join(words)

    def rows(self, labels: Integers) -> list[Integers]:
        if self.sites == 1:
            return [np.arange(len(labels))]
        seed = (self.number, self.sites, round(1000 * self.concentration))
        return partition(labels, self.sites, self.concentration, np.random.default_rng(seed))


def trained(name: str, layers: Layers, x: Images, y: Integers, **options: Any) -> Ledger:
    """A site's posterior, as its ledger, after as many steps as are asked for."""
    with warnings.catch_warnings():
        # What is compared was all trained alike.
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.process_time()
        found = train(layers, (x, y), **options).ledger(name)
        print(f"{name}, {len(y)} images, {time.process_time() - start:.0f} CPU s", flush=True)
        return found


def local_fits(cache: Path, case: Case, digits: Digits) -> dict[str, Ledger]:
    """Ledgers of all sites of a case by name, from the cache where they are there."""
    setting, classes = SETTINGS[case.setting], int(digits.y_train.max()) + 1
    options = {"prior": setting.prior, "temperature": setting.temperature, "steps": case.steps}
    found = {}
    for site, rows in enumerate(case.rows(digits.y_train)):

        def make(site: int = site, rows: Integers = rows) -> Ledger:
            x = digits.x_train[rows].reshape(len(rows), -1)
            layers = Layers.dense(x.shape[1], case.widths[site % len(case.widths)], classes)
            key = jax.random.fold_in(jax.random.key(case.number), site)
            more = {"key": key, "learning_rate": setting.learning_rate, **options}
            return trained(f"site {site}", layers, x, digits.y_train[rows], **more)

        path = cache / case.name / f"site{site}.safetensors"
        found[f"site {site}"] = harness.kept_object(path, make)
    return found
