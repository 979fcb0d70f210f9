"""The synthetic mixtures behind figures 2 and 3 of KL-fusion, and the sites' posteriors of them.

Source: claici2020, section 5, completed by the generator that the authors released. Every method
starts from the same local fits, which take far longer than the fusion: they are cached, one file a
repetition, and a run that was stopped goes on from there.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from experiments import harness

Array = np.ndarray
PROPORTION_CONCENTRATION = 10.0
WISHART_DEGREES_PER_DIMENSION = 100


@dataclass(frozen=True)
class Problem:
    """One draw of the generating process: the truth and what each site saw."""

    means: Array  # (G, d), means of the global components that at least one site uses
    covariances: Array  # (G, d, d), their covariances
    presence: Array  # (J, G) booleans, which site has which component
    # J arrays (L_j, d), a site's own, perturbed means, in the order of `presence`
    local_means: tuple[Array, ...]
    data: tuple[Array, ...]  # J arrays (points, d), the observations of each site

    @property
    def pooled(self) -> Array:
        """All observations stacked, (J * points, d): what an oracle without silos would see."""
        return np.concatenate(self.data)


def generate(
    rng: Generator, separation: float, heterogeneity: float, sites: int = 10, points: int = 300
) -> Problem:
    """Three global components of two dimensions, of which each site has some, perturbed; and data.

    Where the paper is silent the released generator decides: `3 separation` is the *variance* of
    the global means, `heterogeneity` the *standard deviation* of a site's shift of each mean;
    component l is present at a site with probability p_l ~ Beta(1, 1), and a site redraws until it
    has two; components that no site drew are not part of the truth.
    """
    components, dim = 3, 2
    means = rng.normal(0.0, np.sqrt(separation * components), (components, dim))
    covariances = np.stack([elongated_covariance(rng, dim, index) for index in range(components)])
    presence = draw_presence(rng, sites, components)
    local_means, data = [], []
    for present in presence:
        centres = rng.normal(means[present], heterogeneity)
        shapes = perturb_covariances(rng, covariances[present])
        local_means.append(centres)
        data.append(sample_mixture(rng, centres, shapes, points))
    used = presence.any(axis=0)
    seen = presence[:, used], tuple(local_means), tuple(data)
    return Problem(means[used], covariances[used], *seen)


def elongated_covariance(rng: Generator, dim: int, index: int) -> Array:
    """U (sqrt(1 + index) 11' + diag(min(s, 1))) U' with U, s from the SVD of a random A'A.

    The released code adds the scalar to every entry, not only to the diagonal; that makes the
    components elongated, and more so the higher their index.
    """
    factor = rng.normal(size=(dim, dim))
    left, singular, right = np.linalg.svd(factor.T @ factor)
    covariance = left @ (np.sqrt(1.0 + index) + np.diag(np.minimum(singular, 1.0))) @ right
    return 0.5 * (covariance + covariance.T)


def draw_presence(rng: Generator, sites: int, components: int) -> Array:
    """(J, L) booleans; every site has at least two components."""
    probabilities, rows = rng.beta(1.0, 1.0, components), []
    while len(rows) < sites:
        row = rng.random(components) < probabilities
        if row.sum() >= 2:
            rows.append(row)
    return np.stack(rows)


def perturb_covariances(rng: Generator, covariances: Array) -> Array:
    """Wishart draws (K, d, d) with mean `covariances` and 100 d degrees of freedom."""
    dim = covariances.shape[-1]
    degrees = WISHART_DEGREES_PER_DIMENSION * dim
    normals = rng.normal(size=(len(covariances), degrees, dim))
    rows = normals @ np.linalg.cholesky(covariances).swapaxes(-1, -2)
    return rows.swapaxes(-1, -2) @ rows / degrees


def sample_mixture(rng: Generator, means: Array, covariances: Array, points: int) -> Array:
    """`points` draws (points, d) from the mixture with Dirichlet(10) proportions."""
    proportions = rng.dirichlet(np.full(len(means), PROPORTION_CONCENTRATION))
    labels = rng.choice(len(means), size=points, p=proportions)
    factors = np.linalg.cholesky(covariances)
    noise = rng.normal(size=(points, means.shape[1]))
    return means[labels] + np.einsum("nij,nj->ni", factors[labels], noise)


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

    Names are scikit-learn's without the underscore; all have an axis of components. Component k has
    the Normal-Wishart posterior N(mu | means[k], (mean_precision[k] Lambda)^-1)
    W(Lambda | S_k, degrees_of_freedom[k]) with S_k^-1 = degrees_of_freedom[k] * covariances[k].
    """

    means: Array
    mean_precision: Array
    degrees_of_freedom: Array
    covariances: Array
    weight_concentration: Array


NAMES = tuple(field.name for field in fields(SiteFit))


@dataclass(frozen=True)
class Repetition:
    """Local fits, the fit of the pooled data with the true number of components, and true means."""

    sites: tuple[SiteFit, ...]
    oracle: SiteFit
    true_means: Array


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
    return SiteFit(*(np.asarray(getattr(model, f"{name}_"), np.float64) for name in NAMES))


def fitted(point: Point, repetition: int) -> dict[str, Array]:
    """One problem with fits of every site and of the oracle, each with its own fixed seed.

    Components of all sites are stacked; `component_site` gives the site of each.
    """
    problem = draw_problem(point, repetition)
    first, *seeds = map(int, seed_sequence(point, repetition).generate_state(len(problem.data) + 1))
    sizes = [len(means) for means in problem.local_means]
    sites = [fit_mixture(*own) for own in zip(problem.data, sizes, seeds, strict=True)]
    oracle = fit_mixture(problem.pooled, len(problem.means), first)
    arrays = {"component_site": np.repeat(np.arange(len(sites)), sizes)}
    for name in NAMES:
        arrays[name] = np.concatenate([getattr(site, name) for site in sites])
        arrays[f"oracle_{name}"] = getattr(oracle, name)
    return {**arrays, "true_means": problem.means}


def cache_path(cache: Path, point: Point, repetition: int) -> Path:
    return cache / f"{point.name}-{repetition:03d}.npz"


def loaded(cache: Path, point: Point, number: int) -> Repetition:
    """One repetition, from its file if it is there."""
    fit = lambda: fitted(point, number)
    arrays = harness.kept_arrays(cache_path(cache, point, number), fit)
    own = arrays["component_site"]
    sites = (SiteFit(*(arrays[name][own == j] for name in NAMES)) for j in range(own[-1] + 1))
    oracle = SiteFit(*(arrays[f"oracle_{name}"] for name in NAMES))
    return Repetition(tuple(sites), oracle, arrays["true_means"])


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
