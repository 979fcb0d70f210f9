"""What a member does about notices: it stores and forwards them, and does what follows from each.

Notices spread over the links. A tombstone voids every message that may hold the factor of the
forgotten member.
"""

import abc
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from posterity.engine.agreement import Terms
from posterity.engine.author import Author, follows
from posterity.engine.log import TreeHead, continues, key_name
from posterity.engine.memory import RESTING, TOKEN, Memory, Step, refused
from posterity.engine.messages import (
    NOTHING_SEEN,
    Acknowledgement,
    Body,
    Letter,
    Notice,
    body_of,
)
from posterity.engine.notices import SPEAKS_OF_POSTERIOR, Known, parsed
from posterity.engine.refusal import Refusal, forbidden
from posterity.engine.signing import PrivateKey
from posterity.engine.store import Outgoing
from posterity.entries import Entry
from posterity.federation import Token
from posterity.federation.messages import Epoch
from posterity.federation.remaining import TOLERANCE
from posterity.federation.site import Site
from posterity.federation.status import COMPARED, UNSEARCHED
from posterity.status import Status

WITH_POSTERIORS = tuple(f"{claim} of " for claim in SPEAKS_OF_POSTERIOR)
"""Prefixes of the outbox places whose letters may hold a posterior."""


@dataclasses.dataclass(frozen=True)
class Relay(abc.ABC):
    """A member as others see it by its notices: its terms, its records and its key.

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
            absent = counted and self.name in known.predicate["absent"]
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
                place = {"epoch": known.epoch, "sequence": known.version[1]}
                step = step.logging("surveyed", by=known.site, **place)
                return self._noticed(step, self._answered(step.memory, known))
            case "residual":
                return self._concluded(step)
            case "certificate":
                about = {"epoch": known.epoch, "left": known.predicate["left"]}
                return step.logging("certified", by=known.site, **about)
            case "agreement":
                return self._started(step, known, sender)
            case "absence":
                return self._passed_over(step, known)
        return step

    def _agreed(self, step: Step, start: int = 0, lost: bool = False) -> Step:
        """State that the member takes part, under a number of starts above all that is known."""
        memory = step.memory
        most = memory.starts + self.terms.limits.epochs
        memory = dataclasses.replace(memory, starts=max(memory.starts, min(start, most)) + 1)
        step = dataclasses.replace(step, memory=memory)
        return self._noticed(step, self.author.agreement(memory.starts, lost, memory.own.epoch))

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
