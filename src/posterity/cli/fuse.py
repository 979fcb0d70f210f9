"""``posterity fuse``: posteriors of several sites, merged."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.report.numbers import number
from posterity.cli.streams import Json, bar, present
from posterity.errors import UsageError

if TYPE_CHECKING:
    from posterity.fusion import Fusion


@app.command(
    epilog=example(
        "posterity fuse north.safetensors south.safetensors -o both.safetensors",
        "posterity fuse site-*.safetensors -o all.safetensors --rule product --json",
    )
)
def fuse(
    posteriors: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="One posterior or ledger a site.")
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
        typer.Option(metavar="[reverse|forward]", help="KL(fused || site), or KL(site || fused)."),
    ] = "reverse",
    matching: Annotated[
        str,
        typer.Option(
            metavar="[evidence|hungarian|kl-fusion|identity]", help="How components are matched."
        ),
    ] = "evidence",
    components: Annotated[
        int | None, typer.Option(metavar="N", help="Fused components; found if left out.")
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE=W", help="A site's weight in the average; name every site."),
    ] = None,
    prior: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What all sites started from, if they are no ledgers."),
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
        "weights": _weights(weight or []),
    }
    files.check_outputs([output], [*posteriors, prior] if prior else posteriors)
    present(lambda: _fuse(posteriors, output, prior, options), "fuse", as_json)


def _fuse(
    paths: Sequence[Path], output: Path, prior: Path | None, options: dict[str, Any]
) -> dict[str, Any]:
    from posterity.artifact.columns import aligned, as_provenance, in_order, unnamed
    from posterity.fusion import fuse

    with bar(f"Fusing {len(paths)} files"):
        sites, digests, columns = _sites(paths)
        before, told, mine = _prior(prior)
        sites, names = aligned(sites, columns)
        before = in_order(before, mine, names, "the prior", "the sites")
        columns, names = columns | ({"the prior": mine} if prior else {}), names or mine
        fusion = fuse(sites, prior=before, **options)
        result = fusion.posterior if fusion.ledger is None else fusion.ledger
        record = _provenance(fusion, options, digests) | told | as_provenance(names)
        written = files.write(result, output, "fuse", record)
    return {
        "output": written.path,
        "kind": written.kind,
        "digest": written.digest,
        "rule": fusion.rule.value,
        "divergence": fusion.divergence.value,
        "matching": options["matching"],
        "sites": dict(sorted(digests.items())),
        "plates": {path: _plate(plate) for path, plate in fusion.plates.items()},
        "columns": list(names),
        "notes": unnamed(columns, names),
    }


def _plate(plate: Any) -> dict[str, Any]:
    return {
        "components": plate.components,
        "cost": number(plate.cost),
        "matching": {site: label.tolist() for site, label in plate.matching.items()},
    }


def _prior(path: Path | None) -> tuple[Any, dict[str, str], Sequence[str]]:
    """The prior, what is said of it, and the names of its coefficients."""
    from posterity.artifact.columns import columns_of

    if path is None:
        return None, {}, ()
    prior, found = files.read_prior(path)
    return prior, {"prior": found.digest}, columns_of(prior, found.provenance)


def _sites(
    paths: Sequence[Path],
) -> tuple[dict[str, Any], dict[str, str], dict[str, tuple[str, ...]]]:
    """What the files hold, their digests, and the names of coefficients, by site."""
    from posterity.artifact.columns import columns_of
    from posterity.ledger import Ledger

    sites, digests, columns = {}, {}, {}
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
        columns[name] = columns_of(found, inspection.provenance)
    return sites, digests, columns


def _provenance(
    fusion: "Fusion", options: Mapping[str, Any], digests: Mapping[str, str]
) -> dict[str, str]:
    components, weights = options["components"], options["weights"] or {}
    return {
        "rule": fusion.rule.value,
        "divergence": fusion.divergence.value,
        "matching": str(options["matching"]),
        **{f"input {site}": digest for site, digest in digests.items()},
        **({} if components is None else {"components": str(components)}),
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
