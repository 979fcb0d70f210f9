"""Local posteriors: mean-field Gaussians over a network's weights by stochastic gradients."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity.arguments import COUNT, POSITIVE
from posterity.errors import ConvergenceWarning, ParameterError, UsageError
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.federation.status import Status
from posterity.ledger import Ledger
from posterity.models.base import VARIANCE
from posterity.networks.bound import Bound, Parameters, as_posterior, started
from posterity.networks.convergence import PACE, status_of
from posterity.networks.inputs import arrays
from posterity.networks.likelihoods import LIKELIHOOD, check_outputs
from posterity.networks.priors import GaussianPrior, Horseshoe, Prior, as_network

CHUNK = 50
"""Steps that are compiled into one program, after which it is seen how far training has come."""
MOST = 10_000
"""Steps at the full rate after which training ends, converged or not, unless told otherwise."""
BATCH = 100
RATE = 2e-3
FASTER = 10.0
"""How much faster log standard deviations move than means: they have further to go."""
COOLING = 0.3
"""The share of the steps, at the end, over which the rate falls to zero."""


class Progress(NamedTuple):
    """How far training has come."""

    step: int
    bound: float
    """The evidence lower bound in nats a record, averaged over the last ``CHUNK`` of steps."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """What :func:`train` gives back.

    ``posterior`` and ``prior`` are Gaussian; where training was under a horseshoe they have its
    first two moments. ``trace`` is the evidence lower bound in nats a record, its divergence times
    the temperature, averaged over each fifty steps; ``steps`` is how many were made.
    """

    posterior: Network
    prior: Network
    trace: np.ndarray
    steps: int
    temperature: float
    status: Status

    def ledger(self, site: str) -> Ledger:
        """The posterior as the ledger of one site, to be saved, sent and fused."""
        return Ledger.of_site(site, prior=self.prior, posterior=self.posterior)


def train(
    layers: Layers,
    data: Any,
    *,
    key: jax.Array,
    prior: Prior | None = None,
    likelihood: str = "categorical",
    noise_variance: float | int = 1.0,
    temperature: float | int = 1.0,
    steps: int | None = None,
    batch: int = BATCH,
    learning_rate: float = RATE,
    start: Network | None = None,
    progress: Callable[[Progress], Any] | None = None,
) -> Trained:
    """Fit independent Gaussians to the weights of a network, from one site's data.

    It maximises ``E_q[Σ log p(y | x)] - temperature KL(q | prior)`` by Adam on minibatches, in
    single precision, with noise drawn where it tells most (:mod:`posterity.networks.noisy`).

    Args:
        layers: of the network; see :class:`~posterity.networks.Layers`.
        data: ``(x, y)``; ``x`` of shape (n, …) with as many numbers a record as the network has
            inputs, of a scale near one.
        key: of the start, the batches and the noise: with the same key the same posterior.
        prior: a :class:`GaussianPrior` (the default), a :class:`Horseshoe`, or a network's
            posterior from an earlier round.
        likelihood: ``"categorical"``, ``"bernoulli"`` or ``"gaussian"``, as of
            :class:`~posterity.models.NeuralNetwork`.
        noise_variance: of the Gaussian likelihood.
        temperature: of the divergence; 1 is the posterior, below 1 data count more than once.
        steps: how many; by default as many as it takes until the bound rises by less than 0.01
            nats a record in 500 of them, and then half as many with a falling rate.
        batch: records that a step sees; all if there are fewer.
        learning_rate: of the means, ten times that for log standard deviations, until 70 % of the
            steps are made; falls to zero from there.
        start: whose means and deviations training starts from; by default means are drawn, or
            are those of ``prior`` if that is a network.
        progress: called after each fifty steps; what it raises ends the training.

    Warns:
        ConvergenceWarning: if the bound still rose; ``trained.status`` says how much.
        ScaleWarning: if data are far from a scale of one.

    Raises:
        UsageError: for arguments that make no sense, and a prior or a start of other layers.
        StructureError: if the data do not fit the layers, or there are none.
        ParameterError: for data that are not finite or that the likelihood cannot produce, and
            if the bound is no longer finite.

    Source: blundell2015; kingma2015; wen2018 for convolutions; ghosh2019 for the horseshoe.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 2))
    >>> y = (x[:, 0] > x[:, 1]).astype(int)
    >>> trained = train(Layers.dense(2, 8, 2), (x, y), key=jax.random.key(0))
    >>> trained.posterior, trained.status.state
    (Network(2-8 relu-2), 'converged')
    """
    found = fit(
        layers, data, key=key, prior=prior, likelihood=likelihood, noise_variance=noise_variance,
        temperature=temperature, steps=steps, batch=batch, learning_rate=learning_rate,
        start=start, progress=progress,
    )  # fmt: skip
    if not found.status.converged:
        warnings.warn(
            f"Training has {found.status} (nats a record that the bound rose in {PACE} steps, "
            f"before the rate fell), after {found.steps} steps. "
            "Leave `steps` out, raise it, or standardise the data.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return found


def fit(
    layers: Layers,
    data: Any,
    *,
    key: jax.Array,
    prior: Prior | None,
    likelihood: str,
    noise_variance: float | int,
    temperature: float | int,
    steps: int | None,
    batch: int,
    learning_rate: float,
    start: Network | None,
    progress: Callable[[Progress], Any] | None = None,
) -> Trained:
    """As :func:`train`, which warns of what has not converged."""
    LIKELIHOOD.check(likelihood=likelihood)
    if not isinstance(layers, Layers):
        raise UsageError(
            found=f"layers={layers!r}",
            expected="Layers",
            fix="Pass Layers.dense(inputs, hidden units, outputs).",
        )
    check_outputs(layers, likelihood)
    VARIANCE.check(noise_variance=noise_variance)
    POSITIVE.check(temperature=temperature, learning_rate=learning_rate)
    COUNT.check(batch=batch)
    COUNT.or_none().check(steps=steps)
    prior = GaussianPrior() if prior is None else prior
    gaussian = as_network(prior, layers)
    if start is None:
        start = prior if isinstance(prior, Network) else None
    else:
        as_network(start, layers)
    horseshoe = prior if isinstance(prior, Horseshoe) else None
    bound = Bound(layers, likelihood, float(noise_variance), float(temperature), horseshoe)
    x, y = arrays(data, layers, likelihood)
    import optax  # takes a while to import

    with jax.enable_x64(False):  # in single precision, whatever the caller computes in
        first, run = jax.random.split(key)
        own = jax.tree.map(jnp.asarray, started(bound, start, key=first))
        training = _Training(
            bound, _arrays_of(gaussian, horseshoe), x, y, min(batch, len(x)), learning_rate, run,
            (own, optax.scale_by_adam().init(own)),
        )  # fmt: skip
        steady = training.steadily(steps, progress)
        training.cooling(steps, progress)
    trace = np.array(training.trace)
    status = status_of(trace, steady, CHUNK)
    posterior = as_posterior(bound, training.state[0])
    return Trained(posterior, gaussian, trace, training.steps, float(temperature), status)


class _Training:
    """Where a training stands."""

    def __init__(
        self,
        bound: Bound,
        prior: Any,
        x: Any,
        y: Any,
        batch: int,
        rate: float,
        key: Any,
        state: Any,
    ) -> None:
        self.bound, self.prior, self.rate, self.key = bound, prior, rate, key
        self.x, self.y, self.state = x, y, state
        self.places, self.trace, self.steps = _batches(len(x), batch, key), [], 0

    def steadily(self, steps: int | None, progress: Any) -> int:
        """Steps at the full rate: a share of ``steps``, or until it converges; how many chunks."""
        most = MOST if steps is None else round((1 - COOLING) * steps)
        while self.steps < most:
            self.chunk(np.full(min(CHUNK, most - self.steps), self.rate), progress)
            looks = self.steps >= 2 * PACE and self.steps % (PACE // 2) == 0
            if steps is None and looks and self._settled():
                break
        return len(self.trace)

    def _settled(self) -> bool:
        return status_of(np.array(self.trace), len(self.trace), CHUNK).converged

    def cooling(self, steps: int | None, progress: Any) -> None:
        """Steps at a rate that falls to zero: those that are left of ``steps``, or half as many."""
        left = -(-self.steps // (2 * CHUNK)) * CHUNK if steps is None else steps - self.steps
        rates = self.rate * np.linspace(1, 0, left, endpoint=False)
        for begin in range(0, left, CHUNK):
            self.chunk(rates[begin : begin + CHUNK], progress)

    def chunk(self, rates: np.ndarray, progress: Any) -> None:
        """A few steps; those that fill the chunk have a rate of zero, and count for nothing."""
        made = len(rates)
        places = np.stack([next(self.places) for _ in range(CHUNK)]).astype(np.int32)
        rates = np.pad(rates, (0, CHUNK - made)).astype(np.float32)
        key = jax.random.fold_in(self.key, len(self.trace))
        x, y = self.x[places], self.y[places]
        self.state, value = _steps(
            self.bound, self.state, self.prior, x, y, len(self.x), rates, key
        )
        self.steps += made
        self.trace.append(float(value))
        if not np.isfinite(self.trace[-1]):
            raise ParameterError(
                found=f"an evidence lower bound of {self.trace[-1]} after {self.steps} steps",
                expected="a finite one",
                fix="Standardise the data, or lower the learning rate.",
            )
        if progress is not None:
            progress(Progress(self.steps, self.trace[-1]))


def _arrays_of(prior: Network, horseshoe: Horseshoe | None) -> Any:
    """Mean and log deviation by layer; under a horseshoe those of weights over their scale."""
    layers = prior.layers
    mean = layers.unravel(np.asarray(prior.mean, np.float32))
    log = layers.unravel(np.asarray(np.log(prior.variance) / 2, np.float32))
    if horseshoe is not None:
        log[:-1] = jax.tree.map(np.zeros_like, log[:-1])
    return mean, log


def _batches(count: int, size: int, key: Any) -> Iterator[np.ndarray]:
    """Places of records, all once before any comes again."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32))
    waiting = np.zeros(0, np.int64)
    while True:
        while len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(count)])
        yield waiting[:size]
        waiting = waiting[size:]


@functools.partial(jax.jit, static_argnums=0)
def _steps(
    bound: Bound, state: Any, prior: Any, x: Any, y: Any, count: Any, rates: Any, key: Any
) -> tuple[Any, Any]:
    """Several steps, and the mean of the bound over those of them whose rate is not zero.

    Batches ``x`` and ``y`` come picked, so that one program serves sites of every size.
    """
    import optax

    def step(carry: Any, now: Any) -> tuple[Any, Any]:
        own, moments = carry
        x, y, rate, number = now
        value, gradient = jax.value_and_grad(bound)(
            own, prior, x, y, count, key=jax.random.fold_in(key, number)
        )
        ascent, moments = optax.scale_by_adam().update(gradient, moments)
        own = jax.tree.map(lambda leaf, up, pace: leaf + pace * up, own, ascent, _rates(own, rate))
        return (own, moments), value

    state, values = jax.lax.scan(step, state, (x, y, rates, jnp.arange(len(rates))))
    made = rates > 0
    return state, jnp.where(made, values, 0.0).sum() / made.sum()


def _rates(own: Parameters, rate: Any) -> Any:
    """The means' own; ten times that for log deviations, and for the logarithms of scales."""
    pace = {name: rate if name == "mean" else FASTER * rate for name in own}
    return {name: jax.tree.map(lambda _, r=pace[name]: r, part) for name, part in own.items()}
