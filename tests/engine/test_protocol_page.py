"""The page on the protocol names tests that there are."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/protocol.md").read_text(encoding="utf-8")


def test_every_paragraph_names_a_test_that_there_is():
    files = [*TESTS.glob("engine/*.py"), *TESTS.glob("federation/*.py")]
    there = {name for f in files for name in re.findall(r"^def (test_\w+)", f.read_text(), re.M)}
    _, *sections = PAGE.split("\n## ")
    assert len(sections) >= 12
    for section in sections:
        named = re.findall(r"`(test_\w+)`", section)
        assert named, section.partition("\n")[0]
        assert set(named) <= there, sorted(set(named) - there)
