"""Four sites with coins, each in a folder of its own, as the command line makes them."""

from pathlib import Path

import numpy as np
from cli.commands import document
from engine.coins import DATA, PRIOR

import posterity

SITES = tuple(DATA)


def make(folder: Path, *options: str, epoch: int = 0) -> None:
    """Folders a, b, c and d, and what they agreed on; they meet over Unix sockets."""
    posterity.save(PRIOR, folder / "prior.safetensors")
    members = []
    for site in SITES:
        np.savez(folder / f"{site}.npz", x=DATA[site])
        sockets = [f"--socket={o}={folder}/{o}/site.sock" for o in SITES if o != site]
        line = ["site", "init", folder / site, "--name", site, "--data", folder / f"{site}.npz"]
        members.append(f"--member={site}={document(*line, *sockets)['key']}")
    federation = folder / "federation.toml"
    line = ["federation", "new", "--name", "coins", "--model", "beta-bernoulli"]
    line += ["--prior", folder / "prior.safetensors", *members, *options, "-o", federation]
    digest = document(*line)["digest"]
    for site in SITES:
        line = ["site", "init", folder / site, "--federation", federation]
        assert document(*line, "--epoch", epoch)["digest"] == digest
