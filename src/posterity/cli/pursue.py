"""``posterity pursue``: a mixture approximation that grows while it improves."""

import json
import math
import sys
import warnings
from typing import Any

import jax
from rich.table import Table

import posterity
from posterity.cli import files
from posterity.cli.jobs import Problem, problem_of
from posterity.cli.options import Settings
from posterity.cli.report import MOST_ROWS, Group, filled, group, status_of, status_report
from posterity.cli.streams import Data, bar, verb
from posterity.errors import ConvergenceWarning
from posterity.pursuit import Joint, Pursuit
from posterity.runtime.interrupts import Interrupts, deferred
from posterity.status import Progress

POLISH = {"each": "each", "end": "end", "none": None}
DIAGNOSTICS = ("gap", "effective", "starts", "unseen")
"""Numbers reported with a mixture's status."""
COLUMNS = ("components", "ELBO", "gain", "α", "λ", "effective", "gradients")


def _report(data: Data) -> Group:
    trace = data["trace"]
    rows = Table(*COLUMNS, box=None, padding=(0, 1, 0, 0))  # fits in 80 letters
    for row in trace[-MOST_ROWS:]:
        cells = [
            row["components"],
            _estimate(row["elbo"], row["standard_error"]),
            "" if row is trace[0] else _estimate(row["gain"], row["gain_error"]),
            "polish" if row["alpha"] is None else f"{row['alpha']:.3f}",
            "" if row["alpha"] is None else _shown(row["lam"], ".2f"),
            _shown(row["effective"], ".2f"),
            row["evaluations"],
        ]
        filled(rows, [cells])
    hidden = len(trace) - MOST_ROWS
    count = data["components"]
    what = f"{count} component{'s' if count > 1 else ''}"
    return group(
        f"Pursued the posterior of a {data['model']} by {data['base']} components.",
        f"{hidden} rows before these are in --json." if hidden > 0 else None,
        rows,
        *(
            f"Component {refused['number']} was refused: {refused['reason']}."
            for refused in data["refused"]
        ),
        status_report("The mixture", data["status"]),
        f"Wrote the mixture of {what} to {data['output']}",
    )


def _estimate(value: float | None, error: float | None) -> str:
    """Format an estimate to two digits of its error."""
    places = 4 if not error else min(max(1 - math.floor(math.log10(error)), 0), 6)
    return f"{_shown(value, f'.{places}f')} ± {_shown(error, f'.{places}f')}"


def _shown(value: float | None, shape: str) -> str:
    return "unknown" if value is None else format(value, shape)


@verb(_report)
def pursue(settings: Settings) -> Data:
    """Approximate a posterior by a mixture that grows until another component adds nothing."""
    with deferred() as interrupts:
        with settings.named():
            problem = problem_of(settings)
        options = arguments_of(settings)
        pursuit = _run(settings, problem, options, interrupts)
        data = _written(settings, problem, pursuit)
        interrupts.check()
        settings.checkpoint.unlink(missing_ok=True)
    return data


def arguments_of(settings: Settings) -> dict[str, Any]:
    """Return the arguments of :func:`posterity.pursue` except its target and key."""
    options = settings.table("pursuit", "polish")
    options["base"] = settings["pursuit.base"]
    options["polish"] = POLISH[settings["pursuit.polish"]]
    return options


def _run(
    settings: Settings, problem: Problem, options: dict[str, Any], interrupts: Interrupts
) -> Pursuit:
    """Run the pursuit; an interrupt ends it after a component, with a checkpoint."""
    target = Joint(problem.model, problem.prior, problem.data)
    with bar("Pursuing components") as moved, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # reported by the status

        def progress(now: Progress) -> None:
            if sys.stderr.isatty():
                print(now.result.trace[-1], file=sys.stderr)  # above the bar
            moved(now)
            interrupts.rescue = lambda: None  # nothing is lost: the checkpoint has it
            interrupts.check()

        options |= {"key": jax.random.key(settings["seed"]), "checkpoint": settings.checkpoint}
        return posterity.pursue(target, progress=progress, **options)


def _written(settings: Settings, problem: Problem, pursuit: Pursuit) -> Data:
    """Write the posterior, and return the report."""
    base = settings["pursuit.base"]
    status = pursuit.status
    record = {
        "model": problem.kind,
        "records": str(len(problem.data[0])),
        "base": base,
        "seed": str(settings["seed"]),
        "elbo": f"{pursuit.elbo} ± {pursuit.standard_error}",
        "evaluations": str(pursuit.trace[-1].evaluations),
        "status": str(status),
    }
    network = problem.kind == "network"
    if problem.names:
        record["inputs" if network else "coefficients"] = json.dumps(problem.names)
    posterior: Any = pursuit.posterior
    if problem.record and not network:
        posterior = posterior.named(problem.names)
    written = files.write(posterior, settings.output, "pursue", record | problem.record)
    narrow = base == "diagonal" and not status.converged
    wider = f"pass {settings.flag('pursuit.base')} full, whose components have correlations"
    return {
        **written,
        "model": problem.kind,
        "base": base,
        "columns": problem.names,
        "notes": [*problem.notes, *([wider] if narrow else [])],
        "components": pursuit.posterior.size,
        "elbo": pursuit.elbo,
        "standard_error": pursuit.standard_error,
        "trace": pursuit.trace,
        "refused": [{"number": place, "reason": reason} for place, reason in pursuit.refused],
        "status": status_of(status, **{name: getattr(pursuit, name) for name in DIAGNOSTICS}),
    }
