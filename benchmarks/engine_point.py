"""One measurement of the engine in a process of its own; started by `benchmarks.engine`."""

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import posterity
import posterity.artifact
from benchmarks.measure import answer
from benchmarks.resident import resident
from posterity.engine.agent import Agent
from posterity.engine.agreement import Terms
from posterity.engine.machine import Machine
from posterity.engine.memory import Step
from posterity.engine.messages import Letter
from posterity.engine.running import Running
from posterity.engine.signing import Envelope, PrivateKey
from posterity.engine.star import Server
from posterity.engine.store import Change, Store
from posterity.engine.transports.unix import Client
from posterity.errors import PosterityError
from posterity.families import Dirichlet
from posterity.federation import Token
from posterity.federation.site import Site

RECORDS, WARM = 200, 5
SERVER = "server"
TWO = """name = "two"
steps = 100000
[members]
{}
[model]
kind = "dirichlet-categorical"
options = {{ categories = {} }}
[prior]
file = "prior.safetensors"
"""


@dataclasses.dataclass(frozen=True)
class Size:
    """A federation: how many sites, how many parameters, letters of one write to the disk.

    Without ``steps`` it goes on until it has converged.
    """

    sites: int
    parameters: int
    batch: int = 1
    protocol: str = "walk"
    schedule: str = "sequential"
    steps: int | None = None
    first: int = 0  # the number of the first site


class Counted(Store):
    """A store that counts its writes."""

    commits = 0

    def commit(self, change: Change) -> None:
        self.commits += 1
        super().commit(change)


class World:
    """All members of a federation in this process, with real stores in a folder."""

    def __init__(self, size: Size, folder: Path):
        names = [f"{number:05}" for number in range(size.first, size.first + size.sites)]
        star = size.protocol == "star"
        members = [*names, SERVER] if star else names
        self.keys = {
            name: PrivateKey((n + 1).to_bytes(32, "big")) for n, name in enumerate(members)
        }
        self.terms = Terms.of(
            "benchmark",
            model="dirichlet-categorical",
            options={"categories": size.parameters},
            prior=Dirichlet.from_standard(np.ones(size.parameters)),
            members={name: str(key.public) for name, key in self.keys.items()},
            schedule={"kind": size.schedule},
            server=SERVER if star else None,
            steps=size.steps,
        )
        self.folder = folder
        self.agents = {name: self.agent(name) for name in members}
        self.first = self.agents[SERVER if star else names[0]]

    def agent(self, name: str) -> Agent:
        machine = self.machine(name)
        first = Step(machine.MEMORY.empty(name)).change
        return Agent(machine, Counted.create(self.folder / f"{name}.db", first))

    def machine(self, name: str) -> Machine:
        rng = np.random.default_rng(0 if name == SERVER else int(name))
        categories = self.terms.agreement.prior.natural_parameters.size
        data = rng.integers(0, categories, 0 if name == SERVER else RECORDS)
        site = Site.of(self.terms.agreement, name, data)
        return (Server if name == SERVER else Machine)(self.terms, site, self.keys[name])


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("ENGINE_FOLDER")) as path:
        yield Path(path)


# --- hops ----------------------------------------------------------------------------------------


def hop(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """A token to and fro between two sites, each taking it in with one write to the disk."""
    del seed, budget
    wall, cpu = [], []
    with folder() as path:
        world = World(size, path)
        sent = world.first.command(world.first.machine.begin)
        waiting = deque(sent)
        while len(wall) < runs + WARM:
            receiver, content = waiting.popleft()
            before, before_cpu = time.perf_counter(), time.process_time()
            waiting.extend(world.agents[receiver].receive(content))
            if is_token(content):
                wall.append(time.perf_counter() - before)
                cpu.append(time.process_time() - before_cpu)
        state = world.first.store
        written = len(state.state) + sum(len(row.content) for row in state.outbox.values())
        bare = commits(path / "bare.db", written, runs)
    hops = wall[WARM:]
    return {
        "p50_s": median(hops),
        "p95_s": float(np.quantile(hops, 0.95)),
        "cpu_s": median(cpu[WARM:]),
        "bytes": written,
        "bare_commit_p50_s": bare,
        "ratio": median(hops) / bare,
    }


def is_token(content: bytes) -> bool:
    letter = Letter.from_bytes(Envelope.from_bytes(content).payload)
    return isinstance(letter.body, Token)


def commits(path: Path, size: int, runs: int) -> float:
    """The median time in which bare SQLite makes so many bytes durable."""
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = wal", "synchronous = full"):
        connection.execute(f"pragma {pragma}").fetchall()
    connection.execute("create table t (id integer primary key, content blob)")
    times = []
    for _ in range(runs):
        content = os.urandom(size)
        start = time.perf_counter()
        connection.execute("insert or replace into t values (0, ?)", (content,))
        times.append(time.perf_counter() - start)
    connection.close()
    return median(times)


def socket(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """A token to and fro between the agents of two sites, over Unix sockets."""
    del seed
    times, done = [], threading.Event()

    def tell(event: dict[str, Any]) -> None:
        if "answer" in event and "token" in event:
            times.append(time.perf_counter())
        if len(times) > runs + WARM:
            done.set()

    with folder() as path:
        world = World(size, path)
        paths = {name: path / f"{name}.sock" for name in world.agents}
        running = {}
        for name, agent in world.agents.items():
            others = {other: p for other, p in paths.items() if other != name}
            running[name] = Running(agent, sockets=others, encrypted=False, tell=tell)
            threading.Thread(target=running[name].run, args=(paths[name],), daemon=True).start()
        first, *_ = running
        with Client(paths[first]) as client:
            until(lambda: client.ask("status"))
            client.ask("begin")
        done.wait(budget)
        for each in running.values():
            each.stop()
        time.sleep(0.2)
    hops = [after - before for before, after in itertools.pairwise(times)][WARM:]
    return {"p50_s": median(hops), "p95_s": float(np.quantile(hops, 0.95)), "hops": len(hops)}


# --- a server ------------------------------------------------------------------------------------


def server(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Answers that all wait at a server, taken in so many a write."""
    del seed, runs, budget
    with folder() as path:
        world = World(size, path)
        asked = world.first.command(world.first.machine.begin)
        answers = [
            world.agents[receiver].machine.receive(world.agents[receiver].memory, content).sent[-1]
            for receiver, content in asked
        ]
        letters = [letter.content for letter in answers]
        wall, cpu = time.perf_counter(), time.process_time()
        for start in range(0, len(letters) - 1, size.batch):
            world.first.receive(*letters[start : min(start + size.batch, len(letters) - 1)])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        count = len(letters) - 1
        begun = time.perf_counter()
        world.first.receive(letters[-1])
        rest = time.perf_counter() - begun
    return {
        "updates_s": count / wall,
        "updates_cpu_s": count / cpu,
        "round_end_s": rest,
        "letter_bytes": len(letters[0]),
    }


# --- scale ---------------------------------------------------------------------------------------


def scale(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """A federation of many sites from the first letter until it rests."""
    del seed, runs, budget
    base = resident("VmRSS")
    with folder() as path:
        world = World(size, path)
        built = resident("VmRSS")
        waiting: dict[str, deque[bytes]] = {name: deque() for name in world.agents}
        count: Counter[str] = Counter()

        def send(sent: Any) -> None:
            for receiver, content in sent:
                waiting[receiver].append(content)
                count["letters"] += 1
                count["bytes"] += len(content)

        wall, cpu = time.perf_counter(), time.process_time()
        send(world.first.command(world.first.machine.begin))
        while any(waiting.values()):
            for name, letters in waiting.items():
                while letters:
                    batch = [letters.popleft() for _ in range(min(size.batch, len(letters)))]
                    send(world.agents[name].receive(*batch))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        status = world.first.machine.status(world.first.memory)
        stores = [agent.store for agent in world.agents.values()]
        disk = sum(file.stat().st_size for file in path.iterdir())
        most = max(agent.store.commits for agent in world.agents.values())
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "letters": count["letters"],
        "sent_bytes": count["bytes"],
        "writes": sum(store.commits for store in stores),
        "most_writes": most,
        "disk_bytes": disk,
        "memory_bytes": resident("VmRSS") - base,
        "memory_built_bytes": built - base,
        "end": str(status),
    }


def tree(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Ten regions, each a star of its own; their ledgers fused, beside one star of all sites."""
    del seed, runs, budget
    ledgers, cpu = [], time.process_time()
    for region in range(10):
        with folder() as path:
            own = dataclasses.replace(size, first=region * size.sites)
            ledgers.append(rested(World(own, path)).ledger)
    regions, before = time.process_time() - cpu, time.process_time()
    fused = posterity.fuse(ledgers, rule="product", prior=ledgers[0].prior)
    fusing = time.process_time() - before
    with folder() as path:
        before = time.process_time()
        flat = rested(World(dataclasses.replace(size, sites=10 * size.sites), path))
        whole = time.process_time() - before
    return {
        "regions_cpu_s": regions,
        "fuse_cpu_s": fusing,
        "flat_cpu_s": whole,
        "bit_for_bit": posterity.artifact.digest(fused.posterior)
        == posterity.artifact.digest(flat.posterior),
    }


def rested(world: World) -> Any:
    waiting = deque(world.first.command(world.first.machine.begin))
    while waiting:
        receiver, content = waiting.popleft()
        waiting.extend(world.agents[receiver].receive(content))
    memory: Any = world.first.memory
    return memory.course.run


# --- processes -----------------------------------------------------------------------------------


def process(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """The time that an agent takes to start, and to be back once it was killed in mid-walk."""
    del seed, budget
    with folder() as path:
        prior = Dirichlet.from_standard(np.ones(size.parameters))
        posterity.save(prior, path / "prior.safetensors")
        members = []
        for name, other in ("ab", "ba"):
            np.savez(path / f"{name}.npz", x=np.arange(RECORDS) % size.parameters)
            line = ["--name", name, "--data", path / f"{name}.npz"]
            line.append(f"--socket={other}={path}/{other}/site.sock")
            key = json.loads(command("site", "init", path / name, *line, "--json"))["key"]
            members.append(f'{name} = "{key}"')
        (path / "federation.toml").write_text(TWO.format("\n".join(members), size.parameters))
        for name in "ab":
            command("site", "init", path / name, "--federation", path / "federation.toml")
        started, back, memory, used = [], [], 0, 0.0
        other, _ = started_agent(path / "b")
        try:
            for number in range(runs):
                agent, seconds = started_agent(path / "a")
                (back if number else started).append(seconds)
                used = used or own_cpu(agent.pid)
                with Client(path / "a" / "site.sock") as client:
                    if not number:
                        client.ask("begin")
                    time.sleep(0.5)
                memory = max(memory, own_memory(agent.pid))
                agent.send_signal(signal.SIGKILL)
                agent.wait()
        finally:
            other.kill()
            other.wait()
    return {
        "start_s": median(started),
        "back_s": median(back),
        "start_cpu_s": used,
        "memory_bytes": memory,
    }


def command(*words: Any) -> str:
    line = [sys.executable, "-m", "posterity", *map(str, words)]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def started_agent(path: Path) -> tuple[subprocess.Popen[bytes], float]:
    """An agent that answers at its socket, and the seconds that it took."""
    start = time.perf_counter()
    line = [sys.executable, "-m", "posterity", "site", "run", str(path)]
    agent = subprocess.Popen(line, stdout=subprocess.DEVNULL)

    def ask() -> None:
        with Client(path / "site.sock") as client:
            client.ask("status")

    until(ask)
    return agent, time.perf_counter() - start


def until(call: Any, seconds: float = 120.0) -> None:
    """Call it again and again until it raises nothing."""
    end = time.monotonic() + seconds
    while True:
        try:
            call()
        except PosterityError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def own_cpu(pid: int) -> float:
    """CPU seconds of a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def own_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) * 1024


if __name__ == "__main__":
    kinds = (hop, socket, server, scale, tree, process)
    answer(Size, {kind.__name__: kind for kind in kinds})
