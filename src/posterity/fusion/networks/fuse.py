"""Networks in, one network out."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.arrays.typing import Float
from posterity.checks import check_proper
from posterity.errors import StructureError
from posterity.families.network import Network
from posterity.fusion.alignment import Alignment
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching
from posterity.fusion.networks.combine import Builder, Combined, Labels, incoming_cost
from posterity.fusion.networks.inputs import pair_of_inputs
from posterity.fusion.networks.ledgers import as_ledger, fused_prior, rebased
from posterity.fusion.networks.locals import Local, by_site, in_order
from posterity.fusion.networks.matching import Matcher, Table, masses, matcher, same_units
from posterity.fusion.networks.options import Options
from posterity.fusion.networks.refusals import (
    check_arguments,
    check_sizes,
    widths_searched,
    widths_wanted,
)
from posterity.fusion.networks.result import NetworkFusion, Widths
from posterity.fusion.networks.shares import output_shares
from posterity.fusion.networks.targets import Targets
from posterity.fusion.networks.widths import narrowest
from posterity.fusion.rules import Rule
from posterity.fusion.sites import Site, check_counted_once

Array = np.ndarray


def fuse_networks(
    sites: Mapping[str, Site],
    *,
    components: int | tuple[int, ...] | None,
    rule: Rule,
    divergence: Any,
    matching: Matching,
    prior: Any,
    importance: Float[Array, " sites"],
    absorb: bool | None,
    budget: int | None,
    options: Options | None,
) -> NetworkFusion:
    """The branch of :func:`posterity.fuse` for sites whose posteriors are networks.

    Warns:
        UserWarning: where the widest network that may be taken does not meet the tolerance.
    """
    options = Options() if options is None else options
    check_arguments(divergence, absorb, budget)
    if rule is Rule.PRODUCT:
        check_counted_once(sites)
    if prior is not None and not isinstance(prior, Network):
        raise StructureError(
            found=f"a {type(prior).__name__} as prior",
            expected="a Network",
            fix="Pass Network.prior(layers, variance).",
        )
    identity = matching is Matching.IDENTITY
    locals_ = in_order(sites, importance, options.drop, keep=identity)
    check_sizes(locals_)
    wanted = widths_wanted(components, locals_, matching, options)
    search = _Search(locals_, options, divergence, matching)
    if wanted is not None or matching is not Matching.EVIDENCE:
        combined = search.build(wanted)
        tried = {combined.layers.widths: search.divergence(combined)}
    else:
        bounds = widths_searched(locals_, options)
        widths, tried = narrowest(*bounds, options.tolerance, search.try_widths)
        if not tried[widths] <= options.tolerance:
            warnings.warn(
                f"widths {widths} still predict {tried[widths]:.3g} nats from the weighted "
                f"concatenation of all sites, more than the tolerance {options.tolerance:g}. "
                + ("Raise `most` or" if options.most else "Raise")
                + " the tolerance of Options.",
                stacklevel=3,
            )
        combined = search.build(widths)
    return search.result(combined, tried, rule, prior)


class _Search:
    """Networks of any width, built on one set of inputs and compared on another."""

    def __init__(
        self, locals_: list[Local], options: Options, divergence: Divergence, matching: Matching
    ):
        self.locals, self.options, self.matching = locals_, options, matching
        self.side = divergence
        shares = output_shares(locals_, options.shares)
        outputs = locals_[0].layers.outputs
        values = options.outputs == "values" or (options.outputs is None and outputs == 1)
        self.fit, self.fresh = (
            Targets(locals_, shares, x, values) for x in pair_of_inputs(locals_, options)
        )
        self.masses = [masses(self.fit, index) for index in range(len(locals_[0].layers.widths))]
        self._first: tuple[Table, Matcher] | None = None

    def try_widths(self, widths: Widths) -> float:
        """The predictive KL of the network of these widths."""
        return self.divergence(self.build(widths))

    def divergence(self, combined: Combined) -> float:
        """The predictive KL on inputs that no refit saw."""
        return self.fresh.divergence(combined.layers, combined.mean)

    def build(self, widths: Widths | None, apart: bool = False) -> Combined:
        """The fused network of these widths, or of those that the matching finds."""
        builder = Builder(self.fit, self.options, self.side, apart)
        for index in range(len(self.masses)):
            width = None if widths is None else widths[index]
            builder.hidden(self._labels(builder, index, width), self.masses[index])
        return builder.last()

    def rebuild(self, labels: list[Labels], rule: Rule) -> Combined:
        """The same again, each site's part of it apart."""
        pooled = rule is Rule.PRODUCT
        builder = Builder(self.fit, self.options, self.side, apart=True, pooled=pooled)
        for own, mass in zip(labels, self.masses, strict=True):
            builder.hidden(own, mass)
        return builder.last()

    def _labels(self, builder: Builder, index: int, width: int | None) -> Labels:
        if self.matching is Matching.IDENTITY:
            return same_units(self.locals, index, width)
        if index or self._first is None:
            table = Table(self.fit, index, builder.before, builder.size, self.masses[index])
            selected = self.options.units == "selected"
            found = matcher(table, self.fit, index, self.matching, self.side, selected)
        else:
            table, found = self._first
        if not index:
            self._first = table, found
        return table.apart(found.labels(width))

    def result(
        self, combined: Combined, tried: dict[Widths, float], rule: Rule, prior: Any
    ) -> NetworkFusion:
        """The fusion, with a ledger where priors are known."""
        layers = combined.layers
        base = fused_prior(self.locals, prior, layers)
        if base is None:
            mean, variance = layers.ravel(combined.mean), layers.ravel(combined.variance)
            ledger, posterior = None, Network.from_standard(mean, variance, layers)
        else:
            combined = self.rebuild(combined.labels, rule)
            ledger = as_ledger(combined, self.locals, base, rule)
            posterior: Any = ledger.posterior
        check_proper(posterior, "the fused posterior")
        return NetworkFusion(
            posterior=posterior,
            ledger=ledger,
            plates={
                str(index): self._alignment(combined, index) for index in range(len(self.masses))
            },
            rule=rule,
            divergence=self.side,
            rebased=() if base is None else rebased(self.locals, base),
            predictive_kl=tried,
            shares={
                local.name: share
                for local, share in sorted(
                    zip(self.locals, self.fit.shares, strict=True), key=lambda pair: pair[0].name
                )
            },
            options=self.options,
        )

    def _alignment(self, combined: Combined, index: int) -> Alignment:
        labels = by_site(self.locals, combined.labels[index], index)
        size = combined.layers.widths[index]
        return Alignment(labels, size, incoming_cost(self.locals, combined, index, self.side), ())
