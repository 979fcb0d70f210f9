"""Teachers: repeated draws from a posterior, and the prediction of each draw."""

import abc
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from posterity.arguments import COUNT
from posterity.arrays.tree import taken
from posterity.distillation.heads import Head
from posterity.distillation.pytrees import Array
from posterity.errors import StructureError, UsageError
from posterity.families import Distribution
from posterity.families.checks import check_prior
from posterity.families.layers import Layers
from posterity.models import Model, NeuralNetwork
from posterity.models.data import real_numbers
from posterity.models.forward import NoisyForward
from posterity.models.tables import array, columns_in, columns_of
from posterity.networks.predictive import Expectations, Prediction, expectations_of, merged
from posterity.runtime.programs import jitted
from posterity.runtime.tracing import as_found

SAMPLES = 16  # Draws per step, by default
WATCHED = 4  # Inputs at which chains are compared with each other


class Health(NamedTuple):
    """Diagnostics of a teacher's chains; ``reasons`` say why not to rely on them.
    ``temperature`` is 1 for chains that sample their target. ``rhat`` is the largest R-hat of split
    chains, over coordinates of a model that is not a network, the outputs at some inputs, and the
    log density unless minibatches estimate it; ``effective`` is the smallest effective sample size
    of these. Each is None without chains or where it cannot be estimated. ``searched`` says where
    modes were looked for, and so what even draws without a reason may miss; empty if there is one
    mode, or if it is not known. ``degrees`` of freedom are those of a t law of values about their
    predictive mean, by the records that the chains are of; infinite, of a normal law, without such.
    """

    reasons: tuple[str, ...] = ()
    temperature: float | None = None
    rhat: float | None = None
    effective: float | None = None
    searched: str = ""
    degrees: float = math.inf


UNKNOWN = Health()


class Teacher(eqx.Module):
    """A source of draws from the posterior of a model's parameters, and of their predictions. A
    teacher is a pytree whose arrays are its data, so that it can be passed to compiled code. All
    methods but :meth:`begin`, :meth:`head` and :meth:`health` are traced.
    """

    columns: tuple[str, ...] = eqx.field(static=True, default=(), kw_only=True)
    """Names of the columns of inputs, if they are known."""

    @abc.abstractmethod
    def head(self, x: Array) -> Head:
        """Return the meaning of outputs at inputs like ``x``; errors as of ``Head.of_model``."""

    @abc.abstractmethod
    def inputs(self) -> Array | None:
        """Return the inputs (n, ...) of the teacher's data, or None if they are unknown."""

    @abc.abstractmethod
    def begin(self, *, key: jax.Array) -> Any:
        """Return the first state: a tree of arrays."""

    def blank(self) -> Any:
        """Return the shapes and types of a state."""
        return jax.eval_shape(lambda: self.begin(key=jax.random.key(0)))

    @abc.abstractmethod
    def advance(self, state: PyTree, *, key: jax.Array) -> Any:
        """Return the state of the next draws."""

    @abc.abstractmethod
    def draws(self, state: PyTree) -> Any:
        """Return the draws in a state: a tree of arrays (S, ...) of constant shapes."""

    @abc.abstractmethod
    def outputs(self, draws: PyTree, x: Array) -> Any:
        """Return each draw's outputs (S, n, k) at inputs (n, ...), or a pair with variances."""

    def networks(self, state: PyTree) -> Any:
        """Return the arrays of the layers of the draws' networks, with a leading axis of networks;
        a student starts from the average of the first ones. Their first outputs are logits, or
        means in the units of ``y``. None if draws are not weights of
        :class:`~posterity.networks.Layers`.
        """
        del state

    def traced(self) -> "Teacher":
        """Return the teacher for compiled code, without values that would cause recompilation."""
        return self

    @property
    def population(self) -> float:
        """The total number of stored draws; infinite if every step makes new ones."""
        return np.inf

    def correction(self, heard: int) -> float:
        """Return the factor from the mean mutual information of ``heard`` draws to that of all.
        Like Bessel's factor for a variance, it is correct to second order in their differences.
        """
        return (1 - 1 / self.population) / (1 - 1 / heard) if heard < self.population else 1.0

    def watch(self, state: PyTree, x: Array | None) -> Any:
        """Return the quantities (chains, q) by which chains are compared, some at inputs ``x``.
        If ``x`` is None, only those without inputs; shape (0, 0) for teachers without chains.
        """
        del state, x
        return jnp.zeros((0, 0), jnp.float32)

    def health(self, state: PyTree, series: np.ndarray) -> Health:
        """Return a run's diagnostics, from its state and rows of :meth:`watch` (n, chains, q)."""
        del state, series
        return UNKNOWN

    @property
    def layers(self) -> Layers | None:
        """The layers of the teacher's network, or None; default students resemble it."""
        return None


class _OfModel(Teacher):
    """A teacher whose draws are events of a model's parameters, stacked along the first axis."""

    model: Model
    x: Array | None
    samples: int = eqx.field(static=True)

    def head(self, x: Array) -> Head:
        def first(state):
            return taken(self.draws(state), 0)

        return Head.of_model(self.model, jax.eval_shape(first, self.blank()), x)

    @property
    def layers(self) -> Layers | None:
        return getattr(self.model, "layers", None)

    def inputs(self) -> Array | None:
        return self.x

    def advance(self, state: PyTree, *, key: jax.Array) -> PyTree:
        del state
        return self.begin(key=key)

    def draws(self, state: PyTree) -> PyTree:
        return state

    def networks(self, state: PyTree) -> Any:
        if self.layers is None:
            return None
        return in_units(self.model, jax.vmap(self.layers.unravel)(self.draws(state)))

    def outputs(self, draws: PyTree, x: Array) -> Any:
        return outputs_of(self.model, draws, x)


def in_units(model: Any, networks: PyTree) -> Any:
    """Return the arrays of a model's networks, rescaled so that means are in the units of ``y``."""
    apply = getattr(model, "apply", None)
    return apply.in_units(networks) if isinstance(apply, NoisyForward) else networks


def outputs_of(model: Any, draws: PyTree, x: Array) -> Any:
    """Return a model's outputs (S, n, k) for draws (S, ...), or a pair of outputs and variances."""

    def column(leaf):
        return leaf[:, None] if jnp.ndim(leaf) == 1 else leaf

    return jax.vmap(lambda z: jax.tree.map(column, model.outputs(z, x)))(draws)


class Draws(_OfModel):
    """A teacher of stored draws, some of which are picked at random at every step.

    Args:
        model: model whose parameters the draws are.
        stack: events (S, ...), such as flat weights (S, p) of a network, or a tree of these; a
            StructureError unless all leaves have the same first axis.
        x: inputs that the posterior was fitted to, if known.
        columns: names of the columns of inputs; by default those of ``x`` if it is a data frame.
        samples: number of draws per step; all if there are fewer.
        diagnostics: health of the chains that drew them; a student's status repeats its reasons.

    >>> from posterity.models import NeuralNetwork
    >>> net = NeuralNetwork.of_layers(Layers.dense(2, 3, 2))
    >>> Draws(net, np.zeros((50, net.size))).count
    50
    """

    stack: Any
    diagnostics: Health = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        stack: PyTree,
        *,
        x: Any = None,
        columns: Sequence[str] = (),
        samples: int = SAMPLES,
        diagnostics: Health = UNKNOWN,
    ):
        COUNT.check(samples=samples)
        self.stack = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, np.float32)), stack)
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.stack)]
        if not shapes or len({shape[:1] for shape in shapes}) != 1 or shapes[0][:1] in ((), (0,)):
            raise StructureError(
                found=f"draws of shapes {shapes}", expected="arrays of draws on the first axis"
            )
        self.columns = tuple(columns) or columns_in(x)
        self.x = None if x is None else array(x, self.columns, "the inputs")
        self.model = model
        self.diagnostics = diagnostics
        self.samples = min(samples, shapes[0][0])

    @property
    def count(self) -> int:
        """Number of draws."""
        return len(jax.tree.leaves(self.stack)[0])

    @property
    def population(self) -> float:
        return float(self.count)

    @as_found()
    def predict(self, x: Array) -> Prediction:
        """Return the predictive at inputs (n, ...), averaged over all draws. Columns of a data
        frame go by their names. Errors as of ``head`` and :func:`posterity.models.tables.array`.

        >>> from posterity.models import LogisticRegression
        >>> Draws(LogisticRegression(), np.zeros((2, 1))).predict(np.ones((1, 1))).mean
        array([0.5])
        """
        places = np.array_split(np.arange(self.count), -(-self.count // self.samples))
        with jax.enable_x64(False):
            x = real_numbers(x, "the inputs", self.columns or None, records=False)
            x = x.astype(np.float32)
            head = self.head(x)
            model = self.model.pinned(outputs_of, self.draws(places[0][:1]), x)
            pinned = eqx.tree_at(lambda teacher: teacher.model, self, model)

            def average(own):
                return _averages(pinned, head, own, x)

            total = merged((average(own), len(own)) for own in places)
        return Prediction.of(total, head.likelihood, self.diagnostics.degrees)

    def traced(self) -> "Draws":
        options: Any = {"x": self.x, "columns": self.columns, "samples": self.samples}
        return Draws(self.model, self.stack, **options)

    def health(self, state: PyTree, series: np.ndarray) -> Health:
        del state, series
        return self.diagnostics

    def begin(self, *, key: jax.Array) -> jax.Array:
        """Return the indices of ``samples`` draws in the stack, chosen without replacement."""
        if self.samples == self.count:
            return jnp.arange(self.count)
        return jax.random.choice(key, self.count, (self.samples,), replace=False)

    def draws(self, state: PyTree) -> PyTree:
        """Return the draws of the stack at these indices."""
        return taken(self.stack, state)


@jitted
def _averages(teacher: Draws, head: Head, places: Array, x: Array) -> Expectations:
    outputs = teacher.outputs(teacher.draws(places), x)
    return expectations_of(head.likelihood, outputs, head.noise_variance)


class Independent(_OfModel):
    """A teacher that makes ``samples`` new draws at every step from any posterior that can be
    sampled. ``posterior`` is a single proper law (else a UsageError) of the parameters of
    ``model``; ``x`` are the inputs that it was fitted to, if known. The names of columns are those
    of the posterior's coordinates.

    >>> from posterity.models import NeuralNetwork
    >>> net = NeuralNetwork.of_layers(Layers.dense(2, 3, 2))
    >>> Independent(net.prior(variance=1.0), net).samples
    16
    """

    posterior: Distribution

    def __init__(
        self,
        posterior: Distribution,
        model: Model,
        *,
        x: Any = None,
        samples: int = SAMPLES,
    ):
        COUNT.check(samples=samples)
        check_prior(posterior, "a teacher")
        self.columns = columns_of(posterior) or columns_in(x)
        self.x = None if x is None else array(x, self.columns, "the inputs")
        self.posterior = posterior
        self.model = model
        self.samples = samples

    def begin(self, *, key: jax.Array) -> PyTree:
        return self.posterior.sample(key, (self.samples,))


def as_teacher(value: object, model: Model | None) -> Teacher:
    """Return a teacher unchanged; a posterior, or an object with one, as :class:`Independent`
    draws. Anything else, or a posterior whose model is unknown, is a UsageError.
    """
    if isinstance(value, Teacher):
        return value
    posterior = value if isinstance(value, Distribution) else getattr(value, "posterior", None)
    if not isinstance(posterior, Distribution):
        raise UsageError(
            found=f"a teacher that is a {type(value).__name__}",
            expected="Langevin(model, prior, data), Draws(model, stack), or a posterior: a law, "
            "a ledger, a fusion, or the path of a file with one",
        )
    if model is None and posterior.network_layers and posterior.network_layers.outputs > 1:
        model = NeuralNetwork.of_layers(posterior.network_layers)
    if model is None:
        raise UsageError(
            found=f"a posterior {posterior!r} without a model",
            expected="model=, as NeuralNetwork.of_layers(posterior.layers) or a regression",
        )
    return Independent(posterior, model)
