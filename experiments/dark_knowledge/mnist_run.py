"""One seed of table 3: plug-in network, chain and student, and where each of them stands when.

What takes long is kept in a folder: the plug-in network in a file, chain and student in the
checkpoint of `posterity.distill`, and what was measured on the way in a file of one line a look.
A run that was stopped, or killed, goes on from there to the same result.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import softmax

import posterity
from experiments import harness
from experiments.dark_knowledge.mnist_setting import Between, Setting
from experiments.data import Array, Images, Integers
from experiments.klfusion.networks.metrics import auroc, entropy, scores
from posterity.distillation import Distillation
from posterity.errors import ConvergenceWarning
from posterity.families.layers import Layers
from posterity.models import NeuralNetwork
from posterity.networks.predictive import Prediction
from posterity.status import Progress

Row = dict[str, Any]


class Flat(NamedTuple):
    """Flat images (n, d) with labels, and others of other kinds without, by name."""

    x_train: Images
    y_train: Integers
    x_test: Images
    y_test: Integers
    strange: Mapping[str, Images]

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.y_train.max()) + 1

    @property
    def asked(self) -> Images:
        """Test images, then strange ones: where teacher and student are compared."""
        return np.concatenate([self.x_test, *self.strange.values()])


@dataclass(frozen=True)
class Seed:
    """One run of a setting, kept in a folder."""

    number: int
    setting: Setting
    images: Flat
    folder: Path

    @property
    def layers(self) -> Layers:
        """Of teacher and plug-in network."""
        return self.setting.layers(self.images.x_train, self.images.classes)

    def run(self, say: Any = print) -> Row:
        """All of it; what is there already is read."""
        self.folder.mkdir(parents=True, exist_ok=True)
        row = {"seed": self.number, "plug-in": self._plug_in()}
        say(f"seed {self.number}: plug-in {row['plug-in']['error']:.2f} %")
        return row | self._distilled(say)

    def so_far(self) -> Row | None:
        """What a run that is under way, or was stopped, has found; None if nothing."""
        rows = self._read()
        if not rows or not self.file("plug-in.json").exists():
            return None
        plug_in = json.loads(self.file("plug-in.json").read_text())
        return {"seed": self.number, "plug-in": plug_in, **self._summary(rows)}

    # --- the plug-in network -----------------------------------------------------------------

    def _plug_in(self) -> Row:
        path = self.file("plug-in.json")
        if not path.exists():
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
            p = softmax(np.concatenate(logits), axis=1)
            measured = self.measured(p, None)
            measured |= {"steps": self.setting.plug_in, **clock.seconds}
            harness.replace(path, json.dumps(measured, indent=1))
        return json.loads(path.read_text())

    # --- chain and student -------------------------------------------------------------------

    def _distilled(self, say: Any) -> Row:
        own, rows = self.setting, self._read()
        if rows and rows[-1]["draws"] == own.draws:
            return self._summary(rows)
        clock = harness.Clock()
        before = rows[-1] if rows else {"wall seconds": 0.0, "CPU seconds": 0.0}

        def look(progress: Progress) -> None:
            after = (rows[-1]["draws"] if rows else 0) + own.draws / own.looks
            if progress.step < min(after, own.draws):
                return
            row = self._looked(progress.result)
            spent = clock.seconds
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
                inputs=Between(self.images.x_train, own.noise),
                split=True,
                steps=own.draws,
                batch_size=own.batch,
                learning_rate=own.rate,
                reservoir=own.reservoir,
                probe=self.images.asked,
                checkpoint=self.file("checkpoint.safetensors"),
                progress=look,
            )
        posterity.save(found.student, self.file("student.safetensors"))
        return self._summary(rows)

    def _looked(self, found: Distillation) -> Row:
        """What chain and student are worth at this point."""
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
                for name, rows in self.rows().items()
            }
        return row

    def rows(self) -> dict[str, slice]:
        """Where strange images stand among those that are asked about."""
        found, start = {}, len(self.images.y_test)
        for name, x in self.images.strange.items():
            found[name] = slice(start, start + len(x))
            start += len(x)
        return found

    def _summary(self, rows: list[Row]) -> Row:
        last = rows[-1]
        steps = self._steps(last)
        return {
            "SGLD": last["SGLD"],
            "distilled": last["distilled"],
            "status": last["status"],
            "chain steps": steps,
            "of": self.setting.burn_in + self.setting.chain_steps,
            "student steps": last["draws"],
            "wall seconds": last["wall seconds"],
            "CPU seconds": last["CPU seconds"],
            "chain steps a wall second": round(steps / last["wall seconds"], 1),
            "chain steps a CPU second": round(steps / last["CPU seconds"], 1),
            "device": jax.devices()[0].device_kind,
            "curve": [
                {
                    "chain steps": self._steps(row),
                    **{name: row[name]["error"] for name in ("SGLD", "distilled")},
                    "log likelihoods": [
                        row[name]["log likelihood"] for name in ("SGLD", "distilled")
                    ],
                    "gap": row["gap"],
                }
                for row in rows
            ],
        }

    def _steps(self, row: Row) -> int:
        """Those of the chain, with burn-in."""
        return self.setting.burn_in + self.setting.thin * row["draws"]

    # --- files -------------------------------------------------------------------------------

    @property
    def _data(self) -> tuple[Images, Integers]:
        return self.images.x_train, self.images.y_train

    def file(self, name: str) -> Path:
        """Where something of this run is kept."""
        return self.folder / f"seed{self.number}-{name}"

    def _read(self) -> list[Row]:
        path = self.file("curve.json")
        return json.loads(path.read_text()) if path.exists() else []
