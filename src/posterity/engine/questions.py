"""Questions of a server and answers of sites: what a letter holds of them, and what is admitted."""

import hashlib
from typing import Any, NamedTuple, Self

import numpy as np

from posterity.arrays.tree import identical, structure
from posterity.engine.admission import check_posterior
from posterity.engine.agreement import Terms
from posterity.engine.messages import MOST_EPOCHS, Answer, Question
from posterity.engine.refusal import Reason, Refusal
from posterity.errors import PosterityError
from posterity.families import ExponentialFamily, at_rest
from posterity.federation.messages import (
    Epoch,
    Failure,
    Improve,
    Improvement,
    Measure,
    Message,
    Report,
    dumps,
    loads,
)
from posterity.federation.site import Site, failure_of
from posterity.federation.status import SAMPLES

NO_RECORDS = "it has no records"
"""The error of a site that contributes nothing; from then on it is not asked."""
MOST_CHARACTERS = 300
"""Of an error that a server keeps."""


class Asked(NamedTuple):
    """A question, its bytes, and their SHA-256, by which an answer names it."""

    question: Message
    content: bytes
    digest: str

    @classmethod
    def of(cls, question: Message) -> Self:
        """The question with its bytes."""
        return cls._of_bytes(question, dumps(question))

    @classmethod
    def read(cls, content: bytes) -> Self:
        """The question of these bytes; a Refusal if it is none, or another spelling of one."""
        return cls._of_bytes(_read(content, "a question"), content)

    @classmethod
    def _of_bytes(cls, question: Message, content: bytes) -> Self:
        return cls(question, content, hashlib.sha256(content).hexdigest())

    def failed(self, error: str) -> Failure:
        """The answer that says that there is none, and why."""
        version: dict[str, Any] = {"epoch": self.question.epoch, "step": self.question.step}
        return Failure(self.question.site, error[:MOST_CHARACTERS], **version)

    def answered(self, site: Site) -> Message:
        """The site's answer, which is a failure where it raises."""
        if site.records.silent:
            return self.failed(NO_RECORDS)
        try:
            answer = site.answer(self.question)
            dumps(answer)
            return answer
        except Exception as error:  # whatever a model does
            return self.failed(str(failure_of(error, site.name)))


# --- at a site -----------------------------------------------------------------------------------


class Order(NamedTuple):
    """A question as it came to a site; its place is the epoch and how many were asked before."""

    asked: Asked
    place: tuple[Epoch, int]

    @classmethod
    def of(cls, terms: Terms, sender: str, site: str, body: Question) -> Self:
        """The question in a letter; a Refusal unless the server may ask it of this site."""
        if terms.server is None or sender != terms.server:
            raise _refused(f"a question of {sender!r}", f"one of {terms.server!r}", "membership")
        asked = Asked.read(body.content)
        question = asked.question
        if not isinstance(question, Improve | Measure) or question.site != site:
            kind = type(question).__name__
            raise _refused(f"a {kind} of {question.site!r}", "what a server asks", "membership")
        if not 0 < question.epoch[0] < MOST_EPOCHS or body.number < 0:
            raise _refused(f"a question of epoch {question.epoch}", "one that was begun", "epoch")
        if isinstance(question, Measure) and question.samples > SAMPLES:
            raise _refused(f"{question.samples} samples", f"at most {SAMPLES}", "magnitude")
        view = question.view if isinstance(question, Improve) else question.posterior
        for part in (view, question.factor):
            _check_like(terms, part, "a question")
        return cls(asked, (question.epoch, body.number))

    def answered(self, site: Site) -> tuple[Answer, dict[str, Any]]:
        """The site's answer for a letter, and what its log says of it."""
        answer = self.asked.answered(site)
        content = dumps(answer)
        entry = {
            "event": "failed" if isinstance(answer, Failure) else "answered",
            "question": self.asked.digest,
            "kind": type(self.asked.question).__name__,
            "epoch": list(self.place[0]),
            "step": self.asked.question.step,
            "answer": hashlib.sha256(content).hexdigest(),
        }
        return Answer(self.asked.digest, content), entry


# --- at the server -------------------------------------------------------------------------------


def admitted_answer(
    terms: Terms, asked: Asked, content: bytes, proposed: ExponentialFamily
) -> tuple[Message, ExponentialFamily]:
    """A site's answer to what it was asked, and the posterior if all that is proposed is taken.

    ``proposed`` is that posterior before it.

    Raises:
        Refusal: if it is no answer to that, or what it holds is beyond what was agreed.
    """
    answer, question = _read(content, "an answer"), asked.question
    if not answer.answers(question):
        raise _refused(f"an answer of {answer.site!r}", f"one of {question.site!r}", "membership")
    if isinstance(answer, Failure):
        return asked.failed(answer.error), proposed
    match question, answer:
        case Improve(), Improvement():
            _check_like(terms, answer.factor, "a factor")
            if not identical(at_rest(answer.factor), answer.factor):
                raise _refused("a factor in another form", "one at rest", "canonical")
            numbers = [answer.halvings, answer.residual or 0.0, answer.quadrature_error]
            _check_size(terms, *numbers)
            proposed = proposed + (answer.factor - question.factor)
            check_posterior(terms, proposed)
            return answer, proposed
        case Measure(), Report():
            for law in (answer.direction, answer.improved, answer.fixed_point):
                if law is not None:
                    _check_like(terms, law, "a report")
                    _check_size(terms, law.natural_parameters)
            size = question.posterior.own_size if answer.slope is not None else 0
            for part, shape in ((answer.slope, (size,)), (answer.curvature, (size, size))):
                if part is not None and np.shape(part) != shape:
                    raise _refused(f"a report of shape {np.shape(part)}", f"{shape}", "family")
            numbers = [answer.slope, answer.curvature, answer.value, answer.variance]
            _check_size(terms, *(part for part in numbers if part is not None))
            return answer, proposed
    kinds = type(answer).__name__, type(question).__name__
    raise _refused("a {} to a {}".format(*kinds), "an answer to what was asked", "schema")


def _check_like(terms: Terms, law: Any, what: str) -> None:
    if structure(law) != structure(terms.agreement.prior):
        prior = type(terms.agreement.prior).__name__
        found = f"{what} with a {type(law).__name__}, or one of another shape"
        raise _refused(found, f"a {prior} like the prior", "family")
    if not np.isfinite(law.natural_parameters).all():
        raise _refused(f"NaN or infinity in {what}", "finite parameters", "finite")


def _check_size(terms: Terms, *numbers: Any) -> None:
    most = terms.limits.magnitude
    for number in numbers:
        if np.size(number) and not np.abs(number).max() <= most:
            raise _refused(f"a number beyond {most:.3g}", f"at most {most:.3g}", "magnitude")


def _read(content: bytes, what: str) -> Any:
    try:
        message = loads(content)
        canonical = isinstance(message, Message) and dumps(message) == content
    except PosterityError as error:
        raise _refused(
            f"{what} that cannot be read ({error.found})", "a message", "schema"
        ) from error
    if not canonical:
        raise _refused(f"{what} of another spelling, or none", "a message", "canonical")
    return message


def _refused(found: str, expected: str, reason: Reason) -> Refusal:
    return Refusal(found=found, expected=expected, reason=reason)
