"""What must be set before JAX is imported, checks of annotations, how hypothesis tries examples."""

import os
import signal
from pathlib import Path

import processors
import pytest
import typechecker
from hypothesis import settings

os.environ.setdefault("XLA_FLAGS", processors.flags())  # `XLA_FLAGS= make test` runs as users do
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# For the processes that run tests in parallel: more threads than cores make inverses crawl.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax  # with what is set above

# What one process, or an earlier run, compiled the others need not; it is half of what tests take.
# Not by a variable: processes that tests start, and kill, are to leave nothing half-written here.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parent.parent / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# A shell that starts tests in the background ignores Ctrl-C for them and for what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Twice the time of tests: with it they run by `make test-annotations`, before a release.
if os.environ.get("POSTERITY_ANNOTATIONS"):
    typechecker.install("posterity")

settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

MAPS = Path("/proc/self/maps")
MANY = 40_000  # of the 65,530 that Linux gives a process


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Every compiled program takes memory maps, and a process that has no more of them dies."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY:
        jax.clear_caches()
