"""Means and spreads over partitions, and whether what was to be shown is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.klfusion.networks import methods
from experiments.klfusion.networks.local_fits import SETTINGS
from experiments.klfusion.networks.studies import HORSESHOE_ROW, MAIN

Rows = Mapping[str, Any]
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


# --- tables ----------------------------------------------------------------------------------


def _study(partitions: Sequence[Rows]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for rows in partitions for name in rows))
    fused = [name for name in names if not name.startswith(SITE)]
    found = {"partitions": len(partitions)}
    if len(fused) < len(names):
        found["local networks"] = _statistics(
            [row for rows in partitions for name, row in rows.items() if name.startswith(SITE)]
        )
    return found | {
        name: _statistics([rows[name] for rows in partitions if name in rows]) for name in fused
    }


def _statistics(rows: Sequence[Rows]) -> dict[str, Any]:
    """Of rows of one method."""
    found: dict[str, Any] = {"units": _spread([row["units"] for row in rows], 1)}
    for how in ("at means", "with draws", "AUROC", "AUROC at means"):
        if how in rows[0]:
            found[how] = {key: _spread([row[how][key] for row in rows]) for key in rows[0][how]}
    for extra in ("alive", "CPU seconds of fusing"):
        if extra in rows[0]:
            found[extra] = _spread([row[extra] for row in rows], 1)
    return found


def _spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    found = {"mean": round(float(np.mean(values)), digits)}
    if len(values) > 1:
        found["sd"] = round(float(np.std(values, ddof=1)), digits)
    return found


def _partition(rows: Rows) -> dict[str, Any]:
    """Table 2 of one partition."""
    return {
        name: {"units": row["units"], **row["with draws"], "AUROC": row["AUROC"]}
        for name, row in rows.items()
        if "with draws" in row
    }


def matching_adds(measured: Measured) -> dict[str, Any]:
    """Accuracy at means, matched less pruned units, of one width; paired over partitions."""
    found = {}
    for study, partitions in measured.items():
        pairs = {
            "refitted": (methods.FUSED, methods.PRUNED),
            "not refitted": (methods.NOT_REFITTED, methods.PRUNED_ONLY),
        }
        rows = [rows for rows in partitions if methods.PRUNED in rows]
        if rows:
            found[study] = {
                how: _paired([_accuracy(r[a]) - _accuracy(r[b]) for r in rows])
                for how, (a, b) in pairs.items()
            }
    return found


def _paired(differences: Sequence[float]) -> dict[str, float]:
    found = {"points": round(float(np.mean(differences)), 3)}
    if len(differences) > 1:
        error = np.std(differences, ddof=1) / np.sqrt(len(differences))
        found["standard error"] = round(float(error), 3)
    return found


# --- goals -----------------------------------------------------------------------------------


def goals(measured: Measured) -> list[dict[str, Any]]:
    """Each with what was measured and whether it is met."""
    found = []
    if MAIN in measured:
        main = measured[MAIN]
        found += [_width(main), _good(main), _near(main), _round(main), _strange(main)]
    if any(methods.FUSED in rows for rows in measured.get(HORSESHOE_ROW, ())):
        rows = [rows for rows in measured[HORSESHOE_ROW] if methods.FUSED in rows]
        values = [_accuracy(row[methods.FUSED]) for row in rows]
        found.append(
            _goal(
                f"horseshoe: accuracy at least {HORSESHOE_GOAL} % on average",
                values,
                np.mean(values) >= HORSESHOE_GOAL,
            )
        )
    return found


def _width(main: Sequence[Rows]) -> dict[str, Any]:
    units = [rows[name]["units"] for rows in main for name in (methods.FUSED, methods.CAPPED)]
    return _goal("at most 281 units on every partition", units, max(units) <= methods.WIDTH)


def _good(main: Sequence[Rows]) -> dict[str, Any]:
    text = f"accuracy at least {ACCURACY} %, log likelihood at least {LOG_LIKELIHOOD}, on average"
    found = {f"{method}, {how}": _both(main, method, how) for method, how in JUDGED}
    accuracy = [_accuracy(rows[methods.CAPPED]) for rows in main]
    met = all(
        own["accuracy"]["mean"] >= ACCURACY and own["log_likelihood"]["mean"] >= LOG_LIKELIHOOD
        for name, own in found.items()
        if name.startswith(methods.CAPPED)
    )
    return _goal(text, accuracy, met) | {"judged": f"{methods.CAPPED}, both ways"} | found


JUDGED = tuple(
    (method, how)
    for method in (methods.CAPPED, methods.PRODUCT, methods.FUSED)
    for how in ("at means", "with draws")
)


def _both(main: Sequence[Rows], method: str, how: str) -> dict[str, Any]:
    keys = ("accuracy", "log_likelihood")
    return {key: _spread([rows[method][how][key] for rows in main]) for key in keys}


def _near(main: Sequence[Rows]) -> dict[str, Any]:
    behind = {
        method: [_accuracy(rows[methods.WEIGHTED]) - _accuracy(rows[method]) for rows in main]
        for method in (methods.FUSED, methods.CAPPED)
    }
    text = f"within {NEAR} points of the weighted concatenation, on average"
    met = all(np.mean(own) <= NEAR for own in behind.values())
    return _goal(text, behind[methods.FUSED], met) | {
        methods.CAPPED: _spread(behind[methods.CAPPED])
    }


def _round(main: Sequence[Rows]) -> dict[str, Any]:
    main = [rows for rows in main if methods.REFINED in rows]
    refined = [_accuracy(rows[methods.REFINED]) for rows in main]
    random = [_accuracy(rows[methods.RANDOM]) for rows in main]
    text = f"one round of refinement: accuracy at least {ROUND} % on average"
    return _goal(text, refined, np.mean(refined) >= ROUND) | {
        "partitions": len(main),
        "a round from a random common start": _spread(random),
    }


def _strange(main: Sequence[Rows]) -> dict[str, Any]:
    """AUROC of the fused network less the best local one's: the same kind of prediction."""
    kinds = {
        "with draws": (methods.CAPPED, "AUROC"),
        "with draws, width found": (methods.PRODUCT, "AUROC"),
        "at means": (methods.FUSED, "AUROC at means"),
        "with draws, barycentre": (methods.FUSED, "AUROC"),
        "with draws, after one round": (methods.REFINED, "AUROC"),
    }
    gaps = {
        how: [_ahead(rows, *kind) for rows in main if kind[0] in rows]
        for how, kind in kinds.items()
    }
    ours = [rows[methods.CAPPED]["AUROC"]["area"] for rows in main]
    text = "AUROC of entropy, font digits against MNIST, above every local network's"
    return _goal(text, ours, min(gaps["with draws"]) > 0) | {
        "less the best local network's": {
            how: {
                **_spread(own),
                "least": round(min(own), 4),
                "partitions above": f"{sum(gap > 0 for gap in own)} of {len(own)}",
            }
            for how, own in gaps.items()
        }
    }


def _ahead(rows: Rows, method: str, kind: str) -> float:
    local = [row[kind]["area"] for name, row in rows.items() if name.startswith(SITE)]
    return rows[method][kind]["area"] - max(local)


def _goal(text: str, values: Sequence[float], met: Any) -> dict[str, Any]:
    measured = {**_spread(values), "least": min(values), "most": max(values)}
    measured = {name: round(value, 4) for name, value in measured.items()}
    return {"goal": text, "measured": measured, "met": bool(met)}


def _accuracy(row: Rows) -> float:
    return row["at means"]["accuracy"]
