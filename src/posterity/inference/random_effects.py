"""Random effects: the population that the sites of a ledger vary about, from their Gaussians.

Site ``j`` has coefficients ``β_j ~ N(c, D)``, ``D`` diagonal, and its factor is the Gaussian
message ``exp(h_jᵀβ_j - β_jᵀΛ_jβ_j/2)`` of its records; coefficients that it lacks have rows of
zeros. With ``β_j`` integrated out, ``c`` has the precision ``(I + Λ_jD)⁻¹Λ_j`` at a site, and the
spreads have the restricted likelihood (harville1977). ``D`` has no correlations: they would need
dozens of sites, and matter little to the population's coefficients.

The point estimate of a spread maximises the restricted likelihood. Intervals integrate over the
spreads (as dumouchel1994) under a log-normal prior. Its median, unless somebody expects another, is
twice the sites' typical standard error, and where the estimate is many errors, that estimate: else
the prior would draw such spreads down, and intervals of few sites would be too narrow
(docs/decisions/0059).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from posterity.arguments import BETWEEN
from posterity.arrays.linear_algebra import one_thread, pseudo_inverse
from posterity.arrays.search import root_of_inverse
from posterity.arrays.typing import Float
from posterity.artifact.registry import register
from posterity.errors import StructureError, UsageError
from posterity.families import ExponentialFamily, Gaussian, Mixture, Product
from posterity.families.names import names_of
from posterity.inference.expectation_propagation import Normal
from posterity.inference.population import (
    BLOCKS,
    Integrated,
    Messages,
    Nodes,
    at_spreads,
    integrated,
    law_of,
    nodes_of,
    thinned,
    variances,
)
from posterity.inference.restricted import restricted
from posterity.inference.trajectories import moved
from posterity.models import LinearRegression, hierarchical
from posterity.models.nodes import normal_pairs
from posterity.models.personal import SPREADS, Spreads

RATIO = "log_ratio"
"""Block of a prior of spreads in units of the sites' typical standard errors."""


@register
class RandomEffects(Product):
    """The prior of a ledger whose sites differ: of a population's coefficients, and of spreads.

    Blocks are ``coefficients``, a named :class:`Gaussian`, and ``log_spread``, a Gaussian named by
    the coefficients that differ; or in its place ``log_ratio``, of spreads in units of
    :attr:`Effects.typical` errors, whose medians :class:`Effects` moves to REML's estimates where
    these are larger. A factor's ``coefficients`` are the natural parameters of the Gaussian of a
    site's own coefficients.

    A ledger's posterior is no sum: it has the means and covariances of the population's
    coefficients and log spreads under all factors, so that forgetting a site estimates them anew.
    """

    additive = False

    def __init__(
        self, blocks: Mapping[str, ExponentialFamily] | None = None, **named: ExponentialFamily
    ):
        """Make it from a mapping with the two blocks, or keyword arguments."""
        super().__init__(blocks or {}, **named)
        own: Any = self.blocks
        kinds = {type(block) for block in own.values()}
        two = len(own) == 2 and BLOCKS[0] in own and {*own} <= {*BLOCKS, RATIO}
        if not two or kinds != {Gaussian}:
            raise StructureError(
                found=f"blocks {dict(own)!r}",
                expected="coefficients=Gaussian, and log_spread=Gaussian or log_ratio=Gaussian",
                fix="Make it by posterity.fuse(..., personal=True).",
            )

    @classmethod
    def of(cls, prior: Any, personal: Any, spreads: Spreads = SPREADS) -> "RandomEffects":
        """Return it from the prior of the population's coefficients, and the ``personal`` of
        :func:`posterity.fuse`. Raises UsageError as :func:`posterity.models.hierarchical` does.
        """
        expected = isinstance(personal, Mapping)
        _, joint = hierarchical(LinearRegression(1.0), prior, personal, spreads=spreads)
        own: Any = joint.log_spread
        if expected:
            return cls(coefficients=joint.coefficients, log_spread=own)
        median = np.full(own.own_size, np.log(spreads.errors))
        ratio = Gaussian.from_standard(median, own.covariance).named(own.names)
        return cls(coefficients=joint.coefficients, log_ratio=ratio)

    def factor(self, message: Normal) -> "RandomEffects":
        """Return the factor of a site whose records have this message."""
        (spread,) = (name for name in self.blocks if name != BLOCKS[0])
        return type(self)({BLOCKS[0]: message.law, spread: self.blocks[spread].zero()})

    def given(self, factors: Sequence[ExponentialFamily]) -> ExponentialFamily:
        own = {str(place): factor for place, factor in enumerate(factors)}
        return Effects.of(self, own).law


@dataclasses.dataclass(frozen=True)
class Effects:
    """The population that sites' coefficients vary about, its spreads, and each site's law.

    Attributes:
        prior: prior of the population's coefficients and of the spreads.
        messages: for each site the Gaussian of its own coefficients.
        pairs: pairs of starts of draws of spreads where these are too many for weights: the eight
            draws of each of 64 tell the end of an interval to some hundredths of its width.

    Arrays have one number for each coefficient (d,), or for each that differs between sites (p,).
    """

    prior: RandomEffects
    messages: Mapping[str, Normal]
    pairs: int = 64

    @classmethod
    def of(cls, prior: Any, factors: Mapping[str, Any]) -> "Effects":
        """Return it from the prior and the factors of a ledger, by site."""
        messages = {site: Normal.of(own.coefficients) for site, own in factors.items()}
        return cls(prior, messages)

    @functools.cached_property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites."""
        return tuple(self.messages)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all coefficients."""
        return names_of(self.prior.coefficients)[""]

    @property
    def personal(self) -> tuple[str, ...]:
        """Names of the coefficients that differ between sites."""
        return names_of(self._ahead)[""]

    @functools.cached_property
    def own(self) -> np.ndarray:
        """Places of the coefficients that differ between sites, among all."""
        return np.array([self.names.index(name) for name in self.personal])

    @functools.cached_property
    def errors(self) -> Float[np.ndarray, "sites p"]:
        """The standard error of each differing coefficient at each site, from its own records;
        infinite where these do not tell it.
        """
        every = [_errors(message.precision) for message in self.messages.values()]
        return np.array(every).reshape(-1, len(self.names))[:, self.own]

    @functools.cached_property
    def typical(self) -> Float[np.ndarray, " p"]:
        """The mean standard error of each differing coefficient, in which sites weigh by their
        precision, so that one that tells next to nothing does not set it; one if none knows it.
        """
        roots = 1 / self.errors
        known = np.isfinite(self.errors).any(0)
        return np.divide(roots.sum(0), (roots**2).sum(0), out=np.ones(len(self.own)), where=known)

    @functools.cached_property
    def spread(self) -> Float[np.ndarray, " p"]:
        """The spreads τ between sites of greatest restricted likelihood (REML), in units of the
        coefficients; NaN for coefficients that fewer than two sites know.
        """
        several = np.isfinite(self.errors).sum(0) > 1
        result = np.full(len(self.own), np.nan)
        if several.any():
            alone = np.array([self.alone(site)[0] for site in self.sites])[:, self.own[several]]
            places = self.own[several], self.typical[several], np.nanstd(alone, axis=0)
            result[several] = restricted(self._stacked, Normal.of(self.prior.coefficients), *places)
        return result

    def integrated(self, variance: Any) -> Integrated:
        """Return the likelihood of variances between sites (m, d), and the population's law."""
        return integrated(self._stacked, Normal.of(self.prior.coefficients), variance)

    @functools.cached_property
    def _stacked(self) -> Messages:
        return Messages.of([*self.messages.values()] or [self._nothing])

    @property
    def _nothing(self) -> Normal:
        """The message of a site without records."""
        return Normal.nothing(len(self.names))

    @property
    def _ahead(self) -> Any:
        return next(block for name, block in self.prior.blocks.items() if name != BLOCKS[0])

    @functools.cached_property
    def spreads_before(self) -> Normal:
        """The prior of the log spreads. In units of errors its medians are the roots of the sums of
        squares of what was expected and of the estimates.
        """
        own = Normal.of(self._ahead)
        if RATIO not in self.prior.blocks:
            return own
        median = np.hypot(np.exp(own.mean) * self.typical, np.nan_to_num(self.spread))
        return Normal(own.precision @ np.log(median), own.precision)

    @functools.cached_property
    def nodes(self) -> Nodes:
        """Nodes of the spreads' posterior, with the law of the population's coefficients at each.

        Where too few of them count in sums by weights, as with many spreads, they are equally
        likely draws.
        """
        before = Normal.of(self.prior.coefficients)
        with one_thread():
            mode, root = self._mode()
            start = mode, root @ root.T
            at = nodes_of(self._stacked, (before, self.spreads_before), start, self.own)
            if at is not None:
                return at

            def loss(v):
                value, slope = self._loss(mode + v @ root.T)
                return value, slope @ root

            places = mode + moved(loss, normal_pairs(len(mode), self.pairs)) @ root.T
            found = self.integrated(variances(places, self.own, len(self.names)))
        weights = np.full(len(places), 1 / len(places))
        return Nodes(weights, places, found.mean, found.covariance)

    def _loss(self, log_spread: Float[np.ndarray, "m p"]) -> tuple[np.ndarray, np.ndarray]:
        """Return minus the log posterior density at log spreads, and its slopes."""
        prior = self.spreads_before
        variance = variances(log_spread, self.own, len(self.names))
        found = self.integrated(variance)
        away = log_spread - prior.mean
        pull = away @ prior.precision
        value = (away * pull).sum(1) / 2 - found.log
        return value, pull - 2 * (found.slope * variance)[:, self.own]

    def _mode(self, *, step: float = 1e-4) -> tuple[np.ndarray, np.ndarray]:
        """Return the mode of the log spreads, and a root of the inverse of minus the curvature
        there, from differences of slopes a ``step`` apart.
        """
        prior = self.spreads_before
        root = np.linalg.cholesky(prior.covariance)  # of coordinates in which the prior is standard

        def loss(u):
            value, slope = self._loss(prior.mean + u[None] @ root.T)
            return value[0], slope[0] @ root

        mode = scipy.optimize.minimize(loss, np.zeros(len(root)), jac=True).x
        place = prior.mean + root @ mode
        aside = step * root.T
        ahead = self._loss(place + aside)[1]
        behind = self._loss(place - aside)[1]
        bend = (ahead - behind) @ root / (2 * step)
        unit = np.ones(len(root))
        return place, root @ root_of_inverse(bend, unit, 1.0)  # at most as wide as the prior

    @functools.cached_property
    def law(self) -> Product:
        """Gaussians of ``coefficients`` and ``log_spread`` with the posterior's moments. If no site
        tells anything, these are the prior's.
        """
        if not self._stacked.precision.any():
            shared: Any = self.prior.blocks[BLOCKS[0]]
            log_spread = self.spreads_before.law.named(self.personal)
            return Product(coefficients=shared, log_spread=log_spread)
        return law_of(self.nodes, (self.names, self.personal))

    @property
    def mean(self) -> Float[np.ndarray, " d"]:
        """The posterior mean of the population's coefficients."""
        return self.law.coefficients.mean  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def covariance(self) -> Float[np.ndarray, "d d"]:
        """The posterior covariance of the population's coefficients, spreads integrated out."""
        return self.law.coefficients.covariance  # pyright: ignore[reportAttributeAccessIssue]

    def interval(self, level: float = 0.95) -> Float[np.ndarray, "d 2"]:
        """Return the central interval of each coefficient of the population."""
        return self.nodes.interval(level)

    def spread_interval(self, level: float = 0.95) -> Float[np.ndarray, "p 2"]:
        """Return the central posterior interval of each spread τ."""
        BETWEEN.check(level=level)
        tails = (1 - level) / 2, (1 + level) / 2
        weights = self.nodes.weights
        ends = []
        for line in self.nodes.log_spread.T:
            order = np.argsort(line)
            below = np.cumsum(weights[order]) - weights[order] / 2
            ends.append(np.exp(np.interp(tails, below, line[order])))
        return np.array(ends)

    def prediction_interval(self, level: float = 0.95) -> Float[np.ndarray, "d 2"]:
        """Return the central interval of each coefficient of a new site."""
        between = variances(self.nodes.log_spread, self.own, len(self.names))
        return self.nodes.interval(level, between)

    def site(self, name: str) -> Mixture:
        """Return the posterior of a site's own coefficients, shrunken towards the population."""
        if name not in self.messages:
            raise UsageError(
                found=f"site {name!r}",
                expected=f"one of {list(self.sites[:10])}",
                fix="Use the name in the ledger; new_site() is for all others.",
            )
        return at_spreads(self.messages[name], thinned(self.nodes), self.own, self.names)

    def alone(self, name: str) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
        """Return a site's own estimates and standard errors, which are NaN and infinite where it
        tells nothing.
        """
        linear, precision = self.messages[name]
        errors = _errors(precision)
        return np.where(np.isfinite(errors), pseudo_inverse(precision)[0] @ linear, np.nan), errors

    def shrunken(self, name: str) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
        """Return means and standard deviations of a site's own coefficients (:meth:`site`)."""
        (law,) = self.site(name).marginals()
        return law.mean, law.sd

    def new_site(self) -> Mixture:
        """Return the prediction of the coefficients of a site that is not among these."""
        return at_spreads(self._nothing, thinned(self.nodes), self.own, self.names)

    @functools.cached_property
    def heterogeneity(self) -> tuple[float, int]:
        """Cochran's Q of all coefficients together, and its degrees of freedom: the squared
        deviations of sites' estimates from their common one, chi-squared if sites do not differ.
        """
        linear, precision, _ = self._stacked
        total = precision.sum(0)
        middle, shared = pseudo_inverse(total)
        ahead = linear - precision @ (middle @ linear.sum(0))
        known = [pseudo_inverse(own) for own in precision]
        square = sum(right @ own @ right for right, (own, _) in zip(ahead, known, strict=True))
        rank = sum(np.trace(range_of) for _, range_of in known) - np.trace(shared)
        return float(square), round(rank)

    @property
    def q(self) -> float:
        """Cochran's Q."""
        return self.heterogeneity[0]

    @property
    def degrees(self) -> int:
        """Degrees of freedom of Q."""
        return self.heterogeneity[1]

    @property
    def p(self) -> float:
        """Probability of a Q at least as large if sites do not differ."""
        return float(scipy.stats.chi2.sf(*self.heterogeneity))

    @functools.cached_property
    def i2(self) -> Float[np.ndarray, " p"]:
        """I² (higgins2002) of each coefficient: the share of the variation between sites'
        estimates that is not sampling error, from 0 to 1; NaN if fewer than two sites know it.
        """
        least = self.errors.min(0, initial=np.inf)
        known = np.isfinite(self.errors).sum(0)
        with np.errstate(all="ignore"):
            weights = (least / self.errors) ** 2
            # The sum's square less the sum of squares, which nearly cancel if one site knows most.
            pairs = 2 * (np.cumsum(weights, 0)[:-1] * weights[1:]).sum(0)
            sampling = (known - 1) * weights.sum(0) / pairs
            between = (self.spread / least) ** 2
            return between / (between + sampling)


def _errors(precision: np.ndarray, *, rounding: float = 1e-8) -> np.ndarray:
    """Return standard errors (d,); infinite for coefficients that are not known, up to
    ``rounding`` in the share of each that is.
    """
    inverse, within = pseudo_inverse(precision)
    known = np.diagonal(within) > 1 - rounding
    return np.sqrt(np.where(known, np.diagonal(inverse), np.inf))
