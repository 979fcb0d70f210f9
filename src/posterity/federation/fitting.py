"""Whether a site's data fit the agreement: shapes that match the prior, records one by one."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.arrays.keys import of_jax
from posterity.arrays.linear_algebra import one_thread
from posterity.arrays.tree import structure, taken, tree_leaves
from posterity.errors import StructureError, within
from posterity.families import ExponentialFamily
from posterity.federation.agreement import Agreement
from posterity.federation.keys import first_key
from posterity.inference.update import LocalUpdate
from posterity.models import FunctionModel, Model, Records
from posterity.models.by_record import check_by_record
from posterity.runtime.jax_loaded import jax_module
from posterity.runtime.lazy import eqx, jax


def check_fit(agreed: Agreement, sites: Mapping[str, Records]) -> None:
    """Raise a StructureError if the shapes of a site's data do not match the prior. Other errors of
    a model are raised at the visit of the site.
    """
    model = agreed.model
    update = agreed.update
    prior = agreed.prior
    if update.trains:  # training checks the data
        return
    checked = set()
    # JAX raises these errors if shapes differ; a user's function may raise any ValueError.
    shapes = TypeError if isinstance(model, FunctionModel) else (TypeError, ValueError)
    for site, records in sites.items():
        leaves = tree_leaves(records.data)
        kind = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)
        if records.size == 0 or kind in checked:
            continue
        checked.add(kind)
        try:
            gradient = _outline_of_gradient(update, model, prior, records)
        except StructureError as error:
            raise error.at(f"the model at site {site!r}") from error
        except Exception as error:
            known = jax_module()
            own = known is not None and isinstance(error, known.errors.JAXTypeError)
            if isinstance(error, shapes) and not own:
                raise _misfit(site, leaves, prior, str(error).splitlines()[0]) from error
        else:
            if structure(gradient) != structure(prior):
                raise _misfit(site, leaves, prior, f"the model finds {gradient!r}")
            if not prior.batch_shape:
                with within(f"the data of site {site!r}"):
                    check_by_record(model, prior, records)


def _misfit(site: str, leaves: list[Any], prior: ExponentialFamily, why: str) -> StructureError:
    return StructureError(
        found=f"records of shapes {[np.shape(leaf) for leaf in leaves]} at site {site!r}, which do "
        f"not go together with {prior!r} ({why})",
        expected="data, model and prior of matching dimensions, a coefficient for each column",
    )


def _outline_of_gradient(
    update: LocalUpdate, model: Model, prior: ExponentialFamily, records: Records
) -> Any:
    """Return an object with the structure of a site's gradients; in NumPy, that of one record."""
    if update.needs_jax(model):
        with jax.enable_x64(True):
            return eqx.filter_eval_shape(_estimate, update, model, prior, records)
    with np.errstate(all="ignore"), one_thread(prior.event_size):
        one = taken(records, slice(1)).widened()
        return _estimate(update, model, prior, one)


def _estimate(update: LocalUpdate, model: Model, q: ExponentialFamily, records: Records) -> Any:
    if update.pools:
        regression: Any = model
        regression.model.log_likelihood(q.coefficients.mean, records.data)  # pyright: ignore
        return q
    estimator = update.estimator
    assert estimator is not None, "resolve fills it in"
    return estimator(model, q, records, key=of_jax(first_key()) if estimator.stochastic else None)
