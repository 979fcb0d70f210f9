"""torch: a trained module and its data as a law of its weights, and back to a state dict.

The law is Laplace's approximation at the trained weights; see :mod:`posterity.adapters.fisher` for
the Fisher information. Tensors have their names in the state dict. Tested with 2.13.
"""

import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from posterity.adapters import fisher as core
from posterity.adapters.shared import Laws, library, unsupported
from posterity.arrays.tree import tree_map
from posterity.arrays.typing import KeyArray
from posterity.errors import StructureError, UsageError
from posterity.families import Distribution, Gaussian, Product
from posterity.ledger import Ledger


def from_module(
    module: Any, x: object, y: ArrayLike, **task: Unpack[core.Options]
) -> Product | Gaussian:
    """Return the Laplace approximation of a trained module's weights.

    Args:
        module: ``torch.nn.Module`` that returns one row of outputs per input: logits of the
            classes (one column: log odds of class 1), or values. It runs in evaluation mode and
            is not changed. Buffers, and tensors without gradients, are not part of the law.
        x: tensor or array of inputs (n, ...).
        y: class numbers (n,), or values (n, k).
        task: settings of :class:`~posterity.adapters.fisher.Task`.

    Returns:
        The law that :mod:`posterity.adapters.fisher` describes. Errors and warnings are those of
        :func:`posterity.adapters.fisher.laws`; anything but a module is a UsageError.

    For example::

        q = from_module(net, x, y, likelihood="classification", prior_precision=1.0)
        net.load_state_dict(to_state_dict(q, net, key=jax.random.key(0)))  # a draw
    """
    return _laws(module, x, y, core.Task(**task)).posterior


def to_ledger(
    module: Any, site: str, x: object, y: ArrayLike, **task: Unpack[core.Options]
) -> Ledger:
    """Return the ledger of one site: the weights' prior, with the likelihood as its factor.

    Weights of networks trained from different initial values do not correspond, even if their names
    do; for these see :class:`posterity.Network` and :func:`posterity.fuse`. Arguments and errors
    are those of :func:`from_module`.
    """
    return _laws(module, x, y, core.Task(**task)).ledger(site)


def to_state_dict(
    law: Distribution, like: Any, *, at: str = core.MEAN, key: KeyArray | None = None
) -> dict[str, Any]:
    """Return a law's mean, its variances or, given a JAX ``key``, a draw, as a module's state dict.

    ``like`` is a module with the same layers, or its state dict. Tensors outside the law, buffers
    among them, are copied from it, and all have its types. ``at`` is ``"mean"`` or ``"variance"``.
    A law with other tensors or shapes is a StructureError.
    """
    torch = library("torch", extra="torch")
    state = like.state_dict() if isinstance(like, torch.nn.Module) else like
    if not isinstance(state, Mapping) or not all(torch.is_tensor(v) for v in state.values()):
        raise unsupported(like, "a torch.nn.Module or its state dict", "Pass the module as like.")
    made = {name: value.detach().clone() for name, value in state.items()}
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    places: dict[Any, list[str]] = {}
    for name, value in state.items():  # a tensor that two layers share has two names
        if value.numel():
            places.setdefault((value.data_ptr(), value.shape, value.stride()), []).append(name)
    shared = {name: names for names in places.values() for name in names}
    for name, value in core.tensors_of(law, shapes, at, key).items():
        for other in shared.get(name, [name]):
            made[other] = torch.tensor(np.array(value)).to(state[other]).reshape(shapes[name])
    return made


def _laws(module: Any, x: object, y: ArrayLike, task: core.Task) -> Laws:
    torch = library("torch", extra="torch")
    if not isinstance(module, torch.nn.Module):
        fix = "Load its state dict into a module first: that does not say what it computes."
        raise unsupported(module, "a torch.nn.Module", fix)
    own = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not own:
        found = "a module without parameters that need a gradient"
        fix = "requires_grad_(True)"
        raise UsageError(found=found, expected="some, over which the law is", fix=f"Call {fix}.")
    own = {name: own[name].detach() for name in task.tensors(own)}
    try:
        inputs: Any = x if torch.is_tensor(x) else torch.tensor(np.asarray(x))
    except (TypeError, ValueError) as error:
        fix = "Put a loader's batches together: torch.cat([x for x, _ in loader])."
        raise unsupported(x, "inputs (n, ...) as one tensor or array", fix) from error
    if not inputs.ndim or not len(inputs):
        raise StructureError(
            found=f"inputs of shape {tuple(inputs.shape)}", expected="at least one record"
        )
    like = next(iter(own.values()))  # with their device and floating type
    inputs = inputs.to(like.device, like.dtype if inputs.is_floating_point() else inputs.dtype)
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            made = [module(part) for part in inputs.split(1024)]
        if not torch.is_tensor(made[0]):
            kind = type(made[0]).__name__
            expected = "one tensor, with a row (n, K) a record"
            raise StructureError(found=f"outputs of type {kind}", expected=expected)
        linear = _linear(torch, module, own, inputs[:1])
        jacobians = _jacobians(torch, module, own, inputs, linear)
        tensors = {name: _numpy(value) for name, value in own.items()}
        labels = _numpy(y) if torch.is_tensor(y) else y
        rest = sum(v.numel() for n, v in own.items() if n.rpartition(".")[0] not in linear)
        entries = rest + sum(layer.in_features + layer.out_features for layer in linear.values())
        outputs = _numpy(torch.cat(made))
        return core.laws(task, tensors, outputs, jacobians, labels, entries=entries)
    finally:
        for part, mode in training.items():
            part.training = mode


def _linear(torch: Any, module: Any, own: dict[str, Any], record: Any) -> dict[str, Any]:
    """Return, by name, the linear layers of these tensors that a record passes once, as one row,
    and whose weights nothing else uses.
    """
    passed = dict[str, list[Any]]()
    names = dict.fromkeys(name.rpartition(".")[0] for name in own)
    layers = {n: module.get_submodule(n) for n in names}
    layers = {n: layer for n, layer in layers.items() if type(layer) is torch.nn.Linear}

    def keep(name):
        return lambda layer, given, made: passed.setdefault(name, []).append((*given, made))

    hooks = [layer.register_forward_hook(keep(name)) for name, layer in layers.items()]
    try:
        with torch.enable_grad():
            last = module(record).grad_fn
    finally:
        for hook in hooks:
            hook.remove()
    uses: Counter[int] = Counter()
    seen = set()
    todo = [] if last is None else [last]
    while todo:
        node = todo.pop()
        for parent, _ in node.next_functions:
            uses[id(getattr(parent, "variable", None))] += 1
            if parent is not None and parent not in seen:
                seen.add(parent)
                todo.append(parent)

    def once(name):
        rows = [tensor.shape[:-1] for given in passed.get(name, []) for tensor in given]
        weights = [weight for weight in layers[name].parameters() if weight.requires_grad]
        return rows == [(1,), (1,)] and all(uses[id(weight)] == 1 for weight in weights)

    return {name: layer for name, layer in layers.items() if once(name)}


def _jacobians(
    torch: Any, module: Any, own: dict[str, Any], inputs: Any, linear: dict[str, Any]
) -> core.Jacobians:
    """Return Jacobians of all records at once, or one by one if an operation requires it.

    Those by the weights of ``linear`` layers are products: a shift of what such a layer gives has
    the Jacobian of its bias.
    """
    like = next(iter(own.values()))
    rest = {name: value for name, value in own.items() if name.rpartition(".")[0] not in linear}
    shifts = {name: like.new_zeros(layer.out_features) for name, layer in linear.items()}
    moved = rest | shifts

    def one(values: Any, record: Any) -> tuple[Any, Any]:
        given = {}

        def shifted(name):
            def hook(layer, inputs, made):
                given[name] = inputs[0][0]
                return made + values[name]

            return hook

        hooks = [at.register_forward_hook(shifted(n), prepend=True) for n, at in linear.items()]
        weights = {name: values[name] for name in rest}
        try:
            made = torch.func.functional_call(module, weights, (record[None],))[0]
        finally:
            for hook in hooks:
                hook.remove()
        return made, (made, given)

    each = torch.func.vmap(torch.func.jacrev(one, has_aux=True), in_dims=(None, 0))

    def singly(record: Any) -> tuple[Any, Any]:
        def outputs(*values):
            return one(dict(zip(moved, values, strict=True)), record)[0]

        slopes = torch.autograd.functional.jacobian(outputs, (*moved.values(),))
        return dict(zip(moved, slopes, strict=True)), one(moved, record)[1]

    def jacobians(part: slice) -> tuple[np.ndarray, dict[str, core.Slopes]]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            try:
                slopes, (made, given) = each(moved, inputs[part])
            except RuntimeError:  # such as recurrent layers, which write in place
                parts = [singly(record) for record in inputs[part]]
                slopes, (made, given) = tree_map(lambda *own: torch.stack(own), *parts)
        flat = {name: _numpy(slope.flatten(2)) for name, slope in slopes.items()}
        found = {name: core.Slopes(flat[name]) for name in rest}
        for layer, rows in given.items():
            within = f"{layer}." if layer else ""
            found[f"{within}bias"] = core.Slopes(flat[layer])
            found[f"{within}weight"] = core.Slopes(flat[layer], _numpy(rows))
        return _numpy(made), found

    return jacobians


def _numpy(value: Any) -> np.ndarray:
    value = value.detach().cpu()
    return (value.double() if value.is_floating_point() else value).numpy()
