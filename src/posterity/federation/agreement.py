"""The agreement of the sites of a federation, made before the first of them does anything."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from posterity.arguments import POSITIVE, Constraint, one_of
from posterity.artifact.strata import Strata
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.federation.tables import columns_of
from posterity.fingerprint import digest
from posterity.inference.update import LocalUpdate
from posterity.ledger import Ledger
from posterity.models import FunctionModel, Model, MultinomialRegression, PredictorModel, Records

ON_ERROR = one_of("raise", "pass")
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
    """The agreement that all sites know: prior, model and local rule, and how a site makes its
    numbers.

    What a site computes depends on this, its own records and the messages that reach it, and on
    nothing else: not on which other sites there are. Made by :meth:`of`, in any process alike.
    """

    model: Model
    prior: ExponentialFamily
    update: LocalUpdate
    """The local rule, every default filled in."""
    sites: tuple[str, ...] = ()
    """Names of the members, sorted."""
    silent: frozenset[str] = frozenset()
    """Members without records, which take part but contribute nothing."""
    on_error: Literal["raise", "pass"] = "raise"
    padding: bool = True
    """Whether a site pads its records to one of few sizes, so that few programs are compiled."""
    total_weight: float | None = None
    """Of the records of all sites together: of this a site that trains apart takes its share."""
    strata: Strata | None = None
    """Coefficients of which each site has some for itself, where there are any."""

    @classmethod
    def of(
        cls,
        model: Model | Callable[[Any, Any], Any],
        prior: ExponentialFamily,
        update: LocalUpdate | None = None,
        *,
        personal: bool | Sequence[int | str] | Mapping[Any, float] = False,
        own: Sequence[int | str] = (),
        sites: Sequence[str] = (),
        padding: bool = True,
        total_weight: float | None = None,
        on_error: Literal["raise", "pass"] = "raise",
    ) -> "Agreement":
        """The agreement with every default filled in; arguments as of :func:`federate`.

        Raises:
            ParameterError, StructureError: if the prior is no law of an exponential family.
            UsageError: if the model has no posterior in the prior's family, or the update does not
                fit it, or one that trains apart comes without the total weight; if arguments
                exclude each other.

        >>> from posterity.families import Beta
        >>> from posterity.models import BetaBernoulli
        >>> agreement = Agreement.of(BetaBernoulli(), Beta.from_standard(1.0, 1.0))
        >>> agreement.update.steps, len(agreement.digest)
        (1, 64)
        """
        ON_ERROR.check(on_error=on_error)
        MODEL.check(model=model)
        model, strata = model if isinstance(model, Model) else FunctionModel(model), None
        if own and personal is not False:
            raise UsageError(
                found="personal= and own=", expected="one of them", fix="Leave one of them out."
            )
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
        names = tuple(sorted(sites))
        return cls(
            model, prior, update, names, frozenset(), on_error, padding, total_weight, strata
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of each site's records, if the prior has any."""
        if (strata := self.strata) is None:
            return columns_of(self.prior)
        return strata.names if strata.named else ()

    def stratified(self, site: str, records: Records) -> Records:
        """A site's records, in columns of its own where it has coefficients for itself."""
        if self.strata is None or not isinstance(records.data, tuple | list):
            return records  # of which the model says what is missing
        x, *y = records.data
        return Records((self.strata.inputs(x, site), *y), records.weights)

    @functools.cached_property
    def members(self) -> dict[str, None]:
        """The names of the members, looked up at once."""
        return dict.fromkeys(self.sites)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of what a site's numbers depend on; equal in every process that agrees.
        Membership is no part of it: sites may join and leave. A UsageError if a function cannot be
        told from a changed one (:func:`posterity.fingerprint.versioned`).
        """
        terms = self.model, self.prior, self.update, self.padding, self.total_weight
        if (strata := self.strata) is None:
            return digest(terms)
        return digest((*terms, strata.names, sorted(strata.own), strata.sites))

    @functools.cached_property
    def line_search(self) -> LocalUpdate | None:
        """The local rule as a line search without noise, itself where it is exact or one. None
        where there is none, or where it is not made of natural gradients.
        """
        update = self.update
        if update.conjugate or update.pools:
            return update
        return None if update.trains else update.line_search(self.model, self.prior)

    def admits(self, posterior: ExponentialFamily) -> bool:
        """Return whether the law is a distribution under which the model has expectations; of a
        batch, all.
        """
        return bool(np.all(posterior.is_proper()) and np.all(self.model.admits(posterior)))
