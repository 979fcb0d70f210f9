"""Marginals of laws of bounded events: monotone maps of numbers, and draws of all else."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from posterity.families import LowRankGaussian, Mixture, Transformed
from posterity.families.gaussian import AnyGaussian
from posterity.families.supports import (
    PositiveDefiniteMatrices,
    PositiveNumbers,
    RealNumbers,
    UnitInterval,
)
from posterity.summary import marginals as m
from posterity.summary import mixed

DRAWS = 4096
"""Of events that are no numbers one by one, such as covariances."""
MAPS: dict[type, type] = {
    RealNumbers: m.Normal,
    PositiveNumbers: m.Exponential,
    UnitInterval: m.Logistic,
}


def parts_of_event(
    law: Transformed, names: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...], m.Marginal]]:
    """Path, names and marginals of each part of the event, (..., n).

    Quantiles of numbers are those of the Gaussian below, mapped. What is mapped together, such as
    probabilities and covariances, is drawn 4,096 times, always with the same seed.
    """
    proper = bool(np.all(law.is_proper()))
    draws, start = None, 0
    for path, support in _places(law.supports.tree, ""):
        count = int(np.prod(support.free_shape, dtype=int))
        own, stop = names[start : start + count], start + count
        kind = MAPS.get(type(support))
        if kind is None:
            draws = _events(law, proper) if draws is None else draws
            values = _numbers(support, _at(draws, path), len(law.batch_shape))
            found = mixed.Drawn(values) if proper else m.unknown(values.shape[1:])
            yield path, _labels(support, values.shape[-1]), found
        else:
            path, own = _known(path, own) if own else _called(path, support)
            found = _mapped(law.law, kind, slice(start, stop)) if proper else None
            yield path, own, found or m.unknown((*law.batch_shape, count))
        start = stop


def _places(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Supports in the order in which their numbers lie."""
    if isinstance(tree, dict | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for name, part in items:
            yield from _places(part, f"{path}/{name}" if path else str(name))
    elif tree is not None:
        yield path, tree


def _known(path: str, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Names that begin with their part's, ``sigma`` or ``beta[0]``, say where they are."""
    head, _, last = path.rpartition("/")
    told = last and all(name == last or name.startswith(f"{last}[") for name in names)
    return (head if told else path), names


def _called(path: str, support: Any) -> tuple[str, tuple[str, ...]]:
    """A number goes by its part's name, several by their places in it."""
    if not support.shape:
        head, _, last = path.rpartition("/")
        return head, (last or "0",)
    return path, tuple(
        str(i[0]) if len(i) == 1 else str(i).replace(",)", ")") for i in np.ndindex(*support.shape)
    )


def _mapped(law: Any, kind: type, where: slice) -> m.Marginal:
    """Of some coordinates of a law of real vectors."""
    if isinstance(law, Mixture):
        return mixed.Mixed(np.asarray(law.weights, float), _mapped(law.components, kind, where))
    if isinstance(law, LowRankGaussian):
        variance = np.asarray(law.variance) + (np.asarray(law.factor) ** 2).sum(-1)
    elif isinstance(law, AnyGaussian):
        spread = law.moments.spread
        variance = spread if law.diagonal else np.diagonal(spread, axis1=-2, axis2=-1)
    else:
        shape = (*law.batch_shape, *law.event_shape)
        return m.unknown(shape).picked((..., where))
    return kind(*m.same_shape(law.mean, np.sqrt(variance))).picked((..., where))


def _events(law: Transformed, proper: bool) -> Any:
    """Draws of the event; of an improper law only their shapes mean something."""
    blank = np.zeros((1, *law.batch_shape, *law.law.event_shape))
    flat = _vectors(law.law, np.random.default_rng(0)) if proper else blank
    bijection = law.bijection
    return bijection.forward(bijection.unravel(flat))


def _vectors(law: Any, rng: np.random.Generator) -> np.ndarray:
    """Draws of a law of real vectors, (n, ..., d), without JAX."""
    shape = (DRAWS, *law.batch_shape, *law.event_shape)
    if isinstance(law, Mixture):
        each = _vectors(law.components, rng)
        chosen = rng.choice(law.size, DRAWS, p=np.asarray(law.weights, float))
        return each[np.arange(DRAWS), chosen]
    if isinstance(law, LowRankGaussian):
        few = rng.standard_normal((*shape[:-1], law.rank, 1))
        many = np.sqrt(np.asarray(law.variance)) * rng.standard_normal(shape)
        return np.asarray(law.mean) + (np.asarray(law.factor) @ few)[..., 0] + many
    if isinstance(law, AnyGaussian):
        noise, spread = rng.standard_normal(shape), law.moments.spread
        if law.diagonal:
            return np.asarray(law.mean) + np.sqrt(spread) * noise
        factor = np.linalg.cholesky(np.asarray(spread, float))
        return np.asarray(law.mean) + (factor @ noise[..., None])[..., 0]
    return np.full(shape, np.nan)


def _at(tree: Any, path: str) -> Any:
    for part in path.split("/") if path else []:
        tree = tree[int(part)] if isinstance(tree, tuple) else tree[part]
    return tree


def _numbers(support: Any, values: Any, batch: int) -> np.ndarray:
    """All numbers of one part on the last axis, of symmetric matrices each once."""
    values = np.asarray(values, float)
    if isinstance(support, PositiveDefiniteMatrices):
        rows, columns = np.triu_indices(support.shape[-1])
        values = values[..., rows, columns]
    return values.reshape((*values.shape[: 1 + batch], -1))


def _labels(support: Any, count: int) -> tuple[str, ...]:
    if isinstance(support, PositiveDefiniteMatrices):
        rows, columns = np.triu_indices(support.shape[-1])
        inner = [f"({i}, {j})" for i, j in zip(rows, columns, strict=True)]
    else:
        inner = [str(i) for i in range(support.shape[-1])] if support.axes else [""]
    outer = [", ".join(map(str, index)) for index in np.ndindex(*support.outer)]
    found = tuple(" ".join(filter(None, (o, i))) or "0" for o in outer for i in inner)
    return found if len(found) == count else tuple(map(str, range(count)))
