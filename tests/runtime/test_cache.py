"""Programs that are kept for other processes: where, for whom, and what a broken entry does.

And when a process releases its own.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import warnings
warnings.simplefilter("error")
import numpy as np
import jax
from posterity.runtime import program_folder, programs
from posterity.runtime.lazy import jnp
program_folder.WORTH = 0.0
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
before, filters = dict(jax.config.values), list(warnings.filters)
print(programs.program(lambda x: jnp.sin(x).sum() + 3)(np.zeros(4)))
assert (jax.config.values, warnings.filters) == (before, filters)
jax.jit(lambda x: jnp.cos(x) + 3)(np.zeros(4))  # a program of the caller's is not kept
"""


KEPT = """
import jax, numpy as np
from posterity.runtime import programs
seen = []
programs.jitted(lambda x: seen.append(jax.config.jax_persistent_cache_min_compile_time_secs) or x)(
    np.zeros(2)
)
print(0.1 < seen[0] < 0.5)
"""
RELEASED = """
import numpy as np
from posterity.runtime import programs
traces = []
function = programs.jitted(lambda x: traces.append(x) or x + 1)
for size, (new, mappings) in enumerate(((1, 1.0), (1, 1e-9), (9, 1e-9))):
    function(np.zeros(size))
    programs.release_programs(new, mappings, -1.0)
    function(np.zeros(size))
    print(len(traces))
"""


def run(cache: Path, code: str = CODE) -> subprocess.CompletedProcess:
    environment = {**os.environ, "POSTERITY_CACHE": str(cache)}
    source = str(Path(__file__).parents[2] / "src")
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, env=environment | {"PYTHONPATH": source},
    )  # fmt: skip


@pytest.mark.slow
def test_what_takes_some_tenths_of_a_second_to_compile_is_kept(
    tmp_path,
):
    assert run(tmp_path, KEPT).stdout == "True\n"


@pytest.mark.slow
def test_a_broken_entry_is_passed_over_without_a_word(tmp_path):
    folder = tmp_path / "new" / "cache"
    assert run(folder).stderr == ""
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    entries = [entry for entry in folder.iterdir() if entry.name.endswith("-cache")]
    assert len(entries) == 1 and "cos" not in entries[0].name
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:40])
    done = run(folder)
    assert done.returncode == 0 and done.stderr == "" and done.stdout == "3.0\n"


@pytest.mark.slow
def test_where_nothing_can_be_written_nothing_is_kept(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        done = run(place)
        assert done.returncode == 0 and done.stderr == "" and done.stdout == "3.0\n"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are counted on Linux")
def test_programs_are_released_before_mappings_run_out(tmp_path):
    """After a new program, if there are many mappings."""
    assert run(tmp_path, RELEASED).stdout.split() == ["1", "3", "4"]
