"""Two hospitals and a server over Flower: a SuperLink and SuperNodes (make test-engine)."""

import subprocess
from pathlib import Path

import pytest
from deployment.federations import SITES, Federation, environment, in_process, installed, until

from posterity.artifact import digest
from posterity.federation import Sequential, Synchronous

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
TWO = SITES[:2]
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
CONFIG = """\
[superlink]
default = "local"

[superlink.local]
address = "127.0.0.1:8100"
insecure = true
"""


class Flower:
    """A SuperLink where the server of a federation is, and a SuperNode at each of its sites."""

    def __init__(self, folder: Path, federation: Federation):
        self.folder, self.log, self.processes = folder, folder / "superlink.log", []
        (folder / "flwr").mkdir(parents=True)
        (folder / "flwr" / "config.toml").write_text(CONFIG)
        self.variables = {"HOME": folder, "FLWR_HOME": folder / "flwr", **QUIET}
        link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", "8100"]
        self.start(self.log, link, federation["server"])
        until(lambda: "Uvicorn running" in self.log.read_text(), 240, "a SuperLink")
        for number, site in enumerate(TWO):
            node = ["flower-supernode", "--insecure", "--superlink", "127.0.0.1:8100"]
            node += ["--port", str(9100 + number)]
            self.start(folder / f"{site}.log", node, federation[site])
        until(lambda: self.log.read_text().count("Activated node") == len(TWO), 240, "SuperNodes")

    def start(self, log: Path, command: list[str], site: Path) -> None:
        variables = environment(POSTERITY_SITE=site, **self.variables)
        with open(log, "wb") as file:
            process = subprocess.Popen(installed(command), env=variables, stdout=file, stderr=file)
        self.processes.append(process)

    def run(self, rounds: int) -> None:
        """Start the app."""
        from posterity.engine.transports.flower import write_app  # not where tests are collected

        app = write_app(self.folder / "app", rounds=rounds)
        command = ["flwr", "run", str(app), "local"]
        variables = environment(**self.variables)
        run = subprocess.run(
            installed(command), env=variables, capture_output=True, text=True, check=True
        )
        assert "Successfully started run" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("schedule", "options", "steps"),
    [
        (Synchronous(damping=1.0), '{kind = "synchronous", damping = 1.0}', 1),
        (Sequential(), '{kind = "sequential"}', 2),
    ],
    ids=["a product in one round", "a star"],
)
def test_a_federation_with_a_server_is_the_one_in_process(tmp_path, schedule, options, steps):
    terms = ["--server", "server", "--schedule", options, "--steps", steps]
    federation = Federation(tmp_path / "one", *terms, encrypted=False, sites=(*TWO, "server"))
    flower = Flower(tmp_path / "flower", federation)
    federation.start()
    federation.ask("server", "begin")
    flower.run(rounds=0)
    until(federation.rests, 400, "the end of the last round")
    federation.stop()
    run = in_process(*TWO, schedule=schedule).advance(steps)
    assert digest(federation.course().posterior) == digest(run.posterior)
