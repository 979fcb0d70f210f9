"""scikit-learn: fitted models as laws and ledgers, and back.

Mixtures and topic models are plates with a prior; linear models are Gaussians over coefficients,
Gaussian processes those over values at points. Names of columns (``feature_names_in_``) become
names of coordinates. What is no distribution over parameters stays behind: tolerances, the random
state. Numbers become float64, as all that is at rest. Tested with scikit-learn 1.9.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular

from posterity import families
from posterity.adapters import shared
from posterity.adapters.laplace import of_covariance
from posterity.adapters.plates import MEMBERS
from posterity.errors import StructureError, UsageError
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
    """The posterior that a fitted estimator holds, by the names of its columns.

    Args:
        estimator: a fitted ``BayesianRidge``, ``ARDRegression`` or ``LogisticRegression``, by
            itself or at the end of a ``Pipeline`` of scalers, whose coefficients come in the units
            of the raw columns; a ``GaussianProcessRegressor``; a ``BayesianGaussianMixture`` with
            ``covariance_type`` ``"full"`` or ``"diag"``; or a ``LatentDirichletAllocation``.
        x: the data of the fit, which estimators do not keep: for the curvature at a logistic mode
            (mackay1992), and how well an intercept is known. Of a Gaussian process points (m, d).
        y: the labels of a ``LogisticRegression``.
        sample_weight: where it was fitted with weights.
        names: of a Gaussian process's points, of a mixture's columns or a topic's words; by
            default those that the estimator has. Of a linear model none can be given.

    Returns:
        A :class:`Gaussian` over ``intercept`` and the columns, given the noise and the precisions
        of the prior that were fitted. Log odds are of the second class against the first; with more
        classes names are ``class:column``. Of a Gaussian process a :class:`Gaussian` over values of
        the function, without noise; of mixtures and topics a :class:`Plate`.

    Raises:
        UsageError: for an estimator that is not fitted or another one, missing or other data than
            those of the fit, and an l1 penalty.
        StructureError: for steps of a pipeline that are no scaling, and data of other columns.
        ParameterError: for NaN, a singular covariance (the columns are named), separated classes
            without a penalty, and coefficients more than a standard deviation from their mode; of
            a tenth there is a ``ConvergenceWarning``.

    >>> from sklearn.linear_model import LogisticRegression
    >>> x, y = np.array([[-1.0], [0.0], [0.5], [2.0]]), np.array([0, 1, 0, 1])
    >>> q = from_estimator(LogisticRegression().fit(x, y), x, y)
    >>> q.names, q.mean.round(2)
    (('intercept', 'x0'), array([-0.22,  0.6 ]))
    """
    made = _laws(estimator, shared.Data(x, y, sample_weight, names))
    # Of a model with a prior as its ledger has it, to the last bit.
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
) -> Ledger:
    """A fitted scikit-learn estimator as the ledger of one site: its prior and its factor.

    Arguments are those of :func:`from_estimator`, and ``site``, the name that the factor goes by.
    The factor of a linear model, which takes ``x`` and ``y``, is its likelihood (of linear
    regression exactly, with its noise taken as known) beside a ``prior`` that all sites share; all
    others have priors of their own. A mixture's default priors are taken from each site's data: to
    fuse sites by ``rule="product"`` fit all with one prior, or pass ``prior=`` to ``fuse``.

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
    data = shared.Data(x, y, sample_weight, names, site)
    return _laws(estimator, data).ledger(site, prior, model=estimator)


def to_estimator(
    posterior: families.ExponentialFamily | Ledger,
    *,
    like: "BaseEstimator | None" = None,
    classes: Sequence[Any] | np.ndarray | None = None,
    noise_precision: float | None = None,
    **parameters: Any,
) -> "BaseEstimator":
    """A posterior as a fitted scikit-learn estimator, ready to predict.

    Args:
        posterior: a :class:`Plate` of one of the layouts that :func:`to_ledger` makes, or a
            ledger, whose prior becomes the estimator's; or a :class:`Gaussian` over named
            coefficients, ``intercept`` among them. Names become ``feature_names_in_``.
        like: what a Gaussian is to become: ``LogisticRegression(...)``, which has the mean alone,
            or ``BayesianRidge(...)``, which has the covariance too, but for the intercept.
        classes: of a ``LogisticRegression``, that of reference first; 0 and 1 by default.
        noise_precision: of a ``BayesianRidge``, its ``alpha_``.
        parameters: constructor arguments of the estimator that no posterior holds, such as
            ``random_state``, ``tol`` or the ``doc_topic_prior`` of a topic model.

    Returns:
        One like ``like``, a ``BayesianGaussianMixture`` or a ``LatentDirichletAllocation``. Of a
        plate without ledger the priors are scikit-learn's defaults, with mean and covariance of the
        mixture in place of those of the data; bounds are NaN.

    Raises:
        UsageError: ``parameters`` that the posterior already determines.
        StructureError: a posterior that no such estimator can hold.

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
    if own := names_of(plate).get(MEMBERS):
        made.feature_names_in_ = np.array(list(own), dtype=object)
    return made


def _laws(estimator: Any, data: shared.Data) -> shared.Laws:
    sklearn = _library()
    from posterity.adapters import sklearn_linear, sklearn_plates

    if isinstance(estimator, (*sklearn_linear.KNOWN, sklearn.pipeline.Pipeline)):
        return sklearn_linear.laws(estimator, data)
    if isinstance(estimator, sklearn.gaussian_process.GaussianProcessRegressor):
        return _gaussian_process(estimator, data)
    if isinstance(estimator, sklearn_plates.KNOWN):
        return sklearn_plates.laws(estimator, data)
    expected = "a fitted BayesianGaussianMixture, LatentDirichletAllocation, BayesianRidge, "
    expected += "ARDRegression, LogisticRegression or GaussianProcessRegressor"
    fix = "Others are point estimates, or without an adapter: build the family by hand."
    raise shared.unsupported(estimator, expected, fix)


def _gaussian_process(model: Any, data: shared.Data) -> shared.Laws:
    """Prior and posterior of a function's values at points (m, d), in the units of the response.

    Values at points that two sites share, such as inducing points, have one meaning at both; a
    process as a whole has no finite set of parameters. The noise of a ``WhiteKernel``, which
    ``predict`` adds to its covariance, is left out. With ``normalize_y=True`` the prior would be
    taken from the data, so there is no ledger.
    """
    place = "the Gaussian process"
    shared.check_fitted(model, "X_train_")
    if data.x is None:
        raise UsageError(
            found="a Gaussian process without points",
            expected="x: the points (m, d) whose values the law is of",
            fix="Choose points that all sites share, such as inducing points.",
        )
    if np.ndim(model.alpha_) != 1 or (data.site is not None and model.normalize_y):
        normed = f"with normalize_y={model.normalize_y}"
        raise StructureError(
            found=f"a Gaussian process of responses {np.shape(model.alpha_)} {normed}",
            expected="one response, and for a ledger a prior that looks at nobody's data",
            fix="Fit one process a response; for a ledger with normalize_y=False, optimizer=None.",
        )
    columns = shared.columns_of(model, np.shape(model.X_train_)[1])
    x = shared.table(data.x, columns, place, by_name=hasattr(model, "feature_names_in_"))
    names: Any = data.names and list(data.names)
    if names is None:
        names = [f"f({', '.join(f'{value:.6g}' for value in row)})" for row in x]
        names = names if len(set(names)) == len(names) else [f"f{k}" for k in range(len(x))]
    around, across = model.kernel_(x, x), model.kernel_(x, model.X_train_)
    prior = None
    if data.site is not None:
        prior = of_covariance(np.zeros(len(x)), around, names, f"the prior of {place}")
    mean = across @ model.alpha_
    half = solve_triangular(model.L_, across.T, lower=True)
    scale, level = (float(np.ravel(v)[0]) for v in (model._y_train_std, model._y_train_mean))
    covariance = scale**2 * (around - half.T @ half)
    return shared.Laws(of_covariance(scale * mean + level, covariance, names, place), prior)


def _library() -> Any:
    modules = ("mixture", "decomposition", "pipeline", "gaussian_process")
    named = [f"sklearn.{module}" for module in modules]
    return shared.library(*named, extra="sklearn", package="scikit-learn")
