"""The search for a posterior's modes, near which chains start: climbs of the log density from
draws of the prior, until the modes found explain the density at all draws that are compared.
"""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import PyTree

from posterity.arrays.search import root_of_inverse
from posterity.arrays.tree import taken
from posterity.errors import ParameterError
from posterity.families import Distribution
from posterity.families.unconstrained import unconstrained
from posterity.inference.modes import RULE, Ends, Mode, climbs, found, in_batches
from posterity.models import Model
from posterity.runtime.programs import jitted

SCALES = np.array([0.0, 0.1, 0.3, *[1.0] * 13])  # Of the prior's draws that the search starts from
MODES = 16  # Most modes that chains start at
COMPARED = 64, 4096  # Least and most draws of the prior that are compared with the modes found
BATCH = 64  # Points that are evaluated together
EQUIVALENT = -1  # In place of a number of draws, where modes are known to be equivalent


class Laplace(NamedTuple):
    """The highest mode found, ``centre`` (d,), in unconstrained coordinates, and a factor of the
    covariance there: triangular (d, d), or diagonal (d,) for many parameters (``Rule.dense``).
    ``modes`` (k, d) are those that chains start at, the heaviest first, in coordinates whitened by
    it, and ``spreads`` (k, 1) their least deviations there, at most one. ``searched`` are the
    number of climbs, that of the optima at which they ended, and that of the first draws of the
    prior that were climbed from or explained by the mixture of the modes; zero if there is one
    optimum, EQUIVALENT if several are known to be equivalent.
    """

    centre: np.ndarray
    factor: np.ndarray
    modes: np.ndarray
    spreads: np.ndarray
    searched: np.ndarray


def _resolved(
    mode: Mode,
    widths: np.ndarray,
    *,
    # Width at and below which a mode is a pole, such as that of a spread that may be 0
    pole: float = 1e-10,
) -> bool:
    """Tell whether single precision resolves deviations (d,) at a mode; not so at a pole."""
    least = np.finfo(np.float32).eps * np.abs(mode.at)
    return bool((widths > np.maximum(least, pole)).all() and np.isfinite(mode.factor).all())


def laplace(
    model: Model,
    prior: Distribution,
    data: PyTree,
    *,
    most: int = 50_000,  # Most records of the search for modes, reweighted to stand for all
    widest: float = 1e3,  # The largest standard deviation, in unconstrained coordinates, at a mode
    numbers: int = 1 << 21,  # Approximate bound on the densities of records at these draws
    # Most steps of a search for a mode.
    steps: int = 500,
) -> Laplace:
    """Search for the modes of a posterior. If it may have several, the search starts from zero,
    which may be a saddle, and from draws of the prior at several scales. If it is not known that
    modes are equivalent, many draws of the prior are then compared with the mixture of the modes,
    and those at which the density is more than ten times as large are climbed from.
    """
    count = len(jax.tree.leaves(data)[0])
    some = np.random.default_rng(0).permutation(count)[:most] if count > most else slice(None)
    with jax.enable_x64(True):

        def doubled(leaf):
            kind = jnp.float64 if leaf.dtype.kind == "f" else jnp.int64
            return jnp.asarray(leaf[some], kind)

        seen = jax.tree.map(doubled, data)
        share = count / len(jax.tree.leaves(seen)[0])
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), prior)
        bijection = unconstrained(wide)
        size = bijection.size
        drawn = jax.eval_shape(wide.sample, jax.random.key(0))
        model = model.pinned(type(model).log_likelihood, drawn, seen)

        def energy(u: Any, data: PyTree) -> Any:
            tree = bijection.unravel(u)
            z = bijection.forward(tree)
            density = wide.log_prob(z) + bijection.log_det(tree)
            return -density - share * model.log_likelihood(z, data).sum()

        value = jitted(jax.value_and_grad(energy))

        @jitted  # one program for all curvatures, as compiling takes most of the time
        def products(u: Any, rows: Any) -> Any:
            def slope(u):
                return jax.grad(energy)(u, seen)

            def product(row):
                return jax.jvp(slope, (u,), (row,))[1]

            short = rows.shape[1] <= RULE.dense
            return jax.vmap(product)(rows) if short else jax.lax.map(product, rows)

        def widths(at):
            return 1 / np.sqrt(np.maximum(np.abs(_diagonal(products, at)), 1 / widest**2))

        def looked_at(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return jax.tree.map(np.asarray, value(u, seen))

        def end(at: np.ndarray) -> tuple[np.ndarray, Any]:
            # Coordinates are scaled by the curvature, as columns may differ by orders of magnitude.
            level: Any = np.inf
            for _ in range(3):
                at, level, _ = climbs(looked_at, at, widths(at), most=steps)
            return at, level

        def factor(at: np.ndarray) -> np.ndarray:
            if size > RULE.dense:
                return widths(at)
            return root_of_inverse(products(at, np.eye(size)), widths(at))

        modes: list[Mode] = []

        def climbed(starts: np.ndarray) -> None:
            """Add the modes at which climbs end, the highest first."""
            for at, level in sorted(map(end, starts), key=operator.itemgetter(1)):
                new = found(Ends(at[None], np.array([level]), 0), factor, modes)
                modes.extend(mode for mode in new if _resolved(mode, widths(at)))

        if model.known_optima == "one" and prior.gaussian:
            climbed(np.zeros((1, size)))
            return _laplace(modes, size, 1, 0)
        records = len(jax.tree.leaves(seen)[0])
        number = int(np.clip(numbers // max(records, size**2 // 16), *COMPARED))
        draws = wide.sample(jax.random.key(0), (number,))
        inside = np.isfinite(wide.log_prob(draws))  # draws of vague priors may round to an end
        draws = taken(draws, inside)
        draws = np.asarray(bijection.ravel(bijection.inverse(draws)))
        climbed(SCALES[:, None] * np.resize(draws, (len(SCALES), size)))
        if model.known_optima == "several":
            return _laplace(modes, size, len(SCALES), EQUIVALENT)
        every = jitted(jax.vmap(jax.value_and_grad(energy), (0, None)))
        batch = int(np.clip(numbers // records, 1, BATCH))

        def looked(u):
            return in_batches(lambda part: every(part, seen), u, batch)

        if not modes:
            return _of_prior(looked, draws)
        followed, compared = _followed(looked, draws, modes, climbed)
    return _laplace(modes, size, len(SCALES) + followed, compared)


def _laplace(
    modes: list[Mode],
    size: int,
    tried: int,
    compared: int,
    *,
    # Least share of the mass, by Laplace's approximation, of a mode that chains start at
    light: float = 1e-3,
) -> Laplace:
    """Return the result of a search. Raises a ParameterError if it found no mode."""
    if not modes:
        raise ParameterError(
            found=f"a log density that is not finite at any of {tried} starts",
            expected="a finite log density at most draws of the prior",
        )
    best = min(modes, key=operator.attrgetter("energy"))
    masses = np.array([own.mass for own in modes])
    shares = scipy.special.softmax(masses)
    near = np.array([own.energy <= best.energy + size for own in modes])
    kept = [place for place in np.argsort(-masses) if near[place] or shares[place] > light][:MODES]
    places = best.whitened(np.array([modes[own].at - best.at for own in kept]))
    narrow = [modes[own].whitened(best.factor.T) for own in kept]
    norms = [np.linalg.norm(own, 2) if own.ndim == 2 else own.max() for own in narrow]
    spreads = np.minimum(1, 1 / np.array(norms))[:, None]
    return _single((best.at, best.factor, places, spreads), (tried, len(modes), compared))


def _single(parts: tuple[np.ndarray, ...], searched: tuple[int, ...]) -> Laplace:
    """Return the result in single precision."""
    centre, factor, modes, spreads = (own.astype(np.float32) for own in parts)
    return Laplace(centre, factor, modes, spreads, np.array(searched, np.int32))


def _of_prior(looked: Any, draws: np.ndarray) -> Laplace:
    """Return draws of the prior (n, d) at which the density is highest as starts, and their scale,
    where climbs ended at no mode that single precision resolves, such as at poles.
    """
    some = draws[np.isfinite(draws).all(1)][: COMPARED[0]]
    energies, slopes = looked(some)
    finite = np.isfinite(energies) & np.isfinite(slopes).all(1)
    if not finite.any():
        return _laplace([], draws.shape[1], len(SCALES), 0)
    best = some[finite][np.argsort(energies[finite])][:MODES]
    scale = some.std(0)
    places = (best - best[0]) / scale
    spreads = np.zeros((len(best), 1))
    factor = np.diag(scale) if len(scale) <= RULE.dense else scale
    return _single((best[0], factor, places, spreads), (len(SCALES), 0, 0))


def _followed(
    looked: Any,
    draws: np.ndarray,
    modes: list[Mode],
    climbed: Any,
    *,
    rounds: int = 4,  # Most rounds of climbs from draws
    # Most of these climbs that are continued, as they end away from all modes found
    again: int = 16,
    # Most steps of a round of climbs from draws.
    most: int = 60,
) -> tuple[int, int]:
    """Climb from draws of the prior (n, d) that the modes do not explain, and add the modes found.
    Return the number of climbs and of the first draws that were explained or climbed from.
    """
    unit = draws[np.isfinite(draws).all(1)].std(0)
    logs = np.nan_to_num(-looked(draws)[0], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    followed = np.zeros(len(draws), bool)
    tried = 0
    tries = again

    def explained() -> np.ndarray:
        mixture = np.logaddexp.reduce([-own.energy - own.squares(draws) / 2 for own in modes])
        return RULE.explains(mixture, logs) | followed

    for _ in range(rounds):
        left = np.flatnonzero(~explained() & np.isfinite(logs))
        rest = left[BATCH // 2 :]
        highest = rest[np.argsort(-logs[rest])][: BATCH // 2]
        chosen = np.concatenate([left[: BATCH // 2], highest])
        if not len(chosen):
            break
        before = len(modes)
        ends, levels, _ = climbs(looked, draws[chosen], unit, most=most)
        tried = tried + len(chosen)

        def known(at):
            return any(own.near(at) for own in modes)

        for place in np.argsort(levels):
            if not known(ends[place]):
                if not (tries and np.isfinite(levels[place])):
                    continue
                climbed(ends[place][None])
                tries -= 1
            followed[chosen[place]] = True
        if len(modes) == before:
            break
    return tried, int(np.argmin(np.append(explained(), False)))


def _diagonal(products: Any, at: np.ndarray) -> np.ndarray:
    """Return the curvature's diagonal: exact for few parameters, else estimated by random signs."""
    size = len(at)
    if size <= RULE.dense:
        return np.diagonal(products(at, np.eye(size))).copy()
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (32, size))
    return np.mean(signs * products(at, signs), axis=0)
