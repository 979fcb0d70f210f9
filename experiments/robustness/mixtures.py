"""Mixtures without a location, and sites in other units: `-m experiments.robustness.mixtures`.

Sites know which record is whose. They have mixtures of rates, shares or categories in several
columns, from twenty records a component to twenty thousand and components of one in a hundred; or
normal ones, of which one site is in other units (before or after columns were centred) or shifted
by 25 to 50 deviations and has to be warned of: *not told of* where its components are only kept
apart. Judged as :mod:`.situations` are. Writes `results/mixtures.json`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import CACHES, command, kept, write
from experiments.robustness.situations import (
    FAMILIES,
    RESULTS,
    Rng,
    Situation,
    between,
    centres_of,
    judged,
    ledger,
    plates,
    renumbered,
    summary,
    total,
)
from posterity import Beta, Dirichlet, Gamma, Product


def columns(rng: Rng) -> Situation:
    """Components that are products of rates, shares or categories."""
    kind = str(rng.choice(["rates", "shares", "categories"]))
    size, count = int(rng.choice([4, 6, 10, 20, 30])), int(rng.integers(2, 8))
    sites, twist = between(rng, 2, 40), str(rng.choice(["", "unequal", "rare"]))
    names = [f"x{k}" for k in range(size)]
    if kind == "rates":
        truth: Any = 3 * np.exp(rng.normal(1.0, 1.2, (count, size)))
        start: Any = Gamma.from_standard(0.6, 0.1)
        made: Any = lambda n, rate: Gamma(float(rng.poisson(n * rate)), float(n))
    elif kind == "shares":
        truth = rng.beta(0.5, 0.5, (count, size)).clip(0.02, 0.98)
        start, made = Beta.from_standard(1.0, 1.0), lambda n, p: _share(n, rng.binomial(n, p))
    else:
        levels = int(rng.integers(2, 7))
        truth = rng.dirichlet(np.full(levels, 0.5), (count, size)) * 0.97 + 0.03 / levels
        start = Dirichlet.from_standard(np.ones(levels))
        made = lambda n, table: Dirichlet(rng.multinomial(n, table).astype(float))
    prior, posteriors, labels = Product({name: start for name in names}), {}, {}
    everyone: dict[int, list[Any]] = {}
    for site in range(sites):
        own = rng.permutation(count)[: int(rng.integers(max(1, count // 2), count + 1))].tolist()
        least, most = (20, 20000) if twist == "unequal" else (60, 600)
        records = [between(rng, least, most) for _ in own]
        if twist == "rare":
            records[0] = max(sum(records[1:]) // 100, 5)
        factors = []
        for g, n in zip(own, records, strict=True):
            law = [made(n, number) for number in truth[g]]
            factors.append(Product(dict(zip(names, law, strict=True))))
            everyone.setdefault(g, []).append(factors[-1])
        name = f"site {site:02d}"
        posteriors[name] = ledger(name, *plates(prior, factors, records))
        labels[name] = own
    pooled = total(prior, [_sum(prior, everyone[g]) for g in sorted(everyone)])
    about = {"columns": size, "clusters": count, "sites": sites, "twist": twist}
    return Situation(kind, posteriors, renumbered(labels), pooled, about=about)


def _share(n: int, ones: int) -> Beta:
    return Beta(float(ones), float(n - ones))


def _sum(prior: Any, factors: list[Any]) -> Any:
    return prior.with_natural_parameters(sum(factor.natural_parameters for factor in factors))


def moved(rng: Rng) -> Situation:
    """Clusters of normal records; the first site is in other units or shifted."""
    kind, size = str(rng.choice(["normal-wishart", "normal-gamma"])), int(rng.integers(2, 7))
    count, sites = int(rng.integers(2, 6)), int(rng.choice([2, 3, 5, 8]))
    prior, factor = FAMILIES[kind](size, np.ones(size))
    centres = centres_of(rng, count, size, float(rng.uniform(6, 12)))
    how, factors = str(rng.choice(["units", "shifted", "centred"])), np.ones(size)
    step = rng.normal(size=size)
    step *= rng.uniform(25, 50) / np.linalg.norm(step) * (how == "shifted")
    if how == "units":
        factors[rng.permutation(size)[: int(rng.integers(1, size + 1))]] = rng.choice(
            [2.2, 18.0, 1000.0, 0.0254]
        )
    if how == "centred":  # one column, with its mean in the usual unit subtracted
        place, factor_of_one = int(rng.integers(size)), float(rng.choice([2.2, 18.0, 0.0254]))
        factors[place] = factor_of_one
        step = np.where(np.arange(size) == place, (factor_of_one - 1) * rng.uniform(5, 100), 0.0)
    posteriors, labels = {}, {}
    for site in range(sites):
        least = (2, count, *[max(1, count // 2)] * sites)[site]
        own = rng.permutation(count)[: int(rng.integers(least, count + 1))].tolist()
        records = [centres[g] + rng.normal(size=(between(rng, 40, 400), size)) for g in own]
        if site == 0:
            records = [x * factors + step for x in records]
        name = f"site {site:02d}"
        plate = plates(prior, [factor(x) for x in records], [len(x) for x in records])
        posteriors[name], labels[name] = ledger(name, *plate), own
    about = {"d": size, "clusters": count, "sites": sites, "how": how}
    everything = Situation(how, posteriors, renumbered(labels), differs=np.inf, about=about)
    everything.strange = "site 00"
    return everything


def run(
    *,
    first: int = 9000,
    count: int = 200,
    results: Path = RESULTS,
    cache: Path = CACHES / "mixtures",
    only_kept: bool = False,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure what is not kept yet, from number ``first`` on, and write all down."""
    seeds, rows = range(first, first + (6 if quick else count)), []
    for seed in seeds:
        rng = np.random.default_rng([91, seed])
        make = lambda rng=rng, seed=seed: judged((columns, moved)[seed % 2](rng))
        row = kept(cache, str(seed), None if only_kept else make)
        rows += [] if row is None else [{"seed": seed, **row}]
    found = summary(rows, f"{seeds.start} to {seeds.stop - 1}")
    write(results, "mixtures", found)
    print(found["counts"]["all"])
    return found


if __name__ == "__main__":
    command(run)
