"""Fusing, comparing and all divergences at once, of families and files, never import JAX."""

import subprocess
import sys

import numpy as np

from posterity import Dirichlet, save
from tests.fusion.made import conjugate_site

SCRIPT = """
import sys
import warnings
import posterity
from posterity.fusion.diff import diff

warnings.simplefilter("ignore", posterity.errors.FusionWarning)  # the paper's matching errs here
paths = sys.argv[1:]
for rule in ("barycenter", "product"):
    for matching in ("evidence", "kl-fusion", "hungarian"):
        fused = posterity.fuse(paths, rule=rule, matching=matching, divergence="forward")
one, other = posterity.load(paths[0]).posterior, posterity.load(paths[1])
assert sum(diff(one, other).kl) > 0
assert posterity.kl_matrix(one.members, fused.posterior.members).shape == (3, fused.components)
print(sorted({"jax", "jaxlib", "equinox"} & set(sys.modules)), fused.components)
"""


def test_six_files_are_fused_without_jax(tmp_path):
    rng, base = np.random.default_rng(0), Dirichlet.from_standard(np.ones(3))
    paths = []
    for index in range(6):
        data = [rng.normal(9 * k, 1.0, (30, 2)) for k in rng.permutation(3)]
        paths.append(tmp_path / f"{index}.safetensors")
        save(conjugate_site(f"s{index}", base, data), paths[-1])
    command = [sys.executable, "-W", "error", "-c", SCRIPT, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[] 3\n", done.stderr
