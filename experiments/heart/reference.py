"""The pooled posterior by Hamiltonian Monte Carlo: what all logistic fits approximate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from experiments.heart import metrics
from experiments.heart.kinds import Array, Kind
from experiments.heart.trials import (
    POOLED,
    Data,
    Splits,
    fit,
    held_out,
    purpose,
    together,
    training,
)
from posterity.errors import MissingExtraError

WARMUP, DRAWS, CHAINS = 500, 1000, 2


def compare_with_nuts(kind: Kind, splits: Splits, seed: int) -> dict[str, float]:
    """The Gaussian posterior of pooled data beside NUTS: moments and predictions."""
    draws = nuts(together(training(splits)), seed)
    q: Any = fit(kind, POOLED, training(splits), key=purpose(seed, 0)).posterior
    x, y = together(held_out(splits))
    sampled = metrics.mean_log_likelihood(expit(draws @ x.T).mean(0), y)
    ours = metrics.mean_log_likelihood(kind.predict(q, x), y)
    deviation = draws.std(0)
    return {
        "log likelihood, NUTS": sampled,
        "pooled less NUTS, log likelihood": ours - sampled,
        "largest error of a mean, in standard deviations": float(
            np.max(np.abs(draws.mean(0) - q.mean) / deviation)
        ),
        "smallest ratio of standard deviations": float(
            np.min(np.sqrt(np.diagonal(q.covariance)) / deviation)
        ),
        "largest ratio of standard deviations": float(
            np.max(np.sqrt(np.diagonal(q.covariance)) / deviation)
        ),
    }


def nuts(data: Data, seed: int) -> Array:
    """(draws, 18) coefficients of the posterior under the prior N(0, 1).

    Raises:
        MissingExtraError: if numpyro is not installed.
    """
    try:
        import numpyro
        from numpyro import distributions
        from numpyro.infer import MCMC, NUTS
    except ImportError as error:
        raise MissingExtraError.of("numpyro", "test") from error
    x, y = jnp.asarray(data[0]), jnp.asarray(data[1])

    def model() -> None:
        shape = distributions.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1)
        z = numpyro.sample("z", shape)
        numpyro.sample("y", distributions.BernoulliLogits(x @ z), obs=y)

    sampler = MCMC(
        NUTS(model),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    sampler.run(jax.random.key(seed))
    return np.asarray(sampler.get_samples()["z"], np.float64)
