"""One seed of the experiment: fit by every method, and score on held-out patients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments.heart import metrics
from experiments.heart.kinds import POOLED, VARIANCES, Array, Kind, evidence_lower_bound, network
from experiments.heart.preparation import Split
from posterity.federation import Run, federate

EVERYONE = "everyone"
LOCAL = "local"
AGAIN = "pooled, other noise"

Splits = Mapping[str, Split]
Data = tuple[Array, Array]
# what random numbers are for; folded into the key of the seed
SCATTER, NOISE, OTHER_NOISE = range(3)


def purpose(seed: int, what: int) -> jax.Array:
    """The key of a seed for one purpose."""
    return jax.random.fold_in(jax.random.key(seed), what)


def training(splits: Splits) -> dict[str, Data]:
    """Training patients by site."""
    return {site: (split.x_train, split.y_train) for site, split in splits.items()}


def held_out(splits: Splits) -> dict[str, Data]:
    """Test patients by site."""
    return {site: (split.x_test, split.y_test) for site, split in splits.items()}


def together(data: Mapping[str, Data]) -> Data:
    """All sites' patients in one place."""
    x, y = zip(*data.values(), strict=True)
    return np.concatenate(x), np.concatenate(y)


def fit(kind: Kind, method: str, sites: Mapping[str, Data], *, key: jax.Array) -> Run:
    """The run of a method over these sites; pooled ones are one site."""
    plan = kind.plans[method]
    sites = {POOLED: together(sites)} if method == POOLED else sites
    return federate(
        sites,
        kind.model,
        kind.prior,
        schedule=plan.schedule,
        steps=plan.steps,
        update=plan.update,
        key=key,
    )


def fit_all(kind: Kind, splits: Splits, seed: int) -> dict[str, Run]:
    """Every federation and the pooled data, with the same noise; pooled again with another."""
    sites, key = training(splits), purpose(seed, NOISE)
    runs = {method: fit(kind, method, sites, key=key) for method in kind.plans}
    if not kind.deterministic:
        runs[AGAIN] = fit(kind, POOLED, sites, key=purpose(seed, OTHER_NOISE))
    return runs


def fit_alone(kind: Kind, splits: Splits, seed: int) -> dict[str, Any]:
    """Each hospital's own posterior, fitted as the pooled one is."""
    key = purpose(seed, NOISE)
    sites = training(splits)
    return {site: fit(kind, POOLED, {site: sites[site]}, key=key).posterior for site in sites}


def compare(kind: Kind, runs: Mapping[str, Run], splits: Splits, seed: int) -> dict[str, Any]:
    """Scores by method and hospital, log likelihoods less pooled ones, and KL to pooled, nats."""
    tests = held_out(splits)
    alone = fit_alone(kind, splits, seed)
    scores: dict[str, Any] = {
        method: _scores({s: kind.predict(run.posterior, x) for s, (x, _) in tests.items()}, tests)
        for method, run in runs.items()
    }
    scores[LOCAL] = _scores({s: kind.predict(alone[s], x) for s, (x, _) in tests.items()}, tests)
    x, y = together(tests)
    scores["local, on everyone"] = {s: _score(kind.predict(alone[s], x), y) for s in tests}
    target = runs[POOLED].posterior
    others = {method: run.posterior for method, run in runs.items() if method != POOLED}
    return {
        "scores": scores,
        "log likelihood less pooled": {
            method: _gain(scores[method], scores[POOLED]) for method in (*others, LOCAL)
        },
        "KL to pooled": {method: float(q.kl(target)) for method, q in others.items()}
        if kind.deterministic
        else {},
    }


def chosen_network(splits: Splits, seed: int, *, short: bool = False) -> tuple[Kind, dict]:
    """The network whose prior variance has the highest bound on pooled training patients."""
    bounds, kinds = {}, {}
    data = together(training(splits))
    for variance in VARIANCES[:1] if short else VARIANCES:
        kind = network(variance, key=purpose(seed, SCATTER), short=short)
        run = fit(kind, POOLED, training(splits), key=purpose(seed, NOISE))
        kinds[variance] = kind
        bounds[variance] = evidence_lower_bound(kind, run.posterior, data)
    best = max(bounds, key=bounds.__getitem__)
    named = {f"variance {v}": bound for v, bound in bounds.items()}
    return kinds[best], {"chosen variance": best, "evidence lower bound": named}


def _scores(probabilities: Mapping[str, Array], tests: Mapping[str, Data]) -> dict[str, Any]:
    by_site = {site: _score(p, tests[site][1]) for site, p in probabilities.items()}
    everyone = np.concatenate([probabilities[site] for site in tests])
    return {EVERYONE: _score(everyone, together(tests)[1]), **by_site}


def _score(p: Array, y: Array) -> dict[str, float]:
    return {
        "accuracy": metrics.accuracy(p, y),
        "log likelihood": metrics.mean_log_likelihood(p, y),
        "calibration error": metrics.expected_calibration_error(p, y),
    }


def _gain(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    name = "log likelihood"
    return {site: mine[site][name] - theirs[site][name] for site in mine}
