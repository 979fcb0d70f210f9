"""``posterity federation``: terms of a federation, and orders about its members."""

import os
import threading
from pathlib import Path

from posterity.cli import deployment
from posterity.cli.options import Settings
from posterity.cli.site import answered, confirm, status_table
from posterity.cli.streams import Data, printable, verb
from posterity.engine.author import Author
from posterity.engine.notices import Known, followed
from posterity.engine.signing import PrivateKey
from posterity.errors import UsageError
from posterity.runtime.files import write_file
from posterity.runtime.interrupts import Interrupts, deferred, heed


def _new_report(data: Data) -> str:
    terms = "\n".join(data["terms"])
    return f"{terms}\n\nWrote {data['output']}: every member gets it, and the prior."


@verb(_new_report)
def new(settings: Settings) -> Data:
    """Write the terms on which the members of a federation agree, and print their digest."""
    output = settings.output
    terms = deployment.terms_of(settings)
    values = {place: value for place, value in settings.values.items() if place != "output.file"}
    write_file(output, deployment.as_toml("federation-file", values, output.parent).encode())
    words = deployment.in_words(terms)
    return {"output": output, "digest": terms.digest, "terms": words}


def _ordered(settings: Settings, name: str, *, itself: bool) -> tuple[Author, Data]:
    """Return the maker of an order about a member, by the key file of an authority or, if
    ``itself``, of that member, and the state of the site that passes the order on.
    """
    by = Path(settings.need("by"))
    file = Path(settings.need("key"))  # before the agent is asked
    state = deployment.ask(by, "status")[0]
    terms = deployment.read_site(by / "site.toml").terms
    private = PrivateKey.load(file)
    terms = followed(terms, [notice for *_, notice in state["rotations"]])
    owners = {who: own for who, own in terms.authorities.items() if own == private.public}
    if itself and terms.keys.get(name) == private.public:
        owners[name] = private.public
    if name not in terms.members or not owners:
        raise UsageError(
            found=f"the key '{private.public}', for an order about {name!r}",
            expected=f"a member of {sorted(terms.members)}, and the key of an authority: "
            f"{sorted(terms.authorities)}" + ", or of that member" * itself,
            fix="See `authorities` in federation.toml.",
        )
    return Author(terms, min(owners), private), state


def _posted(settings: Settings, order: Known) -> Data:
    """Return the state of the site that has passed an order on."""
    by = Path(settings["by"])
    return answered(deployment.ask(by, "post", order.envelope), by)


@verb(status_table)
def forget(settings: Settings) -> Data:
    """Order the permanent forgetting of a member, as that member or an authority in the terms."""
    name = str(*settings.arguments("the member to be forgotten"))
    author, state = _ordered(settings, name, itself=True)
    if not settings["yes"]:
        confirm(f"Destroy the factor of {printable(name)} at all members for good?")
    return _posted(settings, author.tombstone(name, state["highest"]))


@verb(status_table)
def revoke(settings: Settings) -> Data:
    """Replace the stolen key of a member, as an authority in the terms."""
    name = str(*settings.arguments("the member whose key was stolen"))
    key = settings.need("to")
    author, state = _ordered(settings, name, itself=False)
    old = settings["stolen"] or str(author.terms.keys[name])
    epoch = state["highest"] if settings["epoch"] is None else settings["epoch"]
    return _posted(settings, author.rotation(name, old=old, key=key, epoch=epoch + 1))


def submit(settings: Settings) -> None:
    """Keep a job of NVFlare running that carries the sites' letters."""
    from posterity.engine.transports import nvflare  # an extra

    heed()
    (kit,), over = settings.arguments("an administrator's kit"), threading.Event()

    def end(interrupts: Interrupts, number: int, count: int) -> None:
        over.set()
        if count > 1:
            os._exit(128 + number)

    def tell(line):
        return print(printable(line), flush=True)

    with deferred(end):
        options = {"encrypted": settings["encrypted"], "seconds": settings["seconds"]}
        nvflare.submit(kit, **options, tell=tell, until=over)
