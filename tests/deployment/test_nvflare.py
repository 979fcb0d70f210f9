"""Hospitals over NVFlare with provisioned certificates (make test-engine).

The jobs carry letters between agents: what comes out is what one process computes, bit for bit,
whatever is killed, and NVFlare's server reads nothing.
"""

import jax
import pytest
from deployment.federations import PRIOR, SITES, Federation, readable, records, until
from deployment.nvflare_kits import Deployment, kill_job
from engine.coins import opened

from posterity.artifact import digest
from posterity.cli.deployment import read_terms
from posterity.engine.memory import RESTING
from posterity.federation import Gossip, Run, Token, start
from posterity.federation.schedules import Schedule
from posterity.models import LogisticRegression

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


def in_process(federation: Federation, schedule: Schedule | None = None) -> Run:
    """The same federation in this process, before its first step."""
    key = jax.random.key(read_terms(federation.file).seed)
    data = {site: records(site) for site in SITES}
    return start(data, LogisticRegression(), PRIOR, schedule=schedule, padding=True, key=key)


def test_a_walk_of_which_a_site_and_a_job_are_killed_is_the_one_in_process(deployment, tmp_path):
    hops = 150
    federation = Federation(tmp_path / "gossip", "--steps", hops)
    deployment.point(federation)
    federation.start()
    with deployment.carrying():
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
    walked, run = answers(federation), in_process(federation, gossip)
    assert sorted(walked) == list(range(hops))
    for sequence in range(hops):
        run = run.advance(1)
        assert walked[sequence][1] == run.state.schedule["at"]
    assert resting(federation).exact_sum == run.token.exact_sum
    messages, size, seen = deployment.seen()
    assert messages > hops and size > 6_000 * hops and seen == 0


def test_a_walk_in_turn_is_the_one_in_process_and_is_read_only_where_nothing_is_encrypted(
    deployment, tmp_path
):
    passes = 100
    order = ["--schedule", '{kind = "sequential"}', "--steps", passes]
    federation = Federation(tmp_path / "sequential", *order, encrypted=False)
    deployment.point(federation)
    federation.start()
    before = deployment.seen()
    with deployment.carrying():
        federation.ask("cleveland", "begin")
        until(lambda: federation.sequence() >= 40, 90, "40 hops")
    messages, _, seen = deployment.seen()
    assert messages > before[0] and seen == 0
    stopped = federation.sequence()
    assert stopped < 3 * passes
    with deployment.carrying(encrypted=False):
        until(lambda: federation.sequence() == passes * len(SITES) - 1, 90, "the end of the walk")
    federation.stop()
    assert deployment.seen()[2] >= passes * len(SITES) - 1 - stopped
    run = in_process(federation).advance(passes)
    assert digest(resting(federation).posterior) == digest(run.posterior)
