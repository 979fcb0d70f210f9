"""Bad input for the engine: whatever is no good is refused by a typed error, and changes nothing.

    python -m benchmarks.fuzz 100000          # inputs; begun again, it goes on where it ended

Each input has a number, which is its seed: random bytes, or something good that was altered, bit by
bit or in its structure, and much of it signed again by a member, so that the signature holds and
the content is bad. It is handed to what would read it: a machine, an agent's socket, a store, a
configuration, or the readers by themselves. Right is a PosterityError, or that it is taken for what
it says; a violation is any other exception, an input that takes longer than ``SECONDS`` of the
processor, or more than ``MEGABYTES``, or a memory that differs after a refusal by more than the
count of it.
"""

import contextlib
import dataclasses
import json
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import posterity
from benchmarks.faults import FOLDER, KEYS, PRIOR, SITES
from benchmarks.letters import Case, World
from benchmarks.mutations import Mutator
from experiments import provenance
from posterity.arrays.tree_sums import TreeSum
from posterity.artifact.artifact import from_bytes
from posterity.artifact.manifest import as_text
from posterity.cli.deployment import read_site, read_terms
from posterity.engine.agent import Agent
from posterity.engine.log import Tree, TreeHead, continues
from posterity.engine.memory import Step
from posterity.engine.messages import Answer, Notice, Question
from posterity.engine.running import Running
from posterity.engine.signing import MESSAGE, STATEMENT, Envelope, Statement
from posterity.engine.store import Store
from posterity.engine.transports.unix import as_error, framed, from_message, received, to_message
from posterity.errors import PosterityError
from posterity.families import DiagonalGaussian
from posterity.federation import Agreement, Site, SiteState, Token, turn
from posterity.federation.messages import DescribeOwn, Improve, Measure, dumps, loads
from posterity.models import LogisticRegression

SECONDS, HANGS = 1.0, 30
"""Of the processor that one input may take; and by the clock, after which it is ended."""
MEGABYTES = 64  # by which one input may raise the most memory that the process has had
PROGRESS = Path("benchmarks/results/fuzz.json")
KINDS = ("coins", "star", "logistic")
BLOCK = 500


class Violation(AssertionError):
    """An input that is not taken as it has to be."""


class Fuzz:
    """Everything that inputs are handed to; ``folder`` is for files."""

    def __init__(self, folder: Path, kinds: Sequence[str] = KINDS):
        self.folder, self.worlds = folder, [World(kind) for kind in kinds]
        self.found: dict[str, list[Case]] = {}
        for world in self.worlds:
            for kind, cases in world.found.items():
                self.found[kind] = [*self.found.get(kind, []), *cases]
        self.kinds, self.world = sorted(self.found), self.worlds[0]
        self.terms = self.world.terms
        self.targets: list[Callable[[Mutator], None]] = [
            *[self.letter] * 6, *[self.notice] * 3, self.envelope, self.note,
            *[self.message] * 3, self.token, *[self.store] * 2, self.configuration,
            *[self.frame] * 2,
        ]  # fmt: skip
        rng = np.random.default_rng(0)
        prior = DiagonalGaussian.from_standard(np.zeros(2), np.ones(2))
        self.agreement = Agreement.of(LogisticRegression(), prior, padding=False)
        site = Site.of(self.agreement, "a", (rng.normal(size=(6, 2)), np.arange(6.0) % 2))
        key, about = jax.random.key(0), {"epoch": (3, "b"), "step": 4}
        questions = [
            Improve("a", prior, prior.zero(), 0, key, **about),
            Measure("a", prior, prior.zero(), ("gradient", "curvature"), 2, key, **about),
            DescribeOwn("a", prior, **about),
        ]
        answers = [site.answer(question) for question in questions[:2]]
        total = TreeSum.of([prior, prior * 1e-17])
        tokens = [Token("ab", (1, "a"), n, total, "a", None) for n in (0, 7)]
        self.messages = [dumps(each) for each in (*questions, *answers, *tokens)]
        self._prepare_files()

    def _prepare_files(self) -> None:
        self.path = self.folder / "site.db"
        state = self.world.memories["a"]
        entries = tuple(as_text({"event": "updated", "n": n}).encode() for n in range(40))
        change = dataclasses.replace(Step(state).change, entries=entries)
        Store.create(self.path, change).close()
        self.database, self.state = self.path.read_bytes(), change.state
        posterity.save(PRIOR, self.folder / "prior.safetensors")
        KEYS["b"].save(self.folder / "site.key")
        members = "".join(f'{site} = "{KEYS[site].public}"\n' for site in SITES)
        self.federation = (
            'name = "coins"\nlinks = [["a", "b"], ["b", "c"], ["c", "d"]]\nseed = 3\n'
            f"padding = true\n[members]\n{members}"
            '[model]\nkind = "beta-bernoulli"\noptions = {}\n'
            '[prior]\nfile = "prior.safetensors"\n[limits]\npseudo_counts = 1000\n'
        )
        self.site = (
            'name = "b"\nfederation = "federation.toml"\nkey = "site.key"\nstore = "site.db"\n'
            '[data]\npath = "numpy:array"\noptions = { object = [1, 0, 1] }\n'
        )
        self.running = self._started()

    def _started(self) -> Running:
        path = self.folder / "agent.db"
        for file in self.folder.glob("agent.db*"):
            file.unlink()
        change = Step(self.world.memories["a"]).change
        agent = Agent(self.world.machines["a"], Store.create(path, change))
        self.first = agent.memory
        return Running(agent, encrypted=False)

    def close(self) -> None:
        self.running.agent.store.close()

    # --- letters ---------------------------------------------------------------------------------

    def case(self, m: Mutator) -> Case:
        """Some letter; each kind is as likely."""
        return m.one(self.found[m.one(self.kinds)])

    def letter(self, m: Mutator) -> None:
        """To a machine: altered as it was sent, or altered and signed again by its sender."""
        case = self.case(m)
        letter, payload = case.letter, Envelope.from_bytes(case.content).payload
        head, _, body = payload.partition(b"\n")
        match m.below(6):
            case 0:
                self._receive(case, m.content(case.content))
                return
            case 1:
                payload = m.content(payload)
            case 2:
                text = m.text(json.loads(head), as_text if m.happens(0.7) else json.dumps)
                payload = text.encode("utf-8", "surrogatepass") + b"\n" + body
            case 3:
                other = Envelope.from_bytes(self.case(m).content).payload.partition(b"\n")[2]
                payload = head + b"\n" + other
            case _:
                if m.happens(0.2):
                    document = json.loads(head)
                    document["body"] = m.document(document["body"])
                    head = as_text(document).encode("utf-8", "surrogatepass")
                payload = head + b"\n" + self._body(m, letter.body, body)
        kind = STATEMENT if m.happens(0.02) else MESSAGE
        key = KEYS[letter.sender if m.happens(0.9) else m.one(SITES)]
        self._receive(case, Envelope(payload, kind).signed(key).to_bytes())

    def _body(self, m: Mutator, body: Any, content: bytes) -> bytes:
        """The body of a letter that says something else."""
        if isinstance(body, Token | Question | Answer):
            return self._parts(m, content)
        if isinstance(body, Notice):
            return self._statement(m, content)
        return m.content(content)

    def _parts(self, m: Mutator, content: bytes) -> bytes:
        """The artifact of a message with another head, other families or other arrays."""
        parts = from_bytes(content)
        if m.happens(0.5):
            parts["head"] = m.text(json.loads(parts["head"]), json.dumps)
            parts["head"] = parts["head"].encode("utf-8", "replace").decode()
        if m.happens(0.3):
            names = [*parts, "sequence", "site", "more"]
            parts[m.one(names)] = parts.get(m.one(sorted(parts)))
        return m.artifact(parts)

    def _statement(self, m: Mutator, envelope: bytes) -> bytes:
        """A statement that says something else, signed by a member."""
        document = json.loads(Envelope.from_bytes(envelope).payload)
        if m.happens(0.7):
            document["predicate"] = m.document(document["predicate"])
            text = as_text(document)
        else:
            text = m.text(document, as_text)
        signed = Envelope(text.encode("utf-8", "surrogatepass"))
        for _ in range(1 + m.below(2)):
            signed = signed.signed(KEYS[m.one(SITES)])
        return signed.to_bytes()

    def _receive(self, case: Case, content: bytes) -> None:
        """What was refused changed nothing but the count of refusals, and by so many epochs as are
        allowed the highest one that is known of; what comes of it is kept."""
        memory, step = case.memory, case.machine.receive(case.memory, content)
        logged = [json.loads(entry) for entry in step.entries]
        refused = [entry["event"] for entry in logged] == ["refused"]
        far = refused and logged[0].get("reason") == "epoch"
        nearer, most = step.memory.highest - memory.highest, case.machine.terms.limits.epochs
        same = {"refusals": memory.refusals, "highest": memory.highest}
        whole = dataclasses.replace(step.memory, **same) == memory
        if refused and not step.sent and not (whole and 0 <= nearer <= (most if far else 0)):
            raise Violation("a memory that a refused letter changed")
        self._kept(case, step)
        if refused:
            raise PosterityError(found="a refusal", expected="it", fix="None.")

    def _kept(self, case: Case, step: Step) -> None:
        """A step can be written and read, and its site can go on and tell how it stands."""
        change, machine = step.change, case.machine
        memory = machine.load(change.state, change.outbox)
        machine.status(memory)
        machine.awaited(memory)
        waiting = case.world.memories[case.site]
        if memory.own.name != waiting.own.name:
            raise Violation("a memory of another site")

    def notice(self, m: Mutator) -> None:
        claims = [kind for kind in self.kinds if kind[0].islower()]
        case = m.one(self.found[m.one(claims)])
        body: Any = case.letter.body
        envelope = self._statement(m, body.content)
        envelope = m.content(envelope) if m.happens(0.2) else envelope
        self._kept(case, case.machine.post(case.memory, envelope))

    def envelope(self, m: Mutator) -> None:
        """Envelopes, and statements of all kinds."""
        content = self.case(m).content
        if m.happens(0.5):
            content = m.text(json.loads(content), as_text).encode("utf-8", "surrogatepass")
        envelope = Envelope.from_bytes(m.content(content) if m.happens(0.5) else content)
        envelope.verify(self.terms.members)
        Statement.from_bytes(m.content(envelope.payload))

    def note(self, m: Mutator) -> None:
        """Checkpoints, as an auditor and a witness read them."""
        tree = Tree(bytes([n]) for n in range(1 + m.below(9)))
        old = TreeHead.of(tree, "coins/a", KEYS["a"])
        for n in range(m.below(5)):
            tree.append(bytes([n]))
        new = TreeHead.of(tree, "coins/a", KEYS["a"]).cosigned("coins/b", KEYS["b"], 10**9)
        read_again = TreeHead.from_bytes(m.content(new.to_bytes()))
        signed = dataclasses.replace(read_again, signatures=new.signatures)
        signed.witnesses({"coins/b": KEYS["b"].public})
        forged = dataclasses.replace(new, size=m.one((0, 1, new.size, 2**62)))
        forged = dataclasses.replace(forged, signatures=())
        forged = dataclasses.replace(
            forged, signatures=TreeHead.of(Tree([b""]), "coins/a", KEYS["a"]).signatures
        )
        path = [m.rng.bytes(m.one((0, 31, 32, 33))) for _ in range(m.below(9))]
        continues(old, m.one((new, signed, forged)), path, KEYS["a"].public)

    # --- messages --------------------------------------------------------------------------------

    def message(self, m: Mutator) -> None:
        """Tokens, questions and answers, and the digests that are made of them."""
        content = m.one(self.messages)
        content = self._parts(m, content) if m.happens(0.8) else m.content(content)
        message = loads(content, most=10**6)
        digest = getattr(message, "digest", None)
        if loads(dumps(message)) is None or not isinstance(digest, str | None):
            raise Violation("a message that has no bytes")

    def token(self, m: Mutator) -> None:
        """A turn with a token that says what it should not."""
        total = TreeSum(tuple(PRIOR * float(m.rng.normal()) for _ in range(1 + m.below(2))))
        token = Token(self.terms.digest, (m.below(3), m.one(SITES)), m.below(5), total, "b", None)
        if m.happens(0.3):
            token = dataclasses.replace(token, exact_sum=TreeSum((self.agreement.prior,)))
        state, site = (
            SiteState("a", epoch=(1, "b"), answered=m.below(3)),
            self.world.machines["a"].site,
        )
        turn(site, state, token, key=jax.random.key(0))

    # --- files -----------------------------------------------------------------------------------

    def store(self, m: Mutator) -> None:
        """A store whose file was altered: refused, or what it was to the last bit."""
        for file in self.folder.glob("site.db*"):
            file.unlink()
        content = self.database
        if m.happens(0.3):
            page = 4096 * m.below(len(content) // 4096)
            content = (
                content[:page] + m.content(content[page : page + 4096]) + content[page + 4096 :]
            )
        elif m.happens(0.2):
            (self.folder / "site.db-wal").write_bytes(m.junk())
        else:
            content = m.content(content)
        self.path.write_bytes(content)
        with Store(self.path) as store:
            if store.state != self.state:
                raise Violation("a store of another state that opens")
            self.world.machines["a"].load(store.state, store.outbox)

    def configuration(self, m: Mutator) -> None:
        """``federation.toml`` or ``site.toml`` with something altered."""
        for name, text in (("federation.toml", self.federation), ("site.toml", self.site)):
            if m.happens(0.6):
                lines = text.split("\n")
                if m.happens(0.5):
                    lines.insert(m.below(len(lines)), m.one(OPTIONS))
                at = m.below(len(lines))
                key, equals, _ = lines[at].partition(" = ")
                if equals and m.happens(0.6):
                    lines[at] = f"{key} = {_toml(m)}"
                else:
                    lines[at] = m.content(lines[at].encode()).decode("utf-8", "replace")
                text = "\n".join(lines)
            content = text.encode("utf-8", "replace")
            (self.folder / name).write_bytes(m.content(content) if m.happens(0.1) else content)
        read_terms(self.folder / "federation.toml")
        read_site(self.folder / "site.toml").machine()

    # --- frames ----------------------------------------------------------------------------------

    def frame(self, m: Mutator) -> None:
        """A frame at an agent's socket, or pieces of one."""
        requests = (
            {"do": "deliver"},
            {"do": "collect", "wait": 0, "most": 3, "encrypted": False, "to": None},
            {"do": "status"}, {"do": "begin", "number": 5}, {"do": "audit", "start": 0},
            {"do": "leave"}, {"do": "forget"}, {"do": "send"}, {"do": "survey"}, {"do": "resume"},
        )  # fmt: skip
        head = m.one(requests)
        if m.happens(0.7):
            head = m.document(head)
        if isinstance(head, dict) and isinstance(head.get("wait"), int | float):
            head["wait"] = min(head["wait"], 0)  # one may ask it to wait
        body = m.content(self.case(m).content) if m.happens(0.5) else b""
        line = json.dumps(head).encode() + b"\n" + body
        frame = len(line).to_bytes(4, "big") + line
        if m.happens(0.3):
            frame = m.content(frame)
        content = _through_a_socket(frame)
        if content is None:
            return
        with contextlib.suppress(PosterityError):
            asked = from_message(content)[0]
            if asked.get("do") == "collect" and asked.get("wait") != 0:
                return
        answer, _ = from_message(self._replied(content))
        if "bug" in str(answer.get("error", {}).get("expected")):
            raise Violation(f"{answer['error']['found']} for {content[:200]!r}")
        if "error" in answer:
            raise PosterityError(found="an error", expected="it", fix="None.")

    def _replied(self, content: bytes) -> bytes:
        """What the server sends for it; the agent begins anew where it was changed."""
        try:
            answer = to_message(*self.running.answer(*from_message(content)))
        except Exception as error:
            answer = to_message(as_error(error))
        changed = self.running.agent.memory is not self.first
        if changed and "error" in from_message(answer)[0]:
            raise Violation(f"a memory that a refused request changed: {content[:200]!r}")
        if changed or self.running._stopping or len(self.running._inbox) > 100:
            self.running.agent.store.close()
            self.running = self._started()
        return answer

    # --- the campaign ----------------------------------------------------------------------------

    def tried(self, number: int) -> tuple[str, str | None]:
        """The name of what an input was handed to and what came of it; and a violation, if any.

        What takes long is tried twice: the first time a program may be compiled for it.
        """
        outcome, violation, took = self._once(number)
        if violation is None and took > SECONDS:
            took = min(took, self._once(number)[2])
            violation = f"{took:.1f} seconds" if took > SECONDS else None
        return outcome if violation is None else f"{outcome.split()[0]} violated", violation

    def _once(self, number: int) -> tuple[str, str | None, float]:
        m = Mutator(np.random.default_rng([number, 31]))
        target = m.one(self.targets)
        began, peak, outcome, violation = time.process_time(), _peak(), "taken", None
        try:
            with _alarm():
                target(m)
        except PosterityError as error:
            outcome = "refused"
            if not (error.found and error.expected):
                violation = f"an error without its sentences: {error!r}"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            lines = traceback.format_exception(error)
            violation = f"{type(error).__name__}: {str(error)[:300]} | {''.join(lines[-3:])[-600:]}"
        took, grown = time.process_time() - began, _peak() - peak
        if violation is None and grown > MEGABYTES and took < SECONDS:
            violation = f"{grown:.0f} MB"
        return f"{target.__name__} {outcome}", violation, took


OPTIONS = (
    *(
        "steps = 3",
        "tolerance = 0.01",
        'server = "a"',
        "total_weight = 5.0",
        "[update]",
        "[limits]",
    ),
    *('schedule = { kind = "sequential" }', 'schedule = { kind = "synchronous", damping = 2 }'),
    *(
        'authorities = { z = "AAAA" }',
        "personal = true",
        'path = "posterity.inference:LocalUpdate"',
    ),
    *("options = { steps = 0 }", "[transport]", 'kind = "unix"', 'sockets = { a = "../a" }'),
    *("encrypted = 3", 'file = "prior.safetensors"', 'target = "y"', "intercept = true"),
)
"""Lines that a configuration may have too."""


def _toml(m: Mutator) -> str:
    """A value of TOML that makes no sense where it stands."""
    plain = ("-1", "0", "1e400", "nan", "inf", "true", '""', "[]", "{}", "[[]]", '"\\u0000"',
             "9" * 400, '"a"', "[" * 3000, '[["a", "a"]]', '[["a"], 3]', '"../site.toml"',
             '"logistic-regression"', '"posterity:nothing"', '":"', "{ a = 3 }",
             "1979-05-27", '"' + "x" * 5000 + '"')  # fmt: skip
    return m.one(plain)


def _through_a_socket(frame: bytes) -> bytes | None:
    """What a server reads of bytes that come to it before the connection ends."""
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(1.0)
        here.sendall(frame[:60_000])
        here.shutdown(socket.SHUT_WR)
        with contextlib.suppress(EOFError), framed(there.dup(), 1.0) as connection:
            return received(connection, 2**20)
    return None


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise Violation(f"more than {HANGS} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def campaign(
    start: int, stop: int, kinds: Sequence[str] = KINDS
) -> tuple[Counter[str], dict[int, str]]:
    """The inputs of these numbers: how many came to what, and violations by number."""
    count, violations = Counter[str](), dict[int, str]()
    folder = Path(tempfile.mkdtemp(dir=FOLDER))
    fuzz = Fuzz(folder, kinds)
    try:
        for number in range(start, stop):
            outcome, violation = fuzz.tried(number)
            count[outcome] += 1
            if violation is not None:
                violations[number] = violation
    finally:
        fuzz.close()
        shutil.rmtree(folder)
    return count, violations


def main(number: int, progress: Path = PROGRESS) -> int:
    """All inputs up to a number, from where an earlier call ended; the exit code."""
    known = json.loads(progress.read_text()) if progress.exists() else {}
    done, count = known.get("inputs", 0), Counter(known.get("outcomes", {}))
    violations, seconds = dict(known.get("violations", {})), known.get("seconds", 0.0)
    while done < number:
        began, stop = time.perf_counter(), min(done + 50 * BLOCK, number)
        found, broken = campaign(done, stop)
        done, count, violations = stop, count + found, violations | broken
        seconds += time.perf_counter() - began
        known = {"inputs": done, "seconds": round(seconds), "outcomes": dict(sorted(count.items())),
                 "violations": violations, provenance.KEY: provenance.made_with()}  # fmt: skip
        progress.write_text(json.dumps(known, indent=1) + "\n")
        print(f"{done} inputs, {len(violations)} violations, {seconds:.0f} s", flush=True)
    return bool(violations)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
