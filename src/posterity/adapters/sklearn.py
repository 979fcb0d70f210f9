"""scikit-learn: fitted models as laws and ledgers, and back.

Mixtures and topic models are plates with a prior; linear models are Gaussians over coefficients,
Gaussian processes those over values at points. Names of columns (``feature_names_in_``) become
names of coordinates. What is no distribution over parameters stays behind: tolerances, the random
state. Numbers become float64, as all that is at rest. Tested with scikit-learn 1.9.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posterity.adapters.checks import Data, Names, check_one, library
from posterity.adapters.plates import MEMBERS, apart
from posterity.checks import check_proper
from posterity.errors import StructureError, UsageError
from posterity.families import (
    Dirichlet,
    ExponentialFamily,
    Gaussian,
    NormalGamma,
    NormalWishart,
    Plate,
    at_rest,
)
from posterity.families.names import in_order, names_of
from posterity.ledger import Ledger

if TYPE_CHECKING:
    import numpy as np
    from sklearn.base import BaseEstimator


def from_estimator(
    estimator: "BaseEstimator",
    x: Any = None,
    y: Any = None,
    *,
    sample_weight: Any = None,
    names: Names = None,
) -> Gaussian | Plate:
    """The posterior that a fitted estimator holds, by the names of its columns.

    Args:
        estimator: a fitted ``BayesianRidge``, ``ARDRegression`` or ``LogisticRegression``, by
            itself or at the end of a ``Pipeline`` of scalers, whose coefficients come in the units
            of the raw columns; a ``GaussianProcessRegressor``; or one of :func:`to_ledger`'s
            mixtures and topic models.
        x: the data that it was fitted with, which it does not keep: of a ``LogisticRegression`` for
            the curvature at the mode (mackay1992), of the others for how well the intercept is
            known. Of a Gaussian process the points (m, d) whose values the law is of.
        y: the labels of a ``LogisticRegression``.
        sample_weight: where it was fitted with weights.
        names: of a Gaussian process's points, of a mixture's columns or a topic's words; by
            default those that the estimator has. Of a linear model none can be given.

    Returns:
        A :class:`Gaussian` over ``intercept`` and the columns: given the noise (``alpha_``) and the
        precisions of the prior (``lambda_``) that were fitted, which are taken as known. What
        ``ARDRegression`` has pruned has mean zero and its prior's variance ``1/lambda_``. Log odds
        are of the second class against the first; with more classes names are ``class:column``,
        against the first class. Of a Gaussian process a :class:`Gaussian` over values of the
        function, without noise; of mixtures and topics a :class:`Plate`.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        UsageError: for an estimator that is not fitted or another one, data that are missing or not
            those it was fitted with, and an l1 penalty.
        StructureError: for steps of a pipeline that are no scaling, and data of other columns.
        ParameterError: for NaN, a singular covariance (the columns are named), separated classes
            without a penalty, and coefficients more than a standard deviation from their mode.

    Warns:
        ConvergenceWarning: of coefficients that are a tenth of one from it.

    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> x, y = np.array([[-1.0], [0.0], [0.5], [2.0]]), np.array([0, 1, 0, 1])
    >>> q = from_estimator(LogisticRegression().fit(x, y), x, y)
    >>> q.names, q.mean.round(2)
    (('intercept', 'x0'), array([-0.22,  0.6 ]))
    """
    return _module(estimator).to_law(estimator, Data(x, y, sample_weight, names))


def to_ledger(
    estimator: "BaseEstimator",
    site: str,
    x: Any = None,
    y: Any = None,
    *,
    sample_weight: Any = None,
    prior: Gaussian | None = None,
    names: Names = None,
) -> Ledger:
    """A fitted scikit-learn estimator as the ledger of one site: its prior and its factor.

    Args:
        estimator: a fitted ``BayesianGaussianMixture`` with ``covariance_type`` ``"full"`` or
            ``"diag"``, or a fitted ``LatentDirichletAllocation``, or one of
            :func:`from_estimator`'s. The mixture's defaults for
            ``mean_prior`` and ``covariance_prior`` are taken from each site's data: to fuse
            sites by ``rule="product"`` fit all with one prior, or pass ``prior=``, or take
            the average that is counted without it.
        site: the name that the factor goes by.
        x: as of :func:`from_estimator`.
        y: of a linear model, whose factor is what the data said, without the estimator's own
            prior; of linear regression with its noise taken as known, exactly.
        sample_weight: where it was fitted with weights.
        prior: of a linear model, a :class:`Gaussian` that all sites share. Others have their own.
        names: of a mixture's columns or a topic's words, such as the vectorizer's
            ``get_feature_names_out()``, or of points; by default ``feature_names_in_``.

    Returns:
        A ledger over a :class:`Plate` of :class:`NormalWishart` (``"full"``) or
        :class:`NormalGamma` (``"diag"``) with mixing weights, a :class:`Dirichlet`
        (``"dirichlet_distribution"``) or the :class:`Beta` sticks of a
        ``"dirichlet_process"``; over a :class:`Plate` of :class:`Dirichlet` topics; or over a
        :class:`Gaussian`.

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
    data = Data(x, y, sample_weight, names)
    return _module(estimator).to_ledger(estimator, site, data, prior)


def to_estimator(
    posterior: ExponentialFamily | Ledger,
    *,
    like: "BaseEstimator | None" = None,
    names: Names = None,
    classes: "Sequence[Any] | np.ndarray | None" = None,
    noise_precision: float | None = None,
    **parameters: Any,
) -> "BaseEstimator":
    """A posterior as a fitted scikit-learn estimator, ready to predict.

    Args:
        posterior: a :class:`Plate` of one of the layouts that :func:`to_ledger` makes, or a
            ledger, whose posterior is taken and whose prior becomes the estimator's; or a
            :class:`Gaussian` over named coefficients, ``intercept`` among them.
        like: what a Gaussian is to become: ``LogisticRegression(...)`` or ``BayesianRidge(...)``.
        names: the columns in the order in which data will come; the posterior's names are put in
            that order, or refused. By default the posterior's names become
            ``feature_names_in_``, which scikit-learn compares with those of data frames.
        classes: of a ``LogisticRegression``, that of reference first; 0 and 1 by default.
        noise_precision: of a ``BayesianRidge``, its ``alpha_``.
        parameters: constructor arguments of the estimator that no posterior holds, such as
            ``random_state``, ``tol`` or the ``doc_topic_prior`` of a topic model (without it
            scikit-learn's default, one over the number of topics).

    Returns:
        A ``BayesianGaussianMixture`` or a ``LatentDirichletAllocation``. Of a plate without
        ledger the prior is not known: the priors are then scikit-learn's defaults, with
        mean and covariance of the mixture in place of those of the data. What is known of
        the training data only, ``lower_bound_`` and ``bound_``, is NaN. Of a Gaussian one like
        ``like``: a ``LogisticRegression`` has the mean alone, a ``BayesianRidge`` the covariance of
        the coefficients too; that of the intercept has no place there.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        UsageError: ``parameters`` that the posterior already determines.
        StructureError: a posterior that no such estimator can hold, and names that differ.
        ParameterError: NaN, infinite or improper parameters.

    >>> import numpy as np
    >>> from posterity.families import Dirichlet, Plate
    >>> topics = Plate(Dirichlet.from_standard(np.array([[9.0, 1.0, 1.0], [1.0, 1.0, 9.0]])))
    >>> to_estimator(topics).transform(np.array([[8, 1, 0]])).round(1)
    array([[0.9, 0.1]])
    """
    _library()
    from posterity.adapters import sklearn_linear, sklearn_plates

    prior, law = apart(posterior)
    if like is not None or isinstance(law, Gaussian):
        made = sklearn_linear.to_linear(law, like, classes, noise_precision, names)
        return made.set_params(**parameters)
    _check_plate(law)
    plate: Any = at_rest(law)
    if names is not None:
        wanted = {MEMBERS: tuple(map(str, names))}
        if MEMBERS not in names_of(plate):
            plate = plate.named(wanted)
        plate = in_order(plate, wanted, "the posterior", "names")
        prior = None if prior is None else in_order(prior, wanted, "the prior", "names")
    made = sklearn_plates.to_estimator(plate, prior, parameters)
    if names is None and (own := names_of(plate).get(MEMBERS)):
        made.feature_names_in_ = sklearn_linear.as_names(own)
    return made


def _module(estimator: Any) -> Any:
    """The module that knows such an estimator: its ``to_law`` and its ``to_ledger``."""
    sklearn = _library()
    from posterity.adapters import sklearn_gaussian_process, sklearn_linear, sklearn_plates

    mixture, decomposition = sklearn.mixture, sklearn.decomposition
    plates = mixture.BayesianGaussianMixture, decomposition.LatentDirichletAllocation
    for kinds, module in (
        ((*sklearn_linear.KNOWN, sklearn.pipeline.Pipeline), sklearn_linear),
        (sklearn.gaussian_process.GaussianProcessRegressor, sklearn_gaussian_process),
        (plates, sklearn_plates),
    ):
        if isinstance(estimator, kinds):
            return module
    raise UsageError(
        found=f"a {type(estimator).__name__}",
        expected="a fitted BayesianGaussianMixture or LatentDirichletAllocation, or a "
        "BayesianRidge, ARDRegression, LogisticRegression or GaussianProcessRegressor",
        fix="Other estimators of scikit-learn are point estimates, or posteriors without an "
        "adapter: build the family yourself, and Ledger.of_site from it.",
    )


def _library() -> Any:
    modules = ("mixture", "decomposition", "pipeline", "gaussian_process")
    named = [f"sklearn.{module}" for module in modules]
    return library(*named, extra="sklearn", package="scikit-learn")


def _check_plate(posterior: Any) -> None:
    known = (NormalWishart, NormalGamma, Dirichlet)
    plate = isinstance(posterior, Plate)
    if not plate or not isinstance(posterior.members, known):
        inner = f" of {type(posterior.members).__name__}" if plate else ""
        raise StructureError(
            found=f"a {type(posterior).__name__}{inner}",
            expected="a Plate of NormalWishart, NormalGamma or Dirichlet, or a Ledger of one",
            fix="For a block of a Product pass that block: posterior.blocks[name].",
        )
    check_one(posterior)
    check_proper(posterior, "the posterior for scikit-learn")
