"""Coefficients of one site from a file of all, which differ around a population or by site."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from posterity.errors import StructureError, UsageError
from posterity.families import Gaussian, Mixture
from posterity.families.names import order, some
from posterity.federation import Run
from posterity.inference.expectation_propagation import Normal
from posterity.inference.federated_effects import (
    TAKEN_AS_IT_IS,
    caveats_of,
    effects_of,
    is_pooled,
    with_random_effects,
)
from posterity.inference.population import (
    BLOCKS,
    Nodes,
    at_spreads,
    grids,
    thinned,
)
from posterity.inference.random_effects import RandomEffects
from posterity.ledger import Ledger
from posterity.models.personal import SPREADS
from posterity.tabular.multicentre import differing
from posterity.tabular.options import COUNTS, INTERCEPT, PRIOR_SD, USUAL_SD
from posterity.tabular.predict import covariance_of, gaussians, log_predictive, predict, spread_in
from posterity.tabular.recipe import Recipe
from posterity.tabular.recipe_model import RecipeModel
from posterity.tabular.regressions import deviations
from posterity.tabular.rows import Design
from posterity.tabular.sites import law_of


def check_columns(run: Run, recipe: Recipe) -> None:
    """Raise a ParameterError if all sites' columns together are linearly dependent under a full
    Gaussian prior. Not of linear models, whose information depends on their noise, too, and
    whose result shows it.
    """
    prior = run.agreement.prior
    law = _coefficients_of(prior)
    at_the_end = recipe.model == "linear" and not is_pooled(prior)
    sites = [own.records for own in run.federation.sites.values() if own.records.size]
    if law is None or not sites or at_the_end:
        return
    size = len(recipe.inputs())  # the columns of one class, which each class repeats
    total = np.array(law.precision)[:size, :size]
    for x, weights in ((own.data[0][:, :size], own.weights) for own in sites):
        total += (x.T * weights) @ x
    deviations(np.zeros(size), total, law.names[:size])


def check_coefficients(run: Run) -> None:
    """Raise a ParameterError if the coefficients' full Gaussian is lost to rounding, or improper
    although all sites were visited.
    """
    waiting = run.state.step < run.round
    law = _coefficients_of(run.posterior)
    if law is not None and not waiting:
        deviations(law.precision_mean, law.precision, law.names)


def _coefficients_of(law: Any) -> Gaussian | None:
    """Return the full Gaussian over a regression's coefficients; None if it is diagonal."""
    law = law.coefficients if is_pooled(law) else law
    return law if law.gaussian and not law.diagonal else None


def spreads_of(personal: Any, recipe: Recipe, names: Sequence[str]) -> Any:
    """Return the argument ``personal`` of :func:`posterity.federate`, with the prior median of the
    spread of coefficients whose prior deviation is a wide default: of an intercept or log hazard,
    and of every coefficient of a linear model.

    It is that of other coefficients with a link, for a linear model in standard deviations of the
    noise: such a prior is wide since the intercept is the predictor where all columns are 0, or
    since the target may have any unit, not since sites differ more in it.
    """
    if isinstance(personal, Mapping) or recipe.prior is not None:
        return personal
    sd = recipe.prior_sd
    others = sd.get("", 1.0)
    chosen = differing(personal, names)
    if recipe.model == "linear":
        noise = spread_in(recipe, None)
        wide = [name for name in chosen if sd.get(name, others) == PRIOR_SD["linear"][""]]
    else:
        noise = 1.0
        ones = (INTERCEPT, *recipe.baseline)
        wide = [name for name in chosen if name in ones and sd.get(name) == USUAL_SD[INTERCEPT]]
    if not (wide and noise):
        return personal
    usual = {name: sd.get(name, others) for name in chosen}
    usual |= dict.fromkeys(wide, USUAL_SD[""] * math.sqrt(noise))
    return {name: SPREADS.typical * own for name, own in usual.items()}


def site_coefficients(
    value: Any, sites: Iterable[str | None]
) -> tuple[dict[str | None, Mixture], list[str]]:
    """Return the law of each site's coefficients, under None that of an unseen site; and notes.

    A site's own coefficients are ``β ~ N(c, D(s))`` with variances ``exp(2 s)``. At each quadrature
    node of the log spreads ``s``, ``c`` is Gaussian and integrated out in closed form, so the law
    is a mixture with one Gaussian per node. The records of a site in the file enter by the Gaussian
    approximation of their likelihood, which the site's factor determines
    (:func:`posterity.inference.population.message_of`).
    """
    known = with_random_effects(value)
    if isinstance(known, Ledger) and isinstance(known.prior, RandomEffects):
        effects = effects_of(known)
        laws = {s: effects.new_site() if s is None else effects.site(s) for s in sites}
        return laws, caveats_of(value)
    posterior = law_of(value)
    names, differ = (getattr(posterior, b).names for b in BLOCKS)
    own = np.array([names.index(name) for name in differ])
    at = thinned(_independent(posterior, len(own)))
    seen = [site for site in sites if site is not None]
    if seen:
        raise StructureError(
            found=f"factors that do not determine the coefficients of site {seen[0]!r}",
            expected="full Gaussians, fitted under the present spreads between sites",
            fix="Pool again with the spreads that you expect (--personal NAME=SD), continue a run "
            "that has not converged, or predict for an unseen site: new=TABLE.",
        )
    unseen = at_spreads(Normal.nothing(len(names)), at, own, names)
    return {None: unseen}, [TAKEN_AS_IT_IS]


def _independent(posterior: Any, count: int) -> Nodes:
    """Return nodes of a posterior in which ``c`` and ``s`` are independent."""
    c = Normal.of(posterior.coefficients)
    s = Normal.of(posterior.log_spread)
    nodes, chances = grids(count)[0]
    places = s.mean + nodes @ np.linalg.cholesky(s.covariance).T
    mean, covariance = (np.stack([own] * len(chances)) for own in (c.mean, c.covariance))
    return Nodes(chances, places, mean, covariance)


def own_coefficients(
    value: Any, recipe: Recipe, sites: Iterable[str | None]
) -> dict[str | None, Any]:
    """Return the law of each site's coefficients, under None that of an unseen site.

    Other sites' own coefficients are left out. An unseen site's own coefficients follow the prior,
    conditional on the shared ones.
    """
    weights, parts, names = gaussians(law_of(value))
    order(names, recipe.coefficients(), "the posterior", "its recipe")
    strata = recipe.stratified
    result = {}
    own = sorted(strata.own)
    size = len(strata.names)
    shared = [place for place in range(size) if place not in strata.own]
    for site in sites:
        alone = recipe.replaced(strata=("" if site is None else site,)).coefficients()
        seen = [place for place in range(size) if alone[place] in names]
        places = [names.index(alone[place]) for place in seen]
        mean = np.zeros((len(parts), size))
        covariance = np.zeros((len(parts), size, size))
        for k, q in enumerate(parts):
            mean[k, seen] = np.asarray(q.mean)[places]
            covariance[(k, *np.ix_(seen, seen))] = covariance_of(q)[np.ix_(places, places)]
        if seen == shared != list(range(size)):
            before, wide = _prior_of_one(value, recipe)
            slope = np.linalg.solve(wide[np.ix_(shared, shared)], wide[np.ix_(shared, own)]).T
            left = wide[np.ix_(own, own)] - slope @ wide[np.ix_(shared, own)]
            mean[:, own] = before[own] + (mean[:, shared] - before[shared]) @ slope.T
            known = covariance[:, shared][:, :, shared]
            covariance[np.ix_(range(len(parts)), own, shared)] = slope @ known
            covariance[np.ix_(range(len(parts)), shared, own)] = known @ slope.T
            covariance[np.ix_(range(len(parts)), own, own)] = left + slope @ known @ slope.T
        components = Gaussian.from_standard(mean, covariance).named(strata.names)
        result[site] = Mixture.from_standard(weights, components)
    return result


def _prior_of_one(value: Any, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """Return prior mean and covariance of the coefficients of one site."""
    if recipe.prior is None:
        deviations = np.array(recipe.shared.deviations())
        return np.zeros(len(deviations)), np.diag(deviations**2)
    found = "records of a site without coefficients in the posterior, and no prior"
    known = "a ledger, whose prior includes them"
    StructureError.check((not isinstance(value, Ledger), found, known))
    _, (prior,), names = gaussians(value.prior)
    one = recipe.replaced(strata=recipe.strata[:1]).coefficients()
    places = [names.index(name) for name in one]
    return np.asarray(prior.mean)[places], covariance_of(prior)[np.ix_(places, places)]


def known_sites(value: Any, recipe: Recipe) -> set[str]:
    """Return the sites of which a file has coefficients."""
    return set(value.sites if isinstance(value, Ledger) else recipe.strata)


def by_site(
    value: Any, recipe: Recipe, data: Design, labels: np.ndarray | None
) -> tuple[list[tuple[Any, np.ndarray]], list[str]]:
    """Return laws of coefficients, each with the rows of the records that it predicts; and notes.

    ``labels`` are the site of each record (n,); by default all are of an unseen site.
    """
    known = known_sites(value, recipe)
    rows = np.full(len(data.x), "") if labels is None else labels
    places: dict[str | None, list[int]] = {}
    for place, label in enumerate(rows.tolist()):
        places.setdefault(label if label in known else None, []).append(place)
    places = places or {None: []}
    if recipe.own:
        laws = own_coefficients(value, recipe, places)
        notes = []
    else:
        laws, notes = site_coefficients(value, places)
    unseen = places.get(None)
    if unseen:
        which = sorted({label for label in rows[unseen].tolist() if label})
        named = f" ({some(which)})" if which else ""
        tail = "; --site-column NAME names the column of their sites, SITE=TABLE the site of all"
        tail = "" if labels is not None else tail
        prior = f", with the prior of {some(recipe.own)}" if recipe.own else ""
        which = f"for an unseen site{named}{prior}{tail}"
        notes.append(f"{len(unseen)} records are predicted {which}")
    return [(laws[site], np.array(own, dtype=int)) for site, own in places.items()], notes


def predictions(
    value: Any,
    recipe: Recipe,
    data: Design,
    labels: np.ndarray | None = None,
    *,
    spread: float | None = None,
    scored: bool = False,
    level: float = 0.9,
    times: Sequence[float] = (),
) -> tuple[dict[str, np.ndarray], np.ndarray | None, list[str]]:
    """Return predictions by name, the log predictive of each target if ``scored``, and notes.

    ``labels`` are the site of each record (n,), if sites have their own coefficients; ``spread`` is
    the noise variance or dispersion, by default the recipe's. If it is unknown, there is no log
    predictive.
    """
    posterior = law_of(value)
    pooled = is_pooled(posterior)
    notes = []
    laws: list[tuple[Any, np.ndarray]] = [(posterior, np.arange(len(data.x)))]
    if pooled or recipe.own:
        laws, notes = by_site(value, recipe, data, labels)
    recipe = recipe.shared
    of = [(law, data.part(rows)) for law, rows in laws]
    order = np.argsort(np.concatenate([rows for _, rows in laws]))
    options: Any = {"noise_variance": spread, "level": level, "times": times, "median": pooled}
    made = [predict(law, recipe, own, **options) for law, own in of]
    parts = {name: np.concatenate([one[name] for one in made])[order] for name in made[0]}
    if scored and recipe.spread and spread_in(recipe, spread) is None:
        notes.append(f"no log score: the {recipe.spread.replace('_', ' ')} is not known")
    elif scored:
        scores = [log_predictive(law, recipe, own, spread) for law, own in of]
        return parts, np.concatenate(scores)[order], notes
    return parts, None, notes


def teacher_of(
    value: Any, recipe: Recipe, spread: float | None = None
) -> tuple[Any, RecipeModel, list[str]]:
    """Return a student's teacher: the law of the coefficients, their predictive model, and notes.

    If sites' coefficients differ, it is that of an unseen site. ``spread`` is as in
    :func:`predictions`, by default the recipe's.

    Raises:
        UsageError: for a site's own coefficients, infinite expectations, and what
            :class:`~posterity.tabular.recipe_model.RecipeModel` refuses.
        StructureError: for laws other than Gaussians over the recipe's coefficients.
    """
    posterior = law_of(value)
    notes = list[str]()
    pooled = is_pooled(posterior)
    if recipe.own or (pooled and recipe.model in (*COUNTS, "gamma")):
        why = "known only by the prior" if recipe.own else "whose expectations are infinite"
        raise UsageError(
            found=f"a student for unseen sites, {why}",
            expected="a posterior that predicts at every site",
            fix="Predict from the file directly: posterity predict FILE TABLE --site-column NAME.",
        )
    if pooled:
        laws, notes = site_coefficients(value, [None])
        posterior = laws[None]
        notes = [*notes, "the student predicts as of a site unseen"]
    names = gaussians(posterior)[2] or recipe.coefficients()
    return posterior, RecipeModel(recipe.shared, names, spread_in(recipe, spread)), notes
