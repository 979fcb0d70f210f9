"""Diagnostics of chains: temperature, misfit of the noise, and disagreement."""

from typing import Any

import jax
import numpy as np
import scipy.optimize
import scipy.special
from jaxtyping import Float, PyTree

from posterity.arrays.chains import (
    Limits,
    apart,
    diagnose,
    error_of_variance,
    is_short,
    mean_and_error,
    tails,
)
from posterity.distillation.sampling import tuning
from posterity.distillation.sampling.modes import EQUIVALENT
from posterity.distillation.sampling.target import Target
from posterity.inference.modes import RULE, unsearched
from posterity.networks.chances import law_of_values

OFF = 0.15  # Largest accepted relative deviation of a temperature
SURE = 4.0
"""Standard errors from which a difference counts, as the worst of several groups is tested."""
RECORDS = 2048  # Most records at which the model's noise is checked


def temperature(
    series: Float[np.ndarray, "chains n groups"], wanted: float
) -> tuple[float | None, list[str]]:
    """Return the chains' temperature, or None if it is uncertain, and reasons to doubt it."""
    if is_short(series):
        return None, ["the temperature of the chains is not known: too few draws"]
    pairs = map(mean_and_error, series.T.swapaxes(1, 2))
    each, errors = map(np.array, zip(*pairs, strict=True))
    off = each / wanted - 1
    sure = np.abs(each - wanted) > SURE * errors
    reasons = []
    worst = errors.argmax()
    known = errors[worst] <= OFF * wanted
    if not known:
        reasons.append(
            f"the temperature of the chains is not known ({each[worst]:.2g} ± "
            f"{errors[worst]:.2g}, not {wanted:g}, in the worst group of coordinates)"
        )
    if (warm := sure & (off > OFF)).any():
        reasons.append(
            f"the chains are too warm (temperature {each[warm].max():.2f}, not {wanted:g}, in "
            "the worst group of coordinates): the step size is too large for the posterior, or "
            "burn_in too short"
        )
    if (cold := sure & (off < -OFF)).any():
        reasons.append(
            f"the chains still spread (temperature {each[cold].min():.2f}, not {wanted:g}, in "
            "the slowest group of coordinates): they have not explored the posterior; raise "
            "burn_in and the number of draws"
        )
    return float(each.mean()) if known else None, reasons


def too_warm(
    target: Target, positions: PyTree, steps: tuple[PyTree, float], wanted: float
) -> list[str]:
    """Return a reason if steps of these sizes and friction overheat some joint direction."""
    long, noise = tuning.warmth(target, positions, *steps, key=jax.random.key(0))
    warm = {"a smaller step size": long, "a larger batch_size": noise / wanted}
    if sum(warm.values()) <= OFF:
        return []
    return [
        f"the chains are too warm along some direction (temperature "
        f"{wanted * (1 + sum(warm.values())):.2g}, not {wanted:g}), whatever it is on average: "
        f"use {max(warm, key=warm.__getitem__)}"
    ]


def searched(numbers: Any, chains: int) -> str:
    """Return where modes were looked for: by climbs, optima and draws of the prior that were
    compared with these, see :class:`~posterity.distillation.sampling.modes.Laplace`, or by chains
    alone if these are None or if modes are equivalent; empty if there is one mode.
    """
    climbs, optima, compared = (0, 0, EQUIVALENT) if numbers is None else map(int, numbers)
    if climbs == 1:
        return ""
    if compared == EQUIVALENT:
        return (
            f"{chains} chains agree on the log density and on outputs, which may be alike in many "
            "modes; modes that no chain reached are not known"
        )
    ended = f"{optima} optima" if optima > 1 else "one optimum"
    if not optima:
        ended = "no optimum that single precision resolves, so that chains start at the prior"
    missing = unsearched(RULE.unseen(compared), compared, "prior", "optima")
    return f"{climbs} climbs ended in {ended}; {missing}"


def residuals(outputs: Any, y: Any, noise_variance: Any) -> tuple[Any, Any] | None:
    """Return each draw's means less the records' values (draws, n, k), and its noise variances, in
    float64, where squares of float32 do not overflow; None if a model knows no noise, or has other
    outputs than values.
    """
    mean, noise = outputs if isinstance(outputs, tuple) else (outputs, noise_variance)
    if noise is None or np.size(y) != mean[0].size:
        return None
    away = np.asarray(mean, np.float64) - np.reshape(y, mean[0].shape)
    return away, np.broadcast_to(np.asarray(noise, np.float64), mean.shape)


def degrees(
    away: Float[np.ndarray, "draws n k"],
    noise: Float[np.ndarray, "draws n k"],
    *,
    least: float = 2.05,  # Degrees of freedom; at two the variance is infinite
    most: float = 1000.0,  # Degrees from which a t law is as good as normal
    # Rate of the prior of degrees, a gamma law of shape two (juarez2010)
    rate: float = 0.1,
) -> float:
    """Return the degrees of freedom of a t law of records, with the predictive's mean and variance.

    They are the most probable for residuals of records left out in turn: a record's prediction is
    that of the draws weighted by the inverse of their density there, no weight above the mean times
    the root of their number. Infinite, as of a normal law, where residuals are not finite. Source:
    gelfand1992 (weights), ionides2008 (the bound).
    """
    surprise = (away**2 / noise + np.log(noise)).sum(-1, keepdims=True) / 2
    shares = np.minimum(scipy.special.softmax(surprise, 0), len(away) ** -0.5)
    shares = shares / shares.sum(0)
    centre = (shares * away).sum(0)
    variance = (shares * (noise + (away - centre) ** 2)).sum(0)
    standardised = centre / np.sqrt(variance)

    def lost(share: float) -> float:
        own = 1 / share
        prior = np.log(own) - rate * own
        return -law_of_values(0.0, 1.0, own).logpdf(standardised).sum() - prior

    best = scipy.optimize.minimize_scalar(lost, bounds=(1 / most, 1 / least), method="bounded")
    return float(1 / best.x) if np.isfinite(best.fun) else np.inf


def misfit(
    away: Float[np.ndarray, "draws n k"],
    noise: Float[np.ndarray, "draws n k"],
    *,
    # Half-width of the central 50 % interval of a normal law, in standard deviations
    half: float = 0.6745,
    # Least deviation from one half, of the share of records in such intervals, that is a misfit.
    uneven: float = 0.05,
) -> list[str]:
    """Return a reason if the noise of values does not fit the model: under a correct model, half of
    the records lie in the 50 % intervals about a posterior draw. Source: johnson2004.
    """
    share = float((np.abs(away) < half * np.sqrt(noise)).mean())
    if abs(share - 0.5) <= max(uneven, SURE / 2 / away.shape[1] ** 0.5):
        return []
    return [
        f"{100 * share:.0f} % of the records lie in intervals of 50 % about the draws: the "
        "noise is not normal, or not what the model says; let it vary with the inputs"
    ]


def agreement(
    chains: Float[np.ndarray, "chains n d"],
    coordinates: Float[np.ndarray, "chains n q"],
) -> tuple[list[str], float | None, float | None]:
    """Return reasons to doubt that chains agree, the largest R-hat and the least effective size, of
    ``chains``, the log density and outputs, and of the ``coordinates`` of a model. Coordinates in
    which chains are in different places have a reason of their own, as the names of parameters may
    be permuted, so that only coordinates differ. Their tails and variances are reasons too, as
    draws of parameters are read as intervals and moments.
    """
    limits = Limits()
    alone = "one chain cannot show that another would be elsewhere: run two at least"
    reasons: list[str] = [alone] if len(chains) == 1 else []
    watched = diagnose(np.concatenate([chains, coordinates], axis=-1))
    rhats = watched.rhat
    many = coordinates.shape[-1]
    if np.isnan(rhats).all():
        reasons.append("too few draws, or none that differ, to tell whether chains agree")
        return reasons, None, None
    rhat = float(np.nanmax(rhats))
    effective = float(watched.size.min())
    modes = np.zeros(len(rhats), bool)
    if many:
        modes[-many:] = apart(coordinates)
    worst = float(np.nanmax(rhats[~modes], initial=0.0))
    if worst > limits.rhat:
        reasons.append(
            f"the chains disagree (R-hat {worst:.2f}): they are in different places; raise "
            "burn_in and the number of draws"
        )
    worst = float(np.nanmax(rhats[modes], initial=0.0))
    if worst > limits.rhat:
        reasons.append(
            f"the chains disagree in coordinates (R-hat {worst:.2f}): they are in "
            "different modes, whose weights are then not known, or in the same one under "
            "permuted names of parameters; look at the draws of each chain, or give "
            "parameters that can be permuted an order in the model"
        )
    if not effective >= limits.size:
        reasons.append(f"their draws are worth {effective:.0f} independent ones; make more")
    elif not reasons and many and (least := float(tails(coordinates).min())) < limits.tails:
        reasons.append(
            f"the draws in a coordinate's tails of 5 % are worth {least:.0f} independent ones, so "
            "that intervals are not known, and may be too short; make more, or raise thin"
        )
    elif (
        not reasons
        and many
        and (off := float(error_of_variance(coordinates).max())) > limits.variance_error
    ):
        reasons.append(
            f"the variance of a coordinate is known to ±{100 * off:.0f} % alone: make more draws; "
            "if that does not help, its tails are so heavy that the variance may be infinite"
        )
    return reasons, rhat, effective
