"""``posterity fuse``: merging of posteriors of several sites."""

import itertools
import warnings
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from posterity.artifact import aligned
from posterity.cli import files, report
from posterity.cli.options import Settings
from posterity.cli.report import alarming, first, short, status_of
from posterity.cli.streams import Data, bar, verb
from posterity.fusion import plan as plans
from posterity.fusion.alignment import Alignment
from posterity.fusion.confidence import AMBIGUOUS
from posterity.fusion.networks.options import has_units
from posterity.fusion.scale import Scale
from posterity.tabular.fused import Inputs, distance_of, distance_of_pooled, fused, provenance_of
from posterity.tabular.sites import in_words, said


def _report(data: Data) -> report.Group:
    direction = data["divergence"]
    network = data["network"]
    kl = f"{direction} KL" if direction in ("reverse", "forward") else direction
    side = kl if data["rule"] == "barycenter" else f"matched by {kl}"
    how = "partial pooling" if data["personal"] else f"{data['rule']} ({side})"
    parts: list[Any] = [f"Fused {data['count']} sites: {how}, {data['why']}."]
    if network is not None:
        widths = ", ".join(map(str, network["widths"])) or "no"
        tried = f" ({len(network['tried'])} widths tried, tolerance {network['tolerance']:g})"
        parts.append(
            f"A network of {widths} hidden units, {short(network['predictive_kl'])} nats of "
            "predictive KL from all sites' side by side"
            f"{tried if len(network['tried']) > 1 else ''}."
        )
    if data["personal"]:
        from posterity.reporting import population  # most fusions have none

        parts += population.in_words(data["population"])
    if data["one_shot"] is not None:
        far = f"about {data['one_shot']:.2g} nats from" if data["one_shot"] else "it is"
        parts.append(f"In one shot: {far} the posterior of all records.")
    for path, plate in data["plates"].items():
        parts += ["", *_plate_report(path, plate, network is None)]
    count = len(data["warnings"])
    if count:
        line = f"{count} warning{'s' if count > 1 else ''} on standard error."
        parts += ["", alarming(line, True)]
    return report.group(*parts, "", f"Wrote {data['kind']} to {data['output']}")


def _plate_report(path: str, plate: Data, scaled: bool) -> Iterator[RenderableType]:
    """Yield the number of components, the matching, and ambiguous matches."""
    yield (
        f"{f'{path}: ' if path else ''}{plate['components']} components, cost "
        f"{short(plate['cost'])} nats. Columns are fused, cells local ones."
    )
    if plate["residual"] is not None and scaled:
        yield report.sentence(plate["scale"])
    yield _matching(plate)
    parts = [f"{k} of {site}" for site, own in plate["absorbed"].items() for k in own]
    if parts:
        yield f"Absorbed, part of another of their site's: {in_words(parts)}."
    others = {int(g): n for g, n in plate["components_evidence"].items()}
    others.pop(plate["components"], None)
    if others:
        best = min(others, key=others.__getitem__)
        runner_up = f"Next best: {best} components, {short(others[best])} nats worse."
        yield alarming(runner_up, others[best] < AMBIGUOUS)
    if not plate["identified"]:
        yield alarming("Which components are one is not identified.", True)
    if plate["doubtful"]:
        headers = report.table("doubtful at", "component", "margin in nats", plain=True)
        yield first(plate["doubtful"], headers, itemgetter("site", "component", "margin"))


def _matching(plate: Data, columns: int = 12) -> Table:
    """Return a table of sites (rows) by fused components (columns) with matched local indices, of
    as many columns as fit on a line.
    """
    shown = range(min(plate["components"], columns))
    hidden = plate["components"] > len(shown)
    unused = any(-1 in labels for labels in plate["matching"].values())
    headers = [*map(str, shown), *["more"] * hidden, *["unused"] * unused]

    def members(labels: Sequence[int], component: int) -> str:
        indices = (str(index) for index, label in enumerate(labels) if label == component)
        return ",".join(indices) or "."

    def cells(row: tuple[str, Sequence[int]]) -> list[Any]:
        site, labels = row
        more = [sum(g >= len(shown) for g in labels)] if hidden else []
        own = [*shown, -1] if unused else shown
        each = [members(labels, component) for component in own]
        return [site, *each[: len(shown)], *more, *each[len(shown) :]]

    rows = list(plate["matching"].items())
    return first(rows, report.table("site", *headers, plain=True), cells, hint=" sites")


@verb(_report)
def fuse(settings: Settings) -> Data:
    """Merge posteriors trained on separate data into one file."""
    named = [*settings.files, *(settings["posteriors"] or [])]
    paths = [path for name in named for path in plans.files(name)]
    settings.check_outputs(*paths)
    personal = settings["model.personal"]
    pooled = personal not in (None, False)
    # With random effects nothing is resumed; another run's checkpoint may be in the usual place.
    asked = settings.path("output.checkpoint") if pooled else settings.checkpoint
    options = {name: settings[name] for name in OF_FUSE}
    prior = settings.path("prior.file")
    budget = settings["budget"]
    inputs = Inputs()
    before = None
    if prior is not None:
        before, about = files.read_prior(prior)
        inputs.record["prior"] = about.digest
    with warnings.catch_warnings(record=True) as heard, bar(f"Fusing {len(paths)} files") as moved:
        warnings.simplefilter("always", UserWarning)
        fusion = fused(
            paths,
            inputs,
            budget=None if budget is None else budget * 2**20,
            read=files.read,
            progress=moved,
            prior=before,
            checkpoint=asked,
            personal=personal,
            warn=False,  # doubts are in the result
            **options,
        )
    result: Any = fusion.posterior if fusion.ledger is None else fusion.ledger
    known = distance_of_pooled(fusion, inputs) if pooled else distance_of(fusion, inputs)
    listed = inputs.listed
    population = None
    if pooled:
        from posterity.reporting.population import population_of  # as above

        population = population_of(result, LEVEL, inputs.sites, fusion.population)
    written = files.write(result, settings.output, "fuse", provenance_of(fusion, inputs, options))
    if asked is not None:
        asked.unlink(missing_ok=True)
    unlisted = f"digests and matching of the first {listed} of {len(paths)} files only"
    return {
        **written,
        "rule": fusion.rule.value,
        "why": fusion.why,
        "divergence": fusion.divergence.value,
        "matching": options["matching"],
        "count": len(result.sites) if pooled else len(paths),
        "status": status_of(fusion.status),
        "sites": dict(sorted(inputs.digests.items())),
        "plates": {
            path: _plate(one, fusion.scales[path], listed) for path, one in fusion.plates.items()
        },
        "network": _network(fusion),
        "columns": aligned.listed(aligned.names_in(result)),
        "rebased": fusion.rebased[:listed],
        "personal": pooled,
        "population": population,
        "one_shot": known.nats,
        "warnings": known.warnings,
        "notes": [
            *said(inputs.sites),
            *inputs.notes,
            *known.notes,
            *(str(warning.message) for warning in heard),
            *([unlisted] if len(paths) > listed else []),
        ],
    }


LEVEL = 0.95
"""Probability of the intervals of a population."""
OF_FUSE = ("rule", "divergence", "matching", "components", "absorb", "weights")
"""Options that are arguments of :func:`posterity.fuse`."""


def _plate(plate: Alignment, scale: Scale, listed: int) -> Data:
    """Return a plate's matching, and its residual next to that expected from sampling."""
    matching = dict(itertools.islice(plate.matching.items(), listed))
    margins: dict[str, Any] = {site: [None] * len(label) for site, label in matching.items()}
    doubtful: list[Data] = []
    if plate.confidence is not None:
        margins = {site: plate.margins[site] for site in matching}
        doubtful = [
            {"site": site, "component": component, "margin": margin}
            for site, component, margin in plate.ambiguous()
        ]
    return {
        "components": plate.components,
        "cost": plate.cost,
        "matching": matching,
        "margins": margins,
        "absorbed": plate.absorbed,
        "components_evidence": plate.components_evidence,
        "doubtful": doubtful,
        "identified": plate.identified,
        "residual": scale.residual,
        "expected_residual": scale.expected,
        "residual_spread": scale.spread,
        "scale": str(scale),
    }


def _network(fusion: Any) -> Data | None:
    """Return widths, and the distance of predictions from those of all networks together."""
    if not has_units(fusion.posterior):
        return None
    tried = sorted(fusion.predictive_kl.items())
    return {
        "widths": fusion.widths,
        "predictive_kl": fusion.achieved_kl,
        "tolerance": fusion.options.tolerance,
        "tried": [{"widths": widths, "predictive_kl": kl} for widths, kl in tried],
    }
