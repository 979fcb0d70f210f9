"""Checks of models, data and names, and types of laws, that all adapters share.

A fitted model is read as :class:`Laws`, from which :meth:`Laws.ledger` makes the ledger of a site;
a law for another library is checked by :func:`prior_and_law`.
"""

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.errors import (
    MissingExtraError,
    ParameterError,
    StructureError,
    UsageError,
    within,
)
from posterity.families import Distribution, ExponentialFamily, at_rest
from posterity.families.checks import check_proper
from posterity.families.names import in_order, names_of, some, with_names
from posterity.ledger import Ledger
from posterity.models.tables import array

Array = np.ndarray
Names = Iterable[str] | None


class Data(NamedTuple):
    """Records, responses and weights that a model was fitted to.

    ``names`` replace the model's names of coordinates; ``site`` is set if a ledger is requested.
    """

    x: Any = None
    y: Any = None
    weight: Any = None
    names: Names = None
    site: str | None = None


class Laws(NamedTuple):
    """Posterior of a fitted model, with its own prior, the likelihood as a factor, or both."""

    posterior: Any
    prior: Any = None
    factor: Any = None

    def ledger(self, site: Any, prior: Any = None, *, model: object = None) -> Ledger:
        """Return the ledger of one site: the model's own prior, or else ``prior``, and a factor.

        Raises:
            UsageError: for two priors or none.
            StructureError: for a prior of another family, size or names than the factor's.
            ParameterError: for improper laws.
        """
        if (self.prior is None) == (prior is None):
            raise UsageError(
                found=f"a {type(model).__name__} with {'no prior' if prior is None else 'two'}",
                expected="one prior, the model's own or prior=, the same at all sites",
            )
        factor = self.factor
        outline = getattr(prior, "outline", lambda: None)
        if prior is None and factor is None:
            return Ledger.of_site(site, prior=self.prior, posterior=self.posterior)
        if prior is None:
            return Ledger(self.prior).update(site, factor, independent=True)
        if not isinstance(prior, ExponentialFamily) or outline() != factor.outline():
            raise StructureError(
                found=f"prior={prior!r}",
                expected=f"a prior like the factor, {factor!r}, of coordinates {names_of(factor)}",
            )
        wanted = names_of(prior) or names_of(factor)
        factor = in_order(factor, wanted, f"site {site!r}", "the prior")
        return Ledger(with_names(prior, wanted)).update(site, factor, independent=True)


def at_site(site: str | None) -> contextlib.AbstractContextManager[None]:
    """Return a context that names the site, if there is one, in errors about a model."""
    return contextlib.nullcontext() if site is None else within(f"site {site!r}")


def split(posterior: Distribution | Ledger) -> tuple[Any, Any]:
    """Return the prior, if known, and the posterior; a ledger holds both."""
    if isinstance(posterior, Ledger):
        return posterior.prior, posterior.posterior
    return None, posterior


def prior_and_law(
    posterior: Distribution | Ledger,
    fits: Callable[[Any], bool],
    library: str,
    *,
    expected: str,
    fix: str,
) -> tuple[Any, Any]:
    """Return the prior, as :func:`split`, and the law that a model of ``library`` is to hold.

    Raises:
        StructureError: for a law that does not fit, and for batches.
        ParameterError: for NaN, infinity and improper laws.
    """
    prior, law = split(posterior)
    if not fits(law) or law.batch_shape:
        result = repr(law) if isinstance(law, Distribution) else f"a {type(law).__name__}"
        raise StructureError(found=result, expected=expected, fix=fix)
    check_proper(law, f"the posterior for {library}")
    return prior, at_rest(law)


def library(*modules: str, extra: str, package: str = "") -> Any:
    """Import these modules, and return their package.

    Raises:
        MissingExtraError: if one is not installed; it names the extra that installs ``package``.
    """
    name = modules[0].partition(".")[0]
    try:
        for module in modules:
            importlib.import_module(module)
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError.of(package or name, extra) from error


def unsupported(found: object, expected: str, fix: str = "") -> UsageError:
    """Return the error for an object that an adapter does not accept, with its type."""
    kind = found if isinstance(found, type) else type(found)
    return UsageError(found=f"{kind.__module__}.{kind.__qualname__}", expected=expected, fix=fix)


def check_fitted(model: object, *attributes: str) -> None:
    """Raise a UsageError if a model lacks an attribute that its ``fit`` sets."""
    lacking = [name for name in attributes if not hasattr(model, name)]
    if lacking:
        found = f"a {type(model).__name__} that is not fitted: it has no {lacking[0]}"
        raise UsageError(found=found, expected="a fitted model")


def check_undetermined(parameters: Collection[str], determined: Iterable[str]) -> None:
    """Raise a UsageError for constructor arguments that a posterior already determines."""
    taken = sorted(set(parameters) & set(determined))
    if taken:
        expected = "only parameters that the posterior does not determine"
        raise UsageError(found=f"parameters {taken}", expected=expected)


def numbers(values: object, what: str, *, names: Sequence[str] = ()) -> Array:
    """Return finite numbers as float64; ``names`` are those of the columns, for errors.

    Raises:
        StructureError: for what is no array of numbers (:func:`posterity.models.tables.array`).
        ParameterError: for NaN, infinity and masked values.
    """
    made = array(values, None, what).astype(np.float64)
    wrong = ~np.isfinite(made)
    if wrong.any():
        columns = at(names, wrong.any(0)) if made.shape[1:] == (len(names),) else []
        where = f"columns {some(columns)} of " if columns else ""
        found = f"NaN or infinity in {where}{what}"
        raise ParameterError(found=found, expected="finite numbers")
    return made


def table(x: Any, names: Sequence[str], place: str, *, by_name: bool) -> Array:
    """Return the data (n, d) of a fit with columns of these names, as float64.

    If the fit had names, ``by_name`` is True, and columns of a data frame go by their names.

    Raises:
        StructureError: for another shape, other columns, and what are no numbers.
        ParameterError: as :func:`numbers`.
    """
    if hasattr(x, "toarray"):  # sparse; its curvature is dense nevertheless
        x = x.toarray()
    what = f"the data of {place}"
    values = numbers(array(x, names if by_name else (), what), what, names=names)
    if values.ndim != 2 or values.shape[1] != len(names) or not len(values):
        raise StructureError(
            found=f"data of shape {values.shape} for {place}",
            expected=f"the records of the fit, (n, {len(names)}), with columns {some(names)}",
        )
    return values


def columns_of(estimator: object, size: int) -> list[str]:
    """Return the column names that an estimator was fitted with, or else ``x0``, ``x1``, ...."""
    own = getattr(estimator, "feature_names_in_", None)
    return [f"x{k}" for k in range(size)] if own is None else [str(name) for name in own]


def at(names: Sequence[str], places: Any) -> list[str]:
    """Return the names at which ``places``, one per name, is true."""
    return [name for name, result in zip(names, places, strict=True) if result]
