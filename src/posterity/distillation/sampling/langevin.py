"""Stochastic-gradient chains as a teacher: several at a time, each of them a posterior's draws."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from posterity.arguments import COUNT, NATURAL
from posterity.distillation.predictive import Predictive
from posterity.distillation.sampling import tuning
from posterity.distillation.sampling.kernels import SGLD, PreconditionedSGLD
from posterity.distillation.sampling.noise import check_key
from posterity.distillation.sampling.tally import Tally
from posterity.distillation.sampling.target import Target, WeightsTarget, target
from posterity.distillation.teachers import Draws, Health, Teacher
from posterity.errors import ConvergenceWarning, ParameterError, UsageError
from posterity.families.layers import Layers
from posterity.models import Model

BATCH = 100
CHAINS = 16
LARGE = 20_000
"""Weights from which one chain is run by default, as one takes all there is of a machine."""
CLIMB = 2000
"""Steps by which chains of a network climb to where the posterior is."""
BURN_IN = (1000, 20_000)
"""The least and the most steps that are made before any draw counts, unless told otherwise."""
CHUNK = 250
WARM = 0.15
"""How far a temperature may be from what it should be, as a share."""
SURE = 4.0
"""Standard errors from which a difference counts: the worst of several groups is looked at."""
EVERY = 8
"""Draws from one look at the temperature to the next."""


class State(NamedTuple):
    """Chains as they stand, and what tells whether they sample what they should."""

    kernel: Any
    tally: Tally
    """Of the chains' temperature."""
    level: Any
    """The log density estimate of each chain, in nats, as it was seen last."""


class Langevin(Teacher):
    """Draws from the posterior of a model by stochastic-gradient Langevin dynamics.

    Args:
        model: any model of the library that predicts: a network, a regression, a function.
        prior: any law of its parameters.
        data: of the posterior, as the model takes them.
        kernel: :class:`SGLD`, :class:`PreconditionedSGLD` or :class:`SGHMC`; by default SGLD,
            scaled in each coordinate to the posterior's width. Where its ``step_size`` is None it
            is found, as large as leaves the chain at most five per cent too warm, once for the
            curvature of its worst direction and once for the minibatch noise of its worst
            coordinate.
        chains: how many; by default 16 of small networks, one of large ones.
        batch: records of a minibatch; all where there are fewer.
        thin: steps from one draw to the next.
        climb: steps of Adam by which a network's chains first climb to the posterior's mass; other
            models start at the mode, spread as the curvature says.
        burn_in: steps that do not count; by default five times the time in which a chain forgets
            a direction as wide as the scale, from 1,000 to 20,000. Rounded up to 250s.
        scaled: whether to scale coordinates; by default where no step size is given.

    Raises:
        UsageError: for a prior that is no law, or a model that does not predict when it teaches.
        StructureError, ParameterError: for data that the model cannot take.

    Source: welling2011; korattikara2015.

    >>> from posterity.models import NeuralNetwork
    >>> from posterity.networks import Layers
    >>> net = NeuralNetwork.of_layers(Layers.dense(2, 5, 2))
    >>> x = np.random.default_rng(0).normal(size=(50, 2))
    >>> teacher = Langevin(net, net.prior(variance=1.0), (x, (x[:, 0] > 0).astype(int)))
    >>> teacher.chains
    16
    """

    target: Target
    kernel: Any = eqx.field(static=True)
    chains: int = eqx.field(static=True)
    thin: int = eqx.field(static=True)
    climb: int = eqx.field(static=True)
    burn_in: int | None = eqx.field(static=True)
    scaled: bool = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        prior: Any,
        data: Any,
        *,
        kernel: Any = None,
        chains: int | None = None,
        batch: int = BATCH,
        thin: int = 1,
        climb: int = CLIMB,
        burn_in: int | None = None,
        scaled: bool | None = None,
    ):
        kernel = SGLD() if kernel is None else kernel
        if not all(hasattr(kernel, name) for name in ("init", "step", "step_size", "noise")):
            raise UsageError(
                found=f"kernel={kernel!r}",
                expected="SGLD(...), PreconditionedSGLD(...) or SGHMC(...)",
                fix="Pass one of posterity.distillation's kernels.",
            )
        if isinstance(kernel, PreconditionedSGLD) and kernel.step_size is None:
            raise UsageError(
                found="PreconditionedSGLD without a step size",
                expected="a step size: the one that is found is for a scale that stays",
                fix="Pass PreconditionedSGLD(step_size=1e-3), or SGLD() for a fixed scale.",
            )
        COUNT.check(thin=thin)
        COUNT.or_none().check(chains=chains)
        NATURAL.check(climb=climb)
        NATURAL.or_none().check(burn_in=burn_in)
        size = getattr(model, "size", 0)
        self.chains = chains or (1 if isinstance(size, int) and size >= LARGE else CHAINS)
        self.kernel, self.thin, self.climb, self.burn_in = kernel, thin, climb, burn_in
        self.scaled = kernel.step_size is None if scaled is None else scaled
        self.target = target(
            model, prior, data, batch=batch, chains=self.chains, noise=kernel.noise
        )

    def predictive(self, x: Any) -> Predictive:
        """As the model says."""
        own = self.target
        at = own.start(1, key=jax.random.key(0))
        z = jax.eval_shape(lambda at: jax.tree.map(lambda leaf: leaf[0], own.constrained(at)), at)
        return Predictive.of(own.model, z, x)

    @property
    def layers(self) -> Layers | None:
        """Those of the network, if it has any."""
        return getattr(self.target.model, "layers", None)

    def inputs(self) -> Any:
        """Those of the data."""
        data = self.target.data
        return data[0] if isinstance(data, tuple) and len(data) == 2 else None

    # --- a run -----------------------------------------------------------------------------------

    def begin(self, *, key: jax.Array) -> State:
        """Chains where draws begin to count.

        Raises:
            ParameterError: if a chain diverged.
        """
        first, second, third, last = jax.random.split(key, 4)
        with jax.enable_x64(False):
            positions = self.target.start(self.chains, key=first)
            if isinstance(self.target, WeightsTarget):
                positions = tuning.climb(
                    self.target, positions, self.chains, self.climb, key=second
                )
            scale, size = self._scale(positions, key=third)
            state = self._counted(self._moving.init(positions, scale))
            draws = max(CHUNK // self.thin, 1)
            for number in range(-(-self._burns(size) // (draws * self.thin))):
                state = _several(self, state, draws, jax.random.fold_in(last, number))
                self.check(state)
            return self._counted(state.kernel)

    def blank(self) -> State:
        """The shapes of a state: the scale's follow from how it is found."""
        at = self.target.start(self.chains, key=jax.random.key(0))

        def begun(at: Any) -> State:
            narrow = lambda leaf: jnp.expand_dims(leaf.take(0, self.target.axis), self.target.axis)
            one = lambda leaf: jnp.ones((1,) * leaf.ndim, leaf.dtype)
            scale = None
            if self.scaled and isinstance(self.target, WeightsTarget):
                scale = jax.tree.map(narrow, at)
            elif self.scaled or self.kernel.step_size is None:
                scale = jax.tree.map(one, at)
            return self._counted(self._moving.init(at, scale))

        return jax.eval_shape(begun, at)

    def _scale(self, positions: Any, *, key: jax.Array) -> tuple[Any, float | None]:
        """What multiplies the step size, with the size in it where that was to be found."""
        sought = self.kernel.step_size is None
        if not (sought or self.scaled):
            return None, None
        scaled = self.scaled and isinstance(self.target, WeightsTarget)
        found = tuning.tuned(self.target, positions, self.chains, scaled=scaled, key=key)
        size = found.size if sought else 1.0
        one = jax.tree.map(lambda leaf: jnp.ones((1,) * leaf.ndim, leaf.dtype), positions)
        scale = one if found.scale is None else found.scale
        return jax.tree.map(lambda leaf: size * leaf, scale), found.size if sought else None

    @property
    def _moving(self) -> Any:
        """The kernel; with a size of one where the size that was found is in the scale."""
        if self.kernel.step_size is None:
            return dataclasses.replace(self.kernel, step_size=1.0)
        return self.kernel

    def _burns(self, size: float | None) -> int:
        if self.burn_in is not None:
            return self.burn_in
        least, most = BURN_IN
        return least if size is None else min(max(math.ceil(10 / size), least), most)

    def _counted(self, kernel: Any) -> State:
        """From here on draws count."""
        at = kernel.position
        shape = jax.eval_shape(self.target.warmth, at, at).shape
        return State(kernel, Tally.empty(shape), jnp.zeros(self.chains, jnp.float32))

    def advance(self, state: State, *, key: jax.Array) -> State:
        """As many steps as lead to the next draw."""
        number = lambda state, place: (self._step(state, jax.random.fold_in(key, place)), None)
        if self.thin > 1:
            state, _ = jax.lax.scan(number, state, jnp.arange(self.thin - 1))
        return self._step(state, jax.random.fold_in(key, self.thin - 1), looked=True)

    def _step(self, state: State, key: jax.Array, looked: bool = False) -> State:
        first, second = jax.random.split(key)
        at = state.kernel.position
        minibatch = self.target.minibatch(self.chains, key=first)
        level, gradient = self.target.value_and_gradient(at, minibatch)
        kernel, _ = self._moving.step(state.kernel, gradient, key=second)
        if not looked:
            return state._replace(kernel=kernel)
        looks = state.kernel.step // self.thin % EVERY == 0
        tally = jax.lax.cond(
            looks,
            lambda: state.tally.with_(self.target.warmth(at, gradient)),
            lambda: state.tally,
        )
        return State(kernel, tally, level)

    def draws(self, state: State) -> Any:
        """The positions of the chains."""
        return state.kernel.position

    def outputs(self, draws: Any, x: Any) -> Any:
        """Of each chain."""
        return self.target.outputs(draws, x)

    def check(self, state: State) -> None:
        """Raise a ParameterError if a chain diverged.

        Raises:
            ParameterError: naming the chain and how many steps it made.
        """
        finite = np.isfinite(np.asarray(state.level))
        for leaf in jax.tree.leaves(state.kernel.position):
            others = [axis for axis in range(leaf.ndim) if axis != self.target.axis % leaf.ndim]
            finite &= np.asarray(jnp.isfinite(leaf).all(others))
        if not finite.all():
            raise ParameterError(
                found=f"{(~finite).sum()} of {self.chains} chains that diverged (the first is "
                f"number {int(np.argmin(finite))}) within {int(state.kernel.step)} steps of "
                f"{self.kernel}",
                expected="chains that stay finite: a step size below twice the narrowest "
                "direction's variance",
                fix="Lower the step size, or leave it out, and it is found; standardise data of "
                "very different scales.",
            )

    def health(self, state: State) -> Health:
        """Whether chains are as warm as they should be."""
        self.check(state)
        each, errors = state.tally.mean()
        wanted = getattr(self.kernel, "temperature", 1.0)
        if not np.isfinite(errors).all() or callable(wanted) or not wanted:
            return Health()
        found, off = float(each.mean()), each / wanted - 1
        sure = np.abs(each - wanted) > SURE * errors
        reasons = []
        if (sure & (off > WARM)).any():
            reasons.append(
                f"the chains are too warm (temperature {each.max():.2f}, not {wanted:g}, in the "
                "worst group of coordinates): the step size is too large for the posterior, or "
                "burn_in too short"
            )
        if (sure & (off < -WARM)).any():
            reasons.append(
                f"the chains still spread (temperature {each.min():.2f}, not {wanted:g}, in the "
                "slowest group of coordinates): they have not explored the posterior; raise "
                "burn_in and steps"
            )
        return Health(tuple(reasons), found)

    # --- draws to keep ---------------------------------------------------------------------------

    def sample(
        self, draws: int, *, key: jax.Array, progress: Callable[[int], Any] | None = None
    ) -> Draws:
        """So many draws of every chain, ``thin`` steps apart, to be kept.

        Args:
            draws: of each chain; memory grows with them, which :func:`posterity.distill` avoids.
            key: of the start, the minibatches and the noise.
            progress: called with the number of draws made, now and then.

        Warns:
            ConvergenceWarning: if the chains are too warm, or still spread.

        Raises:
            ParameterError: if a chain diverged.
        """
        COUNT.check(draws=draws)
        check_key(key)
        first, second = jax.random.split(key)
        kept = []
        with jax.enable_x64(False):
            state = self.begin(key=first)
            for begin in range(0, draws, CHUNK):
                each = min(CHUNK, draws - begin)
                own = jax.random.fold_in(second, begin)
                state, found = _kept(self, state, each, own)
                self.check(state)
                kept.append(jax.tree.map(np.asarray, found))
                if progress is not None:
                    progress(begin + each)
            health = self.health(state)
        for reason in health.reasons:
            warnings.warn(f"Draws may not be the posterior's: {reason}.", ConvergenceWarning,
                          stacklevel=3)  # fmt: skip  # an equinox module calls its methods itself
        samples = jax.tree.map(lambda *parts: np.concatenate(parts), *kept)
        merged = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), samples)
        return Draws(self.target.model, merged, x=self.inputs())


def _on(teacher: Langevin, state: State, key: jax.Array, numbers: Any) -> Any:
    step = lambda state, number: (
        teacher._step(state, jax.random.fold_in(key, number)), None
    )  # fmt: skip
    return jax.lax.scan(step, state, numbers)[0]


@functools.partial(jax.jit, static_argnums=2)
def _several(teacher: Langevin, state: State, count: int, key: jax.Array) -> State:
    return _on(teacher, state, key, jnp.arange(count))


@functools.partial(jax.jit, static_argnums=2)
def _kept(teacher: Langevin, state: State, count: int, key: jax.Array) -> tuple[State, Any]:
    def step(state: State, number: Any) -> Any:
        state = teacher.advance(state, key=jax.random.fold_in(key, number))
        return state, teacher.target.constrained(state.kernel.position)

    return jax.lax.scan(step, state, jnp.arange(count))
