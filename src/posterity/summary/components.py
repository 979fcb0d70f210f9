"""What a posterior is made of: components with their weights, and layers of networks."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from posterity.families import (
    HiddenMarkov,
    LowRankGaussian,
    Mixture,
    Network,
    NormalGamma,
    NormalWishart,
    Plate,
    Product,
)
from posterity.families.emitting import EmittingSymbols
from posterity.families.gaussian import AnyGaussian
from posterity.summary.marginals import Normal, same_shape
from posterity.summary.tables import Names, joined, numbers

TOP = 10
"""Words by which a topic is known."""


class Component(NamedTuple):
    """One of what a posterior, or a block of it, is made of.

    Attributes:
        block: path of the block, ``""`` without blocks.
        kind: ``component``, ``member``, ``state`` or ``topic``.
        name: its own, or its number.
        weight: expected weight; of a state the share of time steps spent there, prior counts
            included; None where there are no weights.
        weight_sd: standard deviation of the weight, where there is a posterior over it.
        mean: expected mean (d,) of what it emits, where it is about a Gaussian.
        covariance: expected covariance (d, d), or variances (d,); NaN where there is none.
        top: the most probable words, or symbols, each with its expected probability.
    """

    block: str
    kind: str
    name: str
    weight: float | None
    weight_sd: float | None
    mean: np.ndarray | None
    covariance: np.ndarray | None
    top: tuple[tuple[str, float], ...]


class Layer(NamedTuple):
    """The weights of one layer of a network, all together.

    Attributes:
        block: path of the block, ``""`` without blocks.
        member: of several networks, the one, by name or number.
        number: of the layer, from 0.
        kind: what the layer is, in words.
        weights: how many there are.
        size: root mean square of the means.
        sd: the median standard deviation.
        sure: share of the weights whose interval does not hold zero.
    """

    block: str
    member: str
    number: int
    kind: str
    weights: int
    size: float
    sd: float
    sure: float


def components_of(law: Any, names: Names, path: str = "", block: str = "") -> Iterator[Component]:
    """Those of plates, mixtures and hidden Markov models; none of batches."""
    if getattr(law, "batch_shape", ()):
        return
    if isinstance(law, HiddenMarkov):
        yield from _states(law, names, path, block)
    elif isinstance(law, Product):
        for name, part in law.blocks.items():
            yield from components_of(part, names, joined(path, name), joined(block, name))
    elif isinstance(law, Plate):
        weights = (None, None) if law.weights is None else _weights(law.weights)
        labels = names.get(path) or numbers(law.size)
        yield from _each(law.members, names, joined(path, "members"), block, labels, weights)
    elif isinstance(law, Mixture):
        weights = (np.asarray(law.weights, float), None)
        inner = joined(path, "components")
        labels = numbers(law.size)
        yield from _each(law.components, names, inner, block, labels, weights, "component")


def _states(law: HiddenMarkov, names: Names, path: str, block: str) -> Iterator[Component]:
    emissions: Any = law.blocks["emissions"]
    labels = names.get(joined(path, "emissions")) or numbers(law.states)
    spent = law.occupancy()
    inner = joined(path, "emissions", "members")
    weights = (spent / max(spent.sum(), np.finfo(float).tiny), None)
    yield from _each(emissions.members, names, inner, block, labels, weights, "state")


def _weights(weights: Any) -> tuple[Any, Any]:
    from posterity.summary.tables import _weights as law_of

    law = law_of(weights)
    return law.mean, law.sd


def _each(
    members: Any,
    names: Names,
    path: str,
    block: str,
    labels: tuple[str, ...],
    weights: tuple[Any, Any],
    kind: str = "member",
) -> Iterator[Component]:
    about = _about(members)
    tops = _tops(members, names.get(path, ()))
    kind = "topic" if tops and kind == "member" and weights[0] is None else kind
    at = lambda values, k: None if values is None else values[k]
    for k, label in enumerate(labels):
        weight, sd = (None if w is None else float(w[k]) for w in weights)
        yield Component(
            block,
            kind,
            label,
            weight,
            sd,
            at(about[0], k),
            at(about[1], k),
            tops[k] if tops else (),
        )


def _about(members: Any) -> tuple[Any, Any]:
    """Expected means and covariances of Gaussians that members are, or are about."""
    if not np.all(members.is_proper()):
        return None, None
    if isinstance(members, NormalWishart):
        left = np.asarray(members.degrees_of_freedom, float) - members.own_size - 1
        left = np.where(left > 0, left, np.nan)[..., None, None]
        return np.asarray(members.mean, float), np.asarray(members.inverse_scale, float) / left
    if isinstance(members, NormalGamma):
        left = np.asarray(members.degrees_of_freedom, float) - 2
        return np.asarray(members.mean, float), np.asarray(members.inverse_scale) / np.where(
            left > 0, left, np.nan
        )
    if isinstance(members, AnyGaussian) and not isinstance(members, Network):
        mean, spread = members.moments
        return np.asarray(mean, float), np.asarray(spread, float)
    if isinstance(members, LowRankGaussian):
        return np.asarray(members.mean, float), np.asarray(members.covariance, float)
    return None, None


def _tops(members: Any, words: tuple[str, ...]) -> list[tuple[tuple[str, float], ...]]:
    if not isinstance(members, EmittingSymbols) or not np.all(members.is_proper()):
        return []
    concentration = np.asarray(members.concentration, float)
    mean = concentration / concentration.sum(-1, keepdims=True)
    words = words or numbers(mean.shape[-1])
    order = np.argsort(-mean, axis=-1, kind="stable")[:, :TOP]
    return [
        tuple((words[i], float(own[i])) for i in best)
        for own, best in zip(mean, order, strict=True)
    ]


# --- networks ------------------------------------------------------------------------------------


def layers_of(law: Any, names: Names, level: float, path: str = "", block: str = "",
              member: str = "") -> Iterator[Layer]:  # fmt: skip
    """Of every network in a posterior, layer by layer."""
    if isinstance(law, Network):
        yield from _of_networks(law, level, block, member)
    elif isinstance(law, Product):
        for name, part in law.blocks.items():
            yield from layers_of(part, names, level, joined(path, name), joined(block, name))
    elif isinstance(law, Plate | Mixture):
        field = "members" if isinstance(law, Plate) else "components"
        inner, labels = getattr(law, field), names.get(path) or numbers(law.size)
        if not isinstance(inner, Network | Product) or inner.batch_shape != (law.size,):
            return
        for k, label in enumerate(labels):
            yield from layers_of(inner[k], names, level, joined(path, field), block, label)


def _of_networks(law: Network, level: float, block: str, member: str) -> Iterator[Layer]:
    for index in np.ndindex(*law.batch_shape):
        one = law[index] if index else law
        with np.errstate(all="ignore"):
            mean, sd = same_shape(one.mean, np.sqrt(one.variance))
            low, high = Normal(mean, sd).interval(level)
        which = ", ".join(filter(None, (member, *map(str, index))))
        for number, (layer, places) in enumerate(
            zip(law.layers.layers, law.layers.places, strict=True)
        ):
            at = np.concatenate([np.arange(p.start, p.stop) for p in places.values()])
            sure = ((low[at] > 0) | (high[at] < 0)).mean()
            size, spread = np.sqrt((mean[at] ** 2).mean()), np.median(sd[at])
            yield Layer(
                block, which, number, _kind(layer), len(at), *map(float, (size, spread, sure))
            )


def _kind(layer: Any) -> str:
    window = "x".join(map(str, getattr(layer, "window", ())))
    what = " ".join(filter(None, (type(layer).__name__, window)))
    return f"{what} {layer.inputs} to {layer.outputs}, {layer.activation}"
