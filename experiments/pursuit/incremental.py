"""Classes in pairs, one task after another: `python -m experiments.pursuit.incremental`.

MNIST and Fashion-MNIST, 0-1, 2-3, ..., 8-9 (`forth`) and the other way round (`back`), one head for
all, no task named at test: accuracy and log loss on all classes seen so far, after each task. The
rules of `posterity.pursuit.learning`, beside fine-tuning, EWC, variational continual learning,
replay through a network and joint training. Writes `incremental.json` and `incremental.png`. What
takes long is kept in a folder, a file a job: the same command goes on where it was. `--only-kept`
reads what there is.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data import intensities, mnist, read
from experiments.klfusion.networks.deep import lenet
from experiments.pursuit import incremental_figures
from experiments.pursuit import incremental_peers as peers
from experiments.pursuit.image_features import ImageFeatures
from experiments.pursuit.replay import ReplayLearner, kept_records
from experiments.pursuit.task_mixtures import GatedLearner, MixtureLearner
from experiments.pursuit.task_networks import chances, trained
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.pursuit.learning import ConjugateLearner

Array = np.ndarray
Curve = list[dict[str, float]]

RESULTS = Path(__file__).parent / "results"
CACHE = Path(tempfile.gettempdir()) / "posterity-incremental"
ORDERS = {"forth": (0, 1, 2, 3, 4), "back": (4, 3, 2, 1, 0)}


LENET = lenet()


@dataclass(frozen=True)
class Images:
    """Training and test images from 0 to 1, and their classes."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array


@dataclass(frozen=True)
class Setting:
    """How much of what; the small version of the tests has less of all."""

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


def load(name: str) -> Images:
    """One of the two sets."""
    if name == "mnist":
        found = mnist()
        return Images(found.x_train, found.y_train, found.x_test, found.y_test)
    with np.load(io.BytesIO(read("fashion_mnist.npz")), allow_pickle=False) as arrays:
        x, x_test = intensities(arrays["x_train"]), intensities(arrays["x_test"])
        return Images(x, arrays["y_train"].astype(int), x_test, arrays["y_test"].astype(int))


# --- measuring -----------------------------------------------------------------------------------


def measured(log_chances: Array, y: Array, seen: Sequence[int]) -> dict[str, float]:
    """Accuracy in % and log loss in nats among the classes seen; and how far confidence is off."""
    own = np.isin(y, seen)
    logs = log_chances[own][:, list(seen)]
    top = np.maximum(logs.max(1, keepdims=True), -1e300)
    logs = logs - top - np.log(np.exp(logs - top).sum(1, keepdims=True))
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


# --- jobs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One method on one set, under one seed and in one order."""

    method: str
    data: str
    seed: int
    order: str

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.data}-{self.seed}-{self.order}-{self.method}".replace(" ", "_")


class Runner:
    """Runs jobs, and keeps their curves and the networks of tasks in a folder."""

    def __init__(self, setting: Setting, cache: Path, images: Callable[[str], Images]) -> None:
        self.setting, self.cache, self.images = setting, cache, images
        self.held: dict[Any, Any] = {}
        cache.mkdir(parents=True, exist_ok=True)

    def run(self, job: Job) -> dict[str, Any]:
        """The curve of a job, and how long it took; from its file if there is one."""
        path = self.cache / f"{job.name}.json"
        if not path.exists():
            begun = time.process_time()
            curve = METHODS[job.method](self, job)
            found = {**vars(job), "curve": curve, "cpu s": round(time.process_time() - begun, 1)}
            path.write_text(json.dumps(found))
        return json.loads(path.read_text())

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What was made under the key, which is the last of its kind that is held."""
        kind = key[0]
        if kind not in self.held or self.held[kind][0] != key:
            self.held[kind] = key, make()
        return self.held[kind][1]

    def data(self, name: str) -> Images:
        """One of the sets."""
        return self.once(("data", name), lambda: self.images(name))

    def few(self, job: Job) -> tuple[list[tuple[Array, Array]], Array, Array]:
        """The networks' share: tasks 0, 1, ... of a random part of the images, and tests."""
        own, setting = self.data(job.data), self.setting
        places = np.random.default_rng(job.seed).permutation(len(own.y))[: setting.network_images]
        flat = own.x[places].reshape(len(places), -1)
        labels = own.y[places]
        tasks = [(flat[labels // 2 == k], labels[labels // 2 == k]) for k in ORDERS["forth"]]
        tests = slice(0, setting.network_tests)
        return tasks, own.x_test[tests], own.y_test[tests]

    def features(self, job: Job) -> ImageFeatures:
        """Those of a seed."""
        setting, shape = self.setting, self.data(job.data).x.shape[1:]
        return ImageFeatures(shape, setting.cells, width=setting.width, seed=job.seed)

    def conjugate(self, job: Job) -> ConjugateLearner:
        """After all tasks, of all images."""

        def make() -> ConjugateLearner:
            own = self.data(job.data)
            learner = ConjugateLearner(self.setting.classes, self.features(job))
            for k in ORDERS["forth"]:
                of = own.y // 2 == k
                learner = learner.observe(f"pair {k}", own.x[of], own.y[of])
            return learner

        return self.once(("conjugate", job.data, job.seed), make)

    def gate(self, job: Job) -> ConjugateLearner:
        """After all tasks, of the networks' share of the images."""

        def make() -> ConjugateLearner:
            learner = ConjugateLearner(self.setting.classes, self.features(job))
            shape = self.data(job.data).x.shape[1:]
            for k, (x, y) in enumerate(self.few(job)[0]):
                learner = learner.observe(f"pair {k}", x.reshape(-1, *shape), y)
            return learner

        return self.once(("gate", job.data, job.seed), make)

    def networks(self, job: Job) -> tuple[dict[str, Network], dict[str, Array], dict[str, Array]]:
        """Of each task: its network, the counts of its classes, and its answers on the tests."""
        import posterity

        def make() -> Any:
            setting, (tasks, tests, _) = self.setting, self.few(job)
            found: Any = ({}, {}, {})
            for k, (x, y) in enumerate(tasks):
                name = f"pair {k}"
                path = self.cache / f"network-{job.data}-{job.seed}-{k}.safetensors"
                if not path.exists():
                    network = trained(
                        setting.layers, x, y, task=name, seed=job.seed, steps=setting.steps,
                        variance=setting.variance, batch=setting.batch,
                    )  # fmt: skip
                    own, _ = chances(network, tests, setting.draws)
                    posterity.save({"network": network, "answers": own}, path)
                kept = posterity.load(path)
                found[0][name], found[2][name] = kept["network"], kept["answers"]
                found[1][name] = np.bincount(y, minlength=setting.classes).astype(float)
            return found

        return self.once(("networks", job.data, job.seed), make)


def _conjugate(runner: Runner, job: Job) -> Curve:
    whole, own = runner.conjugate(job), runner.data(job.data)
    return _stages(runner, job, whole, own.x_test, own.y_test)


def _stages(runner: Runner, job: Job, whole: Any, x: Array, y: Array) -> Curve:
    """Of an order-free learner: with the tasks that are still to come forgotten."""
    curve, order = [], ORDERS[job.order]
    for count in range(1, len(order) + 1):
        learner = whole.forget(*(f"pair {k}" for k in order[count:]))
        seen = seen_after(runner.setting, order, count)
        own = np.isin(y, seen)
        curve.append(measured(learner.predict(x[own]).log_chances, y[own], seen))
    return curve


def _mixed(make: Callable[[Runner, Job, Any, Any], Any]) -> Callable[[Runner, Job], Curve]:
    """A rule that mixes the answers of networks, by the weights of its learner."""

    def run(runner: Runner, job: Job) -> Curve:
        networks, counts, answers = runner.networks(job)
        _, x, y = runner.few(job)
        whole, curve, order = make(runner, job, networks, counts), [], ORDERS[job.order]
        for count in range(1, len(order) + 1):
            learner = whole.forget(*(f"pair {k}" for k in order[count:]))
            seen = seen_after(runner.setting, order, count)
            own = np.isin(y, seen)
            weights = learner.weights_at(x[own])
            chance = sum(
                weight[:, None] * answers[task][own]
                for weight, task in zip(weights.T, learner.tasks, strict=True)
            )
            logs = np.log(np.maximum(chance, np.finfo(float).tiny))
            curve.append(measured(logs, y[own], seen))
        return curve

    return run


def _network_options(setting: Setting) -> dict[str, Any]:
    return {"layers": setting.layers, "draws": setting.draws, "prior_variance": setting.variance}


def _gated(runner: Runner, job: Job, networks: Any, counts: Any) -> GatedLearner:
    options = _network_options(runner.setting)
    return GatedLearner(**options, networks=networks, counts_by_task=counts, gate=runner.gate(job))


def _constant(weights: str) -> Callable[[Runner, Job, Any, Any], MixtureLearner]:
    def make(runner: Runner, job: Job, networks: Any, counts: Any) -> MixtureLearner:
        setting = runner.setting
        few = {}
        if weights == "coreset":
            tasks = enumerate(runner.few(job)[0])
            few = {f"pair {k}": kept_records(x, y, setting.coreset) for k, (x, y) in tasks}
        return MixtureLearner(
            **_network_options(setting), networks=networks, counts_by_task=counts,
            weights=weights, coreset=setting.coreset if few else 0, kept=few,
        )  # fmt: skip

    return make


def _coreset(runner: Runner, job: Job) -> Curve:
    setting, own = runner.setting, runner.data(job.data)

    def make() -> ReplayLearner:
        learner = ReplayLearner(
            setting.classes, setting.coreset, setting.copies, runner.features(job), job.seed
        )
        shape = own.x.shape[1:]
        for k, (x, y) in enumerate(runner.few(job)[0]):
            learner = learner.observe(f"pair {k}", x.reshape(-1, *shape), y)
        return learner

    whole = runner.once(("replay", job.data, job.seed), make)
    return _stages(runner, job, whole, own.x_test, own.y_test)


def _peer(method: Any, **options: Any) -> Callable[[Runner, Job], Curve]:
    def run(runner: Runner, job: Job) -> Curve:
        setting, (tasks, x, y) = runner.setting, runner.few(job)
        order, flat = ORDERS[job.order], x.reshape(len(x), -1)
        found = method(_training(setting, job), [tasks[k] for k in order], flat, **options)
        return [
            measured(logs, y, seen_after(setting, order, count))
            for count, logs in enumerate(found, 1)
        ]

    return run


def _training(setting: Setting, job: Job) -> peers.Training:
    return peers.Training(
        setting.layers, setting.steps, setting.batch, setting.variance, setting.coreset,
        setting.draws, job.seed,
    )  # fmt: skip


def _joint(runner: Runner, job: Job) -> Curve:
    setting, (tasks, x, y) = runner.setting, runner.few(job)
    logs = peers.joint(_training(setting, job), tasks, x.reshape(len(x), -1))
    return [measured(logs, y, list(range(setting.classes)))]


def _joint_features(runner: Runner, job: Job) -> Curve:
    own, features = runner.data(job.data), runner.features(job)
    single = lambda x: features(x).astype(np.float32)
    logs = peers.softmax_regression(
        single(own.x), own.y, single(own.x_test), runner.setting.classes, runner.setting.epochs
    )
    return [measured(logs, own.y_test, list(range(runner.setting.classes)))]


METHODS: dict[str, Callable[[Runner, Job], Curve]] = {
    "conjugate": _conjugate,
    "gated": _mixed(_gated),
    "coreset, deformed": _coreset,
    "mixture, even": _mixed(_constant("even")),
    "mixture, kl": _mixed(_constant("kl")),
    "mixture, coreset": _mixed(_constant("coreset")),
    "fine-tuning": _peer(peers.fine_tuned),
    "VCL": _peer(peers.variational, coreset=False),
    "VCL, coreset": _peer(peers.variational, coreset=True),
    "EWC": _peer(peers.elastic),
    "coreset, network": _peer(peers.replayed),
    "joint network": _joint,
    "joint, same features": _joint_features,
}
ONCE = ("joint network", "joint, same features")
"""Methods that know no order."""


def jobs(
    methods: Sequence[str], sets: Sequence[str], seeds: Sequence[int], orders: Sequence[str]
) -> list[Job]:
    """All of them, seed by seed."""
    return [
        Job(method, data, seed, order)
        for seed in seeds
        for data in sets
        for method in methods
        for order in (orders[:1] if method in ONCE else orders)
    ]


# --- results -------------------------------------------------------------------------------------


def summarise(setting: Setting, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means and spreads over seeds, which seeds those are, and the goals."""
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
    kinds = rows[0]["curve"][0]
    curves = {kind: np.array([[at[kind] for at in row["curve"]] for row in rows]) for kind in kinds}
    digits = {"log loss": 4}
    found: dict[str, Any] = {"seeds": [row["seed"] for row in rows]}
    for kind, values in curves.items():
        found[kind] = np.round(values.mean(0), digits.get(kind, 2)).tolist()
        if len(values) > 1:
            spread = values.std(0, ddof=1)
            found[f"sd of {kind}"] = np.round(spread, digits.get(kind, 2)).tolist()
    found["cpu s a seed"] = round(float(np.mean([row["cpu s"] for row in rows])), 1)
    return found


def goals(found: dict[str, Any]) -> list[dict[str, Any]]:
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


def forgetting(setting: Setting, images: Images, seed: int = 0) -> dict[str, Any]:
    """Whether predictions after forgetting are those of a learner that never saw the task."""
    features = ImageFeatures(images.x.shape[1:], setting.cells, width=setting.width, seed=seed)
    few = np.arange(len(images.y))[: setting.network_images]
    x, y, found = images.x[few], images.y[few], {}
    pairs = {f"pair {k}": (x[y // 2 == k], y[y // 2 == k]) for k in ORDERS["forth"]}
    make = {
        "conjugate": lambda: ConjugateLearner(setting.classes, features),
        "coreset, deformed": lambda: ReplayLearner(setting.classes, 5, 3, features),
    }
    for name, begin in make.items():
        whole, never = begin(), begin()
        for task, records in pairs.items():
            whole = whole.observe(task, *records)
        for task in reversed(sorted(set(pairs) - {"pair 2"})):
            never = never.observe(task, *pairs[task])
        one = whole.forget("pair 2").predict(images.x_test[:1000]).log_chances
        found[name] = bool(np.array_equal(one, never.predict(images.x_test[:1000]).log_chances))
    return {"pair 2 forgotten, bitwise as never seen, other order": found}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--sets", nargs="+", default=["mnist", "fashion"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--orders", nargs="+", default=list(ORDERS), choices=list(ORDERS))
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of what takes long")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to")
    parser.add_argument("--only-kept", action="store_true", help="of what the cache has, no more")
    own = parser.parse_args(arguments)
    setting = Setting()
    runner = Runner(setting, own.cache, load)
    if not own.only_kept:
        for job in jobs(own.methods, own.sets, own.seeds, own.orders):
            row = runner.run(job)
            print(job.name, row["curve"][-1], row["cpu s"], flush=True)
        path = own.cache / "forgetting.json"
        if not path.exists():
            path.write_text(json.dumps(forgetting(setting, load("mnist"))))
    report(setting, own.cache, own.results)


def report(setting: Setting, cache: Path, results: Path) -> dict[str, Any]:
    """Write what the folder has."""
    names = [job.name for job in jobs(list(METHODS), ["mnist", "fashion"], range(5), list(ORDERS))]
    paths = [cache / f"{name}.json" for name in names]
    rows = [json.loads(path.read_text()) for path in paths if path.exists()]
    summary = summarise(setting, rows)
    if (cache / "forgetting.json").exists():
        summary["forgetting"] = json.loads((cache / "forgetting.json").read_text())
    results.mkdir(parents=True, exist_ok=True)
    (results / "incremental.json").write_text(json.dumps(summary, indent=1) + "\n")
    incremental_figures.draw(summary, results)
    print(json.dumps(summary["goals"], indent=1))
    return summary


if __name__ == "__main__":
    main()
