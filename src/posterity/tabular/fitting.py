"""Fit of a recipe to a table of records, as the ledger of one site."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posterity.arrays.linear_algebra import one_thread
from posterity.errors import StructureError, UsageError
from posterity.families import DiagonalGaussian, ExponentialFamily, Gaussian
from posterity.families.names import in_order, names_of, some
from posterity.inference.descent import watched
from posterity.ledger import Ledger
from posterity.models.sandwich import sandwiched, slopes_of_groups
from posterity.runtime.text import typed
from posterity.status import ProgressCallback
from posterity.tabular.cautions import (
    cautions,
    notes_of_clusters,
    notes_of_few_clusters,
    notes_of_prior,
)
from posterity.tabular.design import design
from posterity.tabular.identifiers import NAMED, no_covariates
from posterity.tabular.one_shot import third_of
from posterity.tabular.options import ESTIMATE
from posterity.tabular.reading import ALONE, PLAIN, Reading, columns_of, with_absent
from posterity.tabular.recipe import Recipe, check_recipe
from posterity.tabular.regressions import (
    AS_POISSON,
    LEAST,
    check_converged,
    check_levels,
    data_of,
    deviations,
    dispersion_of,
    fitted,
    model_of,
    residuals_of,
    triangle_of,
)
from posterity.tabular.rows import Design
from posterity.tabular.sites import NOTES, as_provenance, listed
from posterity.tabular.tables.reader import Cells, read_cells
from posterity.version import __version__

CODES = "--missing is not kept in the file: pass it to predict and evaluate, too"
"""Note on codes of missing values, which differ between tables."""
_VERSIONS = f"posterity {__version__}, numpy {np.__version__}"


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
        cautions: those of the notes that the file keeps, and every verb repeats.
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
    cautions: tuple[str, ...] = ()

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
        if self.rounded > 1:
            known["rounded"] = self.rounded
        if self.dropped:
            known["dropped"] = count(self.dropped)
        if self.spread is not None:
            known[self.recipe.spread or ""] = self.spread
        if self.spare is not None:
            known["spare"] = count(self.spare)
        names = self.ledger.posterior.names
        if self.third is not None:
            known["third"] = listed(self.third, names)
        if self.cautions:
            known[NOTES] = [*self.cautions]
        return as_provenance(self.recipe, {self.ledger.sites[0]: known})


def fit(
    path: Path | str,
    recipe: Recipe,
    site: str | None = None,
    *,
    prior: ExponentialFamily | None = None,
    reading: Reading = PLAIN,
    progress: ProgressCallback | None = None,
    rows: Sequence[bool] | None = None,
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
        rows: for each record of the table, whether it is used; by default all are.

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
    cells, notes = records_of(path, reading, recipe)
    if rows is not None:
        cells = cells.at(np.flatnonzero(rows))
    site = path.stem if site is None else site
    data, recipe = prepared(cells, recipe, reading, site, identifiers_of(recipe, [cells]))
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
    columns = "; ".join(str(list(own.recipe.columns or ())) for own in fits)
    alike = len({own.recipe.canonical() for own in fits}) == 1
    full = all(q.gaussian and not q.diagonal for q in posteriors)
    whole = full and all(np.array_equal(own.kept, first.kept) for own in fits)
    numbers = ", ".join(str(own.records) for own in fits)
    found = f"tables of {numbers} records, or a posterior {posteriors[0]!r}"
    same = "the same columns in each imputed table (--columns A,B)"
    each = "the same records in each imputed table, and a full Gaussian"
    UsageError.check(
        (not alike, f"tables of columns {columns}", same),
        (not whole, found, each),
    )
    names = posteriors[0].names
    posteriors = [in_order(q, {"": names}, "a table", "the first") for q in posteriors]
    means = np.stack([q.mean for q in posteriors])
    away = means - means.mean(0)
    between = away.T @ away / max(count - 1, 1)
    within = np.mean([q.covariance for q in posteriors], axis=0)
    pooled = Gaussian.from_standard(means.mean(0), within + (1 + 1 / count) * between)
    prior, (site,) = first.ledger.prior, first.ledger.sites
    ledger = Ledger.of_site(site, prior=prior, posterior=pooled.named(names))
    share = np.diagonal((1 + 1 / count) * between) / np.diagonal(pooled.covariance)
    worst = np.argmax(share)
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
        cautions=tuple(dict.fromkeys(line for own in fits for line in own.cautions)),
        third=None,
        spare=None,
    )


def records_of(path: Path, reading: Reading, recipe: Recipe) -> tuple[Cells, list[str]]:
    """Return a table under the recipe's names, without an unnamed index in front, and notes."""
    cells = read_cells(path, unnamed=True)
    notes = []
    if len(cells.header) > 1 and not cells.header[0]:
        cells = cells._replace(header=cells.header[1:], rows=[row[1:] for row in cells.rows])
        notes = ["the first column has no name, and is left out as an index"]
    cells = reading.renamed(cells)
    odd = [name for name in recipe.without if name not in cells.header]
    notes += [f"no column {name!r}, which --without leaves out" for name in odd]
    cells, absent = with_absent(cells, recipe)
    return cells, [*notes, *absent]


def prepared(
    cells: Cells,
    recipe: Recipe,
    reading: Reading,
    site: str,
    identifiers: tuple[Sequence[str], Sequence[str]],
    *,
    empty: bool = False,
) -> tuple[Design, Recipe]:
    """Return the design of a site's table, and its recipe with all options.

    ``identifiers`` are columns to leave out and notes on them, as of :func:`identifiers_of`; with
    ``empty`` the table may have no record.
    """
    odd, left = identifiers
    without = (*recipe.without, *(name for name in odd if name in cells.header))
    own = recipe.replaced(without=without, strata=(site,) if recipe.own else ())
    own = own.filled(columns_of(own, cells.header, cells.path))
    data = design(cells, own, reading, empty=empty)
    named = [name for name in recipe.columns or () if not NAMED.fullmatch(name)]
    suspects = {name: one for name, one in data.suspects.items() if name not in named}
    notes = (*data.notes, *[CODES] * bool(reading.missing))
    return data._replace(notes=notes, cautions=(*left, *data.cautions), suspects=suspects), own


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
            spare = None if recipe.robust else left.spare
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
    check_levels(recipe, [data])
    run = fitted(recipe, spread, site, data, prior, progress)
    factor: Any = run.state.factor(site)
    model = model_of(recipe, spread)
    pair = data_of(recipe, data)
    plain = prior + factor  # whose doubts are those of records that are independent
    if recipe.robust:
        slopes = slopes_of_groups(model, plain.mean, pair, data.groups)
        factor = sandwiched({site: factor}, slopes)[site]
    ledger = Ledger(prior).update(site, factor, independent=True)
    posterior: Any = ledger.posterior
    if recipe.family == "diagonal":
        sd = np.sqrt(posterior.variance)
    else:
        sd = deviations(posterior.precision_mean, posterior.precision, data.names)
    check_converged(run, recipe, data)
    estimated = ESTIMATE in (recipe.noise_variance, recipe.dispersion)
    third = None if estimated else third_of(model, pair, plain)
    told = [*data.cautions, *cautions(recipe, data.names, pair, plain, third)]
    told += notes_of_few_clusters(recipe, [data])
    told += notes_of_clusters(recipe, data.names, model, pair, posterior, data)
    third = None if recipe.robust else third
    widest = np.maximum(sd, np.sqrt(plain.marginal_variance))
    notes = (*data.notes, *told, *notes_of_prior(data.names, posterior.mean, widest, prior))
    used = data.records, data.dropped, run.state.step
    return Fit(ledger, recipe, *used, spread, notes, data.kept, third, spare, cautions=(*told,))


def identifiers_of(
    recipe: Recipe, tables: Sequence[Cells]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return columns of any table that identify records or are dates, and a note on them; none if
    the recipe names its columns, or has an option about such a column.
    """
    if recipe.columns is not None:
        return (), ()
    named = {*recipe.categories, *recipe.center, *recipe.scale, *recipe.unit, *recipe.without}
    named |= {*recipe.own, *recipe.prior_sd, *(getattr(recipe, role) for role in ALONE)}
    odd = {}
    doubtful = {}
    for cells in tables:
        asked = [name for name in cells.header if name and name not in named]
        for name, why, known in no_covariates(cells, asked):
            (odd if known else doubtful)[name] = why
    notes = []
    if odd:
        told = "; ".join(f"{name!r} ({why})" for name, why in odd.items())
        notes = [f"left out, as no covariates: {told}; --columns names the columns to use"]
    notes += [
        f"used as a covariate: {name!r} ({why}); if it identifies records, pass "
        f"{typed('--without', name)}"
        for name, why in doubtful.items()
        if name not in odd
    ]
    return (*odd,), (*notes,)


def prior_of(names: tuple[str, ...], recipe: Recipe, known: Any) -> Any:
    """Return the coefficients' prior: independent with mean 0, or ``known`` in their order."""
    if known is None:
        known_names = {"", *names, *recipe.shared.coefficients()}
        unknown = [name for name in recipe.prior_sd if name not in known_names]
        UsageError.check(
            (unknown, f"--prior-sd for {unknown}", f"coefficients among {some(names)}")
        )
        sd = np.array(recipe.deviations())
        if recipe.family == "diagonal":
            return DiagonalGaussian.from_standard(np.zeros(len(sd)), sd**2).named(names)
        return Gaussian.from_standard(np.zeros(len(sd)), np.diag(sd**2)).named(names)
    kind = DiagonalGaussian if recipe.family == "diagonal" else Gaussian
    if not isinstance(known, kind) or not names_of(known):
        raise StructureError(
            found=f"a prior {known!r} with names {some(names_of(known).get('', ()))}",
            expected=f"a {kind.__name__} with a name for each of {some(recipe.stratified.names)}",
            fix="Name its coefficients: posterity.save(prior.named([...]), path).",
        )
    if recipe.own:
        known = in_order(known, {"": recipe.stratified.names}, "the prior", "the table")
        known = recipe.stratified.prior(known)
    return in_order(known, {"": names}, "the prior", "the table")
