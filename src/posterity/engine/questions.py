"""Questions of a server and answers of sites: how they are checked, and how sites answer."""

from typing import Any, NamedTuple, Self

from posterity.arrays.tree import leaves
from posterity.engine import messages as letters
from posterity.engine.admission import check_posterior, check_report, check_size, check_structure
from posterity.engine.agreement import Terms
from posterity.engine.author import Author
from posterity.engine.memory import line
from posterity.engine.messages import MOST_EPOCHS
from posterity.engine.notices import Known, Standing, posterior_of, read
from posterity.engine.refusal import Refusal, reading
from posterity.families import ExponentialFamily
from posterity.federation.factors import canonical
from posterity.federation.messages import (
    Answer,
    Epoch,
    Failure,
    Improve,
    Improvement,
    Measure,
    Question,
    Report,
    dumps,
    loads,
)
from posterity.federation.remaining import SAMPLES
from posterity.federation.site import Site, failure_of

NO_RECORDS = "it has no records"
"""The error of a site that contributes nothing; it is not asked again."""


def failed(question: Question, error: str, most: int = 300) -> Failure:
    """Return the failure that answers a question, with the ``most`` first characters of its reason,
    which a server keeps.
    """
    return Failure(question.site, error[:most], **question.about)


def answer_of(site: Site, question: Question) -> tuple[Answer, bytes]:
    """Return the site's answer, a failure if it cannot give another, and the answer as bytes."""
    error = NO_RECORDS
    if not site.records.silent:
        try:
            answer = site.answer(question)
            return answer, dumps(answer)
        except Exception as raised:  # any error of the model
            error = str(failure_of(raised, site.name, elsewhere=True))
    answer = failed(question, error)
    return answer, dumps(answer)


# --- at a site -----------------------------------------------------------------------------------


class Order(NamedTuple):
    """A question as received by a site; its place is the epoch and the number of earlier questions.
    With a ``survey`` it also asks for a residual to the survey's posterior.
    """

    question: Question
    place: tuple[Epoch, int]
    survey: Known | None = None

    @classmethod
    def of(cls, terms: Terms, sender: str, site: str, body: letters.Question) -> Self:
        """Return the question in a letter; a Refusal unless the server may ask it of this site."""
        if terms.server is None or sender != terms.server:
            raise Refusal.of(f"a question of {sender!r}", f"one of {terms.server!r}", "membership")
        question = _read(body.content)
        if not isinstance(question, Improve | Measure) or question.site != site:
            kind = type(question).__name__
            raise Refusal.of(f"a {kind}", f"a question of a server to {site!r}", "membership")
        measure = isinstance(question, Measure)
        view = question.posterior if measure else question.view
        samples = question.samples if measure else 0
        begun = 0 < question.epoch[0] < MOST_EPOCHS
        Refusal.check(
            (not begun, f"a question of epoch {question.epoch}", "a begun epoch", "epoch"),
            (samples > SAMPLES, f"{samples} samples", f"at most {SAMPLES}", "magnitude"),
        )
        for part in (view, question.factor):
            check_structure(terms, part)
        survey = read(terms, body.survey.encode()) if body.survey else None
        if survey is not None:
            about = (survey.claim, survey.signer, survey.epoch)
            own = measure and about == ("survey", sender, question.epoch)
            other = own and view != posterior_of(terms, survey)
            Refusal.check(
                (not own, f"a {survey.claim} of {survey.signer!r}", "its own survey"),
                (other, "a survey of another posterior", "that of the question"),
            )
        return cls(question, (question.epoch, body.number), survey)

    def answered(
        self, site: Site, author: Author, gone: frozenset[str]
    ) -> tuple[letters.Answer, bytes]:
        """Return the site's answer for a letter, and the line for its log."""
        answer, content = answer_of(site, self.question)
        residual = ""
        if self.survey is not None:
            residual = residual_of(author, self.survey, answer, site, gone).text
        asked = self.question
        event = "failed" if isinstance(answer, Failure) else "answered"
        about = {"kind": type(asked).__name__, "epoch": asked.epoch, "step": asked.step}
        digest = letters.digest_of(content)
        entry = line(event, question=asked.digest, answer=digest, **about)
        return letters.Answer(asked.digest, content, residual), entry


def residual_of(
    author: Author, survey: Known, answer: Answer, site: Site, gone: frozenset[str]
) -> Known:
    """Return the site's signed answer to a server's survey, for the factor in the question."""
    silent = bool(site.records.silent)
    alone = site.update.conjugate
    report = answer if isinstance(answer, Report) else None if silent else Report(site.name)
    standing = Standing(True, silent, silent or alone, report, tuple(sorted(gone)))
    return author.residual(survey, standing)


# --- at the server -------------------------------------------------------------------------------


def admitted_answer(
    terms: Terms, question: Question, content: bytes, proposed: ExponentialFamily
) -> tuple[Answer, ExponentialFamily]:
    """Check a site's answer; return it, and the posterior after all proposed factors are taken.
    ``proposed`` is that posterior before it. Raises a Refusal if it does not answer the question,
    or its contents exceed the agreed limits.
    """
    answer = _read(content)
    if not isinstance(answer, Answer) or not answer.answers(question):
        found = f"a {type(answer).__name__} that is no answer"
        raise Refusal.of(found, f"one of {question.site!r}, to what it was asked", "membership")
    if isinstance(answer, Failure):
        return failed(question, answer.error), proposed
    if isinstance(answer, Report):
        check_report(terms, answer)
    else:
        assert isinstance(question, Improve) and isinstance(answer, Improvement)
        check_structure(terms, answer.factor)
        pairs = zip(leaves(canonical(answer.factor)), leaves(answer.factor), strict=True)
        if any(one.tobytes() != other.tobytes() for one, other in pairs):
            raise Refusal.of("a factor in another form", "one at rest", "canonical")
        check_size(terms, answer.halvings, answer.residual or 0.0, answer.quadrature_error)
        proposed = proposed + (answer.factor - question.factor)
        check_posterior(terms, proposed)
    return answer, proposed


def _read(content: bytes) -> Any:
    with reading("a question or an answer in a letter", "a message of a federation"):
        return loads(content)
