"""Words for a recipe's numbers: each coefficient's unit, and the ratio that it stands for."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from posterity.errors import UsageError
from posterity.models.tables import SPREAD
from posterity.tabular.options import INTERCEPT, LABELS
from posterity.tabular.recipe import Recipe

EFFECTS = {**dict.fromkeys(LABELS, "log odds"), "survival": "log hazard"}
"""Quantity that a coefficient adds to; for other models with a link it is a log mean."""
RATIOS = {
    **dict.fromkeys(LABELS, "odds ratio"),
    "survival": "hazard ratio",
    "poisson": "rate ratio",
    "negative-binomial": "rate ratio",
    "gamma": "ratio of means",
}
"""Name of a coefficient's exponential, by model."""


class Effect(NamedTuple):
    """Unit of a coefficient in words, and the name of its exponential, if any."""

    unit: str
    ratio: str = ""


def _added(recipe: Recipe) -> str:
    """Return the quantity that a coefficient of a model with a link adds to."""
    return EFFECTS.get(recipe.model, f"log {recipe.target or ''}")


def effects_of(recipe: Recipe | None) -> Mapping[str, Effect]:
    """Return, by coefficient, the unit that it is measured in.

    >>> effects_of(Recipe("linear", "sbp", ("age",), unit={"age": "years"}))["age"].unit
    'sbp per unit of age (years)'
    """
    if recipe is None:
        return {}
    shared = _of_one_site(recipe.shared)
    strata = recipe.stratified
    copied = (strata.names[place] for place, _ in strata.coefficients)
    pairs = zip(recipe.coefficients(), copied, strict=True)
    return {name: shared[one] for name, one in pairs}


def _of_one_site(recipe: Recipe) -> Mapping[str, Effect]:
    """Return :func:`effects_of` a recipe without coefficients of a site's own."""
    target = recipe.target or ""
    effect = _added(recipe)
    if recipe.model == "linear":
        scale = recipe.scale.get(target, 1)
        effect = recipe.unit.get(target, target)
        effect = effect if scale == 1 else f"{scale:g} {effect}"
    ratio = RATIOS.get(recipe.model, "")
    effects = dict.fromkeys(recipe.inputs(), Effect(effect, ratio))
    for name in (INTERCEPT, *recipe.baseline):
        if name in effects:
            effects[name] = Effect(effect)
    for name in recipe.columns or ():
        levels = recipe.categories.get(name, ())
        if name in effects:
            size = recipe.scale.get(name, 1)
            unit = recipe.unit.get(name)
            per = f"{size:g} {unit or ''}".strip()
            per = per if size != 1 else f"unit of {name} ({unit})" if unit else "unit"
            effects[name] = Effect(f"{effect} per {per}", ratio)
        if levels and f"{name}[{levels[0]}]" in effects:  # means, without an intercept
            effects |= {f"{name}[{level}]": Effect(effect) for level in levels}
            continue
        for level in levels[1:]:
            if f"{name}[{level}]" in effects:
                unit = f"{effect}, {level} rather than {levels[0]}"
                effects[f"{name}[{level}]"] = Effect(unit, ratio)
    if recipe.model != "multinomial":
        return effects
    return {
        f"{level}:{name}": Effect(f"{one.unit} of {level} against {recipe.levels[0]}", one.ratio)
        for level in recipe.levels[1:]
        for name, one in effects.items()
    }


def effect_of(effects: Mapping[str, Effect], row: Any) -> Effect | None:
    """Return what a row's number is an effect of; None of others, such as spreads of effects."""
    return None if row.block == SPREAD else effects.get(row.name)


def ratios_of(recipe: Recipe | None, rows: Iterable[Any], level: float) -> Iterator[dict[str, Any]]:
    """Yield the ratio of each coefficient that stands for one: the exponentials of its mean and of
    its interval, with the interval's level and what one more is of.

    Args:
        recipe: recipe of the coefficients.
        rows: rows of a :class:`~posterity.reporting.summary.Summary`, whose intervals are taken.
        level: probability of these intervals.

    Raises a UsageError for a model whose coefficients are no logarithms.
    """
    effects = effects_of(recipe)
    if recipe is None or recipe.model not in RATIOS:
        what = "a file without a recipe" if recipe is None else f"a {recipe.model} model"
        raise UsageError(
            found=f"ratios of {what}",
            expected=f"a regression with a log or logit link: {', '.join(RATIOS)}",
        )
    added = _added(recipe)
    for row in rows:
        effect = effect_of(effects, row)
        if effect is not None and effect.ratio:
            low, middle, high = exponentials(row)
            unit = effect.unit.replace(added, effect.ratio, 1)
            about = {"level": level, "unit": unit, "low": low, "high": high}
            yield {"name": row.name, "what": effect.ratio, "ratio": middle, **about}


def exponentials(row: Any) -> list[float]:
    """Return the exponentials of a row's low end, mean and high end; infinite beyond what a float
    holds.
    """
    with np.errstate(over="ignore"):
        return np.exp([row.low, row.mean, row.high]).tolist()
