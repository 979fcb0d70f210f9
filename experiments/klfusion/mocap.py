"""Table 1 of KL-fusion, its hidden Markov models: `python -m experiments.klfusion.mocap`.

Two people exercise, three sequences each (fox2014). Each person is a site: a sticky HDP-HMM of 15
states is fitted to its sequences alone, and the two posteriors are fused. Labels of frames are
compared with those of a human annotator. Writes `mocap.json` and `mocap.png` into `results` beside
this file. Local fits are kept under the cache folder: a stopped run goes on where it was.
"""

import functools
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.progress import track
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, rand_score

import posterity
from experiments import harness
from experiments.data import MotionCapture, mocap6
from experiments.klfusion import spahm
from experiments.klfusion.published import NormalWishart as Published
from experiments.klfusion.published import matched
from experiments.klfusion.sticky import fit_sticky
from posterity.errors import ConvergenceWarning
from posterity.families import NormalWishart
from posterity.ledger import Ledger
from posterity.models import HiddenMarkovModel, label, padded

Array = np.ndarray
Labels = dict[str, Array]
Sequences = list[Array]
RESULTS = Path(__file__).parent / "results"
CACHE = Path(".cache/klfusion-mocap")
SITES = {"subject 13": slice(0, 3), "subject 14": slice(3, 6)}
POOLED, FUSED = "pooled fit", "posterity"
ALONE, SPAHM, RELEASED = "no fusion", "SPAHM", "KL-fusion, as released"
PAPERS = "KL-fusion, paper's setting"
ROUND = f"{FUSED}, one round"
SCORES = {
    "adjusted Rand": adjusted_rand_score,
    "AMI": adjusted_mutual_info_score,
    "Rand": rand_score,
    "states": lambda human, found: len(np.unique(found)),
}
PAPER = {
    "KL-fusion": {"Rand": 0.286, "AMI": 0.458},
    "SPAHM": {"Rand": 0.254, "AMI": 0.445},
    "which Rand index": "not said in table 1; a plain one of .29 would be far below chance (two "
    "random labellings by ten equal classes have .82), so it must be the adjusted one",
}
ROUNDS = {1: "one round", 10: "ten rounds"}
FUSIONS: dict[str, dict[str, str]] = {
    FUSED: {},
    f"{FUSED}, forward": {"divergence": "forward"},
    PAPERS: {"matching": "kl-fusion"},
    f"{PAPERS}, forward": {"matching": "kl-fusion", "divergence": "forward"},
}


@dataclass(frozen=True)
class Setting:
    """The local model: chosen by the sites' evidence lower bounds, without looking at labels."""

    states: int = 15
    spread: float = 0.35
    degrees: float = 14.0
    mean_precision: float = 0.1
    concentration: float = 1.0
    stay: float = 50.0
    top: float = 10.0
    restarts: int = 3

    def emission(self, size: int) -> NormalWishart:
        """Expected covariance ``spread`` times the identity, of standardised channels."""
        scale = self.spread * (self.degrees - size - 1) * np.eye(size)
        return NormalWishart.from_inverse_scale(
            np.zeros(size), self.mean_precision, scale, self.degrees
        )


def fit(sequences: Sequences, setting: Setting, seed: int, cache: Path, name: str) -> Ledger:
    """The local posterior of a sticky HDP-HMM as a ledger, kept in the cache."""

    def make() -> Ledger:
        names = ("states", "concentration", "stay", "top", "restarts")
        options = {name: getattr(setting, name) for name in names}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            emission = setting.emission(sequences[0].shape[1])
            return fit_sticky(sequences, emission, key=jax.random.key(seed), **options).ledger(name)

    parts = [name.replace(" ", "-"), str(seed), *(f"{value:g}" for value in vars(setting).values())]
    return harness.kept_object(cache / f"{'-'.join(parts)}.safetensors", make)


def labellings(local: dict[str, Ledger], pooled: Any, sequences: Sequences, seed: int) -> Labels:
    """By method, the label of every frame, one sequence after the other."""
    labels = lambda q, own=sequences: np.concatenate(label(q, own))
    sites = {name: labels(local[name].posterior, sequences[rows]) for name, rows in SITES.items()}
    merged = lambda match: np.concatenate([match[name][states] for name, states in sites.items()])
    found = {
        ALONE: merged({name: 1000 * index + np.arange(1000) for index, name in enumerate(sites)}),
        POOLED: labels(pooled.posterior),
        SPAHM: merged(_by_peer(local, seed, released=False)),
        RELEASED: merged(_by_peer(local, seed, released=True)),
    }
    for name, options in FUSIONS.items():
        fused = posterity.fuse(local.values(), rule="product", **options)
        found[name] = labels(fused.posterior)
        if name == FUSED:
            found[f"{FUSED}, local labels renamed"] = merged(fused.matching)
            for rounds, words in ROUNDS.items():
                refined = _refined(fused.ledger, sequences, rounds)
                found[f"{FUSED}, {words}"] = labels(refined)
    return found


def _refined(ledger: Any, sequences: Sequences, rounds: int) -> Any:
    """Every site looks at its sequences again, beginning at the fused posterior, and so on."""
    length = padded(sequences)[0].shape[1]
    data = {name: padded(sequences[rows], length) for name, rows in SITES.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        update = posterity.LocalUpdate("closed-form", steps=1, rate=1.0)
        run = posterity.federate(data, HiddenMarkovModel(), ledger, steps=rounds, update=update)
    return run.posterior


def _by_peer(local: dict[str, Any], seed: int, *, released: bool) -> Labels:
    """The match of each site's states that have seen a frame.

    SPAHM sees the states' expected means alone; the authors' code, with room for all states of both
    sites, has plans that are rounded to their largest.
    """
    seen = [np.flatnonzero(own.posterior.occupancy(own.prior) >= 1) for own in local.values()]
    states = [
        own.posterior.emissions.members[rows]
        for own, rows in zip(local.values(), seen, strict=True)
    ]
    if released:
        kinds = ("mean", "mean_precision", "degrees_of_freedom", "inverse_scale")
        each = [zip(*(np.asarray(getattr(q, kind)) for kind in kinds), strict=True) for q in states]
        posteriors = [[Published(*own) for own in rows] for rows in each]
        _, plans = matched(posteriors, seed=seed, max_components=sum(map(len, posteriors)))
        labels = [plan.argmax(0) for plan in plans]
    else:
        labels, _ = spahm.match([q.mean for q in states], np.random.default_rng(seed))
    found = {name: np.full(own.posterior.states, -1) for name, own in local.items()}
    for all_states, rows, own in zip(found.values(), seen, labels, strict=True):
        all_states[rows] = own
    return found


def scores(found: Array, human: Array) -> dict[str, float]:
    """How well a labelling agrees with the human one, and how many labels it has."""
    return {name: float(score(human, found)) for name, score in SCORES.items()}


def summarise(rows: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Mean, standard error and all values by method, and whether the goal is met."""
    methods: dict[str, Any] = {name: {} for name in rows[0]}
    for name, own in methods.items():
        for measure in SCORES:
            values = [row[name][measure] for row in rows]
            error = float(harness.standard_error(values)) if len(rows) > 1 else None
            mean = float(np.mean(values))
            own[measure] = {"mean": mean, "standard error": error, "values": values}
    goal = {name: _verdict(methods, name) for name in (FUSED, ROUND)}
    return {"paper": PAPER, "seeds": len(rows), "methods": methods, "goal": goal}


def _verdict(methods: dict[str, Any], name: str) -> dict[str, dict[str, bool]]:
    """Against the pooled fit within one standard error of it, and above the others."""
    found = {}
    for measure in ("adjusted Rand", "AMI"):
        mine, pooled = (methods[method][measure] for method in (name, POOLED))
        gap = (mine["standard error"] or 0.0) ** 2 + (pooled["standard error"] or 0.0) ** 2
        found[measure] = {
            "at least the pooled fit's, within one standard error of the difference": bool(
                mine["mean"] >= pooled["mean"] - gap**0.5
            ),
            **{
                f"above {rival}": bool(mine["mean"] > methods[rival][measure]["mean"])
                for rival in (ALONE, SPAHM, RELEASED, PAPERS)
            },
        }
    return found


def run(*, cache: Path = CACHE, results: Path = RESULTS, seeds: int = 24) -> dict[str, Any]:
    """Fit each site so many times, fuse, measure, draw and write; what `mocap.json` holds."""
    data, setting = mocap6(), Setting()
    sequences, rows, every = standardised(data.sequences), [], []
    for seed in track(range(seeds), description="Seeds"):
        make = functools.partial(labelled, sequences, setting, seed, cache)
        labels = harness.kept(cache, f"labels-{seed}", make, setting)
        every.append({name: np.array(own) for name, own in labels.items()})
        rows.append({name: scores(own, data.labels) for name, own in every[-1].items()})
    summary = {"setting": vars(setting), **summarise(rows)}
    harness.write(results, "mocap", summary)
    middle = every[int(np.argsort([row[FUSED]["AMI"] for row in rows])[len(rows) // 2])]
    draw(data, {name: middle[name] for name in (ALONE, SPAHM, POOLED, FUSED, ROUND)}, results)
    for name, row in summary["methods"].items():
        print(f"{name:38}", {m: round(row[m]["mean"], 3) for m in SCORES})
    return summary


def labelled(
    sequences: Sequences, setting: Setting, seed: int, cache: Path
) -> dict[str, list[int]]:
    """The labellings of one seed, as they are kept."""
    local = {n: fit(sequences[own], setting, seed, cache, n) for n, own in SITES.items()}
    pooled = fit(sequences, setting, seed, cache, "pooled")
    found = labellings(local, pooled, sequences, seed)
    return {name: labels.tolist() for name, labels in found.items()}


def standardised(sequences: Sequences) -> Sequences:
    """All channels with mean zero and variance one over all frames."""
    every = np.concatenate(sequences)
    return [(x - every.mean(0)) / every.std(0) for x in sequences]


def draw(data: MotionCapture, found: Labels, folder: Path) -> None:
    """Write `mocap.png`: a column a sequence, a bar a labelling, matched to the human's colours."""
    import matplotlib

    rows = {"human": data.labels}
    rows |= {name: _coloured(labels, data.labels) for name, labels in found.items()}
    widths = np.diff(data.bounds)
    maps: Any = [matplotlib.colormaps[name] for name in ("tab20", "tab20b")]
    colours = np.vstack([own.colors for own in maps])
    options = {"figsize": (11, 4.2), "width_ratios": widths, "sharex": "col"}
    with harness.figure(folder / "mocap.png", len(rows), len(widths), **options) as axes:
        for axis_row, (name, labels) in zip(axes, rows.items(), strict=True):
            for axis, start, end in zip(axis_row, data.bounds[:-1], data.bounds[1:], strict=True):
                axis.imshow(colours[labels[start:end] % len(colours)][None], aspect="auto")
                axis.set_yticks([])
                axis.set_xticks([0, 100 * ((end - start) // 100)])
            axis_row[0].set_ylabel(name.replace(", ", "\n"), rotation=0, ha="right", va="center")
        for axis, name in zip(axes[0], data.names, strict=True):
            axis.set_title(name, fontsize=9)
        axes[0, 0].figure.supxlabel("frame (ten a second)", fontsize=9)


def _coloured(labels: Array, human: Array) -> Array:
    """Renamed so that as many frames as possible have the human's number; others above those."""
    own, index = np.unique(labels, return_inverse=True)
    overlap = np.zeros((len(own), human.max() + 1))
    np.add.at(overlap, (index, human), 1)
    names = human.max() + 1 + np.arange(len(own))
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    names[rows] = columns
    return names[index]


if __name__ == "__main__":
    harness.command(run)
