"""Letters over Flower: an app whose processes carry them between the sockets of agents.

Its ClientApp delivers letters to its site's agent and collects those that are due. Its ServerApp
sends messages to the nodes and routes letters by the names of their receivers. Neither holds state
that must not be lost. A process finds its agent by the variable POSTERITY_SITE, the site's folder,
in the environment in which its SuperNode was started. For the SuperLink it is the folder of the
member ``server``.

Letters are signed, so they cannot be altered, but the SuperLink can read them. An agent that
demands encryption hands out no letters.
"""

import logging
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path

from posterity.engine.transports.unix import SERVER, Client, agent_here, no_agent
from posterity.errors import MissingExtraError, PosterityError

try:
    from flwr.app import ConfigRecord, Context, Message, RecordDict  # pyright: ignore[reportMissingImports]
    from flwr.clientapp import ClientApp  # pyright: ignore[reportMissingImports]
    from flwr.serverapp import Grid, ServerApp  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingExtraError.of("flwr", "flower") from error

APP = """\
[project]
name = "posterity-letters"
version = "1.0.0"
description = "Carries letters between the agents of posterity."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "posterity"

[tool.flwr.app.components]
serverapp = "posterity.engine.transports.flower:server"
clientapp = "posterity.engine.transports.flower:client"

[tool.flwr.app.config]
rounds = {rounds}
timeout = {timeout}
"""
client = ClientApp()
server = ServerApp()
Letters = list[tuple[str, bytes]]
_log = logging.getLogger(__name__)


def write_app(folder: Path, *, rounds: int = 0, timeout: float = 120.0) -> Path:
    """Write the app for ``flwr run``. It names installed components, and contains no code. It ends
    after ``rounds`` rounds of messages; with zero it runs until it is stopped. Nodes have to answer
    within ``timeout`` seconds: later answers are lost, and agents send them again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(APP.format(rounds=rounds, timeout=timeout))
    return folder


@client.query("letters")
def carry(message: Message, context: Context) -> Message:
    """The ClientApp: deliver letters to this site's agent, and return its letters for others."""
    socket = agent_here()
    if socket is None:
        raise no_agent(f"node {context.node_id}")
    name = tomllib.loads((socket.parent / "site.toml").read_text())["name"]
    letters = _exchange(socket, [letter for _, letter in _read(message)])
    return Message(content=_record(letters, name), reply_to=message)


@server.main()
def route(grid: Grid, context: Context) -> None:
    """The ServerApp: rounds of messages to the nodes with waiting letters, or else to all."""
    rounds = int(context.run_config["rounds"])
    timeout = float(context.run_config["timeout"])
    number = 0
    routes = Routes()
    while number < rounds or not rounds:
        number += 1
        here = agent_here()
        if here is not None:
            letters = _exchange(here, routes.taken(SERVER))
            routes.waiting += letters
        messages = [
            Message(content=_record(letters), message_type="query.letters", dst_node_id=node)
            for node, letters in routes.asked(grid.get_node_ids()).items()
        ]
        for reply in grid.send_and_receive(messages, timeout=timeout):
            node = reply.metadata.src_node_id
            if reply.has_error():
                _log.warning("node %d: %s", node, reply.error)
                continue
            routes.nodes[str(reply.content["letters"]["site"])] = node
            routes.waiting += _read(reply)


class Routes:
    """The node of each site, and the letters that wait, each with its receiver."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        self.waiting: Letters = []

    def taken(self, receiver: str) -> list[bytes]:
        """Remove the letters to one receiver, and return them."""
        letters = [letter for to, letter in self.waiting if to == receiver]
        self.waiting = [each for each in self.waiting if each[0] != receiver]
        return letters

    def asked(self, nodes: Iterable[int]) -> dict[int, Letters]:
        """Return the nodes of a round with the letters for each. Letters to a site at none of the
        nodes are dropped; the agents that sent them send them again. If no letter can be delivered,
        as in the first round, all nodes get a message.
        """
        mine = self.waiting
        self.waiting = [each for each in self.waiting if each[0] == SERVER]
        asked: dict[int, Letters] = {node: [] for node in nodes}
        for to, letter in mine:
            if self.nodes.get(to) in asked:
                asked[self.nodes[to]].append((to, letter))
        return {node: letters for node, letters in asked.items() if letters} or asked


def _exchange(
    socket: Path,
    letters: Iterable[bytes],
    *,
    most: int = 64,
    quiet: float = 1.0,
    longest: float = 15.0,
) -> Letters:
    """Deliver letters to an agent, and collect its letters, at most ``most`` at once, until none
    comes for ``quiet`` seconds, or ``longest`` seconds are over.
    """
    due: Letters = []
    try:
        with Client(socket) as agent:
            for letter in letters:
                agent.deliver(letter)
            over = time.monotonic() + longest
            while time.monotonic() < over:
                more = agent.collect(wait=quiet, most=most, encrypted=False)
                if not more:
                    break
                due += more
    except PosterityError as error:  # a restarted agent has lost no letters
        _log.warning("no letters to carry: %s", error)
    return due


def _record(letters: Letters, site: str = "") -> RecordDict:
    receivers = [to for to, _ in letters]
    contents = [letter for _, letter in letters]
    values = {"site": site, "receivers": receivers, "letters": contents}
    return RecordDict({"letters": ConfigRecord(values)})


def _read(message: Message) -> Letters:
    record = message.content["letters"]
    return list(zip(record["receivers"], record["letters"], strict=True))
