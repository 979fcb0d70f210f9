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
import warnings
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
LOCAL, POOLED, RESTARTS = 12, 30, 2
"""Components offered to a site, and to the fit to all images; restarts of either."""
FUSED, PICTURE, REPORT = "fused.safetensors", "matching.png", "report.json"
"""Files besides one a site."""
TITLE = """\
Handwritten digits at six sites: which components are the same?
Above a column is the digit that most of its held-out images show (digits, where none is half of
them), and how many do. Pictures are means of images, drawn from the sites' own data: no file has
them."""


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
        found, fusion = _fuse_files(output, list(data.seen))
        draw(fusion, found, data, output / PICTURE)
        fused = fusion.ledger
        moved(SITES + 1)
        rows = [_score(name, ledger, data) for name, ledger in found.items()]
        total = {"fused": fused, "pooled": to_ledger(fit(data.together, POOLED), "pooled")}
        last = {name: _score(name, ledger, data) for name, ledger in total.items()}
    ratio = last["fused"]["mutual_information"] / last["pooled"]["mutual_information"]
    report = {"seed": seed, "held_out": HELD_OUT, "ratio": ratio, "sites": rows, **last}
    (output / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _fuse_files(output: Path, names: list[str]) -> tuple[dict[str, Any], posterity.Fusion]:
    """What somebody does who has the files only: a ledger from each, and all of them fused."""
    found = {name: posterity.load(output / f"{name}.safetensors") for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the picture shows what is doubtful
        fusion = posterity.fuse(found, rule="product")
    posterity.save(fusion.ledger, output / FUSED)  # pyright: ignore[reportArgumentType]
    return found, fusion


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


@dataclasses.dataclass(frozen=True)
class Deal:
    """Who has what: for each site the digits, its images and their features."""

    digits: dict[str, list[int]]
    images: dict[str, Float[Array, "_ 8 8"]]
    held_out: Float[Array, "n d"]
    truth: Int[Array, " n"]

    @functools.cached_property
    def seen(self) -> dict[str, Float[Array, "_ d"]]:
        """Features of each site's images."""
        return {name: features(images) for name, images in self.images.items()}

    @property
    def together(self) -> Float[Array, "_ d"]:
        """All sites' images."""
        return np.concatenate(list(self.seen.values()))


def deal(seed: int, sites: int) -> Deal:
    """Give each site four to six of the ten digits, every digit to some site, each image once."""
    from sklearn.datasets import load_digits

    key = np.random.default_rng(seed)
    data: Any = load_digits()
    images, y = data.images / 16.0, data.target
    held_out, rest = np.split(key.permutation(len(y)), [HELD_OUT])
    held = np.zeros((sites, DIGITS), dtype=bool)
    while not held.any(0).all():
        held = np.stack([_some_digits(key) for _ in range(sites)])
    owner = np.array([key.choice(np.flatnonzero(held[:, y[image]])) for image in rest])
    names = [f"site-{letter}" for letter in string.ascii_lowercase[:sites]]
    return Deal(
        digits={name: np.flatnonzero(row).tolist() for name, row in zip(names, held, strict=True)},
        images={name: images[rest[owner == site]] for site, name in enumerate(names)},
        held_out=features(images[held_out]),
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
    labels = _labels(ledger, data)
    return {
        "name": name,
        "digits": data.digits.get(name, list(range(DIGITS))),
        "images": len(data.seen.get(name, data.together)),
        "components": int((counts >= 1).sum()),
        "mutual_information": float(adjusted_mutual_info_score(data.truth, labels)),
        "log_density": float(posterior.predictive_log_prob(data.held_out).mean()),
    }


# --- the picture ---------------------------------------------------------------------------------


def draw(fusion: posterity.Fusion, found: dict[str, Any], data: Deal, path: Path) -> None:
    """The matching, for people: a component's picture is the mean of the images that it holds.

    Only the demo can draw this, since it has the images of all sites, and digits to the held-out
    ones: the files have neither. What is matched, and how surely, follows from the files.
    """
    held = {name: _held(ledger, data.seen[name]) for name, ledger in found.items()}
    sums = {name: np.tensordot(held[name].T, data.images[name], 1) for name in found}
    ink, count = np.zeros((fusion.components, SIDE, SIDE)), np.zeros(fusion.components)
    for name, label in fusion.matching.items():
        used = label >= 0
        np.add.at(ink, label[used], sums[name][used])
        np.add.at(count, label[used], held[name].sum(0)[used])
    plot_matching(
        fusion,
        path,
        images={name: _each(sums[name], held[name].sum(0)) for name in found},
        fused_images=_each(ink, count),
        names=names(_labels(fusion.ledger, data), data.truth, fusion.components),
        title=TITLE,
    )


def names(labels: Int[Array, " n"], truth: Int[Array, " n"], components: int) -> list[str]:
    r"""What each component's images show: the fewest digits that are half of them, and the share.

    >>> names(np.array([0, 0, 0, 1, 1, 1]), np.array([7, 7, 2, 3, 5, 8]), 3)
    ['7\n67 %', '3, 5\n67 %', '–']
    """
    table = np.zeros((components, DIGITS), dtype=int)
    np.add.at(table, (labels, truth), 1)
    return [_name(row) if row.any() else "–" for row in table]


def _name(counts: Int[Array, " digits"]) -> str:
    digits = np.argsort(-counts, kind="stable")
    reached = np.cumsum(counts[digits]) / counts.sum()
    last = int(np.argmax(reached >= 0.5))
    shown = ", ".join(map(str, digits[: last + 1]))
    return f"{shown}\n{100 * reached[last]:.0f} %"


def _labels(ledger: Any, data: Deal) -> Int[Array, " n"]:
    """The component of each held-out image."""
    return to_estimator(ledger).predict(data.held_out)


def _held(ledger: Any, x: Float[Array, "n d"]) -> Float[Array, "n k"]:
    """How far each component holds each image."""
    return to_estimator(ledger).predict_proba(x)


def _each(sums: Float[Array, "k h w"], counts: Float[Array, " k"]) -> Float[Array, "k h w"]:
    return sums / np.maximum(counts, np.finfo(float).tiny)[:, None, None]


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
