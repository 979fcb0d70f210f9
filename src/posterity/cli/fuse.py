"""``posterity fuse``: posteriors of several sites, merged."""

import dataclasses
import hashlib
import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.cli import files
from posterity.cli.failures import printable
from posterity.cli.options import (
    COUNT,
    FILE,
    FLAG,
    TEXT,
    WEIGHT,
    Option,
    Settings,
    by_name,
    list_of,
    verb,
)
from posterity.cli.report import (
    MOST_ROWS,
    Data,
    alarming,
    first,
    group,
    number,
    sentence,
    short,
    status_of,
    table,
)
from posterity.cli.schema import OUTPUT, PLOT
from posterity.cli.streams import bar
from posterity.errors import IdentificationWarning, UsageError

if TYPE_CHECKING:
    from posterity.fusion import Fusion

LISTED = 10_000
"""Sites of which digests and matching are told one by one."""
MOST_COLUMNS = 12
"""Fused components that a person is shown."""


def _word(metavar: str) -> Any:
    """A word that the library checks."""
    return dataclasses.replace(TEXT, metavar=metavar)


# --- what people are told ------------------------------------------------------------------------


def _report(data: Data) -> Any:
    direction = data["divergence"]
    kl = f"{direction} KL" if direction in ("reverse", "forward") else direction
    parts: list[Any] = [f"Fused {data['count']} sites ({data['rule']}, {kl})."]
    if data["network"] is not None:
        parts.append(_network_line(data["network"]))
    if data["plot"] is not None:
        parts.append(f"Drew the matching in {printable(data['plot'])}")
    for path, plate in data["plates"].items():
        parts += ["", *_plate_report(path, plate, data)]
    return group(*parts, "", f"Wrote {data['kind']} to {printable(data['output'])}")


def _network_line(network: Data) -> str:
    widths = ", ".join(map(str, network["widths"])) or "no"
    kl, tried = short(network["predictive_kl"]), network["tried"]
    looked = f" ({len(tried)} widths tried, tolerance {network['tolerance']:g})"
    return (
        f"A network of {widths} hidden units, {kl} nats of predictive KL from all sites' side by "
        f"side{looked if len(tried) > 1 else ''}."
    )


def _plate_report(path: str, plate: Data, data: Data) -> Iterator[Any]:
    """How many components, and which of each site went where; then what is not sure."""
    yield (
        f"{f'{printable(path)}: ' if path else ''}{plate['components']} components, cost "
        f"{short(plate['cost'])} nats. Columns are fused, cells local ones."
    )
    if plate["residual"] is not None and data["network"] is None:
        yield sentence(plate["scale"])
    yield _matching(plate)
    found = [(site, k) for site, parts in plate["absorbed"].items() for k in parts]
    if found:
        told = ", ".join(f"{k} of {printable(site)}" for site, k in found[:MOST_ROWS])
        more = f" and {len(found) - MOST_ROWS} more" if len(found) > MOST_ROWS else ""
        yield f"Absorbed, part of another of their site's: {told}{more}."
    yield from _doubts(plate)


def _matching(plate: Data) -> Any:
    """Rows are sites, columns fused components, cells the local indices that went there."""
    shown = range(min(plate["components"], MOST_COLUMNS))
    hidden = plate["components"] > len(shown)
    unused = any(-1 in labels for labels in plate["matching"].values())
    headers = [*map(str, shown), *["more"] * hidden, *["unused"] * unused]
    rows = table("site", *headers, plain=True)
    for site, labels in list(plate["matching"].items())[:MOST_ROWS]:
        cells = [_members(labels, g) for g in shown]
        cells += [str(sum(g >= len(shown) for g in labels))] * hidden  # how many
        rows.add_row(printable(site), *cells, *[_members(labels, -1)] * unused)
    if (more := len(plate["matching"]) - MOST_ROWS) > 0:
        rows.add_row(f"and {more} more sites")
    return rows


def _members(labels: Sequence[int], component: int) -> str:
    found = (str(index) for index, label in enumerate(labels) if label == component)
    return ",".join(found) or "."


def _doubts(plate: Data) -> Iterator[Any]:
    """The runner-up among numbers of components, and the matches that hang on little."""
    # Here, so that what lists commands and renders other results imports no array library.
    from posterity.fusion.alignment import NO_SCALE
    from posterity.fusion.confidence import AMBIGUOUS

    others = {int(g): n for g, n in plate["components_evidence"].items()}
    others.pop(plate["components"], None)
    if others:
        best = min(others, key=others.__getitem__)
        told = f"Next best: {best} components, {short(others[best])} nats worse."
        yield alarming(told, others[best] < AMBIGUOUS)
    if not plate["identified"]:
        yield alarming(f"Not identified: {NO_SCALE}.", True)
    if plate["doubtful"]:
        cells = lambda row: (
            printable(row["site"]),
            str(row["component"]),
            short(row["margin"]),
        )
        headers = table("doubtful at", "component", "margin in nats", plain=True)
        yield first(plate["doubtful"], headers, cells)


# --- the command ---------------------------------------------------------------------------------


@verb(
    Option("posteriors", list_of(FILE), "The files, in place of arguments.", "--posterior"),
    Option(
        "rule",
        _word("[barycenter|product]"),
        "The average of matched posteriors, or the prior once plus every site's data.",
        default="barycenter",
    ),
    Option(
        "divergence",
        _word("[reverse|forward|jeffreys|renyi[:ORDER]]"),
        "KL(fused || site), KL(site || fused), or what is taken in place of them.",
        default="reverse",
    ),
    Option(
        "matching",
        _word("[evidence|hungarian|kl-fusion|identity]"),
        "How components are matched.",
        default="evidence",
    ),
    Option(
        "components",
        COUNT,
        "Fused components, of networks the units of each hidden layer; found if left out.",
    ),
    Option(
        "weights",
        by_name(WEIGHT, "SITE"),
        "A site's weight in the average; name every site.",
        "--weight",
    ),
    Option(
        "prior.file",
        FILE,
        "What sites without a ledger started from; a product counts it.",
        "--prior",
    ),
    Option("plate", TEXT, "Which plate to draw, if there are several."),
    Option(
        "budget",
        COUNT,
        "MiB of memory for parameters, beyond which a temporary file holds them; 512 where "
        "there are many.",
    ),
    Option(
        "absorb", FLAG, "Put components together that a site's own fit split; done if left out."
    ),
    OUTPUT,
    PLOT,
    files="One posterior or ledger a site; or a folder of such files, or a quoted pattern; or a "
    "TOML file that says what flags do not.",
    report=_report,
    examples=[
        "posterity fuse north.safetensors south.safetensors -o both.safetensors",
        "posterity fuse site-*.safetensors -o all.safetensors --rule product --json",
        "posterity fuse 'sites/*.safetensors' -o all.safetensors",
    ],
)
def fuse(settings: Settings) -> Data:
    """Merge posteriors trained on separate data into one file.

    A site goes by the names in its ledger, else by the name of its file. With --rule product
    the output is a ledger, from which a site can be taken out again; it replaces what was at
    --output, but never one of the inputs. The exit code is 9 where matches are not identified.
    """
    from posterity.artifact.aligned import listed, names_in
    from posterity.fusion.sources import files as files_of

    named = [*settings.files, *(settings["posteriors"] or [])]
    if not named:
        raise UsageError(
            found="no posteriors", expected="the files of two sites at least", fix="Name them."
        )
    paths = [path for name in named for path in files_of(name)]
    output, prior = Path(settings.need("output.file")), settings.path("prior.file")
    plot = settings.path("output.plot")
    files.check_outputs([output, *([plot] if plot else [])], [*paths, *([prior] if prior else [])])
    _check_picture(plot, settings["plate"])
    options = {name: settings[name] for name in OF_FUSE}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("ignore", IdentificationWarning)  # the report says it
        fusion, told = _fused(paths, prior, options, settings["budget"])
    result = fusion.posterior if fusion.ledger is None else fusion.ledger
    record, names = _provenance(fusion, options, told), listed(names_in(result))
    if plot is not None:  # before the result: a picture that cannot be drawn leaves nothing behind
        from posterity.plots import plot_matching

        plot_matching(fusion, plot, plate=settings["plate"])
    written = files.write(result, output, "fuse", record)
    unlisted = f"digests and matching of the first {LISTED} of {len(paths)} files only"
    return {
        "output": written.path,
        "kind": written.kind,
        "plot": None if plot is None else str(plot),
        "digest": written.digest,
        "rule": fusion.rule.value,
        "divergence": fusion.divergence.value,
        "matching": options["matching"],
        "count": len(paths),
        "status": status_of(fusion.status),
        "sites": dict(sorted(told.digests.items())),
        "plates": {
            path: {**_plate(plate), **_scale(fusion.scales[path])}
            for path, plate in fusion.plates.items()
        },
        "network": _network(fusion),
        "columns": list(names),
        "rebased": list(fusion.rebased[:LISTED]),
        "notes": [
            *(str(warning.message) for warning in heard),
            *([unlisted] if len(paths) > LISTED else []),
        ],
    }


OF_FUSE = ("rule", "divergence", "matching", "components", "absorb", "weights")
"""Options that are arguments of :func:`posterity.fuse`."""


@dataclasses.dataclass
class Inputs:
    """What is recorded of the files that were fused.

    Attributes:
        record: of the prior, and of how all were fitted.
        digests: of the first files, by site.
        count: of all files.
        all: a digest of all their names and digests.
    """

    record: dict[str, str]
    digests: dict[str, str] = dataclasses.field(default_factory=dict)
    count: int = 0
    all: Any = dataclasses.field(default_factory=hashlib.sha256)

    def note(self, names: Sequence[str], digests: Sequence[str]) -> None:
        """Some more files."""
        self.count += len(names)
        for name, digest in zip(names, digests, strict=True):
            self.all.update(f"{name} {digest}\n".encode())
            if len(self.digests) < LISTED:
                self.digests[name] = digest


def _fused(
    paths: Sequence[str], prior: Path | None, options: dict[str, Any], budget: int | None
) -> "tuple[Fusion, Inputs]":
    """In memory, or file by file where there is more than is matched there."""
    from posterity.fusion import fuse
    from posterity.fusion.networks.options import is_network
    from posterity.fusion.sources import BUDGET, IN_MEMORY, size_of

    before, told = None, Inputs({})
    if prior is not None:
        before, found = files.read_prior(prior)
        told.record["prior"] = found.digest
    large = budget is not None or sum(map(size_of, paths)) > IN_MEMORY
    mebibytes: dict[str, Any] = {} if budget is None else {"budget": budget * 2**20}
    if large and not is_network(paths[0]):  # which are matched in memory, or refused
        options = options | {"budget": BUDGET} | mebibytes
        with bar(f"Fusing {len(paths)} files", total=len(paths)) as step:
            return fuse(_read(paths, told, step), prior=before, **options), told
    with bar(f"Fusing {len(paths)} files"):
        sites = _sites([Path(path) for path in paths], told)
        return fuse(sites, prior=before, **options, **mebibytes), told


def _read(paths: Sequence[str], told: Inputs, step: Callable[[int], None]) -> Iterator[Any]:
    """What the files hold, many at a time; what they say beside is noted."""
    from posterity.artifact.many import Several, read_many

    for found in read_many(paths):
        if isinstance(found, Several):
            told.note(found.names, found.digests)
        else:
            told.note([found.name], [found.digest])
        yield found
        step(told.count)


def _sites(paths: Sequence[Path], told: Inputs) -> dict[str, Any]:
    """What the files hold by site; their digests, and how all were fitted, are noted."""
    from posterity.artifact.many import name_of
    from posterity.artifact.recipes import check_same
    from posterity.ledger import Ledger

    sites, provenances = {}, {}
    for path in paths:
        found, inspection = files.read(path)
        name = (name_of(found.sites) if isinstance(found, Ledger) else "") or path.stem
        if name in sites:
            raise UsageError(
                found=f"two files of site {name!r}, the second {str(path)!r}",
                expected="each site once",
                fix="Leave one out, or rename one: a file goes by the sites of its ledger, "
                "else by its name.",
            )
        sites[name], provenances[name] = found, inspection.provenance
        told.note([name], [inspection.digest])
    told.record |= check_same(provenances)
    return sites


def _check_picture(plot: Path | None, plate: str | None) -> None:
    """Before any work: there is a picture for a plate, in a format that can be drawn."""
    if plot is not None:
        from posterity.plots import check_format

        check_format(plot)
    elif plate is not None:
        raise UsageError(
            found=f"--plate {plate} without --plot",
            expected="--plate beside --plot FILE",
            fix="Say with --plot where to draw the matching, or leave --plate out.",
        )


# --- as data -------------------------------------------------------------------------------------


def _plate(plate: Any) -> Data:
    listed = dict(itertools.islice(plate.matching.items(), LISTED))
    margins: dict[str, Any] = {site: [None] * len(label) for site, label in listed.items()}
    doubtful: list[Data] = []
    if plate.confidence is not None:
        margins = {site: [*map(number, plate.margins[site])] for site in listed}
        doubtful = [
            {"site": site, "component": component, "margin": number(margin)}
            for site, component, margin in plate.ambiguous()
        ]
    return {
        "components": plate.components,
        "cost": number(plate.cost),
        "matching": {site: label.tolist() for site, label in listed.items()},
        "margins": margins,
        "absorbed": {site: list(parts) for site, parts in plate.absorbed.items()},
        "components_evidence": {g: number(n) for g, n in plate.components_evidence.items()},
        "doubtful": doubtful,
        "identified": plate.identified,
    }


def _scale(scale: Any) -> Data:
    """The residual, and what sampling alone would give."""
    return {
        "residual": number(scale.residual),
        "expected_residual": number(scale.expected),
        "residual_spread": number(scale.spread),
        "scale": str(scale),
    }


def _network(fusion: Any) -> Data | None:
    """Widths, and how far predictions are from those of all networks side by side."""
    from posterity.fusion.networks.options import has_units

    if not has_units(fusion.posterior):
        return None
    return {
        "widths": list(fusion.widths),
        "predictive_kl": number(fusion.achieved_kl),
        "tolerance": fusion.options.tolerance,
        "tried": [
            {"widths": list(widths), "predictive_kl": number(kl)}
            for widths, kl in sorted(fusion.predictive_kl.items())
        ],
    }


def _provenance(fusion: "Fusion", options: Mapping[str, Any], told: Inputs) -> dict[str, str]:
    components, weights = options["components"], options["weights"] or {}
    inputs = {f"input {site}": digest for site, digest in told.digests.items()}
    if told.count > LISTED:  # a header has no room for the digests of a million files
        inputs = {"inputs": f"sha256 of names and digests: {told.all.hexdigest()}"}
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
        **told.record,
    }
