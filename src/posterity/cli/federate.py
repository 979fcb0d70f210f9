"""``posterity federate``: simulation of a federation in one process."""

from collections import Counter
from typing import Any

from posterity.artifact.aligned import listed, names_in
from posterity.cli import files
from posterity.cli.jobs import Federated, federation_of
from posterity.cli.options import Settings
from posterity.cli.report import Group, alarming, first, group, status_of, status_report, table
from posterity.cli.streams import Data, bar, verb
from posterity.errors import ParameterError
from posterity.federation import Run
from posterity.federation.federate import proceed
from posterity.reporting.cautions import cautions_of_federation, notes_of_federation
from posterity.status import Progress
from posterity.tabular.pooled import check_coefficients, check_columns
from posterity.tabular.recipe import recipe_in
from posterity.tabular.sites import NOTES, as_provenance, said, sites_in


def _report(data: Data) -> Group:
    def cells(one: tuple[str, Data]) -> list[Any]:
        site, row = one
        counts = [row[name] for name in ("records", "updates", "failures")]
        return [site, *counts, "" if row["residual"] is None else f"{row['residual']:.1e}"]

    sites = sorted(data["sites"].items(), key=lambda one: -one[1]["failures"])
    columns = table("site", "records", "updates", "failures", "residual", plain=True)
    rows = first(sites, columns, cells, hint=" (--json has all)")
    steps = data["steps"]
    before = data["resumed"]
    unit = data["unit"].removesuffix("s") if steps == 1 else data["unit"]
    all_before = "all" if before == steps else f"the first {before}"
    went_on = f", {all_before} of them in the checkpoint" if before else ""
    return group(
        f"Federated {len(data['sites'])} sites: {steps} {unit}{went_on}.",
        f"Each site: {data['rule']}.",
        rows,
        status_report("The posterior", data["status"]),
        alarming(data["warning"], True) if data["warning"] else None,
        f"Wrote the ledger to {data['output']}",
    )


@verb(_report)
def federate(settings: Settings) -> Data:
    """Simulate a federation, in which sites improve one posterior in turns."""
    with settings.named():
        job = federation_of(settings)
    run = job.start()
    steps = []
    recipe = recipe_in(job.record)
    if recipe is not None:
        check_columns(run, recipe)
    converge = job.steps is None or job.arguments["tolerance"] is not None
    with bar("Federating") as moved:

        def report(progress: Progress) -> None:
            steps.append(progress.step)
            moved(progress)

        run = proceed(run, job.steps, converge, progress=report, checkpoint=settings.checkpoint)
    resumed = steps[0] - 1 if steps else run.state.step
    if recipe is not None:
        try:
            check_coefficients(run)
        except ParameterError:  # what the error advises is another computation
            settings.checkpoint.unlink(missing_ok=True)
            raise
    data = _written(settings, job, run)
    if job.steps is None and run.status.converged:  # there are no more steps to go on with
        settings.checkpoint.unlink(missing_ok=True)
    return data | {"resumed": resumed}


def _written(settings: Settings, job: Federated, run: Run) -> Data:
    """Write the ledger, and return the report."""
    schedule = type(run.schedule).__name__
    steps = run.state.step
    ledger = job.marked(run.ledger)
    of_file = job.record
    record = {"schedule": schedule, "steps": str(steps), "status": str(run.status)}
    recipe = recipe_in(job.record)
    facts = sites_in(job.record)
    notes = list[str]()
    if recipe is not None:
        data = job.arguments["sites"]
        model = job.arguments["model"]
        told = cautions_of_federation(data, model, run.ledger, recipe, job.designs)
        for site, lines in ((site, lines) for site, lines in told.items() if lines):
            facts[site][NOTES] = [*facts[site].get(NOTES, []), *lines]
        of_file = as_provenance(recipe, facts)
        notes += said(facts)
        notes += notes_of_federation(ledger, recipe, facts)
    written = files.write(ledger, settings.output, "federate", record | of_file)
    outcomes = Counter((visit.site, visit.outcome) for visit in run.trace)
    last = {visit.site: visit.residual for visit in run.trace}
    # An ordinal or survival record is several rows of the underlying regression.
    records = run.federation.records | {site: own["records"] for site, own in facts.items()}
    return {
        **written,
        "columns": listed(names_in(ledger)),
        "notes": [*job.notes, *notes],
        "schedule": schedule,
        "unit": run.schedule.unit,
        "steps": steps,
        "exact": run.exact and ledger.independent,
        "rule": run.rule,
        "warning": _way_on(run),
        "status": status_of(run.status),
        "sites": {
            site: {
                "records": records[site],
                "updates": outcomes[site, "updated"],
                "failures": outcomes[site, "failed"] + outcomes[site, "refused"],
                "residual": last.get(site),
            }
            for site in run.federation.records
        },
    }


def _way_on(run: Run) -> str | None:
    """Return what to do where nothing but a number of steps keeps a run from converging."""
    if run.status.state != "not converged" or run.status.reasons:
        return None
    more = 2 * run.state.step
    return f"The same command with --steps {more} goes on from the checkpoint beside the ledger."
