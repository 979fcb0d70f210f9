"""scikit-learn's latent Dirichlet allocation and its plate of topics.

``components_`` are the concentrations of the topics, ``topic_word_prior_`` those of their prior.
The difference is a topic's expected word counts after a batch fit; after online learning it is
what the last steps left of them, and with ``partial_fit`` it counts ``total_samples`` documents.
"""

from typing import Any

import numpy as np
from sklearn.decomposition import LatentDirichletAllocation

# The estimator's own digamma, which is a few 1e-9 off: with another one, the topics of a
# document would not be to the last digit those of the estimator that travelled.
from sklearn.decomposition._online_lda_fast import _dirichlet_expectation_2d
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from posterity.adapters.exchangeable import shared_member, shared_value
from posterity.errors import StructureError, UsageError
from posterity.families import Dirichlet, Plate

DETERMINED = frozenset({"n_components", "topic_word_prior"})
"""Constructor arguments that a posterior and its prior settle."""


def to_plates(model: LatentDirichletAllocation) -> tuple[Plate, Plate]:
    """Prior and posterior of fitted topics; topics have no mixing weights of their own."""
    if not hasattr(model, "components_"):
        raise UsageError(
            found="a LatentDirichletAllocation that is not fitted",
            expected="a fitted one",
            fix="Call fit first.",
        )
    components = np.asarray(model.components_, dtype=np.float64)
    prior = np.full_like(components, model.topic_word_prior_)
    return Plate(Dirichlet.from_standard(prior)), Plate(Dirichlet.from_standard(components))


def to_estimator(
    plate: Plate, prior: Plate | None, parameters: dict[str, Any]
) -> LatentDirichletAllocation:
    """A fitted topic model that holds the posterior."""
    _check_no_weights(plate)
    known = {} if prior is None else {"topic_word_prior": _topic_word_prior(prior)}
    model = LatentDirichletAllocation(n_components=plate.size, **known, **parameters)
    components = np.ascontiguousarray(plate.members.concentration)  # pyright: ignore
    fitted = {
        "components_": components,
        "exp_dirichlet_component_": np.exp(_dirichlet_expectation_2d(components)),
        "doc_topic_prior_": _or_default(model.doc_topic_prior, plate.size),
        "topic_word_prior_": _or_default(model.topic_word_prior, plate.size),
        "n_features_in_": components.shape[1],
        "n_batch_iter_": 1,
        "n_iter_": 0,
        "bound_": float("nan"),
        "random_state_": check_random_state(model.random_state),
    }
    for name, value in fitted.items():
        setattr(model, name, value)
    check_is_fitted(model)
    return model


def _check_no_weights(plate: Plate) -> None:
    if plate.weights is not None:
        raise StructureError(
            found=f"a Plate of Dirichlet with {type(plate.weights).__name__} weights",
            expected="topics without weights: in LatentDirichletAllocation each document has "
            "its own",
            fix="Drop them: Plate(plate.members).",
        )


def _topic_word_prior(prior: Plate) -> float:
    concentration = np.asarray(shared_member(prior).concentration)  # pyright: ignore
    shared = shared_value(concentration)
    if shared is None:
        raise StructureError(
            found="a prior over words that prefers some of them",
            expected="a symmetric one: topic_word_prior is a number",
            fix="Pass the posterior without its ledger; the estimator then has the default.",
        )
    return float(shared)


def _or_default(value: float | None, size: int) -> float:
    return 1.0 / size if value is None else value
