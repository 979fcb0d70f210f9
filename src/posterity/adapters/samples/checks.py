"""How well a law fits the draws that it was made of, coordinate by coordinate and as a whole."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.adapters.samples import reference
from posterity.adapters.samples.chains import mean_and_error, sizes, worth
from posterity.adapters.samples.families import Block
from posterity.adapters.samples.gaussians import SINGULAR, Standard, gaussian_density
from posterity.arrays.typing import Float

Array = np.ndarray
MOST_ROWS = 2000
"""Draws that references are learned on and judged by; of more, every so many-th."""
LEAST_ROWS, MOST_CELLS = 300, 200_000
"""Draws that are left where there are many coordinates, and numbers in all."""
MOST_COLUMNS = 300
"""Coordinates up to which whole covariances are looked at."""
CHUNK = 64
"""Coordinates that references are learned for at once."""
TOGETHER = ("gaussian", "low-rank", "mixture", "dirichlet")
"""Families whose coordinates are not independent."""
HINTS = 4
USEFUL = 0.005
"""Nats on the draws it was learned on, below which a coordinate's pair is noise."""


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """What is known of one coordinate.

    ``skewness`` and ``kurtosis`` (in excess of three) are those of its normal scores under the law,
    which for a Gaussian is the coordinate itself in standard units: zero if the law is right.
    Their errors are what they are off by then, given the effective sample sizes of cubes and fourth
    powers. ``kl`` is in nats, and no more than the divergence of the marginals, but for its error.
    """

    name: str
    draws: int
    effective: float
    """Effective sample size of the mean."""
    rhat: float
    """R-hat of split chains, of ranks and of distances from the median, whichever is larger; NaN
    for fewer than eight draws a chain."""
    skewness: float
    skewness_error: float
    kurtosis: float
    kurtosis_error: float
    kl: float
    kl_error: float
    modes: int
    """Of the reference: 2 if there is a valley, and it is more than noise."""
    least: float
    """The smallest draw, of the unconstrained coordinate."""
    greatest: float
    still: int = 0
    """Chains of which the first or the last half is one value."""


@dataclasses.dataclass(frozen=True)
class Checks:
    """A report by coordinate, and of the whole.

    ``kl`` is what a more flexible density gains on draws that it was not learned on, in nats, and
    so at most ``KL(posterior ‖ law)``, but for ``kl_error``; ``correlation`` is the part of it that
    correlations make which the law leaves out. ``sampling`` is what to expect from the number of
    effective draws alone: the number of parameters over twice that number.
    """

    coordinates: Mapping[str, Coordinate]
    kl: float
    kl_error: float
    correlation: float
    sampling: float
    bimodal: tuple[str, ...]
    """Coordinates along which there are two modes, those that tell them apart best first."""
    multimodal_law: bool
    """Whether the law itself has several components."""
    notes: tuple[str, ...] = ()
    """What else is to be said of how the draws were read."""

    @property
    def effective(self) -> float:
        """The smallest effective sample size."""
        return min(own.effective for own in self.coordinates.values())

    @property
    def rhat(self) -> float:
        """The largest R-hat; NaN where none is known."""
        known = [own.rhat for own in self.coordinates.values() if not np.isnan(own.rhat)]
        return max(known, default=float("nan"))

    def __str__(self) -> str:
        width = max(10, *(len(name) for name in self.coordinates))
        head = f"{'':{width}}  {'ESS':>6}  {'R-hat':>5}  {'skewness':>13}  {'kurtosis':>13}  "
        lines = [f"{head}{'KL/nats':>15}  modes"]
        for name, own in self.coordinates.items():
            skewness = f"{own.skewness:.2f} ± {own.skewness_error:.2f}"
            kurtosis = f"{own.kurtosis:.2f} ± {own.kurtosis_error:.2f}"
            kl = f"{max(own.kl, 0.0):.3f} ± {own.kl_error:.3f}"
            lines.append(
                f"{name:{width}}  {own.effective:6.0f}  {own.rhat:5.2f}  {skewness:>13}  "
                f"{kurtosis:>13}  {kl:>15}  {own.modes:5d}"
            )
        lines.append(
            f"together: KL at least {max(self.kl, 0.0):.3f} ± {self.kl_error:.3f} nats; "
            f"{self.sampling:.3f} nats are to be expected of so many draws"
        )
        return "\n".join([*lines, *self.notes])


class _Marginals(NamedTuple):
    gain: Float[Array, "chains n d"]
    modes: Float[Array, " d"]


def check(blocks: Sequence[Block], several: bool, notes: Sequence[str]) -> Checks:
    """The report on a law of independent blocks."""
    scores = np.concatenate([own.fit.scores for own in blocks], axis=-1)
    free = np.concatenate([own.free.units for own in blocks], axis=-1)
    labels = [label for own in blocks for label in own.labels]
    free_labels = [label for own in blocks for label in own.free_labels]
    known, marginals = worth(scores), _marginals(_thinned(scores))
    draws = scores.shape[0] * scores.shape[1]
    third, fourth = sizes(scores**3 - 3 * scores), sizes(scores**4 - 6 * scores**2)
    low, high = (np.concatenate([of(own.free, along) for own in blocks]) for of, along in _ENDS)
    ends_known = len(low) == len(labels)
    rows: dict[str, Coordinate] = {}
    for i, label in enumerate(labels):
        column = scores[..., i]
        gap = column - column.mean()
        variance = float((gap**2).mean())
        kl, error = mean_and_error(marginals.gain[..., i])
        surely = kl > 3 * error
        rows[label] = Coordinate(
            name=label,
            draws=draws,
            effective=float(known.size[i]),
            rhat=float(known.rhat[i]),
            skewness=float((gap**3).mean() / variance**1.5),
            skewness_error=float((6 / third[i]) ** 0.5),
            kurtosis=float((gap**4).mean() / variance**2 - 3),
            kurtosis_error=float((24 / fourth[i]) ** 0.5),
            kl=kl,
            kl_error=error,
            modes=int(marginals.modes[i]) if surely else 1,
            least=float(low[i]) if ends_known else float("nan"),
            greatest=float(high[i]) if ends_known else float("nan"),
            still=int(known.still[i]),
        )
    whole = _whole(blocks, free)
    along = [name for name, own in rows.items() if own.modes > 1]
    if whole.pull is not None and not along:
        order = np.argsort(-abs(whole.pull))
        biggest = abs(whole.pull[order[0]])
        along = [free_labels[i] for i in order if abs(whole.pull[i]) > biggest / 2][:5]
    # Geometric: one coordinate that mixes badly is not all.
    # At most the draws: means of chains that alternate are known better, covariances are not.
    effective = float(np.exp(np.log(np.minimum(known.size, draws)).mean()))
    parameters = sum(own.fit.parameters for own in blocks)
    return Checks(
        coordinates=rows,
        kl=whole.kl,
        kl_error=whole.error,
        correlation=whole.correlation,
        sampling=parameters / (2 * effective),
        bimodal=tuple(along),
        multimodal_law=several,
        notes=tuple(notes),
    )


_ENDS: tuple[Any, ...] = (
    (lambda free, end: free.centre + free.scale * end(free.units, axis=(0, 1)), np.min),
    (lambda free, end: free.centre + free.scale * end(free.units, axis=(0, 1)), np.max),
)


def _thinned(values: Array) -> Array:
    """Every so many-th draw of each chain, the fewer the more coordinates there are."""
    return values[:, :: _step(values.shape)]


def _step(shape: tuple[int, ...]) -> int:
    chains, count, size = shape
    rows = min(MOST_ROWS, max(LEAST_ROWS, MOST_CELLS // size))
    return max(1, -(-chains * count // rows))


def _halves(values: Array) -> list[tuple[Array, Array, slice]]:
    """To learn on (m, d), to judge on (chains, n, d), and where the latter lie: both ways round.

    Halves in time, of every chain: chains that are stuck in modes of their own are in both.
    """
    middle = values.shape[1] // 2
    first, last = slice(0, middle), slice(middle, None)
    rows = lambda part: values[:, part].reshape(-1, values.shape[-1])
    if middle < 2:  # chains too short: half of them
        return []
    return [(rows(last), values[:, first], first), (rows(first), values[:, last], last)]


def _marginals(scores: Float[Array, "chains n d"]) -> _Marginals:
    gain, modes = np.zeros_like(scores), np.ones(scores.shape[-1])
    for begin in range(0, scores.shape[-1], CHUNK):
        own = (..., slice(begin, begin + CHUNK))
        part = scores[own]
        for learned, judged, where in _halves(part):
            pairs = reference.pairs(learned)
            flat = judged.reshape(-1, part.shape[-1])
            gain[:, where, own[1]] = pairs.gain(flat).reshape(judged.shape)
        modes[own[1]] = reference.pairs(part.reshape(-1, part.shape[-1])).modes()
    return _Marginals(gain, modes)


def _correlations(units: Float[Array, "chains n d"]) -> tuple[Array, Array, Array]:
    """With eigenvalues and axes; none where draws are too few for them, or they are singular."""
    size, draws = units.shape[-1], units.shape[0] * units.shape[1]
    if size <= MOST_COLUMNS and draws > 3 * size:
        rows = units.reshape(-1, size)
        within = rows.T @ rows / draws
        values, axes = np.linalg.eigh(within)
        if values[0] > SINGULAR * size:  # a diagonal law may well have singular ones
            return within, values, axes
    return np.eye(size), np.ones(size), np.eye(size)


def _left_out(blocks: Sequence[Block], within: Array, gain: float) -> float:
    """Nats of correlations that the law has none of, as Gaussians have them; at least zero.

    Those between blocks, and within blocks of independent coordinates. Of factors it is what a
    whole covariance gains.
    """
    if len(blocks) == 1 and blocks[0].family == "low-rank":
        return max(gain, 0.0)
    lost, begin = -float(np.linalg.slogdet(within)[1]) / 2, 0
    left = within.shape[0] * (within.shape[0] - 1) // 2
    for own in blocks:
        size = own.free.units.shape[-1]
        if own.family in TOGETHER:
            part = within[begin : begin + size, begin : begin + size]
            lost += float(np.linalg.slogdet(part)[1]) / 2
            left -= size * (size - 1) // 2
        begin += size
    effective = min(float(np.median(sizes(own.free.units))) for own in blocks)
    return max(lost - left / (2 * effective), 0.0)


class _Whole(NamedTuple):
    kl: float
    error: float
    correlation: float
    pull: Float[Array, " d"] | None
    """In units of the free coordinates, from one mode to the other, where there are two."""


def _whole(blocks: Sequence[Block], units: Float[Array, "chains n d"]) -> _Whole:
    """What the best of a few references gains over the law, on draws it was not learned on."""
    density = sum((own.fit.log_density for own in blocks[1:]), start=blocks[0].fit.log_density)
    parameters = sum(own.fit.parameters for own in blocks)
    size = units.shape[-1]
    within, values, axes = _correlations(units)
    hints = axes[:, ::-1][:, :HINTS]  # modes far apart make a direction of much variance
    white = _thinned(units)
    if np.count_nonzero(within) > size:
        white = white @ ((axes / np.sqrt(values)) @ axes.T)
    log_scale = sum(float(np.log(own.free.scale).sum()) for own in blocks)
    joined = Standard(np.zeros(size), np.ones(size), units)
    base = gaussian_density(joined, within) - log_scale
    whole = size * (size + 3) // 2 if np.count_nonzero(within) > size else 2 * size
    bias = max(whole - parameters, 0) / (2 * float(np.median(sizes(units))))
    start = (base - density)[:, :: _step(units.shape)] - bias
    gains = {n: np.zeros_like(start) for n in ("Gaussian", "each", "pair", "direction")}
    for learned, judged, where in _halves(white):
        flat = judged.reshape(-1, size)
        shape = judged.shape[:2]
        if size > MOST_COLUMNS:
            break
        pair = reference.two(learned, hints)
        gains["pair"][:, where] = pair.gain(flat).reshape(shape)
        along = reference.pairs(learned @ pair.directions)
        best = int(np.argmax(along.gain(learned @ pair.directions).mean(0)))
        one = along.gain(flat @ pair.directions)[:, best]
        gains["direction"][:, where] = one.reshape(shape)
        for begin in range(0, size, CHUNK):
            own = slice(begin, begin + CHUNK)
            pairs = reference.pairs(learned[:, own])
            # A coordinate that gains nothing where the pair was learned is left as it is.
            useful = pairs.gain(learned[:, own]).mean(0) > USEFUL
            gains["each"][:, where] += (pairs.gain(flat[:, own]) * useful).sum(-1).reshape(shape)
    found = {name: mean_and_error(start + gain) for name, gain in gains.items()}
    kl, error = max(found.values(), key=lambda own: own[0] - own[1])
    correlation = _left_out(blocks, within, found["Gaussian"][0])
    if size > MOST_COLUMNS:  # directions take the cube of it: coordinates alone are looked at
        return _Whole(kl, error, correlation, None)
    pull = None
    pair = reference.two(white.reshape(-1, size), hints)
    two, two_error = max(found["pair"], found["direction"], key=lambda own: own[0] - own[1])
    if pair.is_bimodal() and two > 3 * two_error and two > correlation + 0.02:
        pull = (axes * np.sqrt(values)) @ (axes.T @ pair.along)
    return _Whole(kl, error, correlation, pull)
