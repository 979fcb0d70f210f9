"""A member of a federation: how it processes letters, as pure functions.

A message is sent only after the state it follows from is durable: each step holds the member's new
memory and the messages to send once that is on disk. Lost messages are sent again until they are
acknowledged. What notices do is in :mod:`posterity.engine.relay`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Self

from posterity.engine.admission import admitted
from posterity.engine.memory import ANSWER, QUESTION, RESTING, TOKEN, Memory, Step, refused
from posterity.engine.messages import (
    SCHEMA,
    Acknowledgement,
    Answer,
    Letter,
    Notice,
    Question,
    Unread,
    digest_of,
)
from posterity.engine.notices import followed, read
from posterity.engine.questions import Order
from posterity.engine.refusal import Refusal, forbidden
from posterity.engine.relay import Relay
from posterity.engine.signing import PublicKey
from posterity.engine.store import Outgoing
from posterity.federation import Token
from posterity.version import __version__


@dataclasses.dataclass(frozen=True)
class Member(Relay):
    """One member of a federation between organisations: its terms, its records and its key."""

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
        apart = {site: form for site, form in memory.apart.items() if form[1] != SCHEMA}
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
            case _:
                assert isinstance(body, Answer), "all others were taken before"
                step = self._receive_answer(memory, sender, body)
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
