"""Teachers draw from a posterior again and again, and predict with each draw."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from posterity.arguments import COUNT, renamed
from posterity.checks import check_prior
from posterity.distillation.heads import Head
from posterity.distillation.pytrees import Array
from posterity.distillation.student import NETWORKS
from posterity.errors import StructureError, UsageError
from posterity.families import Distribution
from posterity.families.layers import Layers
from posterity.models import Model, NeuralNetwork
from posterity.models.forward import NoisyForward
from posterity.networks.predictive import Expectations, Prediction, expectations_of, merged

SAMPLES = 16  # Draws that a student hears at each step, by default
WATCHED = 4  # Inputs at which chains are compared with each other


class Health(NamedTuple):
    """Diagnostics of a teacher's chains, and the reasons they give not to rely on it.
    ``temperature`` is 1 for a chain that samples what it should, ``rhat`` the largest R-hat of
    split chains, of the log density and of outputs at some inputs, and ``effective`` the smallest
    effective sample size of these: None without chains, and where they are not known.
    """

    reasons: tuple[str, ...] = ()
    temperature: float | None = None
    rhat: float | None = None
    effective: float | None = None


UNKNOWN = Health()


class Teacher(eqx.Module):
    """Draws from the posterior of a model's parameters, some at a time, and what each predicts. A
    teacher is a pytree whose arrays are its data, so that it can be passed to compiled code. All
    methods but :meth:`begin`, :meth:`head` and :meth:`health` are traced.
    """

    @abc.abstractmethod
    def head(self, x: Array) -> Head:
        """The meaning of its outputs, for inputs like ``x``; errors as of ``Head.of_model``."""

    @abc.abstractmethod
    def inputs(self) -> Array | None:
        """Inputs (n, ...) that it was fitted to, or None where it does not know them."""

    @abc.abstractmethod
    def begin(self, *, key: jax.Array) -> Any:
        """The state to go on from: a tree of arrays."""

    def blank(self) -> Any:
        """The shapes of a state."""
        return jax.eval_shape(lambda: self.begin(key=jax.random.key(0)))

    @abc.abstractmethod
    def advance(self, state: PyTree, *, key: jax.Array) -> Any:
        """The state of the next draws."""

    @abc.abstractmethod
    def draws(self, state: PyTree) -> Any:
        """The draws that a state holds: a tree of arrays, of a shape that does not change."""

    @abc.abstractmethod
    def outputs(self, draws: PyTree, x: Array) -> Any:
        """Outputs of each draw at inputs (n, ...): (S, n, k), or these and noise variances."""

    def networks(self, state: PyTree) -> Any:
        """The arrays of the layers of eight networks at most, an axis of networks first, of which a
        student begins as the average: their first outputs are logits, or means in the units of
        values. None of what is no network of :class:`~posterity.networks.Layers`.
        """
        del state

    def traced(self) -> "Teacher":
        """The teacher that compiled code takes: without numbers that would compile it anew."""
        return self

    @property
    def population(self) -> float:
        """The number of draws there are in all, infinite where it always draws new ones."""
        return np.inf

    def correction(self, heard: int) -> float:
        """The mutual information of all draws over the mean of what so many of them show. To the
        second order in how far draws differ, as a variance of a sample.
        """
        return (1 - 1 / self.population) / (1 - 1 / heard) if heard < self.population else 1.0

    def watch(self, state: PyTree, x: Array | None) -> Any:
        """Quantities by which chains are compared (chains, q), of their draws at inputs ``x``.
        Without inputs those that need none; no quantities (0, 0) of what is no chain.
        """
        del state, x
        return jnp.zeros((0, 0), jnp.float32)

    def health(self, state: PyTree, series: np.ndarray) -> Health:
        """Diagnostics of a run that led to a state, from rows of :meth:`watch` (n, chains, q)."""
        del state, series
        return UNKNOWN

    @property
    def layers(self) -> Layers | None:
        """The layers of the network that it draws, if any; students are like it by default."""
        return None


class _OfModel(Teacher):
    """A teacher whose draws are events that a model takes, the draws first."""

    model: Model
    x: Array | None
    samples: int = eqx.field(static=True)

    def head(self, x: Array) -> Head:
        one = lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
        draws = jax.eval_shape(self.draws, self.blank())
        return Head.of_model(self.model, jax.tree.map(one, draws), x)

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
        some = self.draws(state)[: max(NETWORKS)]
        return in_units(self.model, jax.vmap(self.layers.unravel)(some))

    def outputs(self, draws: PyTree, x: Array) -> Any:
        return outputs_of(self.model, draws, x)


def in_units(model: Any, networks: PyTree) -> Any:
    """Arrays of the layers of a model's networks, whose means come in the units of values."""
    apply = getattr(model, "apply", None)
    return apply.in_units(networks) if isinstance(apply, NoisyForward) else networks


def outputs_of(model: Any, draws: PyTree, x: Array) -> Any:
    """The outputs (S, n, k) of a model for draws (S, ...), or a pair of these."""
    column = lambda leaf: leaf[:, None] if jnp.ndim(leaf) == 1 else leaf
    return jax.vmap(lambda z: jax.tree.map(column, model.outputs(z, x)))(draws)


class Draws(_OfModel):
    """A stack of stored draws: some of them, picked at random, at every step.

    Args:
        model: what the draws are parameters of, and predicts.
        stack: events (S, ...), as flat weights (S, p) of a network; or a tree of these, a
            StructureError unless all leaves have the same first axis.
        x: inputs that the posterior was fitted to, if known.
        samples: how many draws a student hears at each step; all if there are fewer.
        diagnostics: of the chains that drew them, whose reasons a student's status repeats.

    >>> from posterity.models import NeuralNetwork
    >>> net = NeuralNetwork.of_layers(Layers.dense(2, 3, 2))
    >>> Draws(net, np.zeros((50, net.size))).count
    50
    """

    stack: Any
    diagnostics: Health = eqx.field(static=True)

    @renamed(together="samples")
    def __init__(
        self,
        model: Model,
        stack: PyTree,
        *,
        x: Array | None = None,
        samples: int = SAMPLES,
        diagnostics: Health = UNKNOWN,
    ):
        COUNT.check(samples=samples)
        self.stack = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, np.float32)), stack)
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.stack)]
        if not shapes or len({shape[:1] for shape in shapes}) != 1 or () in shapes:
            raise StructureError(
                found=f"draws of shapes {shapes}",
                expected="arrays whose first axis counts draws, at least one",
                fix="Stack what was drawn: np.stack(draws).",
            )
        self.model, self.x, self.diagnostics = model, x, diagnostics
        self.samples = min(samples, shapes[0][0])

    @property
    def count(self) -> int:
        """Number of draws."""
        return len(jax.tree.leaves(self.stack)[0])

    @property
    def population(self) -> float:
        return float(self.count)

    def predict(self, x: Array) -> Prediction:
        """The predictive at inputs (n, ...), averaged over all draws; errors as of :meth:`head`.

        >>> from posterity.models import LogisticRegression
        >>> Draws(LogisticRegression(), [[0.0], [0.0]]).predict(np.ones((1, 1))).mean
        array([0.5])
        """
        places = np.array_split(np.arange(self.count), -(-self.count // self.samples))
        with jax.enable_x64(False):
            x = jnp.asarray(np.asarray(x, np.float32))
            head = self.head(x)
            average = lambda own: _averages(self.model, head, self.draws(own), x)
            total = merged((average(own), len(own)) for own in places)
        return Prediction.of(total, head.likelihood)

    def traced(self) -> "Draws":
        return Draws(self.model, self.stack, x=self.x, samples=self.samples)

    def health(self, state: PyTree, series: np.ndarray) -> Health:
        del state, series
        return self.diagnostics

    def begin(self, *, key: jax.Array) -> jax.Array:
        """Places of some of them in the stack."""
        if self.samples == self.count:
            return jnp.arange(self.count)
        return jax.random.choice(key, self.count, (self.samples,), replace=False)

    def draws(self, state: PyTree) -> PyTree:
        """The draws at these places of the stack."""
        return jax.tree.map(lambda leaf: leaf[state], self.stack)


@jax.jit
def _averages(model: Model, head: Head, draws: PyTree, x: Array) -> Expectations:
    return expectations_of(head.likelihood, outputs_of(model, draws, x), head.noise_variance)


class Independent(_OfModel):
    """A teacher that makes ``samples`` new draws at every step from any posterior that can be
    sampled. The ``posterior`` is one proper law (a UsageError otherwise) of the parameters of
    ``model``, which predicts; ``x`` are the inputs that it was fitted to, if known.

    >>> from posterity.models import NeuralNetwork
    >>> net = NeuralNetwork.of_layers(Layers.dense(2, 3, 2))
    >>> Independent(net.prior(variance=1.0), net).samples
    16
    """

    posterior: Distribution

    @renamed(together="samples")
    def __init__(
        self,
        posterior: Distribution,
        model: Model,
        *,
        x: Array | None = None,
        samples: int = SAMPLES,
    ):
        COUNT.check(samples=samples)
        check_prior(posterior, "a teacher")
        self.posterior, self.model, self.x, self.samples = posterior, model, x, samples

    def begin(self, *, key: jax.Array) -> PyTree:
        return self.posterior.sample(key, (self.samples,))


def as_teacher(value: object, model: Model | None) -> Teacher:
    """A teacher as it is; a posterior, or what holds one, as :class:`Independent` draws of it;
    a UsageError unless there is one, of a known model.
    """
    if isinstance(value, Teacher):
        return value
    posterior = value if isinstance(value, Distribution) else getattr(value, "posterior", None)
    if not isinstance(posterior, Distribution):
        raise UsageError(
            found=f"a teacher that is a {type(value).__name__}",
            expected="Langevin(model, prior, data), Draws(model, stack), or a posterior: a law, "
            "a ledger, a fusion, or the path of a file with one",
            fix="Pass what posterity.fuse or posterity.federate returned, or its `.posterior`.",
        )
    if model is None and posterior.network_layers and posterior.network_layers.outputs > 1:
        model = NeuralNetwork.of_layers(posterior.network_layers)
    if model is None:
        raise UsageError(
            found=f"a posterior {posterior!r} without a model",
            expected="the model whose parameters it is a law of, and that predicts",
            fix="Pass model=NeuralNetwork.of_layers(posterior.layers, likelihood='gaussian'), or "
            "the regression that it was fitted with.",
        )
    return Independent(posterior, model)
