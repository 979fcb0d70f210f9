"""NVFlare on one machine, as organisations run it on theirs: certificates, a server and clients.

Whoever uses this ends its processes by their namespace (``.ci/apart``): NVFlare's start scripts
start what has ended again.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posterity.engine.transports.unix import SITE

SERVER, ADMIN, PORT = "localhost", "admin@hearts.org", 8002
BUILDERS = {
    "workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]},
    "static_file.StaticFileBuilder": {"config_folder": "config"},
    "cert.CertBuilder": {},
    "signature.SignatureBuilder": {},
}
REGISTERED = "Successfully registered client"


class NVFlare:
    """A server and a client for each of ``sites``, in a new ``folder`` (an absolute path).

    ``environment`` is that of its processes.
    """

    def __init__(self, folder: Path, sites: tuple[str, ...], environment: Mapping[str, str]):
        path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
        self.folder, self.sites = folder, sites
        self.environment = {**environment, "HOME": str(folder), "PATH": path}
        self.kits, self.daemons = folder / "kits" / "hearts" / "prod_00", list[Any]()
        self.told = folder / "submit.log"
        folder.mkdir(parents=True)

    def provision(self) -> None:
        """Make a kit for each, with keys and certificates of a root of their own."""
        people: list[dict[str, object]] = [
            {"name": SERVER, "type": "server", "org": "hearts", "fed_learn_port": PORT},
            {"name": ADMIN, "type": "admin", "org": "hearts", "role": "project_admin"},
        ]
        people += [{"name": site, "type": "client", "org": site} for site in self.sites]
        builders = [
            {"path": f"nvflare.lighter.impl.{path}", "args": options}
            for path, options in BUILDERS.items()
        ]
        project = {"api_version": 3, "name": "hearts", "description": "Hospitals"}
        project |= {"participants": people, "builders": builders}
        (self.folder / "project.yml").write_text(json.dumps(project))  # JSON is YAML
        line = ["nvflare", "provision", "-p", "project.yml", "-w", "kits", "--force"]
        with open(self.folder / "provision.log", "wb") as log:
            subprocess.run(line, cwd=self.folder, check=True, **self._output(log))

    def start(self, folders: Mapping[str, Path], **server: str) -> None:
        """Start the server and the clients, each with the folder of its site, by name.

        That of the member ``server`` is where NVFlare's server is; ``server`` are more variables of
        its environment.
        """
        from posterity.engine.transports.nvflare import allow

        if os.getpid() != 1:
            raise SystemExit("NVFlare's processes end with their namespace: use .ci/apart COMMAND")
        for name in (SERVER, *self.sites):
            allow(self.kits / name)
            site = folders.get("server" if name == SERVER else name)
            more = {} if site is None else {SITE: str(site)}
            more |= server if name == SERVER else {}
            line = ["bash", str(self.kits / name / "startup" / "start.sh")]
            with open(self.folder / f"{name}.log", "wb") as log:
                self.daemons.append(subprocess.Popen(line, **self._output(log, more)))

    def wait(self, seconds: float = 240.0) -> None:
        """Wait until all clients are registered."""
        logs, deadline = [self.folder / f"{site}.log" for site in self.sites], time.monotonic()
        while not all(REGISTERED in log.read_text() for log in logs):
            if time.monotonic() > deadline + seconds:
                raise SystemExit(f"NVFlare does not start: see the logs in {self.folder}")
            time.sleep(0.1)

    @contextlib.contextmanager
    def carrying(self, *options: str) -> Iterator[None]:
        """A block in which jobs carry letters."""
        self.wait()
        line = [sys.executable, "-m", "posterity", "federation", "submit", str(self.kits / ADMIN)]
        with open(self.told, "ab") as log:
            process = subprocess.Popen([*line, *options], **self._output(log))
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)

    def jobs(self) -> int:
        """How many jobs were submitted."""
        return self.told.read_text().count(": submitted for ")

    def _output(self, log: Any, more: Mapping[str, str] | None = None) -> dict[str, Any]:
        return {"env": self.environment | (more or {}), "stdout": log, "stderr": log}
