"""``posterity predict`` and ``evaluate``: predictions for new records, and how good they are."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.cli import files
from posterity.cli.failures import printable
from posterity.cli.options import Settings, verb
from posterity.cli.report import Data, first, group, left_in, plain, short, table
from posterity.cli.streams import bar
from posterity.errors import StructureError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from posterity.cli.predictors import Parts

FORMATS = (".csv", ".npz", ".json")
MEANS = ("entropy", "mutual_information", "variance", "noise_variance", "extrapolates")
"""Parts of a prediction whose mean over records is reported."""
UNITS = {"entropy": " nats", "mutual_information": " nats"}
WANTED = "a posterior, network or student", "a file of records"


def _report(data: Data) -> str:
    what = f"{data['kind']} in {printable(data['file'])}"
    means = (
        f"  mean {name.replace('_', ' ')}: {short(value)}{UNITS.get(name, '')}"
        for name, value in data["means"].items()
    )
    names = data["columns"]  # not all of a hundred classes
    names = names if len(names) <= 12 else [*names[:4], "...", *names[-4:]]
    wrote = f"Wrote {', '.join(names)} to {printable(data['output'])}"
    return "\n".join([f"Predicted {data['records']:,} records by the {what}.", *means, wrote])


@verb("predict", report=_report)
def predict(settings: Settings) -> Data:
    """Predict the records of a table, with uncertainties: one row for each record."""
    from posterity.cli.predictors import columns_of, predicted

    (file, inputs), output = settings.arguments(*WANTED), settings.output
    files.check_ending(output, FORMATS)
    with bar("Predicting rows") as moved:
        found = predicted(settings, file, inputs, moved)
    columns = columns_of(found.parts)
    _write(output, found.parts, columns)
    known = {name: found.parts[name][found.kept] for name in MEANS if name in found.parts}
    return {
        "output": output,
        "file": file,
        "kind": found.kind,
        "records": len(found.kept),
        "columns": [*columns],
        "means": {name: own.mean() for name, own in known.items()},
        "notes": found.notes,
    }


def _write(output: Path, parts: "Parts", columns: "Parts") -> None:
    """A table as text, an empty cell where nothing is predicted, or whole arrays."""
    import numpy as np

    from posterity.files import write_file

    ending = output.suffix.lower()
    if ending == ".npz":
        file = io.BytesIO()
        np.savez(file, **parts)  # pyright: ignore[reportArgumentType]
        content = file.getvalue()
    elif ending == ".json":
        content = (json.dumps(plain(columns), allow_nan=False) + "\n").encode()
    else:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*(own.tolist() for own in columns.values()), strict=True):
            writer.writerow("" if cell != cell else f"{cell:.9g}" for cell in row)
        content = text.getvalue().encode()
    write_file(output, content)


SCORES = {
    "log_score": "log score",
    "brier": "Brier",
    "auroc": "AUROC",
    "concordance": "concordance",
    "accuracy": "accuracy",
    "calibration_error": "calibration error",
    "rmse": "RMSE",
    "coverage": "coverage",
}
"""Scores of a table for people, and what they are called."""


def _scores_report(data: Data) -> Any:
    known = [name for name in SCORES if name in data["all"]]
    rows = table(data["by"] or "", "records", *(SCORES[name] for name in known))
    every = [("all", data["all"]), *data["groups"].items()]

    def cells(row: tuple[str, Data]) -> list[str]:
        name, own = row
        numbers = ["-" if own.get(key) is None else short(own[key]) for key in known]
        return [printable(name), f"{own['records']:,}", *numbers]

    error = data["all"].get("log_score_se")
    of_error = f"; the error of the first is {short(error)}" if error else ""
    scored = f"Log scores are nats a record, higher is better{of_error}."
    return group(
        f"Evaluated the {data['kind']} in {printable(data['file'])}.",
        first(every, rows, cells),
        *([scored] if "log_score" in known else []),
        *left_in("Drew the calibration in", data["plot"]),
    )


@verb("evaluate", report=_scores_report)
def evaluate(settings: Settings) -> Data:
    """Score predictions of records whose target is known, in all and by group."""
    import numpy as np

    from posterity.cli.predictors import columns_of, predicted, texts_of
    from posterity.fitting.scores import scores

    file, inputs = settings.arguments(*WANTED)
    plot = settings.path("output.plot")
    with bar("Predicting rows") as moved:
        found = predicted(settings, file, inputs, moved, scored=True)
    if found.target is None:
        raise StructureError(
            found=f"no target in {str(inputs)!r}",
            expected="the column that was predicted",
            fix="Name it by --target.",
        )
    y = np.asarray(found.target, dtype=float)
    parts = {name: own[found.kept] for name, own in columns_of(found.parts).items()}

    def score(rows: "np.ndarray") -> Data:
        own = {name: part[rows] for name, part in parts.items()}
        known = None if found.log_score is None else found.log_score[rows]
        times = None if found.times is None else found.times[rows]
        return scores(y[rows], own, known, settings["level"], times)

    whole, groups = score(np.arange(len(y))), {}
    if (by := settings["by"]) is not None:
        names = texts_of(inputs, by)[found.kept]
        groups = {str(name): score(np.flatnonzero(names == name)) for name in np.unique(names)}
    if plot is not None:
        from posterity.plots.traces import plot_calibration

        if "calibration" not in whole:
            raise UsageError(
                found="--plot of predictions that are no probabilities of a label",
                expected="a label of two levels, whose calibration can be drawn",
                fix="Leave --plot out.",
            )
        plot_calibration(whole["calibration"], plot)
    return {
        "file": file,
        "kind": found.kind,
        "by": by,
        "all": whole,
        "groups": groups,
        "plot": plot,
        "notes": found.notes,
    }
