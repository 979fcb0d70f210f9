"""What a model is: the log likelihood of records, and what else is known of it."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from posterity.errors import ParameterError, StructureError
from posterity.families import ExponentialFamily
from posterity.families.arrays import Real

Q = TypeVar("Q", bound=ExponentialFamily)


class Records(eqx.Module):
    """Data of one site: arrays whose first axis counts records, and a weight a record.

    The weights multiply log likelihoods: 1 for each record counted once, 1/n for a loss that is
    a mean, n/b for a minibatch of b, 0 for padding.
    """

    data: Any
    weights: Float[Real, " n"]

    @classmethod
    def of(cls, data: Any, weight: float = 1.0) -> "Records":
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
                fix="Give x of shape (n, d) and y of shape (n,), for example.",
            )
        return cls(data, np.full(lengths.pop(), weight))

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
        """Raise a ParameterError if the data cannot be this model's.

        NaN and infinity always are such; models add what they know of their records.
        """
        for leaf in jax.tree.leaves(data):
            bad = ~np.isfinite(np.asarray(leaf, dtype=float))
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

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """What the function says."""
        return self.function(z, data)


def check_values(values: Any, good: Any, what: str) -> None:
    """Raise a ParameterError that shows the first of ``values`` that is not ``good``."""
    if not np.all(good):
        wrong = np.asarray(values)[~np.asarray(good)]
        raise ParameterError(
            found=f"{wrong.flat[0]!r} among the records ({wrong.size} such values)",
            expected=what,
            fix="Check how the data was read and coded.",
        )


def check_event_shape(array: Any, axes: int, what: str) -> None:
    """Raise a StructureError unless ``array`` has one axis of records and ``axes`` more."""
    if np.ndim(array) != axes + 1:
        raise StructureError(
            found=f"an array of shape {np.shape(array)}",
            expected=what,
            fix="Reshape the data: its first axis counts records.",
        )
