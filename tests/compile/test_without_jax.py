"""What only reads, adds and writes never imports JAX; and JAX, once there, finds pytrees."""

import subprocess
import sys
from pathlib import Path

import pytest

from posterity import Ledger, save
from posterity.families import DiagonalGaussian, Plate
from posterity.receipt import issue

SITES = {"a": [[0.0], [5.0]], "b": [[5.1], [9.0]], "c": [[9.1], [0.1]]}
COMMANDS = [
    ["fuse", "a.st", "b.st", "c.st", "-o", "out.st", "--rule", "product"],
    ["inspect", "a.st"],
    ["diff", "a.st", "b.st"],
    ["forget", "both.st", "--site", "a", "-o", "left.st", "--receipt", "r.json"],
    ["verify", "given.json", "both.st", "without.st"],
]
RUN = """
import sys
from posterity.cli import main
for command in COMMANDS:
    sys.argv = ["posterity", *command]
    try:
        main()
    except SystemExit as end:
        assert end.code in (None, 0, 9), (command, end.code)  # 9: an uncertain matching
    strangers = {"jax", "equinox", "jaxtyping"} & set(sys.modules)
    assert not strangers, (command, strangers)
"""


def run(code: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prior = Plate(DiagonalGaussian.from_standard([[0.0], [0.0]], [[100.0], [100.0]]))
    both = Ledger(prior)
    for site, means in SITES.items():
        posterior = Plate(DiagonalGaussian.from_standard(means, [[0.01], [0.01]]))
        alone = Ledger.of_site(site, prior=prior, posterior=posterior)
        save(alone, tmp_path / f"{site}.st")
        both = both | alone
    without = both.forget("b")
    save(both, tmp_path / "both.st")
    save(without, tmp_path / "without.st")
    issue(both, without, None).save(tmp_path / "given.json")
    return tmp_path


@pytest.mark.slow
def test_commands_that_add_files_do_without_jax(folder: Path) -> None:
    run(f"COMMANDS = {COMMANDS!r}{RUN}", cwd=folder)


REGRESSIONS = [
    ["fit", "a.csv", "--target", "ill", "--model", "logistic", "-o", "a.st"],
    ["show", "a.st"],
    ["federate", "both.toml"],
    ["federate", "both.toml"],  # done already
    ["federate", "both.toml", "--personal", "true", "-o", "own.st"],
    [
        "forget",
        "both.st",
        "--config",
        "both.toml",
        "--site",
        "a",
        "-o",
        "left.st",
        "--receipt",
        "left.json",
    ],
]
CONFIG = """
[sites]
a = "a.csv"
b = "b.csv"
[model]
kind = "logistic-regression"
target = "ill"
intercept = true
[prior]
family = "Gaussian"
mean = [0.0, 0.0]
covariance = [[4.0, 0.0], [0.0, 4.0]]
[output]
file = "both.st"
"""


@pytest.mark.slow
def test_regressions_at_the_shell_do_without_jax(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = [f"{dose},{int(dose + (dose % 3) > 6)}" for dose in range(12)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["dose,ill", *rows]))
    (tmp_path / "both.toml").write_text(CONFIG)
    run(f"COMMANDS = {REGRESSIONS!r}{RUN}", cwd=tmp_path)
    assert (tmp_path / "left.st").exists()


@pytest.mark.slow
def test_members_made_before_jax_was_imported_are_pytrees(tmp_path: Path) -> None:
    run(
        "import sys, posterity\n"
        "q = posterity.Gaussian.from_standard([0.0, 1.0], [[2.0, 0.0], [0.0, 1.0]])\n"
        "assert 'jax' not in sys.modules and len(sys.meta_path) > 3\n"
        "import importlib.util\n"
        "assert importlib.util.find_spec('jax').loader.get_source('jax')\n"  # a mere look
        "import jax\n"
        "assert [leaf.shape for leaf in jax.tree.leaves(q)] == [(2,), (2, 2)]\n"
        "assert jax.jit(lambda q: q.log_normalizer())(q).shape == ()\n"
        "class Later(posterity.Gamma): pass\n"
        "assert len(jax.tree.leaves(Later(1.0, 2.0))) == 2\n",
        cwd=tmp_path,
    )


def test_what_is_no_family_is_refused_without_a_type_checker(tmp_path: Path) -> None:
    run(
        "import numpy as np, posterity\n"
        "for make in (lambda: posterity.Product(a=np.ones(2)),\n"
        "             lambda: posterity.Plate(np.ones(2)),\n"
        "             lambda: posterity.Gamma(1.0, 1.0).with_natural_parameters(np.float64(1))):\n"
        "    try: make()\n"
        "    except posterity.errors.StructureError: continue\n"
        "    raise AssertionError(make)\n",
        cwd=tmp_path,
    )


def test_fuse_federate_and_forget_need_few_packages(tmp_path: Path) -> None:
    """The small installation of docs/index.md."""
    run(
        "import sys\n"
        "for name in ('equinox', 'jax', 'networkx', 'optax', 'rich', 'typer'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np, posterity\n"
        "from posterity.models import LogisticRegression\n"
        "q = posterity.Gamma.from_standard(1.0, 1.0)\n"
        "posterity.save(q + q, 'q.st')\n"
        "assert posterity.load('q.st') == q + q\n"
        "assert posterity.fuse({'a': q + q, 'b': q}, prior=q).posterior == q + q\n"
        "x, y = np.linspace(-1, 1, 20)[:, None], np.arange(20) % 3 == 0\n"
        "prior = posterity.Gaussian.from_standard(np.zeros(1), np.eye(1))\n"
        "sites = {'a': (x[:9], y[:9]), 'b': (x[9:], y[9:])}\n"
        "shared = posterity.federate(sites, LogisticRegression(), prior)\n"
        "assert shared.status.converged and shared.forget('a').ledger.sites == ('b',)\n",
        cwd=tmp_path,
    )


@pytest.mark.slow
def test_arithmetic_goes_on_while_another_thread_imports_jax(tmp_path: Path) -> None:
    run(
        "import threading, posterity\n"
        "q, failed, done = posterity.Gamma(1.0, 1.0), [], False\n"
        "def work():\n"
        "    while not done:\n"
        "        try: (q + q).kl(q)\n"
        "        except Exception as error: failed.append(error)\n"
        "    class Later(posterity.Gamma): pass\n"
        "thread = threading.Thread(target=work); thread.start()\n"
        "class During(posterity.Gamma): pass\n"
        "import jax\n"
        "done = True; thread.join()\n"
        "assert not failed, failed[:1]\n"
        "assert len(jax.tree.leaves([q, During(1.0, 1.0)])) == 4\n",
        cwd=tmp_path,
    )
