"""Commands, options, their values and files are completed, before any array library is there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli.commands import succeed

COMPLETE = """\
eval "$(posterity --show-completion bash)"
complete -p posterity
COMP_WORDS=({words}); COMP_CWORD={place}
_posterity_completion posterity
printf '<%s>\\n' "${{COMPREPLY[@]}}"
"""
QUIET = """\
import sys
from posterity.__main__ import main
sys.argv = ["posterity"]
try:
    main()
except SystemExit as end:
    heavy = {"jax", "numpy", "scipy", "networkx", "rich"} & set(sys.modules)
    print(end.code, sorted(heavy))
"""


def ask(shell, words, **more):
    """What a shell is answered, as its script asks; and which heavy libraries that took."""
    environment = os.environ | {
        "_POSTERITY_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": " ".join(words),
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", QUIET],
        env=environment | more, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == "", done.stderr
    *answer, end = done.stdout.splitlines()
    return [line for line in answer if line], end


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["posterity", "fit", "--model", "lo"], {"logistic"}),
        (["posterity", "fit", "tab"], set()),  # bash then completes files by itself
    ],
)
def test_bash_is_answered_without_array_libraries(words, answer):
    found, end = ask("bash", words)
    assert (set(found), end) == (answer, "0 []")


@pytest.mark.slow
def test_zsh_and_fish_take_files_where_there_is_nothing_to_say():
    assert ask("zsh", ["posterity", "fit", "tab"])[0] == ["_files"]
    found, _ = ask("zsh", ["posterity", "fit", "--ex"])
    assert "--exposure" in "".join(found)
    given = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    found, end = ask("fish", ["posterity", "exp"], **given)
    assert found[0].startswith("export\t") and end[0] == "0"
    # No arguments: fish then completes files, as where there is no script.
    given = {"_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    assert ask("fish", ["posterity", "fit", "tab"], **given)[1][0] == "1"


def test_a_real_bash_completes(tmp_path):
    bash = shutil.which("bash")
    assert bash, "the tests run where there is bash"
    program = tmp_path / "posterity"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m posterity "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    script = COMPLETE.format(words="posterity ex", place=1)
    done = subprocess.run(
        [bash, "--norc", "-c", script],
        env=os.environ | {"PATH": path, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "-o default -F _posterity_completion posterity" in done.stdout, done.stderr
    assert "<export>" in done.stdout


def test_help_says_how_to_install_it_and_the_page_too():
    assert "--install-completion" in succeed("--help").stdout
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert all(word in page for word in ("--install-completion", "zsh", "fish"))
