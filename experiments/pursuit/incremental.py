"""Classes in pairs, one task after another: `python -m experiments.pursuit.incremental`.

MNIST, Fashion-MNIST and digits of fonts, 0-1, 2-3, ..., 8-9 (`forth`) and the other way round
(`back`), one head for all, no task named at test: accuracy and log loss on all classes seen so far,
after each task. The learner of `posterity.pursuit.learning`, mixtures of a network a task (with
even weights, with the weights of the highest ELBO, and gated by where an input lies), learning
again from a few records, fine-tuning, EWC, variational continual learning (VCL) and joint training.
Writes `incremental.json` and `incremental.png`. What takes long is kept in a folder, a file a job:
the same command goes on where it was. `--only-kept` reads what there is. Methods of which that
folder has nothing stay in `incremental.json` as they were.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_softmax

from experiments import harness
from experiments.data import Digits, fashion_mnist, font_digits, mnist
from experiments.klfusion.networks.deep import lenet
from experiments.pursuit import PLACE
from experiments.pursuit import incremental_peers as peers
from experiments.pursuit.image_features import ImageFeatures, deformed, kept_records
from experiments.pursuit.incremental_peers import chances, trained
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.pursuit.learning import ConjugateLearner

Array = np.ndarray
Curve = list[dict[str, float]]

ORDERS = {"forth": (0, 1, 2, 3, 4), "back": (4, 3, 2, 1, 0)}
TINY = np.finfo(float).tiny
LENET = lenet()


@dataclass(frozen=True)
class Setting:
    """How much of what; the small version of the tests has less of all.

    ``coreset`` is the number of records of each class that are kept, ``copies`` that of their
    deformed copies, ``cells`` and ``width`` are of the features of images.
    """

    classes: int = 10
    layers: Layers = LENET
    network_images: int = 12_000
    network_tests: int = 2_500
    steps: int = 300
    batch: int = 100
    variance: float = 0.01
    draws: int = 5
    coreset: int = 20
    copies: int = 30
    width: int = 1500
    cells: int = 7
    epochs: int = 30


def fonts() -> Digits:
    """Digits of computer fonts, on which no constant was chosen; every fifth font is a test."""
    found = font_digits()
    test = found.font % 5 == 0
    return Digits(found.x[~test], found.y[~test], found.x[test], found.y[test])


SETS: dict[str, Callable[[], Digits]] = {"mnist": mnist, "fashion": fashion_mnist, "fonts": fonts}


def measured(log_chances: Array, y: Array, seen: Sequence[int]) -> dict[str, float]:
    """Accuracy in % and log loss in nats among the classes seen; and how far confidence is off."""
    own = np.isin(y, seen)
    logs = log_chances[own][:, list(seen)]
    logs = log_softmax(np.maximum(logs, -1e300), axis=1)
    truth = np.searchsorted(seen, y[own])
    right = logs.argmax(1) == truth
    return {
        "accuracy": round(100 * float(right.mean()), 3),
        "log loss": round(float(-logs[np.arange(len(truth)), truth].mean()), 5),
        "confidence - accuracy": round(100 * float(np.exp(logs.max(1)).mean() - right.mean()), 3),
    }


def seen_after(setting: Setting, order: Sequence[int], tasks: int) -> list[int]:
    """Classes of the first so many tasks of an order."""
    pairs = [(2 * k, 2 * k + 1) for k in order[:tasks]]
    return sorted(label for pair in pairs for label in pair if label < setting.classes)


@dataclass(frozen=True)
class Job:
    """One method on one set, under one seed and in one order."""

    method: str
    data: str
    seed: int
    order: str

    @property
    def name(self) -> str:
        return f"{self.data}-{self.seed}-{self.order}-{self.method}".replace(" ", "_")


class Runner:
    """Runs jobs, and keeps their curves and the networks of tasks in a folder."""

    def __init__(
        self, setting: Setting, cache: Path, sets: Mapping[str, Callable[[], Digits]] = SETS
    ) -> None:
        self.setting, self.cache = setting, cache
        # The last of each kind is held: jobs of one set and seed follow each other.
        once = functools.lru_cache(1)
        self.data, self.few = once(lambda name: sets[name]()), once(self.few)
        self.features = once(self.features)
        self.networks, self.conjugate = once(self.networks), functools.lru_cache(3)(self.conjugate)

    def run(self, job: Job) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            clock = harness.Clock()
            curve = METHODS[job.method](self, job)
            return {**vars(job), "curve": curve, "cpu s": round(clock.seconds["CPU seconds"], 1)}

        return harness.kept(self.cache, job.name, make)

    def few(self, data: str, seed: int) -> tuple[list[tuple[Array, Array]], Array, Array]:
        """The networks' share: tasks 0, 1, ... of a random part of the images, and tests."""
        own, setting = self.data(data), self.setting
        places = np.random.default_rng(seed).permutation(len(own.y_train))[: setting.network_images]
        flat, labels = own.x_train[places].reshape(len(places), -1), own.y_train[places]
        tasks = [(flat[labels // 2 == k], labels[labels // 2 == k]) for k in ORDERS["forth"]]
        tests = slice(0, setting.network_tests)
        return tasks, own.x_test[tests].reshape(-1, flat.shape[1]), own.y_test[tests]

    def shaped(self, data: str, flat: Array) -> Array:
        return flat.reshape(-1, *self.data(data).x_train.shape[1:])

    def features(self, data: str, seed: int) -> ImageFeatures:
        setting, shape = self.setting, self.data(data).x_train.shape[1:]
        return ImageFeatures(shape, setting.cells, width=setting.width, seed=seed)

    def conjugate(self, data: str, seed: int, of: str) -> ConjugateLearner:
        """After all tasks: of ``"all"`` images, of the networks' ``"few"``, or of those ``"kept"``.

        What is kept of a task are a few records of each class, with deformed copies.
        """
        setting, own = self.setting, self.data(data)
        learner = ConjugateLearner(setting.classes, self.features(data, seed))
        for k in ORDERS["forth"]:
            rows, originals = own.y_train // 2 == k, None
            x, y = own.x_train[rows], own.y_train[rows]
            if of != "all":
                flat, y = self.few(data, seed)[0][k]
                x = self.shaped(data, flat)
            if of == "kept":
                x, y = kept_records(x, y, setting.coreset)
                y, originals = (np.tile(row, setting.copies + 1) for row in (y, np.arange(len(y))))
                x = deformed(x, setting.copies, seed)
            learner = learner.observe(f"pair {k}", x, y, originals)
        return learner

    def networks(self, data: str, seed: int) -> list[dict[str, Any]]:
        """Each task's ``network``, and its ``answers`` on the tests, (n, classes)."""
        setting, (tasks, tests, _) = self.setting, self.few(data, seed)
        found = []
        prior = Network.prior(setting.layers, setting.variance)
        options = {"steps": setting.steps, "batch": setting.batch}
        for k, records in enumerate(tasks):

            def make(k: int = k, records: Any = records) -> dict[str, Any]:
                task = {"task": f"pair {k}", "seed": seed}
                network = trained(prior, *records, **task, **options)
                return {"network": network, "answers": chances(network, tests, setting.draws)}

            path = self.cache / f"network-{data}-{seed}-{k}.safetensors"
            found.append(harness.kept_object(path, make))
        return found


def _conjugate(of: str, runner: Runner, job: Job) -> Curve:
    """A learner that knows no order: with the tasks that are still to come forgotten."""
    whole, own = runner.conjugate(job.data, job.seed, of), runner.data(job.data)
    curve, order = [], ORDERS[job.order]
    for count in range(1, len(order) + 1):
        learner = whole.forget(*(f"pair {k}" for k in order[count:]))
        seen = seen_after(runner.setting, order, count)
        tests = np.isin(own.y_test, seen)
        logs = learner.predict(own.x_test[tests]).log_chances
        curve.append(measured(logs, own.y_test[tests], seen))
    return curve


def _mixed(runner: Runner, job: Job, *, weigh: str) -> Curve:
    """The networks of tasks, mixed by even weights, by the best ELBO, or by where an input lies.

    The slides of egorov2019 have ``1/T`` for each of ``T`` tasks, or the share of a new component
    that is best (:func:`peers.shares`). A gate is a conjugate learner: a task weighs the chance of
    each class at ``x`` times its share of the class's records.
    """
    networks = runner.networks(job.data, job.seed)
    answers = [own["answers"] for own in networks]
    tasks, x, y = runner.few(job.data, job.seed)
    classes, curve, order = runner.setting.classes, [], ORDERS[job.order]
    counts = np.stack([np.bincount(own, minlength=classes) for _, own in tasks], 1)
    if weigh == "fitted":
        in_order = [(networks[k]["network"], *tasks[k]) for k in order]
        fitted = peers.shares(in_order, runner.setting.draws, job.seed)
    for count in range(1, len(order) + 1):
        known = list(order[:count])
        seen = seen_after(runner.setting, order, count)
        own = np.isin(y, seen)
        weights = np.full((own.sum(), count), 1 / count)
        if weigh == "fitted":
            weights = np.tile(fitted[count - 1], (own.sum(), 1))
        if weigh == "gated":
            gate = runner.conjugate(job.data, job.seed, "few")
            gate = gate.forget(*(f"pair {k}" for k in order[count:]))
            shares = counts[:, known] / np.maximum(counts[:, known].sum(1, keepdims=True), 1)
            weights = gate.predict(runner.shaped(job.data, x[own])).mean @ shares
        mixed = sum(w[:, None] * answers[k][own] for w, k in zip(weights.T, known, strict=True))
        curve.append(measured(np.log(np.maximum(mixed, TINY)), y[own], seen))
    return curve


def _variational(runner: Runner, job: Job, *, kept: bool) -> Curve:
    """Variational continual learning: what is known after a task is the prior of the next.

    With a coreset a few records of each class are left out of their tasks, and learned from before
    each prediction alone. Source: nguyen2018.
    """
    setting, order, curve = runner.setting, ORDERS[job.order], []
    tasks, x, y = runner.few(job.data, job.seed)
    options = {"seed": job.seed, "steps": setting.steps, "batch": setting.batch}
    posterior, coreset = Network.prior(setting.layers, setting.variance), []
    for count, k in enumerate(order, 1):
        own, labels = tasks[k]
        few = np.zeros(len(labels), bool)
        for label in np.unique(labels) if kept else ():
            few[np.flatnonzero(labels == label)[: setting.coreset]] = True
        coreset.append((own[few], labels[few]))
        rest = own[~few], labels[~few]
        posterior = trained(posterior, *rest, task=f"pair {k}", on=count > 1, **options)
        known = posterior
        if kept:
            together = map(np.concatenate, zip(*coreset, strict=True))
            known = trained(posterior, *together, task="coreset", on=True, **options)
        logs = np.log(np.maximum(chances(known, x, setting.draws), TINY))
        curve.append(measured(logs, y, seen_after(setting, order, count)))
    return curve


def _peer(method: Any, runner: Runner, job: Job) -> Curve:
    """A network that goes on from task to task, or (joint training) one of all tasks."""
    tasks, x, y = runner.few(job.data, job.seed)
    setting, order = runner.setting, ORDERS[job.order]
    training = peers.Training(setting.layers, setting.steps, setting.batch, job.seed)
    if method is peers.joint:
        return [measured(method(training, tasks, x), y, range(setting.classes))]
    found = method(training, [tasks[k] for k in order], x)
    return [
        measured(logs, y, seen_after(setting, order, count)) for count, logs in enumerate(found, 1)
    ]


def _joint_features(runner: Runner, job: Job) -> Curve:
    own, features = runner.data(job.data), runner.features(job.data, job.seed)
    train, tests = (features(x).astype(np.float32) for x in (own.x_train, own.x_test))
    setting = runner.setting
    logs = peers.softmax_regression(train, own.y_train, tests, setting.classes, setting.epochs)
    return [measured(logs, own.y_test, range(setting.classes))]


METHODS: dict[str, Callable[[Runner, Job], Curve]] = {
    "conjugate": functools.partial(_conjugate, "all"),
    "gated": functools.partial(_mixed, weigh="gated"),
    "coreset, deformed": functools.partial(_conjugate, "kept"),
    "mixture, even": functools.partial(_mixed, weigh="even"),
    "mixture, fitted": functools.partial(_mixed, weigh="fitted"),
    "fine-tuning": functools.partial(_peer, peers.fine_tuned),
    "EWC": functools.partial(_peer, peers.elastic),
    "VCL": functools.partial(_variational, kept=False),
    "VCL, coreset": functools.partial(_variational, kept=True),
    "joint network": functools.partial(_peer, peers.joint),
    "joint, same features": _joint_features,
}
ONCE = ("joint network", "joint, same features")  # methods that know no order


def jobs(
    methods: Sequence[str], sets: Sequence[str], seeds: Sequence[int], orders: Sequence[str]
) -> list[Job]:
    return [
        Job(method, data, seed, order)
        for seed in seeds
        for data in sets
        for method in methods
        for order in (orders[:1] if method in ONCE else orders)
    ]


def summarise(
    setting: Setting, rows: Sequence[dict[str, Any]], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Means and spreads over seeds, which seeds those are, and the goals; what was ``known`` of
    methods that no row is of stays.
    """
    table: dict[str, Any] = {}
    for row in rows:
        key = table.setdefault(row["data"], {}).setdefault(row["method"], {})
        key.setdefault(row["order"], []).append(row)
    found = {
        data: {
            method: {order: _summary(own) for order, own in orders.items()}
            for method, orders in methods.items()
        }
        for data, methods in table.items()
    }
    found = {data: {**known.get(data, {}), **found.get(data, {})} for data in {**known, **found}}
    return {
        "setting": {
            "tasks": "pairs of classes 0-1, ..., 8-9 ('forth'), or the last first ('back')",
            "networks": f"{setting.network_images} training images, a random part by seed; "
            f"{setting.steps} steps of {setting.batch} a task, prior N(0, {setting.variance}); "
            f"the first {setting.network_tests} test images; {setting.draws} draws of weights",
            "conjugate": f"all training and test images; {setting.width} random units, other "
            "ones by seed",
            "coresets": f"{setting.coreset} images a class",
            "spread": "sample standard deviation over seeds",
        },
        "after each task": found,
        "goals": goals(found),
    }


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"seeds": [row["seed"] for row in rows]}
    for kind in rows[0]["curve"][0]:
        values = np.array([[at[kind] for at in row["curve"]] for row in rows])
        digits = 4 if kind == "log loss" else 2
        found[kind] = np.round(values.mean(0), digits).tolist()
        if len(values) > 1:
            found[f"sd of {kind}"] = np.round(values.std(0, ddof=1), digits).tolist()
    found["cpu s a seed"] = round(float(np.mean([row["cpu s"] for row in rows])), 1)
    return found


def goals(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was to be shown after the fifth task, and what came out; of what was run."""
    wanted = [
        ("mnist", "gated", "accuracy", 96.0),
        ("mnist", "conjugate", "accuracy", 98.5),
        ("mnist", "conjugate", "log loss", 0.05),
        ("mnist", "coreset, deformed", "accuracy", 96.0),
    ]
    rows = []
    for data, method, kind, bound in wanted:
        own = found.get(data, {}).get(method, {}).get("forth")
        if own is not None:
            value = own[kind][-1]
            met = value >= bound if kind == "accuracy" else value <= bound
            sign = "at least" if kind == "accuracy" else "at most"
            goal = f"{data}, {method}: {kind} {sign} {bound}"
            rows.append({"goal": goal, "measured": value, "met": bool(met)})
    fashion = found.get("fashion", {})
    if {"conjugate", "joint, same features"} <= fashion.keys():
        joint = fashion["joint, same features"]["forth"]["accuracy"][-1]
        gap = joint - fashion["conjugate"]["forth"]["accuracy"][-1]
        goal = "fashion, conjugate: within 1.5 points of joint training of the same features"
        rows.append({"goal": goal, "measured": round(gap, 2), "met": bool(gap <= 1.5)})
    return rows


def draw(summary: Mapping[str, Any], results: Path) -> None:
    sets = summary["after each task"]
    size = (5.6 * max(len(sets), 1), 4.4)
    with harness.figure(results / "incremental.png", 1, max(len(sets), 1), figsize=size) as axes:
        for axis, (data, methods) in zip(axes[0], sets.items(), strict=False):
            for method, orders in methods.items():
                own = orders["forth"]
                if method in ONCE:
                    style = "-" if method == ONCE[0] else "--"
                    axis.axhline(own["accuracy"][-1], color="k", ls=style, lw=0.8, label=method)
                    continue
                label = f"{method} ({len(own['seeds'])})"
                axis.plot(range(1, len(own["accuracy"]) + 1), own["accuracy"], label=label)
            axis.set(xlabel="tasks, two classes each", title=data, xticks=range(1, 6))
            axis.set_ylabel("accuracy on all classes seen, %")
            axis.legend(
                fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0),
                title="method (seeds)", title_fontsize=7,
            )  # fmt: skip


def forgetting(setting: Setting, images: Digits) -> dict[str, Any]:
    """Whether predictions after forgetting are those of a learner that never saw the task."""
    shape, few = images.x_train.shape[1:], slice(0, setting.network_images)
    features = ImageFeatures(shape, setting.cells, width=setting.width)
    x, y = images.x_train[few], images.y_train[few]
    pairs = {f"pair {k}": (x[y // 2 == k], y[y // 2 == k]) for k in ORDERS["forth"]}
    whole = never = ConjugateLearner(setting.classes, features)
    for task, records in pairs.items():
        whole = whole.observe(task, *records)
    for task in reversed(sorted(set(pairs) - {"pair 2"})):
        never = never.observe(task, *pairs[task])
    answers = (
        learner.predict(images.x_test[:1000]).log_chances
        for learner in (whole.forget("pair 2"), never)
    )
    same = bool(np.array_equal(*answers))
    return {"pair 2 forgotten, bitwise as never seen, other order": {"conjugate": same}}


def run(
    place: harness.Place = PLACE,
    *,
    methods: tuple[str, ...] = tuple(METHODS),
    sets: tuple[str, ...] = tuple(SETS),
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    orders: tuple[str, ...] = tuple(ORDERS),
) -> dict[str, Any]:
    setting, cache = Setting(), place.cache / "incremental"
    runner = Runner(setting, cache)
    if not place.only_kept:
        for job in jobs(methods, sets, seeds, orders):
            row = runner.run(job)
            print(job.name, row["curve"][-1], row["cpu s"], flush=True)
        harness.kept(cache, "forgetting", lambda: forgetting(setting, mnist()))
    return report(setting, cache, place.results)


def report(setting: Setting, cache: Path, results: Path) -> dict[str, Any]:
    every = jobs(list(METHODS), list(SETS), range(5), list(ORDERS))
    rows = [row for job in every if (row := harness.kept(cache, job.name, None)) is not None]
    before = results / "incremental.json"
    known = json.loads(before.read_text()) if before.exists() else {}
    summary = summarise(setting, rows, known.get("after each task", {}))
    found = harness.kept(cache, "forgetting", None) or known.get("forgetting")
    if found is not None:
        summary["forgetting"] = found
    harness.write(results, "incremental", summary)
    draw(summary, results)
    return summary


if __name__ == "__main__":
    harness.command(run, methods=METHODS, sets=SETS, orders=ORDERS)
