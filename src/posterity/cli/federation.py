"""``posterity federation``: terms of a federation, and its state."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.live import Live

from posterity.cli import deployment
from posterity.cli.deployment import SOCKET
from posterity.cli.options import Settings
from posterity.cli.site import answered, confirm, folder_of, status_table
from posterity.cli.streams import Data, Verb, present, printable, verb
from posterity.engine.author import Author
from posterity.engine.signing import PrivateKey
from posterity.engine.transports.unix import Absent, Client
from posterity.errors import UsageError
from posterity.runtime.files import write_file
from posterity.runtime.interrupts import Interrupts, deferred, heed


def _new_report(data: Data) -> str:
    terms = "\n".join(map(printable, data["terms"]))
    return f"{terms}\n\nWrote {printable(data['output'])}: every member gets it, and the prior."


@verb(_new_report)
def new(settings: Settings) -> Data:
    """Write the terms on which the members of a federation agree, and print their digest."""
    output = settings.output
    terms = deployment.terms_of(settings)
    values = {place: value for place, value in settings.values.items() if place != "output.file"}
    write_file(output, deployment.as_toml("federation-file", values, output.parent).encode())
    words = deployment.in_words(terms)
    return {"output": output, "digest": terms.digest, "terms": words}


def status(settings: Settings) -> None:
    """Print the state of a federation, as far as one of its sites knows it."""
    folder, as_json = folder_of(settings), bool(settings["json"])
    if not settings["follow"]:
        once = Verb(status_table, lambda _: answered(deployment.ask(folder, "status"), folder))
        present(lambda: (settings, once), as_json)
        return
    heed()
    looks = _looks(folder, settings["every"])
    if as_json:
        for data in looks:
            print(json.dumps(data), flush=True)
    with Live(status_table(next(looks)), auto_refresh=False) as live:
        for data in looks:
            live.update(status_table(data), refresh=True)


def _looks(folder: Path, every: float) -> Iterator[Data]:
    """Yield the state of an agent's site repeatedly; if none runs, the last known one."""
    deployment.configuration(folder)
    with Client(folder / SOCKET) as client:
        data = answered(deployment.ask(folder, "status"), folder)
        while True:
            yield data
            time.sleep(every)
            try:
                data = answered(client.ask("status"), folder)
            except Absent:
                data = data | {"running": None}


@verb(status_table)
def forget(settings: Settings) -> Data:
    """Order the permanent forgetting of a member, as that member or an authority in the terms."""
    (name,) = map(str, settings.arguments("the member to be forgotten"))
    by, key = Path(settings.need("by")), Path(settings.need("key"))
    terms, private = deployment.read_site(by / "site.toml").terms, PrivateKey.load(key)
    owners = [who for who, own in terms.authorities.items() if own == private.public]
    owners += [name] if terms.members.get(name) == private.public else []
    if name not in terms.members or not owners:
        raise UsageError(
            found=f"the key {str(private.public)!r}, to have {name!r} forgotten",
            expected=f"a member of {sorted(terms.members)}, and the key of it or of an authority: "
            f"{sorted(terms.authorities)}",
            fix="See `authorities` in federation.toml.",
        )
    if not settings["yes"]:
        confirm(f"Destroy the factor of {printable(name)} at all members for good?")
    highest = deployment.ask(by, "status")[0]["highest"]
    tombstone = Author(terms, owners[0], private).tombstone(name, highest)
    return answered(deployment.ask(by, "post", tombstone.envelope), by)


def submit(settings: Settings) -> None:
    """Keep a job of NVFlare running that carries the sites' letters."""
    from posterity.engine.transports import nvflare  # an extra

    heed()
    (kit,), over = settings.arguments("an administrator's kit"), threading.Event()

    def end(interrupts: Interrupts, number: int, count: int) -> None:
        over.set()
        if count > 1:
            os._exit(128 + number)

    tell = lambda line: print(printable(line), flush=True)
    with deferred(end):
        options = {"encrypted": settings["encrypted"], "seconds": settings["seconds"]}
        nvflare.submit(kit, **options, tell=tell, until=over)
