"""What pages of the repository and its Makefile point at is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for pattern in ("*.md", "docs/*.md", "experiments/**/*.md", "benchmarks/*.md")
    for page in sorted(ROOT.glob(pattern))
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize(("mark", "folder"), [("data", "experiments"), ("wheel", "anywhere")])
def test_make_looks_for_marked_tests_where_they_are(mark: str, folder: str) -> None:
    """Collecting all others takes half a minute."""
    used = re.compile(rf"pytest\.mark\.{mark}\b")
    files = [p for p in (ROOT / "tests").rglob("test_*.py") if used.search(p.read_text("utf-8"))]
    assert files and {path.parent.name for path in files} == {folder}
    assert re.search(rf"-m {mark} tests/{folder}$", (ROOT / "Makefile").read_text(), re.MULTILINE)
