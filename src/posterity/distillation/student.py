"""The student: one small network that predicts as a posterior does and can be saved to a file."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree

from posterity.arguments import Constraint
from posterity.arrays import keys
from posterity.arrays.tree import taken
from posterity.artifact.architecture import Architecture
from posterity.artifact.registry import enrol_data
from posterity.distillation.heads import Head, units
from posterity.distillation.pytrees import Array
from posterity.distillation.scaling import Domain, Scaling
from posterity.errors import ArtifactError, StructureError, UsageError
from posterity.families.layers import Dense, Layers
from posterity.models.data import inputs
from posterity.models.forward import Forward, shapes_of
from posterity.models.tables import distinct
from posterity.networks.predictive import Prediction
from posterity.runtime.programs import jitted

ROWS = 4096  # Inputs per call of the compiled network
NETWORK = Constraint(
    "Layers, an Architecture, or a function of parameters and inputs",
    lambda own: isinstance(own, Layers | Architecture) or callable(own),
    fix="Pass Layers.dense(inputs, hidden units, outputs).",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Student:
    """A network that predicts in place of a posterior, with its uncertainty.

    ``network`` is :class:`~posterity.networks.Layers`, whose ``parameters`` are flat weights (p,);
    an :class:`~posterity.artifact.Architecture`; or a function ``apply(parameters, x)`` of a batch,
    which cannot be saved to a file. ``head`` defines the meaning of the outputs, ``scaling`` their
    units and those of the inputs, and ``domain`` the inputs of the training, if known. ``columns``
    are the names of the columns of inputs, by which data frames are read. Another type of network
    is a UsageError; a wrong number of weights or outputs of layers, or names that are not distinct
    texts, are a StructureError.

    >>> layers = Layers.dense(2, 5, 3)
    >>> student = Student(layers, np.zeros(layers.size), Head("categorical", 3))
    >>> student.predict(np.zeros((4, 2))).mean.round(2)[0]
    array([0.33, 0.33, 0.33])
    """

    network: Any
    parameters: Any
    head: Head
    scaling: Scaling = dataclasses.field(default_factory=Scaling)
    domain: Domain | None = None
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        NETWORK.check(network=self.network)
        object.__setattr__(self, "columns", distinct(self.columns))

        def single(leaf):
            return np.asarray(leaf, np.float32)

        object.__setattr__(self, "parameters", jax.tree.map(single, self.parameters))
        if isinstance(self.network, Layers):
            shape = np.shape(self.parameters)
            outputs = self.network.outputs
            if shape != (self.network.size,) or outputs != self.head.size:
                raise StructureError(
                    found=f"weights of shape {shape} of {self.network.summary} for {self.head}",
                    expected=f"{self.network.size} weights, and {self.head.size} outputs",
                )

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.parameters))

    def outputs(self, x: ArrayLike) -> np.ndarray:
        """Return the raw outputs (n, head.size), in the network's units, at inputs (n, ...), an
        array or a data frame with the columns of the training. Inputs of a wrong shape, or other
        columns, are a StructureError; inputs that are not finite a ParameterError.
        """
        network = self.network
        tree = self.parameters
        x = self._scaled(x)
        with jax.enable_x64(False):
            tree = network.unravel(tree) if isinstance(network, Layers) else tree
            rows = np.split(x, range(ROWS, len(x), ROWS))
            parts = [np.asarray(_outputs(applied(network), tree, own), np.float64) for own in rows]
        return np.concatenate(parts)

    def _scaled(self, x: ArrayLike) -> np.ndarray:
        size = self.network.inputs if isinstance(self.network, Layers) else None
        if size is None and self.scaling.x_shift is not None:
            size = self.scaling.x_shift.size
        return np.asarray(self.scaling.inputs(inputs(x, self.columns or None, size)))

    def predict(self, x: ArrayLike) -> Prediction:
        """Return the predictive and its uncertainty at inputs (n, ...), in the units of ``y``.
        ``extrapolates`` marks inputs outside of the ``domain``. Errors as of :meth:`outputs`.
        """
        found = self.head.prediction(self.outputs(x), self.scaling)
        outside = None if self.domain is None else self.domain.outside(self._scaled(x))
        return dataclasses.replace(found, extrapolates=outside)

    @property
    def summary(self) -> str:
        """A short description: widths and activations of layers, or the network's type."""
        network = self.network
        return network.summary if isinstance(network, Layers) else type(network).__name__

    def __repr__(self) -> str:
        split = ", split" if self.head.split else ""
        return f"Student({self.summary}, {self.head.likelihood}{split})"


@functools.partial(jitted, static_argnums=0)
def _outputs(apply: Any, parameters: PyTree, x: Array) -> Any:
    return apply(parameters, x)


@dataclasses.dataclass(frozen=True)
class _Module:
    """An equinox module of one unbatched input as a hashable function of its arrays."""

    static: Any

    def __call__(self, parameters: PyTree, x: Array) -> Any:
        return jax.vmap(eqx.combine(parameters, self.static))(x)

    def __hash__(self) -> int:
        return hash(jax.tree.structure(self.static))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Module) and bool(eqx.tree_equal(self.static, other.static))


@dataclasses.dataclass(frozen=True)
class _Built:
    """A registered architecture as a function of its parameters."""

    name: str
    options: str

    def __call__(self, parameters: PyTree, x: Array) -> Any:
        return Architecture.made(self.name, parameters, json.loads(self.options))(x)


def applied(network: Any) -> Callable[[Any, Any], Any]:
    """Return a network as a hashable function of parameters and a batch of inputs."""
    if isinstance(network, Layers):
        return Forward(network)
    if isinstance(network, Architecture):
        return _Built(network.name, json.dumps(dict(network.options), sort_keys=True))
    return network


def start(
    student: Any, head: Head, x: np.ndarray, *, key: jax.Array
) -> tuple[Layers | Architecture | Callable[[Any, Any], jax.Array], Any]:
    """Return a student's network and its tree of initial parameters, for inputs like ``x``. Raise a
    UsageError if it is not a network, a StructureError if inputs or outputs do not match.
    """
    if isinstance(student, Layers):
        network = student
        parameters = _weights(student, key)
    elif isinstance(student, Architecture):
        network = student
        parameters = student.parameters
    elif isinstance(student, eqx.Module):
        parameters, static = eqx.partition(student, eqx.is_inexact_array)
        network = _Module(static)
    elif isinstance(student, tuple) and len(student) == 2 and callable(student[0]):
        network, parameters = student
    else:
        raise UsageError(
            found=f"a student that is a {type(student).__name__}",
            expected="Layers, an equinox module, (apply, parameters) as flax has them, or an "
            "Architecture",
        )
    parameters = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), parameters)
    some = jax.ShapeDtypeStruct((2, *x.shape[1:]), jnp.float32)
    shape = getattr(shapes_of(applied(network), parameters, some), "shape", None)
    if shape != (2, head.size):
        raise StructureError(
            found=f"a student with outputs of shape {shape and shape[1:]}",
            expected=f"({head.size},), as {head} has",
        )
    return network, parameters


def _weights(layers: Layers, key: jax.Array) -> list[dict[str, np.ndarray]]:
    """Return random weights that keep the scale of signals; those of the last layer are small."""
    rng = keys.of_numpy(key)
    weights = layers.unravel(np.zeros(layers.size, np.float32))
    for layer, own in zip(layers.layers, weights, strict=True):
        scale = np.float32((2 / np.prod(layer.kernel[:-1])) ** 0.5)
        own["kernel"] = scale * rng.standard_normal(layer.kernel, np.float32)
    weights[-1]["kernel"] *= np.float32(0.1)
    return weights


def side_by_side(layers: Layers, count: int, outputs: int) -> Layers:
    """Return dense layers with ``count`` times the hidden units and with ``outputs`` outputs."""

    def grow(layer, wide):
        return dataclasses.replace(layer, inputs=layer.inputs * wide, outputs=layer.outputs * count)

    grown = [grow(layer, count if place else 1) for place, layer in enumerate(layers.layers)]
    grown[-1] = dataclasses.replace(grown[-1], outputs=outputs, activation="identity")
    return Layers(tuple(grown), layers.image)


def default(
    layers: Layers,
    head: Head,
    networks: int,
    *,
    room: int = 200_000,  # Most weights of a default student with more than one network
    # Most networks side by side: more are seldom better, and each costs a row of weights.
    side: int = 4,
) -> Layers:
    """Return the default student of a teacher with these layers: as many of ``networks`` as there
    is room for, side by side, or one if layers are convolutional.

    With a split, a last hidden layer holds the outputs of each network, and as many other units as
    the layer before, to judge how far networks differ. That is no sum of their hidden units: a
    student without this layer learns it where it is asked, and nowhere else.
    """
    most = min(networks, side) if _grows(layers) else 1
    students = [side_by_side(layers, count, head.size) for count in range(1, most + 1)]
    count = max(n for n, own in enumerate(students, 1) if n == 1 or own.size <= room)
    student = students[count - 1]
    return _judged(student, count, head) if head.split and count > 1 else student


def _judged(student: Layers, count: int, head: Head) -> Layers:
    """Return layers with another hidden one before the last, for the outputs of each network."""
    *hidden, last = student.layers
    judges = last.inputs + 2 * count * head.targets
    judge = dataclasses.replace(last, outputs=judges, activation="relu")
    return Layers((*hidden, judge, dataclasses.replace(last, inputs=judges)), student.image)


def copies(network: Any, layers: Layers | None, head: Head) -> int:
    """Return how many of the teacher's networks a student holds side by side, or 0."""
    if not isinstance(network, Layers) or layers is None:
        return 0
    wide = network.layers[0].outputs // layers.layers[0].outputs
    count = max(wide, 1) if _grows(layers) else 1
    alike = side_by_side(layers, count, head.size)
    return count * (network in (alike, _judged(alike, count, head)))


def _grows(layers: Layers) -> bool:
    return len(layers) > 1 and all(isinstance(layer, Dense) for layer in layers.layers)


@functools.partial(jitted, static_argnums=0)
def taught(
    count: int, parameters: list[PyTree], networks: list[PyTree], head: Head, scaling: Scaling
) -> list[PyTree]:
    """Return initial parameters of a student as the average of ``count`` networks side by side.
    ``networks`` are arrays of layers with a leading axis of networks; their first outputs are
    logits, or means in the units of ``y``. Where a layer judges them, its first units are these
    outputs and their negatives, as rectified units need. Other units and outputs are taken from
    ``parameters``.
    """
    *hidden, last = taken(networks, slice(count))
    grown = []
    for place, layer in enumerate(hidden):
        grown.append({name: jnp.concatenate(list(leaf), -1) for name, leaf in layer.items()})
        if place and count > 1:
            grown[-1]["kernel"] = jax.scipy.linalg.block_diag(*layer["kernel"])
    shift, scale = units(scaling)
    wide = head.targets
    kernel = last["kernel"][..., :wide] / scale
    bias = (last["bias"][..., :wide] - shift) / scale if "bias" in last else jnp.zeros(wide)
    *others, end = parameters[len(hidden) :]
    outputs = {"kernel": jnp.concatenate(list(kernel)) / count, "bias": bias.mean(0)}
    for judge in others:
        both = {"kernel": jax.scipy.linalg.block_diag(*kernel), "bias": bias.reshape(-1)}
        both = {name: jnp.concatenate([own, -own], -1) for name, own in both.items()}
        grown.append({n: own.at[..., : 2 * count * wide].set(both[n]) for n, own in judge.items()})
        each = jnp.tile(jnp.eye(wide), (count, 1)) / count
        rest = jnp.zeros((len(end["kernel"]) - 2 * len(each), wide))
        outputs = {"kernel": jnp.concatenate([each, -each, rest]), "bias": jnp.zeros(wide)}
    return [*grown, {n: own.at[..., :wide].set(outputs[n]) for n, own in end.items()}]


def finish(
    network: Any,
    parameters: PyTree,
    head: Head,
    scaling: Scaling,
    domain: Domain | None = None,
    columns: tuple[str, ...] = (),
) -> Student:
    """Return the student with a tree of trained parameters."""
    arrays = jax.tree.map(np.asarray, parameters)
    if isinstance(network, Layers):
        arrays = network.ravel(arrays)
    if isinstance(network, Architecture):
        network = dataclasses.replace(network, parameters=arrays)
    return Student(network, arrays, head, scaling, domain, columns)


def _written(student: Student) -> dict[str, Any]:
    if not isinstance(student.network, Layers | Architecture):
        raise ArtifactError(
            found=f"a student of a function of one's own, {student.network!r}",
            expected="Layers, or an Architecture of a name given to register_architecture",
        )
    held = isinstance(student.network, Architecture)  # which holds the parameters
    return {name: own for name, own in vars(student).items() if not (held and name == "parameters")}


def _read(fields: dict[str, Any]) -> dict[str, Any]:
    network = fields.get("network")
    held = isinstance(network, Architecture)
    return fields | ({"parameters": network.parameters} if held else {})


def _of_head(head: Head) -> dict[str, Any]:
    """Return the fields of a head in a file, in which a normal law has no degrees of freedom."""
    fields = dict(vars(head))
    if math.isinf(head.degrees):
        del fields["degrees"]
    return fields


def _as_head(fields: dict[str, Any]) -> dict[str, Any]:
    return {"degrees": math.inf, **fields}


enrol_data(Head, write=_of_head, read=_as_head)
_arrays = [field.name for field in dataclasses.fields(Scaling)]
enrol_data(Scaling, types=dict.fromkeys(_arrays, np.ndarray | None), arrays=_arrays)
enrol_data(Domain, arrays=["low", "high", "mean", "directions"])
_parts = Layers | Architecture, Head, Scaling, Domain | None, list
enrol_data(
    Student,
    types=dict(zip(("network", "head", "scaling", "domain", "columns"), _parts, strict=True)),
    arrays=["parameters"],
    write=_written,
    read=_read,
    whole=True,
)
