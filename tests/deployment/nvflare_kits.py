"""NVFlare with provisioned certificates: a server and clients as processes of this machine."""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from deployment.federations import SITES, environment, installed, until

ADMIN = "admin@heart.org"
BUILDERS = {
    "workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]},
    "static_file.StaticFileBuilder": {"config_folder": "config"},
    "cert.CertBuilder": {},
    "signature.SignatureBuilder": {},
}


class Deployment:
    """A server and a client for each site, in a folder; ``times`` says how long things took."""

    def __init__(self, folder: Path, texts: list[bytes]):
        self.folder, self.times = folder, dict[str, float]()
        self.relayed = folder / "relayed"
        self.told, self.daemons = list[str](), []  # which end with their namespace
        (folder / "texts").write_bytes(b"\n".join(texts))
        people = [{"name": "localhost", "type": "server", "org": "heart", "fed_learn_port": 8002}]
        people += [{"name": site, "type": "client", "org": site} for site in SITES]
        people += [{"name": ADMIN, "type": "admin", "org": "heart", "role": "project_admin"}]
        builders = [
            {"path": f"nvflare.lighter.impl.{path}", "args": options}
            for path, options in BUILDERS.items()
        ]
        project = {"api_version": 3, "name": "heart", "description": "Four hospitals"}
        project |= {"participants": people, "builders": builders}
        (folder / "project.yml").write_text(json.dumps(project))  # JSON is YAML
        began = time.monotonic()
        command = installed(["nvflare", "provision", "-p", "project.yml", "-w", "work", "--force"])
        subprocess.run(command, cwd=folder, env=self._environment(), check=True)
        self.times["provision"] = time.monotonic() - began
        self.kits = folder / "work" / "heart" / "prod_00"

    def start(self) -> None:
        """Start the server and the clients."""
        from posterity.engine.transports.nvflare import allow

        self.began = time.monotonic()
        hook = {"RELAY_FILE": self.relayed, "RELAY_TEXTS": self.folder / "texts"}
        for name in ("localhost", *SITES):
            allow(self.kits / name)
            variables = self._environment(POSTERITY_SITE=self.folder / f"site-{name}")
            if name == "localhost":
                variables |= {key: str(value) for key, value in hook.items()}
                variables["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent / "hook")
            with open(self.folder / f"{name}.log", "wb") as log:
                start = ["bash", str(self.kits / name / "startup" / "start.sh")]
                self.daemons.append(subprocess.Popen(start, env=variables, stdout=log, stderr=log))

    def wait(self) -> None:
        """Wait until the clients are registered."""
        for name in SITES:
            log = self.folder / f"{name}.log"
            registered = lambda log=log: "Successfully registered client" in log.read_text()
            until(registered, 60, f"the client of {name}")
        self.times.setdefault("registered", time.monotonic() - self.began)

    def point(self, federation) -> None:
        """Let the couriers of jobs that begin from now on find the sites of a federation."""
        for site in federation.sites:
            link = self.folder / f"site-{'localhost' if site == 'server' else site}"
            link.unlink(missing_ok=True)
            link.symlink_to(federation[site])

    def carrying(self, **options) -> "Carrying":
        return Carrying(self, options)

    def seen(self) -> tuple[int, int, int]:
        """How many messages the server relayed, their bytes, and in how many it read a text."""
        lines = self.relayed.read_text().splitlines() if self.relayed.exists() else []
        rows = [tuple(map(int, line.split())) for line in lines]
        return len(rows), sum(size for size, _ in rows), sum(seen for _, seen in rows)

    def _environment(self, **variables: object) -> dict[str, str]:
        return environment(HOME=self.folder, **variables)


class Carrying:
    """A block in which jobs carry letters, as long as it lasts."""

    def __init__(self, deployment: Deployment, options: dict):
        from posterity.engine.transports.nvflare import submit  # not where tests are collected

        self.deployment, self.over = deployment, threading.Event()
        options |= {"tell": deployment.told.append, "until": self.over}
        kit = deployment.kits / ADMIN
        self.thread = threading.Thread(target=submit, args=(kit,), kwargs=options, daemon=True)

    def __enter__(self):
        self.deployment.wait()
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


def processes(*words: str) -> list[int]:
    """The processes whose command lines have all these words in them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(int(entry.name))
    return found


def kill_job(site: str) -> None:
    """End the process of the job at a site by SIGKILL."""
    (pid,) = processes("client.worker_process", f"/{site} ")
    os.kill(pid, signal.SIGKILL)


def memory(pid: int) -> float:
    """Resident megabytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
