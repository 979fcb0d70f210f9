"""``posterity federation``: what members of a federation agree on, and how it stands."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from posterity.cli import deployment, kinds
from posterity.cli.app import app, example
from posterity.cli.deployment import SOCKET
from posterity.cli.failures import printable
from posterity.cli.options import Settings, verb
from posterity.cli.report import Data
from posterity.cli.site import FOLDER, answered, confirm, status_table
from posterity.cli.streams import Json, present
from posterity.errors import UsageError
from posterity.interrupts import Interrupts, deferred, heed

federation = typer.Typer(
    help="A federation between organisations: what its members agree on, and how it stands.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(federation, name="federation")


def _new_report(data: Data) -> str:
    terms = "\n".join(map(printable, data["terms"]))
    return f"{terms}\n\nWrote {printable(data['output'])}: every member gets it, and the prior."


@verb("federation new", report=_new_report, of=federation)
def new(settings: Settings) -> Data:
    """Write the terms on which the members of a federation agree, and print their digest."""
    from posterity.files import write_file

    output = settings.output
    terms = deployment.terms_of(settings)
    values = {place: value for place, value in settings.values.items() if place != "output.file"}
    write_file(output, deployment.as_toml("federation-file", values, output.parent).encode())
    words = deployment.in_words(terms)
    return {"output": output, "digest": terms.digest, "terms": words}


@federation.command(epilog=example("posterity federation status north --follow"))
def status(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help=FOLDER)],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on: a table that is kept up, or lines of JSON.")
    ] = False,
    every: Annotated[float, typer.Option(metavar="X", help="Seconds between two looks.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Say how a federation stands, as far as one of its sites knows.

    Who has the token, how far it has come, who is silent since when, and what was refused.
    """
    if not follow:
        present(lambda: answered(deployment.ask(folder, "status")), status_table, as_json)
        return
    heed()
    kinds.POSITIVE.check("--every", every)
    looks = _looks(folder, every)
    if as_json:
        for data in looks:
            print(json.dumps(data), flush=True)
    from rich.live import Live

    with Live(status_table(next(looks)), auto_refresh=False) as live:
        for data in looks:
            live.update(status_table(data), refresh=True)


def _looks(folder: Path, every: float) -> Iterator[Data]:
    """The state of an agent's site, again and again; where none runs, the last that was known."""
    from posterity.engine.transports.unix import Absent, Client

    deployment.configuration(folder)
    with Client(folder / SOCKET) as client:
        data = answered(deployment.ask(folder, "status"))
        while True:
            yield data
            time.sleep(every)
            try:
                data = answered(client.ask("status"))
            except Absent:
                data = data | {"running": None}


@verb("federation forget", report=status_table, of=federation)
def forget(settings: Settings) -> Data:
    """Have a member forgotten, at once and permanently, by order of an authority in the terms."""
    from posterity.engine.notices import Author
    from posterity.engine.signing import PrivateKey

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
    return answered(deployment.ask(by, "post", tombstone.envelope))


@federation.command(epilog=example("posterity federation submit kits/admin@hearts.org"))
def submit(
    kit: Annotated[
        Path, typer.Argument(metavar="KIT", help="What NVFlare provisioned for an administrator.")
    ],
    seconds: Annotated[
        float, typer.Option(metavar="X", help="After which a job is followed by the next.")
    ] = 3600.0,
    encrypted: Annotated[
        bool, typer.Option(help="Whether letters are encrypted from end to end.")
    ] = True,
) -> None:
    """Keep a job of NVFlare running that carries the letters of sites (Ctrl-C, SIGTERM end it).

    Where a job ends, because a site was lost or its time is over, another follows, and so it does
    where a site comes that it lacks. Nothing is lost between them: the sites keep all letters.
    """
    from posterity.engine.transports import nvflare

    heed()
    kinds.POSITIVE.check("--seconds", seconds)
    over = threading.Event()

    def end(interrupts: Interrupts, number: int, count: int) -> None:
        over.set()
        if count > 1:
            os._exit(128 + number)

    with deferred(end):
        nvflare.submit(kit, encrypted=encrypted, seconds=seconds, tell=_say, until=over)


def _say(line: str) -> None:
    print(printable(line), flush=True)
