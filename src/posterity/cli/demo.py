"""``posterity demo``: six sites fit mixtures to handwritten digits, and send only files.

No site has all ten digits. Only the files are fused. The result is compared with each site alone
and with a fit to the pooled images, which would not be possible in practice.
"""

import json
import string
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.fft

import posterity
from posterity.adapters.shared import library
from posterity.cli.options import Settings
from posterity.cli.report import filled, group, table
from posterity.cli.streams import Data, bar, verb
from posterity.status import Progress

FILES = {
    "fused.safetensors": "all of them fused; any site can be taken out again",
    "matching.html": "the page of what was matched, and how surely",
    "report.json": "the figures above",
}


def _report(data: Data) -> Any:
    headers = ("posterior", "digits seen", "images", "components", "mutual information")
    rows = table(*headers)
    rows.title = "Handwritten digits: posteriors of separate sites, fused from their files"
    rows.caption = (
        f"On {data['held_out']} held-out images of all ten digits. Fused from files alone, the "
        f"posterior has {data['ratio']:.0%} of the mutual information between components and "
        "digits that a fit to all images pooled has."
    )
    last = {name: data[name] for name in ("fused", "pooled")}
    for part in (data["sites"], last):
        for name, row in part.items():
            seen = "all ten" if len(row["digits"]) == 10 else " ".join(map(str, row["digits"]))
            numbers = row["images"], row["components"], f"{row['mutual_information']:.3f}"
            filled(rows, [(name, seen, *numbers)])
        rows.add_section()
    described = {
        f"{site}.safetensors": f"what {site} sent: its posterior, and no image"
        for site in data["sites"]
    } | FILES
    lines = (f"  {name:<19}  {what}" for name, what in described.items())
    return group(rows, "", f"Wrote to the folder {data['folder']}:", *lines)


@verb(_report)
def demo(settings: Settings) -> Data:
    """Fuse posteriors trained at several sites, and print the result."""
    library("sklearn", extra="demo", package="scikit-learn")
    folder = Path(settings["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    from threadpoolctl import threadpool_limits

    # The matrices are tiny: on several threads, waiting takes longer than multiplying.
    with threadpool_limits(1), bar("Sites fit their images") as moved:
        report = _run(deal(settings["seed"]), folder, moved) | {"seed": settings["seed"]}
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report | {"folder": folder, "files": sorted(path.name for path in folder.iterdir())}


def _run(data: "Deal", folder: Path, moved: Any, local: int = 12, pooled: int = 30) -> Data:
    """Fit at most ``local`` components at each site, more than it has digits, and at most
    ``pooled`` to all images together; write the files, and return the figures.
    """
    from posterity.adapters.sklearn import to_ledger

    steps = len(data.images) + 2
    for step, site in enumerate(data.images):
        provenance = {
            "data": "handwritten digits of scikit-learn",
            "digits": " ".join(map(str, data.digits[site])),
            "model": "sklearn.mixture.BayesianGaussianMixture",
        }
        ledger = to_ledger(fit(features(data.images[site]), local), site)
        posterity.save(ledger, folder / f"{site}.safetensors", provenance=provenance)
        moved(Progress(step + 1, steps))
    ledgers = {site: posterity.load(folder / f"{site}.safetensors") for site in data.images}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the page shows doubtful matches
        fusion = posterity.fuse(ledgers, rule="product")
    assert fusion.ledger is not None, "a product has one"
    posterity.save(fusion.ledger, folder / "fused.safetensors")
    posterity.report(fusion, path=folder / "matching.html")
    moved(Progress(steps - 1, steps))
    together = np.concatenate(list(data.images.values()))
    everything = to_ledger(fit(features(together), pooled), "pooled")
    last = {
        name: _score(ledger, data, range(10), len(together))
        for name, ledger in {"fused": fusion.ledger, "pooled": everything}.items()
    }
    return {
        "held_out": len(data.held_out),
        "ratio": last["fused"]["mutual_information"] / last["pooled"]["mutual_information"],
        "sites": {
            site: _score(ledger, data, data.digits[site], len(data.images[site]))
            for site, ledger in ledgers.items()
        },
        **last,
    }


def _score(ledger: Any, data: "Deal", digits: Any, images: int) -> Data:
    """Return a row of the table, with mutual information adjusted for chance."""
    from sklearn.metrics import adjusted_mutual_info_score

    counts = ledger.posterior.weights.concentration - ledger.prior.weights.concentration
    return {
        "digits": list(digits),
        "images": images,
        "components": int((counts >= 1).sum()),
        "mutual_information": float(adjusted_mutual_info_score(data.truth, labels(ledger, data))),
    }


class Deal(NamedTuple):
    """Digits and images (n, 8, 8) of each site, held-out images and their digits."""

    digits: dict[str, list[int]]
    images: dict[str, np.ndarray]
    held_out: np.ndarray
    truth: np.ndarray


def deal(seed: int, sites: int = 6, held_out: int = 450) -> Deal:
    """Give each site four to six of the ten digits, each digit to some site, each image to one of
    its sites, except a quarter of all images, which no site sees.
    """
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(seed)
    data = load_digits()
    images = data.images / 16.0  # type: ignore[attr-defined]
    y = data.target  # type: ignore[attr-defined]
    unseen, rest = np.split(rng.permutation(len(y)), [held_out])
    held = np.zeros((sites, 10), dtype=bool)
    while not held.any(0).all():
        some = [rng.choice(10, rng.integers(4, 7), replace=False) for _ in range(sites)]
        held = np.stack([np.isin(np.arange(10), each) for each in some])
    owner = np.array([rng.choice(np.flatnonzero(held[:, y[image]])) for image in rest])
    names = [f"site-{letter}" for letter in string.ascii_lowercase[:sites]]
    return Deal(
        {name: np.flatnonzero(row).tolist() for name, row in zip(names, held, strict=True)},
        {name: images[rest[owner == site]] for site, name in enumerate(names)},
        images[unseen],
        y[unseen],
    )


def features(images: Any, highest: int = 4) -> np.ndarray:
    """Return low-frequency cosine coefficients (n, 14) of images (n, 8, 8) in [0, 1].

    They are of the frequencies (i, j) with i + j up to the ``highest``, without (0, 0): strokes,
    without lightness or fine detail, few enough for full covariances at a site with 150 images.
    """
    i, j = np.indices((8, 8)).reshape(2, -1)
    kept = [k for k in np.lexsort((i, i + j)) if 0 < i[k] + j[k] <= highest]
    coefficients = np.asarray(scipy.fft.dctn(images, axes=(1, 2), norm="ortho"))
    return coefficients[:, i[kept], j[kept]]


def fit(x: np.ndarray, components: int, restarts: int = 2) -> Any:
    """Fit a Gaussian mixture to ``x`` (n, d), with a prior that all sites share; of several
    ``restarts`` the best is kept.

    Independent pixels, uniform on [0, 1], have cosine coefficients with mean 0 and variance 1/12.
    Half of that is left within a component, whose expected precision is 24. Means vary ten times as
    much. The prior count of a component is a tenth of an image, so superfluous ones stay empty.
    """
    from sklearn.mixture import BayesianGaussianMixture

    size = x.shape[1]
    return BayesianGaussianMixture(
        n_components=components,
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=0.1,
        mean_prior=np.zeros(size),
        mean_precision_prior=0.1,
        degrees_of_freedom_prior=size + 2.0,
        covariance_prior=np.eye(size) * (size + 2.0) / 24,
        n_init=restarts,
        max_iter=1000,
        random_state=0,
    ).fit(x)


def labels(ledger: Any, data: Deal) -> np.ndarray:
    """Return the component of each held-out image."""
    from posterity.adapters.sklearn import to_estimator

    estimator: Any = to_estimator(ledger)
    return estimator.predict(features(data.held_out))
