"""The slides' rule and the gated one: mixtures of networks, a mean-field posterior a task."""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from scipy.special import logsumexp, softmax

from experiments.pursuit.learners import Learner
from experiments.pursuit.replay import kept_records
from experiments.pursuit.task_networks import chances, trained
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.networks.predictive import Prediction
from posterity.pursuit.learning.conjugate import ConjugateLearner, check_known, new_records

Array = np.ndarray

VARIANCE = 0.01
"""Of each weight's prior, by default: the facts' N(0, .1²)."""
STEPS, BATCH, DRAWS = 300, 100, 10
ROUNDS = 200
"""Of the searches for weights."""
PATHS = 20
"""Draws of each network that the divergence is estimated from."""
LEAST = 700.0
"""Minus the logarithm of the least weight that is told from none."""


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkLearner(Learner):
    """A network a task; what is common to the rules that mix them."""

    layers: Layers
    prior_variance: float | int = VARIANCE
    steps: int = STEPS
    batch: int = BATCH
    draws: int = DRAWS
    seed: int = 0
    networks: Mapping[str, Network] = dataclasses.field(default_factory=dict)
    counts_by_task: Mapping[str, Array] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("networks", "counts_by_task"):
            object.__setattr__(self, name, dict(sorted(getattr(self, name).items())))

    @property
    def classes(self) -> int:  # type: ignore[override]
        """Outputs of the network."""
        return self.layers.outputs

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that it knows, sorted."""
        return tuple(self.networks)

    @property
    def counts(self) -> Array:
        """Records of each class, (classes,)."""
        return sum(self.counts_by_task.values(), np.zeros(self.classes))

    def observe(self, task: str, x: Any, y: Any) -> Self:
        """As :meth:`Learner.observe`; trains a network on these records alone."""
        x, y = new_records(task, x, y, self.tasks, self.classes)
        network = trained(
            self.layers, x, y, task=task, seed=self.seed, variance=float(self.prior_variance),
            steps=self.steps, batch=self.batch,
        )  # fmt: skip
        counts = np.bincount(y, minlength=self.classes).astype(np.float64)
        return dataclasses.replace(
            self,
            networks={**self.networks, task: network},
            counts_by_task={**self.counts_by_task, task: counts},
            **self._beside(task, x, y),
        )

    def _beside(self, task: str, x: Array, y: Array) -> dict[str, Any]:
        """What a rule learns of a task beside its network, by field."""
        del task, x, y
        return {}

    def _left(self, tasks: tuple[str, ...]) -> dict[str, Any]:
        """What a rule has beside networks without these tasks, by field."""
        del tasks
        return {}

    def forget(self, *tasks: str) -> Self:
        """As :meth:`Learner.forget`, to the last bit: networks of tasks know nothing of others."""
        check_known(tasks, self.tasks)
        return dataclasses.replace(
            self,
            networks={t: q for t, q in self.networks.items() if t not in tasks},
            counts_by_task={t: n for t, n in self.counts_by_task.items() if t not in tasks},
            **self._left(tasks),
        )

    def predict(self, x: Any) -> Prediction:
        """As :meth:`Learner.predict`."""
        x = np.asarray(x)
        weights = self.weights_at(x)
        total, entropy = np.zeros((len(x), self.classes)), np.zeros(len(x))
        for weight, network in zip(weights.T, self.networks.values(), strict=True):
            own, mean_entropy = chances(network, x, self.draws)
            total += weight[:, None] * own
            entropy += weight * mean_entropy
        unseen = self.counts == 0
        total[:, unseen] = 0
        total /= np.maximum(total.sum(1, keepdims=True), np.finfo(float).tiny)
        with np.errstate(divide="ignore"):
            logs = np.log(np.maximum(total, np.finfo(float).tiny))
        logs[:, unseen] = -np.inf
        return Prediction.of_classes(logs, entropy)

    @abc.abstractmethod
    def weights_at(self, x: Array) -> Array:
        """Of each task's network at each input, (n, tasks); rows sum to one."""


@dataclasses.dataclass(frozen=True, eq=False)
class MixtureLearner(NetworkLearner):
    """``Σ_t w_t q(θ | task t)`` with constant weights: the slides' rule of incremental learning.

    No constant weight can tell which task an input is of, so what it reaches is far below the
    rules whose weights depend on ``x``; it is here to be compared with.

    Args:
        layers: of the network, an output a class.
        weights: ``"even"`` (``1/T``, the slides' ``α``), ``"kl"`` (the weights that minimise the
            divergence to ``Π_t q_t / prior^(T-1)``, estimated from draws; nearly always one task
            takes all), or ``"coreset"`` (the likeliest for a few records kept of each task).
        coreset: records of each class of a task that are kept for the last; none otherwise.
        prior_variance, steps, batch, draws, seed: of the training of each task's network, and of
            draws of weights at prediction.

    Source: egorov2019.
    """

    weights: str = "even"
    coreset: int = 0
    kept: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def _beside(self, task: str, x: Array, y: Array) -> dict[str, Any]:
        few = {task: kept_records(x, y, self.coreset)} if self.coreset else {}
        return {"kept": dict(sorted({**self.kept, **few}.items()))}

    def _left(self, tasks: tuple[str, ...]) -> dict[str, Any]:
        return {"kept": {task: few for task, few in self.kept.items() if task not in tasks}}

    def weights_at(self, x: Array) -> Array:
        """The same at all inputs."""
        return np.broadcast_to(self.constant_weights, (len(x), len(self.tasks)))

    @functools.cached_property
    def constant_weights(self) -> Array:
        """One of each task, in the order of their names."""
        count = len(self.tasks)
        if self.weights == "kl":
            return _by_divergence(list(self.networks.values()), float(self.prior_variance))
        if self.weights == "coreset":
            return self._by_coreset()
        return np.full(count, 1 / count)

    def _by_coreset(self) -> Array:
        x, y = (np.concatenate(part) for part in zip(*self.kept.values(), strict=True))
        own = np.stack(
            [chances(q, x, self.draws)[0][np.arange(len(y)), y] for q in self.networks.values()], 1
        )
        weights = np.full(own.shape[1], 1 / own.shape[1])
        for _ in range(ROUNDS):
            joint = np.maximum(own, np.finfo(float).tiny) * weights
            weights = (joint / joint.sum(1, keepdims=True)).mean(0)
        return weights


@dataclasses.dataclass(frozen=True, eq=False)
class GatedLearner(NetworkLearner):
    """``Σ_t α_t(x) p(y | x, task t)``: networks of tasks, weighed by where an input lies.

    Which task an input is of is said by a conjugate posterior over features of inputs
    (:class:`ConjugateLearner`, the gate): ``α_t(x)`` is the chance of each class at ``x`` times the
    share of the class's records that were of task ``t``. Both parts can be forgotten task by task,
    to the last bit, and come in any order.

    Args:
        layers: of the network, an output a class.
        gate: the rule that says where inputs lie, of as many classes; before any task.
        prior_variance, steps, batch, draws, seed: as of :class:`MixtureLearner`.
    """

    gate: ConjugateLearner | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        gate = ConjugateLearner(self.classes) if self.gate is None else self.gate
        object.__setattr__(self, "gate", gate)

    def _beside(self, task: str, x: Array, y: Array) -> dict[str, Any]:
        assert self.gate is not None, "set when it was made"
        return {"gate": self.gate.observe(task, x, y)}

    def _left(self, tasks: tuple[str, ...]) -> dict[str, Any]:
        assert self.gate is not None, "set when it was made"
        return {"gate": self.gate.forget(*tasks)}

    def weights_at(self, x: Array) -> Array:
        """Chances of classes, shared among the tasks that held them."""
        assert self.gate is not None, "set when it was made"
        by_task = np.stack(list(self.counts_by_task.values()), 1)
        shares = by_task / np.maximum(by_task.sum(1, keepdims=True), 1)
        return self.gate.predict(x).mean @ shares


def _by_divergence(networks: list[Network], variance: float) -> Array:
    """Weights of the mixture nearest to ``Π_t q_t / prior^(T-1)``, which stands for all data.

    They maximise ``E_q[Σ_t log q_t - (T-1) log prior - log q]``, a concave function of them, by
    mirror ascent with the step one, that of its relative smoothness. The first two terms are in
    closed form, the last is from draws, the same at every step.
    """
    means = np.stack([np.asarray(q.mean, np.float64) for q in networks])
    spreads = np.stack([np.asarray(q.variance, np.float64) for q in networks])
    count = len(networks)

    def expected(k: int, mean: Any, spread: Any) -> float:
        """``E_{q_k}[log N]``, without its constant."""
        away = (spreads[k] + (means[k] - mean) ** 2) / spread
        return -0.5 * float((away + np.log(spread)).sum())

    prior = np.full(means.shape[1], variance)
    target = np.array(
        [
            sum(expected(k, means[j], spreads[j]) for j in range(count))
            - (count - 1) * expected(k, 0.0, prior)
            for k in range(count)
        ]
    )
    rng = np.random.RandomState(0)
    densities = np.empty((count, PATHS, count))
    for k in range(count):
        z = means[k] + np.sqrt(spreads[k]) * rng.standard_normal((PATHS, means.shape[1]))
        for j in range(count):
            away = (z - means[j]) ** 2 / spreads[j]
            densities[k, :, j] = -0.5 * (away + np.log(spreads[j])).sum(1)
    logs = np.full(count, -np.log(count))
    for _ in range(ROUNDS):
        mixed = np.asarray(logsumexp(densities + logs, axis=2), float).mean(1)
        logs = logs + target - mixed
        logs = np.maximum(logs - float(logsumexp(logs)), -LEAST)
    return softmax(logs)
