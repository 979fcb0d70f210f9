"""Fit of one of the library's laws to draws of a posterior, with diagnostics."""

import dataclasses
import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from posterity.adapters.samples.checks import Checks, FitLimits, diagnostics_of, sentences
from posterity.adapters.samples.laws import FAMILY, block
from posterity.adapters.samples.relabel import members_of
from posterity.adapters.samples.variables import (
    EVENT,
    Variable,
    variable,
    variables_of,
    with_supports,
)
from posterity.arguments import COUNT, one_of
from posterity.errors import FitWarning, StructureError, UsageError
from posterity.families.base import ExponentialFamily
from posterity.families.composite import Product
from posterity.families.distribution import Distribution
from posterity.families.names import checked, entry_names, some, unfit
from posterity.families.plate import Plate
from posterity.families.supports import RealNumbers
from posterity.families.vector_space import stack

OF_ONE = ("gamma", "beta")
"""Families of one coordinate."""


@dataclasses.dataclass(frozen=True, repr=False)
class SampleFit:
    """A law fitted to draws: the result of :func:`from_samples`."""

    posterior: Distribution
    """The law, with names of its coordinates."""
    checks: Checks
    """Diagnostics by coordinate and overall; ``print(fit.checks)`` is a table."""
    family: str | Mapping[str, str]
    """Family as requested."""
    limits: FitLimits = dataclasses.field(default_factory=FitLimits)
    """Bounds beyond which there are warnings."""

    def warnings(self) -> tuple[str, ...]:
        """Return sentences on defects of the fit or the draws, with suggestions."""
        return tuple(sentences(self.checks, self.family, self.limits))

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
    family: str | Mapping[str, str] = "gaussian",
    *,
    support: object = None,
    names: Any = None,
    chains: int | str | None = None,
    independent: bool = False,
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
            scikit-learn) over all coordinates; ``"gamma"`` or ``"beta"`` for each coordinate, as a
            :class:`Product` of blocks if several; ``"dirichlet"`` for one variable; ``"plate"``,
            which is ``plate=True`` with Gaussian members; or a dictionary of these by variable.
        support: support of all variables, or a dictionary by name: ``"real"``, ``"positive"``,
            ``"unit"`` (between zero and one), ``"simplex"`` or ``"positive-definite"``. The
            law is then that of ``f(u)`` for Gaussian ``u``, a :class:`Transformed`. For NumPyro's
            MCMC the model determines it.
        names: names of the coordinates of an array, or replacements of the variables' own. If
            ``support`` or ``family`` is by name, each column of an array is a variable.
        chains: number of chains that are concatenated along the first axis; or ``"first"`` for
            arrays (chains, n, ...), ``"second"`` for (n, chains, ...). None: an array of three
            axes is (chains, n, d), all else one chain, unless it has more than three times as many
            coordinates without names as draws.
        independent: whether to fit a :class:`Product` of one law per variable, not a joint one.
        components: number of components of ``"mixture"``; by default the best by BIC.
        plate: whether the first axis of each variable is that of a mixture's exchangeable
            components, whose labels the sampler may switch: draws are relabelled, and the law is a
            :class:`Plate` of ``"gaussian"`` or ``"diagonal"`` members, which ``fuse`` matches.
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
    variables, notes = variables_of(draws, chains, names is not None)
    if names is not None:
        names = checked(names, sum(len(own.labels) for own in variables), "the draws")
    if family == "plate":
        plate = True
        family = "gaussian"
    if plate:
        return _plate(variables, family, notes, limits)
    by_name = isinstance(support, Mapping) or isinstance(family, Mapping) or independent
    if by_name and names is not None and len(variables) == 1 and not variables[0].name:
        values = variables[0].values
        variables = [variable(name, values[..., i], "first") for i, name in enumerate(names)]
        names = None
    variables = with_supports(variables, support)
    families, names = _families(family, variables, independent, names)
    blocks = [block(own, word, names, components) for own, word in families]
    law: Any = blocks[0].law
    if len(blocks) > 1:
        laws = {own[0].name: made.law for (own, _), made in zip(families, blocks, strict=True)}
        odd = {n: law for n, law in laws.items() if not isinstance(law, ExponentialFamily)}
        if odd:
            raise StructureError(
                found=f"independent laws that are no exponential families: {odd}",
                expected="'gaussian', 'diagonal', 'gamma', 'beta' or 'dirichlet' for each variable",
                fix="Take 'gamma' in place of support='positive', 'beta' of 'unit', 'dirichlet' "
                "of 'simplex'; or one joint law, without independent=True.",
            )
        law = Product(laws)
    return _warned(SampleFit(law, diagnostics_of(blocks, notes), family, limits))


def _plate(
    variables: Sequence[Variable], family: Any, notes: list[str], limits: FitLimits
) -> SampleFit:
    """Return the fit of a plate to relabelled draws."""
    one_of("gaussian", "diagonal").check(family=family)
    members = members_of(variables)
    blocks = [block(own, family, None) for own in members]
    parts = (entry_names(own.name or EVENT, own.shape[1:], ()) for own in variables)
    names = list(itertools.chain(*parts))
    law = Plate(stack([made.law.named(names) for made in blocks]))
    return _warned(SampleFit(law, diagnostics_of(blocks, notes), family, limits))


def _warned(fit: SampleFit) -> SampleFit:
    """Return a fit after one warning of all its sentences, if there are any."""
    sentences = fit.warnings()
    if sentences:
        warnings.warn(FitWarning(" ".join(sentences)), stacklevel=3)
    return fit


def _families(
    family: str | Mapping[str, str],
    variables: Sequence[Variable],
    independent: bool,
    names: Sequence[str] | None,
) -> tuple[list[tuple[list[Variable], str]], Sequence[str] | None]:
    """Return groups of variables, each with the family that holds them, and names.

    Under a gamma or a beta each coordinate is its own variable, by its label. Blocks of a product
    are identified by name in a fusion, while members of a plate would be matched by similarity.
    """
    known = {own.name for own in variables}
    if not isinstance(family, Mapping) and not independent:
        FAMILY.check(family=family)
        families = [(list(variables), family)]
    else:
        by_name = dict.fromkeys([own.name for own in variables], family)
        by_name = family if isinstance(family, Mapping) else by_name
        if set(by_name) != known or "" in known:
            raise UsageError(
                found=f"a family for each of {some(list(by_name))}",
                expected=f"one for each variable: {some(sorted(known - {''}) or ['names='])}",
            )
        FAMILY.check(**{f"family of {name}": word for name, word in by_name.items()})
        if names is not None:
            left = iter(names)
            names = None
            variables = [
                dataclasses.replace(own, labels=tuple(itertools.islice(left, len(own.labels))))
                for own in variables
            ]
        families = [([own], by_name[own.name]) for own in variables]
    result: list[tuple[list[Variable], Any]] = []
    for own, word in families:
        if word not in OF_ONE:
            result.append((own, word))
            continue
        labels = names or [label for v in own for label in v.labels]
        columns = [v.flat[..., i] for v in own for i in range(v.flat.shape[-1])]
        if len(labels) == 1 and not names and not own[0].name:
            labels = [""]  # one number without a name
        result += [
            ([Variable(label, column, (label or EVENT,), RealNumbers(()))], word)
            for label, column in zip(labels, columns, strict=True)
        ]
    if len(result) > 1 and (wrong := unfit([own[0].name for own, _ in result])):
        raise StructureError(
            found=f"variables of which {wrong}", expected="a different name for each"
        )
    return result, None if family in OF_ONE else names
