"""What pages of the repository point at is there."""

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
