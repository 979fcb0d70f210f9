"""Fit of a recipe to a table of records, as the ledger of one site."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posterity.arrays.linear_algebra import one_thread
from posterity.errors import StructureError, UsageError
from posterity.families import DiagonalGaussian, ExponentialFamily, Gaussian
from posterity.families.names import in_order, names_of, some
from posterity.inference.descent import watched
from posterity.ledger import Ledger
from posterity.status import ProgressCallback
from posterity.tabular.design import Design, design
from posterity.tabular.one_shot import third_derivatives
from posterity.tabular.options import COUNTS, ESTIMATE
from posterity.tabular.reading import PLAIN, Reading, columns_of
from posterity.tabular.recipe import Recipe, check_recipe
from posterity.tabular.regressions import (
    AS_POISSON,
    LEAST,
    check_converged,
    deviations,
    dispersion_of,
    fitted,
    residuals_of,
    triangle_of,
)
from posterity.tabular.sites import as_provenance, listed
from posterity.tabular.tables.reader import Cells, read_cells
from posterity.version import __version__

_VERSIONS = f"posterity {__version__}, numpy {np.__version__}"
_FINITE = "only the prior keeps coefficients finite"
_SILENT = f"{_FINITE}, and in one shot this file contributes almost nothing: federate"
_TOLD_APART = (
    "the columns separate the classes perfectly: only the prior keeps coefficients finite, and a "
    "Gaussian is a rough approximation of this posterior"
)


@dataclasses.dataclass(frozen=True)
class Fit:
    """The fit of a table's records.

    Attributes:
        ledger: the prior and the site's factor.
        recipe: recipe of the fit, with all defaults filled in.
        records: number of records used.
        dropped: number of records dropped because of a missing value.
        steps: number of passes over the site.
        spread: noise variance of a linear model or dispersion of another, known or estimated.
        spare: residual degrees of freedom of an estimated noise variance, if known.
        third: third derivatives of the site's log likelihood, if known
            (:mod:`~posterity.tabular.one_shot`).
        rounded: numbers of records in the file are rounded to multiples of this.
        notes: remarks that are not errors.
        kept: positions in the table of the records used.
    """

    ledger: Ledger
    recipe: Recipe
    records: int
    dropped: int
    steps: int
    spread: float | None
    notes: tuple[str, ...]
    kept: np.ndarray
    third: np.ndarray | None = None
    spare: float | int | None = None
    rounded: int = 1

    @property
    def noise_variance(self) -> float | None:
        """Noise variance of a linear model, known or estimated."""
        return self.spread if self.recipe.model == "linear" else None

    @property
    def provenance(self) -> dict[str, str]:
        """Provenance to save with the ledger: its recipe, and facts about the site's records."""

        def count(number):
            return self.rounded * round(number / self.rounded)

        known: dict[str, Any] = {"records": count(self.records), "versions": _VERSIONS}
        if self.dropped:
            known["dropped"] = count(self.dropped)
        if self.spread is not None:
            known[self.recipe.spread or ""] = self.spread
        if self.spare is not None:
            known["spare"] = count(self.spare)
        names = names_of(self.ledger.posterior).get("", ())
        if self.third is not None:
            known["third"] = listed(self.third, names)
        return as_provenance(self.recipe, {self.ledger.sites[0]: known})


def fit(
    path: Path | str,
    recipe: Recipe,
    site: str | None = None,
    *,
    prior: ExponentialFamily | None = None,
    reading: Reading = PLAIN,
    progress: ProgressCallback | None = None,
) -> Fit:
    r"""Fit a regression to a table's records, as the ledger of one site.

    Args:
        path: path of a table with a header: :func:`~posterity.tabular.tables.reader.read_cells`.
        recipe: recipe of the model, the same at every site.
        site: name of the site; by default the file's name without its extension.
        prior: named Gaussian prior, whose digest is ``recipe.prior``.
        reading: names, units and levels of this table, where they differ from the recipe's.
        progress: callback after each step of a regression, as in :func:`posterity.federate`, and
            within it after each evaluation of its free energy by NumPy.

    Returns:
        A :class:`Fit`, whose ledger has a :class:`Gaussian` (:class:`DiagonalGaussian`) over the
        coefficients, in the units
        that ``recipe.center`` and ``recipe.scale`` define.

    Raises:
        PosterityError: for an invalid recipe, a file or cell that cannot be read, missing columns,
            and a target that the model does not accept.
        ConvergenceError: if the search does not converge.

    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "north.csv"
    >>> _ = file.write_text("dose,ill\n0,0\n1,0\n2,1\n3,1\n")
    >>> found = fit(file, Recipe("logistic", "ill"))
    >>> found.ledger.sites, found.ledger.posterior.names
    (('north',), ('intercept', 'dose'))
    """
    path = Path(path)
    check_recipe(recipe)
    cells, notes = records_of(path, reading)
    site = path.stem if site is None else site
    recipe = recipe.filled(columns_of(recipe, cells.header, path))
    recipe = recipe.replaced(strata=(site,) if recipe.own else ())
    data = design(cells, recipe, reading)
    data = data._replace(notes=(*notes, *data.notes))
    with one_thread(data.x.shape[1], len(data.x)), watched(progress):
        return _regression(data, recipe, site, prior, progress)


def imputed(fits: Sequence[Fit]) -> Fit:
    """Combine fits of several imputed tables of one site's records by Rubin's rule (rubin1987).

    The mean is the average of the posteriors' means. The covariance is the average of their
    covariances plus ``1 + 1/m`` times the covariance of the means, which measures the uncertainty
    about the missing values.

    Raises:
        UsageError: unless they are full Gaussians of one recipe and of the same records.
    """
    first = fits[0]
    count = len(fits)
    posteriors: list[Any] = [own.ledger.posterior for own in fits]
    if len({own.recipe.canonical() for own in fits}) > 1:
        raise UsageError(
            found=f"tables of columns {'; '.join(str(list(f.recipe.columns or ())) for f in fits)}",
            expected="the same columns in each imputed table",
            fix="Name the columns to be used by --columns A,B.",
        )
    full = all(q.gaussian and not q.diagonal for q in posteriors)
    if not full or not all(np.array_equal(own.kept, first.kept) for own in fits):
        raise UsageError(
            found=f"tables of {', '.join(str(own.records) for own in fits)} records, or a "
            f"posterior {posteriors[0]!r}",
            expected="the same records in each imputed table, and a full Gaussian",
            fix="Impute all missing values, and fit a regression with --family gaussian.",
        )
    names = names_of(posteriors[0])[""]
    posteriors = [in_order(q, {"": names}, "a table", "the first") for q in posteriors]
    means = np.stack([q.mean for q in posteriors])
    away = means - means.mean(0)
    between = away.T @ away / max(count - 1, 1)
    within = np.mean([q.covariance for q in posteriors], axis=0)
    pooled = Gaussian.from_standard(means.mean(0), within + (1 + 1 / count) * between)
    prior, (site,) = first.ledger.prior, first.ledger.sites
    ledger = Ledger.of_site(site, prior=prior, posterior=pooled.named(names))
    share = np.diagonal((1 + 1 / count) * between) / np.diagonal(pooled.covariance)
    worst = int(np.argmax(share))
    note = (
        f"{count} imputed tables are combined by Rubin's rules: missing values account for "
        f"{share[worst]:.0%} of the variance of {names[worst]!r}, and for less of others"
    )
    spreads = [own.spread for own in fits if own.spread is not None]
    notes = tuple(dict.fromkeys(line for own in fits for line in own.notes))
    return dataclasses.replace(
        first,
        ledger=ledger,
        steps=sum(own.steps for own in fits),
        spread=float(np.mean(spreads)) if spreads else None,
        notes=(*notes, note),
        third=None,
        spare=None,
    )


def records_of(path: Path, reading: Reading) -> tuple[Cells, list[str]]:
    """Return a table under the recipe's names, without an unnamed index in front, and notes."""
    cells = read_cells(path, unnamed=True)
    notes = []
    if len(cells.header) > 1 and not cells.header[0]:
        cells = cells._replace(header=cells.header[1:], rows=[row[1:] for row in cells.rows])
        notes = ["the first column has no name, and is left out as an index"]
    return reading.renamed(cells), notes


def _regression(
    data: Design,
    recipe: Recipe,
    site: str,
    given: ExponentialFamily | None,
    progress: ProgressCallback | None,
) -> Fit:
    prior = prior_of(data.names, recipe, given)
    x = data.x
    spread = None
    spare = None
    if recipe.spread is not None:
        spread = getattr(recipe, recipe.spread)
        if spread == ESTIMATE and recipe.model == "linear":
            left = residuals_of([triangle_of(recipe, data)])
            spread = left.variance
            spare = left.spare
        elif spread == ESTIMATE:
            spread = dispersion_of(recipe, [data])
            if spread < LEAST:
                data = data._replace(notes=(*data.notes, AS_POISSON))
    if recipe.family != "diagonal":  # collinear columns would need a long search
        size = len(recipe.inputs())  # inputs per class of a multinomial model
        own = x[:, :size]
        known = prior.precision[:size, :size]
        if spread is not None and recipe.model == "linear":
            own = own / np.sqrt(spread)
        deviations(np.zeros(size), known + (own.T * data.counts) @ own, data.names[:size])
    run = fitted(recipe, spread, site, data, prior, progress)
    ledger = Ledger(prior).update(site, run.state.factor(site), independent=True)
    posterior: Any = ledger.posterior
    predictor = x @ posterior.mean + data.shift
    if recipe.family == "diagonal":
        sd = np.sqrt(posterior.variance)
    else:
        sd = deviations(posterior.precision_mean, posterior.precision, data.names)
    check_converged(run, recipe, data)
    notes = (*data.notes, *_notes(data, recipe, posterior.mean, predictor, sd, prior))
    third = third_derivatives(recipe, data, posterior, spread)
    used = data.records, data.dropped, run.state.step
    return Fit(ledger, recipe, *used, spread, notes, data.kept, third, spare)


def prior_of(names: tuple[str, ...], recipe: Recipe, known: Any) -> Any:
    """Return the coefficients' prior: independent with mean 0, or ``known`` in their order."""
    if known is None:
        known_names = {"", *names, *recipe.shared.coefficients()}
        unknown = [name for name in recipe.prior_sd if name not in known_names]
        if unknown:
            raise UsageError(
                found=f"--prior-sd for {unknown[0]!r}",
                expected=f"coefficients among {some(names)}",
                fix="Use one of these names, or leave it out.",
            )
        sd = np.array(recipe.deviations())
        if recipe.family == "diagonal":
            return DiagonalGaussian.from_standard(np.zeros(len(sd)), sd**2).named(names)
        return Gaussian.from_standard(np.zeros(len(sd)), np.diag(sd**2)).named(names)
    kind = DiagonalGaussian if recipe.family == "diagonal" else Gaussian
    if not isinstance(known, kind) or not names_of(known):
        raise StructureError(
            found=f"a prior {known!r} with names {some(list(names_of(known).get('', ())))}",
            expected=f"a {kind.__name__} with a name for each of {some(recipe.stratified.names)}",
            fix="Name its coefficients: posterity.save(prior.named([...]), path).",
        )
    if recipe.own:
        known = in_order(known, {"": recipe.stratified.names}, "the prior", "the table")
        known = recipe.stratified.prior(known)
    return in_order(known, {"": names}, "the prior", "the table")


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


def notes_of_labels(y: np.ndarray, predictor: np.ndarray, alike: str = _FINITE) -> Iterator[str]:
    """Yield a note if labels (n,) of zeros and ones are all equal, which ends with ``alike``, or if
    the signs of the log odds at the posterior mean, ``predictor`` (n,), tell them apart.
    """
    if (y == y[:1]).all():
        yield from [f"the target is {one:g} in every record: {alike}" for one in y[:1]]
    elif (np.where(y > 0, 1.0, -1.0) * predictor > 0).all():
        yield _TOLD_APART


def _notes(
    data: Design,
    recipe: Recipe,
    mean: np.ndarray,
    predictor: np.ndarray,
    sd: np.ndarray,
    prior: Any,
) -> Any:
    """Yield notes on a converged fit: what the prior determines, and what lies far from it."""
    yield from notes_of_prior(data.names, mean, sd, prior)
    y: Any = data.y
    if recipe.model in (*COUNTS, "survival") and not y.any():
        what = "an event" if recipe.model == "survival" else "a count above 0"
        yield f"no record has {what}: {_SILENT}"
    if recipe.model == "ordinal":  # the last row of each record has its level
        step = data.x[:, : len(recipe.baseline)].argmax(1)
        y = (step + y)[(y == 0) | (step == len(recipe.baseline) - 1)]
    if recipe.model in ("multinomial", "ordinal"):
        seen = np.isin(np.arange(len(recipe.levels)), y)
        none = [level for level, one in zip(recipe.levels, seen, strict=True) if not one]
        if none:
            yield f"no record has the level {some(none)}: {_SILENT}"
        elif recipe.model == "multinomial":
            size = len(recipe.inputs())
            odds = data.x[:, :size] @ mean.reshape(-1, size).T
            if (np.insert(odds, 0, 0.0, axis=1).argmax(1) == y).all():
                yield _TOLD_APART
    if recipe.model == "logistic":
        yield from notes_of_labels(y, predictor, _SILENT)
