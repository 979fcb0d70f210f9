"""Divergences of many repetitions summed up, what was to be shown of them, and the pictures."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.gfvl.problem import WITHIN, Array
from experiments.harness import rounded as significant
from experiments.harness import standard_error, statistics

ONE_COVER, TWO_COVERS = "KL over floor after one cover", "KL over floor after two covers"
PAPERS, BEST = "REINFORCE, c = 0 (the paper's)", "closed form"
DEFAULT = "default (closed form, rate 1/2, 20 iterations)"
DIVERGED = 10.0  # a divergence this large after training counts the run as diverged


@dataclasses.dataclass(frozen=True)
class Curve:
    """Divergences (repetitions, records) against visits of the token.

    `steps` local iterations were made in each visit; repetitions of one of `groups` share data.
    Means and their errors are over the repetitions that did not diverge, or over groups.
    """

    kl: Array
    visits: Array
    steps: int = 1
    groups: int = 1

    @property
    def iterations(self) -> Array:
        return self.visits * self.steps

    @property
    def _lost(self) -> Array:
        return ~(self.kl[:, -1] <= DIVERGED)

    @property
    def diverged(self) -> float:
        return float(self._lost.mean())

    @property
    def kept(self) -> Array:
        """Divergences of the repetitions that did not diverge, or of all if all did."""
        return self.kl if self._lost.all() or self.groups > 1 else self.kl[~self._lost]

    @property
    def mean(self) -> Array:
        return self.kept.mean(0)

    @property
    def standard_error(self) -> Array:
        rows = self.kept
        if self.groups > 1:
            rows = rows.reshape(self.groups, -1, rows.shape[1]).mean(1)
        return standard_error(rows)

    @property
    def interval(self) -> Array:
        return np.quantile(np.nan_to_num(self.kl, nan=np.inf), [0.05, 0.95], axis=0)

    def at(self, wanted: Sequence[int], *, unit: str = "visits") -> dict[str, Any]:
        x = getattr(self, unit)
        rows = self.mean, self.standard_error, *self.interval
        found = {}
        for number in wanted:
            if number <= x[-1]:
                mean, error, *band = (significant(r[np.searchsorted(x, number)]) for r in rows)
                own = {"mean": mean, "standard error": error, "90 % of repetitions": band}
                found[str(number)] = own
        return found


def estimate(values: Array) -> dict[str, float]:
    return {key: statistics(values)[key] for key in ("mean", "standard error")}


def first_within(kl: Array, limit: float, visits: Array) -> Array:
    """By repetition, visits until the divergence is at or below `limit`; NaN if it never is."""
    reached = kl <= limit
    return np.where(reached.any(1), visits[reached.argmax(1)], np.nan)


HOPS, OVER_FLOOR, Z = 30, 1.5, 2.0


def floor_reached(curves: Mapping[str, Curve], floor: float) -> dict[str, Any]:
    end = {name: float(curves[name].mean[-1] / floor) for name in (PAPERS, BEST)}
    half = curves[PAPERS].mean[len(curves[PAPERS].visits) // 2] / floor
    return {
        "goal": "the floor is reached by the default estimator where the paper's stalls",
        "KL over floor at the end": {
            name: {
                "mean": significant(ratio),
                "standard error": significant(curves[name].standard_error[-1] / floor),
                "diverged": curves[name].diverged,
            }
            for name, ratio in end.items()
        },
        "the paper's, half-way": significant(half),
        "met": bool(end[BEST] <= WITHIN < end[PAPERS] / 10),
    }


def few_hops(hops: Mapping[str, Any], data_sets: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "goal": f"KL at most {WITHIN} times the floor after {HOPS} hops of a walk, on average",
        "with": DEFAULT,
        "measured, over data sets": data_sets,
        "measured, one data set": hops[DEFAULT],
        "met": data_sets["mean"] <= HOPS,
    }


def forgotten(covered: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    rows = {f"{case}, {how}": row for case, own in covered.items() for how, row in own.items()}
    ratios = {name: row[ONE_COVER] for name, row in rows.items() if ONE_COVER in row}
    return {
        "goal": f"after forgetting and one cover at most {OVER_FLOOR} times the floor, on average",
        "measured": ratios,
        "after two covers": {n: row[TWO_COVERS] for n, row in rows.items() if TWO_COVERS in row},
        "met": all(r["mean"] + 2 * r["standard error"] <= OVER_FLOOR for r in ratios.values()),
    }


def theory(times: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    scores = {f"{graph}, {kind}": r["z"] for graph, own in times.items() for kind, r in own.items()}
    square = sum(z * z for z in scores.values()) / len(scores)
    return {
        "goal": "mean cover and unlearning times as theory has them, within standard error",
        "z scores": scores,
        "mean square of z (1 is expected)": significant(square),
        "met": all(abs(z) <= Z for z in scores.values()),
        "judged as": f"all |z| at most {Z:.0f}",
    }


COLORS = ("#c1121f", "#1d70b8", "#2a9d4b", "#e08e0b", "#8a5fbf", "#555555")
SMALLEST, LARGEST = 1e-9, 1e4
"""Divergences beyond these are drawn there: exact posteriors have none."""
TRUE, STAY = "KL(posterior ‖ true posterior), nats", "KL(posterior ‖ that of those who stay), nats"
Curves = Mapping[str, Curve]


def panel(
    axis: Any,
    title: str,
    curves: Curves,
    floor: float | None = None,
    *,
    unit: str = "visits",
    label: str = "",
    colors: Any = COLORS,
    log: bool = False,
    **legend: Any,
) -> None:
    """Means and bands of all curves, and the least divergence of any Beta."""
    for (name, curve), color in zip(curves.items(), colors, strict=False):
        x, (low, high) = getattr(curve, unit), np.clip(curve.interval, SMALLEST, LARGEST)
        axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        axis.plot(x, np.clip(curve.mean, SMALLEST, LARGEST), color=color, label=name, linewidth=1.6)
    if floor is not None:
        axis.axhline(floor, color="black", linestyle=":", linewidth=1.2, label="floor: best Beta")
    axis.set(yscale="log", xlabel=label or unit, title=title)
    axis.set_ylim(bottom=1e-6 if floor is None else floor / 3)
    axis.grid(alpha=0.25)
    if log:
        axis.set_xscale("log")
    axis.legend(frameon=False, fontsize=8, **legend)


def figure3(curves: Curves, folder: Path) -> None:
    options = {"figsize": (3.7 * len(curves), 3.7), "sharey": True}
    with harness.figure(folder / "figure3.png", 1, len(curves), **options) as axes:
        for axis, (name, curve), color in zip(axes[0], curves.items(), COLORS, strict=False):
            panel(axis, f"{name}, K = 10", {name: curve}, label="slot", colors=[color])
        axes[0, 0].set_ylabel(TRUE)


def figure4(results: Mapping[str, tuple[Curves, float]], folder: Path) -> None:
    """Local iterations, as the paper has them, under both losses and on both axes."""
    size = (5 * len(results), 7.6)
    with harness.figure(folder / "figure4.png", 2, len(results), figsize=size) as axes:
        for (above, below), (loss, own) in zip(axes.T, results.items(), strict=True):
            panel(above, loss, *own, unit="iterations", label="local iterations", log=True)
            panel(below, loss, *own, log=True)
        for axis in axes[:, 0]:
            axis.set_ylabel(TRUE)


def figure4_ours(
    estimators: tuple[Curves, float], defaults: tuple[Curves, Any, float], folder: Path
) -> None:
    """The estimator alone changed; and the default with its variants."""
    with harness.figure(folder / "figure4-estimators.png", 1, 2, figsize=(12, 4.6)) as axes:
        (left, right), usual = axes[0], {"log": True, "loc": "lower left"}
        iterations = {"unit": "iterations", "label": "local iterations"}
        panel(left, "sum loss, L = 1, rate 0.005", *estimators, **iterations, **usual)
        panel(right, "sum loss, default and variants", *defaults[::2], **usual)
        left.set_ylabel(TRUE)


def figure5(
    conjugate: Mapping[str, Curves], waiting: Mapping[str, tuple[Curves, Any, float]], folder: Path
) -> None:
    """After a request to be forgotten: above conjugate, below not."""
    size = max(len(conjugate), len(waiting))
    panels = (
        [(f"Beta-Bernoulli, {graph}", own) for graph, own in conjugate.items()],
        [(f"Beta-exponential, complete, {case}", *own[::2]) for case, own in waiting.items()],
    )
    with harness.figure(folder / "figure5.png", 2, size, figsize=(4.4 * size, 7.6)) as axes:
        for row, shown in zip(axes, panels, strict=True):
            for axis, own in zip(row, shown, strict=False):
                panel(axis, *own, label="visits since the request")
            for axis in row[len(shown) :]:
                axis.set_axis_off()
            row[0].set_ylabel(STAY)
