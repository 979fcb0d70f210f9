"""``posterity predict`` and ``evaluate``: predictions for new records, and their scores."""

import csv
import dataclasses
import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from posterity.artifact.provenance import TARGET, classes_of, named, unnamed
from posterity.cli import files
from posterity.cli.options import Settings, unwanted
from posterity.cli.recipes import recipe_of, table_of
from posterity.cli.records import read_inputs, reordered
from posterity.cli.report import Group, first, group, short, table
from posterity.cli.streams import Data, bar, plain, printable, verb
from posterity.errors import StructureError, UsageError, within
from posterity.ledger import Ledger
from posterity.runtime.files import write_file
from posterity.status import ProgressCallback
from posterity.tabular.design import Design
from posterity.tabular.pooled import is_pooled, predictions
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.recipe_model import (
    Parts,
    by_student,
    called,
    check_times,
    columns_of,
    in_own_unit,
)
from posterity.tabular.scores import log_of_moments, scores
from posterity.tabular.sites import sites_in, together
from posterity.tabular.tables.reader import clean, read_cells
from posterity.tabular.units import suspicious


@dataclasses.dataclass(frozen=True)
class Predicted:
    """Predictions of the records of a table.

    Attributes:
        parts: by name, one row per record; NaN if a record has a missing value.
        kept: positions of the records that were predicted.
        kind: kind of the file's value.
        target: observations (kept,), if the table has them.
        log_score: their log density or probability, if not determined by the parts.
        times: for survival, time, event and entry (kept, 3).
        notes: remarks that are not errors.
    """

    parts: Parts
    kept: np.ndarray
    kind: str
    target: np.ndarray | None
    log_score: np.ndarray | None
    times: np.ndarray | None
    notes: tuple[str, ...]


def predicted(
    settings: Settings,
    file: Path,
    inputs: Path,
    progress: ProgressCallback,
    *,
    scored: bool = False,
) -> Predicted:
    """Return the predictions of a posterior, ledger or student for a table's records.

    ``progress`` is called with the number of rows that a network has predicted. With ``scored``
    the result has the target, if the table has it, and its log score.
    """
    value, about = files.read_any(file)
    like = settings.path("data.like")
    recipe = recipe_in(about.provenance) if like is None else recipe_of(like)
    posterior: Any = value.posterior if isinstance(value, Ledger) else value
    student = about.kind == "Student"
    call: Callable[[Any], Any] | None = None
    places = {"samples": "samples", "likelihood": "model.likelihood", "seed": "seed"}
    asked = {k: settings[place] for k, place in places.items() if place in settings.values}
    if not student and getattr(posterior, "network_layers", None) is not None:
        call = _network(posterior, asked, file)
    elif student:
        call = posterior.predict
    elif recipe is None:
        raise StructureError(
            found=f"a {type(posterior).__name__} in {str(file)!r}, which does not specify "
            "what it predicts",
            expected="a student, a network, or a regression that posterity fit wrote",
            fix="Name a file of the same model by --like; of another model make a student: "
            "posterity distill FILE -o student.safetensors.",
        )
    if asked and (student or call is None):
        what = "regression"
        why = "whose averages are no draws"
        if student:
            what = "student"
            why = "which knows what it predicts"
        where = f"for the {what} in {str(file)!r}, {why}"
        raise unwanted(f"--{' --'.join(asked)}", where, "none of them: they are of networks alone")
    names = files.inputs_of(value, about) if student else ()
    _check_used(settings, recipe)
    if recipe is None:
        assert call is not None, "checked above"
        known = about.provenance.get(TARGET) if student else None
        classes = classes_of(about.provenance) if student else ()
        records = read_inputs(
            inputs,
            settings["inputs.array"],
            settings["model.target"],
            known=known,
            classes=classes,
            scored=scored,
        )
        x = reordered(records, names, str(inputs), str(file))
        notes = unnamed({str(inputs): records.names} if names else {}, names)
        notes += [named(classes)] if classes else []
        with within(f"inputs {str(inputs)!r}"):
            parts = called(call, x, progress)
        return Predicted(parts, np.arange(len(x)), about.kind, records.y, None, None, tuple(notes))
    of_sites = recipe
    recipe = recipe.shared
    data, notes = table_of(settings, recipe, inputs, scored=scored, empty=not scored)
    if scored:
        data.check_observed(recipe, inputs)
    log_score = None
    if call is not None:
        if settings["times"]:
            expected = "none: it learned those of posterity distill"
            raise unwanted("--times", f"for the student in {str(file)!r}", expected)
        with within(f"inputs {str(inputs)!r}"):
            parts = by_student(call, recipe, data, names, about.provenance, progress)
        if scored:
            log_score = log_of_moments(recipe, parts, np.asarray(data.y))
    else:
        each = sites_in(about.provenance)
        known = together(each.values())
        spread = settings["model.noise_variance"] or known.get(recipe.spread or "")
        notes += suspicious({"": value}, of_sites, (str(inputs), data.names, data.x), each)
        parts, log_score, more = predictions(
            value,
            of_sites,
            data,
            _site_labels(settings, posterior, of_sites, inputs, data, scored=scored),
            spread=spread,
            scored=scored,
            level=settings["level"],
            times=settings["times"] or (),
        )
        notes += more
    flat = np.column_stack([*parts.values()])
    if recipe.exposure and data.exposure is None:
        notes.append(f"no column {recipe.exposure!r}: predictions are of one unit of exposure")
    beyond = int((~np.isfinite(flat)).any(1).sum())
    if beyond:
        counts = f"{beyond} of {len(flat)} records"
        notes.append(f"predictions of {counts} overflow: are their units the model's?")
    if scored and recipe.weights:
        notes.append(f"each record counts once in the scores, whatever its {recipe.weights!r}")
    dropped = data.dropped
    if dropped:
        missing = f"{dropped} of {data.total} records are not predicted, since"
        notes.append(f"{missing} a value is missing or unknown")
    table = {name: np.full((data.total, *own.shape[1:]), np.nan) for name, own in parts.items()}
    for name, own in parts.items():
        table[name][data.kept] = own
    y = None if data.y is None else in_own_unit(recipe, {"mean": data.y})["mean"]
    return Predicted(table, data.kept, about.kind, y, log_score, data.times, tuple(notes))


def _site_labels(
    settings: Settings, posterior: Any, recipe: Recipe, inputs: Path, data: Design, *, scored: bool
) -> np.ndarray | None:
    """Return the site of each record, if a column names it; raise if options do not fit."""
    if not scored:
        check_times(recipe, settings["times"] or recipe.cuts)
    column = settings["data.site_column"]
    if column is not None and not (is_pooled(posterior) or recipe.own):
        raise UsageError(
            found=f"--site-column {column} for a posterior with the same coefficients at all sites",
            expected="a posterior with coefficients by site (--personal, --own)",
            fix="Leave it out; posterity evaluate --by scores sites separately.",
        )
    return None if column is None else texts_of(inputs, column)[data.kept]


def texts_of(inputs: Path, name: str) -> np.ndarray:
    """Return the texts of a column of a table, record by record."""
    cells = read_cells(inputs, unnamed=True)
    if name not in cells.header:
        raise StructureError(
            found=f"no column {name!r} in {str(inputs)!r}",
            expected="the column that names groups or sites of records",
            fix="Use the name in the table's header.",
        )
    return np.array([clean(text) for text in cells.column(name)])


def _check_used(settings: Settings, recipe: Recipe | None) -> None:
    model = None if recipe is None else recipe.model
    of = {"times": "survival", "model.noise_variance": "linear"}
    for place in settings.values:
        if (place.startswith("data.") and recipe is None) or of.get(place, model) != model:
            what = "a file without a recipe" if recipe is None else f"model {model}"
            expected = "options that the predictions hang on"
            raise unwanted(settings.flag(place), f"for {what}", expected)


def _network(network: Any, asked: dict[str, Any], file: Path) -> Callable[[Any], Any]:
    import jax

    from posterity.networks import describe

    if "likelihood" not in asked and network.layers.outputs == 1:
        raise files.no_likelihood(file)
    options = asked | {"key": jax.random.key(asked.get("seed", 0))}
    options.pop("seed", None)
    return functools.partial(describe, network, **options)


# --- commands ------------------------------------------------------------------------------------

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
    names = data["columns"]  # but not a hundred classes
    names = names if len(names) <= 12 else [*names[:4], "...", *names[-4:]]
    wrote = f"Wrote {', '.join(names)} to {printable(data['output'])}"
    return "\n".join([f"Predicted {data['records']:,} records by the {what}.", *means, wrote])


@verb(_report)
def predict(settings: Settings) -> Data:
    """Predict the records of a table, with uncertainties: one row for each record."""
    (file, inputs), output = settings.arguments(*WANTED), settings.output
    files.check_ending(output, FORMATS)
    with bar("Predicting rows") as moved:
        found = predicted(settings, file, inputs, moved)
    columns = columns_of(found.parts)
    _write(output, found.parts, columns)
    known = {name: found.parts[name][found.kept] for name in MEANS if name in found.parts}
    known = known if len(found.kept) else {}
    return {
        "output": output,
        "file": file,
        "kind": found.kind,
        "records": len(found.kept),
        "columns": [*columns],
        "means": {name: own.mean() for name, own in known.items()},
        "notes": found.notes,
    }


def _write(output: Path, parts: Parts, columns: Parts) -> None:
    """Write a table as text, with empty cells for missing predictions, or complete arrays."""
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
"""Labels of a table's scores."""


def _scores_report(data: Data) -> Group:
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
        scored if "log_score" in known else None,
    )


@verb(_scores_report)
def evaluate(settings: Settings) -> Data:
    """Score predictions of records whose target is known, overall and by group."""
    file, inputs = settings.arguments(*WANTED)
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

    def score(rows: np.ndarray) -> Data:
        own = {name: part[rows] for name, part in parts.items()}
        known = None if found.log_score is None else found.log_score[rows]
        times = None if found.times is None else found.times[rows]
        return scores(y[rows], own, known, settings["level"], times)

    whole = score(np.arange(len(y)))
    groups = {}
    by = settings["by"]
    if by is not None:
        names = texts_of(inputs, by)[found.kept]
        groups = {str(name): score(np.flatnonzero(names == name)) for name in np.unique(names)}
    return {
        "file": file,
        "kind": found.kind,
        "by": by,
        "all": whole,
        "groups": groups,
        "notes": found.notes,
    }
