"""What pages and the Makefile point at is there; made pages are whole; pictures have texts."""

import json
import re
from pathlib import Path

import pytest

import mkdocs_results
from experiments import goals, pages

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "experiments/**/*.md", "benchmarks/*.md")
    for page in sorted(ROOT.glob(pattern))
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
PICTURE = re.compile(r"!\[([^\]]*)\]\(")
MADE = {"results.md", "benchmarks.md", "references.md"}
"""Pages that exist in the built site alone; `make docs` refuses links that lead nowhere there."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    lost = [t for t in targets if not (page.parent / t).exists() and Path(t).name not in MADE]
    assert [t for t in lost if "/api/" not in f"/{t}"] == []


def test_every_picture_in_the_documentation_has_a_text_in_its_place() -> None:
    pages = [page for page in PAGES if page.parent.name not in ("results",)]
    shown = {page: PICTURE.findall(page.read_text(encoding="utf-8")) for page in pages}
    documented = [
        text for page, texts in shown.items() if "experiments" not in page.parts for text in texts
    ]
    assert documented and all(len(text.split()) >= 2 for text in documented), documented
    assert all(text for texts in shown.values() for text in texts)


@pytest.mark.slow
def test_the_page_of_results_has_every_file_and_every_goal() -> None:
    page, pictures = mkdocs_results.results_page()
    files = sorted(ROOT.glob("experiments/*/results/*.json"))
    assert len(files) > 15 and all(picture.exists() for picture in pictures.values())
    for path in files:
        anchor = f"{{#{path.parts[-3]}-{path.stem}}}"
        assert anchor in page, path
        text = json.dumps(json.loads(path.read_text(encoding="utf-8")))
        part = page.split(anchor)[1].split("\n### ")[0]
        missed = text.count('"met": false')
        assert part.split("<details")[0].count(goals.MISSED) >= missed, path
    head = page.split("## ")[0]
    for row in mkdocs_results.BESIDE:
        assert row.what in page
    assert goals.MISSED in head


def test_what_is_not_known_is_a_dash_on_the_page_of_results() -> None:
    values = [float("nan"), None, float("inf"), float("-inf"), 0.5]
    assert list(map(pages.figure, values)) == ["–", "–", "∞", "−∞", "0.5"]


@pytest.mark.slow
def test_the_page_of_benchmarks_has_every_file() -> None:
    page = mkdocs_results.benchmarks_page()
    for path in ROOT.glob("benchmarks/results/*.json"):
        assert f"## {path.stem.replace('_', ' ')}\n" in page


@pytest.mark.parametrize(("mark", "folder"), [("data", "experiments"), ("wheel", "anywhere")])
def test_make_looks_for_marked_tests_where_they_are(mark: str, folder: str) -> None:
    """Collecting all others takes half a minute."""
    used = re.compile(rf"pytest\.mark\.{mark}\b")
    files = [p for p in (ROOT / "tests").rglob("test_*.py") if used.search(p.read_text("utf-8"))]
    assert files and {path.parent.name for path in files} == {folder}
    assert re.search(rf"-m {mark} tests/{folder}$", (ROOT / "Makefile").read_text(), re.MULTILINE)
