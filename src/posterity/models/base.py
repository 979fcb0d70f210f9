"""Base classes of models: the log likelihood of records, and closed forms of its expectations."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np

from posterity.arguments import POSITIVE, check_shape
from posterity.arrays.tree import Setting, static
from posterity.arrays.typing import Bool, Float, Floats, PyTree, Real
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families import ExponentialFamily
from posterity.models.data import Column, check_data
from posterity.models.records import Records
from posterity.runtime.fingerprint import digest
from posterity.runtime.lazy import eqx, jax
from posterity.runtime.tracing import traced

Q = TypeVar("Q", bound=ExponentialFamily)
Optima = Literal["one", "several", "unknown"]
Each = Floats
"""Predictors, or values for each of them."""
Moments = tuple[Each, Each, Each]
"""Expected log likelihood of each record, and its first and second derivative by the predictor."""
VARIANCE = dataclasses.replace(POSITIVE, error=ParameterError)
OPERATIONS = "_operations"
"""The attribute of a model with what JAX has traced of it."""
_LIKELIHOODS = {"log_likelihood", "predictor_log_likelihood"}
_FORMULAS = (
    "factor",
    "expected_log_likelihood",
    "expected_factor",
    "predictor_log_likelihood",
    "predictor_value_and_slope",
)
"""Methods that follow from a likelihood, and are called instead of it."""
_SPARED = ("predictor_expectation", "rough_factor")
"""Further such methods, which are optional."""


class Model(Setting):
    """The likelihood of records given the shared parameter ``z``.

    Authors write ``log_likelihood`` for one ``z``. Subclasses of :class:`ConjugateModel`,
    :class:`ExpectedModel` or :class:`PredictorModel` give more structure, for which natural
    gradients are better than by samples.
    """

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (ExponentialFamily,)
    """The families that a posterior of this model can have."""
    columns: ClassVar[tuple[Column, ...]] = ()
    """Columns of the data: one for an array, two for a pair, none if data are not restricted."""
    optima: ClassVar[Optima] = "unknown"
    """Optima of the free energy: "one" for concave log likelihoods and Gaussian posteriors,
    "several" if components or units are exchangeable. If "unknown", a run that has converged is
    repeated from another start before its status is converged."""
    joint: ClassVar[bool] = False
    """True if records of a site are dependent given ``z``; minibatches are then not possible."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise a UsageError for a class that defines its own likelihood but inherits formulas of
        another likelihood.
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
                    expected=f"a class that says both, or derives from Model, not {of.__name__}",
                )

    @property
    def in_numpy(self) -> bool:
        """True if the formulas use NumPy for NumPy arguments, so that JAX is not needed.

        A class declares it by ``numpy: ClassVar[bool] = True``, which subclasses do not inherit.
        """
        return bool(vars(type(self)).get("numpy", False))

    @property
    def known_optima(self) -> Optima:
        """:attr:`optima`, or "unknown" if a subclass redefines only the likelihood."""
        for kind in type(self).__mro__:
            if "optima" in vars(kind):
                return vars(kind)["optima"]
            if _LIKELIHOODS & vars(kind).keys():
                break
        return "unknown"

    @abc.abstractmethod
    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        """Return ``log p(record | z)`` of each record, in nats."""

    def admits(self, q: ExponentialFamily) -> Bool[Real, ""]:
        """Return whether expectations under a proper ``q`` are finite."""
        del q
        return np.asarray(True)

    def check(self, data: PyTree) -> None:
        """Raise an error if the data do not suit this model; subclasses add their own checks.

        Raises:
            ParameterError: for NaN, infinity, and values that the model cannot produce.
            StructureError: if data are not numbers, or of a wrong shape.
        """
        check_data(data, self.columns)

    @property
    def operations(self) -> tuple[Any, str] | None:
        """What JAX has traced of the model, and the digest of the arrays in it; None if nothing."""
        return self.__dict__.get(OPERATIONS)

    def kept(self) -> tuple[Any, ...]:
        return (*super().kept(), self.operations)

    @classmethod
    def of_children(cls, children: PyTree, kept: tuple[Any, ...] = ()) -> Self:
        model = super().of_children(children, kept[:-1])
        if kept and kept[-1] is not None:
            model.__dict__[OPERATIONS] = kept[-1]  # pyright: ignore
        return model

    def pinned(self, function: Callable[..., Any], *examples: Any) -> Self:
        """Return the model with the operations of ``function(model, *examples)``, traced by JAX in
        the precision in force. Programs of the model are made anew where these differ: where a
        function of the caller's, or what it reads, has changed.

        A function that JAX cannot trace leaves the model as it is: the error is raised, and worded,
        where the model is used.
        """
        arrays, settings = eqx.partition(self, eqx.is_array)

        def own(arrays, *examples):
            return function(eqx.combine(arrays, settings), *examples)

        try:
            operations, constants = traced(own, arrays, *examples)
        except Exception:
            return self
        known = operations, digest(constants)
        return self.of_children(self.children(), (*super().kept(), known))

    def total(self, z: PyTree, records: Records) -> Float[Real, ""]:
        """Return the weighted sum of log likelihoods, in nats."""
        return weighted(self.log_likelihood(z, records.data), records)


def weighted(values: PyTree, records: Records) -> Float[Real, ""]:
    """Return the sum of log likelihoods (n,) times the records' weights; a StructureError unless
    there is one real number per record.
    """
    check_shape("log likelihoods, one number a record,", values, *np.shape(records.weights))
    kind = getattr(values, "dtype", None)
    if kind is not None and kind.kind in "biuc":
        raise StructureError(
            found=f"log likelihoods of dtype {kind}",
            expected="real numbers of a floating-point dtype, which have derivatives",
        )
    return (records.weights * values).sum()


class ConjugateModel(Model, Generic[Q]):
    """A model whose likelihood is conjugate: a site's factor is exact after one visit.

    >>> from posterity import Gamma, federate
    >>> class Exponential(ConjugateModel[Gamma]):
    ...     conjugate_to = (Gamma,)
    ...     def log_likelihood(self, z, data):
    ...         return np.log(z) - z * data
    ...     def factor(self, records):
    ...         n, total = records.weights.sum(), records.weights @ records.data
    ...         return Gamma.from_standard(1 + n, total)
    >>> sites = {"north": np.array([1.0]), "south": np.array([2.0])}
    >>> federate(sites, Exponential(), Gamma.from_standard(1.0, 1.0)).posterior.mean.round(3).item()
    0.75
    """

    conjugate_to: ClassVar[tuple[type[ExponentialFamily], ...]] = (ExponentialFamily,)
    """The families to which the likelihood is conjugate."""

    @abc.abstractmethod
    def factor(self, records: Records) -> Q:
        """Return the weighted sum of sufficient statistics, as natural parameters."""


class ExpectedModel(Model, Generic[Q]):
    """A model with ``E_q[log likelihood]`` in closed form."""

    @abc.abstractmethod
    def expected_log_likelihood(self, q: Q, data: PyTree) -> Float[Real, " n"]:
        """Return ``E_q[log p(record | z)]`` of each record, in nats; differentiable in ``q``."""

    def expected_factor(self, q: Q, records: Records) -> tuple[Float[Real, ""], Q] | None:
        """Return the weighted sum of expectations and its gradient in the mean parameters ``μ`` as
        a factor, or None without a formula. For a conjugate model with hidden variables summed out
        the factor is the expected sufficient statistics.
        """
        del q, records
        return None


class PredictorModel(Model):
    """A model of records ``(x, y)`` that depends on ``z`` only by the predictor ``f = x · z``.

    >>> import jax.numpy as jnp
    >>> from posterity import Gaussian, federate
    >>> class Robust(PredictorModel):
    ...     def predictor_log_likelihood(self, f, y):
    ...         return -jnp.log1p((y - f) ** 2) - np.log(np.pi)
    >>> sites = {"north": (np.ones((3, 1)), np.array([0.9, 1.1, 9.0]))}
    >>> prior = Gaussian.from_standard([0.0], [[1.0]])
    >>> federate(sites, Robust(), prior).posterior.mean.round(1)
    array([0.8])
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Reset inherited closed forms in a class that defines its own likelihood."""
        super().__init_subclass__(**options)
        for name in _SPARED if _LIKELIHOODS & vars(cls).keys() else ():
            if name not in vars(cls):
                setattr(cls, name, vars(PredictorModel)[name])

    @abc.abstractmethod
    def predictor_log_likelihood(self, f: Each, y: Any) -> Each:
        """Return ``log p(y | f)`` in nats, elementwise."""

    def predictor_mean(self, f: Each) -> Each:
        """Return ``E[y | f]``, elementwise, for predictions; a UsageError unless it is defined."""
        raise UsageError(
            found=f"a prediction asked of {type(self).__name__}, which does not say E[y | f]",
            expected="a model with a method `predictor_mean(f)`",
        )

    def predictor_expectation(self, mean: Each, variance: Each, y: Any) -> Moments | None:
        """Return ``E[log p(y | f)]`` and the expectations of its first and second derivative, for
        normal ``f``; or None without a closed form, in which case quadrature is used.
        """
        del mean, variance, y
        return None

    def rough_factor(self, q: Any, records: Records) -> Any:
        """Return an approximate factor of the records, from which a search starts, or None."""
        del q, records
        return None

    def predictor_value_and_slope(self, f: Each, y: Any) -> tuple[Each, Each]:
        """Return ``log p(y | f)`` and its derivative in ``f``, by JAX; models may override it."""

        def value(f):
            return self.predictor_log_likelihood(f, y)

        return jax.jvp(value, (f,), (jax.numpy.ones_like(f),))

    def outputs(self, z: PyTree, x: PyTree) -> Float[Real, " n"]:
        """Return the predictors ``x · z``, the argument of :meth:`predictor_mean`."""
        return x @ z

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        x, y = data
        return self.predictor_log_likelihood(x @ z, y)


class FunctionModel(Model):
    """A model given by any differentiable function of ``z`` and a batch of data.

    Args:
        function: function of ``z``, as the family samples it, and the data; returns one log
            likelihood (or minus one loss) per record, of shape ``(n,)``.
        predict: function of ``z`` and inputs ``x``, for predictions; returns logits or means
            according to ``likelihood``, or a pair of means and noise variances.
        likelihood: likelihood of ``predict``: ``"categorical"`` (logits (n, K)), ``"bernoulli"``
            (logits (n,)) or ``"gaussian"`` (means (n,) or (n, k)).
        noise_variance: noise variance of the Gaussian likelihood, if it is known.
        predictors: function of ``z`` and the data that returns the ``p`` predictors of each record,
            of shape ``(n, p)``, through which alone it depends on ``z``. They are affine in ``z``.
            ``function`` then takes them in place of ``z``. Expectations under a Gaussian are sums
            over these predictors, which are more exact than sums over all parameters.

    >>> import jax.numpy as jnp
    >>> from posterity.models import FunctionModel
    >>> laplace = FunctionModel(lambda z, x: -abs(x - z[0]))
    >>> def mean_and_log_scale(z, data):
    ...     x, y = data
    ...     return jnp.stack([x @ z[:-1], jnp.full(len(x), z[-1])], 1)
    >>> def normal(f, data):
    ...     x, y = data
    ...     return -(((y - f[:, 0]) / jnp.exp(f[:, 1])) ** 2) / 2 - f[:, 1]
    >>> scaled = FunctionModel(normal, predictors=mean_and_log_scale)
    >>> x, y = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([3.0, 3.0])
    >>> scaled.log_likelihood(np.array([1.0, 1.0, 0.0]), (x, y)).tolist()
    [-2.0, -0.5]
    """

    function: Callable[[Any, Any], Any] = static()
    predict: Callable[[Any, Any], Any] | None = static(default=None)
    likelihood: str | None = static(default=None)
    noise_variance: float | int | None = None
    predictors: Callable[[Any, Any], Any] | None = static(default=None)

    def outputs(self, z: PyTree, x: PyTree) -> Any:
        """Return ``predict(z, x)``; a UsageError without ``predict``."""
        if self.predict is None:
            raise UsageError(
                found=f"a FunctionModel with likelihood={self.likelihood!r} and no predict",
                expected="a function of parameters and inputs, predict(z, x), beside it",
            )
        return self.predict(z, x)

    def log_likelihood(self, z: PyTree, data: PyTree) -> Any:
        return self.function(z if self.predictors is None else self.predictors(z, data), data)
