"""The published method, in its own style, on the same inputs as `posterity.fuse`."""

from __future__ import annotations

import numpy as np

from experiments.klfusion.local_fits import SiteFit
from experiments.klfusion.published import MAX_COMPONENTS, klfusion_released
from posterity import Plate


def site_fit(plate: Plate) -> SiteFit:
    """The components of a site as the reference takes them; it looks at nothing else."""
    q, none = plate.members, np.zeros(())
    count, dimension = q.mean.shape
    return SiteFit(
        means=q.mean,
        mean_precision=q.mean_precision,
        degrees_of_freedom=q.degrees_of_freedom,
        covariances=q.inverse_scale / q.degrees_of_freedom[:, None, None],
        weight_concentration=np.ones(count),
        mean_prior=np.zeros(dimension),
        mean_precision_prior=none,
        degrees_of_freedom_prior=none,
        covariance_prior=np.eye(dimension),
        weight_concentration_prior=none,
        points=none,
    )


def allowed(globals_: int) -> int:
    """Globals the reference may use: the eight of the released code, or as many as there are."""
    return max(MAX_COMPONENTS, globals_)


def run(sites: list[SiteFit], globals_: int, seed: int) -> int:
    """Fuse; the number of global components found."""
    return len(klfusion_released(sites, seed=seed, max_components=allowed(globals_)))
