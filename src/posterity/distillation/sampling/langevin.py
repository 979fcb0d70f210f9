"""Parallel stochastic-gradient Markov chains as a teacher."""

import functools
import operator
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from posterity.arguments import COUNT, NATURAL, Constraint
from posterity.arrays.tree import taken
from posterity.distillation.heads import Head
from posterity.distillation.pytrees import Array, rebuilt
from posterity.distillation.sampling import climbs, health, tuning
from posterity.distillation.sampling.kernels import SGHMC, SGLD, Kernel
from posterity.distillation.sampling.kernels import State as KernelState
from posterity.distillation.sampling.noise import KEY
from posterity.distillation.sampling.schedules import size_at
from posterity.distillation.sampling.target import ModelTarget, Target, WeightsTarget, target
from posterity.distillation.teachers import WATCHED, Draws, Health, Teacher, in_units
from posterity.errors import ConvergenceWarning, ParameterError
from posterity.families.layers import Layers
from posterity.models import Model
from posterity.models.tables import columns_in, columns_of
from posterity.runtime.interrupts import deferred
from posterity.runtime.programs import jitted
from posterity.runtime.tracing import as_found
from posterity.status import Progress, ProgressCallback

CHAINS = (16, 4)  # Number of chains of small models and of large ones
CLIMB = (2000, 6000)
"""Steps of Adam to the posterior's mass, for a small network and for a large one; see
:func:`~posterity.distillation.sampling.climbs.length` for small ones that learn their noise."""
BURN_IN = (1000, (40_000, 5_000))
"""Least and most steps of burn-in; the most for small models and for large ones."""
CHUNK = 250
LOOKS = (0, 1, 3, 7, 15)
"""Chunks of burn-in after which the step size is checked at the chains' positions."""
HOT = 0.5  # Excess temperature of an array of weights above which steps are tuned once more
KERNEL = Constraint(
    "SGLD(...) or SGHMC(...) of posterity.distillation", lambda own: isinstance(own, SGLD | SGHMC)
)


class State(NamedTuple):
    """The state of the chains, with quantities for their diagnostics."""

    kernel: KernelState
    heat: jax.Array
    """Temperatures of each group of coordinates and chain (g, c), summed over steps."""
    origin: Any
    """Positions at the end of burn-in, from which temperatures are measured: the variance of a
    temperature grows with the distance of its origin. A chain that has not moved has zero."""
    level: jax.Array  # The log density estimate of each chain, in nats, at its last step
    friction: jax.Array  # Friction of the momentum, if it was tuned


class Langevin(Teacher):
    """Draws from the posterior of a model by stochastic-gradient Langevin dynamics.

    Args:
        model: model that predicts: a network, a regression, a function.
        prior: law of the model's parameters.
        data: data of the posterior, in the model's format. Columns of a data frame are put in the
            order of the prior's names, or else keep their own; ``columns`` are their names.
        kernel: :class:`SGLD` or :class:`SGHMC`; by default SGHMC with
            tuned friction for networks, and SGLD for other models. A ``step_size`` of None is
            tuned: the curvature of the worst direction, and separately the minibatch noise, raise
            the temperature by at most five per cent (three with momentum).
        chains: number of chains; by default 16 for small models, four for large ones.
        batch_size: number of records per minibatch; by default 100, or all of up to 300.
        thin: number of steps from one draw to the next.
        climb: number of steps of Adam from which a network's chains start; by default 2,000 for
            small networks, and 6,000 for large ones. For small networks with hidden layers that
            learn their noise it is chosen of 2,000, 6,000 and 20,000, by what four chains predict
            of a fifth of the records, at most 2,000, that is held out; of tables of less than 150
            records it is 2,000. If records that are not equal belong together, as those of one
            patient, give the number of steps. Chains of other models start at the mode.
        burn_in: number of steps before the first draw, rounded up to whole chunks of 250; by
            default five times the relaxation time of a direction as wide as the scale, from 1,000
            to 40,000 (5,000 for large models), or 1,000 where the step size is given.

    Raises a UsageError for a prior that is not a law, or when a model that does not predict is used
    as a teacher; a StructureError or a ParameterError for data that do not suit the model. Values
    of learned noise that hardly vary beside their mean are a ParameterError; columns far from a
    scale of one, of a network of layers, are a ScaleWarning, and classes with fewer than three
    records a FitWarning.

    Source: welling2011; korattikara2015.

    >>> from posterity.models import NeuralNetwork
    >>> from posterity.networks import Layers
    >>> net = NeuralNetwork.of_layers(Layers.dense(2, 5, 2))
    >>> x = np.random.default_rng(0).normal(size=(50, 2))
    >>> Langevin(net, net.prior(variance=1.0), (x, (x[:, 0] > 0).astype(int))).chains
    16
    """

    target: Target
    kernel: Kernel
    climb: int | None
    """Steps of Adam; None if they are chosen by records held out."""
    burn_in: int | None
    chains: int = eqx.field(static=True)
    thin: int = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        prior: PyTree,
        data: PyTree,
        *,
        kernel: Any = None,
        chains: int | None = None,
        batch_size: int | None = None,
        thin: int = 1,
        climb: int | None = None,
        burn_in: int | None = None,
    ):
        KERNEL.or_none().check(kernel=kernel)
        COUNT.check(thin=thin)
        COUNT.or_none().check(chains=chains)
        NATURAL.or_none().check(climb=climb, burn_in=burn_in)
        large = _is_large(model)
        chosen = _is_noisy(model) and not (large or _is_linear(model))
        self.climb = CLIMB[large] if climb is None and not chosen else climb
        self.chains = chains or CHAINS[large]
        self.thin = thin
        self.burn_in = burn_in
        self.target = target(model, prior, data, batch_size=batch_size)
        self.columns = columns_of(prior) or columns_in(data)
        momentum = isinstance(self.target, WeightsTarget)
        self.kernel = kernel or (SGHMC(friction=None) if momentum else SGLD())

    def head(self, x: Array) -> Head:
        def event(at):
            return taken(self.target.constrained(at), 0)

        z = jax.eval_shape(event, self.target.start(1, key=jax.random.key(0)))
        return Head.of_model(self.target.model, z, x)

    @property
    def layers(self) -> Layers | None:
        return getattr(self.target.model, "layers", None)

    def inputs(self) -> Any:
        data = self.target.data
        pair = isinstance(data, tuple) and len(data) == 2
        return data[0] if pair and all(hasattr(leaf, "shape") for leaf in data) else None

    def begin(self, *, key: jax.Array) -> State:
        """Climb and burn in, and return the state after it; divergence is a ParameterError."""
        first, second, third, last = jax.random.split(key, 4)
        with jax.enable_x64(False), deferred() as interrupts:
            own = self.target
            sought = self.kernel.step_size is None
            positions = own.start(self.chains, key=first)
            weights = isinstance(own, WeightsTarget)
            if weights:
                steps = self.climb
                if steps is None:
                    steps = climbs.length(own, key=jax.random.fold_in(first, 1))
                positions = climbs.climb(own, positions, steps, key=second)
                self.check(self._counted(self.kernel.init(positions)))
            scale, size, friction = self._tuned(positions, third)
            state = self._counted(self.kernel.init(positions, scale), friction)
            steps = self.burn_in
            if steps is None:
                least = BURN_IN[0]
                most = BURN_IN[1][_is_large(own.model)]
                relaxed = np.nan_to_num(10 / size, nan=least)  # chains of such a size diverge
                steps = int(np.clip(relaxed, least, most)) if sought else least
            for number in range(-(-steps // CHUNK)):
                interrupts.check()
                state = _burned(self, state, jax.random.fold_in(last, number))
                self.check(state)
                if sought and weights and number in LOOKS:
                    state = self._cooled(state, jax.random.fold_in(third, number))
            return self._counted(state.kernel, state.friction)

    def _tuned(self, positions: PyTree, key: jax.Array) -> tuple[PyTree, float, float]:
        """Return the tuned step size of each coordinate, that in units of its scale, and the
        friction; ones, and the friction given, where a step size is given.
        """
        if self.kernel.step_size is not None:
            ones = jax.tree.map(np.ones_like, taken(positions, slice(1)))
            return ones, 1.0, self.kernel.friction
        scaled = isinstance(self.target, WeightsTarget)
        scale, size, friction = tuning.tuned(
            self.target, positions, self.kernel.friction, scaled=scaled, key=key
        )
        return _times(size, scale), size, friction

    def _cooled(self, state: State, key: jax.Array) -> State:
        """Shorten steps if the noise of minibatches heats whole arrays of weights, or curvature a
        direction. Both are larger in the posterior's mass than at the end of the climb, where steps
        were tuned, most of all under a wide prior or where the noise is learned.
        """
        at = state.kernel.position
        scale = state.kernel.scale
        friction = float(state.friction)
        noise = tuning.heat(self.target, at, scale, key=key)
        if max(noise, tuning.excess(self.target, at, scale, friction, key=key)) <= HOT:
            return state
        tuned, _, friction = self._tuned(at, key)
        kernel = state.kernel._replace(scale=jax.tree.map(np.minimum, scale, tuned))
        return state._replace(kernel=kernel, friction=jax.device_put(np.float32(friction)))

    def blank(self) -> State:
        def started(at: PyTree) -> State:
            kernel = self.kernel.init(at, taken(at, slice(1)))
            return self._counted(kernel)

        return jax.eval_shape(started, self.target.start(self.chains, key=jax.random.key(0)))

    def _kernel(self, friction: jax.Array) -> Kernel:
        """Return the kernel; a tuned step size is part of the scale, and replaced by one."""
        own = {"step_size": 1.0, "friction": friction}
        sought = {name: value for name, value in own.items() if getattr(self.kernel, name) is None}
        return rebuilt(type(self.kernel), vars(self.kernel) | sought)

    def _counted(self, kernel: KernelState, friction: Any = 1.0) -> State:
        """Return the state at the end of burn-in, with diagnostics at zero."""
        shape = jax.eval_shape(self.target.temperatures, *[kernel.position] * 2).shape
        parts = np.zeros(shape, np.float32), np.zeros(self.chains, np.float32), np.float32(friction)
        heat, level, friction = jax.device_put(parts)  # compiles nothing
        return State(kernel, heat, kernel.position, level, friction)

    def advance(self, state: State, *, key: jax.Array) -> State:
        return self._steps(state, self.thin, key)

    def _steps(self, state: State, count: int, key: jax.Array) -> State:
        def step(number, state):
            return self._step(state, jax.random.fold_in(key, number))

        return jax.lax.fori_loop(0, count, step, state)

    def _step(self, state: State, key: jax.Array) -> State:
        first, second = jax.random.split(key)
        at = state.kernel.position
        minibatch = self.target.minibatch(self.chains, key=first)
        level, gradient = self.target.value_and_gradient(at, minibatch)
        kernel, _ = self._kernel(state.friction).step(state.kernel, gradient, key=second)
        away = jax.tree.map(jnp.subtract, at, state.origin)
        heat = state.heat + self.target.temperatures(away, gradient)
        return state._replace(kernel=kernel, heat=heat, level=level)

    def draws(self, state: State) -> Any:
        return state.kernel.position

    def networks(self, state: State) -> Any:
        if not isinstance(self.target, WeightsTarget) or self.layers is None:
            return None
        return in_units(self.target.model, state.kernel.position)

    def outputs(self, draws: PyTree, x: Array) -> Any:
        return self.target.outputs(draws, x)

    def check(self, state: State) -> None:
        """Raise a ParameterError if a chain diverged."""
        finite = np.isfinite(state.level)
        for leaf in jax.tree.leaves(state.kernel.position):
            finite = finite & np.isfinite(leaf).reshape(len(leaf), -1).all(1)
        if not finite.all():
            raise ParameterError(
                found=f"{(~finite).sum()} of {self.chains} chains that diverged (the first is "
                f"number {int(np.argmin(finite))}) within {int(state.kernel.step)} steps of "
                f"{self.kernel}",
                expected="chains that stay finite: a log density that is a number wherever the "
                "prior leads, and a step size below twice the narrowest direction's variance",
                fix="Leave the step size out, and it is found. If the log density is not a number "
                "in some range, such as log(z) below zero, take a prior with these bounds, such as "
                "Gamma or Transformed. Standardise data of very different scales.",
            )

    def watch(self, state: State, x: Array | None) -> Any:
        """Return each chain's heat, steps, coordinates of a model that is not a network, log
        density, and, at ``x``, probabilities or means.
        """
        step = jnp.full((self.chains, 1), state.kernel.step, jnp.float32)
        parts = [state.heat.T, step, self._coordinates(state), state.level[:, None]]
        if x is not None:
            out = self.outputs(self.draws(state), x)
            kind = self.target.model.likelihood
            values = out[0] if isinstance(out, tuple) else out
            act = {"categorical": jax.nn.softmax, "bernoulli": jax.nn.sigmoid}.get(kind)
            parts.append((act(values) if act else values).reshape(self.chains, -1))
        return jnp.concatenate(parts, axis=1)

    def _coordinates(
        self,
        state: State,
        *,
        # Most coordinates, or sums of these, by which a model's chains are compared.
        most: int = 250,
    ) -> Any:
        """Return the coordinates (chains, q) that are compared: all, or sums with random signs of
        which every coordinate is in one. q = 0 for networks, of which equal ones may have
        different weights.
        """
        at = state.kernel.position
        if not isinstance(self.target, ModelTarget):
            return jnp.zeros((self.chains, 0), jnp.float32)
        size = at.shape[1]
        if size <= most:
            return at
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size).astype(np.float32)
        padded = jnp.pad(at * signs, ((0, 0), (0, -size % most)))
        return padded.reshape(self.chains, -1, most).sum(1)

    def health(self, state: State, series: np.ndarray) -> Health:
        self.check(state)
        model = self.target.model
        kernel = self._kernel(state.friction)
        own = state.kernel
        groups = len(state.heat)
        size = float(size_at(kernel.step_size, own.step))
        scale = _times(size, own.scale)
        chains = np.asarray(series, np.float64).swapaxes(0, 1)
        moved = np.diff(chains[..., : groups + 1], axis=1)  # heat and steps from row to row
        temperature = None
        reasons = []
        wanted = float(kernel.temperature)
        if wanted:
            temperature, reasons = health.temperature(moved[..., :-1] / moved[..., -1:], wanted)
            steps = scale, float(kernel.friction)
            reasons += health.too_warm(self.target, own.position, steps, wanted)
        degrees = np.inf
        x = self.inputs()
        if getattr(model, "likelihood", None) == "gaussian" and x is not None:
            some = slice(None, None, -(-len(x) // health.RECORDS))
            x, y = (np.asarray(part)[some] for part in self.target.data)
            outputs = jax.tree.map(np.asarray, climbs.outputs_at(self.target, own.position, x))
            parts = health.residuals(outputs, y, getattr(model, "noise_variance", None))
            if parts is not None:
                reasons += health.misfit(*parts)
                degrees = health.degrees(*parts)
        first = groups + 1  # after heat and steps
        end = first + jax.eval_shape(self._coordinates, state).shape[1]
        coordinates = chains[..., first:end]
        others = chains[..., end:]
        if self.target.batch_size < self.target.count and chains.shape[-1] > first + 1:
            others = others[..., 1:]  # the noise of minibatches hides how slowly it changes
        agreement, *known = health.agreement(others, coordinates)
        searched = getattr(self.target, "searched", None)
        if searched is None and _is_linear(model) and not _is_noisy(model):
            searched = (1, 1, 0)  # the log density is concave
        searched = health.searched(searched, self.chains)
        found = Health((*reasons, *agreement), temperature, *known, searched=searched)
        return found._replace(degrees=degrees)

    @as_found()
    def sample(
        self,
        samples: int,
        *,
        key: jax.Array | None = None,
        progress: ProgressCallback | None = None,
    ) -> Draws:
        """Return ``samples`` draws of every chain, ``thin`` steps apart, as :class:`Draws`. The
        ``key`` is ``jax.random.key(0)`` by default; ``progress`` is called after every 250 draws,
        its ``step`` the number of draws per chain. A chain that diverges is a ParameterError. Each
        reason not to rely on the draws is a ConvergenceWarning, and is in their ``diagnostics``.
        """
        COUNT.check(samples=samples)
        key = jax.random.key(0) if key is None else key
        KEY.check(key=key)
        first, second = jax.random.split(key)
        model = self.target.model
        parts = []
        series = []
        x = self.inputs()
        predicts = hasattr(model, "outputs") and getattr(model, "likelihood", None)
        x = np.asarray(x)[:: -(-len(x) // WATCHED)] if predicts and x is not None else None
        with jax.enable_x64(False):
            state = self.begin(key=first)
            for begin in range(0, samples, CHUNK):
                each = min(CHUNK, samples - begin)
                own = jax.random.fold_in(second, begin)
                state, kept = _kept(self, state, each, x, own)
                self.check(state)
                drawn, seen = jax.tree.map(np.asarray, kept)
                parts.append(drawn)
                series.append(seen)
                if progress is not None:
                    progress(Progress(begin + each, samples))
            health = self.health(state, np.concatenate(series))
        for reason in health.reasons:
            warnings.warn(
                f"Draws may not be the posterior's: {reason}.",
                ConvergenceWarning,
                stacklevel=4,  # an equinox module calls its methods itself
            )

        def flat(*leaves):
            return np.concatenate(leaves).reshape(-1, *leaves[0].shape[2:])

        known: Any = {"x": self.inputs(), "columns": self.columns, "diagnostics": health}
        return Draws(model, jax.tree.map(flat, *parts), **known)


def _is_large(
    model: Model,
    *,
    large: int = 20_000,  # Number of weights from which a model is large
) -> bool:
    size = getattr(model, "size", 0)
    return isinstance(size, int) and size >= large


def _times(size: float, tree: PyTree) -> Any:
    return jax.tree.map(functools.partial(operator.mul, size), tree)


def _is_linear(model: Model) -> bool:
    """Tell whether a network of layers has no hidden one."""
    layers = getattr(model, "layers", None)
    return layers is not None and len(layers) == 1


def _is_noisy(model: Model) -> bool:
    """Tell whether a network learns its noise."""
    return getattr(model, "noise_variance", 1.0) is None


@jitted
def _burned(teacher: Langevin, state: State, key: jax.Array) -> State:
    return teacher._steps(state, CHUNK, key)


@functools.partial(jitted, static_argnums=2)
def _kept(teacher: Langevin, state: State, count: int, x: Any, key: jax.Array) -> tuple[State, Any]:
    def step(state: State, number: Any) -> Any:
        state = teacher.advance(state, key=jax.random.fold_in(key, number))
        return state, (teacher.target.constrained(teacher.draws(state)), teacher.watch(state, x))

    return jax.lax.scan(step, state, jnp.arange(count))
