"""``posterity predict`` and ``evaluate``: predictions for new records, and their scores."""

from pathlib import Path
from typing import Any

from posterity.artifact import Inspection
from posterity.cli import files
from posterity.cli.options import Settings, unwanted
from posterity.cli.recipes import reading_of, recipe_of
from posterity.cli.report import Group, first, group, short, table
from posterity.cli.streams import Data, bar, verb
from posterity.runtime.text import count
from posterity.tabular.predictions import FORMATS, Predicted, predicted, texts_of
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.recipe_model import columns_of
from posterity.tabular.sites import law_of

OF_NETWORKS = {"samples": "samples", "likelihood": "model.likelihood", "seed": "seed"}
"""Options of predictions by a network, by argument."""


def _predicted(settings: Settings, file: Path, inputs: Path, scored: bool) -> tuple[str, Predicted]:
    """Return the kind of a file's value, and its predictions of a table's records."""
    value, about = files.read_any(file)
    like = settings.path("data.like")
    recipe = recipe_in(about.provenance) if like is None else recipe_of(like)
    posterior = law_of(value)
    network = about.kind != "Student" and getattr(posterior, "network_layers", None) is not None
    _check_used(settings, recipe, network)
    of_network = _of_network(settings, about, posterior) if network else {}
    with bar("Predicting rows") as moved:
        return about.kind, predicted(
            value,
            about.provenance,
            inputs,
            file=str(file),
            recipe=recipe,
            reading=reading_of(settings),
            array=settings["inputs.array"],
            target=settings.values.get("model.target"),
            site_column=settings["data.site_column"],
            spread=settings["model.noise_variance"],
            level=settings["level"],
            times=settings.values.get("times", ()),
            scored=scored,
            progress=moved,
            **of_network,
        )


def _of_network(settings: Settings, about: Inspection, posterior: Any) -> dict[str, Any]:
    """Return the options of predictions by a network, of which one output is ambiguous."""
    import jax

    asked = {k: settings[place] for k, place in OF_NETWORKS.items() if place in settings.values}
    if "likelihood" not in asked and posterior.layers.outputs == 1:
        raise files.no_likelihood(about.path)
    seed = asked.pop("seed", 0)
    return asked | {"key": jax.random.key(seed)}


def _check_used(settings: Settings, recipe: Recipe | None, network: bool) -> None:
    """Raise a UsageError for an option that predictions do not hang on."""
    model = None if recipe is None else recipe.model
    what = "a file without a recipe" if recipe is None else f"model {model}"
    of = {"times": "survival", "model.noise_variance": "linear"}
    for place in settings.values:
        unread = place.startswith("data.") and recipe is None
        foreign = place in OF_NETWORKS.values() and not network
        if unread or foreign or of.get(place, model) != model:
            expected = "options that the predictions hang on"
            raise unwanted(settings.flag(place), f"for {what}", expected)


def _check_level(settings: Settings, has_interval: bool) -> None:
    """Raise a UsageError if a probability of intervals was passed, and the result has none."""
    if "level" in settings.values and not has_interval:
        level = f"--level {settings['level']:g}"
        raise unwanted(level, "for a result of no interval", "the probability of one")


# --- commands ------------------------------------------------------------------------------------

WANTED = "a posterior, network or student", "a file of records"


def _report(data: Data) -> str:
    what = f"{data['kind']} in {data['file']}"
    names = data["columns"]  # but not a hundred classes
    names = names if len(names) <= 12 else [*names[:4], "...", *names[-4:]]
    wrote = f"Wrote {', '.join(names)} to {data['output']}"
    said = f"Predicted {count(data['records'], 'record')} by the {what}."
    return f"{said}\n{wrote}"


@verb(_report)
def predict(settings: Settings) -> Data:
    """Predict the records of a table, with uncertainties: one row for each record."""
    (file, inputs), output = settings.arguments(*WANTED), settings.output
    files.check_ending(output, FORMATS)
    kind, found = _predicted(settings, file, inputs, scored=False)
    _check_level(settings, any("low" in name.split("_") for name in found.parts))
    keep = {name: texts_of(inputs, name) for name in settings["keep"] or ()}
    found.write(output, keep)
    kept = found.kept
    return {
        "output": output,
        "file": file,
        "kind": kind,
        "records": len(kept),
        "columns": [*keep, *columns_of(found.parts)],
        "notes": found.notes,
    }


SCORES = {
    "log_score": "log score",
    "brier": "Brier",
    "auroc": "AUROC",
    "concordance": "concordance",
    "accuracy": "accuracy",
    "calibration_error": "calibration error",
    "rmse": "RMSE",
    "coverage": "coverage",
}
"""Labels of a table's scores."""


def _scores_report(data: Data) -> Group:
    known = [name for name in SCORES if name in data["all"]]
    rows = table(data["by"] or "", "records", *(SCORES[name] for name in known))
    every = [("all", data["all"]), *data["groups"].items()]

    def cells(row: tuple[str, Data]) -> list[Any]:
        name, own = row
        return [name, own["records"], *map(own.get, known)]

    error = data["all"].get("log_score_se")
    of_error = f"; the error of the first is {short(error)}" if error else ""
    scored = f"Log scores are nats a record, higher is better{of_error}."
    return group(
        f"Evaluated the {data['kind']} in {data['file']}.",
        first(every, rows, cells),
        scored if "log_score" in known else None,
    )


@verb(_scores_report)
def evaluate(settings: Settings) -> Data:
    """Score predictions of records whose target is known, overall and by group."""
    file, inputs = settings.arguments(*WANTED)
    by = settings["by"]
    kind, found = _predicted(settings, file, inputs, scored=True)
    labels = None if by is None else texts_of(inputs, by)
    whole, groups = found.scores(settings["level"], labels)
    _check_level(settings, "coverage" in whole)
    return {
        "file": file,
        "kind": kind,
        "by": by,
        "all": whole,
        "groups": groups,
        "notes": found.notes,
    }
