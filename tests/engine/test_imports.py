"""The library does without what the engine needs."""

import subprocess
import sys


def test_importing_posterity_imports_nothing_of_the_engine():
    code = (
        "import sys, posterity, posterity.federation;"
        "print([name for name in ('cryptography', 'posterity.engine') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr


def test_without_cryptography_the_extra_is_named():
    code = "import sys; sys.modules['cryptography'] = None; import posterity.engine.signing"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'posterity[engine]'" in run.stderr
