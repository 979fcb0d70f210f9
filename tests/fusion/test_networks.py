"""Laws of fusing networks: what must hold whatever the sites hold."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import posterity
import posterity.fusion.networks.fuse  # hypothesis traces, and slows, what is imported in a test
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families import DiagonalGaussian, Network, Product
from posterity.families.layers import Conv, Dense, Layers
from posterity.fusion import plan
from posterity.fusion.diff import diff
from posterity.fusion.networks import Options
from posterity.fusion.networks.fuse import widths_wanted
from posterity.fusion.networks.targets import flow, in_order, mean_squares, random_inputs
from posterity.fusion.networks.units import assigned, merged
from posterity.fusion.plan import Plan
from posterity.fusion.reading import read_sites
from posterity.status import Status
from tests.fusion.nets import LENET, TWO, as_site, random_network, shuffled

QUICK = Options(samples=60)
DENSE = Layers.dense(4, 6, 3)
NETWORKS = {"one": DENSE, "two": TWO, "conv": LENET}


def predicted(network, x):
    return flow(network.layers, network.layers.unravel(network.mean), x)[-1]


def aligned(fused, network):
    """The fused network with its units in the order of this one, by its own incoming weights."""
    for index in range(len(fused.layers.widths)):
        rows = []
        for one in (fused, network):
            own = one.layers.unravel(one.mean)[index]
            kernel = own["kernel"].reshape(-1, one.layers.widths[index])
            rows.append(np.concatenate([kernel, own["bias"][None]]).T)
        distance = ((rows[0][:, None] - rows[1][None]) ** 2).sum(-1)
        labels = distance.argmin(1)
        assert sorted(labels) == list(range(len(labels)))
        fused = fused.relabel(labels, len(labels), axes=(index,))
    return fused


@pytest.mark.parametrize("kind", NETWORKS)
@given(seed=st.integers(0, 10**6), sites=st.integers(2, 4))
@settings(max_examples=4)
def test_a_network_fused_with_itself_is_that_network(kind, seed, sites):
    rng = np.random.default_rng(seed)
    network = random_network(NETWORKS[kind], rng)
    copies = {f"s{j}": as_site(f"s{j}", shuffled(network, rng)) for j in range(sites)}
    fused = posterity.fuse(copies, rule="barycenter", networks=QUICK)
    assert fused.widths == network.layers.widths
    back = aligned(fused.posterior, network)
    np.testing.assert_allclose(back.mean, network.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(back.variance, network.variance, rtol=1e-8)
    assert fused.achieved_kl < 1e-12
    for plate in fused.plates.values():
        assert plate.cost < 1e-6
        assert all(sorted(own) == list(range(len(own))) for own in plate.matching.values())


def test_without_a_refit_a_network_fused_with_itself_is_kept():
    options = Options(samples=60, refit=False)
    rng = np.random.default_rng(3)
    network = random_network(TWO, rng)
    fused = posterity.fuse(
        [network, shuffled(network, rng)], networks=options, divergence="forward"
    )
    np.testing.assert_allclose(aligned(fused.posterior, network).mean, network.mean, atol=1e-8)


def test_networks_without_hidden_units_are_fused_weight_by_weight():
    """Linear regression at two sites, each of which knows one coefficient: against all the data."""
    layers, rng = Layers((Dense(2, 1, "identity", bias=False),)), np.random.default_rng(25)
    sites, total, moment = {}, np.ones(2), np.zeros(2)
    for j in range(2):
        x = np.zeros((30, 2))
        x[:, j] = rng.normal(size=30)
        y = x @ [1.0, -2.0] + rng.normal(size=30)
        gained, own = (x**2).sum(0), x.T @ y
        network = Network.from_standard(own / (1 + gained), 1 / (1 + gained), layers)
        sites[f"s{j}"] = as_site(f"s{j}", network)
        total, moment = total + gained, moment + own
    fused = posterity.fuse(sites, rule="product")
    np.testing.assert_allclose(fused.posterior.mean, moment / total)
    np.testing.assert_allclose(fused.posterior.precision, total)
    assert isinstance(fused.posterior, Network) and fused.posterior.layers == layers
    middle = posterity.fuse(sites, rule="barycenter").posterior
    np.testing.assert_allclose(middle.mean, moment / (1 + total))  # both precisions, halved
    with pytest.raises(UsageError, match="hidden layers"):
        posterity.fuse(sites, networks=QUICK)


def test_two_sites_are_matched_as_well_as_can_be():
    """Against every pair of assignments: the summed squares about centroids, weighed by mass."""
    rng = np.random.default_rng(26)

    def spread(rows, mass, labels):
        total = (mass[labels < 0, None] * rows[labels < 0] ** 2).sum()
        for group in set(labels[labels >= 0]):
            own, weight = rows[labels == group], mass[labels == group, None]
            total += (weight * (own - (weight * own).sum(0) / weight.sum()) ** 2).sum()
        return total

    for _ in range(10):
        first, second = sorted(rng.integers(1, 5, 2), reverse=True)
        width = int(rng.integers(first, first + second + 1))
        rows, mass = rng.normal(size=(first + second, 2)), rng.uniform(0.1, 3, first + second)
        site = np.repeat([0, 1], [first, second])
        found = assigned(merged(rows, site, mass), width)
        known = np.arange(first)  # by any names: the second site's may be all others
        best = min(
            spread(rows, mass, np.concatenate([known, other]))
            for other in itertools.permutations(range(width), int(second))
        )
        np.testing.assert_allclose(spread(rows, mass, found), best, rtol=1e-5)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=4)
def test_widths_that_are_asked_for_are_had_even_of_equal_networks(seed):
    rng = np.random.default_rng(seed)
    network = random_network(DENSE, rng)
    for width in range(6, 13):
        twins = [network, shuffled(network, rng)]
        assert posterity.fuse(twins, components=width, networks=QUICK).widths == (width,)


def test_small_variances_outlive_large_means():
    """Moments of two networks that are one, and of two that differ, as they are known."""
    rng = np.random.default_rng(24)
    mean, variance = 3 + rng.normal(size=DENSE.size), np.full(DENSE.size, 1e-18)
    one = Network.from_standard(mean, variance, DENSE)
    options = {"divergence": "forward", "matching": "identity", "networks": QUICK}
    same = posterity.fuse([one, one], **options).posterior.plain
    np.testing.assert_allclose(same.variance, variance, rtol=1e-6)
    shift = 1e-3
    other = Network.from_standard(mean + shift, variance, DENSE)
    found = posterity.fuse([one, other], **options).posterior
    # Of two points at this distance, with shares a and 1 - a, the variance is a (1 - a) of its
    # square, and the mean is where these shares put it.
    to_units = lambda leaf: DENSE.unravel(np.asarray(leaf))[0]["bias"]
    share = (to_units(found.mean) - to_units(mean)) / shift
    expected = share * (1 - share) * shift**2
    np.testing.assert_allclose(to_units(found.variance), expected, rtol=1e-6)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=3)
def test_names_order_of_sites_and_order_of_units_make_no_difference(seed):
    rng = np.random.default_rng(seed)
    networks = [random_network(Layers.dense(4, width, 3), rng) for width in (3, 5, 4)]
    one = posterity.fuse(
        {f"s{j}": as_site(f"s{j}", n) for j, n in enumerate(networks)}, networks=QUICK
    )
    names = ["z", "b", "a"]
    turned = {n: as_site(n, shuffled(q, rng)) for n, q in zip(names, networks[::-1], strict=True)}
    other = posterity.fuse(dict(reversed(turned.items())), networks=QUICK)
    assert one.posterior == other.posterior
    assert one.predictive_kl == other.predictive_kl


def test_all_units_side_by_side_predict_as_the_weighted_concatenation():
    rng = np.random.default_rng(0)
    for layers in NETWORKS.values():
        networks = [random_network(layers, rng) for _ in range(2)]
        sites = {f"s{j}": as_site(f"s{j}", n) for j, n in enumerate(networks)}
        widths = tuple(2 * width for width in layers.widths)
        fused = posterity.fuse(sites, components=widths, networks=QUICK)
        x = rng.normal(size=(20, layers.inputs))
        whole = sum(fused.shares[f"s{j}"] * predicted(n, x) for j, n in enumerate(networks))
        np.testing.assert_allclose(predicted(fused.posterior, x), whole, atol=1e-8)
        assert fused.achieved_kl < 1e-12


def test_wider_is_closer_and_the_narrowest_within_the_tolerance_is_taken():
    rng = np.random.default_rng(1)
    sites = {
        f"s{j}": as_site(f"s{j}", random_network(Layers.dense(5, 12, 3), rng)) for j in range(3)
    }
    kl = [
        posterity.fuse(sites, components=width, networks=QUICK).achieved_kl
        for width in (12, 24, 36)
    ]
    assert kl[0] > kl[1] > kl[2] == pytest.approx(0, abs=1e-12)
    tolerance = kl[1] * 1.01
    found = posterity.fuse(sites, networks=Options(samples=60, tolerance=tolerance))
    assert 12 < found.widths[0] <= 25
    assert found.achieved_kl <= tolerance
    assert found.status == Status("converged", found.achieved_kl, tolerance)
    assert all(k > tolerance for (w,), k in found.predictive_kl.items() if w < found.widths[0])


def test_a_search_that_misses_the_tolerance_says_how_far_it_is():
    rng = np.random.default_rng(1)
    sites = {f"s{j}": random_network(TWO, rng) for j in range(3)}
    with pytest.warns(UserWarning, match="nats from .* Raise the tolerance") as told:
        found = posterity.fuse(sites, networks=Options(samples=60, tolerance=1e-30))
    assert found.widths == (15, 12)
    assert found.status.state == "not converged" and found.status.left == found.achieved_kl
    assert f"{found.achieved_kl:.3g} nats" in str(told[0].message)


def test_progress_is_told_of_every_width_that_is_tried():
    rng = np.random.default_rng(1)
    sites = {f"s{j}": random_network(DENSE, rng) for j in range(2)}
    for arguments in ({}, {"components": 8}, {"matching": "hungarian"}):
        calls = []
        fused = posterity.fuse(sites, networks=QUICK, progress=calls.append, **arguments)
        assert [call.objective for call in calls] == list(fused.predictive_kl.values())
        assert [call.step for call in calls] == list(range(1, len(calls) + 1))
        partial = calls[-1].result
        assert partial.posterior.layers.widths in fused.predictive_kl
        assert partial.achieved_kl == calls[-1].objective
    with pytest.raises(KeyboardInterrupt):
        posterity.fuse(sites, networks=QUICK, progress=_interrupt)


def _interrupt(progress):
    raise KeyboardInterrupt


def test_networks_without_biases_or_anything_to_say():
    layers = Layers((Dense(4, 6, bias=False), Dense(6, 1, "identity", bias=False)))
    dead = Network.from_standard(np.zeros(layers.size), np.ones(layers.size), layers)
    assert posterity.fuse([dead, dead], networks=QUICK).achieved_kl == 0


def test_weights_that_overflow_are_an_error_that_names_the_site():
    rng = np.random.default_rng(27)
    wild = Network.from_standard(1e160 * rng.normal(size=DENSE.size), np.ones(DENSE.size), DENSE)
    with pytest.raises(ParameterError, match="at site 'wild'"):
        posterity.fuse({"tame": random_network(DENSE, rng), "wild": wild}, networks=QUICK)


def test_widths_are_whole_numbers_of_any_kind():
    rng = np.random.default_rng(23)
    locals_ = in_order(
        read_sites([random_network(DENSE, rng) for _ in range(2)], Plan()).loaded, np.ones(2)
    )
    wanted = lambda asked: widths_wanted(asked, locals_)
    for asked in (8, np.int64(8), [8], (np.int32(8),)):
        assert wanted(asked) == (8,)
    for asked in (8.0, np.nan, "8", [8.5]):
        with pytest.raises(UsageError, match="components"):
            wanted(asked)


def test_at_most_one_unit_of_a_site_in_a_fused_one_and_the_lightest_left_out():
    rng = np.random.default_rng(2)
    sites = {f"s{j}": random_network(Layers.dense(4, w, 2), rng) for j, w in enumerate((7, 3, 5))}
    for width in (4, 7, 9, 15):
        fused = posterity.fuse(sites, components=width, networks=QUICK)
        for name, labels in fused.plates["0"].matching.items():
            kept = labels[labels >= 0]
            assert len(set(kept)) == len(kept) == min(width, sites[name].layers.widths[0])
        assert fused.plates["0"].components == fused.widths[0] == width


def test_sites_that_learnt_more_of_an_output_count_more_there():
    rng = np.random.default_rng(4)
    sites = {}
    for j, sure in enumerate([(100.0, 2.0), (2.0, 100.0), (50.0, 50.0)]):
        variance = np.full(DENSE.size, 0.5)
        own = DENSE.unravel(variance)
        own[-1]["kernel"][:] = 1 / np.array([*sure, 1.0])
        network = Network.from_standard(rng.normal(size=DENSE.size), DENSE.ravel(own), DENSE)
        sites[f"s{j}"] = as_site(f"s{j}", network)
    fused = posterity.fuse(sites, networks=QUICK)
    shares = np.stack([fused.shares[name] for name in sorted(sites)])
    expected = np.array([[99, 1, 1], [1, 99, 1], [49, 49, 1]]) / [149, 149, 3]
    np.testing.assert_allclose(shares, expected)  # nobody learnt of the third: all alike


def test_weights_multiply_shares():
    rng = np.random.default_rng(5)
    network = random_network(DENSE, rng)  # the same at both sites, so that they learnt as much
    sites = {name: network for name in "ab"}
    fused = posterity.fuse(sites, weights={"a": 3.0, "b": 1.0}, networks=QUICK)
    np.testing.assert_allclose(fused.shares["a"], 0.75)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("rule", ["barycenter", "product"])
def test_the_ledger_is_the_fused_network_and_forgets(kind, rule):
    rng = np.random.default_rng(6)
    layers = NETWORKS[kind]
    sites = {f"s{j}": as_site(f"s{j}", random_network(layers, rng, 0.1), 1.0) for j in range(3)}
    fused = posterity.fuse(sites, rule=rule, networks=QUICK)
    assert fused.ledger.posterior == fused.posterior
    assert fused.ledger.sites == ("s0", "s1", "s2")
    assert not fused.ledger.independent
    left = fused.ledger.forget("s1").posterior
    assert left.layers == fused.posterior.layers
    assert left.is_proper().all()


def test_after_forgetting_what_is_left_predicts_as_the_rest():
    rng = np.random.default_rng(7)
    layers = Layers.dense(5, 10, 3)
    sites = {f"s{j}": as_site(f"s{j}", random_network(layers, rng, 0.01), 1.0) for j in range(4)}
    whole = posterity.fuse(sites, components=40, networks=QUICK)
    left = whole.ledger.forget("s2").posterior
    rest = posterity.fuse(
        {n: s for n, s in sites.items() if n != "s2"}, components=30, networks=QUICK
    )
    x = rng.normal(size=(200, 5))
    far = ((predicted(whole.posterior, x) - predicted(rest.posterior, x)) ** 2).mean()
    near = ((predicted(left, x) - predicted(rest.posterior, x)) ** 2).mean()
    assert near < 0.01 * far


def test_a_product_is_surer_than_a_barycenter():
    rng = np.random.default_rng(8)
    sites = {f"s{j}": as_site(f"s{j}", random_network(DENSE, rng)) for j in range(3)}
    mean, pooled = (
        posterity.fuse(sites, components=6, rule=rule, networks=QUICK).posterior.plain
        for rule in ("barycenter", "product")
    )
    assert (pooled.precision > mean.precision).mean() > 0.9
    np.testing.assert_allclose(pooled.mean, mean.mean, rtol=1e-6, atol=1e-9)


def test_given_inputs_are_those_that_networks_agree_on():
    rng = np.random.default_rng(9)
    sites = {f"s{j}": random_network(Layers.dense(5, 12, 3), rng) for j in range(3)}
    x = rng.normal(size=(400, 5)) * [1, 1, 0.01, 0.01, 0.01]
    told, blind = (
        posterity.fuse(sites, components=16, networks=o) for o in (Options(inputs=x), Options())
    )
    whole = sum(told.shares[name] * predicted(q, x) for name, q in sites.items())
    errors = [((predicted(f.posterior, x) - whole) ** 2).mean() for f in (told, blind)]
    assert errors[0] < errors[1]


def test_random_inputs_are_as_large_as_the_data_that_posteriors_saw():
    """Whatever the units of the inputs: the rescaled problem has the rescaled answer."""
    rng = np.random.default_rng(10)
    sizes = np.array([0.1, 1.0, 10.0, 100.0])
    layers = Layers.dense(4, 6, 2)
    sites = {}
    for name in "ab":
        own = layers.unravel(np.zeros(layers.size))
        slopes = rng.uniform(1, 5, 6)
        gained = [
            {"bias": 100 * slopes, "kernel": 100 * sizes[:, None] ** 2 * slopes},
            {"bias": np.ones(2), "kernel": np.ones((6, 2))},
        ]
        mean = [{n: rng.normal(size=a.shape) for n, a in layer.items()} for layer in own]
        mean[0]["kernel"] /= sizes[:, None]
        precision = 1 + layers.ravel(gained)
        network = Network.from_standard(layers.ravel(mean), 1 / precision, layers)
        sites[name] = as_site(name, network)
    locals_ = in_order(read_sites(sites, Plan()).loaded, np.ones(2))
    drawn = random_inputs(locals_, 20000, rng)
    np.testing.assert_allclose((drawn**2).mean(0), sizes**2, rtol=1e-6)


def test_units_that_were_switched_off_say_nothing_of_the_size_of_inputs():
    """They are surer than their prior for a reason that is not data, at the bias as anywhere."""
    layers, size, sites = Layers.dense(3, 4, 2), 0.2, {}
    for name in "ab":
        gained = layers.unravel(np.zeros(layers.size))
        gained[0]["bias"][:], gained[0]["kernel"][:] = 50.0, 50.0 * size
        gained[0]["bias"][2:], gained[0]["kernel"][:, 2:] = 900.0, 900.0
        mean = layers.unravel(np.full(layers.size, 3.0))
        mean[1]["kernel"][2:] = 0.5
        network = Network.from_standard(layers.ravel(mean), 1 / (1 + layers.ravel(gained)), layers)
        sites[name] = as_site(name, network)
    found = mean_squares(in_order(read_sites(sites, Plan()).loaded, np.ones(2)))
    np.testing.assert_allclose(found, size)


@pytest.mark.parametrize("outputs", [None, "values", "classes"])
def test_one_output_is_a_value_unless_it_is_a_class(outputs):
    rng = np.random.default_rng(11)
    sites = {f"s{j}": random_network(Layers.dense(3, 6, 1), rng) for j in range(2)}
    fused = posterity.fuse(sites, components=9, networks=Options(samples=60, outputs=outputs))
    assert 0 < fused.achieved_kl < np.inf


def test_identity_keeps_units_where_they_are():
    rng = np.random.default_rng(12)
    sites = {f"s{j}": random_network(TWO, rng) for j in range(2)}
    fused = posterity.fuse(sites, matching="identity", networks=QUICK)
    for plate in fused.plates.values():
        for labels in plate.matching.values():
            np.testing.assert_array_equal(labels, np.arange(len(labels)))


@pytest.mark.parametrize("matching", ["kl-fusion", "hungarian"])
def test_other_matchings_are_honoured(matching):
    rng = np.random.default_rng(13)
    network = random_network(DENSE, rng)
    fused = posterity.fuse([network, shuffled(network, rng)], matching=matching, networks=QUICK)
    assert fused.widths == (6,)


def test_a_file_and_a_stream_of_networks(tmp_path):
    rng = np.random.default_rng(15)
    sites = {f"s{j}": as_site(f"s{j}", random_network(DENSE, rng)) for j in range(2)}
    for name, ledger in sites.items():
        posterity.save(ledger, tmp_path / f"{name}.safetensors")
    fused = posterity.fuse(tmp_path, networks=QUICK)
    assert fused.posterior == posterity.fuse(iter(sites.values()), networks=QUICK).posterior
    posterity.save(fused.ledger, tmp_path / "out.safetensors")
    assert posterity.load(tmp_path / "out.safetensors").posterior == fused.posterior


def test_large_networks_are_not_streamed(monkeypatch):
    monkeypatch.setattr(plan, "BUDGET", 100)
    rng = np.random.default_rng(16)
    sites = {f"s{j}": random_network(DENSE, rng) for j in range(2)}
    assert posterity.fuse(sites, networks=QUICK).widths


WRONG = {
    "2 layers": Layers.dense(6, 5, 3),
    "layer 0": Layers.dense(7, 5, 4, 3),
    "layer 1": Layers((Dense(6, 5), Dense(5, 4, "tanh"), Dense(4, 3, "identity"))),
    "layer 2": Layers.dense(6, 5, 4, 2),
}


@pytest.mark.parametrize("told", WRONG)
def test_networks_that_do_not_fit_are_refused_with_the_layer(told):
    rng = np.random.default_rng(17)
    sites = {"a": random_network(TWO, rng), "b": random_network(WRONG[told], rng)}
    with pytest.raises(StructureError, match=told):
        posterity.fuse(sites)


def test_windows_that_differ_are_refused_with_the_layer():
    rng = np.random.default_rng(18)
    other = (Conv((3, 3), 1, 3, pool=2), Conv((2, 2), 3, 4, padding="same", stride=2))
    layers = Layers((*other, Dense(16, 5), Dense(5, 3, "identity")), image=(8, 8, 1))
    with pytest.raises(StructureError, match="layer 1"):
        posterity.fuse([random_network(LENET, rng), random_network(layers, rng)])


@pytest.mark.parametrize(
    "arguments",
    [
        {"absorb": True},
        {"budget": 2**30},
        {"components": 0},
        {"components": True},
        {"components": (3, 3)},
        {"components": 13},
        {"components": 5, "matching": "identity"},
        {"networks": Options(inputs=np.zeros((10, 3)))},
    ],
)
def test_arguments_that_say_nothing_of_networks_are_refused(arguments):
    rng = np.random.default_rng(19)
    sites = [random_network(DENSE, rng), random_network(DENSE, rng)]
    with pytest.raises((UsageError, StructureError)):
        posterity.fuse(sites, **arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"tolerance": 0.0},
        {"outputs": "counts"},
        {"inputs": np.array([[np.nan], [1.0]])},
        {"inputs": np.zeros(3)},
        {"samples": 0},
    ],
)
def test_options_are_checked(options):
    with pytest.raises(UsageError):
        Options(**options)


def test_networks_in_blocks_and_options_without_networks_are_refused():
    rng = np.random.default_rng(20)
    q = DiagonalGaussian.from_standard(np.zeros(2), np.ones(2))
    mixed = [Product(net=random_network(DENSE, rng), rest=q) for _ in range(2)]
    with pytest.raises(StructureError, match="block"):
        posterity.fuse(mixed)
    with pytest.raises(UsageError, match="networks"):
        posterity.fuse([q, q], networks=QUICK)
    with pytest.raises(StructureError):
        posterity.fuse([random_network(DENSE, rng), q])


@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_are_compared_whatever_their_units_are_called(kind):
    rng = np.random.default_rng(21)
    network = random_network(NETWORKS[kind], rng)
    found = diff(network, shuffled(network, rng))
    assert found.kl == (0.0, 0.0)
    assert diff(network, random_network(NETWORKS[kind], rng)).kl.ab > 1


def test_networks_of_other_widths_are_not_compared():
    rng = np.random.default_rng(22)
    with pytest.raises(StructureError, match="widths"):
        diff(random_network(DENSE, rng), random_network(Layers.dense(4, 5, 3), rng))
