"""The agreement of the sites of a federation, made before its first step."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from posterity.arguments import NATURAL, POSITIVE, Constraint, one_of
from posterity.errors import SiteError, UsageError
from posterity.families import ExponentialFamily
from posterity.inference.update import LocalUpdate
from posterity.ledger import Ledger
from posterity.models import FunctionModel, Model, MultinomialRegression, PredictorModel, Records
from posterity.models.strata import Strata
from posterity.models.tables import columns_of
from posterity.runtime.fingerprint import digest

AnyModel = Model | Callable[[Any, Any], Any]
"""A model, or a function of a parameter and a batch."""
Columns = Sequence[int | str]
"""Columns of a regression, by number or name."""
Personal = bool | Columns | Mapping[Any, float]
"""Which columns vary between sites: all, some, or by what spread."""
OnError = Literal["raise", "pass"]
"""What becomes of a site that fails."""
ON_ERROR = one_of("raise", "pass")
RESTARTS = 2
"""Second starts by default: one near the posterior, which several optima may be covered by, and one
far from it."""
RESTART_BUDGET = 1.0
"""A check is to cost no more than what it checks."""
MODEL = Constraint(
    "a model of posterity.models, or a function of a parameter and a batch",
    lambda it: isinstance(it, Model) or callable(it),
)
WITH_OWN = Constraint(
    "a regression: a PredictorModel, such as LogisticRegression, or a MultinomialRegression",
    lambda it: isinstance(it, PredictorModel | MultinomialRegression),
)


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The common settings of all sites: prior, model, local update and numerical options.

    A site's results depend only on the agreement, its own records and the messages that it
    receives, and not on the set of other sites. :meth:`of` makes equal agreements in every process.
    """

    model: Model
    prior: ExponentialFamily
    update: LocalUpdate
    """The local update, with every default set."""
    sites: tuple[str, ...] = ()
    """Names of the members, sorted."""
    silent: frozenset[str] = frozenset()
    """Members without records, which take part but contribute nothing."""
    on_error: OnError = "raise"
    padding: bool = True
    """True if sites pad their records to one of few sizes, to limit the number of compilations."""
    total_weight: float | None = None
    """Weight of the records of all sites, relative to which sites that train separately count."""
    strata: Strata | None = None
    """Coefficients that each site has separately, if any."""
    restarts: int = RESTARTS
    """Number of starts from members placed over the prior before a run counts as converged, beside
    one from the posterior's mirror image; without effect where optima need not be compared."""
    restart_budget: float = RESTART_BUDGET
    """Most evaluations by them, as a multiple of those that the run itself took."""

    @classmethod
    def of(
        cls,
        model: AnyModel,
        prior: ExponentialFamily,
        update: LocalUpdate | None = None,
        *,
        personal: Personal = False,
        own: Columns = (),
        sites: Sequence[str] = (),
        padding: bool = True,
        total_weight: float | None = None,
        on_error: OnError = "raise",
        restarts: int | None = None,
        restart_budget: float = RESTART_BUDGET,
    ) -> "Agreement":
        """Make an agreement with every default set; arguments as for :func:`federate`.

        Raises:
            ParameterError, StructureError: if the prior is not a member of an exponential family.
            UsageError: if the model does not support the prior's family, the update does not
                support the model, an update that trains separately has no total weight, or
                arguments exclude each other.

        >>> from posterity.families import Beta
        >>> from posterity.models import BetaBernoulli
        >>> agreement = Agreement.of(BetaBernoulli(), Beta.from_standard(1.0, 1.0))
        >>> agreement.update.steps, len(agreement.digest)
        (1, 64)
        """
        ON_ERROR.check(on_error=on_error)
        NATURAL.or_none().check(restarts=restarts)
        POSITIVE.check(restart_budget=restart_budget)
        MODEL.check(model=model)
        model = model if isinstance(model, Model) else FunctionModel(model)
        strata = None
        if own and personal is not False:
            raise UsageError(found="personal= and own=", expected="one of them")
        if own:
            WITH_OWN.check(model=model)
            classes = model.classes if isinstance(model, MultinomialRegression) else None
            strata = Strata.of(prior, own, sites, classes)
            prior = strata.prior(prior)
        if personal is not False:
            from posterity.models import hierarchical

            model, prior = hierarchical(model, prior, personal)
        prior = Ledger(prior).prior  # checked, and at rest
        if update is None and model.joint:
            from posterity.inference.pooling import PartialPooling

            update = PartialPooling() if PartialPooling.serves(model, prior) else None
        update = (update or LocalUpdate()).resolve(model, prior)
        weighed = POSITIVE if update.trains else POSITIVE.or_none()
        weighed.check(total_weight=total_weight)
        if restarts is None:  # an optimum that is known to be one, or one of several, needs none
            restarts = RESTARTS if model.known_optima == "unknown" else 0
        names = tuple(sorted(sites))
        return cls(
            model,
            prior,
            update,
            names,
            on_error=on_error,
            padding=padding,
            total_weight=total_weight,
            strata=strata,
            restarts=restarts,
            restart_budget=restart_budget,
        )

    @property
    def skipped(self) -> tuple[type[SiteError], ...]:
        """The errors after which a run goes on without a site: none if they are to be raised."""
        return () if self.on_error == "raise" else (SiteError,)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of each site's records; empty if the prior has no names."""
        strata = self.strata
        if strata is None:
            return columns_of(self.prior)
        return strata.names if strata.named else ()

    def stratified(self, site: str, records: Records) -> Records:
        """Return a site's records, with separate columns for its own coefficients if any."""
        if self.strata is None or not isinstance(records.data, tuple | list):
            return records  # the model raises if parts are missing
        x, *y = records.data
        return Records((self.strata.inputs(x, site), *y), records.weights)

    @functools.cached_property
    def members(self) -> dict[str, None]:
        """The names of the members as keys, for fast lookup."""
        return dict.fromkeys(self.sites)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the settings on which a site's results depend, equal in every process. The
        members are left out, since sites may join and leave. Functions enter by name and version
        (:func:`posterity.versioned`).
        """
        terms = self.model, self.prior, self.update, self.padding, self.total_weight
        strata = self.strata
        if strata is None:
            return digest(terms)
        return digest((*terms, strata.names, sorted(strata.own), strata.sites))

    @functools.cached_property
    def line_search(self) -> LocalUpdate | None:
        """The noiseless line search with the same optimum as the local update, which is the update
        itself if that is exact or pools. None if there is none, or if the update trains separately.
        """
        update = self.update
        if update.conjugate or update.pools:
            return update
        return None if update.trains else update.line_search(self.model, self.prior)

    def admits(self, posterior: ExponentialFamily) -> bool:
        """Return whether the posterior is proper with finite expectations of the model; for a
        batch, whether all members are.
        """
        return bool(np.all(posterior.is_proper()) and np.all(self.model.admits(posterior)))
