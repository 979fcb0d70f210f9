"""The benchmark of federation runs and says what it should; nothing here looks at speed."""

import json

import numpy as np
import pytest
from pictures import shows_data

from benchmarks import federation, naive_gossip
from benchmarks.federation_point import Size, coins, links, waits
from posterity import Beta
from posterity.federation import federate
from posterity.graphs import Network, complete, star
from posterity.models import BetaBernoulli

pytestmark = pytest.mark.timeout(900)  # processes start slowly where many tests run at once

AGENTS = ["a", "b", "c", "d"]


def test_plain_loop_reaches_the_conjugate_posterior() -> None:
    size = Size(sites=4)
    sites, rng = coins(size, 0), np.random.default_rng(0)
    own = links(Network.from_graph(complete(list(sites))))
    records = list(sites.values())
    one = naive_gossip.conjugate((1.0, 1.0), records, own, 200, rng)[-1]
    kept = naive_gossip.kept_sums((1.0, 1.0), records, own, 200, rng)[-1]
    many = naive_gossip.in_step((1.0, 1.0), records, own, 200, 3, rng)
    q = federate(sites, BetaBernoulli(), Beta.from_standard(1.0, 1.0), steps=1).posterior
    assert one == kept == (float(q.a) - 1, float(q.b) - 1)
    np.testing.assert_array_equal(many[:, -1], [one] * 3)


def test_plain_walk_is_metropolis_hastings() -> None:
    own, rng = links(Network.from_graph(star(AGENTS))), np.random.default_rng(1)
    assert own == [[1, 2, 3], [0], [0], [0]]
    moved = np.mean([naive_gossip.metropolis_hastings(own, 1, rng) == 0 for _ in range(3000)])
    # A leaf moves to the hub with chance 1/3.
    assert abs(moved - 1 / 3) < 4 * np.sqrt(2 / 9 / 3000)
    assert all(naive_gossip.metropolis_hastings(own, 0, rng) != 0 for _ in range(50))


def test_plain_reinforce_follows_the_natural_gradient_on_average() -> None:
    rng, data = np.random.default_rng(2), (100.0, 50.0)
    eta, factor, rate = np.array([30.0, 32.0]), np.array([3.0, -2.0]), 1e-9
    draw = lambda: naive_gossip.local_iteration(eta, factor, data, rate, 500, rng)
    directions = np.array([(eta - draw()) / rate for _ in range(400)])
    q = Beta(*eta)
    expected = lambda q: float(
        -data[0] * np.asarray(q.mean_parameters)[0] - data[1] * (q.a + q.b - 1) / (q.a - 1)
    )
    steps = 1e-4 * np.eye(2)
    slope = [(expected(Beta(*(eta + h))) - expected(Beta(*(eta - h)))) / 2e-4 for h in steps]
    exact = factor - np.asarray(q.inverse_fisher_product(np.array(slope)))
    error = directions.std(0, ddof=1) / np.sqrt(len(directions))
    assert (np.abs(directions.mean(0) - exact) < 4 * error + 1e-3).all()


def test_plain_step_is_halved_until_it_is_proper() -> None:
    rng = np.random.default_rng(3)
    eta = np.array([0.5, 0.5])
    moved = naive_gossip.local_iteration(eta, np.zeros(2), (100.0, 50.0), 1.0, 30, rng)
    assert (moved > -1).all()


def test_waiting_times_disagree_where_they_should() -> None:
    means = [x.mean() for x in waits(Size(records=2000), 0, 0.9).values()]
    assert max(means[:-1]) < 0.4 < 0.8 < means[-1]


@pytest.mark.experiment
def test_quick_run_is_complete_and_draws(tmp_path) -> None:
    output = tmp_path / "quick.json"
    plan = federation.quick(limit=60)
    result = federation.run(plan, output)
    assert json.loads(output.read_text()).keys() >= {*federation.PARTS, "goals"}
    assert result["speed"]["points"]["conjugate speed"]["ratio_cpu"] != 0
    points = result["series"]["series"]["conjugate forget"]["points"]
    assert all(p["status"] == "finished" and p["same"] for p in points)
    beside = result["beside plain JAX"]["points"]["logistic round, full"]
    assert beside["largest_difference"] < 1e-3
    waiting = result["forgetting"]["points"]["waiting forget"]
    assert waiting["distance"] < 1e-3 * waiting["distance, subtraction alone"]
    federation.draw(result, tmp_path / "quick.png")
    assert shows_data(tmp_path / "quick.png")


def test_goals_that_were_not_measured_are_not_judged() -> None:
    late = {"speed": {"points": {"conjugate speed": {"status": "did not finish"}}}}
    (goal,) = federation.judge(late)
    assert goal["met"] is None
    slow = {"logistic round, full": {"ratio_cpu": 1.2}, "network round": {"status": "failed"}}
    hops = {"hops": {"points": [{"sites": 100, "cpu_s": 0.02}, {"sites": 10}]}}
    series, beside = {"series": hops}, {"points": slow}
    judged = federation.judge({"beside plain JAX": beside, "series": series})
    assert [goal["met"] for goal in judged] == [False, None, True]
    fast = {"speed": {"points": {"conjugate speed": {"ratio_cpu": 250.0}}}}
    assert federation.judge(fast)[0]["met"]
