"""``posterity fuse``: posteriors of several sites, merged."""

import dataclasses
import hashlib
import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.report.numbers import number
from posterity.cli.streams import Json, bar, present
from posterity.errors import IdentificationWarning, UsageError

if TYPE_CHECKING:
    from posterity.fusion import Fusion

LISTED = 10_000
"""Sites of which digests and matching are told one by one."""


@app.command(
    epilog=example(
        "posterity fuse north.safetensors south.safetensors -o both.safetensors",
        "posterity fuse site-*.safetensors -o all.safetensors --rule product --json",
        "posterity fuse 'sites/*.safetensors' -o all.safetensors",
    )
)
def fuse(
    posteriors: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="One posterior or ledger a site; or a folder of such files, or a quoted pattern.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the result.")
    ],
    rule: Annotated[
        str,
        typer.Option(
            metavar="[barycenter|product]",
            help="The average of matched posteriors, or the prior once plus every site's data.",
        ),
    ] = "barycenter",
    divergence: Annotated[
        str,
        typer.Option(
            metavar="[reverse|forward|jeffreys|renyi[:ORDER]]",
            help="KL(fused || site), KL(site || fused), or what is taken in place of them.",
        ),
    ] = "reverse",
    matching: Annotated[
        str,
        typer.Option(
            metavar="[evidence|hungarian|kl-fusion|identity]", help="How components are matched."
        ),
    ] = "evidence",
    components: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Fused components, of networks the units of each hidden layer; found if left out.",
        ),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE=W", help="A site's weight in the average; name every site."),
    ] = None,
    prior: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What sites without a ledger started from; a product counts it."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to draw the matching: .png, .pdf or .svg."),
    ] = None,
    plate: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which plate to draw, if there are several.")
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=1,
            help="Memory for parameters, beyond which a temporary file holds them; 512 where "
            "there are many.",
        ),
    ] = None,
    absorb: Annotated[
        bool | None,
        typer.Option(
            "--absorb/--no-absorb",
            help="Put components together that a site's own fit split; done if left out, but where "
            "there is too much to be matched in memory.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Merge posteriors trained on separate data into one file.

    A site goes by the names in its ledger, else by the name of its file. With --rule product
    the output is a ledger, from which a site can be taken out again; it replaces what was at
    --output, but never one of the inputs.
    """
    options = {
        "rule": rule,
        "divergence": divergence,
        "matching": matching,
        "components": components,
        "absorb": absorb,
        "weights": _weights(weight or []),
    }
    from posterity.fusion.sources import files as files_of

    paths = [path for given in posteriors for path in files_of(given)]
    outputs = [output, plot] if plot else [output]
    files.check_outputs(outputs, [*paths, prior] if prior else paths)
    _check_picture(plot, plate)
    picture = (plot, plate) if plot else None
    present(lambda: _fuse(paths, output, prior, options, budget, picture), "fuse", as_json)


def _fuse(
    paths: Sequence[str],
    output: Path,
    prior: Path | None,
    options: dict[str, Any],
    budget: int | None,
    picture: tuple[Path, str | None] | None,
) -> dict[str, Any]:
    from posterity.artifact.aligned import listed, names_in
    from posterity.fusion.networks.intake import is_network
    from posterity.fusion.sources import BUDGET, IN_MEMORY, size_of

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("ignore", IdentificationWarning)  # the report says it
        large = budget is not None or sum(map(size_of, paths)) > IN_MEMORY
        if large and is_network(paths[0]):  # which are matched in memory, or refused
            given = {} if budget is None else {"budget": budget * 2**20}
            fusion, told = _in_memory(paths, prior, options | given)
        elif large:
            options = options | {"budget": BUDGET if budget is None else budget * 2**20}
            fusion, told = _in_stream(paths, prior, options)
        else:
            fusion, told = _in_memory(paths, prior, options)
    result = fusion.posterior if fusion.ledger is None else fusion.ledger
    record, names = _provenance(fusion, options, told) | told.prior, listed(names_in(result))
    if picture is not None:
        _draw(fusion, *picture)
    written = files.write(result, output, "fuse", record)
    return {
        "output": written.path,
        "kind": written.kind,
        "plot": None if picture is None else str(picture[0]),
        "digest": written.digest,
        "rule": fusion.rule.value,
        "divergence": fusion.divergence.value,
        "matching": options["matching"],
        "count": len(paths),
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
            *_unlisted(len(paths)),
        ],
    }


@dataclasses.dataclass
class Told:
    """What files say beside posteriors.

    Attributes:
        prior: what is recorded of the prior.
        digests: of the first files, by site.
        count: of all files.
        all: a digest of all their names and digests.
    """

    prior: dict[str, str]
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


def _in_memory(
    paths: Sequence[str], prior: Path | None, options: dict[str, Any]
) -> "tuple[Fusion, Told]":
    from posterity.fusion import fuse

    with bar(f"Fusing {len(paths)} files"):
        sites, digests, recipe = _sites([Path(path) for path in paths])
        before, recorded = _prior(prior)
        told = Told(recorded | recipe)
        told.note(list(digests), list(digests.values()))
        return fuse(sites, prior=before, **options), told


def _in_stream(
    paths: Sequence[str], prior: Path | None, options: dict[str, Any]
) -> "tuple[Fusion, Told]":
    """Of more than is matched in memory: a bar shows how many files have been read."""
    from posterity.fusion import fuse

    before, recorded = _prior(prior)
    told = Told(recorded)
    with bar(f"Fusing {len(paths)} files", total=len(paths)) as step:
        return fuse(_read(paths, told, step), prior=before, **options), told


def _read(paths: Sequence[str], told: Told, step: Callable[[int], None]) -> Iterator[Any]:
    """What the files hold, many at a time; what they say beside is noted."""
    from posterity.artifact.many import Several, read_many

    done = 0
    for found in read_many(paths):
        if isinstance(found, Several):
            told.note(found.names, found.digests)
            done += len(found.names)
        else:
            told.note([found.name], [found.digest])
            done += 1
        yield found
        step(done)


def _unlisted(count: int) -> list[str]:
    """A line on what is not told of very many sites."""
    if count <= LISTED:
        return []
    return [f"digests and matching of the first {LISTED} of {count} files only"]


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


def _draw(fusion: "Fusion", plot: Path, plate: str | None) -> None:
    """Before the result is written: a picture that cannot be drawn leaves nothing behind."""
    from posterity.plots import plot_matching

    plot_matching(fusion, plot, plate=plate)


def _plate(plate: Any) -> dict[str, Any]:
    listed = dict(itertools.islice(plate.matching.items(), LISTED))
    margins: dict[str, Any] = {site: [None] * len(label) for site, label in listed.items()}
    doubtful: list[dict[str, Any]] = []
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


def _scale(scale: Any) -> dict[str, Any]:
    """The residual, and what sampling alone would give."""
    return {
        "residual": number(scale.residual),
        "expected_residual": number(scale.expected),
        "residual_spread": number(scale.spread),
        "scale": str(scale),
    }


def _network(fusion: Any) -> dict[str, Any] | None:
    """Widths, and how far predictions are from those of all networks side by side."""
    from posterity.fusion.networks.intake import has_units

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


def _prior(path: Path | None) -> tuple[Any, dict[str, str]]:
    """The prior, and what is said of it."""
    if path is None:
        return None, {}
    prior, found = files.read_prior(path)
    return prior, {"prior": found.digest}


def _sites(paths: Sequence[Path]) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """What the files hold, and their digests, by site; and how all were fitted, if it is said."""
    from posterity.artifact.recipes import check_same
    from posterity.ledger import Ledger

    sites, digests, told = {}, {}, {}
    for path in paths:
        found, inspection = files.read(path)
        own = "+".join(found.sites) if isinstance(found, Ledger) else ""
        name = own or path.stem
        if name in sites:
            raise UsageError(
                found=f"two files of site {name!r}, the second {str(path)!r}",
                expected="each site once",
                fix="Leave one out, or rename one: a file goes by the sites of its ledger, "
                "else by its name.",
            )
        sites[name], digests[name] = found, inspection.digest
        told[name] = inspection.provenance
    return sites, digests, check_same(told)


def _provenance(fusion: "Fusion", options: Mapping[str, Any], told: Told) -> dict[str, str]:
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
        **{f"weight {site}": repr(weight) for site, weight in weights.items()},
    }


def _weights(given: Sequence[str]) -> dict[str, float] | None:
    pairs = [text.rpartition("=")[::2] for text in given]
    try:
        weights = {site: float(weight) for site, weight in pairs if site}
    except ValueError:
        weights = {}
    if len(weights) < len(pairs):
        raise UsageError(
            found=f"--weight {' --weight '.join(given)}",
            expected="SITE=W, once a site",
            fix="Write for example --weight north=2 --weight south=1.",
        )
    return weights or None
