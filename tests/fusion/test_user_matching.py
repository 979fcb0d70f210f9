"""Matchings that are known."""

import numpy as np
import pytest

from posterity import Dirichlet, Network, Product, fuse
from posterity.errors import UsageError
from posterity.networks import Layers
from tests.fusion.made import conjugate_site, plate, points


@pytest.mark.parametrize("rule", ["barycenter", "product"])
def test_what_was_found_and_is_given_again_is_the_same_fusion(rule):
    rng = np.random.default_rng(1)
    prior = Dirichlet.from_standard(np.full(3, 0.5))
    sites = {
        name: conjugate_site(
            name, prior, [rng.normal(9 * k, 1.0, (30, 2)) for k in rng.permutation(3)]
        )
        for name in "abc"
    }
    found = fuse(sites, rule=rule)
    again = fuse(sites, rule=rule, matching=found.matching)
    assert again.posterior == found.posterior
    assert again.ledger == found.ledger
    assert again.cost == pytest.approx(found.cost, rel=1e-9, abs=1e-9)


def test_labels_are_as_given_and_what_is_left_out_adds_nothing():
    sites = {"a": plate(0.0, 5.0), "b": plate(5.0, 9.0, 20.0)}
    fused = fuse(sites, matching={"a": [1, 0], "b": [0, -1, 2]})
    assert fused.components == 3
    assert fused.matching["b"].tolist() == [0, -1, 2]
    means = fused.posterior.members.mean[:, 0]
    np.testing.assert_allclose(means, [5.0, 0.0, 20.0], atol=1e-12)


@pytest.mark.parametrize("rule", ["barycenter", "product"])
@pytest.mark.parametrize("budget", [None, 4000])
def test_parts_of_one_component_have_one_label(rule, budget):
    """As in the matching of a fusion that put them together."""
    rng = np.random.default_rng(2)
    one, two, three = (rng.normal(9 * k, 1.0, (30, 2)) for k in range(3))
    wholes = {"a": [one, two, three], "b": [three[:20] + 0.1, one[:20] - 0.1, two[:20]]}
    labels = {"a": [0, 1, 2], "b": [2, 0, 1]}

    def members(clusters, labels, **options):
        prior = Dirichlet.from_standard(np.full(len(labels["a"]), 0.5))
        sites = {name: conjugate_site(name, prior, own) for name, own in clusters.items()}
        fused = fuse(sites, rule=rule, matching=labels, **options)
        assert {name: own.tolist() for name, own in fused.matching.items()} == labels
        return fused.posterior.members.natural_parameters

    parts = {name: [own[0], own[1][:9], own[2], own[1][9:]] for name, own in wholes.items()}
    split = {name: [*own, own[1]] for name, own in labels.items()}
    np.testing.assert_allclose(
        members(parts, split, budget=budget), members(wholes, labels), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    "matching, words",
    [
        ({"a": [0, 1]}, "sites"),
        ({"a": [0, 1], "b": [0, 1], "c": [0]}, "sites"),
        ({"a": [0, 0], "b": [0, 1]}, "twice"),
        ({"a": [0, 1], "b": [0]}, "2 whole numbers"),
        ({"a": [0, 3], "b": [0, 1]}, "gap"),
        ({"a": [0, -2], "b": [0, 1]}, "from -1"),
        ({"a": [0.0, 1.0], "b": [0, 1]}, "whole numbers"),
        ({"a": [-1, -1], "b": [0, 1]}, "site"),
        ({"a": ["x", "y"], "b": [0, 1]}, "whole numbers"),
    ],
)
def test_what_is_no_matching_is_refused(matching, words):
    with pytest.raises(UsageError, match=words):
        fuse({"a": plate(0.0, 5.0), "b": plate(5.0, 9.0)}, matching=matching)


def test_where_there_is_no_one_plate_it_is_refused():
    two = Product(one=plate(0.0, 1.0), other=plate(2.0, 3.0))
    labels = {"a": [0, 1], "b": [0, 1]}
    with pytest.raises(UsageError, match="2 plates"):
        fuse({"a": two, "b": two}, matching=labels)
    with pytest.raises(UsageError, match="0 plates"):
        fuse({"a": points([0.0])[0], "b": points([1.0])[0]}, matching=labels)
    with pytest.raises(UsageError, match="networks"):
        q = Network.prior(Layers.dense(2, 2, 1))
        fuse({"a": q, "b": q}, matching=labels)


def test_a_number_of_components_must_agree():
    with pytest.raises(UsageError, match="components=3"):
        fuse(
            {"a": plate(0.0, 5.0), "b": plate(5.0, 9.0)},
            matching={"a": [0, 1], "b": [0, 1]},
            components=3,
        )
