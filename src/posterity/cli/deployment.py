"""Files of a federation between organisations: ``federation.toml`` and ``site.toml``.

The first is the same at every site: it holds the terms that all members agreed on, and each letter
holds its digest. The second is private to a site: it names the site's records, key and store, and
how its letters are sent.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from posterity.cli.files import read_prior
from posterity.cli.options import Settings, conflict, read
from posterity.cli.schema import options_of
from posterity.engine.agent import Agent
from posterity.engine.agreement import Terms
from posterity.engine.machine import Machine
from posterity.engine.memory import Memory
from posterity.engine.notices import followed
from posterity.engine.refusal import reading
from posterity.engine.running import Running
from posterity.engine.signing import PrivateKey
from posterity.engine.star import Server
from posterity.engine.store import Store
from posterity.engine.transports.unix import Absent, Client
from posterity.errors import ArtifactError, SiteError, UsageError, within
from posterity.federation.site import Site
from posterity.federation.specification import build, imported
from posterity.runtime.files import force_to_disk, write_file
from posterity.tabular.records import in_one_order, read_sites

AGREED = (
    *("links", "padding", "seed", "authorities"),
    *("schedule", "server", "steps", "tolerance", "quorum", "deadline"),
)
"""Options of a federation that have the names of its terms' arguments."""
SOCKET = "site.sock"
"""Name of the socket of a site's agent in the site's folder."""


def read_terms(file: Path, allow: Mapping[str, str] | None = None) -> Terms:
    """Return the terms in a ``federation.toml``. No model is loaded but those of posterity and of
    packages that ``allow`` names, with their versions.
    """
    return terms_of(read("federation-file", {}, file), allow)


def terms_of(settings: Settings, allow: Mapping[str, str] | None = None) -> Terms:
    """Return the terms that settings describe; errors as of :func:`read_terms`."""
    with settings.named():
        prior, _ = read_prior(Path(settings.need("prior.file")))
        return Terms.of(
            settings.need("name"),
            model=settings.need("model.kind"),
            options=settings["model.options"],
            package=settings["model.package"],
            version=settings["model.version"],
            allow=allow,
            prior=prior,
            members=settings.need("members"),
            update=settings.table("update"),
            personal=False if settings["model.personal"] is None else settings["model.personal"],
            own=settings["model.own"] or (),
            limits=settings.table("limits"),
            **{name: settings[name] for name in AGREED},
        )


def in_words(terms: Terms) -> list[str]:
    """Return sentences that state what a member agrees to by taking part."""
    limits = terms.limits
    linked = "every two of them" if terms.server is None else f"each with {terms.server!r}"
    if terms.links is not None:
        linked = ", ".join(f"{a} - {b}" for a, b in terms.links)
    update = f", updated with {dict(terms.update)}" * bool(terms.update)
    if terms.server is not None:
        how = f"{terms.server!r} asks the others ({type(terms.schedule).__name__})"
    else:
        random = terms.order == "gossip"
        how = f"a token walks {'at random over the links' if random else 'round by name'}"
    ends = [] if terms.steps is None else [f"after {terms.steps} steps"]
    if terms.tolerance is not None:
        ends.append(f"once less than {terms.tolerance:g} nats are left to change")
    enough = "of all members" if terms.quorum is None else f"of at least {terms.quorum} members"
    also = ""
    if terms.authorities:
        also = f", and {', '.join(sorted(terms.authorities))}, who may replace its key too"
    return [
        f"Federation {terms.name!r}, terms {terms.digest}",
        f"Members: {', '.join(f'{name} ({key})' for name, key in sorted(terms.members.items()))}.",
        f"Links: {linked}; {how}.",
        f"It ends {' or '.join(ends)}." if ends else "It goes on until it is ended.",
        f"Who is silent for {terms.deadline:g} s is passed over until they answer. A posterior is "
        f"converged only with the answers {enough}.",
        f"Model: {terms.model}, over a prior {terms.prior!r}{update}.",
        *([f"Each has for itself: {', '.join(map(str, terms.own))}."] if terms.own else []),
        f"May have a member forgotten: the member{also}.",
        f"Refused are natural parameters beyond {limits.magnitude:g}, changes of the prior by more "
        f"than {limits.pseudo_counts:g}, letters of more than {limits.bytes:,} bytes.",
    ]


class SiteFiles(NamedTuple):
    """Content of a ``site.toml``: a member's terms, and paths of its private files."""

    name: str
    terms: Terms
    key: Path
    store: Path
    records: Callable[[], Any]
    sockets: Mapping[str, Path]
    encrypted: bool

    @property
    def next_key(self) -> Path:
        """The file of a key that is to replace the site's."""
        return self.key.with_name(f"{self.key.name}.new")

    @property
    def changes(self) -> Path:
        """The file of the signed changes from the key in the terms to the present one, for an empty
        store.
        """
        return self.key.with_name(f"{self.key.name}.changes")

    def machine(self, store: Store | None = None) -> Machine:
        """Return the machine of the site, with its key and its records. A file with the key that
        replaced the former, as the terms or the store have it, takes its place.
        """
        terms = self.terms
        if store is not None:
            memory = Memory.from_bytes(store.state, store.outbox)
            changes = memory.rotations if memory.terms == terms.digest else ()
            terms = followed(terms, changes)
        present = terms.keys[self.name]
        key = PrivateKey.load(self.key)
        if key.public != present and self.next_key.exists():
            new = PrivateKey.load(self.next_key)
            if new.public == present:
                own = [each.notice for each in terms.rotations if each.site == self.name]
                write_file(self.changes, json.dumps(own).encode())
                self.next_key.replace(self.key)
                force_to_disk(self.key.parent)
                key = new
        if key.public not in terms.keys_of(self.name) and self.changes.exists():
            expected = "changes of keys, as the site signed them"
            with within(f"file '{self.changes}'"), reading("changes", expected, fix=""):
                terms = followed(terms, json.loads(self.changes.read_bytes()))
        if key.public not in terms.keys_of(self.name):
            raise UsageError(
                found=f"a key file of {self.name!r} with the public key '{key.public}'",
                expected=f"'{present}', as in members.{self.name} or changed since",
            )
        site = Site.of(self.terms.agreement, self.name, self.records())
        kind = Server if self.name == self.terms.server else Machine
        return kind(terms, site, key)


def read_site(file: Path) -> SiteFiles:
    """Return a member's settings in a ``site.toml``; errors as of :func:`read_terms`."""
    settings = read("site-file", {}, file)
    with settings.named():
        federation = Path(settings.need("federation"))
        name = settings.need("name")
        if not os.path.isfile(federation):  # also if its name is too long for a socket
            raise ArtifactError(
                found=f"no file '{federation}'",
                expected="the federation.toml with the terms that all members have",
                fix=f"Run: posterity site init {file.parent} --federation FILE",
            )
        terms = read_terms(federation, settings["models.allow"])
        members = sorted(terms.members)
        sockets = settings["transport.sockets"] or {}
        wrong = sorted(sockets.keys() - (terms.members.keys() - {name}))
        nobody = f"name = {name!r}, which is not a member,"
        UsageError.check(
            (name not in members, nobody, f"one of {members}"),
            (wrong, f"transport.sockets for {wrong}", "sockets of other members only"),
        )
        if sockets and settings["transport.kind"] == "courier":
            raise conflict("transport.sockets", 'transport.kind = "courier"')
        paths = Path(settings.need("key")), Path(settings.need("store"))
        others = {other: Path(path) for other, path in sockets.items()}
        records = _records(settings, terms)
        encrypted = settings["transport.encrypted"]
        return SiteFiles(name, terms, *paths, records, others, encrypted)


def _records(settings: Settings, terms: Terms) -> Callable[[], Any]:
    """Return the function that loads a site's records, from a file or by its own import path."""
    path = settings.path("data.file")
    if path is not None:
        if settings["data.path"] is not None:
            raise conflict("data.file", "data.path")
        return lambda: _read_file(settings, path, terms)
    if settings["data.path"] is None and settings["name"] == terms.server:
        return lambda: None  # it only asks
    loader = settings.need("data.path")
    options = settings["data.options"] or {}
    return lambda: build(imported(loader, "data.path"), options, "data")


def _read_file(settings: Settings, path: Path, terms: Terms) -> Any:
    with settings.named():
        target = settings["data.target"]
        name = settings["name"]
        own = terms.agreement.columns
        intercept = settings["data.intercept"]
        intercept = "intercept" in (own or ()) if intercept is None else intercept
        tables = read_sites({name: path}, target, intercept)
        return in_one_order(tables, own, target, bool(own)).data[name]


def as_toml(group: str, values: Mapping[str, Any], folder: Path) -> str:
    """Return values of a group of options as TOML; its paths are relative to ``folder``."""
    known = {option.place: option.kind for option in options_of(group)}
    sections: dict[str, list[str]] = {"": []}
    for place, value in values.items():
        table, _, key = place.rpartition(".")
        value = known[place].moved(value, lambda path: os.path.relpath(path, start=folder))
        if isinstance(value, dict):
            pairs = [f"{_toml(name)} = {_toml(part)}" for name, part in value.items()]
            sections[place] = pairs
        else:
            sections.setdefault(table, []).append(f"{key} = {_toml(value)}")
    parts = ["\n".join([f"[{name}]"] * bool(name) + lines) for name, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml(name)} = {_toml(v)}' for name, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # Strings, numbers and booleans are written as in JSON, except one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


@contextlib.contextmanager
def opened(folder: Path, tell: Callable[[dict[str, Any]], None] | None = None) -> Iterator[Running]:
    """Yield the site in a folder, with its store open during the block."""
    site = read_site(configuration(folder))
    with open_store(folder, site.store) as store:
        agent = Agent(site.machine(store), store)
        yield Running(agent, sockets=site.sockets, encrypted=site.encrypted, tell=tell)


def open_store(folder: Path, path: Path, *, wait: float = 10.0) -> Store:
    """Open the store of a site, once a command that has it open is done, which takes less than
    ``wait`` seconds. If that fails while an agent answers in the site's folder, the
    UsageError names the agent's process.
    """
    try:
        return Store(path, wait)
    except ArtifactError:
        with contextlib.suppress(SiteError), Client(folder / SOCKET) as client:
            there, _ = client.ask("status")
            since = datetime.now() - timedelta(seconds=there["running"])
            raise UsageError(
                found=f"an agent with process ID {there['process']}, which runs on folder "
                f"'{folder}' since {since:%Y-%m-%d %H:%M:%S}",
                expected="a folder on which no agent runs",
                fix=f"Ask that one (posterity site status {folder}), or end it by `kill "
                f"{there['process']}` and try again.",
            ) from None
        raise


def configuration(folder: Path) -> Path:
    """Return the ``site.toml`` in the folder of a site; an ArtifactError if there is none."""
    file = folder / "site.toml"
    if not os.path.isfile(file):
        raise ArtifactError(
            found=f"no site.toml in folder '{folder}'",
            expected="the folder of a site",
            fix="Make one by `posterity site init`.",
        )
    return file


def ask(folder: Path, do: str, body: bytes = b"", **arguments: Any) -> tuple[dict[str, Any], bytes]:
    """Return a site's answer to a request, from its agent, or from its store if no agent runs."""
    configuration(folder)
    try:
        with Client(folder / SOCKET, timeout=300.0) as client:
            return client.ask(do, body, **arguments)
    except Absent:
        pass
    with opened(folder) as running:
        return running.answer({"do": do, **arguments}, body)
