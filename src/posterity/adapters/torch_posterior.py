"""torch: a trained module and its data as a law of its weights, and back to a state dict.

The law is Laplace's approximation at the trained weights; see :mod:`posterity.adapters.fisher` for
the Fisher information. Tensors have their names in the state dict. Tested with 2.13.
"""

import warnings
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from posterity.adapters import fisher as core
from posterity.adapters.shared import Laws, library, unsupported
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
            found=f"inputs of shape {tuple(inputs.shape)}",
            expected="at least one record",
            fix="Pass the training data.",
        )
    like = next(iter(own.values()))  # with their device and floating type
    inputs = inputs.to(like.device, like.dtype if inputs.is_floating_point() else inputs.dtype)
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            made = [module(part) for part in inputs.split(1024)]
        if not torch.is_tensor(made[0]) or made[0].ndim != 2:
            shape = tuple(made[0].shape) if torch.is_tensor(made[0]) else type(made[0]).__name__
            raise StructureError(
                found=f"outputs of shape {shape}",
                expected="one tensor, with a row (n, K) for each of n records",
                fix="Keep the last axis; wrap a module that returns more than logits or values.",
            )
        jacobians = _jacobians(torch, module, own, inputs)
        tensors = {name: _numpy(value) for name, value in own.items()}
        labels = _numpy(y) if torch.is_tensor(y) else y
        return core.laws(task, tensors, _numpy(torch.cat(made)), jacobians, labels)
    finally:
        for part, mode in training.items():
            part.training = mode


def _jacobians(torch: Any, module: Any, own: dict[str, Any], inputs: Any) -> core.Jacobians:
    """Return Jacobians of all records at once, or one by one if an operation requires it."""

    def one(weights: Any, record: Any) -> tuple[Any, Any]:
        made = torch.func.functional_call(module, weights, (record[None],))[0]
        return made, made

    each = torch.func.vmap(torch.func.jacrev(one, has_aux=True), in_dims=(None, 0))

    def singly(record: Any) -> tuple[Any, Any]:
        def outputs(*weights):
            return one(dict(zip(own, weights, strict=True)), record)[0]

        slopes = torch.autograd.functional.jacobian(outputs, (*own.values(),))
        return one(own, record)[0], torch.cat([slope.flatten(1) for slope in slopes], dim=1)

    def jacobians(part: slice) -> tuple[np.ndarray, np.ndarray]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            try:
                slopes, made = each(own, inputs[part])
                flat = torch.cat([slopes[name].flatten(2) for name in own], dim=2)
            except RuntimeError:  # such as recurrent layers, which write in place
                pairs = [singly(record) for record in inputs[part]]
                made, flat = (torch.stack(list(parts)) for parts in zip(*pairs, strict=True))
        return _numpy(made), _numpy(flat)

    return jacobians


def _numpy(value: Any) -> np.ndarray:
    value = value.detach().cpu()
    return (value.double() if value.is_floating_point() else value).numpy()
