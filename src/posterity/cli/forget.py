"""``posterity forget``: removal of sites from a ledger."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posterity.artifact import digest
from posterity.artifact.aligned import names_in
from posterity.cli import files
from posterity.cli.jobs import Federated, federation_of
from posterity.cli.options import Settings, incomplete, read, unwanted
from posterity.cli.recipes import reading_of, texts_by_column
from posterity.cli.report import status_of
from posterity.cli.streams import Data, bar, verb
from posterity.errors import ArtifactError, UsageError
from posterity.federation.federate import start
from posterity.federation.forget import Forgotten
from posterity.federation.forget import forget as forgotten
from posterity.ledger import Ledger
from posterity.models.tables import SPREAD
from posterity.receipt import Receipt, issue
from posterity.runtime.files import alongside
from posterity.runtime.text import count
from posterity.status import ProgressCallback
from posterity.tabular.forgetting import changed_records, spread_that_stays, without_records
from posterity.tabular.recipe import recipe_in
from posterity.tabular.reconcile import check_model
from posterity.tabular.regressions import model_of
from posterity.tabular.sites import kept

OF_SITES = ("output.receipt", "config", "sweeps", "allow_unconverged")
"""Options of forgetting whole sites."""


def _report(data: Data) -> str:
    if "withdrawn" in data:
        records = count(data["withdrawn"], "record")
        return (
            f"Forgot {records} of {data['sites'][0]}, whose factor is that of a fit without them: "
            f"exact.\nWrote the ledger to {data['output']}"
        )
    left = len(data["left"])
    state = data["status"]["state"]
    stay = "1 site is left" if left == 1 else f"{left} sites are left"
    if data["exact"]:
        how = "Exact: the posterior is, to the last bit, that of a ledger without them."
    elif not data["refined"]:
        how = f"Not exact, {state}: the remaining factors were matched or fitted together with "
        how += "them. Fuse the files of the sites that stay, or refine by --config FILE, a "
        how += "TOML file with their tables in [sites], and like = LEDGER in [data]."
    elif data["distance"] is None:
        how = f"Not exact, {state}: how much more refinement would change it is unknown."
    else:
        nats = f"{data['distance']:.2g} nats"
        how = f"Not exact, {state}: more refinement would change it by about {nats}."
    return (
        f"Forgot {', '.join(data['sites'])}; {stay}.\n"
        f"{how}\nWrote the ledger to {data['output']}, the receipt to {data['receipt']}"
    )


@verb(_report)
def forget(settings: Settings) -> Data:
    """Remove sites from a ledger."""
    path = settings.single("ledger")
    sites = tuple(dict.fromkeys(settings.need("sites")))
    output = settings.output
    if settings["record"]:
        return _withdrawn(settings, path, sites)
    if settings["sweeps"] is not None and settings["config"] is None:
        raise incomplete(f"--sweeps {settings['sweeps']}", "--config FILE")
    if settings["data.file"] is not None:
        raise incomplete(settings.flag("data.file"), "--record NAME=VALUE")
    of_table = [settings.flag(place) for place in _reading(settings)]
    if of_table and settings["config"] is None:
        raise incomplete(of_table[0], "--record NAME=VALUE or --config FILE")
    ledger, about = files.read_ledger(path)
    ledger.forget(*sites)  # a site that is not there is told before an option that is not
    receipt = Path(settings.need("output.receipt"))
    _check_new(receipt, sites, ledger)
    with bar("Forgetting") as moved:
        if settings["config"] is None:
            done = forgotten(ledger, *sites)
            notes = [] if done.exact else spread_that_stays(recipe_in(about.provenance))
            record = {}
        else:
            done, job = _refined(settings, ledger, about.provenance, sites, moved)
            notes, record = ([], {}) if done.exact else (job.notes, job.record)
    left = done.ledger
    issued = done.receipt
    # The receipt is written last: if it exists, so does its ledger.
    record = {"before": issued.before, **kept(record or about.provenance, left.sites)}
    with alongside(receipt, issued.to_json().encode()):
        written = files.write(left, output, "forget", record)
    return {
        **written,
        "receipt": receipt,
        "sites": issued.sites,
        "left": left.sites,
        "exact": issued.exact,
        "refined": issued.refinement is not None,
        "statement": issued.statement,
        "distance": done.distance,
        "status": status_of(done.status),
        "notes": notes,
    }


def _withdrawn(settings: Settings, path: Path, sites: tuple[str, ...]) -> Data:
    """Write the ledger in which a site's factor is that of its table without some records."""
    table = settings.path("data.file")
    if len(sites) != 1 or table is None:
        raise incomplete("--record", "one --site, and its table as --data FILE")
    given = [place for place in OF_SITES if place in settings.values]
    if given:
        raise unwanted(
            settings.flag(given[0]),
            "beside --record",
            "an option of forgetting a site, of which a receipt tells: of records none is issued",
        )
    ledger, about = files.read_ledger(path)
    with bar("Fitting again") as moved:
        done = without_records(
            ledger,
            about.provenance,
            sites[0],
            table,
            texts_by_column(settings["record"]),
            reading=reading_of(settings),
            progress=moved,
        )
    record = {"before": about.digest, **done.provenance}
    return {
        **files.write(done.ledger, settings.output, "forget", record),
        "sites": sites,
        "withdrawn": done.withdrawn,
        "exact": True,
        "notes": done.notes,
    }


def _reading(settings: Settings) -> dict[str, Any]:
    """Return the options that say how tables are read."""
    return {place: value for place, value in settings.values.items() if place.startswith("data.")}


def _check_new(receipt: Path, sites: tuple[str, ...], before: Ledger) -> None:
    """Raise a UsageError if a receipt exists, unless it is for this same request."""
    with contextlib.suppress(ArtifactError):
        known = Receipt.load(receipt)
        if (set(known.sites), known.before) == (set(sites), digest(before)):
            return
    if receipt.exists():
        raise UsageError(
            found=f"receipt '{receipt}', which exists already",
            expected="a new file, since a receipt cannot be made again once its ledger is deleted",
        )


def _refined(
    settings: Settings,
    before: Ledger,
    provenance: Mapping[str, str],
    sites: tuple[str, ...],
    progress: ProgressCallback,
) -> tuple[Forgotten, Federated]:
    """Return the ledger refined by the remaining sites, and the federation, whose noise variance or
    dispersion is estimated from those sites.
    """
    federation = read("federate", {}, Path(settings["config"]))
    settings.check_outputs(*federation.inputs)
    names = names_in(before)
    values = {**federation.values, **_reading(settings)}
    if SPREAD in names:
        values.setdefault("model.personal", [*names[SPREAD]])
    federation = dataclasses.replace(federation, values=values)
    with federation.named():
        job = federation_of(federation, names, (*sites, *before.forgotten))
    check_model(provenance, job.record)
    run = job.start().with_ledger(before)
    stay = [site for site in run.contributing if site not in sites]
    if stay and not (run.exact or before.independent):
        recipe = recipe_in(provenance)
        known = run
        if recipe is not None:  # with the ledger's noise variance or dispersion
            known = start(**{**job.arguments, "model": model_of(recipe)}).with_ledger(before)
        job = dataclasses.replace(job, notes=(*job.notes, *changed_records(known, stay)))
    done = forgotten(
        run,
        *sites,
        progress=progress,
        sweeps=settings["sweeps"],
        restart=not run.agreement.admits(before.forget(*sites).total),
        allow_unconverged=bool(settings["allow_unconverged"]),
    )
    refinement = done.receipt.refinement
    if refinement is not None:
        left = job.marked(done.ledger)
        done = dataclasses.replace(done, ledger=left, receipt=issue(before, left, refinement))
    return done, job
