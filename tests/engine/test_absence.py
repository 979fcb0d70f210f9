"""Members that do not answer: passed over from anywhere, certified without, and let in later."""

import dataclasses
import json

import pytest
from engine.coins import DATA, Coins, in_process, terms
from engine.keys import KEYS
from engine.stars import Star
from engine.stars import terms as star_terms
from engine.test_notices import posted, resting, walked
from engine.test_running import Sites

from posterity.artifact import digest
from posterity.engine.audit import audit_certificate
from posterity.engine.author import Author, follows
from posterity.engine.machine import Machine
from posterity.engine.memory import RESTING, TOKEN, Step
from posterity.engine.messages import Notice
from posterity.engine.refusal import Refusal
from posterity.errors import UsageError
from posterity.federation.site import Site


def stuck(**options) -> Coins:
    """Four sites, of which d has never begun, so that a token waits for it."""
    coins = Coins(terms(**{"steps": None} | options))
    return walked(coins, coins.begin("a"), without="d")


def passed_over(coins: Coins, site: str, other: str) -> Coins:
    machine = coins.machines[site]
    step = coins.take(site, machine.pass_over(coins.memories[site], [other]))
    return walked(coins, step, without=other)


def resent(coins: Coins, without: str = "") -> Coins:
    letters = [m for s in DATA for m in coins.machines[s].resend(coins.memories[s])]
    return walked(coins, Step(coins.memories["a"], tuple(letters)), without)


def certificates(coins: Coins, sites: str):
    return [coins.memories[site].certificate for site in sites]


@pytest.mark.parametrize("site", "abc")
@pytest.mark.parametrize("order", ["gossip", "sequential"])
def test_a_pass_over_works_from_whichever_member_it_is_typed_at(site, order):
    coins = stuck(schedule={"kind": order})
    waits = [s for s, m in coins.memories.items() if "d" in coins.machines[s].awaited(m)]
    assert len(waits) == 1
    passed_over(coins, site, "d")
    assert digest(resting(coins).posterior) == in_process("a", "b", "c")
    assert all(coins.memories[each].absent == {"d"} for each in "abc")
    for known in certificates(coins, "abc"):
        audit = audit_certificate(coins.terms, known.envelope)
        assert audit.passed and '"d"' in audit.statement
        assert known.predicate["absent"] == ["d"]
        assert known.predicate["state"] == "not converged"  # since no quorum was agreed on


def test_a_pass_over_works_far_from_whom_it_names_and_so_does_a_return():
    links = [["a", "b"], ["b", "c"], ["c", "d"]]
    coins = Coins(terms(steps=None, links=links, quorum=3))
    for site in DATA:  # only c, its neighbour, hears that d has started
        walked(coins, coins.take(site, coins.machines[site].start(coins.memories[site])))
    walked(coins, coins.begin("a"), without="d")
    passed_over(coins, "a", "d")
    assert digest(resting(coins).posterior) == in_process("a", "b", "c")
    resent(coins)
    assert digest(resting(coins).posterior) == in_process(*DATA)
    assert not any(memory.absent for memory in coins.memories.values())
    assert all(m.status(coins.memories[s]).converged for s, m in coins.machines.items())


def test_only_members_that_can_be_done_without_are_passed_over():
    coins, star = Coins(terms(steps=None)), Star(star_terms())
    walked(coins, coins.begin("a"))
    walked(coins, coins.forget("d"))
    for sites in ([], ["a"], ["d"], ["nobody"], ["b", "a"]):
        with pytest.raises(Refusal):
            coins.machines["a"].pass_over(coins.memories["a"], sites)
    with pytest.raises(Refusal):
        star.machines["a"].pass_over(star.memories["a"], ["server"])


def test_who_was_passed_over_with_the_token_does_not_hold_it_up():
    coins = Coins(terms(steps=None))
    (token,) = coins.walk(coins.begin("a"), 10)
    (receipt, _) = coins.deliver(token.receiver, token.content).sent
    coins.deliver(receipt.receiver, receipt.content)  # nobody else has a token that waits
    assert not any(TOKEN in m.outbox for s, m in coins.memories.items() if s != token.receiver)
    other = next(site for site in DATA if site not in (token.receiver, receipt.receiver))
    passed_over(coins, other, token.receiver)
    assert digest(resting(coins).posterior) == in_process(*(DATA.keys() - {token.receiver}))


def test_a_quorum_of_those_who_answered_is_certified_and_the_others_are_named():
    coins = passed_over(stuck(quorum=3), "c", "d")
    for site, known in zip("abc", certificates(coins, "abc"), strict=True):
        status = coins.machines[site].status(coins.memories[site])
        assert status.converged and "no answer of 'd', without whose factors" in str(status)
        audit = audit_certificate(coins.terms, known.envelope)
        assert audit.passed and '"d"' in audit.statement


def test_a_certificate_of_fewer_than_the_quorum_does_not_hold():
    coins = passed_over(stuck(quorum=4), "a", "d")
    known = coins.memories["b"].certificate
    assert known.predicate["state"] == "not converged"
    audit = audit_certificate(coins.terms, known.envelope)
    assert audit.verification.broken == ("as many members have answered as the terms ask for",)


@pytest.mark.parametrize("absent", [[], ["c", "d"], ["c"], ["d", "d"]])
def test_a_certificate_that_names_others_as_absent_is_refused(absent):
    coins = passed_over(stuck(quorum=3), "b", "d")
    known = coins.memories["a"].certificate
    predicate = {**known.predicate, "absent": absent}
    del predicate["terms"], predicate["site"]
    signer = known.signer
    false = Author(coins.terms, signer, KEYS[signer])._made("certificate", signer, **predicate)
    assert audit_certificate(coins.terms, false.envelope).verification.broken == (
        "every remaining member has answered or is named as absent, and no other",
    )
    assert follows(coins.terms, known) and not follows(coins.terms, false)


def test_whose_factor_counts_refuses_a_certificate_of_its_absence():
    coins = Coins(terms(steps=None, quorum=3))
    walked(coins, coins.begin("a"))
    holder = next(site for site, memory in coins.memories.items() if RESTING in memory.outbox)
    survey = coins.memories[holder].own_survey
    answers = coins.memories[holder].residuals(survey)
    absent, other = [site for site in DATA if site != holder][:2]
    fewer = {site: each for site, each in answers.items() if site != absent}
    false = Author(coins.terms, holder, KEYS[holder]).certificate(survey, fewer, {}, 0)
    assert false.predicate["absent"] == [absent] and follows(coins.terms, false)
    with pytest.raises(Refusal, match="does not follow"):
        coins.memories[absent] = dataclasses.replace(coins.memories[absent], notices={})
        posted(coins, absent, false)
    posted(coins, other, false)  # who cannot know keeps the one with more answers
    assert coins.memories[other].certificate.predicate["absent"] == []


def test_who_was_passed_over_is_let_in_as_soon_as_it_hears_of_it():
    coins = passed_over(stuck(quorum=3), "a", "d")
    resent(coins)  # d was never away: nobody starts it
    assert digest(resting(coins).posterior) == in_process(*DATA)
    assert not any(memory.absent for memory in coins.memories.values())
    for known in certificates(coins, "abcd"):
        assert known.predicate["absent"] == [] and known.predicate["state"] == "converged"


def test_whose_factor_is_in_a_token_that_rests_is_not_passed_over_in_that_epoch():
    coins = Coins(terms(steps=None, quorum=3))
    walked(coins, coins.begin("a"))
    holder = next(site for site, memory in coins.memories.items() if RESTING in memory.outbox)
    other, absent = [site for site in DATA if site != holder][:2]
    before = resting(coins)
    passed_over(coins, other, absent)
    assert {absent, holder} <= {site for site, *_ in before.seals}
    assert resting(coins).epoch > before.epoch
    assert digest(resting(coins).posterior) == in_process(*(DATA.keys() - {absent}))


def test_no_certificate_holds_the_factor_of_who_does_not_answer():
    coins = Coins(terms(steps=None, quorum=3))
    waiting = list(coins.begin("a").sent)
    while waiting:  # what d answers to the survey is lost, with what it writes besides
        receiver, content = waiting.pop(0)
        rests = any(RESTING in memory.outbox for memory in coins.memories.values())
        sent = coins.deliver(receiver, content).sent
        waiting += () if rests and receiver == "d" else sent
    holder = next(site for site, memory in coins.memories.items() if RESTING in memory.outbox)
    assert coins.machines[holder].awaited(coins.memories[holder]) == {"d"}
    other = next(site for site in "abc" if site != holder)
    posted(coins, holder, Author(coins.terms, other, KEYS[other]).absence("d", 1, 0))
    memory = coins.memories[holder]
    assert memory.certificate is None and memory.own.epoch == (2, holder)


def test_an_absence_of_before_a_return_is_not_acted_on():
    coins = stuck()
    absence = Author(coins.terms, "b", KEYS["b"]).absence("c", 0, 0)
    walked(coins, coins.take("c", coins.machines["c"].start(coins.memories["c"])), without="d")
    posted(coins, "a", absence)
    assert coins.memories["a"].absent == frozenset()
    again = Author(coins.terms, "b", KEYS["b"]).absence("c", 1, 0)
    posted(coins, "a", again)
    assert coins.memories["a"].absent == {"c"}
    with pytest.raises(Refusal):  # it speaks for itself alone
        Author(coins.terms, "b", KEYS["b"])._made("absence", "c", start=1, number=1, by="a")


@pytest.mark.parametrize(("quorum", "over"), [(None, True), (3, True), (4, False)])
def test_who_is_silent_beyond_the_deadline_is_passed_over(tmp_path, quorum, over):
    agreed = terms(deadline=1e-9, quorum=quorum)
    machine = Machine(agreed, Site.of(agreed.agreement, "a", DATA["a"]), KEYS["a"])
    running = Sites(tmp_path).made("a", machine=machine, sockets={})
    running.post.first = 0.0
    running.answer({"do": "begin"}, b"")
    (receiver,) = running.status()["awaited"]
    running._look_around()
    memory, waits = running.agent.memory, running.status()["waits"]
    assert memory.absent == (frozenset([receiver]) if over else frozenset())
    assert memory.own.epoch == (2 if over else 1, "a") and TOKEN in memory.outbox
    assert waits.keys() == {receiver} and waits[receiver] > 0
    running.agent.store.close()


@pytest.mark.parametrize(("silent", "over"), [(299.0, False), (301.0, True)])
def test_five_minutes_of_silence_are_the_deadline_if_none_is_agreed(tmp_path, silent, over):
    agreed = terms()
    machine = Machine(agreed, Site.of(agreed.agreement, "a", DATA["a"]), KEYS["a"])
    running = Sites(tmp_path).made("a", machine=machine, sockets={})
    running.answer({"do": "begin"}, b"")
    (receiver,) = running.status()["awaited"]
    running._silences = lambda: {receiver: silent}
    running._look_around()
    assert running.agent.memory.absent == (frozenset([receiver]) if over else frozenset())
    running.agent.store.close()


def test_only_who_has_written_is_heard(tmp_path):
    coins = Coins(terms(schedule={"kind": "sequential"}))
    running = Sites(tmp_path).made("a", machine=coins.machines["a"], sockets={})
    running.answer({"do": "begin"}, b"")
    assert running.status()["awaited"] == ["b"]
    (token,) = coins.begin("d", 2).sent
    running.answer({"do": "deliver"}, token.content)
    running._take_in()  # the token for b of before is void
    heard = running.status()["heard"]
    assert heard["d"] is not None and heard["b"] is None and heard["c"] is None
    running.agent.store.close()


def test_a_star_ends_a_round_with_those_who_answer_and_lets_the_others_in():
    star = Star(star_terms(quorum=4))
    star.command("server", "begin")
    star.run(200, deaf=("b",))
    assert star.course.phase != "rest"
    star.command("c", "pass_over", ["b"])  # at a site, not at the server
    star.run(400, deaf=("b",))
    assert star.course.phase == "rest" and star.course.status.converged
    assert "no answer of 'b'" in str(star.course.status)
    for name in ("server", "a"):
        known = star.memories[name].certificate
        assert known.predicate["absent"] == ["b"] and known.predicate["state"] == "converged"
        assert audit_certificate(star.terms, known.envelope).passed
    star.run()
    assert star.course.status.converged and not star.course.status.reasons
    known = star.memories["a"].certificate
    assert known.predicate["absent"] == [] and audit_certificate(star.terms, known.envelope).passed


def test_a_star_certifies_no_factor_of_who_does_not_answer():
    star = Star(star_terms(quorum=3))
    star.command("server", "begin")
    star.run()
    whole = star.course.run.posterior
    star.command("server", "resume")
    star.command("server", "pass_over", ["b"])
    star.run(400, deaf=("b",))
    assert star.course.phase == "rest" and "b" not in star.course.run.state.entries
    known = star.memories["server"].certificate
    assert known.predicate["absent"] == ["b"] and known.predicate["state"] == "converged"
    assert digest(star.course.run.posterior) != digest(whole)
    star.run()
    assert digest(star.course.run.posterior) == digest(whole)


@pytest.mark.parametrize("change", [{"quorum": 0}, {"quorum": 5}, {"quorum": 2.0}, {"deadline": 0}])
def test_terms_name_as_many_members_as_there_are_and_a_time(change):
    with pytest.raises(UsageError):
        terms(**change)
    assert dataclasses.replace(terms(), quorum=2).digest != terms().digest
    assert dataclasses.replace(terms(), deadline=1.0).digest != terms().digest


def test_nobody_spoils_what_others_say_of_an_absence():
    coins = stuck(quorum=3)
    posted(coins, "a", Author(coins.terms, "b", KEYS["b"]).absence("d", 2**50, 2**50))
    walked(coins, coins.take("d", coins.machines["d"].start(coins.memories["d"])))
    resent(coins)
    assert not any(memory.absent for memory in coins.memories.values())
    coins.take("a", coins.machines["a"].pass_over(coins.memories["a"], ["d"]))
    assert coins.memories["a"].absent == {"d"}


def test_what_a_member_says_of_everybody_s_absence_takes_the_place_of_what_it_said_before():
    coins = stuck()
    author = Author(coins.terms, "b", KEYS["b"])
    for number in range(20):
        for site in "acd":
            posted(coins, "a", author.absence(site, 5, number))
    memory = coins.memories["a"]
    said = [known for known in memory.notices.values() if known.claim == "absence"]
    assert {(known.site, known.version) for known in said} == {(s, (5, 19)) for s in "acd"}
    assert sum(place.startswith("absence") for place in memory.outbox) == 3 * 2  # to c and to d
    resent(coins)
    assert not any(memory.absent for memory in coins.memories.values()), "they are back at once"


def test_the_server_of_a_star_is_not_passed_over():
    star = Star(star_terms())
    absence = star.machines["b"].author.absence("server", 1, 0)
    star.send("b", "a", Notice(absence.envelope))
    assert star.reasons("a") == ["membership"] and not star.memories["a"].absent


@pytest.mark.parametrize("claim", ["absence", "agreement"])
def test_a_notice_is_no_sign_of_life_of_whom_it_names(claim):
    coins = passed_over(stuck(), "a", "d")
    author = Author(coins.terms, "b", KEYS["b"])
    known = author.absence("d", 0, 0)
    if claim == "agreement":
        known = Author(coins.terms, "d", KEYS["d"]).agreement(1, False, (0, ""))
    step = coins.deliver("a", known.envelope)
    assert [json.loads(each)["reason"] for each in step.entries] == ["schema"]
    assert coins.memories["a"].absent == {"d"} and not step.heard and not step.sent


def test_a_server_alone_says_nothing_of_a_posterior_whatever_the_quorum():
    star = Star(star_terms(quorum=1))
    star.command("server", "begin")
    star.command("server", "pass_over", list("abcd"))
    star.run(400, deaf=tuple("abcd"))
    known = star.memories["server"].certificate
    assert known.predicate["state"] == star.course.status.state == "not converged"
    assert audit_certificate(star.terms, known.envelope).passed


def test_with_a_quorum_of_one_a_member_alone_says_whom_it_lacks():
    coins = Coins(terms(steps=None, quorum=1))
    walked(coins, coins.begin("a"), without="bcd")
    step = coins.machines["a"].pass_over(coins.memories["a"], list("bcd"))
    walked(coins, coins.take("a", step), without="bcd")
    assert digest(resting(coins).posterior) == in_process("a")
    known = coins.memories["a"].certificate
    assert known.predicate["state"] == "converged" and not known.is_final
    audit = audit_certificate(coins.terms, known.envelope)
    assert audit.passed and 'nothing is known of theirs: "b", "c", "d"' in audit.statement
    resent(coins)
    assert digest(resting(coins).posterior) == in_process(*DATA)
