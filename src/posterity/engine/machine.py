"""The durable site: a member that takes part in the walk of a token over the links.

This module is the protocol of a walk. The site that receives the token improves its factor and
sends the token on with the next sequence number. An epoch begins at the prior, and each site adds
its whole factor when a token of the epoch first arrives. A start, a loss, a new member and a
forgetting are therefore all handled by the same walk. Epochs are pairs of a number and a site. The
higher one wins, and tokens of a lower one are void at every site. One version of a token, its epoch
and sequence number, has one content.

Once visits change little, the site with the token keeps it and sends all members a survey of its
posterior. Their signed answers determine whether it has converged: then the token rests, otherwise
it walks on.
"""

import dataclasses
import hmac
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from posterity.arrays.keys import fold_in
from posterity.arrays.tree_sums import TreeSum
from posterity.engine.admission import check_posterior
from posterity.engine.author import status_by
from posterity.engine.log import Tree, TreeHead, key_name
from posterity.engine.member import Member
from posterity.engine.memory import RESTING, TOKEN, Memory, Step, line, refused
from posterity.engine.messages import MOST_EPOCHS, Acknowledgement, body_of
from posterity.engine.notices import Known, Standing, posterior_of, read
from posterity.engine.refusal import Reason, Refusal, forbidden
from posterity.errors import PosterityError
from posterity.federation import Token, turn
from posterity.federation.keys import site_key
from posterity.federation.messages import Epoch, Report
from posterity.federation.remaining import SAMPLES
from posterity.federation.state import Visit
from posterity.federation.status import parts_needed

KEPT_BY_TERMS = ("highest", "starts", "refusals", "published")
"""Parts of a memory that new terms keep, besides the factor and the barred members."""
UNSEALED = -1, ""
"""What stands for the number and seal of a site that has not answered in an epoch."""


class Machine(Member):
    """One site of a federation in the walk of a token. The server of a star overrides the walk.

    A new checkpoint of the log proves that it continues the last ``kept``. A token is judged by
    ``times`` its change: a missing factor goes unnoticed if the prior is worth 16 of it, and more
    would take rounding for a loss where a prior is vague. A walk without ``steps`` rests after
    ``turns`` turns per site on average.
    """

    kept: ClassVar[int] = 16
    times: ClassVar[int] = 16
    turns: ClassVar[int] = 300

    # --- tokens -----------------------------------------------------------------------------------

    def _receive_token(
        self, memory: Memory, token: Token, gone: frozenset[str], digest: str
    ) -> tuple[Step, Acknowledgement]:
        """Answer a token. One that is void, or was answered, is acknowledged and not sent on."""
        memory = memory.heard(token.epoch[0])
        memory = memory.saw(str(token.sender), token.epoch, token.sequence - 1)
        if self.name in memory.gone:
            raise forbidden("a token at a site that was forgotten", "tombstone")
        reason: Reason | None = None
        if memory.gone - gone:
            reason = "tombstone"
        elif self._is_fenced(memory, token):
            reason = "epoch"
        elif self._is_answered(memory, token):
            reason = "replay"
        elif self._seal_in(token) != self._seal_of(memory, token):
            reason = "rollback"
        if reason is None:
            self._check_whole(memory, token)
            return self._answer(memory, token), Acknowledgement(digest)
        # If no token of a newer epoch has been seen, there may be none: its sender begins one.
        void = reason == "epoch" and not memory.own.epoch[1]
        place = f"epoch {token.epoch}, sequence {token.sequence}"
        refusal = forbidden(f"a token of {place}", reason)
        step = refused(memory, refusal, token.digest)
        if reason == "rollback":
            # An older seal than the site's own: others answered with old stores.
            lost = self._seal_in(token) > self._seal_of(memory, token)
            step = step.then(self._lost(step.memory) if lost else self.begin(step.memory))
        return step, Acknowledgement(digest, void)

    def _seal_in(self, token: Token) -> tuple[int, str]:
        """Return the number and seal of this site's last answer, as the token has them."""
        return next(((n, seal) for site, n, seal in token.seals if site == self.name), UNSEALED)

    def _seal_of(self, memory: Memory, token: Token) -> tuple[int, str]:
        """Return what :meth:`_seal_in` is if token and store belong together."""
        own = memory.own
        if own.epoch != token.epoch or own.answered < 0:
            return UNSEALED
        return own.answered, memory.seal

    def _is_fenced(self, memory: Memory, token: Token) -> bool:
        """Return whether the token's epoch ended, perhaps before this site took part."""
        return token.epoch < memory.own.epoch

    def _is_answered(self, memory: Memory, token: Token) -> bool:
        own = memory.own
        return token.epoch == own.epoch and token.sequence <= own.answered

    def _check_whole(self, memory: Memory, token: Token) -> None:
        """Check that a token lacks nothing that was in it; a Refusal if it does.

        Exact factors stay as they are, so the sum has all that the site passed on in this epoch.
        Other factors change; but where log likelihoods are concave, each makes the sum surer than
        prior and own factor are. Of noisy and other updates nothing is known. What is missing shows
        where prior and ``times`` the difference are no distribution.
        """
        agreed = self.terms.agreement
        own = memory.own
        exact = agreed.update.conjugate
        again = token.epoch == own.epoch
        if not exact and (agreed.update.noisy or agreed.model.known_optima != "one"):
            return
        known = self.terms.law
        if exact and again and memory.passed is not None:
            known = memory.passed
        elif again and own.counted and own.entry is not None and own.entry.factor is not None:
            known = known + own.entry.factor
        if not np.all((self.terms.law + (token.posterior - known) * self.times).is_proper()):
            found = f"a token of epoch {token.epoch}, sequence {token.sequence}, that lacks factors"
            raise Refusal.of(found, "all that were in it before", "left out")

    def _answer(self, memory: Memory, token: Token) -> Step:
        """Add or improve the site's factor, and send the token on or keep it at rest."""
        name = self.name
        before = memory.own
        key = self.terms.step_key(token.sequence, memory.gone)
        try:
            own, sent, visit = turn(self.site, before, token, key=key)
            check_posterior(self.terms, sent.posterior)
        except PosterityError as error:  # the token is sent on unchanged
            counted = before.counted and token.epoch == before.epoch
            own = memory.with_own(epoch=token.epoch, answered=token.sequence, counted=counted).own
            place = (token.agreement, token.epoch, token.sequence + 1)
            sent = Token(*place, token.exact_sum, name, token.digest)
            visit = Visit(token.sequence, name, "refused", error=error.found[:200])
        out = memory.gone | memory.absent
        receiver = self.terms.following(name, token.sender, token.sequence, out)
        memory = memory.without_letters({TOKEN, RESTING})
        digest = sent.digest
        seal = hmac.digest(self.key.raw, digest.encode(), "sha256").hex()
        after = dataclasses.replace(memory, own=own, passed=sent.posterior, seal=seal)
        others = (each for each in token.seals if each[0] != name)
        seals = tuple(sorted((*others, (name, *self._seal_of(after, sent)))))
        sent = dataclasses.replace(sent, seals=seals)
        if own.epoch != before.epoch:
            after = self._without_posteriors(after, own.epoch)
        rests = self._is_last(sent, memory.gone) or self._is_due(after, sent, visit)
        message = self._sealed(after, receiver, sent)
        after = after.with_letters({RESTING if rests else TOKEN: message})
        entry = line(
            visit.outcome,
            token=[*token.epoch, token.sequence, token.digest],
            answer=digest,
            to=receiver,
            change=visit.change,
            # The error of a failed visit comes from the model and may hold records.
            **({"error": visit.error} if visit.error and visit.outcome == "refused" else {}),
        )
        left = visit.outcome == "forgotten" or own.epoch != before.epoch
        step = Step(after, () if rests else (message,), (entry,), erase=left)
        if not rests:
            return step
        place = sent.epoch, sent.sequence
        return self._noticed(step, self.author.survey(*place, sent.posterior, after.gone))

    # --- rest -------------------------------------------------------------------------------------

    def _is_last(self, token: Token, gone: frozenset[str]) -> bool:
        sites = len(self.terms.staying(gone))
        if self.terms.steps is None:
            return token.sequence >= self.turns * sites
        return token.sequence >= self.terms.steps * (1 if self.terms.order == "gossip" else sites)

    def _is_due(self, memory: Memory, token: Token, visit: Visit) -> bool:
        """Return whether to make a survey: at growing intervals, once a visit changes little."""
        if self.terms.tolerance is None:
            return False
        sites = len(self.terms.staying(memory.gone))
        last = memory.newest("survey")
        before = 0 if last is None or last.version[1] > token.sequence else last.version[1]
        if token.sequence < 2 * sites + before + before // 2:
            return False
        calm = visit.change is None or visit.change <= self.terms.tolerance / sites**2
        return calm or self.terms.agreement.update.noisy

    def _answered(self, memory: Memory, survey: Known) -> Known:
        """Return the site's residual to the posterior of a survey. It has a report only if the
        survey was made after the site's last turn in the present epoch.
        """
        own = memory.own
        entry = memory.own.entry
        report = None
        left = entry is not None and entry.factor is None
        silent = left or bool(self.site.records.silent)
        known = own.counted and own.epoch == survey.epoch and survey.version[1] > own.answered
        if known and not silent and entry is not None and entry.factor is not None:
            key = self.terms.step_key(survey.version[1], memory.gone)
            key = fold_in(site_key(key, self.name), 2)
            parts = parts_needed(self.terms.agreement)
            posterior = posterior_of(self.terms, survey)
            try:
                report = self.site.report(posterior, entry.factor, parts, samples=SAMPLES, key=key)
            except Exception:  # any error of the model leaves the report empty
                report = Report(self.name)
        independent = silent or (entry is not None and entry.independent)
        counted = (known or silent) and not own.leaving
        answer = Standing(counted, silent, independent, report, tuple(sorted(memory.gone)))
        return self.author.residual(survey, answer)

    def _concluded(self, step: Step) -> Step:
        """Certify once all have answered the site's survey; then the token rests or walks on. If a
        member was passed over whose factor is in the token, a new epoch begins instead.
        """
        memory = step.memory
        token = self._resting(step.memory)
        survey = memory.own_survey
        if token is None or survey is None or self.awaited(memory):
            return step
        if survey.version != (token.epoch, token.sequence):
            return step
        residuals = memory.residuals(survey)
        now = int(self.clock())
        if {site for site, *_ in token.seals} - residuals.keys():
            return step.then(self.begin(memory))
        certificate = self.author.certificate(survey, residuals, memory.tombstones, now)
        step = self._noticed(step, certificate)
        present = status_by(self.terms, survey, residuals, memory.gone | memory.absent)
        if present.at_optimum or self._is_last(token, memory.gone):
            return step.logging("rests", epoch=token.epoch, sequence=token.sequence)
        return step.then(self._released(step.memory))

    def _released(self, memory: Memory) -> Step:
        letters = {TOKEN: memory.outbox[RESTING]}
        memory = self._rerouted(memory.without_letters({RESTING}).with_letters(letters))
        return Step(memory, (memory.outbox[TOKEN],))

    def _resting(self, memory: Memory) -> Token | None:
        message = memory.outbox.get(RESTING)
        return None if message is None else body_of(message.content)

    def _returned(self, step: Step, site: str) -> Step:
        """Release a resting token, unless it has converged, so that a returned member can add to
        it.
        """
        memory = step.memory.without_absent(site)
        step = dataclasses.replace(step, memory=memory)
        token = self._resting(memory)
        whole = self.status(memory).at_optimum or bool(self.awaited(memory))
        if token is None or whole or self._is_last(token, memory.gone):
            return step
        return step.then(self._released(memory))

    # --- commands ---------------------------------------------------------------------------------

    def begin(self, memory: Memory, number: int | None = None) -> Step:
        """Begin a new epoch: at the start, after a loss or a forgetting, or to admit a member. Its
        number is by default one above the highest that the site has recorded. Raises a Refusal if
        it is not above the present one, if there is a server, or if the site was forgotten.
        """
        self._check_walk(memory)
        epoch: Epoch = (memory.highest + 1 if number is None else number, self.name)
        if not memory.own.epoch < epoch < (MOST_EPOCHS, ""):
            raise forbidden(f"a request to begin epoch {epoch} after {memory.own.epoch}", "order")
        first = Token(self.terms.digest, epoch, 0, TreeSum.of([self.terms.law]))
        step = self._answer(memory.heard(epoch[0]), first)
        return Step(memory).logging("begun", epoch=epoch).then(step)

    def leave(self, memory: Memory) -> Step:
        """Withdraw the site's factor; the site still passes tokens on. It begins an epoch without
        its factor, as no member takes a token of an epoch in which a factor went missing; before
        any epoch it waits for the first. Raises a Refusal if there is a server, which alone removes
        factors, or if the site was forgotten.
        """
        self._check_walk(memory)
        memory = memory.with_own(leaving=True)
        step = Step(memory).logging("leaving")
        return step.then(self.begin(memory)) if memory.highest else step

    def _check_walk(self, memory: Memory) -> None:
        if self.name in memory.gone:
            raise forbidden(f"site {self.name!r}, which was forgotten", "order")
        if self.terms.server is not None:
            found = f"member {self.name!r} of a star"
            who = f"its server {self.terms.server!r}"
            raise forbidden(found, "order", f"{who}, which begins epochs and removes factors")

    def forget(self, memory: Memory) -> Step:
        """Forget the site: destroy its factor, and all messages that hold it.

        Its tombstone is sent to the others, which then accept no token of an epoch in which the
        site took part; the first of them by name begins the next one. Raises a Refusal if the site
        was forgotten before.
        """
        if self.name in memory.gone:
            raise forbidden(f"site {self.name!r}, which was forgotten already", "order")
        return self._noticed(Step(memory), self.author.tombstone(self.name, memory.highest))

    def post(self, memory: Memory, envelope: bytes) -> Step:
        """Process a notice that came without a letter; a Refusal if its signature is not valid."""
        return self._noticed(Step(memory), read(self.terms, envelope))

    def start(self, memory: Memory) -> Step:
        """Record a start of the site's agent. A site that took part before notifies the others that
        it is back, since they may have passed it over.
        """
        before = memory.notices.get(f"agreement of {self.name}")
        step = Step(self._sealed_anew(memory)).logging("started", number=memory.starts + 1)
        if self.name in memory.gone or self.is_replaced:
            return step
        step = self._agreed(step)
        is_new = before is not None and self.key.public.id.encode() not in before.envelope
        # In the new epoch nothing counts that the key before signs.
        begins = is_new and memory.highest and self.terms.server is None
        return step.then(self.begin(step.memory)) if begins else step

    def _sealed_anew(self, memory: Memory) -> Memory:
        """Return the memory with its letters in the present schema, signed by the present key."""
        changes = f"rotation of {self.name} from "
        letters = {
            place: self._sealed(memory, message.receiver, body_of(message.content))
            for place, message in memory.outbox.items()
            if not place.startswith(changes)
        }
        return memory.with_letters(letters)

    def rotate(self, memory: Memory, key: str) -> Step:
        """Replace the site's key by another, whose public half is ``key`` and which signs from the
        next start on. Raises a Refusal if its key was replaced, or the other is or was anybody's.
        """
        old = str(self.key.public)
        until = memory.highest + 1
        own = self.author.rotation(self.name, old=old, key=key, epoch=until)
        return self._noticed(Step(memory), own)

    def pass_over(self, memory: Memory, sites: Iterable[str]) -> Step:
        """Continue without members that do not answer, until they do: all are told, and a new epoch
        begins, which a member that returns joins with its whole factor. Raises a Refusal if one of
        them is no member or was forgotten, or is the site itself or the server.
        """
        absent = frozenset(sites)
        others = {*self.terms.staying(memory.gone)} - {self.name, self.terms.server}
        if not absent or not absent <= others:
            some = f"some of {sorted(others)}"
            raise forbidden(f"a request to pass over {sorted(absent)}", "membership", some)
        step = Step(memory)
        for site in sorted(absent):
            known = memory.notices.get(f"absence of {site} by {self.name}")
            start = max(self._starts_of(memory, site), 1)  # not all hear of a first start
            place = start, known.version[1] + 1 if known else 0
            step = self._noticed(step, self.author.absence(site, *place))
        walks = self.terms.server is None and memory.highest > 0
        return step.then(self.begin(step.memory)) if walks else self._goes_without(step)

    def _goes_without(self, step: Step) -> Step:
        """Go on if a token, or what it rests for, waits for a member that was passed over."""
        token = step.memory.outbox.get(TOKEN)
        if token is not None and token.receiver in step.memory.absent:
            return step.then(self.begin(step.memory))
        return self._concluded(step)

    def checkpoint(self, memory: Memory, tree: Tree) -> Step:
        """Send the listeners the checkpoint of the site's log, so that they can cosign it. Of what
        each cosigned stays the largest, and what the log does not continue.
        """
        head = TreeHead.of(tree, key_name(self.terms.name, self.name), self.key)
        signed = {p: each for p, each in memory.notices.items() if each.claim == "cosignature"}
        sizes = {*memory.published, *(each.version[0] for each in signed.values())}
        paths = {size: tree.consistency(size) for size in sorted(sizes) if size <= len(tree)}
        past = {p for p, each in signed.items() if p != each.place and each.head.begins(tree)}
        notices = {place: each for place, each in memory.notices.items() if place not in past}
        published = (*memory.published, *(signed[p].version[0] for p in sorted(past)), len(tree))
        memory = dataclasses.replace(memory, published=published[-self.kept :], notices=notices)
        return self._noticed(Step(memory), self.author.checkpoint(head, paths))

    def adopt(self, memory: Memory) -> Memory:
        """Carry a memory of earlier terms over to the machine's, as when members or links change.
        The factor stays and counts again from the next epoch. Raises a Refusal if the new terms
        compute numbers differently, or readmit a forgotten member by name or key.
        """
        members = self.terms.members
        numbers = self.terms.agreement.digest
        barred = dict(memory.barred)
        barred |= {site: known.subjects["key"] for site, known in memory.tombstones.items()}
        replaced = (known.rotation for known in memory.changes)
        barred |= {each.label: each.old.id for each in replaced}

        def is_back(site):
            return site in barred or members[site].id in barred.values()

        back = sorted(filter(is_back, members))
        if memory.numbers not in ("", numbers) or back or memory.own.name != self.name:
            found = f"terms that readmit {back}, who were forgotten or replaced these keys"
            raise forbidden(f"{found}, or terms that change numbers", "order")
        kept = {name: getattr(memory, name) for name in KEPT_BY_TERMS}
        new = Memory(memory.own, terms=self.terms.digest, numbers=numbers, barred=barred, **kept)
        return new.fenced((memory.highest + 1, ""))

    # --- questions --------------------------------------------------------------------------------

    def awaited(self, memory: Memory) -> frozenset[str]:
        """Return the members whose letters the site needs before it can continue."""
        token = memory.outbox.get(TOKEN)
        survey = memory.own_survey
        stay = self.terms.staying(memory.gone | memory.absent)
        if token is not None:
            return frozenset([token.receiver])
        if self._is_between(memory):
            return frozenset(stay[:1]) - {self.name}
        if RESTING not in memory.outbox or survey is None:
            return frozenset()
        return frozenset(stay).difference(memory.residuals(survey))
