"""Local posteriors of the synthetic mixtures, fitted once and kept on disk.

Every method of figures 2 and 3 starts from the same local fits, and the fits take far longer than
the fusion: they are cached, one file a repetition, and a run that was stopped goes on from there.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.random import SeedSequence, default_rng

from experiments import harness
from experiments.klfusion.generate import Array, Problem, generate

DEFAULT_CACHE = harness.CACHES / "klfusion-gmm"
RESTARTS = 16
SEPARATIONS = (0.0, 0.15, 0.3, 0.6, 0.9, 1.5)
HETEROGENEITIES = (0.0, 0.2, 0.5, 0.7, 1.0)


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


POINTS = (
    *(Point(2, i, value, 0.5) for i, value in enumerate(SEPARATIONS)),
    *(Point(3, i, 0.5, value) for i, value in enumerate(HETEROGENEITIES)),
)


@dataclass(frozen=True)
class SiteFit:
    """Variational posterior of a Gaussian mixture with K components in d dimensions.

    Names are scikit-learn's without the underscore. Component k has the Normal-Wishart posterior
    N(mu | means[k], (mean_precision[k] Lambda)^-1) W(Lambda | S_k, degrees_of_freedom[k]) with
    S_k^-1 = degrees_of_freedom[k] * covariances[k]; the prior is the same with `covariance_prior`
    as S_0^-1, *not* multiplied by its degrees of freedom: scikit-learn's default, the mean and
    covariance of the site's own data. Those of the first five lines have an axis of components.
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


NAMES = tuple(field.name for field in fields(SiteFit))
TRUTH = ("true_means", "true_covariances", "presence")


@dataclass(frozen=True)
class Repetition:
    """Local fits, the fit of the pooled data with the true number of components, and the truth:

    means (G, d), covariances (G, d, d), and which site (J, G) has which component.
    """

    sites: tuple[SiteFit, ...]
    oracle: SiteFit
    true_means: Array
    true_covariances: Array
    presence: Array


def seed_sequence(point: Point, repetition: int) -> SeedSequence:
    """The seed of one repetition; neither order nor number of repetitions changes it."""
    return SeedSequence((point.figure, point.index, repetition))


def draw_problem(point: Point, repetition: int) -> Problem:
    """The data of one repetition, drawn again from its seed (the cache holds only fits)."""
    rng = default_rng(seed_sequence(point, repetition))
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
    found = [np.asarray(getattr(model, f"{name}_"), dtype=np.float64) for name in NAMES[:-1]]
    return SiteFit(*found, np.asarray(len(data), dtype=np.float64))


def fitted(point: Point, repetition: int) -> dict[str, Array]:
    """One problem with fits of every site and of the oracle, each with its own fixed seed.

    Components of all sites are stacked, C in total. `component_site` (C,) gives the site of each;
    `means`, ... are the fields of `SiteFit` with leading axis C for components and J for what a
    site has once; `oracle_*` is the pooled fit; the other three are the truth.
    """
    problem = draw_problem(point, repetition)
    first, *seeds = map(int, seed_sequence(point, repetition).generate_state(len(problem.data) + 1))
    sizes = [len(means) for means in problem.local_means]
    sites = [fit_mixture(*own) for own in zip(problem.data, sizes, seeds, strict=True)]
    oracle = fit_mixture(problem.pooled, len(problem.means), first)
    arrays = {"component_site": np.repeat(np.arange(len(sites)), sizes)}
    for index, name in enumerate(NAMES):
        together = np.concatenate if index < 5 else np.stack
        arrays[name] = together([getattr(site, name) for site in sites])
        arrays[f"oracle_{name}"] = getattr(oracle, name)
    truth = problem.means, problem.covariances, problem.presence
    return arrays | dict(zip(TRUTH, truth, strict=True))


def cache_path(cache: Path, point: Point, repetition: int) -> Path:
    return cache / f"{point.name}-{repetition:03d}.npz"


def loaded(cache: Path, point: Point, number: int) -> Repetition:
    """One repetition, from its file if it is there."""
    fit = lambda: fitted(point, number)
    arrays = harness.kept_arrays(cache_path(cache, point, number), fit)
    own = arrays["component_site"]
    rows = [[own == j] * 5 + [j] * 6 for j in range(len(arrays["points"]))]
    sites = (SiteFit(*(arrays[n][r] for n, r in zip(NAMES, row, strict=True))) for row in rows)
    oracle = SiteFit(*(arrays[f"oracle_{name}"] for name in NAMES))
    return Repetition(tuple(sites), oracle, *(arrays[name] for name in TRUTH))


def load_point(cache: Path, point: Point, repetitions: int) -> Iterator[tuple[int, Repetition]]:
    """Numbers and fits of the first ``repetitions``."""
    return ((number, loaded(cache, point, number)) for number in range(repetitions))


def fill_cache(cache: Path, points: Sequence[Point], repetitions: int, processes: int = 2) -> None:
    """Fits what is missing, repetition by repetition over all points, in parallel processes.

    Safe to interrupt and to call again: finished repetitions stay and are not fitted twice.
    """
    from joblib import Parallel, delayed, parallel_config

    jobs = [(cache, point, number) for number in range(repetitions) for point in points]
    missing = [delayed(loaded)(*job) for job in jobs if not cache_path(*job).exists()]
    with parallel_config("loky", inner_max_num_threads=1):
        Parallel(processes if len(missing) > 1 else 1, verbose=5)(missing)
