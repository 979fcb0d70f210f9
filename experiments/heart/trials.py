"""One seed of the experiment: fit by every method, score on held-out patients; beside NUTS.

In scores ``probabilities`` is (n,) P(y = 1) of each patient and ``labels`` (n,) in {0, 1}.
*Membership inference*: an attacker has a model's probabilities and gives every patient a score,
higher for "was trained on". Members are a hospital's training patients, non-members its held-out
ones, so a model that never saw the hospital gives both the same law of scores, an AUC of 1/2. One
score is each patient's log likelihood (yeom2018), the other is :func:`ratio_scores`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from experiments.heart.kinds import POOLED, VARIANCES, Array, Kind, evidence_lower_bound, network
from experiments.heart.preparation import Split
from posterity.federation import Run, federate

EVERYONE = "everyone"
LOCAL = "local"
AGAIN = "pooled, other noise"
WARMUP, DRAWS, CHAINS = 500, 1000, 2  # of NUTS
BINS = 10

Splits = Mapping[str, Split]
Data = tuple[Array, Array]
# what random numbers are for; folded into the key of the seed
SCATTER, NOISE, OTHER_NOISE = range(3)


def purpose(seed: int, what: int) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), what)


def training(splits: Splits) -> dict[str, Data]:
    return {site: (split.x_train, split.y_train) for site, split in splits.items()}


def held_out(splits: Splits) -> dict[str, Data]:
    return {site: (split.x_test, split.y_test) for site, split in splits.items()}


def together(data: Mapping[str, Data]) -> Data:
    x, y = zip(*data.values(), strict=True)
    return np.concatenate(x), np.concatenate(y)


def fit(kind: Kind, method: str, sites: Mapping[str, Data], *, key: jax.Array) -> Run:
    """The run of a method over these sites; pooled ones are one site."""
    sites = {POOLED: together(sites)} if method == POOLED else sites
    return federate(sites, kind.model, kind.prior, **kind.plans[method]._asdict(), key=key)


def fit_all(kind: Kind, splits: Splits, seed: int) -> dict[str, Run]:
    """The run of every method, with the same noise; pooled ones again with another."""
    sites, key = training(splits), purpose(seed, NOISE)
    runs = {method: fit(kind, method, sites, key=key) for method in kind.plans}
    if not kind.deterministic:
        runs[AGAIN] = fit(kind, POOLED, sites, key=purpose(seed, OTHER_NOISE))
    return runs


def fit_alone(kind: Kind, splits: Splits, seed: int) -> dict[str, Any]:
    """Each hospital's own posterior, fitted as the pooled one is."""
    sites, key = training(splits), purpose(seed, NOISE)
    return {site: fit(kind, POOLED, {site: sites[site]}, key=key).posterior for site in sites}


def compare(kind: Kind, runs: Mapping[str, Run], splits: Splits, seed: int) -> dict[str, Any]:
    """Scores by method and hospital, log likelihoods less pooled ones, and KL to pooled, nats."""
    tests, alone = held_out(splits), fit_alone(kind, splits, seed)
    everyone = together(tests)
    posteriors: dict[str, Any] = {method: run.posterior for method, run in runs.items()}
    by_site = {method: dict.fromkeys(tests, q) for method, q in posteriors.items()}
    scores = {}
    for method, own in {**by_site, LOCAL: alone}.items():
        chances = {s: kind.predict(own[s], x) for s, (x, _) in tests.items()}
        whole = np.concatenate(list(chances.values()))
        scores[method] = {EVERYONE: _score(whole, everyone[1])}
        scores[method] |= {s: _score(p, tests[s][1]) for s, p in chances.items()}
    gain = lambda method: {
        site: score["log likelihood"] - scores[POOLED][site]["log likelihood"]
        for site, score in scores[method].items()
    }
    others = [method for method in scores if method != POOLED]
    target, known = posteriors.pop(POOLED), kind.deterministic
    on_everyone = {s: _score(kind.predict(alone[s], everyone[0]), everyone[1]) for s in tests}
    return {
        "scores": scores | {"local, on everyone": on_everyone},
        "log likelihood less pooled": {method: gain(method) for method in others},
        "KL to pooled": {m: float(q.kl(target)) for m, q in posteriors.items() if known},
    }


def chosen_network(splits: Splits, seed: int, *, short: bool = False) -> tuple[Kind, dict]:
    """The network whose prior variance has the highest bound on pooled training patients."""
    bounds, kinds, data = {}, {}, training(splits)
    for variance in VARIANCES[:1] if short else VARIANCES:
        kinds[variance] = network(variance, key=purpose(seed, SCATTER), short=short)
        run = fit(kinds[variance], POOLED, data, key=purpose(seed, NOISE))
        bounds[variance] = evidence_lower_bound(kinds[variance], run.posterior, together(data))
    best = max(bounds, key=bounds.__getitem__)
    named = {f"variance {v}": bound for v, bound in bounds.items()}
    return kinds[best], {"chosen variance": best, "evidence lower bound": named}


def accuracy(probabilities: Any, labels: Any) -> float:
    """Share of patients whose label is the likelier one; a probability of 1/2 predicts 1."""
    return float(np.mean((np.asarray(probabilities) >= 0.5) == np.asarray(labels)))


def log_likelihoods(probabilities: Any, labels: Any) -> Array:
    """(n,) log predictive probability of each patient's own label, in nats; not clipped."""
    p = np.asarray(probabilities, float)
    with np.errstate(divide="ignore"):
        return np.where(np.asarray(labels) == 1, np.log(p), np.log1p(-p))


def mean_log_likelihood(probabilities: Any, labels: Any) -> float:
    """Nats a patient, higher is better; always saying 1/2 scores -0.693."""
    return float(np.mean(log_likelihoods(probabilities, labels)))


def expected_calibration_error(probabilities: Any, labels: Any, *, bins: int = BINS) -> float:
    """Mean distance of the probability of y = 1 from its frequency, over bins of equal mass.

    sum_b n_b / n |mean p in b - mean y in b| (naeini2015); equal probabilities share a bin. Biased
    upwards on few patients: perfect calibration scores about 0.8 sqrt(p (1 - p) bins / n).
    """
    p, y = np.asarray(probabilities, float), np.asarray(labels, float)
    inner = np.quantile(p, np.linspace(0, 1, bins + 1)[1:-1])
    gaps = np.bincount(np.searchsorted(inner, p, side="right"), weights=p - y)
    return float(np.abs(gaps).sum() / len(p))


def ratio_scores(probabilities: Any, reference: Any, labels: Any) -> Array:
    """(n,) log likelihood ratio of the model to a reference that saw none of these patients.

    Source: watson2022; the one-reference case of carlini2022.
    """
    with np.errstate(invalid="ignore"):  # -inf - -inf: refused where scores are compared
        return log_likelihoods(probabilities, labels) - log_likelihoods(reference, labels)


def _score(p: Array, y: Array) -> dict[str, float]:
    return {
        "accuracy": accuracy(p, y),
        "log likelihood": mean_log_likelihood(p, y),
        "calibration error": expected_calibration_error(p, y),
    }


def beside(mean: Any, deviation: Any, draws: Array, least: str = "smallest") -> dict[str, float]:
    """Means and deviations (d,) beside those of draws (n, d)."""
    ratios, off = deviation / draws.std(0), np.abs(mean - draws.mean(0)) / draws.std(0)
    return {
        "largest error of a mean, in standard deviations": float(off.max()),
        f"{least} ratio of standard deviations": float(ratios.min()),
        "largest ratio of standard deviations": float(ratios.max()),
    }


def compare_with_nuts(kind: Kind, splits: Splits, seed: int) -> dict[str, float]:
    """The Gaussian posterior of pooled data beside NUTS: moments and predictions."""
    draws = nuts(together(training(splits)), seed)
    q = fit(kind, POOLED, training(splits), key=purpose(seed, 0)).posterior
    x, y = together(held_out(splits))
    sampled = mean_log_likelihood(expit(draws @ x.T).mean(0), y)
    return {
        "log likelihood, NUTS": sampled,
        "pooled less NUTS, log likelihood": mean_log_likelihood(kind.predict(q, x), y) - sampled,
        **beside(q.mean, np.sqrt(np.diagonal(q.covariance)), draws),
    }


def nuts(data: Data, seed: int) -> Array:
    """(draws, 18) coefficients of the posterior under the prior N(0, 1), by NumPyro."""
    import numpyro
    from numpyro import distributions
    from numpyro.infer import MCMC, NUTS

    x, y = jnp.asarray(data[0]), jnp.asarray(data[1])

    def model() -> None:
        shape = distributions.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1)
        z = numpyro.sample("z", shape)
        numpyro.sample("y", distributions.BernoulliLogits(x @ z), obs=y)

    steps = {"num_warmup": WARMUP, "num_samples": DRAWS, "num_chains": CHAINS}
    sampler = MCMC(NUTS(model), **steps, chain_method="sequential", progress_bar=False)
    sampler.run(jax.random.key(seed))
    return np.asarray(sampler.get_samples()["z"], np.float64)
