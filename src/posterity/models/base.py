"""What a model is: the log likelihood of records, and what else is known of it."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from posterity.arrays.typing import Real
from posterity.errors import ParameterError, StructureError
from posterity.families import ExponentialFamily

Q = TypeVar("Q", bound=ExponentialFamily)


class Records(eqx.Module):
    """Data of one site: arrays whose first axis counts records, and a weight a record.

    The weights multiply log likelihoods: 1 for each record counted once, 1/n for a loss that is
    a mean, n/b for a minibatch of b, 0 for padding.
    """

    data: Any
    weights: Float[Real, " n"]

    @classmethod
    def of(cls, data: Any, weight: float | int = 1) -> "Records":
        """All records with one weight.

        Raises:
            StructureError: if the arrays have no common first axis.
        """
        data = jax.tree.map(np.asarray, data)
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
        if len(lengths) != 1 or lengths == {()}:
            shapes = [np.shape(leaf) for leaf in jax.tree.leaves(data)]
            raise StructureError(
                found=f"data of shapes {shapes}",
                expected="arrays whose first axes agree: one entry a record",
                fix="Give NumPy arrays, not lists: x of shape (n, d) and y of shape (n,), say.",
            )
        return cls(data, np.full(lengths.pop(), float(weight)))

    @property
    def size(self) -> int:
        """Number of records."""
        return self.weights.shape[0]


class Model(eqx.Module):
    """How records speak of ``z``, the parameter that sites share.

    Authors write ``log_likelihood``, for one ``z``; a model that knows more derives from
    :class:`ConjugateModel`, :class:`ExpectedModel` or :class:`PredictorModel`, for which better
    natural gradients exist than samples give.
    """

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (ExponentialFamily,)
    """The families that a posterior of this model can have."""

    @abc.abstractmethod
    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """``log p(record | z)`` of each record, in nats: minus the loss."""

    def admits(self, q: ExponentialFamily) -> Bool[Real, ""]:
        """Whether expectations under a proper ``q`` are finite."""
        del q
        return jnp.asarray(True)

    def check(self, data: Any) -> None:
        """Raise an error if the data cannot be this model's; models add what they know.

        Raises:
            ParameterError: for NaN, infinity, and values that the model cannot produce.
            StructureError: for what are no numbers, or of a wrong shape.
        """
        for leaf in map(np.asarray, jax.tree.leaves(data)):
            if leaf.dtype.kind not in "biuf":
                raise StructureError(
                    found=f"records of dtype {leaf.dtype}",
                    expected="real numbers",
                    fix="Code what is recorded as numbers before it reaches the model.",
                )
            bad = ~np.isfinite(leaf)
            if bad.any():
                raise ParameterError(
                    found=f"{int(bad.sum())} NaN or infinite values",
                    expected="finite numbers",
                    fix="Impute or drop missing values before they reach the model.",
                )

    def total(self, z: Any, records: Records) -> Float[Real, ""]:
        """The weighted sum of log likelihoods."""
        values = self.log_likelihood(z, records.data)
        if jnp.shape(values) != jnp.shape(records.weights):
            raise StructureError(
                found=f"log likelihoods of shape {jnp.shape(values)} for {records.size} records",
                expected=f"one number a record: shape {jnp.shape(records.weights)}",
                fix="Return the log likelihood of each record, not their sum or mean.",
            )
        return (records.weights * values).sum()


class ConjugateModel(Model, Generic[Q]):
    """The likelihood lies in the prior's family: one visit says all there is to say."""

    @abc.abstractmethod
    def factor(self, records: Records) -> Q:
        """The weighted sum of sufficient statistics, as natural parameters."""


class ExpectedModel(Model, Generic[Q]):
    """``E_q[log likelihood]`` is known in closed form."""

    @abc.abstractmethod
    def expected_log_likelihood(self, q: Q, data: Any) -> Float[Real, " n"]:
        """``E_q[log p(record | z)]`` of each record, in nats; differentiable in ``q``."""


class PredictorModel(Model):
    """A record ``(x, y)`` sees ``z`` through the linear predictor ``f = x · z`` alone."""

    @abc.abstractmethod
    def predictor_log_likelihood(self, f: Float[Real, "..."], y: Any) -> Float[Real, "..."]:
        """``log p(y | f)``, in nats, element by element."""

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """``log p(y | x · z)``."""
        x, y = data
        return self.predictor_log_likelihood(x @ z, y)


class FunctionModel(Model):
    """A user's own: any differentiable function of ``z`` and a batch.

    Args:
        function: from ``z`` (as the family samples it) and the data to one log likelihood, or
            minus one loss, a record; shape ``(n,)``.

    >>> from posterity.models import FunctionModel
    >>> laplace = FunctionModel(lambda z, x: -abs(x - z[0]))
    """

    function: Callable[[Any, Any], Any] = eqx.field(static=True)

    def log_likelihood(self, z: Any, data: Any) -> Any:
        """What the function says; ``total`` checks its shape."""
        return self.function(z, data)


def check_values(values: Any, good: Any, what: str) -> None:
    """Raise a ParameterError that shows the first of ``values`` that is not ``good``."""
    if not np.all(good):
        wrong = np.asarray(values)[~np.asarray(good)]
        raise ParameterError(
            found=f"{wrong.flat[0]} among the records ({wrong.size} such values)",
            expected=what,
            fix="Check how the data was read and coded.",
        )


def check_counts(values: Any, what: str) -> None:
    """Raise a ParameterError unless all are whole numbers, zero or more."""
    values = np.asarray(values)
    check_values(values, (values >= 0) & (values % 1 == 0), what)


def check_shape(array: Any, own: tuple[int | None, ...], what: str) -> None:
    """Raise a StructureError unless ``array`` is (n, *own); None stands for any length."""
    if isinstance(array, tuple):
        raise StructureError(
            found=f"{len(array)} arrays",
            expected=f"one array, {what}",
            fix="Leave out the labels, of which this model knows nothing.",
        )
    shape = np.shape(array)
    pairs = zip(shape[1:], own, strict=False)
    if len(shape) != 1 + len(own) or any(size not in (found, None) for found, size in pairs):
        raise StructureError(
            found=f"an array of shape {shape}",
            expected=what,
            fix="Reshape the data: its first axis counts records.",
        )


def check_pair(data: Any) -> None:
    """Raise a StructureError unless ``data`` is a pair ``(x, y)``."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        count = f" of {len(data)}" if isinstance(data, tuple | list) else ""
        raise StructureError(
            found=f"data that are a {type(data).__name__}{count}",
            expected="a pair (x, y) of inputs and what was observed",
            fix="Give the site's data as the tuple (x, y).",
        )


def check_regression(data: Any) -> None:
    """Raise a StructureError unless ``data`` is a pair ``x`` (n, d), ``y`` (n,)."""
    check_pair(data)
    check_shape(data[0], (None,), "x of shape (n, d)")
    check_shape(data[1], (), "y of shape (n,)")


def check_positive(value: float, name: str) -> None:
    """Raise a ParameterError unless the number is positive and finite."""
    if not 0 < value < np.inf:
        raise ParameterError(
            found=f"{name}={value}", expected="a positive number", fix="Mend this argument."
        )
