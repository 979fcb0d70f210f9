"""Laws of named parameters from their means and standard deviations, and back."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from posterity import families
from posterity.arrays.linear_algebra import symmetric
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families.names import checked
from posterity.ledger import Ledger
from posterity.tabular.sites import law_of


def from_table(
    names: Any,
    mean: Any,
    sd: ArrayLike | float | None = None,
    *,
    covariance: ArrayLike | None = None,
) -> families.ExponentialFamily:
    """Return the Gaussian of named parameters with these moments, a diagonal one with ``sd``.

    Args:
        names: d distinct texts.
        mean: means (d,), in the parameters' units.
        sd: standard deviations (d,), in the same units, unless there is a ``covariance``.
        covariance: covariance (d, d), symmetric positive definite, in the order of ``names``.

    Raises:
        UsageError: for neither or both of ``sd`` and ``covariance``.
        StructureError: for duplicate names, or values that are not as many numbers as names.
        ParameterError: for NaN, infinity, and a deviation, which it names, or covariance that is
            not positive.

    >>> q = from_table(["age", "bp"], [0.31, -0.02], [0.05, 0.01])
    >>> q.names, q.variance.round(4).tolist()
    (('age', 'bp'), [0.0025, 0.0001])
    """
    if (sd is None) == (covariance is None):
        both = f"{'neither' if sd is None else 'both'} of sd and covariance"
        raise UsageError(found=both, expected="one of them")
    count = len(mean) if hasattr(mean, "__len__") else np.size(mean)
    names = checked(names, count, "the parameters of a table")
    mean = _numbers(names, mean, 1, "mean")
    if sd is None:
        matrix = _numbers(names, covariance, 2, "covariance")
        return families.Gaussian.from_standard(mean, matrix).named(names)
    sd = _positive(names, _numbers(names, sd, 1, "sd"))
    return families.DiagonalGaussian.from_standard(mean, sd**2).named(names)


def to_ledger(
    law: families.ExponentialFamily,
    site: str,
    *,
    prior: families.ExponentialFamily | None = None,
    flat_prior: bool = False,
    flat_sd: float = 1e6,
) -> Ledger:
    """Return the ledger of one site, from a law that was read.

    With ``flat_prior`` the law is a maximum likelihood estimate and its covariance, without any
    prior, and is itself the factor; ``prior`` is then the common prior of all sites, by default
    ``N(0, flat_sd²)`` for every coefficient, in its units. Otherwise the law is the posterior of
    the site, and ``prior`` its prior. Without both, or with an estimate above a thousandth of
    ``flat_sd``, beside which the prior is not flat, there is a UsageError.

    >>> q = from_table(["age"], [0.31], [0.05])
    >>> to_ledger(q, "north", flat_prior=True).posterior.mean.round(6)
    array([0.31])
    """
    if not flat_prior and prior is not None:
        return Ledger.of_site(site, prior=prior, posterior=law)
    if not flat_prior or (prior is None and not getattr(law, "gaussian", False)):
        raise UsageError(
            found=f"neither a prior nor flat_prior, for a {type(law).__name__}",
            expected="the prior that the site used, or for a Gaussian that it used none",
            fix="Pass the prior (--prior FILE), or flat_prior=True (--flat-prior).",
        )
    if prior is None:
        (row,) = law.tables()
        for name, mean, sd in zip(row.names, row.law.mean, row.law.sd, strict=True):
            if max(abs(mean), sd) > flat_sd / 1000:
                raise UsageError(
                    found=f"parameter {name!r} of mean {mean:.4g} and sd {sd:.4g}",
                    expected=f"at most {flat_sd / 1000:g}, where N(0, {flat_sd:g}²) is flat",
                    fix="Change units, or pass a wider prior (--prior FILE).",
                )
        wide = np.full(len(row.names), flat_sd**2)
        spread = wide if law.diagonal else np.diag(wide)
        prior = type(law).from_standard(np.zeros(len(wide)), spread)
        prior = prior.named(law.names) if law.names else prior
    return Ledger(prior).update(site, law, independent=True)


def to_table(law: Any) -> dict[str, Any]:
    """Return names, means and standard deviations of a law, and its covariance if it has one.

    The law is one that :func:`from_table` makes, a ledger over one, or a network, whose weights are
    named by layer; others are a StructureError. Coordinates of a Gaussian without names are
    numbered from 0. A full Gaussian has ``"covariance"`` in place of ``"sd"``.

    >>> to_table(from_table(["age"], [0.31], [0.05]))
    {'family': 'diagonal', 'names': ['age'], 'mean': [0.31], 'sd': [0.05]}
    """
    law = law_of(law)
    if getattr(law, "batch_shape", None) != () or not law.gaussian:
        raise StructureError(
            found=f"a {type(law).__name__}",
            expected="one Gaussian, or a network",
            fix="Any posterior's means and intervals: posterity show FILE --csv.",
        )
    law = getattr(law, "plain", law)  # the weights of a fused network
    layers = law.network_layers
    names = list(law.names) or [str(place) for place in range(law.named_size or 0)]
    names = list(layers.entries()) if layers else names
    family = "diagonal" if law.diagonal else "gaussian"
    table = {"family": family, "names": names, "mean": list(map(tidy, law.mean))}
    if law.diagonal:
        return table | {"sd": list(map(tidy, law.variance**0.5))}
    return table | {"covariance": [list(map(tidy, row)) for row in symmetric(law.covariance)]}


def tidy(value: float) -> float:
    """Return the number with 14 digits that equals this one up to rounding, or else itself.

    So 0.2, inverted twice, is 0.2 again, and nothing else is lost.
    """
    value = float(value)
    short = float(f"{value:.14g}")
    return short if abs(short - value) <= 4 * math.ulp(value) else value


def _numbers(names: Sequence[str], values: object, axes: int, what: str) -> np.ndarray:
    """Return finite numbers along ``axes`` axes, each as long as there are names."""
    size = len(names)
    expected = f"numbers, in {size} rows of {size}" if axes > 1 else f"numbers, {size} of them"
    result = np.zeros(())
    with contextlib.suppress(TypeError, ValueError):
        result = np.asarray(values, dtype=float)
    if result.shape != (size,) * axes:
        raise StructureError(found=f"{what} {str(values)[:80]}", expected=expected)
    _check_each(names, result, np.isfinite(result), what, "a finite number")
    return result


def _positive(names: Sequence[str], sd: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        usable = np.isfinite(1 / (sd * abs(sd))) & np.isfinite(sd**2) & (sd > 0)
    _check_each(names, sd, usable, "sd", "a positive standard deviation")
    return sd


def _check_each(
    names: Sequence[str], values: np.ndarray, good: np.ndarray, what: str, expected: str
) -> None:
    """Raise a ParameterError that names the first parameter of which a value is not ``good``."""
    for name, value, one in zip(names, values, good, strict=True):
        if not one.all():
            raise ParameterError(found=f"{what} {value} of parameter {name!r}", expected=expected)
