"""A checkpoint's history is appended to: whatever is torn off is noticed, or does not count."""

import dataclasses
import itertools
import json
from functools import partial
from pathlib import Path

import pytest
from federation.examples import CONJUGATE, NAMES, snapshot

from posterity.errors import ArtifactError, UsageError
from posterity.federation import Gossip, federate
from posterity.federation.checkpoint import keep, load_checkpoint, save_checkpoint
from posterity.federation.federate import start
from posterity.graphs import complete

MODEL, PRIOR, DATA = CONJUGATE["Beta"]
BEGUN = partial(start, DATA, MODEL, PRIOR, schedule=Gossip(complete(list(NAMES))))
GO_ON = partial(federate, DATA, MODEL, PRIOR, schedule=Gossip(complete(list(NAMES))))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


def history(path):
    return path.with_name("run.history")


def test_it_is_appended_to(path):
    sizes = []
    look = lambda run: sizes.append(history(path).read_bytes())
    run = GO_ON(steps=12, checkpoint=path, every=3, callback=look)
    sizes.append(history(path).read_bytes())
    for before, after in itertools.pairwise(sizes):
        assert after.startswith(before)
    assert len({len(content) for content in sizes}) == 5
    told = [json.loads(line) for line in sizes[-1].splitlines()[1:]]
    assert [visit["site"] for visit in told] == [visit.site for visit in run.history]


def test_the_checkpoint_itself_does_not_grow_with_the_run(path):
    sizes = []
    for steps in (10, 40):
        GO_ON(steps=steps, checkpoint=path)
        sizes.append(path.stat().st_size)
    assert sizes[1] - sizes[0] < 100


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99, 1.0])
def test_what_a_killed_writer_appended_does_not_count(path, share):
    """The history is written, all or some, and the checkpoint that would speak of it is not."""
    early = BEGUN().advance(4)
    save_checkpoint(early, path)
    kept, size = path.read_bytes(), history(path).stat().st_size
    late = early.advance(5)
    save_checkpoint(late, path)
    whole = [file.read_bytes() for file in (path, history(path))]
    end = size + int(share * (len(whole[1]) - size))
    path.write_bytes(kept)
    history(path).write_bytes(whole[1][:end])
    resumed = load_checkpoint(BEGUN(), path)
    assert (snapshot(resumed), resumed.history) == (snapshot(early), early.history)
    save_checkpoint(late, path)
    assert [file.read_bytes() for file in (path, history(path))] == whole


def test_a_history_that_lost_something_is_refused(path):
    run = BEGUN().advance(4)
    save_checkpoint(run, path)
    content = history(path).read_bytes()
    for wrong in (content[:-1], content.replace(b"ash", b"oak"), b""):
        history(path).write_bytes(wrong)
        with pytest.raises(ArtifactError, match="another history"):
            GO_ON(steps=9, checkpoint=path)
    history(path).unlink(missing_ok=True)  # what is empty goes with who opened it
    with pytest.raises(ArtifactError, match="another history"):
        load_checkpoint(BEGUN(), path)
    history(path).write_bytes(content)
    assert snapshot(load_checkpoint(BEGUN(), path)) == snapshot(run)


def test_files_of_others_stay(path):
    history(path).write_text("my own notes")
    with pytest.raises(ArtifactError, match="no history of a checkpoint"):
        GO_ON(steps=2, checkpoint=path)
    assert history(path).read_text() == "my own notes"
    assert not path.exists()


def test_a_history_without_its_checkpoint_is_begun_anew(path):
    GO_ON(steps=5, checkpoint=path)
    path.unlink()
    run = GO_ON(steps=3, checkpoint=path)
    assert len(run.history) == len(history(path).read_bytes().splitlines()) - 1 == 3


def test_only_one_writer_at_a_time(path):
    with keep(BEGUN(), path), pytest.raises(ArtifactError, match="another process writes"):
        GO_ON(steps=1, checkpoint=path)
    assert not history(path).exists()
    GO_ON(steps=1, checkpoint=path)


def test_an_earlier_state_does_not_take_its_place(path):
    save_checkpoint(BEGUN().advance(6), path)
    before = path.read_bytes()
    with pytest.raises(ArtifactError, match="does not go on from the 6 visits"):
        save_checkpoint(BEGUN().advance(2), path)
    assert path.read_bytes() == before


def test_what_is_not_a_number_goes_on_as_itself(path):
    run = BEGUN().advance(4)
    odd = [dataclasses.replace(visit, change=float("nan")) for visit in run.history]
    save_checkpoint(dataclasses.replace(run, history=tuple(odd)), path)
    again = [dataclasses.replace(visit, change=float("nan") * 1) for visit in odd]
    save_checkpoint(dataclasses.replace(run, history=(*again, again[0])), path)
    assert len(load_checkpoint(BEGUN(), path).history) == 5


def test_fewer_steps_than_were_made_are_refused(path):
    GO_ON(steps=5, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="steps = 2, and a checkpoint with 5 hops"):
        GO_ON(steps=2, checkpoint=path)
    assert path.read_bytes() == before
    assert GO_ON(steps=5, checkpoint=path).state.step == 5


def test_what_killed_writers_left_goes_at_the_next_start(path):
    left = Path(path.with_name(".run.0123abcd.tmp"))
    left.write_bytes(b"factors")
    GO_ON(steps=0, checkpoint=path)
    assert not left.exists()
