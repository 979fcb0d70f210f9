"""How much each site's network counts in each output."""

from collections.abc import Sequence

import numpy as np

from posterity.arrays.typing import Float
from posterity.fusion.networks.locals import Local
from posterity.fusion.networks.options import Shares

Array = np.ndarray


def output_shares(locals_: Sequence[Local], how: Shares | str) -> Float[Array, "sites outputs"]:
    """Shares ``a_jk`` of the sites in each output, which sum to one.

    In proportion to ``P_jk = Σ_l (1/v_jlk - 1/s_jlk²)``, the precision that the weights into
    output ``k`` gained over their prior: a site that never saw a class, or saw little, learnt
    little about its logit. It takes no data and no counts. Where a site's prior is not known,
    the widest weight of all sites' last layers stands for it. Outputs of which nobody learnt
    anything, and ``"equal"``, weigh sites alike.
    """
    weights = np.array([local.weight for local in locals_])
    units = locals_[0].layers.outputs
    gained = np.ones((len(locals_), units))
    if how == "precision":
        gained = np.array([_gained(local, _widest(locals_)) for local in locals_])
        gained = np.where((gained.max(0) > 0), gained / np.maximum(gained.max(0), 1e-300), 1.0)
    shares = weights[:, None] * gained
    return shares / shares.sum(0)


def _widest(locals_: Sequence[Local]) -> float:
    return max(float(local.variance[-1]["kernel"].max()) for local in locals_)


def _gained(local: Local, widest: float) -> Float[Array, " outputs"]:
    known = local.gained()
    kernel = 1 / local.variance[-1]["kernel"] - 1 / widest if known is None else known[-1]["kernel"]
    return np.maximum(kernel.reshape(-1, kernel.shape[-1]).sum(0), 0.0)
