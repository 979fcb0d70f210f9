"""The peers of `posterity.fuse`, on its inputs: released code where it is, else a plain rewrite.

The folders of their code are named by environment variables; none of it is copied here.
"""

import contextlib
import importlib
import io
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.klfusion.local_fits import SiteFit
from experiments.klfusion.published import PENALTY, klfusion_released
from experiments.klfusion.spahm import spahm
from posterity import Plate

KLFUSION, SPAHM = "KLFUSION_PEER", "SPAHM_PEER"
RELEASED = "released code"

Call = Callable[[], int]


def klfusion(sites: list[Plate], allowed: int, seed: int) -> tuple[str, Call]:
    """KL-fusion with at most `allowed` components: which code, and a call to their number."""
    found = _released(KLFUSION, "src", ("initialize", "nw_KL", "fusion"))
    if isinstance(found, str):
        fits = [site_fit(plate) for plate in sites]
        return found, lambda: len(klfusion_released(fits, seed=seed, max_components=allowed))
    initialize, nw, fusion = found
    posteriors = [_dictionaries(plate) for plate in sites]
    every = [q for own in posteriors for q in own]

    def call() -> int:
        np.random.seed(seed)
        start, penalty = initialize.kmeanspp(every, nw.nw_kl, allowed, compute_reg=True)
        priors, *_ = fusion.fusion_alternating(
            posteriors,
            start,
            dist_fn=nw.nw_kl,
            bary_fn=nw.nw_kl_barycenter,
            reg=PENALTY * penalty,
            parametric=False,
        )
        return len(priors)

    return RELEASED, _silent(call)


def match_means(sites: list[Plate], seed: int) -> tuple[str, Call]:
    """SPAHM, which looks at the means only: which code, and a call to the number found."""
    found = _released(SPAHM, "simulation", ("gaus_marginal_matching",))
    if isinstance(found, str):
        fits = [site_fit(plate) for plate in sites]
        return found, lambda: len(spahm(fits, seed=seed))
    members: list[Any] = [plate.members for plate in sites]
    means = [q.mean for q in members]

    def call() -> int:
        np.random.seed(seed)  # the numbers below are those of its own simulation
        atoms, *_ = found[0].match_local_atoms(
            local_atoms=means, sigma=1.0, sigma0=1.0, gamma=1.0, it=10, optimize_hyper=True
        )
        return len(atoms)

    return RELEASED, _silent(call)


def site_fit(plate: Plate) -> SiteFit:
    """The components of a site as the rewrites take them; they look at nothing else."""
    q: Any = plate.members
    covariances = q.inverse_scale / q.degrees_of_freedom[:, None, None]
    ones = np.ones(len(q.mean))
    return SiteFit(q.mean, q.mean_precision, q.degrees_of_freedom, covariances, ones)


def _released(variable: str, folder: str, modules: tuple[str, ...]) -> list[Any] | str:
    """Modules of a peer's code, or, where it is absent, a line that says so."""
    root, instead = os.environ.get(variable), "its plain rewrite timed instead"
    if not root:
        return f"peer absent: {variable} names no folder; {instead}"
    sys.path.insert(0, str(Path(root) / folder))
    sys.modules.setdefault("ot", types.ModuleType("ot"))  # for a method that is not timed
    try:
        return [importlib.import_module(module) for module in modules]
    except ImportError as error:
        return f"peer absent: {variable} does not import ({error}); {instead}"


def _dictionaries(plate: Plate) -> list[dict[str, Any]]:
    """Components of a site as KL-fusion's released code holds them."""
    q: Any = plate.members
    scale = np.linalg.inv(q.inverse_scale)
    keys = ("mu", "kappa", "nu", "S_inv", "S")
    columns = (q.mean, q.mean_precision, q.degrees_of_freedom, q.inverse_scale, scale)
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]


def _silent(call: Call) -> Call:
    def quiet() -> int:
        with contextlib.redirect_stdout(io.StringIO()):
            return call()

    return quiet
