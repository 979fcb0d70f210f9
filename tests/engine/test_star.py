"""A star: its server counts each answer once, and gets where a federation in one process gets."""

import dataclasses

import numpy as np
import pytest
from engine.coins import PRIOR, opened
from engine.stars import COINS, FAULTS, KEYS, Star, terms

from posterity.arrays.tree_sums import TreeSum
from posterity.artifact import digest
from posterity.engine.agent import Agent
from posterity.engine.author import Author, follows
from posterity.engine.course import ServerMemory
from posterity.engine.memory import ANSWER, Memory, Step
from posterity.engine.messages import Answer, Question
from posterity.engine.refusal import Refusal
from posterity.engine.signing import PrivateKey
from posterity.engine.star import QUESTION
from posterity.engine.store import Store
from posterity.families import Beta, Gamma
from posterity.federation import Asynchronous, Sequential, Synchronous, Token, federate, forget
from posterity.federation.messages import DescribeOwn, Failure, Improvement, dumps, loads
from posterity.models import BetaBernoulli
from posterity.status import Status

SCHEDULES = {
    "sequential": Sequential(),
    "synchronous": Synchronous(),
    "asynchronous": Asynchronous(),
}


def in_process(*sites: str, kind: str = "sequential"):
    data = {site: COINS[site] for site in sites or COINS}
    return federate(data, BetaBernoulli(), PRIOR, schedule=SCHEDULES[kind])


def stands_at(star: Star, run) -> bool:
    return digest(star.course.run.ledger) == digest(run.ledger)


def question_to(star: Star, site: str):
    """What a site is asked now, and the letter that asks it."""
    content = star.memories["server"].outbox[QUESTION + site].content
    return loads(opened(content).body.content), content


@pytest.mark.parametrize("faults", [None, FAULTS])
@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_star_is_a_federation_in_one_process(kind, faults):
    star = Star(terms(kind), faults=faults, killed=None if faults is None else 0.1)
    star.command("server", "begin")
    star.run()
    run = in_process(kind=kind)
    assert star.course.phase == "rest" and stands_at(star, run)
    assert star.course.run.state.step == run.state.step
    assert str(star.course.status) == str(run.status)


def test_a_server_s_certificate_may_say_less_than_the_answers_but_not_more():
    star = Star(terms())
    star.command("server", "begin")
    star.run()
    survey, author = star.memories["server"].own_survey, star.machines["server"].author
    answers = star.memories["server"].residuals(survey)
    several = Status("converged to one of several", 0.0, 1e-3, ("another has the same energy",))
    made = author.certificate(survey, answers, {}, 0, several)
    assert made.predicate["state"] == several.state and follows(star.terms, made)
    assert made.predicate["reasons"] == [*several.reasons]
    made = author.certificate(survey, {}, {}, 0, Status("converged", 0.0, 1e-3))
    assert made.predicate["state"] == "not converged" and follows(star.terms, made)


def test_an_answer_counts_once():
    star = Star(terms())
    star.command("server", "begin")
    _, letter = question_to(star, "a")
    step = star.deliver("a", letter)
    (answer,) = step.sent
    # Asked again before it was acknowledged, the site says the same, and does not compute it anew.
    assert star.deliver("a", letter).sent == (answer,)
    star.deliver("server", answer.content)
    before = star.memories["server"]
    again = star.deliver("server", answer.content)
    assert again.memory.course == before.course and star.reasons() == ["replay"]
    (receipt,) = again.sent
    star.deliver("a", receipt.content)
    assert ANSWER not in star.memories["a"].outbox
    assert star.deliver("a", letter).sent[0].content != answer.content
    assert star.reasons("a") == ["replay"]
    star.run()
    assert stands_at(star, in_process())


def test_many_answers_are_taken_in_one_write(tmp_path):
    star = Star(terms("synchronous"))
    Store.create(tmp_path / "server.db", Step(star.memories["server"]).change).close()
    agent = Agent(star.machines["server"], Store(tmp_path / "server.db"))
    asked = agent.command(star.machines["server"].begin)
    answers = [star.deliver(letter.receiver, letter.content).sent[0] for letter in asked]
    assert len(agent.receive(*(letter.content for letter in answers[:3]))) == 3
    agent.store.close()
    agent = Agent(star.machines["server"], Store(tmp_path / "server.db"))
    assert len(agent.memory.course.answers) == 3
    signed = agent.receive(answers[0].content, answers[3].content)
    assert agent.memory.course.phase == "certify"
    asked = [letter for letter in signed if letter.receiver in "abcd"][-4:]
    answers = [star.deliver(letter.receiver, letter.content).sent[0] for letter in asked]
    agent.receive(*(letter.content for letter in answers))
    assert agent.memory.course.phase == "rest"
    assert digest(agent.memory.course.run.ledger) == digest(in_process(kind="synchronous").ledger)
    agent.store.close()


def test_a_silent_site_is_asked_again_and_can_be_passed_over():
    star = Star(terms())
    star.command("server", "begin")
    star.run(200, deaf=("b",))
    assert list(star.course.open) == ["b"] and star.course.run.state.step == 0
    star.command("server", "pass_over", ["b"])
    star.run(400, deaf=("b",))
    assert star.course.phase == "rest" and "no update of 'b'" in str(star.course.status)
    assert digest(star.course.run.posterior) == digest(in_process("a", "c", "d").posterior)
    star.command("server", "resume")
    star.run()
    assert digest(star.course.run.posterior) == digest(in_process().posterior)
    assert star.course.status.converged
    with pytest.raises(Refusal):
        star.command("server", "pass_over", ["server"])


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_site_that_comes_late_is_asked_once_it_is_there(kind):
    star = Star(terms(kind), killed=0.0)
    star.command("server", "begin")
    star.run(100, deaf=("d",))
    star.command("server", "pass_over", ["d"])
    star.run(400, deaf=("d",))
    posterior = digest(star.course.run.posterior)
    assert posterior == digest(in_process("a", "b", "c", kind=kind).posterior)
    star.command("d", "start")
    star.run()
    assert digest(star.course.run.posterior) == digest(in_process().posterior)
    assert star.course.status.converged


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_site_is_forgotten_and_no_later_answer_of_it_counts(kind):
    star = Star(terms(kind), killed=0.0)
    star.command("server", "begin")
    star.run()
    late = Answer("0" * 64, dumps(Failure("b", "?")))
    factor = star.course.run.state.entries["b"].factor
    star.command("b", "forget")
    star.run()
    assert star.course.phase == "rest" and star.course.status.converged
    done = forget(in_process(kind=kind), "b")
    assert stands_at(star, done.run)
    memory = star.memories["server"]
    assert digest(factor) and memory.gone == {"b"}
    star.send("b", "server", late)
    assert star.reasons()[-1] == "tombstone"


def test_after_a_forgetting_the_server_goes_on_above_all_epochs_that_the_tombstone_voids():
    officer = PrivateKey(b"o" * 32)
    agreed = terms(authorities={"officer": str(officer.public)})
    star = Star(agreed)
    star.command("server", "begin")
    star.run()
    star.command("server", "post", Author(agreed, "officer", officer).tombstone("b", 50).envelope)
    star.run()
    assert star.course.state.epoch == (51, "server") and star.course.status.converged
    assert all(memory.own.epoch <= (51, "server") for memory in star.memories.values())
    assert stands_at(star, forget(in_process(), "b").run)


def test_forgetting_in_the_middle_of_a_step_voids_what_was_asked():
    star = Star(terms("synchronous"))
    star.command("server", "begin")
    old = {site: question_to(star, site)[1] for site in COINS}
    answers = {site: star.deliver(site, old[site]).sent[0] for site in "abc"}
    star.deliver("server", answers["b"].content)
    star.command("b", "forget")
    tombstone = next(m for m in star.memories["b"].outbox.values() if m.receiver == "server")
    step = star.deliver("server", tombstone.content)
    assert step.erase and set(star.course.open) == {"a", "c", "d"} and not star.course.answers
    star.deliver("server", answers["a"].content)  # of the step that is void
    assert star.reasons()[-1] == "replay"
    assert star.deliver("d", old["d"]) and not star.reasons("d")
    star.run()
    assert digest(star.course.run.posterior) == digest(in_process("a", "c", "d").posterior)


def test_of_a_forgotten_site_no_byte_stays_in_the_files_of_the_server(tmp_path):
    data = {"a": np.array([1]), "b": np.random.default_rng(9).integers(0, 2, 77)}
    data |= {"c": np.array([1, 0]), "d": np.array([0])}
    prior = Beta.from_standard(0.12345678912345, 1.98765432198765)
    star = Star(terms("asynchronous", prior=prior), data)
    path = tmp_path / "server.db"
    Store.create(path, Step(star.memories["server"]).change).close()
    agent = Agent(star.machines["server"], Store(path))
    waiting = [("server", m) for m in agent.command(star.machines["server"].begin)]
    held, with_b = [], []
    for _ in range(200):
        if waiting:
            _, message = waiting.pop(0)
            if message.receiver == "server":
                sent = agent.receive(message.content)
            else:
                sent = star.deliver(message.receiver, message.content).sent
            waiting += [("", m) for m in sent]
    state = agent.memory.course.run.state
    held = [leaf.tobytes() for leaf in vars(state.entries["b"].factor).values()]
    with_b = [leaf.tobytes() for leaf in vars(state.posterior).values()]
    bytes_of = lambda: b"".join(file.read_bytes() for file in tmp_path.glob("server.db*"))
    assert all(piece in bytes_of() for piece in held)
    step = star.command("b", "forget")
    agent.receive(*(m.content for m in step.sent if m.receiver == "server"))
    assert not any(piece in bytes_of() for piece in (*held, *with_b))
    agent.store.close()


def nonsense(question):
    """Answers of no use, and the reasons that a log gives for them."""
    good = Improvement("a", PRIOR, epoch=question.epoch, step=question.step, asked=question)
    change = lambda **fields: dumps(dataclasses.replace(good, **fields))
    return {
        "schema": b"\x10\0\0\0\0\0\0\0 no header at all",
        "size": b"\xff\xff\xff\xff\xff\xff\xff\x7f{}",
        "family": change(factor=Gamma(1.0, 2.0)),
        "magnitude": change(factor=Beta(1e7, 1e7)),
        "large number": change(residual=1e200),
        "proper": change(factor=Beta(-5.0, -5.0)),
        "canonical": change(factor=Beta(-0.0, 1.0)),
        "membership": change(site="b"),
        "another step": change(step=7),
    }


@pytest.mark.parametrize("what", nonsense(DescribeOwn("a", PRIOR)))
def test_an_answer_of_no_use_is_a_failure_of_its_site(what):
    star = Star(terms())
    star.command("server", "begin")
    question, letter = question_to(star, "a")
    star.deliver("a", letter)
    head = opened(star.memories["a"].outbox[ANSWER].content)
    body = Answer(question.digest, nonsense(question)[what])
    star.deliver("server", dataclasses.replace(head, body=body).sealed(KEYS["a"]))
    reason = {"large number": "magnitude", "another step": "membership", "size": "schema"}
    assert star.reasons() == [reason.get(what, what)]
    assert list(star.course.open) == ["b"] and star.course.state.entries == {}
    star.run()  # its own answer comes too late
    assert "no update of 'a'" in str(star.course.status)
    star.command("server", "resume")
    star.run()
    assert digest(star.course.run.posterior) == digest(in_process().posterior)


def test_the_limits_hold_for_all_answers_of_a_round_together():
    star = Star(terms("synchronous", limits={"pseudo_counts": 30.0}))
    star.command("server", "begin")
    for site in "ab":
        question, letter = question_to(star, site)
        star.deliver(site, letter)
        head = opened(star.memories[site].outbox[ANSWER].content)
        version = {"epoch": question.epoch, "step": question.step, "asked": question}
        answer = dumps(Improvement(site, Beta(20.0, 20.0), **version))
        body = Answer(question.digest, answer)
        star.deliver("server", dataclasses.replace(head, body=body).sealed(KEYS[site]))
    assert star.reasons() == ["magnitude"]


def test_only_the_server_asks_and_only_who_is_asked_answers():
    star = Star(terms())
    star.command("server", "begin")
    question, letter = question_to(star, "a")
    body = opened(letter).body
    assert star.send("b", "a", body) and star.reasons("a") == ["membership"]
    star.send("a", "b", Answer(question.digest, b""))
    assert star.reasons("b") == ["order"]
    star.send("server", "b", body)  # of another site
    other = dataclasses.replace(question, site="b", view=Gamma(1.0, 2.0))
    star.send("server", "b", Question(8, dumps(other)))
    total = TreeSum.of([PRIOR])
    star.send("server", "b", Question(9, dumps(Token("ab", (1, "a"), 1, total))))
    assert star.reasons("b")[1:] == ["membership", "family", "membership"]


def test_a_new_epoch_begins_at_the_prior_and_voids_the_old_one():
    star = Star(terms(), killed=0.0)
    star.command("server", "begin")
    _, letter = question_to(star, "a")
    star.run(30)
    step = star.command("server", "begin")
    assert star.course.run.state.epoch == (2, "server") and not star.course.run.state.entries
    assert {m.receiver for m in step.sent} == {"a"}
    star.run()
    assert stands_at(star, in_process())
    star.deliver("a", letter)
    assert star.reasons("a")[-1] == "epoch"
    for number in (0, 1, 2, 2**53):
        with pytest.raises(Refusal):
            star.command("server", "begin", number)


def test_a_server_that_lost_its_store_hears_of_the_epochs_before():
    star = Star(terms(), killed=0.0)
    star.command("server", "begin", 5)
    star.run()
    star.memories["server"] = star.loaded("server", Step(ServerMemory.empty("server")))
    star.command("server", "begin")
    star.run()
    assert star.course.run.state.epoch == (6, "server")
    assert stands_at(star, in_process())


@pytest.mark.parametrize("ticks", [3, 6])
def test_a_server_that_is_restored_from_an_older_copy_goes_on_in_a_new_epoch(ticks):
    star = Star(terms("synchronous"), killed=0.0)
    star.command("server", "begin")
    star.run(ticks)
    copy = star.memories["server"]
    star.run()
    star.memories["server"] = star.loaded("server", Step(copy))
    star.command("server", "start")
    star.run()
    assert star.course.run.state.epoch == (2, "server")
    assert star.course.status.converged and stands_at(star, in_process())


def test_a_site_that_lost_its_store_after_a_forgetting_is_let_in_by_the_present_epoch():
    star = Star(terms(), killed=0.0)
    star.command("server", "begin")
    star.run(20)
    star.command("c", "forget")
    star.run()
    number = star.memories["server"].epoch[0]
    star.memories["b"] = Memory.empty("b", number)
    star.command("server", "resume")
    star.run(1000)
    assert star.memories["b"].gone == {"c"} and star.reasons("b")[-1] == "tombstone"
    assert star.course.status.converged
    assert digest(star.course.run.posterior) == digest(forget(in_process(), "c").posterior)


def test_a_question_of_a_server_without_a_tombstone_is_refused_until_it_has_it():
    star = Star(terms(), killed=0.0)
    star.command("server", "begin")
    star.run(20)
    star.command("c", "forget")
    star.run()
    number = star.memories["server"].epoch[0]
    star.memories["server"] = star.loaded("server", Step(ServerMemory.empty("server")))
    star.command("server", "begin", number + 1)
    star.run()
    assert "tombstone" in star.reasons("a")
    assert star.memories["server"].gone == {"c"}
    assert digest(star.course.run.posterior) == digest(forget(in_process(), "c").posterior)


def test_new_terms_are_taken_over_and_who_joins_by_them_is_asked():
    few = {name: str(KEYS[name].public) for name in ("a", "b", "c", "server")}
    old, new = Star(terms(members=few)), Star(terms())
    old.command("server", "begin")
    old.run()
    for name, memory in old.memories.items():
        new.memories[name] = new.loaded(name, Step(new.machines[name].adopt(memory)))
    new.memories["d"] = new.loaded("d", Step(Memory.empty("d", 2)))
    new.command("server", "begin")
    assert new.course.run.state.epoch == (2, "server")
    new.run()
    assert stands_at(new, in_process())
