"""``posterity fuse``, ``inspect`` and ``diff``: files of posteriors, merged and compared."""

# ruff: noqa: UP045 (typer below 0.12 cannot read `X | None`)

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from posterity.cli.app import app, example
from posterity.cli.streams import Json, check_outputs, present, progress
from posterity.errors import UsageError


@app.command(
    epilog=example(
        "posterity fuse north.safetensors south.safetensors -o both.safetensors",
        "posterity fuse site-*.safetensors -o all.safetensors --rule product --json",
    )
)
def fuse(
    files: Annotated[
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
        Optional[int], typer.Option(metavar="N", help="Fused components; found if left out.")
    ] = None,
    weight: Annotated[
        Optional[list[str]],
        typer.Option(metavar="SITE=W", help="A site's weight in the average; name every site."),
    ] = None,
    prior: Annotated[
        Optional[Path],
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
    check_outputs([output], [*files, prior] if prior else files)
    present(lambda: _fuse(files, output, prior, options), "fusion_text", as_json)


@app.command(epilog=example("posterity inspect both.safetensors"))
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by posterity.")],
    as_json: Json = False,
) -> None:
    """Check a file and say what is in it."""

    def compute() -> dict[str, Any]:
        from posterity.artifact import inspect, load
        from posterity.cli.report import inspection_data

        return inspection_data(inspect(file), load(file))

    present(compute, "inspection_text", as_json)


@app.command(epilog=example("posterity diff before.safetensors after.safetensors"))
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A posterior or ledger.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one of the same model.")],
    as_json: Json = False,
) -> None:
    """Compare two files: KL divergence in nats, block by block, components matched."""

    def compute() -> dict[str, Any]:
        from posterity.artifact import load
        from posterity.cli.report import diff_data
        from posterity.fusion.diff import diff

        return diff_data(diff(load(a), load(b)))

    present(compute, "diff_text", as_json)


def _fuse(
    files: Sequence[Path], output: Path, prior: Path | None, options: dict[str, Any]
) -> dict[str, Any]:
    from posterity.artifact import inspect, save
    from posterity.cli.report import fusion_data
    from posterity.fusion import fuse

    with progress(f"Fusing {len(files)} files"):
        sites, digests = _sites(files)
        fusion = fuse(sites, prior=_prior(prior), **options)
        result = fusion.posterior if fusion.ledger is None else fusion.ledger
        save(result, output, provenance=_provenance(fusion, options, digests, prior))
    return fusion_data(fusion, inspect(output), digests, options["matching"])


def _sites(files: Sequence[Path]) -> tuple[dict[str, Any], dict[str, str]]:
    """What the files hold, and their digests, by site."""
    from posterity.artifact import inspect, load
    from posterity.ledger import Ledger

    sites, digests = {}, {}
    for file in files:
        found = load(file)
        own = "+".join(found.sites) if isinstance(found, Ledger) else ""
        name = own or file.stem
        if name in sites:
            raise UsageError(
                found=f"two files of site {name!r}, the second {os.fspath(file)!r}",
                expected="each site once",
                fix="Leave one out, or rename one: a file goes by the sites of its ledger, "
                "else by its name.",
            )
        sites[name], digests[name] = found, inspect(file).digest
    return sites, digests


def _prior(file: Path | None) -> Any:
    if file is None:
        return None
    from posterity.artifact import load
    from posterity.ledger import Ledger

    found = load(file)
    return found.prior if isinstance(found, Ledger) else found


def _provenance(
    fusion: Any, options: Mapping[str, Any], digests: Mapping[str, str], prior: Path | None
) -> dict[str, str]:
    from posterity import __version__
    from posterity.artifact import inspect

    record = {
        "made by": f"posterity {__version__} fuse",
        "rule": fusion.rule.value,
        "divergence": fusion.divergence.value,
        "matching": str(options["matching"]),
        **{f"input {site}": digest for site, digest in digests.items()},
    }
    if options["components"] is not None:
        record["components"] = str(options["components"])
    if prior is not None:
        record["prior"] = inspect(prior).digest
    weights = options["weights"] or {}
    return record | {f"weight {site}": repr(weight) for site, weight in weights.items()}


def _weights(given: Sequence[str]) -> dict[str, float] | None:
    weights: dict[str, float] = {}
    for text in given:
        site, _, number = text.rpartition("=")
        value = _float(number)
        if not site or value is None or site in weights:
            raise UsageError(
                found=f"--weight {text!r}" + (", the second one of its site" * (site in weights)),
                expected="SITE=W, once a site",
                fix="Write for example --weight north=2 --weight south=1.",
            )
        weights[site] = value
    return weights or None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
