"""ArviZ: draws of any law of the library, for its summaries, diagnostics and plots.

ArviZ 0.x returns an ``InferenceData`` and 1.x an xarray ``DataTree``, both from its own
``from_dict``. Tested with 0.23 and 1.3.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from posterity.adapters.shared import library
from posterity.arguments import COUNT
from posterity.arrays.typing import KeyArray, Shape
from posterity.families.checks import check_prior
from posterity.families.distribution import Distribution
from posterity.families.names import checked
from posterity.families.transformed import Transformed
from posterity.runtime.lazy import jax
from posterity.runtime.programs import jitted

SEPARATOR = "."
"""Separator between the name of a block and of its parts; in a ``DataTree`` a slash is a path."""
EVENT = "z"
"""Name of the variable of an event without blocks."""


def to_arviz(
    posterior: Any,
    *,
    key: KeyArray,
    chains: int = 4,
    draws: int = 1000,
    names: Sequence[str] | None = None,
) -> Any:
    """Draw independent samples of a posterior as ArviZ data, in the layout of a sampler's chains.

    Variables are named after the blocks of an event; nested blocks are ``outer.inner``, parts of a
    tuple have their numbers, and an event that is one array is ``z``. Axes of events are named
    ``NAME_dim_0`` and so on, and their coordinates are the law's names.

    Args:
        posterior: one proper law, or an object whose ``posterior`` is one, such as a ledger.
        key: JAX key; equal keys give equal draws.
        chains: number of chains that the draws are divided into; all draws are independent.
        draws: number of draws of each chain.
        names: names for the entries of an event that is one vector, such as the columns of a
            regression; each becomes a variable. By default the law's names label one variable.

    Returns:
        An ``InferenceData``, or with ArviZ 1.0 and later a ``DataTree``, whose group ``posterior``
        holds the draws; each variable has shape (chains, draws, ...). Raises a UsageError for
        anything but a single proper law, and a StructureError for names that do not fit.
    """
    arviz = library("arviz", extra="arviz")
    COUNT.check(chains=chains, draws=draws)
    if not isinstance(posterior, Distribution):
        posterior = getattr(posterior, "posterior", posterior)
    check_prior(posterior, "a posterior")
    with jax.enable_x64(True):
        drawn = jax.device_get(_drawn(posterior, key, (chains, draws)))
    coords = {}
    dims = {}
    if names is None:
        parts = jax.tree_util.tree_leaves_with_path(drawn)

        def path(keys):
            return jax.tree_util.keystr(keys, simple=True, separator=SEPARATOR)

        variables = {path(keys) or EVENT: part for keys, part in parts}
        for name, axes in labels_of(posterior).items():
            shape = variables[name].shape[2:] if name in variables else ()
            if not shape or not any(axes):
                continue
            dims[name] = [f"{name}_dim_{place}" for place in range(len(shape))]
            # A law within a plate may have fewer axes than a draw of the plate.
            labelled = zip(dims[name], shape, axes, strict=False)
            coords |= {axis: list(own) for axis, size, own in labelled if len(own) == size}
    else:
        vector = isinstance(drawn, np.ndarray) and drawn.ndim == 3
        names = checked(names, drawn.shape[2] if vector else None, posterior)
        variables = {name: drawn[..., place] for place, name in enumerate(names)}
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict({"posterior": variables}, coords=coords, dims=dims)
    return arviz.from_dict(posterior=variables, coords=coords, dims=dims)


@functools.partial(jitted, static_argnums=2)
def _drawn(law: Distribution, key: KeyArray, shape: Shape) -> Any:
    return law.sample(key, shape)


Axes = tuple[tuple[str, ...], ...]
"""Labels along each axis of an event; empty for an axis without labels."""


def labels_of(law: Any, path: str = "") -> dict[str, Axes]:
    """Return the labels that a law's names give to the variables of :func:`to_arviz`.

    >>> from posterity.families import Gaussian
    >>> labels_of(Gaussian.from_standard([0.0], [[1.0]]).named(["age"]))
    {'z': (('age',),)}
    """

    def under(name):
        return f"{path}{SEPARATOR}{name}" if path else str(name)

    if law.is_mixture:
        return labels_of(law.components, path)
    if law.is_plate:
        own = law.names if isinstance(law.names, tuple) else law.names.get("", ())
        inner = labels_of(law.members, under(0))
        result = {name: (own, *axes) for name, axes in inner.items()}
        return {under(0): (own,), under(1): (own,), **result}
    if law.composed:
        parts = (labels_of(block, under(name)).items() for name, block in law.blocks.items())
        return dict(itertools.chain(*parts))
    if law.unmapped[1] is not None:
        return _of_sites(law, path, under)
    return {path or EVENT: (law.names,)} if law.names and not isinstance(law.names, dict) else {}


def _of_sites(law: Transformed, path: str, under: Callable[[Any], str]) -> dict[str, Axes]:
    """Return the bracketed labels of sites that are vectors with no map that changes their length.

    The names are those of the unconstrained coordinates, or of the law over them.
    """
    names = law.names or getattr(law.law, "names", ())
    tree = law.supports.tree
    if not names or isinstance(names, dict):
        return {}
    if not isinstance(tree, dict):
        return {path or EVENT: (tuple(names),)} if len(tree.shape) == 1 else {}
    result = {}
    begin = 0
    for site, support in tree.items():
        shape = support.free_shape
        chunk = names[begin : (begin := begin + math.prod(shape))]
        prefix = f"{site}["
        whole = len(shape) == 1 and shape == support.shape
        if whole and all(name.startswith(prefix) and name.endswith("]") for name in chunk):
            result[under(site)] = (tuple(name[len(prefix) : -1] for name in chunk),)
    return result
