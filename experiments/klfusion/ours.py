"""posterity's own methods, with the signature of the baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import posterity
from experiments.klfusion.generate import Array
from experiments.klfusion.local_fits import SiteFit


def to_plate(site: SiteFit) -> posterity.Plate:
    """The site's posterior over its unlabelled components, (K,) Normal-Wisharts."""
    inverse_scale = site.covariances * site.degrees_of_freedom[:, None, None]
    return posterity.Plate(
        posterity.NormalWishart.from_inverse_scale(
            site.means, site.mean_precision, inverse_scale, site.degrees_of_freedom
        )
    )


def fused_means(sites: Sequence[SiteFit], matching: str) -> Array:
    """Means (G, d) of the fused components."""
    plates = {f"{index:04d}": to_plate(site) for index, site in enumerate(sites)}
    fused = posterity.fuse(plates, matching=matching).posterior
    assert isinstance(fused, posterity.Plate)
    return np.asarray(fused.members.mean)  # pyright: ignore[reportAttributeAccessIssue]


def default(sites: Sequence[SiteFit], *, seed: int) -> Array:
    """`posterity.fuse` with its defaults: the number of components is found."""
    del seed  # deterministic
    return fused_means(sites, "evidence")


def paper_setting(sites: Sequence[SiteFit], *, seed: int) -> Array:
    """Equation (9) of the paper, solved to a certified gap, with the paper's regularisation."""
    del seed
    return fused_means(sites, "kl-fusion")


OURS: dict[str, Callable[..., Array]] = {
    "posterity": default,
    "KL-fusion, paper's setting": paper_setting,
}
