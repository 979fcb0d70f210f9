"""Membership inference: whether a posterior reveals which records it learned from.

Members and non-members are to be drawn at random from one population. A posterior that learned from
none of them then gives both the same distribution of scores: an AUC of 1/2. After a forgetting, the
reference is a posterior that never saw the forgotten records. If the posterior equals it bit for
bit, all records have the same likelihood under both, and the AUC is exactly 1/2.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, ndtri

from posterity.arguments import BETWEEN, COUNT
from posterity.arrays.typing import ArrayLike
from posterity.engine.privacy.noise import GaussianMechanism, record_contributions
from posterity.errors import ParameterError, UsageError
from posterity.families import Distribution, ExponentialFamily
from posterity.families.mixture import Estimate
from posterity.models import ConjugateModel, Model
from posterity.models.records import Records
from posterity.models.tables import columns_of

Predictor = Distribution | Callable[[Any], ArrayLike]


@dataclasses.dataclass(frozen=True)
class Membership:
    """The result of an attack that distinguishes members from non-members: the AUC, 1/2 at chance.

    ``low`` and ``high`` enclose the true AUC with a probability of about ``confidence`` or more,
    for any distribution of scores. They are Wilson's interval (wilson1927) for as many trials as
    there are members or non-members, whichever are fewer, which bounds the variance (birnbaum1957).
    """

    auc: float
    standard_error: float
    low: float
    high: float
    confidence: float

    @classmethod
    def of(cls, members: ArrayLike, nonmembers: ArrayLike, confidence: float = 0.95) -> Self:
        """Compute the result from scores (m,) and (n,) of an attack, higher for "is a member".
        Raises a ParameterError unless there are two finite scores of each at least.
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
        """True if members are distinguished from non-members beyond chance."""
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
    """Attack a posterior by the likelihood ratio of records.

    The score of a record is its log predictive probability minus that under a ``reference`` that
    learned from none of the records. This removes how hard a record is to predict (carlini2022,
    watson2022). Without a reference it is the weaker attack of yeom2018.

    Args:
        posterior: a distribution of the model's parameters, or a function from records to their log
            predictive probabilities (n,), in nats.
        members: records that the posterior learned from, as the model takes them.
        nonmembers: other records of the same population.
        model: the model of the posterior; not needed for functions.
        reference: a distribution or function as ``posterior``; by default none.
        draws: number of draws over which likelihoods are averaged, the same for both; conjugate
            models need none.
        confidence: probability with which the interval holds the true AUC.

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

    An observer can compute it from a token before and after a visit, or a sum with and without a
    site. The score of a record is its weight in the shortest combination of all candidates that
    equals the difference. This is the true weight, one or zero, if the candidates are linearly
    independent and fewer than the natural parameters. For a noisy release it is the best linear
    estimate of it.

    Args:
        before: the posterior without the members.
        after: the posterior with the members.
        members: contributions (m, dim) of records to the natural parameters, flat: see
            :func:`posterity.engine.privacy.noise.record_contributions`.
        nonmembers: contributions (n, dim) of other records.
        mechanism: the mechanism of the release, which the attacker has too.
    """
    count = len(np.asarray(members))
    rows = np.concatenate([np.asarray(members, np.float64), np.asarray(nonmembers, np.float64)])
    change = (after - before).natural_parameters  # pyright: ignore[reportOperatorIssue]
    if mechanism is None:
        scale = np.abs(rows).max(0, initial=0.0)
        scale[scale == 0] = 1.0
        weights, *_ = np.linalg.lstsq((rows / scale).T, change / scale, rcond=1e-10)
    else:  # weights have mean and deviation 1/2
        rows, ridge = mechanism.clipped(rows), 2 * mechanism.deviation * np.eye(len(rows))
        target = np.concatenate([change @ mechanism.root - rows.sum(0) / 2, np.zeros(len(rows))])
        weights, *_ = np.linalg.lstsq(np.concatenate([rows.T, ridge]), target, rcond=1e-10)
    return Membership.of(weights[:count], weights[count:])


def attack_auc(members: ArrayLike, nonmembers: ArrayLike) -> Estimate:
    """P(a member's score > a non-member's), ties counting half: Mann-Whitney, 1/2 is chance.

    ``members`` (m,) and ``nonmembers`` (n,) are scores, m, n >= 2. The standard error is DeLong's
    (delong1988), from how often each record wins. It is 0 for perfect separation, where it is not
    to be trusted.

    >>> attack_auc([3.0, 2.0], [1.0, 2.0]).value  # wins: 1 + 1 + 1 + 1/2, of 4
    0.875
    """
    return _estimate(_wins(members, nonmembers))


def auc_difference(
    first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike]
) -> Estimate:
    """Return the AUC of the first attack minus that of the second, on the same records.

    Each attack is (member scores, non-member scores), records in the same order in both. The
    standard error is DeLong's for paired attacks (delong1988), in which the difficulty of a record
    cancels. Raises a ParameterError if a score is invalid, or the numbers of records differ.
    """
    a, b = _wins(*first), _wins(*second)
    if a.shape != b.shape:
        raise _misfit(f"attacks on {a.shape} and {b.shape} members and non-members")
    return _estimate(a - b)


def _estimate(wins: Float[np.ndarray, "m n"]) -> Estimate:
    m, n = wins.shape
    variance = wins.mean(axis=1).var(ddof=1) / m + wins.mean(axis=0).var(ddof=1) / n
    return Estimate(float(wins.mean()), float(np.sqrt(variance)))


def _wins(members: ArrayLike, nonmembers: ArrayLike) -> Float[np.ndarray, "m n"]:
    """Return 1 where the member's score is higher, 1/2 where equal, else 0; a ParameterError unless
    there are two finite scores of each or more.
    """
    a, b = np.asarray(members, np.float64), np.asarray(nonmembers, np.float64)
    if not (a.ndim == b.ndim == 1 and min(len(a), len(b)) >= 2):
        raise _misfit(f"scores of shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise _misfit("scores that are NaN or infinite")
    return (1 + np.sign(a[:, None] - b[None, :])) / 2


def _log_predictive(predictor: Any, model: Model | None, records: Any, draws: int) -> ArrayLike:
    """In nats: exact for conjugate models; for others the log of a mean over draws."""
    if not isinstance(predictor, Distribution):
        return predictor(records)
    if model is None:
        raise UsageError(
            found=f"a {type(predictor).__name__} without a model",
            expected="its model",
            fix="Pass model=, or a function from records to log predictive probabilities.",
        )
    import jax

    law, key = predictor, jax.random.key(0)
    data = Records.of_model(model, records, columns_of(law)).data
    with jax.enable_x64(True):
        if isinstance(model, ConjugateModel) and isinstance(law, ExponentialFamily):
            rows, z = record_contributions(model, law, data), jax.device_get(law.sample(key))
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
