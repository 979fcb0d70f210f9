"""The files of a federation between organisations: ``federation.toml`` and ``site.toml``.

The first is the same everywhere: it says what all members agreed on, and its digest is in every
letter. The second is a site's own: where its records, its key and its store are.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from posterity.cli.files import read_prior
from posterity.cli.options import (
    COUNT,
    FILE,
    FLAG,
    PAIR,
    POSITIVE,
    SEED,
    TABLE,
    TEXT,
    Option,
    Settings,
    by_name,
    list_of,
    read,
)
from posterity.engine.agreement import Terms, imported
from posterity.engine.machine import Machine
from posterity.engine.signing import PrivateKey
from posterity.errors import UsageError
from posterity.federation.site import Site
from posterity.federation.specification import build

FEDERATION = (
    Option("name", TEXT, "Of the federation."),
    Option("members", by_name(TEXT), "The public key of each member, by its name."),
    Option("links", list_of(PAIR), "Pairs of members who talk to each other; all if left out."),
    Option("padding", FLAG, "Whether sites pad their records.", default=True),
    Option("total_weight", POSITIVE, "Of the records of all sites, for updates that train."),
    Option("seed", SEED, "Of all that is random.", default=0),
    Option("model.path", TEXT, "Import path of the model, as package.module:name."),
    Option("model.options", TABLE, "What it is called with."),
    Option("prior.file", FILE, "The prior, or a ledger, whose prior is taken."),
    Option("update.path", TEXT, "Import path of the local rule; one that fits if left out."),
    Option("update.options", TABLE, "What it is called with."),
    Option("limits.magnitude", POSITIVE, "Of a natural parameter."),
    Option("limits.pseudo_counts", POSITIVE, "By which all sites together change the prior."),
    Option("limits.bytes", COUNT, "Of a letter."),
)
"""What ``federation.toml`` holds."""
SITE = (
    Option("name", TEXT, "Of this member."),
    Option("federation", FILE, "The federation.toml that all members have."),
    Option("key", FILE, "The private key of this site."),
    Option("store", FILE, "The database of this site."),
    Option("data.path", TEXT, "Import path of a function that returns the records."),
    Option("data.options", TABLE, "What it is called with."),
)
"""What ``site.toml`` holds."""


def read_terms(file: Path) -> Terms:
    """The terms in a ``federation.toml``.

    Raises:
        UsageError: for a key that nobody knows, a value of another kind, or one that makes no
            sense.
        LedgerError: if names of two members look alike.
        ArtifactError: if a file cannot be read.
    """
    settings = read(FEDERATION, {}, file)
    with settings.named():
        prior, _ = read_prior(Path(settings.need("prior.file")))
        return Terms.of(
            settings.need("name"),
            model=settings.need("model.path"),
            prior=prior,
            members=settings.need("members"),
            links=settings["links"],
            update=settings["update.path"],
            model_options=settings["model.options"],
            update_options=settings["update.options"],
            padding=settings["padding"],
            total_weight=settings["total_weight"],
            limits=settings.table("limits"),
            seed=settings["seed"],
        )


class SiteFiles(NamedTuple):
    """What ``site.toml`` says of one member: its terms, and where what it keeps to itself is."""

    name: str
    terms: Terms
    key: Path
    store: Path
    loader: str
    options: Mapping[str, Any]

    def machine(self) -> Machine:
        """The machine of the site, with its key and its records.

        Raises:
            UsageError: if the key is not the one that was agreed on, or no records can be loaded.
            StructureError, ParameterError: if the records do not fit the model or the prior.
            ArtifactError: if there is no key.
        """
        key = PrivateKey.load(self.key)
        if key.public != self.terms.members[self.name]:
            raise UsageError(
                found=f"the key {str(key.public)!r} of {self.name!r}",
                expected=f"{str(self.terms.members[self.name])!r}, as members.{self.name} says",
                fix="Name the right key file, or agree on new terms.",
            )
        records = build(imported(self.loader, "data.path"), self.options, "data")
        return Machine(self.terms, Site.of(self.terms.agreement, self.name, records), key)


def read_site(file: Path) -> SiteFiles:
    """The settings of one member in a ``site.toml``; errors as of :func:`read_terms`."""
    settings: Settings = read(SITE, {}, file)
    with settings.named():
        terms, name = read_terms(Path(settings.need("federation"))), settings.need("name")
        if name not in terms.members:
            raise UsageError(
                found=f"name = {name!r}",
                expected=f"a member: one of {sorted(terms.members)}",
                fix="Spell it as federation.toml does, or agree on new terms.",
            )
        paths = Path(settings.need("key")), Path(settings.need("store"))
        options = settings["data.options"] or {}
        return SiteFiles(name, terms, *paths, settings.need("data.path"), options)
