"""Records as rows of a design: several of each, where a model's likelihood is a product."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posterity.errors import StructureError
from posterity.models.ordinal import GAP, rows_of
from posterity.runtime.text import typed
from posterity.tabular.hazards import baseline_at, hazard_nodes
from posterity.tabular.identifiers import Suspect
from posterity.tabular.options import ODDS
from posterity.tabular.recipe import Recipe
from posterity.tabular.tables.reader import CORRECT, table_error

CODED = "Events coded 1 and 2, as in R: pass {}, censored first."
"""What to do about R's codes of events."""


class Design(NamedTuple):
    """Inputs ``x`` (n, d) with names, and the recipe's other columns, each (n,) or None.

    ``lines`` are line numbers of the records in the file, ``kept`` their positions among its
    ``total`` records, of which ``dropped`` had a missing value and ``weightless`` a weight of 0.

    For survival a record has one row for each interval between cuts in which it was at risk: ``y``
    tells whether its event occurred there, ``exposure`` for how long it was at risk. For prediction
    it has a single row, and ``times`` (n, 3) are its time, event and entry, if known.

    ``groups`` (n,) are numbers of clusters of records, if the recipe has any. ``suspects``
    are columns that may be of clusters; ``cautions`` are notes that the file keeps.
    """

    x: np.ndarray
    y: np.ndarray | None
    exposure: np.ndarray | None
    offset: np.ndarray | None
    weights: np.ndarray | None
    names: tuple[str, ...]
    lines: np.ndarray
    kept: np.ndarray
    total: int
    dropped: int
    notes: tuple[str, ...]
    times: np.ndarray | None = None
    cautions: tuple[str, ...] = ()
    groups: np.ndarray | None = None
    suspects: Mapping[str, Suspect] = {}
    weightless: int = 0

    @property
    def records(self) -> int:
        """Number of records that are used."""
        return self.total - self.dropped - self.weightless

    @property
    def shift(self) -> np.ndarray:
        """Offsets (n,), or zeros."""
        return np.zeros(len(self.x)) if self.offset is None else self.offset

    @property
    def counts(self) -> np.ndarray:
        """Weights (n,), or ones."""
        return np.ones(len(self.x)) if self.weights is None else self.weights

    def check_observed(self, recipe: Recipe, path: Path) -> np.ndarray:
        """Return the target in the recipe's units; a StructureError if the table has none."""
        if self.y is not None:
            return self.y
        needed = [repr(name) for name in (recipe.target, recipe.event) if name]
        raise StructureError(
            found=f"no column {' or '.join(needed)} in '{path}'",
            expected="the observed target, with which predictions are compared",
            fix=f"Add it, or name the table's own by {typed('--rename', f'{recipe.target}=NAME')}.",
        )

    def part(self, rows: np.ndarray) -> "Design":
        """Return the design of some records."""
        fields = ("x", "y", "exposure", "offset", "weights", "lines", "kept", "times", "groups")
        each = {name: getattr(self, name) for name in fields}
        return self._replace(**{k: v if v is None else v[rows] for k, v in each.items()})


def in_rows(
    data: Design,
    recipe: Recipe,
    values: Mapping[str, np.ndarray],
    path: Path,
    predicting: bool,
) -> Design:
    """Return the rows that the recipe's model has of each record; one a record for prediction.

    Args:
        data: the records, one row each.
        recipe: recipe of the model.
        values: columns of the table, by name.
        path: path of the table, for errors.
        predicting: whether records are to be predicted.
    """
    if recipe.model == "survival":
        return _at_risk(data, recipe, values, path, predicting)
    if recipe.model == "multinomial":
        return data._replace(x=np.tile(data.x, len(recipe.levels) - 1), names=recipe.coefficients())
    if recipe.model == ODDS and not predicting:
        return _between(data, recipe)
    return _climbed(data, recipe) if recipe.model == "ordinal" and not predicting else data


def levels_of(recipe: Recipe, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the level of each record of ascending levels, from rows of ``x`` and targets ``y``;
    each site may have columns of its own for the baseline.
    """
    top = len(recipe.baseline) - 1
    steps = np.array([place for place, _ in recipe.stratified.coefficients if place <= top])
    step = steps[x[:, : len(steps)].argmax(1)]
    # The last row of a record that climbed, or each row but that of a gap, has its level.
    told = y != GAP if recipe.model == ODDS else (y == 0) | (step == top)
    return (step + y)[told]


def _climbed(data: Design, recipe: Recipe) -> Design:
    """Return one row per record and level that it reached, with the target whether it went beyond.

    Each step is logistic (the continuation-ratio model, fienberg2007).
    """
    reached = np.asarray(data.y, dtype=int)
    steps = np.arange(len(recipe.baseline))
    row, level = np.nonzero(steps <= reached[:, None])
    return _again(data, row, np.eye(len(steps))[level])._replace(y=1.0 * (reached[row] > level))


def _between(data: Design, recipe: Recipe) -> Design:
    """Return the rows of each record that proportional odds have: for the thresholds below and
    above its level, and their gap.
    """
    count = len(recipe.baseline)
    x, y, row = rows_of(data.x[:, count:], np.asarray(data.y), count + 1)
    made = _again(data, row, x[:, :count])
    offset = None if made.offset is None else np.where(y == GAP, 0.0, made.offset)
    return made._replace(x=x, y=y, offset=offset)


def of_trials(data: Design, trials: np.ndarray, path: Path, empty: bool) -> Design:
    """Return a row of successes and one of failures for each record, weighted by their numbers; a
    StructureError if there is none, unless it may be ``empty``.
    """
    won = np.asarray(data.y)
    wrong = (won < 0) | (won > trials) | (won != np.round(won)) | (trials != np.round(trials))
    if wrong.any():
        at = np.argmax(wrong)
        raise table_error(
            path,
            f"{won[at]:g} successes of {trials[at]:g} trials in line {data.lines[at]}",
            "whole numbers, of which the first is at most the second",
        )
    number = np.column_stack([won, trials - won])
    row, lost = np.nonzero(number)
    if not (len(row) or empty):
        raise StructureError(found=f"no trials in '{path}'", expected="at least one")
    made = _again(data, row, np.zeros((len(row), 0)))
    weights = number[row, lost] * made.counts
    return made._replace(y=1.0 - lost, weights=weights, kept=data.kept[row])


def _again(data: Design, row: np.ndarray, baseline: np.ndarray) -> Design:
    """Repeat records, each time with its own columns (m, b) of the baseline."""
    made = data.part(row)
    made.x[:, : baseline.shape[1]] = baseline
    suspects = {n: own._replace(groups=own.groups[row]) for n, own in data.suspects.items()}
    return made._replace(kept=data.kept, suspects=suspects)


def _at_risk(
    data: Design, recipe: Recipe, values: Mapping[str, np.ndarray], path: Path, predicting: bool
) -> Design:
    """Return one row per record and interval at risk, or one per record for prediction.

    With a constant hazard in an interval, its events are Poisson counts with the time at risk as
    exposure (holford1980). A varying hazard is treated so at each quadrature node.
    """
    if predicting and not {recipe.target, recipe.event} <= values.keys():
        return data._replace(y=None)
    time = values[recipe.target or ""]
    event = values[recipe.event or ""]
    entry = values.get(recipe.entry or "", np.zeros(len(time)))
    rounded = (time == entry) & (event == 1)
    wrong = (time < entry) | (entry < 0) | ((event != 0) & (event != 1)) | rounded
    if wrong.any():
        at = np.argmax(wrong)
        raise table_error(
            path,
            f"time {time[at]:g}, entry {entry[at]:g}, event {event[at]:g} in line {data.lines[at]}",
            "a time after a nonnegative entry, and an event that is 0 or 1",
            "If rounding moved events to their entry, add half the unit of rounding, 0.5 of a day."
            if rounded[at]
            else CODED.format(typed("--category", f"{recipe.event}=1,2"))
            if {*event.tolist()} == {1.0, 2.0}
            else CORRECT,
        )
    if predicting:
        return data._replace(y=event, times=np.column_stack([time, event, entry]))
    idle = int((time == entry).sum())
    if idle:
        notes = (*data.notes, f"{idle} records are censored at their entry, and contribute nothing")
        data = data._replace(notes=notes)
    at, spent = hazard_nodes(recipe, entry, time)
    row, interval, node = np.nonzero(spent > 0)
    last = (node == at.shape[2] - 1) & (at[row, interval, node] == time[row])
    made = _again(data, row, baseline_at(recipe, at[row, interval, node]))
    return made._replace(y=last * event[row], exposure=spent[row, interval, node])
