"""Messages: bytes and back, and the same bits with each site in a process of its own."""

import dataclasses
import json
import multiprocessing
import pickle
import re

import jax
import numpy as np
import pytest
from federation.examples import CONJUGATE, NAMES, NORMAL, SCHEDULES, logistic_sites, snapshot

from posterity.arrays import keys
from posterity.arrays.tree_sums import TreeSum
from posterity.artifact.artifact import to_bytes
from posterity.errors import ArtifactError, LedgerError, SiteError
from posterity.families import Beta, DiagonalGaussian, Gaussian
from posterity.federation import Federation, Gossip, Machine, Site, step_key
from posterity.federation.federate import start
from posterity.federation.messages import (
    KINDS,
    DescribeOwn,
    Failure,
    Improve,
    Improvement,
    Measure,
    OwnParameters,
    Report,
    Token,
    dumps,
    loads,
)
from posterity.federation.schedules import Done, Turn
from posterity.federation.site import failure_of
from posterity.graphs import ring
from posterity.models import LogisticRegression

KEY = jax.random.fold_in(jax.random.key(7), 3)
Q = Gaussian(np.array([0.1, -2.0]), np.array([[2.0, 0.3], [0.3, 1.0]]))
NARROW = DiagonalGaussian([0.1], [2.0])
NARROW_PRIOR = DiagonalGaussian.from_standard(np.zeros(2), 4 * np.ones(2))
SUM = TreeSum.of([Q, Q * 1e-17, Q * 1e9])
MESSAGES = [
    Improve("north \u2603/1", Q.named(["age", "dose"]), Q * -1.0, 7, KEY, epoch=(3, "b"), step=4),
    Improvement("a", Q.zero(), 3, 0.1, 1e-300),
    Improvement("a", Q, step=12),
    Measure("a", Q, Q, ("gradient", "noiseless"), 64, jax.random.key(0)),
    Measure("a", DiagonalGaussian([0.1], [2.0]), NARROW, ("noiseless", "curvature"), 1, KEY),
    Report("a", Q, 0.25, evaluations=12),
    Report("a", None, 0.0, -1.5, NARROW, np.array([0.5]), np.array([[2.0]])),
    Report("a", value=-1.5, fixed_point=NARROW, slope=np.array([0.5])),
    Report("a", asked="ef56", quadrature_error=1e-5),
    DescribeOwn("a", Q),
    OwnParameters("a", np.ones((3, 2)), np.ones((3, 2, 2))),
    Failure("a", 'out of "memory"'),
    Token("ab12", (2, "b"), 5, SUM, "a", "cd34"),
    Token("ab12", (0, ""), 0, TreeSum.of([Beta(1.0, 2.0)])),
]


def plain(message):
    """A message's parts, to be compared bit by bit."""
    parts = {}
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if field.name == "key":  # one of JAX's comes back as its words
            value = keys.plain(value)
        leaves, tree = jax.tree.flatten(value)
        names = getattr(value, "names", None) if field.name == "view" else None
        parts[field.name] = [np.asarray(leaf).tobytes() for leaf in leaves], str(tree), str(names)
    return type(message), parts


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_come_back_bit_for_bit(message):
    content = dumps(message)
    assert plain(loads(content)) == plain(message)
    assert dumps(loads(content)) == content


def test_every_kind_is_tried():
    assert {type(message) for message in MESSAGES} == set(KINDS.values())


def test_what_is_no_message_is_refused():
    content = dumps(MESSAGES[0])
    with pytest.raises(ArtifactError, match="at most 100"):
        loads(content, most=100)
    for wrong in (b"", b"{}", content[:-1], content + b"x", pickle.dumps(MESSAGES[0])):
        with pytest.raises(ArtifactError):
            loads(wrong)
    heads = [
        '{"kind": "Improvement"}',
        '{"kind": "Nothing", "site": "a"}',
        '{"kind": "Failure", "site": "a", "error": 3}',
        '{"kind": "Failure", "site": "a", "error": "b", "more": "c"}',
        *(
            f'{{"kind": "Failure", "site": "a", "error": "b", "step": 0, "epoch": {epoch}}}'
            for epoch in ("[0]", '[-1, ""]', '["", 0]', '[0, "", 0]', '[true, ""]', "{}", "0")
        ),
        "[1]",
    ]
    for head in heads:
        with pytest.raises(ArtifactError, match="cannot be read"):
            loads(to_bytes({"head": head}))
    layers = list(SUM.layers)
    about = (
        '{"agreement": "ab12", "epoch": [0, ""], "kind": "Token", "previous": null, '
        '"seals": [], "sender": null, "sequence": 0}'
    )
    assert loads(to_bytes({"head": about, "exact_sum": layers})).exact_sum == SUM
    with pytest.raises(ArtifactError, match="exact_sum"):
        loads(to_bytes({"head": about, "exact_sum": [layers[0], layers[0]]}))
    asked = dumps(MESSAGES[3]).replace(b"noiseless", b"soundless")
    with pytest.raises(ArtifactError):
        loads(asked)


def test_what_a_head_should_hold_is_not_in_the_body():
    token = {
        "agreement": "ab12", "epoch": [0, ""], "kind": "Token", "previous": None, "seals": [],
        "sender": None, "sequence": 0,
    }  # fmt: skip
    body = {"exact_sum": list(SUM.layers)}
    for name in ("sequence", "agreement", "sender", "epoch"):
        head = json.dumps({field: value for field, value in token.items() if field != name})
        with pytest.raises(ArtifactError, match="cannot be read"):
            loads(to_bytes({"head": head, **body, name: np.arange(3.0)}))
    head = {"kind": "Improvement", "site": "a", "epoch": [0, ""], "step": 0, "asked": None}
    head |= {"halvings": 0, "quadrature_error": 0.0}
    for name in ("residual", "halvings"):
        some = json.dumps({field: value for field, value in head.items() if field != name})
        with pytest.raises(ArtifactError, match="message that cannot be read"):
            loads(to_bytes({"head": some, "factor": Q, name: np.ones(1)}))
    with pytest.raises(ArtifactError, match="a member of a family"):
        loads(to_bytes({"head": json.dumps(head | {"residual": None}), "factor": np.ones(2)}))


def test_any_byte_that_changed_is_noticed():
    content = dumps(MESSAGES[1])
    for place in range(0, len(content), 7):
        altered = bytearray(content)
        altered[place] ^= 1
        with pytest.raises(ArtifactError):
            loads(bytes(altered))


# --- the machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["sequential", "synchronous", "gossip"])
def test_an_answer_counts_once_and_only_for_the_question_asked_last(schedule):
    model, prior, data = CONJUGATE["Beta"]
    run = start(data, model, prior, schedule=SCHEDULES[schedule], key=KEY)
    machine, state, late, sites = Machine(run.agreement, run.schedule), run.state, [], set()
    while len(sites) < len(data) or state.step < 3:
        state, sent = machine.receive(state, Turn(step_key(run.key, state.step)))
        while not any(isinstance(message, Done) for message in sent):
            more = ()
            for question in sent:
                answer = run.federation.ask(question)
                assert answer.answers(question) and answer.step == state.step
                state, more = machine.receive(state, answer)
                late.append(answer)
                sites.add(answer.site)
                for old in late:  # a duplicate, or an answer that came too late
                    with pytest.raises(LedgerError, match="nobody waits for"):
                        machine.receive(state, old)
            sent = more
    once = start(data, model, prior, schedule=SCHEDULES[schedule], key=KEY)
    assert state.exact_sum == once.advance(state.step).state.exact_sum


def test_what_changes_a_federation_voids_the_questions_on_their_way():
    model, prior, data = CONJUGATE["Beta"]
    run = start(data, model, prior).advance(1)
    machine = Machine(run.agreement, run.schedule)
    state, (question,) = machine.receive(run.state, Turn(run.key))
    answer = run.federation.ask(question)
    meanwhile = dataclasses.replace(run, state=state).forget("ash").state
    with pytest.raises(LedgerError, match="'ash' that nobody waits for"):
        machine.receive(meanwhile, answer)
    again, (question,) = machine.receive(meanwhile, Turn(run.key))
    assert question.site == "elm" and (question.epoch, question.step) == ((1, ""), state.step)
    with pytest.raises(LedgerError, match="epoch 0, step 1"):
        machine.receive(again, dataclasses.replace(answer, site="elm"))


def test_a_site_that_answers_another_question_is_not_believed():
    model, prior, data = CONJUGATE["Beta"]
    run = start(data, model, prior)

    class Replaying:
        def demand(self, question):
            answer = run.federation.demand(question)
            return dataclasses.replace(answer, step=question.step + 1)

    replaying = Federation(run.agreement, {}, courier=Replaying())
    with pytest.raises(SiteError, match="answer to the question that it was sent"):
        dataclasses.replace(run, federation=replaying).advance(1)


def test_an_answer_is_tied_to_the_very_question():
    run = start(logistic_sites(), LogisticRegression(), NARROW_PRIOR).advance(1)
    site, q = run.federation.sites["ash"], run.posterior
    one, other = (
        Measure(
            "ash", moved, run.state.factor("ash"), ("noiseless",), 1, KEY, epoch=(0, ""), step=1
        )
        for moved in (q, q * 1.001)
    )
    answer = loads(dumps(site.answer(one)))
    assert answer.asked == one.digest == loads(dumps(one)).digest != other.digest
    assert answer.answers(one) and site.answer(one).answers(one)
    assert not answer.answers(other) and not site.answer(one).answers(other)
    about = {"epoch": one.epoch, "step": one.step, "asked": one}
    assert not Improvement("ash", q, **about).answers(one)
    assert not dataclasses.replace(answer, asked=None).answers(one)
    assert Failure("ash", "out of memory", **about).answers(one)
    digests = {dataclasses.replace(one, **part).digest for part in (
        {"samples": 2}, {"parts": ("curvature",)}, {"key": jax.random.key(1)}, {"step": 2},
        {"site": "elm"}, {"factor": q}, {},
    )}  # fmt: skip
    assert len(digests) == 7


def test_a_round_takes_answers_in_any_order():
    model, prior, data = CONJUGATE["Gaussian"]
    run = start(data, model, prior, schedule=SCHEDULES["synchronous"])
    machine, ends = Machine(run.agreement, run.schedule), []
    for order in (1, -1):
        state, questions = machine.receive(run.state, Turn(run.key))
        for question in questions[::order]:
            state, sent = machine.receive(state, run.federation.ask(question))
        (done,) = sent
        assert isinstance(done, Done) and [v.site for v in done.visits] == list(NAMES)
        ends.append((state, done))
    assert ends[0] == ends[1]


# --- each site in a process of its own -----------------------------------------------------------


def serve(pipe):
    """A site's process: its records come first, then questions."""
    sites = {}
    while True:
        label, content = pipe.recv()
        if isinstance(content, Site):
            sites[label, content.name] = content
            continue
        question = loads(content)
        site = sites[label, question.site]
        try:
            pipe.send_bytes(dumps(site.answer(question)))
        except Exception as error:
            pipe.send_bytes(dumps(Failure(site.name, f"{type(error).__name__}: {error}")))


@pytest.fixture(scope="module")
def processes():
    """A pipe to a process for each name: two processes serve two sites each."""
    spawn, pipes, started = multiprocessing.get_context("spawn"), [], []
    for _ in range(2):
        here, there = spawn.Pipe()
        pipes.append(here)
        started.append(spawn.Process(target=serve, args=(there,), daemon=True))
        started[-1].start()
    yield {name: pipes[n % 2] for n, name in enumerate(NAMES)}
    for process in started:
        process.kill()


@dataclasses.dataclass(frozen=True)
class Pipes:
    """A courier that sends bytes to processes; ``label`` is what they call this federation."""

    pipes: dict
    label: str

    def prepare(self, questions):
        pass

    def demand(self, question):
        pipe = self.pipes[question.site]
        pipe.send((self.label, dumps(question)))
        answer = loads(pipe.recv_bytes())
        if isinstance(answer, Failure):
            raise failure_of(RuntimeError(answer.error), question.site)
        return answer


def elsewhere(run, processes, label):
    """The run with the same sites, each in its process, and no records here."""
    for name, site in run.federation.sites.items():
        processes[name].send((label, site))
    courier = Pipes(processes, label)
    there = Federation(run.agreement, {}, run.federation.before, courier)
    return dataclasses.replace(run, federation=there)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["conjugate", "logistic"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_gives_the_same_bits_with_sites_elsewhere(schedule, kind, processes):
    model, prior, data = CONJUGATE["NormalWishart"]
    if kind == "logistic":
        model, prior, data = LogisticRegression(), NORMAL, logistic_sites()
    run = start(data, model, prior, schedule=SCHEDULES[schedule], key=KEY)
    here, there = (r.advance(6) for r in (run, elsewhere(run, processes, kind)))
    assert snapshot(there) == snapshot(here)
    assert there.trace == here.trace
    assert there.status == here.status


def test_a_site_that_fails_elsewhere_is_named(processes):
    model, prior, data = CONJUGATE["Beta"]
    wrong = start({**data, "elm": np.ones(2)}, model, prior, schedule=Gossip(ring(list(NAMES))))
    there = elsewhere(wrong, processes, "wrong")
    elm = dataclasses.replace(wrong.federation.sites["elm"])
    object.__setattr__(elm, "records", None)
    processes["elm"].send(("wrong", elm))
    with pytest.raises(SiteError, match=re.escape("update of site 'elm'")):
        there.advance(20)
