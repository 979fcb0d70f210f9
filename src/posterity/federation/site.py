"""A site: its own records, the shared agreement, and its answers to a federation's questions.

An answer depends only on the site and the question, in any process. A site has no state: questions
contain its factor and the number of steps that it has taken.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from posterity.arrays.keys import Words, of_jax
from posterity.arrays.linear_algebra import one_thread
from posterity.arrays.typing import KeyArray
from posterity.errors import PosterityError, SiteError, within
from posterity.families import ExponentialFamily, at_rest
from posterity.families.checks import check_finite, check_same_structure
from posterity.federation import computed
from posterity.federation.agreement import Agreement
from posterity.federation.elsewhere import looked_at, values_elsewhere
from posterity.federation.factors import canonical
from posterity.federation.fitting import check_fit
from posterity.federation.messages import (
    Answer,
    DescribeOwn,
    Improve,
    Improvement,
    Measure,
    OwnParameters,
    Part,
    Question,
    Report,
)
from posterity.inference.descent import not_finite
from posterity.inference.estimators import Evaluator
from posterity.inference.joint import is_gaussian
from posterity.inference.update import LocalUpdate, TrainedApart, exact_factor
from posterity.models import Model, PredictorModel, Records
from posterity.runtime.lazy import eqx, jax, jnp
from posterity.runtime.programs import release_programs


@dataclasses.dataclass(frozen=True)
class Enough:
    """When sums over nodes are exact enough, so that no more nodes are used."""

    error: float = 5e-5
    """Displacement of a posterior by quadrature error, in nats."""
    of_move: float = 1e-2
    """The same as a share of the change by the visit. ``federate`` without ``steps`` makes further
    visits, with more nodes, unless the displacement is within the tolerance."""
    near: float = 0.1
    """Largest displacement for which the result is the starting point with more nodes, and largest
    rest of a line search, in nats, after which more nodes are used."""
    most: float = 1e6
    """Largest reported error, in nats, of tails beyond the nodes and of messages in partial
    pooling, which have no bound; engines refuse huge numbers."""


NODES = Enough()


@dataclasses.dataclass(frozen=True)
class Site:
    """One site of a federation: its name, the agreement, and its records."""

    name: str
    agreement: Agreement
    records: Records

    def __reduce__(self) -> Any:
        return type(self), (self.name, self.agreement, self.records)  # without device arrays

    @classmethod
    def of(cls, agreement: Agreement, name: str, data: Any, weight: float = 1.0) -> "Site":
        """Make a site from its data: arrays, or a data frame with columns of the prior's names.

        ``weight`` multiplies the loss of each of its records.

        Raises:
            StructureError, ParameterError: if the data are impossible under the model, do not match
                the prior, or are a data frame with other columns.

        >>> from posterity.families import Beta
        >>> from posterity.models import BetaBernoulli
        >>> agreement = Agreement.of(BetaBernoulli(), Beta.from_standard(1.0, 1.0))
        >>> Site.of(agreement, "north", np.array([1, 1, 0])).records.size
        3
        """
        with within(f"the data of site {name!r}"):
            records = Records.of(data, weight, agreement.columns)
            records = agreement.stratified(name, records)
            if records.size:
                agreement.model.check(records.data)
        check_fit(agreement, {name: records})
        return cls(name, agreement, records)

    @property
    def model(self) -> Model:
        """The model of the federation."""
        return self.agreement.model

    @property
    def update(self) -> LocalUpdate:
        """The local update of the federation."""
        return self.agreement.update

    @property
    def share(self) -> float:
        """The site's share of the weight of all records if sites train separately, else one."""
        if not self.update.trains:
            return 1.0
        return float(self.records.weights.sum()) / self.agreement.total_weight  # pyright: ignore

    @functools.cached_property
    def exact(self) -> ExponentialFamily:
        """The factor of a conjugate model, at rest, which no question changes. Raises
        StructureError or ParameterError if the model's result is not a factor, or not finite.
        """
        found = exact_factor(self.update, self.model, self.records)
        check_same_structure(self.agreement.prior, found, "what the model found")
        check_finite(found, "what the model found")
        return canonical(found)

    def answer(self, question: Question) -> Answer:
        """Return the answer to a question. Pure; errors are those of the model and the data."""
        match question:
            case Improve(_, view, factor, count, key):
                answer = self.improve(view, factor, count, key=key)
            case Measure(_, posterior, factor, parts, samples, key):
                answer = self.report(posterior, factor, parts, samples=samples, key=key)
            case DescribeOwn(_, posterior):
                from posterity.federation.personal import own_laws

                laws = own_laws(self.model, posterior, self.records)
                answer = OwnParameters(self.name, np.asarray(laws.mean), np.asarray(laws.scale))
            case _:
                raise TypeError(f"no question: {question!r}")
        return dataclasses.replace(answer, **question.about)

    def improve(
        self, view: ExponentialFamily, factor: ExponentialFamily, count: int = 0, *, key: KeyArray
    ) -> Improvement:
        """Return an improvement of ``factor``, which is part of the posterior ``view``. ``count``
        is the number of local steps that the site has taken. Raises StructureError or
        ParameterError if the model's result is not a factor, or not finite.
        """
        if isinstance(self.update, TrainedApart):
            key = of_jax(key)
            trained = self.update.trained(self.model, view, self.records, key=key)
            return Improvement(self.name, canonical(factor + (trained - view) * self.share))
        update = self.update
        if update.conjugate:
            exact = self.exact
            same = exact is not factor and exact == factor
            return Improvement(self.name, factor if same else exact)
        if update.pools:
            pooling: Any = update
            factor, pooled = pooling.improved(self.model, view, factor, self.records, count)
            return Improvement(self.name, canonical(factor), 0, *pooled[:2])
        records = self._records(update)
        taken = np.asarray(count)
        start: Any = view
        evaluations = 0
        new: Any = factor
        info: Any = None
        error = math.inf
        for finer, work in update.refinements():
            new, info = self._run(computed.improve, finer, view, records, factor, taken, key)
            if not info.finite:
                raise not_finite()
            evaluations += work * int(info.evaluations)
            error = float(info.quadrature_error)
            # More nodes help no search that ended at a wall, where values are not finite.
            stuck = float(info.residual) ** 2 / 2 > NODES.near
            if stuck or error <= NODES.error:
                break
            new = at_rest(new)
            after = view + (new - factor)
            if error <= NODES.of_move * float(after.kl(start)):
                break
            if error <= NODES.near:  # continue from the result of fewer nodes
                view = after
                factor = new
        error = error + min(float(info.tail), NODES.most)
        about = int(info.halvings), float(info.residual), error, evaluations
        return Improvement(self.name, canonical(new), *about)

    def report(
        self,
        posterior: ExponentialFamily,
        factor: ExponentialFamily,
        parts: Sequence[Part] = ("gradient",),
        *,
        samples: int = 64,
        key: KeyArray,
    ) -> Report:
        """Return a :class:`Report` on a posterior that includes the site's ``factor``. Errors are
        those of ``improve``.
        """
        known: dict[str, Any] = {}
        errors = [0.0]
        searched = self._evaluator
        if "curvature" in parts:
            found, error = self._curvature(posterior, factor)
            known |= found
            errors.append(error)
        if "noiseless" in parts or "gradient" in parts:
            if searched is not None and ("noiseless" in parts or not self.update.noisy):
                found, error = self._noiseless(searched, posterior, factor)
            else:
                found, error = self._gradient(posterior, factor, samples, key)
            known |= found
            errors.append(error)
        if "rough" in parts:
            known |= self._rough(posterior)
        if "elsewhere" in parts:
            values = [self._value(member) for member in looked_at(self.agreement, posterior)]
            known |= {"elsewhere": values_elsewhere(values)}
        return Report(self.name, quadrature_error=max(errors), **known)

    def _gradient(
        self, posterior: Any, factor: Any, samples: int, key: KeyArray
    ) -> tuple[dict[str, Any], float]:
        """Return the natural gradient by the update, the variance of its noise, and the error."""
        update = self.update
        variance: Any = 0.0
        error = 0.0
        if update.conjugate:
            direction = self.exact - factor
        elif update.pools:
            pooling: Any = update
            target, pooled = pooling.target(self.model, posterior, factor, self.records)
            # If errors of messages have the same sign at all sites, their lengths add up.
            error = min(len(self.agreement.sites) * pooled.message_error, NODES.most)
            direction = target - factor
            error = pooled.quadrature_error + error
        elif update.trains:  # training is too slow for several samples
            direction = self.improve(posterior, factor, key=key).factor - factor
        else:
            given = posterior, self._records(update), factor, samples, key
            direction, variance = self._run(computed.gradient, update, *given)
        direction = canonical(direction)
        if not _finite(direction.natural_parameters, variance, error):
            return {"direction": None}, 0.0
        return {"direction": direction, "variance": float(variance)}, float(error)

    def _noiseless(
        self, update: LocalUpdate, posterior: Any, factor: Any
    ) -> tuple[dict[str, Any], float]:
        """Return value and natural gradient by a line search, and the error."""
        seen, looks = self._seen(update, posterior, "quadrature_error")
        direction = canonical(seen.gradient - factor)
        numbers = seen.value, seen.quadrature_error, direction.natural_parameters
        if not (seen.finite and _finite(*numbers)):
            return {"direction": None}, 0.0
        known = {"direction": direction, "value": float(seen.value), "evaluations": looks}
        return known, float(seen.quadrature_error) + min(float(seen.tail), NODES.most)

    @property
    def _evaluator(self) -> LocalUpdate | None:
        """The line search, or None if expectations of the log likelihood cannot be computed."""
        update = self.agreement.line_search
        return update if update is not None and isinstance(update.estimator, Evaluator) else None

    def _value(self, posterior: ExponentialFamily) -> float | None:
        """Return ``E_q[log likelihood]/α`` by nodes enough, or None if it is not available."""
        update = self._evaluator
        if update is None:
            return None
        seen, _ = self._seen(update, posterior, "value_error")
        return float(seen.value) if seen.finite and np.isfinite(seen.value) else None

    def _rough(self, posterior: ExponentialFamily) -> dict[str, Any]:
        """Return the log likelihood / α at the mean of Gaussians, with its slope if that is known;
        of other families the expectation.
        """
        update = self._evaluator
        if update is None or not is_gaussian(posterior):
            return {"value": self._value(posterior)}
        value, slope = self._run(computed.at_mean, update, posterior, self._records(update))
        if not np.isfinite(value):
            return {}
        finite = slope is not None and np.isfinite(slope).all()
        return {"value": float(value), "slope": np.asarray(slope) if finite else None}

    def _seen(self, update: LocalUpdate, posterior: Any, error: str) -> tuple[Any, int]:
        """Return the evaluation of a posterior by the program of line searches, as another one
        would take long to compile, with nodes enough for this error; and the evaluations.
        """

        def off(found: Any) -> Any:
            seen = found[1]
            return getattr(seen, error) if seen.finite else 0.0  # more nodes do not mend it

        others = posterior, np.asarray(-1), None
        (_, seen), looks = self._by_enough_nodes(
            computed.improve, update, posterior, *others, error=off
        )
        return seen, looks

    def _curvature(self, posterior: Any, factor: Any) -> tuple[dict[str, Any], float]:
        """Return the report's curvature parts, with enough nodes, and the remaining error."""
        update = self._evaluator
        if update is None:
            return {}, 0.0
        (value, slope, bend, fixed, error), looks = self._by_enough_nodes(
            computed.curvature, update, posterior, error=itemgetter(-1)
        )
        fixed = at_rest(fixed)
        if not _finite(value, fixed.natural_parameters, slope, bend, error):
            return {}, 0.0
        known = {"value": float(value), "fixed_point": fixed, "slope": slope, "curvature": bend}
        return {**known, "direction": fixed - factor, "evaluations": looks}, float(error)

    def _by_enough_nodes(
        self, function: Any, update: Any, posterior: Any, *others: Any, error: Callable[[Any], Any]
    ) -> tuple[Any, int]:
        """Return the result of a function with nodes enough for the ``error`` of the result, and
        the number of evaluations, two each time.
        """
        records = self._records(update)
        looks = 0
        found: Any = None
        for finer, work in update.refinements():
            found = self._run(function, finer, posterior, records, *others)
            looks += 2 * work
            if not float(error(found)) > NODES.error:
                break
        return found, looks

    def _records(self, update: LocalUpdate) -> Records:
        return self._on_device if update.needs_jax(self.model) else self._in_numpy

    @functools.cached_property
    def _in_numpy(self) -> Records:
        """The records, those of categories with many levels held sparse; made once for all."""
        regression = isinstance(self.model, PredictorModel) and self.records.size
        return self.records.held_sparse() if regression else self.records

    @functools.cached_property
    def _on_device(self) -> Records:
        """The records as JAX arrays, padded if the agreement says so; made once for all visits."""
        records = self.records.padded() if self.agreement.padding else self.records
        with jax.enable_x64(True):
            return jax.tree.map(jnp.asarray, records)

    def _run(self, function: Any, update: LocalUpdate, *others: Any) -> Any:
        """Return the value of a function as NumPy arrays, computed by NumPy or by a JAX program."""
        if not update.needs_jax(self.model):
            size = self.agreement.prior.event_size, self.records.size
            with np.errstate(all="ignore"), one_thread(*size):  # checked later if not finite
                return function(update, self.model, *others)
        release_programs()
        with jax.enable_x64(True):
            # JAX programs need JAX keys; updates without noise need none.
            own: list[Any] = [
                (of_jax(o) if update.noisy else None) if isinstance(o, Words) else o for o in others
            ]
            of_arrays, program = computed.PROGRAMS[function]
            # Equinox's filter for leaves other than arrays takes a tenth of a visit; seldom needed.
            if function is computed.improve and all(map(eqx.is_array, jax.tree.leaves(self.model))):
                program = of_arrays
            return jax.tree.map(np.asarray, program(update.traced, self.model, *own))


def _finite(*parts: Any) -> bool:
    return all(np.isfinite(part).all() for part in parts)


def failure_of(error: Exception, site: str, *, elsewhere: bool = False) -> SiteError:
    """Return the error for a site that failed. If it is sent ``elsewhere``, it leaves out messages
    of foreign exceptions, which may contain records.
    """
    place = f"the update of site {site!r}"
    if isinstance(error, PosterityError):
        return SiteError(found=f"{error.found} in {place}", expected=error.expected, fix=error.fix)
    if isinstance(error, jax.errors.JAXTypeError):
        return SiteError(
            found=f"a model that asks for numbers where JAX has none yet "
            f"({type(error).__name__}) in {place}",
            expected="a log likelihood that JAX can differentiate",
            fix="Write it with `jax.numpy` in place of NumPy and SciPy, `jnp.where` in place of "
            "`if`, and without `float(...)`; the site's factor was not changed.",
        )
    if isinstance(error, np.linalg.LinAlgError):
        return SiteError(
            found=f"numbers too far apart for sums of sixteen digits ({error}) in {place}",
            expected="columns of about the scale that the other sites' have",
            fix="Check their units; the site's factor was not changed.",
        )
    return SiteError(
        found=f"{type(error).__name__}{'' if elsewhere else f': {error}'} in {place}",
        expected="an update that finishes",
        fix="Mend the site, then go on from the last state; the site's factor was not changed.",
    )
