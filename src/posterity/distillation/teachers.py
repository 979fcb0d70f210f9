"""What teaches: whatever draws from a posterior again and again, and predicts with each draw."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from posterity.arguments import COUNT
from posterity.distillation import heads, said
from posterity.distillation.predictive import Predictive, in_columns
from posterity.errors import StructureError, UsageError
from posterity.families import Distribution
from posterity.families.layers import Layers
from posterity.models import Model, NeuralNetwork
from posterity.networks.predictive import Prediction

TOGETHER = 16
"""Draws that a student hears at each step, unless told otherwise."""


class Health(NamedTuple):
    """What a teacher says of itself after a run: why not to rely on it, and its temperature."""

    reasons: tuple[str, ...] = ()
    temperature: float | None = None
    """1 for a chain that samples from what it is meant to; None for what is no chain."""


class Teacher(eqx.Module):
    """Draws from a posterior over parameters, some at a time, and what each of them predicts.

    A teacher is a pytree whose arrays are its data, so that it can be passed to compiled code.
    :meth:`begin` may take its time; the others are traced.
    """

    @abc.abstractmethod
    def predictive(self, x: Any) -> Predictive:
        """What the outputs mean, for inputs like ``x`` (n, ...).

        Raises:
            UsageError: for a model that does not predict.
            StructureError: for outputs that are not what the likelihood needs.
        """

    @abc.abstractmethod
    def inputs(self) -> Any:
        """Inputs (n, ...) that it was fitted to, or None where it does not know them."""

    @abc.abstractmethod
    def begin(self, *, key: jax.Array) -> Any:
        """The state to go on from: a tree of arrays."""

    def blank(self) -> Any:
        """The shapes of a state."""
        return jax.eval_shape(lambda: self.begin(key=jax.random.key(0)))

    @abc.abstractmethod
    def advance(self, state: Any, *, key: jax.Array) -> Any:
        """The state of the next draws."""

    @abc.abstractmethod
    def draws(self, state: Any) -> Any:
        """The draws that a state holds: a tree of arrays, of a shape that does not change."""

    @abc.abstractmethod
    def outputs(self, draws: Any, x: Any) -> Any:
        """What each draw says of inputs (n, ...): (S, n, k), or a pair with noise variances."""

    def health(self, state: Any) -> Health:
        """What is to be said of the run that led to a state; asked outside of compiled code."""
        del state
        return Health()

    @property
    def layers(self) -> Layers | None:
        """Those of the network that it draws, if it knows any; students are like it by default."""
        return None


class _OfModel(Teacher):
    """A teacher whose draws are events that a model takes, the draws first."""

    model: Any
    x: Any
    together: int = eqx.field(static=True)

    def predictive(self, x: Any) -> Predictive:
        """As the model says."""
        one = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype),
            jax.eval_shape(lambda: self.draws(self.begin(key=jax.random.key(0)))),
        )
        return Predictive.of(self.model, one, x)

    @property
    def layers(self) -> Layers | None:
        """Those of the model."""
        return getattr(self.model, "layers", None)

    def inputs(self) -> Any:
        """Those that it was given."""
        return self.x

    def outputs(self, draws: Any, x: Any) -> Any:
        """As the model says, for each draw."""
        return jax.vmap(lambda z: in_columns(self.model.outputs(z, x)))(draws)


class Draws(_OfModel):
    """A stack of stored samples: some of them, picked at random, at every step.

    Args:
        model: what the samples are parameters of, and predicts.
        samples: events (S, ...), as flat weights (S, p) of a network; or a tree of these.
        x: inputs that the samples were fitted to, if known.
        together: how many a student hears at each step; all if there are fewer.

    Raises:
        StructureError: unless all leaves have the same first axis.

    >>> from posterity.models import NeuralNetwork
    >>> net = NeuralNetwork.of_layers(Layers.dense(2, 3, 2))
    >>> Draws(net, np.zeros((50, net.size))).count
    50
    """

    samples: Any

    def __init__(self, model: Model, samples: Any, *, x: Any = None, together: int = TOGETHER):
        COUNT.check(together=together)
        single = lambda leaf: jnp.asarray(np.asarray(leaf, np.float32))
        self.samples = jax.tree.map(single, samples)
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.samples)]
        if not shapes or len({shape[:1] for shape in shapes}) != 1 or () in shapes:
            raise StructureError(
                found=f"samples of shapes {shapes}",
                expected="arrays whose first axis counts samples, at least one",
                fix="Stack what was drawn: np.stack(samples).",
            )
        self.model, self.x = model, x
        self.together = min(together, shapes[0][0])

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(jax.tree.leaves(self.samples)[0])

    def predict(self, x: Any) -> Prediction:
        """What all samples say of inputs (n, ...) on average, and how far they agree.

        Raises:
            UsageError, StructureError: as of :meth:`predictive`.

        >>> from posterity.models import LogisticRegression
        >>> Draws(LogisticRegression(), [[0.0], [0.0]]).predict(np.ones((1, 1))).mean
        array([0.5])
        """
        with jax.enable_x64(False):
            x = jnp.asarray(np.asarray(x, np.float32))
            own, found, heard = self.predictive(x), None, 0
            for begin in range(0, self.count, self.together):
                some = jax.tree.map(
                    lambda leaf, at=begin: leaf[at : at + self.together], self.samples
                )
                now = heads.expectations_of(
                    own.likelihood, self.outputs(some, x), own.noise_variance
                )
                now = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), now)
                count = len(jax.tree.leaves(some)[0])
                found = now if found is None else heads.merge(found, now, (heard, count))
                heard += count
        assert found is not None, "there is one sample at least"
        return said.prediction(own, found)

    def begin(self, *, key: jax.Array) -> Any:
        """Some of them."""
        return self.advance(None, key=key)

    def advance(self, state: Any, *, key: jax.Array) -> Any:
        """Some others."""
        del state
        if self.together == self.count:
            return jnp.arange(self.count)
        return jax.random.choice(key, self.count, (self.together,), replace=False)

    def draws(self, state: Any) -> Any:
        """The samples at those places."""
        return jax.tree.map(lambda leaf: leaf[state], self.samples)


class Independent(_OfModel):
    """Any posterior that can be sampled: new draws at every step.

    Args:
        posterior: one proper law of the parameters of ``model``: a network's, a fused one, a
            mixture.
        model: what it is a law of, and predicts.
        x: inputs that it was fitted to, if known.
        together: draws that a student hears at each step.

    Raises:
        UsageError: unless it is one proper law.

    >>> from posterity.models import NeuralNetwork
    >>> net = NeuralNetwork.of_layers(Layers.dense(2, 3, 2))
    >>> Independent(net.prior(variance=1.0), net).together
    16
    """

    posterior: Any

    def __init__(
        self, posterior: Distribution, model: Model, *, x: Any = None, together: int = TOGETHER
    ):
        from posterity.distillation.sampling.target import check_prior

        COUNT.check(together=together)
        check_prior(posterior, "a teacher")
        self.posterior, self.model, self.x, self.together = posterior, model, x, together

    def begin(self, *, key: jax.Array) -> Any:
        """Some draws."""
        return self.posterior.sample(key, (self.together,))

    def advance(self, state: Any, *, key: jax.Array) -> Any:
        """Others."""
        del state
        return self.begin(key=key)

    def draws(self, state: Any) -> Any:
        """These."""
        return state


def as_teacher(given: Any, model: Model | None) -> Teacher:
    """A teacher as it is; a posterior, or what holds one, as :class:`Independent` draws of it.

    Raises:
        UsageError: for what has no posterior, and a posterior of an unknown model.
    """
    if isinstance(given, Teacher):
        return given
    posterior = given if isinstance(given, Distribution) else getattr(given, "posterior", None)
    if not isinstance(posterior, Distribution):
        raise UsageError(
            found=f"a teacher that is a {type(given).__name__}",
            expected="Langevin(model, prior, data), Draws(model, samples), or a posterior: a law, "
            "a ledger, a fusion",
            fix="Load it from its file by posterity.load, if it is a path.",
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
