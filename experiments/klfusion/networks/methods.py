"""All ways to make one network of several, under the names that tables have.

Averages of weights: unit by unit as numbered, by Fisher information, and matched after FedMA
[wang2020fedma], in one shot: nothing is retrained between layers, and the width is the sites'.
Other ways to fuse than the library's: sites that count alike in every output; outgoing weights
averaged over the sites that have a unit, as in the paper; and no matching.
"""

import functools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment

import posterity
from experiments.data import Array, Images, Integers
from experiments.klfusion.networks.predictions import Predictor, alone, concatenation, ensemble
from posterity.errors import ConvergenceWarning
from posterity.families import Network
from posterity.families.layers import Layers
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching, Rule
from posterity.fusion.networks import Options
from posterity.fusion.networks.combine import Builder, FusedLayer
from posterity.fusion.networks.fuse import Search, widths_wanted
from posterity.fusion.networks.ledgers import as_ledger, fused_prior
from posterity.fusion.networks.targets import Labels, Placed, Targets, in_order
from posterity.fusion.sites import Site
from posterity.inference import Refinement
from posterity.ledger import Ledger
from posterity.models import NeuralNetwork
from posterity.models.forward import outputs

SWEEPS = 5
Arrays = list[dict[str, Any]]


def class_weights(sites: Sequence[Network], priors: Sequence[Network]) -> Array:
    """(sites, classes) precision that weights into an output gained over the prior; mean one."""
    last = lambda q: q.layers.unravel(q.precision)[-1]["kernel"]
    each = [last(q) - last(prior) for q, prior in zip(sites, priors, strict=True)]
    gained = np.stack([np.maximum(own, 0).reshape(-1, own.shape[-1]).sum(0) for own in each])
    return len(sites) * gained / gained.sum(0)


def weighted_average(sites: Sequence[Network], weights: Sequence[Any]) -> Network:
    """Each weight's weighted mean of means and of variances; weights (p,), or one, of each site."""
    total = np.sum(weights, axis=0)
    mean = np.sum([w * s.mean for s, w in zip(sites, weights, strict=True)], axis=0) / total
    variance = np.sum([w * s.variance for s, w in zip(sites, weights, strict=True)], axis=0) / total
    return Network.from_standard(mean, variance, sites[0].layers)


def fisher_information(network: Network, x: Images, key: Any, batch: int = 100) -> Array:
    """(p,) mean squared slope of the log probability of a label that the network itself draws.

    Averaging by it is Fisher merging [matena2022]; ``x`` (n, ...) are a site's own images.
    """
    total, mean = np.zeros(network.layers.size), jnp.asarray(network.mean, jnp.float32)
    for number, start in enumerate(range(0, len(x) - batch + 1, batch)):
        own = jax.random.fold_in(key, number)
        total += np.asarray(_squared_slopes(network.layers, mean, x[start : start + batch], own))
    return total / (len(x) // batch * batch)


@functools.partial(jax.jit, static_argnums=0)
def _squared_slopes(layers: Layers, z: Any, x: Any, key: Any) -> Any:
    drawn = jax.random.categorical(key, outputs(layers, z, x))

    def log_probability(z: Any, image: Any, label: Any) -> Any:
        return jax.nn.log_softmax(outputs(layers, z, image[None])[0])[label]

    each = jax.vmap(jax.grad(log_probability), (None, 0, 0))(z, x, drawn)
    return (each**2).sum(0)


def matched_average(sites: Sequence[Network]) -> Network:
    """Units reordered to agree, layer after layer, then averaged weight by weight.

    Units are compared by their incoming weights and bias with the average over sites.
    """
    layers = sites[0].layers
    ordered = [(layers.unravel(s.mean), layers.unravel(s.variance)) for s in sites]
    for index in range(len(layers) - 1):
        orders = _orders([_incoming(mean[index]) for mean, _ in ordered])
        ordered = [
            tuple(reordered(arrays, layers, index, order) for arrays in own)
            for own, order in zip(ordered, orders, strict=True)
        ]
    mean, variance = (
        np.mean([layers.ravel(arrays) for arrays in own], axis=0)
        for own in zip(*ordered, strict=True)
    )
    return Network.from_standard(mean, variance, layers)


def _incoming(layer: dict[str, Any]) -> Array:
    """(units, weights that come in and the bias)."""
    units = layer["kernel"].shape[-1]
    return np.concatenate([array.reshape(-1, units) for array in layer.values()]).T


def _orders(units: list[Array]) -> list[Array]:
    """For each site the order in which its units (k, d) are nearest to the average of all."""
    average = units[0]
    for _ in range(SWEEPS):
        orders = [linear_sum_assignment(-average @ own.T)[1] for own in units]
        average = np.mean([own[order] for own, order in zip(units, orders, strict=True)], axis=0)
    return orders


def reordered(arrays: Arrays, layers: Layers, index: int, order: Array) -> Arrays:
    """The same network with the units of hidden layer ``index`` in another order."""
    found = [dict(own) for own in arrays]
    found[index] = {name: array[..., order] for name, array in arrays[index].items()}
    after = arrays[index + 1]["kernel"]
    by_unit = after.reshape(layers.by_unit(index + 1))[:, order]
    found[index + 1]["kernel"] = by_unit.reshape(after.shape)
    return found


NEW = 1e-9
"""Share of a unit's variance that others must leave unexplained for it to say anything new."""


class EqualShares(Search):
    """Every site counts alike in every output."""

    def shares(self) -> Array:
        weights = np.array([local.weight for local in self.locals])
        shares = weights[:, None] * np.ones((len(weights), self.locals[0].layers.outputs))
        return shares / shares.sum(0)


class AveragedOverHolders(Builder):
    """Outgoing weights are summed over the shares of those sites that have the unit."""

    def outgoing(self, sites: Iterable[Placed], share: Array) -> FusedLayer:
        sites = list(sites)
        layer = super().outgoing(sites, share)
        counted = [own.has * counts for own, counts in zip(sites, share, strict=True)]
        held = sum(counted)
        variance = sum(own.variance * counts for own, counts in zip(sites, counted, strict=True))
        floor = min(float(own.variance[own.has].min(initial=np.inf)) for own in sites)
        safe = np.where(held > 0, held, 1.0)
        parts = layer.parts / safe
        variance = variance / safe + np.where(held > 0, 0.0, floor)
        return FusedLayer(parts.sum(0), variance, share, parts)


class Published(EqualShares):
    """The paper's combination of matched units."""

    builder = AveragedOverHolders


class Selected(Search):
    """Units of the sites as they are, those that tell most of what comes after."""

    def labels(self, builder: Builder, index: int, width: int | None) -> Labels:
        """Of the first ``width`` in the order of :func:`ranked`; -1 for the others."""
        units = self._units(builder, index)
        labels = np.full(len(units.mass), -1)
        kept = ranked(self.fit, index, units.mass)[:width]
        labels[kept] = np.arange(len(kept))
        return units.by_site(labels)


def ranked(targets: Targets, index: int, mass: Array) -> Array:
    """All units of a layer, those first that explain most beyond the ones before them.

    By orthogonal least squares [chen1989] of what the next layer wants, averaged over places: a
    Cholesky factorisation of the units' covariance that is pivoted by what is explained.
    """
    flat = lambda out: out.mean(tuple(range(1, out.ndim - 1)))
    units = np.concatenate([flat(out) for out in targets.activations(index)], axis=1)
    after = [flat(pre[index + 1]) for pre in targets.pre]
    if index + 2 == len(targets.locals[0].layers):
        after = [sum(a * pre for a, pre in zip(targets.shares, after, strict=True))]
    wanted = np.concatenate(after, axis=1)
    units, wanted = units - units.mean(0), wanted - wanted.mean(0)
    covariance, slope = units.T @ units, units.T @ wanted
    left = covariance.diagonal().copy()
    least = NEW * left
    factor = np.zeros((len(left), len(left)))
    order: list[int] = []
    remaining = left > 0
    for step in range(len(left)):
        remaining &= left > least
        if not remaining.any():
            break
        gain = np.where(remaining, (slope**2).sum(1) / np.where(remaining, left, 1.0), -1.0)
        best = int(gain.argmax())
        remaining[best] = False
        order.append(best)
        column = covariance[best] - factor[:, :step] @ factor[best, :step]
        column /= np.sqrt(left[best])
        slope = slope - np.outer(column, slope[best] / np.sqrt(left[best]))
        factor[:, step] = column
        left = left - column**2
    rest = np.setdiff1d(np.arange(len(left)), order)
    return np.concatenate([np.array(order, int), rest[np.argsort(-mass[rest])]])


def fused_by(
    kind: type[Search],
    sites: Mapping[str, Ledger],
    width: int | tuple[int, ...] | None,
    *,
    refit: bool = True,
    matching: Matching = Matching.EVIDENCE,
) -> Network:
    """The barycenter at this width, or of the width that the matching finds."""
    held = {name: Site(ledger.posterior, ledger.prior) for name, ledger in sites.items()}
    locals_ = in_order(held, np.ones(len(held)))
    search = kind(locals_, Options(refit=refit), Divergence.REVERSE, matching)
    combined = search.build(None if width is None else widths_wanted(width, locals_))
    combined = search.build(None, combined.labels, Rule.BARYCENTER)
    prior: Any = fused_prior(locals_, None, combined.layers)
    # Without costs of matching: a site may have none of the selected units.
    return cast(Network, as_ledger(combined, locals_, prior, Rule.BARYCENTER).posterior)


FUSED = "fused"
PRODUCT = "fused, rule product"
CAPPED = "fused, rule product, 281 units"
WIDTH = 281  # the paper's fused width
CONCATENATED = "concatenation"
WEIGHTED = "concatenation, class weights"
ENSEMBLE = "ensemble of probabilities"
PLAIN, FISHER, MATCHED = "plain average", "Fisher average", "matched average (FedMA, one shot)"
PRUNED = "pruned and refitted, no matching"
PRUNED_ONLY, NOT_REFITTED = "pruned, no matching, no refit", "fused, no refit"
PAPERS = "KL-fusion, the paper's setting"
EQUAL = "fused, sites' shares equal"
POOLED = "pooled"
REFINED, RANDOM = "fused, one round", "random common start, one round"
FISHER_IMAGES, TINY, DEVIATION = 500, 1e-10, 0.02

Sites = Mapping[str, Ledger]
Data = Mapping[str, tuple[Images, Integers]]
"""By site its images and labels, which only baselines and refinement look at."""

Found = dict[str, tuple[Predictor, int]]
"""By method what predicts, and how many hidden units that has."""


def posteriors(sites: Sites) -> list[Any]:
    return [ledger.posterior for ledger in sites.values()]


def of(networks: Mapping[str, Network]) -> Found:
    return {name: (alone(own), sum(own.layers.widths)) for name, own in networks.items()}


def together(sites: Sites) -> Found:
    networks, priors = posteriors(sites), [ledger.prior for ledger in sites.values()]
    units = sum(sum(network.layers.widths) for network in networks)
    return {
        CONCATENATED: (concatenation(networks), units),
        WEIGHTED: (concatenation(networks, class_weights(networks, priors)), units),
        ENSEMBLE: (ensemble(networks), units),
    }


def averages(sites: Sites, data: Data, seed: int) -> Found:
    """Averages of networks of one shape; none where sites have different ones."""
    networks = posteriors(sites)
    if len({network.layers for network in networks}) > 1:
        return {}
    information = [
        fisher_information(network, x[:FISHER_IMAGES], jax.random.key(seed)) + TINY
        for network, (x, _) in zip(networks, data.values(), strict=True)
    ]
    plain = weighted_average(networks, [1.0] * len(networks))
    fisher = weighted_average(networks, information)
    return of({PLAIN: plain, FISHER: fisher, MATCHED: matched_average(networks)})


def capped(sites: Sites) -> Any:
    """The product at the paper's width, or of all units there are."""
    units = sum(network.layers.widths[0] for network in posteriors(sites))
    return posterity.fuse(sites, components=min(WIDTH, units), rule="product").posterior


def fused_otherwise(sites: Sites, width: int | tuple[int, ...]) -> Found:
    """At the width that was found: other ways to fuse."""
    options = {"components": width, "rule": "barycenter", "networks": Options(refit=False)}
    return of(
        {
            NOT_REFITTED: posterity.fuse(sites, **options).posterior,
            EQUAL: fused_by(EqualShares, sites, width),
            PRUNED: fused_by(Selected, sites, width),
            PRUNED_ONLY: fused_by(Selected, sites, width, refit=False),
        }
    )


def published(sites: Sites) -> Found:
    """The paper's matching and width, outgoing weights averaged over those that have the unit."""
    options = {"refit": False, "matching": Matching.KL_FUSION}
    return of({PAPERS: fused_by(Published, sites, None, **options)})


def refined(start: Any, data: Data, *, steps: int, rate: float, seed: int) -> Any:
    """One round: every site trains on from the shared posterior, the results are averaged."""
    flat = {name: (x.reshape(len(x), -1), y) for name, (x, y) in data.items()}
    model = NeuralNetwork.of_layers(start.prior.layers)
    update = Refinement(steps=steps, learning_rate=rate)
    options = {"update": update, "steps": 1, "key": jax.random.key(seed)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of one round, as is wanted
        return posterity.federate(flat, model, start, **options).posterior


def random_start(like: Network, seed: int) -> Ledger:
    """A network of random weights that all sites begin with: no fusion."""
    layers, rng = like.layers, np.random.default_rng(seed)
    arrays = layers.unravel(np.zeros(layers.size))
    for own, layer in zip(arrays, layers.layers, strict=True):
        inputs = np.prod(layer.kernel[:-1])
        own["kernel"] = rng.normal(0, np.sqrt(2 / inputs), layer.kernel)
    start = Network.from_standard(layers.ravel(arrays), np.full(layers.size, DEVIATION**2), layers)
    return Ledger(start)
