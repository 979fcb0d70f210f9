"""Four studies of sites that may differ: made up, of two kinds, hospitals, and writers.

Every site's columns are made from its own records alone, by constants fixed before the data are
seen. A study is drawn anew for each seed: the records themselves where they are made up, else who
trains and who is held out.
"""

import numpy as np
from scipy.fft import dctn
from scipy.special import expit

from experiments.data import heart_disease
from experiments.heart.preparation import Split, prepare

Array = np.ndarray

SPREADS = (0.0, 0.15, 0.3, 0.6, 1.2, 2.4)
POPULATION = np.array([0.3, 1.0, -1.0])
MADE_SITES, MADE_TRAIN, MADE_TEST = 12, 30, 200
CLUSTERS, CLUSTERED_TRAIN, CLUSTERED_TEST, CLUSTERED_COLUMNS = 29, 370, 200, 10
BLOCK = 50  # images a site: consecutive ones, which are mostly of one writer
FREQUENCIES = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))


Study = dict[str, Split]


def made(spread: float, seed: int) -> Study:
    """Logistic regressions whose coefficients have this standard deviation between sites.

    The same draws at every spread, stretched: what differs between spreads is not luck.
    """
    rng = np.random.default_rng([seed, 1])
    study = {}
    for k in range(MADE_SITES):
        own = POPULATION + spread * rng.normal(size=len(POPULATION))
        x = np.column_stack([np.ones(MADE_TRAIN + MADE_TEST), *rng.normal(size=(2, 230))])
        study[f"site {k:02d}"] = _split(rng, x, own, MADE_TRAIN)
    return study


def _split(rng: np.random.Generator, x: Array, coefficients: Array, train: int) -> Split:
    y = (rng.random(len(x)) < expit(x @ coefficients)).astype(float)
    return Split(x[:train], y[:train], x[train:], y[train:])


def clustered(seed: int) -> Study:
    """29 sites of 370 records and ten columns, spreads uniform from 0.1 to 0.8."""
    rng, d = np.random.default_rng([seed, 2]), CLUSTERED_COLUMNS
    center, spread = 0.7 * rng.normal(size=d), rng.uniform(0.1, 0.8, d)
    study = {}
    for k in range(CLUSTERS):
        own, n = center + spread * rng.normal(size=d), CLUSTERED_TRAIN + CLUSTERED_TEST
        x = np.column_stack([np.ones(n), rng.normal(size=(n, d - 1))])
        study[f"site {k:02d}"] = _split(rng, x, own, CLUSTERED_TRAIN)
    return study


def hospitals(seed: int) -> Study:
    """Heart disease at four hospitals: 920 patients, 18 columns (see experiments/heart)."""
    return prepare(heart_disease(), seed=seed)


def writers(seed: int) -> Study:
    """Is a handwritten digit odd? 35 sites of 50 consecutive images (scikit-learn's digits).

    The file goes from writer to writer (13 of them), so that sites differ in hand, and some share
    one. Columns: an intercept and six low frequencies of the image. Half of each site trains.
    """
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    waves: Array = dctn(images.reshape(-1, 8, 8) / 16 - 0.3, axes=(1, 2), norm="ortho")  # pyright: ignore[reportAssignmentType]
    columns = [waves[:, i, j] for i, j in FREQUENCIES]
    x = np.column_stack([np.ones(len(images)), *columns])
    y = (digits % 2).astype(float)
    study = {}
    for k in range(len(x) // BLOCK):
        order = BLOCK * k + np.random.default_rng([seed, k]).permutation(BLOCK)
        train, test = order[: BLOCK // 2], order[BLOCK // 2 :]
        study[f"block {k:02d}"] = Split(x[train], y[train], x[test], y[test])
    return study
