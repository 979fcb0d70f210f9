"""One word for one thing: verbs as a user reads them, by their signatures and results."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import posterity
from posterity.distillation import Distillation
from posterity.federation import Run
from posterity.federation.forget import Forgotten
from posterity.fusion import Fusion
from posterity.networks import Trained, train
from posterity.pursuit import Pursuit

VERBS = {
    "fuse": (posterity.fuse, Fusion),
    "federate": (posterity.federate, Run),
    "forget": (posterity.forget, Forgotten),
    "pursue": (posterity.pursue, Pursuit),
    "distill": (posterity.distill, Distillation),
    "train": (train, Trained),
}
DEFAULTS = {"key": None, "progress": None, "checkpoint": None}
OTHER_WORDS = {
    *("until", "callback", "every", "watch", "history", "seed", "rng", "batch", "draws"),
    *("num_samples", "lr", "optimizer", "temper", "go_on", "unsettled", "max_iter", "tol"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_one_word_for_one_thing(verb: str) -> None:
    function, _ = VERBS[verb]
    parameters = inspect.signature(function).parameters
    assert not parameters.keys() & OTHER_WORDS
    for name, default in DEFAULTS.items():
        if name in parameters:
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY, name
            assert parameters[name].default is default, name
    assert "progress" in parameters


def test_random_verbs_take_a_key_and_long_ones_a_checkpoint() -> None:
    def has(word: str) -> set[str]:
        return {verb for verb, (it, _) in VERBS.items() if word in inspect.signature(it).parameters}

    assert has("key") == {"federate", "pursue", "distill", "train"}
    assert has("checkpoint") == {"fuse", "federate", "pursue", "distill"}
    assert {"federate", "pursue", "distill"} <= has("tolerance")
    assert {"federate", "distill", "train"} <= has("steps")


@pytest.mark.parametrize("verb", VERBS)
def test_every_result_says_the_same_of_itself(verb: str) -> None:
    _, result = VERBS[verb]
    fields = {*dir(result), *getattr(result, "__dataclass_fields__", ())}
    assert {"posterior", "status", "trace"} <= fields


@pytest.mark.parametrize("name", ["Status", "Progress", "Checkpoint"])
def test_there_is_one_of_each(name: str) -> None:
    sources = Path(posterity.__file__).parent.rglob("*.py")
    found = [path for path in sources if f"\nclass {name}" in path.read_text()]
    assert len([p for p in found if f"\nclass {name}:" in p.read_text()]) == 1, found


def test_public_methods_say_what_they_do_or_their_bases_do() -> None:
    """A method without a docstring takes the place of one that has it, where ruff does not look."""
    source = Path(posterity.__file__).parent
    folders = "adapters arrays distillation engine families federation inference models"
    paths = [path for folder in folders.split() for path in (source / folder).rglob("*.py")]
    classes: dict[str, list[ast.ClassDef]] = {}
    for path in [*paths, source / "errors.py"]:
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    words = {
        id(own): {f.name: ast.get_docstring(f) for f in own.body if isinstance(f, ast.FunctionDef)}
        for each in classes.values()
        for own in each
    }

    def above(own: ast.ClassDef) -> Iterator[ast.ClassDef]:
        for base in (ast.unparse(base).partition("[")[0].split(".")[-1] for base in own.bases):
            for known in classes.get(base, []):
                if known is not own:
                    yield from (known, *above(known))

    unsaid = [
        f"{own.name}.{name}"
        for own in (own for each in classes.values() for own in each if own.name[0] != "_")
        for name, said in words[id(own)].items()
        if not (said or name[0] == "_" or any(words[id(base)].get(name) for base in above(own)))
    ]
    assert not unsaid
