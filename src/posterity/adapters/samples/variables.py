"""Draws as variables: checked arrays of chains, draws and own axes, with a label a coordinate."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arguments import COUNT, Constraint, one_of
from posterity.arrays.namespace import namespace
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families import supports
from posterity.families.names import entry_names, some
from posterity.families.unconstrained import Supports

Array = np.ndarray
Chains = int | str | None
SUPPORTS: dict[str, type[supports.Continuous]] = {
    "real": supports.RealNumbers,
    "positive": supports.PositiveNumbers,
    "unit": supports.UnitInterval,
    "simplex": supports.Simplex,
    "positive-definite": supports.PositiveDefiniteMatrices,
}
"""The supports by the words of ``support=``."""
WORD = Constraint(
    one_of(*SUPPORTS).expected,
    lambda word: word in SUPPORTS,
    fix="Intervals other than from zero to one have to be scaled to it first.",
)
CHAINS = Constraint(
    "None, a whole number, 'first' or 'second'",
    lambda value: value in (None, "first", "second") or COUNT.allows(value),
    fix="Say which axis holds the chains, or how many there are: see from_samples.",
)
EVENT = "z"
"""The name, in reports, of an array that has none."""


@dataclasses.dataclass(frozen=True)
class Variable:
    """One variable: ``values`` (chains, n, *shape) and a label for each coordinate."""

    name: str
    values: Array
    labels: tuple[str, ...]
    support: supports.Continuous

    @property
    def shape(self) -> tuple[int, ...]:
        """The variable's own axes."""
        return self.values.shape[2:]

    @property
    def flat(self) -> Array:
        """(chains, n, d)."""
        return self.values.reshape(*self.values.shape[:2], -1)

    @functools.cached_property
    def free(self) -> Array:
        """The draws without bounds, (chains, n, free d)."""
        bijection = Supports(self.support)
        return bijection.ravel(bijection.inverse(self.values))

    @functools.cached_property
    def log_slope(self) -> Array:
        """``log |dz/du|`` of each draw, (chains, n)."""
        bijection = Supports(self.support)
        return bijection.log_det(bijection.inverse(self.values))

    @property
    def free_labels(self) -> tuple[str, ...]:
        """A label for each unconstrained number."""
        free = self.support.free_shape
        return self.labels if free == self.shape else entry_names(self.name or EVENT, free)


def variable(name: str, values: object, chains: Chains, coords: Sequence[Any] = ()) -> Variable:
    """A variable of draws as they come; on finite numbers until another support is asked for."""
    called = name or EVENT
    draws = runs(numbers(values, name or "draws"), chains, name or "draws")
    if (wrong := ~np.isfinite(draws)).any():
        chain, draw, *place = (int(i) for i in np.argwhere(wrong)[0])
        at = f"{called}[{','.join(map(str, place))}]" if place else called
        where = f"the first of {at!r} at chain {chain}, draw {draw}"
        raise ParameterError(
            found=f"{int(wrong.sum())} draws of {called!r} that are NaN or infinite, {where}",
            expected="finite numbers",
            fix="Look for why the sampler diverged; or leave out these draws, or the variable.",
        )
    labels = entry_names(called, draws.shape[2:], coords)
    return Variable(name, draws, labels, supports.RealNumbers(draws.shape[2:]))


def numbers(values: object, name: str) -> Array:
    """Convert to float64; a StructureError of what are no real numbers."""
    try:
        result = np.asarray(values)
        wrong = "" if result.dtype.kind in "iuf" else f"values of type {result.dtype}"
    except ValueError as error:  # ragged lists
        result, wrong = np.zeros(0), f"{type(values).__name__} that is no array ({error})"
    if wrong:
        found, fix = f"{wrong} as draws of {name!r}", "Leave the variable out."
        raise StructureError(found=found, expected="arrays of real numbers", fix=fix)
    return result.astype(np.float64)


def runs(values: Array, chains: Chains, name: str) -> Array:
    """(chains, n, *shape), by what ``chains`` says of the first axes."""
    CHAINS.check(chains=chains)
    two = isinstance(chains, str)
    count = 1 if chains is None or two else int(chains)
    if values.ndim < 1 + two or 0 in values.shape or len(values) % count:
        raise StructureError(
            found=f"draws of {name!r} of shape {values.shape} with chains={chains!r}",
            expected="(chains, draws, ...)" if two else "(draws, ...), as many in each chain",
            fix="Put draws, or chains and draws, on the first axes; cut the longer chains.",
        )
    if two:
        return values if chains == "first" else np.swapaxes(values, 0, 1)
    return values.reshape(count, -1, *values.shape[1:])


def with_supports(variables: Sequence[Variable], asked: Any) -> list[Variable]:
    """The same variables on the supports that are asked for, of all or by name."""
    if asked is None:
        return list(variables)
    known = [v.name for v in variables]
    asked = asked if isinstance(asked, Mapping) else dict.fromkeys(known, asked)
    if strange := [name for name in asked if name not in known]:
        found, expected = f"supports for {some(strange)}", f"variables among {some(known)}"
        raise UsageError(found=found, expected=expected, fix="Name variables as the draws do.")
    return [on(v, asked[v.name]) if v.name in asked else v for v in variables]


def on(own: Variable, support: Any) -> Variable:
    """One variable on another support, a word or a ``Support``, which must hold all draws."""
    support = type(support) if isinstance(support, supports.Continuous) else support
    called = own.name or EVENT
    if not isinstance(support, type):
        WORD.check(**{f"support of {called!r}": support})
        support = SUPPORTS[support]
    values, axes = own.values, support.axes
    wrong = axes > len(own.shape) or (axes == 1 and own.shape[-1] < 2)
    if wrong or (axes == 2 and own.shape[-1] != own.shape[-2]):
        raise StructureError(
            found=f"draws of {called!r} of shape {own.shape} each",
            expected=f"{support.name} on the last {axes} axes" if axes > 1 else support.name,
            fix="Mend support=.",
        )
    if support is supports.Simplex:
        total = values.sum(-1, keepdims=True)  # more than float32 left off stays, and is refused
        near = abs(total - 1) < 1e-4
        values = np.where(near, values / np.where(total == 0, 1, total), values)
    if support is supports.PositiveDefiniteMatrices:
        values = (values + np.swapaxes(values, -1, -2)) / 2
    made = support(own.shape)
    inside = np.asarray(made.holds(namespace(values), values))
    if not inside.all():
        worst = np.asarray(values[np.unravel_index(int(np.argmin(inside)), inside.shape)])
        such = np.array2string(worst, precision=6, threshold=9)
        raise ParameterError(
            found=f"{int((~inside).sum())} draws of {called!r} outside of the support, as {such}",
            expected=support.name,
            fix="Mend support=, or leave out draws that lie on its border.",
        )
    return dataclasses.replace(own, values=values, support=made)
