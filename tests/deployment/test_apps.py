"""What engines are given: jobs and apps without code, kits, routes (make test-engine)."""

import importlib
import json

import pytest

from posterity.errors import ArtifactError

pytestmark = pytest.mark.engine


def test_a_job_brings_no_code_and_names_classes_that_are_installed(tmp_path):
    from posterity.engine.transports.nvflare import ALLOWED, write_job

    write_job(tmp_path / "job", ["south", "north"], encrypted=False, seconds=5.0)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and all(path.suffix == ".json" for path in files)
    paths = [each for file in files for each in named(json.loads(file.read_text()))]
    assert len(paths) == 4
    for path in paths:
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
        assert path.startswith(ALLOWED)
    meta = json.loads((tmp_path / "job" / "meta.json").read_text())
    assert meta["deploy_map"] == {"app": ["server", "north", "south"]}


def named(value) -> list[str]:
    """All import paths in a document."""
    if isinstance(value, list):
        return [path for each in value for path in named(each)]
    if not isinstance(value, dict):
        return []
    own = [value["path"]] if "path" in value else []
    return own + [path for each in value.values() for path in named(each)]


def test_a_kit_allows_the_classes_once_and_keeps_what_it_allowed(tmp_path):
    from posterity.engine.transports.nvflare import ALLOWED, allow

    (tmp_path / "local").mkdir()
    given = {"class_allow_list": ["nvflare.app_common.x.Y"], "format_version": 2}
    (tmp_path / "local" / "resources.json.default").write_text(json.dumps(given))
    for _ in range(2):
        allow(tmp_path)
    found = json.loads((tmp_path / "local" / "resources.json").read_text())
    assert found == given | {"class_allow_list": ["nvflare.app_common.x.Y", *ALLOWED]}


@pytest.mark.parametrize("what", ["allow", "submit"])
def test_a_folder_that_is_no_kit_is_refused(what, tmp_path):
    from posterity.engine.transports import nvflare

    with pytest.raises(ArtifactError, match="nvflare provision"):
        getattr(nvflare, what)(tmp_path)


def test_routes_give_each_letter_once_to_the_node_of_its_receiver():
    from posterity.engine.transports.flower import Routes

    routes = Routes()
    assert routes.asked([1, 2]) == {1: [], 2: []}
    routes.nodes = {"north": 1, "south": 2, "gone": 3}
    routes.waiting = [("south", b"a"), ("server", b"b"), ("south", b"c"), ("gone", b"d")]
    assert routes.asked([1, 2]) == {2: [("south", b"a"), ("south", b"c")]}
    assert routes.taken("server") == [b"b"]
    assert routes.waiting == [] and routes.asked([1, 2]) == {1: [], 2: []}


def test_an_app_is_one_file_that_names_what_is_installed(tmp_path):
    from flwr.common.config import get_project_config, validate_config

    from posterity.engine.transports.flower import write_app

    write_app(tmp_path, rounds=3)
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]
    config = get_project_config(tmp_path)
    assert validate_config(config, True, tmp_path)[:2] == (True, [])
    assert config["tool"]["flwr"]["app"]["config"] == {"rounds": 3}
