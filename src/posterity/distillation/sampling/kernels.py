"""Kernels of stochastic-gradient chains: Langevin, and with momentum.

A kernel has ``init(position) -> state`` and ``step(state, gradient, *, key) -> (state, info)``.
Positions are pytrees of floating-point arrays. Steps are elementwise, so that parallel chains are
one more axis of every array, and all arguments may be traced. ``gradient`` is that of the log prior
plus ``n / m`` times that of the log likelihood of a minibatch of ``m`` of the ``n`` records. With a
step size ``eps``,

    theta += (eps s / 2) gradient + sqrt(eps s temperature) noise,

where ``s`` is one, or the ``scale`` of ``init``: a fixed diagonal preconditioner, under which the
posterior stays invariant.
"""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from posterity.arguments import NOT_NEGATIVE, SHARE
from posterity.arrays.typing import Shape
from posterity.distillation.pytrees import leaves
from posterity.distillation.sampling import noise as noises
from posterity.distillation.sampling.schedules import STEP_SIZE, StepSize, size_at
from posterity.errors import StructureError, UsageError


class State(NamedTuple):
    """The state of chains between two steps."""

    position: Any
    step: jax.Array  # Number of steps made, int32
    scale: Any  # The preconditioner, which broadcasts to the position; None means one
    momentum: Any  # Shaped as the position, or None


class Info(NamedTuple):
    """The step size (float32) of one step."""

    size: jax.Array


class Kernel:
    """A rule for the steps of a chain. A step raises a UsageError if ``step_size`` is None, and a
    StructureError if position, gradient and scale differ in structure.
    """

    step_size: StepSize | None
    noise: str
    temperature: float | int
    friction: Any = 1  # Friction of the momentum; 1 without momentum
    has_momentum: ClassVar[bool] = False

    def __post_init__(self) -> None:
        noises.KINDS.check(noise=self.noise)
        STEP_SIZE.check(step_size=self.step_size)
        NOT_NEGATIVE.check(temperature=self.temperature)

    def init(self, position: PyTree, scale: PyTree = None) -> State:
        """Return the initial state at a position, with zero momentum."""
        position = jax.tree.map(jnp.asarray, position)
        if scale is not None:
            _check(position, scale, "a scale", _broadcasts)
            scale = jax.tree.map(lambda s, own: jnp.asarray(s, own.dtype), scale, position)

        def zeros(leaf: Any) -> Any:
            return jax.device_put(np.zeros(leaf.shape, leaf.dtype))  # compiles nothing

        momentum = jax.tree.map(zeros, position) if self.has_momentum else None
        return State(position, jax.device_put(np.int32(0)), scale, momentum)

    def step(self, state: State, gradient: PyTree, *, key: jax.Array) -> tuple[State, Info]:
        """Make one step, with the gradient of the log density at ``state.position``."""
        _check(state.position, gradient, "a gradient")
        size = size_at(self.step_size, state.step)
        half = size / 2
        deviation = jnp.sqrt(size * self.temperature)
        noise = noises.normal(key, state.position, self.noise)

        def move(slope: Any, white: jax.Array, s: Any = 1.0) -> jax.Array:
            return (half * s * slope + deviation * jnp.sqrt(s) * white).astype(white.dtype)

        def blend(old: Any, new: Any) -> Any:
            return (1 - self.friction) * old + self.friction * new

        scales = [] if state.scale is None else [state.scale]
        moved = jax.tree.map(move, gradient, noise, *scales)
        momentum = jax.tree.map(blend, state.momentum, moved) if self.has_momentum else None
        position = jax.tree.map(jnp.add, state.position, momentum if self.has_momentum else moved)
        return State(position, state.step + 1, state.scale, momentum), Info(size)


@leaves("step_size", "temperature")
@dataclasses.dataclass(frozen=True)
class SGLD(Kernel):
    """Stochastic-gradient Langevin dynamics.

    ``step_size`` is ``eps``, in the parameters' units squared per nat, or a schedule; None lets
    :class:`~posterity.distillation.Langevin` tune it. ``noise`` is a kind of
    :func:`posterity.distillation.sampling.noise.normal`. ``temperature`` 1 samples the posterior, 0
    is gradient ascent without noise.

    Source: welling2011.

    >>> kernel = SGLD(step_size=0.1)
    >>> state = kernel.init({"mean": jnp.zeros(3)})
    >>> state, info = kernel.step(state, {"mean": jnp.ones(3)}, key=jax.random.key(0))
    >>> int(state.step), state.position["mean"].shape
    (1, (3,))
    """

    step_size: StepSize | None = None
    noise: str = "binomial"
    temperature: float | int = 1.0


@leaves("step_size", "friction", "temperature")
@dataclasses.dataclass(frozen=True)
class SGHMC(Kernel):
    """Stochastic-gradient Hamiltonian Monte Carlo: momentum with friction.

    The increment of a step is ``friction`` times SGLD's plus ``1 - friction`` times the previous
    increment:

        v = (1 - friction) v + friction ((eps s / 2) gradient + sqrt(eps s temperature) noise)
        theta += v

    This is the paper's update with learning rate ``η = friction eps s / 2`` and momentum decay ``α
    = friction``. ``friction`` is in (0, 1]; with 1 the kernel is :class:`SGLD`, and with None it is
    tuned along with the step size. Smaller friction allows larger steps: on a Gaussian of precision
    ``λ`` they are stable below ``(8 - 4 friction) / (friction λ)``.

    Source: chen2014, equation 15, with no estimate of the gradient's noise.

    >>> kernel = SGHMC(step_size=0.1, friction=0.1)
    >>> state, info = kernel.step(kernel.init(jnp.zeros(2)), jnp.ones(2), key=jax.random.key(0))
    >>> bool((state.momentum == state.position).all())
    True
    """

    step_size: StepSize | None = None
    friction: float | int | jax.Array | None = 0.1
    noise: str = "binomial"
    temperature: float | int = 1.0

    has_momentum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        SHARE.or_none().check(friction=self.friction)
        if self.friction is None and self.step_size is not None:
            raise UsageError(
                found="a step size without a friction",
                expected="a friction beside it, such as 0.1, or None for both",
            )


def _check(
    position: PyTree, other: PyTree, what: str, fits: Callable[[Shape, Shape], bool] = operator.eq
) -> None:
    """Raise a StructureError unless ``other`` has the position's structure, and shapes that fit."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(position)]
    others = [jnp.shape(leaf) for leaf in jax.tree.leaves(other)]
    same = jax.tree.structure(position) == jax.tree.structure(other)
    if not same or not all(map(fits, others, shapes)):
        raise StructureError(
            found=f"{what} of shapes {jax.tree.map(jnp.shape, other)}",
            expected=f"those of the position, {jax.tree.map(jnp.shape, position)}, as jax.grad "
            "gives them",
        )


def _broadcasts(shape: Shape, full: Shape) -> bool:
    """Return whether numbers of a shape stand for several entries of a full one."""
    try:
        return np.broadcast_shapes(shape, full) == full
    except ValueError:  # of shapes that do not go together
        return False
