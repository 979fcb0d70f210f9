"""The examples in docstrings print what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import posterity
from posterity.errors import MissingExtraError

SOURCE = Path(posterity.__file__).parent
MODULES = [
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>>" in path.read_text()
]


@pytest.mark.slow  # most take no time, but some compile
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name):
    try:
        module = importlib.import_module(name)
    except (MissingExtraError, ModuleNotFoundError) as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "posterity" or not (missing or isinstance(error, MissingExtraError)):
            raise  # a broken import of the library's own
        pytest.skip(f"{name} needs an extra: {error}")
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0 and result.failed == 0
