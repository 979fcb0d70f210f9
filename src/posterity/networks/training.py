"""Local posteriors: mean-field Gaussians over a network's weights by stochastic gradients."""

import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from posterity.arguments import COUNT, POSITIVE, Constraint
from posterity.arrays import keys
from posterity.errors import ConvergenceWarning, ParameterError
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.ledger import Ledger
from posterity.models.base import VARIANCE
from posterity.models.data import warn_of_scale
from posterity.models.likelihoods import LIKELIHOOD, check_outputs
from posterity.models.neural import NeuralNetwork
from posterity.models.records import Records
from posterity.networks.bound import Arrays, Bound, Parameters, Scales, as_posterior, started
from posterity.networks.priors import GaussianPrior, Horseshoe, Prior, as_network
from posterity.runtime.programs import jitted
from posterity.status import Progress, ProgressCallback, Status


@dataclasses.dataclass(frozen=True)
class Pacing:
    """How long a training goes on, and how fast."""

    chunk: int = 50
    """Steps per compiled call: progress, interrupts and convergence are between calls."""
    most: int = 10_000
    """Most steps at the full rate if the number of steps is not given."""
    cooling: float = 0.3
    """Share of a given number of steps, at the end, over which the rate falls to zero."""
    window: int = 500
    """Steps over which a rise of the bound is measured."""


PACING = Pacing()
LAYERS = Constraint(
    "Layers, as Layers.dense(inputs, hidden units, outputs)",
    lambda own: isinstance(own, Layers),
    fix="Pass Layers.dense(inputs, hidden units, outputs).",
)

State = tuple[Parameters, Any]
"""Parameters, and Adam's moments of their gradients."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of :func:`train`. ``posterior`` and ``prior`` are Gaussian; under a horseshoe they
    match its first two moments. ``trace`` is the evidence lower bound (with the divergence times
    the temperature) in nats per record, averaged over each 50 steps. ``steps`` is the number of
    steps. ``status`` is by the rise of the bound in nats per record over the last 500 steps at the
    full rate.
    """

    posterior: Network
    prior: Network
    trace: tuple[float, ...]
    steps: int
    temperature: float
    status: Status

    def ledger(self, site: str) -> Ledger:
        """Return the posterior as the ledger of one site, to be saved, sent and fused."""
        return Ledger.of_site(site, prior=self.prior, posterior=self.posterior)


def train(
    layers: Layers,
    data: PyTree,
    *,
    key: jax.Array | None = None,
    prior: Prior | None = None,
    likelihood: str = "categorical",
    noise_variance: float | int = 1.0,
    temperature: float | int = 1.0,
    steps: int | None = None,
    tolerance: float | int = 0.01,
    batch_size: int = 100,
    learning_rate: float = 2e-3,
    start: Network | None = None,
    progress: ProgressCallback | None = None,
) -> Trained:
    """Fit independent Gaussians to the weights of a network, from one site's data.

    Maximise ``E_q[Σ log p(y | x)] - temperature KL(q | prior)`` by Adam on minibatches, in single
    precision, with low-variance gradient estimates (:mod:`posterity.networks.bound`).

    Args:
        layers: layers of the network, see :class:`~posterity.networks.Layers`.
        data: pair ``(x, y)`` of arrays; ``x`` has shape (n, ...), with as many numbers per record
            as the network has inputs, of a scale near one. A data frame is a StructureError, since
            a network does not know the names of columns.
        key: random key of the start, the batches and the noise; the same key gives the same
            posterior; ``jax.random.key(0)`` by default.
        prior: :class:`GaussianPrior` (the default), :class:`Horseshoe`, or a network's posterior
            from an earlier round.
        likelihood: ``"categorical"``, ``"bernoulli"`` or ``"gaussian"``, as in
            :class:`~posterity.models.NeuralNetwork`.
        noise_variance: noise variance of the Gaussian likelihood.
        temperature: factor of the divergence; 1 gives the posterior, below 1 data are overweighted.
        steps: number of steps; by default until convergence, then half as many at a falling rate.
        tolerance: largest rise of the bound in 500 steps that is converged, in nats per record; it
            is relative to the smaller of the bound's absolute value and its total rise, if that is
            above one.
        batch_size: number of records per step; all if there are fewer.
        learning_rate: rate of the means, and a tenth of that of log standard deviations, for the
            first 70 % of ``steps``; then it falls to zero.
        start: network whose means and deviations the training starts from; by default ``prior`` if
            that is a network, else random means.
        progress: called after each 50 steps with the bound, in nats per record, as ``objective``;
            an exception that it raises ends the training.

    Warns:
        ConvergenceWarning: if the bound was still rising; ``trained.status`` says by how much.
        ScaleWarning: if data are far from a scale of one.

    Raises:
        UsageError: if an argument is invalid, or a prior or a start has other layers.
        StructureError: if the data do not fit the layers, or there are none.
        ParameterError: if data are not finite or not possible under the likelihood, or if the
            bound is no longer finite.

    Source: blundell2015; kingma2015; wen2018 for convolutions; ghosh2019 for the horseshoe.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 2))
    >>> y = (x[:, 0] > x[:, 1]).astype(int)
    >>> trained = train(Layers.dense(2, 8, 2), (x, y))
    >>> trained.posterior, trained.status.state
    (Network(2-8 relu-2), 'converged')
    """
    trained = fit(**locals())
    if not trained.status.converged:
        warnings.warn(
            f"Training has {trained.status} (nats a record that the bound rose in {PACING.window} "
            f"steps, before the rate fell), after {trained.steps} steps. "
            "Leave `steps` out, raise it, or standardise the data.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return trained


def fit(
    layers: Layers,
    data: PyTree,
    *,
    key: jax.Array | None,
    prior: Prior | None,
    likelihood: str,
    noise_variance: float | int,
    temperature: float | int,
    steps: int | None,
    batch_size: int,
    learning_rate: float,
    start: Network | None,
    tolerance: float | int = 0.01,
    progress: ProgressCallback | None = None,
) -> Trained:
    """Train as :func:`train` does, without a ConvergenceWarning."""
    LAYERS.check(layers=layers)
    LIKELIHOOD.check(likelihood=likelihood)
    check_outputs(layers, likelihood)
    VARIANCE.check(noise_variance=noise_variance)
    POSITIVE.check(temperature=temperature, learning_rate=learning_rate, tolerance=tolerance)
    COUNT.check(batch_size=batch_size)
    COUNT.or_none().check(steps=steps)
    prior = GaussianPrior() if prior is None else prior
    gaussian = as_network(prior, layers)
    if start is None:
        start = None if isinstance(prior, GaussianPrior | Horseshoe) else prior
    else:
        as_network(start, layers)
    scales = Scales(prior.scale, prior.slab) if isinstance(prior, Horseshoe) else None
    bound = Bound(layers, likelihood, float(noise_variance), float(temperature), scales)
    records = checked_records(data, layers, likelihood)
    with jax.enable_x64(False):  # always in single precision
        first, run = jax.random.split(jax.random.key(0) if key is None else key)
        state = initial(started(bound, start, key=first))
        training = _Training(
            bound,
            gaussian,
            records,
            state,
            run,
            batch_size,
            learning_rate,
            steps,
            tolerance,
        )
        training.run(progress)
        return training.result()


@dataclasses.dataclass
class _Training:
    """The state of a training, with the trace of the bound."""

    bound: Bound
    prior: Network
    records: tuple[np.ndarray, np.ndarray]
    state: State
    key: jax.Array
    batch_size: int
    rate: float
    limit: int | None
    tolerance: float
    trace: list[float] = dataclasses.field(default_factory=list)
    steps: int = 0
    steady: int = 0

    def __post_init__(self) -> None:
        count = len(self.records[0])
        self.moments = prior_arrays(self.prior, self.bound.scales is not None)
        self.batches = batches(count, min(self.batch_size, count), keys.of_numpy(self.key))

    def run(self, progress: ProgressCallback | None) -> None:
        """Make steps at the full rate, up to the limit or until convergence, then at a rate that
        falls to zero over a share of the steps, or over half as many as were made before.
        """
        most = PACING.most if self.limit is None else round((1 - PACING.cooling) * self.limit)
        while self.steps < most:
            self.chunk(np.full(min(PACING.chunk, most - self.steps), self.rate), progress)
            self.steady = len(self.trace)
            two_windows = self.steps >= 2 * PACING.window
            looks = two_windows and self.steps % (PACING.window // 2) == 0
            if self.limit is None and looks and self.status().converged:
                break
        enough = -(-self.steps // (2 * PACING.chunk)) * PACING.chunk
        left = enough if self.limit is None else self.limit - self.steps
        rates = self.rate * np.linspace(1, 0, left, endpoint=False)
        for begin in range(0, left, PACING.chunk):
            self.chunk(rates[begin : begin + PACING.chunk], progress)

    def chunk(self, rates: np.ndarray, progress: ProgressCallback | None) -> None:
        """Make steps at these rates; the chunk is padded with steps of rate zero."""
        made = len(rates)
        size = PACING.chunk
        chosen = np.stack([next(self.batches) for _ in range(size)]).astype(np.int32)
        rates = np.pad(rates, (0, size - made)).astype(np.float32)
        key, (x, y) = jax.random.fold_in(self.key, len(self.trace)), self.records
        arguments = x[chosen], y[chosen], len(x), rates, key
        self.state, value = _steps(self.bound, self.state, self.moments, *arguments)
        self.steps += made
        self.trace.append(float(value))
        if not np.isfinite(self.trace[-1]):
            raise ParameterError(
                found=f"an evidence lower bound of {self.trace[-1]} after {self.steps} steps",
                expected="a finite one: standardise the data, or lower the learning rate",
            )
        if progress is not None:
            progress(Progress(self.steps, self.limit, self.trace[-1], partial=self.result))

    def status(self) -> Status:
        """Return the status, by the rise of the bound at the full rate."""
        return status_of(np.array(self.trace), self.steady, self.tolerance)

    def result(self) -> Trained:
        """Return the result so far."""
        posterior = as_posterior(self.bound, self.state[0])
        made = (tuple(self.trace), self.steps)
        return Trained(posterior, self.prior, *made, self.bound.temperature, self.status())


def status_of(trace: np.ndarray, steady: int, tolerance: float) -> Status:
    """Return the status of a training from its trace: the bound in nats per record, averaged over
    each chunk of steps, the first ``steady`` of which had the full rate. The change is between the
    last two windows of steps at the full rate, per window. Changes within two standard errors are
    accepted, up to three times the tolerance.
    """
    tail = trace[:steady] if steady >= 2 else trace
    each = max(min(PACING.window // PACING.chunk, len(tail) // 2), 1)
    last = tail[-each:]
    before = tail[-2 * each : -each]
    if not len(before):
        return Status("not converged", math.inf, tolerance, ("too few steps to tell",))
    pace = PACING.window / (each * PACING.chunk)
    change = abs(last.mean() - before.mean()) * pace
    # Noise is estimated by differences of consecutive chunks, so that a trend is not noise.
    noise = np.diff(tail[-2 * each :]).std() / np.sqrt(each) * pace
    end = last.mean()
    allowed = tolerance * max(1.0, min(abs(end), abs(end - trace[0])))
    allowed = max(allowed, min(2 * noise, 3 * allowed))
    if trace[-1] < trace[0]:
        return Status("diverged", change, allowed, ("the bound is lower than at first",))
    return Status("converged" if change <= allowed else "not converged", change, allowed)


def checked_records(data: PyTree, layers: Layers, likelihood: str) -> tuple[np.ndarray, np.ndarray]:
    """Check data and return inputs (n, d) and observations. Columns far from a scale of one are a
    ScaleWarning, wrong shapes or no records a StructureError, and values that are not finite or
    not possible under the likelihood a ParameterError.
    """
    model = NeuralNetwork.of_layers(layers, likelihood=likelihood)
    x, y = Records.of_model(model, data, names=None).data
    x = np.asarray(x, np.float32).reshape(len(x), -1)
    y = y.astype(np.int32 if likelihood == "categorical" else np.float32)
    values = [("what was observed", y.reshape(len(y), -1))] if likelihood == "gaussian" else []
    for what, columns in [("inputs", x), *values]:
        warn_of_scale(columns, what, stacklevel=4)
    return x, y


def initial(parameters: Parameters) -> State:
    """Return the initial state of a training from these parameters."""
    import optax  # takes a while to import

    parameters = jax.tree.map(jnp.asarray, parameters)
    return parameters, optax.scale_by_adam().init(parameters)


def prior_arrays(prior: Network, horseshoe: bool = False) -> tuple[Arrays, Arrays]:
    """Return means and log deviations by layer; under a horseshoe, of weights over their scale."""
    layers = prior.layers
    mean = layers.unravel(np.asarray(prior.mean, np.float32))
    log = layers.unravel(np.asarray(np.log(prior.variance) / 2, np.float32))
    if horseshoe:
        log[:-1] = jax.tree.map(np.zeros_like, log[:-1])
    return mean, log


def batches(count: int, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield indices of the records of minibatches, in an endless sequence of permutations."""
    waiting = np.zeros(0, np.int64)
    while True:
        while len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(count)])
        yield waiting[:size]
        waiting = waiting[size:]


def step(
    bound: Bound,
    state: State,
    prior: Any,
    x: Any,
    y: Any,
    count: Any,
    rate: Any,
    key: jax.Array,
    *,
    faster: float = 10.0,
) -> tuple[State, jax.Array]:
    """Make one step of Adam from a minibatch; return the state, and the bound before the step in
    nats per record. ``prior`` is from :func:`prior_arrays`, ``count`` the total number of records.
    ``rate`` is the rate of means; it is ``faster`` times as large for log deviations and scales.
    """
    import optax

    parameters, moments = state
    value, gradient = jax.value_and_grad(bound)(parameters, prior, x, y, count, key=key)
    ascent: Any
    ascent, moments = optax.scale_by_adam().update(gradient, moments)
    rates = {name: rate if name == "mean" else faster * rate for name in parameters}

    def climb(name):
        return jax.tree.map(
            lambda leaf, up: leaf + rates[name] * up, parameters[name], ascent[name]
        )

    return ({name: climb(name) for name in parameters}, moments), value


@jitted
def _steps(
    bound: Bound, state: State, prior: Any, x: Any, y: Any, count: Any, rates: Any, key: jax.Array
) -> tuple[State, jax.Array]:
    """Make several steps; return the state, and the mean of the bound over steps of nonzero rate.
    Batches ``x`` and ``y`` and numbers such as the temperature are arguments, so that one program
    serves sites of every size and all settings.
    """

    def one(state: State, now: Any) -> tuple[State, jax.Array]:
        x, y, rate, number = now
        return step(bound, state, prior, x, y, count, rate, jax.random.fold_in(key, number))

    state, values = jax.lax.scan(one, state, (x, y, rates, jnp.arange(len(rates))))
    made = rates > 0
    return state, jnp.where(made, values, 0.0).sum() / made.sum()
