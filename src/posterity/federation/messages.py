"""The messages between a federation's schedule and its sites, and their serialization.

A site answers each question with one message: :class:`Improve` with an :class:`Improvement`,
:class:`Measure` with a :class:`Report`, :class:`DescribeOwn` with :class:`OwnParameters`, and any
of them with a :class:`Failure`. No message contains records.
"""

import dataclasses
import functools
import hashlib
import json
import math
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from posterity.arguments import FINITE, NATURAL, Constraint, instance, number_of
from posterity.arrays import keys
from posterity.arrays.tree import leaves
from posterity.arrays.tree_sums import TreeSum
from posterity.arrays.typing import Float, KeyArray
from posterity.artifact.artifact import from_bytes, to_bytes
from posterity.artifact.container import no_number
from posterity.errors import ArtifactError, PosterityError
from posterity.families import ExponentialFamily
from posterity.runtime.fingerprint import digest

MOST_BYTES = 2**30
"""Size of the largest message that is read."""


Epoch = tuple[int, str]
"""A number, and the site that began the epoch; of concurrent epochs the higher pair is newer."""
FIRST: Epoch = (0, "")
"""The first epoch of a federation."""


@dataclasses.dataclass(frozen=True)
class Message:
    """A message to or from one site.

    ``epoch`` and ``step`` are those of the state in which a question was made, and an answer has
    those of its question. They distinguish the awaited answer from late and duplicate ones.
    """

    site: str
    epoch: Epoch = dataclasses.field(default=FIRST, kw_only=True)
    step: int = dataclasses.field(default=0, kw_only=True)


@dataclasses.dataclass(frozen=True)
class Question(Message):
    """A message that a site has to answer."""

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the question's type and fields, which include the site."""
        return digest(self)

    @property
    def about(self) -> dict[str, Any]:
        """The fields by which an answer refers to this question."""
        return {"epoch": self.epoch, "step": self.step, "asked": self}


@dataclasses.dataclass(frozen=True)
class Answer(Message):
    """The answer of a site to a question. ``asked`` is that question within a process, and its
    digest after serialization.
    """

    asked: Question | str | None = dataclasses.field(
        default=None, kw_only=True, repr=False, compare=False
    )

    def answers(self, question: Question) -> bool:
        """Return whether this is an answer to that question, from the site that it was sent to."""
        version = (question.site, question.epoch, question.step)
        kind = ANSWER_TO.get(type(question), Failure)
        if (self.site, self.epoch, self.step) != version or not isinstance(self, kind | Failure):
            return False
        if self.asked is question:
            return True
        asked = self.asked.digest if isinstance(self.asked, Question) else self.asked
        return asked == question.digest


@dataclasses.dataclass(frozen=True)
class Improve(Question):
    """The question for an improvement of ``factor``, which is part of the posterior ``view``.
    ``count`` is the number of local steps of the site so far, ``key`` its random key.
    """

    view: ExponentialFamily
    factor: ExponentialFamily
    count: int
    key: KeyArray


@dataclasses.dataclass(frozen=True)
class Improvement(Answer):
    """An improved factor, at rest, with diagnostics.

    ``halvings`` is the number of halvings of steps. ``residual`` is the Fisher length of the last
    natural gradient in sqrt(nats), None if unknown. ``quadrature_error`` is the estimated
    displacement of the posterior, in nats, by the error of sums over nodes. ``evaluations`` counts
    those of the site's log likelihood; with more nodes each counts more.
    """

    factor: ExponentialFamily
    halvings: int = 0
    residual: float | None = None
    quadrature_error: float = 0.0
    evaluations: int = 0


Part = Literal["gradient", "noiseless", "rough", "elsewhere", "curvature"]


@dataclasses.dataclass(frozen=True)
class Measure(Question):
    """The question for ``parts`` of a :class:`Report` on a posterior that includes ``factor``.

    If gradients are noisy, ``samples`` of them are averaged. Curvature, with value, slope and fixed
    point, is available for diagonal Gaussians and Products of Gaussians with a noiseless estimator.
    Values, here and elsewhere, are available if expectations can be computed.
    """

    posterior: ExponentialFamily
    factor: ExponentialFamily
    parts: tuple[Part, ...]
    samples: int
    key: KeyArray


@dataclasses.dataclass(frozen=True)
class Report(Answer):
    """The report of a site on a posterior; parts not requested, or not finite, are None.

    ``direction`` is ``∇_μ E_q[log likelihood]/α - η``, the site's remaining natural gradient, and
    ``variance`` the expected squared Fisher length of its noise. As part ``noiseless`` it is that
    of the line search, with its value, and as part ``curvature`` it leads to the fixed point.
    ``value`` is ``E_q[log likelihood]/α`` in nats; as part ``rough``, at the mean of a Gaussian. As
    a function of the means of Gaussian parts, it has the derivative ``slope`` (d,), and
    ``curvature`` (d, d) is minus the second one. ``fixed_point`` is the factor after one undamped
    step. ``elsewhere`` (m,) are values at other members
    (:func:`posterity.federation.elsewhere.looked_at`).
    ``quadrature_error`` is the estimated displacement of the posterior, in nats, by the error of
    sums over nodes, and ``evaluations`` counts as in an :class:`Improvement`.
    """

    direction: ExponentialFamily | None = None
    variance: float = 0.0
    value: float | None = None
    fixed_point: ExponentialFamily | None = None
    slope: Float[np.ndarray, " d"] | None = None
    curvature: Float[np.ndarray, "d d"] | None = None
    elsewhere: Float[np.ndarray, " m"] | None = None
    quadrature_error: float = 0.0
    evaluations: int = 0


@dataclasses.dataclass(frozen=True)
class DescribeOwn(Question):
    """The question for the site's own parameters, conditional on draws of the shared posterior."""

    posterior: ExponentialFamily


@dataclasses.dataclass(frozen=True)
class OwnParameters(Answer):
    """A Gaussian of a site's own parameters for each draw of the shared ones. ``mean`` is (draws,
    p); ``scale`` is (draws, p) standard deviations, or (draws, p, p) roots of covariances.
    """

    mean: Float[np.ndarray, "draws p"]
    scale: Float[np.ndarray, "draws p *p"]


@dataclasses.dataclass(frozen=True)
class Failure(Answer):
    """The answer of a site that failed, with the error; its factor was not changed."""

    error: str


@dataclasses.dataclass(frozen=True)
class Token:
    """The message that walks over a graph: the exact sum of natural parameters, with epoch and
    sequence number.

    The sum consists of the posterior and the rounding error of it. With both, the subtraction of
    a site's factor is exact.

    A site that receives the token sends it on with the next sequence number. A new epoch begins
    when the posterior changes other than by a visit, as when a site is forgotten at once; tokens of
    a lower epoch are void. ``agreement`` is the digest of the federation's agreement. ``sender`` is
    the site that sent the token, and ``previous`` the digest of the token that it answers; both are
    None at first. ``seals`` tell each visited site what it last answered in the epoch: its name,
    the sequence number, and a text that only the site can check. In one process there are none.
    """

    agreement: str
    epoch: Epoch
    sequence: int
    exact_sum: TreeSum
    sender: str | None = None
    previous: str | None = None
    seals: tuple[tuple[str, int, str], ...] = ()

    @property
    def posterior(self) -> ExponentialFamily:
        """The sum, rounded to nearest once."""
        return self.exact_sum.value

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the token's fields without the agreement, which is the same for all tokens of
        a chain, and the seals; ``previous`` links the tokens of an epoch to a chain.
        """
        place = self.epoch, self.sequence, self.sender, self.previous
        parts = [leaf.tobytes() for leaf in leaves(self.exact_sum)]
        return hashlib.sha256(b"".join([repr(place).encode(), *parts])).hexdigest()


ANSWER_TO: dict[type, type] = {Improve: Improvement, Measure: Report, DescribeOwn: OwnParameters}
QUESTIONS = (*ANSWER_TO,)
ANSWERS = (*ANSWER_TO.values(), Failure)
KINDS = {kind.__name__: kind for kind in (*QUESTIONS, *ANSWERS, Token)}
COUNTS = ("count", "halvings", "samples", "step", "sequence", "evaluations")
SIZE = Constraint("a finite number, not negative", number_of(Real, lambda x: 0 <= x < math.inf))
TEXT = instance("a text", str)
FAMILY = instance("a member of a family", ExponentialFamily)
ARRAY = instance("an array", np.ndarray)
FIELDS = {
    **dict.fromkeys(("site", "error", "agreement"), TEXT),
    **dict.fromkeys(("sender", "previous", "asked"), TEXT.or_none()),
    **dict.fromkeys(COUNTS, NATURAL),
    **dict.fromkeys(("variance", "quadrature_error"), SIZE),
    "residual": SIZE.or_none(),
    "value": FINITE.or_none(),
    **dict.fromkeys(("view", "factor", "posterior"), FAMILY),
    **dict.fromkeys(("direction", "fixed_point"), FAMILY.or_none()),
    **dict.fromkeys(("mean", "scale"), ARRAY),
    **dict.fromkeys(("slope", "curvature", "elsewhere"), ARRAY.or_none()),
    "key": instance("a random key", keys.Words),
    "exact_sum": instance("a sum in its only form", TreeSum),
    "epoch": Constraint(
        "a number and a name", lambda own: _types(own) == (int, str) and own[0] >= 0
    ),
    "parts": Constraint("parts of a report", lambda own: {*own} <= {*get_args(Part)}),
    "seals": Constraint(
        "names, numbers and texts", lambda own: {(str, int, str)}.issuperset(map(_types, own))
    ),
}
"""What each field of a message holds."""
UNREADABLE = LookupError, TypeError, ValueError, AttributeError, RecursionError, PosterityError


def dumps(message: Message | Token) -> bytes:
    """Serialize a message: a head in JSON, and arrays as in a safetensors file.

    Raises:
        ParameterError: if an array has NaN or infinity.

    >>> loads(dumps(Failure("north", "out of memory"))) == Failure("north", "out of memory")
    True
    """
    head: dict[str, Any] = {"kind": type(message).__name__}
    body: dict[str, Any] = {}
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if isinstance(value, Question):
            head[field.name] = value.digest
        elif field.name == "key":
            body["key"] = keys.plain(value).array
        elif value is None or isinstance(value, str | bool | int | float | tuple):
            head[field.name] = value
        elif isinstance(value, TreeSum):
            body[field.name] = list(value.layers)
        else:
            body[field.name] = value
    return to_bytes({"head": json.dumps(head, sort_keys=True), **body})


def loads(content: bytes, *, most: int = MOST_BYTES) -> Any:
    """Return the message that :func:`dumps` serialized, bit for bit. Raises ArtifactError if there
    are more than ``most`` bytes, or they are not a message.
    """
    if len(content) > most:
        raise _foreign(f"{len(content)} bytes", f"at most {most}")
    body = from_bytes(content)
    try:
        head = json.loads(body.pop("head"), parse_constant=no_number)
        kind = KINDS[head.pop("kind")]
        if "key" in body:
            body["key"] = keys.of_data(body["key"])
        if "exact_sum" in body:
            layers = body["exact_sum"]
            whole = TreeSum.of(layers)
            body["exact_sum"] = whole if whole == TreeSum(tuple(layers)) else layers
        fields = {**head, **body}
        for name, value in fields.items():
            FIELDS[name].check(**{name: value})
        fields |= {name: tuple(fields[name]) for name in ("epoch", "parts") if name in fields}
        if "seals" in fields:
            fields["seals"] = tuple(map(tuple, fields["seals"]))
        if fields.keys() != {field.name for field in dataclasses.fields(kind)}:
            raise TypeError("fields that are not those of its kind")
        return kind(**fields)
    except UNREADABLE as error:
        found = f"a message that cannot be read ({error})"
        raise _foreign(found, "one that a site sent") from error


def _types(values: Any) -> tuple[type, ...]:
    return tuple(map(type, values))


def _foreign(found: str, expected: str) -> ArtifactError:
    return ArtifactError(found=found, expected=expected, fix="Drop it, and ask again.")
