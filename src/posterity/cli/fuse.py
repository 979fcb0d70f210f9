"""``posterity fuse``: merging of posteriors of several sites."""

import itertools
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table

import posterity
from posterity.artifact import aligned
from posterity.cli import files, report
from posterity.cli.inputs import LISTED, Inputs, fused
from posterity.cli.options import Settings, incomplete, unwanted
from posterity.cli.report import alarming, first, listed, short, status_of
from posterity.cli.streams import Data, printable, verb
from posterity.errors import CHOOSE, FusionWarning, IdentificationWarning, UsageError
from posterity.families import Gaussian
from posterity.families.names import names_of, some
from posterity.fusion import Fusion
from posterity.fusion import plan as plans
from posterity.fusion.alignment import NO_SCALE, Alignment
from posterity.fusion.confidence import AMBIGUOUS
from posterity.fusion.conflict import CONFLICTS
from posterity.fusion.networks.options import has_units
from posterity.fusion.scale import Scale
from posterity.ledger import Ledger
from posterity.tabular.recipe import recipe_in
from posterity.tabular.sites import as_provenance

OneShot = tuple[float | None, tuple[str, ...]]
"""The distance from the posterior of all records, None if it is unknown, and warnings."""
MOST_COLUMNS = 12
"""Number of fused components that are printed."""


def _report(data: Data) -> report.Group:
    direction = data["divergence"]
    network = data["network"]
    kl = f"{direction} KL" if direction in ("reverse", "forward") else direction
    side = kl if data["rule"] == "barycenter" else f"matched by {kl}"
    parts: list[Any] = [
        f"Fused {data['count']} sites: {data['rule']} ({side}), {printable(data['why'])}."
    ]
    if network is not None:
        widths = ", ".join(map(str, network["widths"])) or "no"
        tried = f" ({len(network['tried'])} widths tried, tolerance {network['tolerance']:g})"
        parts.append(
            f"A network of {widths} hidden units, {short(network['predictive_kl'])} nats of "
            "predictive KL from all sites' side by side"
            f"{tried if len(network['tried']) > 1 else ''}."
        )
    if data["personal"]:
        parts.append("Sites' coefficients vary around those of a population (partial pooling).")
    if data["one_shot"] is not None:
        far = f"about {data['one_shot']:.2g} nats from" if data["one_shot"] else "it is"
        parts.append(f"In one shot: {far} the posterior of all records.")
    parts.append(report.wrote("Drew the matching in", data["plot"]))
    for path, plate in data["plates"].items():
        parts += ["", *_plate_report(path, plate, network is None)]
    count = len(data["warnings"])
    if count:
        line = f"{count} warning{'s' * (count > 1)} on standard error."
        parts += ["", alarming(line, True)]
    return report.group(*parts, "", f"Wrote {data['kind']} to {printable(data['output'])}")


def _plate_report(path: str, plate: Data, scaled: bool) -> Iterator[RenderableType]:
    """Yield the number of components, the matching, and ambiguous matches."""
    yield (
        f"{f'{printable(path)}: ' if path else ''}{plate['components']} components, cost "
        f"{short(plate['cost'])} nats. Columns are fused, cells local ones."
    )
    if plate["residual"] is not None and scaled:
        yield report.sentence(plate["scale"])
    yield _matching(plate)
    parts = [f"{k} of {site}" for site, own in plate["absorbed"].items() for k in own]
    if parts:
        yield f"Absorbed, part of another of their site's: {listed(parts)}."
    others = {int(g): n for g, n in plate["components_evidence"].items()}
    others.pop(plate["components"], None)
    if others:
        best = min(others, key=others.__getitem__)
        runner_up = f"Next best: {best} components, {short(others[best])} nats worse."
        yield alarming(runner_up, others[best] < AMBIGUOUS)
    if not plate["identified"]:
        yield alarming(f"Not identified: {NO_SCALE}.", True)
    if plate["doubtful"]:

        def cells(row):
            return (printable(row["site"]), str(row["component"]), short(row["margin"]))

        headers = report.table("doubtful at", "component", "margin in nats", plain=True)
        yield first(plate["doubtful"], headers, cells)


def _matching(plate: Data) -> Table:
    """Return a table of sites (rows) by fused components (columns) with matched local indices."""
    shown = range(min(plate["components"], MOST_COLUMNS))
    hidden = plate["components"] > len(shown)
    unused = any(-1 in labels for labels in plate["matching"].values())
    headers = [*map(str, shown), *["more"] * hidden, *["unused"] * unused]

    def members(labels: Sequence[int], component: int) -> str:
        indices = (str(index) for index, label in enumerate(labels) if label == component)
        return ",".join(indices) or "."

    def cells(row: tuple[str, Sequence[int]]) -> Iterator[str]:
        site, labels = row
        yield printable(site)
        yield from (members(labels, component) for component in shown)
        if hidden:
            yield str(sum(g >= len(shown) for g in labels))  # number hidden
        if unused:
            yield members(labels, -1)

    rows = list(plate["matching"].items())
    return first(rows, report.table("site", *headers, plain=True), cells, hint=" sites")


@verb(_report)
def fuse(settings: Settings) -> Data:
    """Merge posteriors trained on separate data into one file."""
    named = [*settings.files, *(settings["posteriors"] or [])]
    if not named:
        raise UsageError(
            found="no files", expected="posteriors of at least two sites", fix="Name their files."
        )
    paths = [path for name in named for path in plans.files(name)]
    settings.check_outputs(*paths)
    plate = settings["plate"]
    plot = settings.path("output.plot")
    checkpoint = settings.checkpoint
    if plate is not None and plot is None:
        raise incomplete(f"--plate {plate}", "--plot FILE")
    options = {name: settings[name] for name in OF_FUSE}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("ignore", IdentificationWarning)  # these are in the result
        warnings.simplefilter("ignore", FusionWarning)
        fusion, inputs = fused(
            paths, settings.path("prior.file"), options, settings["budget"], checkpoint
        )
    result: Any = fusion.posterior if fusion.ledger is None else fusion.ledger
    status = fusion.status
    one_shot = None
    personal = settings["model.personal"]
    if personal not in (None, False):
        result, status, one_shot = _partially_pooled(fusion, inputs, personal)
    if plot is not None:  # before the result: if drawing fails, no file is left
        from posterity.reporting.plots import plot_matching

        plot_matching(fusion, plot, plate=plate)
    distance, doubts = one_shot or _one_shot(fusion, inputs)
    written = files.write(result, settings.output, "fuse", _provenance(fusion, options, inputs))
    checkpoint.unlink(missing_ok=True)
    unlisted = f"digests and matching of the first {LISTED} of {len(paths)} files only"
    return {
        **written,
        "plot": plot,
        "rule": fusion.rule.value,
        "why": fusion.why,
        "divergence": fusion.divergence.value,
        "matching": options["matching"],
        "count": len(paths),
        "status": status_of(status),
        "sites": dict(sorted(inputs.digests.items())),
        "plates": {path: _plate(one, fusion.scales[path]) for path, one in fusion.plates.items()},
        "network": _network(fusion),
        "columns": aligned.listed(aligned.names_in(result)),
        "rebased": fusion.rebased[:LISTED],
        "personal": bool(personal),
        "one_shot": distance,
        "warnings": doubts,
        "notes": [
            *inputs.notes,
            *(str(warning.message) for warning in heard),
            *([unlisted] if len(paths) > LISTED else []),
        ],
    }


def _partially_pooled(fusion: Fusion, inputs: Inputs, columns: Any) -> tuple[Any, Any, OneShot]:
    """Pool sites' files partially; return the ledger, its status, and its expected distance.

    Only coefficients that are shared can contradict each other.
    """
    # Not above: most fusions need neither models nor their optimisers.
    from posterity.tabular.multicentre import personal_of, places_of
    from posterity.tabular.one_shot import NOT_GAUSSIAN, expected_distance
    from posterity.tabular.pooled import by_default, partially_pooled, spreads_of

    ledger = fusion.ledger
    recipe = recipe_in(inputs.record)
    if ledger is None or recipe is None or recipe.own:
        where = "with files that are not regressions with the same coefficients"
        raise unwanted("--personal", where, "the files of posterity fit, without --own")
    names = names_of(ledger.prior).get("", ())
    apart = personal_of(columns, names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        run = partially_pooled(ledger, spreads_of(apart, recipe, names))
    heard = [str(warning.message) for warning in caught]
    exact = recipe.conjugate and run.status.converged and not heard
    if not isinstance(columns, dict):
        inputs.notes += by_default(run.ledger.prior, recipe)
    if not recipe.conjugate:
        again = f": if the sites can take part again, run federate --personal{CHOOSE}"
        again = "" if recipe.model == "multinomial" else again
        inputs.notes.append(
            "the distance from partial pooling of all records is unknown, since sites' Gaussians "
            f"replace their records{again}"
        )
        silent = expected_distance(ledger, inputs.sites).silent
        if silent:
            heard.append(
                f"the likelihoods of {some(silent)} {NOT_GAUSSIAN}, so coefficients, and spreads "
                "between sites, may be far off"
            )
    if not run.status.converged:
        heard.append(f"partial pooling has {run.status}")
    heard += [line for line in fusion.warnings if not _of_conflict(line)]
    own = places_of(apart, len(names))
    heard += _contradictions(ledger, [place for place in range(len(names)) if place not in own])
    return run.ledger, run.status, (0.0 if exact else None, tuple(heard))


def _contradictions(ledger: Any, shared: Sequence[int]) -> list[str]:
    """Return lines on sites that contradict each other in shared coefficients."""
    if not shared:
        return []
    names = names_of(ledger.prior).get("", ())
    at = np.ix_(shared, shared)

    def marginal(law: Any) -> Gaussian:
        part = Gaussian.from_standard(law.mean[shared], law.covariance[at])
        return part.named([names[place] for place in shared])

    alone = {site: ledger.holding({site: ledger.entries[site]}).posterior for site in ledger.sites}
    sites = {site: marginal(law) for site, law in alone.items() if law.is_proper()}
    if len(sites) < 2:
        return []
    lines = _warnings_of(sites, prior=marginal(ledger.prior))
    return [line for line in lines if _of_conflict(line)]


def _of_conflict(line: str) -> bool:
    return any(words in line for words in CONFLICTS)


def _warnings_of(sites: Mapping[str, Any], **options: Any) -> tuple[str, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are in the result
        return posterity.fuse(sites, **options).warnings


def _one_shot(fusion: Fusion, inputs: Inputs) -> OneShot:
    """Return the distance of a fusion from the posterior of all records, and warnings.

    The distance is None unless it is of regressions whose files determine it.

    A site whose file is not informative is left out when others are compared.
    """
    ledger = fusion.ledger
    recipe = recipe_in(inputs.record)
    if ledger is None or recipe is None:
        return None, fusion.warnings
    if recipe.conjugate:
        return 0.0, fusion.warnings
    from posterity.tabular.one_shot import expected_distance

    known = expected_distance(ledger, inputs.sites)
    heard = fusion.warnings
    if known.silent:

        def alone(site):
            return Ledger(ledger.prior).holding({site: ledger.entries[site]})

        rest = {site: alone(site) for site in ledger.sites if site not in known.silent}
        heard = _warnings_of(rest) if len(rest) > 1 else ()
    if known.distance is None and not known.warnings:
        inputs.notes.append(
            "the distance from the posterior of all records together is unknown, since the sites' "
            f"files do not determine it: if the sites can take part again, federate{CHOOSE}"
        )
    return known.distance, (*heard, *known.warnings)


OF_FUSE = ("rule", "divergence", "matching", "components", "absorb", "weights")
"""Options that are arguments of :func:`posterity.fuse`."""


def _plate(plate: Alignment, scale: Scale) -> Data:
    """Return a plate's matching, and its residual next to that expected from sampling."""
    matching = dict(itertools.islice(plate.matching.items(), LISTED))
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


def _provenance(fusion: Fusion, options: Mapping[str, Any], read: Inputs) -> dict[str, str]:
    components = options["components"]
    weights = options["weights"] or {}
    inputs = {f"input {site}": digest for site, digest in read.digests.items()}
    if read.count > LISTED:  # a header has no room for the digests of a million files
        inputs = {"inputs": f"sha256 of names and digests: {read.all.hexdigest()}"}
    rebased = json.dumps(fusion.rebased, ensure_ascii=False)
    if len(fusion.rebased) > LISTED:
        rebased = f"{len(fusion.rebased)} sites"
    return {
        "rule": fusion.rule.value,
        "divergence": fusion.divergence.value,
        "matching": str(options["matching"]),
        **inputs,
        **({"rebased": rebased} if fusion.rebased else {}),
        **({} if components is None else {"components": str(components)}),
        **({} if options["absorb"] is None else {"absorb": str(options["absorb"]).lower()}),
        **{f"weight {site}": repr(float(weight)) for site, weight in weights.items()},
        **read.record,
        **as_provenance(recipe_in(read.record) if read.sites else None, read.sites),
    }
