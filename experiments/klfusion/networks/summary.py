"""Means and spreads over partitions, whether what was to be shown is shown, and the figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.data import Array, Digits
from experiments.klfusion.networks import methods
from experiments.klfusion.networks.local_fits import SETTINGS
from experiments.klfusion.networks.predictions import entropy

MAIN = "main: Gaussian, KL x 0.1, Dirichlet(0.8)"
HORSESHOE_ROW = "horseshoe, KL x 0.1, Dirichlet(0.8)"
Rows = dict[str, Any]
Measured = Mapping[str, Sequence[Rows]]

PAPER = {
    "setting": "five sites, Dirichlet(0.8), 150 units a site, horseshoe prior, 100 draws",
    "fused width": 281,
    "accuracy": 95.8,
    "log likelihood": -0.32,
}
ACCURACY, LOG_LIKELIHOOD, NEAR, ROUND, HORSESHOE_GOAL = 97.2, -0.10, 0.3, 97.6, 95.8
SITE = "site "


def summarise(measured: Measured) -> dict[str, Any]:
    """What `networks.json` holds, but for the time."""
    found: dict[str, Any] = {
        "paper": PAPER,
        "settings of sites": {name: repr(setting) for name, setting in SETTINGS.items()},
        "seeds": "of a partition: its number, the sites and the concentration; see local_fits.py",
        "spread": "standard deviation over partitions",
        "predictions": "at means of weights, and averaged over draws where it is said",
        "studies": {name: _study(rows) for name, rows in measured.items()},
    }
    if MAIN in measured:
        found["by partition"] = [_partition(rows) for rows in measured[MAIN]]
        found["what matching adds over pruning"] = matching_adds(measured)
    found["goals"] = goals(measured)
    return found


def with_study(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return what `networks.json` held with the studies and goals that were measured anew."""
    name = "CPU minutes of this run"
    minutes = {f"CPU minutes of {study} alone": found.get(name) for study in found["studies"]}
    goals = {goal["goal"]: goal for goal in (*before["goals"], *found["goals"])}
    studies = before["studies"] | found["studies"]
    return before | minutes | {"studies": studies, "goals": list(goals.values())}


def _study(partitions: Sequence[Rows]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for rows in partitions for name in rows))
    found: dict[str, Any] = {"partitions": len(partitions)}
    if local := _local(partitions):
        found["local networks"] = _statistics(local)
    fused = [name for name in names if not name.startswith(SITE)]
    rows_of = lambda name: [rows[name] for rows in partitions if name in rows]
    return found | {name: _statistics(rows_of(name)) for name in fused}


def _local(partitions: Sequence[Rows]) -> list[Rows]:
    return [r for rows in partitions for name, r in rows.items() if name.startswith(SITE)]


def _statistics(rows: Sequence[Rows]) -> dict[str, Any]:
    found: dict[str, Any] = {"units": _spread([row["units"] for row in rows], 1)}
    for how in ("at means", "with draws", "AUROC", "AUROC at means"):
        if how in rows[0]:
            found[how] = {key: _spread([row[how][key] for row in rows]) for key in rows[0][how]}
    for extra in ("alive", "CPU seconds of fusing"):
        if extra in rows[0]:
            found[extra] = _spread([row[extra] for row in rows], 1)
    return found


def _spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    found = {"mean": np.mean(values)}
    if len(values) > 1:
        found["sd"] = np.std(values, ddof=1)
    return harness.places(found, digits)


def _partition(rows: Rows) -> dict[str, Any]:
    return {
        name: {"units": row["units"], **row["with draws"], "AUROC": row["AUROC"]}
        for name, row in rows.items()
        if "with draws" in row
    }


def matching_adds(measured: Measured) -> dict[str, Any]:
    """Accuracy at means, matched less pruned units, of one width; paired over partitions."""
    pairs = {
        "refitted": (methods.FUSED, methods.PRUNED),
        "not refitted": (methods.NOT_REFITTED, methods.PRUNED_ONLY),
    }
    found: dict[str, Any] = {}
    for study, partitions in measured.items():
        rows = [rows for rows in partitions if methods.PRUNED in rows]
        for how, (matched, pruned) in pairs.items() if rows else ():
            less = np.subtract(_accuracy(rows, matched), _accuracy(rows, pruned))
            own = {"points": less.mean()}
            if len(less) > 1:
                own["standard error"] = harness.standard_error(less)
            found.setdefault(study, {})[how] = harness.places(own, 3)
    return found


def goals(measured: Measured) -> list[dict[str, Any]]:
    found = []
    if main := measured.get(MAIN):
        found += [_width(main), _good(main), _near(main), _round(main), _strange(main)]
    rows = [rows for rows in measured.get(HORSESHOE_ROW, ()) if methods.FUSED in rows]
    if rows:
        values = _accuracy(rows, methods.FUSED)
        text = f"horseshoe: accuracy at least {HORSESHOE_GOAL} % on average"
        found.append(_goal(text, values, np.mean(values) >= HORSESHOE_GOAL))
    return found


def _accuracy(partitions: Sequence[Rows], method: str) -> list[float]:
    return [rows[method]["at means"]["accuracy"] for rows in partitions]


def _goal(text: str, values: Sequence[float], met: Any, **more: Any) -> dict[str, Any]:
    measured = {**_spread(values), "least": min(values), "most": max(values)}
    return {"goal": text, "measured": harness.places(measured), "met": bool(met), **more}


def _width(main: Sequence[Rows]) -> dict[str, Any]:
    units = [rows[name]["units"] for rows in main for name in (methods.FUSED, methods.CAPPED)]
    return _goal("at most 281 units on every partition", units, max(units) <= methods.WIDTH)


def _good(main: Sequence[Rows]) -> dict[str, Any]:
    found: dict[str, Any] = {"judged": f"{methods.CAPPED}, both ways"}
    means = []
    for method in (methods.CAPPED, methods.PRODUCT, methods.FUSED):
        for how in ("at means", "with draws"):
            found[f"{method}, {how}"] = own = {
                key: _spread([rows[method][how][key] for rows in main])
                for key in ("accuracy", "log_likelihood")
            }
            if method == methods.CAPPED:
                means.append([own[key]["mean"] for key in own])
    met = all(a >= ACCURACY and likelihood >= LOG_LIKELIHOOD for a, likelihood in means)
    text = f"accuracy at least {ACCURACY} %, log likelihood at least {LOG_LIKELIHOOD}, on average"
    return _goal(text, _accuracy(main, methods.CAPPED), met, **found)


def _near(main: Sequence[Rows]) -> dict[str, Any]:
    behind = {
        method: np.subtract(_accuracy(main, methods.WEIGHTED), _accuracy(main, method))
        for method in (methods.FUSED, methods.CAPPED)
    }
    met = all(own.mean() <= NEAR for own in behind.values())
    text = f"within {NEAR} points of the weighted concatenation, on average"
    capped = {methods.CAPPED: _spread(behind[methods.CAPPED])}
    return _goal(text, behind[methods.FUSED], met, **capped)


def _round(main: Sequence[Rows]) -> dict[str, Any]:
    main = [rows for rows in main if methods.REFINED in rows]
    refined, random = (_accuracy(main, method) for method in (methods.REFINED, methods.RANDOM))
    more = {"partitions": len(main), "a round from a random common start": _spread(random)}
    text = f"one round of refinement: accuracy at least {ROUND} % on average"
    return _goal(text, refined, np.mean(refined) >= ROUND, **more)


def _strange(main: Sequence[Rows]) -> dict[str, Any]:
    """AUROC of the fused network less the best local one's: the same kind of prediction."""
    kinds = {
        "with draws": (methods.CAPPED, "AUROC"),
        "with draws, width found": (methods.PRODUCT, "AUROC"),
        "at means": (methods.FUSED, "AUROC at means"),
        "with draws, barycentre": (methods.FUSED, "AUROC"),
        "with draws, after one round": (methods.REFINED, "AUROC"),
    }
    area = lambda row, kind: row[kind]["area"]
    less, lowest = {}, -np.inf
    for how, (method, kind) in kinds.items():
        gaps = [
            area(rows[method], kind) - max(area(row, kind) for row in _local([rows]))
            for rows in main
            if method in rows
        ]
        above = f"{sum(gap > 0 for gap in gaps)} of {len(gaps)}"
        own = {"least": round(min(gaps), 4), "partitions above": above}
        less[how] = {**_spread(gaps), **own}
        lowest = min(gaps) if how == "with draws" else lowest
    ours = [area(rows[methods.CAPPED], "AUROC") for rows in main]
    text = "AUROC of entropy, font digits against MNIST, above every local network's"
    return _goal(text, ours, lowest > 0, **{"less the best local network's": less})


QUANTILES, EACH = (0.0, 0.5, 0.9, 0.97, 0.99, 0.998), 8
LOCAL, FUSED = "#999999", "#c1121f"


def figure1(digits: Digits, chances: Array, folder: Path) -> None:
    """Images of the test set, each column surer than the next; what the fused network says."""
    order = np.argsort(entropy(chances), kind="stable")
    path = folder / "networks-figure1.png"
    with harness.figure(path, EACH, len(QUANTILES), figsize=(7.2, 9.2)) as axes:
        for column, quantile in zip(axes.T, QUANTILES, strict=True):
            start = min(int(quantile * len(order)), len(order) - EACH)
            shown = order[start : start + EACH]
            level = entropy(chances[shown]).mean()
            column[0].set_title(f"from {100 * quantile:g} %\n{level:.2g} nats", fontsize=9)
            for axis, image in zip(column, shown, strict=True):
                axis.imshow(digits.x_test[image], cmap="gray_r")
                said, truth = int(chances[image].argmax()), int(digits.y_test[image])
                text, color = (
                    (f"{said}", "#222222") if said == truth else (f"{said}, not {truth}", FUSED)
                )
                axis.set_xlabel(text, fontsize=9, color=color, labelpad=1)
                axis.set(xticks=[], yticks=[])
                axis.spines[:].set_visible(False)
        title = "test images in the order of the fused network's predictive entropy"
        axes[0, 0].figure.suptitle(title)


def figure5(partitions: Sequence[Rows], folder: Path) -> None:
    """Mean entropy by digit, MNIST beside font digits: fused and local networks."""
    titles = {"usual": "test images of handwritten digits", "strange": "digits of computer fonts"}
    options = {"legend": 2, "figsize": (10, 4), "sharey": True}
    by_digit = lambda rows, kind: np.array([row["entropy by digit"][kind] for row in rows])
    with harness.figure(folder / "networks-figure5.png", 1, 2, **options) as axes:
        for axis, (kind, title) in zip(axes[0], titles.items(), strict=True):
            local = by_digit(_local(partitions), kind)
            fused = by_digit([rows[methods.CAPPED] for rows in partitions], kind)
            places = np.arange(fused.shape[1])
            apart = np.random.default_rng(0).uniform(-0.3, -0.05, local.shape)
            axis.plot(places + apart, local, ".", color=LOCAL, markersize=3)
            axis.plot([], [], ".", color=LOCAL, label="local networks, all partitions")
            spread = fused.std(0, ddof=1) if len(fused) > 1 else np.zeros(len(places))
            style = {"fmt": "o", "color": FUSED, "capsize": 3}
            label = f"fused, mean and deviation over {len(fused)} partitions"
            axis.errorbar(places + 0.15, fused.mean(0), spread, label=label, **style)
            axis.set_xticks(places)
            axis.set(title=title, xlabel="digit")
        axes[0, 0].set_ylabel("mean predictive entropy, nats")
        axes[0, 0].set_ylim(bottom=0)
