"""The main job, end to end: six sites fit mixtures to handwritten digits, and send only files.

No site has seen all ten digits. Each fits a Gaussian mixture with scikit-learn and writes its
posterior to a file; the files, and nothing else, are fused. What came out is compared with
every site on its own and with a fit to all the images together, which in life nobody could do.
"""

import dataclasses
import functools
import importlib
import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft
from jaxtyping import Float, Int

import posterity
from posterity.adapters.sklearn import to_estimator, to_ledger
from posterity.cli.streams import bar
from posterity.errors import ArtifactError, MissingExtraError
from posterity.plots import plot_matching

Array = np.ndarray
SITES, SIDE, DIGITS, HELD_OUT = 6, 8, 10, 450
"""Sites, pixels on a side of an image, digits, images that no site sees."""
HIGHEST = 4
"""Frequencies (i, j) with 0 < i + j <= 4 are kept: strokes, without lightness or fine detail, and
few enough for full covariances at a site with 150 images."""
INK = 1 / 3
"""The lightness that pictures are given, as the features leave it out."""
LOCAL, POOLED, RESTARTS = 12, 30, 4
"""Components offered to a site, and to the fit to all images; restarts of either."""
FUSED, PICTURE, REPORT = "fused.safetensors", "matching.png", "report.json"
"""Files besides one a site."""


def run(output: Path, *, seed: int = 0) -> dict[str, Any]:
    """Fit, write, read, fuse and compare; everything is left in the folder ``output``.

    Returns:
        What is kept as ``report.json``: a row for each site and for two posteriors of all data,
        ``fused`` and ``pooled``; and the ``ratio`` of their mutual information.

    Raises:
        MissingExtraError: scikit-learn or matplotlib is not installed.
        ArtifactError: the folder cannot be made or written to.
    """
    _check_extras()
    from threadpoolctl import threadpool_limits

    _make(output)
    # The matrices are tiny: on several threads, waiting takes far longer than multiplying.
    with threadpool_limits(1), bar("Sites fit their images", SITES + 2) as moved:
        data = deal(seed, SITES)
        for step, name in enumerate(data.seen):
            _write(name, data, output)
            moved(step + 1)
        found, fused = _fuse_files(output, list(data.seen))
        moved(SITES + 1)
        rows = [_score(name, ledger, data) for name, ledger in found.items()]
        total = {"fused": fused, "pooled": to_ledger(fit(data.together, POOLED), "pooled")}
        last = {name: _score(name, ledger, data) for name, ledger in total.items()}
    ratio = last["fused"]["mutual_information"] / last["pooled"]["mutual_information"]
    report = {"seed": seed, "held_out": HELD_OUT, "ratio": ratio, "sites": rows, **last}
    (output / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _fuse_files(output: Path, names: list[str]) -> tuple[dict[str, Any], Any]:
    """What somebody does who has the files only: a ledger from each, and all of them fused."""
    found = {name: posterity.load(output / f"{name}.safetensors") for name in names}
    fusion = posterity.fuse(found, rule="product")
    fused: Any = fusion.ledger
    posterity.save(fused, output / FUSED)
    images = {name: _means(ledger) for name, ledger in found.items()}
    title = "Columns: fused components, not digits; k/n of the sites have one"
    plot_matching(fusion, images, _means(fused), output / PICTURE, title=title)
    return found, fused


# --- images and their features -------------------------------------------------------------------


@functools.cache
def _frequencies() -> tuple[Int[Array, " d"], Int[Array, " d"]]:
    """Rows and columns of the cosine coefficients that are kept, low ones first."""
    i, j = np.indices((SIDE, SIDE)).reshape(2, -1)
    kept = [k for k in np.lexsort((i, i + j)) if 0 < i[k] + j[k] <= HIGHEST]
    return i[kept], j[kept]


def features(images: Float[Array, "n 8 8"]) -> Float[Array, "n d"]:
    """Low-frequency cosine coefficients of images in [0, 1]: a map that no data had a say in.

    >>> features(np.zeros((2, 8, 8))).shape
    (2, 14)
    """
    i, j = _frequencies()
    coefficients = np.asarray(scipy.fft.dctn(images, axes=(1, 2), norm="ortho"))
    return coefficients[:, i, j]


def pictures(x: Float[Array, "n d"], side: int = 32) -> Float[Array, "n side side"]:
    """Features, or means of components, as smooth images in [0, 1], ``side`` 8 or more.

    >>> pictures(np.zeros((2, 14))).shape
    (2, 32, 32)
    """
    i, j = _frequencies()
    coefficients = np.zeros((len(x), side, side))
    # Zeros at higher frequencies interpolate; the orthonormal transform scales with the side.
    coefficients[:, i, j] = x * side / SIDE
    images = np.asarray(scipy.fft.idctn(coefficients, axes=(1, 2), norm="ortho"))
    return np.clip(images + INK, 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Deal:
    """Who has what: for each site the digits and the features of its images."""

    digits: dict[str, list[int]]
    seen: dict[str, Float[Array, "_ d"]]
    held_out: Float[Array, "n d"]
    truth: Int[Array, " n"]

    @property
    def together(self) -> Float[Array, "_ d"]:
        """All sites' images."""
        return np.concatenate(list(self.seen.values()))


def deal(seed: int, sites: int) -> Deal:
    """Give each site four to six of the ten digits, every digit to some site, each image once."""
    from sklearn.datasets import load_digits

    key = np.random.default_rng(seed)
    data: Any = load_digits()
    x, y = features(data.images / 16.0), data.target
    held_out, rest = np.split(key.permutation(len(y)), [HELD_OUT])
    held = np.zeros((sites, DIGITS), dtype=bool)
    while not held.any(0).all():
        held = np.stack([_some_digits(key) for _ in range(sites)])
    owner = np.array([key.choice(np.flatnonzero(held[:, y[image]])) for image in rest])
    names = [f"site-{letter}" for letter in string.ascii_lowercase[:sites]]
    return Deal(
        digits={name: np.flatnonzero(row).tolist() for name, row in zip(names, held, strict=True)},
        seen={name: x[rest[owner == site]] for site, name in enumerate(names)},
        held_out=x[held_out],
        truth=y[held_out],
    )


def _some_digits(key: np.random.Generator) -> Array:
    return np.isin(np.arange(DIGITS), key.choice(DIGITS, key.integers(4, 7), replace=False))


# --- one site ------------------------------------------------------------------------------------


def fit(x: Float[Array, "n d"], components: int) -> Any:
    """A Gaussian mixture under the prior that all sites agreed on without looking at data.

    Pixels that are independent and uniform on [0, 1] give cosine coefficients of mean 0 and
    variance 1/12. Half of that is left within a component: the expected precision is 24, on
    the whole number of ``degrees_of_freedom`` for which the expected covariance is just
    finite, ``d + 2``. Means vary ten times as much as images of one component,
    ``mean_precision`` 1/10. Before any image is seen a component counts a tenth of one,
    ``weight_concentration`` 1/10, so that those not needed stay empty.
    """
    from sklearn.mixture import BayesianGaussianMixture

    size = x.shape[1]
    degrees = size + 2.0
    model = BayesianGaussianMixture(
        n_components=components,
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=0.1,
        mean_prior=np.zeros(size),
        mean_precision_prior=0.1,
        degrees_of_freedom_prior=degrees,
        covariance_prior=np.eye(size) * degrees / 24,
        n_init=RESTARTS,
        max_iter=1000,
        random_state=0,
    )
    return model.fit(x)


def _write(name: str, data: Deal, output: Path) -> None:
    """The only thing that leaves a site."""
    provenance = {
        "data": "handwritten digits of scikit-learn",
        "digits": " ".join(map(str, data.digits[name])),
        "model": "sklearn.mixture.BayesianGaussianMixture",
    }
    ledger = to_ledger(fit(data.seen[name], LOCAL), name)
    posterity.save(ledger, output / f"{name}.safetensors", provenance=provenance)


# --- the comparison ------------------------------------------------------------------------------


def _score(name: str, ledger: Any, data: Deal) -> dict[str, Any]:
    """A row of the table.

    ``mutual_information`` between components and digits, adjusted for chance, and
    ``log_density`` in nats an image, higher better, are on held-out images of all ten digits.
    """
    from sklearn.metrics import adjusted_mutual_info_score

    posterior = ledger.posterior
    counts = posterior.weights.concentration - ledger.prior.weights.concentration
    labels = to_estimator(ledger).predict(data.held_out)
    return {
        "name": name,
        "digits": data.digits.get(name, list(range(DIGITS))),
        "images": len(data.seen.get(name, data.together)),
        "components": int((counts >= 1).sum()),
        "mutual_information": float(adjusted_mutual_info_score(data.truth, labels)),
        "log_density": float(posterior.predictive_log_prob(data.held_out).mean()),
    }


def _means(ledger: Any) -> Float[Array, "k h w"]:
    """A picture of the mean of each component."""
    return pictures(ledger.posterior.members.mean)


# --- what can go wrong before anything is fitted -------------------------------------------------


def _check_extras() -> None:
    for module, package in (("sklearn", "scikit-learn"), ("matplotlib", "matplotlib")):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingExtraError.of(package, "demo") from error


def _make(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(
            found=f"folder {str(output)!r} that cannot be made ({error.strerror})",
            expected="a folder to write to",
            fix="Choose another output folder.",
        ) from error
