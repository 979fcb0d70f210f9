"""flax: a trained module and its data as a law of its weights, and back to parameters.

The law is Laplace's approximation at the trained weights; see :mod:`posterity.adapters.fisher` for
the Fisher information. Tensors are named by their paths, ``Dense_0.kernel``. Both linen and nnx are
supported. For other libraries on JAX use :func:`from_params`, which takes any tree of parameters
and any function. Tested with flax 0.12.
"""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from posterity.adapters import fisher as core
from posterity.adapters.shared import Laws, library, unsupported
from posterity.arrays.typing import KeyArray
from posterity.errors import StructureError
from posterity.families import Distribution, Gaussian, Product
from posterity.ledger import Ledger
from posterity.runtime.programs import jitted

CALLS = ("pjit", "jit", "closed_call", "core_call")
"""Primitives that call a program, which is inlined."""

Apply = Callable[[Any, Any], Any]
"""Function of parameters and inputs (n, ...) that returns the outputs (n, K)."""


def from_module(
    module: Any, x: ArrayLike, y: ArrayLike, *, variables: Any = None, **task: Unpack[core.Options]
) -> Product | Gaussian:
    """Return the Laplace approximation of a trained module's weights.

    Args:
        module: module of ``flax.linen``, or of ``flax.nnx``, which runs in evaluation mode. It
            returns one row of outputs per input: logits of the classes (one column: log odds of
            class 1), or values.
        x: inputs (n, ...).
        y: class numbers (n,), or values (n, k).
        variables: ``{"params": ...}`` of a linen module, with any collections such as
            ``batch_stats``; or the parameters alone.
        task: settings of :class:`~posterity.adapters.fisher.Task`.

    Returns:
        The law that :mod:`posterity.adapters.fisher` describes. Errors and warnings are those of
        :func:`posterity.adapters.fisher.laws`; anything but a module is a UsageError.

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
    """Return the ledger of one site: the weights' prior, with the likelihood as its factor.

    Weights of networks trained from different initial values do not correspond, even if their names
    do. For these make a :class:`posterity.Network` by :func:`posterity.networks.from_pytree` of
    :func:`to_params` at means and variances, and use :func:`posterity.fuse`. Arguments and errors
    are those of :func:`from_module`.
    """
    return _laws(*_parts(module, variables), x, y, core.Task(**task)).ledger(site)


def from_params(
    params: Any, apply: Apply, x: ArrayLike, y: ArrayLike, **task: Unpack[core.Options]
) -> Product | Gaussian:
    """Return the law of any tree of parameters, given ``apply(params, x)`` on a batch of inputs."""
    return _laws(params, apply, x, y, core.Task(**task)).posterior


def to_params(
    law: Distribution, like: Any, *, at: str = core.MEAN, key: KeyArray | None = None
) -> Any:
    """Return a law's mean, its variances (``at="variance"``) or a draw (``key``) as parameters.

    The result is structured like ``like``: a linen module's parameters, any tree, or an nnx module,
    which is copied. Tensors outside the law are copied from ``like``, and all have its types. Other
    tensors or shapes are a StructureError.
    """
    import jax

    nnx = sys.modules.get("flax.nnx")  # imported by whoever has a module of it
    if nnx is not None and isinstance(like, nnx.Module):
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


def _parts(module: Any, variables: Any) -> tuple[Any, Apply]:
    import jax

    flax = library("flax.linen", "flax.nnx", extra="flax")
    nnx = flax.nnx
    linen = flax.linen
    if isinstance(module, nnx.Module):
        graph, params, rest = nnx.split(module, nnx.Param, ...)

        def apply(tree: Any, x: Any) -> Any:
            own = jax.tree.map(lambda leaf: leaf, params)  # a copy, to be filled
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

    def name(path):
        return jax.tree_util.keystr(path, simple=True, separator=".")

    leaves = {name(path): leaf for path, leaf in pairs}
    strange = [n for n, leaf in leaves.items() if not _is_float(leaf)]
    if strange or not leaves:
        raise StructureError(
            found=f"parameters {strange} that are not floating-point arrays, of {list(leaves)}",
            expected="a tree of arrays of weights",
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
        return compute(weights, record[None])[0]

    outputs = np.asarray(jitted(compute)(own, inputs))
    layers = _Layers.of(one, own, inputs[0])
    rest = {name: value for name, value in own.items() if name not in layers.places}
    moved = rest | layers.shifts
    each = jitted(jax.vmap(jax.jacrev(layers.run, has_aux=True), in_axes=(None, None, 0)))

    def jacobians(part: slice) -> tuple[np.ndarray, dict[str, core.Slopes]]:
        slopes, (made, given) = each(moved, own, inputs[part])
        flat = {n: np.asarray(s, np.float64).reshape(*made.shape, -1) for n, s in slopes.items()}
        found = {name: core.Slopes(flat[name]) for name in rest}
        for name, rows in given.items():
            found[name] = core.Slopes(flat[name], np.asarray(rows, np.float64), inputs_first=True)
        return np.asarray(made), found

    tensors = {name: np.asarray(value, np.float64) for name, value in own.items()}
    entries = sum(v.size for v in rest.values()) + sum(sum(own[n].shape) for n in layers.places)
    return core.laws(task, tensors, outputs, jacobians, y, entries=entries)


class _Layers(NamedTuple):
    """The program of one record's outputs, and its linear layers.

    ``places`` are the numbers of the equations that are layers' products, by the name of the
    kernel, which nothing else uses; ``shifts`` are zeros, which are added to the products.
    """

    program: Any
    places: dict[str, int]
    shifts: dict[str, Any]

    @classmethod
    def of(cls, function: Apply, weights: dict[str, Any], record: Any) -> "_Layers":
        """Trace a function of weights and one record."""
        import jax
        import jax.numpy as jnp

        traced = jax.make_jaxpr(function)(weights, record)
        numbers = itertools.count()
        uses: dict[str, list[int | None]] = {name: [] for name in weights}

        def used(equation: Any, given: Sequence[Any]) -> list[Any]:
            number = next(numbers)
            for name in {one for one in given if isinstance(one, str)}:
                uses[name].append(number if _is_layer(equation, given) else None)
            return [None] * len(equation.outvars)

        nothing = [None] * len(traced.consts)
        _walked(traced.jaxpr, nothing, [*sorted(weights), None], used)
        alone = {name: of[0] for name, of in uses.items() if len(of) == 1}
        places = {name: number for name, number in alone.items() if number is not None}
        shifts = {name: jnp.zeros_like(weights[name][0]) for name in places}
        return cls(traced, places, shifts)

    def run(self, moved: Any, weights: Any, record: Any) -> tuple[Any, tuple[Any, Any]]:
        """Return the outputs (K,), and beside them what the layers are given, by name.

        ``moved`` are the shifts, and weights that take the place of others.
        """
        numbers = itertools.count()
        names = {place: name for name, place in self.places.items()}
        rows = {}

        def computed(equation: Any, given: Sequence[Any]) -> list[Any]:
            found = _results_of(equation, given)
            name = names.get(next(numbers))
            if name is not None:
                rows[name] = given[0][0]
                found = [found[0] + moved[name]]
            return found

        values = [weights[n] if n in self.places else moved[n] for n in sorted(weights)]
        program = self.program
        (made,) = _walked(program.jaxpr, program.consts, [*values, record], computed)
        return made, (made, rows)


def _walked(
    program: Any,
    constants: Sequence[Any],
    arguments: Sequence[Any],
    step: Callable[[Any, Sequence[Any]], list[Any]],
) -> list[Any]:
    """Return the results of a JAX program whose equations are computed by ``step``; programs that
    it calls are walked through.
    """
    from jax.extend.core import Literal

    variables = [*program.constvars, *program.invars]
    known = dict(zip(variables, [*constants, *arguments], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for equation in program.eqns:
        given = [read(atom) for atom in equation.invars]
        if equation.primitive.name in CALLS:
            inner = equation.params["jaxpr"]
            results = _walked(inner.jaxpr, inner.consts, given, step)
        else:
            results = step(equation, given)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in program.outvars]


def _results_of(equation: Any, arguments: Sequence[Any]) -> list[Any]:
    """Return the results of an equation of a JAX program at these values of its arguments."""
    bound: Any = equation.primitive.get_bind_params(equation.params)
    functions, options = bound if isinstance(bound, tuple) else ((), bound)  # JAX < 0.9
    found = equation.primitive.bind(*functions, *arguments, **options)
    return found if equation.primitive.multiple_results else [found]


def _is_layer(equation: Any, given: Sequence[Any]) -> bool:
    """Return whether an equation is the product of one row (1, d) and a kernel (d, w); of what is
    ``given`` to it, kernels alone have a name.
    """
    plain = equation.params.get("dimension_numbers") == (((1,), (0,)), ((), ()))
    return plain and given[0] is None and equation.invars[0].aval.shape[:-1] == (1,)


def _is_float(x: object) -> bool:
    """Return whether numbers are floating point, JAX's half precision included."""
    import jax

    return bool(jax.numpy.issubdtype(np.asarray(x).dtype, jax.numpy.floating))
