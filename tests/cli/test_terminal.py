"""The picture of a terminal in the README shows what the commands print now."""

import re

import pytest

from examples import terminal


@pytest.mark.slow
def test_the_picture_is_that_of_the_commands_of_today() -> None:
    committed = terminal.PICTURE.read_text(encoding="utf-8")
    words = lambda picture: re.findall(r">([^<>]*)</text>", picture)
    found = words(terminal.drawn(terminal.printed()))
    assert len(found) > 30
    assert words(committed) == found, "python -m examples.terminal draws it anew"
    assert "http" not in committed.replace("http://www.w3.org/2000/svg", "")
