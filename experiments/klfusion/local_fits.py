"""Local posteriors of the synthetic mixtures, fitted once and kept on disk.

Every method of figures 2 and 3 starts from the same local fits, and the fits take far longer than
the fusion: they are cached, one file a repetition, and a run that was stopped goes on from there.
Run `python -m experiments.klfusion.local_fits --help`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from experiments.klfusion.generate import Array, Problem, generate

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_CACHE = REPOSITORY / ".cache" / "klfusion-gmm"
RESTARTS = 16
SEPARATIONS = (0.0, 0.15, 0.3, 0.6, 0.9, 1.5)
HETEROGENEITIES = (0.0, 0.2, 0.5, 0.7, 1.0)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Point:
    """One abscissa of a figure: figure 2 varies the separation, figure 3 the heterogeneity."""

    figure: int
    index: int
    separation: float
    heterogeneity: float

    @property
    def name(self) -> str:
        """Stem of the cache files, for example `figure2-separation0.15-heterogeneity0.5`."""
        return (
            f"figure{self.figure}-separation{self.separation:g}-heterogeneity{self.heterogeneity:g}"
        )


POINTS = tuple(Point(2, i, value, 0.5) for i, value in enumerate(SEPARATIONS)) + tuple(
    Point(3, i, 0.5, value) for i, value in enumerate(HETEROGENEITIES)
)


@dataclass(frozen=True)
class SiteFit:
    """Variational posterior of a Gaussian mixture with K components in d dimensions.

    Names are scikit-learn's without the underscore. Component k has the Normal-Wishart posterior
    N(mu | means[k], (mean_precision[k] Lambda)^-1) W(Lambda | S_k, degrees_of_freedom[k]) with
    S_k^-1 = degrees_of_freedom[k] * covariances[k]; the prior is the same with `covariance_prior`
    as S_0^-1, *not* multiplied by its degrees of freedom.

    Attributes:
        means: (K, d).
        mean_precision: (K,).
        degrees_of_freedom: (K,).
        covariances: (K, d, d).
        weight_concentration: (K,), Dirichlet posterior of the proportions.
        mean_prior: (d,), scikit-learn's default: the mean of the site's own data.
        mean_precision_prior: ().
        degrees_of_freedom_prior: ().
        covariance_prior: (d, d), scikit-learn's default: the covariance of the site's own data.
        weight_concentration_prior: ().
        points: (), observations behind the fit.
    """

    means: Array
    mean_precision: Array
    degrees_of_freedom: Array
    covariances: Array
    weight_concentration: Array
    mean_prior: Array
    mean_precision_prior: Array
    degrees_of_freedom_prior: Array
    covariance_prior: Array
    weight_concentration_prior: Array
    points: Array


COMPONENT_FIELDS = tuple(field.name for field in fields(SiteFit))[:5]
SITE_FIELDS = tuple(field.name for field in fields(SiteFit))[5:]


@dataclass(frozen=True)
class Repetition:
    """What a method needs and what it is measured against.

    Attributes:
        sites: the local fits.
        oracle: the fit of the pooled data with the true number of components.
        true_means: (G, d).
        true_covariances: (G, d, d).
        presence: (J, G) booleans.
    """

    sites: tuple[SiteFit, ...]
    oracle: SiteFit
    true_means: Array
    true_covariances: Array
    presence: NDArray[np.bool_]


def seed_sequence(point: Point, repetition: int) -> SeedSequence:
    """The seed of one repetition; neither order nor number of repetitions changes it."""
    return SeedSequence((point.figure, point.index, repetition))


def draw_problem(point: Point, repetition: int) -> Problem:
    """The data of one repetition, drawn again from its seed (the cache holds only fits)."""
    return _draw(point, default_rng(seed_sequence(point, repetition)))


def _draw(point: Point, rng: Generator) -> Problem:
    return generate(rng, point.separation, point.heterogeneity)


def fit_mixture(data: Array, components: int, seed: int) -> SiteFit:
    """Fits a variational Gaussian mixture to (n, d) observations, best of 16 restarts.

    Settings are the paper's released ones: full covariances, finite Dirichlet proportions and
    scikit-learn's default (data-dependent) prior and stopping rule.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import BayesianGaussianMixture

    model = BayesianGaussianMixture(
        n_components=components,
        covariance_type="full",
        weight_concentration_prior_type="dirichlet_distribution",
        n_init=RESTARTS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        # The default 100 iterations are part of the protocol; a slow tail of EM is expected.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(data)
    names = COMPONENT_FIELDS + SITE_FIELDS[:-1]
    values = {name: np.asarray(getattr(model, f"{name}_"), dtype=np.float64) for name in names}
    return SiteFit(**values, points=np.asarray(len(data), dtype=np.float64))


def fit_repetition(point: Point, repetition: int) -> Repetition:
    """Draws one problem and fits every site and the oracle, each with its own fixed seed."""
    problem = draw_problem(point, repetition)
    states = seed_sequence(point, repetition).generate_state(len(problem.data) + 1)
    sites = tuple(
        fit_mixture(data, len(means), int(state))
        for data, means, state in zip(problem.data, problem.local_means, states[1:], strict=True)
    )
    oracle = fit_mixture(problem.pooled, len(problem.means), int(states[0]))
    return Repetition(sites, oracle, problem.means, problem.covariances, problem.presence)


def cache_path(cache: Path, point: Point, repetition: int) -> Path:
    """`<cache>/<point name>-<repetition>.npz`."""
    return cache / f"{point.name}-{repetition:03d}.npz"


def save_repetition(path: Path, repetition: Repetition) -> None:
    """Writes one repetition as plain arrays; a reader never sees half a file.

    Layout: the components of all sites are stacked, C in total. `component_site` (C,) gives the
    site of each; `means`, `mean_precision`, ... are the fields of `SiteFit` with leading axis C for
    components and J for what a site has once; `oracle_*` is the pooled fit; `true_means`,
    `true_covariances` and `presence` are the truth.
    """
    sites = repetition.sites
    sizes = [len(site.means) for site in sites]
    arrays = {"component_site": np.repeat(np.arange(len(sites)), sizes)}
    for name in COMPONENT_FIELDS:
        arrays[name] = np.concatenate([getattr(site, name) for site in sites])
    for name in SITE_FIELDS:
        arrays[name] = np.stack([getattr(site, name) for site in sites])
    for name in COMPONENT_FIELDS + SITE_FIELDS:
        arrays[f"oracle_{name}"] = getattr(repetition.oracle, name)
    for name in ("true_means", "true_covariances", "presence"):
        arrays[name] = getattr(repetition, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)
    partial.replace(path)


def load_repetition(path: Path) -> Repetition:
    """Reads what `save_repetition` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    number = len(arrays["points"])
    sites = tuple(_site(arrays, arrays["component_site"] == j, j) for j in range(number))
    oracle = SiteFit(**{name: arrays[f"oracle_{name}"] for name in COMPONENT_FIELDS + SITE_FIELDS})
    truth = (arrays["true_means"], arrays["true_covariances"], arrays["presence"])
    return Repetition(sites, oracle, *truth)


def _site(arrays: dict[str, Array], own: NDArray[np.bool_], index: int) -> SiteFit:
    components = {name: arrays[name][own] for name in COMPONENT_FIELDS}
    return SiteFit(**components, **{name: arrays[name][index] for name in SITE_FIELDS})


def load_point(cache: Path, point: Point, repetitions: int) -> Iterator[tuple[int, Repetition]]:
    """Yields (number, repetition) for those of the first `repetitions` that are in the cache."""
    for repetition in range(repetitions):
        path = cache_path(cache, point, repetition)
        if path.exists():
            yield repetition, load_repetition(path)


def fill_cache(cache: Path, points: Sequence[Point], repetitions: int, processes: int = 2) -> None:
    """Fits what is missing, repetition by repetition over all points, in parallel processes.

    Safe to interrupt and to call again: finished repetitions stay and are not fitted twice.
    """
    from rich.progress import track

    jobs = [(point, repetition) for repetition in range(repetitions) for point in points]
    missing = [job for job in jobs if not cache_path(cache, *job).exists()]
    # Children read these when they load their linear algebra; one thread each, or they compete.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_ignore_interrupt)
    try:
        futures = [pool.submit(_fit_and_save, cache, *job) for job in missing]
        description = f"local fits ({len(jobs) - len(missing)} of {len(jobs)} cached)"
        for future in track(as_completed(futures), description, total=len(futures)):
            future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupt() -> None:
    # The parent gets the interrupt, cancels what waits and lets running fits end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _fit_and_save(cache: Path, point: Point, repetition: int) -> None:
    save_repetition(cache_path(cache, point, repetition), fit_repetition(point, repetition))


def main() -> None:
    """Command line: fills the cache for all points of figures 2 and 3."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder of the fits")
    parser.add_argument("--repetitions", type=int, default=32, help="repetitions a point")
    parser.add_argument("--processes", type=int, default=2, help="parallel processes")
    arguments = parser.parse_args()
    fill_cache(arguments.cache, POINTS, arguments.repetitions, arguments.processes)


if __name__ == "__main__":
    main()
