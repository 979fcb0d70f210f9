"""Expectation propagation over a site's records: its likelihood as one Gaussian.

Source: minka2001.
"""

import contextlib
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.linear_algebra import root_of_range
from posterity.arrays.search import newton, step_by_curvature
from posterity.arrays.typing import Float
from posterity.families import Gaussian
from posterity.inference.descent import not_finite
from posterity.models import LinearRegression, PersonalRegression, Records
from posterity.models.nodes import hermite
from posterity.runtime.lazy import jax


@dataclasses.dataclass(frozen=True)
class Sweeps:
    """How long expectation propagation goes on, and how exact it is."""

    nodes: int = 24
    """Number of Gauss-Hermite nodes along each record's predictor."""
    most: int = 100
    """Largest number of sweeps."""
    undamped: int = 15
    """Number of first sweeps without damping."""
    rest: float = 1e-5
    """Change of a message, in standard deviations of the predictor, at which the sweeps end."""
    least: float = 1e-9
    """Smallest precision of a record's message, relative to the precision of its predictor, so that
    the message can change the predictor's mean."""


SWEEPS = Sweeps()

Vector = Float[np.ndarray, " d"]
Matrix = Float[np.ndarray, "d d"]


class Normal(NamedTuple):
    """A Gaussian ``exp(linear · z - zᵀ precision z / 2)``: a distribution, or a factor of one."""

    linear: Vector
    precision: Matrix

    @classmethod
    def of(cls, law: Any) -> "Normal":
        """Convert a Gaussian or a diagonal Gaussian of the library."""
        precision = np.asarray(law.precision)
        linear = np.asarray(law.precision_mean)
        return cls(linear, np.diag(precision) if law.diagonal else precision)

    @property
    def law(self) -> Gaussian:
        """The same as a Gaussian of the library."""
        return Gaussian._of(precision_mean=self.linear, precision=self.precision)

    @classmethod
    def nothing(cls, size: int) -> "Normal":
        """Return the factor of so many coordinates that tells nothing of them."""
        return cls(np.zeros(size), np.zeros((size, size)))

    @classmethod
    def matched(cls, mean: Vector, covariance: Matrix) -> "Normal":
        """Return the Gaussian with these moments."""
        precision = np.linalg.inv(covariance)
        return cls(precision @ mean, precision)

    def plus(self, other: "Normal", share: float = 1.0) -> "Normal":
        """Return the product with the power ``share`` of another Gaussian."""
        linear = self.linear + share * other.linear
        return Normal(linear, self.precision + share * other.precision)

    def blurred(
        self, variance: Float[np.ndarray, "*m d"], *, rounding: float = 1e-13
    ) -> tuple["Normal", np.ndarray]:
        """Return the factor of ``c`` where ``β ~ N(c, D)`` has this one, and the log determinant of
        ``I + ΛD``. ``D`` has the diagonals ``variance``, whose leading axes come before those of
        this Gaussian in the results. A share ``rounding`` of Λ that stays where D is infinite is
        taken for none.
        """
        own = np.flatnonzero(variance.any(tuple(range(variance.ndim - 1))))
        spread = variance[..., None, own]
        both = np.concatenate([self.precision, self.linear[..., None]], -1)
        # By a root, so that what a singular Λ lacks is exactly nothing, however large D is.
        root, signs, inverse = root_of_range(self.precision[..., own[:, None], own])
        signs = signs[..., None]
        inner = signs * np.eye(len(own)) + (np.swapaxes(root, -1, -2) * spread) @ root
        along = signs * (inverse @ both[..., own, :])
        turned = np.swapaxes(along[..., :-1], -1, -2)
        apart = both - turned @ (signs * along)  # of the other coordinates alone, or rounding
        apart = np.where(np.abs(apart) > rounding * np.abs(both), apart, 0.0)
        left = apart + turned @ np.linalg.solve(inner, along)
        return Normal(left[..., -1], left[..., :-1]), np.linalg.slogdet(inner)[1]

    @property
    def covariance(self) -> Matrix:
        """The inverse of the precision."""
        return np.linalg.inv(self.precision)

    @property
    def mean(self) -> Vector:
        """The inverse of the precision times the linear part."""
        return np.linalg.solve(self.precision, self.linear)

    @property
    def proper(self) -> bool:
        """True if this is a distribution: finite, with a positive definite precision."""
        finite = np.isfinite(self.precision).all() and np.isfinite(self.linear).all()
        return bool(finite and np.linalg.eigvalsh(self.precision)[0] > 0)


class Likelihood:
    """The log likelihood of a site's records, functions of their predictors ``x · β``."""

    def __init__(self, model: PersonalRegression, records: Records):
        records = records.widened()
        self.model, self.weights = model.model, np.asarray(records.weights)
        self.x, self.y = (np.asarray(leaf) for leaf in records.data)
        # From the class, because Equinox makes a new module each time that a method is bound.
        kind: Any = type(self.model)
        self.log_density = kind.predictor_log_likelihood
        self.slopes = kind.predictor_value_and_slope
        self.nu: Any = None
        self.tau: Any = None
        self.left = 0.0  # an upper bound in nats of the last message's distance from convergence

    def message(self, mean: Vector, covariance: Matrix) -> Normal:
        """Return the Gaussian message of the likelihood for the prior ``β ~ N(mean, covariance)``.
        Raises ParameterError if the log likelihood is not finite there.
        """
        x = self.x
        weights = self.weights
        if isinstance(self.model, LinearRegression):
            scaled = (x.T * weights) / self.model.noise_variance
            return Normal(scaled @ self.y, scaled @ x)
        prior = Normal.matched(mean, covariance)
        if self.nu is None:
            self.nu, self.tau = self._mode(prior)
        u, chances = hermite(SWEEPS.nodes)
        for sweep in range(SWEEPS.most):
            both = prior.plus(Normal(x.T @ self.nu, (x.T * self.tau) @ x))
            c = both.covariance
            m = x @ (c @ both.linear)
            v = np.maximum(((x @ c) * x).sum(1), np.finfo(float).tiny)
            d = np.sqrt(v)
            f = m[:, None] + d[:, None] * u
            # The tilted distribution of each predictor, in units of the posterior's deviation.
            log = self.log_likelihood(f)
            if np.isnan(log).any():
                raise not_finite()
            log = np.where(weights[:, None] > 0, weights[:, None] * log, 0.0)
            log = log - self.nu[:, None] * f + self.tau[:, None] * f**2 / 2
            tilted = np.exp(log - log.max(1, keepdims=True)) * chances
            tilted /= tilted.sum(1, keepdims=True)
            first = tilted @ u
            second = np.maximum(tilted @ u**2 - first**2, 1e-12)
            rest = 1 - self.tau * v  # the cavity's precision, in units of 1 / v
            tau = np.maximum(1 / second - rest, np.where(weights > 0, SWEEPS.least, 0.0)) / v
            # The mean is matched even if the precision is at its bound.
            nu = (m + d * first) * (tau + rest / v) - (m / v - self.nu)
            usable = (rest > 1e-8) & (second > 1e-10)
            tau = np.where(usable, tau, self.tau)
            nu = np.where(usable, nu, self.nu)
            if not (np.isfinite(tau).all() and np.isfinite(nu).all()):
                raise not_finite()
            mean = np.abs((nu - self.nu) - (tau - self.tau) * m) * d
            moved = max(mean.max(), (np.abs(tau - self.tau) * v).max())
            share = 1.0 if sweep < SWEEPS.undamped else 0.5
            self.nu = self.nu + share * (nu - self.nu)
            self.tau = self.tau + share * (tau - self.tau)
            self.left = 0.0 if moved <= SWEEPS.rest else moved**2 * len(x) / 2
            if moved <= SWEEPS.rest:
                break
        return Normal(x.T @ self.nu, (x.T * self.tau) @ x)

    def log_likelihood(self, f: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "n q"]:
        """Return ``log p(y | f)`` of each record, at several values of its predictor."""
        with in_float64(self.model):
            return np.asarray(self.log_density(self.model, f, self.y[:, None]), float)

    def _mode(self, prior: Normal) -> tuple[Vector, Vector]:
        """Return the second-order expansion at the mode, the start of expectation propagation."""
        x = self.x

        def step(beta: Vector) -> tuple[Vector, float]:
            slope, bend = self._derivatives(x @ beta)
            gradient = prior.linear - prior.precision @ beta + x.T @ slope
            return step_by_curvature(gradient, prior.precision + (x.T * bend) @ x)

        def value(beta: Vector) -> float:
            return self._posterior(prior, beta)

        f = x @ newton(value, step, prior.mean, most=SWEEPS.most).at
        slope, bend = self._derivatives(f)
        return slope + bend * f, bend

    def _posterior(self, prior: Normal, beta: Vector) -> float:
        """Return the log density up to a constant; minus infinity if it is not finite."""
        log = self.weights @ self.log_likelihood((self.x @ beta)[:, None])[:, 0]
        value = log + prior.linear @ beta - beta @ prior.precision @ beta / 2
        return float(value) if np.isfinite(value) else -np.inf

    def _derivatives(self, f: Vector) -> tuple[Vector, Vector]:
        """Return first derivatives in the predictor, and minus the second ones, at least zero."""
        step = 1e-4
        with in_float64(self.model):

            def slope(f):
                return np.asarray(self.slopes(self.model, f, self.y)[1], float)

            at = slope(f)
            up = slope(f + step)
            down = slope(f - step)
        if not np.isfinite(at).all():
            raise not_finite()
        bend = np.nan_to_num(np.maximum((down - up) / (2 * step), 0.0))
        return self.weights * at, self.weights * bend


def in_float64(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which the model's functions of NumPy arrays compute in float64, silently
    where they overflow.
    """
    return np.errstate(all="ignore") if model.in_numpy else jax.enable_x64(True)
