"""Notices: signed statements that members are to know of, and by whom they may be made.

A *tombstone* says that a member was forgotten, an *agreement* that a member takes part, a *survey*
asks all how they stand to a posterior, a *residual* answers that, a *certificate* sums the answers
up, a *checkpoint* tells how a member's log stands, and a *cosignature* that another saw it. Each is
an in-toto statement in an envelope with the signature of who makes it. A notice replaces the older
one of its place.
"""

import base64
import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Self, get_args

from posterity.artifact.artifact import from_bytes, to_bytes
from posterity.engine.admission import check_posterior, check_report, check_structure
from posterity.engine.agreement import Terms
from posterity.engine.log import TreeHead, key_name
from posterity.engine.messages import MOST_EPOCHS, MOST_SEQUENCES
from posterity.engine.refusal import Reason, Refusal
from posterity.engine.signing import Claim, Envelope, PrivateKey, Statement, from_base64
from posterity.errors import PosterityError
from posterity.families import ExponentialFamily
from posterity.federation.messages import Epoch, Report, dumps, loads
from posterity.federation.status import status_from
from posterity.status import State, Status

TOMBSTONE = "tombstone"


@dataclasses.dataclass(frozen=True)
class Known:
    """A notice whose signature and form were checked.

    ``site`` is whom it is about, which is who signed it but for tombstones and cosignatures.
    ``version`` orders the notices of one ``place``.
    """

    claim: Claim
    site: str
    signer: str
    version: tuple[Any, ...]
    envelope: bytes

    @functools.cached_property
    def predicate(self) -> Mapping[str, Any]:
        """The content of the statement."""
        return Statement.from_bytes(Envelope.from_bytes(self.envelope).payload).predicate

    def to_bytes(self) -> bytes:
        """As a store keeps it: its head, and the envelope."""
        return self._bytes

    @functools.cached_property
    def _bytes(self) -> bytes:
        head = [self.claim, self.site, self.signer, self.version]
        return json.dumps(head).encode() + b"\n" + self.envelope

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The notice that :meth:`to_bytes` gave; a ValueError or TypeError if it is none."""
        head, _, envelope = content.partition(b"\n")
        claim, site, signer, version = json.loads(head)
        return cls(claim, site, signer, _tuple(version), envelope)

    @property
    def recipient(self) -> str:
        """Who needs a residual or a cosignature: who made the survey, or keeps the log."""
        return self.predicate["to"] if self.claim == "residual" else self.site

    @property
    def predicate_key(self) -> str:
        """The ID of the key of whom a tombstone is about."""
        subjects = Statement.from_bytes(Envelope.from_bytes(self.envelope).payload).subjects
        return subjects["key"]

    @property
    def is_tombstone(self) -> bool:
        """True if it says that a member was forgotten."""
        return self.claim == TOMBSTONE

    @property
    def place(self) -> str:
        """Where a memory keeps it."""
        by = f" by {self.signer}" if self.claim == "cosignature" else ""
        return f"{self.claim} of {self.site}{by}"

    @property
    def forgotten(self) -> frozenset[str]:
        """The members of whose tombstones who made it knew."""
        return frozenset(self.predicate["forgotten"])

    @functools.cached_property
    def posterior_digest(self) -> str:
        """SHA-256 of the posterior that it speaks of, as an artifact."""
        text = self.predicate["posterior"]
        return (
            text if self.claim == "residual" else hashlib.sha256(base64.b64decode(text)).hexdigest()
        )

    @property
    def epoch(self) -> Epoch | None:
        """The epoch whose posterior it speaks of, if it does."""
        return self.version[0] if self.claim in SPEAKS_OF_POSTERIOR else None

    @property
    def digest(self) -> str:
        """SHA-256 of the envelope, in hexadecimal."""
        return hashlib.sha256(self.envelope).hexdigest()


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


SPEAKS_OF_POSTERIOR = ("survey", "residual", "certificate")


def read(terms: Terms, envelope: bytes) -> Known:
    """A notice, once it is known who made it, and that it is one under these terms.

    Raises:
        Refusal: if it is none, or was not signed by whom it has to be.
    """
    content = Envelope.from_bytes(envelope, most=terms.limits.bytes)
    signers = content.verify({**terms.members, **terms.authorities})
    statement = Statement.from_bytes(content.payload)
    claim, predicate = statement.claim, statement.predicate
    try:
        if claim not in _VERSIONS or predicate["terms"] != terms.digest:
            raise ValueError("other terms, or none that members make")
        if predicate.keys() != {"terms", "site", *_FIELDS[claim].split()}:
            raise ValueError("other fields")
        site = predicate["site"]
        if any(type(predicate.get(name, "")) is not str for name in ("site", "by", "to")):
            raise ValueError("who is no name")
        version = _VERSIONS[claim](predicate)
        if dict(statement.subjects) != _SUBJECTS[claim](terms, predicate):
            raise ValueError("another subject")
        if claim in _FORMS and not _FORMS[claim](predicate):
            raise ValueError("values of another kind")
    except (PosterityError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refused(f"a notice that cannot be read ({error!r})", "schema") from error
    if site not in terms.members:
        raise _refused(f"a notice about {site!r}", "membership")
    allowed = {predicate.get("by", site)} | (
        terms.authorities.keys() if claim == TOMBSTONE else set()
    )
    if not allowed.intersection(signers):
        raise _refused(f"a notice about {site!r} by {signers[0]!r}", "membership")
    known = Known(claim, site, min(allowed.intersection(signers)), version, envelope)
    if claim in ("survey", "certificate"):
        posterior_of(terms, known)
    if claim == "residual":
        standing_of(terms, known)
    if claim in ("checkpoint", "cosignature"):
        _check_head(terms, known)
    return known


def _check_head(terms: Terms, known: Known) -> None:
    """Check that a note is of its keeper's log, as that signed it, and cosigned by whom it says."""
    head, keeper = TreeHead.from_bytes(known.predicate["note"].encode()), known.site
    if head.origin != key_name(terms.name, keeper):
        raise _refused(f"a note of {head.origin!r} by {keeper!r}", "membership")
    head.verify(terms.members[keeper])
    if (witness := known.predicate.get("by")) is not None:
        if witness not in terms.members.keys() - {keeper}:
            raise _refused(f"a cosignature of {witness!r} for {keeper!r}", "membership")
        head.witnesses({key_name(terms.name, witness): terms.members[witness]}, threshold=1)


def _counted(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MOST_EPOCHS - 1:
        raise ValueError(f"{value!r} where a count should be")
    return value


def _epoch(predicate: Mapping[str, Any]) -> Epoch:
    number, who = predicate["epoch"]
    if type(who) is not str:
        raise ValueError("an epoch that is no number and a name")
    return _counted(number), who


def _position(predicate: Mapping[str, Any]) -> tuple[Epoch, int]:
    sequence = _counted(predicate["sequence"])
    if sequence >= MOST_SEQUENCES:
        raise ValueError(f"sequence {sequence}")
    return _epoch(predicate), sequence


def _size(predicate: Mapping[str, Any]) -> tuple[int]:
    return (TreeHead.from_bytes(predicate["note"].encode()).size,)


_FIELDS = {
    "tombstone": "highest",
    "agreement": "start born epoch",
    "survey": "epoch sequence posterior forgotten",
    "residual": "epoch sequence posterior to counted silent independent report forgotten",
    "certificate": "epoch sequence posterior state left tolerance reasons independent residuals "
    "envelopes forgotten tombstones time",
    "checkpoint": "note paths",
    "cosignature": "note by",
}
_VERSIONS: dict[str, Any] = {
    "tombstone": lambda p: (0 * _counted(p["highest"]),),  # the first one stays
    "agreement": lambda p: (_counted(p["start"]),),
    "survey": _position,
    "residual": _position,
    "certificate": lambda p: (*_position(p), len(p["residuals"])),
    "checkpoint": _size,
    "cosignature": _size,
}


def _is_certificate(p: Mapping[str, Any]) -> bool:
    """Tell whether what a certificate says of the answers is of the kinds that it has to be."""
    texts = [*p["residuals"].values(), *p["forgotten"].values()]
    texts += [*p["reasons"], *p["envelopes"], *p["tombstones"]]
    numbers = [p["tolerance"], *filter(lambda left: left is not None, [p["left"]])]
    known = p["state"] in get_args(State) and type(p["independent"]) is bool
    counts = all(type(n) is float and 0 <= n < math.inf for n in numbers)
    return known and counts and {str} >= set(map(type, texts)) and _counted(p["time"]) >= 0


def _are_names(p: Mapping[str, Any]) -> bool:
    names = p["forgotten"]
    return isinstance(names, list) and {str} >= set(map(type, names))


_FORMS: dict[str, Any] = {
    "agreement": lambda p: _counted(p["born"]) >= 0 and bool(_epoch(p)),
    "survey": _are_names,
    "residual": _are_names,
    "certificate": _is_certificate,
    "checkpoint": lambda p: all(
        len(bytes.fromhex(s)) == 32 for own in p["paths"].values() for s in own
    ),
}
"""By claim: whether the values are of the kinds that whoever reads them counts on."""
_POSTERIOR = lambda terms, p: {"posterior": hashlib.sha256(posterior_bytes(p)).hexdigest()}
_NOTE = lambda terms, p: {"checkpoint": hashlib.sha256(p["note"].encode()).hexdigest()}
_SUBJECTS: dict[str, Any] = {
    "tombstone": lambda terms, p: {"key": terms.members[p["site"]].id},
    "agreement": lambda terms, p: {"terms": terms.digest},
    "survey": _POSTERIOR,
    "residual": lambda terms, p: {"posterior": p["posterior"]},
    "certificate": _POSTERIOR,
    "checkpoint": _NOTE,
    "cosignature": _NOTE,
}
"""By claim: what a statement is about, and by what a newer one is told from an older."""


def posterior_bytes(predicate: Mapping[str, Any]) -> bytes:
    """The artifact of the posterior that a survey or a certificate is about."""
    return from_base64(predicate["posterior"], "a posterior")


def posterior_of(terms: Terms, known: Known) -> ExponentialFamily:
    """The posterior that a survey or a certificate is about; a Refusal if it is none."""
    try:
        posterior = from_bytes(posterior_bytes(known.predicate), what="a posterior")
    except PosterityError as error:
        raise _refused(f"no posterior ({error.found})", "schema") from error
    check_structure(terms, posterior)
    check_posterior(terms, posterior)
    return posterior


# --- making them ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Author:
    """A member, or an authority, that makes notices under its terms."""

    terms: Terms
    name: str
    key: PrivateKey

    def _made(self, claim: Claim, site: str, **predicate: Any) -> Known:
        content = {"terms": self.terms.digest, "site": site, **predicate}
        subjects = _SUBJECTS[claim](self.terms, content)
        envelope = Statement(claim, subjects, content).signed(self.key).to_bytes()
        return read(self.terms, envelope)

    def tombstone(self, site: str, highest: int) -> Known:
        """Says that a site is forgotten; ``highest`` is the last epoch known to have its factor."""
        return self._made("tombstone", site, highest=highest)

    def agreement(self, start: int, born: int, epoch: Epoch) -> Known:
        """Says that the member takes part under these terms.

        Its agent was started at the time ``start``, and for the first time with this store at
        ``born``, in seconds since 1970; ``epoch`` is the newest that its store knows.
        """
        return self._made("agreement", self.name, start=start, born=born, epoch=list(epoch))

    def survey(
        self,
        epoch: Epoch,
        sequence: int,
        posterior: ExponentialFamily,
        forgotten: Iterable[str] = (),
    ) -> Known:
        """Asks all members how they stand to the posterior of a token that rests."""
        text = base64.b64encode(to_bytes(posterior)).decode()
        place = {"epoch": list(epoch), "sequence": sequence, "forgotten": sorted(forgotten)}
        return self._made("survey", self.name, **place, posterior=text)

    def residual(self, survey: Known, answer: "Standing") -> Known:
        """The member's answer to a survey; a report beyond what was agreed says nothing."""
        try:
            if answer.report is not None:
                check_report(self.terms, answer.report)
        except Refusal:
            answer = dataclasses.replace(answer, report=Report(self.name))
        (epoch, sequence), digest = survey.version, survey.posterior_digest
        report = answer.report and base64.b64encode(dumps(answer.report)).decode()
        said = dataclasses.asdict(dataclasses.replace(answer, report=None)) | {"report": report}
        said["forgotten"] = list(answer.forgotten)
        place = {"epoch": list(epoch), "sequence": sequence, "posterior": digest}
        return self._made("residual", self.name, to=survey.site, **place, **said)

    def certificate(
        self,
        survey: Known,
        residuals: Mapping[str, Known],
        tombstones: Mapping[str, Known],
        time: int,
    ) -> Known:
        """What the answers to the member's own survey come to, at a time in seconds since 1970.

        It holds the answers themselves, so that whoever has the certificate can check all of it. It
        names them by their digests alone where they are larger than a quarter of a letter, or where
        copies for all listeners would be larger than four letters together.
        """
        epoch, sequence = survey.version
        status = status_by(self.terms, survey, residuals, frozenset(tombstones))
        size = sum(len(each.envelope) for each in residuals.values())
        listeners = self.terms.listeners(self.name, frozenset(tombstones) - {self.name})
        whole = size <= self.terms.limits.bytes * 4 // max(len(listeners), 16)
        return self._made(
            "certificate",
            self.name,
            epoch=list(epoch),
            sequence=sequence,
            posterior=survey.predicate["posterior"],
            state=status.state,
            left=_plain(status.left),
            tolerance=float(status.tolerance),
            reasons=list(status.reasons),
            independent=all(each.predicate["independent"] for each in residuals.values()),
            residuals={site: each.digest for site, each in residuals.items()},
            envelopes=[each.envelope.decode() for each in residuals.values()] if whole else [],
            forgotten={site: each.digest for site, each in tombstones.items()},
            tombstones=[each.envelope.decode() for each in tombstones.values()],
            time=time,
        )

    def checkpoint(self, head: TreeHead, paths: Mapping[int, tuple[bytes, ...]]) -> Known:
        """How the member's log stands; ``paths`` lead there from checkpoints of these sizes."""
        plain = {str(size): [step.hex() for step in path] for size, path in paths.items()}
        return self._made("checkpoint", self.name, note=head.to_bytes().decode(), paths=plain)

    def cosignature(self, origin: str, head: TreeHead) -> Known:
        """Another's checkpoint with the member's cosignature, once it was checked."""
        note = head.to_bytes().decode()
        return self._made("cosignature", origin, by=self.name, note=note)


def _plain(left: float) -> float | None:
    return float(left) if left < math.inf else None


def answers_in(terms: Terms, certificate: Known) -> dict[str, Known]:
    """The answers that a certificate holds, by site; a Refusal if one is not what it says."""
    residuals = {}
    for text in certificate.predicate["envelopes"]:
        known = read(terms, text.encode())
        if known.claim != "residual" or known.version != certificate.version[:2]:
            raise _refused(f"a {known.claim} of another survey in a certificate", "schema")
        if known.posterior_digest != certificate.posterior_digest:
            raise _refused("an answer about another posterior", "schema")
        residuals[known.site] = known
    return residuals


def follows(terms: Terms, certificate: Known) -> bool:
    """Tell whether a certificate says what the answers of the members come to.

    Where a server left them out, since they are too many to be sent to all, it is believed.

    Raises:
        Refusal: if an answer is not what it says.
    """
    predicate, residuals = certificate.predicate, answers_in(terms, certificate)
    if not residuals and predicate["residuals"]:
        return certificate.signer == terms.server
    status = status_by(terms, certificate, residuals, certificate.forgotten)
    return predicate["residuals"] == {site: each.digest for site, each in residuals.items()} and (
        status.state, _plain(status.left), float(status.tolerance), list(status.reasons)
    ) == tuple(predicate[name] for name in ("state", "left", "tolerance", "reasons"))  # fmt: skip


# --- surveys -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Standing:
    """The relation of a member to the posterior of a survey.

    ``counted`` tells whether its factor is part of it, ``silent`` that it has no records, and
    ``independent`` that its factor depends on nothing but its own records. ``report`` is None where
    it could not be made. ``forgotten`` are the members whose factors it destroyed.
    """

    counted: bool
    silent: bool
    independent: bool
    report: Report | None
    forgotten: tuple[str, ...] = ()


def standing_of(terms: Terms, known: Known) -> Standing:
    """The answer in a residual; a Refusal if it is none, or of another family or shape."""
    try:
        content = {
            field.name: known.predicate[field.name] for field in dataclasses.fields(Standing)
        }
        flags = [content[name] for name in ("counted", "silent", "independent")]
        if any(type(flag) is not bool for flag in flags):
            raise ValueError("a flag that is neither true nor false")
        text = content["report"]
        report: Any = None if text is None else loads(from_base64(text, "a report"))
        if text is not None and (not isinstance(report, Report) or report.site != known.site):
            raise ValueError("another site's report")
        if report is not None:
            check_report(terms, report)
        forgotten = tuple(map(str, content["forgotten"]))
        return Standing(**{**content, "report": report, "forgotten": forgotten})
    except (PosterityError, KeyError, TypeError, ValueError) as error:
        raise _refused(f"a residual that cannot be read ({error!r})", "schema") from error


def status_by(
    terms: Terms, survey: Known, residuals: Mapping[str, Known], gone: frozenset[str] = frozenset()
) -> Status:
    """How far the posterior of a survey has come, by the members' answers to it.

    Whoever was not visited yet, or has not answered, keeps it from being called converged.
    """
    answers = {site: standing_of(terms, known) for site, known in residuals.items()}
    stay = tuple(sorted(terms.members.keys() - gone))
    silent = frozenset(site for site, answer in answers.items() if answer.silent)
    reports = {
        site: answer.report
        for site, answer in answers.items()
        if answer.counted and not answer.silent and answer.report is not None and site in stay
    }
    agreed = dataclasses.replace(terms.agreement, sites=stay, silent=silent)
    posterior = posterior_of(terms, survey)
    status = status_from(agreed, posterior, reports, *filter(None, [terms.tolerance]))
    lacking = sorted(site for site, answer in answers.items() if not answer.counted)
    if not lacking:
        return status
    reasons = (*status.reasons, f"no visit yet to {', '.join(map(repr, lacking))}")
    return dataclasses.replace(status, state="not converged", reasons=reasons)


def _refused(found: str, reason: Reason) -> Refusal:
    return Refusal(found=found, expected="a notice as a member makes it", reason=reason)
