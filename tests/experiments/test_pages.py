"""Tables of pages are those of the results files."""

import math

import pytest

from experiments import pages


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: f"{page.parent.name}/{page.name}")
def test_tables_are_those_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert pages.written(page) == text, "python -m experiments.pages writes them anew"


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        ({"mean": -7.4534, "standard error": 0.0109}, None, "−7.453 ± 0.011"),
        ({"mean": 97.328, "sd": 0.1214}, 1, "97.3 ± 0.1"),
        ({"mean": 203.2, "sd": 0.0}, 0, "203"),
        ({"mean": 1.23, "standard error": None}, None, "1.23"),
        (12345, 2, "12,345"),
        (-0.000123456, None, "−0.0001235"),
        ([1, 2], None, "1 to 2"),
        (math.nan, 2, "–"),
        (None, None, "–"),
        (True, None, "yes"),
        ("a|b", None, "a\\|b"),
    ],
)
def test_figures_are_written_to_the_digits_of_their_spread(value, decimals, text):
    assert pages.figure(value, decimals) == text


def test_a_table_is_empty_where_a_file_has_nothing():
    tree = {"ours": {"error": 1.5}, "theirs": {}}
    made = pages.figures(tree, "", {"ours": ["ours"], "theirs": ["theirs"]}, {"error": ["error"]})
    assert made.splitlines()[2:] == ["| ours | 1.5 |", "| theirs |  |"]
