"""Hops of a token over NVFlare with certificates: `.ci/apart python -m benchmarks.couriers`.

Two sites, each with an agent, a client of NVFlare and a job of their own, on this machine. The time
between two answers is one hop: a letter collected, encrypted, relayed by the server, delivered, its
token answered and made durable.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median

import numpy as np

import posterity
from examples.deploy.nvflare import NVFlare
from experiments import provenance
from posterity.engine.transports.unix import Client
from posterity.errors import PosterityError
from posterity.families import Dirichlet

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "benchmarks" / "results" / "couriers.json"
SITES, PARAMETERS, HOPS, WARM = ("north", "south"), 10_000, 300, 20


def posterity_line(*words: object) -> list[str]:
    return [sys.executable, "-m", "posterity", *map(str, words)]


def told(*words: object) -> dict:
    run = subprocess.run(posterity_line(*words, "--json"), capture_output=True, check=True)
    return json.loads(run.stdout)


def make(folder: Path) -> None:
    """Two sites with a table of as many counts as there are parameters."""
    posterity.save(Dirichlet.from_standard(np.ones(PARAMETERS)), folder / "prior.safetensors")
    (folder / "more.toml").write_text(f"[model]\noptions = {{ categories = {PARAMETERS} }}\n")
    members = []
    for site in SITES:
        np.savez(folder / f"{site}.npz", x=np.arange(200) % PARAMETERS)
        options = ["--name", site, "--data", folder / f"{site}.npz", "--transport", "courier"]
        key = told("site", "init", folder / site, *options)["key"]
        members.append(f"--member={site}={key}")
    model = ["--model", "dirichlet-categorical", folder / "more.toml"]
    rest = ["--prior", folder / "prior.safetensors", "--steps", HOPS]
    output = ["-o", folder / "federation.toml"]
    told("federation", "new", "--name", "two", *members, *model, *rest, *output)
    for site in SITES:
        told("site", "init", folder / site, "--federation", folder / "federation.toml")


def until(condition) -> float:
    start = time.monotonic()
    while not condition():
        if time.monotonic() > start + 240:
            raise SystemExit("it does not come")
        time.sleep(0.05)
    return time.monotonic() - start


def status(folder: Path, site: str) -> dict:
    try:
        with Client(folder / site / "site.sock") as client:
            return client.ask("status")[0]
    except PosterityError:
        return {}


def answers(folder: Path) -> list[float]:
    """When tokens were answered, in order, by the logs of the agents."""
    events = [json.loads(x) for s in SITES for x in (folder / f"{s}.log").read_text().splitlines()]
    tokens = [each for each in events if "answer" in each]
    times = {each["token"][2]: datetime.fromisoformat(each["time"]) for each in tokens}
    return [times[number].timestamp() for number in sorted(times)]


def memory(*words: str) -> list[float]:
    """Resident megabytes of the processes whose command lines have these words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        if all(word in line for word in words):
            pages = int((entry / "statm").read_text().split()[1])
            found.append(round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1))
    return found


def measure(folder: Path) -> dict:
    make(folder)
    began = time.monotonic()
    nvflare = NVFlare(folder / "nvflare", SITES, {**os.environ, "PYTHONPATH": str(ROOT / "src")})
    nvflare.provision()
    provisioned = time.monotonic() - began
    began = time.monotonic()
    nvflare.start({site: folder / site for site in SITES})
    nvflare.wait()
    registered = time.monotonic() - began
    for site in SITES:
        run = posterity_line("site", "run", folder / site, "--log", folder / f"{site}.log")
        nvflare.daemons.append(subprocess.Popen(run))
    agents = until(lambda: all(status(folder, site) for site in SITES))
    with nvflare.carrying():
        with Client(folder / SITES[0] / "site.sock") as client:
            client.ask("begin")
        first = until(lambda: status(folder, SITES[1]).get("sequence", -1) > 0)
        until(lambda: len(answers(folder)) >= HOPS)
        megabytes = {
            "agent": memory("posterity site run"),
            "client": memory("client.client_train"),
            "job": memory("client.worker_process"),
            "server": memory("server.server_train") + memory("server.runner_process"),
        }
    hops = [b - a for a, b in itertools.pairwise(answers(folder))][WARM:]
    return {
        "parameters": PARAMETERS,
        "hops": len(hops),
        "p10_s": round(float(np.quantile(hops, 0.1)), 4),
        "p50_s": round(median(hops), 4),
        "p95_s": round(float(np.quantile(hops, 0.95)), 4),
        "provision_s": round(provisioned, 2),
        "registered_s": round(registered, 2),
        "agents_s": round(agents, 2),
        "submitted_to_first_hop_s": round(first, 2),
        "megabytes": megabytes,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        found = measure(Path(path).resolve())
    found[provenance.KEY] = provenance.made_with()
    print(json.dumps(found, indent=2))
    OUTPUT.write_text(json.dumps(found, indent=2) + "\n")
