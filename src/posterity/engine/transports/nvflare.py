"""Letters over NVFlare: couriers between the sockets of agents, in jobs that may end at any time.

A job (:func:`write_job`) names :class:`Site` and :class:`Server` by their import paths and contains
no code. At each site its process collects letters from the agent and sends each to the receiver's
process, encrypted from end to end, which delivers it to its own agent. The processes hold no state,
so the next job continues from the agents' letters. A process finds its agent by the variable
POSTERITY_SITE, the site's folder, in the environment in which NVFlare was started. A member is
named after the NVFlare client that carries its letters; ``server`` is the member at NVFlare's
server.
"""

import contextlib
import json
import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from posterity.engine.refusal import reading
from posterity.engine.transports.unix import SERVER, Client, agent_here, no_agent
from posterity.errors import MissingExtraError, PosterityError

try:
    from nvflare.apis.fl_constant import FLContextKey  # pyright: ignore[reportMissingImports]
    from nvflare.collab import collab  # pyright: ignore[reportMissingImports]
    from nvflare.fuel.flare_api.flare_api import Session, new_secure_session  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingExtraError.of("nvflare", "nvflare") from error

ALLOWED = ("nvflare.collab.", "posterity.engine.transports.nvflare.")
"""Prefixes of import paths that a kit has to allow, since jobs contain no code."""
_log = logging.getLogger(__name__)


class Courier:
    """The part of a job at any member: it carries letters, and holds no state.

    If ``encrypted`` is false, or NVFlare runs without certificates as its simulator does, letters
    can be read on the way. An agent that demands encryption then hands out none.

    A call to another site takes at most ``call`` seconds, and an agent is waited for ``wait``
    seconds; after a failure ``pause`` seconds go by. At most ``most`` letters are on their way to
    one receiver.
    """

    call = 20.0
    wait = 0.5
    pause = 1.0
    most = 4

    def __init__(self, encrypted: bool = True):
        self.encrypted = encrypted
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._busy = Counter[str]()
        self._failed = True

    @collab.init
    def prepare(self) -> None:
        """Store the members that can be reached, which NVFlare gives only within its own calls."""
        self.encrypted &= bool(collab.fl_ctx.get_prop(FLContextKey.SECURE_MODE, False))
        self._name, self._socket = collab.site_name, agent_here()
        others = {each.name: each for each in (*collab.clients, collab.server)}
        self._others = {name: each for name, each in others.items() if name != self._name}

    @collab.publish
    def begin(self) -> None:
        """Carry letters from now on, since all processes of the job run."""
        if self._socket is not None:
            threading.Thread(target=self._carry, args=(self._socket,), daemon=True).start()

    @collab.publish
    def deliver(self, letter: bytes) -> None:
        """Deliver a letter to the agent here, which acknowledges it by a letter of its own."""
        if self._socket is None:
            raise no_agent(self._name)
        with Client(self._socket) as agent:
            agent.deliver(letter)

    @collab.final
    def end(self) -> None:
        """Stop carrying letters."""
        self._ended.set()

    def _carry(self, socket: Path) -> None:
        """Collect letters from the agent while the job runs, and have them delivered."""
        with Client(socket) as agent, ThreadPoolExecutor(64) as pool:
            while not self._ended.is_set():
                with self._lock:
                    free = [name for name in self._others if self._busy[name] < self.most]
                    again = self._failed
                    self._failed = False
                try:
                    about = {"wait": self.wait, "most": self.most, "to": free, "again": again}
                    letters = agent.collect(**about, encrypted=self.encrypted)
                except PosterityError as error:  # a restarted agent has lost no letters
                    _log.warning("%s: no letters to carry: %s", self._name, error)
                    self._ended.wait(self.pause)
                    continue
                for receiver, letter in letters:
                    with self._lock:
                        self._busy[receiver] += 1
                    pool.submit(self._hand, receiver, letter)

    def _hand(self, receiver: str, letter: bytes) -> None:
        """Send a letter to the receiver's process; if that fails, the agent hands it out again."""
        try:
            self._others[receiver](secure=self.encrypted, timeout=self.call).deliver(letter)
        except Exception as error:  # of many types, of NVFlare and of the agent there
            _log.warning("%s: a letter did not reach %s: %s", self._name, receiver, error)
            self._failed = True
            self._ended.wait(self.pause)
        finally:
            with self._lock:
                self._busy[receiver] -= 1


class Site(Courier):
    """The part of a job at a client of NVFlare."""


class Server(Courier):
    """The part of a job at NVFlare's server, which starts the others and waits. It ends after
    ``seconds`` seconds, so that a job that hangs ends too.
    """

    def __init__(self, encrypted: bool = True, seconds: float = 3600.0):
        super().__init__(encrypted)
        self.seconds = seconds

    @collab.main
    def run(self) -> None:
        """Start all couriers, and wait until the job is over."""
        over = time.monotonic() + self.seconds
        collab.clients(timeout=self.call).begin()
        self.begin()
        while time.monotonic() < over and not collab.is_aborted:
            self._ended.wait(0.2)


# --- jobs ----------------------------------------------------------------------------------------


def write_job(
    folder: Path, sites: Iterable[str], *, encrypted: bool = True, seconds: float = 3600.0
) -> Path:
    """Write the job that carries letters between ``sites``, clients of NVFlare; returns its folder.
    It names classes that are installed at the sites, and contains no code.
    """
    path = "posterity.engine.transports.nvflare."
    server = {"encrypted": encrypted, "seconds": seconds}
    run = {"server_obj_id": "_server", "collab_obj_ids": [], "props": {}}
    step = {"client_obj_id": "_client", "collab_obj_ids": [], "props": {}}
    step = {"path": "nvflare.collab.runtime.executor.CollabExecutor", "args": step}
    controller = "nvflare.collab.runtime.controller.CollabController"
    files: dict[str, dict[str, Any]] = {
        "meta.json": {
            "name": "posterity",
            "min_clients": 1,
            "deploy_map": {"app": [SERVER, *sorted(sites)]},
        },
        "app/config/config_fed_server.json": {
            "workflows": [{"id": "controller", "path": controller, "args": run}],
            "components": [{"id": "_server", "path": path + "Server", "args": server}],
        },
        "app/config/config_fed_client.json": {
            "executors": [{"tasks": ["*"], "executor": step}],
            "components": [
                {"id": "_client", "path": path + "Site", "args": {"encrypted": encrypted}}
            ],
        },
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"format_version": 2, **content}, indent=2))
    return folder


def allow(kit: Path) -> None:
    """Allow the job's classes at a server or client of NVFlare, in ``local/resources.json``. Raises
    an ArtifactError if the folder is no kit that NVFlare provisioned.
    """
    own = kit / "local" / "resources.json"
    default = kit / "local" / "resources.json.default"
    with _reading(kit):
        resources = json.loads((own if own.is_file() else default).read_text())
        allowed = resources["class_allow_list"]
        resources["class_allow_list"] = allowed + [p for p in ALLOWED if p not in allowed]
    own.write_text(json.dumps(resources, indent=2))


def submit(
    kit: Path,
    *,
    encrypted: bool = True,
    seconds: float = 3600.0,
    tell: Callable[[str], None] = print,
    until: threading.Event | None = None,
    pause: float = 1.0,
) -> None:
    """Keep a job running that carries letters, until the event ``until`` is set.

    ``kit`` is the folder that NVFlare provisioned for an administrator. A new job follows whenever
    one ends, because a site was lost or its ``seconds`` are over, and when a client connects that
    it lacks. After a failure ``pause`` seconds go by. ``tell`` is called with a line for each
    event. Raises an ArtifactError if the folder is no such kit.
    """
    until = until or threading.Event()
    with _reading(kit):
        user = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]["username"]
    while not until.is_set():
        session = None
        try:
            session = new_secure_session(user, str(kit), timeout=60.0)
            _keep(session, {"encrypted": encrypted, "seconds": seconds}, tell, until, pause)
        except Exception as error:  # of many types: the server is down or was restarted
            tell(f"NVFlare's server does not answer ({error}); trying again")
            until.wait(pause)
        finally:
            with contextlib.suppress(Exception):
                if session is not None:
                    session.close()


def _keep(
    session: Session,
    options: Mapping[str, Any],
    tell: Callable[[str], None],
    until: threading.Event,
    pause: float,
    longest: float = 60.0,
) -> None:
    """Keep a job running, with a ``pause`` before the next. After jobs that end within ``longest``
    seconds it doubles, up to as many.
    """
    shortest = pause
    sites = frozenset[str]()
    while sites := _settled(session, until, sites):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            job = session.submit_job(str(write_job(Path(folder) / "posterity", sites, **options)))
        tell(f"job {job}: submitted for {', '.join(sorted(sites))}")
        status = ""
        try:
            while not until.wait(1.0) and not status.startswith("FINISHED"):
                before = status
                status = session.get_job_meta(job)["status"]
                if status != before:
                    tell(f"job {job}: {status}")
                if _there(session) - sites and _settled(session, until, sites) - sites:
                    tell(f"job {job}: to end, since others have come")
                    break
        finally:
            if not status.startswith("FINISHED"):
                with contextlib.suppress(Exception):
                    session.abort_job(job)
        failed = status.startswith("FINISHED") and time.monotonic() - began < longest
        pause = min(2 * pause, longest) if failed else shortest
        until.wait(pause)


def _settled(
    session: Session, until: threading.Event, before: frozenset[str], seconds: float = 5.0
) -> frozenset[str]:
    """Return the clients that are present: those of ``before``, or others once they have not
    changed for some ``seconds``. None are returned if ``until`` is set.
    """
    there = frozenset[str]()
    since = time.monotonic()
    while not until.wait(1.0):
        last = there
        there = _there(session)
        if there != last:
            since = time.monotonic()
        if there and (there == before or time.monotonic() - since >= seconds):
            return there
    return frozenset()


def _there(session: Session, age: float = 30.0) -> frozenset[str]:
    """Return the clients whose last connection has at most an ``age`` in seconds."""
    clients = session.get_system_info().client_info
    since = time.time() - age
    return frozenset(each.name for each in clients if (each.last_connect_time or 0) > since)


def _reading(kit: Path) -> contextlib.AbstractContextManager[None]:
    """Return a context that raises an ArtifactError if what is done inside needs a file that the
    kit lacks.
    """
    return reading(f"files of '{kit}'", "a folder that `nvflare provision` made", fix="")
