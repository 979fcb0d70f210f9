"""Membership inference: whether records that a posterior learned from can be told from others.

Members and non-members are to be drawn at random from one population; a posterior that learned from
none of them then gives both the same distribution of scores: an AUC of 1/2. After a forgetting the
reference is a posterior that never saw those who left. What is bit for bit that reference gives all
records the same likelihood as it, and an AUC of 1/2 without error.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, ndtri

from posterity.arguments import COUNT
from posterity.arrays.typing import ArrayLike
from posterity.engine.privacy.noise import BETWEEN, GaussianMechanism, record_contributions
from posterity.errors import ParameterError, UsageError
from posterity.families import Distribution, ExponentialFamily
from posterity.families.mixture import Estimate
from posterity.models import ConjugateModel, Model
from posterity.models.records import Records

Predictor = Distribution | Callable[[Any], ArrayLike]


@dataclasses.dataclass(frozen=True)
class Membership:
    """The result of an attack that tells members from non-members: the AUC, 1/2 for not at all.

    ``low`` and ``high`` hold the true AUC with a chance of at least about ``confidence``, whatever
    the scores are distributed like: Wilson's interval (wilson1927) of as many trials as there are
    members or non-members, whichever are fewer, which bounds the variance (birnbaum1957).
    """

    auc: float
    standard_error: float
    low: float
    high: float
    confidence: float

    @classmethod
    def of(cls, members: ArrayLike, nonmembers: ArrayLike, confidence: float = 0.95) -> Self:
        """Make the result from the scores (m,) and (n,) of an attack, higher for "is a member"; a
        ParameterError unless there are two finite scores of each at least.
        """
        BETWEEN.check(confidence=confidence)
        auc = attack_auc(members, nonmembers)
        fewer, z = min(np.size(members), np.size(nonmembers)), float(ndtri((1 + confidence) / 2))
        middle = auc.value + z**2 / fewer / 2
        width = z * np.sqrt(auc.value * (1 - auc.value) / fewer + (z / fewer / 2) ** 2)
        low, high = (float((middle + side) / (1 + z**2 / fewer)) for side in (-width, width))
        return cls(auc.value, auc.standard_error, low, high, confidence)

    @property
    def tells(self) -> bool:
        """True if members are told from others beyond chance."""
        return self.low > 0.5


def membership_test(
    posterior: Predictor,
    members: Any,
    nonmembers: Any,
    *,
    model: Model | None = None,
    reference: Predictor | None = None,
    draws: int = 1000,
    confidence: float = 0.95,
) -> Membership:
    """Attack a posterior by how likely it makes records: the likelihood-ratio attack.

    The score of a record is its log predictive probability, less that under a ``reference`` that
    learned from none of the records, which takes out how hard a record is for anybody (carlini2022,
    watson2022); without a reference it is the weaker attack of yeom2018.

    Args:
        posterior: a distribution of the model's parameters, or a function from records to their log
            predictive probabilities (n,), in nats.
        members: records that it learned from, as the model takes them.
        nonmembers: others of the same population.
        model: whose posterior it is; not needed for functions.
        reference: as ``posterior``.
        draws: over which likelihoods are averaged, the same for both; conjugate models need none.
        confidence: of the interval.

    Raises:
        UsageError: for a distribution without its model.
        ParameterError: if a record has no finite score, or there are fewer than two of each.

    >>> from posterity.families import Beta
    >>> from posterity.models import BetaBernoulli
    >>> ones, zeros = np.ones(20, int), np.zeros(20, int)
    >>> q, prior = Beta.from_standard(21.0, 1.0), Beta.from_standard(1.0, 1.0)
    >>> membership_test(q, ones, zeros, model=BetaBernoulli(), reference=prior).auc
    1.0
    """
    COUNT.check(draws=draws)
    scores = []
    for records in (members, nonmembers):
        score = np.asarray(_log_predictive(posterior, model, records, draws), np.float64)
        if reference is not None:
            score = score - np.asarray(_log_predictive(reference, model, records, draws))
        scores.append(score)
    return Membership.of(scores[0], scores[1], confidence)


def difference_test(
    before: Distribution,
    after: Distribution,
    members: ArrayLike,
    nonmembers: ArrayLike,
    *,
    mechanism: GaussianMechanism | None = None,
) -> Membership:
    """Attack two posteriors by their difference, which is a sum of members' contributions.

    For who sees a token before and after a visit, or a sum with and without a site. The score of a
    record is its weight in the shortest combination of all candidates that makes up the difference.
    Of fewer independent candidates than natural parameters it is the record's true weight, one or
    zero: nobody is left in doubt. Of a noisy release it is the best linear estimate of that weight.

    Args:
        before: the posterior without the members.
        after: the one with them.
        members: contributions (m, dim) of records to the natural parameters, flat: see
            :func:`posterity.engine.privacy.noise.record_contributions`.
        nonmembers: those of others (n, dim).
        mechanism: by which the difference was released; it is no secret.
    """
    count = len(np.asarray(members))
    rows = np.concatenate([np.asarray(members, np.float64), np.asarray(nonmembers, np.float64)])
    change = (after - before).natural_parameters  # pyright: ignore[reportOperatorIssue]
    if mechanism is None:
        scale = np.abs(rows).max(0, initial=0.0)
        scale[scale == 0] = 1.0
        weights, *_ = np.linalg.lstsq((rows / scale).T, change / scale, rcond=1e-10)
    else:  # about one half, by as much as a coin
        rows, ridge = mechanism.clipped(rows), 2 * mechanism.deviation * np.eye(len(rows))
        target = np.concatenate([change @ mechanism.root - rows.sum(0) / 2, np.zeros(len(rows))])
        weights, *_ = np.linalg.lstsq(np.concatenate([rows.T, ridge]), target, rcond=1e-10)
    return Membership.of(weights[:count], weights[count:])


def attack_auc(members: ArrayLike, nonmembers: ArrayLike) -> Estimate:
    """P(a member's score > a non-member's), ties counting half: Mann-Whitney, 1/2 is chance.

    ``members`` (m,) and ``nonmembers`` (n,) are scores, m, n >= 2. The standard error is
    DeLong's (delong1988): from how often each record wins. Perfect separation has 0, which
    says that it is not to be trusted there.

    >>> attack_auc([3.0, 2.0], [1.0, 2.0]).value  # wins: 1 + 1 + 1 + 1/2, of 4
    0.875
    """
    return _estimate(_wins(members, nonmembers))


def auc_difference(
    first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike]
) -> Estimate:
    """AUC of the first attack minus that of the second, on the same records.

    Each attack is (member scores, non-member scores), records in the same order in both. The
    standard error is that of DeLong for paired attacks (delong1988), so what is hard about a record
    cancels; a ParameterError also if the two attacks have different numbers of records.
    """
    a, b = _wins(*first), _wins(*second)
    if a.shape != b.shape:
        raise _misfit(f"attacks on {a.shape} and {b.shape} members and non-members")
    return _estimate(a - b)


def _estimate(wins: Float[np.ndarray, "m n"]) -> Estimate:
    m, n = wins.shape
    variance = wins.mean(axis=1).var(ddof=1) / m + wins.mean(axis=0).var(ddof=1) / n
    return Estimate(float(wins.mean()), float(np.sqrt(variance)))


def checked_scores(members: ArrayLike, nonmembers: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return both as float64 arrays; a ParameterError unless there are two finite scores of
    each.
    """
    a, b = np.asarray(members, np.float64), np.asarray(nonmembers, np.float64)
    if not (a.ndim == b.ndim == 1 and min(len(a), len(b)) >= 2):
        raise _misfit(f"scores of shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise _misfit("scores that are NaN or infinite")
    return a, b


def _wins(members: ArrayLike, nonmembers: ArrayLike) -> Float[np.ndarray, "m n"]:
    """1 where the member's score is higher, 1/2 where equal, else 0."""
    a, b = checked_scores(members, nonmembers)
    return (1 + np.sign(a[:, None] - b[None, :])) / 2


def _log_predictive(predictor: Any, model: Model | None, records: Any, draws: int) -> ArrayLike:
    """In nats: of conjugate models exactly, of others the log of the mean likelihood over draws."""
    if not isinstance(predictor, Distribution):
        return predictor(records)
    if model is None:
        raise UsageError(
            found=f"a {type(predictor).__name__} without a model",
            expected="the model whose posterior it is",
            fix="Pass model=, or a function from records to log predictive probabilities.",
        )
    import jax

    law, data, key = predictor, Records.of_model(model, records).data, jax.random.key(0)
    with jax.enable_x64(True):
        if isinstance(model, ConjugateModel) and isinstance(law, ExponentialFamily):
            rows, z = record_contributions(model, law, records), law.sample(key)
            own = model.log_likelihood(z, data) - rows @ law.sufficient_statistics(z)
            with_one = law.with_natural_parameters(law.natural_parameters + rows)
            return np.asarray(own) + (with_one.log_normalizer() - law.log_normalizer())
        values = jax.lax.map(lambda z: model.log_likelihood(z, data), law.sample(key, (draws,)))
    return logsumexp(np.asarray(values), axis=0) - np.log(draws)


def _misfit(found: str) -> ParameterError:
    return ParameterError(
        found=found,
        expected="one finite score of each of at least two members and two non-members, the "
        "same records in every attack",
        fix="Score records that were learned from and others of the same population; a model that "
        "gives a record probability 0 has no finite score.",
    )
