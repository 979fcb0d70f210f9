"""Peers of `pursue`, written here: one Gaussian, boosting, a joint mixture; NUTS as a reference.

All work in units of the base law, and count the points at which the log density or its gradient was
taken. Boosting adds one Gaussian at a time, which maximises the residual bound
E_h[log p - log q_t] + λ H[h] by Adam on sampled gradients (guo2016, locatello2018, and the tutorial
of Pyro, where λ = 1); there is no floor below log q_t, which is what sends components away.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.pursuit.targets import LOG_2PI, Gaussians, Target

DRAWS = 256  # of each component, on which weights are found


@dataclasses.dataclass(frozen=True)
class Boosting:
    """How components are added."""

    # of the new weight: "harmonic", 2 / (t + 2); "line", the best α for old and new; "corrective",
    # all weights anew
    rule: str = "harmonic"
    entropy: str = "one"  # λ of component t = 0, 1, ...: "one", or "falling", 1 / √(t + 1)
    # "centre", the base law itself, or "draw", a narrower one about a draw of it
    start: str = "centre"
    batch: int = 1  # draws a gradient
    rate: float = 0.01  # Adam's step size, at first
    falls: bool = False  # whether it falls to nothing, by a cosine
    # whether components stay within four standard deviations of the base law, none wider than twice
    # it or narrower than a thousandth: the compact family that the theory asks for
    bounded: bool = False


TUTORIAL = Boosting()
"""As Pyro's tutorial: N(0, 1) at first, one draw a step, Adam at .01, α = 1, 2/3, 1/2, ..."""
CAREFUL = Boosting(start="draw", batch=16, rate=0.05, falls=True, bounded=True)
PEERS: dict[str, Boosting] = {
    "boosting VI, Pyro's tutorial": TUTORIAL,
    "boosting VI, λ = 1/√(t + 1)": dataclasses.replace(CAREFUL, entropy="falling"),
    "boosting VI, α = 2/(t + 2)": CAREFUL,
    "boosting VI, line search": dataclasses.replace(CAREFUL, rule="line"),
    "boosting VI, fully corrective": dataclasses.replace(CAREFUL, rule="corrective"),
}


class Mixed(NamedTuple):
    """A mixture while it grows: weights (K,), means (K, d), factors (K, d, d)."""

    weights: Any
    means: Any
    factors: Any


class Found(NamedTuple):
    """The mixture, and how often the log density or its gradient was taken."""

    law: Gaussians
    evaluations: int


def log_normals(z: Any, law: Mixed) -> Any:
    """(K,) of a point."""

    def one(mean: Any, root: Any) -> Any:
        u = jax.scipy.linalg.solve_triangular(root, z - mean, lower=True)
        return -(u @ u + len(z) * LOG_2PI) / 2 - jnp.log(jnp.diagonal(root)).sum()

    return jax.vmap(one)(law.means, law.factors)


def log_mixture(z: Any, law: Mixed) -> Any:
    """Of a point; components of no weight count for nothing."""
    return jax.nn.logsumexp(log_normals(z, law), b=law.weights)


def climb(objective: Callable[..., Any], first: Any, steps: int, how: Boosting, key: Any) -> Any:
    """Adam, upwards, on an objective of a point and a key."""
    rate = optax.cosine_decay_schedule(how.rate, steps) if how.falls else how.rate
    adam = optax.adam(rate)

    def step(state: Any, own: Any) -> Any:
        at, memory = state
        slope = jax.grad(lambda x: -objective(x, own))(at)
        change, memory = adam.update(slope, memory, at)
        return (optax.apply_updates(at, change), memory), None

    state = first, adam.init(first)
    return jax.lax.scan(step, state, jax.random.split(key, steps))[0][0]


def bounded(at: Any) -> Any:
    """Means within 4, deviations from .001 to 2."""
    mean, shape = at
    return jnp.clip(mean, -4.0, 4.0), jnp.clip(shape, np.log(1e-3), np.log(2.0))


def grow(log_density: Any, size: int, components: int, steps: int, how: Boosting, key: Any) -> Any:
    """The whole run, one compiled program: mixtures are padded to their final size."""
    keep = bounded if how.bounded else (lambda at: at)

    def objective(law: Mixed, number: Any, at: Any, key: Any) -> Any:
        mean, shape = keep(at)
        root = jnp.diag(jnp.exp(shape))
        z = mean + jax.random.normal(key, (how.batch, size), mean.dtype) @ root.T
        gain = jax.vmap(log_density)(z)
        grown = jnp.where(number > 0, jax.vmap(log_mixture, (0, None))(z, law), 0.0)
        weight = 1 / jnp.sqrt(number + 1.0) if how.entropy == "falling" else 1.0
        return (gain - grown).mean() + weight * jnp.log(jnp.diagonal(root)).sum()

    def add(state: Any, number: Any) -> Any:
        law, draws = state
        own = jax.random.split(jax.random.fold_in(key, number), 4)
        mean, log_deviation = jnp.zeros(size), 0.0
        if how.start == "draw":
            mean, log_deviation = jax.random.normal(own[0], (size,)), jnp.log(0.3)
        first = mean, jnp.full(size, log_deviation)
        at = climb(functools.partial(objective, law, number), first, steps, how, own[1])
        mean, shape = keep(at)
        root = jnp.diag(jnp.exp(shape))
        law = Mixed(law.weights, law.means.at[number].set(mean), law.factors.at[number].set(root))
        fresh = mean + jax.random.normal(own[2], (DRAWS, size)) @ root.T
        draws = draws.at[number].set(fresh)
        weights = weighed(log_density, law, draws, number, how.rule)
        return (law._replace(weights=weights), draws), None

    roots = jnp.tile(jnp.eye(size), (components, 1, 1))
    first = Mixed(jnp.zeros(components), jnp.zeros((components, size)), roots)
    state = first, jnp.zeros((components, DRAWS, size))
    return jax.lax.scan(add, state, jnp.arange(components))[0][0]


def weighed(log_density: Any, law: Mixed, draws: Any, number: Any, rule: str) -> Any:
    """(K,) weights with component ``number`` in."""
    old, new = law.weights, jnp.zeros_like(law.weights).at[number].set(1.0)
    mixed = lambda a: (1 - a) * old + a * new
    if rule == "harmonic":
        return mixed(2 / (number + 2.0))
    # log p and all components' densities at draws of all components
    log_p = jax.vmap(jax.vmap(log_density))(draws)
    each = jax.vmap(jax.vmap(log_normals, (0, None)), (0, None))(draws, law)
    used = jnp.arange(len(old)) <= number

    def gains(weights: Any) -> Any:
        """(K,) E_k[log p - log q]: the gradient in the weights, but for a constant."""
        ratio = log_p - jax.nn.logsumexp(each, b=weights, axis=-1)
        return jnp.where(used, ratio.mean(1), 0.0)

    if rule == "line":
        # the slope falls in α: bisection
        def halve(_: int, ends: Any) -> Any:
            low, high = ends
            middle = (low + high) / 2
            up = gains(mixed(middle)) @ (new - old) > 0
            return jnp.where(up, middle, low), jnp.where(up, high, middle)

        ends = jax.lax.fori_loop(0, 40, halve, (jnp.zeros(()), jnp.ones(())))
        return jnp.where(number == 0, new, mixed(sum(ends) / 2))

    def ascend(_: int, weights: Any) -> Any:
        gain = gains(weights)
        best = jnp.where(used, gain, -jnp.inf).max()
        rise = jnp.clip(0.3 * (gain - best), -30.0, 0.0)
        moved = jnp.where(used, weights * jnp.exp(rise), 0.0)
        # never quite zero: far from all others a component's draws would have no density
        moved = jnp.where(used, jnp.maximum(moved / moved.sum(), 1e-12), 0.0)
        return moved / moved.sum()

    start = jnp.where(used, 1.0 / (number + 1.0), 0.0)
    return jax.lax.fori_loop(0, 300, ascend, start)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _grown(log_density: Any, size: int, components: int, steps: int, how: Any, keys: Any) -> Any:
    return jax.vmap(functools.partial(grow, log_density, size, components, steps, how))(keys)


def boost(
    target: Target, how: Boosting, *, components: int, evaluations: int, seeds: Any
) -> list[Found]:
    """One mixture a seed, which takes no more than so many evaluations."""
    each = evaluations // components
    spent = DRAWS if how.rule != "harmonic" else 0
    # a tutorial of a tenth of a million steps would not be one: rather more draws a step
    steps = max((each - spent) // how.batch, 1)
    if how.batch == 1 and steps > 12_000:
        how = dataclasses.replace(how, batch=-(-steps // 12_000))
        steps = each // how.batch
    count = components * (steps * how.batch + spent)
    return _found(target, seeds, count, _grown, components, steps, how)


def joint(
    target: Target, *, components: int, evaluations: int, seeds: Any, batch: int = 4
) -> list[Found]:
    """All components at once: ``batch`` draws of each a step. With one component plain VI."""
    steps = evaluations // (components * batch)
    how = dataclasses.replace(CAREFUL, start="draw" if components > 1 else "centre", batch=batch)
    return _found(target, seeds, steps * components * batch, _joined, components, steps, how)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _joined(log_density: Any, size: int, components: int, steps: int, how: Any, keys: Any) -> Any:
    def law_of(at: Any) -> Mixed:
        logits, means, shapes = at
        means, shapes = bounded((means, shapes))
        return Mixed(jax.nn.softmax(logits), means, jax.vmap(jnp.diag)(jnp.exp(shapes)))

    def objective(at: Any, key: Any) -> Any:
        law = law_of(at)
        u = jax.random.normal(key, (components, how.batch, size), law.means.dtype)
        z = law.means[:, None] + jnp.einsum("kij,kbj->kbi", law.factors, u)
        over = lambda f: jax.vmap(jax.vmap(f))(z)
        ratio = over(log_density) - over(lambda one: log_mixture(one, law))
        return law.weights @ ratio.mean(1)

    def run(key: Any) -> Mixed:
        start, own = jax.random.split(key)
        draw = how.start == "draw"
        means = draw * jax.random.normal(start, (components, size))
        shapes = jnp.full((components, size), jnp.log(0.3) if draw else 0.0)
        return law_of(climb(objective, (jnp.zeros(components), means, shapes), steps, how, own))

    return jax.vmap(run)(keys)


def _found(target: Target, seeds: Any, count: int, program: Any, *arguments: Any) -> list[Found]:
    """A program's mixtures, one a seed, in the target's own units."""
    with jax.enable_x64(True):
        keys = jax.vmap(jax.random.key)(jnp.asarray(list(seeds), jnp.uint32))
        found = program(in_units(target), target.size, *arguments, keys)
    laws = (Gaussians.of(*own) for own in zip(*map(np.asarray, found), strict=True))
    return [Found(stretched(law, target.reach), count) for law in laws]


def nuts(
    target: Target, *, components: int, seed: int, chains: int = 8, draws: int = 1000
) -> Found:
    """Draws of NUTS from ``chains`` draws of the base law, and a mixture fitted to them by EM.

    A reference and no peer: EM needs the draws, which the chains may have in wrong proportions.

    Source: hoffman2014; phan2019.
    """
    from sklearn.mixture import GaussianMixture

    start = np.random.default_rng(seed).normal(size=(chains, target.size))
    with jax.enable_x64(True):
        options = {"key": jax.random.key(seed), "warmup": 500, "draws": draws}
        points, before, each = drawn_by_nuts(in_units(target), start, **options)
    fitted = GaussianMixture(components, covariance_type="diag", n_init=3, random_state=seed)
    fitted.fit(points)
    law = Gaussians.of(fitted.weights_, fitted.means_, np.sqrt(fitted.covariances_))
    return Found(stretched(law, target.reach), before + int(each.sum()))


def drawn_by_nuts(
    log_density: Callable[[Any], Any], start: Any, *, key: Any, warmup: int, draws: int
) -> tuple[Any, int, Any]:
    """Draws (n, d) of NumPyro's NUTS, chain by chain, from starts (chains, d).

    Also the gradients of the warmup, and those of each draw (n,).
    """
    from numpyro.infer import MCMC, NUTS

    sampler = MCMC(
        NUTS(potential_fn=lambda z: -log_density(z)),
        num_warmup=warmup,
        num_samples=draws,
        num_chains=len(start),
        chain_method="vectorized",
        progress_bar=False,
    )
    start, counted = jnp.asarray(start if len(start) > 1 else start[0]), ("num_steps",)
    sampler.warmup(key, init_params=start, extra_fields=counted, collect_warmup=True)
    before = int(np.sum(sampler.get_extra_fields()["num_steps"]))
    sampler.run(sampler.post_warmup_state.rng_key, extra_fields=counted)
    each = np.asarray(sampler.get_extra_fields()["num_steps"])
    return np.asarray(sampler.get_samples(), np.float64), before, each


@functools.cache
def in_units(target: Target) -> Callable[[Any], Any]:
    """The log density where the base law has standard deviation one."""
    return lambda z: target.log_density(target.reach * z)


def stretched(law: Gaussians, by: float) -> Gaussians:
    """Each point ``by`` times as far away."""
    return Gaussians(law.weights, by * law.means, by * law.factors)
