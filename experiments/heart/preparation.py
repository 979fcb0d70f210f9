"""Four hospitals' design matrices, each made from its own patients alone.

No statistic of any patient enters: every centre, unit, code and imputed value is a round number of
clinical knowledge, fixed before the data are seen, so nothing but a hospital's posterior travels.

**Missing values.** A measurement that was not made becomes the constant centre, and a column says
that it was not made: one each for blood pressure, cholesterol and blood sugar, and one for the
exercise test, whose three results are nearly always missing together. Missingness differs by
hospital: cholesterol is missing in all of Switzerland and 28 % of Long Beach. A missing ECG (2
patients) counts as normal.

**Left out**, as FLamby does (ogierduterrail2022): slope, ca and thal, which outside Cleveland are
missing in 14 to 99 % of patients.
"""

import zlib
from typing import NamedTuple

import numpy as np

from experiments.data import HeartDisease, Integers
from posterity.errors import ParameterError

Array = np.ndarray

# Names of the sites, in the order of ``HeartDisease.center``.
SITES = ("cleveland", "hungary", "switzerland", "va")
# (centre, unit) of a middle-aged patient who is sent to angiography: years, mm Hg, mg/dl, beats
# a minute, mm.
SCALES = {
    "age": (55.0, 10.0),
    "trestbps": (130.0, 20.0),
    "chol": (240.0, 50.0),
    "thalach": (140.0, 25.0),
    "oldpeak": (1.0, 1.0),
}
# Codes with a column each; the reference is asymptomatic (cp 4) and a normal ECG (restecg 0).
LEVELS = {"cp": (1, 2, 3), "restecg": (1, 2)}
MISSING = {
    "trestbps_missing": ("trestbps",),
    "chol_missing": ("chol",),
    "fbs_missing": ("fbs",),
    "exercise_test_missing": ("thalach", "exang", "oldpeak"),
}
COLUMNS = (
    *("intercept", "age", "sex", "cp_1", "cp_2", "cp_3", "trestbps", "chol", "fbs"),
    *("restecg_1", "restecg_2", "thalach", "exang", "oldpeak"),
    *MISSING,
)
TRAIN_FRACTION = 0.66


class Split(NamedTuple):
    """One hospital's patients: (n, 18) features, columns as in ``COLUMNS``, and (n,) labels."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


def prepare(data: HeartDisease, *, seed: int = 0) -> dict[str, Split]:
    """Each site's training and held-out patients, float64, by name.

    66 % of each label of each site are for training, drawn from ``seed`` and the site's name only.
    """
    sites = {}
    for c, site in enumerate(SITES):
        mine = data.center == c
        train = stratified(data.y[mine], site, seed)
        x, y = design(data.X[mine], data.feature_names), data.y[mine].astype(np.float64)
        sites[site] = Split(x[train], y[train], x[~train], y[~train])
    return sites


def stratified(labels: Integers, site: str, seed: int) -> Array:
    """(n,) who trains: 66 % of the patients of each label, to the nearest one."""
    rng = np.random.default_rng([seed, zlib.crc32(site.encode())])
    train = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        train[rows[: round(TRAIN_FRACTION * len(rows))]] = True
    return train


def design(X: Array, feature_names: tuple[str, ...]) -> Array:
    """(n, 18) columns ``COLUMNS`` of the patients ``X``, (n, 13) with NaN where missing.

    Row by row: a patient's columns depend on that patient alone.

    Raises:
        ParameterError: if age, sex or chest pain is missing, for which no column says so.
    """
    known = dict(zip(feature_names, X.T, strict=True))
    for name in ("age", "sex", "cp"):
        if np.isnan(known[name]).any():
            raise ParameterError(
                found=f"a patient without {name}",
                expected="age, sex and cp of every patient",
                fix="Leave the patient out, or give the missing value a column in MISSING.",
            )
    columns = {name: known[name] for name in ("sex", "fbs", "exang")}
    columns["intercept"] = np.ones(len(X))
    for name, (centre, unit) in SCALES.items():
        columns[name] = (known[name] - centre) / unit
    for name, levels in LEVELS.items():
        columns |= {f"{name}_{level}": (known[name] == level) * 1.0 for level in levels}
    for name, parts in MISSING.items():
        columns[name] = np.any([np.isnan(known[part]) for part in parts], axis=0) * 1.0
    x = np.column_stack([columns[name] for name in COLUMNS])
    return np.where(np.isnan(x), 0.0, x)
