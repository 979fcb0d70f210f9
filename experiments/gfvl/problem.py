"""What is studied: ten agents, their graphs, their data, and the true posterior of waiting times.

The paper states K = 10, the graphs, Metropolis-Hastings walks and the two models. Not stated
where we could look: priors, numbers of records, parameters, the direction of the divergence and
the learning rate. `README.md` says how each gap was filled.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from scipy import integrate, optimize
from scipy.special import betaln, digamma, expit, log_expit

from experiments.estimators import Reinforce
from posterity import Beta
from posterity.graphs import Network, complete, ring, star
from posterity.inference.update import LocalUpdate

Array = np.ndarray
Sites = dict[str, Array]

AGENTS = tuple(f"agent {k}" for k in range(10))
GRAPHS = {make.__name__: Network.from_graph(make(list(AGENTS))) for make in (star, ring, complete)}
LEAVER = AGENTS[-1]  # who asks to be forgotten; on the star it is a leaf

COIN_PRIOR = Beta.from_standard(1.0, 1.0)
WAITING_PRIOR = Beta.from_standard(2.0, 2.0)
RECORDS = 100
COIN_CHANCE, MEAN_WAIT = 0.3, 0.5
COMMON_WAIT, LEAVERS_WAIT = 0.3, 0.9

PAPERS_RATE = 0.005
PAPERS_SAMPLES = 30
WITHIN = 1.2  # a posterior is at the floor once its divergence is at most this many times as large


@dataclasses.dataclass(frozen=True)
class Effort:
    walks: int  # repetitions where a visit is cheap
    data_sets: int
    noisy: int  # repetitions of Monte Carlo estimators
    iterations: int  # of these
    times: int  # repetitions of cover and unlearning times
    brief: bool = False  # few variants, for each is a program that takes seconds to compile

    def some(self, variants: Mapping[str, Any], *names: str) -> dict[str, Any]:
        """All variants, or these where it shall be brief."""
        return {n: v for n, v in variants.items() if not self.brief or n in names}


FULL = Effort(walks=1000, data_sets=20, noisy=100, iterations=20_000, times=20_000)
QUICK = Effort(walks=100, data_sets=3, noisy=4, iterations=10_000, times=1000, brief=True)


def coins(seed: int) -> Sites:
    """Flips of one coin, at every agent."""
    rng = np.random.default_rng(seed)
    return {agent: rng.binomial(1, COIN_CHANCE, RECORDS).astype(float) for agent in AGENTS}


def waiting_times(seed: int, mean: float = MEAN_WAIT, leavers: float | None = None) -> Sites:
    """Exponential waiting times, from one mean, or from another at the agent that leaves."""
    rng = np.random.default_rng(seed)
    means = {agent: mean for agent in AGENTS} | ({LEAVER: leavers} if leavers else {})
    return {agent: rng.exponential(means[agent], RECORDS) for agent in AGENTS}


def without_leaver(sites: Mapping[str, Array]) -> dict[str, Array | None]:
    """The same agents, the leaver without data: it only relays."""
    return {**sites, LEAVER: None}


def papers_update(steps: int) -> LocalUpdate:
    """REINFORCE with a constant baseline, as the paper has it, `steps` iterations a visit."""
    return LocalUpdate(Reinforce(PAPERS_SAMPLES, 0.0), steps=steps, rate=PAPERS_RATE)


@dataclasses.dataclass(frozen=True)
class WaitingPosterior:
    """``p(z) ∝ z^(a - 1 - n) (1 - z)^(b - 1) exp(-s / z)``: prior Beta(a, b), n records of sum s.

    With the mean loss, n and s are divided by the records of a site.
    """

    prior: Beta
    records: float
    total: float

    @classmethod
    def of(cls, prior: Beta, sites: Iterable[Any], weight: float = 1.0) -> "WaitingPosterior":
        """Of all agents' data; agents without any hold None."""
        data = np.concatenate([records for records in sites if records is not None])
        return cls(prior, weight * data.size, weight * float(data.sum()))

    def log_density_of_logit(self, u: Any) -> Any:
        """Unnormalised, with the Jacobian ``z (1 - z)`` of ``z = expit(u)``."""
        a, b = float(self.prior.a) - self.records, float(self.prior.b)
        return a * log_expit(u) + b * log_expit(-u) - self.total / expit(u)

    @functools.cached_property
    def mode(self) -> float:
        loss = lambda u: -self.log_density_of_logit(u)
        return float(optimize.minimize_scalar(loss, bounds=(-30, 30), method="bounded").x)

    def integral(self, function: Callable[[Any], Any] = lambda u: 1.0) -> float:
        """Of a function of the logit times the density, over its value at the mode."""
        top = self.log_density_of_logit(self.mode)
        integrand = lambda u: float(np.exp(self.log_density_of_logit(u) - top) * function(u))
        # Breaks at the mode and around it, or a narrow peak is missed.
        breaks = self.mode + np.array([-1.0, -0.2, 0.0, 0.2, 1.0])
        exact = {"limit": 400, "epsabs": 0.0, "epsrel": 1e-11}
        return integrate.quad(integrand, self.mode - 30, self.mode + 30, points=breaks, **exact)[0]

    @functools.cached_property
    def log_evidence(self) -> float:
        """Log of the integral of the unnormalised density."""
        return float(self.log_density_of_logit(self.mode)) + float(np.log(self.integral()))

    def kl(self, a: Any, b: Any) -> Array:
        """KL(Beta(a, b) ‖ p), elementwise; infinite unless ``a > 1``, as ``E[1/z]`` is."""
        a, b = np.asarray(a, float), np.asarray(b, float)
        log_z, log_rest = digamma(a) - digamma(a + b), digamma(b) - digamma(a + b)
        with np.errstate(divide="ignore"):
            inverse = np.where(a > 1, (a + b - 1) / np.maximum(a - 1, 0), np.inf)
        expected = (float(self.prior.a) - 1 - self.records) * log_z
        expected += (float(self.prior.b) - 1) * log_rest - self.total * inverse
        return (a - 1) * log_z + (b - 1) * log_rest - betaln(a, b) - expected + self.log_evidence

    @functools.cached_property
    def best(self) -> tuple[float, float]:
        """``a`` and ``b`` of the Beta that is nearest in reverse KL divergence."""
        mean = self.integral(expit) / self.integral()
        square = self.integral(lambda u: expit(u) ** 2) / self.integral()
        count = (mean - square) / (square - mean**2)
        start = np.log([mean * count, (1 - mean) * count])
        options = {"xatol": 1e-10, "fatol": 1e-15, "maxiter": 4000}
        loss = lambda x: float(self.kl(*np.exp(x)))
        found = optimize.minimize(loss, start, method="Nelder-Mead", options=options)
        a, b = np.exp(found.x)
        return float(a), float(b)

    @property
    def floor(self) -> float:
        return float(self.kl(*self.best))
