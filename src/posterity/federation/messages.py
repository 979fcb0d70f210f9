"""What travels between a federation's schedule and its sites, and how it becomes bytes.

A schedule asks a site questions, and the site answers each with one message: :class:`Improve` with
an :class:`Improvement`, :class:`MeasureGradient` with a :class:`Gradient`,
:class:`MeasureCurvature` with a :class:`Curvature`, :class:`DescribeOwn` with
:class:`OwnParameters`, and any of them with a :class:`Failure`. No message holds records.
"""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Key

from posterity.arrays.tree_sums import TreeSum
from posterity.artifact.artifact import from_bytes, to_bytes
from posterity.errors import ArtifactError, ParameterError
from posterity.families import ExponentialFamily

MOST_BYTES = 2**30
"""The size of the largest message that is read."""


@dataclasses.dataclass(frozen=True)
class Message:
    """A message to or from one site."""

    site: str


@dataclasses.dataclass(frozen=True)
class Improve(Message):
    """Asks a site for a better factor than ``factor``, a part of the posterior ``view``.

    ``count`` is the number of local steps that the site has taken, ``key`` its random numbers'.
    """

    view: ExponentialFamily
    factor: ExponentialFamily
    count: int
    key: Key[jax.Array, ""]


@dataclasses.dataclass(frozen=True)
class Improvement(Message):
    """A better factor, at rest, and how it was found.

    ``halvings`` counts the steps that were shortened; ``residual`` is the Fisher length of the last
    natural gradient in sqrt(nats), None where it is not known; ``quadrature_error`` bounds in nats
    how far too few quadrature nodes may have misplaced the posterior.
    """

    factor: ExponentialFamily
    halvings: int = 0
    residual: float | None = None
    quadrature_error: float = 0.0


@dataclasses.dataclass(frozen=True)
class MeasureGradient(Message):
    """Asks for the natural gradient of the site's free energy at a posterior.

    Where gradients are noisy, ``samples`` of them are averaged.
    """

    posterior: ExponentialFamily
    factor: ExponentialFamily
    samples: int
    key: Key[jax.Array, ""]


@dataclasses.dataclass(frozen=True)
class Gradient(Message):
    """``∇_μ E_q[log likelihood]/α - η``, what a site would still change; None if it is not finite.

    ``variance`` is the squared Fisher length that noise gives to the average.
    """

    direction: ExponentialFamily | None
    variance: float = 0.0


@dataclasses.dataclass(frozen=True)
class MeasureCurvature(Message):
    """Asks how the site's expected log likelihood changes with the mean of a diagonal Gaussian."""

    posterior: ExponentialFamily
    curvature: bool
    """Whether second derivatives are wanted too."""


@dataclasses.dataclass(frozen=True)
class Curvature(Message):
    """``E_q[log likelihood]/α`` in nats as a function of the mean; all None if it is not finite.

    ``slope`` (d,) is its derivative, ``curvature`` (d, d) minus the second derivative, and
    ``factor`` the factor that the site would have at this posterior.
    """

    value: float | None = None
    factor: ExponentialFamily | None = None
    slope: Float[np.ndarray, " d"] | None = None
    curvature: Float[np.ndarray, "d d"] | None = None


@dataclasses.dataclass(frozen=True)
class DescribeOwn(Message):
    """Asks for the site's own parameters, given draws from the shared posterior."""

    posterior: ExponentialFamily


@dataclasses.dataclass(frozen=True)
class OwnParameters(Message):
    """For each draw of the shared parameters a Gaussian of the site's own ones.

    ``mean`` is (draws, p); ``scale`` (draws, p) are standard deviations, or (draws, p, p) factors
    of covariances.
    """

    mean: Float[np.ndarray, "draws p"]
    scale: Float[np.ndarray, "draws p *p"]


@dataclasses.dataclass(frozen=True)
class Failure(Message):
    """The site could not answer, and why; its factor was not changed."""

    error: str


@dataclasses.dataclass(frozen=True)
class Token:
    """What walks over a graph: the exact sum of natural parameters, and the message's number.

    The sum is the posterior and, beside it, what rounding left out: with it a site that takes its
    factor out leaves no residue. Together they are seldom more than twice the posterior's size.

    A site that receives the token sends it on with the next sequence number. A new epoch begins
    whenever the posterior changes other than by a visit, as when a site is forgotten at once;
    tokens of a lower epoch are void. ``sender`` is the site that it comes from, None at first.
    """

    epoch: int
    sequence: int
    exact_sum: TreeSum
    sender: str | None = None

    @property
    def posterior(self) -> ExponentialFamily:
        """The sum, rounded to nearest once."""
        return self.exact_sum.value


KINDS = {
    kind.__name__: kind
    for kind in (
        *(Improve, Improvement, MeasureGradient, Gradient, MeasureCurvature, Curvature),
        *(DescribeOwn, OwnParameters, Failure, Token),
    )
}
PLAIN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("site", "error"), (str,)),
    **dict.fromkeys(("count", "halvings", "samples", "epoch", "sequence"), (int,)),
    **dict.fromkeys(("variance", "quadrature_error"), (float, int)),
    **dict.fromkeys(("residual", "value"), (float, int, type(None))),
    "sender": (str, type(None)),
    "curvature": (bool, type(None)),
    **dict.fromkeys(("direction", "factor", "slope"), (type(None),)),
}
"""Fields that the head holds, and what they can be."""
NOT_NEGATIVE = (
    *("count", "halvings", "samples", "epoch", "sequence"),
    *("variance", "quadrature_error", "residual"),
)


def dumps(message: Message | Token) -> bytes:
    """A message as bytes: a head in JSON, and arrays as in a safetensors file.

    Raises:
        ParameterError: if an array holds NaN or infinity.

    >>> loads(dumps(Failure("north", "out of memory")))
    Failure(site='north', error='out of memory')
    """
    head: dict[str, Any] = {"kind": type(message).__name__}
    body: dict[str, Any] = {}
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if value is None or isinstance(value, str | bool | int | float):
            head[field.name] = value
        elif isinstance(value, TreeSum):
            body[field.name] = list(value.layers)
        elif isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            head["generator"] = str(jax.random.key_impl(value))
            body[field.name] = np.asarray(jax.random.key_data(value))
        else:
            body[field.name] = value
    return to_bytes({"head": json.dumps(head, sort_keys=True), **body})


def loads(content: bytes, *, most: int = MOST_BYTES) -> Any:
    """The message that :func:`dumps` was given, bit for bit.

    Raises:
        ArtifactError: if the bytes are more than ``most``, or none that ``dumps`` gives.
    """
    if len(content) > most:
        raise _foreign(f"{len(content)} bytes", f"at most {most}")
    body = from_bytes(content)
    try:
        head = json.loads(body.pop("head"), parse_constant=_not_a_number)
        kind, generator = KINDS[head.pop("kind")], head.pop("generator", None)
        if any(type(value) not in PLAIN[name] for name, value in head.items()):
            raise TypeError("a head that holds something else than its fields")
        if any(not 0 <= (head.get(name) or 0) < float("inf") for name in NOT_NEGATIVE):
            raise ValueError("a count, variance or error that is negative or infinite")
        if "site" in body:
            raise TypeError("a site that is no name")
        if generator is not None:
            body["key"] = jax.random.wrap_key_data(body["key"], impl=generator)
        if "exact_sum" in body:
            layers = tuple(body["exact_sum"])
            body["exact_sum"] = TreeSum.of(list(layers))
            if body["exact_sum"] != TreeSum(layers):
                raise ValueError("a sum of another form than the one that it has")
        if head.keys() | body.keys() != {field.name for field in dataclasses.fields(kind)}:
            raise TypeError("fields that are not those of its kind")
        return kind(**head, **body)
    except (
        KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, ParameterError
    ) as error:  # fmt: skip
        raise _foreign(
            f"a message that cannot be read ({error})", "one that a site sent"
        ) from error


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text} among its numbers")


def _foreign(found: str, expected: str) -> ArtifactError:
    return ArtifactError(found=found, expected=expected, fix="Drop it, and ask again.")
