"""What is published beside the code: the paper's numbers, citation, changelog and more."""

import json
import math
import re
from pathlib import Path

import pytest

from posterity.version import __version__

ROOT = Path(__file__).parents[1]
PAPER = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
ROWS = re.findall(r"\{\{(\w+)(?:/([\w-]+))?: (.+?)\}\}", PAPER)
if not (ROOT / "experiments").is_dir():
    pytest.skip("no experiments in a source distribution", allow_module_level=True)


@pytest.mark.parametrize("experiment, file, key", ROWS)
def test_numbers_of_the_paper_are_those_that_were_measured(experiment, file, key):
    """They are filled in when the page is built (mkdocs_hooks.py)."""
    path = ROOT / f"experiments/{experiment}/results/{file or 'expected'}.json"
    found = json.loads(path.read_text())
    for part in key.split("/"):
        found = found[int(part) if isinstance(found, list) else part]
    assert math.isfinite(found)


def test_the_paper_cites_what_the_bibliography_holds():
    known = set(
        re.findall(r"^@\w+\{(\w+),", (ROOT / "docs/references.bib").read_text(), re.MULTILINE)
    )
    cited = set(re.findall(r"@(\w+)", PAPER))
    assert cited and cited <= known


def test_the_citation_and_the_changelog_are_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == __version__  # type: ignore
    for needed in ("cff-version: 1.2.0", "message:", "title:", "authors:"):
        assert re.search(f"^{needed}", citation, re.MULTILINE)
    assert f"\n## {__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


DECISIONS = sorted((ROOT / "docs/decisions").glob("0*.md"))
HEADINGS = ["What", "Why", "What it costs", "Where it errs", "Status"]


def test_every_decision_is_listed_and_has_its_five_headings():
    index = (ROOT / "docs/decisions/index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- (\d{4}) \[.+\]\(((\d{4})-[\w-]+\.md)\): \w+", index, re.MULTILINE)
    assert sorted(name for _, name, _ in listed) == [path.name for path in DECISIONS]
    assert all(number == own for number, _, own in listed)
    for path in DECISIONS:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS, path.name


def test_decisions_that_code_refers_to_exist():
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/*.py")]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    numbers = {path.name[:4] for path in DECISIONS}
    found = {number for text in texts for number in re.findall(r"decisions/(\d{4})", text)}
    assert found and found <= numbers


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LONG = re.search(r"target: \[(.+)\]", (ROOT / ".github/workflows/release.yml").read_text())


def test_what_contributing_names_exists():
    named = re.findall(
        r"`((?:src|tests|docs|experiments|benchmarks|\.ci|\.github)/[^` ]*)`", CONTRIBUTING
    )
    named += re.findall(r"\]\((?!http)([^)]+)\)", CONTRIBUTING)
    assert len(named) > 10 and [name for name in named if not (ROOT / name).exists()] == []
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)", CONTRIBUTING)) <= targets


HOUSE = ROOT / "src/posterity"


def test_what_the_page_through_the_house_names_exists():
    page = HOUSE.joinpath("README.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+(?:/|\.py))`", page)
    assert len(named) > 40 and [name for name in named if not (HOUSE / name).exists()] == []
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert [link for link in links if not (HOUSE / link).exists()] == []


def test_the_page_through_the_house_names_every_room():
    page = HOUSE.joinpath("README.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in HOUSE.glob("*/__init__.py")}
    assert rooms and [room for room in sorted(rooms) if f"`{room}/" not in page] == []


def test_what_is_run_before_a_release_is_a_job_and_has_a_date():
    rows = re.findall(r"^\| `make ([\w-]+)` \| .+ \| (.+) \|$", CONTRIBUTING, re.MULTILINE)
    assert LONG is not None and [name for name, _ in rows] == LONG[1].split(", ")
    assert all(re.fullmatch(r"not yet|\d{4}-\d\d-\d\d, [0-9a-f]{8}", when) for _, when in rows)


def test_sources_of_formulas_are_in_the_bibliography():
    known = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "docs/references.bib").read_text(), re.M))
    texts = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("src/**/*.py"))
    sources = re.findall(r"Source: ((?:.|\n)*?)(?:\n\s*\n|\"{3})", texts)
    keys = {key for one in sources for key in re.findall(r"\b[a-z]+(?:19|20)\d\d\w*\b", one)}
    assert keys and keys <= known
