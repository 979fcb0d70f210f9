"""scikit-learn: fitted mixtures and topic models as ledgers, and back.

Everything that is not a distribution over parameters stays behind: tolerances, the random
state, names of features. Numbers become float64, as all that is at rest.
"""

from typing import Any

from posterity.checks import check_proper
from posterity.errors import MissingExtraError, ParameterError, StructureError, UsageError
from posterity.families import (
    Dirichlet,
    ExponentialFamily,
    NormalGamma,
    NormalWishart,
    Plate,
    at_rest,
)
from posterity.ledger import Ledger


def to_ledger(estimator: Any, site: str) -> Ledger:
    """A fitted scikit-learn estimator as the ledger of one site: its prior and its factor.

    Args:
        estimator: a fitted ``BayesianGaussianMixture`` with ``covariance_type`` ``"full"`` or
            ``"diag"``, or a fitted ``LatentDirichletAllocation``. The mixture's defaults for
            ``mean_prior`` and ``covariance_prior`` are taken from each site's data: to fuse
            sites by ``rule="product"`` fit all with one prior, or pass ``prior=``, or take
            the average that is counted without it.
        site: the name that the factor goes by.

    Returns:
        A ledger over a :class:`Plate` of :class:`NormalWishart` (``"full"``) or
        :class:`NormalGamma` (``"diag"``) with mixing weights, a :class:`Dirichlet`
        (``"dirichlet_distribution"``) or the :class:`Beta` sticks of a
        ``"dirichlet_process"``; or over a :class:`Plate` of :class:`Dirichlet` topics.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        UsageError: the estimator is not fitted, or is none of these.
        StructureError: ``covariance_type`` ``"tied"`` or ``"spherical"``.
        ParameterError: NaN, infinite or improper parameters.

    >>> import numpy as np
    >>> from sklearn.mixture import BayesianGaussianMixture
    >>> x = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
    >>> model = BayesianGaussianMixture(n_components=2, random_state=0).fit(x)
    >>> ledger = to_ledger(model, "north")
    >>> ledger.sites, ledger.posterior.size
    (('north',), 2)
    """
    mixture, topics = _estimators()
    if isinstance(estimator, mixture):
        from posterity.adapters import sklearn_mixtures as layout
    elif isinstance(estimator, topics):
        from posterity.adapters import sklearn_topics as layout
    else:
        raise _foreign(estimator)
    try:
        prior, posterior = layout.to_plates(estimator)
    except ParameterError as error:
        raise error.at(f"site {site!r}") from error
    return Ledger.of_site(site, prior=prior, posterior=posterior)


def to_estimator(posterior: ExponentialFamily | Ledger, **parameters: Any) -> Any:
    """A posterior as a fitted scikit-learn estimator, ready to predict.

    Args:
        posterior: a :class:`Plate` of one of the layouts that :func:`to_ledger` makes, or a
            ledger, whose posterior is taken and whose prior becomes the estimator's.
        parameters: constructor arguments of the estimator that no posterior holds, such as
            ``random_state``, ``tol`` or the ``doc_topic_prior`` of a topic model (without it
            scikit-learn's default, one over the number of topics).

    Returns:
        A ``BayesianGaussianMixture`` or a ``LatentDirichletAllocation``. Of a plate without
        ledger the prior is not known: the priors are then scikit-learn's defaults, with
        mean and covariance of the mixture in place of those of the data. What is known of
        the training data only, ``lower_bound_`` and ``bound_``, is NaN.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        UsageError: ``parameters`` that the posterior already determines.
        StructureError: a posterior that no such estimator can hold.
        ParameterError: NaN, infinite or improper parameters.

    >>> import numpy as np
    >>> from posterity.families import Dirichlet, Plate
    >>> topics = Plate(Dirichlet.from_standard(np.array([[9.0, 1.0, 1.0], [1.0, 1.0, 9.0]])))
    >>> to_estimator(topics).transform(np.array([[8, 1, 0]])).round(1)
    array([[0.9, 0.1]])
    """
    _estimators()
    prior = None
    if isinstance(posterior, Ledger):
        prior, posterior = posterior.prior, posterior.posterior
    _check_plate(posterior)
    plate: Plate = at_rest(posterior)  # type: ignore[assignment]
    if isinstance(plate.members, Dirichlet):
        from posterity.adapters import sklearn_topics as layout
    else:
        from posterity.adapters import sklearn_mixtures as layout
    _check_parameters(parameters, layout.DETERMINED)
    return layout.to_estimator(plate, prior, parameters)  # type: ignore[arg-type]


def _estimators() -> tuple[type, type]:
    """The two classes, if scikit-learn is installed."""
    try:
        from sklearn.decomposition import LatentDirichletAllocation
        from sklearn.mixture import BayesianGaussianMixture
    except ImportError as error:
        raise MissingExtraError.of("scikit-learn", "sklearn") from error
    return BayesianGaussianMixture, LatentDirichletAllocation


def _foreign(estimator: Any) -> UsageError:
    return UsageError(
        found=f"a {type(estimator).__name__}",
        expected="a fitted BayesianGaussianMixture or LatentDirichletAllocation",
        fix="Other estimators of scikit-learn are point estimates, or posteriors without an "
        "adapter: build the family yourself, and Ledger.of_site from it.",
    )


def _check_plate(posterior: Any) -> None:
    known = (NormalWishart, NormalGamma, Dirichlet)
    if not isinstance(posterior, Plate) or not isinstance(posterior.members, known):
        inner = f" of {type(posterior.members).__name__}" if isinstance(posterior, Plate) else ""
        raise StructureError(
            found=f"a {type(posterior).__name__}{inner}",
            expected="a Plate of NormalWishart, NormalGamma or Dirichlet, or a Ledger of one",
            fix="For a block of a Product pass that block: posterior.blocks[name].",
        )
    if posterior.batch_shape:
        raise StructureError(
            found=f"a batch of shape {posterior.batch_shape} of plates",
            expected="one plate",
            fix="Index it: posterior[0].",
        )
    check_proper(posterior, "the posterior for scikit-learn")


def _check_parameters(parameters: dict[str, Any], determined: frozenset[str]) -> None:
    if taken := sorted(determined & parameters.keys()):
        raise UsageError(
            found=f"parameters {taken}",
            expected="only parameters that the posterior does not determine",
            fix="Leave them out.",
        )
