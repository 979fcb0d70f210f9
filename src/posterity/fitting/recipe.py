"""The options of a fit: kept beside it, and the same at every site that is fused.

Coefficients are only comparable where the model, its columns, their units and the prior are one.
A recipe says all of that, in a form in which equal requests are equal texts.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from posterity.arguments import POSITIVE, Constraint, one_of
from posterity.errors import UsageError

VERSION = 2
MODELS = ("linear", "logistic", "poisson", "mixture")
FAMILIES = ("gaussian", "diagonal")
INTERCEPT = "intercept"
"""The name of the coefficient of the column of ones."""
PRIOR_SD: Mapping[str, Mapping[str, float]] = {
    "linear": {"": 1e6},
    "logistic": {"": 10.0, INTERCEPT: 1000.0},
    "poisson": {"": 10.0, INTERCEPT: 1000.0},
    "mixture": {"": 10.0},
}
"""Of coefficients, or of components' means, where no other is asked for.

An intercept is how things are where all columns are 0, which may be far from any record.
"""
ESTIMATE = "estimate"
FINITE = Constraint("a finite number", lambda value: abs(value) < float("inf"))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The options that all sites share; those left out have the same default everywhere.

    Attributes:
        model: ``"linear"``, ``"logistic"``, ``"poisson"`` or ``"mixture"``.
        target: the column that is predicted; none of a mixture.
        columns: those that it is predicted from; of a mixture those that it is of. All others of
            the table if left out, but ``without``.
        without: columns that are left out.
        categories: by column its levels, of which the first is the reference and all others get a
            column of zeros and ones each; of the target the one that is 0, and the one that is 1.
        center: by column what is taken off it, in its unit; 0 if left out.
        scale: by column what it is divided by after that; 1 if left out.
        intercept: whether regressions get a column of ones.
        exposure: of counts, the column of how much each record stands for; the rate is of one.
        prior_sd: standard deviations of the coefficients' prior about 0, in units after ``center``
            and ``scale``; by name, and under ``""`` that of all others. Of a mixture that of the
            components' means.
        prior: in place of that the digest of a prior's file.
        noise_variance: of a linear model, after the target's ``scale``; ``"estimate"`` takes the
            site's own, of the residuals of least squares.
        family: of a regression's posterior.
        components: of a mixture.
        component_sd: of a mixture, about how wide a component is in every column.
    """

    model: str
    target: str | None = None
    columns: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    center: Mapping[str, float | int] = dataclasses.field(default_factory=dict)
    scale: Mapping[str, float | int] = dataclasses.field(default_factory=dict)
    intercept: bool = True
    exposure: str | None = None
    prior_sd: Mapping[str, float | int] = dataclasses.field(default_factory=dict)
    prior: str | None = None
    noise_variance: float | int | str | None = None
    family: str = "gaussian"
    components: int | None = None
    component_sd: float | int | None = None

    def canonical(self) -> str:
        """The recipe as JSON; equal for equal requests, whatever their order.

        >>> Recipe("poisson", "n", columns=("b", "a")).canonical()[:52]
        '{"categories":{},"center":{},"columns":["a","b"],"co'
        """
        options: dict[str, Any] = dataclasses.asdict(self)
        del options["without"]
        options["columns"] = sorted(self.columns or ())
        options["center"] = {name: float(value) for name, value in self.center.items() if value}
        options["scale"] = {name: float(value) for name, value in self.scale.items() if value != 1}
        wide = self.prior_sd.get("")
        options["prior_sd"] = {
            name: float(sd) for name, sd in self.prior_sd.items() if not name or sd != wide
        }
        for key in ("noise_variance", "component_sd"):
            options[key] = float(options[key]) if isinstance(options[key], int) else options[key]
        options["version"] = VERSION
        return json.dumps(options, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def check_recipe(recipe: Recipe) -> None:
    """Raise a UsageError for what makes no sense whatever the records are."""
    one_of(*MODELS).check(model=recipe.model)
    one_of(*FAMILIES).check(family=recipe.family)
    FINITE.check(**{f"center {name}": value for name, value in recipe.center.items()})
    POSITIVE.check(**{f"scale {name}": value for name, value in recipe.scale.items()})
    POSITIVE.check(**{f"prior_sd {name}".rstrip(): sd for name, sd in recipe.prior_sd.items()})
    POSITIVE.or_none().check(component_sd=recipe.component_sd)
    if recipe.noise_variance != ESTIMATE:
        POSITIVE.or_none().check(noise_variance=recipe.noise_variance)
    regression = recipe.model != "mixture"
    wrong = (
        (regression and not recipe.target, "no target", "the column to predict (--target NAME)"),
        (
            not regression and bool(recipe.target),
            f"target {recipe.target!r} of a mixture",
            "columns without a target (--without NAME leaves one out)",
        ),
        (
            not regression and (recipe.components or 0) < 1,
            f"components {recipe.components}",
            "a whole number of components (--components K), at least 1",
        ),
        (not regression and bool(recipe.categories), "categories of a mixture", "numbers"),
        (not regression and recipe.family != "gaussian", "a family of a mixture", "none"),
        (regression and recipe.components is not None, "components of a regression", "none"),
        (regression and recipe.component_sd is not None, "component_sd of a regression", "none"),
        (
            recipe.exposure is not None and recipe.model != "poisson",
            f"an exposure of model {recipe.model!r}",
            "one of counts alone (--model poisson)",
        ),
        (
            recipe.noise_variance is not None and recipe.model != "linear",
            f"a noise variance of model {recipe.model!r}",
            "one of --model linear alone",
        ),
        (bool(recipe.prior_sd) and recipe.prior is not None, "both a prior and prior_sd", "one"),
        (recipe.columns is not None and bool(recipe.without), "both columns and without", "one"),
    )
    for holds, found, expected in wrong:
        if holds:
            raise UsageError(found=found, expected=expected, fix="See posterity fit --help.")
