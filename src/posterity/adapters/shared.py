"""One protocol for the laws that all adapters read and write, and checks that they share.

A fitted model is read as :class:`Laws`, of which :meth:`Laws.ledger` makes the ledger of a site; a
law for another library is checked by :func:`prior_and_law`. The other checks are of what is
installed, what is fitted, and what data and names have to be.
"""

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.checks import check_proper
from posterity.errors import MissingExtraError, ParameterError, StructureError, UsageError
from posterity.families import Distribution, ExponentialFamily, at_rest
from posterity.families.names import in_order, names_of, some
from posterity.ledger import Ledger

Array = np.ndarray
Names = Iterable[str] | None
SAME = "Pass the data that the model was fitted with."


class Data(NamedTuple):
    """Records, responses and weights that a model was fitted with.

    ``names`` are other names for coordinates than the model's own; ``site`` is that of the ledger
    which is asked for.
    """

    x: Any = None
    y: Any = None
    weight: Any = None
    names: Names = None
    site: str | None = None


class Laws(NamedTuple):
    """The posterior of a fitted model, with its own prior, the likelihood as a factor, or both."""

    posterior: Any
    prior: Any = None
    factor: Any = None

    def ledger(self, site: Any, prior: Any = None, *, model: object = None) -> Ledger:
        """The ledger of one site: the model's own prior, or else ``prior``, and what data said.

        A factor under ``prior`` is put in the prior's order of names.

        Raises:
            UsageError: for two priors or none.
            StructureError: for a prior of another family, size or names.
            ParameterError: for improper laws.
        """
        kind = type(model).__name__
        if self.prior is not None and prior is not None:
            raise UsageError(
                found=f"prior={prior!r} for a {kind}, which has its own",
                expected="none",
                fix="Fit it with the prior that it should have.",
            )
        if self.prior is not None and self.factor is not None:
            return Ledger(self.prior).update(site, self.factor, independent=True)
        if self.prior is not None:
            return Ledger.of_site(site, prior=self.prior, posterior=self.posterior)
        if prior is None:
            raise UsageError(
                found=f"a {kind} without a prior",
                expected="prior: a Gaussian over its coefficients, the same at all sites",
                fix="Pass one, or from_estimator for the posterior under the estimator's own.",
            )
        factor: Any = self.factor
        if not isinstance(prior, ExponentialFamily) or prior.outline() != factor.outline():
            raise StructureError(
                found=f"prior={prior!r}",
                expected=f"one like the factor, {self.factor!r}, with coordinates "
                f"{names_of(self.factor)}",
                fix="Make it so, the same at every site: Gaussian.from_standard(zeros, "
                "covariance), with a variance of each column that is wide in that column's units.",
            )
        wanted = names_of(prior) or names_of(self.factor)
        factor = in_order(factor, wanted, f"site {site!r}", "the prior")
        prior = in_order(prior, wanted, "the prior", f"site {site!r}")
        return Ledger(prior).update(site, factor, independent=True)


@contextlib.contextmanager
def at_site(site: str | None) -> Iterator[None]:
    """Name the site, if there is one, in errors of what a model holds or lacks."""
    try:
        yield
    except (ParameterError, UsageError) as error:
        if site is None:
            raise
        raise error.at(f"site {site!r}") from error


def split(posterior: Distribution | Ledger) -> tuple[Any, Any]:
    """The prior, None where it is not known, and the posterior: of a ledger both are."""
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
    """The prior, as :func:`split`, and the law that a model of a ``library`` is to hold, at rest.

    Raises:
        StructureError: for one that does not fit, and batches.
        ParameterError: for NaN, infinity and improper laws.
    """
    prior, law = split(posterior)
    if not fits(law):
        result = repr(law) if isinstance(law, Distribution) else f"a {type(law).__name__}"
        raise StructureError(found=result, expected=expected, fix=fix)
    check_one(law)
    check_proper(law, f"the posterior for {library}")
    return prior, at_rest(law)


def library(*modules: str, extra: str, package: str = "") -> Any:
    """The package of these modules, all of them imported.

    Raises:
        MissingExtraError: if one is not installed; it names the extra that brings ``package``.
    """
    name = modules[0].partition(".")[0]
    try:
        for module in modules:
            importlib.import_module(module)
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError.of(package or name, extra) from error


def unsupported(found: object, expected: str, fix: str) -> UsageError:
    """The error of an object that an adapter does not take, which names its type."""
    kind = found if isinstance(found, type) else type(found)
    return UsageError(found=f"{kind.__module__}.{kind.__qualname__}", expected=expected, fix=fix)


def check_fitted(model: object, *attributes: str) -> None:
    """Raise a UsageError for a model that lacks one of the attributes that its ``fit`` sets."""
    if not all(hasattr(model, name) for name in attributes):
        raise UsageError(
            found=f"a {type(model).__name__} that is not fitted",
            expected="a fitted one",
            fix="Call fit first.",
        )


def check_undetermined(parameters: Collection[str], determined: Iterable[str]) -> None:
    """Raise a UsageError for constructor arguments that a posterior already determines."""
    if taken := sorted(set(parameters) & set(determined)):
        raise UsageError(
            found=f"parameters {taken}",
            expected="only parameters that the posterior does not determine",
            fix="Leave them out.",
        )


def check_one(law: Distribution) -> None:
    """Raise a StructureError for a batch of laws."""
    if law.batch_shape:
        raise StructureError(
            found=f"a batch of shape {law.batch_shape} of {type(law).__name__}",
            expected="one law: other libraries have no arrays of these",
            fix="Take them one by one: law[0].",
        )


def numbers(values: object, what: str, *, names: Sequence[str] = ()) -> Array:
    """Finite numbers as float64; ``names`` are those of the columns, which an error repeats.

    Raises:
        ParameterError: for texts, rows that are not as long as each other, NaN and infinity.
    """
    try:
        made = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(
            found=f"{what} that are no array of numbers ({str(error)[:80]})",
            expected="numbers, in rows of one length",
            fix="Encode texts as the fit had them, or leave them out.",
        ) from error
    wrong = ~np.isfinite(made)
    if wrong.any():
        columns = at(names, wrong.any(0)) if len(names) and made.ndim == 2 else []
        where = f"columns {some(columns)} of " if columns else ""
        raise ParameterError(
            found=f"NaN or infinity in {where}{what}", expected="finite numbers", fix=SAME
        )
    return made


def table(x: Any, names: Sequence[str], place: str) -> Array:
    """Data (n, d) of a fit with columns of these names, as float64; errors name the column.

    Raises:
        StructureError: for another shape.
        ParameterError: as :func:`numbers`.
    """
    if hasattr(x, "toarray"):  # sparse, of which the curvature is dense all the same
        x = x.toarray()
    shape = np.shape(x)
    if len(shape) == 2 and shape[1] == len(names) and shape[0]:
        return numbers(x, f"the data of {place}", names=names)
    raise StructureError(
        found=f"data of shape {np.shape(numbers(x, f'the data of {place}'))} for {place}",
        expected=f"records (n, {len(names)}), with columns {some(names)}",
        fix=SAME,
    )


def in_columns(x: Any, own: Any, place: str) -> Any:
    """A data frame with its columns in the order of the fit's; all else as it is.

    ``own`` are the names of the fit, or None where it was without.

    Raises:
        StructureError: for a frame without one of them.
    """
    result = getattr(x, "columns", None)
    if result is None or own is None:
        return x
    own = [str(name) for name in own]
    missing = [name for name in own if name not in set(map(str, result))]
    if missing:
        raise StructureError(
            found=f"data without columns {some(missing)}, of {place}",
            expected=f"columns {some(own)}",
            fix="Pass data with the columns that the model was fitted with.",
        )
    return x[own]


def columns_of(estimator: object, size: int) -> list[str]:
    """The names of the columns that an estimator was fitted with; ``x0``, ``x1`` without."""
    own = getattr(estimator, "feature_names_in_", None)
    return [f"x{k}" for k in range(size)] if own is None else [str(name) for name in own]


def at(names: Sequence[str], places: Any) -> list[str]:
    """The names at which ``places``, one a name, are true."""
    return [name for name, result in zip(names, places, strict=True) if result]
