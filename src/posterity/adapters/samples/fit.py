"""Fit of one of the library's laws to draws of a posterior, with diagnostics."""

import dataclasses
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

from posterity.adapters.samples.checks import Checks, FitLimits, diagnostics_of, sentences
from posterity.adapters.samples.laws import FAMILY, block
from posterity.adapters.samples.relabel import members_of
from posterity.adapters.samples.variables import (
    EVENT,
    Variable,
    variables_of,
    with_supports,
)
from posterity.arguments import COUNT, one_of
from posterity.errors import FitWarning, UsageError
from posterity.families.distribution import Distribution
from posterity.families.names import checked, entry_names, some
from posterity.families.plate import Plate
from posterity.families.vector_space import stack


@dataclasses.dataclass(frozen=True, repr=False)
class SampleFit:
    """A law fitted to draws: the result of :func:`from_samples`."""

    posterior: Distribution
    """The law, with names of its coordinates."""
    checks: Checks
    """Diagnostics by coordinate and overall; ``print(fit.checks)`` is a table."""
    family: str
    """Family as requested."""
    limits: FitLimits = dataclasses.field(default_factory=FitLimits)
    """Bounds beyond which there are warnings."""

    def warnings(self) -> tuple[str, ...]:
        """Return sentences on defects of the fit or the draws, with suggestions."""
        return tuple(sentences(self.checks, self.limits))

    @property
    def ok(self) -> bool:
        """True if there are no warnings."""
        return not self.warnings()

    def __repr__(self) -> str:
        count = len(self.warnings())
        checks = self.checks
        verdict = "ok" if not count else f"{count} warning{'s' if count > 1 else ''}"
        return (
            f"SampleFit({type(self.posterior).__name__} of {len(checks.coordinates)} coordinates, "
            f"{next(iter(checks.coordinates.values())).draws} draws worth {checks.effective:.0f}, "
            f"{verdict})"
        )


def from_samples(
    draws: Any,
    family: str = "gaussian",
    *,
    support: object = None,
    names: Any = None,
    chains: int | str | None = None,
    components: int | None = None,
    plate: bool = False,
    limits: FitLimits = FitLimits(),  # noqa: B008
) -> SampleFit:
    """Fit a law of the library to draws of a posterior, and report the quality of the fit.

    Args:
        draws: array (n,), (n, d) or (chains, n, d); a dictionary or other tree of arrays
            (n, *shape) by variable, such as states of BlackJAX; a pandas DataFrame with one column
            per variable (``chain`` is the chain of a row; columns that end in ``__``, such as
            ``lp__``, are dropped); an ArviZ InferenceData or xarray DataTree, whose group
            ``posterior`` is used; an ``MCMC`` of NumPyro that has been run; a ``CmdStanMCMC``.
        family: ``"gaussian"``, ``"diagonal"`` or ``"mixture"`` (of Gaussians, by
            scikit-learn) over all coordinates.
        support: support of all variables, or a dictionary by name: ``"real"``, ``"positive"``,
            ``"unit"`` (between zero and one), ``"simplex"`` or ``"positive-definite"``. The
            law is then that of ``f(u)`` for Gaussian ``u``, a :class:`Transformed`. For NumPyro's
            MCMC the model determines it.
        names: names of the coordinates of an array, or replacements of the variables' own.
        chains: number of chains that are concatenated along the first axis; or ``"first"`` for
            arrays (chains, n, ...), ``"second"`` for (n, chains, ...). None: an array of three
            axes is (chains, n, d), all else one chain, unless it has more than three times as many
            coordinates without names as draws.
        components: number of components of ``"mixture"``; by default the best by BIC.
        plate: whether the first axis of each variable is that of a mixture's exchangeable
            components, whose labels the sampler may switch: draws are relabelled, and the law is a
            :class:`Plate` of ``"gaussian"`` or ``"diagonal"`` members, which ``fuse`` matches. It
            is of real numbers: pass logarithms instead of ``support``.
        limits: bounds beyond which the draws or the fit give warnings.

    Returns:
        The law, ``posterior``, with coordinates named ``NAME``, ``beta[0]``, ``m[1,2]``, or by
        ArviZ's labels, and ``checks``; one ``FitWarning`` repeats all of ``fit.warnings()``.

    Raises:
        UsageError: for objects without draws, and arguments that do not fit together.
        StructureError: for shapes that do not fit, non-numeric columns, and too few draws.
        ParameterError: for NaN, coordinates that are constant or determined by others, and draws
            outside of the support.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0).normal([1.0, -2.0], [0.5, 2.0], (4, 1000, 2))
    >>> fit = from_samples(draws, names=["age", "dose"])
    >>> fit.posterior.names, fit.ok
    (('age', 'dose'), True)

    >>> draws = np.random.default_rng(1).normal([1.0, 3.0], 0.1, (2, 500, 2))
    >>> draws[1] = draws[1, :, ::-1]
    >>> from_samples({"mu": draws}, chains="first", plate=True).posterior.members.mean.round(1)
    array([[1.],
           [3.]])

    Sources: vehtari2021, for effective sample sizes and R-hat; stephens2000, for relabelling.
    """
    COUNT.or_none().check(components=components)
    asked = {} if family == "mixture" else {"components": components}
    asked |= {"support": support, "names": names} if plate else {}
    idle = [name for name, value in asked.items() if value is not None]
    if idle:
        raise UsageError(
            found=f"{some(idle)} beside family={family!r} and plate={plate}",
            expected="components= of 'mixture' only, support= and names= without plate=True",
            fix="Pass logarithms or log odds of a plate's variables.",
        )
    variables, notes = variables_of(draws, chains, names is not None)
    if names is not None:
        names = checked(names, sum(len(own.labels) for own in variables), "the draws")
    if plate:
        return _plate(variables, family, notes, limits)
    FAMILY.check(family=family)
    variables = with_supports(variables, support)
    made = block(variables, family, names, components)
    return _warned(SampleFit(made.law, diagnostics_of([made], notes), family, limits))


def _plate(
    variables: Sequence[Variable], family: str, notes: list[str], limits: FitLimits
) -> SampleFit:
    """Return the fit of a plate to relabelled draws."""
    one_of("gaussian", "diagonal").check(family=family)
    parts = (entry_names(own.name or EVENT, own.shape[1:], ()) for own in variables)
    names = list(itertools.chain(*parts))
    members = members_of(variables, names)
    blocks = [block(own, family, None) for own in members]
    law = Plate(stack([made.law.named(names) for made in blocks]))
    return _warned(SampleFit(law, diagnostics_of(blocks, notes), family, limits))


def _warned(fit: SampleFit) -> SampleFit:
    """Return a fit after one warning of all its sentences, if there are any."""
    sentences = fit.warnings()
    if sentences:
        warnings.warn(FitWarning(" ".join(sentences)), stacklevel=3)
    return fit
