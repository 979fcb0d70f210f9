"""Heads: the meaning of a student's outputs, their divergence from a teacher, and predictions."""

import dataclasses
import math
import numbers
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from posterity.arguments import COUNT, FLAG, POSITIVE, Constraint, check_shape, number_of
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Float, Real
from posterity.distillation.pytrees import Array, leaves
from posterity.distillation.scaling import Scaling
from posterity.errors import StructureError, UsageError
from posterity.families.gaussian import LOG_2PI
from posterity.models.forward import shapes_of
from posterity.models.likelihoods import LIKELIHOOD
from posterity.networks.chances import kl_of_classes, kl_of_values, log_coin, log_softmax
from posterity.networks.predictive import (
    TINY,
    Expectations,
    Prediction,
    mutual_information,
)

DEGREES = Constraint("a number above 2", number_of(numbers.Real, lambda x: float(x) > 2))
FLOOR = 1e-12
"""Added to a student's variances, in squared units of the network's outputs, so that their
logarithms stay bounded below even if the teacher is certain."""


@leaves("noise_variance")
@dataclasses.dataclass(frozen=True)
class Head:
    """The meaning of a student's outputs, which are ordered as follows.

    * ``"categorical"``: ``targets`` logits; ``"bernoulli"``: the log odds of 1. With ``split``
      there follows the logit of ``1 - E[H] / H``, the share of entropy that more data would remove.
    * ``"gaussian"``: ``k = targets`` means ``m``. If ``noise_variance`` (in squared units of ``y``)
      is known, ``k`` log variances of the function follow. If it is None: with ``split``, ``k`` log
      variances of the function and ``k`` of the noise; without, ``k`` of the total variance. New
    values have the t law of so many ``degrees`` of freedom, more than two, with these moments;
    infinitely many are a normal law.

    The plain head is the paper's (korattikara2015); ``split`` adds an expectation (vadera2020). A
    UsageError for a categorical head with one target, a Bernoulli head with several, or a noise
    variance of either.

    >>> Head("categorical", 10, split=True).size, Head("gaussian", 2, split=True).size
    (11, 6)
    """

    likelihood: str
    targets: int
    split: bool = False
    noise_variance: float | int | None = None
    degrees: float | int = math.inf

    def __post_init__(self) -> None:
        LIKELIHOOD.check(likelihood=self.likelihood)
        COUNT.check(targets=self.targets)
        FLAG.check(split=self.split)
        POSITIVE.or_none().check(noise_variance=self.noise_variance)
        DEGREES.check(degrees=self.degrees)
        classes = {"categorical": self.targets > 1, "bernoulli": self.targets == 1}
        noisy = self.likelihood in classes and self.noise_variance is not None
        if noisy or not classes.get(self.likelihood, True):
            raise UsageError(
                found=f"{self}",
                expected="two classes or more, one Bernoulli, noise of Gaussians",
            )
        object.__setattr__(self, "targets", int(self.targets))
        object.__setattr__(self, "degrees", float(self.degrees))
        if self.noise_variance is not None:
            object.__setattr__(self, "noise_variance", float(self.noise_variance))

    @classmethod
    def of_model(cls, model: Any, z: PyTree, x: Array) -> Self:
        """Return the head without a split for a model, from the shapes of its outputs. ``z`` is one
        event of the model's parameters, or its shapes, and ``x`` are inputs (n, ...). A UsageError
        if the model has no ``likelihood`` or method ``outputs(z, x)``; a StructureError for outputs
        that do not fit the likelihood.
        """
        kind = getattr(model, "likelihood", None)
        if kind is None or not hasattr(model, "outputs"):
            raise UsageError(
                found=f"a {type(model).__name__}, which does not say what it predicts",
                expected="a `likelihood` and `outputs(z, x)`, or FunctionModel(..., predict=...)",
            )
        LIKELIHOOD.check(likelihood=kind)
        made = shapes_of(model.outputs, z, x)
        own = getattr(model, "noise_variance", None) if kind == "gaussian" else None
        pair = isinstance(made, tuple) and len(made) == 2
        shape = getattr(made[0] if pair else made, "shape", ())
        axes = {"categorical": (2,), "bernoulli": (1, 1 + (shape[1:] == (1,))), "gaussian": (1, 2)}
        if len(shape) not in axes[kind] or pair != (kind == "gaussian" and own is None):
            raise StructureError(
                found=f"outputs of shape {jax.tree.map(np.shape, made)} for {len(x)} inputs",
                expected="logits (n, K), or (n,) of labels in {0, 1}, or means (n,) or (n, k)",
            )
        return cls(kind, shape[1] if len(shape) == 2 else 1, noise_variance=own)

    @property
    def size(self) -> int:
        """Number of outputs of the network."""
        if self.likelihood != "gaussian":
            return self.targets + self.split
        return self.targets * (3 if self.split and self.noise_variance is None else 2)

    @property
    def has_variance(self) -> bool:
        """True if the variance of the function is an output, apart from that of the noise."""
        return self.likelihood == "gaussian" and (self.split or self.noise_variance is not None)

    def loss(
        self,
        outputs: Float[Real, "n size"],
        expectations: Expectations,
        scaling: Scaling | None = None,
        correction: float = 1.0,
    ) -> Float[Real, " n"]:
        """Return the loss of each input in nats, least if the student predicts as its teacher.

        The terms are linear in averages over draws: up to a constant, the mean of the losses
        against a few draws at a time is the loss against all of them.

        Classes: the cross-entropy ``-Σ_c p_c log q_c`` of the student's ``q`` against the teacher's
        averaged ``p``. ``split`` adds ``-I log s - E[H] log(1 - s)``, with the student's share
        ``s`` and the teacher's mutual information ``I``; it is least at ``s = I / (I + E[H])``. A
        difference of two learned entropies would have errors larger than a small ``I``.

        Values: ``½ Σ [log 2π + log t + (σ² + (μ - m)² + ν) / t]``, the expectation of ``-log N(y;
        m, t)`` under a teacher of mean ``μ``, variance ``σ²`` and noise ``ν``; ``t = v + noise`` is
        the student's total variance. Where ``v`` is an output, ``½ Σ [log 2π + log v + (σ² + (μ -
        m)²) / v]`` is added, least at ``v = σ²``, since ``t`` hardly depends on it where the noise
        is large; and ``½ Σ [log 2π + log r + ν / r]`` with ``split`` if the noise is not known.

        ``outputs`` are the network's. ``expectations`` are those of
        :mod:`posterity.networks.predictive`, over one draw or more. ``scaling`` maps between
        their units and those of the network, which densities refer to. ``correction`` multiplies
        ``I``, see :meth:`Teacher.correction`.
        """
        if self.likelihood != "gaussian":
            log_q, log_s = self._logs(outputs)
            loss = -(jnp.exp(expectations["log_chances"]) * log_q).sum(-1)
            if log_s is not None:
                known = mutual_information(expectations)
                rest = expectations["entropy"]
                loss -= correction * known * log_s[:, 0] + rest * log_s[:, 1]
            return loss
        mean, variance, noise = self._teacher(expectations, scaling)
        m, log_v, log_r, log_total = self._moments(outputs, scaling)
        miss = variance + (mean - m) ** 2
        loss = _surprise(miss + noise, log_total)
        if self.has_variance:
            loss += _surprise(miss, log_v)
        if self.split and self.noise_variance is None:
            loss += _surprise(noise, log_r)
        return loss

    def divergence(
        self,
        outputs: Float[Real, "n size"],
        expectations: Expectations,
        scaling: Scaling | None = None,
    ) -> Float[Real, " n"]:
        """Return ``KL(teacher's predictive ‖ student's)`` of each input, in nats. For values it is
        between independent Gaussians with the predictives' moments. Arguments as of :meth:`loss`.
        """
        if self.likelihood != "gaussian":
            return kl_of_classes(expectations["log_chances"], self._logs(outputs)[0])
        mean, variance, noise = self._teacher(expectations, scaling)
        m, *_, log_total = self._moments(outputs, scaling)
        return kl_of_values(mean - m, jnp.log(variance + noise), log_total)

    def share_divergence(
        self,
        outputs: Float[Real, "n size"],
        expectations: Expectations,
        scaling: Scaling | None = None,
    ) -> Float[Real, " n"]:
        """Return the divergence, in nats, of the shares that more data would remove; for ``split``.
        For classes it is ``H KL(Bernoulli(s) ‖ Bernoulli(student's s))``, with the teacher's
        entropy ``H`` and its share ``s``. For values, ``s`` is the share of the predictive
        variance, without the factor ``H``, and the mean is over targets.
        """
        if self.likelihood != "gaussian":
            parts = mutual_information(expectations), expectations["entropy"]
            own = self._logs(outputs)[1]
        else:
            _, variance, noise = self._teacher(expectations, scaling)
            _, log_v, log_r, log_total = self._moments(outputs, scaling)
            parts = variance, noise + jnp.zeros_like(variance)
            own = jnp.stack([log_v, log_r], -1) - log_total[..., None]
        logs = jnp.log(jnp.stack(parts, -1) + TINY)
        total = jax.nn.logsumexp(logs, axis=-1, keepdims=True)
        apart = kl_of_classes(logs - total, own)
        return apart.mean(-1) if apart.ndim > 1 else jnp.exp(total[:, 0]) * apart

    def prediction(
        self, outputs: Float[Real, "n size"], scaling: Scaling | None = None
    ) -> Prediction:
        """Return the prediction of the outputs, in NumPy float64 and in the units of ``y``. Without
        ``split``, the ``mutual_information`` of classes is None, and for values of unknown noise
        the ``noise_variance`` is the total variance.

        >>> answer = Head("categorical", 2, split=True).prediction(np.array([[0.0, 0.0, -9.0]]))
        >>> answer.mean, answer.entropy.round(3), answer.mutual_information.round(5)
        (array([[0.5, 0.5]]), array([0.693]), array([9.e-05]))
        """
        outputs = np.asarray(outputs, np.float64)
        check_shape("outputs", outputs, None, self.size)
        if self.likelihood != "gaussian":
            log_q, log_s = self._logs(outputs)
            plain = Prediction.of_classes(log_q, likelihood=self.likelihood)
            known = None if log_s is None else plain.entropy * np.exp(log_s[:, 0])
            return dataclasses.replace(plain, mutual_information=known)
        m, log_v, log_r, _ = self._moments(outputs, None)
        shift, scale = units(scaling)
        with np.errstate(over="ignore"):  # a variance that no float64 holds is infinite
            variance = None if log_v is None else np.exp(log_v) * scale**2
            noise = np.exp(log_r) * scale**2
        if self.noise_variance is not None:
            noise = np.full_like(m, self.noise_variance)
        parts = {"variance": variance, "noise_variance": noise}
        return Prediction(shift + scale * m, **parts, degrees=self.degrees)

    def _logs(self, outputs: Array) -> tuple[Any, Any]:
        """Return log probabilities of classes (n, K), and logs of the entropy's shares (n, 2)."""
        logits = outputs[:, : self.targets]
        logs = log_coin(logits)[:, ::-1] if self.targets == 1 else log_softmax(logits)
        return logs, log_coin(outputs[:, self.targets :]) if self.split else None

    def _moments(self, outputs: Array, scaling: Scaling | None) -> tuple[Any, ...]:
        """Return means, and log variances of function (or None), noise and total; network units."""
        np_ = namespace(outputs).np
        mean, *parts = np_.split(outputs, self.size // self.targets, axis=1)
        logs = [np_.logaddexp(part, math.log(FLOOR)) for part in parts]
        if self.noise_variance is not None:
            scale = units(scaling)[1]
            log = namespace(scale, mean, self.noise_variance).np.log
            known = log(self.noise_variance) - 2 * log(scale)
            logs.append(np_.zeros_like(mean) + known)
        elif not self.split:
            return mean, None, logs[0], logs[0]
        return mean, *logs, np_.logaddexp(*logs)

    def _teacher(self, expectations: Expectations, scaling: Scaling | None) -> tuple[Any, Any, Any]:
        """Return the mean, variance and noise of the teacher, in the network's units."""
        mean = expectations["mean"]
        noise = expectations.get("noise", self.noise_variance)
        shift, scale = (jnp.asarray(part, mean.dtype) for part in units(scaling))
        return (mean - shift) / scale, expectations["variance"] / scale**2, noise / scale**2


def _surprise(square: Array, log_variance: Array) -> Array:
    """Return ``-log N`` for an expected squared deviation, summed over targets."""
    return (LOG_2PI + log_variance + square * jnp.exp(-log_variance)).sum(-1) / 2


def units(scaling: Scaling | None) -> tuple[Any, Any]:
    """Return the shift and the scale of values, 0 and 1 without a scaling."""
    if scaling is None or scaling.y_shift is None:
        return 0.0, 1.0
    return scaling.y_shift, scaling.y_scale
