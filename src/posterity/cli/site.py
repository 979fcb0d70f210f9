"""``posterity site``: a member of a federation between organisations, in its own folder."""

import contextlib
import functools
import json
import os
import shlex
import signal
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import typer
from rich.console import RenderableType

from posterity.artifact.artifact import from_bytes
from posterity.cli import deployment, files
from posterity.cli.deployment import SOCKET
from posterity.cli.options import Settings, read
from posterity.cli.report import Group, alarming, filled, group, status_report, table
from posterity.cli.streams import Data, Verb, printable, verb
from posterity.engine.memory import Memory, Step
from posterity.engine.signing import PrivateKey
from posterity.engine.store import Store
from posterity.errors import ArtifactError, UsageError
from posterity.families.names import names_of, with_names
from posterity.runtime.files import alongside, write_file, writing
from posterity.runtime.interrupts import Interrupts, deferred, heed

KEY = "site.key"
COMPILED = {
    "JAX_COMPILATION_CACHE_DIR": "{folder}/compiled",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
"""Environment variables that keep an agent's compiled programs for reuse after a restart."""


def folder_of(settings: Settings) -> Path:
    """Return the folder of a command's site."""
    return settings.arguments("the folder of one site")[0]


def _init_report(data: Data) -> str:
    lines = [f"Site {data['name']} in {data['folder']}, with the public key {data['key']}"]
    if data["terms"] is None:
        lines.append("Send this key to the coordinator, who writes the federation.toml, and then")
        lines.append("run this command with --federation federation.toml.")
    else:
        lines += ["", *data["terms"], "", "To agree to these terms and take part, run:"]
        lines.append(f"posterity site run {data['folder']}")
    return "\n".join(lines)


@verb(_init_report)
def init(settings: Settings) -> Data:
    """Make a site: its key, its site.toml and, once all have agreed on terms, its store."""
    folder = folder_of(settings)
    file = folder / "site.toml"
    if not file.exists():
        _write_site(folder, file, settings)
    elif named := sorted(settings.values.keys() - {"federation", "epoch"}):
        raise UsageError(
            found=f"{named[0]} for a site that exists already",
            expected="only --federation and --epoch",
            fix=f"Leave it out, or edit {file}.",
        )
    key = PrivateKey.load(folder / KEY).public
    data: Data = {
        "folder": folder,
        "name": read("site-file", {}, file)["name"],
        "key": str(key),
        "terms": None,
    }
    if settings["federation"] is None:
        return data
    before = file.read_bytes()
    try:
        _name_federation(file, Path(settings["federation"]))
        made = deployment.read_site(file)
        _make_store(folder, made.store, made.machine(), settings["epoch"])
    except BaseException:
        write_file(file, before)
        raise
    terms = deployment.in_words(made.terms)
    return data | {"terms": terms, "epoch": settings["epoch"], "digest": made.terms.digest}


def _write_site(folder: Path, file: Path, settings: Settings) -> None:
    """Write the folder, the key and the ``site.toml``, in this order."""
    name = settings.need("name")
    if not name.strip() or "\n" in name:
        raise UsageError(found=f"name = {name!r}", expected="one line")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    values = {"name": name, "federation": str(folder / "federation.toml")}
    values |= {"key": str(folder / KEY), "store": str(folder / "site.db")}
    values |= {place: value for place, value in settings.values.items() if "." in place}
    text = deployment.as_toml("site-file", values, folder)
    if not (folder / KEY).exists():
        PrivateKey.generate().save(folder / KEY)
    write_file(file, text.encode())


def _name_federation(file: Path, federation: Path) -> None:
    """Set the federation of a ``site.toml``."""
    lines = file.read_text(encoding="utf-8").split("\n")
    places = [place for place, line in enumerate(lines) if line.startswith("federation =")]
    if len(places) != 1:
        raise UsageError(found=f"{len(places)} lines 'federation =' in '{file}'", expected="one")
    values = {"federation": str(federation)}
    lines[places[0]] = deployment.as_toml("site-file", values, file.parent).strip()
    write_file(file, "\n".join(lines).encode())


def _make_store(folder: Path, path: Path, machine: Any, epoch: int | None) -> None:
    """Make an empty store, or put the existing one under new terms, if they are others."""
    if not path.exists():
        Store.create(path, Step(machine.MEMORY.empty(machine.name, epoch or 0)).change).close()
        return
    if epoch is not None:
        raise ArtifactError(
            found=f"store '{path}', which exists, and --epoch {epoch}",
            expected="no store",
            fix="Leave --epoch out; to begin with an empty store move this one away.",
        )
    with deployment.open_store(folder, path) as store:
        memory = Memory.from_bytes(store.state, store.outbox)
        if memory.terms not in ("", machine.terms.digest):
            store.commit(Step(machine.adopt(memory)).change)


def _rotate_report(data: Data) -> str:
    if data["announced"]:
        lines = [
            f"The key of site {data['name']} is {data['key']}, once its agent has started again:",
            "an agent that runs ends now. The others are told, signed by the key before.",
        ]
    else:
        lines = [
            f"The key of site {data['name']} is to be {data['key']}",
            "Tell it an authority in person, who runs `posterity federation revoke`.",
        ]
    return "\n".join(lines)


@verb(_rotate_report)
def rotate_key(settings: Settings) -> Data:
    """Make a new key for a site, and announce it with the one before unless that was stolen."""
    folder = folder_of(settings)
    stolen = settings["stolen"]
    state = deployment.ask(folder, "status")[0]  # which finishes an earlier change
    if state["site"] in state["forgotten"]:
        raise UsageError(
            found=f"site {state['site']!r}, which was forgotten",
            expected="a site that takes part",
            fix="Join by new terms, under another name.",
        )
    site = deployment.read_site(deployment.configuration(folder))
    if not site.next_key.exists():
        PrivateKey.generate().save(site.next_key)
    key = str(PrivateKey.load(site.next_key).public)
    if not stolen:
        deployment.ask(folder, "rotate", key=key)
    return {"name": site.name, "key": key, "announced": not stolen}


def run(settings: Settings) -> None:
    """Run a site, which answers letters until it is stopped (Ctrl-C, SIGTERM)."""
    folder = folder_of(settings)
    log = settings.path("log")
    heed()
    for variable, value in COMPILED.items():  # before JAX is imported
        os.environ.setdefault(variable, value.format(folder=folder.absolute()))
    running: list[Any] = []

    def end(interrupts: Interrupts, number: int, count: int) -> None:
        if not running or count > 1:
            os._exit(128 + number)
        running[0].stop()

    if log is not None:
        with writing(log):
            log.open("a").close()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # each line opens the log, also once rotated
    with deferred(end), contextlib.ExitStack() as stack:
        deployment.configuration(folder)
        _check_private(folder)
        tell = functools.partial(_tell, log, folder.resolve().name)
        running.append(stack.enter_context(deployment.opened(folder, tell)))
        running[0].run(folder / SOCKET)


def _tell(log: Path | None, name: str, event: Data) -> None:
    """Print a line of JSON; a full disk or a closed reader does not stop the site."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    text = json.dumps({"time": now, "at": name, **event})
    with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as stack:
        file = None if log is None else stack.enter_context(log.open("a", encoding="utf-8"))
        print(text, file=file, flush=True)


def _check_private(folder: Path) -> None:
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        raise UsageError(
            found=f"folder '{folder}', which other users may enter (mode {mode:o})",
            expected="mode 700, since whoever can open its socket can act as the site",
            fix=f"Run: chmod 700 {folder}",
        )


def status_table(data: Data) -> Group:
    """Return a table of a site's state."""
    number, who = data["epoch"]
    runs = "runs" if data["running"] is not None else "does not run"
    rows = {
        "site": f"{data['site']} of {data['federation']}, {runs}",
        "terms": data["terms"][:16],
        "epoch": f"{number} by {who or 'none'}, sequence {data['sequence']}",
        "server": data["server"],
    }
    if data["server"] is None:
        counted = "counts" if data["counted"] else "does not count yet"
        counted = "destroyed" if data["site"] in data["forgotten"] else counted
        rows["token"] = f"with {data['holder'] or 'another member'}"
        rows["factor"] = counted + ", leaves at the first token" * data["leaving"]
    told = [*rows.items()]
    for name, seconds in data["heard"].items():
        heard = "not heard yet" if seconds is None else f"heard {seconds:.0f} s ago"
        waits = data["waiting"].get(name, 0)
        heard += f", letters waiting for it: {waits}" * bool(waits)
        heard += ", the others wait for it" * (name in data["awaited"])
        told.append((name, "passed over until it answers" if name in data["absent"] else heard))
    changed = {site: key for site, key, *_ in data["rotations"]}
    for name, key in changed.items():
        mine = name == data["site"] and key != data["key"]
        note = ", which is not in its folder: the others refuse its letters" * mine
        told.append((f"key of {name}", key + note))
    for name, (release, schema) in data["apart"].items():
        older = schema < data["schema"]
        where, at = (name, data["release"]) if older else (data["site"], release)
        form = f"has release {release}, with letters of schema {schema}, not {data['schema']}"
        told.append((name, f"{form}: upgrade {where}: pip install 'posterity[engine]=={at}'"))
    refused = [f"{count} for {reason}" for reason, count in sorted(data["refused"].items())]
    told.append(("forgotten", ", ".join(data["forgotten"])))
    told.append(("refused", ", ".join(refused) or "nothing"))
    told.append(("log", f"{data['log']} entries"))
    known = filled(table("", "", plain=True), (row for row in told if row[1]))
    waits = (_waits_report(name, one) for name, one in data["waits"].items())
    return group(known, *waits, status_report("The posterior", data["posterior"]))


def _waits_report(name: str, known: Data) -> RenderableType:
    since = datetime.fromisoformat(known["since"]).astimezone()
    silent = f"since {since:%H:%M:%S} ({known['seconds']:.0f} s)"
    text = f"The federation waits for {name} {silent}. To go on without it, type at any member:"
    if not known["needed"]:
        text = f"{name} is silent {silent}. If the federation waits for it, type at any member:"
    return alarming(f"{text}\n  {known['type']}", known["needed"])


def answered(answer: tuple[Data, bytes], folder: Path) -> Data:
    """Return the state of the site in a folder, from its answer: also since when members have been
    silent for which something waits, whether the federation needs them to continue, as far as the
    site knows, and what to type to go on without them.
    """
    data = {name: value for name, value in answer[0].items() if name != "ok"}
    now = datetime.now(UTC)
    waits = {}
    for name, seconds in data["waits"].items():
        waits[name] = {
            "since": (now - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
            "seconds": seconds,
            "needed": name in data["awaited"],
            "type": shlex.join(["posterity", "site", "pass-over", str(folder), "--site", name]),
        }
    return data | {"waits": waits}


def _asking(do: str) -> Verb:
    """Return a command that the agent carries out or, without an agent, the site's store."""

    def function(settings: Settings) -> Data:
        folder = folder_of(settings)
        options = {place: value for place, value in settings.values.items() if place != "yes"}
        if do == "pass_over":
            settings.need("sites")
        if do == "forget" and not settings["yes"]:
            confirm(f"Destroy the factor of the site in {printable(folder)} for good?")
        return answered(deployment.ask(folder, do, **options), folder)

    return Verb(status_table, function)


status = _asking("status")
begin = _asking("begin")
leave = _asking("leave")
pass_over = _asking("pass_over")
forget = _asking("forget")


def confirm(question: str) -> None:
    """Ask for confirmation; raise if it is refused or there is no terminal."""
    if not sys.stdin.isatty():
        raise UsageError(
            found="no terminal on which to confirm the forgetting",
            expected="--yes, without a terminal",
        )
    typer.confirm(question, abort=True, err=True)


def _audit_report(data: Data) -> str:
    return (
        f"Wrote the {data['entries']} entries of the log of {data['site']} and its signed "
        f"checkpoint to {data['output']}"
    )


@verb(_audit_report)
def audit(settings: Settings) -> Data:
    """Write a file for an auditor: the log, its signed checkpoint, and the cosignatures."""
    folder = folder_of(settings)
    output = settings.output
    settings.check_outputs(folder / "site.toml")
    entries = list[str]()
    while True:
        head, body = deployment.ask(folder, "audit", start=len(entries))
        if not head["lines"]:
            break
        entries += body.decode().split("\n")
    bundle = {name: value for name, value in head.items() if name not in ("ok", "lines")}
    write_file(output, json.dumps({**bundle, "entries": entries}, indent=1).encode())
    return {"output": output, "site": head["site"], "entries": len(entries)}


def _result_report(data: Data) -> str:
    number, who = data["epoch"]
    about = f"The posterior of epoch {number}, begun by {who}, at sequence {data['sequence']}"
    with_it = f", and its certificate by {data['by']} to {data['certificate']}"
    return f"Wrote to {data['output']}: {about}{with_it * bool(data['certificate'])}"


@verb(_result_report)
def result(settings: Settings) -> Data:
    """Write the newest posterior that the site knows, and the certificate that members signed."""
    folder = folder_of(settings)
    output = settings.output
    certificate = settings.path("certificate")
    settings.check_outputs(folder / "site.toml")
    head, content = deployment.ask(folder, "result")
    if certificate is not None and head["certificate"] is None:
        raise UsageError(
            found=f"--certificate {certificate}, before that posterior has a certificate",
            expected="a posterior that all members have signed",
        )
    record = {"epoch": str(head["epoch"]), "sequence": str(head["sequence"]), "by": head["by"]}
    prior = deployment.read_site(folder / "site.toml").terms.law
    posterior = with_names(from_bytes(content, what="a posterior"), names_of(prior))
    with contextlib.ExitStack() as both:
        if certificate is not None:
            both.enter_context(alongside(certificate, head["certificate"].encode()))
        written = files.write(posterior, output, "site result", record)
    about = {name: head[name] for name in ("epoch", "sequence", "by")}
    return written | about | {"certificate": certificate}
