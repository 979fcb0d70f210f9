"""The notebooks of examples run from their first cell to their last, and keep their pictures."""

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.glob("examples/notebooks/*.ipynb"))
# Sockets of files, since tests run where there is no network; in a process of its own, as its loops
# and sockets are no part of this one.
RUN = """\
import sys
import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
kernel = AsyncKernelManager(transport="ipc", kernel_name="python3")
NotebookClient(notebook, km=kernel, timeout=200).execute()
"""


def test_names_that_notebooks_import_exist() -> None:
    seen = 0
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        cells = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        cells = [cell for cell in cells if not cell.startswith("%%")]  # of the shell
        lines = "\n".join(cells).replace("\\\n", "").splitlines()
        code = [line for line in lines if line.strip()[:1] not in ("!", "%")]
        for node in ast.walk(ast.parse("\n".join(code))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("posterity"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
                seen += len(node.names)
    assert seen > 6


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, tmp_path: Path) -> None:
    paths = [str(ROOT / "src"), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    call = [sys.executable, "-c", RUN, str(path)]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_notebooks_have_pictures_and_no_errors() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["analyst", "engineer", "statistician"]
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        assert any("image/png" in output.get("data", {}) for output in outputs), path
        assert not any(output["output_type"] == "error" for output in outputs), path
