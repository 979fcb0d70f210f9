"""Partial pooling of regressions: a site's marginal likelihood of what all sites share.

A site's coefficients are ``β ~ N(c, D)``, where ``c`` are the population's coefficients and ``D``
is diagonal: ``exp(2 s_j)`` where a site's own coefficient differs from the population's, zero where
it does not. Expectation propagation over the site's records (minka2001) gives the Gaussian
``exp(hᵀβ - βᵀΛβ/2)`` that stands for its likelihood; for linear regression it is the likelihood.
With it ``β`` and ``c`` are integrated out in closed form for every ``s``, and so are the slope and
the curvature in ``s``, of which natural-gradient steps are made (bui2018).
"""

import contextlib
import functools
from typing import Any, ClassVar, NamedTuple

import numpy as np

from posterity.arguments import at_least
from posterity.arrays.tree import static
from posterity.arrays.typing import Float
from posterity.errors import ParameterError, UsageError
from posterity.families import ExponentialFamily
from posterity.inference.descent import not_finite
from posterity.inference.update import LocalUpdate
from posterity.lazy import jax
from posterity.models import LinearRegression, Model, PersonalRegression, Records
from posterity.models.nodes import hermite, normal_pairs
from posterity.models.personal import Law

PREDICTOR_NODES = 24
"""Gauss-Hermite nodes along each record's predictor."""
GRID = {1: 32, 2: 12}
"""Gauss-Hermite nodes for each log spread, where there are so few of these."""
CHECKED = {1: 40, 2: 16}
"""Nodes for each of a second, finer grid, from which the error of the first one shows."""
REACH = 10.6
"""How far the nodes of a grid reach, in standard deviations: 56 nats."""
SWEEPS, UNDAMPED = 100, 15
"""Sweeps of expectation propagation over the records, and how many of them are not damped."""
REST = 1e-5
"""Change of a message, in standard deviations of the predictor, at which the sweeps end."""
STEPS = 20
"""Natural-gradient steps of the log spreads in one visit, at most."""
REFRESHED = 3
"""Steps before which the message of the records is found anew."""
SMALL = 1e-6
"""Nats that a further step would change, below which none is made."""
SLACK = 1e-2
"""Nats of a step beyond which the free energy must fall by all means."""
SHORTEST = 1e-3
"""Share of a natural-gradient step below which it is not shortened further."""
FEW, MANY = 0.2, 15
"""Share of the precision below which a site is one of many, and half the visits at which it no
longer matters."""
LEAST = 1e-9
"""Precision of a record's message in units of what is known of its predictor, at the least: what a
record says of the predictor's mean has to have a direction."""
FURTHEST = 40.0
"""A log spread beyond which no node may lie: a step that leads there is shortened."""
ERROR, ERROR_OF_MOVE = 5e-5, 1e-2
"""Nats by which too few nodes may misplace a posterior before more are taken, and as a share of
those that a visit moves it by: where that is much, there will be further visits."""

Vector = Float[np.ndarray, " d"]
Matrix = Float[np.ndarray, "d d"]


class Normal(NamedTuple):
    """A Gaussian ``exp(linear · z - zᵀ precision z / 2)``: a distribution, or a factor of one."""

    linear: Vector
    precision: Matrix

    @classmethod
    def of(cls, law: Any) -> "Normal":
        """A Gaussian or a diagonal Gaussian of the library."""
        precision, linear = np.asarray(law.precision), np.asarray(law.precision_mean)
        return cls(linear, np.diag(precision) if law.diagonal else precision)

    @classmethod
    def matched(cls, mean: Vector, covariance: Matrix, *, diagonal: bool) -> "Normal":
        """The distribution of these moments, or of their diagonal."""
        precision = np.linalg.inv(np.diag(np.diagonal(covariance)) if diagonal else covariance)
        return cls(precision @ mean, precision)

    def plus(self, other: "Normal", share: float = 1.0) -> "Normal":
        """The product with a power of another one."""
        linear = self.linear + share * other.linear
        return Normal(linear, self.precision + share * other.precision)

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
        """True if the law is a distribution."""
        finite = np.isfinite(self.precision).all() and np.isfinite(self.linear).all()
        return bool(finite and np.linalg.eigvalsh(self.precision)[0] > 0)


class Marginal(NamedTuple):
    """``E[log ∫ likelihood(β) N(β | c, D(s)) dβ]``, ``c ~ N(m, C)``, at several log spreads ``s``.

    ``slope`` (m, p) and ``curvature`` (m, p, p) are its derivatives by ``s``. As a function of
    ``c`` the integral is the Gaussian of natural parameters ``linear`` and ``precision``.
    """

    value: Float[np.ndarray, " m"]
    slope: Float[np.ndarray, "m p"]
    curvature: Float[np.ndarray, "m p p"]
    linear: Float[np.ndarray, "m d"]
    precision: Float[np.ndarray, "m d d"]


class PooledInfo(NamedTuple):
    """The record of one visit."""

    residual: float
    """Fisher length of the natural gradient that is left, in sqrt(nats)."""
    quadrature_error: float
    """By how many nats sums over nodes may have misplaced the posterior."""


class PartialPooling(LocalUpdate):
    """The rule of a site for a :class:`~posterity.models.PersonalRegression`, by default.

    Both factors minimise the site's free energy: that of the population's coefficients in closed
    form, that of the log spreads by natural gradients and a line search.

    Args:
        nodes: quasi-random nodes over the log spreads, where these are more than two. Over one or
            two there is a grid, of as many nodes as suffice.
        most: nodes that are taken where fewer do not suffice.
    """

    nodes: int = static()
    most: int = static()

    pools: ClassVar[bool] = True

    def __init__(self, nodes: int = 64, most: int = 1024):
        at_least(8).check(nodes=nodes, most=most)
        super().__init__(steps=1)
        self.nodes, self.most = nodes, most

    @staticmethod
    def serves(model: Model, q: ExponentialFamily) -> bool:
        """Return whether this is the update of choice for a model and family."""
        if not isinstance(model, PersonalRegression):
            return False
        parts = dict(q.independent_blocks())
        own = hasattr(model.model, "predictor_value_and_slope")
        plain = all(hasattr(part, "precision_mean") for part in parts.values())
        return own and plain and parts.keys() == {"coefficients", "log_spread"}

    def resolve(self, model: Model, q: ExponentialFamily) -> "PartialPooling":
        """Itself; a UsageError if the model is no regression with coefficients of a site's own."""
        if not self.serves(model, q):
            raise UsageError(
                found=f"PartialPooling for {type(model).__name__} and a {type(q).__name__}",
                expected="a PersonalRegression, and Gaussian coefficients and log spreads",
                fix="Leave the update out, or pass personal=True.",
            )
        return self

    @property
    def rule(self) -> str:
        return "marginal likelihood by expectation propagation, natural gradients"

    def needs_jax(self, model: Model) -> bool:
        return not (isinstance(model, PersonalRegression) and model.model.in_numpy)

    def improved(
        self, model: PersonalRegression, view: Any, factor: Any, records: Records, count: int
    ) -> tuple[Any, PooledInfo]:
        """The site's factor, refined as part of the posterior ``view``.

        From the site's fourth visit on it goes half the way, and later ever less of it, so that a
        few sites of many records do not answer each other for ever; all the way where the site is
        one of many, and gives less than a share ``FEW`` of what is known of anything.

        Raises:
            ParameterError: if the log likelihood is not finite near the posterior.
        """
        new, info = self._refined(model, view, factor, records, STEPS)
        one_of_many = count < 2 * MANY and _largest_share(new, view) < FEW
        share = 1.0 if count < 3 or one_of_many else min(0.5, 12 / (count + 1))
        return (new if share == 1 else factor + (new - factor) * share), info

    def target(
        self, model: PersonalRegression, view: Any, factor: Any, records: Records
    ) -> tuple[Any, PooledInfo]:
        """The factor to which one whole natural-gradient step leads; ``factor`` at the optimum; a
        ParameterError if the log likelihood is not finite near the posterior.
        """
        return self._refined(model, view, factor, records, 0)

    def _refined(
        self, model: PersonalRegression, view: Any, factor: Any, records: Records, steps: int
    ) -> tuple[Any, PooledInfo]:
        site, count = _Site(model, view, factor, records), self.nodes
        while True:
            site.take_nodes(count, round((count / self.nodes) ** 0.5))
            site.descend(steps)
            one, other = site.gradients()
            # Two draws of nodes err by as much each; a finer grid errs by little.
            erring = 2 if site.drawn else 1
            error = float(view.squared_length(other - one)) / 2 / erring + site.likelihood.left
            if not np.isfinite(error):
                raise not_finite()
            new = site.factor() if steps else one
            far = steps and site.drawn  # grids are had for little
            moved = float(view.squared_length(new - factor)) / 2 if far else 0.0
            if error <= max(ERROR, ERROR_OF_MOVE * moved) or 4 * count > self.most:
                return new, PooledInfo(float(site.residual), error)
            count *= 4


class _Site:
    """One visit: the cavity, the message of the records, and the posterior as it is refined."""

    def __init__(self, model: PersonalRegression, view: Any, factor: Any, records: Records):
        self.model, self.view = model, view
        self.own = np.array(model.personal)
        self.coefficients = Normal.of(view.coefficients)
        self.cavity = self.coefficients.plus(Normal.of(factor.coefficients), -1.0)
        self.spread = Normal.of(view.log_spread)
        self.others = self.spread.plus(Normal.of(factor.log_spread), -1.0)
        self.residual, self.likelihood = np.inf, Likelihood(model, records)
        self.drawn = len(self.own) not in GRID

    def take_nodes(self, count: int, finer: int) -> None:
        """Take sets of nodes of this number (see :func:`grids`) from here on."""
        self.grids = grids(len(self.own), count, finer)
        self.known: dict[int, Any] = {}  # by set of nodes, the last place and what was found there

    def descend(self, steps: int) -> None:
        """Natural-gradient steps of the log spreads, each as far as the free energy falls."""
        for step in range(steps + 1):
            if step < REFRESHED:
                self.message = self._message()
            energy, at = self._energy(self.spread)
            if at is None:
                raise ParameterError(
                    found="log spreads that may be so large that sums over them overflow",
                    expected="a prior under which sites differ by less than exp(40)",
                    fix="Give `log_spread` a smaller standard deviation, 2 at most, say.",
                )
            ahead = self._gradient(self.spread, at, 0)
            change = ahead.plus(self.spread.plus(self.others, -1.0), -1.0)
            self.residual = _length(self.spread, change)
            if step == steps or self.residual**2 / 2 <= SMALL:
                break
            # Sums over nodes are not exact: about the optimum they need not fall with the energy.
            share, slack = 1.0, min(self.residual**2, SLACK) / 10
            while share > SHORTEST:
                moved = self.spread.plus(change, share)
                if moved.proper and self._energy(moved)[0] <= energy + slack:
                    break
                share /= 2
            else:
                break
            self.spread = moved
            self.coefficients = self.cavity.plus(self._of_coefficients(self._at(moved, 0), 0))

    def factor(self) -> Any:
        """The site's factor where the descent ended."""
        spread = self.spread.plus(self.others, -1.0)
        return self._joined(self._of_coefficients(self._at(self.spread, 0), 0), spread)

    def gradients(self) -> list[Any]:
        """The factor to which a whole step leads, by two sets of nodes."""
        steps = []
        for seed in (0, 1):
            if (at := self._at(self.spread, seed)) is None:
                raise not_finite()
            gradient = self._gradient(self.spread, at, seed)
            steps.append(self._joined(self._of_coefficients(at, seed), gradient))
        return steps

    def _joined(self, coefficients: Normal, spread: Normal) -> Any:
        laws = {"coefficients": coefficients, "log_spread": spread}
        return type(self.view)(**{n: _law(getattr(self.view, n), law) for n, law in laws.items()})

    def _message(self) -> Normal:
        covariance = self.cavity.covariance
        covariance[self.own, self.own] += np.exp(2 * self.spread.mean)
        return self.likelihood.message(self.cavity.mean, covariance)

    def _at(self, spread: Normal, seed: int) -> Any:
        place = spread, self.coefficients, self.message
        before, known = self.known.get(seed, ((None,) * 3, None))
        if any(old is not new for old, new in zip(before, place, strict=True)):
            known = self._marginal(spread, self.grids[seed][0])
            self.known[seed] = place, known
        return known

    def _marginal(self, spread: Normal, nodes: Any) -> Marginal | None:
        """The marginal likelihood over these nodes; None where sums over them overflow."""
        s = spread.mean + nodes @ np.linalg.cholesky(spread.covariance).T
        if not s.max() < FURTHEST:
            return None
        law = self.coefficients
        try:
            return marginal(self.message, law.mean, law.covariance, s, self.own)
        except np.linalg.LinAlgError:
            return None

    def _energy(self, spread: Normal) -> tuple[float, Any]:
        """``KL(spread ‖ cavity) - E[log Z]`` in nats, up to a constant; infinite if not known."""
        at, mean = self._at(spread, 0), spread.mean
        if at is None:
            return np.inf, None
        others, covariance = self.others, spread.covariance
        cross = (others.precision * covariance).sum() + mean @ others.precision @ mean
        entropy = -np.linalg.slogdet(spread.precision)[1] / 2
        return float(cross / 2 - others.linear @ mean - entropy - self.grids[0][1] @ at.value), at

    def _of_coefficients(self, at: Marginal, seed: int) -> Normal:
        """``∇_μ E[log Z]`` as a factor of the population's coefficients."""
        chances = self.grids[seed][1]
        precision = np.tensordot(chances, at.precision, 1)
        linear = chances @ at.linear
        if self.view.coefficients.diagonal:
            kept = np.diag(np.diagonal(precision))
            return Normal(linear + (kept - precision) @ self.coefficients.mean, kept)
        return Normal(linear, precision)

    def _gradient(self, spread: Normal, at: Marginal, seed: int) -> Normal:
        """``∇_μ E[log Z]`` as a factor of the log spreads (Bonnet and Price)."""
        chances = self.grids[seed][1]
        precision = -np.tensordot(chances, at.curvature, 1)
        if self.view.log_spread.diagonal:
            precision = np.diag(np.diagonal(precision))
        return Normal(chances @ at.slope + precision @ spread.mean, precision)


class Likelihood:
    """The log likelihood of a site's records, each a function of its predictor ``x · β``."""

    def __init__(self, model: PersonalRegression, records: Records):
        records = records.widened()
        self.model, self.weights = model.model, np.asarray(records.weights)
        self.x, self.y = (np.asarray(leaf) for leaf in records.data)
        # From the class: each time that a method is bound, Equinox makes a new module of it.
        kind: Any = type(self.model)
        self.log_density = kind.predictor_log_likelihood
        self.slopes = kind.predictor_value_and_slope
        self.nu: Any = None
        self.tau: Any = None
        self.left = 0.0  # nats, at most, by which the last message was not at rest

    def message(self, mean: Vector, covariance: Matrix) -> Normal:
        """The Gaussian that stands for the likelihood where ``β ~ N(mean, covariance)`` before; a
        ParameterError if the log likelihood is not finite there.
        """
        x, weights = self.x, self.weights
        if isinstance(self.model, LinearRegression):
            scaled = (x.T * weights) / self.model.noise_variance
            return Normal(scaled @ self.y, scaled @ x)
        prior = Normal.matched(mean, covariance, diagonal=False)
        if self.nu is None:
            self.nu, self.tau = self._mode(prior)
        u, chances = hermite(PREDICTOR_NODES)
        for sweep in range(SWEEPS):
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
            tau = np.maximum(1 / second - rest, np.where(weights > 0, LEAST, 0.0)) / v
            # Where the precision is bounded, the mean is matched all the same.
            nu = (m + d * first) * (tau + rest / v) - (m / v - self.nu)
            usable = (rest > 1e-8) & (second > 1e-10)
            tau, nu = np.where(usable, tau, self.tau), np.where(usable, nu, self.nu)
            if not (np.isfinite(tau).all() and np.isfinite(nu).all()):
                raise not_finite()
            mean = np.abs((nu - self.nu) - (tau - self.tau) * m) * d
            moved = max(mean.max(), (np.abs(tau - self.tau) * v).max())
            share = 1.0 if sweep < UNDAMPED else 0.5
            self.nu = self.nu + share * (nu - self.nu)
            self.tau = self.tau + share * (tau - self.tau)
            self.left = 0.0 if moved <= REST else moved**2 * len(x) / 2
            if moved <= REST:
                break
        return Normal(x.T @ self.nu, (x.T * self.tau) @ x)

    def log_likelihood(self, f: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "n q"]:
        """``log p(y | f)`` of each record, at several values of its predictor."""
        with in_float64(self.model):
            return np.asarray(self.log_density(self.model, f, self.y[:, None]), float)

    def _mode(self, prior: Normal) -> tuple[Vector, Vector]:
        """The expansion of second order about the mode, where expectation propagation begins."""
        x, beta = self.x, prior.mean
        value = self._posterior(prior, beta)
        for _ in range(SWEEPS):
            slope, bend = self._derivatives(x @ beta)
            gradient = prior.linear - prior.precision @ beta + x.T @ slope
            step = np.linalg.solve(prior.precision + (x.T * bend) @ x, gradient)
            share = 1.0
            while not (new := self._posterior(prior, beta + share * step)) >= value:
                share /= 2
                if share < SHORTEST**3:
                    return slope + bend * (x @ beta), bend
            gain, beta, value = new - value, beta + share * step, new
            if gain < SLACK:
                break
        slope, bend = self._derivatives(x @ beta)
        return slope + bend * (x @ beta), bend

    def _posterior(self, prior: Normal, beta: Vector) -> float:
        """The log density, up to a constant; minus infinity where it is not a number."""
        log = self.weights @ self.log_likelihood((self.x @ beta)[:, None])[:, 0]
        value = log + prior.linear @ beta - beta @ prior.precision @ beta / 2
        return float(value) if np.isfinite(value) else -np.inf

    def _derivatives(self, f: Vector) -> tuple[Vector, Vector]:
        """The first derivatives by the predictor, and minus the second ones, not negative."""
        step = 1e-4
        with in_float64(self.model):
            slope = lambda f: np.asarray(self.slopes(self.model, f, self.y)[1], float)
            at, up, down = slope(f), slope(f + step), slope(f - step)
        if not np.isfinite(at).all():
            raise not_finite()
        bend = np.nan_to_num(np.maximum((down - up) / (2 * step), 0.0))
        return self.weights * at, self.weights * bend


def in_float64(model: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which the model's functions of NumPy's arrays keep their digits."""
    return contextlib.nullcontext() if model.in_numpy else jax.enable_x64(True)


def marginal(
    message: Normal, mean: Vector, covariance: Matrix, s: Float[np.ndarray, "m p"], own: Any
) -> Marginal:
    """A site's marginal likelihood at several log spreads ``s`` of its ``own`` columns.

    ``message`` stands for the likelihood, and ``N(mean, covariance)`` is the law of ``c``.
    """
    unit = np.sqrt(np.diagonal(covariance)).copy()  # in which columns of any scale are alike
    unit[own] = np.maximum(unit[own], np.exp(s.mean(0)))
    variance = np.exp(2 * s) / unit[own] ** 2
    precision, scaled = message.precision * unit * unit[:, None], covariance / unit / unit[:, None]
    # Of one's own columns Λ = R Rᵀ, in whose range h lies; of others what these tell, and more.
    values, vectors = np.linalg.eigh(precision[np.ix_(own, own)])
    kept = values > values[-1] * 1e-14
    scale, vectors = np.sqrt(values[kept]), vectors[:, kept]
    root, tells = vectors * scale, precision[:, own] @ (vectors / scale**2) @ vectors.T
    more = precision - tells @ precision[own]
    inverse, logdet = _inverse(np.eye(len(scale)) + (root.T * variance[:, None, :]) @ root)
    w = root @ inverse @ root.T  # R (I + Rᵀ D R)⁻¹ Rᵀ
    quadratic = more + tells @ w @ tells.T  # Λ (I + D Λ)⁻¹

    def solved(ahead: Vector) -> Float[np.ndarray, "m d"]:
        """``(I + Λ D)⁻¹`` times a vector."""
        shrunk = inverse @ (vectors.T @ ahead[own] / scale)
        return ahead + (shrunk @ root.T - ahead[own]) @ tells.T

    ahead = (message.linear - message.precision @ mean) * unit
    inside, pull = vectors.T @ ahead[own] / scale, solved(ahead)
    around = quadratic @ scaled @ quadratic  # the covariance of the pull, since c is not known
    value = (inside @ inside - inverse @ inside @ inside - logdet) / 2
    value = value - (quadratic * scaled).sum((1, 2)) / 2
    u = pull[:, own]
    second = u[:, :, None] * u[:, None, :] + around[:, own][:, :, own]
    slope = variance * np.diagonal(second - w, axis1=1, axis2=2)
    curvature = variance[:, :, None] * variance[:, None, :] * (2 * w**2 - 4 * second * w)
    curvature = curvature + 2 * slope[:, :, None] * np.eye(len(own))
    linear = solved(message.linear * unit) / unit
    return Marginal(value, slope, curvature, linear, quadratic / unit / unit[:, None])


def _inverse(matrices: Float[np.ndarray, "m r r"]) -> tuple[Any, Any]:
    """Inverses and log determinants of matrices ``I + A``, with ``A`` not negative."""
    try:
        return np.linalg.inv(matrices), np.linalg.slogdet(matrices)[1]
    except np.linalg.LinAlgError:  # A so large that rounding has swallowed the identity
        values, vectors = np.linalg.eigh(matrices)
        values = np.maximum(values, 1.0)
        inverses = (vectors / values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
        return inverses, np.log(values).sum(1)


def own_law(
    model: PersonalRegression, shared: Any, records: Records | None, draws: dict[str, Any]
) -> Law:
    """A site's own coefficients given each of several draws (m, ...) of what is shared.

    Means are (m, p); scales are deviations (m, p) where there are no records, else factors of
    covariances (m, p, p).
    """
    own = np.array(model.personal)
    center, deviation = draws["coefficients"][:, own], np.exp(draws["log_spread"])
    if records is None or not records.size:
        return Law(center, deviation)
    coefficients, spread = Normal.of(shared.coefficients), Normal.of(shared.log_spread)
    variance = np.zeros(len(coefficients.linear))
    variance[own] = np.exp(2 * spread.mean)
    likelihood = Likelihood(model, records)
    message = likelihood.message(coefficients.mean, coefficients.covariance + np.diag(variance))
    # In units of the deviations between sites, in which what is inverted is well conditioned.
    inner = message.precision[np.ix_(own, own)] * deviation[:, :, None] * deviation[:, None, :]
    root = np.linalg.cholesky(np.linalg.inv(np.eye(len(own)) + inner))
    shared_part = draws["coefficients"] @ message.precision[:, own]
    ahead = deviation * (message.linear[own] - shared_part)
    offset = (root @ (np.swapaxes(root, 1, 2) @ ahead[..., None]))[..., 0]
    return Law(center + deviation * offset, deviation[:, :, None] * root)


def grids(size: int, count: int = 64, finer: int = 1) -> list[tuple[Any, Any]]:
    """Nodes and chances of two sums over ``size`` log spreads, of which the second checks.

    Where there are few spreads these are grids of ``finer`` times the nodes along each; else they
    are two draws of ``count`` nodes.
    """
    if size in GRID:
        return [_grid(size, finer * nodes[size]) for nodes in (GRID, CHECKED)]
    pairs = max(count // 2, size)
    return [(normal_pairs(size, pairs, seed), np.full(2 * pairs, 0.5 / pairs)) for seed in (0, 1)]


@functools.lru_cache(maxsize=32)
def _grid(size: int, nodes: int) -> tuple[Any, Any]:
    points, chances = hermite(nodes)
    kept = np.flatnonzero(np.abs(points) < REACH)
    places = np.stack(np.meshgrid(*[kept] * size, indexing="ij"), -1).reshape(-1, size)
    return points[places], chances[places].prod(1)


def _largest_share(factor: Any, posterior: Any) -> float:
    """Of the posterior's precision, along whatever direction it is largest."""
    shares = []
    for name in ("coefficients", "log_spread"):
        own, whole = (Normal.of(getattr(law, name)).precision for law in (factor, posterior))
        root = np.linalg.inv(np.linalg.cholesky(whole))
        shares.append(np.abs(np.linalg.eigvalsh(root @ own @ root.T)).max())
    return float(max(shares))


def _length(law: Normal, change: Normal) -> float:
    """Of a change of natural parameters, in the Fisher metric at ``law``, in sqrt(nats)."""
    covariance, slope = law.covariance, change.linear - change.precision @ law.mean
    bend = covariance @ change.precision
    return float(np.sqrt(slope @ covariance @ slope + (bend * bend.T).sum() / 2))


def _law(like: Any, law: Normal) -> Any:
    precision = np.diagonal(law.precision) if like.diagonal else law.precision
    return type(like)._of(precision_mean=law.linear, precision=precision)
