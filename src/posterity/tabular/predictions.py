"""Predictions of a table's records by a file, as a table of their own, and their scores."""

import dataclasses
import functools
import io
import json
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posterity.arguments import BETWEEN
from posterity.artifact.provenance import TARGET, classes_of, named, unnamed
from posterity.errors import ParameterError, StructureError, UsageError, within
from posterity.families.names import some
from posterity.inference.federated_effects import is_pooled
from posterity.ledger import Ledger
from posterity.runtime.files import named as named_file
from posterity.runtime.files import write_file
from posterity.runtime.text import typed
from posterity.status import ProgressCallback
from posterity.tabular.design import design
from posterity.tabular.fitting import records_of
from posterity.tabular.multicentre import with_labels
from posterity.tabular.options import COUNTS
from posterity.tabular.pooled import known_sites, predictions
from posterity.tabular.reading import PLAIN, Reading, columns_to_predict
from posterity.tabular.recipe import Recipe
from posterity.tabular.recipe_model import (
    Parts,
    by_student,
    called,
    columns_of,
    in_own_unit,
)
from posterity.tabular.records import (
    columns_of_student,
    is_student,
    read_inputs,
    reordered,
)
from posterity.tabular.rows import Design
from posterity.tabular.scores import scores, with_interval
from posterity.tabular.sites import law_of, sites_in, together
from posterity.tabular.tables.files import as_csv
from posterity.tabular.tables.reader import clean, read_cells
from posterity.tabular.units import suspicious

FORMATS = (".csv", ".npz", ".json")
"""Endings of files of predictions."""


@dataclasses.dataclass(frozen=True)
class Predicted:
    """Predictions of the records of a table.

    Attributes:
        parts: by name, one row per record; NaN if a record has a missing value.
        kept: positions of the records that were predicted; if they are scored, as often as each
            counts.
        notes: remarks that are not errors.
        target: observations (kept,), if the table has them.
        log_score: their log density or probability, if not determined by the parts.
        data: the records (kept) in the columns of a recipe; None without one.
        labels: the site (kept) whose own coefficients predict a record; None if there are none.
    """

    parts: Parts
    kept: np.ndarray
    notes: tuple[str, ...] = ()
    target: np.ndarray | None = None
    log_score: np.ndarray | None = None
    data: Design | None = None
    labels: np.ndarray | None = None

    @property
    def times(self) -> np.ndarray | None:
        """For survival, time, event and entry (kept, 3)."""
        return None if self.data is None else self.data.times

    @property
    def columns(self) -> Parts:
        """Predictions of the records that were predicted, a column a number."""
        return {name: column[self.kept] for name, column in columns_of(self.parts).items()}

    def write(self, path: Path, keep: Mapping[str, np.ndarray] | None = None) -> None:
        """Write the predictions of all records: complete arrays to an ``.npz``, else a table of
        numbers, as ``.json`` or ``.csv``, which has no value where a prediction is missing; with
        columns of texts to ``keep`` before them.
        """
        keep = keep or {}
        columns = columns_of(self.parts)
        ending = path.suffix.lower()
        twice = [name for name in keep if name in (self.parts if ending == ".npz" else columns)]
        found = f"--keep {some(twice)} beside predictions of that name"
        UsageError.check((twice, found, "other columns of the table"))
        if ending == ".npz":
            binary = io.BytesIO()
            with zipfile.ZipFile(binary, "w") as archive:  # np.savez reserves the name "file"
                for name, array in {**keep, **self.parts}.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
            content = binary.getvalue()
        elif ending == ".json":
            known: dict[str, Any] = {name: own.tolist() for name, own in keep.items()}
            for name, own in columns.items():
                known[name] = [cell if math.isfinite(cell) else None for cell in own.tolist()]
            content = json.dumps(known, allow_nan=False).encode() + b"\n"
        else:
            beside = (own.tolist() for own in keep.values())
            numbers = (map(_rounded, own.tolist()) for own in columns.values())
            rows = zip(*beside, *numbers, strict=True)
            content = as_csv([(*keep, *columns), *rows]).encode()
        write_file(path, content)

    def scores(
        self, level: float, labels: np.ndarray | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return scores of all predictions, and of those of each group of records by its label.

        Args:
            level: probability of the intervals of the predictions.
            labels: the group of each record of the table, as of :func:`texts_of`.
        """
        y = np.asarray(self.target, dtype=float)
        parts = self.columns

        def score(rows: Any) -> dict[str, Any]:
            own = {name: part[rows] for name, part in parts.items()}
            known = None if self.log_score is None else self.log_score[rows]
            times = None if self.times is None else self.times[rows]
            return scores(y[rows], own, known, level, times)

        names = np.array([]) if labels is None else labels[self.kept]
        groups = {str(name): score(names == name) for name in np.unique(names)}
        return score(slice(None)), groups


def _rounded(value: float) -> float | str:
    """Return a number in nine digits; no text if it is missing."""
    return "" if math.isnan(value) else float(f"{value:.9g}")


def predicted(
    value: Any,
    provenance: Mapping[str, str],
    inputs: Path,
    *,
    file: str = "the model's file",
    recipe: Recipe | None = None,
    reading: Reading = PLAIN,
    array: str | None = None,
    target: str | None = None,
    site_column: str | None = None,
    spread: float | None = None,
    level: float = 0.9,
    times: Sequence[float] = (),
    scored: bool = False,
    progress: ProgressCallback | None = None,
    **of_network: Any,
) -> Predicted:
    """Return the predictions of a posterior, ledger or student for a table's records.

    Args:
        value: a regression with a ``recipe``, a network, or a student.
        provenance: that of its file, which tells its columns and sites.
        inputs: path of the table, or of arrays; in ``SITE=TABLE`` it names the site of all records,
            which is by default the table's name.
        file: name of the value's file, for errors.
        recipe: recipe of the model; none for a network.
        reading: names, units and levels of this table, where they differ from the recipe's.
        array: name of the array in an ``.npz``.
        target: name of the column that is predicted, if it is not the recipe's.
        site_column: name of the column of records' sites, if they differ.
        spread: noise variance or dispersion; by default that in the file.
        level: probability of intervals, between 0 and 1.
        times: for survival, the times at which to predict it; by default those of the recipe.
        scored: whether to read the target and find its log score.
        progress: callback with the number of rows that a network has predicted.
        of_network: options of :func:`posterity.networks.describe`.

    Raises:
        PosterityError: for a value that does not specify its predictions, tables that cannot be
            read or lack its columns, and options that do not suit it.
    """
    BETWEEN.check(level=level)
    call = _call(value, recipe, file, of_network)
    site, inputs = of_site(inputs)
    if recipe is None:
        assert call is not None, "checked above"
        whole = _by_columns(call, value, provenance, inputs, file, array, target, scored, progress)
        return dataclasses.replace(whole, parts=with_interval(whole.parts, level))
    each = sites_in(provenance)
    about: Any = {"target": target, "value": value, "known": each}
    data, notes = table_to_predict(
        inputs, recipe, reading, **about, scored=scored, empty=not scored
    )
    of_sites = recipe
    recipe = recipe.shared
    if scored:
        data.check_observed(recipe, inputs)
    log_score = labels = None
    if call is not None:
        names = columns_of_student(value, provenance, file)
        with within(f"inputs '{inputs}'"):
            parts = by_student(call, recipe, data, names, progress)
        if recipe.model == "linear":
            parts = with_interval(parts, level)
        if scored and recipe.model in (*COUNTS, "gamma"):
            notes.append(
                f"no log score: a student of a {recipe.model} model has moments, no density; the "
                "posterior's file has it"
            )
    else:
        if isinstance(value, Ledger) and not value.sites:
            notes.append("the ledger has no sites: predictions are the prior's")
        spread = spread or together(each.values()).get(recipe.spread or "")
        if recipe.model == "survival" and not (scored or times or recipe.cuts):
            raise UsageError(
                found="a survival model, without times at which to predict",
                expected="at least one (--times T,T,...)",
            )
        labels, more = _sites(value, of_sites, inputs, site_column, site, data)
        notes += more
        options: Any = {"spread": spread, "scored": scored, "level": level, "times": times}
        parts, log_score, more = predictions(value, of_sites, data, labels, **options)
        notes += more
    notes += _remarks(parts, recipe, data, scored)
    rows = {name: np.full((data.total, *own.shape[1:]), np.nan) for name, own in parts.items()}
    for name, own in parts.items():
        rows[name][data.kept] = own
    each = np.repeat(np.arange(len(data.x)), data.counts.astype(int))
    if len(each) > data.records:
        notes.append(f"{data.records} rows of the table count as {len(each)} records in the scores")
    data = data.part(each)
    log_score = None if log_score is None else log_score[each]
    labels = None if labels is None else labels[each]
    y = None if data.y is None else in_own_unit(recipe, {"mean": data.y})["mean"]
    return Predicted(rows, data.kept, tuple(notes), y, log_score, data, labels)


def _call(
    value: Any, recipe: Recipe | None, file: str, of_network: Mapping[str, Any]
) -> Callable[[Any], Any] | None:
    """Return the function of inputs that a network or student is; None for a regression."""
    if is_student(value):
        return value.predict
    posterior = law_of(value)
    if getattr(posterior, "network_layers", None) is not None:
        from posterity.networks import describe

        return functools.partial(describe, posterior, **of_network)
    if recipe is None:
        raise StructureError(
            found=f"a {type(posterior).__name__} in {file!r}, which does not specify what it "
            "predicts",
            expected="a student, a network, or a regression that posterity fit wrote",
            fix="Name a file of the same model by --like; of another model make a student: "
            "posterity distill FILE -o student.safetensors.",
        )
    return None


def _by_columns(
    call: Callable[[Any], Any],
    value: Any,
    provenance: Mapping[str, str],
    inputs: Path,
    file: str,
    array: str | None,
    target: str | None,
    scored: bool,
    progress: ProgressCallback | None,
) -> Predicted:
    """Return the predictions of a network or student without a recipe, whose columns are inputs."""
    names = columns_of_student(value, provenance, file)
    learned = provenance if is_student(value) else {}
    classes = classes_of(learned)
    known = learned.get(TARGET)
    records = read_inputs(inputs, array, target, known=known, classes=classes, scored=scored)
    lacks = scored and records.y is None
    expected = "the column that was predicted"
    fix = "Name it: posterity evaluate FILE TABLE --target NAME; of arrays, save their columns too."
    StructureError.check((lacks, f"no target in '{inputs}'", expected, fix))
    x = reordered(records, names, str(inputs), file)
    notes = unnamed({str(inputs): records.names} if names else {}, names)
    notes += [named(classes)] if classes else []
    with within(f"inputs '{inputs}'"):
        parts = called(call, x, progress)
        if scored:
            _check_scored(records.y, parts)
    return Predicted(parts, np.arange(len(x)), tuple(notes), records.y)


def _check_scored(y: Any, parts: Parts) -> None:
    """Raise a ParameterError if targets are none of the labels whose chances are predicted, and a
    StructureError if several numbers are predicted for each of them.
    """
    mean = parts["mean"]
    width = mean[:1].size
    if "entropy" not in parts:
        several = f"predictions of {width} numbers for each record"
        StructureError.check((width > 1, several, "those of one target, which has scores"))
        return
    labels = np.arange(max(width, 2))
    odd = np.flatnonzero(~np.isin(y, labels))
    if len(odd):
        raise ParameterError(
            found=f"label {y[odd[0]]:g} of record {odd[0] + 1}",
            expected=f"a label from 0 to {labels[-1]}, whose chances are predicted",
        )


def table_to_predict(
    inputs: Path,
    recipe: Recipe,
    reading: Reading = PLAIN,
    *,
    target: str | None = None,
    value: Any = None,
    known: Mapping[str, Mapping[str, Any]] | None = None,
    scored: bool = False,
    empty: bool = False,
) -> tuple[Design, list[str]]:
    """Return a table's records in a recipe's columns and units, for prediction; and notes, also on
    columns in another unit than those of a ledger's sites.

    Records with a missing value are dropped, all of them only if the result may be ``empty``. The
    ``target``, which is the recipe's, is read if it is to be ``scored``. ``value`` is what
    predicts, and ``known`` has the facts about its sites.
    """
    of_sites = recipe
    recipe = with_labels(recipe.shared, reading)
    cells, notes = records_of(inputs, reading, recipe)
    columns_to_predict(recipe, cells)
    if target not in (None, recipe.target):
        raise UsageError(
            found=f"--target {target} for a model that predicts {recipe.target!r}",
            expected="the model's target",
            fix=f"Leave it out, or pass {typed('--rename', f'{recipe.target}={target}')}.",
        )
    data = design(cells, recipe, reading, predicting=True, scored=scored, empty=empty)
    units = suspicious({"": value}, of_sites, (str(inputs), data.names, data.x), known)
    return data, [*notes, *data.notes, *units]


def _sites(
    value: Any, recipe: Recipe, inputs: Path, column: str | None, site: str, data: Design
) -> tuple[np.ndarray | None, list[str]]:
    """Return the site of each record, if a column names it or all are of one, and notes; a
    UsageError for a column if sites do not differ.
    """
    differ = recipe.own or is_pooled(law_of(value))
    if column is None:
        if not differ or site not in known_sites(value, recipe):
            return None, []
        note = f"all records are predicted as those of site {site!r}, by the name of their table"
        return np.full(len(data.x), site), [note]
    if not differ:
        raise UsageError(
            found=f"--site-column {column} for a posterior with the same coefficients at all sites",
            expected="a posterior with coefficients by site (--personal, --own)",
            fix="Leave it out; posterity evaluate --by scores sites separately.",
        )
    return texts_of(inputs, column)[data.kept], []


def of_site(inputs: Path) -> tuple[str, Path]:
    """Return the site in ``SITE=TABLE``, by default the table's name, and the table's path."""
    name, path = named_file(inputs)
    return name or path.stem, path


def texts_of(inputs: Path, name: str) -> np.ndarray:
    """Return the texts of a column of a table, or of ``SITE=TABLE``, record by record."""
    _, path = of_site(inputs)
    cells = read_cells(path, unnamed=True)
    return np.array([clean(text) for text in cells.column(name)])


def _remarks(parts: Parts, recipe: Recipe, data: Design, scored: bool) -> list[str]:
    """Return notes on exposures, overflow and weights."""
    notes = []
    if recipe.exposure and data.exposure is None:
        notes.append(f"no column {recipe.exposure!r}: predictions are of one unit of exposure")
    flat = np.column_stack([*parts.values()])
    beyond = int((~np.isfinite(flat)).any(1).sum())
    if beyond:
        notes.append(
            f"predictions of {beyond} of {len(flat)} records overflow: are their units the "
            "model's, and its coefficients known?"
        )
    if scored and recipe.weights and data.weights is None:
        notes.append(f"each record counts once in the scores, whatever its {recipe.weights!r}")
    return notes
