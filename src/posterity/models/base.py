"""Models: the log likelihood of records, and what else is known of it."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np

from posterity.arguments import POSITIVE
from posterity.arrays.tree import Setting, static
from posterity.arrays.typing import Bool, Float, PyTree, Real
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families import ExponentialFamily
from posterity.lazy import jax
from posterity.models.data import Column, check_data
from posterity.models.records import Records

Q = TypeVar("Q", bound=ExponentialFamily)
Optima = Literal["one", "several", "unknown"]
Each = Float[Real, "..."]
"""Predictors, or what belongs to each of them."""
Moments = tuple[Each, Each, Each]
"""Of each record's log likelihood and its first and second derivative by the predictor."""
VARIANCE = dataclasses.replace(POSITIVE, error=ParameterError)
_LIKELIHOODS = {"log_likelihood", "predictor_log_likelihood"}
_FORMULAS = (
    "factor",
    "expected_log_likelihood",
    "expected_factor",
    "predictor_log_likelihood",
    "predictor_value_and_slope",
)
"""What follows from a likelihood, and is asked in its place."""
_SPARED = ("predictor_expectation", "rough_factor")
"""What follows too, but a model with another likelihood can do without."""


class Model(Setting):
    """The likelihood of records given ``z``, the parameter that sites share.

    Authors write ``log_likelihood``, for one ``z``; a model that knows more derives from
    :class:`ConjugateModel`, :class:`ExpectedModel` or :class:`PredictorModel`, for which better
    natural gradients exist than samples give.
    """

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (ExponentialFamily,)
    """The families that a posterior of this model can have."""
    columns: ClassVar[tuple[Column, ...]] = ()
    """What its data hold: one column for an array, two for a pair, none where all is welcome."""
    optima: ClassVar[Optima] = "unknown"
    """Optima of the free energy: one where log likelihoods are concave and posteriors Gaussian,
    several by nature where components or units can be exchanged. Where it is not known, a run that
    has settled is started a second time elsewhere before it is said to have converged."""
    joint: ClassVar[bool] = False
    """Whether records of a site tell of each other: a batch does not stand for all then."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class whose likelihood is its own, and whose formulas are another likelihood's;
        a UsageError naming the formula, and the class that it is of.
        """
        super().__init_subclass__(**options)
        own = _LIKELIHOODS & vars(cls).keys()
        for name in _FORMULAS if own else ():
            of = next((kind for kind in cls.__mro__ if name in vars(kind)), cls)
            if of is not cls and of.__module__ != __name__:
                of = next(kind for kind in cls.__mro__[1:] if issubclass(kind, of))
                raise UsageError(
                    found=f"{cls.__name__} with a {min(own)} of its own, and the {name} of "
                    f"{of.__name__}, which is that of another likelihood",
                    expected=f"a class that says both, or derives from no {of.__name__}",
                    fix="Derive from PredictorModel or Model: what they lack is found by "
                    "differentiation.",
                )

    @property
    def in_numpy(self) -> bool:
        """True if its formulas are NumPy's where its arguments are: then JAX is not needed.

        A class says so of itself by ``numpy: ClassVar[bool] = True``, not of those that derive
        from it.
        """
        return bool(vars(type(self)).get("numpy", False))

    @property
    def known_optima(self) -> Optima:
        """:attr:`optima`, unless a class that derives from who says it has another likelihood."""
        for kind in type(self).__mro__:
            if "optima" in vars(kind):
                return vars(kind)["optima"]
            if _LIKELIHOODS & vars(kind).keys():
                break
        return "unknown"

    @abc.abstractmethod
    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        """``log p(record | z)`` of each record, in nats: minus the loss."""

    def admits(self, q: ExponentialFamily) -> Bool[Real, ""]:
        """Return whether expectations under a proper ``q`` are finite."""
        del q
        return np.asarray(True)

    def check(self, data: PyTree) -> None:
        """Raise an error if the data cannot be this model's; models add what they know.

        Raises:
            ParameterError: for NaN, infinity, and values that the model cannot produce.
            StructureError: for what are no numbers, or of a wrong shape.
        """
        check_data(data, self.columns)

    def total(self, z: PyTree, records: Records) -> Float[Real, ""]:
        """The weighted sum of log likelihoods."""
        return weighted(self.log_likelihood(z, records.data), records)


def weighted(values: PyTree, records: Records) -> Float[Real, ""]:
    """The sum of log likelihoods (n,) times the records' weights; a StructureError unless there is
    one value a record.
    """
    if np.shape(values) != np.shape(records.weights):
        raise StructureError(
            found=f"log likelihoods of shape {np.shape(values)} for {records.size} records",
            expected=f"one number a record: shape {np.shape(records.weights)}",
            fix="Return the log likelihood of each record, not their sum or mean.",
        )
    return (records.weights * values).sum()


class ConjugateModel(Model, Generic[Q]):
    """The likelihood lies in the prior's family: one visit says all there is to say."""

    conjugate_to: ClassVar[tuple[type[ExponentialFamily], ...]] = (ExponentialFamily,)
    """Those of its families that the likelihood lies in."""

    @abc.abstractmethod
    def factor(self, records: Records) -> Q:
        """The weighted sum of sufficient statistics, as natural parameters."""


class ExpectedModel(Model, Generic[Q]):
    """``E_q[log likelihood]`` is known in closed form."""

    @abc.abstractmethod
    def expected_log_likelihood(self, q: Q, data: PyTree) -> Float[Real, " n"]:
        """``E_q[log p(record | z)]`` of each record, in nats; differentiable in ``q``."""

    def expected_factor(self, q: Q, records: Records) -> tuple[Float[Real, ""], Q] | None:
        """The weighted sum of expectations, and ``∇_μ`` of it as a factor; None: not known.

        Where hidden variables are summed out of a conjugate model it is their expected sufficient
        statistics, which need no Fisher information.
        """
        del q, records
        return None


class PredictorModel(Model):
    """A record ``(x, y)`` sees ``z`` through the linear predictor ``f = x · z`` alone."""

    def __init_subclass__(cls, **options: Any) -> None:
        """A class with a likelihood of its own keeps no closed forms of another likelihood."""
        super().__init_subclass__(**options)
        for name in _SPARED if _LIKELIHOODS & vars(cls).keys() else ():
            if name not in vars(cls):
                setattr(cls, name, vars(PredictorModel)[name])

    @abc.abstractmethod
    def predictor_log_likelihood(self, f: Each, y: Any) -> Each:
        """``log p(y | f)``, in nats, element by element."""

    def predictor_mean(self, f: Each) -> Each:
        """``E[y | f]``, element by element: what predictions are; a UsageError unless the model
        says it.
        """
        raise UsageError(
            found=f"a prediction asked of {type(self).__name__}, which does not say E[y | f]",
            expected="a model with a method `predictor_mean(f)`",
            fix="Write that method, or ask for `log_predictive`, which needs the likelihood alone.",
        )

    def predictor_expectation(self, mean: Each, variance: Each, y: Any) -> Moments | None:
        """``E[log p(y | f)]`` and those of its first and second derivative, ``f`` normal.

        None where no closed form is known: then they are sums over nodes.
        """
        del mean, variance, y
        return None

    def rough_factor(self, q: Any, records: Records) -> Any:
        """A factor near what records say, for a search whose start sees nothing; None: none."""
        del q, records
        return None

    def predictor_value_and_slope(self, f: Each, y: Any) -> tuple[Each, Each]:
        """``log p(y | f)`` and its derivative in ``f``; a model that knows it may say it faster."""
        value = lambda f: self.predictor_log_likelihood(f, y)
        return jax.jvp(value, (f,), (jax.numpy.ones_like(f),))

    def outputs(self, z: PyTree, x: PyTree) -> Float[Real, " n"]:
        """``x · z``: what :meth:`predictor_mean` is of."""
        return x @ z

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        x, y = data
        return self.predictor_log_likelihood(x @ z, y)


class FunctionModel(Model):
    """A user's own: any differentiable function of ``z`` and a batch.

    Args:
        function: from ``z`` (as the family samples it) and the data to one log likelihood, or
            minus one loss, a record; shape ``(n,)``.
        predict: for models that predict: from ``z`` and inputs ``x`` to logits, or to means, as
            ``likelihood`` says; a pair of means and noise variances where the noise depends on
            ``z`` or ``x``.
        likelihood: ``"categorical"`` (logits (n, K)), ``"bernoulli"`` (n,) or ``"gaussian"``
            (n,) or (n, k).
        noise_variance: of the Gaussian likelihood, where it is known.

    >>> from posterity.models import FunctionModel
    >>> laplace = FunctionModel(lambda z, x: -abs(x - z[0]))
    """

    function: Callable[[Any, Any], Any] = static()
    predict: Callable[[Any, Any], Any] | None = static(default=None)
    likelihood: str | None = static(default=None)
    noise_variance: float | int | None = None

    def outputs(self, z: PyTree, x: PyTree) -> Any:
        """The user's predictions; a UsageError where the model has none."""
        if self.predict is None:
            raise UsageError(
                found=f"a FunctionModel with likelihood={self.likelihood!r} and no predict",
                expected="a function of parameters and inputs, predict(z, x), beside it",
                fix="Pass predict=, or leave the likelihood out.",
            )
        return self.predict(z, x)

    def log_likelihood(self, z: PyTree, data: PyTree) -> Any:
        return self.function(z, data)
