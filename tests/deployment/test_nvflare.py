"""Hospitals over NVFlare with provisioned certificates (make test-engine).

The jobs carry letters between agents: what comes out is what one process computes, bit for bit,
whatever is killed, and NVFlare's server reads nothing.
"""

import os
import signal
from pathlib import Path

import pytest
from deployment.federations import SITES, Federation, environment, in_process, readable, until
from engine.coins import opened

from examples.deploy.nvflare import NVFlare
from posterity.artifact import digest
from posterity.cli.deployment import read_terms
from posterity.engine.memory import RESTING
from posterity.federation import Gossip, Token

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
TEXTS = ["application/vnd.posterity.message", '"kind":"Token"', '"kind": "Token"']
HOOK = Path(__file__).parent / "hook"


class Hospitals(NVFlare):
    """NVFlare with a link to a folder for each member, and a note of what its server relays."""

    def __init__(self, folder: Path):
        super().__init__(folder, SITES, environment())
        self.relayed, texts = folder / "relayed", folder / "texts"
        self.links = {name: folder / f"site-{name}" for name in (*SITES, "server")}
        texts.write_bytes(b"\n".join(text for each in TEXTS for text in readable(each)))
        self.provision()
        path = os.pathsep.join([str(HOOK), self.environment["PYTHONPATH"]])
        hook = {"RELAY_FILE": str(self.relayed), "RELAY_TEXTS": str(texts), "PYTHONPATH": path}
        self.start(self.links, **hook)

    def point(self, federation: Federation) -> None:
        """Let couriers find the sites of a federation."""
        for name in federation.sites:
            self.links[name].unlink(missing_ok=True)
            self.links[name].symlink_to(federation[name])

    def seen(self) -> tuple[int, int, int]:
        """How many messages the server relayed, their bytes, and in how many it read a text."""
        lines = self.relayed.read_text().splitlines() if self.relayed.exists() else []
        rows = [tuple(map(int, line.split())) for line in lines]
        return len(rows), sum(size for size, _ in rows), sum(seen for _, seen in rows)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    return Hospitals(tmp_path_factory.mktemp("run") / "nvflare")


def kill_job(site: str) -> None:
    """End the process of the job at a site by SIGKILL."""
    lines = {int(p.parent.name): p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline")}
    words = b"client.worker_process", f"/{site}\0".encode()
    (pid,) = [number for number, line in lines.items() if all(word in line for word in words)]
    os.kill(pid, signal.SIGKILL)


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


def test_a_walk_of_which_a_site_and_a_job_are_killed_is_the_one_in_process(hospitals, tmp_path):
    hops = 150
    federation = Federation(tmp_path / "gossip", "--steps", hops)
    hospitals.point(federation)
    with hospitals.carrying():
        federation.start()
        federation.ask("cleveland", "begin")
        until(lambda: federation.sequence() >= 20, 240, "20 hops")
        federation.kill("hungary")
        kill_job("hungary")
        killed = federation.sequence()
        federation.start("hungary")
        until(lambda: federation.sequence() == hops - 1, 240, "the end of the walk")
    federation.stop()
    assert killed < hops - 20
    assert hospitals.jobs() == 2
    gossip = Gossip(read_terms(federation.file).walk(frozenset()).graph, start="cleveland")
    walked, run = answers(federation), in_process(*SITES, schedule=gossip)
    assert sorted(walked) == list(range(hops))
    for sequence in range(hops):
        run = run.advance(1)
        assert walked[sequence][1] == run.state.schedule["at"]
    assert resting(federation).exact_sum == run.token.exact_sum
    messages, size, seen = hospitals.seen()
    assert messages > hops and size > 6_000 * hops and seen == 0


def test_a_star_is_the_one_in_process_and_is_read_only_where_nothing_is_encrypted(
    hospitals, tmp_path
):
    passes = 100
    options = ["--server", "server", "--steps", passes]
    federation = Federation(tmp_path / "star", *options, encrypted=False, sites=(*SITES, "server"))
    hospitals.point(federation)
    before = hospitals.seen()
    with hospitals.carrying():
        federation.start()
        known = federation.ask("server", "status")["log"]
        federation.ask("server", "begin")
        until(lambda: federation.ask("server", "status")["log"] >= known + 40, 240, "40 answers")
    messages, _, seen = hospitals.seen()
    assert messages > before[0] and seen == 0
    assert not federation.rests()
    with hospitals.carrying("--no-encrypted"):
        until(federation.rests, 240, "the end of all passes")
    federation.stop()
    assert hospitals.seen()[2] > 100
    run = in_process(*SITES).advance(passes)
    assert digest(federation.course().posterior) == digest(run.posterior)
