"""Components of a posterior with their weights, and layers of its networks."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.typing import Float
from posterity.families.distribution import Distribution, Members
from posterity.families.formulas import NORMAL
from posterity.families.marginals import Closed, Names, numbered, same_shape
from posterity.families.names import joined


class Component(NamedTuple):
    """A component of a posterior, or of its ``block`` at a path.

    Attributes:
        kind: ``component``, ``member``, ``state`` or ``topic``.
        name: the component's name, or its number.
        weight: expected weight; for a state the fraction of time steps spent in it, prior counts
            included; None without weights.
        weight_sd: standard deviation of the weight, if there is a posterior over it.
        mean: expected mean (d,) of the component's observations, if it emits Gaussian vectors.
        covariance: expected covariance (d, d), or variances (d,); NaN if it does not exist.
        top: the most probable words or symbols, each with its expected probability.
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
    """Statistics of the weights of layer ``number`` of a network, or of one ``member`` of several.

    ``kind`` is the type of the layer, ``weights`` their number, ``size`` the root mean square of
    the means, ``sd`` the median standard deviation, and ``sure`` the fraction of weights whose
    interval excludes zero.
    """

    block: str
    member: str
    number: int
    kind: str
    weights: int
    size: float
    sd: float
    sure: float


def components_of(
    law: Distribution, names: Names, path: str = "", block: str = ""
) -> Iterator[Component]:
    """Yield the components of plates, mixtures and hidden Markov models; none for batches."""
    if law.batch_shape:
        return
    members = law.exchangeable_members()
    if members is not None:
        yield from _members(members, names, path, block)
        return
    for name, part in law.named_parts().items():
        inner = f"{block}/{name}" if block else name
        yield from components_of(part, names, joined(path, name), inner)


def _members(members: Members, names: Names, path: str, block: str) -> Iterator[Component]:
    laws = members.laws
    labels = _labels(members, names, path)
    proper = bool(np.all(laws.is_proper()))
    moments = laws.expected_moments() if proper else None
    tops = _tops(laws, names.get(_under(path, members.path), ())) if proper else []
    topic = tops and members.kind == "member" and members.weights is None
    kind = "topic" if topic else members.kind

    def at(values, k):
        return None if values is None else float(values[k])

    for k, label in enumerate(labels):
        mean, covariance = (None, None) if moments is None else (part[k] for part in moments)
        weight = at(members.weights, k)
        sd = at(members.weight_sd, k)
        top = tops[k] if tops else ()
        yield Component(block, kind, label, weight, sd, mean, covariance, top)


def _labels(members: Members, names: Names, path: str) -> tuple[str, ...]:
    own = () if members.labels is None else names.get(_under(path, members.labels), ())
    return own or numbered(members.laws.batch_shape[-1])


def _under(path: str, inner: str) -> str:
    return "/".join(filter(None, (path, inner)))


def _tops(
    members: Any, words: tuple[str, ...], most: int = 10
) -> list[tuple[tuple[str, float], ...]]:
    """Return the most probable symbols of each member; nothing if members emit no symbols."""
    if not getattr(members, "emits_symbols", False):
        return []
    concentration: Float[np.ndarray, "k symbols"] = np.asarray(members.concentration, float)
    mean = concentration / concentration.sum(-1, keepdims=True)
    words = words or numbered(mean.shape[-1])
    order = np.argsort(-mean, axis=-1, kind="stable")[:, :most]
    pairs = zip(mean, order, strict=True)
    return [tuple((words[i], float(own[i])) for i in best) for own, best in pairs]


def layers_of(
    law: Distribution, names: Names, level: float, path: str = "", block: str = "", member: str = ""
) -> Iterator[Layer]:
    """Yield the layers of every network in a posterior."""
    if law.network_layers is not None:
        yield from _of_networks(law, level, block, member)
        return
    members = law.exchangeable_members()
    if members is None:
        for name, part in law.named_parts().items():
            inner = f"{block}/{name}" if block else name
            yield from layers_of(part, names, level, joined(path, name), inner)
    elif _has_networks(members.laws) and len(members.laws.batch_shape) == 1:
        for k, label in enumerate(_labels(members, names, path)):
            inner = _under(path, members.path)
            yield from layers_of(members.laws[k], names, level, inner, block, label)


def _has_networks(law: Distribution) -> bool:
    return law.network_layers is not None or any(map(_has_networks, law.named_parts().values()))


def _of_networks(law: Any, level: float, block: str, member: str) -> Iterator[Layer]:
    for index in np.ndindex(*law.batch_shape):
        one = law[index] if index else law
        with np.errstate(all="ignore"):
            mean, sd = same_shape(one.mean, np.sqrt(one.variance))
            low, high = Closed(NORMAL, (mean, sd)).interval(level)
        which = ", ".join(filter(None, (member, *map(str, index))))
        pairs = zip(law.network_layers.layers, law.network_layers.plain.places, strict=True)
        for number, (layer, places) in enumerate(pairs):
            at = np.concatenate([np.arange(p.start, p.stop) for p in places.values()])
            sure = ((low[at] > 0) | (high[at] < 0)).mean()
            size = np.sqrt((mean[at] ** 2).mean())
            spread = np.median(sd[at])
            numbers = map(float, (size, spread, sure))
            yield Layer(block, which, number, _kind(layer), len(at), *numbers)


def _kind(layer: Any) -> str:
    window = "x".join(map(str, getattr(layer, "window", ())))
    what = " ".join(filter(None, (type(layer).__name__, window)))
    return f"{what} {layer.inputs} to {layer.outputs}, {layer.activation}"
