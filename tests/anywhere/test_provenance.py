"""Records of what results were made with, and of the code that they depend on."""

import json

from experiments import harness, provenance, rerun
from experiments.data import REPOSITORY


def names(module):
    return {path.name for path in provenance.sources(module)}


def test_sources_are_what_a_module_imports_also_where_names_are_lazy():
    fusion = names("experiments.klfusion.gmm")
    assert {"gmm.py", "harness.py", "fuse.py", "criterion.py", "version.py"} <= fusion
    assert not {"federate.py", "pursue.py"} & fusion
    assert {"federate.py", "remaining.py"} <= names("experiments.gfvl.run")
    assert provenance.sources("numpy") == frozenset()


def test_a_results_file_says_what_it_was_made_with(tmp_path, monkeypatch):
    said = {"rev-parse": "0123456789ab", "status": "", "diff": "src/posterity/version.py\nLICENSE"}
    monkeypatch.setattr(provenance, "git", lambda *words: said[words[0]])
    harness.write(tmp_path, "own", {"figure": 1, provenance.KEY: {"versions": {"peer": "2"}}})
    record = json.loads((tmp_path / "own.json").read_text())[provenance.KEY]
    assert record["commit"] == "0123456789ab" and record["changed since"] is False
    assert record["CPU seconds"] > 0 and record["processor"] and record["versions"] == {"peer": "2"}
    parts = {
        "one": {provenance.KEY: {**record, "module": "experiments.klfusion.gmm"}},
        "two": {"settings": {provenance.KEY: {**record, "commit": "ba9876543210", "module": None}}},
    }
    file = tmp_path / "own.json"
    file.write_text(json.dumps(parts))
    monkeypatch.setattr(provenance, "_modules_of", lambda file: ["experiments.gfvl.run"])
    old = provenance.age(file)
    assert old.commits == ("012345678", "ba9876543")
    assert old.changed == ("src/posterity/version.py",) and "1 files" in str(old)
    said["diff"] = ""
    assert "as the code is" in str(provenance.age(file))
    said["diff"] = None  # as where the commit is not at hand
    assert "not known" in str(provenance.age(file))


def test_each_results_file_has_a_command():
    files = (REPOSITORY / "experiments").glob("*/results/*.json")
    written = {f"{path.parts[-3]}/{path.stem}" for path in files}
    assert written == set(rerun.RUNS)
    for name, command in rerun.RUNS.items():
        assert provenance.file_of(rerun.Run(name, command).module) is not None, command


def test_a_run_is_stopped_goes_on_and_is_not_done_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(rerun, "CACHE", tmp_path / "parts")
    monkeypatch.setattr(rerun, "REPOSITORY", tmp_path)
    monkeypatch.setattr(rerun, "RUNS", {"one/mixtures": "robustness.mixtures --count 1"})
    (own,) = rerun.old(only=("mix",))
    assert "no time" in own.measure(end=0.0) and not own.file.exists()
    rerun.run(minutes=10)
    record = json.loads(own.file.read_text())[provenance.KEY]
    assert record["module"] == "experiments.robustness.mixtures"
    assert list((own.folder / "parts").iterdir())
    monkeypatch.setattr(provenance, "age", lambda file: provenance.Age(file, (), (), ()))
    assert list(rerun.old(only=())) == [] and list(rerun.old(only=("else",))) == []
