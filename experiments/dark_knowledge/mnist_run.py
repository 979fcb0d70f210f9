"""One seed of table 3: plug-in network, chain and student, and where each of them stands when.

What takes long is kept in a folder: the plug-in network in a file, chain and student in the
checkpoint of `posterity.distill`, and what was measured on the way in a file of one line a look.
A run that was stopped, or killed, goes on from there to the same result.
"""

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

import posterity
from experiments import harness
from experiments.dark_knowledge.moved import Moved
from experiments.data import Array, Images, Integers
from experiments.klfusion.networks.predictions import auroc, entropy, scores
from posterity.distillation import SGHMC, SGLD, Distillation, Inputs, Langevin
from posterity.errors import ConvergenceWarning
from posterity.models import NeuralNetwork
from posterity.networks import GaussianPrior, Layers
from posterity.networks.predictive import Prediction
from posterity.runtime.fingerprint import versioned
from posterity.status import Progress

Row = dict[str, Any]


@versioned("1")
@dataclass(frozen=True)
class Falling:
    """Step sizes that fall from ``first`` to ``last`` over so many steps, and stay there.

    By the same factor at every step: large ones reach the posterior soon, from the small one on the
    chain moves alike.
    """

    first: float
    last: float
    over: int

    def __call__(self, step: Any) -> Any:
        share = jnp.minimum(jnp.asarray(step).astype(jnp.float32) / self.over, 1.0)
        return self.first * (self.last / self.first) ** share


@dataclass(frozen=True)
class Setting:
    """Everything that a run depends on but its seed and its data."""

    hidden: tuple[int, ...] = (400, 400)  # units of teacher, student and plug-in network
    variances: tuple[float, ...] = (1 / 20, 1 / 20, 1 / 5)  # of the prior, a layer each
    temperature: float = 0.01  # of the chain: 1 is the posterior, less is a colder law
    friction: float = 0.1  # of the chain's momentum
    first: float = 6e-5  # step size at the start of burn-in (see the kernels)
    last: float = 3e-5  # the one it falls to
    fall: int = 3000  # over so many steps
    batch: int = 100  # records of a minibatch, and inputs of a student's step
    climb: int = 600  # steps of Adam before the chain begins
    burn_in: int = 6000  # steps of the chain that do not count
    thin: int = 2  # steps of the chain to one of the student
    draws: int = 8000  # steps of the student
    rate: float = 1e-3  # of its Adam
    noise: float = 0.1  # standard deviation of what is added to its inputs
    bent: float = 0.0  # share of its inputs that are turned, slanted, stretched and moved
    divisor: float = 255.0  # of pixels, whose values are from 0 to 255
    plug_in: int = 10_000  # steps of the plug-in network's descent
    looks: int = 200  # points of the curves of errors

    @classmethod
    def paper(cls, draws: int) -> "Setting":
        """The posterior at temperature 1, by plain SGLD from random weights, as the paper has it.

        Its million steps are those of 99,900 draws. Step size, prior and what is added to inputs
        are those of a public implementation for MXNet; every tenth step is one of the student's.
        Half of the student's inputs are bent: of training images as they are it learns what its
        teacher says of them, and less of what it says of others.
        """
        chain = {"temperature": 1.0, "friction": 1.0, "first": 4e-6, "last": 4e-6, "climb": 0}
        length = {"burn_in": 1000, "thin": 10, "draws": draws, "plug_in": 50_000, "looks": 20}
        inputs = {"bent": 0.5, "divisor": 126.0}
        return cls(variances=(1.0, 1.0, 1.0), **chain, **length, **inputs)

    def teacher(self, layers: Layers, data: Any) -> Langevin:
        sizes = Falling(self.first, self.last, self.fall)
        return self._chain(layers, data, sizes, self.temperature, self.burn_in, self.thin)

    def descent(self, layers: Layers, data: Any) -> Langevin:
        """The same without noise: stochastic gradient descent with momentum to the mode.

        Its sizes fall to a hundredth; its only draw is where it ends.
        """
        sizes = Falling(self.first, self.first / 100, self.plug_in)
        return self._chain(layers, data, sizes, 0.0, self.plug_in, 1)

    def _chain(
        self, layers: Layers, data: Any, sizes: Any, temperature: float, burn_in: int, thin: int
    ) -> Langevin:
        kernel: Any = SGHMC(sizes, friction=self.friction, temperature=temperature)
        if self.friction == 1 and temperature:
            kernel = SGLD(sizes, temperature=temperature)
        prior = GaussianPrior(variance=self.variances).network(layers)
        steps = {"burn_in": burn_in, "thin": thin, "climb": self.climb, "batch_size": self.batch}
        model = NeuralNetwork.of_layers(layers)
        return Langevin(model, prior, data, kernel=kernel, chains=1, **steps)


@versioned("1")
class Between(Inputs):
    """Inputs D' of a student: images, points between two of them, and bent ones, all with noise.

    ``x`` (n, side²) are images without labels, ``noise`` the standard deviation of what is added,
    ``bent`` the share of those that are moved; the others are half images, half between two.
    """

    x: Any
    noise: float
    bent: float = eqx.field(static=True, default=0.0)

    def sample(self, n: int, *, key: jax.Array) -> Any:
        """Images, then points between two, then bent images."""
        first, second, third, fourth = jax.random.split(key, 4)
        moved = round(self.bent * n)
        plain = n - moved
        one, other = jnp.asarray(self.x)[jax.random.randint(first, (2, plain), 0, len(self.x))]
        u = jax.random.uniform(second, (plain,))
        u = jnp.where(jnp.arange(plain) < plain // 2, 1.0, u)[:, None]
        x = u * one + (1 - u) * other
        if moved:
            side = math.isqrt(one.shape[1])
            images = jnp.asarray(self.x).reshape(-1, side, side)
            # Half as much as fonts are bent in the pipeline: people's digits already are.
            law = Moved(images, turn=0.13, slant=0.2, stretch=0.1, move=1.0)
            x = jnp.concatenate([x, law.sample(moved, key=fourth)])
        return x + self.noise * jax.random.normal(third, x.shape)


class Flat(NamedTuple):
    """Flat images (n, d) with labels, and others of other kinds without, by name."""

    x_train: Images
    y_train: Integers
    x_test: Images
    y_test: Integers
    strange: Mapping[str, Images]

    @property
    def asked(self) -> Images:
        """Test images, then strange ones: where teacher and student are compared."""
        return np.concatenate([self.x_test, *self.strange.values()])

    @property
    def rows(self) -> dict[str, slice]:
        """Where strange images stand among those that are asked about."""
        ends = np.cumsum([len(self.y_test), *map(len, self.strange.values())]).tolist()
        return dict(zip(self.strange, map(slice, ends[:-1], ends[1:]), strict=True))


@dataclass(frozen=True)
class Seed:
    number: int
    setting: Setting
    images: Flat
    folder: Path

    @property
    def layers(self) -> Layers:
        classes = int(self.images.y_train.max()) + 1
        return Layers.dense(self.images.x_train.shape[1], *self.setting.hidden, classes)

    def file(self, name: str) -> Path:
        return self.folder / f"seed{self.number}-{name}"

    def run(self, say: Any = print) -> Row:
        """All of it; what is there already is read."""
        plug_in = harness.kept(self.folder, f"seed{self.number}-plug-in", self._plug_in)
        say(f"seed {self.number}: plug-in {plug_in['error']:.2f} %")
        rows = self._read()
        if not rows or rows[-1]["draws"] != self.setting.draws:
            self._distil(rows, say)
        return {"seed": self.number, "plug-in": plug_in, **self._summary(rows)}

    def so_far(self) -> Row | None:
        """What a run that is under way, or was stopped, has found; None if nothing."""
        plug_in = harness.kept(self.folder, f"seed{self.number}-plug-in", None)
        if plug_in is None or not (rows := self._read()):
            return None
        return {"seed": self.number, "plug-in": plug_in, **self._summary(rows)}

    def _read(self) -> list[Row]:
        return harness.kept(self.folder, f"seed{self.number}-curve", None) or []

    @property
    def _data(self) -> tuple[Images, Integers]:
        return self.images.x_train, self.images.y_train

    def _plug_in(self) -> Row:
        clock = harness.Clock()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is no chain
            descent = self.setting.descent(self.layers, self._data)
            weights = descent.sample(1, key=jax.random.key(1000 + self.number))
        model = NeuralNetwork.of_layers(self.layers)
        with jax.enable_x64(False):
            logits = [
                np.asarray(model.outputs(weights.stack[0], x), np.float64)
                for x in np.array_split(self.images.asked, 20)
            ]
        row = self.measured(softmax(np.concatenate(logits), axis=1), None)
        return row | {"steps": self.setting.plug_in, **clock.seconds}

    def _distil(self, rows: list[Row], say: Any) -> None:
        """Run chain and student from where they were; a row a look is added to ``rows``."""
        own, clock = self.setting, harness.Clock()
        before = rows[-1] if rows else {"wall seconds": 0.0, "CPU seconds": 0.0}

        def look(progress: Progress) -> None:
            after = (rows[-1]["draws"] if rows else 0) + own.draws / own.looks
            if progress.step < min(after, own.draws):
                return
            row, spent = self._looked(progress.result), clock.seconds
            row |= {name: round(before[name] + spent[name], 1) for name in spent}
            rows[:] = [old for old in rows if old["draws"] < row["draws"]] + [row]
            harness.replace(self.file("curve.json"), json.dumps(rows, indent=1))
            say(
                f"seed {self.number}: {self._steps(row)} steps, {row['wall seconds']:.0f} s, "
                f"chain {row['SGLD']['error']:.2f} %, student {row['distilled']['error']:.2f} %"
            )

        with warnings.catch_warnings():
            # The status stands in the results.
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = posterity.distill(
                own.teacher(self.layers, self._data),
                key=jax.random.key(self.number),
                inputs=Between(self.images.x_train, own.noise, own.bent),
                split=True,
                steps=own.draws,
                batch_size=own.batch,
                learning_rate=own.rate,
                probe=self.images.asked,
                checkpoint=self.file("checkpoint.safetensors"),
                progress=look,
            )
        posterity.save(found.student, self.file("student.safetensors"))

    def _looked(self, found: Distillation) -> Row:
        student = found.student.predict(self.images.asked)
        return {
            "draws": found.steps,
            "SGLD": self.measured(found.teacher.mean, found.teacher),
            "distilled": self.measured(student.mean, student),
            "status": str(found.status),
            "gap": round(found.status.left, 5),
            "temperature": found.temperature,
        }

    def measured(self, p: Array, by: Prediction | None) -> Row:
        """Of class probabilities where the network is asked; what it knows of itself, if it does.

        The area under the curve of receiver operation says how well the entropy, or the mutual
        information, tells strange images from the test's.
        """
        count = len(self.images.y_test)
        own = scores(p[:count], self.images.y_test)
        row: Row = {
            "error": round(100 - own.accuracy, 3),
            "log likelihood": round(own.log_likelihood, 5),
            "calibration error": round(own.calibration, 3),
        }
        kinds = {"entropy": entropy(p)}
        if by is not None and by.mutual_information is not None:
            kinds["mutual information"] = by.mutual_information
        for kind, values in kinds.items():
            row[f"AUROC by {kind}"] = {
                name: round(auroc(values[:count], values[rows]).area, 4)
                for name, rows in self.images.rows.items()
            }
        return row

    def _summary(self, rows: list[Row]) -> Row:
        last, steps, own = rows[-1], self._steps(rows[-1]), self.setting
        both = ("SGLD", "distilled")
        return {
            **{name: last[name] for name in (*both, "status")},
            "chain steps": steps,
            "of": own.burn_in + own.thin * own.draws,
            "student steps": last["draws"],
            "wall seconds": last["wall seconds"],
            "CPU seconds": last["CPU seconds"],
            "chain steps a wall second": round(steps / last["wall seconds"], 1),
            "chain steps a CPU second": round(steps / last["CPU seconds"], 1),
            "device": jax.devices()[0].device_kind,
            "curve": [
                {
                    "chain steps": self._steps(row),
                    **{name: row[name]["error"] for name in both},
                    "log likelihoods": [row[name]["log likelihood"] for name in both],
                    "gap": row["gap"],
                }
                for row in rows
            ],
        }

    def _steps(self, row: Row) -> int:
        return self.setting.burn_in + self.setting.thin * row["draws"]
