"""Random fusions of known truth by default: `python -m experiments.robustness.situations`.

A situation is *right* if components are as many and matched as in truth (nine in ten of them where
local fits overlap) and, where all sites are ledgers of one prior, the posterior is that of the
pooled records. Sites that truly differ by more than twelve standard errors, copies, sites without
records, and full covariances known from fewer records than directions have to be warned of; sites
that differ by three to twelve standard errors may be. Wrong and not warned of is *silent*; right
and warned of, where nothing differs, is *false*. Goes on where an earlier run ended, and writes
`results/situations.json`.
"""

import collections
import dataclasses
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import CACHES, command, kept, write
from posterity import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    Ledger,
    NormalGamma,
    NormalWishart,
    Plate,
    fuse,
)
from posterity.errors import PosterityError

Array = np.ndarray
Rng = np.random.Generator
Family = tuple[Any, Callable[[Array], Any]]  # a prior, and what records (n, d) add to it
RESULTS = Path(__file__).parent / "results"
MUST, MAY = 12.0, 3.0
"""Standard errors between sites from which they have to be warned of, and may be."""
SAME = 1e-3  # nats a component between the posterior and that of the pooled records
SILENT, FALSE = 1 / 500, 0.05
"""The goals: silent ones of all, and false ones of those that are right."""


@dataclasses.dataclass
class Situation:
    """Sites to be fused by default, and what is true of them."""

    kind: str
    sites: dict[str, Any]
    # by site the true component of each local one; None where blocks mean the same
    labels: dict[str, list[int]] | None = None
    # the posterior of each true component given the pooled records, a batch (G,), in a one-
    # component batch where nothing is matched; None where priors are not known
    pooled: Any = None
    # standard errors by which sites differ; infinite of what has to be warned of anyway
    differs: float = 0.0
    refused: bool = False  # whether an error is right
    nearly: float = 1.0  # share of components that have to be matched as in truth
    strange: str = ""  # a site whose components may as well be apart from all others'
    # whether full covariances are known from fewer records than directions, which has to be warned
    # of, right or not
    few: bool = False
    about: dict[str, Any] = dataclasses.field(default_factory=dict)


def wisharts(size: int, unit: Array) -> Family:
    """A vague Normal-Wishart in these units, and the factor of records (n, d)."""
    prior = NormalWishart.from_inverse_scale(
        np.zeros(size), 0.001, np.diag(unit**2) * (size + 2), size + 2.0
    )
    return prior, lambda x: NormalWishart(float(len(x)), float(len(x)), x.sum(0), x.T @ x)


def normal_gammas(size: int, unit: Array) -> Family:
    ones = np.ones(size)
    prior = NormalGamma.from_standard(0 * ones, 0.001 * ones, 3 * unit**2, 3 * ones)
    return prior, lambda x: NormalGamma(len(x) * ones, len(x) * ones, x.sum(0), (x**2).sum(0))


def diagonals(size: int, unit: Array) -> Family:
    """Means alone, whose noise is known."""
    prior = DiagonalGaussian.from_standard(np.zeros(size), (100 * unit) ** 2)
    return prior, lambda x: DiagonalGaussian(x.sum(0) / unit**2, len(x) / unit**2)


def gaussians(size: int, unit: Array) -> Family:
    prior = Gaussian.from_standard(np.zeros(size), np.diag((100 * unit) ** 2))
    precision = np.diag(1 / unit**2)
    return prior, lambda x: Gaussian(precision @ x.sum(0), len(x) * precision)


def total(prior: Any, factors: list[Any]) -> Any:
    natural = [prior.natural_parameters + f.natural_parameters for f in factors]
    return prior[None].with_natural_parameters(np.array(natural)) if natural else prior


def repeated(prior: Any, times: int) -> Any:
    return prior.with_natural_parameters(np.tile(prior.natural_parameters, (times, 1)))


def plates(prior: Any, factors: list[Any], counts: Any) -> tuple[Plate, Plate]:
    """Prior and posterior of components, and of how many records each has."""
    base = Dirichlet.from_standard(np.ones(len(factors)) / len(factors))
    after = Dirichlet(base.concentration_minus_one + np.array(counts, float))
    return Plate(repeated(prior, len(factors)), base), Plate(total(prior, factors), after)


def ledger(name: str, prior: Any, posterior: Any) -> Ledger:
    return Ledger.of_site(name, prior=prior, posterior=posterior)


FAMILIES = {
    "normal-wishart": wisharts,
    "normal-gamma": normal_gammas,
    "diagonal": diagonals,
    "gaussian": gaussians,
}


def between(rng: Rng, least: int, most: int) -> int:
    """A number of records, as likely to be among few as among many."""
    return int(np.exp(rng.uniform(np.log(least), np.log(most))))


def renumbered(labels: dict[str, list[int]]) -> dict[str, list[int]]:
    """Labels that are in use, as 0, 1, ..."""
    used = sorted({g for own in labels.values() for g in own})
    return {n: [used.index(g) for g in own] for n, own in labels.items()}


def centres_of(rng: Rng, count: int, size: int, apart: float) -> Array:
    """Places that are so far apart at least, in deviations of a record."""
    if size == 1:
        gaps = apart * rng.uniform(1, 1.5, count)
        return rng.permutation(gaps.cumsum() - gaps.sum() / 2)[:, None]
    spread = apart * max(1.5, count ** (1 / size))
    while True:
        found = rng.normal(size=(count, size)) * spread / np.sqrt(min(size, 4))
        gaps = np.linalg.norm(found[:, None] - found, axis=-1)[np.triu_indices(count, 1)]
        if gaps.min(initial=np.inf) >= apart:
            return found
        spread *= 1.1


def clusters(rng: Rng, kind: str) -> Situation:
    """Sites that have some of the clusters each, and know which record is whose."""
    size = int(rng.choice([1, 2, 2, 3, 5, 8, 15]))
    count, sites = int(rng.integers(1, 8)), int(rng.integers(3, 11))
    known = bool(rng.random() < 0.6)  # ledgers
    if known and rng.random() < 0.2:
        sites = 2
    apart = float(rng.uniform(6, 14))
    unit = 10 ** rng.uniform(-3, 4, size) if rng.random() < 0.4 else np.ones(size)
    centres = centres_of(rng, count, size, apart)
    shift = float(rng.choice([0.0, 0.0, 0.0, 0.3, 1.0]))
    moved = shift * rng.normal(size=(sites, count, size)) * (sites > 2)
    twist = str(rng.choice(["", "", "unequal", "few", "copy", "elsewhere", "stranger"]))
    least, most = {"unequal": (20, 20000), "few": (2, max(size, 3))}.get(twist, (30, 300))
    prior, factor = FAMILIES[kind](size, unit)
    everyone: dict[int, list[Array]] = collections.defaultdict(list)
    posteriors, labels, priors, error = {}, {}, {}, 0.0
    for j in range(sites):
        own = rng.permutation(count)[: int(rng.integers(max(1, count // 2), count + 1))]
        if twist == "elsewhere" and j == 0:  # shares nothing
            moved[j], own = 0.0, own + count
            centres = np.vstack([centres[:count], centres[:count].max(0) + apart + centres[:count]])
            moved = np.concatenate([moved, 0 * moved], axis=1)
        if twist == "stranger" and j == 0 and sites > 2 and count > 1:  # fits none, but near
            moved[j] = 2.0 / np.sqrt(size)
        records = []
        for g in own.tolist():
            n = between(rng, least, most)
            x = (centres[g] + moved[j, g] + rng.normal(size=(n, size))) * unit
            records.append(x)
            everyone[g].append(x)
            error = max(error, float(np.abs(moved[j, g]).max() * np.sqrt(n / 2)))
        name, counts = f"site {j:02d}", list(map(len, records))
        priors[name], posteriors[name] = plates(prior, [factor(x) for x in records], counts)
        labels[name] = own.tolist()
    if twist == "copy":
        for of in (posteriors, priors, labels):
            of["copy"] = of["site 01"]
    made = {n: ledger(n, priors[n], q) for n, q in posteriors.items()} if known else posteriors
    groups, labels = sorted(everyone), renumbered(labels)
    pooled = total(prior, [factor(np.concatenate(everyone[g])) for g in groups])
    if twist == "copy" and known:
        error = np.inf
    about = {"d": size, "apart": apart, "sites": sites, "shift": shift, "twist": twist}
    about |= {"ledgers": known, "clusters": count}
    exact = pooled if known and twist != "copy" else None
    strange = "site 00" * (twist == "stranger")
    few = kind == "normal-wishart" and twist == "few" and size > 2
    return Situation(
        f"clusters, {kind}", made, labels, exact, error, strange=strange, few=few, about=about
    )


def topics(rng: Rng) -> Situation:
    """Topics over words, counted at each site."""
    words, count = int(rng.choice([10, 50, 300])), int(rng.integers(2, 9))
    sites, shift = int(rng.integers(2, 9)), float(rng.choice([0.0, 0.0, 0.3]))
    truth = rng.dirichlet(np.full(words, 0.1 if words > 10 else 0.3), count)
    prior, labels, made = Dirichlet.from_standard(np.ones(words) * 0.5), {}, {}
    everyone: dict[int, Array] = collections.defaultdict(lambda: np.zeros(words))
    error = 0.0
    for j in range(sites):
        own = rng.permutation(count)[: int(rng.integers(max(1, count // 2), count + 1))].tolist()
        factors = []
        for g in own:
            n = between(rng, 300, 10000)
            law = truth[g] * np.exp(shift * rng.normal(size=words))
            factors.append(rng.multinomial(n, law / law.sum()).astype(float))
            everyone[g] += factors[-1]
            error = max(error, 4.0 * (shift > 0))
        name, counts = f"site {j}", [f.sum() for f in factors]
        made[name] = ledger(name, *plates(prior, [Dirichlet(f) for f in factors], counts))
        labels[name] = own
    pooled = total(prior, [Dirichlet(everyone[g]) for g in sorted(everyone)])
    about = {"words": words, "topics": count, "sites": sites, "shift": shift}
    return Situation("topics", made, renumbered(labels), pooled, error, about=about)


def overlapping(rng: Rng) -> Situation:
    """Local mixtures fitted by EM, whose clusters overlap: responsibilities are counts."""
    from sklearn.mixture import GaussianMixture

    size, count, sites = 2, int(rng.integers(2, 5)), int(rng.integers(3, 8))
    centres, made, labels = centres_of(rng, count, size, float(rng.uniform(3.5, 6))), {}, {}
    prior, _ = wisharts(size, np.ones(size))
    for j in range(sites):
        own = rng.permutation(count)[: int(rng.integers(max(1, count - 1), count + 1))]
        n = int(rng.integers(100, 400))
        x = np.concatenate([centres[g] + rng.normal(size=(n, size)) for g in own])
        seed = int(rng.integers(2**31))
        fit = GaussianMixture(len(own), n_init=3, random_state=seed).fit(x)
        share = fit.predict_proba(x)
        factors = [NormalWishart(r.sum(), r.sum(), r @ x, (x * r[:, None]).T @ x) for r in share.T]
        name = f"site {j}"
        made[name] = ledger(name, *plates(prior, factors, share.sum(0)))
        gaps = np.linalg.norm(fit.means_[:, None] - centres[own], axis=-1)
        labels[name] = own[gaps.argmin(1)].tolist()
    labels, about = renumbered(labels), {"sites": sites, "clusters": count}
    return Situation("overlapping local fits", made, labels, differs=MAY, nearly=0.9, about=about)


def regressions(rng: Rng) -> Situation:
    """Linear regressions of one model on raw columns, some sites with other coefficients."""
    size, sites = int(rng.integers(1, 9)), int(rng.integers(2, 11))
    unit, offset = 10 ** rng.uniform(-3, 3, size), rng.choice([0.0, 0.0, 3.0], size)
    noise, known = float(10 ** rng.uniform(-2, 2)), bool(rng.random() < 0.75)
    twists = ["", "", "", "unequal", "outlier", "opposite", "copy", "empty", "priors"]
    twist = str(rng.choice(twists))
    slopes = rng.normal(size=size + 1) * noise
    wide = np.concatenate([[100 * noise], 10 * noise / unit])
    prior = Gaussian.from_standard(np.zeros(size + 1), np.diag(wide**2))
    least, most = (5, 20000) if twist == "unequal" else (size + 3, 300)
    made, sums, error = {}, [], 0.0
    for j in range(sites):
        n = 0 if twist == "empty" and j == 0 else between(rng, least, most)
        plain = np.hstack([np.ones((n, 1)), offset + rng.normal(size=(n, size))])
        own = slopes.copy()
        if j == 0 and twist == "outlier":
            own[rng.integers(size + 1)] += noise * float(rng.choice([0.5, 2.0, 5.0]))
        if j == 0 and twist == "opposite":
            own[1:] *= -1
        y = plain @ own + noise * rng.normal(size=n)
        if n > size + 1 and (own != slopes).any():
            error = float(np.linalg.norm(plain @ (own - slopes))) / noise
        x = plain / np.concatenate([[1.0], 1 / unit])
        factor = Gaussian(x.T @ y / noise**2, x.T @ x / noise**2)
        start = prior
        if twist == "priors" and j == 0:
            start = Gaussian.from_standard(np.zeros(size + 1), np.diag((0.3 * wide) ** 2))
        name = f"hospital {j}"
        made[name] = ledger(name, start, start + factor) if known else start + factor
        sums.append(factor)
    if twist == "copy":
        made["copy"] = made["hospital 1"]
        if known:
            made["copy"] = ledger("copy", prior, made["hospital 1"].posterior)
            error = np.inf
    if twist == "empty" and known:
        error = np.inf
    if twist in ("outlier", "opposite") and sites == 2:
        error /= np.sqrt(2)
    pooled = sum((s for s in sums[1:]), prior + sums[0])[None] if known else None
    pooled = None if twist in ("copy", "priors") else pooled
    about = {"d": size, "sites": sites, "twist": twist, "ledgers": known, "error": error}
    return Situation("regressions", made, None, pooled, error, about=about)


def numbers(rng: Rng) -> Situation:
    """Rates, shares and categories; in a quarter of them one site differs."""
    kind, sites = str(rng.choice(["rates", "shares", "categories"])), int(rng.integers(2, 12))
    far, made, sums, error = bool(rng.random() < 0.25), {}, [], 0.0
    rate, share = 10 ** rng.uniform(-1, 2), rng.uniform(0.05, 0.95)
    table = rng.dirichlet(np.ones(5))
    for j in range(sites):
        n = between(rng, 5, 5000)
        if kind == "rates":
            prior, own = Gamma.from_standard(1.0, 1.0), rate * (1 + 2 * (far and j == 0))
            factor: Any = Gamma(float(rng.poisson(own * n)), float(n))
            error = max(error, abs(own - rate) / np.sqrt(own / n))
        elif kind == "shares":
            prior, own = Beta.from_standard(1.0, 1.0), 1 - share if far and j == 0 else share
            k = float(rng.binomial(n, own))
            factor = Beta(k, n - k)
            error = max(error, abs(own - share) * np.sqrt(n / own / (1 - own)))
        else:
            prior = Dirichlet.from_standard(np.ones(5))
            own = table[::-1] if far and j == 0 else table
            factor = Dirichlet(rng.multinomial(n, own).astype(float))
            error = max(error, float(np.max(np.abs(own - table) * np.sqrt(n / own))))
        name = f"site {j}"
        made[name], sums = ledger(name, prior, prior + factor), [*sums, factor]
    if sites == 2:
        error /= np.sqrt(2)
    pooled = sum((s for s in sums[1:]), prior + sums[0])[None]
    # The error is that beside others that are known for certain; they are not.
    return Situation(kind, made, None, pooled, min(error, MAY + 1) if error else 0.0)


def alone(rng: Rng) -> Situation:
    whole = regressions(rng)
    name = next(iter(whole.sites))
    return Situation("one site", {name: whole.sites[name]}, refused=True)


KINDS: dict[str, tuple[float, Callable[[Rng], Situation]]] = {
    **{
        kind: (weight, lambda rng, kind=kind: clusters(rng, kind))
        for kind, weight in zip(FAMILIES, (4.0, 1.5, 1.5, 1.5), strict=True)
    },
    "topics": (1.5, topics),
    "overlapping": (1.0, overlapping),
    "regressions": (4.0, regressions),
    "numbers": (1.5, numbers),
    "alone": (0.1, alone),
}


def situation(seed: int) -> Situation:
    """One of them, by its number."""
    rng = np.random.default_rng([23, seed])
    shares = np.array([share for share, _ in KINDS.values()])
    kind = rng.choice(len(KINDS), p=shares / shares.sum())
    return [*KINDS.values()][kind][1](rng)


def judged(made: Situation) -> dict[str, Any]:
    """What `fuse` makes of it by default, what is wrong with it, and what it warns of."""
    row: dict[str, Any] = {"kind": made.kind, "about": made.about, "differs": made.differs}
    row["few"] = made.few
    began = time.process_time()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            fused = fuse(made.sites)
        except PosterityError as error:
            return row | {"wrong": [] if made.refused else [str(error)], "heard": [str(error)]}
    row["CPU seconds"] = round(time.process_time() - began, 2)
    wrong = ["not refused"] if made.refused else wrongs(fused, made)
    return row | {"rule": str(fused.rule), "wrong": wrong, "heard": [str(w.message) for w in heard]}


def wrongs(fused: Any, made: Situation) -> list[str]:
    """What is wrong with it, in words."""
    found, place = [], [0]
    if made.labels is not None:
        found, place = mismatches(fused, made.labels, made.nearly)
        if found and made.strange:
            top = max(map(max, made.labels.values())) + 1
            apart = [top + k for k in range(len(made.labels[made.strange]))]
            others = renumbered({**made.labels, made.strange: apart})
            if not mismatches(fused, others, made.nearly)[0]:
                return []
    if made.pooled is not None and not found and fused.plates.keys() <= {""}:
        mine = fused.posterior.members[place] if made.labels else fused.posterior[None]
        gap = float(np.max(made.pooled.kl(mine)))
        if not gap < SAME:
            found.append(f"{gap:.2g} nats from the posterior of the pooled records ({fused.rule})")
    if made.differs >= MUST:
        found.append("sites differ")
    return found


def mismatches(
    fused: Any, labels: dict[str, list[int]], nearly: float
) -> tuple[list[str], list[int]]:
    """What is wrong with the matching, and the fused component of each true one."""
    found = []
    truth = np.concatenate([labels[name] for name in sorted(labels)])
    mine = np.concatenate([fused.matching[name] for name in sorted(labels)])
    if fused.components != truth.max() + 1:
        found.append(f"{fused.components} components for {truth.max() + 1}")
    pairs = collections.Counter(zip(truth.tolist(), mine.tolist(), strict=True))
    best: dict[int, tuple[int, int]] = {}
    for (g, k), n in pairs.items():
        best[g] = max(best.get(g, (0, 0)), (n, k))
    if sum(n for n, _ in best.values()) < nearly * len(truth):
        found.append("components matched wrongly")
    return found, [k for _, (_, k) in sorted(best.items())]


def verdict(row: dict[str, Any]) -> str:
    if row["wrong"] == ["sites differ"] and row["heard"]:
        return "right, warned of sites that differ"
    if row["wrong"]:
        return "wrong, warned" if row["heard"] else "wrong, silent"
    if not row["heard"] and row["differs"] >= MUST:  # kept apart, and nobody knows
        return "right, not told of"
    if not row["heard"] or row["kind"] == "one site":
        return "right"
    if row["few"]:
        return "right, warned of few records"
    return "right, warned of sites that differ" if row["differs"] >= MAY else "right, warned"


def summary(rows: list[dict[str, Any]], seeds: str) -> dict[str, Any]:
    """Counts by kind, and the goals."""
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        for kind in (row["kind"], "all"):
            table[kind][verdict(row)] += 1
    silent, false = table["all"]["wrong, silent"], table["all"]["right, warned"]
    right = sum(number for what, number in table["all"].items() if what.startswith("right"))
    share = round(false / max(right, 1), 4)
    return {
        "seeds": seeds,
        "goals": [
            {"goal": goal, "measured": measured, "met": met}
            for goal, measured, met in (
                ("at most 1 in 500 wrong and silent", silent, silent <= SILENT * len(rows)),
                ("at most 5 % of right ones warned of", share, false <= FALSE * right),
            )
        ],
        "counts": {kind: dict(sorted(counts.items())) for kind, counts in sorted(table.items())},
        "silent": [r["seed"] for r in rows if verdict(r) == "wrong, silent"],
        "false": [r["seed"] for r in rows if verdict(r) == "right, warned"],
    }


def run(
    *,
    first: int = 0,
    count: int = 500,
    results: Path = RESULTS,
    cache: Path = CACHES / "situations",
    only_kept: bool = False,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure what is not kept yet, from number ``first`` on, and write all down."""
    seeds, rows = range(first, first + (10 if quick else count)), []
    for seed in seeds:
        make = None if only_kept else lambda seed=seed: judged(situation(seed))
        row = kept(cache, str(seed), make)
        rows += [] if row is None else [{"seed": seed, **row}]
    found = summary(rows, f"{seeds.start} to {seeds.stop - 1}")
    write(results, "situations", found)
    print(found["counts"]["all"])
    return found


if __name__ == "__main__":
    command(run)
