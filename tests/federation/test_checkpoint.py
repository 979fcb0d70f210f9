import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import jax
import numpy as np
import pytest
from federation.examples import (
    CONJUGATE,
    NAMES,
    NORMAL,
    SCHEDULES,
    load_checkpoint,
    logistic_sites,
    save_checkpoint,
    snapshot,
)

from posterity import load, save
from posterity.errors import ArtifactError, UsageError
from posterity.families import Gaussian
from posterity.federation import Gossip, Synchronous, federate
from posterity.federation.checkpoint import arguments_of
from posterity.federation.federate import start
from posterity.federation.keys import step_key
from posterity.federation.schedules import Pending
from posterity.graphs import complete
from posterity.inference import LocalUpdate
from posterity.models import LogisticRegression
from posterity.runtime.fingerprint import digest

SITES = logistic_sites()
MODEL, PRIOR, DATA = CONJUGATE["Gaussian"]
GOSSIP = Gossip(complete(list(NAMES)))


def begun(**changes):
    """A logistic run before its first step, set up with these changes."""
    usual = {
        "sites": SITES,
        "model": LogisticRegression(),
        "prior": NORMAL,
        "schedule": GOSSIP,
        "update": LocalUpdate("reparameterization", steps=2),
        "key": jax.random.key(5),
    }
    return start(**(usual | changes))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    run = begun(schedule=SCHEDULES[name])
    half = run.advance(3)
    save_checkpoint(half, tmp_path / "run")
    resumed = load_checkpoint(begun(schedule=SCHEDULES[name]), tmp_path / "run")
    assert snapshot(resumed) == snapshot(half)
    assert resumed.trace == half.trace
    assert snapshot(resumed.advance(4)) == snapshot(run.advance(7))


def test_federate_goes_on_from_its_checkpoint(tmp_path):
    path = tmp_path / "run"
    settings = {"schedule": GOSSIP, "checkpoint": path}

    class Stop(Exception):
        pass

    def stop(progress):
        if progress.step == 5:
            raise Stop

    with pytest.raises(Stop):
        federate(DATA, MODEL, PRIOR, steps=9, progress=stop, **settings)
    seen = []
    run = federate(
        DATA,
        MODEL,
        PRIOR,
        steps=9,
        progress=lambda progress: seen.append(progress.step),
        **settings,
    )
    assert seen == [5, 6, 7, 8, 9]  # the fifth step had not come back
    assert snapshot(run) == snapshot(federate(DATA, MODEL, PRIOR, schedule=GOSSIP, steps=9))
    assert snapshot(federate(DATA, MODEL, PRIOR, steps=9, **settings)) == snapshot(run)
    assert {file.name for file in tmp_path.iterdir()} == {"run"}
    assert load(path)["ledger"] == run.ledger


def test_a_walk_with_leavers_goes_on(tmp_path):
    run = start(DATA, MODEL, PRIOR, schedule=GOSSIP).advance(12)
    run = run.forget("ash").forget("oak", when="visit")
    save_checkpoint(run, tmp_path / "run")
    # The data of who was forgotten may be gone by then; those of who is yet to leave may not.
    gone = DATA | {"ash": None}
    resumed = load_checkpoint(start(gone, MODEL, PRIOR, schedule=GOSSIP), tmp_path / "run")
    assert resumed.state.leaving == ("oak",)
    assert snapshot(resumed.advance(20)) == snapshot(run.advance(20))
    with pytest.raises(ArtifactError, match="another computation"):
        load_checkpoint(
            start(DATA | {"oak": None}, MODEL, PRIOR, schedule=GOSSIP), tmp_path / "run"
        )


def test_what_was_set_up_otherwise_is_refused(tmp_path):
    path = tmp_path / "run"
    save_checkpoint(begun().advance(1), path)
    content = path.read_bytes()
    x, y = SITES["ash"]
    renamed = {f"{site}'": data for site, data in SITES.items()}
    others = [
        ("data of site 'ash'", {"sites": SITES | {"ash": (x, 1 - y)}}),
        ("data of site 'ash'", {"weights": {"ash": 2.0}}),
        ("names of the sites", {"sites": renamed, "schedule": Gossip(complete(list(renamed)))}),
        ("prior", {"prior": Gaussian.from_standard(np.zeros(2), 5 * np.eye(2))}),
        ("schedule", {"schedule": Synchronous()}),
        ("schedule", {"schedule": Gossip(complete(list(NAMES)), start="ash")}),
        ("local rule (update)", {"update": LocalUpdate("reparameterization", steps=3)}),
        ("local rule (update)", {"update": LocalUpdate("reparameterization", steps=2, rate=0.1)}),
        ("key", {"key": jax.random.key(6)}),
        ("model", {"model": lambda z, data: LogisticRegression().log_likelihood(z, data)}),
    ]
    for part, changes in others:
        with pytest.raises(ArtifactError, match="another computation") as caught:
            load_checkpoint(begun(**changes), path)
        assert f": other {part}" in caught.value.found
    assert path.read_bytes() == content
    with pytest.raises(ArtifactError, match="another computation"):
        federate(SITES, LogisticRegression(), NORMAL, steps=1, checkpoint=path)
    assert path.read_bytes() == content
    # What to do about sites that fail may well change from one attempt to the next.
    load_checkpoint(begun(on_error="pass"), path)


def test_files_that_are_no_checkpoints(tmp_path):
    path, run = tmp_path / "run", start(DATA, MODEL, PRIOR)
    assert load_checkpoint(run, path) is run
    for other in (run.ledger, run.posterior):
        save(other, path)
        with pytest.raises(ArtifactError, match="no checkpoint"):
            load_checkpoint(run, path)
        with pytest.raises(ArtifactError, match="no checkpoint"):
            save_checkpoint(run, path)
    path.unlink()
    save_checkpoint(run.advance(1), path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="digest"):
        federate(DATA, MODEL, PRIOR, steps=2, checkpoint=path)
    assert path.read_bytes() == content
    path.write_bytes(content[:-20])
    with pytest.raises(ArtifactError):
        federate(DATA, MODEL, PRIOR, steps=2, checkpoint=path)


# --- killed ------------------------------------------------------------------------------------

SETTINGS = """
import numpy as np
from posterity.families import Beta
from posterity.federation import Gossip
from posterity.graphs import complete
from posterity.models import BetaBernoulli

names = ["a", "b", "c", "d", "e"]
sites = {name: np.arange(k + 2) % 2 for k, name in enumerate(names)}
setting = (sites, BetaBernoulli(), Beta.from_standard(0.7, 1.3))
options = {"schedule": Gossip(complete(names)), "steps": 60}
"""
PROGRAM = f"""
{SETTINGS}
import sys
import posterity.artifact.checkpoint
from posterity.runtime.fingerprint import digest
from posterity.federation import federate
from posterity.federation.checkpoint import arguments_of

posterity.artifact.checkpoint.SECONDS = 0.0
told = lambda progress: print(progress.step, flush=True)
run = federate(*setting, **options, checkpoint=sys.argv[1], progress=told)
print([digest(arguments_of(run)), digest(run.ledger), [v.site for v in run.trace]])
"""


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_goes_on(tmp_path):
    def program():
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "run")],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    process = program()
    process.stdout.readline()  # the first step is done
    time.sleep(random.Random(0).uniform(0.0, 0.15))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    rest, _ = program().communicate(timeout=120)
    *steps, last = rest.splitlines()
    assert len(steps) < 60  # not from the beginning
    given = {}
    exec(SETTINGS, given)
    whole = federate(*given["setting"], **given["options"])
    visited = [visit.site for visit in whole.trace]
    assert last == str([digest(arguments_of(whole)), digest(whole.ledger), visited])


def test_what_is_not_a_number_or_is_told_in_words_comes_back(tmp_path):
    run = start(DATA, MODEL, PRIOR, schedule=GOSSIP).advance(4)
    first, *rest = run.trace
    odd = (dataclasses.replace(first, change=float("nan"), error="no"), *rest)
    save_checkpoint(dataclasses.replace(run, trace=odd), tmp_path / "run")
    again = load_checkpoint(start(DATA, MODEL, PRIOR, schedule=GOSSIP), tmp_path / "run")
    assert repr(again.trace) == repr(odd)


def test_fewer_steps_than_were_made_are_refused(tmp_path):
    path = tmp_path / "run"
    go_on = partial(federate, DATA, MODEL, PRIOR, schedule=GOSSIP, checkpoint=path)
    go_on(steps=5)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="steps = 2, and a checkpoint with 5 hops"):
        go_on(steps=2)
    assert path.read_bytes() == before
    assert go_on(steps=5).state.step == 5


def test_a_pass_that_a_site_broke_off_goes_on_from_its_checkpoint(tmp_path):
    run, had = start(DATA, MODEL, PRIOR), len(DATA) - 1
    pending = Pending(step_key(run.key, 0), run.agreement.sites, had)
    broken = dataclasses.replace(run, state=dataclasses.replace(run.state, pending=pending))
    save_checkpoint(broken, tmp_path / "run")
    again = load_checkpoint(run, tmp_path / "run").advance(1)
    assert [visit.site for visit in again.trace] == [*run.agreement.sites[had:]]
    assert snapshot(again) == snapshot(broken.advance(1))
