"""Sites to fuse, made up."""

from typing import Any

import numpy as np

from posterity import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Ledger,
    NormalWishart,
    Plate,
)


def site_plates(
    seed: int, count: int = 4, weighted: bool = True, spread: float = 6.0
) -> dict[str, Any]:
    """Sites that share some of six well-separated components, in any order."""
    rng = np.random.default_rng(seed)
    means, out = spread * rng.normal(size=(6, 2)), {}
    for j in range(count):
        size = int(rng.integers(2, 6))
        rows = rng.choice(6, size, replace=False)
        n = rng.integers(50, 200, size).astype(float)
        wishart = np.stack([np.cov(rng.normal(size=(2, 40))) for _ in rows])
        members = NormalWishart.from_inverse_scale(
            means[rows] + 0.1 * rng.normal(size=(size, 2)), n, wishart * n[:, None, None], n + 3
        )
        out[f"site {j}"] = Plate(members, Dirichlet.from_standard(n + 1) if weighted else None)
    return out


def points(means: Any) -> DiagonalGaussian:
    """Sharp components on a line."""
    mean = np.asarray(means, float)[:, None]
    return DiagonalGaussian.from_standard(mean, np.full(mean.shape, 0.01))


def plate(*means: float) -> Plate:
    """A plate of sharp components on a line."""
    return Plate(points(means))


def wishart_prior(components: int) -> NormalWishart:
    """The same prior for every component, in the plane."""
    identity = np.stack([np.eye(2)] * components)
    centre, ones = np.zeros((components, 2)), np.ones(components)
    return NormalWishart.from_standard(centre, ones, identity, 4 * ones)


def conjugate_site(
    name: str, base: Any, clusters: list[np.ndarray], prior: NormalWishart | None = None
) -> Ledger:
    """What a site that knows which point is whose learns of its clusters in the plane."""
    prior = wishart_prior(len(clusters)) if prior is None else prior
    n = np.array([len(x) for x in clusters], float)
    members = NormalWishart(
        prior.mean_precision + n,
        prior.degrees + n,
        prior.precision_mean + np.stack([x.sum(0) for x in clusters]),
        prior.scatter + np.stack([x.T @ x for x in clusters]),
    )
    if isinstance(base, Beta):
        later = n[::-1].cumsum()[::-1] - n
        weights: Any = Beta(base.a_minus_one + n, base.b_minus_one + later)
    else:
        weights = Dirichlet(base.concentration_minus_one + n)
    return Ledger.of_site(name, prior=Plate(prior, base), posterior=Plate(members, weights))


def gamma_ledger(site: str, shape: float, rate: float = 1.0) -> Ledger:
    """A site's Gamma posterior, with a prior of this rate."""
    prior = Gamma.from_standard(1.0, rate)
    return Ledger.of_site(site, prior=prior, posterior=Gamma.from_standard(shape, rate + 2.0))
