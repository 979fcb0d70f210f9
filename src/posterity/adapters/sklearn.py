"""scikit-learn: fitted models as laws and ledgers, and back.

Mixtures and topic models become plates with a prior, and linear models Gaussians over
coefficients. Names of columns (``feature_names_in_``) become names of coordinates. Settings such as
tolerances and the random state are dropped. Numbers become float64. Tested with scikit-learn 1.9.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from posterity import families
from posterity.adapters import shared
from posterity.adapters.plates import MEMBERS
from posterity.adapters.shared import library
from posterity.families.names import names_of
from posterity.ledger import Ledger

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


def from_estimator(
    estimator: "BaseEstimator",
    x: Any = None,
    y: ArrayLike | None = None,
    *,
    sample_weight: ArrayLike | None = None,
    names: shared.Names = None,
) -> families.Gaussian | families.Plate:
    """Return the posterior of a fitted estimator, named after its columns.

    Args:
        estimator: fitted ``BayesianRidge``, ``ARDRegression`` or ``LogisticRegression``, alone or
            at the end of a ``Pipeline`` of scalers, whose coefficients are returned in the units of
            the raw columns; a ``BayesianGaussianMixture`` with
            ``covariance_type`` ``"full"`` or ``"diag"``; or a ``LatentDirichletAllocation``.
        x: data of the fit, which estimators do not store. They are needed for the curvature at a
            logistic mode (mackay1992) and the variance of an intercept.
        y: labels of a ``LogisticRegression``.
        sample_weight: weights of the fit, if it had any.
        names: names of a mixture's columns or a topic's words; by default those of the estimator.
            Not allowed for a linear model.

    Returns:
        A :class:`Gaussian` over ``intercept`` and the columns, conditional on the fitted noise and
        prior precisions. Log odds are of the second class against the first; with more classes
        names are ``class:column``. For mixtures and topics a :class:`Plate`.

    Raises:
        UsageError: for an estimator that is not fitted or not supported, data that are missing or
            not those of the fit, and an l1 penalty.
        StructureError: for pipeline steps that are not scalers, and data with other columns.
        ParameterError: for NaN, a singular covariance (the columns are named), separated classes
            without a penalty, and coefficients more than a standard deviation from their mode;
            beyond a tenth there is a ``ConvergenceWarning``.

    >>> from sklearn.linear_model import LogisticRegression
    >>> x, y = np.array([[-1.0], [0.0], [0.5], [2.0]]), np.array([0, 1, 0, 1])
    >>> q = from_estimator(LogisticRegression().fit(x, y), x, y)
    >>> q.names, q.mean.round(2)
    (('intercept', 'x0'), array([-0.22,  0.6 ]))
    """
    made = _laws(estimator, shared.Data(x, y, sample_weight, names))
    # For a model with its own prior, the ledger's posterior, bit for bit.
    return made.posterior if made.prior is None else made.ledger("here").posterior  # pyright: ignore


def to_ledger(
    estimator: "BaseEstimator",
    site: str,
    x: Any = None,
    y: ArrayLike | None = None,
    *,
    sample_weight: ArrayLike | None = None,
    prior: families.Gaussian | None = None,
    names: shared.Names = None,
    classes: Sequence[Any] | np.ndarray | None = None,
) -> Ledger:
    """Convert a fitted scikit-learn estimator to the ledger of one site: its prior and its factor.

    Arguments are those of :func:`from_estimator`, and ``site``, the name of the factor's site. A
    linear model needs ``x`` and ``y``: its factor is the likelihood (exact for linear regression,
    with the noise taken as known), and ``prior`` is one that all sites share. All other models have
    their own priors. ``classes`` are those of all sites, the reference first, for a
    ``LogisticRegression`` of a site without some of them: its factor then says how the others
    compare, and nothing of those that it has not seen. A mixture's default priors are computed
    from each site's data: to fuse sites
    by ``rule="product"`` fit all with one prior, or pass ``prior=`` to ``fuse``.

    Returns:
        A ledger over a :class:`Gaussian`, or over a :class:`Plate`: of :class:`NormalWishart` or
        :class:`NormalGamma`, with a :class:`Dirichlet` of mixing weights or the :class:`Beta`
        sticks of a ``"dirichlet_process"``; or of :class:`Dirichlet` topics.

    >>> from sklearn.mixture import BayesianGaussianMixture
    >>> x = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
    >>> model = BayesianGaussianMixture(n_components=2, random_state=0).fit(x)
    >>> ledger = to_ledger(model, "north")
    >>> ledger.sites, ledger.posterior.size
    (('north',), 2)
    """
    made = _laws(estimator, shared.Data(x, y, sample_weight, names, site))
    own = getattr(estimator, "classes_", None)
    if classes is not None or (own is not None and prior is not None):
        from posterity.adapters.sklearn_logistic import among

        made = made._replace(factor=among(made.factor, own, classes, prior))
    return made.ledger(site, prior, model=estimator)


def to_estimator(
    posterior: families.ExponentialFamily | Ledger,
    *,
    like: "BaseEstimator | None" = None,
    classes: Sequence[Any] | np.ndarray | None = None,
    noise_precision: float | None = None,
    **parameters: Any,
) -> "BaseEstimator":
    """Convert a posterior to a fitted scikit-learn estimator that can predict.

    Args:
        posterior: a :class:`Plate` in one of the forms that :func:`to_ledger` returns, or a
            ledger, whose prior becomes the estimator's; or a :class:`Gaussian` over named
            coefficients, ``intercept`` among them. Names become ``feature_names_in_``.
        like: type of estimator to make from a Gaussian: ``LogisticRegression(...)``, which holds
            only the mean, or ``BayesianRidge(...)``, which also holds the covariance of all
            coefficients but the intercept.
        classes: classes of a ``LogisticRegression``, reference class first; by default 0 and 1.
        noise_precision: noise precision of a ``BayesianRidge``, its ``alpha_``.
        parameters: constructor arguments of the estimator that no posterior holds, such as
            ``random_state``, ``tol`` or the ``doc_topic_prior`` of a topic model.

    Returns:
        An estimator like ``like``, a ``BayesianGaussianMixture`` or a
        ``LatentDirichletAllocation``. From a plate without a ledger a mixture has no prior: it
        predicts, and a new fit takes scikit-learn's default. Bounds are NaN.

    Raises:
        UsageError: for ``parameters`` that the posterior already determines.
        StructureError: for a posterior that no such estimator can represent.

    >>> from posterity.families import Dirichlet, Plate
    >>> topics = Plate(Dirichlet.from_standard(np.array([[9.0, 1.0, 1.0], [1.0, 1.0, 9.0]])))
    >>> to_estimator(topics).transform(np.array([[8, 1, 0]])).round(1)
    array([[0.9, 0.1]])
    """
    _library()
    from posterity.adapters import sklearn_linear, sklearn_plates

    law = shared.split(posterior)[1]
    if like is not None or isinstance(law, families.Gaussian):
        made = sklearn_linear.to_linear(law, like, classes, noise_precision)
        return made.set_params(**parameters)
    known = (families.NormalWishart, families.NormalGamma, families.Dirichlet)
    prior, plate = shared.prior_and_law(
        posterior,
        lambda own: getattr(own, "is_plate", False) and isinstance(own.members, known),
        "scikit-learn",
        expected="a Plate of NormalWishart, NormalGamma or Dirichlet, or a Ledger of one",
        fix="For a block of a Product pass that block: posterior.blocks[name].",
    )
    made = sklearn_plates.to_estimator(plate, prior, parameters)
    own = names_of(plate).get(MEMBERS)
    if own:
        made.feature_names_in_ = np.array(list(own), dtype=object)
    return made


def _laws(estimator: Any, data: shared.Data) -> shared.Laws:
    sklearn = _library()
    from posterity.adapters import sklearn_linear, sklearn_plates

    if isinstance(estimator, (*sklearn_linear.KNOWN, sklearn.pipeline.Pipeline)):
        return sklearn_linear.laws(estimator, data)
    if isinstance(estimator, sklearn_plates.KNOWN):
        return sklearn_plates.laws(estimator, data)
    expected = "a fitted BayesianGaussianMixture, LatentDirichletAllocation, BayesianRidge, "
    expected += "ARDRegression or LogisticRegression: others are point estimates, or without an "
    expected += "adapter (build the family by hand)"
    raise shared.unsupported(estimator, expected)


def _library() -> Any:
    modules = ("mixture", "decomposition", "pipeline")
    named = [f"sklearn.{module}" for module in modules]
    return library(*named, extra="sklearn", package="scikit-learn")
