"""The full hierarchical model by Hamiltonian Monte Carlo: what partial pooling approximates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit
from scipy.stats import rankdata

from experiments.heart.metrics import mean_log_likelihood
from experiments.personal.methods import Study, prior, train
from experiments.personal.studies import Array
from posterity.errors import MissingExtraError
from posterity.federation import Run
from posterity.models import LogisticRegression, hierarchical

WARMUP, DRAWS = 500, 4000


def compare_with_nuts(study: Study, run: Run, *, seed: int) -> dict[str, Any]:
    """What is held out, and means and deviations of parameters, by NUTS and by partial pooling.

    ``points`` are those means, for the figure.
    """
    draws = nuts(study, seed)
    law: Any = run.population.law
    sites = [run.site(name) for name in study]
    moments = [np.concatenate(each) for each in zip(*map(_moments, sites), strict=True)]
    own = draws["sites"]
    parts = {
        "population": (_moments(law.coefficients), draws["coefficients"]),
        "log spread": (_moments(law.log_spread), draws["log_spread"]),
        "sites": (moments, own.reshape(len(own), -1)),
    }
    chances = {
        "ours": [
            one.predict(split.x_test) for one, split in zip(sites, study.values(), strict=True)
        ],
        "NUTS": [expit(own[:, k] @ s.x_test.T).mean(0) for k, s in enumerate(study.values())],
    }
    labels = np.concatenate([split.y_test for split in study.values()])
    scores = {who: _scores(np.concatenate(each), labels) for who, each in chances.items()}
    less = {name: scores["ours"][name] - theirs for name, theirs in scores["NUTS"].items()}
    return {
        **{name: _beside(*pair) for name, pair in parts.items()},
        **scores,
        "ours less NUTS": less,
        "points": {
            name: {"ours": own[0].round(4).tolist(), "NUTS": theirs.mean(0).round(4).tolist()}
            for name, (own, theirs) in parts.items()
        },
    }


def _moments(q: Any) -> tuple[Array, Array]:
    return q.mean, np.sqrt(np.diagonal(q.covariance))


def _beside(ours: Sequence[Array], draws: Array) -> dict[str, float]:
    deviation = draws.std(0)
    ratios = ours[1] / deviation
    return {
        "largest error of a mean, in standard deviations": float(
            (np.abs(ours[0] - draws.mean(0)) / deviation).max()
        ),
        "least ratio of standard deviations": float(ratios.min()),
        "largest ratio of standard deviations": float(ratios.max()),
    }


def _scores(chances: Array, labels: Array) -> dict[str, float]:
    """Nats a held-out record, and the area under the receiver operating characteristic."""
    ones, ranks = labels == 1, np.asarray(rankdata(chances))
    count = int(ones.sum())
    above = ranks[ones].sum() - count * (count + 1) / 2
    area = above / (count * (len(labels) - count))
    return {"log likelihood": mean_log_likelihood(chances, labels), "AUC": float(area)}


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
