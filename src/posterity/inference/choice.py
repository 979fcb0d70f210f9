"""Which estimator serves a model and a family best."""

from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.inference import estimators
from posterity.inference.cubature import Cubature
from posterity.inference.estimators import Estimator, LeastSquares
from posterity.models import Model

ESTIMATORS: dict[str, type[Estimator]] = {
    "exact": estimators.Exact,
    "closed-form": estimators.ClosedForm,
    "predictor-quadrature": estimators.PredictorQuadrature,
    "quadrature": estimators.Quadrature,
    "enumeration": estimators.Enumeration,
    "cubature": Cubature,
    "variational-online-newton": estimators.VariationalOnlineNewton,
    "bonnet-price": estimators.BonnetPrice,
    "least-squares": LeastSquares,
    "reparameterization": estimators.Reparameterization,
    "reinforce": estimators.Reinforce,
}
"""By name, best first where several fit (see ``best_estimator``)."""

FEW, SEVERAL, SOME = 512, 64, 256
"""The most parameters for which the default spreads nodes: over a diagonal Gaussian, of which more
is asked by way of its draws; over one of a model that has several optima, as networks have, where
noise finds a way out of what is symmetric; and over any other."""
SEARCHES = 512
"""The most nodes at which a site's own parameters are integrated out."""
SLOPES_LIMIT = 64
"""The most natural parameters for which the default fits slopes to draws."""


def best_estimator(model: Model, q: ExponentialFamily) -> Estimator:
    """The one of least variance, then of least cost, that the model and the family allow.

    Expectations are exact for conjugate models, in closed form or by quadrature where these
    exist, and nearly so for Gaussians and Products of them by cubature. Diagonal Gaussians of many
    parameters use online Newton, small continuous families least squares, the rest implicit
    reparameterisation where draws can be differentiated, and REINFORCE with a leave-one-out
    baseline where not.
    """
    options = {name: kind() for name, kind in ESTIMATORS.items() if name != "bonnet-price"}
    # Where a log likelihood is a search of its own, thousands of nodes are too many.
    options["cubature"] = Cubature(most=SEARCHES) if model.joint else Cubature()
    options["least-squares"] = LeastSquares(max(64, 4 * q.dimension))
    most = SEVERAL if model.optima == "several" else FEW
    if q.event_size > (most if options["variational-online-newton"].fits(model, q) else SOME):
        del options["cubature"]
    if not q.reparameterized or q.dimension > SLOPES_LIMIT:
        del options["least-squares"]
    return next(kind for kind in options.values() if kind.fits(model, q))


def check_estimator(estimator: Estimator, model: Model, q: ExponentialFamily) -> None:
    """Raise a UsageError unless the estimator serves this model and family."""
    if not estimator.fits(model, q):
        raise UsageError(
            found=f"estimator {type(estimator).__name__} for {type(model).__name__} and a "
            f"posterior of {type(q).__name__}",
            expected=estimator.fitting,
            fix=f"Leave the estimator out: the default here is "
            f"{type(best_estimator(model, q)).__name__}.",
        )
