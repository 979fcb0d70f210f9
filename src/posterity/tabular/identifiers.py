"""Columns that identify records, clusters of records or days, rather than describe them."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from posterity.tabular.tables.numbers import is_number, is_numeric
from posterity.tabular.tables.reader import Cells, is_missing

NAMED = re.compile(
    r"(?i:(.*[^a-z])?(p?ids?|uuid|guid|mrn|nr|identifier|patient|subject|person|participant|case))"
    r"|.*[a-z]I[Dd]"
    r"|(?i:family|famille|familie|household|ménage|menage|haushalt|ward|station"
    r"|hospital|hôpital|hopital|krankenhaus|clinic|clinique|klinik|centre|center|zentrum)"
)
"""Names of columns that identify something. Of a ward or family the name is all: days_in_hospital
is a number.
"""
NUMBERED = re.compile(
    r"(?i:(.*[^a-z])?(no|num|number|key|code|record|serial))|.*[a-z](No|Nr|Key|Code)"
)
"""Names of columns that identify something if each record has another number."""
SAVED_INDEX = re.compile(r"Unnamed: \d+")
"""Name that pandas gives to a column without one."""
DATED = re.compile(r"(?i)(.*[^a-z])?(date|datum|day of birth|dob|timestamp)([^a-z].*)?")
"""Names of columns of dates, if these are whole numbers."""
_YEAR = r"(1[89]|20)\d\d"
DATE = re.compile(rf"({_YEAR}[-./]\d\d?[-./]\d\d?|\d\d?[-./]\d\d?[-./]{_YEAR})([T ].*)?")
"""Texts of dates whose year has four digits, with a time or without: not 01-02-0045, a patient."""


class Suspect(NamedTuple):
    """A column whose values recur: the number of each record's, from 0, in ``groups`` (n,), and
    whether its name or the order of its values ``looks`` like that of clusters.
    """

    groups: np.ndarray
    looks: bool


def no_covariates(
    cells: Cells, names: Collection[str], *, few: int = 20, share: float = 0.5
) -> Iterator[tuple[str, str, bool]]:
    """Yield columns among ``names`` that are no covariates, each with the reason and True.

    They are those of dates, and those in which each of at least ``few`` records has a whole number
    or text of its own; of columns named as identifiers, a ``share`` of them. A column of numbers
    that neither its name nor their order tells is yielded with False: it may well be one.
    """
    for name, named, every in _unmeasured(cells, names):
        texts = [text for text in every if not is_missing(text)]
        distinct = {*texts}
        several = len(texts) >= few and len(distinct) >= (share if named else 1) * len(texts)
        if SAVED_INDEX.fullmatch(name):
            yield name, "row numbers, as pandas names them", True
        elif DATED.fullmatch(name) and distinct and all(map(_is_whole, distinct)):
            yield name, "dates", True
        elif several and _whole_or_text(distinct):
            kind = "whole number" if is_numeric(texts[0]) else "text"
            why = f"a {kind} of its own in each of {len(texts)} records"
            if len(distinct) < len(texts):
                why = f"{len(distinct)} different {kind}s in {len(texts)} records"
            known = named or kind == "text" or bool(NUMBERED.fullmatch(name))
            yield name, why, known or _in_turn([float(text) for text in texts])


def _in_turn(numbers: Sequence[float], *, gaps: float = 1.0) -> bool:
    """Return whether different numbers are in order, or all of a range but for as many ``gaps``."""
    steps = np.diff(numbers)
    dense = max(numbers) - min(numbers) < (1 + gaps) * len(numbers)
    return bool(dense or (steps > 0).all() or (steps < 0).all())


def clusters(
    cells: Cells, names: Collection[str], covariates: Collection[str] = (), *, fewest: int = 10
) -> Iterator[tuple[str, Suspect]]:
    """Yield columns among ``names`` of whole numbers or texts that recur, with ``fewest`` values at
    least, and half as many as records at most, unless they are named as identifiers; none of dates.
    The order of ``covariates`` is not that of clusters: tables are sorted by age.
    """
    for name, named, texts in _unmeasured(cells, names):
        distinct = {*texts}
        if DATED.fullmatch(name) or all(DATE.fullmatch(t) or is_missing(t) for t in distinct):
            continue
        most = len(texts) - 1 if named else len(texts) / 2
        if not (fewest <= len(distinct) <= most) or not _whole_or_text(distinct):
            continue
        groups = groups_of(texts)
        runs = 1 + int(np.count_nonzero(np.diff(groups)))
        texts_only = not any(map(is_numeric, texts))
        in_turn = runs == groups.max() + 1 and name not in covariates
        looks = in_turn or texts_only or named
        yield name, Suspect(groups, looks)


def groups_of(texts: Collection[str]) -> np.ndarray:
    """Return the number (n,) of each text among those that differ, from 0."""
    return np.unique(np.array([*texts], dtype=str), return_inverse=True)[1]


def _unmeasured(
    cells: Cells, names: Collection[str], *, first: int = 20
) -> Iterator[tuple[str, bool, list[str]]]:
    """Yield columns with whether they are named as identifiers, and their texts, unless one of the
    ``first`` is a number with decimals: most columns are told so.
    """
    for name in names:
        texts = [text.strip() for text in cells.column(name)]
        some = (text for text in texts[:first] if not is_missing(text))
        if not any(is_number(text) and not _is_whole(text) for text in some):
            yield name, NAMED.fullmatch(name) is not None, texts


def _whole_or_text(texts: Collection[str]) -> bool:
    return not any(is_numeric(text) and not _is_whole(text) for text in texts)


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+(\.0*)?", text) is not None
