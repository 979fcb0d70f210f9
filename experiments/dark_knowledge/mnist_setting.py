"""How the networks of table 3 are sampled, distilled and fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from experiments.data import Images
from posterity.distillation import SGHMC, SGLD, Inputs, Langevin
from posterity.models import NeuralNetwork
from posterity.networks import GaussianPrior, Layers


@dataclass(frozen=True)
class Falling:
    """Step sizes that fall from ``first`` to ``last`` over so many steps, and stay there.

    By the same factor at every step: large ones reach the posterior soon, from the small one on the
    chain moves alike.
    """

    first: float
    last: float
    over: int

    def __call__(self, step: Any) -> Any:
        """The size of step ``step``."""
        share = jnp.minimum(jnp.asarray(step).astype(jnp.float32) / self.over, 1.0)
        return self.first * (self.last / self.first) ** share


@dataclass(frozen=True)
class Setting:
    """Everything that a run depends on but its seed and its data.

    Attributes:
        hidden: units of teacher, student and plug-in network.
        variances: of the prior, a layer each.
        temperature: of the chain: 1 is the posterior, less is a colder law.
        friction: of the chain's momentum.
        first: step size at the start of burn-in (see the kernels).
        last: the one it falls to.
        fall: over so many steps.
        batch: records of a minibatch, and inputs of a student's step.
        climb: steps of Adam before the chain begins.
        burn_in: steps of the chain that do not count.
        thin: steps of the chain to one of the student.
        draws: steps of the student.
        rate: of its Adam.
        reservoir: earlier draws that it hears beside the newest.
        noise: standard deviation of what is added to half of its inputs.
        plug_in: steps of the plug-in network's descent.
        looks: points of the curves of errors.
    """

    hidden: tuple[int, ...] = (400, 400)
    variances: tuple[float, ...] = (1 / 20, 1 / 20, 1 / 5)
    temperature: float = 0.01
    friction: float = 0.1
    first: float = 6e-5
    last: float = 3e-5
    fall: int = 3000
    batch: int = 100
    climb: int = 600
    burn_in: int = 6000
    thin: int = 2
    draws: int = 8000
    rate: float = 1e-3
    reservoir: int = 2
    noise: float = 0.1
    plug_in: int = 10_000
    looks: int = 200

    @classmethod
    def paper(cls, draws: int) -> Setting:
        """The posterior at temperature 1, by plain SGLD from random weights, as the paper has it.

        Its million steps are those of 99,900 draws. Size, prior and what is added to inputs are
        those of a public implementation for MXNet; every tenth step is one of the student's.
        """
        return cls(
            variances=(1.0, 1.0, 1.0), temperature=1.0, friction=1.0, first=4e-6, last=4e-6,
            climb=0, burn_in=1000, thin=10, draws=draws, plug_in=50_000, looks=10,
        )  # fmt: skip

    @property
    def chain_steps(self) -> int:
        """Those that count."""
        return self.thin * self.draws

    def layers(self, x: Images, classes: int) -> Layers:
        """The network of flat inputs (n, d)."""
        return Layers.dense(x.shape[1], *self.hidden, classes)

    def teacher(self, layers: Layers, data: Any) -> Langevin:
        """The chain."""
        sizes = Falling(self.first, self.last, self.fall)
        if self.friction == 1:
            kernel: Any = SGLD(sizes, temperature=self.temperature)
        else:
            kernel = SGHMC(sizes, friction=self.friction, temperature=self.temperature)
        return self._chain(layers, data, kernel, self.burn_in, self.thin)

    def descent(self, layers: Layers, data: Any) -> Langevin:
        """The same without noise: stochastic gradient descent with momentum to the mode.

        Its sizes fall to a hundredth; its only draw is where it ends.
        """
        sizes = Falling(self.first, self.first / 100, self.plug_in)
        kernel = SGHMC(sizes, friction=self.friction, temperature=0.0)
        return self._chain(layers, data, kernel, self.plug_in, 1)

    def _chain(self, layers: Layers, data: Any, kernel: Any, burn_in: int, thin: int) -> Langevin:
        model = NeuralNetwork.of_layers(layers)
        prior = GaussianPrior(variance=self.variances).network(layers)
        return Langevin(
            model,
            prior,
            data,
            kernel=kernel,
            chains=1,
            batch_size=self.batch,
            thin=thin,
            climb=self.climb,
            burn_in=burn_in,
        )


class Between(Inputs):
    """Inputs D' of a student: half of them images with noise, half points between two images.

    ``x`` (n, d) are images without labels, ``noise`` the standard deviation of what is added.
    """

    x: Any
    noise: float

    def sample(self, n: int, *, key: jax.Array) -> Any:
        """The first half are perturbed images, the others mixtures of two, perturbed too."""
        first, second, third = jax.random.split(key, 3)
        one, other = jnp.asarray(self.x)[jax.random.randint(first, (2, n), 0, len(self.x))]
        u = jnp.where(jnp.arange(n) < n // 2, 1.0, jax.random.uniform(second, (n,)))[:, None]
        return u * one + (1 - u) * other + self.noise * jax.random.normal(third, one.shape)
