"""Laplace's approximation of scikit-learn's logistic regression.

Its penalty is a Gaussian prior: coefficients have mean zero and precision ``1/C``, and the
intercept is flat (``1/(C scaling²)`` with ``solver="liblinear"``, which penalises it). With ``K``
classes there is one more row of coefficients than the likelihood determines. It determines only
contrasts with the first class, which are independent of the rest. Their prior has precision
``(I - 11ᵀ/K)/C``, and the curvature at the mode is exact (mackay1992).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.utils.class_weight import compute_class_weight

from posterity.adapters.laplace import check_mode, check_separation, of_covariance
from posterity.arguments import Constraint
from posterity.errors import StructureError, UsageError
from posterity.families import Gaussian
from posterity.families.names import order

Array = np.ndarray
CLASSES = Constraint(
    "two different ones or more, in their order, the reference first",
    lambda labels: len(labels) > 1 and labels == sorted(set(labels)),
)


def laplace(
    model: Any,
    x: Array,
    y: Array,
    weights: Array,
    sample_weight: ArrayLike | None,
    names: Sequence[str],
    place: str,
) -> tuple[Gaussian, Gaussian]:
    """Return posterior and likelihood of a fitted model, given x (n, d), labels and weights (n,).

    ``sample_weight`` are the weights as passed by the user, from which class weights are computed.
    """
    prior = _prior_precision(model, place)
    classes = np.asarray(model.classes_)
    strange = sorted(set(np.unique(y).tolist()) ^ set(classes.tolist()), key=str)
    if strange:
        raise UsageError(
            found=f"labels that y and {place} do not have in common: {strange[:10]}",
            expected=f"the labels it was fitted with: {classes.tolist()}",
        )
    codes = np.searchsorted(classes, y)
    if model.class_weight is not None:
        own: Any = {"class_weight": model.class_weight, "classes": classes, "y": y}
        try:  # later releases weight records in class frequencies
            by_class = compute_class_weight(**own, sample_weight=sample_weight)
        except TypeError:
            by_class = compute_class_weight(**own)
        weights = weights * np.asarray(by_class, np.float64)[codes]
    z = np.column_stack([np.ones(len(x)), x]) if model.fit_intercept else x
    mode = np.asarray(model.coef_, np.float64)
    if model.fit_intercept:
        level = np.broadcast_to(np.asarray(model.intercept_, np.float64), len(mode))
        mode = np.column_stack([level, mode])
    count = len(classes)
    rows = list(names)
    contrasts = np.eye(1)
    if count > 2:
        mode = mode[1:] - mode[0]
        rows = [f"{label}:{name}" for label in classes[1:] for name in names]
        contrasts = np.eye(count - 1) - 1 / count
    if not np.any(prior):
        check_separation(z, codes, names, place)
    chances = softmax(np.column_stack([np.zeros(len(z)), z @ mode.T]), axis=1)
    off = chances[:, 1:] - (codes[:, None] == np.arange(1, count))
    penalty = np.kron(contrasts, np.diag(prior))
    at = mode.reshape(-1)
    slope = ((weights[:, None] * off).T @ z).reshape(-1) + penalty @ at
    # Minus the Hessian of the log likelihood, one block per pair of classes.
    columns = range(1, count)

    def block(a, b):
        return (weights * chances[:, a] * ((a == b) - chances[:, b]) * z.T) @ z

    curvature = np.block([[block(a, b) for b in columns] for a in columns])
    curvature = (curvature + curvature.T) / 2
    posterior = of_covariance(at, curvature + penalty, rows, place, inverse=True)
    check_mode(
        slope @ np.linalg.solve(curvature + penalty, slope),
        "coefficients",
        f"these data, in {place}",
        "Pass x, y and sample_weight as they were given to fit; else scale the columns (by a "
        "StandardScaler), lower tol and raise max_iter.",
    )
    factor = Gaussian(posterior.precision_mean, curvature).named(rows)
    return posterior, factor


def among(factor: Any, own: Any, classes: Any, prior: Any) -> Any:
    """Return a site's factor over the coefficients of all ``classes``, of which its model has its
    ``own``: nothing is known of others. A UsageError if the ``prior`` has a class that neither has.
    """
    given = [str(one) for one in (() if own is None else own)]
    if classes is None:
        asked = {name.partition(":")[0] for name in getattr(prior, "names", ()) if ":" in name}
        absent = sorted(asked - {*given})
        if asked & {*given} and (absent or asked == {*given}):
            raise UsageError(
                found=f"a model of classes {given}, and a prior with {absent}",
                expected="classes=(...), the classes of all sites, the reference first",
            )
        return factor
    labels = [str(one) for one in classes]
    if len(given) < 2 or len({*labels}) < len(labels) or not {*given} <= {*labels}:
        raise UsageError(
            found=f"classes={labels} for a model of classes {given}",
            expected="different classes, the model's among them, the reference first",
        )
    columns = [name.removeprefix(f"{given[1]}:") for name in factor.names]
    columns = columns[: len(columns) // (len(given) - 1)]
    contrasts = np.zeros((len(given), len(labels)))
    contrasts[range(len(given)), [labels.index(label) for label in given]] = 1.0
    turn = np.kron((contrasts[1:] - contrasts[0])[:, 1:], np.eye(len(columns)))
    starts = [f"{label}:" for label in labels[1:]] if len(labels) > 2 else [""]
    names = [start + column for start in starts for column in columns]
    linear = factor.precision_mean @ turn
    return Gaussian(linear, turn.T @ factor.precision @ turn).named(names)


def to_logistic(
    law: Gaussian, model: Any, classes: Sequence[Any] | Array | None, intercept: str
) -> None:
    """Set a model's coefficients to the law's mean; with several classes they sum to zero."""
    names = list(law.names)
    mean = law.mean
    labels = np.asarray([0, 1] if classes is None else classes)
    CLASSES.check(classes=labels.tolist())
    single = len(labels) == 2
    groups = [""] if single else [f"{label}:" for label in labels[1:]]
    columns = [name.removeprefix(groups[0]) for name in names[: len(names) // len(groups)]]
    wanted = [f"{group}{column}" for group in groups for column in columns]
    rows = mean[order(names, wanted, "the law", "classes=")].reshape(len(groups), -1)
    if not single:
        rows = np.concatenate([np.zeros((1, rows.shape[1])), rows])
        rows = rows - rows.mean(0)
    at = [k for k, column in enumerate(columns) if column != intercept]
    model.set_params(fit_intercept=intercept in columns)
    model.classes_, model.coef_ = labels, np.ascontiguousarray(rows[:, at])
    model.intercept_ = np.zeros(len(rows))
    if model.fit_intercept:
        model.intercept_ = rows[:, columns.index(intercept)].copy()
    model.n_features_in_, model.n_iter_ = len(at), np.zeros(1, np.int32)
    model.feature_names_in_ = np.array([columns[k] for k in at], dtype=object)


def _prior_precision(model: Any, place: str) -> Array:
    """Return the prior precisions of one row of coefficients; zeros without a penalty."""
    penalty = getattr(model, "penalty", "deprecated")
    ratio = getattr(model, "l1_ratio", None) or 0
    # Older scikit-learn releases use `penalty`, later ones `l1_ratio` and `C`.
    ratio = {"l1": 1.0, "l2": 0.0, None: 0.0, "none": 0.0}.get(penalty, ratio)
    if ratio:
        raise UsageError(
            found=f"{place} with an l1 penalty (l1_ratio={ratio})",
            expected="an l2 penalty, l1_ratio=0: with l1 the density has no curvature at zero",
        )
    if getattr(model, "multi_class", None) == "ovr" and len(model.classes_) > 2:
        raise StructureError(
            found=f"{place} of each class against the rest", expected="a multinomial likelihood"
        )
    precision = 0.0 if penalty in (None, "none") else 1 / float(model.C)
    own = np.full(model.coef_.shape[1], precision)
    if not model.fit_intercept:
        return own
    among = model.solver == "liblinear"  # liblinear penalises the intercept
    return np.r_[precision / float(model.intercept_scaling) ** 2 if among else 0.0, own]
