"""What is published beside the code: the paper's numbers, the citation, the changelog."""

import json
import math
import re
from pathlib import Path

import pytest

from posterity.version import __version__

ROOT = Path(__file__).parents[1]
PAPER = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
ROWS = re.findall(r"\{\{(\w+): (.+?)\}\}", PAPER)
if not (ROOT / "experiments").is_dir():
    pytest.skip("no experiments in a source distribution", allow_module_level=True)


@pytest.mark.parametrize("experiment, key", ROWS)
def test_numbers_of_the_paper_are_those_that_were_measured(experiment, key):
    """They are filled in when the page is built (mkdocs_hooks.py)."""
    found = json.loads((ROOT / f"experiments/{experiment}/results/expected.json").read_text())
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
    for needed in ("cff-version: 1.2.0", "message:", "title:", "authors:", "date-released:"):
        assert re.search(f"^{needed}", citation, re.MULTILINE)
    assert f"\n## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
