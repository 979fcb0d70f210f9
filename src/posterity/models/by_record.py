"""Checks whether a user's function returns a log likelihood for each record by itself.

Sites and minibatches call it with some records at a time, or with copies in place of missing ones.
A function that uses neighbours, such as lags, ranks or the mean of the batch, would return other
numbers there. JAX also reads the last parameter where an index is beyond the last.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from posterity.arrays.keys import fold_in, of_jax, seeded
from posterity.arrays.tree import tree_leaves, tree_map
from posterity.errors import StructureError, UsageError
from posterity.models.base import FunctionModel, Model
from posterity.models.records import Records
from posterity.runtime.lazy import jax
from posterity.runtime.programs import program


def check_by_record(model: Model, prior: Any, records: Records) -> None:
    """Raise a StructureError if by a user's function a record's log likelihood changes with the
    other records, or from call to call, or if it indexes parameters that the prior does not have;
    a UsageError if the predictors of a user's function are not affine. Other errors are not raised
    here.
    """
    if isinstance(model, FunctionModel):
        with jax.enable_x64(True):
            if model.predictors is not None:
                _check_affine(model.predictors, prior, records)
            _check(model, prior, records)


def _check_affine(
    predictors: Callable[[Any, Any], Any], law: Any, records: Records, *, alike: float = 1e-6
) -> None:
    """Raise a UsageError unless the predictors between two draws of a law are the mean of theirs,
    up to the share ``alike`` of these.
    """
    one, other = (law.sample(of_jax(fold_in(seeded(0), number)), ()) for number in range(2))
    between = tree_map(lambda a, b: (a + b) / 2, one, other)
    data = records.widened().data
    first, second, middle = (np.asarray(predictors(z, data)) for z in (one, other, between))
    off = abs(middle - (first + second) / 2) > alike * np.maximum(abs(first), abs(second))
    if off.any():
        column = int(np.argmax(off.any(0)))
        raise UsageError(
            found=f"predictors of which number {column} is no affine function of the parameters",
            expected="sums of parameters times numbers that a record's data determine",
            fix="Move what is not affine to the function of the predictors.",
        )


def _check(
    model: Model,
    law: Any,
    records: Records,
    *,
    most: int = 8,
    multiples: tuple[float, ...] = (1.0, 64.0, 4096.0),
    alike: float = 1e-4,
) -> None:
    """Compare log likelihoods of ``most`` records, at equal distances from the first to the last.

    Parameters are draws of ``multiples`` of the prior, as a vague prior's own may overflow. Values
    are the same if they differ by less than ``alike``, relative to one plus their size.
    """
    count = min(records.size, most)
    places = np.linspace(0, records.size - 1, count).astype(int)
    batch: Any = tree_map(lambda leaf: leaf[places], records.widened().data)
    # Each record among others than before: every second one, backwards and then forwards; and the
    # last among copies of itself.
    halves = [half for half in (np.r_[:count:2], np.r_[1:count:2], [count - 1]) if len(half)]
    orders = [np.resize(np.r_[half[::-1], half], count) for half in halves]
    for number, multiple in enumerate(multiples):
        try:
            z: Any = (law * multiple).sample(of_jax(fold_in(seeded(0), number)), ())
            beyond, together, *others = _compared(model, z, batch, orders)
        except Exception:  # the model's own errors are raised and worded elsewhere
            return
        if beyond.get() is not None:
            _check_parameters(model, z, batch)
        for order, other in zip(orders, others, strict=True):
            a = np.reshape(together, -1)[order]
            b = np.reshape(other, -1)
            known = np.isfinite(a) & np.isfinite(b)
            if (apart := known & (np.abs(a - b) > alike * (1 + np.abs(a)))).any():
                place = int(np.argmax(apart))
                raise StructureError(
                    found=f"a record of log likelihood {a[place]:.4g} or {b[place]:.4g} by others",
                    expected="one that depends on no other record, and on no random numbers",
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
        ) from error
    except Exception:  # functions of JAX arrays alone
        return


@program
def _compared(model: Model, z: Any, batch: Any, orders: Any) -> tuple[Any, ...]:
    """Return an error if an index is out of bounds, and the log likelihoods of the batch, and of
    its records in other orders.
    """
    from jax.experimental import checkify

    checked = checkify.checkify(model.log_likelihood, errors=checkify.index_checks)

    def ordered(order):
        return tree_map(lambda leaf: leaf[order], batch)

    return *checked(z, batch), *(model.log_likelihood(z, ordered(order)) for order in orders)
