"""The code of the documentation runs as printed, with warnings as errors.

The ``python`` blocks of a page run in order as one script, whose line numbers are the page's;
then the ``$ posterity ...`` commands of its ``console`` blocks run, one after another in the same
directory.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
QUICK = [
    "docs/progress.md",
    "docs/index.md",
    "docs/quickstart.md",
    "docs/artifact.md",
    "docs/ledger.md",
    "docs/new-family.md",
    "docs/cli.md",
    "docs/report.md",
    "docs/import.md",
    "docs/other-models.md",
    "docs/adapters/tables.md",
]
SLOW = [
    "docs/families.md",
    "docs/fuse.md",
    "docs/hidden-markov.md",
    "docs/topics.md",
    "docs/federate.md",
    "docs/forget.md",
    "docs/privacy.md",
    "docs/personal.md",
    "docs/networks.md",
    "docs/pursue.md",
    "docs/continual.md",
    "docs/distill.md",
    "docs/serving.md",
    "docs/fit.md",
    "docs/show.md",
    "docs/adapters/scikit-learn.md",
    "docs/adapters/statsmodels.md",
    "docs/adapters/gensim.md",
    "docs/adapters/hmmlearn.md",
    "docs/adapters/flax.md",
    "docs/adapters/samples.md",
    "docs/adapters/numpyro.md",
    "docs/adapters/arviz.md",
    "docs/adapters/blackjax.md",
    "docs/adapters/pymc-and-stan.md",
]
"""Pages that take more than a second, most of which compile programs."""
PAGES = [*QUICK, *SLOW]
COMPUTING = ["docs/personal.md"]
"""Pages whose programs run for longer than they compile, and are optimised as users' are."""
COOKBOOK = ("analyst", "auditor", "engineer", "privacy-officer", "statistician")
STRANGERS = ["README.md", *(f"docs/cookbook/{page}.md" for page in COOKBOOK)]
"""Run from a wheel, by tests/anywhere/test_wheel.py, with the extras that they name, and twice."""
ELSEWHERE = ["docs/adapters/torch.md", "docs/deploy.md", "docs/cookbook/story.md", *STRANGERS]
"""Run where torch is installed, by tests/adapters/test_torch_posterior.py; with agents that go on
beside the commands, by tests/engine/test_deploy.py; by tests/test_story.py; from a wheel."""
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w-]*)[^\n`]*\n"
    r"(?P<body>.*?)"
    r"^[ \t]*(?P=fence)[`~]*[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
SECONDS = 240
# One process for a page's code and commands: what each needs is imported and compiled once.
CODE_THEN_COMMANDS = """\
import json, runpy, shlex, sys
script, *commands = json.loads(sys.argv[1])
here = sys.path[0]
if script:
    sys.argv, sys.path[0] = [script], script.rpartition("/")[0]
    runpy.run_path(script, run_name="__main__")
print("$", flush=True)
sys.path[0] = here
from posterity.__main__ import main
for arguments in commands:
    print("$ posterity", shlex.join(arguments), flush=True)
    sys.argv = ["posterity", *arguments]
    try:
        main()
    except SystemExit as end:
        unsure = end.code == 9 and arguments[0] in ("fuse", "forget")  # which pages show
        if end.code and not unsure:
            raise
"""


def blocks(page, language):
    """Line on which each block's code starts, and the code."""
    for fence in FENCE.finditer(page):
        if fence["language"] == language:
            line = page.count("\n", 0, fence.start("body"))
            yield line, textwrap.dedent(fence["body"])


def script(page):
    """All Python of a page, every line where the page has it; empty if there is none."""
    lines = [""] * page.count("\n")
    for start, code in blocks(page.replace('```python title="one line"', "```text"), "python"):
        code = code.splitlines()
        lines[start : start + len(code)] = code
    return "\n".join(lines).rstrip()


def commands(page):
    """Arguments of every ``$ posterity`` command; output and other programs are left out."""
    for _, code in blocks(page, "console"):
        for line in code.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                program, *arguments = shlex.split(line[2:], comments=True) or [""]
                if program == "posterity":
                    yield arguments


def answers(page):
    """Lines that a page's ``console`` blocks show as what ``posterity`` prints, but for ``...``."""
    for _, code in blocks(page, "console"):
        ours = False
        for line in code.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                ours = line.startswith("$ posterity ")
            elif ours and line.strip() not in ("", "..."):
                yield line.rstrip()


def like(line):
    """Whether a line that was printed is this one, which may leave out parts as ``...``."""
    parts = [re.escape(" ".join(part.split())) for part in line.split("...")]
    pattern = re.compile(" ?.*".join(parts))
    return lambda printed: pattern.fullmatch(" ".join(printed.split()))


def promised(code):
    """Numbers that a page says its code prints, as ``print(...)  # 3``."""
    return re.findall(r"^print\(.*\)  # (-?[0-9.]+)$", code, re.MULTILINE)


def outputs(page):
    """Lines that a page shows as what its code prints, in blocks ``output``."""
    return [line for _, code in blocks(page, "output") for line in code.splitlines()]


def run(directory, what, *arguments, optimised=False, **environment):
    """What Python prints, run in ``directory``; warnings are errors."""
    flags = "" if optimised else os.environ.get("XLA_FLAGS", "")
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=os.environ | {"XLA_FLAGS": flags, "COLUMNS": "112", **environment},
    )
    assert done.returncode == 0, f"{what} failed\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def run_page(name, page, directory, **environment):
    """A page's code and then its commands print in ``directory`` what the page says they do."""
    # Beside the working directory, so that the page cannot shadow what it imports, and by another
    # name than the library has that the page is about.
    path = directory.parent / "script" / f"{name.replace('/', '-')}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(code := script(page), encoding="utf-8")
    found, optimised = list(commands(page)), {"optimised": name in COMPUTING, **environment}
    work = json.dumps([code and str(path), *found])
    whole = run(directory, name, "-c", CODE_THEN_COMMANDS, work, **optimised)
    end = whole.index("$")
    printed, answered = whole[:end], whole[end:]
    assert [line for line in printed if line in promised(code)] == promised(code)
    shown = outputs(page)
    assert [line for line in printed if line in shown] == shown
    begun = ["$ posterity " + shlex.join(arguments) for arguments in found]
    assert [line for line in answered if line in begun] == begun
    assert [line for line in answers(page) if not any(map(like(line), answered))] == []


def documented():
    """Pages that have anything to run."""
    for name in PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        if script(page) or any(commands(page)):
            marks = [pytest.mark.slow] if name in SLOW else []
            yield pytest.param(name, page, id=name, marks=marks)


TWICE = ["docs/quickstart.md"]
"""Pages that are run again in their folder: their code finds the files that it left."""


@pytest.mark.parametrize(("name", "page"), list(documented()))
def test_code_of_the_page_runs(name, page, tmp_path):
    directory = tmp_path / "reader"
    directory.mkdir()
    for _ in range(1 + (name in TWICE)):
        run_page(name, page, directory)


DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""Of modules that are called otherwise."""
BRINGS = {"statsmodels": {"pandas"}, "flax": {"optax"}}


def installed(page):
    """Distributions that the extras bring of which a page's ``pip install`` speaks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {
        name
        for group in re.findall(r"pip install '[^'\[]*\[([\w,]+)\]'", page)
        for name in group.split(",")
    }
    wanted, found = [*project["dependencies"]], {"posterity"}
    wanted += [one for name in names for one in project["optional-dependencies"][name]]
    for one in wanted:  # which grows
        name, extras = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", one).groups()
        found |= {name} | BRINGS.get(name, set())
        for extra in (extras or "").split(",") if name == "posterity" else []:
            wanted += project["optional-dependencies"][extra]
    return found


@pytest.mark.parametrize("name", ["docs/quickstart.md", "docs/fit.md", "docs/import.md"])
def test_a_page_names_the_extras_that_its_code_takes(name):
    page = (ROOT / name).read_text(encoding="utf-8")
    code = script(page)
    modules = set(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE))
    modules |= {"pandas"} if "as_frame=True" in code else set()
    needed = {DISTRIBUTIONS.get(name, name) for name in modules - sys.stdlib_module_names}
    assert needed <= installed(page)


def test_every_page_with_code_is_run():
    pages = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")]
    with_code = {
        name
        for name in pages
        if script(page := (ROOT / name).read_text(encoding="utf-8")) or any(commands(page))
    }
    assert with_code <= {*PAGES, *ELSEWHERE}


HELPERS = ("conftest", "processors", "typechecker")
"""What the tests need beside the folders that are copied."""


@pytest.mark.slow
def test_a_family_in_the_tree_takes_its_file_and_one_line(tmp_path):
    """The page's own recipe, in a copy of the tree; the laws then hold for it."""
    family, *_, line = (
        code for _, code in blocks((ROOT / "docs/new-family.md").read_text(), "python")
    )
    for part in ("src/posterity", "tests/laws"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", *(f"tests/{name}.py" for name in HELPERS)):
        shutil.copy(ROOT / part, tmp_path / part)
    families = tmp_path / "src/posterity/families"
    (families / "exponential.py").write_text(family)
    with (families / "__init__.py").open("a") as file:
        file.write(line)
    wanted = ["-k", "Exponential and not Family", "tests/laws/test_vector_space.py"]
    more, arguments = ("coordinates", "properness"), ["-m", "pytest", "-q", "-n", "0", *wanted]
    arguments += ["-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(
        [sys.executable, *arguments, *(f"tests/laws/test_{own}.py" for own in more)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


EXAMPLE = """\
Text, `code`, and

```python title="first"
x = 1

y = x + 1
```

```json
{"not": "run"}
```

- a list with

  ```python
  assert y == 2
  ```

```console
$ posterity inspect "a file" \\
    --json  # why
output
$ make demo
$ posterity demo
```
"""


def test_script_keeps_the_lines_of_the_page():
    lines = script(EXAMPLE).splitlines()
    assert lines[3:6] == ["x = 1", "", "y = x + 1"]
    assert [i for i, line in enumerate(lines) if line] == [3, 5, 15]
    assert lines[15] == EXAMPLE.splitlines()[15].strip()
    exec(script(EXAMPLE), {})


def test_commands_are_those_of_posterity():
    assert list(commands(EXAMPLE)) == [["inspect", "a file", "--json"], ["demo"]]


def test_answers_are_compared_but_for_what_is_left_out():
    assert list(answers(EXAMPLE)) == ["output"]
    assert like("a │ 1... b")("a  │  1.234 nats b") and not like("a │ 1... b")("a │ 2.0 b")


def test_page_without_blocks_gives_nothing():
    assert script("# Title\n\nText.\n") == ""
    assert list(commands("# Title\n\nText.\n")) == []
