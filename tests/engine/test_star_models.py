"""A star of sites that search finds, to the last bit, what a federation in one process finds."""

import warnings

import numpy as np
import pytest
from engine.packages import provide
from engine.stars import FAULTS, KEYS, Star, terms

from posterity.artifact import digest
from posterity.families import DiagonalGaussian, Gaussian
from posterity.federation import Asynchronous, Sequential, Synchronous, federate, forget
from posterity.models import LogisticRegression
from tests.federation.examples import Square

SITES = ("a", "b", "c")
FULL = Gaussian.from_standard(np.zeros(2), 4 * np.eye(2))
DIAGONAL = DiagonalGaussian.from_standard(np.zeros(2), 4 * np.ones(2))


def records(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    x = np.c_[np.ones(20), rng.normal(size=20) + number]
    return x, (rng.random(20) < 1 / (1 + np.exp(-x @ [0.3, 1.0]))).astype(float)


DATA = {site: records(number) for number, site in enumerate(SITES)}
SERVER = {"server": (np.zeros((0, 2)), np.zeros(0))}
CASES = {
    "one after the other": (FULL, Sequential(), {"kind": "sequential"}, {}),
    "all at once, with Newton steps": (DIAGONAL, Synchronous(), {"kind": "synchronous"}, {}),
    "whoever is done": (
        FULL,
        Asynchronous(speeds={"b": 3.0}),
        {"kind": "asynchronous", "speeds": {"b": 3.0}},
        {"steps": 7},
    ),
    "a saddle": (Gaussian.from_standard([0.0], [[4.0]]), Sequential(), {"kind": "sequential"}, {}),
    "partial pooling": (FULL, Sequential(), {"kind": "sequential"}, {"personal": True}),
    "an intercept each": (FULL, Sequential(), {"kind": "sequential"}, {"own": [0]}),
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] * (c == "a saddle")) for c in CASES]
)
def test_a_star_is_a_federation_in_one_process(case, tmp_path, monkeypatch):
    prior, schedule, table, options = CASES[case]
    saddle = case == "a saddle"
    model, path = LogisticRegression(), "logistic-regression"
    if saddle:
        provide(tmp_path, monkeypatch, square="tests.federation.examples:Square")
        model, path = Square(), "square"
    data = {site: 9 + 0.3 * x[:, 1] for site, (x, _) in DATA.items()} if saddle else DATA
    data = data | SERVER if "own" in options else data  # who asks is a member too
    with warnings.catch_warnings(action="ignore"):
        run = federate(data, model, prior, schedule=schedule, **options)
    members = {name: str(KEYS[name].public) for name in (*SITES, "server")}
    padding = run.agreement.padding
    options = options | {"members": members, "schedule": table, "padding": padding}
    if saddle:
        options |= {"package": "acme", "version": "1.0", "allow": {"acme": "1.0"}}
    agreed = terms(model=path, prior=prior, **options)
    for faults in (None, FAULTS) if case == "one after the other" else (FAULTS,):
        server = {"server": np.zeros(0)} if saddle else SERVER
        star = Star(agreed, data | server, faults, killed=faults and 0.05)
        star.command("server", "begin")
        star.run()
        course = star.course
        assert course.phase == "rest" and course.run.state.step == run.state.step
        assert digest(course.run.ledger) == digest(run.ledger)
        assert str(course.status) == str(run.status)
    if saddle:
        assert course.status.state == "converged to one of several"
        known = {
            name: machine.status(star.memories[name]) for name, machine in star.machines.items()
        }
        assert {status.state for status in known.values()} == {course.status.state}
    if case.startswith("all"):
        assert course.asked > 2 * len(SITES) * run.state.step  # for slopes and curvatures too
        star.command("b", "forget")
        star.run()
        done = forget(run, "b")
        assert digest(star.course.run.posterior) == digest(done.posterior)
        assert str(star.course.status) == str(done.status)
