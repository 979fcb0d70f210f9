"""Whether a user's function returns a log likelihood for each record by itself.

Sites call the function with some records at a time, and with copies in place of missing ones. A
function that uses neighbours, such as lags, ranks or the mean of the batch, would return other
numbers there. JAX also reads the last parameter where an index is beyond the last.
"""

from typing import Any

import numpy as np

from posterity.arrays.keys import fold_in, of_jax
from posterity.arrays.tree import tree_leaves, tree_map
from posterity.errors import StructureError
from posterity.families import ExponentialFamily
from posterity.federation.keys import first_key
from posterity.lazy import program
from posterity.models import Model, Records

RECORDS = 8
"""Largest number of records that are compared."""
CONCENTRATED = (1.0, 64.0, 4096.0)
"""Multiples of the prior that the parameters are draws of; a vague prior's own may overflow."""
ALIKE = 1e-4
"""Largest difference, relative to one plus the size, of two values that count as the same."""


def check_by_record(model: Model, prior: ExponentialFamily, records: Records) -> None:
    """Raise a StructureError if a record's log likelihood changes with the other records, or if the
    function indexes parameters that the prior does not have. Other errors are not raised here.
    """
    count = min(records.size, RECORDS)
    batch: Any = tree_map(lambda leaf: leaf[:count], records.widened().data)
    law: Any = prior
    for number, multiple in enumerate(CONCENTRATED):
        try:
            z: Any = (law * multiple).sample(of_jax(fold_in(first_key(), number)), ())
            beyond, *values = _compared(model, z, batch)
        except Exception:  # the model's own errors are raised and worded elsewhere
            return
        if beyond.get() is not None:
            _check_parameters(model, z, batch)
        together, first, last = (np.reshape(each, -1) for each in values)
        for place, alone in ((0, first), (-1, last)):
            a, b = float(together[place]), float(alone[place])
            if np.isfinite(a) and np.isfinite(b) and abs(a - b) > ALIKE * (1 + abs(a)):
                raise StructureError(
                    found=f"a record whose log likelihood is {a:.4g} among the first {count} and "
                    f"{b:.4g} among copies of itself, at the same parameters",
                    expected="a log likelihood for each record that depends on no other record",
                    fix="Give each record what it needs, as pairs of x[t] and x[t-1], or derive a "
                    "Model with `joint = True`, whose records of a site are dependent.",
                )


def _check_parameters(model: Model, z: Any, batch: Any) -> None:
    """Raise a StructureError if the function, of NumPy arrays, indexes beyond the parameters."""
    try:
        model.log_likelihood(tree_map(np.asarray, z), batch)
    except IndexError as error:
        raise StructureError(
            found=f"a function that indexes beyond the parameters ({error})",
            expected=f"parameters of shapes {[np.shape(leaf) for leaf in tree_leaves(z)]}, as the "
            "prior has them",
            fix="Give the prior a dimension for each parameter.",
        ) from error
    except Exception:  # functions of JAX arrays alone
        return


@program
def _compared(model: Model, z: Any, batch: Any) -> tuple[Any, ...]:
    """Return an error if an index is out of bounds, and the log likelihoods of the batch, of copies
    of its first record, and of copies of its last.
    """
    from jax.experimental import checkify

    copies = lambda place: tree_map(lambda leaf: leaf[np.full(len(leaf), place)], batch)
    checked = checkify.checkify(model.log_likelihood, errors=checkify.index_checks)
    return *checked(z, batch), *(model.log_likelihood(z, copies(place)) for place in (0, -1))
