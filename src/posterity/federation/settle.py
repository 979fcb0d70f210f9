"""Diagonal posteriors of columns that are alike: why rounds creep, and a way out.

A diagonal Gaussian holds each coordinate fast while another moves. Where columns are alike, as a
constant is like a column far from zero, means must move together by far more than any moves alone,
so rounds change ever less and are still far from the end. What shows that, and ends it, is how the
slopes of all sites change with the mean: a matrix of few rows, which a server can ask of them.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from posterity.entries import Entry
from posterity.families import at_rest
from posterity.federation.state import State
from posterity.federation.visit import DOUBT, Federation, failure_of
from posterity.inference.choice import FEW
from posterity.inference.cubature import Cubature
from posterity.inference.step import HALVINGS


class Report(NamedTuple):
    """What a site says of a posterior."""

    value: Any
    """``E_q[log likelihood]/α``, in nats."""
    factor: Any
    """The factor that the site would have there."""
    slope: Any
    """The derivative of ``value`` in the mean (d,)."""
    curvature: Any
    """Minus the derivative of ``slope`` in the mean (d, d)."""


class Stiffness(NamedTuple):
    """Where Newton's method would take the mean of all sites' free energy."""

    step: Any
    change: float
    """KL divergence, in nats, to where the posterior would be then."""
    energy: float
    """Free energy, in nats, up to a constant."""


def creeps(federation: Federation, state: State) -> bool:
    """Whether means may creep, and sites can say how they hang together."""
    q = state.prior
    few = q.gaussian and q.diagonal and 1 < q.own_size <= FEW
    return few and federation.update.searches


def stiffness(federation: Federation, state: State) -> Stiffness:
    """How far the posterior is from where its sites' free energy is least, all asked at once."""
    q: Any = state.posterior
    prior: Any = state.prior
    reports = _reports(federation, state, q, bend=True)
    pull = prior.precision * (prior.mean - q.mean)
    slope = sum((np.asarray(report.slope) for report in reports), start=pull)
    curvature = sum((np.asarray(r.curvature) for r in reports), start=np.diag(prior.precision))
    step = _solved(curvature, slope)
    there: Any = sum((at_rest(report.factor) for report in reports), start=prior)
    # In the mean by Newton's step; in the precision by what the sites would now say.
    ratio = there.precision / q.precision
    known = np.isfinite(step).all() and (ratio > 0).all()
    away = q.precision * step**2 + ratio - 1 - np.log(np.where(ratio > 0, ratio, 1.0))
    change = float(away.sum() / 2) if known else math.inf
    return Stiffness(step, change, _energy(prior, q, reports))


def settled(federation: Federation, state: State, found: Stiffness) -> State | None:
    """The state after all means moved together, so far that the sites' free energy falls.

    Each site keeps its precision, and has the slope that is its own at the new mean. None if no
    step helps.
    """
    q: Any = state.posterior
    for halving in range(HALVINGS if np.isfinite(found.step).all() else 0):
        mean = q.mean + found.step / 2**halving
        moved = type(q)(q.precision * mean, q.precision)
        reports = _reports(federation, state, moved, bend=False)
        if not all(np.isfinite(report.slope).all() for report in reports):
            continue
        entries = dict(state.entries)
        for site, report in zip(_sites(federation, state), reports, strict=True):
            held = entries[site]
            bend = held.factor.precision  # pyright: ignore
            factor = type(q)(np.asarray(report.slope) + bend * mean, bend)
            entries[site] = Entry(held.epoch, held.sequence + 1, factor, False)
        after = state.with_entries(entries)
        if federation.admits(after.posterior):
            there = _reports(federation, after, after.posterior, bend=False)
            if _energy(state.prior, after.posterior, there) < found.energy:
                return after
    return None


def _sites(federation: Federation, state: State) -> list[str]:
    """Those that contribute: a site that has not had its turn yet does not begin here."""
    held = lambda site: np.any(state.factor(site).natural_parameters)
    return [site for site, r in federation.sites.items() if not r.silent and held(site)]


def _reports(federation: Federation, state: State, q: Any, *, bend: bool) -> list[Report]:
    reports = []
    for site in _sites(federation, state):
        try:
            reports.append(_asked(federation, site, q, bend))
        except Exception as error:
            raise failure_of(error, site) from error
    return reports


def _asked(federation: Federation, site: str, q: Any, bend: bool) -> Report:
    """By as many nodes as it takes, as at a visit."""
    records, update = federation.sites[site].padded(), federation.update
    while True:
        with jax.enable_x64(True):
            report, doubt = _report(update, federation.model, q, records, bend)
        finer = update.finer()
        if finer is None or float(doubt) <= DOUBT:
            return report
        update = finer


@eqx.filter_jit
def _report(update: Any, model: Any, q: Any, records: Any, bend: bool) -> tuple[Report, Any]:
    records = records.widened()

    def at(mean: Any, otherwise: Any = False) -> tuple[Any, Any]:
        here = type(q)._of(precision_mean=q.precision * mean, precision=q.precision)
        found = update.estimator.evaluate(model, here, records, otherwise=otherwise)
        factor = found.gradient / update.temperature
        slope = factor.precision_mean - factor.precision * mean
        return slope, (found.value / update.temperature, factor)

    mean = jnp.asarray(q.mean)
    slope, (value, factor) = at(mean)
    doubt = q.squared_length(at(mean, True)[1][1] - factor) / 4
    unit = jnp.eye(len(mean) if bend else 0, len(mean), dtype=mean.dtype)

    def along(one: Any) -> Any:
        if not isinstance(update.estimator, Cubature):
            return jax.jvp(lambda mean: at(mean)[0], (mean,), (one,))[1]
        # A likelihood with kinks bends between the nodes, where its derivatives do not see it.
        step = one / jnp.sqrt(q.precision) / 2
        return (at(mean + step)[0] - at(mean - step)[0]) / (2 * step.sum())

    return Report(value, factor, slope, -jax.lax.map(along, unit)), doubt


def _energy(prior: Any, q: Any, reports: list[Report]) -> float:
    return float(q.kl(prior)) - sum(float(report.value) for report in reports)


def _solved(curvature: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Newton's step, about as far as it goes where curvature is negative or nil."""
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(curvature)), 1e-300))
    scaled = scale[:, None] * (curvature + curvature.T) / 2 * scale
    values, vectors = np.linalg.eigh(scaled)
    values = np.maximum(np.abs(values), 1e-15)
    return scale * (vectors @ ((vectors.T @ (scale * slope)) / values))
