"""Models that sites can share: how records speak of parameters."""

from typing import TYPE_CHECKING

from posterity.lazy import exports
from posterity.models.bags import Documents, documents
from posterity.models.base import (
    ConjugateModel,
    ExpectedModel,
    FunctionModel,
    Model,
    PredictorModel,
)
from posterity.models.conjugate import (
    BetaBernoulli,
    BetaExponential,
    DirichletCategorical,
    GammaPoisson,
    GaussianMean,
    GaussianMeanCovariance,
)
from posterity.models.records import Records
from posterity.models.regression import (
    Adjusted,
    GammaRegression,
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
)
from posterity.models.topics import TopicModel

if TYPE_CHECKING:
    from posterity.models.hidden_markov import HiddenMarkovModel, padded
    from posterity.models.neural import NeuralNetwork
    from posterity.models.personal import PersonalModel
    from posterity.models.personal_regression import PersonalRegression, hierarchical
    from posterity.models.states import label, log_predictive, marginals

_WITH_JAX = {
    "hidden_markov": ("HiddenMarkovModel", "padded"),
    "neural": ("NeuralNetwork",),
    "personal": ("PersonalModel",),
    "personal_regression": ("PersonalRegression", "hierarchical"),
    "states": ("label", "log_predictive", "marginals"),
}
__getattr__, __dir__ = exports(__name__, _WITH_JAX)

__all__ = [
    "Adjusted",
    "BetaBernoulli",
    "BetaExponential",
    "ConjugateModel",
    "DirichletCategorical",
    "Documents",
    "ExpectedModel",
    "FunctionModel",
    "GammaPoisson",
    "GammaRegression",
    "GaussianMean",
    "GaussianMeanCovariance",
    "HiddenMarkovModel",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "NegativeBinomialRegression",
    "NeuralNetwork",
    "PersonalModel",
    "PersonalRegression",
    "PoissonRegression",
    "PredictorModel",
    "Records",
    "TopicModel",
    "documents",
    "hierarchical",
    "label",
    "log_predictive",
    "marginals",
    "padded",
]
