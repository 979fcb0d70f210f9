"""Surveys, rest, absence, authorities, files and signed logs: what members tell each other."""

import base64
import dataclasses
import json
import math

import numpy as np
import pytest
from engine.coins import DATA, PRIOR, Coins, in_process, opened, terms
from engine.keys import KEYS, PUBLIC

from posterity.artifact import digest
from posterity.engine.admission import check_report
from posterity.engine.agreement import Terms
from posterity.engine.author import Author
from posterity.engine.log import Tree, TreeHead
from posterity.engine.machine import Machine
from posterity.engine.memory import RESTING, TOKEN, Memory, Step
from posterity.engine.messages import Notice
from posterity.engine.notices import Known, Standing, parsed, read, standing_of
from posterity.engine.refusal import Refusal
from posterity.engine.signing import PrivateKey
from posterity.engine.store import Outgoing
from posterity.families import Gaussian
from posterity.federation import Sequential, Token, federate
from posterity.federation.messages import Report, dumps
from posterity.federation.site import Site
from posterity.models import BetaBernoulli, LogisticRegression

OFFICER = PrivateKey(b"o" * 32)
UNTIL_CONVERGED = {"steps": None}


def walked(coins: Coins, step: Step, without: str = "") -> Coins:
    """All letters are delivered until nobody sends any, but for those to who is not there."""
    waiting = list(step.sent)
    for _ in range(5000):
        if not waiting:
            return coins
        receiver, content = waiting.pop(0)
        if receiver not in without:
            waiting += coins.deliver(receiver, content).sent
    raise AssertionError("the walk does not end")


def resting(coins: Coins) -> Token:
    waiting = [m.outbox[RESTING] for m in coins.memories.values() if RESTING in m.outbox]
    tokens = [opened(message.content).body for message in waiting]
    return max(tokens, key=lambda token: token.epoch)


def events(coins: Coins, site: str | None = None) -> list[dict]:
    return [json.loads(entry) for where, entry in coins.log if site in (None, where)]


def test_a_walk_that_has_converged_rests_and_all_know_it():
    coins = Coins(terms(**UNTIL_CONVERGED))
    walked(coins, coins.begin("a"))
    assert digest(resting(coins).posterior) == in_process(*DATA)
    for site, machine in coins.machines.items():
        assert machine.status(coins.memories[site]).converged
        assert not machine.resend(coins.memories[site])
    assert sum(event["event"] == "rests" for event in events(coins)) == 1


def test_a_status_is_not_known_before_a_survey():
    coins = Coins()
    coins.walk(coins.begin("a"), 60)
    status = coins.machines["a"].status(coins.memories["a"])
    assert not status.converged and status.left == math.inf and status.reasons


def test_all_steps_that_were_agreed_on_are_made_and_then_it_rests():
    coins = Coins(terms(steps=17))
    walked(coins, coins.begin("a"))
    assert resting(coins).sequence == 17
    assert len([m for m in coins.memories.values() if RESTING in m.outbox]) == 1


def test_a_walk_by_name_is_sequential_partitioned_variational_inference():
    rng = np.random.default_rng(0)
    prior = Gaussian.from_standard(np.zeros(2), np.eye(2))
    data = {s: (rng.normal(size=(20, 2)), rng.integers(0, 2, 20)) for s in DATA}
    agreed = Terms.of(
        "regression",
        model="logistic-regression",
        prior=prior,
        members={site: str(key) for site, key in PUBLIC.items()},
        schedule={"kind": "sequential"},
        steps=3,
    )
    coins = Coins()
    coins.terms = agreed
    coins.machines = {
        s: Machine(agreed, Site.of(agreed.agreement, s, data[s]), KEYS[s]) for s in data
    }
    walked(coins, coins.begin("a"))
    run = federate(data, LogisticRegression(), prior, schedule=Sequential(), steps=3)
    # In process few sites do not pad their records: the last digits are those of other programs.
    np.testing.assert_allclose(resting(coins).posterior.mean, run.posterior.mean, rtol=1e-12)
    assert coins.machines["c"].status(coins.memories["c"]).left < 1e-2


def test_who_has_not_been_visited_keeps_a_posterior_from_being_converged():
    coins = Coins(terms(**UNTIL_CONVERGED))
    step = walked(coins, coins.begin("a"))
    holder = next(site for site, memory in coins.memories.items() if RESTING in memory.outbox)
    memory = coins.memories[holder]
    survey = memory.newest("survey")
    other = next(site for site in DATA if site != holder)
    residual = memory.notices[f"residual of {other}"]
    answer = {**residual.predicate, "counted": False}
    author = Author(coins.terms, other, KEYS[other])
    del answer["terms"], answer["site"]
    lacking = author._made("residual", other, **answer)
    residuals = {**memory.residuals(survey), other: lacking}
    certificate = Author(coins.terms, holder, KEYS[holder]).certificate(survey, residuals, {}, 0)
    assert certificate.predicate["state"] == "not converged"
    assert repr(other) in certificate.predicate["reasons"][-1]
    del step


def test_the_walk_goes_on_without_who_is_absent_and_meets_them_when_they_are_back():
    coins = Coins(terms(**UNTIL_CONVERGED))
    walked(coins, coins.begin("a"), without="d")
    holder = next(site for site, m in coins.memories.items() if TOKEN in m.outbox)
    assert coins.machines[holder].awaited(coins.memories[holder]) == {"d"}
    other = next(site for site in "abc" if site != holder)  # anybody may say so
    machine = coins.machines[other]
    step = coins.take(other, machine.pass_over(coins.memories[other], ["d"]))
    walked(coins, step, without="d")
    assert digest(resting(coins).posterior) == in_process("a", "b", "c")
    assert all("d" in coins.memories[site].absent for site in "abc")
    for site in "abc":
        status = coins.machines[site].status(coins.memories[site])
        assert not status.converged and "'d'" in str(status)
    # Its agent is started, and what it lacks is sent to it again.
    coins.memories["d"] = dataclasses.replace(coins.memories["d"], highest=1)
    back = coins.take("d", coins.machines["d"].start(coins.memories["d"]))
    letters = [m for s in "abc" for m in coins.machines[s].resend(coins.memories[s])]
    walked(coins, Step(back.memory, (*back.sent, *letters)))
    assert digest(resting(coins).posterior) == in_process(*DATA)
    assert all(m.status(coins.memories[s]).converged for s, m in coins.machines.items())


def test_a_site_with_an_empty_store_is_let_in_without_a_command():
    coins = Coins(terms(**UNTIL_CONVERGED))
    walked(coins, coins.begin("a"))
    coins.memories["b"] = Memory.empty("b", 2)
    step = coins.take("b", coins.machines["b"].start(coins.memories["b"]))
    token = coins.begin("c", 2)
    walked(coins, Step(step.memory, (*token.sent, *step.sent)))
    assert digest(resting(coins).posterior) == in_process(*DATA)


def test_an_authority_can_sign_that_a_member_is_forgotten():
    coins = Coins(terms(**UNTIL_CONVERGED, authorities={"officer": str(OFFICER.public)}))
    walked(coins, coins.begin("a"))
    tombstone = Author(coins.terms, "officer", OFFICER).tombstone("c", 1)
    step = coins.take("b", coins.machines["b"].post(coins.memories["b"], tombstone.envelope))
    walked(coins, step)
    assert coins.memories["c"].own.entry.factor is None
    assert {site for site, m in coins.memories.items() if m.gone == {"c"}} == set(DATA)
    assert digest(resting(coins).posterior) == in_process("a", "b", "d")
    certificate = coins.memories["d"].certificate.predicate
    assert list(certificate["forgotten"]) == ["c"] and certificate["independent"]
    for who, key in (("b", KEYS["b"]), ("officer", KEYS["a"])):
        with pytest.raises(Refusal):
            Author(coins.terms, who, key).tombstone("c", 1)


def test_a_token_is_not_taken_from_who_does_not_know_of_a_tombstone():
    coins = Coins()
    waiting = coins.walk(coins.begin("a"), 40)
    (token,) = [m for m in waiting if isinstance(opened(m.content).body, Token)]
    holder = opened(token.content).sender
    leaver, other = sorted({*DATA} - {holder, token.receiver})
    coins.forget(leaver)
    buried = coins.machines[token.receiver].post(
        coins.memories[token.receiver], coins.memories[leaver].tombstones[leaver].envelope
    )
    coins.take(token.receiver, buried)
    step = coins.deliver(token.receiver, token.content)
    assert json.loads(step.entries[0])["reason"] == "tombstone"
    assert any(isinstance(opened(m.content).body, Notice) for m in step.sent)  # so that it learns
    letter = dataclasses.replace(opened(token.content), gone=(leaver,), receiver=other)
    step = coins.deliver(other, letter.sealed(KEYS[holder]))
    assert json.loads(step.entries[0])["reason"] == "tombstone"
    assert coins.memories[other].own.epoch == letter.body.epoch


def test_members_sign_for_each_others_logs_and_notice_one_that_was_rewritten():
    coins = Coins()
    coins.walk(coins.begin("a"), 20)
    entries = [entry for site, entry in coins.log if site == "a"]
    for size in (len(entries) // 2, len(entries)):
        tree = Tree(entries[:size])
        step = coins.take("a", coins.machines["a"].checkpoint(coins.memories["a"], tree))
        coins.walk(step, 100)
    witnesses = [k for k in coins.memories["a"].notices.values() if k.claim == "cosignature"]
    assert {known.signer for known in witnesses} == {"b", "c", "d"}
    for known in witnesses:
        head = TreeHead.from_bytes(known.predicate["note"].encode())
        keys = {f"coins/{known.signer}": PUBLIC[known.signer]}
        assert (head.size, [*head.witnesses(keys)]) == (len(entries), [*keys])
    other = Tree([b"another", *entries[1:], b"more"])
    step = coins.take("a", coins.machines["a"].checkpoint(coins.memories["a"], other))
    for receiver, content in step.sent:
        if isinstance(opened(content).body, Notice):
            refusal = json.loads(coins.deliver(receiver, content).entries[0])
            assert refusal["reason"] == "rewritten"


def test_new_terms_are_taken_over_with_the_factor_and_the_forgotten_stay_out():
    coins = Coins(terms(**UNTIL_CONVERGED))
    walked(coins, coins.begin("a"))
    walked(coins, coins.forget("d"))
    later = PrivateKey(b"e" * 32)
    members = {s: str(k) for s, k in PUBLIC.items() if s != "d"} | {"e": str(later.public)}
    new = Coins(terms(**UNTIL_CONVERGED))
    new.terms = terms(**UNTIL_CONVERGED, members=members)
    keys, data = {**KEYS, "e": later}, {**DATA, "e": np.array([1, 1, 0])}
    new.machines = {
        s: Machine(new.terms, Site.of(new.terms.agreement, s, data[s]), keys[s]) for s in "abce"
    }
    old = {
        s: Memory.from_bytes(coins.memories[s].to_bytes(), coins.memories[s].rows) for s in "abc"
    }
    old = {s: coins.machines[s].load(m.to_bytes(), m.rows) for s, m in old.items()}
    new.memories = {s: new.machines[s].adopt(m) for s, m in old.items()}
    new.memories["e"] = Memory.empty("e", 4)
    walked(new, new.begin("a", 4))
    there = federate({s: data[s] for s in "abce"}, BetaBernoulli(), PRIOR, steps=1)
    assert digest(resting(new).posterior) == digest(there.posterior)
    for bad in ({**members, "d": str(OFFICER.public)}, {**members, "f": str(PUBLIC["d"])}):
        agreed = terms(members=bad)
        machine = Machine(agreed, Site.of(agreed.agreement, "a", DATA["a"]), KEYS["a"])
        with pytest.raises(Refusal):
            machine.adopt(old["a"])


def test_a_letter_cannot_raise_the_epoch_out_of_reach():
    coins = Coins()
    first = opened(coins.begin("a").sent[0].content)
    body = dataclasses.replace(first.body, epoch=(2**52, "a"))
    far = dataclasses.replace(first, highest=2**52, body=body)
    step = coins.deliver(first.receiver, far.sealed(KEYS["a"]))
    assert json.loads(step.entries[0])["reason"] == "epoch"
    assert coins.memories[first.receiver].highest == coins.terms.limits.epochs
    near = dataclasses.replace(first, highest=5, body=body)  # a token beyond what it is said to be
    step = coins.deliver(first.receiver, near.sealed(KEYS["a"]))
    assert json.loads(step.entries[0])["reason"] == "epoch"
    tombstone = Author(coins.terms, "d", KEYS["d"]).tombstone("d", 2**52)
    coins.take("b", coins.machines["b"].post(coins.memories["b"], tombstone.envelope))
    assert coins.memories["b"].highest <= 3 * coins.terms.limits.epochs


def test_refusals_without_end_do_not_fill_the_log():
    coins = Coins()
    for number in range(2000):
        coins.deliver("a", b"%d" % number)
    assert coins.memories["a"].refusals == {"schema": 2000}
    counts = [json.loads(entry)["count"] for _, entry in coins.log]
    assert counts == [*range(1, 101), 128, 256, 512, 1024]


def test_notices_come_back_as_they_were():
    author = Author(terms(), "a", KEYS["a"])
    for known in (
        author.tombstone("a", 3),
        author.survey((3, "b"), 4, PRIOR),
        author.agreement(2, True, (0, "")),
    ):
        assert parsed(known.envelope) == known
        assert read(author.terms, known.envelope) == known


def test_reports_with_numbers_beyond_what_was_agreed_are_refused():
    agreed = terms(limits={"magnitude": 1e6})
    author = Author(agreed, "a", KEYS["a"])
    survey = author.survey((1, "a"), 4, PRIOR)
    for wrong in (
        {"variance": 1e200},
        {"variance": math.nan},
        {"quadrature_error": -1e200},
        {"value": 1e7},
        {"direction": PRIOR * 1e7},
        {"slope": np.zeros(2)},
        {"curvature": np.full((1, 1), 1e9)},
    ):
        report = Report("a", **wrong)
        with pytest.raises(Refusal):
            check_report(agreed, report)
        # An honest site says nothing then; what others send so is refused.
        empty = author.residual(survey, Standing(True, False, True, report))
        assert standing_of(agreed, empty).report == Report("a")
        said = {**empty.predicate, "report": base64.b64encode(dumps(report)).decode()}
        del said["terms"], said["site"]
        with pytest.raises(Refusal):
            author._made("residual", "a", **said)


# --- what members may do wrong -------------------------------------------------------------------


def posted(coins: Coins, site: str, known: Known) -> Step:
    return coins.take(site, coins.machines[site].post(coins.memories[site], known.envelope))


def test_a_certificate_is_believed_only_if_it_follows_from_what_members_signed():
    coins = Coins()
    coins.walk(coins.begin("a"), 60)
    epoch = coins.memories["a"].own.epoch
    liar = Author(coins.terms, "d", KEYS["d"])
    survey = liar.survey(epoch, 2**31, PRIOR)
    forged = liar.certificate(survey, {}, {}, 0)
    predicate = {**forged.predicate, "state": "converged", "left": 0.0, "reasons": []}
    del predicate["terms"], predicate["site"]
    forged = liar._made("certificate", "d", **predicate)
    with pytest.raises(Refusal):
        posted(coins, "a", forged)
    assert not coins.machines["a"].status(coins.memories["a"]).converged


def test_a_late_answer_lets_a_member_in():
    coins = Coins(terms(**UNTIL_CONVERGED))
    step, held = coins.begin("a"), []
    waiting = list(step.sent)
    while waiting:
        receiver, content = waiting.pop(0)
        body = opened(content).body
        known = read(coins.terms, body.content) if isinstance(body, Notice) else None
        if known is not None and (known.claim, known.site) == ("residual", "d"):
            held.append(Outgoing(receiver, content))
            continue
        waiting += coins.deliver(receiver, content).sent
    holder = next(site for site, m in coins.memories.items() if RESTING in m.outbox)
    machine = coins.machines[holder]
    assert holder != "d"  # who answers late
    step = coins.take(holder, machine.pass_over(coins.memories[holder], ["d"]))
    walked(coins, step, without="d")  # its factor was in the token, so an epoch begins without it
    assert digest(resting(coins).posterior) == in_process("a", "b", "c")
    assert not machine.status(coins.memories[holder]).converged
    letters = [m for s in "abc" for m in coins.machines[s].resend(coins.memories[s])]
    walked(coins, Step(coins.memories[holder], (*held, *letters)))
    assert digest(resting(coins).posterior) == in_process(*DATA)
    assert all(m.status(coins.memories[s]).converged for s, m in coins.machines.items())


def test_a_site_leaves_a_walk_that_rests_and_the_walk_rests_again():
    coins = Coins(terms(**UNTIL_CONVERGED))
    walked(coins, coins.begin("a"))
    walked(coins, coins.take("c", coins.machines["c"].leave(coins.memories["c"])))
    assert coins.memories["c"].own.entry.factor is None
    assert digest(resting(coins).posterior) == in_process("a", "b", "d")
    assert all(m.status(coins.memories[s]).converged for s, m in coins.machines.items())


def test_who_lost_its_store_and_says_nothing_of_it_is_counted_once():
    coins = Coins(terms(**UNTIL_CONVERGED))
    step = Step(coins.memories["a"])
    for number, (site, machine) in enumerate(coins.machines.items()):
        coins.machines[site] = dataclasses.replace(machine, clock=lambda n=number: 1000 + n)
        step = step.then(coins.take(site, coins.machines[site].start(coins.memories[site])))
    walked(coins, step)
    walked(coins, coins.begin("a"))
    coins.memories["b"] = Memory.empty("b")
    coins.machines["b"] = dataclasses.replace(coins.machines["b"], clock=lambda: 2000)
    walked(coins, coins.take("b", coins.machines["b"].start(coins.memories["b"])))
    assert coins.memories["b"].own.counted
    assert digest(resting(coins).posterior) == in_process(*DATA)
    assert resting(coins).epoch[0] > 1


@pytest.mark.parametrize("fenced", [True, False], ids=["by an epoch", "not at all"])
def test_who_lost_its_store_is_sent_the_tombstones_and_keeps_nothing_of_the_forgotten(fenced):
    coins = Coins(terms(**UNTIL_CONVERGED))
    begun = coins.begin("b")
    tokens = [opened(m.content) for m in begun.sent if isinstance(opened(m.content).body, Token)]
    late = dataclasses.replace(tokens[0], receiver="c").sealed(KEYS["b"])  # holds b's factor
    walked(coins, begun)
    walked(coins, coins.forget("b"))
    number = coins.memories["a"].highest + 1
    coins.memories["c"] = Memory.empty("c", number if fenced else 0)
    walked(coins, coins.deliver("c", late))
    walked(coins, coins.begin("d", number))
    memory = coins.memories["c"]
    assert memory.gone == {"b"} and memory.own.counted and TOKEN not in memory.outbox
    assert json.loads(coins.deliver("c", late).entries[0])["reason"] == "tombstone"
    assert digest(resting(coins).posterior) == in_process("a", "c", "d")


def test_who_was_forgotten_and_is_restored_receives_its_tombstone():
    coins = Coins(terms(**UNTIL_CONVERGED))
    walked(coins, coins.begin("b"))
    copies = {site: coins.memories[site] for site in "ad"}
    walked(coins, coins.forget("d"))
    coins.memories |= copies  # also of a, which began the epoch after the forgetting
    for site in "da":
        walked(coins, coins.take(site, coins.machines[site].start(coins.memories[site])))
    assert all(memory.gone == {"d"} for memory in coins.memories.values())
    assert coins.memories["d"].own.entry.factor is None
    assert digest(resting(coins).posterior) == in_process("a", "b", "c")
    assert all(coins.memories[site].own.counted for site in "abc")


def test_a_forgetting_goes_on_without_who_is_first_by_name():
    coins = Coins(terms(**UNTIL_CONVERGED))
    walked(coins, coins.begin("b"))
    walked(coins, coins.forget("d"), without="a")
    assert all(coins.machines[s].awaited(coins.memories[s]) == {"a"} for s in "bc")
    step = Step(coins.memories["b"])
    for site in "bc":
        step = step.then(
            coins.take(site, coins.machines[site].pass_over(coins.memories[site], "a"))
        )
    walked(coins, step, without="a")
    assert digest(resting(coins).posterior) == in_process("b", "c")


def test_a_tombstone_that_overtakes_the_first_token_does_not_end_the_walk():
    coins = Coins(terms(**UNTIL_CONVERGED))
    token, tombstones = coins.begin("c").sent, coins.forget("b").sent
    walked(coins, Step(coins.memories["c"], (*tombstones, *token)))
    assert digest(resting(coins).posterior) == in_process("a", "c", "d")


def test_a_site_whose_factor_is_beyond_the_terms_passes_the_token_on_without_it():
    coins = Coins(terms(steps=60, limits={"pseudo_counts": 40.0}))
    walked(coins, coins.begin("a"))
    assert resting(coins).sequence == 60
    counted = [site for site, memory in coins.memories.items() if memory.own.counted]
    assert len(counted) < len(DATA)
    assert digest(resting(coins).posterior) == in_process(*counted)
    assert not coins.machines["a"].status(coins.memories["a"]).converged


def test_members_of_a_star_take_no_tokens_and_answer_no_surveys():
    star = Coins(terms(server="d", schedule={"kind": "sequential"}))
    walk = Coins()
    letter = opened(walk.begin("a").sent[0].content)
    body = dataclasses.replace(letter.body, agreement=star.terms.digest)
    sent = dataclasses.replace(letter, terms=star.terms.digest, body=body, receiver="b")
    step = star.deliver("b", sent.sealed(KEYS["a"]))
    assert json.loads(step.entries[0])["reason"] == "membership" and not step.sent
    survey = Author(star.terms, "a", KEYS["a"]).survey((1, "a"), 3, PRIOR)
    for act in (lambda: posted(star, "b", survey), lambda: star.begin("b")):
        with pytest.raises(Refusal):
            act()


def test_a_survey_of_another_epoch_learns_nothing():
    coins = Coins()
    coins.walk(coins.begin("a"), 60)
    for place in (((7, "d"), 3), (coins.memories["b"].own.epoch, 0)):
        survey = Author(coins.terms, "d", KEYS["d"]).survey(*place, PRIOR)
        residual = coins.machines["b"]._answered(coins.memories["b"], survey)
        assert residual.predicate["report"] is None and not residual.predicate["counted"]


def test_a_survey_of_who_did_not_know_of_a_tombstone_is_not_kept():
    """It may hold the factor that was forgotten, whatever the number of its epoch."""
    coins = Coins(terms(authorities={"officer": str(OFFICER.public)}))
    coins.walk(coins.begin("a"), 60)
    posted(coins, "b", Author(coins.terms, "officer", OFFICER).tombstone("d", 0))
    fenced = coins.memories["b"].own.epoch
    survey = Author(coins.terms, "c", KEYS["c"]).survey((fenced[0] + 1, "c"), 9, PRIOR)
    posted(coins, "b", survey)
    assert survey.place not in coins.memories["b"].notices
    knowing = Author(coins.terms, "c", KEYS["c"]).survey((fenced[0] + 1, "c"), 9, PRIOR, ["d"])
    posted(coins, "b", knowing)
    assert knowing.place in coins.memories["b"].notices


def test_a_relay_keeps_no_answer_of_who_was_forgotten():
    links = [["a", "b"], ["b", "c"], ["c", "d"]]
    coins = Coins(terms(links=links))
    coins.walk(coins.begin("a"), 60)
    epoch = coins.memories["b"].own.epoch
    survey = Author(coins.terms, "d", KEYS["d"]).survey(epoch, 10_000, PRIOR)
    residual = coins.machines["a"]._answered(coins.memories["a"], survey)
    posted(coins, "b", residual)
    posted(coins, "b", survey)
    held = lambda: [place for place in coins.memories["b"].outbox if place.startswith("residual")]
    assert held() and coins.memories["b"].newest("survey") == survey
    coins.take("b", coins.machines["b"].post(coins.memories["b"], _tombstone(coins, "a")))
    assert not held()
    assert all(known.epoch is None for known in coins.memories["b"].notices.values())


def test_no_notice_of_who_was_forgotten_is_taken():
    coins = Coins(terms())
    coins.walk(coins.begin("a"), 60)
    posted(coins, "b", Author(coins.terms, "d", KEYS["d"]).agreement(7, False, (1, "a")))
    assert coins.memories["b"].notices["agreement of d"].version == (7,)
    coins.take("b", coins.machines["b"].post(coins.memories["b"], _tombstone(coins, "d")))
    posted(coins, "b", Author(coins.terms, "d", KEYS["d"]).agreement(8, False, (1, "a")))
    assert coins.memories["b"].notices["agreement of d"].version == (7,)


def _tombstone(coins: Coins, site: str) -> bytes:
    return Author(coins.terms, site, KEYS[site]).tombstone(site, 1).envelope
