"""Fusion of sites that truly differ: their coefficients vary about those of a population."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.linear_algebra import pseudo_inverse
from posterity.artifact.aligned import listed
from posterity.errors import CHOOSE, StructureError, UsageError
from posterity.families import Gaussian
from posterity.families.checks import check_proper
from posterity.families.names import names_of, some
from posterity.fusion.differing_check import doubts
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Rule
from posterity.fusion.plan import Plan, items
from posterity.fusion.reading import SitesInMemory
from posterity.fusion.result import Fusion
from posterity.fusion.sites import given_twice
from posterity.inference.expectation_propagation import Normal
from posterity.inference.federated_effects import effects_of
from posterity.inference.random_effects import RandomEffects
from posterity.ledger import Ledger

FLAT = 1e6
"""Deviations of a flat prior, in units of the largest estimate and standard error."""
WIDER = 1e-9
"""Share of all sites' and priors' precision up to which a negative one of a site is rounding."""


class Estimate(NamedTuple):
    """What one site knows: names of its coefficients, prior (None if flat), and message, which is
    ``independent`` unless records of others moved it, as those of a federation.
    """

    names: tuple[str, ...]
    prior: Normal | None
    message: Normal
    independent: bool = True

    def over(self, names: Sequence[str]) -> "Estimate":
        """Return the same over all coefficients; rows of those that the site lacks are zero."""
        at = np.array([names.index(name) for name in self.names])

        def wider(own: Normal) -> Normal:
            linear = np.zeros(len(names))
            linear[at] = own.linear
            precision = np.zeros((len(names), len(names)))
            precision[np.ix_(at, at)] = own.precision
            return Normal(linear, precision)

        prior = None if self.prior is None else wider(self.prior)
        return Estimate(tuple(names), prior, wider(self.message), self.independent)


class DifferingSites(SitesInMemory):
    """Sites whose Gaussian coefficients differ: ``estimates`` by site, over their own names.

    A ledger of several sites stands for them. A site may lack coefficients of others.
    """

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.estimates: dict[str, Estimate] = {}

    def _take(self, opened: Mapping[str, Any]) -> None:
        for name, value in opened.items():
            self._own(name, value.sites if isinstance(value, Ledger) else ())
            several = {name: value} if not isinstance(value, Ledger) else _apart(name, value)
            for site, own in several.items():
                if site in self.estimates:
                    raise given_twice(site)
                self.estimates[site] = _estimate(site, own, self.plan.prior)
        self._check_forgotten(self.estimates, self._owners)
        _check_names(self.estimates)

    def _close(self) -> None:
        if len(self.estimates) < 2:
            raise UsageError(
                found=f"{len(self.estimates)} site" + "s" * (not self.estimates),
                expected="at least two sites, or a ledger of several",
            )


def fuse_differing(
    posteriors: Any, plan: Plan, personal: Any, level: float, **others: Any
) -> Fusion:
    """Return the fusion of sites whose coefficients vary about a population's.

    Args:
        posteriors: as for :func:`posterity.fuse`, Gaussians or ledgers of such.
        plan: the other arguments, of which only ``prior`` suits this.
        personal: as for :func:`posterity.fuse`.
        level: as for :func:`posterity.fuse`.
        others: arguments that do not suit it either, None unless they were passed.

    Raises:
        UsageError: for other arguments, fewer than two sites, or coefficients that are none.
        StructureError: for posteriors that are not one Gaussian, or only some with names.
        ParameterError: for improper posteriors, or an improper prior.
    """
    passed = plan.passed(**others)
    if passed:
        raise UsageError(
            found=f"personal= with {'=, '.join(passed)}=",
            expected="no choice of how sites are matched and summed: coefficients go by name",
        )
    if plan.prior is not None:
        _check_gaussian(plan.prior, "as the prior")
        check_proper(plan.prior, "the prior")
    sites = DifferingSites(plan)
    sites.read(items(posteriors))
    known = {site: sites.estimates[site] for site in sorted(sites.estimates)}
    names = tuple(dict.fromkeys(name for own in known.values() for name in own.names))
    wide = {site: own.over(names) for site, own in known.items()}
    messages, wider = _sound(wide)
    prior = _prior(plan.prior, [*wide.values()], names)
    joint = RandomEffects.of(prior, personal)
    factors = {site: joint.factor(message) for site, message in messages.items()}
    alone = [site for site, own in known.items() if own.independent]
    ledger = sites.remembered(Ledger(joint).extend(factors, independent=alone))
    effects = effects_of(ledger)
    found = [*doubts(sites, prior, effects, level, wider)]
    why = "since sites' coefficients vary about those of a population"
    how = Rule.PRODUCT, Divergence.REVERSE
    about: Any = {"why": why, "doubts": tuple(found), "effects": effects}
    return Fusion(effects.law, ledger, {}, *how, **about)


def _apart(name: str, ledger: Ledger) -> dict[str, Ledger]:
    """Return a ledger of one site for each site of a ledger; without any, that of ``name``, which
    says nothing.
    """
    if not ledger.sites:
        return {name: ledger.update(name, ledger.prior.zero())}
    if len(ledger.sites) == 1:
        return {name: ledger.holding({name: ledger.entries[ledger.sites[0]]})}
    return {site: ledger.holding({site: ledger.entries[site]}) for site in ledger.sites}


def _estimate(site: str, value: Any, prior: Any) -> Estimate:
    """Return what a site knows, from its posterior or ledger; ``prior`` is that of the former."""
    law: Any = value.prior if isinstance(value, Ledger) else value
    _check_gaussian(law, f"at site {site!r}")
    names = names_of(law).get("", ())
    if isinstance(value, Ledger):
        alone = value.entries[site].independent
        return Estimate(names, Normal.of(law), Normal.of(value.factor(site)), alone)
    check_proper(law, f"site {site!r}")
    message = Normal.of(law)
    if prior is not None:
        own = Normal.of(prior)
        given = names_of(prior).get("", ())
        if {*given} != {*names} or len(own.linear) != len(message.linear):
            raise StructureError(
                found=f"coefficients {some(names)} of site {site!r}",
                expected=f"those of the prior, {some(given)}, or a ledger with a prior of its own",
            )
        own = Estimate(given, None, own).over(names).message if given else own
        message = message.plus(own, -1.0)
    return Estimate(names, None, message)


def _check_gaussian(law: Any, where: str) -> None:
    """Raise a StructureError unless a law is one Gaussian."""
    plain = getattr(law, "gaussian", False) and not law.batch_shape and law.network_layers is None
    if not plain or not hasattr(law, "precision_mean"):
        raise StructureError(
            found=f"{law!r} {where}",
            expected="one Gaussian over coefficients, as personal= needs",
            fix="Leave personal out; or federate the records with a model that says what differs "
            f"(federate(..., personal=True)){CHOOSE}",
        )


def _check_names(estimates: dict[str, Estimate]) -> None:
    """Number coefficients if no site names them; a StructureError if only some do."""
    without = [site for site, own in estimates.items() if not own.names]
    sizes = {len(own.message.linear) for own in estimates.values()}
    if without and (len(without) < len(estimates) or len(sizes) > 1):
        raise StructureError(
            found=f"no names of coefficients of {some(without)}",
            expected="names of all sites' coefficients, by posterior.named([...]), or none and "
            "one number of them",
        )
    for site in without:
        own = estimates[site]
        estimates[site] = own._replace(names=tuple(map(str, range(len(own.message.linear)))))


def _sound(sites: Mapping[str, Estimate]) -> tuple[dict[str, Normal], list[str]]:
    """Return messages without negative precisions, which no records can have; and their sites."""
    messages = {site: own.message for site, own in sites.items()}
    known = [*messages.values(), *(own.prior for own in sites.values() if own.prior is not None)]
    total = np.sum([np.abs(np.diagonal(own.precision)) for own in known], axis=0)
    unit = np.sqrt(np.where(total > 0, total, 1.0))
    scale = np.outer(unit, unit)
    result = {}
    wider = []
    for site, own in messages.items():
        values, vectors = np.linalg.eigh(own.precision / scale)
        if values[0] < -WIDER:
            wider.append(site)
            kept = vectors[:, values > WIDER]
            onto = kept @ kept.T
            linear = unit * (onto @ (own.linear / unit))
            own = Normal(linear, scale * (onto @ (own.precision / scale) @ onto))
        result[site] = own
    return result, wider


def _prior(prior: Any, sites: Sequence[Estimate], names: tuple[str, ...]) -> Gaussian:
    """Return the prior of the population's coefficients: ``prior``, or the average of the sites'
    in natural parameters, each coefficient's over the sites that have it; or else a flat one.
    """
    known = [own.prior for own in sites if own.prior is not None]
    if prior is not None:
        own = Normal.of(prior)
        wanted = names_of(prior).get("", ()) or tuple(map(str, range(len(own.linear))))
        if {*wanted} != {*names}:
            raise StructureError(
                found=f"a prior of {listed({'': wanted})}",
                expected=f"the coefficients of all sites: {listed({'': names})}",
            )
        common = Estimate(wanted, None, own).over(names).message
    elif known:
        linear = np.sum([own.linear for own in known], axis=0)
        precision = np.sum([own.precision for own in known], axis=0)
        has = np.sum([np.diagonal(own.precision) > 0 for own in known], axis=0)
        share = 1 / np.sqrt(np.maximum(has, 1))
        common = Normal(linear * share**2, precision * np.outer(share, share))
    else:
        every = np.array([np.diagonal(own.message.precision) for own in sites])
        widths = _widths([own.message for own in sites], every)
        common = Normal(np.zeros(len(names)), np.diag((FLAT * widths) ** -2.0))
    return common.law.named(names)


def _widths(messages: Sequence[Normal], diagonals: np.ndarray) -> np.ndarray:
    """Return the power of ten above each coefficient's largest estimate and standard error."""
    means = [pseudo_inverse(own.precision)[0] @ own.linear for own in messages]
    errors = np.where(diagonals > 0, diagonals, np.inf) ** -0.5
    largest = np.max([np.abs(means).max(0), errors.max(0)], axis=0)
    return 10.0 ** np.ceil(np.log10(np.where(largest > 0, largest, 1.0)))
