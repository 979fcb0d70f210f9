"""Pooled, local and partially pooled logistic regressions, on held-out records and beside NUTS.

NUTS samples the full hierarchical model, which is what partial pooling approximates.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from experiments.heart.kinds import predict_logistic
from experiments.heart.trials import beside, log_likelihoods, mean_log_likelihood
from experiments.personal.studies import Array, Study
from posterity.errors import ConvergenceWarning
from posterity.families import Gaussian
from posterity.federation import Run, federate
from posterity.models import LogisticRegression, hierarchical

POOLED, LOCAL, PARTIAL = "pooled", "local", "partial pooling"
WARMUP, DRAWS = 500, 4000  # of NUTS


def prior(columns: int) -> Gaussian:
    """N(0, 1) of each coefficient: of all sites', of one site's own, or of the population's."""
    return Gaussian.from_standard(np.zeros(columns), np.eye(columns))


def compare(study: Study, run: Run) -> dict[str, Any]:
    """Mean log likelihood of a held-out record by method, in nats, and how the fit went."""
    x, y = (np.concatenate(parts) for parts in list(zip(*study.values(), strict=True))[:2])
    pooled, scores = _alone(x, y), {POOLED: [], LOCAL: [], PARTIAL: []}
    for site, own in study.items():
        for name, q in ((POOLED, pooled), (LOCAL, _alone(own.x_train, own.y_train))):
            scores[name].append(log_likelihoods(predict_logistic(q, own.x_test), own.y_test))
        scores[PARTIAL].append(run.site(site).log_predictive((own.x_test, own.y_test)))
    spread: Any = run.population.law.log_spread
    return {
        "log likelihood": {n: float(np.concatenate(own).mean()) for n, own in scores.items()},
        "spread": {"median": np.exp(spread.mean).round(4).tolist()},
        "run": {
            "passes": run.state.step,
            "nats left to change": run.status.left,
            "state": run.status.state,
        },
    }


def partially_pooled(study: Study) -> Run:
    """The federation: a server, site after site, all else as by default."""
    data = {site: (own.x_train, own.y_train) for site, own in study.items()}
    columns = next(iter(data.values()))[0].shape[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the results say how far it came
        return federate(data, LogisticRegression(), prior(columns), personal=True)


def _alone(x: Array, y: Array) -> Any:
    return federate({"all": (x, y)}, LogisticRegression(), prior(x.shape[1])).posterior


def compare_with_nuts(study: Study, run: Run, *, seed: int) -> dict[str, Any]:
    """What is held out, and means and deviations of parameters, by NUTS and by partial pooling.

    ``points`` are those means, for the figure.
    """
    draws, law = nuts(study, seed), run.population.law
    sites, own = [run.site(name) for name in study], draws["sites"]
    moments = lambda *laws: (
        np.concatenate([q.mean for q in laws]),
        np.sqrt(np.concatenate([np.diagonal(q.covariance) for q in laws])),
    )
    parts = {
        "population": (*moments(law.coefficients), draws["coefficients"]),
        "log spread": (*moments(law.log_spread), draws["log_spread"]),
        "sites": (*moments(*sites), own.reshape(len(own), -1)),
    }
    splits = list(study.values())
    chances = {
        "ours": [one.predict(s.x_test) for one, s in zip(sites, splits, strict=True)],
        "NUTS": [expit(own[:, k] @ s.x_test.T).mean(0) for k, s in enumerate(splits)],
    }
    labels = np.concatenate([split.y_test for split in splits])
    scores = {}
    for who, each in chances.items():
        p = np.concatenate(each)
        area = float(roc_auc_score(labels, p))
        scores[who] = {"log likelihood": mean_log_likelihood(p, labels), "AUC": area}
    less = {name: scores["ours"][name] - theirs for name, theirs in scores["NUTS"].items()}
    found = {name: beside(*own, least="least") for name, own in parts.items()}
    points = {
        name: {"ours": mean.round(4).tolist(), "NUTS": theirs.mean(0).round(4).tolist()}
        for name, (mean, _, theirs) in parts.items()
    }
    return {**found, **scores, "ours less NUTS": less, "points": points}


def nuts(study: Study, seed: int) -> dict[str, Array]:
    """Draws of the same model with the same priors, sites' deviations whitened, by NumPyro."""
    import numpyro
    from numpyro import distributions
    from numpyro.infer import MCMC, NUTS

    x, y = (jnp.concatenate(parts) for parts in list(zip(*study.values(), strict=True))[:2])
    at = np.repeat(np.arange(len(study)), [len(own.y_train) for own in study.values()])
    d, law = x.shape[1], hierarchical(LogisticRegression(), prior(x.shape[1]), True)[1]
    spread: Any = law.log_spread

    def model() -> None:
        normal = distributions.Normal(0.0, 1.0)
        population = numpyro.sample("coefficients", normal.expand([d]).to_event(1))
        between = distributions.MultivariateNormal(
            jnp.asarray(spread.mean), jnp.asarray(spread.covariance)
        )
        log_spread = numpyro.sample("log_spread", between)
        v = numpyro.sample("v", normal.expand([len(study), d]).to_event(2))
        own = numpyro.deterministic("sites", population + jnp.exp(log_spread) * v)
        f = (x * own[at]).sum(-1)
        numpyro.sample("y", distributions.BernoulliLogits(f), obs=y)

    sampler = MCMC(NUTS(model), num_warmup=WARMUP, num_samples=DRAWS, progress_bar=False)
    sampler.run(jax.random.key(seed))
    draws = sampler.get_samples()
    names = ("coefficients", "log_spread", "sites")
    return {name: np.asarray(draws[name], float) for name in names}
