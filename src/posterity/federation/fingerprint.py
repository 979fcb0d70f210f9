"""What a run was set up from, as a digest a part: whoever resumes it must have the same."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from posterity.federation.run import Run
from posterity.fingerprint import digests

DATA = "data of site {!r}"


def fingerprint(run: Run) -> dict[str, str]:
    """SHA-256 of each part that a run is set up from, equal in every process.

    Raises:
        UsageError: if a function cannot be told from a changed one.
    """
    federation = run.federation
    schedule = {
        field.name: getattr(run.schedule, field.name)
        for field in dataclasses.fields(run.schedule)
        if field.name != "graph"  # described by the network that was made of it
    }
    parts = {
        "names of the sites": list(federation.sites),
        "model": federation.model,
        "prior": run.state.prior,
        "schedule": (type(run.schedule), schedule),
        "local rule (update)": federation.update,
        "key": run.key,
        **({"ledger": dict(federation.begun)} if federation.begun else {}),
        **{DATA.format(site): records for site, records in federation.sites.items()},
    }
    return digests(parts)


def without_data(parts: Mapping[str, str], sites: Iterable[str]) -> dict[str, str]:
    """The fingerprint without the data of sites that were forgotten, which should be gone."""
    gone = {DATA.format(site) for site in sites}
    return {part: digest for part, digest in parts.items() if part not in gone}


def differing(
    one: Mapping[str, str], other: Mapping[str, str], forgotten: Collection[str]
) -> list[str]:
    """The parts that two fingerprints do not share."""
    one, other = without_data(one, forgotten), without_data(other, forgotten)
    return [part for part in {**one, **other} if one.get(part) != other.get(part)]
