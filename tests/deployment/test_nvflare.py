"""Hospitals over NVFlare with provisioned certificates (make test-engine).

The jobs carry letters between agents: what comes out is what one process computes, bit for bit,
whatever is killed, and NVFlare's server reads nothing.
"""

import pytest
from deployment.federations import SITES, Federation, in_process, readable, until
from deployment.nvflare_kits import Deployment, kill_job
from engine.coins import opened

from posterity.artifact import digest
from posterity.cli.deployment import read_terms
from posterity.engine.memory import RESTING
from posterity.federation import Gossip, Token

pytestmark = pytest.mark.engine
TEXTS = ["application/vnd.posterity.message", '"kind":"Token"', '"kind": "Token"']


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    texts = [text for each in TEXTS for text in readable(each)]
    deployment = Deployment(tmp_path_factory.mktemp("nvflare"), texts)
    deployment.start()
    return deployment  # its processes end with the namespace


def answers(federation: Federation) -> dict[int, tuple[str, str]]:
    """The site that answered each token, and to whom it went, by its sequence number."""
    found = {}
    for site in SITES:
        for entry in federation.log(site):
            if "answer" in entry:
                sequence = entry["token"][2]
                assert sequence not in found, "a token was answered twice"
                found[sequence] = site, entry["to"]
    return found


def resting(federation: Federation) -> Token:
    """The token that rests, once the walk is over."""
    memories = [federation.memory(site) for site in SITES]
    (letter,) = [each.outbox[RESTING] for each in memories if RESTING in each.outbox]
    return opened(letter.content).body


def test_a_walk_of_which_a_site_and_a_job_are_killed_is_the_one_in_process(deployment, tmp_path):
    hops = 150
    federation = Federation(tmp_path / "gossip", "--steps", hops)
    deployment.point(federation)
    with deployment.carrying():
        federation.start()
        federation.ask("cleveland", "begin")
        until(lambda: federation.sequence() >= 20, 90, "20 hops")
        federation.kill("hungary")
        kill_job("hungary")
        killed = federation.sequence()
        federation.start("hungary")
        until(lambda: federation.sequence() == hops - 1, 90, "the end of the walk")
    federation.stop()
    assert killed < hops - 20
    assert sum("submitted" in line for line in deployment.told) == 2, deployment.told
    gossip = Gossip(read_terms(federation.file).walk(frozenset()).graph, start="cleveland")
    walked, run = answers(federation), in_process(*SITES, schedule=gossip)
    assert sorted(walked) == list(range(hops))
    for sequence in range(hops):
        run = run.advance(1)
        assert walked[sequence][1] == run.state.schedule["at"]
    assert resting(federation).exact_sum == run.token.exact_sum
    messages, size, seen = deployment.seen()
    assert messages > hops and size > 6_000 * hops and seen == 0


def test_a_star_is_the_one_in_process_and_is_read_only_where_nothing_is_encrypted(
    deployment, tmp_path
):
    passes = 100
    options = ["--server", "server", "--steps", passes]
    federation = Federation(tmp_path / "star", *options, encrypted=False, sites=(*SITES, "server"))
    deployment.point(federation)
    before = deployment.seen()
    with deployment.carrying():
        federation.start()
        known = federation.ask("server", "status")["log"]
        federation.ask("server", "begin")
        until(lambda: federation.ask("server", "status")["log"] >= known + 40, 90, "40 answers")
    messages, _, seen = deployment.seen()
    assert messages > before[0] and seen == 0
    assert not federation.rests()
    with deployment.carrying(encrypted=False):
        until(federation.rests, 90, "the end of all passes")
    federation.stop()
    assert deployment.seen()[2] > 100
    run = in_process(*SITES).advance(passes)
    assert digest(federation.course().posterior) == digest(run.posterior)
