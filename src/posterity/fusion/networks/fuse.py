"""Fusion of several networks into one network."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from posterity.arrays.typing import Float
from posterity.errors import StructureError, UsageError
from posterity.families.checks import check_proper
from posterity.families.network import Network
from posterity.fusion.alignment import Alignment
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching, Rule
from posterity.fusion.networks.combine import Builder, Combined, incoming_cost
from posterity.fusion.networks.ledgers import RECORD, as_ledger, beside, fused_prior, of_other_prior
from posterity.fusion.networks.options import Options, Widths, by_layer
from posterity.fusion.networks.targets import (
    Labels,
    Local,
    Targets,
    in_order,
    output_shares,
    pair_of_inputs,
)
from posterity.fusion.networks.units import Units, masses, same_units
from posterity.fusion.plan import Plan
from posterity.fusion.result import Fusion
from posterity.fusion.sites import Sites
from posterity.status import Progress, ProgressCallback, Status

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class NetworkFusion(Fusion):
    """The result of :func:`posterity.fuse` for networks; ``plates`` has one entry per hidden layer.

    Attributes:
        predictive_kl: for all widths that were tried, the predictive KL from the weighted
            concatenation of the sites' networks, in nats, on inputs that no refit used.
        shares: for each site, its share in each output of the concatenation.
        options: options of the fusion.
    """

    posterior: Network  # pyright: ignore[reportIncompatibleVariableOverride]
    predictive_kl: dict[Widths, float] = dataclasses.field(default_factory=dict)
    shares: Mapping[str, Float[Array, " k"]] = dataclasses.field(default_factory=dict)
    options: Options = dataclasses.field(default_factory=Options)

    __repr__ = Fusion.__repr__  # instead of the one that dataclasses generate

    @property
    def widths(self) -> Widths:
        """Number of units of each hidden layer of the fused network."""
        return self.posterior.layers.widths

    @property
    def achieved_kl(self) -> float:
        """The predictive KL at the chosen widths, in nats."""
        return self.predictive_kl[self.widths]

    @property
    def status(self) -> Status:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Converged if the predictive KL from the concatenation is within the tolerance."""
        allowed = self.options.allowed(self.posterior.layers)
        return Status.of(self.achieved_kl, allowed)


def fuse_networks(
    sites: Sites,
    plan: Plan,
    importance: Float[Array, " sites"],
    rule: Rule,
    progress: ProgressCallback | None = None,
) -> NetworkFusion:
    """Fuse sites whose posteriors are networks; see :func:`posterity.fuse`.

    Warns:
        UserWarning: if the widest network that is allowed does not meet the tolerance.
    """
    divergence = plan.divergence
    matching = plan.matching
    components = plan.components
    options = Options() if plan.networks is None else plan.networks
    plan.refuse("absorb", "budget", "criterion", "matching_by_site", of="networks")
    base: Any = sites.prior
    if base is not None and getattr(base, "network_layers", None) is None:
        raise StructureError(
            found=f"a {type(base).__name__} as prior", expected="Network.prior(layers, variance)"
        )
    searched = components is None and matching is Matching.EVIDENCE
    locals_ = in_order(sites.loaded, importance, keep=matching is Matching.IDENTITY)
    layers = locals_[0].layers
    tolerance = options.allowed(layers)
    options = dataclasses.replace(options, tolerance=tolerance)
    search = Search(locals_, options, divergence, matching)
    tried: dict[Widths, float] = {}

    def kl(combined: Combined) -> float:
        widths = combined.layers.widths
        tried[widths] = search.fresh.divergence(combined.layers, combined.arrays("mean"))
        if progress is not None:

            def partial():
                return search.result(combined, dict(tried), rule, base)

            progress(Progress(len(tried), None, tried[widths], tried[widths], partial))
        return tried[widths]

    if not searched:
        combined = search.build(None if components is None else widths_wanted(components, locals_))
        kl(combined)
        return search.result(combined, tried, rule, base)
    high = _side_by_side(locals_)
    low = tuple(np.max([local.layers.widths for local in locals_], axis=0).tolist())
    # The loss on random images says little about the loss on real ones: convolutions are not
    # narrowed, and later layers by at most a half.
    windows = layers.windows

    def after(k, own):
        return max(own, -(-high[k] // 2)) if windows else own

    least = {k: after(k, own) for k, own in enumerate(low) if k >= windows}
    widths = narrowest(low, high, tolerance, lambda w: kl(search.build(w)), least)
    if not tried[widths] <= tolerance:
        warnings.warn(
            f"widths {widths} still predict {tried[widths]:.3g} nats from the weighted "
            f"concatenation of all sites, more than the tolerance {tolerance:g}. Raise the "
            "tolerance of Options.",
            stacklevel=4,
        )
    return search.result(search.build(widths), tried, rule, base)


def widths_wanted(components: Any, locals_: Sequence[Local]) -> Widths:
    """Return the user's width for each hidden layer; raise a UsageError for an invalid width, or
    one that exceeds the number of units of all sites.
    """
    wanted = by_layer(components, locals_[0].layers)
    total = _side_by_side(locals_)
    if any(width > top for width, top in zip(wanted, total, strict=True)):
        raise UsageError(
            found=f"components={components!r}",
            expected=f"at most {total}, all sites' units side by side, or None to find widths",
        )
    return wanted


def _side_by_side(locals_: Sequence[Local]) -> Widths:
    return tuple(np.sum([local.layers.widths for local in locals_], axis=0).tolist())


def narrowest(
    low: Widths,
    high: Widths,
    tolerance: float,
    divergence: Callable[[Widths], float],
    least: Mapping[int, int],
    *,
    resolution: float = 0.02,
) -> Widths:
    """Find narrow widths whose divergence is at most ``tolerance``.

    If ``low`` (the width of the widest site) is not good enough, layers are narrowed in turn from
    ``high`` (the units of all sites), at most to ``least``, the widest first, each as far as its
    share of the tolerance allows: the interval is bisected to a relative ``resolution``. A narrower
    width that happens to be good enough can be missed.
    """
    known = functools.cache(divergence)
    if known(low) <= tolerance:
        return low
    if not known(high) <= tolerance:
        return high
    widths = high
    for layer in sorted(least, key=lambda index: -high[index]):

        def at(width, own=layer, rest=widths):
            return (*rest[:own], width, *rest[own + 1 :])

        share = tolerance * high[layer] / sum(high)
        allowed = min(known(widths) + share, tolerance)
        failed = least[layer] - 1
        width = high[layer]
        while width - failed > max(1, int(resolution * failed)):
            middle = (failed + width) // 2
            if known(at(middle)) <= allowed:
                width = middle
            else:
                failed = middle
        widths = at(width)
    return widths


class Search:
    """A builder of fused networks of any width, which compares them on separate inputs."""

    builder = Builder

    def __init__(
        self, locals_: list[Local], options: Options, divergence: Divergence, matching: Matching
    ):
        self.locals = locals_
        self.options = options
        self.matching = matching
        self.side = divergence
        shares = self.shares()
        kind = options.outputs or ("values" if locals_[0].layers.outputs == 1 else "classes")
        self.fit, self.fresh = (
            Targets(locals_, shares, x, kind == "values") for x in pair_of_inputs(locals_, options)
        )
        self.masses = [masses(self.fit, index) for index in range(len(locals_[0].layers.widths))]

    def shares(self) -> Float[Array, "sites outputs"]:
        """Return the share of each site in each output."""
        return output_shares(self.locals)

    def build(
        self,
        widths: Widths | None,
        labels: Sequence[Labels] | None = None,
        rule: Rule = Rule.BARYCENTER,
    ) -> Combined:
        """Build the fused network of these widths, or of the matching's own; or, with known
        ``labels``, the network of these, with each site's part of it by the ``rule``.
        """
        apart = labels is not None
        pooled = rule is Rule.PRODUCT
        builder = self.builder(self.fit, self.side, self.options.refit, apart, pooled)
        for index, mass in enumerate(self.masses):
            width = None if widths is None else widths[index]
            own = self.labels(builder, index, width) if labels is None else labels[index]
            builder.hidden(own, mass)
        return builder.last()

    def labels(self, builder: Builder, index: int, width: int | None) -> Labels:
        """Return the labels of the units of a hidden layer, by site."""
        if self.matching is Matching.IDENTITY:
            return same_units(self.locals, index, width)
        units = self._units(builder, index) if index else self._first
        return units.by_site(units.labels(self.matching, self.side, width))

    @functools.cached_property
    def _first(self) -> Units:
        """The units of the first hidden layer, which do not depend on the widths."""
        return self._units(Builder(self.fit, self.side, refit=False), 0)

    def _units(self, builder: Builder, index: int) -> Units:
        return Units(self.fit, index, builder.before, builder.size, self.masses[index])

    def result(
        self, combined: Combined, tried: dict[Widths, float], rule: Rule, prior: Network | None
    ) -> NetworkFusion:
        """Return the fusion, with a ledger if priors are known."""
        layers = combined.layers
        ledger = None
        base = fused_prior(self.locals, prior, layers)
        combined = self.build(None, combined.labels, rule)
        if base is None:
            mean, variance = (layers.ravel(combined.arrays(k)) for k in ("mean", "variance"))
            posterior = Network.from_standard(mean, variance, layers)
            layers, kept = combined.kept()
            posterior = beside(posterior, layers, kept.sum(0), RECORD)
        else:
            ledger = as_ledger(combined, self.locals, base, rule)
            posterior = cast(Network, ledger.posterior)
        check_proper(posterior, "the fused posterior")
        shares = {local.name: own for local, own in zip(self.locals, self.fit.shares, strict=True)}
        plates = {}
        priors = {local.name: local.prior for local in self.locals}
        for index, units in enumerate(combined.labels):
            pairs = zip(self.locals, units, strict=True)
            own = {local.name: labels[np.argsort(local.order[index])] for local, labels in pairs}
            cost = incoming_cost(self.locals, combined, index, self.side)
            width = combined.layers.widths[index]
            plates[str(index)] = Alignment(dict(sorted(own.items())), width, cost, ())
        return NetworkFusion(
            posterior=posterior,
            ledger=ledger,
            plates=plates,
            rule=rule,
            divergence=self.side,
            rebased=() if base is None else of_other_prior(priors, base),
            predictive_kl=tried,
            shares=dict(sorted(shares.items())),
            options=self.options,
        )
