"""What all components of a plate start from, for estimators that hold one prior for all."""

import numpy as np

from posterity.arrays.tree import leaves
from posterity.arrays.typing import Real
from posterity.errors import StructureError
from posterity.families import ExponentialFamily, Plate


def shared_member(prior: Plate) -> ExponentialFamily:
    """The prior of one component, the same for all.

    Raises:
        StructureError: if the members differ by more than rounding.
    """
    first = prior.members[0]
    if not all(shared_value(leaf) is not None for leaf in leaves(prior.members)):
        raise StructureError(
            found="a prior whose components differ",
            expected="exchangeable components: one prior for all",
            fix="Pass the posterior without its ledger; the estimator then has default priors.",
        )
    return first


def shared_value(values: Real) -> Real | None:
    """The first of ``values`` along the first axis, if all others equal it but for rounding."""
    values = np.asarray(values)
    return values[0] if np.allclose(values, values[:1], rtol=1e-10, atol=1e-12) else None
