"""The durable site: what a site does with each letter and each command, as pure functions.

Read from top to bottom this is the protocol of a walk.

A token walks over the links. Whoever it reaches improves its factor and sends it on with the next
sequence number. An epoch begins at the prior, and each site adds its whole factor when a token of
the epoch first comes: so a start, a loss, somebody who joins and a forgetting at once are all the
same walk. Epochs are pairs of a number and a site; the higher one wins, and tokens of a lower one
are void wherever they are. One version of a token, its epoch and sequence number, has one content.

Once visits change little, who has the token keeps it and asks all in a survey how they stand to it.
Their signed answers tell whether it has converged: then it rests, else it walks on.

Nothing is sent before it is durable: each step gives the memory of the site after it, and what is
to be sent once that is on disk. What is lost on the way is sent again until it is acknowledged.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from posterity.arrays.keys import fold_in
from posterity.arrays.tree_sums import TreeSum
from posterity.engine.admission import admitted, check_posterior
from posterity.engine.agreement import Terms
from posterity.engine.log import Tree, TreeHead, continues, key_name
from posterity.engine.memory import ANSWER, RESTING, TOKEN, Memory, Step, line, refused
from posterity.engine.messages import (
    MOST_EPOCHS,
    Acknowledgement,
    Answer,
    Body,
    Handover,
    Letter,
    Notice,
    Question,
    body_of,
    digest_of,
)
from posterity.engine.notices import (
    SPEAKS_OF_POSTERIOR,
    Author,
    Known,
    Standing,
    follows,
    posterior_of,
    read,
    status_by,
)
from posterity.engine.questions import Order
from posterity.engine.refusal import Reason, Refusal
from posterity.engine.signing import PrivateKey
from posterity.engine.store import Outgoing
from posterity.entries import Entry
from posterity.errors import PosterityError
from posterity.federation import Token, turn
from posterity.federation.keys import site_key
from posterity.federation.messages import Epoch, Report
from posterity.federation.site import Site
from posterity.federation.state import Visit
from posterity.federation.status import SAMPLES, TOLERANCE, parts_needed
from posterity.status import Status

WITH_POSTERIORS = tuple(f"{claim} of " for claim in SPEAKS_OF_POSTERIOR)
"""The beginnings of places in the outbox where letters may hold a posterior."""
MOST_TURNS = 300
"""Turns a site, on average, after which a walk rests all the same, without other terms."""
KEPT = 16
"""Sizes of earlier checkpoints from which a new one shows that it continues them."""
KEPT_BY_TERMS = ("highest", "starts", "refusals", "published")
"""Parts of a memory that stay under new terms, beside its own factor and whom they bar."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """One site of a federation between organisations: its terms, its records and its key. ``clock``
    gives seconds since 1970, which certificates and cosignatures name.
    """

    terms: Terms
    site: Site
    key: PrivateKey
    clock: Callable[[], float] = time.time
    MEMORY: ClassVar[type[Memory]] = Memory

    @functools.cached_property
    def name(self) -> str:
        """The name of the site."""
        return self.site.name

    @functools.cached_property
    def author(self) -> Author:
        """The site as one that makes notices."""
        return Author(self.terms, self.name, self.key)

    def load(self, state: bytes, rows: Mapping[str, Outgoing]) -> Memory:
        """The memory that a store has; an ArtifactError if it has none, or one of other terms."""
        memory = self.MEMORY.from_bytes(state, rows)
        if memory.own.name != self.name or memory.terms not in ("", self.terms.digest):
            found = f"the store of {memory.own.name!r} under terms {memory.terms[:16]!r}"
            expected = f"that of {self.name!r} under {self.terms.digest[:16]!r}"
            fix = "Take over the new terms by `posterity site init FOLDER --federation FILE`."
            raise Refusal.of(found, expected, "membership", fix)
        digests = {"terms": self.terms.digest, "numbers": self.terms.agreement.digest}
        return dataclasses.replace(memory, **digests)

    # --- letters ---------------------------------------------------------------------------------

    def receive(self, memory: Memory, content: bytes) -> Step:
        """The step that a letter leads to; one that does not count leads to a line in the log."""
        digest = digest_of(content)
        try:
            letter = admitted(self.terms, content, self.name, memory.gone)
            most = memory.highest + self.terms.limits.epochs
            if letter.highest > most:  # who was away for long comes nearer with each letter
                far = _forbidden(f"epoch {letter.highest} where {memory.highest} was last", "epoch")
                return refused(self._heard(memory, most), far, digest)
            heard = self._heard_from(memory, letter)
            if isinstance(letter.body, Acknowledgement):
                return heard.then(self._acknowledged(heard.memory, letter))
            step, answer = self._taken(heard.memory, letter, digest)
        except Refusal as refusal:
            return refused(memory, refusal, digest)
        if answer is not None:  # else an answer to a question stands for it
            reply = self._sealed(step.memory, letter.sender, answer)
            step = self._going_on(dataclasses.replace(step, sent=(reply, *step.sent)))
        return heard.then(step)

    def _heard_from(self, memory: Memory, letter: Letter) -> Step:
        """Whoever writes is there; who does not know of a tombstone yet is sent it."""
        if memory.gone.issuperset(letter.gone):  # else it counts once the tombstones have come
            memory = self._heard(memory, letter.highest)
        memory = memory.without_absent(letter.sender)
        if letter.sender in memory.gone:
            return Step(memory)
        unknown = memory.gone.difference(letter.gone)
        notices = [memory.tombstones[site] for site in sorted(unknown)]
        return self._passed_on(memory, notices, [letter.sender])

    def _taken(
        self, memory: Memory, letter: Letter, digest: str
    ) -> tuple[Step, Acknowledgement | None]:
        body, sender = letter.body, letter.sender
        unknown = sorted({*letter.gone} - memory.gone)
        if unknown and isinstance(body, Token | Question):
            refusal = _forbidden(f"a letter of who has tombstones of {unknown}", "tombstone")
            return refused(memory, refusal, digest), Acknowledgement("")  # it is sent again
        match body:
            case Token():
                return self._receive_token(memory, body, frozenset(letter.gone), digest)
            case Question():
                return self._replied(memory, letter, body)
            case Notice(envelope):
                step = self._noticed(Step(memory), read(self.terms, envelope), sender)
            case Handover(name, content):
                step = Step(memory, files=((sender, body),)).logging(
                    "file received", name=name, sender=sender, sha256=digest_of(content)
                )
            case Answer():
                step = self._receive_answer(memory, sender, body)
            case _:
                raise _forbidden(f"a letter with a {type(body).__name__}", "schema")
        return step, Acknowledgement(digest)

    def _replied(
        self, memory: Memory, letter: Letter, asked: Question
    ) -> tuple[Step, Acknowledgement | None]:
        """The answer to a server's question; the one that waits already, if it asks again."""
        order, own = Order.of(self.terms, letter.sender, self.name, asked), memory.own
        epoch, last = order.place[0], (own.epoch, own.answered)
        if order.place == last and ANSWER in memory.outbox:
            return Step(memory, (memory.outbox[ANSWER],)), None
        refusal, unknown = None, sorted(memory.gone.difference(letter.gone))
        if order.place <= last or self.name in memory.gone:
            reason = "replay" if epoch == own.epoch else "epoch"
            refusal = _forbidden(f"question {asked.number} of epoch {epoch}", reason)
        elif unknown:
            refusal = _forbidden(f"a question of who has no tombstones of {unknown}", "tombstone")
        if refusal is not None:
            return refused(memory, refusal, order.question.digest), Acknowledgement("")
        answer, entry = order.answered(self.site, self.author, memory.gone)
        memory = self._heard(memory, epoch[0]).with_own(epoch=epoch, answered=asked.number)
        message = self._sealed(memory, letter.sender, answer)
        return Step(memory.with_letters({ANSWER: message}), (message,), (entry,)), None

    def _receive_answer(self, memory: Memory, sender: str, answer: Answer) -> Step:
        """The server of a star overrides this."""
        raise _forbidden(f"an answer of {sender!r} to {answer.question[:16]!r}", "order")

    def _acknowledged(self, memory: Memory, letter: Letter) -> Step:
        """An acknowledgement counts from the receiver of a letter alone."""
        sent, sender = letter.body, letter.sender
        assert isinstance(sent, Acknowledgement)
        places = {
            place
            for place, message in memory.outbox.items()
            if message.receiver == sender and digest_of(message.content) == sent.digest
        }
        if not places:
            return Step(memory)
        memory = memory.without_letters(places)
        return self.begin(memory) if sent.void and TOKEN in places else Step(memory)

    def _receive_token(
        self, memory: Memory, token: Token, gone: frozenset[str], digest: str
    ) -> tuple[Step, Acknowledgement]:
        """A token that is void or was answered is acknowledged, and goes no further."""
        memory = self._heard(memory, token.epoch[0])
        if self.name in memory.gone:
            raise _forbidden("a token at a site that was forgotten", "tombstone")
        reason: Reason | None = None
        if memory.gone - gone:
            reason = "tombstone"
        elif self._is_fenced(memory, token):
            reason = "epoch"
        elif self._is_answered(memory, token):
            reason = "replay"
        if reason is None:
            return self._answer(memory, token), Acknowledgement(digest)
        # Where no token of a newer epoch was seen there may be none: its sender begins one.
        void = reason == "epoch" and not memory.own.epoch[1]
        place = f"epoch {token.epoch}, sequence {token.sequence}"
        refusal = _forbidden(f"a token of {place}", reason)
        return refused(memory, refusal, token.digest), Acknowledgement(digest, void)

    def _is_fenced(self, memory: Memory, token: Token) -> bool:
        """Tell whether the token's epoch has ended, or ended before this site took part."""
        return token.epoch < memory.own.epoch

    def _is_answered(self, memory: Memory, token: Token) -> bool:
        """Tell whether the site has answered this token, or a later one of its epoch."""
        own = memory.own
        return token.epoch == own.epoch and token.sequence <= own.answered

    def _answer(self, memory: Memory, token: Token) -> Step:
        """The site's turn: it adds or improves its factor, and the token walks on, or rests."""
        name, before = self.name, memory.own
        key = self.terms.step_key(token.sequence, memory.gone)
        try:
            own, sent, visit = turn(self.site, before, token, key=key)
            check_posterior(self.terms, sent.posterior)
        except PosterityError as error:  # then the token goes on as it came
            counted = before.counted and token.epoch == before.epoch
            own = memory.with_own(epoch=token.epoch, answered=token.sequence, counted=counted).own
            place = (token.agreement, token.epoch, token.sequence + 1)
            sent = Token(*place, token.exact_sum, name, token.digest)
            visit = Visit(token.sequence, name, "refused", error=error.found[:200])
        out = memory.gone | memory.absent
        receiver = self.terms.following(name, token.sender, token.sequence, out)
        after = dataclasses.replace(memory.without_letters({TOKEN, RESTING}), own=own)
        if own.epoch != before.epoch:
            after = self._without_posteriors(after, own.epoch)
        rests = self._is_last(sent, memory.gone) or self._is_due(after, sent, visit)
        message = self._sealed(after, receiver, sent)
        after = after.with_letters({RESTING if rests else TOKEN: message})
        entry = line(
            visit.outcome,
            token=[*token.epoch, token.sequence, token.digest],
            answer=sent.digest,
            to=receiver,
            change=visit.change,
            # Of a visit that failed it is what a model said, which may hold records.
            **({"error": visit.error} if visit.error and visit.outcome == "refused" else {}),
        )
        left = visit.outcome == "forgotten" or own.epoch != before.epoch
        step = Step(after, () if rests else (message,), (entry,), erase=left)
        if not rests:
            return step
        place = sent.epoch, sent.sequence
        return self._noticed(step, self.author.survey(*place, sent.posterior, after.gone))

    # --- rest ------------------------------------------------------------------------------------

    def _is_last(self, token: Token, gone: frozenset[str]) -> bool:
        """Tell whether the epoch has made all the steps that were agreed on, or too many."""
        sites = len(self.terms.staying(gone))
        if self.terms.steps is None:
            return token.sequence >= MOST_TURNS * sites
        return token.sequence >= self.terms.steps * (1 if self.terms.order == "gossip" else sites)

    def _is_due(self, memory: Memory, token: Token, visit: Visit) -> bool:
        """Tell whether to ask all how they stand: seldom, and once a visit changes little."""
        if self.terms.tolerance is None:
            return False
        sites, last = len(self.terms.staying(memory.gone)), memory.newest("survey")
        before = 0 if last is None or last.version[1] > token.sequence else last.version[1]
        if token.sequence < 2 * sites + before + before // 2:
            return False
        calm = visit.change is None or visit.change <= self.terms.tolerance / sites**2
        return calm or self.terms.agreement.update.noisy

    def _answered(self, memory: Memory, survey: Known) -> Known:
        """The relation of the site to the posterior that a survey is about. Only to one that came
        after its last turn in the present epoch it says more than that.
        """
        own, entry, report = memory.own, memory.own.entry, None
        left = entry is not None and entry.factor is None
        silent = left or bool(self.site.records.silent)
        known = own.counted and own.epoch == survey.epoch and survey.version[1] > own.answered
        if known and not silent and entry is not None and entry.factor is not None:
            key = self.terms.step_key(survey.version[1], memory.gone)
            key, parts = fold_in(site_key(key, self.name), 2), parts_needed(self.terms.agreement)
            posterior = posterior_of(self.terms, survey)
            try:
                report = self.site.report(posterior, entry.factor, parts, samples=SAMPLES, key=key)
            except Exception:  # whatever the model raises: then nobody knows
                report = Report(self.name)
        independent = silent or (entry is not None and entry.independent)
        counted = (known or silent) and not own.leaving
        answer = Standing(counted, silent, independent, report, tuple(sorted(memory.gone)))
        return self.author.residual(survey, answer)

    def _concluded(self, step: Step) -> Step:
        """Where all have answered the site's survey: the certificate, and rest or another walk."""
        memory, token = step.memory, self._resting(step.memory)
        survey = self._own_survey(memory)
        if token is None or survey is None or self.awaited(memory):
            return step
        if survey.version != (token.epoch, token.sequence):
            return step
        residuals, now = self._residuals(memory, survey), int(self.clock())
        certificate = self.author.certificate(survey, residuals, memory.tombstones, now)
        step = self._noticed(step, certificate)
        present = status_by(self.terms, survey, residuals, memory.gone | memory.absent)
        if present.converged or self._is_last(token, memory.gone):
            return step.logging("rests", epoch=list(token.epoch), sequence=token.sequence)
        return step.then(self._released(step.memory))

    def _own_survey(self, memory: Memory) -> Known | None:
        return memory.notices.get(f"survey of {self.name}")

    def _residuals(self, memory: Memory, survey: Known) -> dict[str, Known]:
        """The answers to a survey: to its maker, about its very posterior."""
        about = survey.posterior_digest, survey.site
        return {
            each.site: each
            for each in memory.notices.values()
            if each.claim == "residual"
            and each.version == survey.version
            and (each.posterior_digest, each.recipient) == about
        }

    def _released(self, memory: Memory) -> Step:
        letters = {TOKEN: memory.outbox[RESTING]}
        memory = self._rerouted(memory.without_letters({RESTING}).with_letters(letters))
        return Step(memory, (memory.outbox[TOKEN],))

    def _resting(self, memory: Memory) -> Token | None:
        message = memory.outbox.get(RESTING)
        return None if message is None else body_of(message.content)

    # --- commands --------------------------------------------------------------------------------

    def begin(self, memory: Memory, number: int | None = None) -> Step:
        """A new epoch: at the start, after a loss, to let somebody in, after a forgetting. Its
        number is by default the next after all that the site has heard of. A Refusal if it is not
        above the present one, there is a server, or the site was forgotten.
        """
        self._check_walk()
        epoch: Epoch = (memory.highest + 1 if number is None else number, self.name)
        if not memory.own.epoch < epoch < (MOST_EPOCHS, "") or self.name in memory.gone:
            raise _forbidden(f"epoch {epoch} to begin after {memory.own.epoch}", "order")
        first = Token(self.terms.digest, epoch, 0, TreeSum.of([self.terms.agreement.prior]))
        step = self._answer(self._heard(memory, epoch[0]), first)
        return Step(memory).logging("begun", epoch=list(epoch)).then(step)

    def leave(self, memory: Memory) -> Step:
        """The site's factor will leave when a token next comes; the site still passes it on. Where
        no token is known to walk, the site begins an epoch without it. A Refusal if there is a
        server, which alone takes factors out; or the site was forgotten.
        """
        self._check_walk()
        if self.name in memory.gone:
            raise _forbidden(f"{self.name!r}, to leave", "order")
        memory = memory.with_own(leaving=True)
        step = Step(memory).logging("leaving")
        return step.then(self.begin(memory)) if memory.newest("survey") is not None else step

    def _check_walk(self) -> None:
        if self.terms.server is not None:
            found, who = f"member {self.name!r} of a star", f"its server {self.terms.server!r}"
            raise _forbidden(found, "order", f"{who}, which begins epochs and takes factors out")

    def forget(self, memory: Memory) -> Step:
        """The site is forgotten at once: its factor is destroyed, and all messages that hold it.

        Its tombstone goes to the others, who from then on take no token of an epoch that it took
        part in; the first of them by name begins the next one. A Refusal if it was forgotten
        before.
        """
        if self.name in memory.gone:
            raise _forbidden(f"site {self.name!r}, which was forgotten already", "order")
        return self._noticed(Step(memory), self.author.tombstone(self.name, memory.highest))

    def post(self, memory: Memory, envelope: bytes) -> Step:
        """Take a notice that did not come by a letter; a Refusal if it is not signed as it must."""
        return self._noticed(Step(memory), read(self.terms, envelope))

    def start(self, memory: Memory) -> Step:
        """The site's agent was started; who has taken part before tells the others that it is back.
        They may have passed it over.
        """
        now, starts = int(self.clock()), memory.starts + 1
        memory = dataclasses.replace(memory, starts=starts, born=memory.born or now)
        step = Step(memory).logging("started", number=starts)
        if self.name in memory.gone:
            return step
        old = memory.notices.get(f"agreement of {self.name}")
        now = now if old is None else max(now, old.version[0] + 1)  # whatever the clock says
        return self._noticed(step, self.author.agreement(now, memory.born, memory.own.epoch))

    def pass_over(self, memory: Memory, sites: Iterable[str]) -> Step:
        """Go on without members that do not answer, until they are heard of again. A token that
        waits for one of them is left to it: a new epoch begins, in which the site comes back with
        its whole factor. A Refusal if one of them is no member, or the site itself.
        """
        absent = frozenset(sites)
        if not absent < self.terms.members.keys() or self.name in absent:
            others = f"some of {sorted(self.terms.members.keys() - {self.name})}"
            raise _forbidden(f"sites {sorted(absent)} to pass over", "membership", others)
        memory = dataclasses.replace(memory, absent=memory.absent | absent - memory.gone)
        step = Step(memory).logging("passed over", sites=sorted(absent))
        token = memory.outbox.get(TOKEN)
        if token is not None and token.receiver in absent:
            return step.then(self.begin(memory))
        return self._going_on(self._concluded(step))

    def hand_over(self, memory: Memory, receiver: str, handover: Handover) -> Step:
        """A file for another member; a Refusal if there is none of this name."""
        if receiver not in self.terms.members or receiver in memory.gone | {self.name}:
            others = f"one of {sorted(self.terms.members.keys() - memory.gone - {self.name})}"
            raise _forbidden(f"a file for {receiver!r}", "membership", others)
        message = self._sealed(memory, receiver, handover)
        memory = memory.with_letters({f"file {handover.name} to {receiver}": message})
        sha = digest_of(handover.content)
        step = Step(memory, (message,))
        return step.logging("file sent", name=handover.name, to=receiver, sha256=sha)

    def checkpoint(self, memory: Memory, tree: Tree) -> Step:
        """Tell the listeners how the site's log stands, so that they can sign for it."""
        head = TreeHead.of(tree, key_name(self.terms.name, self.name), self.key)
        signed = (each for each in memory.notices.values() if each.claim == "cosignature")
        sizes = {*memory.published, *(each.version[0] for each in signed)}
        paths = {size: tree.consistency(size) for size in sorted(sizes) if size <= len(tree)}
        published = (*memory.published, len(tree))[-KEPT:]
        memory = dataclasses.replace(memory, published=published)
        return self._noticed(Step(memory), self.author.checkpoint(head, paths))

    def adopt(self, memory: Memory) -> Memory:
        """The memory of earlier terms under the machine's: for members who join, or other links.
        The factor stays; it counts again from the next epoch on. A Refusal if numbers would be made
        otherwise, or somebody who was forgotten would be back, by name or by key.
        """
        members, numbers = self.terms.members, self.terms.agreement.digest
        barred = dict(memory.barred)
        barred |= {site: known.subjects["key"] for site, known in memory.tombstones.items()}
        is_back = lambda site: site in barred or members[site].id in barred.values()
        back = sorted(filter(is_back, members))
        if memory.numbers not in ("", numbers) or back or memory.own.name != self.name:
            raise _forbidden(f"terms with {back}, or with other numbers, to adopt", "order")
        kept = {name: getattr(memory, name) for name in KEPT_BY_TERMS}
        new = Memory(memory.own, terms=self.terms.digest, numbers=numbers, barred=barred, **kept)
        return new.fenced((memory.highest + 1, ""))

    # --- questions -------------------------------------------------------------------------------

    def resend(self, memory: Memory) -> tuple[Outgoing, ...]:
        """The letters that are not acknowledged yet."""
        return tuple(message for place, message in memory.outbox.items() if place != RESTING)

    def awaited(self, memory: Memory) -> frozenset[str]:
        """The members without whose letters nothing goes on here."""
        token, survey = memory.outbox.get(TOKEN), self._own_survey(memory)
        stay = self.terms.staying(memory.gone | memory.absent)
        if token is not None:
            return frozenset([token.receiver])
        if self._is_between(memory):
            return frozenset(stay[:1]) - {self.name}
        if RESTING not in memory.outbox or survey is None:
            return frozenset()
        return frozenset(stay).difference(self._residuals(memory, survey))

    def status(self, memory: Memory) -> Status:
        """The status of the posterior that the newest certificate of the present epoch says."""
        known = memory.certificate
        if known is None:
            why = ("no survey of this epoch yet",)
            return Status.of(math.inf, self.terms.tolerance or TOLERANCE, why)
        state, left, tolerance, reasons = (
            known.predicate[name] for name in ("state", "left", "tolerance", "reasons")
        )
        return Status(state, math.inf if left is None else left, tolerance, tuple(reasons))

    # --- notices ---------------------------------------------------------------------------------

    def _noticed(self, step: Step, known: Known, sender: str | None = None) -> Step:
        """Keep a notice, pass it on, and do what follows from it; a Refusal if it is not one to be
        believed.
        """
        memory, mine = step.memory, known.signer == self.name
        old = memory.notices.get(known.place)
        if known.claim == "tombstone":
            return step if old is not None else self._buried(step, known, sender)
        if known.epoch is not None:
            if known.epoch[0] > memory.highest + self.terms.limits.epochs:
                raise _forbidden(f"a {known.claim} of epoch {known.epoch}", "epoch")
            if known.epoch < memory.own.epoch or not memory.gone <= known.forgotten:
                return step  # it may hold a factor that was forgotten
        if known.signer in memory.gone or (old is not None and known.version <= old.version):
            return step
        if known.claim in ("residual", "cosignature") and known.recipient != self.name:
            return self._sent_towards(step, known)
        if known.claim == "checkpoint" and not mine:
            return self._witnessed(step, known, old)
        if known.claim == "survey" and self.terms.server is not None:
            raise _forbidden("a survey beside the questions of a server", "membership")
        if known.claim == "certificate" and not mine and not follows(self.terms, known):
            raise _forbidden(f"a certificate of {known.site!r} that does not follow", "proof")
        kept = memory.with_notice(known)
        step = dataclasses.replace(step, memory=kept)
        if known.claim in ("survey", "certificate", "checkpoint"):
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
                return self._started(step, known, old, sender)
        return step

    def _started(self, step: Step, known: Known, old: Known | None, sender: str | None) -> Step:
        """A member was started: for the first time, again, or without the store that it had.

        Of the first start the neighbours alone are told. Who lost its store no longer knows which
        tokens hold its factor, so the first of the others by name begins a new epoch, unless the
        site was let in by the present one.
        """
        memory, site = step.memory, known.site
        lost = old is not None and old.predicate["born"] != known.predicate["born"]
        if site == self.name or lost or known.predicate["epoch"][0] > 0:
            step = step.then(self._flooded(memory, known, sender))
        if site == self.name:
            return step
        others = self.terms.staying(memory.gone | memory.absent | {site})
        fence, who = known.predicate["epoch"]
        met = fence > 0 and (fence, who) < memory.own.epoch  # it takes part in the present epoch
        first = others[:1] == (self.name,) and not self.terms.server
        if lost and not met and first and memory.highest > 0:
            number, step = max(memory.highest + 1, fence), step.logging("store lost", site=site)
            return step.then(self.begin(step.memory, number))
        return self._returned(step, site)

    def _flooded(self, memory: Memory, known: Known, sender: str | None) -> Step:
        out = memory.gone - {self.name}
        others = {*self.terms.listeners(self.name, out)} - {sender, known.signer}
        if (
            known.claim == "tombstone" and known.signer != known.site != self.name
        ):  # it has to be told too
            others |= {known.site} & {*self.terms.neighbours(self.name, out - {known.site})}
        return self._passed_on(memory, [known], sorted(others))

    def _passed_on(self, memory: Memory, notices: Iterable[Known], others: Iterable[str]) -> Step:
        """Notices for other members, each in a letter that replaces an older one of its place."""
        letters = {
            f"{known.place} to {other}": self._sealed(memory, other, Notice(known.envelope))
            for known in notices
            for other in others
        }
        return Step(memory.with_letters(letters), tuple(letters.values()))

    def _sent_towards(self, step: Step, known: Known) -> Step:
        """A notice that only one member needs goes to it, over whoever links them."""
        memory = step.memory
        out = (memory.gone | memory.absent) - {self.name}
        if known.recipient in out or known.recipient not in self.terms.members:
            return step
        other = self.terms.towards(self.name, known.recipient, out)
        waiting = memory.outbox.get(f"{known.place} to {other}")
        if waiting is not None and self._notice_in(waiting).version >= known.version:
            return step
        return step.then(self._passed_on(memory, [known], [other]))

    def _witnessed(self, step: Step, known: Known, old: Known | None) -> Step:
        """Sign for another's log, once it is seen to continue the one that was signed for before.
        Where no path leads from that one its keeper may not know it: it is told what it was. A
        Refusal if it does not.
        """
        new, before, member = known.head, old and old.head, known.site
        paths, size = known.predicate["paths"], before.size if before else 0
        if before and 0 < size < new.size and str(size) not in paths:
            found = f"a log of {member!r} with no path from its {size} entries that are known"
            refusal = _forbidden(found, "unwitnessed")
            step = step.then(refused(step.memory, refusal, known.digest))
            new = before
        else:
            path = [bytes.fromhex(text) for text in paths.get(str(size), ())]
            continues(before, new, path, self.terms.members[member])
            step = dataclasses.replace(step, memory=step.memory.with_notice(known))
        head = new.cosigned(key_name(self.terms.name, self.name), self.key, int(self.clock()))
        return self._sent_towards(step, self.author.cosignature(member, head))

    def _returned(self, step: Step, site: str) -> Step:
        """Somebody is back: a token that rests without them walks on, so that it can meet them."""
        memory = step.memory.without_absent(site)
        step = dataclasses.replace(step, memory=memory)
        token = self._resting(memory)
        whole = self.status(memory).converged or bool(self.awaited(memory))
        if token is None or whole or self._is_last(token, memory.gone):
            return step
        return step.then(self._released(memory))

    # --- forgetting ------------------------------------------------------------------------------

    def _buried(self, step: Step, known: Known, sender: str | None) -> Step:
        """Take note of a tombstone, pass it on, and let no older token count any more."""
        memory, site = step.memory, known.site
        named = min(known.predicate["highest"], memory.highest + self.terms.limits.epochs)
        # Who is let in by a later epoch, and has not met it yet, has nothing from before.
        epoch, who = memory.own.epoch
        last = named if epoch > named and not who else max(named, memory.highest)
        memory = memory.with_notice(known).without_absent(site)
        memory = self._heard(self._fenced(memory, (last + 1, "")), last)
        if site == self.name:  # its factor is destroyed; the version stays: it cannot come back
            entry = (memory.own.entry or Entry(0, 0, None))._replace(factor=None)
            memory = memory.with_own(entry=entry, counted=False, leaving=False)
            memory = dataclasses.replace(memory, outbox={})
        else:
            memory = self._rerouted(memory)
        buried = Step(memory, erase=True)
        buried = buried.logging("forgotten", site=site, highest=last, notice=known.digest)
        return self._going_on(step.then(buried).then(self._flooded(memory, known, sender)))

    def _is_between(self, memory: Memory) -> bool:
        """Tell whether a forgetting ended an epoch, and no token of the next one is known yet."""
        own = memory.own
        between = bool(memory.gone) and own.epoch[0] > 0 and not own.epoch[1]
        return between and self.terms.server is None and self.name not in memory.gone

    def _going_on(self, step: Step) -> Step:
        """The first by name of those who stay begins the epoch after a forgetting."""
        memory = step.memory
        stay = self.terms.staying(memory.gone | memory.absent)
        first = stay[:1] == (self.name,) and memory.highest > 0
        return step.then(self.begin(memory)) if first and self._is_between(memory) else step

    def _fenced(self, memory: Memory, epoch: Epoch) -> Memory:
        """The memory in which nothing below an epoch counts, nor waits to be sent."""
        if memory.own.epoch >= epoch:
            return memory
        memory = self._without_posteriors(memory.fenced(epoch), epoch)
        return memory.without_letters({TOKEN, RESTING})

    def _rerouted(self, memory: Memory) -> Memory:
        """The memory in which no token waits for somebody who is gone or absent."""
        out = memory.gone | memory.absent
        for place in (TOKEN, RESTING):
            waiting = memory.outbox.get(place)
            if waiting is not None and waiting.receiver in out:
                token: Token = body_of(waiting.content)
                receiver = self.terms.following(self.name, None, token.sequence - 1, out)
                memory = memory.with_letters({place: self._sealed(memory, receiver, token)})
        return memory

    # --- helpers ---------------------------------------------------------------------------------

    def _without_posteriors(self, memory: Memory, epoch: Epoch) -> Memory:
        """The memory without notices that hold a posterior of an earlier epoch, kept or waiting."""
        old = lambda known: known.epoch is not None and known.epoch < epoch
        notices = {place: known for place, known in memory.notices.items() if not old(known)}
        waiting = {
            place
            for place, message in memory.outbox.items()
            if place.startswith(WITH_POSTERIORS) and old(self._notice_in(message))
        }
        return dataclasses.replace(memory.without_letters(waiting), notices=notices)

    def _notice_in(self, message: Outgoing) -> Known:
        return read(self.terms, body_of(message.content).content)

    def _heard(self, memory: Memory, number: int) -> Memory:
        highest = max(memory.highest, number)
        return memory if highest == memory.highest else dataclasses.replace(memory, highest=highest)

    def _sealed(self, memory: Memory, receiver: str, body: Body) -> Outgoing:
        gone = tuple(sorted(memory.gone))
        letter = Letter(self.terms.digest, self.name, receiver, memory.highest, gone, body)
        return Outgoing(receiver, letter.sealed(self.key))


def _forbidden(
    found: str, reason: Reason, expected: str = "what the state of the site allows"
) -> Refusal:
    return Refusal.of(found, expected, reason, "See `posterity site status`.")
