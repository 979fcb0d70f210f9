"""Pooled, local and partially pooled logistic regressions, and how they do on held-out records."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from experiments.heart.kinds import predict_logistic
from experiments.heart.metrics import log_likelihoods
from experiments.personal.studies import Array, Split, Study
from posterity.errors import ConvergenceWarning
from posterity.families import Gaussian
from posterity.federation import Run, federate
from posterity.models import LogisticRegression

POOLED, LOCAL, PARTIAL = "pooled", "local", "partial pooling"


def prior(columns: int) -> Gaussian:
    """N(0, 1) of each coefficient: of all sites', of one site's own, or of the population's."""
    return Gaussian.from_standard(np.zeros(columns), np.eye(columns))


def compare(study: Study, run: Run) -> dict[str, Any]:
    """Mean log likelihood of a held-out record by method, in nats, and how the fit went."""
    scores = {
        POOLED: _pooled(study),
        LOCAL: _local(study),
        PARTIAL: {
            site: run.site(site).log_predictive(test(split)) for site, split in study.items()
        },
    }
    spread: Any = run.population.law.log_spread
    return {
        "log likelihood": {name: _mean(by_site) for name, by_site in scores.items()},
        "spread": {"median": np.exp(spread.mean).round(4).tolist()},
        "run": {
            "passes": run.state.step,
            "nats left to change": run.status.left,
            "state": run.status.state,
        },
    }


def partially_pooled(study: Study) -> Run:
    """The federation: a server, site after site, all else as by default."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the results say how far it came
        return federate(
            {site: train(split) for site, split in study.items()},
            LogisticRegression(),
            prior(_columns(study)),
            personal=True,
        )


def train(split: Split) -> tuple[Array, Array]:
    """A site's records to learn from."""
    return split.x_train, split.y_train


def test(split: Split) -> tuple[Array, Array]:
    """A site's held-out records."""
    return split.x_test, split.y_test


def _pooled(study: Study) -> dict[str, Array]:
    data = [train(split) for split in study.values()]
    q = _alone(tuple(np.concatenate(parts) for parts in zip(*data, strict=True)))
    return {site: _scores(q, split) for site, split in study.items()}


def _local(study: Study) -> dict[str, Array]:
    return {site: _scores(_alone(train(split)), split) for site, split in study.items()}


def _alone(data: Any) -> Any:
    return federate({"all": data}, LogisticRegression(), prior(data[0].shape[1])).posterior


def _scores(q: Any, split: Split) -> Array:
    return log_likelihoods(predict_logistic(q, split.x_test), split.y_test)


def _mean(by_site: dict[str, Array]) -> float:
    return float(np.concatenate(list(by_site.values())).mean())


def _columns(study: Study) -> int:
    return next(iter(study.values())).x_train.shape[1]
