"""The density that chains sample from: a prior and the likelihood of records, by minibatches.

Positions are trees of unconstrained numbers, of several chains at a time: the first axis of every
array counts chains.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from posterity.arguments import COUNT
from posterity.arrays import keys
from posterity.arrays.tree import taken
from posterity.arrays.typing import Real
from posterity.distillation.pytrees import Array
from posterity.distillation.sampling import noise
from posterity.distillation.sampling.modes import laplace
from posterity.distillation.teachers import outputs_of
from posterity.errors import ParameterError, StructureError
from posterity.families.checks import check_prior
from posterity.families.gaussian import LOG_2PI
from posterity.families.unconstrained import Supports, unconstrained
from posterity.models import Model, NeuralNetwork, Records
from posterity.models.by_record import check_by_record
from posterity.models.data import warn_of_classes, warn_of_scale
from posterity.models.tables import columns_of
from posterity.runtime.tracing import as_found

BATCH_SIZE = 100
OWN = "its priors and first steps are meant. Make the model of the values that chains learn from."


class Target(eqx.Module):
    """The log joint density ``log p(z) + Σ log p(record | z)`` in nats, at several positions."""

    model: Any
    prior: Any
    data: Any  # Arrays (n, ...) of records, in single precision
    count: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    """Number of records of a minibatch; ``count`` for all records."""

    @abc.abstractmethod
    def start(self, chains: int, *, key: jax.Array) -> Any:
        """Return dispersed initial positions, one for each chain."""

    @abc.abstractmethod
    def prior_density(self, positions: PyTree) -> Float[Real, " c"]:
        """Return ``log p(z)`` in the coordinates of positions, in nats."""

    @abc.abstractmethod
    def log_likelihood(self, position: PyTree, records: PyTree) -> Float[Real, " b"]:
        """Return ``log p(record | z)`` at one position, in nats."""

    def log_likelihoods(self, positions: PyTree, minibatch: PyTree) -> Float[Real, "c b"]:
        """Return the log likelihoods for each chain: of its own batch, or of all records."""
        records = None if self.batch_size == self.count else 1
        if len(jax.tree.leaves(positions)[0]) == 1:  # a batch of one product is slower
            own = taken(positions, 0)
            some = taken(minibatch, np.s_[:, 0]) if records else minibatch
            return self.log_likelihood(own, some)[None]
        return jax.vmap(self.log_likelihood, in_axes=(0, records))(positions, minibatch)

    @abc.abstractmethod
    def outputs(self, positions: PyTree, x: Array) -> Any:
        """Return each chain's outputs (c, n, k) at inputs (n, ...), or a pair with variances."""

    @abc.abstractmethod
    def constrained(self, positions: PyTree) -> Any:
        """Return the events of the prior at positions, with a leading axis of chains."""

    def minibatch(self, chains: int, *, key: jax.Array) -> Any:
        """Return records (b, c, ...) for each chain, drawn with replacement, or all (b, ...)."""
        if self.batch_size == self.count:
            return self.data
        places = noise.indices(key, (self.batch_size, chains), self.count)
        return taken(self.data, places)

    def log_densities(self, positions: PyTree, minibatch: PyTree) -> Float[Real, " c"]:
        """Return unbiased estimates of the log density at each position, in nats."""
        total = self.log_likelihoods(positions, minibatch).sum(-1)
        return self.prior_density(positions) + total * (self.count / self.batch_size)

    def value_and_gradient(self, positions: PyTree, minibatch: PyTree) -> tuple[Any, Any]:
        """Return the estimates (c,) and their gradients, shaped as the positions."""

        def total(positions: PyTree) -> Any:
            values = self.log_densities(positions, minibatch)
            return values.sum(), values

        gradient, values = jax.grad(total, has_aux=True)(positions)
        return values, gradient

    @abc.abstractmethod
    def temperatures(self, away: PyTree, gradient: PyTree) -> Float[Real, "g c"]:
        """Return configurational temperatures of groups of coordinates for each chain: the mean of
        ``-away_i ∂_i log p(z)`` for positions ``away`` relative to a fixed origin. Its expectation
        under ``p`` is one, also with minibatch gradients; too large steps raise it.
        """


class WeightsTarget(Target):
    """The target of a network's weights, as trees of arrays. ``prior`` is the pair of trees of the
    means and precisions of independent Gaussian weights.
    """

    def start(self, chains: int, *, key: jax.Array) -> Any:
        """Draw kernels of variance 2 / inputs, at most the prior's variance; biases are zero."""
        rng = keys.of_numpy(key)

        def one(precision: Any) -> Any:
            inputs = np.prod(precision.shape[:-1]) if precision.ndim > 1 else np.inf
            scale = np.minimum((2.0 / inputs) ** 0.5, np.asarray(precision) ** -0.5)
            draws = scale * rng.standard_normal((chains, *precision.shape))
            return jax.device_put(draws.astype(np.float32))

        return jax.tree.map(one, self.prior[1])

    def prior_density(self, positions: PyTree) -> Float[Real, " c"]:

        def one(at: PyTree, mean: PyTree, precision: Any) -> Any:
            value = jnp.log(precision) - LOG_2PI - precision * (at - mean) ** 2
            return value.reshape(len(at), -1).sum(1) / 2

        return sum(jax.tree.leaves(jax.tree.map(one, positions, *self.prior)))  # pyright: ignore

    def log_likelihood(self, position: PyTree, records: PyTree) -> Float[Real, " b"]:
        return self.model.log_likelihood_of(self.model.apply(position, records[0]), records[1])

    def outputs(self, positions: PyTree, x: Array) -> Any:
        out = jax.vmap(self.model.apply, in_axes=(0, None))(positions, x)
        return jax.tree.map(lambda out: out.reshape(*out.shape[:2], -1), out)

    def temperatures(self, away: PyTree, gradient: PyTree) -> Float[Real, "g c"]:
        """Return the temperature of each array of weights."""

        def one(at, slope):
            return -(at * slope).reshape(len(at), -1).mean(1)

        return jnp.stack(jax.tree.leaves(jax.tree.map(one, away, gradient)))

    def constrained(self, positions: PyTree) -> Any:
        """Return flat weights (c, p)."""
        rows = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(positions)]
        return jnp.concatenate(rows, axis=1)


class ModelTarget(Target):
    """The target of any model and any prior, at positions ``v`` (c, d) whitened by the curvature.
    ``u = centre + factor v`` are unconstrained coordinates, and the model's parameters are a smooth
    function of ``u`` (:func:`~posterity.families.unconstrained.unconstrained`).
    """

    centre: Any
    factor: Any  # A triangular matrix (d, d), or a diagonal (d,)
    modes: Any  # Positions (k, d) about which chains start, in turn
    spreads: Any  # Deviation (k, 1) of starts about each
    searched: Any  # Numbers of climbs, of optima and of draws of the prior, see Laplace

    def start(self, chains: int, *, key: jax.Array) -> Any:
        """Draw positions about the modes, with the Laplace covariance of the centre, or with
        smaller deviations about narrower modes.
        """
        draws = keys.of_numpy(key).standard_normal((chains, len(self.centre)))
        turn = np.arange(chains) % len(self.modes)
        starts = self.modes[turn] + self.spreads[turn] * draws
        return jax.device_put(starts.astype(np.float32))

    def prior_density(self, positions: PyTree) -> Float[Real, " c"]:

        def one(v: jax.Array) -> Any:
            bijection, u = self._free(v)
            return self.prior.log_prob(bijection.forward(u)) + bijection.log_det(u)

        return jax.vmap(one)(positions)

    def log_likelihood(self, position: PyTree, records: PyTree) -> Float[Real, " b"]:
        return self.model.log_likelihood(self.event(position), records)

    def outputs(self, positions: PyTree, x: Array) -> Any:
        return outputs_of(self.model, self.constrained(positions), x)

    def temperatures(
        self,
        away: PyTree,
        gradient: PyTree,
        *,
        groups: int = 32,  # Most coordinates with separate temperatures
    ) -> Float[Real, "g c"]:
        """Return each coordinate's temperature, or their mean if there are more than GROUPS."""
        each = -(away * gradient).T
        return each if len(each) <= groups else each.mean(0, keepdims=True)

    def constrained(self, positions: PyTree) -> Any:
        return jax.vmap(self.event)(positions)

    def event(self, v: jax.Array) -> PyTree:
        """Return the event of the prior at one position."""
        bijection, u = self._free(v)
        return bijection.forward(u)

    def _free(self, v: jax.Array) -> tuple[Supports, PyTree]:
        bijection = unconstrained(self.prior)
        factor = jnp.asarray(self.factor)
        return bijection, bijection.unravel(
            self.centre + (factor @ v if factor.ndim == 2 else factor * v)
        )


@as_found()
def target(
    model: Model,
    prior: PyTree,
    data: PyTree,
    *,
    batch_size: int | None,
    whole: int = 300,  # Most records that are all used at every step by default
) -> Target:
    """Return the target of a model, a prior and records; errors as of ``Langevin``."""
    COUNT.or_none().check(batch_size=batch_size)
    check_prior(prior)
    records = Records.of_model(model, data, columns_of(prior))
    if isinstance(model, NeuralNetwork):
        _check(model, *records.data)
    data = jax.tree.map(_single, records.data)
    count = records.size
    own = batch_size or (whole if count <= whole else BATCH_SIZE)
    if own < count:
        check_by_record(model, prior, records)
    sizes = {"data": data, "count": count, "batch_size": count if model.joint else min(own, count)}
    if isinstance(model, NeuralNetwork) and getattr(prior, "diagonal", False):
        if prior.event_shape != (model.size,):
            raise StructureError(
                found=f"a prior of {prior.event_shape} numbers for {model.size} weights",
                expected="one of all weights, as model.prior(variance=...)",
            )
        leaves = [np.asarray(leaf, np.float32) for leaf in (prior.mean, prior.precision)]
        with jax.enable_x64(False):
            trees = tuple(model.unravel(leaf) for leaf in leaves)
        return WeightsTarget(model=model, prior=trees, **sizes)
    found = laplace(model, prior, data)._asdict()
    with jax.enable_x64(False):
        drawn = jax.eval_shape(prior.sample, jax.random.key(0))
        some = taken(data, slice(1))
        model = model.pinned(type(model).log_likelihood, drawn, some)
    return ModelTarget(model=model, prior=prior, **found, **sizes)


def _check(
    model: NeuralNetwork,
    x: Any,
    y: Any,
    *,
    single: float = 1e-5,  # Least ratio of deviation to mean that single precision resolves
) -> None:
    """Emit a ScaleWarning for columns of a network of layers that are far from a scale of one, or
    values far from those that its units were taken from, and a FitWarning for classes of hardly any
    records; raise a ParameterError for values that vary too little in single precision.
    """
    if model.likelihood != "gaussian":
        categorical = model.likelihood == "categorical"
        warn_of_classes(y, model.shape_of_outputs(x)[-1] if categorical else 2, stacklevel=6)
    values = np.asarray(y, np.float64).reshape(len(y), -1)
    known = model.noise_variance is not None
    if model.layers is not None:
        warn_of_scale(np.asarray(x).reshape(len(x), -1), "inputs", stacklevel=6)
        if known and model.likelihood == "gaussian":
            warn_of_scale(values, "what was observed", stacklevel=6)
        if not known and np.ptp(values, 0).any():
            units: Any = model.apply
            own = (values - units.shift) / units.scale
            warn_of_scale(own, "values in the units of NeuralNetwork.regression", OWN, stacklevel=6)
    mean = values.mean(0)
    spread = values.std(0)
    if not known and ((np.ptp(values, 0) > 0) & (spread < single * np.abs(mean))).any():
        raise ParameterError(
            found=f"values about {mean} with deviations of {spread}",
            expected=f"deviations of at least {single} of the mean, in single precision",
        )


def _single(leaf: Any) -> jax.Array:
    """Put an array on the device in single precision, so that calls do not copy it again."""
    leaf = np.asarray(leaf)
    # Integers beyond int32, such as milliseconds since 1970, would overflow: they become floats.
    ends = (leaf.min(), leaf.max()) if leaf.size and leaf.dtype.kind in "iu" else (0, 0)
    small = leaf.dtype.kind != "f" and int(ends[0]) >= -(2**31) and int(ends[1]) < 2**31
    return jax.device_put(leaf.astype(np.int32 if small else np.float32))
