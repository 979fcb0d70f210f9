"""A few leavers, and what is made of their figures."""

import json

import pytest

from experiments.forgetting import run
from experiments.harness import Place


@pytest.mark.parametrize("kind", ["contradicts the others", "nearly all the data"])
@pytest.mark.experiment
def test_reported_distances_are_the_true_ones(kind):
    row = run.measured(run.logistic(kind, 0))
    assert row["anew"]["nats left"] <= run.ENOUGH
    assert abs(row["nats above the least of BFGS"]) < 1e-4
    assert row["before"] > 1  # there is something to forget
    assert [found["sweeps"] for found in row["sweeps"]] == list(run.SWEEPS)
    for found in row["sweeps"]:
        if found["true"] > run.SMALL:
            assert found["true"] / 2 < found["reported"] < found["true"] * 2, found
        assert found["sweeps"] is not None or found["converged"]


def test_leavers_differ_as_they_say():
    for kind, (make, count) in run.CASES.items():
        case = make(kind, count - 1)
        assert case.kind == kind
        assert run.LEAVER in case.sites and run.LEAVER not in case.rest
        assert len(case.rest) == len(case.sites) - 1
    most = run.logistic("nearly all the data", 1)
    assert 10 * sum(len(y) for _, y in most.rest.values()) < 2 * len(most.sites[run.LEAVER][1])


def test_a_run_goes_on_where_it_ended_and_counts(tmp_path, monkeypatch):
    seen = []

    def measured(case):
        seen.append(case.kind)
        found = {"true": 2.0, "reported": 1.0, "certificate": 4.0, "bound": 4.0, "converged": True}
        return {
            "anew": {"status": "converged", "nats left": 0.0},
            "nats above the least of BFGS": 1e-9,
            "sweeps": [{"sweeps": sweeps, **found} for sweeps in run.SWEEPS[:-1]]
            + [{"sweeps": None, **found, "true": 0.0, "reported": None}],
        }

    monkeypatch.setattr(run, "measured", measured)
    kinds = ("ordinary", run.NOISY)
    run.run(Place(tmp_path), kinds=kinds, most=1)
    found = run.run(Place(tmp_path), kinds=kinds, most=2)
    assert len(seen) == 4 and found["leavers"] == 2
    assert found["reported over true"]["2 sweeps"]["median"] == 0.5
    assert found["certificate over true"]["0 sweeps"]["largest"] == 2
    assert found["reported over true"]["default"]["unknown"] == 2
    assert found.items() <= json.loads((tmp_path / "expected.json").read_text()).items()
