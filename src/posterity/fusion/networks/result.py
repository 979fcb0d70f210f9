"""What fusing networks found."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from posterity.arrays.typing import Float
from posterity.families.network import Network
from posterity.fusion.networks.options import Options
from posterity.fusion.result import Fusion
from posterity.status import Status

Widths = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class NetworkFusion(Fusion):
    """What :func:`posterity.fuse` found of networks; ``plates`` has an entry a hidden layer.

    Attributes:
        predictive_kl: by widths, the nats of predictive KL from the weighted concatenation of the
            sites' networks, on random inputs that no refit saw; all widths that were tried.
        shares: by site, its share in each output of the concatenation.
        options: how networks were fused.
    """

    posterior: Network  # pyright: ignore[reportIncompatibleVariableOverride]
    predictive_kl: dict[Widths, float] = dataclasses.field(default_factory=dict)
    shares: Mapping[str, Float[np.ndarray, " k"]] = dataclasses.field(default_factory=dict)
    options: Options = dataclasses.field(default_factory=Options)

    __repr__ = Fusion.__repr__  # dataclasses would write another

    @property
    def widths(self) -> Widths:
        """Hidden units of each layer of the fused network."""
        return self.posterior.layers.widths

    @property
    def achieved_kl(self) -> float:
        """The predictive KL at the width that was taken."""
        return self.predictive_kl[self.widths]

    @property
    def status(self) -> Status:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Converged where :attr:`achieved_kl` is within the tolerance of the options."""
        return Status.of(self.achieved_kl, float(self.options.tolerance))
