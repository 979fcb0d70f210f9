"""Sites whose components are exact conjugate posteriors of records of far clusters."""

from collections.abc import Callable, Sequence

import numpy as np

from posterity import (
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    NormalGamma,
    NormalWishart,
    Plate,
)
from posterity.families import ExponentialFamily

Array = np.ndarray
Held = Sequence[Sequence[int]]
"""By site, the clusters that it has."""
FAR = 10.0
"""How far clusters are apart at least, in standard deviations within a cluster."""


def plates(
    family: str, held: Held, *, dimension: int, shift: float, seed: int, records: Sequence[int] = ()
) -> dict[str, Plate]:
    """A plate a site: clusters differ by at least :data:`FAR`, sites by ``shift``, both in
    standard deviations of one record. Each cluster has 100 to 500 records at a site, or as many
    as ``records`` says for the site.
    """
    rng = np.random.default_rng([seed, dimension, round(100 * shift), len(family)])
    groups = 1 + max(max(site) for site in held)
    make = MAKERS[family](rng, groups, dimension, shift)
    found = {}
    for index, site in enumerate(held):
        counts = [records[index] if records else int(n) for n in rng.integers(100, 500, len(site))]
        found[f"{index:03d}"] = Plate(make(list(site), np.array(counts)))
    return found


def far_places(rng: np.random.Generator, groups: int, dimension: int) -> Array:
    """Means (groups, dimension), no two nearer than :data:`FAR`."""
    scale = FAR * max(1.0, groups ** (1 / dimension))
    places = scale * rng.normal(size=(groups, dimension))
    while (close := _close(places)).any():
        places[close] = scale * rng.normal(size=(int(close.sum()), dimension))
        scale *= 1.05
    return places


def _close(places: Array) -> Array:
    distance = np.linalg.norm(places[:, None] - places, axis=-1)
    return (np.triu(distance < FAR, 1)).any(0)


Maker = Callable[[list[int], Array], ExponentialFamily]


def _normal(conjugate: Callable[[Array, Array, Array], ExponentialFamily]) -> Callable[..., Maker]:
    def maker(rng: np.random.Generator, groups: int, dimension: int, shift: float) -> Maker:
        places = far_places(rng, groups, dimension)

        def site(clusters: list[int], counts: Array) -> ExponentialFamily:
            own = places[clusters] + shift * rng.normal(size=(len(clusters), dimension))
            data = [x + rng.normal(size=(n, dimension)) for x, n in zip(own, counts, strict=True)]
            scatter = np.stack([(x - x.mean(0)).T @ (x - x.mean(0)) for x in data])
            return conjugate(counts.astype(float), np.stack([x.mean(0) for x in data]), scatter)

        return site

    return maker


def _normal_wishart(n: Array, mean: Array, scatter: Array) -> ExponentialFamily:
    return NormalWishart.from_inverse_scale(
        mean, n, np.eye(mean.shape[1]) + scatter, n + mean.shape[1] + 2
    )


def _normal_gamma(n: Array, mean: Array, scatter: Array) -> ExponentialFamily:
    ones = np.ones(mean.shape)
    spread = np.einsum("kii->ki", scatter)
    return NormalGamma.from_standard(mean, n[:, None] * ones, 1 + spread, (n + 3)[:, None] * ones)


def _gaussian(n: Array, mean: Array, scatter: Array) -> ExponentialFamily:
    return Gaussian.from_standard(mean, scatter / (n**2)[:, None, None])


def _diagonal(n: Array, mean: Array, scatter: Array) -> ExponentialFamily:
    return DiagonalGaussian.from_standard(mean, np.einsum("kii->ki", scatter) / (n**2)[:, None])


def _gamma(rng: np.random.Generator, groups: int, dimension: int, shift: float) -> Maker:
    """Rates of Poisson counts: square roots of rates are FAR / 2 apart."""
    del dimension
    rates = (5.0 + FAR / 2 * np.arange(1, groups + 1)) ** 2

    def site(clusters: list[int], counts: Array) -> ExponentialFamily:
        own = rates[clusters] + shift * np.sqrt(rates[clusters]) * rng.normal(size=len(clusters))
        return Gamma.from_standard(1.0 + rng.poisson(own * counts), 0.1 + counts)

    return site


def _dirichlet(rng: np.random.Generator, groups: int, dimension: int, shift: float) -> Maker:
    """Topics that share no frequent word; sites move log probabilities, by a third of the shift."""
    words = dimension * groups
    topics = np.full((groups, words), 0.1 / words)
    for topic in range(groups):
        topics[topic, topic * dimension : (topic + 1) * dimension] += 0.9 / dimension

    def site(clusters: list[int], counts: Array) -> ExponentialFamily:
        own = topics[clusters] * np.exp(shift / 3 * rng.normal(size=(len(clusters), words)))
        own /= own.sum(1, keepdims=True)
        drawn = [rng.multinomial(10 * n, p) for n, p in zip(counts, own, strict=True)]
        return Dirichlet.from_standard(1.0 + np.stack(drawn))

    return site


MAKERS: dict[str, Callable[..., Maker]] = {
    "NormalWishart": _normal(_normal_wishart),
    "NormalGamma": _normal(_normal_gamma),
    "Gaussian": _normal(_gaussian),
    "DiagonalGaussian": _normal(_diagonal),
    "Gamma": _gamma,
    "Dirichlet": _dirichlet,
}
