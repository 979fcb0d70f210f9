"""KL-fusion the way it was published: Python loops over pairs, and a conic solver.

Reference: Claici, Yurochkin, Ghosh, Solomon, ICML 2020, with the choices of the authors' code
(https://github.com/IBM/KL-fusion) where they differ from the text. It is kept as the reference
that posterity is measured against, in accuracy and in time, and deliberately not made faster.

What the authors' code does and the text does not say:

* eight globals, chosen by a variant of k-means++ that prefers outliers;
* the assignment uses KL(local || global), the parameter step minimises KL(global || local);
* the norm of global g is multiplied by sqrt(max(0, g + 1 - L)), globals sorted by use, and taken
  over the arbitrary index of a site's component, so the result depends on how a site numbers them;
* lambda is half the standard deviation of the costs, ten iterations, no stopping rule.

Two errors are corrected: its Normal-Wishart KL has kappa0/kappa1 where kappa1/kappa0 belongs, and
after its last sort it looks up the columns in use by their position before the sort.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, default_rng
from scipy.special import digamma, multigammaln

from experiments.klfusion.local_fits import SiteFit

Array = np.ndarray
MAX_COMPONENTS = 8
ITERATIONS = 10
PENALTY = 0.5
IN_USE = 0.999


@dataclass(frozen=True)
class NormalWishart:
    """N(mu | mean, (kappa Lambda)^-1) W(Lambda | S, degrees), S^-1 = inverse_scale (d, d)."""

    mean: Array
    kappa: float
    degrees: float
    inverse_scale: Array


Posteriors = list[list[NormalWishart]]  # by site, those of its components


def klfusion_released(
    sites: Sequence[SiteFit], *, seed: int, max_components: int = MAX_COMPONENTS
) -> Array:
    """Global means (G, d) of the fused posterior; needs cvxpy with the solver SCS."""
    posteriors = [components(site) for site in sites]
    globals_, plans = matched(posteriors, seed=seed, max_components=max_components)
    use = _use(plans)
    return np.stack([q.mean for q, own in zip(globals_, use, strict=True) if own >= IN_USE])


def matched(
    posteriors: Posteriors, *, seed: int, max_components: int
) -> tuple[list[NormalWishart], list[Array]]:
    """Globals sorted by use, and the last plans (G, L_j) in their order."""
    globals_ = spread(posteriors, max_components, default_rng(seed))
    deviation = np.std([kl(g, q) for g in globals_ for site in posteriors for q in site])
    plans: list[Array] = []
    for _ in range(ITERATIONS):
        costs = [np.array([[kl(q, g) for q in site] for g in globals_]) for site in posteriors]
        plans = assign(costs, PENALTY * float(deviation))
        globals_ = [barycenter(old, posteriors, plans, g) for g, old in enumerate(globals_)]
        order = np.argsort(-_use(plans), kind="stable")
        globals_, plans = [globals_[g] for g in order], [plan[order] for plan in plans]
    return globals_, plans


def _use(plans: list[Array]) -> Array:
    return np.sum([plan.sum(axis=1) for plan in plans], axis=0)


def components(site: SiteFit) -> list[NormalWishart]:
    """The Normal-Wishart posteriors of one site's components."""
    rows = site.means, site.mean_precision, site.degrees_of_freedom, site.covariances
    return [
        NormalWishart(mean, float(kappa), float(degrees), degrees * covariance)
        for mean, kappa, degrees, covariance in zip(*rows, strict=True)
    ]


def kl(p: NormalWishart, q: NormalWishart) -> float:
    """KL(p || q) = E_p[Gaussian part] + Wishart part.

    The first is 1/2 [d (ln k0/k1 - 1 + k1/k0) + k1 nu0 (m1 - m0)' S0 (m1 - m0)], the second
    between W(S0, nu0) and W(S1, nu1).
    """
    scale, dim, offset = np.linalg.inv(p.inverse_scale), len(p.mean), q.mean - p.mean
    means = dim * (np.log(p.kappa / q.kappa) - 1.0 + q.kappa / p.kappa)
    gaussian = 0.5 * float(means + q.kappa * p.degrees * offset @ scale @ offset)
    ratio = q.inverse_scale @ scale
    shape = -0.5 * q.degrees * np.linalg.slogdet(ratio)[1]
    shape += 0.5 * p.degrees * (np.trace(ratio) - dim)
    constants = multigammaln(0.5 * q.degrees, dim) - multigammaln(0.5 * p.degrees, dim)
    psi = digamma(0.5 * (p.degrees - np.arange(dim))).sum()
    return gaussian + float(shape + constants + 0.5 * (p.degrees - q.degrees) * psi)


def spread(posteriors: Posteriors, number: int, rng: Generator) -> list[NormalWishart]:
    """Starting globals: of a few candidates, the one farthest from all posteriors in sum."""
    every = [q for site in posteriors for q in site]
    if len(every) <= number:
        return every
    chosen = [every[rng.integers(len(every))]]
    nearest = np.array([kl(q, chosen[0]) for q in every]).clip(0.0)
    while len(chosen) < number and (nearest > 0).any():
        trials = min(2 + int(np.log(number)), int((nearest > 0).sum()))
        picks = rng.choice(len(every), trials, replace=False, p=nearest / nearest.sum())
        potentials = np.array([[kl(q, every[i]) for q in every] for i in picks]).clip(0.0)
        best = potentials.sum(axis=1).argmax()
        chosen.append(every[picks[best]])
        nearest = np.minimum(nearest, potentials[best])
    return chosen


def assign(costs: list[Array], penalty: float) -> list[Array]:
    """The relaxed assignment: plans (G, L_j), columns sum to one, rows to at most one.

    Minimises sum_j <P_j, C_j> + penalty sum_g sqrt(max(0, g + 1 - L)) |sum_j P_j[g]|_2, where the
    sum over sites is by the arbitrary index of the component.
    """
    import cvxpy as cp

    plans = [cp.Variable(cost.shape) for cost in costs]
    widest = max(cost.shape[1] for cost in costs)
    objective = sum(cp.sum(cp.multiply(p, c)) for p, c in zip(plans, costs, strict=True))
    for g in range(len(costs[0])):
        holders = [[p[g, index] for p in plans if index < p.shape[1]] for index in range(widest)]
        weight = np.sqrt(max(0, g + 1 - widest))
        objective += penalty * weight * cp.norm(cp.hstack([sum(terms) for terms in holders]))
    constraints = [
        rule for p in plans for rule in (cp.sum(p, axis=0) == 1, cp.sum(p, axis=1) <= 1, p >= 0)
    ]
    cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.SCS)
    return [np.asarray(p.value) for p in plans]


def barycenter(
    old: NormalWishart, posteriors: Posteriors, plans: list[Array], g: int
) -> NormalWishart:
    """Average of the natural parameters, weighted by row g of the plans; `old` if it is empty."""
    held = [
        (plan[g, index], q)
        for plan, site in zip(plans, posteriors, strict=True)
        for index, q in enumerate(site)
        if plan[g, index] > 0
    ]
    if not held:
        return old
    weights = np.array([weight for weight, _ in held])
    return average([q for _, q in held], weights / weights.sum())


def average(posteriors: list[NormalWishart], weights: Array) -> NormalWishart:
    """The Normal-Wishart whose naturals (kappa, nu, kappa m, S^-1 + kappa m m') are the average."""
    each = [
        (q.kappa, q.degrees, q.kappa * q.mean, q.inverse_scale + q.kappa * np.outer(q.mean, q.mean))
        for q in posteriors
    ]
    kappa, degrees, first, second = (
        sum(w * part for w, part in zip(weights, parts, strict=True))
        for parts in zip(*each, strict=True)
    )
    mean = first / kappa
    return NormalWishart(mean, kappa, degrees, second - kappa * np.outer(mean, mean))
