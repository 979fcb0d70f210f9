"""All ways to make one network of several, under the names that tables have."""

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import posterity
from experiments.data import Images, Integers
from experiments.klfusion.networks.averages import (
    class_weights,
    fisher_information,
    matched_average,
    weighted_average,
)
from experiments.klfusion.networks.other_fusions import EqualShares, Published, Selected, fused_by
from experiments.klfusion.networks.predictions import Predictor, alone, concatenation, ensemble
from posterity.errors import ConvergenceWarning
from posterity.families import Network
from posterity.fusion.matching import Matching
from posterity.fusion.networks import Options
from posterity.inference import Refinement
from posterity.ledger import Ledger
from posterity.models import NeuralNetwork

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
    networks = {
        NOT_REFITTED: posterity.fuse(sites, **options).posterior,
        EQUAL: fused_by(EqualShares, sites, width),
        PRUNED: fused_by(Selected, sites, width),
        PRUNED_ONLY: fused_by(Selected, sites, width, refit=False),
    }
    return of(networks)


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
    """A network of random weights that all sites begin with: no fusion.

    Means are drawn from the usual law of initial weights; deviations are those that training starts
    from.
    """
    layers, rng = like.layers, np.random.default_rng(seed)
    arrays = layers.unravel(np.zeros(layers.size))
    for own, layer in zip(arrays, layers.layers, strict=True):
        inputs = np.prod(layer.kernel[:-1])
        own["kernel"] = rng.normal(0, np.sqrt(2 / inputs), layer.kernel)
    start = Network.from_standard(layers.ravel(arrays), np.full(layers.size, DEVIATION**2), layers)
    return Ledger(start)
