"""Estimators and updates that make no sense, alone or for a model and a family."""

import numpy as np
import pytest

from posterity.errors import UsageError
from posterity.families import Beta, Categorical, DiagonalGaussian, Dirichlet, Gamma, Gaussian
from posterity.inference import (
    BonnetPrice,
    ClosedForm,
    Exact,
    LeastSquares,
    LocalUpdate,
    PredictorQuadrature,
    Quadrature,
    Reinforce,
    Reparameterization,
    VariationalOnlineNewton,
)
from posterity.models import (
    BetaBernoulli,
    BetaExponential,
    FunctionModel,
    GammaPoisson,
    LogisticRegression,
)

SETTINGS = {
    "one sample": (lambda: Reinforce(1), "samples=1; .* at least 2"),
    "no sample": (lambda: Reinforce(0, baseline=0.0), "samples=0; .* at least 1"),
    "baseline": (lambda: Reinforce(8, baseline="mean"), "baseline='mean'.*'leave-one-out'"),
    "no draws": (lambda: Reparameterization(0), "samples=0"),
    "one draw": (lambda: BonnetPrice(1), "samples=1"),
    "one draw of Newton's": (lambda: VariationalOnlineNewton(1), "samples=1"),
    "steps": (lambda: LocalUpdate(steps=0), "steps=0"),
    "rate of 0": (lambda: LocalUpdate(rate=0.0), "rate=0.0"),
    "rate above 1": (lambda: LocalUpdate(rate=1.5), "rate=1.5"),
    "rate of NaN": (lambda: LocalUpdate(rate=float("nan")), "rate=nan"),
    "temperature of 0": (lambda: LocalUpdate(temperature=0.0), "temperature=0"),
    "temperature below 0": (lambda: LocalUpdate(temperature=-1.0), "temperature=-1"),
    "infinite temperature": (lambda: LocalUpdate(temperature=float("inf")), "temperature=inf"),
    "domain": (lambda: LocalUpdate(domain="clip"), "'clip'.* 'halve' or 'retract'"),
    "batch size": (lambda: LocalUpdate(batch_size=0), "batch_size=0"),
    "estimator": (lambda: LocalUpdate("newton"), "'newton'.*'bonnet-price'"),
}


@pytest.mark.parametrize("make, says", SETTINGS.values(), ids=list(SETTINGS))
def test_settings_that_make_no_sense(make, says):
    with pytest.raises(UsageError, match=says):
        make()


ANY = FunctionModel(lambda z, x: x)
BETA, GAMMA = Beta.from_standard(2.0, 3.0), Gamma.from_standard(3.0, 2.0)
LINE = DiagonalGaussian.from_standard([0.0], [1.0])
PLANE = Gaussian.from_standard([1.0, -2.0], [[1.0, 0.3], [0.3, 0.5]])
SIMPLEX = Dirichlet.from_standard([3.0, 0.8, 2.0])
COIN = Categorical.from_standard([0.5, 0.5])
UNBOUNDED = "under which the log likelihood of BetaExponential"
MISFITS = {
    "exact": (Exact(), ANY, LINE, "conjugate models. .* default here is Quadrature"),
    "by name": ("exact", BetaExponential(), BETA, "default here is ClosedForm"),
    "closed form": (ClosedForm(), BetaBernoulli(), BETA, "E_q.* default here is Exact"),
    "two dimensions": (Quadrature(), ANY, PLANE, "one-dimensional .* Cubature"),
    "a simplex": (Quadrature(), ANY, SIMPLEX, "found estimator Quadrature for FunctionModel"),
    "no predictor": (PredictorQuadrature(), ANY, LINE, "linear predictor"),
    "no Gaussian": (BonnetPrice(), ANY, GAMMA, "Gaussian posteriors"),
    "not diagonal": (VariationalOnlineNewton(), ANY, PLANE, "diagonal Gaussians"),
    "few samples": (LeastSquares(6), ANY, PLANE, "fewer parameters than samples"),
    "discrete": (Reparameterization(), ANY, COIN, "differentiable"),
    "family": (None, BetaBernoulli(), PLANE, "prior Gaussian .*expected Beta"),
    "families": (None, LogisticRegression(), BETA, "expected Gaussian or DiagonalGaussian"),
    "batch": (None, GammaPoisson(), Gamma.from_standard([1.0], [1.0]), r"batch shape \(1,\)"),
    "infinite": (None, BetaExponential(), Beta.from_standard(0.5, 2.0), UNBOUNDED),
    "infinite at the edge": (None, BetaExponential(), Beta.from_standard(1.0, 2.0), UNBOUNDED),
}


@pytest.mark.parametrize("estimator, model, q, says", MISFITS.values(), ids=list(MISFITS))
def test_what_does_not_fit_the_model_or_the_family(estimator, model, q, says):
    with pytest.raises(UsageError, match=says):
        LocalUpdate(estimator).resolve(model, q)


def test_only_gaussians_are_retracted():
    with pytest.raises(UsageError, match="a Gaussian posterior"):
        LocalUpdate(domain="retract").resolve(BetaBernoulli(), BETA)
    assert LocalUpdate(domain="retract", rate=np.float64(1)).resolve(ANY, PLANE).rate == 1.0
