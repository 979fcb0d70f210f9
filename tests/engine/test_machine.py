"""The machine: one walk for starting, losing, joining and forgetting; nothing is counted twice."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest
from engine.coins import DATA, PRIOR, Coins, in_process, opened, terms
from engine.keys import KEYS

from posterity.arrays.tree_sums import TreeSum
from posterity.artifact import digest
from posterity.engine.agent import Agent
from posterity.engine.memory import TOKEN, Memory, Step
from posterity.engine.messages import Acknowledgement, Letter, Notice, digest_of
from posterity.engine.refusal import Refusal
from posterity.engine.store import Store
from posterity.families import Gaussian
from posterity.federation import Gossip, Token, start
from posterity.graphs import complete
from posterity.models import BetaBernoulli

STEPS = 80
"""Letters, acknowledgements among them, after which a token has been everywhere."""


def newest(coins: Coins) -> Token:
    tokens = [
        opened(memory.outbox[TOKEN].content).body
        for memory in coins.memories.values()
        if TOKEN in memory.outbox
    ]
    return max(tokens, key=lambda token: (token.epoch, token.sequence))


def test_a_walk_is_the_one_in_process_token_by_token():
    coins = Coins()
    coins.walk(coins.begin("a"), 60)
    gossip = Gossip(complete(list(DATA)), start="a")
    run = start(DATA, BetaBernoulli(), PRIOR, schedule=gossip, key=jax.random.key(0))
    answers = [json.loads(entry) for _, entry in coins.log if b"answer" in entry]
    sums = {}
    for memory in coins.memories.values():
        if TOKEN in memory.outbox:
            token = opened(memory.outbox[TOKEN].content).body
            sums[token.sequence] = token.exact_sum
    assert len(answers) > 20 and sums
    for number, answer in enumerate(answers, start=1):
        run = run.advance(1)
        assert (answer["token"][2], answer["to"]) == (number - 1, run.state.schedule["at"])
        if number in sums:
            assert sums[number] == run.token.exact_sum


def test_all_are_counted_once_and_the_sum_is_theirs():
    coins = Coins()
    coins.walk(coins.begin("a"), STEPS)
    assert digest(newest(coins).posterior) == in_process(*DATA)
    factors = [memory.own.entry.factor for memory in coins.memories.values()]
    assert newest(coins).exact_sum == TreeSum.of([PRIOR, *factors])


def test_tokens_of_an_epoch_are_a_chain():
    coins = Coins()
    coins.walk(coins.begin("a"), STEPS)
    answers = [json.loads(entry) for _, entry in coins.log if b"answer" in entry]
    for before, after in itertools.pairwise(answers):
        assert after["token"][3] == before["answer"]


def test_what_comes_twice_is_acknowledged_and_answered_once():
    coins = Coins()
    receiver, content = coins.begin("a").sent[0]
    first = coins.deliver(receiver, content)
    again = coins.deliver(receiver, content)
    assert [type(opened(m.content).body) for m in first.sent] == [Acknowledgement, Token]
    assert [type(opened(m.content).body) for m in again.sent] == [Acknowledgement]
    assert json.loads(again.entries[0])["reason"] == "replay"
    assert coins.machines[receiver].resend(coins.memories[receiver]) == first.sent[1:]
    # An acknowledgement clears what it names, and nothing else.
    coins.deliver("a", first.sent[0].content)
    assert not coins.memories["a"].outbox
    other = dataclasses.replace(opened(first.sent[0].content), receiver=receiver, sender="a")
    before = coins.memories[receiver]
    coins.deliver(receiver, other.sealed(KEYS["a"]))
    assert coins.memories[receiver] == before
    # Nor does that of somebody to whom the letter was not sent.
    own = before.outbox[TOKEN]
    stranger = min({*KEYS} - {receiver, own.receiver})
    false = Acknowledgement(digest_of(own.content))
    letter = Letter(coins.terms.digest, stranger, receiver, 0, (), false)
    coins.deliver(receiver, letter.sealed(KEYS[stranger]))
    assert coins.memories[receiver] == before
    right = dataclasses.replace(letter, sender=own.receiver)
    coins.deliver(receiver, right.sealed(KEYS[own.receiver]))
    assert not coins.memories[receiver].outbox


def test_the_higher_of_two_epochs_wins_everywhere():
    coins = Coins()
    one, other = coins.begin("b"), coins.begin("c")
    waiting = coins.walk(Step(coins.memories["b"], (*one.sent, *other.sent)), 2 * STEPS)
    assert {m.own.epoch for m in coins.memories.values()} == {(1, "c")}
    assert len([m for m in waiting if isinstance(opened(m.content).body, Token)]) <= 1
    assert any(json.loads(entry).get("reason") == "epoch" for _, entry in coins.log)
    assert digest(newest(coins).posterior) == in_process(*DATA)


def test_an_epoch_begins_above_all_that_was_heard_of():
    coins = Coins()
    coins.walk(coins.begin("a"), STEPS)
    assert coins.begin("d").memory.own.epoch == (2, "d")
    for number in (0, 1, 2, 2**53):
        with pytest.raises(Refusal) as error:
            coins.begin("d", number)
        assert error.value.reason == "order"


def test_a_site_that_lost_its_store_is_let_in_by_an_epoch():
    coins = Coins()
    waiting = coins.walk(coins.begin("a"), STEPS)
    tokens = [m for m in waiting if isinstance(opened(m.content).body, Token)]
    coins.memories["b"] = Memory.empty("b", 2)
    old = dataclasses.replace(opened(tokens[0].content), receiver="b").sealed(
        KEYS[opened(tokens[0].content).sender]
    )
    assert json.loads(coins.deliver("b", old).entries[0])["reason"] == "epoch"
    assert coins.memories["b"].own.entry is None
    coins.walk(coins.begin("c", 2), STEPS)
    assert digest(newest(coins).posterior) == in_process(*DATA)


def test_who_is_restored_from_an_older_copy_adds_its_factor_in_a_new_epoch():
    coins = Coins(terms(schedule={"kind": "sequential"}))
    waiting = coins.walk(coins.begin("a"), 4)
    copy, seen = coins.memories["b"], len(coins.log)
    waiting = coins.walk(Step(copy, tuple(waiting)), 12)  # b has answered since
    assert coins.memories["b"].own.answered > copy.own.answered
    coins.memories["b"] = copy
    coins.walk(Step(copy, tuple(waiting)), 2 * STEPS)
    entries = [(site, json.loads(entry)) for site, entry in coins.log[seen:]]
    reasons = [(site, each["reason"]) for site, each in entries if each["event"] == "refused"]
    assert ("b", "rollback") in reasons  # a, from which the token came, had seen none of b's
    told = {(site, each["site"]) for site, each in entries if each["event"] == "store lost"}
    assert told == {(site, "b") for site in DATA}
    assert digest(newest(coins).posterior) == in_process(*DATA)
    assert newest(coins).epoch == (2, "b")


def test_what_others_have_seen_of_a_site_tells_it_that_its_store_is_old():
    coins = Coins()
    waiting = coins.walk(coins.begin("a"), STEPS)
    (token,) = [m for m in waiting if isinstance(opened(m.content).body, Token)]
    holder = opened(token.content).sender
    copy = coins.memories[holder]
    coins.walk(Step(copy, tuple(waiting)), STEPS)
    coins.memories[holder] = copy
    step = coins.take(holder, coins.machines[holder].start(copy))  # the token is elsewhere
    coins.walk(step, STEPS)
    assert coins.memories[holder].own.epoch == (2, holder)
    assert coins.memories[holder].starts == 2
    assert digest(newest(coins).posterior) == in_process(*DATA)


def test_a_site_joins_late():
    coins = Coins()
    del coins.memories["d"]
    waiting = [m for m in coins.begin("a").sent if m.receiver != "d"]
    while waiting:  # the walk waits at the door of who is not there yet
        receiver, content = waiting.pop()
        waiting += [m for m in coins.deliver(receiver, content).sent if m.receiver != "d"]
    coins.memories["d"] = Memory.empty("d", 2)
    coins.walk(coins.begin("b", 2), STEPS)
    assert digest(newest(coins).posterior) == in_process(*DATA)


def test_what_is_forgotten_is_in_no_memory_and_no_later_token():
    coins = Coins()
    waiting = coins.walk(coins.begin("a"), STEPS)
    step = coins.forget("b")
    assert step.erase and coins.memories["b"].own.entry.factor is None
    assert all(isinstance(opened(m.content).body, Notice) for m in step.sent)
    assert {m.receiver for m in step.sent} == {"a", "c", "d"}
    buried = [coins.deliver(message.receiver, message.content) for message in step.sent]
    assert all(each.erase for each in buried)
    for site in "acd":  # what waited to be sent held the factor
        memory = coins.memories[site]
        assert (TOKEN in memory.outbox) == (site == "a") and memory.gone == {"b"}
    assert newest(coins).epoch == (2, "a")  # who is first by name begins anew
    for receiver, content in waiting:  # and what was on its way is void
        if isinstance(opened(content).body, Token):
            entry = json.loads(coins.deliver(receiver, content).entries[0])
            assert entry["reason"] in ("epoch", "tombstone")
    sent = tuple(m for each in buried for m in each.sent)
    coins.walk(Step(coins.memories["c"], sent), STEPS)
    assert digest(newest(coins).posterior) == in_process("a", "c", "d")
    assert coins.memories["b"].own.answered == -1


def test_who_was_forgotten_does_not_come_back():
    coins = Coins()
    coins.walk(coins.begin("a"), STEPS)
    step = coins.forget("b")
    for message in step.sent:
        coins.deliver(message.receiver, message.content)
    for command in (coins.begin, coins.forget):
        with pytest.raises(Refusal) as error:
            command("b")
        assert error.value.reason in ("order", "tombstone")
    # With an empty store and the same name and key.
    coins.memories["b"] = Memory.empty("b", 3)
    back = coins.begin("b", 4)
    token = [m for m in back.sent if isinstance(opened(m.content).body, Token)]
    assert token
    for message in token:
        entry = json.loads(coins.deliver(message.receiver, message.content).entries[0])
        assert entry["reason"] == "tombstone"
    # Nobody else can say of a site that it was forgotten.
    statement = coins.memories["a"].tombstones["b"].envelope
    forged = json.loads(statement) | {"payloadType": "x"}
    for envelope in (statement[:-1], json.dumps(forged).encode()):
        letter = dataclasses.replace(opened(step.sent[0].content), sender="a", receiver="c")
        letter = dataclasses.replace(letter, body=Notice(envelope))
        before = coins.memories["c"]
        coins.deliver("c", letter.sealed(KEYS["a"]))
        assert coins.memories["c"].notices == before.notices


def test_a_token_goes_around_who_is_gone():
    coins = Coins(terms(links=[["a", "b"], ["b", "c"], ["c", "d"]]))
    step = coins.begin("a", 5)
    assert [m.receiver for m in step.sent] == ["b"]
    told = coins.forget("b").sent  # before the token reached it
    assert {m.receiver for m in told} == {"a", "c"}
    buried = coins.deliver("a", next(m.content for m in told if m.receiver == "a"))
    waiting = buried.memory.outbox[TOKEN]
    assert waiting.receiver in "ac" and opened(waiting.content).body.epoch == (6, "a")
    assert coins.terms.neighbours("a", frozenset("b")) == ("c",)


def test_a_site_leaves_when_the_token_comes():
    coins = Coins()
    coins.take("b", coins.machines["b"].leave(coins.memories["b"]))
    coins.walk(coins.begin("a"), STEPS)
    assert coins.memories["b"].own.entry.factor is None
    assert digest(newest(coins).posterior) == in_process("a", "c", "d")
    left = [json.loads(entry) for site, entry in coins.log if b"forgotten" in entry]
    assert [each["event"] for each in left] == ["forgotten"]


def test_an_agent_goes_on_from_its_store(tmp_path):
    coins = Coins()
    paths = {site: tmp_path / f"{site}.db" for site in DATA}
    for site, path in paths.items():
        Store.create(path, Step(Memory.empty(site)).change).close()
    agents = {s: Agent(coins.machines[s], Store(path)) for s, path in paths.items()}
    waiting = list(agents["a"].command(coins.machines["a"].begin))
    for number in range(STEPS):
        receiver, content = waiting.pop(0)
        waiting += agents[receiver].receive(content)
        if number % 20 == 0:  # its process ends, and another one begins
            agents[receiver].store.close()
            agents[receiver] = Agent(coins.machines[receiver], Store(paths[receiver]))
    coins.memories = {site: agent.memory for site, agent in agents.items()}
    assert digest(newest(coins).posterior) == in_process(*DATA)
    before = len(agents["a"].store.log)
    agents["a"].receive(b"nothing", b"neither")  # in one write
    assert len(agents["a"].store.log) == before + 2
    for agent in agents.values():
        agent.store.close()


def test_a_token_that_lacks_factors_is_refused_and_changes_nothing():
    coins = Coins()
    (token,) = coins.walk(coins.begin("a"), 20)
    letter = opened(token.content)
    site, memory = token.receiver, coins.memories[token.receiver]
    machine, body = coins.machines[site], letter.body
    others = [coins.memories[s].own.entry.factor for s in DATA if s not in (site, letter.sender)]
    lacking = [memory.own.entry.factor, *others]
    for factor in lacking:  # the reader's own, and others' that it passed on before
        less = dataclasses.replace(body, exact_sum=body.exact_sum.changed(take=[factor]))
        sent = dataclasses.replace(letter, body=less).sealed(KEYS[letter.sender])
        step = machine.receive(memory, sent)
        assert step.sent == () and json.loads(step.entries[0])["reason"] == "left out"
        assert step.memory.own == memory.own and step.memory.passed == memory.passed
    assert machine.receive(memory, token.content).sent


def test_a_token_of_a_concave_model_has_at_least_the_readers_own_factor():
    rng = np.random.default_rng(0)
    prior = Gaussian.from_standard(np.zeros(2), 4 * np.eye(2))
    agreed = terms(model="logistic-regression", prior=prior)
    records = {s: (rng.normal(size=(40, 2)), rng.integers(0, 2, 40) * 1.0) for s in DATA}
    coins = Coins(agreed, records)
    (token,) = coins.walk(coins.begin("a"), 20)
    letter = opened(token.content)
    site, memory = token.receiver, coins.memories[token.receiver]
    first = dataclasses.replace(letter.body, exact_sum=TreeSum.of([prior]))
    sent = dataclasses.replace(letter, body=first).sealed(KEYS[letter.sender])
    step = coins.machines[site].receive(memory, sent)
    assert memory.own.counted and step.sent == ()
    assert json.loads(step.entries[0])["reason"] == "left out"
    assert coins.machines[site].receive(memory, token.content).sent
