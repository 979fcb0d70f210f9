"""The memory of a durable site, as a value and in the form that its store keeps."""

import dataclasses
import json
from collections.abc import Container, Mapping
from typing import Any, Self

from posterity.artifact.artifact import from_bytes, to_bytes
from posterity.artifact.manifest import as_text
from posterity.engine.messages import Acknowledgement, Letter, Unread, body_of
from posterity.engine.notices import Known, parsed
from posterity.engine.refusal import RELEASE, Refusal, reading
from posterity.engine.store import Change, Outgoing
from posterity.entries import Entry
from posterity.families import ExponentialFamily
from posterity.federation import SiteState
from posterity.federation.messages import Epoch

TOKEN, RESTING = "token", "resting"
"""Outbox places of the token that waits for its acknowledgement, and of the token that rests here
until the walk continues."""
ANSWER = "answer"
"""Outbox place of a site's answer to the server of a star."""
QUESTION = "question to "
"""Prefix of the outbox places where a question waits for its answer."""
NOTICE = "notice "
"""Prefix of the keys of store rows that hold a notice instead of a letter."""
MOST_REFUSALS = 100
"""Number of refusals for one reason that are all logged; later only each power of two is."""


Place = list[Any]
"""Number and site of an epoch, and the sequence number of the last answer in it; -1 if none."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """The state of a site, which it must not lose. Immutable.

    ``highest`` is the highest recorded epoch number, ``notices`` are the newest ones by place, and
    ``absent`` the members that do not answer at present. ``refusals`` are counts by reason.
    ``passed`` is the posterior of the token that the site sent last in its present epoch, if any,
    and ``seal`` the site's code over it.
    ``starts`` counts the starts of the agent. ``seen`` is the newest place of each member, from the
    tokens and surveys that it signed. ``published`` are the sizes of the last checkpoints of the
    log. ``terms`` and ``numbers`` are digests of the terms and
    of how numbers are computed. ``barred`` members were forgotten under earlier terms, with the IDs
    of their keys; keys that were replaced are among them by their labels. ``rotations`` are signed
    changes of keys, in order. ``apart`` are members with which no letters can be exchanged, with
    the release and schema of their letters. ``outbox`` holds letters that are not acknowledged yet,
    and a token that rests.
    """

    own: SiteState
    highest: int = 0
    passed: ExponentialFamily | None = None
    seal: str = ""
    notices: Mapping[str, Known] = dataclasses.field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    refusals: Mapping[str, int] = dataclasses.field(default_factory=dict)
    starts: int = 0
    seen: Mapping[str, Place] = dataclasses.field(default_factory=dict)
    published: tuple[int, ...] = ()
    terms: str = ""
    numbers: str = ""
    barred: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rotations: tuple[str, ...] = ()
    apart: Mapping[str, Place] = dataclasses.field(default_factory=dict)
    outbox: Mapping[str, Outgoing] = dataclasses.field(default_factory=dict)

    @classmethod
    def empty(cls, name: str, epoch: int = 0) -> Self:
        """Return the memory of a new site, which takes part from this epoch on.

        A site that lost its store cannot tell which tokens it answered. It rejoins at an epoch with
        a higher number than any other site has recorded; only a new federation begins at zero. The
        receivers of its letters send it the tombstones.
        """
        return cls(SiteState(name, epoch=(epoch, "")), epoch)

    @property
    def tombstones(self) -> dict[str, Known]:
        """Tombstones by name of the forgotten site."""
        return {known.site: known for known in self.notices.values() if known.claim == "tombstone"}

    @property
    def gone(self) -> frozenset[str]:
        """The sites that were forgotten."""
        return frozenset(self.tombstones)

    @property
    def changes(self) -> list[Known]:
        """The changes of members' keys, in order."""
        return [parsed(text.encode()) for text in self.rotations]

    @property
    def epoch(self) -> Epoch:
        """The present epoch."""
        return self.own.epoch

    @property
    def place(self) -> Place:
        """The present epoch, and the sequence number of the last answer in it."""
        return [*self.own.epoch, self.own.answered]

    def saw(self, site: str, epoch: Epoch, answered: int) -> Self:
        """Return the memory after a member signed that it answered a token."""
        place = max([*epoch, answered], self.seen.get(site, []))
        return dataclasses.replace(self, seen={**self.seen, site: place})

    def newest(self, claim: str) -> Known | None:
        """Return the newest notice of a claim in the present epoch, by any member."""
        return max(self._present(claim), key=lambda each: each.version, default=None)

    @property
    def certificate(self) -> Known | None:
        """The newest certificate of the present epoch; one that says converged, and to which all
        members answered, takes precedence.
        """
        known = self._present("certificate")
        return max(known, key=lambda each: (each.is_final, each.version), default=None)

    def _present(self, claim: str) -> list[Known]:
        return [k for k in self.notices.values() if k.claim == claim and k.epoch == self.epoch]

    def with_own(self, **changes: Any) -> Self:
        """Return the memory with some changes of the site's own state."""
        return dataclasses.replace(self, own=dataclasses.replace(self.own, **changes))

    def fenced(self, epoch: Epoch) -> Self:
        """Return the memory of a site whose factor counts again only from an epoch on."""
        fenced = self.with_own(epoch=epoch, answered=-1, counted=False)
        return dataclasses.replace(fenced, passed=None)

    def heard(self, number: int) -> Self:
        """Return the memory after an epoch of this number was seen."""
        highest = max(self.highest, number)
        return self if highest == self.highest else dataclasses.replace(self, highest=highest)

    @property
    def own_survey(self) -> Known | None:
        """The newest survey that this site made."""
        return self.notices.get(f"survey of {self.own.name}")

    def residuals(self, survey: Known) -> dict[str, Known]:
        """Return the answers to a survey by site: those to its maker and about its posterior."""
        about = survey.posterior_digest, survey.site
        return {
            each.site: each
            for each in self.notices.values()
            if each.claim == "residual"
            and each.version == survey.version
            and (each.posterior_digest, each.recipient) == about
        }

    def met(self, letter: Letter) -> Self:
        """Return the memory after a member's letter, which may not be read, or say so of others."""
        others = dict(self.apart)
        if isinstance(letter.body, Unread | str):
            others[letter.sender] = [letter.release, letter.schema]
        elif letter.release:  # it has this schema now, too
            others.pop(letter.sender, None)
        return self if others == self.apart else dataclasses.replace(self, apart=others)

    def without_absent(self, site: str) -> Self:
        """Return the memory in which a site is not absent."""
        return dataclasses.replace(self, absent=self.absent - {site})

    def with_notice(self, known: Known, place: str = "") -> Self:
        """Return the memory with a notice in its place, or in another."""
        return dataclasses.replace(self, notices={**self.notices, place or known.place: known})

    def with_letters(self, letters: Mapping[str, Outgoing]) -> Self:
        """Return the memory with letters added to the outbox, by place."""
        return dataclasses.replace(self, outbox={**self.outbox, **letters})

    def without_letters(self, places: Container[str]) -> Self:
        """Return the memory without the letters at some places of the outbox."""
        outbox = {place: each for place, each in self.outbox.items() if place not in places}
        return dataclasses.replace(self, outbox=outbox)

    @property
    def rows(self) -> dict[str, Outgoing]:
        """The rows of a store besides the state: the outbox, and each notice."""
        notices = {NOTICE + p: Outgoing("", known.envelope) for p, known in self.notices.items()}
        return {**self.outbox, **notices}

    def is_like(self, other: "Memory") -> bool:
        """Return True if another memory differs only in the rows, as after acknowledgements."""
        plain = (*PLAIN, *LISTS, "absent")
        same = all(getattr(self, name) == getattr(other, name) for name in plain)
        return same and self.own is other.own

    def to_bytes(self) -> bytes:
        """Return the memory without its rows, as an artifact."""
        own = self.own
        parts = {} if self.passed is None else {"passed": self.passed}
        plain = dataclasses.asdict(dataclasses.replace(own, entry=None))
        if own.entry is not None:
            epoch, sequence, factor, independent = own.entry
            plain["entry"] = [epoch, sequence, independent]
            parts |= {} if factor is None else {"factor": factor}
        head = {name: getattr(self, name) for name in PLAIN}
        head |= {name: list(getattr(self, name)) for name in LISTS}
        head |= {"own": plain, "absent": sorted(self.absent)}
        return to_bytes({"head": as_text(head), **parts})

    @classmethod
    def from_bytes(cls, content: bytes, rows: Mapping[str, Outgoing]) -> Self:
        """Read a memory from :meth:`to_bytes` and :attr:`rows`; an ArtifactError if invalid."""
        parts = from_bytes(content, what="the memory of a site")
        with reading("the memory of a site", "what this release of posterity writes", RELEASE):
            head = json.loads(parts["head"])
            own = head["own"] | {"epoch": tuple(head["own"]["epoch"])}
            if own["entry"] is not None:
                epoch, sequence, independent = own["entry"]
                own["entry"] = Entry(epoch, sequence, parts.get("factor"), independent)
            kept = {p.removeprefix(NOTICE): r for p, r in rows.items() if p.startswith(NOTICE)}
            known = {p: parsed(row.content) for p, row in kept.items()}
            return cls(
                SiteState(**own),
                passed=parts.get("passed"),
                notices=known,
                absent=frozenset(head["absent"]),
                **{name: tuple(head[name]) for name in LISTS},
                outbox={p: row for p, row in rows.items() if not p.startswith(NOTICE)},
                **{name: head[name] for name in PLAIN},
            )


PLAIN = ("highest", "seal", "refusals", "starts", "seen", "terms", "numbers", "barred", "apart")
LISTS = ("published", "rotations")
"""Parts of a memory that are stored as they are, and as lists."""


@dataclasses.dataclass(frozen=True)
class Step:
    """The consequences of a letter or a command. First ``change`` is committed, then ``sent`` goes
    out. ``heard`` are the members whose letters arrived.
    """

    memory: Memory
    sent: tuple[Outgoing, ...] = ()
    entries: tuple[bytes, ...] = ()
    erase: bool = False
    heard: frozenset[str] = frozenset()

    @property
    def change(self) -> Change:
        """The change that the store makes durable."""
        return Change(self.memory.to_bytes(), self.memory.rows, self.entries, self.erase)

    def logging(self, event: str, **entry: Any) -> "Step":
        """Return the step with one more line of the log."""
        return dataclasses.replace(self, entries=(*self.entries, line(event, **entry)))

    def then(self, later: "Step") -> "Step":
        """Return both steps as one, where the later began with this one's memory. If the later
        erases, of the letters before it only acknowledgements and those still in the outbox are
        sent.
        """
        sent = self.sent
        if later.erase:
            kept = {*later.memory.outbox.values()}

            def stays(m):
                return m in kept or isinstance(body_of(m.content), Acknowledgement)

            sent = tuple(filter(stays, sent))
        return Step(
            later.memory,
            (*sent, *later.sent),
            (*self.entries, *later.entries),
            self.erase or later.erase,
            self.heard | later.heard,
        )


def line(event: str, **entry: Any) -> bytes:
    """Return a line of the log."""
    return as_text({"event": event, **entry}).encode()


def refused(memory: Memory, refusal: Refusal, digest: str) -> Step:
    """Count and log a refusal; nothing else follows from it."""
    why = {"found": refusal.found[:200], "expected": refusal.expected[:200]}
    return _counted(memory, "refused", refusal.reason, digest=digest, **why)


def failed(memory: Memory, error: Exception, **about: str) -> Step:
    """Count and log an unexpected error by its type. Its message is not logged, since others read
    the log and the message of a model's error may contain records.
    """
    return _counted(memory, "failed", "defect", error=type(error).__name__, **about)


def _counted(memory: Memory, event: str, reason: str, **about: str) -> Step:
    """Return a step that counts an event, and logs it if it is not too frequent."""
    count = memory.refusals.get(reason, 0) + 1
    memory = dataclasses.replace(memory, refusals={**memory.refusals, reason: count})
    if count > MOST_REFUSALS and count & (count - 1):
        return Step(memory)
    return Step(memory, entries=(line(event, reason=reason, count=count, **about),))
