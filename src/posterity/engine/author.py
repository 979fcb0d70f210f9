"""The maker of notices, and what follows from the answers that a certificate summarises."""

import base64
import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from posterity.artifact.artifact import to_bytes
from posterity.engine.admission import check_report
from posterity.engine.agreement import Terms
from posterity.engine.log import TreeHead
from posterity.engine.notices import (
    VERSIONS_AND_SUBJECTS,
    Known,
    Standing,
    notices_in,
    posterior_of,
    read,
    standing_of,
)
from posterity.engine.refusal import Refusal
from posterity.engine.signing import Claim, PrivateKey, Statement
from posterity.errors import PosterityError
from posterity.families import ExponentialFamily
from posterity.federation.messages import Epoch, Report, dumps
from posterity.federation.status import UNSEARCHED, status_from
from posterity.status import Status


@dataclasses.dataclass(frozen=True)
class Author:
    """A member, or an authority, that makes notices under its terms."""

    terms: Terms
    name: str
    key: PrivateKey

    def _made(self, claim: Claim, site: str, **predicate: Any) -> Known:
        content = {"terms": self.terms.digest, "site": site, **predicate}
        subjects = VERSIONS_AND_SUBJECTS[claim][1](self.terms, content)
        envelope = Statement(claim, subjects, content).signed(self.key).to_bytes()
        return read(self.terms, envelope)

    def tombstone(self, site: str, highest: int) -> Known:
        """State that a site is forgotten, whose factor may be in epochs up to ``highest``."""
        return self._made("tombstone", site, highest=highest)

    def rotation(self, site: str, *, old: str, key: str, epoch: int) -> Known:
        """Replace the key ``old`` of a site by ``key``. The old one counts for what is of an epoch
        number below ``epoch``.
        """
        return self._made("rotation", site, old=old, key=key, epoch=epoch)

    def agreement(self, start: int, lost: bool, epoch: Epoch) -> Known:
        """State that the member takes part under these terms: the number of its starts, whether it
        found its store to be older than what others have seen, and the newest epoch in its store.
        """
        return self._made("agreement", self.name, start=start, lost=lost, epoch=epoch)

    def absence(self, site: str, start: int, number: int) -> Known:
        """State that a member does not answer, of whose starts ``start`` was the newest: the others
        go on without it until it states that it takes part. ``number`` counts such statements.
        """
        return self._made("absence", site, start=start, number=number, by=self.name)

    def survey(
        self,
        epoch: Epoch,
        sequence: int,
        posterior: ExponentialFamily,
        forgotten: Iterable[str] = (),
    ) -> Known:
        """Ask all members for their relation to the posterior of a resting token."""
        text = base64.b64encode(to_bytes(posterior)).decode()
        place = {"epoch": epoch, "sequence": sequence, "forgotten": sorted(forgotten)}
        return self._made("survey", self.name, **place, posterior=text)

    def residual(self, survey: Known, answer: Standing) -> Known:
        """Answer a survey; a report outside the agreed limits is replaced by an empty one."""
        try:
            if answer.report is not None:
                check_report(self.terms, answer.report)
        except Refusal:
            answer = dataclasses.replace(answer, report=Report(self.name))
        (epoch, sequence), digest = survey.version, survey.posterior_digest
        report = answer.report and base64.b64encode(dumps(answer.report)).decode()
        content = dataclasses.asdict(dataclasses.replace(answer, report=None)) | {"report": report}
        place = {"epoch": epoch, "sequence": sequence, "posterior": digest}
        return self._made("residual", self.name, to=survey.site, **place, **content)

    def certificate(
        self,
        survey: Known,
        residuals: Mapping[str, Known],
        tombstones: Mapping[str, Known],
        time: int,
        own: Status | None = None,
    ) -> Known:
        """Make the certificate from the answers to the member's survey, at ``time`` in seconds
        since 1970. ``own`` is the status that a server's run has, which also makes second starts.

        It contains the answers, so that a reader can check all of the certificate. It contains only
        their digests if they are larger than a quarter of a letter, or if copies for all listeners
        would together be larger than four letters.
        """
        epoch, sequence = survey.version
        status = status_by(self.terms, survey, residuals, frozenset(tombstones))
        if own is not None and own.reasons and status.converged and not own.converged:
            status = dataclasses.replace(status, state=own.state, reasons=own.reasons)
        size = sum(len(each.envelope) for each in residuals.values())
        listeners = self.terms.listeners(self.name, frozenset(tombstones) - {self.name})
        whole = size <= self.terms.limits.bytes * 4 // max(len(listeners), 16)
        return self._made(
            "certificate",
            self.name,
            epoch=epoch,
            sequence=sequence,
            posterior=survey.predicate["posterior"],
            **_plain(status),
            independent=all(each.predicate["independent"] for each in residuals.values()),
            residuals={site: each.digest for site, each in residuals.items()},
            absent=sorted(self.terms.members.keys() - residuals.keys() - tombstones.keys()),
            envelopes=[each.text for each in residuals.values()] if whole else [],
            forgotten={site: each.digest for site, each in tombstones.items()},
            tombstones=[each.text for each in tombstones.values()],
            rotations=self.terms.changes,
            time=time,
        )

    def checkpoint(self, head: TreeHead, paths: Mapping[int, tuple[bytes, ...]]) -> Known:
        """Give the state of the member's log, with paths from checkpoints of the given sizes."""
        plain = {str(size): [step.hex() for step in path] for size, path in paths.items()}
        return self._made("checkpoint", self.name, note=head.to_bytes().decode(), paths=plain)

    def cosignature(self, origin: str, head: TreeHead) -> Known:
        """Give another member's checkpoint with this member's cosignature, once it was checked."""
        note = head.to_bytes().decode()
        return self._made("cosignature", origin, by=self.name, note=note)


def status_by(
    terms: Terms, survey: Known, residuals: Mapping[str, Known], gone: frozenset[str] = frozenset()
) -> Status:
    """Return the status of a survey's posterior from the members' answers. It is not converged if a
    member was not visited yet, or if fewer have answered than the terms ask for: if there is a
    quorum, as many, otherwise all.
    """
    answers = {site: standing_of(terms, known) for site, known in residuals.items()}
    stay = terms.staying(gone)
    absent = set(stay) - residuals.keys() if terms.is_quorum(len(residuals)) else set()
    stay = tuple(site for site in stay if site not in absent)
    silent = frozenset(site for site, answer in answers.items() if answer.silent)
    reports = {
        site: answer.report
        for site, answer in answers.items()
        if answer.counted and not answer.silent and answer.report is not None and site in stay
    }
    agreed = dataclasses.replace(terms.agreement, sites=stay, silent=silent)
    posterior = posterior_of(terms, survey)
    status = status_from(agreed, posterior, reports, *filter(None, [terms.tolerance]))
    if terms.server is not None and status.converged:  # its run makes the second start
        reasons = tuple(reason for reason in status.reasons if reason != UNSEARCHED)
        status = dataclasses.replace(status, reasons=reasons, scope="")
    return among(status, absent)


def among(status: Status, absent: Iterable[str]) -> Status:
    """Return the status of a posterior of those who answered, with the names of the others."""
    names = ", ".join(map(repr, sorted(absent)))
    why = (f"no answer of {names}, without whose factors it was made",) if names else ()
    return dataclasses.replace(status, reasons=(*status.reasons, *why))


def _plain(status: Status) -> dict[str, Any]:
    left = float(status.left) if status.left < math.inf else None
    plain = {"tolerance": float(status.tolerance), "reasons": list(status.reasons)}
    return {"state": status.state, "left": left, **plain}


def claims_on_answers(
    terms: Terms, certificate: Known, residuals: Mapping[str, Known]
) -> dict[str, bool]:
    """Check a certificate against its answers: each claim, with True if it holds. A server may call
    a posterior less than converged for other reasons. What is left to change is checked only where
    the model may be loaded.
    """
    predicate = certificate.predicate
    about = (certificate.posterior_digest, certificate.signer)
    stay = terms.staying(certificate.forgotten)
    claims = {
        "every remaining member has answered or is named as absent, and no other": (
            sorted([*residuals, *predicate["absent"]]) == [*stay]
        ),
        "the answers of members that it names are in it, as they signed them": (
            {site: each.digest for site, each in residuals.items()} == predicate["residuals"]
        ),
        "all answered its issuer about the posterior that it holds": all(
            each.version == certificate.version[:2]
            and (each.posterior_digest, each.recipient) == about
            for each in residuals.values()
        ),
    }
    if not terms.knows_model:
        return claims
    try:
        status = _plain(status_by(terms, certificate, residuals, certificate.forgotten))
    except PosterityError:
        status = None
    more = certificate.signer == terms.server and predicate["reasons"]
    if status is not None and more and status["state"] == "converged" != predicate["state"]:
        status |= {"state": predicate["state"], "reasons": predicate["reasons"]}
    follows = status is not None and {**predicate, **status} == predicate
    return claims | {"what is left to change follows from the answers": follows}


def follows(terms: Terms, certificate: Known) -> bool:
    """Return whether a certificate agrees with the members' answers. A server's certificate without
    the answers, left out because of their size, is accepted. Raises a Refusal if an answer is
    invalid.
    """
    residuals = notices_in(terms, certificate.predicate["envelopes"], "residual")
    if not residuals and certificate.predicate["residuals"]:
        return certificate.signer == terms.server
    return all(claims_on_answers(terms, certificate, residuals).values())
