"""A member of a federation: how it processes letters and notices, as pure functions.

A message is sent only after the state it follows from is durable: each step holds the member's new
memory and the messages to send once that is on disk. Lost messages are sent again until they are
acknowledged. Notices spread over the links. A tombstone voids every message that may hold the
factor of the forgotten member.
"""

import abc
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

from posterity.engine.admission import admitted
from posterity.engine.agreement import Terms
from posterity.engine.author import Author, follows
from posterity.engine.log import TreeHead, continues, key_name
from posterity.engine.memory import ANSWER, QUESTION, RESTING, TOKEN, Memory, Step, refused
from posterity.engine.messages import (
    NOTHING_SEEN,
    SCHEMA,
    SCHEMAS,
    Acknowledgement,
    Answer,
    Body,
    Handover,
    Letter,
    Notice,
    Question,
    Unread,
    body_of,
    digest_of,
)
from posterity.engine.notices import SPEAKS_OF_POSTERIOR, Known, followed, parsed, read
from posterity.engine.questions import Order
from posterity.engine.refusal import Refusal, forbidden
from posterity.engine.signing import PrivateKey, PublicKey
from posterity.engine.store import Outgoing
from posterity.entries import Entry
from posterity.federation import Token
from posterity.federation.messages import Epoch
from posterity.federation.remaining import TOLERANCE
from posterity.federation.site import Site
from posterity.federation.status import COMPARED, UNSEARCHED
from posterity.status import Status
from posterity.version import __version__

WITH_POSTERIORS = tuple(f"{claim} of " for claim in SPEAKS_OF_POSTERIOR)
"""Prefixes of the outbox places whose letters may hold a posterior."""


@dataclasses.dataclass(frozen=True)
class Member(abc.ABC):
    """One member of a federation between organisations: its terms, its records and its key.

    ``clock`` returns seconds since 1970, which certificates and cosignatures contain.
    """

    terms: Terms
    site: Site
    key: PrivateKey
    clock: Callable[[], float] = time.time
    MEMORY: ClassVar[type[Memory]] = Memory

    @functools.cached_property
    def name(self) -> str:
        """Name of the site."""
        return self.site.name

    @functools.cached_property
    def author(self) -> Author:
        """The maker of notices with the site's name and key."""
        return Author(self.terms, self.name, self.key)

    def load(self, state: bytes, rows: Mapping[str, Outgoing]) -> Memory:
        """Return the memory in a store; an ArtifactError if it is absent or of other terms."""
        memory = self.MEMORY.from_bytes(state, rows)
        if memory.own.name != self.name or memory.terms not in ("", self.terms.digest):
            found = f"the store of {memory.own.name!r} under terms {memory.terms[:16]!r}"
            expected = f"that of {self.name!r} under {self.terms.digest[:16]!r}"
            fix = "Adopt the new terms by `posterity site init FOLDER --federation FILE`."
            raise Refusal.of(found, expected, "membership", fix)
        digests = {"terms": self.terms.digest, "numbers": self.terms.agreement.digest}
        rotations = self.terms.changes or memory.rotations  # an empty store has none
        apart = {site: form for site, form in memory.apart.items() if form[1] not in SCHEMAS}
        return dataclasses.replace(memory, **digests, rotations=rotations, apart=apart)

    def under(self, memory: Memory) -> Self:
        """Return the member with the changes of keys that a memory knows."""
        if memory.rotations == self.terms.changes:
            return self
        return dataclasses.replace(self, terms=followed(self.terms.after(), memory.rotations))

    @property
    def present_key(self) -> PublicKey:
        """The key of the member that the others know."""
        return self.terms.keys[self.name]

    @property
    def is_replaced(self) -> bool:
        """Whether another key has replaced the member's."""
        return self.present_key != self.key.public

    # --- letters ----------------------------------------------------------------------------------

    def receive(self, memory: Memory, content: bytes) -> Step:
        """Return the step that follows a letter; a refused letter adds only a line to the log."""
        return self.under(memory)._received(memory, content)

    def _received(self, memory: Memory, content: bytes) -> Step:
        digest = digest_of(content)
        try:
            letter = admitted(self.terms, content, self.name, memory.gone)
            if letter.body is None:  # its sender has an old store, or stole the key
                refusal = forbidden(f"a letter of {letter.sender!r} by an old key", "retired")
                told = self._passed_on(memory, memory.changes, [letter.sender])
                return dataclasses.replace(refused(memory, refusal, digest), sent=told.sent)
            met = memory
            memory = memory.met(letter)
            if isinstance(letter.body, Unread | str):
                return self._estranged(memory, letter, digest, memory is met)
            most = memory.highest + self.terms.limits.epochs
            if letter.highest > most:  # each letter after a long absence raises it further
                far = forbidden(f"epoch {letter.highest}, far above {memory.highest}", "epoch")
                return refused(memory.heard(most), far, digest)
            heard = Step(memory)
            if letter.release:  # a change of a key without a letter is no sign of life
                heard = self._heard_from(memory, letter)
                heard = dataclasses.replace(heard, heard=frozenset([letter.sender]))
            if isinstance(letter.body, Acknowledgement):
                return heard.then(self._acknowledged(heard.memory, letter))
            step, answer = self._taken(heard.memory, letter, digest)
        except Refusal as refusal:
            return refused(memory, refusal, digest)
        # None: the answer to the question was sent instead. By an old key nobody takes it.
        if answer is not None and not self.is_replaced:
            reply = self._sealed(step.memory, letter.sender, answer)
            step = self._going_on(dataclasses.replace(step, sent=(reply, *step.sent)))
        return heard.then(step)

    def _estranged(self, memory: Memory, letter: Letter, digest: str, again: bool) -> Step:
        """Answer a letter of another schema, and log the first of a release. Answers themselves are
        not answered.
        """
        found = f"schema {letter.schema} of {letter.sender!r}, which has release {letter.release}"
        refusal = Refusal.of(found, f"schema {SCHEMA} of {__version__}", "release")
        step = Step(memory) if again else refused(memory, refusal, digest)
        if isinstance(letter.body, Unread) or letter.body in ("Unread", "Acknowledgement"):
            return step
        reply = self._sealed(memory, letter.sender, Unread(digest))
        return dataclasses.replace(step, sent=(reply,))

    def _heard_from(self, memory: Memory, letter: Letter) -> Step:
        """Mark the sender as present, and send it the tombstones that it lacks."""
        if memory.gone.issuperset(letter.gone):  # otherwise only after the tombstones have arrived
            memory = memory.heard(letter.highest)
        memory = memory.without_absent(letter.sender)
        unknown = memory.gone.difference(letter.gone)
        notices = [memory.tombstones[site] for site in sorted(unknown)]
        notices += memory.changes if letter.changes < len(memory.rotations) else []
        told = self._passed_on(memory, notices, [letter.sender])
        if letter.sender in memory.gone:  # who was forgotten may never acknowledge it
            return Step(memory, told.sent)
        start, number, *_ = letter.seen
        newer = [*letter.seen[1:]] > memory.place and number <= letter.highest
        behind = start > memory.starts or newer
        whole = memory.gone.issuperset(letter.gone) and self.name not in memory.gone
        return told.then(self._lost(told.memory, start)) if behind and whole else told

    def _lost(self, memory: Memory, start: int = 0) -> Step:
        """Tell all that the store is older than what was seen of it, as its number of starts, and
        return in a new epoch.
        """
        step = Step(memory).logging("store lost", site=self.name)
        step = self._agreed(step, start, lost=True)
        begins = self.terms.server in (None, self.name)
        return step.then(self.begin(step.memory)) if begins else step

    def _agreed(self, step: Step, start: int = 0, lost: bool = False) -> Step:
        """State that the member takes part, under a number of starts above all that is known."""
        memory = step.memory
        most = memory.starts + self.terms.limits.epochs
        memory = dataclasses.replace(memory, starts=max(memory.starts, min(start, most)) + 1)
        step = dataclasses.replace(step, memory=memory)
        return self._noticed(step, self.author.agreement(memory.starts, lost, memory.own.epoch))

    def _taken(
        self, memory: Memory, letter: Letter, digest: str
    ) -> tuple[Step, Acknowledgement | None]:
        body = letter.body
        sender = letter.sender
        unknown = sorted({*letter.gone} - memory.gone)
        if sender in memory.gone.difference(letter.gone):  # it writes until it has its tombstone
            refusal = forbidden(f"a letter of {sender!r}", "tombstone")
            return refused(memory, refusal, digest), Acknowledgement("")
        if unknown and isinstance(body, Token | Question):
            refusal = forbidden(f"a letter whose sender has tombstones of {unknown}", "tombstone")
            return refused(memory, refusal, digest), Acknowledgement("")  # sent again later
        match body:
            case Token():
                return self._receive_token(memory, body, frozenset(letter.gone), digest)
            case Question():
                return self._replied(memory, letter, body, digest)
            case Notice(envelope):
                try:
                    step = self._noticed(Step(memory), read(self.terms, envelope), sender)
                except Refusal as refusal:
                    if refusal.reason != "retired":
                        raise  # otherwise its sender may not know of the change yet
                    step = refused(memory, refusal, digest)
            case Handover(name, content):
                step = Step(memory, files=((sender, body),)).logging(
                    "file received", name=name, sender=sender, sha256=digest_of(content)
                )
            case Answer():
                step = self._receive_answer(memory, sender, body)
            case _:
                raise forbidden(f"a letter with a {type(body).__name__}", "schema")
        return step, Acknowledgement(digest)

    def _replied(
        self, memory: Memory, letter: Letter, asked: Question, digest: str
    ) -> tuple[Step, Acknowledgement | None]:
        """Return the answer to a server's question, or the waiting answer if the question is
        repeated.
        """
        order = Order.of(self.terms, letter.sender, self.name, asked)
        own = memory.own
        epoch = order.place[0]
        last = (own.epoch, own.answered)
        if order.place == last and ANSWER in memory.outbox:
            return Step(memory, (memory.outbox[ANSWER],)), None
        refusal = None
        unknown = sorted(memory.gone.difference(letter.gone))
        if unknown:
            refusal = forbidden(f"a question without tombstones of {unknown}", "tombstone")
        elif order.place <= last or self.name in memory.gone:
            reason = "replay" if epoch == own.epoch else "epoch"
            refusal = forbidden(f"question {asked.number} of epoch {epoch}", reason)
        if refusal is not None:
            # If it still waits at the server, that has lost the answer.
            void = refusal.reason != "tombstone"
            reply = Acknowledgement(digest if void else "", void)
            return refused(memory, refusal, order.question.digest), reply
        answer, entry = order.answered(self.site, self.author, memory.gone)
        memory = memory.heard(epoch[0]).with_own(epoch=epoch, answered=asked.number)
        message = self._sealed(memory, letter.sender, answer)
        return Step(memory.with_letters({ANSWER: message}), (message,), (entry,)), None

    def _receive_answer(self, memory: Memory, sender: str, answer: Answer) -> Step:
        """Refuse an answer; the server of a star overrides this method."""
        raise forbidden(f"an answer of {sender!r} to {answer.question[:16]!r}", "order")

    def _acknowledged(self, memory: Memory, letter: Letter) -> Step:
        sent = letter.body
        sender = letter.sender
        assert isinstance(sent, Acknowledgement)
        places = {
            place
            for place, message in memory.outbox.items()
            if message.receiver == sender and digest_of(message.content) == sent.digest
        }
        if not places:
            return Step(memory)
        memory = memory.without_letters(places)
        if sent.void and QUESTION + sender in places:
            return self._lost(memory)
        return self.begin(memory) if sent.void and TOKEN in places else Step(memory)

    def resend(self, memory: Memory) -> tuple[Outgoing, ...]:
        """Return the letters that are not acknowledged yet."""
        waiting = (each for place, each in memory.outbox.items() if place != RESTING)
        held = self.terms.members if self.is_replaced else memory.apart
        return tuple(each for each in waiting if each.receiver not in held)

    # --- the part of a walk, or of a star ---------------------------------------------------------

    @abc.abstractmethod
    def begin(self, memory: Memory, number: int | None = None) -> Step:
        """Begin a new epoch, by default numbered one above the highest that was recorded."""

    @abc.abstractmethod
    def _receive_token(
        self, memory: Memory, token: Token, gone: frozenset[str], digest: str
    ) -> tuple[Step, Acknowledgement]: ...

    @abc.abstractmethod
    def _answered(self, memory: Memory, survey: Known) -> Known: ...

    @abc.abstractmethod
    def _concluded(self, step: Step) -> Step: ...

    @abc.abstractmethod
    def _returned(self, step: Step, site: str) -> Step: ...

    @abc.abstractmethod
    def _goes_without(self, step: Step) -> Step: ...

    # --- notices ----------------------------------------------------------------------------------

    def status(self, memory: Memory) -> Status:
        """Return the status in the newest certificate of the present epoch."""
        known = memory.certificate
        if known is None:
            why = ("no survey of this epoch yet",)
            return Status.of(math.inf, self.terms.tolerance or TOLERANCE, why)
        state, left, tolerance, reasons = (
            known.predicate[name] for name in ("state", "left", "tolerance", "reasons")
        )
        left = math.inf if left is None else left
        scope = COMPARED if UNSEARCHED in reasons else ""
        return Status(state, left, tolerance, tuple(reasons), scope)

    def _noticed(self, step: Step, known: Known, sender: str | None = None) -> Step:
        """Store a notice, forward it, and do what follows; a Refusal if it is not valid."""
        memory = step.memory
        mine = known.signer == self.name
        old = memory.notices.get(known.place)
        if known.claim == "tombstone":
            return step if old is not None else self._buried(step, known, sender)
        if known.epoch is not None:
            if known.epoch[0] > memory.highest + self.terms.limits.epochs:
                raise forbidden(f"a {known.claim} of epoch {known.epoch}", "epoch")
            if known.epoch < memory.own.epoch or not memory.gone <= known.forgotten:
                return step  # it may hold a forgotten factor
        if known.signer in memory.gone:
            return step
        if known.claim == "rotation":
            return self._rekeyed(step, known)
        if known.claim == "agreement" and sender == known.site and memory.certificate is not None:
            step = step.then(self._passed_on(memory, [memory.certificate], [known.site]))
            memory = step.memory  # a restored member may not have it
        if old is not None and known.version <= old.version:
            return self._superseded(step, known, old)
        if known.claim in ("residual", "cosignature") and known.recipient != self.name:
            return self._sent_towards(step, known)
        if known.claim == "checkpoint" and not mine:
            return self._witnessed(step, known, old)
        if known.claim == "survey" and self.terms.server is not None:
            raise forbidden("a survey beside the questions of a server", "membership")
        if known.claim == "certificate" and not mine:
            counted = memory.own.counted and known.epoch == memory.own.epoch
            absent = counted and self.name in known.predicate.get("absent", ())
            if absent or not follows(self.terms, known):
                raise forbidden(f"a certificate of {known.site!r} that does not follow", "proof")
        kept = memory.with_notice(known)
        if known.claim == "survey":
            kept = kept.saw(known.site, known.version[0], known.version[1] - 1)
        step = dataclasses.replace(step, memory=kept)
        if known.claim in ("survey", "certificate", "checkpoint", "absence"):
            step = step.then(self._flooded(kept, known, sender))
        match known.claim:
            case "survey" if self.name not in memory.gone:
                place = {"epoch": list(known.version[0]), "sequence": known.version[1]}
                step = step.logging("surveyed", by=known.site, **place)
                return self._noticed(step, self._answered(step.memory, known))
            case "residual":
                return self._concluded(step)
            case "certificate":
                about = {"epoch": list(known.version[0]), "left": known.predicate["left"]}
                return step.logging("certified", by=known.site, **about)
            case "agreement":
                return self._started(step, known, sender)
            case "absence":
                return self._passed_over(step, known)
        return step

    def _rekeyed(self, step: Step, known: Known) -> Step:
        """Store a change of a member's key, and forward it; a Refusal if it loses to another."""
        memory = step.memory
        new = known.rotation
        if new in self.terms.rotations or new.site in memory.gone:
            return step
        if new.epoch > memory.highest + self.terms.limits.epochs:  # until when the old one counts
            raise forbidden(f"a change of a key from epoch {new.epoch} on", "epoch")
        memory = dataclasses.replace(memory, rotations=self.terms.rotated(new).changes)
        about = {"site": new.site, "by": new.signer, "key": str(new.key), "notice": known.digest}
        step = dataclasses.replace(step, memory=memory).logging("key changed", **about)
        # The member is told too: a thief may have signed it.
        others = self.terms.listeners(self.name, memory.gone - {self.name})
        return step.then(self._passed_on(memory, [known], others))

    def _started(self, step: Step, known: Known, sender: str | None) -> Step:
        """Process the start of a member, or that it lost its store. Only its neighbours hear of a
        first start.
        """
        site = known.site
        lost = known.predicate["lost"]
        again = known.version[0] > 1 or known.predicate["epoch"][0] > 0
        if site == self.name or lost or again:
            step = step.then(self._flooded(step.memory, known, sender))
        if site == self.name:
            return step
        step = step.logging("store lost", site=site) if lost else step
        return self._returned(step, site)

    def _starts_of(self, memory: Memory, site: str) -> int:
        """Return how often a member has started, as far as it has stated it."""
        agreed = memory.notices.get(f"agreement of {site}")
        return agreed.version[0] if agreed else 0

    def _passed_over(self, step: Step, known: Known) -> Step:
        """Go on without a member, unless it has stated since that it takes part. The member itself
        states that as soon as it hears of its absence.
        """
        memory = step.memory
        site = known.site
        start = known.version[0]
        if site == self.terms.server:
            raise forbidden(f"an absence of the server {site!r}", "membership")
        if site in memory.gone or start < self._starts_of(memory, site):
            return step
        if site == self.name:
            return self._agreed(step, start)
        memory = dataclasses.replace(memory, absent=memory.absent | {site})
        step = dataclasses.replace(step, memory=memory)
        step = step.logging("passed over", site=site, by=known.signer)
        return step if known.signer == self.name else self._goes_without(step)

    def _flooded(self, memory: Memory, known: Known, sender: str | None) -> Step:
        out = memory.gone - {self.name}
        others = {*self.terms.listeners(self.name, out)} - {sender, known.signer}
        if (
            known.claim == "tombstone" and known.signer != known.site != self.name
        ):  # it needs it too
            others |= {known.site} & {*self.terms.neighbours(self.name, out - {known.site})}
        return self._passed_on(memory, [known], sorted(others))

    def _passed_on(self, memory: Memory, notices: Iterable[Known], others: Iterable[str]) -> Step:
        """Return the step that sends notices; each letter replaces an older one of its place."""
        # Of a change of this site's key some hear who do not know yet the one that signs letters.
        own = "rotation", self.name
        letters = {
            f"{known.place} to {other}": Outgoing(other, known.envelope)
            if (known.claim, known.site) == own
            else self._sealed(memory, other, Notice(known.envelope))
            for known in notices
            for other in others
        }
        return Step(memory.with_letters(letters), tuple(letters.values()))

    def _sent_towards(self, step: Step, known: Known) -> Step:
        """Send a notice that only one member needs to the neighbour nearest to it."""
        memory = step.memory
        out = (memory.gone | memory.absent) - {self.name}
        if known.recipient in out or known.recipient not in self.terms.members:
            return step
        other = self.terms.towards(self.name, known.recipient, out)
        waiting = memory.outbox.get(f"{known.place} to {other}")
        if waiting is not None and self._notice_in(waiting).version >= known.version:
            return step
        return step.then(self._passed_on(memory, [known], [other]))

    def _superseded(self, step: Step, known: Known, old: Known) -> Step:
        """Process a notice that is not newer than the known one. Only of a log it tells something:
        the keeper of a shorter log is sent the cosignature of the longer one, and a cosignature of
        less than before is kept, until the next checkpoint, if the log continues it.
        """
        of_log = known.claim in ("checkpoint", "cosignature")
        if not of_log or known.head.body == old.head.body:
            return step
        if known.claim == "checkpoint":
            mine = known.site == self.name
            return step if mine else self._cosigned(step, known.site, old.head)
        place = f"{known.place} of {known.head.root.hex()}"
        return dataclasses.replace(step, memory=step.memory.with_notice(known, place))

    def _witnessed(self, step: Step, known: Known, old: Known | None) -> Step:
        """Cosign another member's log after checking that it continues the one cosigned before. If
        it does not, or no path leads from there, send its keeper a cosignature of the older log.
        """
        new = known.head
        before = old and old.head
        member = known.site
        paths = known.predicate["paths"]
        if before is not None:
            path = [bytes.fromhex(text) for text in paths.get(str(before.size), ())]
            try:
                if not path and 0 < before.size < new.size:
                    found = f"a log of {member!r} without proof that it continues {before.size}"
                    raise forbidden(f"{found} entries", "unwitnessed")
                continues(before, new, path, *self.terms.keys_of(member))
            except Refusal as refusal:
                step = step.then(refused(step.memory, refusal, known.digest))
                return self._cosigned(step, member, before)
        step = dataclasses.replace(step, memory=step.memory.with_notice(known))
        return self._cosigned(step, member, new)

    def _cosigned(self, step: Step, keeper: str, head: TreeHead) -> Step:
        """Send the keeper of a log this member's cosignature of it."""
        signed = head.cosigned(key_name(self.terms.name, self.name), self.key, int(self.clock()))
        return self._sent_towards(step, self.author.cosignature(keeper, signed))

    # --- forgetting -------------------------------------------------------------------------------

    def _buried(self, step: Step, known: Known, sender: str | None) -> Step:
        """Store a tombstone, forward it, and void all tokens that are older."""
        memory = step.memory
        site = known.site
        named = min(known.predicate["highest"], memory.highest + self.terms.limits.epochs)
        # A site that joins by a later epoch, and has not seen it yet, holds no older state.
        epoch, who = memory.own.epoch
        last = named if epoch > named and not who else max(named, memory.highest)
        memory = memory.with_notice(known).without_absent(site)
        memory = self._fenced(memory, (last + 1, "")).heard(last)
        if site == self.name:  # the version stays, so the factor cannot return
            entry = (memory.own.entry or Entry(0, 0, None))._replace(factor=None)
            memory = memory.with_own(entry=entry, counted=False, leaving=False)
            memory = dataclasses.replace(memory, outbox={})
        else:
            memory = self._rerouted(memory)
        buried = Step(memory, erase=True)
        buried = buried.logging("forgotten", site=site, highest=last, notice=known.digest)
        return self._going_on(step.then(buried).then(self._flooded(memory, known, sender)))

    def _is_between(self, memory: Memory) -> bool:
        """Return whether a forgetting ended an epoch, and no token of the next one has come."""
        own = memory.own
        between = bool(memory.gone) and own.epoch[0] > 0 and not own.epoch[1]
        return between and self.terms.server is None and self.name not in memory.gone

    def _going_on(self, step: Step) -> Step:
        """Begin the epoch after a forgetting, if this site is the first of those that stay."""
        memory = step.memory
        stay = self.terms.staying(memory.gone | memory.absent)
        first = stay[:1] == (self.name,) and memory.highest > 0
        return step.then(self.begin(memory)) if first and self._is_between(memory) else step

    def _rerouted(self, memory: Memory) -> Memory:
        """Return the memory with tokens for gone or absent members redirected."""
        out = memory.gone | memory.absent
        for place in (TOKEN, RESTING):
            waiting = memory.outbox.get(place)
            if waiting is not None and waiting.receiver in out:
                token: Token = body_of(waiting.content)
                receiver = self.terms.following(self.name, None, token.sequence - 1, out)
                memory = memory.with_letters({place: self._sealed(memory, receiver, token)})
        return memory

    def _fenced(self, memory: Memory, epoch: Epoch) -> Memory:
        """Return the memory without anything, kept or waiting, from before an epoch."""
        if memory.own.epoch >= epoch:
            return memory
        memory = self._without_posteriors(memory.fenced(epoch), epoch)
        return memory.without_letters({TOKEN, RESTING})

    def _without_posteriors(self, memory: Memory, epoch: Epoch) -> Memory:
        """Return the memory without notices on posteriors of earlier epochs."""

        def old(known):
            return known.epoch is not None and known.epoch < epoch

        notices = {place: known for place, known in memory.notices.items() if not old(known)}
        waiting = {
            place
            for place, message in memory.outbox.items()
            if place.startswith(WITH_POSTERIORS) and old(self._notice_in(message))
        }
        return dataclasses.replace(memory.without_letters(waiting), notices=notices)

    # --- helpers ----------------------------------------------------------------------------------

    def _notice_in(self, message: Outgoing) -> Known:
        return parsed(body_of(message.content).content)

    def _sealed(self, memory: Memory, receiver: str, body: Body) -> Outgoing:
        gone = tuple(sorted(memory.gone))
        place = memory.seen.get(receiver, NOTHING_SEEN[1:])
        if receiver == self.terms.server and memory.own.epoch[1]:  # its last question
            place = memory.place
        seen: Any = (self._starts_of(memory, receiver), *place)
        known = memory.highest, gone, body, seen, len(memory.rotations)
        letter = Letter(self.terms.digest, self.name, receiver, *known)
        return Outgoing(receiver, letter.sealed(self.key))
