"""What a student's outputs mean, what they are held against, and what they say to a user.

A teacher is a distribution over functions; at an input only a few expectations over its draws
matter, and all of them can be averaged draw by draw. A head says which, and how far outputs are
from them. Of classes they are ``log_chances`` (n, K), logarithms of the averaged probabilities, of
``(0, 1)`` for a Bernoulli likelihood, and ``entropy`` (n,), the averaged entropy ``E[H]`` of one
draw's probabilities; of real values ``mean`` and ``variance`` (n, k) of the function over draws,
and ``noise`` (n, k), the averaged variance of the noise where a teacher knows one. Logarithms and
variances rather than probabilities and squares: in single precision nothing is left of a
probability of 1e-50, nor of the variance 1e-4 of values near a thousand.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.arguments import COUNT, FLAG, POSITIVE
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Float, Real
from posterity.distillation.scaling import Scaling
from posterity.errors import StructureError, UsageError
from posterity.families.gaussian import LOG_2PI
from posterity.models.likelihoods import LIKELIHOOD
from posterity.networks.predictive import Prediction

Expectations = dict[str, Any]
"""Averages over the teacher's draws, by name, each with an axis of inputs first."""
FLOOR = 1e-12
"""What is added to variances of a student, in the squared units of its network's outputs.

A teacher without any uncertainty would else draw the logarithm of its student's towards minus
infinity, and the gradient of the mean with it beyond what a float32 holds.
"""


@dataclasses.dataclass(frozen=True)
class Head:
    """The meaning of a student's outputs, in this order.

    * ``"categorical"``: ``targets`` logits; with ``split`` then the logit of ``E[H] / log K``.
    * ``"bernoulli"``: the log odds of 1; with ``split`` then the logit of ``E[H] / log 2``.
    * ``"gaussian"``: ``k = targets`` means ``m``. Where the ``noise_variance`` is known, then
      ``k`` log variances of the function. Where it is not, with ``split`` the same and then ``k``
      log variances of the noise, without it ``k`` log variances of both together.

    The plain head is the paper's (korattikara2015): it minimises the divergence of its predictive
    from the teacher's. ``split`` asks for a further expectation beside it (vadera2020), which
    tells how much of the uncertainty more data would take away. ``noise_variance`` is in the
    units of ``y``, squared. Heads are hashable: static arguments of compiled functions.

    Raises:
        UsageError: for a likelihood, a number of targets or a noise variance that is none, one
            target of several classes, several of a Bernoulli likelihood, noise of classes.

    >>> Head("categorical", 10, split=True).size, Head("gaussian", 2, split=True).size
    (11, 6)
    """

    likelihood: str
    targets: int
    split: bool = False
    noise_variance: float | int | None = None

    def __post_init__(self) -> None:
        LIKELIHOOD.check(likelihood=self.likelihood)
        COUNT.check(targets=self.targets)
        FLAG.check(split=self.split)
        POSITIVE.or_none().check(noise_variance=self.noise_variance)
        classes = {"categorical": self.targets > 1, "bernoulli": self.targets == 1}
        gaussian = self.likelihood == "gaussian"
        if not classes.get(self.likelihood, True) or not (gaussian or self.noise_variance is None):
            raise UsageError(
                found=f"{self}",
                expected="two targets at least of a categorical likelihood, one of a Bernoulli; a "
                "noise variance of a Gaussian alone",
                fix="Take the likelihood of the teacher's model, and its number of outputs.",
            )
        object.__setattr__(self, "targets", int(self.targets))
        if self.noise_variance is not None:
            object.__setattr__(self, "noise_variance", float(self.noise_variance))

    @property
    def size(self) -> int:
        """Number of outputs of the network."""
        if self.likelihood != "gaussian":
            return self.targets + self.split
        return self.targets * (3 if self.split and self.noise_variance is None else 2)

    def loss(
        self,
        outputs: Float[Real, "n size"],
        expectations: Expectations,
        scaling: Scaling | None = None,
    ) -> Float[Real, " n"]:
        """What training lowers, of each input, in nats; least where the student is its teacher.

        Every term is linear in what is averaged over draws, so that the mean of the losses
        against single draws is, but for a constant, the loss against all of them.

        Classes: the cross-entropy ``-Σ_c p_c log q_c`` of the student's ``q`` against the
        teacher's averaged ``p``: ``KL(p‖q)`` and the entropy of ``p``, which is constant. With
        ``split`` the same of a coin, whose chances are ``h = E[H] / log K`` and the student's
        ``s``: ``-h log s - (1 - h) log(1 - s)``, a proper score of ``h``. A squared error would
        be one as well, but its gradient by the logit ``(s - h) s (1 - s)`` vanishes where the
        teacher is all but certain, and it would have to be weighed; this is in nats, and by its
        logit curves by ``s (1 - s)``, as the first term by its own: neither drowns the other,
        and having outputs of their own they share hidden units only.

        Values: ``½ Σ [log 2π + log t + (σ² + (μ - m)² + ν) / t]``, the expectation of
        ``-log N(y; m, t)`` under the teacher, whose mean, variance and noise are ``μ``, ``σ²``,
        ``ν``; ``t = v + noise`` is all the variance of the student. Where ``v`` is far below the
        noise this hardly depends on it. ``split`` adds ``½ Σ [log 2π + log v + (σ² + (μ - m)²)
        / v]``, the expectation of ``-log N(f; m, v)`` over draws of the function ``f``, which is
        least at ``v = σ²`` however small, and, where the noise is not known, ``½ Σ [log 2π +
        log r + ν / r]`` of the student's ``r``, least at ``r = ν``. All three are least at one
        place, so none takes from another.

        Args:
            outputs: what the network gives.
            expectations: see the head of this module; may be of one draw.
            scaling: between the network's units and those of the expectations; the density is
                that of ``y`` in the network's units.

        Raises:
            StructureError: if outputs or expectations are not what this head needs.
        """
        self._check(outputs, expectations)
        if self.likelihood != "gaussian":
            log_q, log_s = self._logs(outputs)
            found = -(jnp.exp(expectations["log_chances"]) * log_q).sum(-1)
            if log_s is not None:
                share = (expectations["entropy"] / self._log_classes)[:, None]
                found -= (jnp.concatenate([share, 1 - share], -1) * log_s).sum(-1)
            return found
        mean, variance, noise = self._teacher(expectations, scaling)
        m, log_v, log_r = self._moments(outputs, scaling)
        miss = variance + (mean - m) ** 2
        found = _surprise(miss + noise, self._log_total(log_v, log_r))
        if self.split:
            found += _surprise(miss, log_v)
            if self.noise_variance is None:
                found += _surprise(noise, log_r)
        return found

    def divergence(
        self,
        outputs: Float[Real, "n size"],
        expectations: Expectations,
        scaling: Scaling | None = None,
    ) -> Float[Real, " n"]:
        """``KL(teacher's predictive ‖ student's)`` of each input, in nats.

        Of values, between independent Gaussians of the two predictives' moments. Summed so that
        no digits are lost where the two agree. Arguments and errors are those of :meth:`loss`.
        """
        self._check(outputs, expectations)
        if self.likelihood != "gaussian":
            log_p, log_q = expectations["log_chances"], self._logs(outputs)[0]
            p = jnp.exp(log_p)
            # Terms p log(p / q) - p + q, which add up to the same and are all at least zero.
            ratio = jnp.where(p > 0, log_p - log_q, 0)
            near = jnp.abs(ratio) < 1
            close = p * _above_tangent(-jnp.where(near, ratio, 0))
            return jnp.where(near & (p > 0), close, jnp.exp(log_q) - p + p * ratio).sum(-1)
        mean, variance, noise = self._teacher(expectations, scaling)
        m, log_v, log_r = self._moments(outputs, scaling)
        log_total = self._log_total(log_v, log_r)
        ratio = jnp.log(variance + noise) - log_total
        away = (mean - m) ** 2 * jnp.exp(-log_total)
        return (_above_tangent(ratio) + away).sum(-1) / 2

    def prediction(
        self, outputs: Float[Real, "n size"], scaling: Scaling | None = None
    ) -> Prediction:
        """What the outputs say, in NumPy float64 and in the units of ``y``.

        Of classes ``mutual_information`` is None without ``split``: a plain student has no
        opinion of it. With it, it is ``H - E[H]``, at least zero. Of values ``variance`` is the
        function's and ``noise_variance`` the rest; a plain head that does not know its noise
        has both in ``noise_variance``, and None for the other.

        >>> found = Head("categorical", 2, split=True).prediction(np.array([[0.0, 0.0, -9.0]]))
        >>> found.mean, found.entropy.round(3), found.mutual_information.round(3)
        (array([[0.5, 0.5]]), array([0.693]), array([0.693]))
        """
        outputs = np.asarray(outputs, np.float64)
        self._check(outputs, None)
        if self.likelihood != "gaussian":
            log_q, log_s = self._logs(outputs)
            q = np.exp(log_q)
            entropy, known = _entropy(log_q), None
            if log_s is not None:
                known = np.maximum(entropy - np.exp(log_s[:, 0]) * self._log_classes, 0)
            return Prediction(
                q if self.likelihood == "categorical" else q[:, 1], entropy, known, log_q
            )
        m, log_v, log_r = self._moments(outputs, None)
        shift, scale = _units(scaling)
        with np.errstate(over="ignore"):  # a variance that no float64 holds is infinite
            variance = None if log_v is None else np.exp(log_v) * scale**2
            if self.noise_variance is None:
                noise = np.exp(log_r) * scale**2
            else:
                noise = np.full_like(m, self.noise_variance)
        return Prediction(shift + scale * m, variance=variance, noise_variance=noise)

    # --- parts of the outputs ---------------------------------------------------------------------

    @property
    def _log_classes(self) -> float:
        return math.log(max(self.targets, 2))

    def _logs(self, outputs: Any) -> tuple[Any, Any]:
        """Log chances of the classes (n, K), and of the coin of the split (n, 2), if there is."""
        logits = outputs[:, : self.targets]
        logs = _log_coin(logits)[:, ::-1] if self.targets == 1 else _log_softmax(logits)
        return logs, _log_coin(outputs[:, self.targets :]) if self.split else None

    def _moments(self, outputs: Any, scaling: Scaling | None) -> tuple[Any, Any, Any]:
        """Means, log variances of the function and of the noise, in the network's units.

        None for the function's where it is part of the noise.
        """
        np_ = namespace(outputs).np
        parts = np_.split(outputs, self.size // self.targets, axis=1)
        logs = [np_.logaddexp(part, math.log(FLOOR)) for part in parts[1:]]
        if self.noise_variance is not None:
            scale = _units(scaling)[1]
            known = math.log(self.noise_variance) - 2 * namespace(scale, parts[0]).np.log(scale)
            return parts[0], logs[0], np_.zeros_like(parts[0]) + known
        return (parts[0], *logs) if self.split else (parts[0], None, logs[0])

    def _log_total(self, log_v: Any, log_r: Any) -> Any:
        return log_r if log_v is None else jnp.logaddexp(log_v, log_r)

    def _teacher(self, expectations: Expectations, scaling: Scaling | None) -> tuple[Any, Any, Any]:
        """Mean, variance and noise of the teacher, in the network's units."""
        shift, scale = _units(scaling)
        noise = expectations.get("noise", self.noise_variance)
        shift, scale = (jnp.asarray(part, expectations["mean"].dtype) for part in (shift, scale))
        return (
            (expectations["mean"] - shift) / scale,
            expectations["variance"] / scale**2,
            noise / scale**2,
        )

    def _check(self, outputs: Any, expectations: Expectations | None) -> None:
        if outputs.ndim != 2 or outputs.shape[1] != self.size:
            raise StructureError(
                found=f"outputs of shape {outputs.shape}",
                expected=f"(n, {self.size}), as {self} has",
                fix="Give the student as many outputs as `Head.size` says.",
            )
        if expectations is None:
            return
        n, k = len(outputs), self.targets
        needed: dict[str, tuple[int, ...]] = {"mean": (n, k), "variance": (n, k)}
        if self.likelihood != "gaussian":
            needed = {"log_chances": (n, max(k, 2))} | ({"entropy": (n,)} if self.split else {})
        elif self.noise_variance is None:
            needed["noise"] = (n, k)
        given = {name: np.shape(value) for name, value in expectations.items() if name in needed}
        if given != needed:
            raise StructureError(
                found=f"expectations {given}",
                expected=f"{needed} for {self}",
                fix="Take a head with the teacher's likelihood, its number of outputs, and its "
                "noise variance where it has one.",
            )


# --- expectations over draws ----------------------------------------------------------------------


def expectations_of(
    likelihood: str, outputs: Any, noise_variance: Any = None, *, axis: int = 0
) -> Expectations:
    """Averages over the teacher's draws of what its outputs say; see the head of this module.

    May be compiled and vectorised, with ``likelihood`` and ``axis`` static.

    Args:
        likelihood: ``"categorical"``: outputs are logits (draws, n, K); ``"bernoulli"``: logits
            (draws, n) or (draws, n, 1); ``"gaussian"``: values (draws, n) or (draws, n, k).
        outputs: with the draws on ``axis``; of a Gaussian likelihood, where each input has noise
            of its own, a pair of the values and of the noise's variances, shaped alike.
        noise_variance: of the others' noise: a number, or one for each draw, shaped to
            broadcast against the values.
        axis: where the draws are.

    >>> import jax.numpy as jnp
    >>> found = expectations_of("gaussian", jnp.array([[[1.0]], [[3.0]]]), 0.5)
    >>> {name: float(value[0, 0]) for name, value in found.items()}
    {'mean': 2.0, 'variance': 1.0, 'noise': 0.5}
    """
    LIKELIHOOD.check(likelihood=likelihood)
    if likelihood == "gaussian":
        values, noise = outputs if isinstance(outputs, tuple | list) else (outputs, noise_variance)
        values = jnp.moveaxis(jnp.asarray(values), axis, 0)
        if noise is not None and jnp.ndim(noise):
            noise = jnp.moveaxis(jnp.asarray(noise), axis, 0)
        # About one of the draws, so that large values leave digits for their variance.
        away = values - values[0]
        mean = away.mean(0)
        found = {"mean": values[0] + mean, "variance": ((away - mean) ** 2).mean(0)}
        if noise is not None:
            found["noise"] = jnp.broadcast_to(noise, values.shape).mean(0).astype(values.dtype)
        return {name: value.reshape(len(value), -1) for name, value in found.items()}
    logits = jnp.moveaxis(jnp.asarray(outputs), axis, 0)
    if likelihood == "bernoulli":
        logs = _log_coin(logits.reshape(*logits.shape[:2], 1))[..., ::-1]
    else:
        logs = _log_softmax(logits)
    mean = jax.nn.logsumexp(logs, axis=0) - math.log(len(logs))
    return {"log_chances": mean, "entropy": _entropy(logs).mean(0)}


def merge(
    first: Expectations, second: Expectations, counts: tuple[Any, Any] | list[Any]
) -> Expectations:
    """The expectations over all draws from those over two parts, of so many draws each.

    A running average of any length is one such dictionary and the number of draws in it; the
    variance is exact, by the parallel formula (chan1983). Of NumPy arrays computed in NumPy:
    beyond some millions of draws keep the average in float64, where the newest still counts.

    Raises:
        StructureError: if the two are not of the same likelihood.

    >>> one = {"mean": np.array([[0.0]]), "variance": np.array([[0.0]])}
    >>> two = {"mean": np.array([[3.0]]), "variance": np.array([[0.0]])}
    >>> merge(one, two, (2, 1))["variance"].item()  # of 0, 0 and 3
    2.0
    """
    if set(first) != set(second):
        raise StructureError(
            found=f"expectations {sorted(first)} and {sorted(second)}",
            expected="the same of both parts",
            fix="Average each likelihood's on their own.",
        )
    share, found = counts[1] / (counts[0] + counts[1]), {}
    for name in first:
        one, two = first[name], second[name]
        np_ = namespace(one, two, share).np
        if name == "log_chances":
            with np.errstate(divide="ignore"):  # a part without draws has no share
                found[name] = np_.logaddexp(one + np_.log1p(-share), two + np_.log(share))
            continue
        found[name] = one + share * (two - one)
        if name == "variance":
            found[name] += share * (1 - share) * (second["mean"] - first["mean"]) ** 2
    return found


# --- formulas -------------------------------------------------------------------------------------


def _surprise(square: Any, log_variance: Any) -> Any:
    """``-log N`` of an expected square, summed over targets."""
    return (LOG_2PI + log_variance + square * jnp.exp(-log_variance)).sum(-1) / 2


def _above_tangent(x: Any) -> Any:
    """``exp(x) - 1 - x``, with all digits at zero."""
    series = x * x * (0.5 + x / 6 * (1 + x / 4 * (1 + x / 5)))
    return jnp.where(jnp.abs(x) < 0.05, series, jnp.expm1(x) - x)


def _log_softmax(logits: Any) -> Any:
    np_ = namespace(logits).np
    # Bounded, so that a chance of zero times its logarithm is zero also where logits overflow.
    away = np_.maximum(logits - logits.max(-1, keepdims=True), -1e30)
    return away - np_.log(np_.exp(away).sum(-1, keepdims=True))


def _log_coin(logits: Any) -> Any:
    """Logarithms of the chances (…, 2) of what has these log odds (…, 1), and of its opposite."""
    np_ = namespace(logits).np
    return -np_.concatenate([np_.logaddexp(0, -logits), np_.logaddexp(0, logits)], -1)


def _entropy(logs: Any) -> Any:
    return -(namespace(logs).np.exp(logs) * logs).sum(-1)


def _units(scaling: Scaling | None) -> tuple[Any, Any]:
    if scaling is None or scaling.y_shift is None:
        return 0.0, 1.0
    return scaling.y_shift, scaling.y_scale
