"""The full hierarchical model by Hamiltonian Monte Carlo: what partial pooling approximates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from experiments.heart.metrics import log_likelihoods
from experiments.personal.methods import Study, prior, train
from experiments.personal.studies import Array
from posterity.errors import MissingExtraError
from posterity.federation import Run
from posterity.models import LogisticRegression, hierarchical

WARMUP, DRAWS = 500, 2000


def compare_with_nuts(study: Study, run: Run, seed: int) -> dict[str, Any]:
    """Means and deviations of ours beside those of NUTS, and held-out log likelihoods."""
    draws = nuts(study, seed)
    shared: Any = run.population.law
    sites = {name: run.site(name) for name in study}
    own = draws["sites"]
    return {
        "population": _beside(_moments(shared.coefficients), draws["coefficients"]),
        "log spread": _beside(_moments(shared.log_spread), draws["log_spread"]),
        "sites": _beside(
            tuple(
                np.concatenate(parts) for parts in zip(*map(_moments, sites.values()), strict=True)
            ),
            own.reshape(len(own), -1),
        ),
        "log likelihood": {
            "ours": _mean(
                [sites[n].log_predictive((s.x_test, s.y_test)) for n, s in study.items()]
            ),
            "NUTS": _mean(
                [
                    log_likelihoods(expit(own[:, k] @ s.x_test.T).mean(0), s.y_test)
                    for k, s in enumerate(study.values())
                ]
            ),
        },
    }


def _moments(q: Any) -> tuple[Array, Array]:
    return q.mean, np.sqrt(np.diagonal(q.covariance))


def _beside(ours: tuple[Array, ...], draws: Array) -> dict[str, Any]:
    mean, deviation = draws.mean(0), draws.std(0)
    errors, ratios = np.abs(ours[0] - mean) / deviation, ours[1] / deviation
    return {
        "error of a mean, in standard deviations": _range(errors),
        "ratio of standard deviations": _range(ratios),
        "means": {"ours": ours[0].round(4).tolist(), "NUTS": mean.round(4).tolist()},
        "standard deviations": {
            "ours": ours[1].round(4).tolist(),
            "NUTS": deviation.round(4).tolist(),
        },
    }


def _range(values: Array) -> dict[str, float]:
    found = {"least": values.min(), "median": np.median(values), "largest": values.max()}
    return {name: round(float(value), 4) for name, value in found.items()}


def _mean(scores: list[Array]) -> float:
    return float(np.concatenate(scores).mean())


def nuts(study: Study, seed: int) -> dict[str, Array]:
    """Draws of the same model with the same priors, sites' deviations whitened.

    Raises:
        MissingExtraError: if numpyro is not installed.
    """
    try:
        import numpyro
        from numpyro import distributions
        from numpyro.infer import MCMC, NUTS
    except ImportError as error:
        raise MissingExtraError.of("numpyro", "test") from error
    data = [train(split) for split in study.values()]
    x = jnp.concatenate([jnp.asarray(x) for x, _ in data])
    y = jnp.concatenate([jnp.asarray(y) for _, y in data])
    at = np.repeat(np.arange(len(data)), [len(y) for _, y in data])
    d = x.shape[1]
    law: Any = hierarchical(LogisticRegression(), prior(d), True)[1]
    spread = law.log_spread

    def model() -> None:
        normal = distributions.Normal(0.0, 1.0)
        population = numpyro.sample("coefficients", normal.expand([d]).to_event(1))
        between = distributions.MultivariateNormal(
            jnp.asarray(spread.mean), jnp.asarray(spread.covariance)
        )
        log_spread = numpyro.sample("log_spread", between)
        v = numpyro.sample("v", normal.expand([len(data), d]).to_event(2))
        own = numpyro.deterministic("sites", population + jnp.exp(log_spread) * v)
        f = (x * own[at]).sum(-1)
        numpyro.sample("y", distributions.BernoulliLogits(f), obs=y)

    sampler = MCMC(NUTS(model), num_warmup=WARMUP, num_samples=DRAWS, progress_bar=False)
    sampler.run(jax.random.key(seed))
    draws: Any = sampler.get_samples()
    return {
        name: np.asarray(draws[name], float) for name in ("coefficients", "log_spread", "sites")
    }
