"""Differential privacy of natural parameters: clipped contributions, their sum, Gaussian noise.

The length of a contribution is that in the Fisher metric of a public reference such as the prior:
``sqrt(stepᵀ F step)``, in sqrt(nats). Contributions are shortened to at most ``clip`` and added up.
Then Gaussian noise is added that is equally large in all directions of this metric. A change of
units or of coordinates therefore does not change what is released. The unit of privacy depends on
what a contribution is: a **site's** whole factor, or a **record's** part of it, if the factor is a
sum over records (:func:`record_contributions`). A posterior that was fitted to its records is no
such sum; for it only the site can be the unit.
"""

import dataclasses
import functools
import math
import os
from typing import Any, Literal, Self

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular
from scipy.optimize import brentq
from scipy.special import ndtri

from posterity.arguments import BETWEEN, COUNT, NOT_NEGATIVE, POSITIVE, check_shape, one_of
from posterity.arrays.typing import ArrayLike
from posterity.errors import MissingExtraError, ParameterError, UsageError
from posterity.families import ExponentialFamily, at_rest
from posterity.families.checks import check_finite, check_proper
from posterity.families.coordinates import POSITIVE_DEFINITE
from posterity.inference.estimators import Evaluator, Exact
from posterity.inference.update import best_estimator
from posterity.models import ConjugateModel, Model
from posterity.models.records import Records
from posterity.models.tables import check_numbers, columns_of

Relation = Literal["replace", "add or remove"]
MOST_PARAMETERS = 4096
"""Largest number of natural parameters: noise in more leaves little information."""
LEAST_SHARP = 0.3
"""Noise, in sensitivities, below which the exact accountant is slow: epsilon is above 19."""
DRAWS = 4
"""Normal draws summed into one, so that low bits do not reveal the result (holohan2021)."""


@dataclasses.dataclass(frozen=True)
class GaussianMechanism:
    """Noisy releases of sums of contributions to natural parameters.

    Args:
        reference: the distribution whose Fisher metric measures lengths; it must not depend on the
            protected data, or only through earlier releases.
        clip: the maximum length of one contribution, in sqrt(nats), chosen without the data.
        noise: the standard deviation of the noise, in sensitivities; 0 gives no protection.
        relation: the neighbouring data sets: one contribution is replaced by another (sensitivity
            ``2 clip``), or is added or removed (``clip``). A site that adds the noise to its own
            factor is protected, for any data, by "replace".
        shares: number of sites whose noise adds up before the sum is revealed, as by
            homomorphic encryption. Count only sites that are honest and do not drop out.
    """

    reference: ExponentialFamily
    clip: float
    noise: float
    relation: Relation = "replace"
    shares: int = 1

    def __post_init__(self) -> None:
        check_proper(self.reference, "the reference")
        POSITIVE.check(clip=self.clip)
        NOT_NEGATIVE.check(noise=self.noise)
        one_of("replace", "add or remove").check(relation=self.relation)
        COUNT.check(shares=self.shares)
        if self.reference.batch_shape or self.reference.dimension > MOST_PARAMETERS:
            raise UsageError(
                found=f"a reference of {self.reference.dimension} natural parameters, of batch "
                f"shape {self.reference.batch_shape}",
                expected=f"one law of at most {MOST_PARAMETERS}",
            )
        object.__setattr__(self, "reference", at_rest(self.reference))

    @classmethod
    def calibrated(
        cls,
        reference: ExponentialFamily,
        clip: float,
        *,
        epsilon: float,
        delta: float,
        releases: int = 1,
        **options: Any,
    ) -> Self:
        """Return the mechanism whose ``releases`` together have at most this ``epsilon``, and
        little less. Raises a MissingExtraError without the extra ``privacy``, and a ParameterError
        for what no noise of 0.001 to 1e9, times the root of ``releases``, gives.
        """
        POSITIVE.check(epsilon=epsilon)
        COUNT.check(releases=releases)

        def made(log_noise: float) -> Self:
            return cls(reference, clip, math.exp(log_noise), **options)

        def exceeds(log_noise: float) -> float:
            return made(log_noise).epsilon(delta, releases) - epsilon

        # The root is at most so far from the noise sought, which is not to be below it.
        ends = math.log(1e-3), math.log(1e9 * math.sqrt(releases))
        try:
            near: Any = brentq(exceeds, *ends, xtol=1e-4)
        except ValueError as error:
            raise ParameterError(
                found=f"epsilon={epsilon} and delta={delta} of {releases} releases",
                expected="those of noise of 0.001 to 1e9, times the root of the releases",
            ) from error
        return made(near + 1e-4)

    def epsilon(self, delta: float, releases: int = 1) -> float:
        """Return the ``epsilon`` of all ``releases`` together for this ``delta``.

        It holds for one contribution (``relation``) that may be in each release. For releases from
        different records take the greatest. Exact to four digits up to about 19, an upper bound
        beyond. Raises a MissingExtraError without the extra ``privacy``.
        """
        BETWEEN.check(delta=delta)
        COUNT.check(releases=releases)
        if not self.noise:
            return math.inf
        accounting = _accounting()
        noise = self.noise / math.sqrt(releases)
        sharp = noise >= LEAST_SHARP
        accountant = (accounting.pld.PLDAccountant if sharp else accounting.rdp.RdpAccountant)()
        return float(accountant.compose(accounting.GaussianDpEvent(noise)).get_epsilon(delta))

    @property
    def sensitivity(self) -> float:
        """The maximum length by which one contribution changes the sum, in sqrt(nats)."""
        return self.clip * (2.0 if self.relation == "replace" else 1.0)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise of one release in any direction, in sqrt(nats)."""
        return self.noise * self.sensitivity / math.sqrt(self.shares)

    def release(
        self, contributions: ArrayLike, *, rng: np.random.Generator | None = None
    ) -> ExponentialFamily:
        """Return the noisy sum of clipped contributions (n, dim), as a factor that may be improper.

        Each row is one unit of privacy, flat as ``natural_parameters`` are. A generator ``rng`` is
        for experiments only, since its seed allows the noise to be removed; by default the noise
        comes from the system's randomness. Raises a ParameterError or StructureError for rows that
        are not finite, or of another length.
        """
        total = self.clipped(contributions).sum(0)
        total = total + self.deviation * _normal(len(total), rng)
        flat = solve_triangular(self.root, total, lower=True, trans=1)
        return self.reference.with_natural_parameters(flat)

    def clipped(self, contributions: ArrayLike) -> Float[np.ndarray, "n dim"]:
        """Return the clipped contributions, in coordinates where lengths are Euclidean."""
        rows = np.asarray(contributions, np.float64)
        check_shape("contributions, a row a unit of privacy,", rows, None, self.reference.dimension)
        with np.errstate(over="ignore", invalid="ignore"):
            rows = rows @ self.root
        fix = "Find the records that cause them, without revealing which."
        check_numbers(rows, "contributions, or overflow of their lengths", fix)
        largest = np.abs(rows).max(1, keepdims=True, initial=np.finfo(float).tiny)
        lengths = largest * np.linalg.norm(rows / largest, axis=1, keepdims=True)
        bound = self.clip * (1 - 1e-9)  # a little less, so that rounding does not exceed it
        return rows * (bound / np.maximum(lengths, bound))

    @functools.cached_property
    def root(self) -> Float[np.ndarray, "dim dim"]:
        """``L`` of ``F = L Lᵀ``; rows times ``L`` have their length as the Euclidean one."""
        try:
            return np.linalg.cholesky(np.asarray(self.reference.fisher_information()))
        except np.linalg.LinAlgError as error:
            raise ParameterError(
                found=f"a reference {self.reference!r} whose Fisher information is singular",
                expected="a reference whose parameters have similar precision",
            ) from error


def record_contributions(
    model: Model, reference: ExponentialFamily, data: Any
) -> Float[np.ndarray, "n dim"]:
    """Return each record's part of the natural parameters of its site's factor, flat.

    For a conjugate model these are the sufficient statistics, for any reference. For others it is
    the natural gradient ``∇_μ E_q[log p(record | z)]`` at the reference ``q``: one step towards the
    posterior, as in heikkila2023. A further step starts at the last noisy sum, and is a new
    release.

    Raises:
        UsageError: if records depend on each other, or gradients are stochastic; then the site is
            the unit of privacy.
        StructureError, ParameterError: for data that the model cannot take.
    """
    rule = best_estimator(model, reference)
    if model.joint or not isinstance(rule, Evaluator | Exact):
        raise UsageError(
            found=f"{type(model).__name__} with a {type(reference).__name__}, whose factor is no "
            "sum that can be told record by record",
            expected="a conjugate model, or one whose expectations are known",
            fix="Release the site's whole factor: [factor.natural_parameters] is the one row.",
        )
    records = Records.of(data, names=columns_of(reference))
    if not records.size:
        return np.zeros((0, reference.dimension))
    model.check(records.data)
    records = records.widened()
    if isinstance(model, ConjugateModel):
        each = [jax.tree.map(lambda leaf: leaf[n : n + 1], records) for n in range(records.size)]  # noqa: B023
        return np.stack([at_rest(model.factor(one)).natural_parameters for one in each])
    with jax.enable_x64(True):
        rows = _gradients(rule, model, at_rest(reference), records.padded().data)
    return np.asarray(rows)[: records.size]


@eqx.filter_jit
def _gradients(rule: Any, model: Model, q: Any, data: Any) -> Any:
    def one(data: Any) -> Any:
        alone = Records(jax.tree.map(lambda leaf: leaf[None], data), np.ones(1))
        return rule.evaluate(model, q, alone).gradient.natural_parameters

    return jax.vmap(one)(data)


def proper_factor(prior: Any, factor: Any) -> Any:
    """Return the factor, corrected where noise made it improper. This uses no private data.

    Where a natural parameter of the family is bounded below, as counts and precisions are, the
    factor's is made positive (semi-definite: eigenvalues relative to the prior). If the sum with
    the prior is still improper, the factor is shrunk until the sum is proper.
    """
    check_finite(factor, "the factor")
    factor = _raised(prior, factor)
    while not np.all((prior + factor).is_proper()):
        factor = factor * 0.9
    return factor


def _raised(prior: Any, factor: Any) -> Any:
    if prior.composed:
        pairs = zip(prior.parts(), factor.parts(), strict=True)
        return factor.rebuild([_raised(*pair) for pair in pairs])
    made = {}
    for name, coordinate in factor.coordinates.items():
        leaf = np.asarray(getattr(factor, name))
        if coordinate.domain is POSITIVE_DEFINITE:
            root = np.linalg.cholesky(np.asarray(getattr(prior, name)))
            half = np.swapaxes(np.linalg.solve(root, leaf), -1, -2)
            values, vectors = np.linalg.eigh(np.linalg.solve(root, half))
            wide = root @ vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
            leaf = wide @ np.swapaxes(wide, -1, -2)
        elif coordinate.domain.above != -np.inf:
            leaf = np.maximum(leaf, 0.0)
        made[name] = leaf
    return type(factor)(**made)


def _accounting() -> Any:
    try:
        import dp_accounting  # pyright: ignore[reportMissingImports]
        import dp_accounting.pld  # pyright: ignore[reportMissingImports]
        import dp_accounting.rdp  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError.of("dp-accounting", "privacy") from error
    return dp_accounting


def _normal(size: int, rng: np.random.Generator | None) -> np.ndarray:
    if rng is not None:
        return rng.standard_normal(size)
    bits = np.frombuffer(os.urandom(8 * DRAWS * size), "<u8").reshape(DRAWS, size)
    return ndtri(((bits >> np.uint64(12)) + 0.5) / 2.0**52).sum(0) / math.sqrt(DRAWS)
