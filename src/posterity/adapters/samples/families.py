"""A family through the draws of some variables: which, and what it takes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special
import scipy.stats

from posterity.adapters.samples import gaussians
from posterity.adapters.samples.gaussians import Fit, Standard, normal_scores, standard
from posterity.adapters.samples.variables import EVENT, Variable, on
from posterity.arguments import one_of
from posterity.arrays.typing import Float
from posterity.errors import ParameterError, StructureError
from posterity.families.beta import Beta
from posterity.families.dirichlet import Dirichlet
from posterity.families.gamma import Gamma, solve_log_minus_digamma
from posterity.families.plate import Plate
from posterity.families.supports import RealNumbers

Array = np.ndarray
FAMILY = one_of("gaussian", "diagonal", "low-rank", "mixture", "gamma", "beta", "dirichlet")
OWN_SUPPORT = {"gamma": "positive", "beta": "unit", "dirichlet": "simplex"}
"""Families with a support of their own."""
LEAST_DRAWS = 10
TIGHT = 1e-8
"""Half a squared coefficient of variation below which a gamma's shape is that of a Gaussian."""


class Options(NamedTuple):
    """What the families can be told."""

    rank: int | None = None
    components: int | None = None


class Block(NamedTuple):
    """Variables under one family: its law, with names, and what it says of the draws."""

    family: str
    law: Any
    fit: Fit
    free: Standard
    labels: tuple[str, ...]
    """Of the scores."""
    free_labels: tuple[str, ...]


def prepared(variables: Sequence[Variable], family: str) -> list[Variable]:
    """On the support that the family has of its own, if it has one."""
    if family not in OWN_SUPPORT:
        return list(variables)
    return [on(own, OWN_SUPPORT[family]) for own in variables]


def block(
    variables: Sequence[Variable], family: str, options: Options, names: Sequence[str] | None
) -> Block:
    """The family's law of maximum likelihood through all these variables.

    Raises:
        StructureError: for too few draws, and variables that the family cannot hold.
        ParameterError: for coordinates that do not vary, or follow from others.
    """
    u = np.concatenate([own.free for own in variables], axis=-1)
    free_labels = tuple(label for own in variables for label in own.free_labels)
    labels = tuple(label for own in variables for label in own.labels)
    if names is not None:
        labels = tuple(names)
        if len(free_labels) == len(labels):
            free_labels = labels
    _check_count(u, family, free_labels)
    free = standard(u, free_labels)
    if family in OWN_SUPPORT:
        law, fit = _bounded(variables, family, free, labels, names is not None)
        return Block(family, law, fit, free, labels, free_labels)
    if family == "gaussian":
        fit = gaussians.full(free, free_labels)
    elif family == "diagonal":
        fit = gaussians.diagonal(free)
    elif family == "low-rank":
        fit = gaussians.low_rank(free, _rank(options.rank, len(free_labels)))
    else:
        fit = gaussians.mixture(free, free_labels, options.components)
    law = fit.law
    if not all(isinstance(own.support, RealNumbers) for own in variables):
        supports = {own.name: own.support for own in variables}
        law = gaussians.transformed(law, supports if all(supports) else variables[0].support)
    if names is not None or variables[0].name:
        law = law.named(list(free_labels))
    return Block(family, law, fit, free, free_labels, free_labels)


def _rank(rank: int | None, size: int) -> int | None:
    if rank is not None and rank >= size:
        raise StructureError(
            found=f"rank={rank} for {size} coordinates",
            expected="fewer factors than coordinates",
            fix="Leave rank= out, or take family='gaussian'.",
        )
    if size == 1:
        raise StructureError(
            found="family='low-rank' for one coordinate",
            expected="two at least",
            fix="Take family='gaussian'.",
        )
    return rank


def _check_count(u: Float[Array, "chains n d"], family: str, labels: Sequence[str]) -> None:
    count, size = u.shape[0] * u.shape[1], u.shape[2]
    least = max(LEAST_DRAWS, size + 1 if family in ("gaussian", "mixture") else 0)
    if count < least:
        raise StructureError(
            found=f"{count} draws of {size} coordinates ({', '.join(labels[:5])}"
            f"{', ...' if size > 5 else ''})",
            expected=f"at least {least} for family={family!r}",
            fix="Draw more; or take family='diagonal' or 'low-rank', which need fewer.",
        )


# --- families with a support of their own --------------------------------------------------------


def _bounded(
    variables: Sequence[Variable], family: str, free: Standard, labels: Sequence[str], given: bool
) -> tuple[Any, Fit]:
    named = given or bool(variables[0].name)
    slopes = sum((own.log_slope for own in variables[1:]), start=variables[0].log_slope)
    if family == "dirichlet":
        law, density, scores, count = _dirichlet(variables, labels, named)
        return law, Fit(law, density + slopes, scores, count)
    z = np.concatenate([own.flat for own in variables], axis=-1)
    law, density, scores = (_gamma if family == "gamma" else _beta)(z)
    density = density + (slopes if family == "beta" else 0.0)
    law = law[0]  # gammas and betas come one by one
    return law.named(list(labels)) if named else law, Fit(law, density, scores, 2)


def _gamma(z: Float[Array, "chains n d"]) -> tuple[Gamma, Array, Array]:
    """By maximum likelihood; the density is that of ``log z``.

    With ``x`` the draw over the mean less one, all is said by ``log(1 + x) - x``, which keeps its
    digits where the mean is huge.
    """
    mean = z.mean((0, 1))
    x = (z - mean) / mean
    x = x - x.mean((0, 1))
    curve = _log_less(x, np.log(z / mean))
    gap = -curve.mean((0, 1))
    shape = np.where(
        gap < TIGHT, 1 / (2 * gap) + 1 / 6, solve_log_minus_digamma(np.maximum(gap, TIGHT))
    )
    # a log a - a - log Γ(a), by Stirling where digits would be lost.
    stirling = np.log(shape / (2 * np.pi)) / 2 - 1 / (12 * shape)
    plain = shape * np.log(shape) - shape - scipy.special.gammaln(shape)
    norm = np.where(shape > 1e4, stirling, plain)
    density = (shape * curve + norm).sum(-1)
    law = Gamma.from_standard(shape, shape / mean)
    known = scipy.stats.gamma(np.minimum(shape, 1e12))
    scores = normal_scores(known.cdf(shape * (1 + x)), known.sf(shape * (1 + x)))
    # A gamma of so large a shape is a Gaussian, of which cdf has no digits.
    return law, density, np.where(shape > 1e8, x * np.sqrt(shape), scores)


def _log_less(x: Array, logarithms: Array) -> Array:
    """``log(1 + x) - x``, also for small ``x``."""
    series = -(x**2) / 2 + x**3 / 3 - x**4 / 4
    return np.where(abs(x) < 1e-3, series, logarithms - x)


def _beta(z: Float[Array, "chains n d"]) -> tuple[Beta, Array, Array]:
    statistics = np.stack([np.log(z).mean((0, 1)), np.log1p(-z).mean((0, 1))], axis=-1)
    ones = np.ones(z.shape[-1])
    law = Beta.from_standard(ones, ones).with_mean_parameters(statistics)
    law = _checked(law, z, "beta")
    a, b = np.asarray(law.a), np.asarray(law.b)
    known = scipy.stats.beta(a, b)
    return law, scipy.stats.beta.logpdf(z, a, b).sum(-1), normal_scores(known.cdf(z), known.sf(z))


def _checked(law: Any, z: Array, family: str) -> Any:
    if not np.all(law.is_proper()):
        raise ParameterError(
            found=f"draws without a {family} of maximum likelihood (of means "
            f"{np.array2string(z.mean((0, 1)), precision=4, threshold=6)})",
            expected="draws that vary within the support",
            fix="Take family='gaussian' with a support=.",
        )
    return law


def _dirichlet(
    variables: Sequence[Variable], labels: Sequence[str], named: bool
) -> tuple[Any, Array, Array, int]:
    if len(variables) > 1 or len(variables[0].shape) > 2:
        raise StructureError(
            found=f"variables {[own.name for own in variables][:5]} of shapes "
            f"{[own.shape for own in variables][:5]} for one Dirichlet",
            expected="one variable, (K,) or (m, K)",
            fix="Say independent=True, or a family for each variable: family={'pi': 'dirichlet'}.",
        )
    z = variables[0].values
    statistics = np.log(z).mean((0, 1))
    law = Dirichlet.from_standard(np.ones(z.shape[2:])).with_mean_parameters(statistics)
    law = _checked(law, z, "dirichlet")
    density, alpha = np.asarray(law.log_prob(z)), np.asarray(law.concentration)
    known = scipy.stats.beta(alpha, alpha.sum(-1, keepdims=True) - alpha)
    scores = normal_scores(known.cdf(z), known.sf(z)).reshape(*z.shape[:2], -1)
    if z.ndim == 3:
        law = law.named(list(labels)) if named else law
    else:
        density, law = density.sum(-1), Plate(law)
        law = law.named([f"{variables[0].name or EVENT}[{i}]" for i in range(law.size)])
    return law, density, scores, alpha.size
