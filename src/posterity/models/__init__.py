"""Models that sites can share: how records speak of parameters."""

from typing import TYPE_CHECKING

from posterity.lazy import exports
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
from posterity.models.multinomial import MultinomialRegression
from posterity.models.records import Records
from posterity.models.regression import (
    Adjusted,
    GammaRegression,
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
)
from posterity.models.topics import Documents, TopicModel, documents

if TYPE_CHECKING:
    from posterity.models.hidden_markov import (
        HiddenMarkovModel,
        label,
        log_predictive,
        marginals,
        padded,
    )
    from posterity.models.neural import NeuralNetwork
    from posterity.models.personal import PersonalModel, PersonalRegression, hierarchical

_WITH_JAX = {
    "hidden_markov": ("HiddenMarkovModel", "label", "log_predictive", "marginals", "padded"),
    "neural": ("NeuralNetwork",),
    "personal": ("PersonalModel", "PersonalRegression", "hierarchical"),
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
    "MultinomialRegression",
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
