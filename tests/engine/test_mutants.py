"""The list of mutants is one of today's source; ``python -m benchmarks.mutants`` tries them."""

import pytest

from benchmarks.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_can_be_made_and_its_test_exists(name):
    for edit in MUTANTS[name]["edits"]:
        assert (ROOT / edit["file"]).read_text().count(edit["before"]) == 1
        assert edit["before"] != edit["after"]
    file, _, test = MUTANTS[name]["test"].partition("::")
    assert f"def {test}(" in (ROOT / file).read_text()
