"""Notes on what a fit knows less well than its numbers say.

Those on separation, skewness, weights and clusters are also kept in the file, so that every verb
repeats them (:func:`~posterity.tabular.sites.said`).
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from posterity.families.names import some
from posterity.models.sandwich import slopes_of_groups, summed
from posterity.models.separation import separating
from posterity.runtime.text import typed
from posterity.tabular.options import COUNTS, LABELS, ODDS, ORDERED
from posterity.tabular.recipe import Recipe
from posterity.tabular.rows import Design, levels_of
from posterity.tabular.sites import in_words, turned

FINITE = "only the prior keeps coefficients finite"
_SILENT = (
    f"{FINITE}, and says how far out they lie, so that fused in one shot these records may hardly "
    "count: federate, or pass a smaller --prior-sd at every site"
)


def notes_of_prior(
    names: Sequence[str],
    mean: np.ndarray,
    sd: np.ndarray,
    prior: Any,
    *,
    share: float = 0.25,
    far: float = 3.0,
) -> Iterator[str]:
    """Yield notes on coefficients with posterior means and deviations ``mean`` and ``sd`` (d,):
    those of whose precision a Gaussian ``prior`` contributes more than a ``share``, and those more
    than ``far`` of its deviations from its mean.
    """
    own = np.sqrt(prior.marginal_variance)
    loud = [name for name, part in zip(names, (sd / own) ** 2, strict=True) if part > share]
    if loud:
        yield (
            f"the prior contributes more than {share:.0%} of the precision of {some(loud)}: unless "
            "you want that, change units or --prior-sd at every site"
        )
    distance = abs(mean - prior.mean) / own
    away = [name for name, one in zip(names, distance, strict=True) if one > far]
    if away:
        yield (
            f"{some(away)} lie more than {far:g} prior standard deviations from the prior's mean: "
            "change units (--center, --scale) or --prior-sd at every site"
        )


def cautions(
    recipe: Recipe,
    names: Sequence[str],
    data: tuple[np.ndarray, np.ndarray],
    posterior: Any,
    third: np.ndarray | None = None,
    *,
    alike: str = _SILENT,
) -> Iterator[str]:
    """Yield notes on records that leave coefficients to the prior, and on skewness.

    Args:
        recipe: recipe of the records.
        names: names of the coefficients, in their order in ``data`` and ``posterior``.
        data: inputs and targets, as of :func:`~posterity.tabular.regressions.data_of`.
        posterior: Gaussian over the coefficients.
        third: third derivatives (d, d, d) of the log likelihood, if known.
        alike: end of the note on a target that is the same in every record.
    """
    x, y = data
    if third is not None and third.any():
        yield from notes_of_skewness(names, posterior.covariance, third)
    targets = y.reshape(len(y), -1)
    label = targets[:, 0]
    lacking = [*notes_of_levels(recipe, x, label, alike)]
    yield from lacking
    if not lacking and recipe.model in (*LABELS, *COUNTS, "survival"):
        yield from notes_of_separation(recipe, names, x, label)
    if recipe.model == "poisson" and not recipe.robust:
        yield from notes_of_dispersion(x, targets, posterior.mean)


def notes_of_levels(recipe: Recipe, x: np.ndarray, y: np.ndarray, alike: str) -> Iterator[str]:
    """Yield a note on targets ``y`` (n,) that are all alike: levels that none of these rows has, no
    event, or labels that are all equal. It ends with ``alike``.
    """
    if recipe.model in (*COUNTS, "survival") and len(y) and not y.any():
        what = "an event" if recipe.model == "survival" else "a count above 0"
        yield f"no record has {what}: {alike}"
    if recipe.model == "logistic" and len(y) and (y == y[0]).all():
        yield f"the target is {y[0]:g} in every record: {alike}"
    if recipe.model not in (*ORDERED, "multinomial"):
        return
    seen = levels_of(recipe, x, y) if recipe.model in ORDERED else y
    none = [level for place, level in enumerate(recipe.levels) if place not in seen]
    if none:
        yield f"no record has the level {some(none)}: {alike}"


def notes_of_separation(
    recipe: Recipe, names: Sequence[str], x: np.ndarray, label: np.ndarray
) -> Iterator[str]:
    """Yield a note on coefficients that the likelihood of these rows leaves without a bound."""
    size = len(recipe.inputs()) if recipe.model == "multinomial" else len(names)
    labels = recipe.model in LABELS
    columns = separating(
        x[:, :size], label > 0 if recipe.model == ODDS else label, counts=not labels
    )
    if not columns.any():
        return
    start = f"{recipe.levels[1]}:" if recipe.model == "multinomial" else ""
    odd = [n.removeprefix(start) for n, one in zip(names[:size], columns, strict=True) if one]
    what = "the target's classes" if labels else "records with an event from some without one"
    yield (
        f"{some(odd)} tell {what} apart without exception, in a part of the records at least: only "
        "the prior keeps coefficients finite (--prior-sd), and a Gaussian is a rough approximation "
        "of this posterior"
    )


def notes_of_skewness(
    names: Sequence[str], covariance: np.ndarray, third: np.ndarray, *, most: float = 0.5
) -> Iterator[str]:
    """Yield a note on coefficients whose posterior has a skewness above ``most``, to leading order
    in the ``third`` derivatives of the log likelihood; a Gamma of shape 16 has 0.5.
    """
    cubic = np.einsum("aaa->a", turned(third, covariance))
    skewness = cubic / np.diagonal(covariance) ** 1.5
    odd = {name: own for name, own in zip(names, skewness, strict=True) if abs(own) > most}
    if odd:
        told = in_words(f"{name} {own:.2g}" for name, own in odd.items())
        yield (
            f"the posterior is skewed (skewness {told}), which one Gaussian does not hold: its "
            "intervals are off, as a rule too short on that side"
        )


def notes_of_clusters(
    recipe: Recipe,
    names: Sequence[str],
    model: Any,
    data: tuple[np.ndarray, np.ndarray],
    posterior: Any,
    design: Design,
    *,
    effect: float = 1.5,
    level: float = 0.01,
) -> Iterator[str]:
    """Yield a note on columns whose values may be those of clusters of records: where deviations
    by the sandwich covariance of clusters are more than an ``effect`` times those by that of single
    records, or its name or order says so.

    Of independent records a deviation is noted at this ``level``, over all columns and coefficients
    together. ``data`` are the records of ``design``, whose suspects are the columns that recur.
    """
    if recipe.cluster or posterior.diagonal or not design.suspects:
        return
    import scipy.special  # not above: few commands need it

    first, record = np.unique(design.lines, return_index=True, return_inverse=True)[1:]
    parts = slopes_of_groups(model, posterior.mean, data, record) @ posterior.covariance
    parts /= np.maximum(np.sqrt((parts**2).sum(0)), np.sqrt(np.finfo(float).tiny))
    level /= len(design.suspects) * len(names)
    found = {}
    for column, (groups, looks) in design.suspects.items():
        sums, squares, fourths = (summed(parts**power, groups[first]) for power in (1, 2, 4))
        # Products of independent parts have mean 0. Of a group, their sum is at most as skewed as
        # chi squared of one degree of freedom.
        weight = np.maximum(squares**2 - fourths, np.finfo(float).eps ** 2)
        excess = (sums**2 - squares).sum(0) / np.sqrt(weight.sum(0))
        free = weight.sum(0) ** 3 / (weight**1.5).sum(0) ** 2
        chance = scipy.special.chdtrc(free, free + np.sqrt(free) * excess)
        ratio = np.sqrt((sums**2).sum(0)) * (chance < level)
        worst = int(np.argmax(ratio))
        far = ratio[worst] > effect and not recipe.robust
        much = f"; by {column!r} the standard deviation of {names[worst]!r} is {ratio[worst]:.2g}"
        if far or looks:
            found[column] = f"{much} times as large" if far else ""
    if found:
        ways = " or ".join(typed("--cluster", column) for column in found)
        yield (
            f"values of {some([*found])} recur: if records of one value are of one patient or "
            f"unit, they are no independent records{''.join(found.values())}; pass {ways} at every "
            "site, and name it in no other option"
        )


def notes_of_dispersion(
    x: np.ndarray, targets: np.ndarray, mean: np.ndarray, *, much: float = 1.5, far: float = 5.0
) -> Iterator[str]:
    """Yield a note on counts whose Pearson statistic is above ``much`` times its degrees of
    freedom, and more than ``far`` standard deviations from its mean by Poisson's law.

    ``targets`` have counts, exposures, and if records are weighted offsets and weights.
    """
    y, exposure, *more = targets.T
    weights = more[-1] if more else np.ones(len(y))
    with np.errstate(over="ignore"):
        rate = np.maximum(exposure * np.exp(x @ mean), np.finfo(float).tiny)
        pearson = float(weights @ ((y - rate) ** 2 / rate))
        away = np.sqrt(weights @ (2 + 1 / rate))
    free = weights.sum() - x.shape[1]
    if free > 0 and pearson > max(much * free, free + far * away):
        yield (
            f"counts vary more than Poisson's: their squared residuals are {pearson / free:.2g} "
            "times those expected, so that intervals are too short; pass --model negative-binomial "
            "at every site"
        )


def notes_of_few_clusters(
    recipe: Recipe, designs: Collection[Any], *, enough: int = 40
) -> Iterator[str]:
    """Yield a note if all sites' ``designs`` have fewer than ``enough`` clusters for sandwich
    covariances, whose bias is of the order of one in their number (liang1986).
    """
    if not recipe.cluster:
        return
    number = sum(len(np.unique(own.groups)) for own in designs)
    if number < enough:
        yield (
            f"{number} clusters of {recipe.cluster!r}: of fewer than {enough} sandwich covariances "
            "are too small, and intervals too short, the more so the more coefficients there are; "
            "a mixed model (statsmodels, R) can be imported instead"
        )
