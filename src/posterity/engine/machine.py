"""The durable site: what a site does with each letter and each command, as pure functions.

Read from top to bottom this is the protocol.

A token walks over the links. Whoever it reaches improves its factor and sends it on with the next
sequence number. An epoch begins at the prior, and each site adds its whole factor when a token of
the epoch first comes: so a start, a loss, somebody who joins and a forgetting at once are all the
same walk. Epochs are pairs of a number and a site; the higher one wins, and tokens of a lower one
are void wherever they are. One version of a token, its epoch and sequence number, has one content.

Nothing is sent before it is durable: each step gives the memory of the site after it, and what is
to be sent once that is on disk. What is lost on the way is sent again until it is acknowledged.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Self

import jax

from posterity.arrays.tree_sums import TreeSum
from posterity.artifact.artifact import from_bytes, to_bytes
from posterity.artifact.manifest import as_text
from posterity.engine.admission import admitted, check_posterior, departure_of
from posterity.engine.agreement import Terms
from posterity.engine.messages import (
    MOST_EPOCHS,
    Acknowledgement,
    Answer,
    Letter,
    Question,
    Tombstone,
    digest_of,
)
from posterity.engine.questions import Order
from posterity.engine.refusal import Reason, Refusal
from posterity.engine.signing import Envelope, PrivateKey, Statement
from posterity.engine.store import Change, Outgoing
from posterity.entries import Entry
from posterity.errors import ArtifactError, PosterityError
from posterity.federation import SiteState, Token, step_key, turn
from posterity.federation.messages import Epoch
from posterity.federation.site import Site

ANSWER = "answer"
"""The place in the outbox of the answer to the server of a star."""
TOKEN = "token"
"""The place in the outbox of the one token that waits for its acknowledgement."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """The state of a site, which it must not lose. Immutable.

    ``highest`` is the highest number of an epoch of which it has heard, ``tombstones`` are the
    signed statements of who was forgotten, and ``outbox`` are the letters that are not acknowledged
    yet.
    """

    own: SiteState
    highest: int = 0
    tombstones: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    outbox: Mapping[str, Outgoing] = dataclasses.field(default_factory=dict)
    parts: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    """What the server of a star keeps of its sites, as bytes."""

    @classmethod
    def empty(
        cls, name: str, epoch: int = 0, tombstones: Mapping[str, bytes] | None = None
    ) -> Self:
        """The memory of a site that has none, which takes part from this epoch on.

        A site that lost its store no longer knows which tokens it answered. It is let in by an
        epoch with a higher number than any that another site has heard of; only at the very start
        is that zero. ``tombstones`` are those that the others hold.
        """
        return cls(SiteState(name, epoch=(epoch, "")), epoch, tombstones or {})

    @property
    def gone(self) -> frozenset[str]:
        """The sites that were forgotten."""
        return frozenset(self.tombstones)

    def to_bytes(self) -> bytes:
        """All but the outbox, which a store keeps message by message."""
        own = self.own
        plain = dataclasses.asdict(dataclasses.replace(own, entry=None))
        parts: dict[str, Any] = {}
        if own.entry is not None:
            epoch, sequence, factor, independent = own.entry
            plain["entry"] = [epoch, sequence, independent]
            parts |= {} if factor is None else {"factor": factor}
        tombstones = {site: text.decode() for site, text in self.tombstones.items()}
        head = {"own": plain, "highest": self.highest, "tombstones": tombstones}
        return to_bytes({"head": as_text(head), **parts})

    @classmethod
    def from_bytes(cls, content: bytes, outbox: Mapping[str, Outgoing]) -> Self:
        """The memory that :meth:`to_bytes` gave; an ArtifactError if it is none."""
        parts = from_bytes(content, what="the memory of a site")
        try:
            head = json.loads(parts["head"])
            own = head["own"] | {"epoch": tuple(head["own"]["epoch"])}
            if own["entry"] is not None:
                epoch, sequence, independent = own["entry"]
                own["entry"] = Entry(epoch, sequence, parts.get("factor"), independent)
            tombstones = {site: text.encode() for site, text in head["tombstones"].items()}
            return cls(SiteState(**own), head["highest"], tombstones, outbox)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(
                found=f"the memory of a site that cannot be read ({error!r})",
                expected="what this release of posterity writes",
                fix="Open the store with the release that wrote it.",
            ) from error


@dataclasses.dataclass(frozen=True)
class Step:
    """The consequences of a letter or a command.

    First ``change`` is committed; then ``sent`` goes out.
    """

    memory: Memory
    sent: tuple[Outgoing, ...] = ()
    entries: tuple[bytes, ...] = ()
    erase: bool = False

    @property
    def change(self) -> Change:
        """The part that the store makes durable."""
        memory = self.memory
        return Change(memory.to_bytes(), memory.outbox, self.entries, self.erase, memory.parts)


@dataclasses.dataclass(frozen=True)
class Machine:
    """One site of a federation between organisations: its terms, its records and its key."""

    terms: Terms
    site: Site
    key: PrivateKey

    def load(
        self, state: bytes, outbox: Mapping[str, Outgoing], parts: Mapping[str, bytes]
    ) -> Memory:
        """The memory that a store keeps; an ArtifactError if it is none."""
        del parts
        return Memory.from_bytes(state, outbox)

    # --- letters ---------------------------------------------------------------------------------

    def receive(self, memory: Memory, content: bytes) -> Step:
        """The step that a letter leads to; one that does not count leads to a line in the log."""
        digest = digest_of(content)
        try:
            letter = admitted(self.terms, content, self.site.name, memory.tombstones)
            heard = self._heard(memory, letter.highest)
            match letter.body:
                case Acknowledgement(of):
                    return Step(_acknowledged(heard, of, letter.sender))
                case Tombstone(envelope):
                    step = self._bury(heard, envelope)
                case Token():
                    step = self._receive_token(heard, letter.body)
                case Question():
                    return self._reply(heard, letter, digest)
                case Answer():
                    step = self.receive_answer(heard, letter)
        except Refusal as refusal:
            return Step(memory, entries=(_refused(refusal, digest),))
        return self._receipted(step, letter, digest)

    def _receipted(self, step: Step, letter: Letter, digest: str) -> Step:
        receipt = self._sealed(step.memory, letter.sender, Acknowledgement(digest))
        return dataclasses.replace(step, sent=(receipt, *step.sent))

    def _reply(self, memory: Memory, letter: Letter, digest: str) -> Step:
        """The answer to the server of a star; the one that waits, if it asks the same again."""
        body: Any = letter.body
        order, own = Order.of(self.terms, letter.sender, self.site.name, body), memory.own
        if order.place == (own.epoch, own.answered) and ANSWER in memory.outbox:
            return Step(memory, (memory.outbox[ANSWER],))
        if order.place <= (own.epoch, own.answered):
            reason = "replay" if order.place[0] == own.epoch else "epoch"
            refusal = _forbidden(f"question {body.number} of epoch {order.place[0]}", reason)
            return self._receipted(
                Step(memory, entries=(_refused(refusal, digest),)), letter, digest
            )
        answer, entry = order.answered(self.site)
        own = dataclasses.replace(own, epoch=order.place[0], answered=body.number)
        after = dataclasses.replace(self._heard(memory, order.place[0][0]), own=own)
        message = self._sealed(after, letter.sender, answer)
        after = dataclasses.replace(after, outbox={**after.outbox, ANSWER: message})
        return Step(after, (message,), (_line(entry),))

    def receive_answer(self, memory: Memory, letter: Letter) -> Step:
        """What a server does with an answer; a site that is none refuses it."""
        raise _forbidden(f"an answer of {letter.sender!r}, whom nobody asked", "order")

    def _receive_token(self, memory: Memory, token: Token) -> Step:
        """A token that is void or was answered is acknowledged, and goes no further."""
        memory = self._heard(memory, token.epoch[0])
        if self.site.name in memory.tombstones:
            raise _forbidden("a token at a site that was forgotten", "tombstone")
        if not self._is_fenced(memory, token) and not self._is_answered(memory, token):
            return self._answer(memory, token)
        reason = "epoch" if token.epoch < memory.own.epoch else "replay"
        refusal = _forbidden(f"a token of {_place(token)}", reason)
        return Step(memory, entries=(_refused(refusal, token.digest),))

    def _is_fenced(self, memory: Memory, token: Token) -> bool:
        """Tell whether the token's epoch has ended, or ended before this site took part."""
        return token.epoch < memory.own.epoch

    def _is_answered(self, memory: Memory, token: Token) -> bool:
        """Tell whether the site has answered this token, or a later one of its epoch."""
        own = memory.own
        return token.epoch == own.epoch and token.sequence <= own.answered

    def _answer(self, memory: Memory, token: Token) -> Step:
        """The site's turn: it adds or improves its factor, and the token walks on."""
        name, before = self.site.name, memory.own
        key = step_key(jax.random.key(self.terms.seed), token.sequence)
        try:
            own, sent, visit = turn(self.site, before, token, key=key)
        except PosterityError as error:
            raise Refusal(
                found=f"a token that has no answer ({error.found})",
                expected=error.expected,
                reason="proper",
            ) from error
        check_posterior(self.terms, sent.posterior)
        walk = self.terms.walk(memory.gone)
        origin = None if token.sender in memory.gone else token.sender
        receiver = walk.hop(name, origin, key=key)
        after = dataclasses.replace(memory, own=own)
        message = self._sealed(after, receiver, sent)
        after = dataclasses.replace(after, outbox={**after.outbox, TOKEN: message})
        entry = {
            "event": visit.outcome,
            "token": [*token.epoch, token.sequence, token.digest],
            "answer": sent.digest,
            "to": receiver,
        }
        left = visit.outcome == "forgotten" or own.epoch != before.epoch
        return Step(after, (message,), (_line(entry),), erase=left)

    # --- commands --------------------------------------------------------------------------------

    def begin(self, memory: Memory, number: int | None = None) -> Step:
        """A new epoch: at the start, after a loss, to let somebody in, after a forgetting.

        Its number is by default the next after all that the site has heard of.

        Raises:
            Refusal: if it is not above the present one, or the site was forgotten.
        """
        name = self.site.name
        epoch: Epoch = (memory.highest + 1 if number is None else number, name)
        if not memory.own.epoch < epoch < (MOST_EPOCHS, "") or name in memory.tombstones:
            raise _forbidden(f"epoch {epoch} to begin after {memory.own.epoch}", "order")
        total = TreeSum.of([self.terms.agreement.prior])
        first = Token(self.terms.digest, epoch, 0, total)
        step = self._answer(self._heard(memory, epoch[0]), first)
        entry = _line({"event": "begun", "epoch": list(epoch)})
        return dataclasses.replace(step, entries=(entry, *step.entries))

    def leave(self, memory: Memory) -> Step:
        """The site's factor will leave when a token next comes; the site still passes it on."""
        own = dataclasses.replace(memory.own, leaving=True)
        return Step(dataclasses.replace(memory, own=own), entries=(_line({"event": "leaving"}),))

    def forget(self, memory: Memory) -> Step:
        """The site is forgotten at once: its factor is destroyed, and all messages that hold it.

        Its tombstone goes to the others, who from then on take no token of an epoch that it took
        part in. Any of them begins the next epoch.

        Raises:
            Refusal: if it was forgotten before.
        """
        name = self.site.name
        if name in memory.tombstones:
            raise _forbidden(f"site {name!r}, which was forgotten already", "order")
        about = {"terms": self.terms.digest, "site": name, "highest": memory.highest}
        statement = Statement("tombstone", {"key": self.key.public.id}, about)
        return self._bury(memory, statement.signed(self.key).to_bytes())

    def resend(self, memory: Memory) -> tuple[Outgoing, ...]:
        """The letters that are not acknowledged yet."""
        return tuple(memory.outbox.values())

    # --- forgetting ------------------------------------------------------------------------------

    def _bury(self, memory: Memory, envelope: bytes) -> Step:
        """Take note of a tombstone, pass it on, and let no older token count any more."""
        departure = departure_of(self.terms, envelope)
        if departure.site in memory.tombstones:
            return Step(memory)
        neighbours = self.terms.neighbours(self.site.name, memory.gone)
        tombstones = {**memory.tombstones, departure.site: envelope}
        memory = dataclasses.replace(memory, tombstones=tombstones)
        memory = self._heard(self._fenced(memory, (departure.highest + 1, "")), departure.highest)
        if departure.site == self.site.name:
            memory = dataclasses.replace(memory, own=_without_factor(memory.own), outbox={})
        memory = self._rerouted(memory)
        letters = {
            f"tombstone of {departure.site} to {other}": self._sealed(
                memory, other, Tombstone(envelope)
            )
            for other in neighbours
        }
        memory = dataclasses.replace(memory, outbox={**memory.outbox, **letters})
        entry = _line({"event": "forgotten", "site": departure.site, "highest": departure.highest})
        return Step(memory, tuple(letters.values()), (entry,), erase=True)

    def _fenced(self, memory: Memory, epoch: Epoch) -> Memory:
        """The memory in which no token below an epoch counts, nor waits to be sent."""
        if memory.own.epoch >= epoch:
            return memory
        own = dataclasses.replace(memory.own, epoch=epoch, answered=-1, counted=False)
        outbox = {place: each for place, each in memory.outbox.items() if place != TOKEN}
        return dataclasses.replace(memory, own=own, outbox=outbox)

    def _rerouted(self, memory: Memory) -> Memory:
        """The memory in which no token waits for somebody who is gone."""
        waiting = memory.outbox.get(TOKEN)
        if waiting is None or waiting.receiver not in memory.gone:
            return memory
        token = Letter.from_bytes(Envelope.from_bytes(waiting.content).payload).body
        assert isinstance(token, Token)
        key = step_key(jax.random.key(self.terms.seed), token.sequence)
        receiver = self.terms.walk(memory.gone).hop(self.site.name, None, key=key)
        message = self._sealed(memory, receiver, token)
        return dataclasses.replace(memory, outbox={**memory.outbox, TOKEN: message})

    # --- helpers ---------------------------------------------------------------------------------

    def _heard(self, memory: Memory, number: int) -> Memory:
        highest = max(memory.highest, number)
        return memory if highest == memory.highest else dataclasses.replace(memory, highest=highest)

    def _sealed(
        self,
        memory: Memory,
        receiver: str,
        body: Token | Acknowledgement | Tombstone | Question | Answer,
    ) -> Outgoing:
        letter = Letter(self.terms.digest, self.site.name, receiver, memory.highest, body)
        return Outgoing(receiver, letter.sealed(self.key))


def _acknowledged(memory: Memory, digest: str, sender: str) -> Memory:
    """The memory after an acknowledgement, which counts from the receiver of a letter alone."""
    outbox = {
        place: message
        for place, message in memory.outbox.items()
        if (message.receiver, digest_of(message.content)) != (sender, digest)
    }
    cleared = len(outbox) < len(memory.outbox)
    return dataclasses.replace(memory, outbox=outbox) if cleared else memory


def _without_factor(own: SiteState) -> SiteState:
    """The site once its factor is destroyed; its version stays, so that it cannot come back."""
    entry = own.entry or Entry(0, 0, None)
    return dataclasses.replace(own, entry=entry._replace(factor=None), counted=False, leaving=False)


def _place(token: Token) -> str:
    return f"epoch {token.epoch}, sequence {token.sequence}"


def _forbidden(found: str, reason: Reason) -> Refusal:
    return Refusal(
        found=found,
        expected="what the state of the site allows",
        fix="See `posterity site status`.",
        reason=reason,
    )


def _refused(refusal: Refusal, digest: str) -> bytes:
    why = {
        "reason": refusal.reason,
        "found": refusal.found[:200],
        "expected": refusal.expected[:200],
    }
    return _line({"event": "refused", **why, "digest": digest})


def _line(entry: Mapping[str, Any]) -> bytes:
    return as_text(entry).encode()
