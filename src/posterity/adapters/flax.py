"""flax: a trained module and its data as a law of its weights, and back to its parameters.

Laplace's approximation at the weights that were found; see :mod:`posterity.adapters.fisher` for the
Fisher information that is taken. Tensors go by their paths, ``Dense_0.kernel``. linen and nnx; for
other libraries on JAX there is :func:`from_params`, which takes any tree of parameters and any
function. Tested with flax 0.12.
"""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from posterity.adapters import fisher as core
from posterity.adapters.shared import Laws, library, unsupported
from posterity.arrays.typing import KeyArray
from posterity.errors import StructureError
from posterity.families import Distribution, Gaussian, Product
from posterity.ledger import Ledger

Apply = Callable[[Any, Any], Any]
"""A function of parameters and inputs (n, ...) that gives the outputs (n, K)."""


def from_module(
    module: Any, x: ArrayLike, y: ArrayLike, *, variables: Any = None, **task: Unpack[core.Options]
) -> Product | Gaussian:
    """The law of a trained module's weights, by Laplace's approximation.

    Args:
        module: of ``flax.linen``, or of ``flax.nnx``, which is taken in evaluation mode. It gives a
            row of outputs for each input: logits of the classes (one column: log odds of class
            1), or values.
        x: inputs (n, ...).
        y: class numbers (n,), or values (n, k).
        variables: of a linen module ``{"params": ...}``, with collections such as ``batch_stats``
            if it has them; or the parameters alone.
        task: as :class:`~posterity.adapters.fisher.Task` explains it.

    Returns:
        The law that :mod:`posterity.adapters.fisher` describes; its errors and warnings are those
        of :func:`posterity.adapters.fisher.laws`, and a UsageError for what is no module.

    >>> import flax.linen as nn
    >>> x, y = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([-1.9, -1.1, 1.1, 1.9])
    >>> params = {"kernel": np.array([[1.0]]), "bias": np.array([0.0])}
    >>> q = from_module(nn.Dense(1), x, y, variables=params, likelihood="regression",
    ...                 noise_variance=0.01, prior_precision=1.0)
    >>> {name: block.mean.round(3).tolist() for name, block in q.blocks.items()}
    {'bias': [0.0], 'kernel': [1.0]}
    """
    return from_params(*_parts(module, variables), x, y, **task)


def to_ledger(
    module: Any,
    site: str,
    x: ArrayLike,
    y: ArrayLike,
    *,
    variables: Any = None,
    **task: Unpack[core.Options],
) -> Ledger:
    """The same as the ledger of one site: its prior, and what the data said.

    Weights of networks that were trained apart from other beginnings do not correspond, whatever
    their names: for that, make a :class:`posterity.Network` by
    :func:`posterity.networks.from_pytree` of :func:`to_params` at means and variances, and
    :func:`posterity.fuse` those. Arguments and errors are those of :func:`from_module`.
    """
    return _laws(*_parts(module, variables), x, y, core.Task(**task)).ledger(site)


def from_params(
    params: Any, apply: Apply, x: ArrayLike, y: ArrayLike, **task: Unpack[core.Options]
) -> Product | Gaussian:
    """The same of any tree of parameters, and ``apply(params, x)`` on a batch of inputs."""
    return _laws(params, apply, x, y, core.Task(**task)).posterior


def to_params(
    law: Distribution, like: Any, *, at: str = core.MEAN, key: KeyArray | None = None
) -> Any:
    """A law's mean (``at="variance"``: its variances), or with a JAX ``key`` a draw, as parameters.

    They are like those of ``like``, a linen module's parameters, any tree, or a module of nnx, of
    which a copy comes back: what the law does not hold is as there, and all is of its types. Other
    tensors or shapes are a StructureError.
    """
    import jax

    nnx = _flax().nnx
    if isinstance(like, nnx.Module):
        graph, params, rest = nnx.split(like, nnx.Param, ...)
        new = to_params(law, nnx.to_pure_dict(params), at=at, key=key)
        nnx.replace_by_pure_dict(params, new)
        return nnx.merge(graph, params, rest, copy=True)
    leaves, structure = _flat(like)
    tensors = core.tensors_of(law, {n: np.shape(leaf) for n, leaf in leaves.items()}, at, key)
    new = []
    for name, leaf in leaves.items():
        value = tensors[name].astype(np.asarray(leaf).dtype) if name in tensors else leaf
        new.append(jax.numpy.asarray(value) if isinstance(leaf, jax.Array) else value)
    return jax.tree.unflatten(structure, new)


def _flax() -> Any:
    return library("flax.linen", "flax.nnx", extra="flax")


def _parts(module: Any, variables: Any) -> tuple[Any, Apply]:
    import jax

    nnx, linen = _flax().nnx, _flax().linen
    if isinstance(module, nnx.Module):
        graph, params, rest = nnx.split(module, nnx.Param, ...)

        def apply(tree: Any, x: Any) -> Any:
            own = jax.tree.map(lambda leaf: leaf, params)  # a copy, which is filled
            nnx.replace_by_pure_dict(own, tree)
            made: Any = nnx.merge(graph, own, rest, copy=True)
            made.eval()
            return made(x)

        return nnx.to_pure_dict(params), apply
    if not isinstance(module, linen.Module) or not isinstance(variables, Mapping) or not variables:
        expected = (
            "flax.linen or flax.nnx, with variables= of linen, which does not hold its weights"
        )
        fix = "Pass variables={'params': params}, or call from_params(params, apply, x, y, ...)."
        raise unsupported(module, expected, fix)
    params = variables.get("params", variables)
    rest = {name: v for name, v in variables.items() if "params" in variables and name != "params"}
    return params, lambda tree, x: module.apply({"params": tree, **rest}, x)


def _flat(tree: Any) -> tuple[dict[str, Any], Any]:
    import jax

    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
    leaves = {name(path): leaf for path, leaf in pairs}
    strange = [n for n, leaf in leaves.items() if not _is_float(leaf)]
    if strange or not leaves:
        raise StructureError(
            found=f"parameters {strange} that are no floating-point arrays, of {list(leaves)}",
            expected="a tree of arrays of weights",
            fix="Pass the parameters alone, without counters and keys.",
        )
    return leaves, structure


def _laws(params: Any, apply: Apply, x: ArrayLike, y: ArrayLike, task: core.Task) -> Laws:
    import jax
    import jax.numpy as jnp

    leaves, structure = _flat(params)
    wanted = set(task.tensors(leaves))
    own = {n: jax.device_put(leaf) for n, leaf in leaves.items() if n in wanted}
    inputs = jnp.asarray(x, next(iter(own.values())).dtype if _is_float(x) else None)

    def compute(weights: dict[str, Any], batch: Any) -> Any:
        return apply(jax.tree.unflatten(structure, list((leaves | weights).values())), batch)

    def one(weights: dict[str, Any], record: Any) -> Any:
        made = compute(weights, record[None])[0]
        return made, made

    each = jax.jit(jax.vmap(jax.jacrev(one, has_aux=True), in_axes=(None, 0)))

    def jacobians(part: slice) -> tuple[np.ndarray, np.ndarray]:
        slopes, made = each(own, inputs[part])
        flat = [np.asarray(slopes[n], np.float64).reshape(*made.shape, -1) for n in own]
        return np.asarray(made), np.concatenate(flat, axis=2)

    tensors = {name: np.asarray(value, np.float64) for name, value in own.items()}
    return core.laws(task, tensors, np.asarray(jax.jit(compute)(own, inputs)), jacobians, y)


def _is_float(x: object) -> bool:
    """True of numbers with fractions, half precision of JAX among them."""
    import jax

    return bool(jax.numpy.issubdtype(np.asarray(x).dtype, jax.numpy.floating))
